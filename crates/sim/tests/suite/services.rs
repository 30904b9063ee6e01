//! What a host offers beside reliable connections: datagrams, unreliable connections, XRC, shared receive queues and
//! memory windows, each once through, on both kinds of link.
#![allow(missing_docs)]

use sim::{
    ConnectOptions, HostConfig, HostId, LinkConfig, LinkKind, QpId, QpSpec, Region, RegionSpec, Sim, SrqSpec,
    WindowKind, WindowSpec, Work,
};
use transport::{Access, Bind, Completion, CompletionKind, Kind, Queue, SrqEvent, Status};
use wire::Key;

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

struct Two {
    sim: Sim,
    alice: HostId,
    bob: HostId,
    near: Region,
    far: Region,
    options: ConnectOptions,
}

fn two(kind: LinkKind) -> Two {
    let mut sim = Sim::new(1);
    sim.set_default_link(LinkConfig::of(kind));
    let alice = sim.add_host(HostConfig::named("alice"));
    let bob = sim.add_host(HostConfig::named("bob"));
    let near = sim.register_bytes(alice, QpSpec::PD, (0..10_000).map(|i| sim::pattern(3, i)).collect(), ALL);
    let far = sim.register(bob, QpSpec::PD, 10_000, ALL);
    Two { sim, alice, bob, near, far, options: ConnectOptions::default() }
}

impl Two {
    fn connected(&mut self, a: QpSpec, b: QpSpec) -> (QpId, QpId) {
        let (a, b) = (self.sim.create_qp(self.alice, a), self.sim.create_qp(self.bob, b));
        self.sim.connect(a, b, &self.options);
        (a, b)
    }

    /// Posts work, lets it happen, and answers how it ended.
    #[track_caller]
    fn finish(&mut self, qp: QpId, work: Work) -> Completion {
        self.sim.post(qp, &work).unwrap();
        self.sim.run_until_idle();
        let completions = self.sim.completions(qp);
        assert_eq!(completions.len(), 1, "{completions:?}");
        completions[0]
    }
}

const KINDS: [LinkKind; 2] = [LinkKind::Datagram, LinkKind::Whole];

#[test]
fn unreliable_connections_write_and_send() {
    for kind in KINDS {
        let mut two = two(kind);
        let (a, b) = two.connected(QpSpec::uc(), QpSpec::uc());
        let write = Work::write(two.far.remote(5)).sge(two.near.sge(0, 5_000));
        assert_eq!(two.finish(a, write).status, Status::Success);
        assert_eq!(two.sim.bytes(&two.far)[5..5_005], two.sim.bytes(&two.near)[..5_000]);
        two.sim.receive(b, 9, &[two.far.sge(0, 4_000)]).unwrap();
        let send = Work::send().sge(two.near.sge(100, 3_000)).immediate(4);
        assert_eq!(two.finish(a, send).status, Status::Success);
        let got = two.sim.completions(b);
        assert_eq!((got[0].wr_id, got[0].bytes, got[0].immediate), (9, 3_000, Some(4)));
        assert_eq!(two.sim.bytes(&two.far)[..3_000], two.sim.bytes(&two.near)[100..3_100]);
    }
}

#[test]
fn datagrams_arrive_behind_their_grh() {
    for kind in KINDS {
        for family in [sim::Family::V4, sim::Family::V6] {
            let mut two = two(kind);
            two.options.family = family;
            let (a, b) = (two.sim.create_qp(two.alice, QpSpec::ud()), two.sim.create_qp(two.bob, QpSpec::ud()));
            two.sim.activate(a, &two.options);
            two.sim.activate(b, &two.options);
            two.sim.receive(b, 7, &[two.far.sge(0, 200)]).unwrap();
            let target = two.sim.datagram_target(b, &two.options);
            let send = two.finish(a, Work::send().sge(two.near.sge(0, 100)).to(target));
            assert_eq!(send.status, Status::Success);
            let got = two.sim.completions(b)[0];
            assert_eq!((got.wr_id, got.bytes, got.src_qpn, got.grh), (7, 140, Some(a.qpn), true));
            let bytes = two.sim.bytes(&two.far);
            assert_eq!(bytes[40..140], two.sim.bytes(&two.near)[..100]);
            // The sender's address is the last but 4 bytes of IPv4's 20, or bytes 8 to 24 of IPv6's 40.
            let source = two.sim.gid(two.alice, family.index()).octets();
            match family {
                sim::Family::V4 => assert_eq!((bytes[20] >> 4, &bytes[32..36]), (4, &source[12..])),
                sim::Family::V6 => assert_eq!((bytes[0] >> 4, &bytes[8..24]), (6, &source[..])),
            }
        }
    }
}

#[test]
fn a_shared_receive_queue_feeds_several_queue_pairs_and_tells_when_it_runs_low() {
    for kind in KINDS {
        let mut two = two(kind);
        let srq = two.sim.create_srq(two.bob, SrqSpec::default());
        for wr_id in 0..4 {
            two.sim.receive_shared(srq, wr_id, &[two.far.sge(wr_id * 100, 100)]).unwrap();
        }
        two.sim.srq(srq).set_limit(3).unwrap();
        let pairs: Vec<_> = (0..2).map(|_| two.connected(QpSpec::rc(), QpSpec::rc().with_srq(srq))).collect();
        for (turn, (a, b)) in pairs.iter().cycle().take(4).enumerate() {
            let send = Work::send().sge(two.near.sge(turn as u64 * 100, 100));
            assert_eq!(two.finish(*a, send).status, Status::Success);
            let got = two.sim.completions(*b)[0];
            assert_eq!((got.wr_id, got.queue), (turn as u64, Queue::Shared(srq.srqn)));
            let expected: &[_] = if turn == 1 { &[(srq, SrqEvent::LimitReached)] } else { &[] };
            assert_eq!(two.sim.srq_events(), expected, "turn {turn}");
        }
        assert_eq!(two.sim.bytes(&two.far)[..400], two.sim.bytes(&two.near)[..400]);
        assert!(two.sim.srq(srq).is_empty());
    }
}

#[test]
fn an_xrc_target_reaches_the_queues_of_its_domain_and_no_others() {
    for kind in KINDS {
        let mut two = two(kind);
        let srqs: Vec<_> = [Some(1), Some(1), Some(2), None]
            .into_iter()
            .map(|xrc_domain| {
                let srq = two.sim.create_srq(two.bob, SrqSpec { xrc_domain, ..SrqSpec::default() });
                two.sim.receive_shared(srq, 50, &[two.far.sge(0, 5_000)]).unwrap();
                srq
            })
            .collect();
        for (srq, reached) in srqs.iter().zip([true, true, false, false]) {
            let (a, b) = two.connected(QpSpec::new(Kind::XrcInitiator), QpSpec::new(Kind::XrcTarget));
            let write = Work::write(two.far.remote(6_000)).sge(two.near.sge(0, 3_000)).to_srq(srqs[0].srqn);
            assert_eq!(two.finish(a, write).status, Status::Success);
            let send = two.finish(a, Work::send().sge(two.near.sge(0, 3_000)).to_srq(srq.srqn));
            assert_eq!(send.status == Status::Success, reached, "{send:?}");
            let got = two.sim.completions(b);
            assert_eq!(got.len(), usize::from(reached), "{got:?}");
            if let Some(got) = got.first() {
                assert_eq!((got.wr_id, got.bytes, got.queue), (50, 3_000, Queue::Shared(srq.srqn)));
            }
        }
    }
}

#[test]
fn a_window_is_bound_used_and_invalidated_from_afar() {
    for kind in KINDS {
        let mut two = two(kind);
        let (a, b) = two.connected(QpSpec::rc(), QpSpec::rc());
        let window = two.sim.allocate_window(two.bob, WindowSpec { pd: QpSpec::PD, kind: WindowKind::Type2 });
        let key = Key::new(window.value() + 7);
        let bind = Bind {
            window,
            new_key: key,
            region: two.far.key,
            address: two.far.address + 1_000,
            length: 100,
            access: Access::REMOTE_WRITE,
        };
        let bound = two.finish(b, Work::bind(bind));
        assert_eq!((bound.status, bound.kind), (Status::Success, CompletionKind::Bind));
        let mut there = two.far.remote(1_000);
        there.key = key;
        let write = Work::write(there).sge(two.near.sge(0, 100));
        assert_eq!(two.finish(a, write.clone()).status, Status::Success);
        assert_eq!(two.sim.bytes(&two.far)[1_000..1_100], two.sim.bytes(&two.near)[..100]);
        two.sim.receive(b, 3, &[]).unwrap();
        assert_eq!(two.finish(a, Work::send_invalidate(key)).status, Status::Success);
        assert_eq!(two.sim.completions(b)[0].invalidated, Some(key));
        assert_eq!(two.finish(a, write).status, Status::RemoteAccess);
    }
}

#[test]
fn fast_registered_memory_is_invalidated_by_its_owner() {
    let mut two = two(LinkKind::Datagram);
    let (a, _) = two.connected(QpSpec::rc(), QpSpec::rc());
    let spec = RegionSpec { invalidatable: true, ..RegionSpec::new(QpSpec::PD, ALL) };
    let fast = two.sim.register_spec(two.alice, vec![7; 100], &spec);
    assert_eq!(two.finish(a, Work::write(two.far.remote(0)).sge(fast.whole())).status, Status::Success);
    let gone = two.finish(a, Work::local_invalidate(fast.key));
    assert_eq!((gone.status, gone.kind), (Status::Success, CompletionKind::LocalInvalidate));
    let write = two.finish(a, Work::write(two.far.remote(0)).sge(fast.whole()));
    assert_eq!(write.status, Status::LocalProtection);
}

#[test]
fn a_large_message_needs_no_memory() {
    let mut two = two(LinkKind::Whole);
    two.options.mtu = wire::Mtu::B4096;
    let (a, _) = two.connected(QpSpec::rc(), QpSpec::rc());
    const LENGTH: u32 = 1 << 27;
    let spec = RegionSpec::new(QpSpec::PD, ALL);
    let near = two.sim.register_pattern(two.alice, LENGTH.into(), 5, &spec);
    let far = two.sim.register_pattern(two.bob, LENGTH.into(), 5, &spec);
    assert_eq!(two.finish(a, Work::write(far.remote(0)).sge(near.whole())).status, Status::Success);
    assert_eq!(two.sim.pattern_written(&far), (LENGTH.into(), 0));
}
