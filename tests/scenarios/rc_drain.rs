//! Stopping the send queue of a reliable connection at a message boundary and going on again, and what a query tells on the way.

use scenery::{Log, Pair, Setting};
use sim::{Fate, LinkConfig, LinkKind, QpSpec, Work, script};
use transport::{Access, AsyncEvent, Attributes, Modify, ModifyError, Queue, Sge, State, Status};
use wire::{Key, Mtu, Opcode, Psn};

/// To SQD, with or without a word when the queue has drained.
fn drain(notify: Option<bool>) -> Modify {
    Modify { state: Some(State::SendQueueDrained), sqd_async_notify: notify, ..Modify::default() }
}

fn to(state: State) -> Modify {
    Modify { state: Some(state), ..Modify::default() }
}

fn ends(pair: &mut Pair) -> Vec<(u64, Status)> {
    let sends = pair.sim.completions(pair.a).into_iter().filter(|end| end.queue == Queue::Send);
    sends.map(|end| (end.wr_id, end.status)).collect()
}

fn fine(ids: std::ops::Range<u64>) -> Vec<(u64, Status)> {
    ids.map(|id| (id, Status::Success)).collect()
}

const DRAINED: [AsyncEvent; 1] = [AsyncEvent::SendQueueDrained];

#[test]
fn work_that_has_begun_is_finished_before_the_queue_has_drained() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        let works = [
            Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 9000)),
            Work::read(pair.far.remote(0)).sge(pair.near.sge(10_000, 9000)),
            Work::fetch_add(pair.far.remote(20_000), 1).sge(pair.near.sge(20_000, 8)),
        ];
        for (id, work) in works.into_iter().enumerate() {
            pair.sim.post(pair.a, &work.id(id as u64)).unwrap();
        }
        pair.sim.modify(pair.a, &drain(Some(true))).unwrap();
        assert_eq!(pair.sim.async_events(pair.a), [], "not yet");
        assert_eq!(pair.sim.state(pair.a), State::SendQueueDrained);
        pair.sim.run_until_idle();
        assert_eq!(ends(&mut pair), fine(0..3));
        assert_eq!(pair.sim.async_events(pair.a), DRAINED);
        assert_eq!(pair.sim.state(pair.a), State::SendQueueDrained, "and there it stays");
        assert_eq!(pair.sim.async_events(pair.b), []);
    }
}

#[test]
fn an_idle_queue_has_drained_at_once() {
    let mut pair = Pair::rc(&Setting::default());
    pair.sim.modify(pair.a, &drain(Some(true))).unwrap();
    assert_eq!(pair.sim.async_events(pair.a), DRAINED);
    // Once for each time it was asked for.
    pair.sim.run_until_idle();
    assert_eq!(pair.sim.async_events(pair.a), []);
    pair.sim.modify(pair.a, &to(State::ReadyToSend)).unwrap();
    pair.succeed(&Work::write(pair.far.remote(0)).inline(b"between"));
    assert_eq!(pair.sim.async_events(pair.a), []);
    pair.sim.modify(pair.a, &drain(Some(true))).unwrap();
    assert_eq!(pair.sim.async_events(pair.a), DRAINED);
}

#[test]
fn nobody_is_told_who_did_not_ask() {
    for notify in [None, Some(false)] {
        let mut pair = Pair::rc(&Setting::default());
        pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 9000))).unwrap();
        pair.sim.modify(pair.a, &drain(notify)).unwrap();
        pair.sim.run_until_idle();
        assert_eq!(pair.sim.async_events(pair.a), []);
        assert_eq!(ends(&mut pair), fine(0..1));
    }
}

#[test]
fn work_posted_while_drained_waits_and_then_runs_in_order() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 9000)).id(0)).unwrap();
        pair.sim.modify(pair.a, &drain(Some(true))).unwrap();
        pair.sim.run_until_idle();
        assert_eq!(ends(&mut pair), fine(0..1));
        let log = Log::of(&mut pair.sim);
        let works = [
            Work::write(pair.far.remote(10_000)).sge(pair.near.sge(10_000, 3000)),
            Work::fetch_add(pair.far.remote(20_000), 1).sge(pair.near.sge(20_000, 8)),
            Work::read(pair.far.remote(10_000)).sge(pair.near.sge(30_000, 3000)),
        ];
        for (id, work) in works.into_iter().enumerate() {
            pair.sim.post(pair.a, &work.id(id as u64 + 1)).unwrap();
        }
        pair.sim.run_for(10_000_000);
        assert_eq!(log.packets(), [], "nothing goes out");
        assert_eq!(ends(&mut pair), []);
        pair.sim.modify(pair.a, &to(State::ReadyToSend)).unwrap();
        pair.sim.run_until_idle();
        assert_eq!(ends(&mut pair), fine(1..4));
        assert_eq!(pair.near_bytes(30_000, 3000), pair.near_bytes(10_000, 3000));
        assert_eq!(u64::from_ne_bytes(pair.far_bytes(20_000, 8).try_into().unwrap()), 1);
    }
}

#[test]
fn a_message_in_the_middle_is_sent_to_its_end_and_the_next_not_begun() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let mut setting = Setting::on(kind).mtu(Mtu::B4096);
        setting.link = LinkConfig { bandwidth: Some(2_000_000_000), ring: 4096, ..setting.link };
        setting.options.timeout = 14;
        let mut pair = Pair::new(&setting, QpSpec::rc(), QpSpec::rc(), 1 << 20);
        let log = Log::of(&mut pair.sim);
        for id in 0..2 {
            let work = Work::write(pair.far.remote(id << 19)).sge(pair.near.sge(id << 19, 1 << 19)).id(id);
            pair.sim.post(pair.a, &work).unwrap();
        }
        pair.sim.run_for(500_000);
        let before: u32 = log.packets().iter().filter(|seen| seen.from == pair.alice).map(|seen| seen.count).sum();
        assert!(before > 0 && before < 128, "{kind:?}: {before} packets so far");
        pair.sim.modify(pair.a, &drain(Some(true))).unwrap();
        assert_eq!(pair.sim.async_events(pair.a), []);
        pair.sim.run_until_idle();
        assert_eq!(ends(&mut pair), fine(0..1), "{kind:?}");
        assert_eq!(pair.sim.async_events(pair.a), DRAINED, "{kind:?}");
        let sent: u32 = log.packets().iter().filter(|seen| seen.from == pair.alice).map(|seen| seen.count).sum();
        assert_eq!(before + sent, 128, "{kind:?}: the first message and not a packet of the second");
        pair.sim.modify(pair.a, &to(State::ReadyToSend)).unwrap();
        pair.sim.run_until_idle();
        assert_eq!(ends(&mut pair), fine(1..2));
        assert!(pair.sim.bytes(&pair.far) == pair.sim.bytes(&pair.near), "{kind:?}");
    }
}

#[test]
fn work_that_waited_for_a_fence_or_for_reads_has_not_begun() {
    for fenced in [true, false] {
        let mut setting = Setting::default();
        setting.options.max_rd_atomic = 1;
        let mut pair = Pair::rc(&setting);
        let read = Work::read(pair.far.remote(0)).sge(pair.near.sge(0, 100));
        let second = if fenced { Work::write(pair.far.remote(0)).inline(b"x").fenced() } else { read.clone() };
        let log = Log::of(&mut pair.sim);
        pair.sim.post(pair.a, &read.id(0)).unwrap();
        pair.sim.post(pair.a, &second.fenced().id(1)).unwrap();
        pair.sim.modify(pair.a, &drain(Some(true))).unwrap();
        pair.sim.run_until_idle();
        assert_eq!(ends(&mut pair), fine(0..1), "fenced: {fenced}");
        assert_eq!(pair.sim.async_events(pair.a), DRAINED);
        assert_eq!(log.packets().iter().filter(|seen| seen.from == pair.alice).count(), 1);
        pair.sim.modify(pair.a, &to(State::ReadyToSend)).unwrap();
        pair.sim.run_until_idle();
        assert_eq!(ends(&mut pair), fine(1..2));
    }
}

#[test]
fn nothing_is_sent_and_nothing_completes_once_the_queue_has_drained() {
    // READs wait for each other on the wire: whether the next has begun is the queue pair's business, but it must not change its mind.
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        for allowed in [1, 2] {
            let mut setting = Setting::on(kind);
            setting.options.max_rd_atomic = allowed;
            let mut pair = Pair::rc(&setting);
            let log = Log::of(&mut pair.sim);
            for id in 0..5 {
                pair.sim.post(pair.a, &Work::read(pair.far.remote(0)).sge(pair.near.sge(0, 100)).id(id)).unwrap();
            }
            pair.sim.modify(pair.a, &drain(Some(true))).unwrap();
            let a = pair.a;
            assert!(pair.sim.run_until(1_000_000, |sim| sim.async_events(a) == DRAINED), "{kind:?}, {allowed}");
            let sent = log.packets().iter().filter(|seen| seen.from == pair.alice).count() as u64;
            assert_eq!(ends(&mut pair), fine(0..sent), "{kind:?}, {allowed}: what was sent is done");
            pair.sim.run_until_idle();
            assert_eq!((log.packets(), ends(&mut pair)), (vec![], vec![]), "{kind:?}, {allowed}");
            pair.sim.modify(pair.a, &to(State::ReadyToSend)).unwrap();
            pair.sim.run_until_idle();
            assert_eq!(ends(&mut pair), fine(sent..5), "{kind:?}, {allowed}");
        }
    }
}

#[test]
fn draining_goes_through_losses_and_waits() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let mut pair = Pair::rc(&Setting::on(kind).mtu(Mtu::B256));
        pair.sim.script(script::times(3, |_| true, Fate::Drop));
        for id in 0..2 {
            pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(0, 1000)).id(id)).unwrap();
        }
        pair.sim.modify(pair.a, &drain(Some(true))).unwrap();
        pair.sim.run_for(5_000_000);
        assert_eq!(pair.sim.async_events(pair.a), [], "the receiver is not ready");
        for id in 0..2 {
            pair.sim.receive(pair.b, id, &[pair.far.sge(0, 1000)]).unwrap();
        }
        pair.sim.run_until_idle();
        assert_eq!(pair.sim.async_events(pair.a), DRAINED, "{kind:?}");
        assert_eq!(ends(&mut pair), fine(0..2));
    }
}

#[test]
fn a_drained_queue_pair_serves_its_peer() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        pair.sim.modify(pair.b, &drain(None)).unwrap();
        pair.sim.receive(pair.b, 4, &[pair.far.sge(0, 100)]).unwrap();
        pair.succeed(&Work::send().inline(b"received"));
        assert_eq!(pair.received().wr_id, 4);
        pair.succeed(&Work::write(pair.far.remote(200)).inline(b"written"));
        pair.succeed(&Work::read(pair.far.remote(200)).sge(pair.near.sge(0, 7)));
        assert_eq!(pair.near_bytes(0, 7), b"written");
        pair.succeed(&Work::fetch_add(pair.far.remote(800), 2).sge(pair.near.sge(0, 8)));
    }
}

#[test]
fn a_failure_while_draining_is_a_failure_and_no_drained_queue() {
    let mut pair = Pair::rc(&Setting::default());
    let nowhere = transport::Remote { key: Key::new(0xbad0_0000), ..pair.far.remote(0) };
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 100)).id(0)).unwrap();
    pair.sim.post(pair.a, &Work::write(nowhere).sge(pair.near.sge(0, 100)).id(1)).unwrap();
    pair.sim.modify(pair.a, &drain(Some(true))).unwrap();
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 100)).id(2)).unwrap();
    pair.sim.run_until_idle();
    let expected = [(0, Status::Success), (1, Status::RemoteAccess), (2, Status::WorkRequestFlushed)];
    assert_eq!(ends(&mut pair), expected);
    assert_eq!(pair.sim.async_events(pair.a), []);
    assert_eq!(pair.sim.state(pair.a), State::Error);

    // The same by modify.
    let mut pair = Pair::rc(&Setting::default());
    pair.sim.modify(pair.a, &drain(None)).unwrap();
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).inline(b"waits").id(7)).unwrap();
    pair.sim.modify(pair.a, &to(State::Error)).unwrap();
    assert_eq!(ends(&mut pair), [(7, Status::WorkRequestFlushed)]);
}

#[test]
fn work_that_fails_here_is_looked_at_only_when_sending_goes_on() {
    let mut pair = Pair::rc(&Setting::default());
    pair.sim.modify(pair.a, &drain(Some(true))).unwrap();
    assert_eq!(pair.sim.async_events(pair.a), DRAINED);
    let bad = Sge { key: Key::new(0xbad0_0000), ..pair.near.sge(0, 8) };
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(bad).id(0)).unwrap();
    pair.sim.run_until_idle();
    assert_eq!(ends(&mut pair), []);
    pair.sim.modify(pair.a, &to(State::ReadyToSend)).unwrap();
    assert_eq!(ends(&mut pair), [(0, Status::LocalProtection)]);
}

#[test]
fn what_may_change_while_drained_counts_from_then_on() {
    let mut pair = Pair::rc(&Setting::default());
    pair.sim.modify(pair.a, &drain(None)).unwrap();
    let change = Modify { timeout: Some(4), retry_cnt: Some(1), max_rd_atomic: Some(2), ..Modify::default() };
    pair.sim.modify(pair.a, &change).unwrap();
    let attributes = pair.sim.attributes(pair.a);
    assert_eq!((attributes.timeout, attributes.retry_cnt, attributes.max_rd_atomic), (4, 1, 2));
    // What both sides must agree on may not.
    let change = Modify { path_mtu: Some(Mtu::B256), ..Modify::default() };
    assert!(matches!(pair.sim.modify(pair.a, &change), Err(ModifyError::NotAllowed { .. })));
    pair.sim.modify(pair.a, &to(State::ReadyToSend)).unwrap();
    pair.sim.partition(pair.alice, pair.bob);
    let started = pair.sim.now();
    assert_eq!(pair.finish(&Work::write(pair.far.remote(0)).inline(b"x")).status, Status::RetryExceeded);
    assert_eq!(pair.sim.now().since(started), 2 * (4096 << 4));
}

#[test]
fn rights_withdrawn_while_connected_are_gone_for_the_peer() {
    let mut pair = Pair::rc(&Setting::default());
    pair.succeed(&Work::write(pair.far.remote(0)).inline(b"allowed"));
    let change = Modify { access: Some(Access::REMOTE_READ), state: Some(State::ReadyToSend), ..Modify::default() };
    pair.sim.modify(pair.b, &change).unwrap();
    pair.succeed(&Work::read(pair.far.remote(0)).sge(pair.near.sge(0, 7)));
    assert_eq!(pair.near_bytes(0, 7), b"allowed");
    let refused = pair.finish(&Work::write(pair.far.remote(0)).inline(b"refused"));
    assert_eq!(refused.status, Status::RemoteInvalidRequest);
    assert_eq!(pair.far_bytes(0, 7), b"allowed");
}

#[test]
fn a_query_tells_the_next_number_to_send_and_the_next_expected() {
    for setting in Setting::each_link() {
        let mut setting = setting.mtu(Mtu::B256);
        setting.options.psn = Some((Psn::new(0xff_fffd), Psn::new(40)));
        let mut pair = Pair::rc(&setting);
        let numbers = |pair: &Pair| {
            let (a, b) = (pair.sim.attributes(pair.a), pair.sim.attributes(pair.b));
            (a.sq_psn.value(), b.rq_psn.value(), b.sq_psn.value(), a.rq_psn.value())
        };
        assert_eq!(numbers(&pair), (0xff_fffd, 0xff_fffd, 40, 40));
        pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 1000)));
        assert_eq!(numbers(&pair), (1, 1, 40, 40), "four packets, and past the end of all numbers");
        pair.succeed(&Work::read(pair.far.remote(0)).sge(pair.near.sge(0, 513)));
        assert_eq!(numbers(&pair), (4, 4, 40, 40), "as many as the answer has packets");
        pair.succeed(&Work::fetch_add(pair.far.remote(0), 1).sge(pair.near.sge(0, 8)));
        pair.succeed(&Work::write(pair.far.remote(0)));
        assert_eq!(numbers(&pair), (6, 6, 40, 40));
        pair.sim.post(pair.b, &Work::write(pair.near.remote(0)).sge(pair.far.sge(0, 300))).unwrap();
        assert_eq!(numbers(&pair), (6, 6, 42, 40), "sent, not yet arrived");
        pair.sim.run_until_idle();
        assert_eq!(numbers(&pair), (6, 6, 42, 42));
        // A retry does not move it back in the end.
        pair.sim.script(script::once(|seen| seen.headers.bth.opcode == Opcode::RcWriteFirst, Fate::Drop));
        pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 1000)));
        assert_eq!(numbers(&pair), (10, 10, 42, 42));
        pair.sim.modify(pair.a, &drain(None)).unwrap();
        assert_eq!(numbers(&pair), (10, 10, 42, 42), "nor does draining");
    }
}

#[test]
fn a_query_tells_everything_that_was_set_and_reset_forgets_it() {
    let setting = Setting::default();
    let mut pair = Pair::rc(&setting);
    let got = pair.sim.attributes(pair.a);
    let set = setting.options;
    assert_eq!((got.state, got.path_mtu, got.timeout), (State::ReadyToSend, set.mtu, set.timeout));
    assert_eq!((got.retry_cnt, got.rnr_retry, got.min_rnr_timer), (set.retry_cnt, set.rnr_retry, set.min_rnr_timer));
    assert_eq!((got.max_rd_atomic, got.max_dest_rd_atomic), (set.max_rd_atomic, set.max_dest_rd_atomic));
    assert_eq!((got.access, got.dest_qpn), (set.access, pair.b.qpn));
    assert_eq!(got.av, pair.sim.address_vector(pair.bob, &set));
    assert_eq!(got.capabilities, QpSpec::rc().capabilities);
    pair.sim.modify(pair.a, &to(State::Reset)).unwrap();
    let forgotten = Attributes { capabilities: got.capabilities, ..Attributes::default() };
    assert_eq!(pair.sim.attributes(pair.a), forgotten);
}
