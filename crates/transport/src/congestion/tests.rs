mod network;

use super::*;
use alloc::vec;
use alloc::vec::Vec;

const MTU: u32 = 4096;
const A: Qpn = Qpn::new(0xa);
const B: Qpn = Qpn::new(0xb);
const C: Qpn = Qpn::new(0xc);

fn at(micros: u64) -> Time {
    Time::from_nanos(micros * 1000)
}

/// A window of `packets` full packets that has stopped growing fast, with room to grow to a stock buffer.
fn window(packets: u64) -> Window {
    let mut window = Window::new(WindowConfig { initial: packets * FULL_PACKET, ..WindowConfig::default() });
    window.ssthresh = 0;
    window
}

/// Asks for `packets` full packets.
fn ask(window: &mut Window, qpn: Qpn, packets: u32) -> u32 {
    window.reserve(qpn, MTU, packets, MTU)
}

#[test]
fn a_stock_buffer_holds_25_packets_of_4_kib() {
    assert_eq!(FULL_PACKET, 8448);
    assert_eq!(STOCK_BUFFER / FULL_PACKET, 25);
    // The edges of one power of two.
    assert_eq!((packet_cost(0), packet_cost(134), packet_cost(135)), (768, 768, 1280));
    assert_eq!(packet_cost(u32::MAX), (1 << 33) + 256);
    let mut window = Window::new(WindowConfig { initial: u64::MAX, ..WindowConfig::default() });
    assert_eq!(ask(&mut window, A, 1000), 25);
    assert_eq!(window.in_flight(), Window::charge_of(MTU, 25, MTU));
}

#[test]
fn a_run_is_charged_for_what_its_packets_cost() {
    let mut window = window(10);
    assert_eq!(window.reserve(A, MTU, 3, 1), 3);
    assert_eq!(window.in_flight(), 2 * FULL_PACKET + packet_cost(1));
    assert_eq!(window.in_flight(), Window::charge_of(MTU, 3, 1));
    assert_eq!(window.reserve(A, MTU, 0, 0), 0);
    assert_eq!(Window::charge_of(MTU, 0, MTU), 0);
    // Seven and a bit are left: of a run of nine, seven full ones fit; the short last one is not sent before them.
    assert_eq!(window.reserve(A, MTU, 9, 1), 7);
    assert_eq!(window.in_flight(), 9 * FULL_PACKET + packet_cost(1));
    window.release(u64::MAX);
    assert_eq!(window.in_flight(), 0, "too much given back is no debt");
}

#[test]
fn with_nothing_in_flight_one_packet_always_goes() {
    let config = WindowConfig { limit: 100, initial: 100, minimum: 1000, ..WindowConfig::default() };
    let mut window = Window::new(config);
    assert_eq!(window.cwnd(), 100);
    assert_eq!(ask(&mut window, A, 5), 1);
    assert_eq!(window.in_flight(), FULL_PACKET);
    assert_eq!(ask(&mut window, B, 1), 0);
    window.acknowledged(at(1), FULL_PACKET, None);
    assert_eq!(ask(&mut window, C, 2), 1, "even out of turn: nobody's acknowledgement would wake the others");
    assert_eq!(window.next_waiter(), None);
    window.release(FULL_PACKET);
    assert_eq!(window.next_waiter(), Some(A));
}

#[test]
fn an_unlimited_window_never_refuses_and_counts_nothing() {
    let mut window = Window::unlimited();
    for _ in 0..3 {
        assert_eq!(ask(&mut window, A, u32::MAX), u32::MAX);
        window.acknowledged(at(1), 1 << 40, Some(1 << 40));
        window.lost(at(2), 4096, LostBehind::Unknown);
        window.timed_out(at(3));
    }
    assert_eq!((window.cwnd(), window.in_flight(), window.next_waiter()), (u64::MAX, 0, None));
    assert!(window.is_unlimited() && !window.has_waiters());
}

#[test]
fn it_doubles_each_round_trip_to_the_threshold_then_adds_a_packet() {
    let mut window = Window::new(WindowConfig { initial: 2 * FULL_PACKET, ..WindowConfig::default() });
    window.ssthresh = 8 * FULL_PACKET;
    let mut sizes = Vec::new();
    for trip in 0..6 {
        let sent = ask(&mut window, A, 1000);
        for _ in 0..sent {
            window.acknowledged(at(trip * 100), FULL_PACKET, Some(100_000));
        }
        sizes.push(window.cwnd() / FULL_PACKET);
    }
    assert_eq!(sizes, [4, 8, 9, 10, 11, 12]);
    for trip in 6..100 {
        let sent = ask(&mut window, A, 1000);
        window.acknowledged(at(trip * 100), u64::from(sent) * FULL_PACKET, Some(100_000));
    }
    assert_eq!(window.cwnd(), STOCK_BUFFER, "and stops at the buffer");
}

#[test]
fn it_does_not_grow_while_it_is_not_used() {
    let mut window = Window::new(WindowConfig::default());
    for trip in 0..100 {
        assert_eq!(ask(&mut window, A, 4), 4);
        window.acknowledged(at(trip * 100), 4 * FULL_PACKET, Some(100_000));
    }
    assert_eq!(window.cwnd(), 10 * FULL_PACKET);
    assert_eq!(ask(&mut window, A, 5), 5);
    window.acknowledged(at(0), 5 * FULL_PACKET, None);
    assert_eq!(window.cwnd(), 15 * FULL_PACKET);
}

#[test]
fn losses_of_one_round_trip_cut_once() {
    let mut window = window(20);
    window.acknowledged(at(0), 0, Some(100_000));
    window.lost(at(1000), 4096, LostBehind::Unknown);
    window.lost(at(1000), 4096, LostBehind::Unknown);
    window.lost(at(1099), 4096, LostBehind::Unknown);
    assert_eq!(window.cwnd(), 14 * FULL_PACKET);
    window.lost(at(1100), 4096, LostBehind::Unknown);
    assert_eq!(window.cwnd(), 14 * FULL_PACKET / 10 * 7);
    for trip in 12..100 {
        window.lost(at(trip * 100), 4096, LostBehind::Unknown);
    }
    assert_eq!(window.cwnd(), 2 * FULL_PACKET, "never below its minimum");
}

#[test]
fn a_timeout_starts_over_towards_half_however_many_queue_pairs_report_it() {
    let mut window = window(20);
    for n in 0..100 {
        window.timed_out(at(n * 1000));
    }
    assert_eq!((window.cwnd(), window.ssthresh), (2 * FULL_PACKET, 10 * FULL_PACKET));
    let sent = ask(&mut window, A, 100);
    window.acknowledged(at(200_000), u64::from(sent) * FULL_PACKET, None);
    assert_eq!(window.cwnd(), 4 * FULL_PACKET);
    window.timed_out(at(300_000));
    assert_eq!((window.cwnd(), window.ssthresh), (2 * FULL_PACKET, 2 * FULL_PACKET), "a second one says more");
}

#[test]
fn a_long_round_trip_shrinks_to_a_quarter_of_the_buffer_and_no_further() {
    let mut window = window(25);
    window.acknowledged(at(0), 0, Some(100_000));
    // Twice the shortest and a millisecond are allowed.
    for trip in 1..100 {
        window.acknowledged(at(trip * 2000), 0, Some(1_200_000));
    }
    assert_eq!(window.cwnd(), 25 * FULL_PACKET);
    let mut sizes = vec![];
    for trip in 100..200 {
        window.acknowledged(at(trip * 2000), 0, Some(1_300_000));
        sizes.push(window.cwnd());
    }
    assert_eq!(window.cwnd(), STOCK_BUFFER / 4);
    assert!(sizes.is_sorted_by(|earlier, later| earlier >= later && *later >= earlier - earlier / 8));
    window.lost(at(900_000), 4096, LostBehind::Unknown);
    let after_loss = window.cwnd();
    for trip in 500..600 {
        let sent = ask(&mut window, A, 100);
        window.acknowledged(at(trip * 2000), u64::from(sent) * FULL_PACKET, Some(1_300_000));
    }
    assert!(window.cwnd() > after_loss, "below that it recovers from loss in spite of the delay");
}

#[test]
fn the_shortest_round_trip_is_forgotten_after_ten_seconds() {
    let mut window = window(25);
    window.acknowledged(at(0), 0, Some(10_000));
    for second in 1..10 {
        window.acknowledged(at(second * 1_000_000), 0, Some(20_000_000));
    }
    assert!(window.round_trip.exceeds(1_000_000));
    window.acknowledged(at(10_000_000), 0, Some(20_000_000));
    assert!(!window.round_trip.exceeds(1_000_000));
    assert_eq!(window.round_trip.shortest, 20_000_000);
    window.acknowledged(at(10_000_001), 0, Some(u64::MAX));
    assert!(window.round_trip_nanos() > Some(20_000_000));
}

#[test]
fn those_who_wait_are_served_in_order_and_before_newcomers() {
    let mut window = window(2);
    assert_eq!(ask(&mut window, A, 2), 2);
    assert_eq!((ask(&mut window, B, 1), ask(&mut window, C, 1), ask(&mut window, B, 1)), (0, 0, 0));
    assert_eq!(window.next_waiter(), None, "no room yet");
    window.release(FULL_PACKET);
    assert_eq!(ask(&mut window, A, 1), 0, "there is room, but two wait for it");
    assert_eq!(window.next_waiter(), Some(B));
    assert_eq!(ask(&mut window, A, 1), 0);
    assert_eq!(ask(&mut window, B, 1), 1);
    assert_eq!(window.next_waiter(), None);
    window.release(FULL_PACKET);
    assert_eq!(window.next_waiter(), Some(C));
    assert_eq!(ask(&mut window, C, 1), 1);
    window.release(FULL_PACKET);
    assert_eq!(window.next_waiter(), Some(A), "A asked three times and waits once");
    assert_eq!(window.next_waiter(), None);
    assert!(!window.has_waiters());
}

#[test]
fn a_turn_is_a_quantum_while_others_wait_and_everything_when_nobody_does() {
    let mut window = window(20);
    assert_eq!(ask(&mut window, A, 100), 20);
    assert_eq!(ask(&mut window, B, 100), 0);
    window.release(20 * FULL_PACKET);
    assert_eq!(window.next_waiter(), Some(A));
    assert_eq!(ask(&mut window, A, 1), 1);
    assert_eq!(ask(&mut window, A, 100), 3, "the rest of four");
    assert_eq!(window.next_waiter(), Some(B));
    assert_eq!(ask(&mut window, B, 100), 4);
    assert_eq!(window.next_waiter(), Some(A));
    window.leave(B);
    assert_eq!(ask(&mut window, A, 100), 12, "nobody else waits");
}

#[test]
fn a_turn_that_the_window_cut_short_goes_on() {
    let mut window = window(4);
    assert_eq!(ask(&mut window, A, 100), 4);
    assert_eq!(ask(&mut window, B, 100), 0);
    window.release(FULL_PACKET);
    assert_eq!(window.next_waiter(), Some(A));
    for _ in 0..3 {
        assert_eq!(ask(&mut window, A, 100), 1);
        window.release(FULL_PACKET);
        assert_eq!(window.next_waiter(), Some(A));
    }
    assert_eq!(ask(&mut window, A, 100), 1, "the fourth of its quantum");
    window.release(FULL_PACKET);
    assert_eq!(window.next_waiter(), Some(B));
}

#[test]
fn a_turn_not_used_passes_on() {
    let mut window = window(2);
    assert_eq!(ask(&mut window, A, 2), 2);
    assert_eq!((ask(&mut window, B, 1), ask(&mut window, C, 1)), (0, 0));
    window.release(FULL_PACKET);
    assert_eq!((window.next_waiter(), window.next_waiter(), window.next_waiter()), (Some(B), Some(C), None));
    assert_eq!(ask(&mut window, A, 1), 1, "nobody waits any more");
}

#[test]
fn who_leaves_is_not_named_and_may_come_back() {
    let mut window = window(2);
    assert_eq!(ask(&mut window, A, 2), 2);
    assert_eq!((ask(&mut window, B, 1), ask(&mut window, C, 1)), (0, 0));
    window.leave(B);
    window.leave(B);
    assert_eq!(ask(&mut window, B, 1), 0);
    window.release(FULL_PACKET);
    assert_eq!((window.next_waiter(), window.next_waiter(), window.next_waiter()), (Some(C), Some(B), None));
}

#[test]
fn alone_in_the_queue_one_need_not_be_called() {
    let mut window = window(2);
    assert_eq!(ask(&mut window, A, 3), 2);
    window.release(FULL_PACKET);
    assert_eq!(ask(&mut window, A, 1), 1);
    assert!(!window.has_waiters());
}

#[test]
fn a_packet_dearer_than_the_one_announced_does_not_spin() {
    let mut window = window(2);
    assert_eq!(ask(&mut window, A, 2), 2);
    assert_eq!(window.reserve(B, 0, 1, 0), 0);
    window.release(packet_cost(0));
    assert_eq!(window.next_waiter(), Some(B));
    assert_eq!(ask(&mut window, B, 1), 0, "it wants more now");
    assert_eq!(window.next_waiter(), None);
    window.release(FULL_PACKET);
    assert_eq!(window.next_waiter(), Some(B));
    assert_eq!(ask(&mut window, B, 1), 1);
}

/// A window of `packets` full packets with room to grow.
fn wide(packets: u64) -> Window {
    let config = WindowConfig { limit: 400 * FULL_PACKET, initial: packets * FULL_PACKET, ..WindowConfig::default() };
    Window::new(config)
}

#[test]
fn packets_that_go_together_wait_for_room_for_all_of_them_where_there_is_enough() {
    let together = |window: &mut Window, qpn, packets| window.reserve_together(qpn, MTU, packets, MTU);
    let mut window = wide(60);
    assert!(window.is_wide(MTU) && !wide(59).is_wide(MTU) && !Window::unlimited().is_wide(MTU));
    assert_eq!(ask(&mut window, A, 50), 50);
    assert_eq!(together(&mut window, A, 15), 0, "there is room for ten");
    assert_eq!(together(&mut window, B, 1), 0, "who comes later waits behind it");
    window.release(4 * FULL_PACKET);
    assert_eq!(window.next_waiter(), None);
    window.release(FULL_PACKET);
    assert_eq!(window.next_waiter(), Some(A));
    assert_eq!(together(&mut window, A, 15), 15);
    assert_eq!(window.next_waiter(), None);
    window.release(60 * FULL_PACKET);
    assert_eq!(window.next_waiter(), Some(B));
    // A narrow one gives what it has.
    let mut window = wide(59);
    assert_eq!((ask(&mut window, A, 50), together(&mut window, A, 15)), (50, 9));
}

#[test]
fn acknowledgements_are_asked_for_by_a_quarter_of_a_wide_window_and_before_the_room_is_gone() {
    let mut window = wide(160);
    assert_eq!(window.burst(MTU), 30);
    assert_eq!(window.reserve_together(A, MTU, 30, MTU), 30);
    assert!(!window.should_ask(MTU, 10));
    assert!(window.should_ask(MTU, 11), "with the next burst it would be more than a quarter");
    assert_eq!(ask(&mut window, B, 100), 100);
    assert!(!window.should_ask(MTU, 10));
    assert_eq!(ask(&mut window, B, 1), 1);
    assert!(window.should_ask(MTU, 10), "the next burst has no room");
    window.release(40 * FULL_PACKET);
    assert!(!window.should_ask(MTU, 10));
    assert_eq!(ask(&mut window, B, 100), 69);
    window.release(100 * FULL_PACKET);
    assert!(window.should_ask(MTU, 1), "a queue pair waits");
    assert!(Window::unlimited().should_ask(MTU, 1) && wide(59).should_ask(MTU, 1));
    // In a very wide one what is left while the answer comes is enough, though it is not three quarters.
    let most = ((400 * FULL_PACKET - (2 << 20)) / FULL_PACKET) as u32;
    let window = wide(400);
    assert!(most > 100 && !window.should_ask(MTU, most - 60) && window.should_ask(MTU, most - 59));
}

#[test]
fn a_burst_fills_datagrams_if_a_quarter_of_the_window_does() {
    for (size, burst, longer) in [(40, 10, 10), (59, 14, 14), (60, 15, 2), (119, 15, 2), (120, 30, 17), (400, 60, 47)] {
        assert_eq!((wide(size).burst(MTU), wide(size).burst_after_longer(MTU)), (burst, longer), "{size}");
    }
}

/// Sends what the window allows and has it acknowledged a round trip later, `trips` times.
fn cycle(window: &mut Window, from: Time, trips: u64, round_trip: u64) -> Time {
    let mut now = from;
    for _ in 0..trips {
        let sent = ask(window, A, 1000);
        now = now.plus_nanos(round_trip);
        window.acknowledged(now, u64::from(sent) * FULL_PACKET, Some(round_trip));
    }
    now
}

#[test]
fn after_a_full_buffer_it_comes_back_slowly_and_after_bad_luck_as_ever() {
    // Losses are rare in both; only one of them has a queue behind it.
    for (queued, expected) in [(0, 20), (60_000, 17)] {
        let mut window = window(20);
        let now = cycle(&mut window, at(0), 1, 100_000);
        window.cwnd = 20 * FULL_PACKET;
        let now = cycle(&mut window, now, 8, 100_000 + queued);
        window.cwnd = 20 * FULL_PACKET;
        window.lost(now, 4096, LostBehind::Unknown);
        assert_eq!(window.cwnd(), 14 * FULL_PACKET);
        cycle(&mut window, now, 6, 100_000 + queued);
        assert_eq!(window.cwnd() / FULL_PACKET, expected, "six round trips after a loss with {queued} ns of queue");
    }
}

#[test]
fn towards_a_peer_that_goes_back_the_path_stays_full_where_few_packets_are_lost() {
    // Twelve packets fill the path. The larger the window was, the longer was the queue.
    for (behind, apart, expected) in
        [(LostBehind::Everything, 20, 18), (LostBehind::Everything, 5, 2), (LostBehind::Unknown, 20, 2)]
    {
        let mut window = window(12);
        let mut now = cycle(&mut window, at(0), 8, 100_000);
        window.cwnd = 24 * FULL_PACKET;
        for _ in 0..40 {
            // In time for the path to be filled, but for the packet that is lost.
            for _ in 0..apart {
                now = now.plus_nanos(100_000 / 12);
                window.acknowledged(now, FULL_PACKET, None);
            }
            window.lost(now, 4096, behind);
            window.cwnd = window.ssthresh;
        }
        assert_eq!(window.cwnd() / FULL_PACKET, expected, "one packet of {apart} lost, {behind:?}");
    }
}

#[test]
fn losses_in_quick_succession_are_not_luck() {
    let mut window = window(20);
    let now = cycle(&mut window, at(0), 3, 100_000);
    window.lost(now, 4096, LostBehind::Unknown);
    assert_eq!(window.ceiling, u64::MAX);
    let size = window.cwnd();
    // Twelve packets, less than a buffer, and the next.
    window.acknowledged(now, 12 * FULL_PACKET, None);
    window.lost(now.plus_nanos(100_000), 4096, LostBehind::Unknown);
    assert_eq!(window.ceiling, size);
}

#[test]
fn bad_luck_that_costs_one_packet_leaves_the_window_alone() {
    for (behind, left) in [(LostBehind::Nothing, 20), (LostBehind::Unknown, 14), (LostBehind::Everything, 20)] {
        let mut window = window(20);
        let now = cycle(&mut window, at(0), 3, 100_000);
        window.cwnd = 20 * FULL_PACKET;
        window.lost(now, 4096, behind);
        assert_eq!((window.cwnd() / FULL_PACKET, window.ceiling), (left, u64::MAX));
    }
}

#[test]
fn many_losses_are_not_luck_and_neither_is_one_behind_a_queue() {
    let mut window = window(20);
    let now = cycle(&mut window, at(0), 3, 100_000);
    // One of five, again and again.
    for trip in 1..20 {
        window.cwnd = 20 * FULL_PACKET;
        window.acknowledged(now, 5 * FULL_PACKET, None);
        window.lost(now.plus_nanos(trip * 200_000), 4096, LostBehind::Nothing);
    }
    assert_eq!(window.cwnd() / FULL_PACKET, 14);
    let mut window = self::window(20);
    let now = cycle(&mut window, at(0), 1, 100_000);
    let now = cycle(&mut window, now, 16, 160_000);
    window.cwnd = 20 * FULL_PACKET;
    window.lost(now, 4096, LostBehind::Nothing);
    assert_eq!(window.cwnd() / FULL_PACKET, 14);
}

#[test]
fn a_ceiling_that_no_longer_holds_is_forgotten() {
    let mut window = window(12);
    let now = cycle(&mut window, at(0), 1, 100_000);
    window.lost(now.plus_nanos(100_000), 4096, LostBehind::Unknown);
    assert_eq!(window.ceiling / FULL_PACKET, 13);
    let mut now = now;
    let mut trips = 0;
    while window.cwnd() < STOCK_BUFFER {
        now = cycle(&mut window, now, 1, 100_000);
        trips += 1;
        assert!(trips < 1000);
    }
    assert_eq!(window.ceiling, u64::MAX);
    // About five steps to pass it and get two beyond, at two milliseconds each; one per round trip for the rest.
    assert!((80..150).contains(&trips), "{trips} round trips");
}

/// Anything in any order: the books balance, the limit holds, and nobody is forgotten.
#[test]
fn whatever_happens_the_accounts_balance_and_everyone_is_served() {
    let mut luck = 1u64;
    let mut draw = |below: u64| {
        luck = luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (luck >> 33) % below
    };
    for round in 0..200 {
        // Every other is wide.
        let limit = if round % 2 == 0 { STOCK_BUFFER } else { 16 * STOCK_BUFFER };
        let initial = if round % 2 == 0 { WindowConfig::default().initial } else { limit };
        let mut window = Window::new(WindowConfig { limit, initial, ..WindowConfig::default() });
        let mut flights: Vec<u64> = Vec::new();
        let mut wanting = [false; 20];
        for step in 0..500 {
            let now = at(step * 3);
            let qp = draw(20) as usize;
            let qpn = Qpn::new(qp as u32);
            match draw(12) {
                0..4 => {
                    let (packets, last) = (draw(30) as u32 + 1, draw(4097) as u32);
                    let together = draw(2) == 0;
                    let packets = if together { packets.min(window.burst(MTU)) } else { packets };
                    let granted = match together {
                        true => window.reserve_together(qpn, MTU, packets, last),
                        false => window.reserve(qpn, MTU, packets, last),
                    };
                    assert!(granted <= packets);
                    wanting[qp] = granted < packets;
                    if granted > 0 {
                        let last = if granted == packets { last } else { MTU };
                        flights.push(Window::charge_of(MTU, granted, last));
                    }
                }
                4..8 if !flights.is_empty() => {
                    let cost = flights.swap_remove(draw(flights.len() as u64) as usize);
                    window.acknowledged(now, cost, Some(draw(5_000_000)));
                }
                8 if !flights.is_empty() => window.release(flights.swap_remove(0)),
                9 => window.lost(now, 4096, LostBehind::Unknown),
                10 if draw(10) == 0 => window.timed_out(now),
                11 => {
                    window.leave(qpn);
                    wanting[qp] = false;
                }
                _ => {}
            }
            assert_eq!(window.in_flight(), flights.iter().sum::<u64>());
            assert!(window.in_flight() <= limit && window.cwnd() <= limit);
            assert!(window.cwnd() >= 2 * FULL_PACKET);
        }
        for cost in flights {
            window.release(cost);
        }
        let mut named = [false; 20];
        while let Some(qpn) = window.next_waiter() {
            assert!(!core::mem::replace(&mut named[qpn.value() as usize], true), "round {round}: named twice");
        }
        for qp in 0..20 {
            assert!(!wanting[qp] || named[qp], "round {round}: {qp} wants to send and was forgotten");
        }
    }
}
