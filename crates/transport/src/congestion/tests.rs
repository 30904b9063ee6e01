use super::*;
use alloc::collections::VecDeque;
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
    window.threshold = 0;
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
    assert_eq!(window.size(), 100);
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
        window.lost(at(2));
        window.timed_out(at(3));
        window.congested(at(4));
    }
    assert_eq!((window.size(), window.in_flight(), window.next_waiter()), (u64::MAX, 0, None));
    assert!(window.is_unlimited() && !window.has_waiters());
}

#[test]
fn it_doubles_each_round_trip_to_the_threshold_then_adds_a_packet() {
    let mut window = Window::new(WindowConfig { initial: 2 * FULL_PACKET, ..WindowConfig::default() });
    window.threshold = 8 * FULL_PACKET;
    let mut sizes = Vec::new();
    for trip in 0..6 {
        let sent = ask(&mut window, A, 1000);
        for _ in 0..sent {
            window.acknowledged(at(trip * 100), FULL_PACKET, Some(100_000));
        }
        sizes.push(window.size() / FULL_PACKET);
    }
    assert_eq!(sizes, [4, 8, 9, 10, 11, 12]);
    for trip in 6..100 {
        let sent = ask(&mut window, A, 1000);
        window.acknowledged(at(trip * 100), u64::from(sent) * FULL_PACKET, Some(100_000));
    }
    assert_eq!(window.size(), STOCK_BUFFER, "and stops at the buffer");
}

#[test]
fn it_does_not_grow_while_it_is_not_used() {
    let mut window = Window::new(WindowConfig::default());
    for trip in 0..100 {
        assert_eq!(ask(&mut window, A, 4), 4);
        window.acknowledged(at(trip * 100), 4 * FULL_PACKET, Some(100_000));
    }
    assert_eq!(window.size(), 10 * FULL_PACKET);
    assert_eq!(ask(&mut window, A, 5), 5);
    window.acknowledged(at(0), 5 * FULL_PACKET, None);
    assert_eq!(window.size(), 15 * FULL_PACKET);
}

#[test]
fn losses_of_one_round_trip_cut_once() {
    let mut window = window(20);
    window.acknowledged(at(0), 0, Some(100_000));
    window.lost(at(1000));
    window.lost(at(1000));
    window.lost(at(1099));
    assert_eq!(window.size(), 14 * FULL_PACKET);
    window.lost(at(1100));
    assert_eq!(window.size(), 14 * FULL_PACKET / 10 * 7);
    for trip in 12..100 {
        window.lost(at(trip * 100));
    }
    assert_eq!(window.size(), 2 * FULL_PACKET, "never below its minimum");
}

#[test]
fn a_timeout_starts_over_towards_half_however_many_queue_pairs_report_it() {
    let mut window = window(20);
    for n in 0..100 {
        window.timed_out(at(n * 1000));
    }
    assert_eq!((window.size(), window.threshold), (2 * FULL_PACKET, 10 * FULL_PACKET));
    let sent = ask(&mut window, A, 100);
    window.acknowledged(at(200_000), u64::from(sent) * FULL_PACKET, None);
    assert_eq!(window.size(), 4 * FULL_PACKET);
    window.timed_out(at(300_000));
    assert_eq!((window.size(), window.threshold), (2 * FULL_PACKET, 2 * FULL_PACKET), "a second one says more");
}

#[test]
fn congestion_notifications_cut_gently_and_not_too_often() {
    let mut window = window(16);
    window.congested(at(0));
    window.congested(at(49));
    assert_eq!(window.size(), 14 * FULL_PACKET);
    window.congested(at(50));
    assert_eq!(window.size(), 14 * FULL_PACKET * 7 / 8);
    window.acknowledged(at(60), 0, Some(1_000_000));
    window.congested(at(1049));
    assert_eq!(window.size(), 14 * FULL_PACKET * 7 / 8, "a longer round trip is a longer pause");
    window.congested(at(1050));
    assert!(window.size() < 14 * FULL_PACKET * 7 / 8);
    for n in 2..100 {
        window.congested(at(n * 10_000));
    }
    assert_eq!(window.size(), 2 * FULL_PACKET);
}

#[test]
fn a_long_round_trip_shrinks_to_a_quarter_of_the_buffer_and_no_further() {
    let mut window = window(25);
    window.acknowledged(at(0), 0, Some(100_000));
    // Twice the shortest and a millisecond are allowed.
    for trip in 1..100 {
        window.acknowledged(at(trip * 2000), 0, Some(1_200_000));
    }
    assert_eq!(window.size(), 25 * FULL_PACKET);
    let mut sizes = vec![];
    for trip in 100..200 {
        window.acknowledged(at(trip * 2000), 0, Some(1_300_000));
        sizes.push(window.size());
    }
    assert_eq!(window.size(), STOCK_BUFFER / 4);
    assert!(sizes.is_sorted_by(|earlier, later| earlier >= later && *later >= earlier - earlier / 8));
    window.lost(at(900_000));
    let after_loss = window.size();
    for trip in 500..600 {
        let sent = ask(&mut window, A, 100);
        window.acknowledged(at(trip * 2000), u64::from(sent) * FULL_PACKET, Some(1_300_000));
    }
    assert!(window.size() > after_loss, "below that it recovers from loss in spite of the delay");
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

/// Sending processes, each with a window and queue pairs that always want to send, and one receiver with a buffer that takes one packet out of it
/// per tick on average: `batch` of them every `batch` ticks, acknowledged together. A tick is a microsecond.
struct Network {
    /// Ticks there, and ticks back.
    delay: u64,
    batch: u64,
    processes: Vec<Process>,
    /// Under way, and when it arrives. Everything takes `delay`, so what was put in first comes out first.
    events: VecDeque<(u64, Event)>,
    buffer: VecDeque<Packet>,
    dropped: u64,
    served: u64,
    fullest: usize,
    tick: u64,
    luck: u64,
}

struct Process {
    window: Window,
    /// Packets each queue pair got through.
    through: Vec<u64>,
    /// Full packets each asks for at once.
    appetite: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Packet {
    process: usize,
    qp: usize,
    sent: u64,
}

enum Event {
    Arrives(Packet),
    Acknowledged(Vec<Packet>),
    Missed(Packet),
}

impl Network {
    fn new(delay: u64, batch: u64, processes: usize, appetites: &[u32]) -> Network {
        let process = || Process {
            window: Window::new(WindowConfig::default()),
            through: vec![0; appetites.len()],
            appetite: appetites.to_vec(),
        };
        let mut network = Network {
            delay,
            batch,
            processes: (0..processes).map(|_| process()).collect(),
            events: VecDeque::new(),
            buffer: VecDeque::new(),
            dropped: 0,
            served: 0,
            fullest: 0,
            tick: 0,
            luck: 1,
        };
        for process in 0..processes {
            for qp in 0..appetites.len() {
                network.post(process, qp);
            }
        }
        network
    }

    /// Sends as a requester does that never runs out of work: until it is refused.
    fn post(&mut self, process: usize, qp: usize) {
        let Process { window, appetite, .. } = &mut self.processes[process];
        loop {
            let granted = ask(window, Qpn::new(qp as u32), appetite[qp]);
            for _ in 0..granted {
                let packet = Packet { process, qp, sent: self.tick };
                self.events.push_back((self.tick + self.delay, Event::Arrives(packet)));
            }
            if granted < appetite[qp] {
                break;
            }
        }
        assert!(window.in_flight() <= window.limit());
    }

    /// Nobody is always first: who is, is drawn.
    fn wake_all(&mut self) {
        self.luck = self.luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let count = self.processes.len();
        for turn in 0..count {
            let process = ((self.luck >> 33) as usize + turn) % count;
            while let Some(qpn) = self.processes[process].window.next_waiter() {
                self.post(process, qpn.value() as usize);
            }
        }
    }

    fn run(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.tick += 1;
            while self.events.front().is_some_and(|(when, _)| *when <= self.tick) {
                if let Some((_, event)) = self.events.pop_front() {
                    self.happen(event);
                }
                self.wake_all();
            }
            if self.tick.is_multiple_of(self.batch) && !self.buffer.is_empty() {
                let taken = self.buffer.len().min(self.batch as usize);
                let packets: Vec<Packet> = self.buffer.drain(..taken).collect();
                self.served += packets.len() as u64;
                self.events.push_back((self.tick + self.delay, Event::Acknowledged(packets)));
            }
        }
    }

    fn happen(&mut self, event: Event) {
        let now = at(self.tick);
        match event {
            Event::Arrives(packet) if (self.buffer.len() as u64 + 1) * FULL_PACKET > STOCK_BUFFER => {
                self.dropped += 1;
                self.events.push_back((self.tick + self.delay, Event::Missed(packet)));
            }
            Event::Missed(packet) => {
                let window = &mut self.processes[packet.process].window;
                window.release(FULL_PACKET);
                window.lost(now);
            }
            Event::Arrives(packet) => {
                self.buffer.push_back(packet);
                self.fullest = self.fullest.max(self.buffer.len());
            }
            Event::Acknowledged(packets) => {
                for Packet { process, qp, sent } in packets {
                    let Process { window, through, .. } = &mut self.processes[process];
                    through[qp] += 1;
                    window.acknowledged(now, FULL_PACKET, Some((self.tick - sent) * 1000));
                }
            }
        }
    }

    /// What the least and the most successful queue pair of a process got through.
    fn spread(&self, process: usize) -> (u64, u64) {
        let through = &self.processes[process].through;
        (*through.iter().min().unwrap(), *through.iter().max().unwrap())
    }
}

#[test]
fn queue_pairs_of_one_process_share_a_receiver_fairly_and_lose_nothing() {
    for (delay, batch) in [(1, 1), (10, 1), (1, 16), (2, 7)] {
        for count in [1, 2, 3, 4, 7, 25, 26, 100] {
            // The first queue pair wants everything at once, the others one to seven packets.
            let appetites: Vec<u32> = (0..count).map(|qp| if qp == 0 { 1000 } else { qp % 7 + 1 }).collect();
            let mut network = Network::new(delay, batch, 1, &appetites);
            network.run(100_000);
            let (least, most) = network.spread(0);
            let found = alloc::format!(
                "{count} queue pairs, delay {delay}, batch {batch}: {least} to {most} packets of {} through, {} lost, {} in the buffer at most",
                network.served,
                network.dropped,
                network.fullest
            );
            assert_eq!(network.dropped, 0, "{found}");
            assert!(network.served >= 99_000, "{found}");
            // Two turns, and what the first burst took before anybody waited.
            assert!(most - least <= 8 + 10, "{found}");
            if delay == 1 {
                assert!(network.fullest >= 23, "the buffer was put to use: {found}");
            }
        }
    }
}

#[test]
fn two_processes_that_share_a_receiver_converge_to_little_loss_and_similar_shares() {
    for (delay, batch) in [(1, 1), (10, 1), (2, 7)] {
        let mut network = Network::new(delay, batch, 2, &[1000, 1000]);
        network.run(200_000);
        let (served, dropped) = (network.served, network.dropped);
        for process in &mut network.processes {
            process.through.fill(0);
        }
        network.run(1_000_000);
        let (served, dropped) = (network.served - served, network.dropped - dropped);
        let [one, two] = [0, 1].map(|process| network.processes[process].through.iter().sum::<u64>());
        let found = alloc::format!("delay {delay}, batch {batch}: {served} served, {dropped} dropped, {one} and {two}");
        assert!(served >= 990_000, "{found}");
        assert!(dropped * 50 < served, "{found}");
        assert!(one.max(two) < 2 * one.min(two), "{found}");
    }
}
