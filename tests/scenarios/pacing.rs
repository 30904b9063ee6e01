//! Packet pacing: a program limits what a queue pair sends, and the limit holds for every kind and link, for long
//! messages and short ones, while what is no work of its send queue goes as fast as ever.
#![allow(missing_docs)]

use scenery::{ALL_ACCESS, Pair, Setting};
use sim::{ConnectOptions, HostConfig, LinkConfig, LinkKind, QpId, QpSpec, Sim, Work};
use transport::congestion::WindowConfig;
use transport::{Modify, ModifyError, RateLimit, State, Status};
use wire::Mtu;

const MIB: usize = 1 << 20;

fn limit(sim: &mut Sim, qp: QpId, limit: RateLimit) {
    sim.modify(qp, &Modify { rate_limit: Some(limit), ..Modify::default() }).unwrap();
}

/// How long so many packets of that payload take at this rate, in nanoseconds.
fn nanos(packets: u64, payload: u64, kbps: u64) -> u64 {
    packets * (payload + 58) * 8_000_000 / kbps
}

#[test]
fn a_long_message_takes_as_long_as_the_limit_says_over_every_link() {
    for setting in Setting::each_link() {
        for spec in [QpSpec::rc(), QpSpec::uc()] {
            let mut pair = Pair::new(&setting.mtu(Mtu::B4096), spec, spec, MIB);
            limit(&mut pair.sim, pair.a, RateLimit::kbps(1_000_000));
            let from = pair.sim.now();
            pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.whole()));
            let (took, expected) = (pair.sim.now().since(from), nanos(256, 4096, 1_000_000));
            // What the rate gives in two milliseconds goes at once after a rest.
            assert!(took + 2_100_000 > expected && took < expected + 100_000, "{took} ns, not {expected}; {setting:?}");
            assert_eq!(pair.sim.bytes(&pair.near), pair.sim.bytes(&pair.far));
            // Without a limit it is fast again.
            limit(&mut pair.sim, pair.a, RateLimit::default());
            let from = pair.sim.now();
            pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.whole()));
            assert!(pair.sim.now().since(from) < expected / 10);
        }
    }
}

#[test]
fn short_messages_count_with_their_headers_and_bursts_are_as_long_as_asked_for() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let mut pair = Pair::new(&Setting::on(kind), QpSpec::rc(), QpSpec::rc(), MIB);
        limit(&mut pair.sim, pair.a, RateLimit { kbps: 100_000, max_burst: 1000, typical_packet: 64 });
        let from = pair.sim.now();
        for _ in 0..200 {
            pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 64))).unwrap();
        }
        pair.sim.run_until_idle();
        let (took, expected) = (pair.sim.now().since(from), nanos(200, 64, 100_000));
        assert!(took + nanos(9, 64, 100_000) > expected && took < expected + 100_000, "{took} ns, not {expected}");
        let completions = pair.sim.completions(pair.a);
        assert!(completions.len() == 200 && completions.iter().all(|done| done.status == Status::Success));
    }
}

#[test]
fn datagrams_are_paced_one_by_one() {
    let mut sim = Sim::new(3);
    let [a, b] = ["a", "b"].map(|name| sim.add_host(HostConfig::named(name)));
    let options = ConnectOptions { mtu: Mtu::B1024, ..ConnectOptions::default() };
    let (from, to) = (sim.create_qp(a, QpSpec::ud()), sim.create_qp(b, QpSpec::ud()));
    sim.activate(from, &options);
    sim.activate(to, &options);
    let near = sim.register(a, QpSpec::PD, 1024, ALL_ACCESS);
    let far = sim.register(b, QpSpec::PD, 2048, ALL_ACCESS);
    limit(&mut sim, from, RateLimit::kbps(10_000));
    for id in 0..50 {
        sim.receive(to, id, &[far.whole()]).unwrap();
    }
    let target = sim.datagram_target(to, &options);
    for _ in 0..50 {
        sim.post(from, &Work::send().sge(near.whole()).to(target)).unwrap();
    }
    sim.run_until_idle();
    let (took, expected) = (sim.now().as_nanos(), nanos(49, 1024, 10_000));
    assert!(took.abs_diff(expected) < 2_100_000, "{took} ns, not {expected}");
    assert_eq!((sim.completion_count(from), sim.completion_count(to)), (50, 50));
}

#[test]
fn answers_are_not_paced_by_the_limit_of_the_send_queue() {
    let mut pair = Pair::new(&Setting::default().mtu(Mtu::B4096), QpSpec::rc(), QpSpec::rc(), MIB);
    for qp in [pair.a, pair.b] {
        limit(&mut pair.sim, qp, RateLimit::kbps(10_000));
    }
    let from = pair.sim.now();
    pair.succeed(&Work::read(pair.far.remote(0)).sge(pair.near.whole()));
    let took = pair.sim.now().since(from);
    assert!(took < nanos(256, 4096, 10_000) / 100, "{took} ns for a READ");
}

#[test]
fn congestion_slows_answers_too() {
    let mut pair = Pair::new(&Setting::default().mtu(Mtu::B4096), QpSpec::rc(), QpSpec::rc(), MIB);
    let alice = pair.sim.gid(pair.alice, 0);
    // A path that is congested for two milliseconds, as the responder hears.
    for _ in 0..40 {
        pair.sim.inject(pair.bob, alice, &wire::Headers::cnp(pair.b.qpn), &[0; 16]).unwrap();
        pair.sim.run_for(50_000);
    }
    let from = pair.sim.now();
    pair.succeed(&Work::read(pair.far.remote(0)).sge(pair.near.whole()));
    let took = pair.sim.now().since(from);
    assert!(took > 1_500_000, "{took} ns for a READ of a mebibyte");
    assert_eq!(pair.sim.bytes(&pair.near), pair.sim.bytes(&pair.far));
}

#[test]
fn a_limit_holds_through_losses() {
    let mut setting = Setting::default().mtu(Mtu::B4096);
    setting.link = LinkConfig { loss: 0.01, ..LinkConfig::PERFECT };
    let mut pair = Pair::new(&setting, QpSpec::rc(), QpSpec::rc(), MIB);
    limit(&mut pair.sim, pair.a, RateLimit::kbps(1_000_000));
    for _ in 0..4 {
        pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.whole()));
    }
    let sent = pair.sim.counters().sent;
    let took = pair.sim.now().as_nanos();
    assert!(took > nanos(4 * 256, 4096, 1_000_000) - 9_000_000, "{sent} packets in {took} ns");
    assert_eq!(pair.sim.bytes(&pair.near), pair.sim.bytes(&pair.far));
}

#[test]
fn a_slow_sender_in_a_wide_window_is_not_taken_for_a_lossy_path() {
    let mut sim = Sim::new(3);
    let window = WindowConfig { limit: 8 << 20, initial: 8 << 20, ..WindowConfig::default() };
    let [a, b] = ["a", "b"].map(|name| sim.add_host(HostConfig { window, ..HostConfig::named(name) }));
    let (from, to) = (sim.create_qp(a, QpSpec::rc()), sim.create_qp(b, QpSpec::rc()));
    // The peer has a millisecond to answer; packets are three apart.
    sim.connect(from, to, &ConnectOptions { mtu: Mtu::B4096, timeout: 8, ..ConnectOptions::default() });
    limit(&mut sim, from, RateLimit::kbps(10_000));
    let near = sim.register(a, QpSpec::PD, 100 * 1024, ALL_ACCESS);
    let far = sim.register(b, QpSpec::PD, 100 * 1024, ALL_ACCESS);
    sim.watch(|passing| assert!(!passing.sighting.retransmission));
    sim.post(from, &Work::write(far.remote(0)).sge(near.whole())).unwrap();
    sim.run_until_idle();
    assert_eq!(sim.completions(from)[0].status, Status::Success);
}

#[test]
fn a_static_rate_of_the_way_is_a_limit_and_the_lower_one_holds() {
    for (static_rate, kbps, expected) in [(2, 0, 2_500_000), (2, 1_000_000, 1_000_000), (2, 5_000_000, 2_500_000)] {
        let mut sim = Sim::new(3);
        let [a, b] = ["a", "b"].map(|name| sim.add_host(HostConfig::named(name)));
        let (from, to) = (sim.create_qp(a, QpSpec::rc()), sim.create_qp(b, QpSpec::rc()));
        let options = ConnectOptions { mtu: Mtu::B4096, ..ConnectOptions::default() };
        sim.connect(from, to, &options);
        let mut drain = Modify { state: Some(State::SendQueueDrained), ..Modify::default() };
        sim.modify(from, &drain).unwrap();
        let mut av = sim.address_vector(b, &options);
        av.static_rate = static_rate;
        drain.av = Some(av);
        sim.modify(from, &drain).unwrap();
        let rate_limit = (kbps > 0).then_some(RateLimit::kbps(kbps));
        sim.modify(from, &Modify { state: Some(State::ReadyToSend), rate_limit, ..Modify::default() }).unwrap();
        let near = sim.register(a, QpSpec::PD, MIB, ALL_ACCESS);
        let far = sim.register(b, QpSpec::PD, MIB, ALL_ACCESS);
        sim.post(from, &Work::write(far.remote(0)).sge(near.whole())).unwrap();
        sim.run_until_idle();
        let (took, expected) = (sim.now().as_nanos(), nanos(256, 4096, expected));
        assert!(took + 2_100_000 > expected && took < expected + 100_000, "{took} ns, not {expected}");
        assert_eq!(sim.attributes(from).rate_limit.kbps, kbps);
    }
}

#[test]
fn a_limit_can_be_lifted_while_work_waits_for_it_and_goes_with_a_reset() {
    let mut pair = Pair::new(&Setting::default(), QpSpec::rc(), QpSpec::rc(), MIB);
    limit(&mut pair.sim, pair.a, RateLimit::kbps(1));
    let work = Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 10_000));
    pair.sim.post(pair.a, &work).unwrap();
    pair.sim.run_for(1_000_000_000);
    assert_eq!(pair.sim.completion_count(pair.a), 0, "eighty seconds");
    limit(&mut pair.sim, pair.a, RateLimit::default());
    pair.sim.run_for(1_000_000);
    assert_eq!(pair.sim.completions(pair.a)[0].status, Status::Success);

    limit(&mut pair.sim, pair.a, RateLimit::kbps(1));
    pair.sim.post(pair.a, &work).unwrap();
    pair.sim.run_for(1_000_000);
    pair.sim.modify(pair.a, &Modify { state: Some(State::Reset), ..Modify::default() }).unwrap();
    assert_eq!(pair.sim.attributes(pair.a).rate_limit, RateLimit::default());
    pair.sim.run_until_idle();
    assert!(pair.sim.now().as_nanos() < 2_000_000_000, "no timer is left of it");
}

#[test]
fn what_is_no_limit_is_refused_and_changes_nothing() {
    let mut pair = Pair::new(&Setting::default(), QpSpec::rc(), QpSpec::rc(), 64);
    limit(&mut pair.sim, pair.a, RateLimit::kbps(7));
    for (asked, what) in [
        (RateLimit::kbps(RateLimit::MAX_KBPS + 1), "RATE_LIMIT"),
        (RateLimit { max_burst: 1, ..RateLimit::kbps(0) }, "RATE_LIMIT"),
        (RateLimit { typical_packet: 1, ..RateLimit::kbps(0) }, "RATE_LIMIT"),
        (RateLimit { max_burst: RateLimit::MAX_BURST + 1, ..RateLimit::kbps(9) }, "RATE_LIMIT.max_burst_sz"),
    ] {
        let refused = pair.sim.modify(pair.a, &Modify { rate_limit: Some(asked), ..Modify::default() });
        assert!(matches!(refused, Err(ModifyError::OutOfRange { what: field, .. }) if field == what), "{refused:?}");
        assert_eq!(pair.sim.attributes(pair.a).rate_limit, RateLimit::kbps(7));
    }
    // And nothing can be limited before it can be sent.
    let qp = pair.sim.create_qp(pair.alice, QpSpec::rc());
    let asked = Modify { rate_limit: Some(RateLimit::kbps(7)), ..Modify::default() };
    assert!(pair.sim.modify(qp, &asked).is_err());
}
