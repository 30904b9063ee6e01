//! How queue pairs share what a receiver can take: congestion marks and notifications, the rate they cut, the window,
//! who gets its room when there is not enough for all, and that every byte of it is given back however a queue pair
//! ends.
#![allow(missing_docs)]

use scenery::{ALL_ACCESS, Pair, Setting};
use sim::script::{always, once, times};
use sim::{
    ConnectOptions, Family, Fate, HostConfig, HostId, LinkConfig, LinkKind, Outcome, QpId, QpSpec, ReceiveBuffer,
    Region, Shared, Sim, Work,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use trace::DropReason;
use transport::congestion::{FULL_PACKET, STOCK_BUFFER, Window, WindowConfig, packet_cost};
use transport::rate::DcqcnConfig;
use transport::{Completion, Modify, State, Status, Time};
use wire::{Headers, Mtu, Opcode, Operation, Psn, Qpn};

const MIB: usize = 1 << 20;

/// 10 Gbit/s and five microseconds each way.
const WIRE: LinkConfig = LinkConfig { bandwidth: Some(10_000_000_000), ..LinkConfig::PERFECT };

/// A pair with `bytes` of memory on each side and packets of 4 KiB.
fn pair(link: LinkConfig, family: Family, bytes: usize) -> Pair {
    let mut setting = Setting::default().mtu(Mtu::B4096);
    setting.link = link;
    setting.options.family = family;
    Pair::new(&setting, QpSpec::rc(), QpSpec::rc(), bytes)
}

/// The window of `host` towards `other`, or towards itself.
fn window(sim: &Sim, host: HostId, other: HostId) -> &Window {
    sim.window(host, sim.gid(other, 0)).expect("a queue pair has needed it")
}

/// Nothing is under way and nobody waits.
#[track_caller]
fn assert_all_returned(sim: &Sim, hosts: &[HostId]) {
    for &host in hosts {
        for &other in hosts {
            for index in [0, 1] {
                let Some(window) = sim.window(host, sim.gid(other, index)) else { continue };
                let left = (window.in_flight(), window.has_waiters());
                assert_eq!(left, (0, false), "{} towards {}", sim.host_name(host), sim.host_name(other));
            }
        }
    }
}

/// Many queue pairs between two hosts, each with memory of its own at both ends.
struct Crowd {
    sim: Sim,
    hosts: [HostId; 2],
    members: Vec<(QpId, Region, Region)>,
    /// What the far ends are like.
    far: QpSpec,
}

impl Crowd {
    fn new(link: LinkConfig, configs: [HostConfig; 2], count: usize, bytes: usize, mtu: Mtu) -> Crowd {
        let mut sim = Sim::new(5);
        sim.set_default_link(link);
        let hosts = configs.map(|config| sim.add_host(config));
        let mut crowd = Crowd { sim, hosts, members: Vec::new(), far: QpSpec::rc() };
        for _ in 0..count {
            crowd.connect(hosts[0], hosts[1], bytes, mtu);
        }
        crowd
    }

    fn connect(&mut self, from: HostId, to: HostId, bytes: usize, mtu: Mtu) {
        let sim = &mut self.sim;
        let (a, b) = (sim.create_qp(from, QpSpec::rc()), sim.create_qp(to, self.far));
        sim.connect(a, b, &ConnectOptions { mtu, ..ConnectOptions::default() });
        let mut data = vec![0; bytes];
        sim.rng().fill(&mut data);
        let near = sim.register_bytes(from, QpSpec::PD, data, ALL_ACCESS);
        let far = sim.register(to, QpSpec::PD, bytes, ALL_ACCESS);
        self.members.push((a, near, far));
    }

    fn write_all(&mut self, index: usize) {
        let (qp, near, far) = self.members[index];
        self.sim.post(qp, &Work::write(far.remote(0)).sge(near.whole())).unwrap();
    }

    fn read_all(&mut self, index: usize) {
        let (qp, near, far) = self.members[index];
        self.sim.post(qp, &Work::read(far.remote(0)).sge(near.whole())).unwrap();
    }

    /// The only completion of a member.
    #[track_caller]
    fn completion(&mut self, index: usize) -> Completion {
        let completions = self.sim.completions(self.members[index].0);
        let [completion] = completions.as_slice() else { panic!("queue pair {index}: {completions:?}") };
        *completion
    }
}

#[test]
fn marks_are_answered_with_one_notification_per_50_us_and_queue_pair() {
    for setting in Setting::each_link() {
        let mut setting = setting.mtu(Mtu::B1024);
        setting.link.bandwidth = Some(10_000_000_000);
        let mut pair = Pair::new(&setting, QpSpec::rc(), QpSpec::rc(), MIB);
        let (a2, b2) = (pair.sim.create_qp(pair.alice, QpSpec::rc()), pair.sim.create_qp(pair.bob, QpSpec::rc()));
        pair.sim.connect(a2, b2, &setting.options);
        pair.sim.script(always(|packet| packet.headers.bth.opcode.operation() == Operation::Write, Fate::Mark));
        let seen: Rc<RefCell<Vec<(Time, HostId, Headers, Vec<u8>)>>> = Rc::default();
        // When marked packets arrive, for which queue pair.
        let marked: Rc<RefCell<Vec<(Time, Qpn)>>> = Rc::default();
        let (notes, marks) = (Rc::clone(&seen), Rc::clone(&marked));
        pair.sim.watch(move |passing| {
            let sighting = passing.sighting;
            if let Outcome::Arrives { at, marked: true, .. } = passing.outcome {
                marks.borrow_mut().push((at, sighting.headers.bth.dest_qpn));
            }
            if sighting.headers.bth.opcode == Opcode::Cnp {
                notes.borrow_mut().push((sighting.at, sighting.from, *sighting.headers, sighting.payload.to_vec()));
            }
        });
        for qp in [pair.a, a2] {
            pair.sim.post(qp, &Work::write(pair.far.remote(0)).sge(pair.near.whole())).unwrap();
        }
        pair.sim.run_until_idle();
        for (qp, peer) in [(pair.a, pair.b), (a2, b2)] {
            assert_eq!(pair.sim.completions(qp)[0].status, Status::Success);
            let seen = seen.borrow();
            let mine: Vec<_> = seen.iter().filter(|(_, _, headers, _)| headers.bth.dest_qpn == qp.qpn).collect();
            // At once for the first marked packet, and then for the first that comes 50 us later, or more.
            let marked = marked.borrow();
            let mut expected: Vec<Time> = Vec::new();
            for (at, _) in marked.iter().filter(|(_, to)| *to == peer.qpn) {
                if expected.last().is_none_or(|last| at.since(*last) >= 50_000) {
                    expected.push(*at);
                }
            }
            assert!(expected.len() > 10);
            assert_eq!(mine.iter().map(|(at, ..)| *at).collect::<Vec<_>>(), expected, "{setting:?}");
            for gap in mine.windows(2) {
                assert!(gap[1].0.since(gap[0].0) >= 50_000, "{} after {}", gap[1].0, gap[0].0);
            }
            for (_, from, headers, payload) in mine {
                assert_eq!((*from, headers.bth.psn, headers.bth.becn), (pair.bob, Psn::default(), true));
                assert_eq!(payload.as_slice(), [0; 16]);
            }
        }
        assert_all_returned(&pair.sim, &[pair.alice, pair.bob]);
    }
}

#[test]
fn unmarked_packets_are_not_answered_with_notifications() {
    let mut pair = pair(WIRE, Family::V4, MIB);
    let count = Rc::new(RefCell::new(0));
    let counter = Rc::clone(&count);
    pair.sim.watch(move |passing| {
        *counter.borrow_mut() += u32::from(passing.sighting.headers.bth.opcode == Opcode::Cnp);
    });
    pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.whole()));
    assert_eq!(*count.borrow(), 0);
}

#[test]
fn a_mark_halves_the_rate_and_it_comes_back() {
    for family in [Family::V4, Family::V6] {
        let mut setting = Setting::default().mtu(Mtu::B4096);
        setting.link = WIRE;
        setting.options.family = family;
        let mut spec = QpSpec::rc();
        spec.limits.line_rate = 10_000_000_000;
        let mut pair = Pair::new(&setting, spec, spec, 32 * MIB);
        let (qp, minimum) = (pair.a, DcqcnConfig::default().minimum_rate);
        pair.sim.post(qp, &Work::write(pair.far.remote(0)).sge(pair.near.whole())).unwrap();
        pair.sim.run_for(1_000_000);
        assert_eq!(pair.sim.congested_rate(qp), None);

        pair.sim.script(once(|packet| packet.headers.bth.opcode == Opcode::RcWriteMiddle, Fate::Mark));
        assert!(pair.sim.run_until(100_000, |sim| sim.congested_rate(qp).is_some()));
        assert_eq!((pair.sim.congested_rate(qp), pair.sim.counters().marked), (Some(5_000_000_000), 1));
        let sent = pair.sim.counters().payload_sent;
        pair.sim.run_for(50_000);
        let bytes = pair.sim.counters().payload_sent - sent;
        assert!((20_000..45_000).contains(&bytes), "{bytes} bytes in 50 us, 62,500 at the line rate");
        assert!(pair.sim.run_until(10_000_000, |sim| sim.congested_rate(qp).is_none()), "one mark is forgotten");

        // Marks on everything take nearly all of it, and never more than all but the minimum.
        pair.sim.script(always(|_| true, Fate::Mark));
        let slow = |rate: Option<u64>| rate.is_some_and(|rate| (minimum..1_000_000_000).contains(&rate));
        assert!(pair.sim.run_until(20_000_000, |sim| slow(sim.congested_rate(qp))));
        // Packets are so rare then that it recovers a little between them.
        for _ in 0..20 {
            pair.sim.run_for(100_000);
            assert!(slow(pair.sim.congested_rate(qp)), "{:?}", pair.sim.congested_rate(qp));
        }
        pair.sim.end_script();
        assert!(pair.sim.run_until(30_000_000, |sim| sim.congested_rate(qp).is_none()));
        pair.sim.run_until_idle();
        assert_eq!(pair.sim.completions(qp)[0].status, Status::Success);
        assert_eq!(pair.sim.bytes(&pair.near), pair.sim.bytes(&pair.far));
        assert_all_returned(&pair.sim, &[pair.alice, pair.bob]);
    }
}

#[test]
fn notifications_count_once_per_50_us_and_only_from_the_peer() {
    let mut pair = pair(LinkConfig::PERFECT, Family::V4, MIB);
    let headers = Headers::cnp(pair.a.qpn);
    let (bob, line) = (pair.sim.gid(pair.bob, 0), 100_000_000_000u64);
    let rate = |pair: &mut Pair| pair.sim.congested_rate(pair.a);

    let stranger = "10.9.9.9".parse::<std::net::IpAddr>().unwrap().into();
    let drops = Shared::new(Vec::<trace::Event>::new());
    pair.sim.trace(drops.clone());
    pair.sim.inject(pair.alice, stranger, &headers, &[0; 16]).unwrap();
    pair.sim.run_for(1);
    assert_eq!(rate(&mut pair), None, "anybody could say so");
    let refused =
        |event: &trace::Event| matches!(event.kind, trace::Kind::PacketDropped { reason: DropReason::WrongSource, .. });
    assert_eq!(drops.borrow().iter().filter(|event| refused(event)).count(), 1);

    for _ in 0..3 {
        pair.sim.inject(pair.alice, bob, &headers, &[0; 16]).unwrap();
        pair.sim.run_for(10_000);
        assert_eq!(rate(&mut pair), Some(line / 2));
    }
    pair.sim.run_for(50_000 - 30_000 - 1);
    pair.sim.inject(pair.alice, bob, &headers, &[0; 16]).unwrap();
    pair.sim.run_for(0);
    assert_eq!(rate(&mut pair), Some(line / 2), "49,999 ns later");
    pair.sim.run_for(1);
    pair.sim.inject(pair.alice, bob, &headers, &[0; 16]).unwrap();
    pair.sim.run_for(0);
    assert_eq!(rate(&mut pair), Some(line / 4), "50,000 ns later");
    let told = |event: &&trace::Event| matches!(event.kind, trace::Kind::RateChanged { .. });
    let events: Vec<_> = drops.borrow().iter().filter(told).map(|event| event.kind).collect();
    let changes = [(line, line / 2), (line / 2, line / 4)];
    assert_eq!(events, changes.map(|(from, to)| trace::Kind::RateChanged { from, to }));
    let early =
        |event: &trace::Event| matches!(event.kind, trace::Kind::PacketDropped { reason: DropReason::CnpTooSoon, .. });
    assert_eq!(drops.borrow().iter().filter(|event| early(event)).count(), 3, "and the others are told of");
}

#[test]
fn a_window_belongs_to_a_destination_and_all_its_queue_pairs() {
    let mut crowd = Crowd::new(WIRE, [HostConfig::named("a"), HostConfig::named("b")], 0, 0, Mtu::B4096);
    let [a, b] = crowd.hosts;
    let c = crowd.sim.add_host(HostConfig::named("c"));
    crowd.far.limits.keeps_early = false;
    for to in [b, b, c] {
        crowd.connect(a, to, 2 * MIB, Mtu::B4096);
    }
    for index in 0..3 {
        crowd.write_all(index);
    }
    let full = |sim: &Sim| window(sim, a, b).cwnd() == STOCK_BUFFER && window(sim, a, c).cwnd() == STOCK_BUFFER;
    assert!(crowd.sim.run_until(1_000_000, |sim| full(sim)));
    // One queue pair loses a packet, and what came after it: the other that goes there sends less too, the third does not care.
    let peer = crowd.sim.attributes(crowd.members[0].0).dest_qpn;
    crowd.sim.script(once(
        move |packet| packet.headers.bth.dest_qpn == peer && packet.headers.bth.opcode == Opcode::RcWriteMiddle,
        Fate::Drop,
    ));
    assert!(crowd.sim.run_until(400_000, |sim| window(sim, a, b).cwnd() < STOCK_BUFFER));
    assert_eq!(window(&crowd.sim, a, b).cwnd(), STOCK_BUFFER / 10 * 7);
    assert_eq!(window(&crowd.sim, a, c).cwnd(), STOCK_BUFFER);
    crowd.sim.run_until_idle();
    for index in 0..3 {
        assert_eq!(crowd.completion(index).status, Status::Success);
    }
    assert_all_returned(&crowd.sim, &[a, b, c]);
}

#[test]
fn a_rate_belongs_to_a_queue_pair() {
    let mut crowd = Crowd::new(WIRE, [HostConfig::named("a"), HostConfig::named("b")], 2, 2 * MIB, Mtu::B4096);
    let [a, b] = crowd.hosts;
    let [first, second] = [0, 1].map(|index| crowd.members[index].0);
    let from = crowd.sim.gid(b, 0);
    for _ in 0..6 {
        crowd.sim.inject(a, from, &Headers::cnp(first.qpn), &[0; 16]).unwrap();
        crowd.sim.run_for(50_000);
    }
    assert_eq!((crowd.sim.congested_rate(first), crowd.sim.congested_rate(second)), (Some(1_562_500_000), None));
    let window_before = window(&crowd.sim, a, b).cwnd();
    crowd.write_all(0);
    crowd.write_all(1);
    // The first has little more than a sixth of the wire to begin with, and the second takes the rest.
    let done = |sim: &Sim| sim.completion_count(second) == 1;
    assert!(crowd.sim.run_until(3_000_000, |sim| done(sim)) && crowd.sim.completion_count(first) == 0);
    assert!(window(&crowd.sim, a, b).cwnd() >= window_before, "the window is not concerned");
    crowd.sim.run_until_idle();
    for index in 0..2 {
        assert_eq!(crowd.completion(index).status, Status::Success);
    }
    assert_all_returned(&crowd.sim, &[a, b]);
}

#[test]
fn never_more_is_under_way_than_the_receiver_holds() {
    for mtu in [Mtu::B256, Mtu::B1024, Mtu::B4096] {
        // A receiver far slower than its senders: whatever is sent stays in its buffer.
        let configs = [HostConfig::named("a"), HostConfig { service: 2_000, ..HostConfig::named("b") }];
        let mut crowd = Crowd::new(LinkConfig::PERFECT, configs, 20, 64 * 1024, mtu);
        for index in 0..20 {
            crowd.write_all(index);
        }
        let [a, b] = crowd.hosts;
        let mut most = 0;
        while crowd.sim.run_one() {
            let window = window(&crowd.sim, a, b);
            assert!(window.in_flight() <= STOCK_BUFFER && window.cwnd() <= STOCK_BUFFER);
            most = most.max(window.in_flight());
        }
        assert!(most > STOCK_BUFFER - 2 * packet_cost(mtu.bytes()), "{most} bytes at most, {mtu:?}");
        assert_eq!(crowd.sim.counters().dropped_for(DropReason::Overflow), 0);
        for index in 0..20 {
            assert_eq!(crowd.completion(index).status, Status::Success);
        }
        assert_all_returned(&crowd.sim, &[a, b]);
    }
}

#[test]
fn read_requests_never_ask_for_more_than_the_window() {
    for mtu in Mtu::ALL {
        for count in [1, 7] {
            let slow = |name: &str| HostConfig { service: 1_000, ..HostConfig::named(name) };
            let mut crowd = Crowd::new(WIRE, [slow("a"), slow("b")], count, 512 * 1024, mtu);
            let cost = move |length: u32| u64::from(length.div_ceil(mtu.bytes())) * packet_cost(mtu.bytes());
            let asked: Rc<RefCell<Vec<(u32, u32)>>> = Rc::default();
            let notes = Rc::clone(&asked);
            crowd.sim.watch(move |passing| {
                let headers = passing.sighting.headers;
                if headers.bth.opcode == Opcode::RcReadRequest {
                    notes.borrow_mut().push((passing.qpn.value(), headers.reth.unwrap().len));
                }
            });
            for index in 0..count {
                crowd.read_all(index);
            }
            let [a, b] = crowd.hosts;
            while crowd.sim.run_one() {
                let here = window(&crowd.sim, a, a);
                assert!(here.in_flight() <= STOCK_BUFFER);
            }
            // What the first asks for is what the window holds at the start.
            let initial = WindowConfig::default().initial / packet_cost(mtu.bytes()) * u64::from(mtu.bytes());
            assert_eq!(u64::from(asked.borrow()[0].1), initial);
            let mut asked_by: HashMap<u32, u64> = HashMap::new();
            for (qpn, length) in asked.borrow().iter() {
                assert!(cost(*length) <= STOCK_BUFFER, "{length} bytes asked for, {mtu:?}");
                *asked_by.entry(*qpn).or_default() += u64::from(*length);
            }
            assert!(asked_by.values().all(|bytes| *bytes == 512 * 1024), "each byte once: {asked_by:?}");
            assert_eq!(crowd.sim.counters().dropped_for(DropReason::Overflow), 0);
            for index in 0..count {
                assert_eq!(crowd.completion(index).status, Status::Success);
                let (_, near, far) = crowd.members[index];
                assert_eq!(crowd.sim.bytes(&near), crowd.sim.bytes(&far));
            }
            // Requests are worth their while: far fewer than packets.
            let packets = count * 512 * 1024 / mtu.bytes() as usize;
            assert!(asked.borrow().len() * 3 < packets, "{} requests for {packets} packets", asked.borrow().len());
            assert_all_returned(&crowd.sim, &[a, b]);
        }
    }
}

#[test]
fn without_a_window_reads_are_not_cut_but_at_1024_packets() {
    let mut setting = Setting::on(LinkKind::Whole).mtu(Mtu::B256);
    setting.link.ring = 64 << 20;
    let mut pair = Pair::new(&setting, QpSpec::rc(), QpSpec::rc(), 512 * 1024);
    let asked: Rc<RefCell<Vec<u32>>> = Rc::default();
    let notes = Rc::clone(&asked);
    pair.sim.watch(move |passing| notes.borrow_mut().extend(passing.sighting.headers.reth.map(|reth| reth.len)));
    pair.succeed(&Work::read(pair.far.remote(0)).sge(pair.near.whole()));
    assert_eq!(*asked.borrow(), [1024 * 256, 1024 * 256]);
}

#[test]
fn everybody_is_served_in_turn() {
    let mut crowd = Crowd::new(WIRE, [HostConfig::named("a"), HostConfig::named("b")], 100, 256 * 1024, Mtu::B4096);
    for index in 0..100 {
        // Half of them read, so that both windows are short.
        if index % 2 == 0 { crowd.write_all(index) } else { crowd.read_all(index) }
    }
    let mut finished = [None; 100];
    while crowd.sim.run_one() {
        for (index, (qp, ..)) in crowd.members.iter().enumerate() {
            if let Some(completion) = crowd.sim.next_completion(*qp) {
                assert_eq!(completion.status, Status::Success);
                assert_eq!(finished[index].replace(crowd.sim.now().as_nanos()), None);
            }
        }
    }
    for parity in [0, 1] {
        let times: Vec<u64> = finished.iter().skip(parity).step_by(2).map(|at| at.expect("it finished")).collect();
        let (first, last) = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
        assert!(last < first * 3 / 2, "the same work took {first} to {last} ns");
    }
    assert_all_returned(&crowd.sim, &crowd.hosts);
}

#[test]
fn little_work_does_not_wait_for_much() {
    let mut crowd = Crowd::new(WIRE, [HostConfig::named("a"), HostConfig::named("b")], 51, 4 * 1024, Mtu::B4096);
    let [a, b] = crowd.hosts;
    crowd.connect(a, b, 16 * MIB, Mtu::B4096);
    crowd.write_all(51);
    crowd.sim.run_for(500_000);
    let posted = crowd.sim.now();
    for index in 0..51 {
        if index % 2 == 0 { crowd.write_all(index) } else { crowd.read_all(index) }
    }
    // 51 packets of theirs, and four of the long one for each turn that passes it: well below a hundred.
    assert!(crowd.sim.run_until(100 * 3_400 + 20_000, |sim| {
        crowd.members[..51].iter().all(|(qp, ..)| sim.completion_count(*qp) == 1)
    }));
    assert!(crowd.sim.now().since(posted) > 50_000, "they did not come for nothing");
    assert_eq!(crowd.sim.completion_count(crowd.members[51].0), 0, "the long one goes on");
    crowd.sim.run_until_idle();
    for index in 0..52 {
        assert_eq!(crowd.completion(index).status, Status::Success);
    }
    assert_all_returned(&crowd.sim, &[a, b]);
}

#[test]
fn reads_and_writes_of_one_host_do_not_wait_for_each_other() {
    for mtu in Mtu::ALL {
        // Towards another host, and towards itself, where both directions meet in one window.
        for loopback in [false, true] {
            let mut crowd = Crowd::new(WIRE, [HostConfig::named("a"), HostConfig::named("b")], 0, 0, mtu);
            let [a, b] = crowd.hosts;
            for _ in 0..4 {
                crowd.connect(a, if loopback { a } else { b }, 300_000, mtu);
            }
            for index in [0, 1] {
                crowd.write_all(index);
                crowd.read_all(2 + index);
            }
            crowd.sim.run_until_idle();
            for index in 0..4 {
                assert_eq!(crowd.completion(index).status, Status::Success);
                let (_, near, far) = crowd.members[index];
                assert_eq!(crowd.sim.bytes(&near), crowd.sim.bytes(&far));
            }
            assert_all_returned(&crowd.sim, &[a, b]);
        }
    }
}

#[test]
fn one_queue_pair_mixes_everything_through_a_window_of_one_packet() {
    // A window of nothing: one packet goes when nothing is under way.
    let tiny = WindowConfig { limit: 1, initial: 1, minimum: 1, ..WindowConfig::default() };
    let config =
        |name: &str| HostConfig { window: tiny, receive_buffer: ReceiveBuffer::Packets(8), ..HostConfig::named(name) };
    let mut crowd = Crowd::new(LinkConfig::PERFECT, [config("a"), config("b")], 5, 64 * 1024, Mtu::B1024);
    for index in 0..5 {
        let (qp, near, far) = crowd.members[index];
        let sim = &mut crowd.sim;
        sim.post(qp, &Work::write(far.remote(0)).sge(near.sge(0, 10_000)).id(1)).unwrap();
        sim.post(qp, &Work::read(far.remote(0)).sge(near.sge(30_000, 10_000)).id(2)).unwrap();
        sim.post(qp, &Work::fetch_add(far.remote(60_000), 7).sge(near.sge(50_000, 8)).id(3)).unwrap();
        sim.post(qp, &Work::write(far.remote(20_000)).sge(near.sge(30_000, 10_000)).id(4)).unwrap();
    }
    crowd.sim.run_until_idle();
    for index in 0..5 {
        let (qp, near, far) = crowd.members[index];
        let ids: Vec<_> = crowd.sim.completions(qp).iter().map(|done| (done.wr_id, done.status)).collect();
        assert_eq!(ids, [1, 2, 3, 4].map(|id| (id, Status::Success)));
        let bytes = |region: &Region, at: usize| crowd.sim.bytes(region)[at..at + 10_000].to_vec();
        assert_eq!(bytes(&far, 0), bytes(&near, 0));
        assert_eq!(bytes(&near, 30_000), bytes(&near, 0));
    }
    assert_eq!(crowd.sim.counters().dropped_for(DropReason::Overflow), 0);
    assert_all_returned(&crowd.sim, &crowd.hosts);
}

/// Ways for a queue pair to end while its packets are under way.
const ENDS: [(&str, fn(&mut Crowd)); 5] = [
    ("error", |crowd| {
        let error = Modify { state: Some(State::Error), ..Modify::default() };
        crowd.sim.modify(crowd.members[0].0, &error).unwrap();
    }),
    ("reset", |crowd| {
        let reset = Modify { state: Some(State::Reset), ..Modify::default() };
        crowd.sim.modify(crowd.members[0].0, &reset).unwrap();
    }),
    ("destruction", |crowd| crowd.sim.destroy_qp(crowd.members[0].0)),
    ("a peer that goes away", |crowd| {
        let error = Modify { state: Some(State::Error), ..Modify::default() };
        let peer = crowd.sim.attributes(crowd.members[0].0).dest_qpn;
        crowd.sim.modify(QpId { host: crowd.hosts[1], qpn: peer }, &error).unwrap();
    }),
    ("memory that goes away", |crowd| {
        let (near, far) = (crowd.members[0].1, crowd.members[0].2);
        assert!(crowd.sim.deregister(&near) && crowd.sim.deregister(&far));
    }),
];

#[test]
fn a_queue_pair_that_ends_gives_its_share_back() {
    for (end, apply) in ENDS {
        for read in [false, true] {
            for waiting in [false, true] {
                let named = ["a", "b"].map(HostConfig::named);
                let mut crowd = Crowd::new(WIRE, named, 3, MIB, Mtu::B4096);
                // The one that ends is the first to send, or waits behind another.
                let order = if waiting { [1, 0, 2] } else { [0, 1, 2] };
                for index in order {
                    if read { crowd.read_all(index) } else { crowd.write_all(index) }
                }
                crowd.sim.run_for(60_000);
                apply(&mut crowd);
                crowd.sim.run_until_idle();
                let found = format!("{end}, read: {read}, waiting: {waiting}");
                for index in [1, 2] {
                    assert_eq!(crowd.completion(index).status, Status::Success, "{found}");
                }
                assert_all_returned(&crowd.sim, &crowd.hosts);
                // And there is as much room for others as ever.
                let [a, b] = crowd.hosts;
                crowd.connect(a, b, MIB, Mtu::B4096);
                crowd.write_all(3);
                crowd.sim.run_until_idle();
                assert_eq!(crowd.completion(3).status, Status::Success, "{found}");
                assert_all_returned(&crowd.sim, &crowd.hosts);
            }
        }
    }
}

#[test]
fn a_silent_peer_gets_nothing_kept_for_it() {
    for read in [false, true] {
        let named = ["a", "b"].map(HostConfig::named);
        let mut crowd = Crowd::new(WIRE, named, 30, MIB, Mtu::B4096);
        for index in 0..30 {
            if read { crowd.read_all(index) } else { crowd.write_all(index) }
        }
        crowd.sim.run_for(100_000);
        let [a, b] = crowd.hosts;
        crowd.sim.partition(a, b);
        crowd.sim.run_until_idle();
        for index in 0..30 {
            assert_eq!(crowd.completion(index).status, Status::RetryExceeded);
        }
        assert_all_returned(&crowd.sim, &[a, b]);
        let minimum = WindowConfig::default().minimum;
        assert_eq!(window(&crowd.sim, a, if read { a } else { b }).cwnd(), minimum, "silence is the strongest sign");
    }
}

#[test]
fn loss_shrinks_the_window_and_it_recovers() {
    let mut pair = pair(WIRE, Family::V4, 8 * MIB);
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.whole())).unwrap();
    let (alice, bob) = (pair.alice, pair.bob);
    let size = move |sim: &Sim| window(sim, alice, bob).cwnd();
    assert!(pair.sim.run_until(1_000_000, |sim| size(sim) == STOCK_BUFFER));
    pair.sim.script(times(8, |packet| packet.headers.bth.opcode == Opcode::RcWriteMiddle, Fate::Drop));
    assert!(pair.sim.run_until(1_000_000, |sim| size(sim) < STOCK_BUFFER));
    assert_eq!(size(&pair.sim), STOCK_BUFFER / 10 * 7, "seven tenths are left");
    assert!(pair.sim.run_until(10_000_000, |sim| size(sim) > STOCK_BUFFER - FULL_PACKET), "but not for long");
    pair.sim.run_until_idle();
    assert_eq!(pair.sim.completions(pair.a)[0].status, Status::Success);
    assert_eq!(pair.sim.bytes(&pair.near), pair.sim.bytes(&pair.far));
    assert_all_returned(&pair.sim, &[alice, bob]);
}
