//! Congestion and datagrams: a marked datagram is answered with a notification to the queue pair that sent it, and a
//! notification slows a sender of datagrams down, if it comes from where datagrams went.
#![allow(missing_docs)]

use scenery::ALL_ACCESS;
use sim::script::always;
use sim::{ConnectOptions, Family, Fate, HostConfig, HostId, Outcome, QpId, QpSpec, Region, Shared, Sim, Work};
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use trace::DropReason;
use wire::{Ecn, Headers, Mtu, Opcode, Operation};

/// Three hosts with a datagram queue pair each.
struct Trio {
    sim: Sim,
    hosts: [HostId; 3],
    qps: [QpId; 3],
    regions: [Region; 3],
    options: ConnectOptions,
}

impl Trio {
    fn new(family: Family) -> Trio {
        let mut sim = Sim::new(9);
        let options = ConnectOptions { mtu: Mtu::B1024, family, ..ConnectOptions::default() };
        let hosts = ["a", "b", "c"].map(|name| sim.add_host(HostConfig::named(name)));
        let qps = hosts.map(|host| sim.create_qp(host, QpSpec::ud()));
        qps.iter().for_each(|qp| sim.activate(*qp, &options));
        let regions = hosts.map(|host| sim.register(host, QpSpec::PD, 2048, ALL_ACCESS));
        Trio { sim, hosts, qps, regions, options }
    }

    fn send(&mut self, from: usize, to: usize) {
        self.sim.receive(self.qps[to], 1, &[self.regions[to].whole()]).unwrap();
        let target = self.sim.datagram_target(self.qps[to], &self.options);
        self.sim.post(self.qps[from], &Work::send().sge(self.regions[from].sge(0, 1000)).to(target)).unwrap();
        self.sim.run_for(60_000);
        assert_eq!((self.sim.completions(self.qps[from]).len(), self.sim.completions(self.qps[to]).len()), (1, 1));
    }

    fn notify(&mut self, whom: usize, from: impl Into<wire::Gid>) {
        let headers = Headers::cnp(self.qps[whom].qpn);
        self.sim.inject(self.hosts[whom], from.into(), &headers, &Headers::CNP_PAYLOAD).unwrap();
        self.sim.run_for(60_000);
    }
}

#[test]
fn a_marked_datagram_slows_the_queue_pair_that_sent_it() {
    for family in [Family::V4, Family::V6] {
        let mut trio = Trio::new(family);
        let seen: Rc<RefCell<Vec<Headers>>> = Rc::default();
        let notes = Rc::clone(&seen);
        trio.sim.watch(move |passing| {
            if passing.sighting.headers.bth.opcode == Opcode::Cnp {
                assert!(matches!(passing.outcome, Outcome::Arrives { marked: false, .. }));
                notes.borrow_mut().push(*passing.sighting.headers);
            }
        });
        trio.sim.script(always(|packet| packet.headers.bth.opcode.operation() == Operation::Send, Fate::Mark));
        trio.send(0, 1);
        let [a, b, c] = trio.qps;
        assert_eq!(trio.sim.congested_rate(a), Some(50_000_000_000), "half");
        assert_eq!((trio.sim.congested_rate(b), trio.sim.congested_rate(c)), (None, None));
        trio.send(2, 1);
        assert_eq!(trio.sim.congested_rate(c), Some(50_000_000_000));
        assert_eq!(*seen.borrow(), [Headers::cnp(a.qpn), Headers::cnp(c.qpn)]);
        assert_eq!(trio.sim.counters().marked, 2);
    }
}

#[test]
fn only_who_is_sent_datagrams_can_slow_their_sender() {
    let mut trio = Trio::new(Family::V4);
    let drops = Shared::new(Vec::<trace::Event>::new());
    trio.sim.trace(drops.clone());
    let [here, there] = [1, 2].map(|index| trio.sim.gid(trio.hosts[index], 0));
    // It has sent nothing yet.
    trio.notify(0, here);
    assert_eq!(trio.sim.congested_rate(trio.qps[0]), None);
    trio.send(0, 1);
    trio.notify(0, there);
    trio.notify(0, "10.9.9.9".parse::<IpAddr>().unwrap());
    assert_eq!(trio.sim.congested_rate(trio.qps[0]), None);
    let refused =
        |event: &trace::Event| matches!(event.kind, trace::Kind::PacketDropped { reason: DropReason::WrongSource, .. });
    assert_eq!(drops.borrow().iter().filter(|event| refused(event)).count(), 3);
    trio.notify(0, here);
    assert!(trio.sim.congested_rate(trio.qps[0]).is_some());
    // Both are its peers from now on.
    trio.send(0, 2);
    for peer in [there, here, there, here] {
        let before = trio.sim.congested_rate(trio.qps[0]);
        trio.notify(0, peer);
        assert!(trio.sim.congested_rate(trio.qps[0]) < before);
    }
}

#[test]
fn a_marked_datagram_to_a_group_is_not_answered() {
    let mut trio = Trio::new(Family::V4);
    let group = wire::Gid::from("239.1.2.3".parse::<IpAddr>().unwrap());
    for index in [1, 2] {
        trio.sim.join_group(trio.qps[index], group);
        trio.sim.receive(trio.qps[index], 1, &[trio.regions[index].whole()]).unwrap();
    }
    trio.sim.script(always(|_| true, Fate::Mark));
    let mut target = trio.sim.datagram_target(trio.qps[1], &trio.options);
    (target.av.dgid, target.qpn) = (group, wire::Qpn::MULTICAST);
    let sent = trio.sim.counters().sent;
    trio.sim.post(trio.qps[0], &Work::send().sge(trio.regions[0].sge(0, 100)).to(target)).unwrap();
    trio.sim.run_for(1_000_000);
    assert_eq!([1, 2].map(|index| trio.sim.completions(trio.qps[index]).len()), [1, 1]);
    assert_eq!((trio.sim.counters().sent - sent, trio.sim.congested_rate(trio.qps[0])), (2, None));
}

#[test]
fn packets_say_that_they_take_marks_and_notifications_do_not() {
    let mut trio = Trio::new(Family::V6);
    trio.options.traffic_class = 0x6b;
    trio.send(0, 1);
    let grh = trio.sim.bytes(&trio.regions[1])[..40].to_vec();
    let class = grh[0] << 4 | grh[1] >> 4;
    assert_eq!((class >> 2, Ecn::of(class)), (0x6b >> 2, Ecn::Capable0), "the first six bits are the program's");
}
