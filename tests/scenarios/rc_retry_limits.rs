//! How often and how long a reliable connection tries: the acknowledgement timer and its retry count, the receiver that is not ready and its own
//! count, each on both sides of its boundary. That retries bring the right result is told in `rc_retry`.

use scenery::{Log, Pair, Seen, Setting};
use sim::{Fate, LinkKind, Work, script};
use transport::{Completion, Failure, State, Status};
use wire::{Aeth, Headers, Msn, Mtu, NakCode, Opcode, Psn, RnrTimer, Syndrome};

const FIRST: Psn = Psn::new(0xff_ffff);

fn setting(kind: LinkKind) -> Setting {
    let mut setting = Setting::on(kind);
    setting.options.psn = Some((FIRST, Psn::new(900)));
    setting
}

/// Kinds of work that are one request on the wire.
fn single(pair: &Pair, index: usize) -> Work {
    let (there, here) = (pair.far.remote(0), pair.near.sge(0, 8));
    match index {
        0 => Work::write(there).sge(here),
        1 => Work::send().sge(here),
        2 => Work::read(there).sge(here),
        3 => Work::fetch_add(there, 1).sge(here),
        _ => Work::atomic_write(there).sge(here),
    }
}

fn requests(log: &Log, pair: &Pair) -> Vec<Seen> {
    log.packets().into_iter().filter(|seen| seen.from == pair.alice).collect()
}

/// Runs one request whose first `losses` tries (or, if `answers`, their answers) are lost.
fn lose(kind: LinkKind, retry_cnt: u8, losses: u32, index: usize, answers: bool) -> (Completion, Vec<Seen>) {
    let mut setting = setting(kind);
    setting.options.retry_cnt = retry_cnt;
    let mut pair = Pair::rc(&setting);
    pair.sim.receive(pair.b, 0, &[pair.far.sge(0, 8)]).unwrap();
    let log = Log::of(&mut pair.sim);
    let from = if answers { pair.bob } else { pair.alice };
    pair.sim.script(script::times(losses, move |seen| seen.from == from, Fate::Drop));
    let completion = pair.finish(&single(&pair, index));
    assert_eq!(pair.sim.state(pair.b), State::ReadyToSend, "the peer never knew");
    (completion, requests(&log, &pair))
}

#[test]
fn as_many_losses_as_retries_are_survived_and_one_more_is_not() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        for retries in 0..=7u8 {
            for index in 0..5 {
                for answers in [false, true] {
                    let context = format!("{kind:?}, {retries} retries, kind {index}, answers {answers}");
                    let (end, requests) = lose(kind, retries, u32::from(retries), index, answers);
                    assert_eq!(end.status, Status::Success, "{context}");
                    assert_eq!(requests.len(), usize::from(retries) + 1, "{context}");

                    let (end, requests) = lose(kind, retries, u32::from(retries) + 1, index, answers);
                    assert_eq!(end.status, Status::RetryExceeded, "{context}");
                    let tries = u32::from(retries) + 1;
                    assert_eq!(end.failure(), Some(Failure::NoAnswer { psn: FIRST, tries }), "{context}");
                    assert_eq!(requests.len(), tries as usize, "{context}: and not one packet more");
                    assert!(requests.iter().all(|seen| seen.psn() == FIRST), "{context}");
                }
            }
        }
    }
}

/// A peer that says it is not ready has answered: what is lost is counted from there.
#[test]
fn losses_between_answers_of_a_receiver_that_is_not_ready_do_not_add_up() {
    let mut setting = setting(LinkKind::Datagram);
    (setting.options.retry_cnt, setting.options.rnr_retry) = (2, 7);
    let mut pair = Pair::rc(&setting);
    let (alice, mut nth) = (pair.alice, 0);
    // Two of three tries are lost, ten times.
    let two_of_three = move |seen: &sim::Sighting<'_>| {
        nth += i32::from(seen.from == alice);
        seen.from == alice && nth % 3 != 0
    };
    pair.sim.script(script::times(20, two_of_three, Fate::Drop));
    let log = Log::of(&mut pair.sim);
    pair.sim.post(pair.a, &single(&pair, 1).id(1)).unwrap();
    while requests(&log, &pair).len() < 31 {
        pair.sim.run_for(1_000_000);
        assert_eq!(pair.sim.completions(pair.a), [], "after {} tries", requests(&log, &pair).len());
    }
    pair.sim.receive(pair.b, 0, &[pair.far.sge(0, 8)]).unwrap();
    pair.sim.run_for(60_000_000_000);
    assert_eq!(pair.sim.completions(pair.a).iter().map(|end| end.status).collect::<Vec<_>>(), [Status::Success]);
}

#[test]
fn tries_are_the_local_ack_timeout_apart() {
    for timeout in [1, 2, 8, 14, 20, 31u8] {
        let mut setting = setting(LinkKind::Datagram);
        setting.link.delay = 500;
        setting.options.timeout = timeout;
        setting.options.retry_cnt = 4;
        let mut pair = Pair::rc(&setting);
        pair.sim.partition(pair.alice, pair.bob);
        pair.sim.run_for(12_345);
        let log = Log::of(&mut pair.sim);
        let end = pair.finish(&single(&pair, 0));
        assert_eq!(end.status, Status::RetryExceeded);
        let interval = 4096u64 << timeout;
        let times: Vec<u64> = requests(&log, &pair).iter().map(|seen| seen.at.as_nanos()).collect();
        let expected: Vec<u64> = (0..5).map(|nth| 12_345 + nth * interval).collect();
        assert_eq!(times, expected, "timeout {timeout}");
        assert_eq!(pair.sim.now().as_nanos(), 12_345 + 5 * interval, "and the failure comes as long after the last");
    }
}

#[test]
fn an_answer_just_in_time_prevents_a_retry_and_one_just_too_late_does_not() {
    let interval = 4096u64 << 8;
    for (late, tries) in [(0, 1), (1, 2)] {
        let mut setting = setting(LinkKind::Datagram);
        setting.link.delay = 0;
        let mut pair = Pair::rc(&setting);
        let log = Log::of(&mut pair.sim);
        let bob = pair.bob;
        // Half of the way there, half of the way back; on the very tick what is first in the agenda wins, so one
        // nanosecond is left.
        pair.sim.script(script::once(move |seen| seen.from == bob, Fate::Delay(interval - 1 + 2 * late)));
        pair.succeed(&single(&pair, 0));
        assert_eq!(requests(&log, &pair).len(), tries, "{late}");
    }
}

#[test]
fn without_a_timeout_a_lost_packet_waits_until_somebody_notices() {
    for index in 0..5 {
        let mut setting = setting(LinkKind::Datagram);
        setting.options.timeout = 0;
        let mut pair = Pair::rc(&setting);
        pair.sim.receive(pair.b, 0, &[pair.far.sge(0, 8)]).unwrap();
        let alice = pair.alice;
        pair.sim.script(script::once(move |seen| seen.from == alice, Fate::Drop));
        let log = Log::of(&mut pair.sim);
        pair.sim.post(pair.a, &single(&pair, index).id(1)).unwrap();
        pair.sim.run_for(3_600_000_000_000);
        assert_eq!(pair.sim.completions(pair.a), [], "an hour is nothing");
        assert_eq!(requests(&log, &pair).len(), 1);
        // The next packet is refused, and that tells.
        pair.sim.post(pair.a, &Work::write(pair.far.remote(512)).inline(b"next").id(2)).unwrap();
        pair.sim.run_until_idle();
        let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
        assert_eq!(ends, [(1, Status::Success), (2, Status::Success)]);
        assert_eq!(requests(&log, &pair).len(), 3, "the second, then both");
    }
}

#[test]
fn progress_gives_all_retries_back() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        // Every request is lost as often as is allowed, one after the other.
        let mut setting = setting(kind);
        setting.options.retry_cnt = 2;
        let mut pair = Pair::rc(&setting);
        let alice = pair.alice;
        let mut lost = std::collections::HashMap::new();
        pair.sim.intercept(move |seen| {
            let times = lost.entry(seen.headers.bth.psn).or_insert(0);
            *times += u32::from(seen.from == alice);
            if seen.from == alice && *times <= 2 { Fate::Drop } else { Fate::Pass }
        });
        for id in 0..10 {
            pair.sim.post(pair.a, &single(&pair, if id % 2 == 0 { 0 } else { 2 }).id(id)).unwrap();
        }
        pair.sim.run_until_idle();
        let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
        assert_eq!(ends, (0..10).map(|id| (id, Status::Success)).collect::<Vec<_>>(), "{kind:?}");
    }
}

#[test]
fn a_sequence_refusal_spends_a_retry_too() {
    // IBA 9.9.2.1: the retry limit counts timeouts, sequence NAKs and implied NAKs alike.
    for (retry_cnt, status) in [(0, Status::RetryExceeded), (1, Status::Success)] {
        let mut setting = setting(LinkKind::Datagram).mtu(Mtu::B256);
        setting.options.retry_cnt = retry_cnt;
        let mut pair = Pair::rc(&setting);
        pair.sim.script(script::once(|seen| seen.headers.bth.opcode == Opcode::RcWriteFirst, Fate::Drop));
        let end = pair.finish(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 1000)));
        assert_eq!(end.status, status, "write, {retry_cnt}");

        let mut pair = Pair::rc(&setting);
        pair.sim.script(script::once(|seen| seen.headers.bth.opcode == Opcode::RcReadResponseFirst, Fate::Drop));
        let end = pair.finish(&Work::read(pair.far.remote(0)).sge(pair.near.sge(0, 1000)));
        assert_eq!(end.status, status, "read, {retry_cnt}");
    }
}

#[test]
fn a_refusal_and_the_timeouts_after_it_are_counted_together() {
    // What was refused is sent twice.
    for (losses, status) in [(4, Status::Success), (5, Status::RetryExceeded)] {
        let mut setting = setting(LinkKind::Datagram).mtu(Mtu::B256);
        setting.options.retry_cnt = 3;
        let mut pair = Pair::rc(&setting);
        let log = Log::of(&mut pair.sim);
        let alice = pair.alice;
        let second = move |seen: &sim::Sighting<'_>| seen.from == alice && seen.headers.bth.psn == FIRST.add(1);
        pair.sim.script(script::times(losses, second, Fate::Drop));
        let end = pair.finish(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 1000)));
        assert_eq!(end.status, status);
        let tries = requests(&log, &pair).iter().filter(|seen| seen.psn() == FIRST.add(1)).count();
        assert_eq!(tries, 5, "{losses} losses");
    }
}

#[test]
fn a_message_waits_for_a_receive_and_then_arrives() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let mut pair = Pair::rc(&setting(kind).mtu(Mtu::B256));
        for id in 0..3 {
            pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(id * 1000, 1000)).id(id)).unwrap();
        }
        pair.sim.run_for(3_000_000);
        assert_eq!(pair.sim.completions(pair.a), []);
        assert_eq!(pair.sim.completions(pair.b), []);
        for id in 0..3 {
            pair.sim.receive(pair.b, id, &[pair.far.sge(id * 1000, 1000)]).unwrap();
        }
        pair.sim.run_until_idle();
        for qp in [pair.a, pair.b] {
            let ends: Vec<_> = pair.sim.completions(qp).iter().map(|end| (end.wr_id, end.status)).collect();
            assert_eq!(ends, (0..3).map(|id| (id, Status::Success)).collect::<Vec<_>>());
        }
        assert_eq!(pair.far_bytes(0, 3000), pair.near_bytes(0, 3000), "{kind:?}");
        assert_eq!((pair.sim.async_events(pair.a), pair.sim.async_events(pair.b)), (vec![], vec![]));
    }
}

/// Sends to a receiver that posts its receive when it has refused `refusals` times.
fn not_ready(kind: LinkKind, rnr_retry: u8, refusals: usize, work: usize) -> (Completion, Vec<Seen>) {
    let mut setting = setting(kind);
    setting.options.rnr_retry = rnr_retry;
    setting.options.retry_cnt = 0;
    let mut pair = Pair::rc(&setting);
    let log = Log::of(&mut pair.sim);
    let work = match work {
        0 => Work::send().sge(pair.near.sge(0, 100)),
        _ => Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 100)).immediate(4),
    };
    pair.sim.post(pair.a, &work).unwrap();
    let mut seen = Vec::new();
    let enough = pair.sim.run_until(u64::MAX / 2, |_| {
        seen.extend(log.packets());
        let naks = seen.iter().filter(|seen: &&Seen| matches!(seen.syndrome(), Some(Syndrome::RnrNak { .. }))).count();
        naks >= refusals
    });
    assert!(enough, "{refusals} refusals");
    pair.sim.receive(pair.b, 9, &[pair.far.sge(0, 100)]).unwrap();
    pair.sim.run_until_idle();
    seen.extend(log.packets());
    let ends = pair.sim.completions(pair.a);
    let [end] = ends.as_slice() else { panic!("one completion expected: {ends:?}") };
    let received = pair.sim.completions(pair.b);
    assert_eq!(received.len(), usize::from(end.status == Status::Success), "{received:?}");
    (*end, seen)
}

#[test]
fn as_many_refusals_for_want_of_a_receive_as_allowed_are_survived_and_one_more_is_not() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        for work in 0..2 {
            for allowed in 0..=6u8 {
                let count = usize::from(allowed);
                let (end, packets) = not_ready(kind, allowed, count, work);
                assert_eq!(end.status, Status::Success, "{kind:?}, {allowed}");
                assert_eq!(packets.iter().filter(|seen| seen.headers.aeth.is_none()).count(), count + 1);

                let (end, packets) = not_ready(kind, allowed, count + 1, work);
                assert_eq!(end.status, Status::RnrRetryExceeded, "{kind:?}, {allowed}");
                let tries = u32::from(allowed) + 1;
                assert_eq!(end.failure(), Some(Failure::NotReady { psn: FIRST, tries }));
                assert_eq!(packets.iter().filter(|seen| seen.headers.aeth.is_none()).count(), tries as usize);
            }
        }
    }
}

#[test]
fn seven_means_as_long_as_it_takes() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let (end, packets) = not_ready(kind, 7, 1000, 0);
        assert_eq!(end.status, Status::Success);
        assert_eq!(packets.len(), 2002, "a thousand refusals, then it worked");
    }
}

#[test]
fn the_receiver_says_how_long_to_wait() {
    for code in [0, 1, 2, 7, 14, 22, 31u8] {
        let mut setting = setting(LinkKind::Datagram);
        setting.options.min_rnr_timer = code;
        setting.options.rnr_retry = 3;
        let mut pair = Pair::rc(&setting);
        let log = Log::of(&mut pair.sim);
        assert_eq!(pair.finish(&Work::send()).status, Status::RnrRetryExceeded);
        let packets = log.packets();
        let timer = RnrTimer::new(code);
        let answers: Vec<_> = packets.iter().filter(|seen| seen.from == pair.bob).collect();
        assert!(answers.iter().all(|nak| nak.syndrome() == Some(Syndrome::RnrNak { timer }) && nak.psn() == FIRST));
        assert_eq!(answers[0].headers.aeth.unwrap().msn, Msn::new(0));
        let times: Vec<u64> =
            packets.iter().filter(|seen| seen.from == pair.alice).map(|seen| seen.at.as_nanos()).collect();
        // There, back, and the wait.
        let round = 10_000 + timer.duration_ns();
        assert_eq!(times, (0..4).map(|nth| nth * round).collect::<Vec<_>>(), "code {code}");
    }
    // IBA table 46, in nanoseconds.
    let durations = [(0, 655_360_000), (1, 10_000), (12, 640_000), (13, 960_000), (21, 15_360_000), (31, 491_520_000)];
    for (code, nanos) in durations {
        assert_eq!(RnrTimer::new(code).duration_ns(), nanos, "code {code}");
    }
}

#[test]
fn nothing_is_sent_while_the_receiver_asked_for_patience() {
    let mut setting = setting(LinkKind::Datagram);
    setting.options.min_rnr_timer = 20; // 10.24 ms
    let mut pair = Pair::rc(&setting);
    pair.sim.post(pair.a, &Work::send().id(0)).unwrap();
    pair.sim.run_for(20_000);
    let log = Log::of(&mut pair.sim);
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).inline(b"after").id(1)).unwrap();
    pair.sim.receive(pair.b, 0, &[]).unwrap();
    pair.sim.run_for(10_000_000);
    assert_eq!(log.packets(), []);
    pair.sim.run_until_idle();
    assert_eq!(pair.sim.completions(pair.a).len(), 2);
    assert_eq!(pair.far_bytes(0, 5), b"after");
}

#[test]
fn the_receivers_own_requests_go_on_while_it_is_not_ready() {
    let mut pair = Pair::rc(&setting(LinkKind::Datagram));
    pair.sim.post(pair.a, &Work::send().id(0)).unwrap();
    pair.sim.run_for(20_000);
    pair.sim.post(pair.b, &Work::write(pair.near.remote(0)).inline(b"meanwhile").id(5)).unwrap();
    pair.sim.post(pair.b, &Work::read(pair.near.remote(0)).sge(pair.far.sge(0, 9)).id(6)).unwrap();
    pair.sim.run_for(20_000);
    let ends: Vec<_> = pair.sim.completions(pair.b).iter().map(|end| (end.wr_id, end.status)).collect();
    assert_eq!(ends, [(5, Status::Success), (6, Status::Success)]);
    assert_eq!((pair.near_bytes(0, 9), pair.far_bytes(0, 9)), (&b"meanwhile"[..], &b"meanwhile"[..]));
}

#[test]
fn progress_gives_all_receiver_retries_back() {
    let mut setting = setting(LinkKind::Datagram);
    setting.options.rnr_retry = 1;
    let mut pair = Pair::rc(&setting);
    let log = Log::of(&mut pair.sim);
    for id in 0..20 {
        pair.sim.post(pair.a, &Work::send().id(id)).unwrap();
    }
    // One receive after each refusal.
    for id in 0..20 {
        let refused = pair.sim.run_until(1_000_000, |_| {
            log.packets().iter().any(|seen| matches!(seen.syndrome(), Some(Syndrome::RnrNak { .. })))
        });
        assert!(refused);
        pair.sim.receive(pair.b, id, &[]).unwrap();
    }
    pair.sim.run_until_idle();
    let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
    assert_eq!(ends, (0..20).map(|id| (id, Status::Success)).collect::<Vec<_>>());
}

#[test]
fn only_the_last_packet_of_a_write_with_immediate_waits_for_a_receive() {
    let mut pair = Pair::rc(&setting(LinkKind::Datagram).mtu(Mtu::B256));
    let log = Log::of(&mut pair.sim);
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 1000)).immediate(6)).unwrap();
    pair.sim.run_for(11_000);
    assert_eq!(pair.far_bytes(0, 768), pair.near_bytes(0, 768), "the rest is there");
    assert_eq!(pair.far_bytes(768, 232), [0; 232]);
    pair.sim.receive(pair.b, 3, &[]).unwrap();
    pair.sim.run_until_idle();
    assert_eq!(pair.received().immediate, Some(6));
    let packets = log.packets();
    let numbers: Vec<_> = packets.iter().filter(|seen| seen.from == pair.alice).map(|seen| seen.psn()).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 3].map(|offset| FIRST.add(offset)));
    let nak = packets.iter().find(|seen| seen.from == pair.bob).expect("an answer");
    assert_eq!(nak.psn(), FIRST.add(3));
}

/// Kernel rxe says "receiver not ready" and then, because of the packets behind, "out of sequence" for the same number.
#[test]
fn a_sequence_refusal_right_after_not_ready_is_ignored() {
    let mut setting = setting(LinkKind::Datagram);
    setting.options.min_rnr_timer = 18; // 5.12 ms
    setting.options.rnr_retry = 1;
    setting.options.retry_cnt = 0;
    let mut pair = Pair::rc(&setting);
    let source = pair.sim.gid(pair.bob, 0);
    pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(0, 100))).unwrap();
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).inline(b"behind")).unwrap();
    pair.sim.run_for(10_001);
    let log = Log::of(&mut pair.sim);
    for syndrome in [Syndrome::Nak(NakCode::SequenceError), Syndrome::RnrNak { timer: RnrTimer::new(18) }] {
        let mut nak = Headers::new(Opcode::RcAcknowledge, pair.a.qpn, FIRST);
        nak.aeth = Some(Aeth { syndrome, msn: Msn::new(0) });
        pair.sim.inject(pair.alice, source, &nak, &[]).unwrap();
    }
    pair.sim.run_for(5_000_000);
    assert_eq!(log.packets(), [], "the wait goes on");
    pair.sim.receive(pair.b, 0, &[pair.far.sge(1000, 100)]).unwrap();
    pair.sim.run_until_idle();
    let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| end.status).collect();
    assert_eq!(ends, [Status::Success, Status::Success], "neither spent a retry");
    let sent: Vec<_> = requests(&log, &pair).iter().map(|seen| (seen.opcode(), seen.at.as_nanos())).collect();
    let over = 10_000 + 5_120_000;
    assert_eq!(sent, [(Opcode::RcSendOnly, over), (Opcode::RcWriteOnly, over)]);
}

#[test]
fn waiting_for_a_receive_spends_no_retry_and_losing_packets_no_wait() {
    let mut setting = setting(LinkKind::Datagram);
    setting.options.rnr_retry = 2;
    setting.options.retry_cnt = 2;
    let mut pair = Pair::rc(&setting);
    let log = Log::of(&mut pair.sim);
    // Lost, not ready, lost, not ready, then both are spent and it works.
    let alice = pair.alice;
    let mut tries = 0;
    pair.sim.intercept(move |seen| {
        tries += u32::from(seen.from == alice);
        if seen.from == alice && (tries == 1 || tries == 3) { Fate::Drop } else { Fate::Pass }
    });
    pair.sim.post(pair.a, &Work::send()).unwrap();
    let mut naks = 0;
    pair.sim.run_until(u64::MAX / 2, |_| {
        naks += log.packets().iter().filter(|seen| seen.headers.aeth.is_some()).count();
        naks == 2
    });
    pair.sim.receive(pair.b, 0, &[]).unwrap();
    pair.sim.run_until_idle();
    assert_eq!(pair.sim.completions(pair.a)[0].status, Status::Success);
}

/// Programs choose timeouts of many milliseconds. Once a round trip is known, a lost tail is sent again long before.
#[test]
fn silence_is_suspicious_before_it_is_a_timeout() {
    let mut setting = setting(LinkKind::Datagram);
    setting.options.timeout = 14; // 67 ms
    setting.options.retry_cnt = 0;
    let mut pair = Pair::rc(&setting);
    pair.succeed(&single(&pair, 0));
    let alice = pair.alice;
    pair.sim.script(script::once(move |seen| seen.from == alice, Fate::Drop));
    let started = pair.sim.now();
    // No retry is allowed, and none is spent on a suspicion.
    pair.succeed(&single(&pair, 2));
    assert!(pair.sim.now().since(started) < 4096 << 14 >> 3, "{}", pair.sim.now());
}

/// A link that loses nothing is believed: who is silent there is slow. If it loses something all the same the timeout finds it.
#[test]
fn silence_is_not_suspicious_where_nothing_is_lost() {
    let mut setting = setting(LinkKind::Whole);
    setting.options.timeout = 14; // 67 ms
    setting.options.retry_cnt = 1;
    let mut pair = Pair::rc(&setting);
    pair.succeed(&single(&pair, 0));
    let alice = pair.alice;
    pair.sim.script(script::once(move |seen| seen.from == alice, Fate::Drop));
    let started = pair.sim.now();
    pair.succeed(&single(&pair, 2));
    assert!(pair.sim.now().since(started) >= 4096 << 14, "{}", pair.sim.now());
}

#[test]
fn suspicion_does_not_put_off_the_failure() {
    for retry_cnt in [0, 3u8] {
        let mut setting = setting(LinkKind::Datagram);
        setting.options.timeout = 14;
        setting.options.retry_cnt = retry_cnt;
        let mut pair = Pair::rc(&setting);
        pair.succeed(&single(&pair, 0));
        pair.sim.partition(pair.alice, pair.bob);
        let started = pair.sim.now();
        let log = Log::of(&mut pair.sim);
        let end = pair.finish(&single(&pair, 0));
        let tries = u32::from(retry_cnt) + 1;
        assert_eq!(end.failure(), Some(Failure::NoAnswer { psn: FIRST.add(1), tries }));
        assert_eq!(pair.sim.now().since(started), u64::from(tries) * (4096 << 14), "{retry_cnt} retries");
        let sent = requests(&log, &pair).len();
        assert!(sent > tries as usize && sent < 12 * tries as usize, "{sent} packets: patience grows");
    }
}
