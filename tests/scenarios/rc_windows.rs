//! Keys that come and go on a reliable connection: memory windows of both types, invalidation from here and from afar, and flushes of what a key
//! stands for.

use scenery::{ALL_ACCESS, Pair, Setting};
use sim::{QpId, QpSpec, Region, RegionSpec, WindowKind, WindowSpec, Work};
use transport::{Access, AsyncEvent, Bind, CompletionKind, Operation, ProtectionDomain, Queue, Remote, State, Status};
use wire::{Key, Placement, Selectivity};

const KINDS: [WindowKind; 2] = [WindowKind::Type1, WindowKind::Type2];
const RIGHTS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

/// A region of Bob's that peers reach only through windows.
fn bindable(pair: &mut Pair) -> Region {
    pair.sim.register(pair.bob, QpSpec::PD, 8192, Access::LOCAL_WRITE | Access::MW_BIND)
}

/// A key with the next low byte.
fn next(key: Key) -> Key {
    Key::new(key.value() & !0xff | (key.value() + 1) & 0xff)
}

fn bind_of(window: Key, region: &Region, offset: u64, length: u64, access: Access) -> Bind {
    let address = region.address + offset;
    Bind { window, new_key: next(window), region: region.key, address, length, access }
}

/// Lets a queue pair do one piece of work.
#[track_caller]
fn finish(pair: &mut Pair, qp: QpId, work: &Work) -> transport::Completion {
    pair.sim.post(qp, work).unwrap();
    pair.sim.run_until_idle();
    let all = pair.sim.completions(qp);
    let [end] = all.as_slice() else { panic!("one completion expected: {all:?}") };
    *end
}

/// Lets Bob, who owns the memory, do one piece of work.
#[track_caller]
fn bobs(pair: &mut Pair, work: &Work) -> transport::Completion {
    let qp = pair.b;
    finish(pair, qp, work)
}

/// Binds 1000 bytes at 3000 of a new region and answers region and key.
fn bound(pair: &mut Pair, kind: WindowKind, access: Access) -> (Region, Key) {
    let region = bindable(pair);
    let window = pair.sim.allocate_window(pair.bob, WindowSpec { pd: QpSpec::PD, kind });
    let bind = bind_of(window, &region, 3000, 1000, access);
    let end = bobs(pair, &Work::bind(bind).id(8));
    assert_eq!((end.wr_id, end.status, end.kind, end.bytes), (8, Status::Success, CompletionKind::Bind, 0));
    assert_eq!(end.queue, Queue::Send);
    (region, bind.new_key)
}

fn at(region: &Region, key: Key, offset: u64) -> Remote {
    Remote { key, ..region.remote(offset) }
}

#[test]
fn a_window_opens_its_part_of_a_region_and_no_byte_more() {
    for setting in Setting::each_link() {
        for kind in KINDS {
            let mut pair = Pair::rc(&setting);
            let (region, key) = bound(&mut pair, kind, RIGHTS);
            pair.succeed(&Work::write(at(&region, key, 3000)).sge(pair.near.sge(0, 1000)));
            assert_eq!(&pair.sim.bytes(&region)[3000..4000], pair.near_bytes(0, 1000));
            pair.succeed(&Work::read(at(&region, key, 3999)).sge(pair.near.sge(2000, 1)));
            assert_eq!(pair.near_bytes(2000, 1), pair.near_bytes(999, 1));
            // Before it, past it, without the right, and around it by the region's own key.
            let here = pair.near.sge(0, 8);
            let refused = [
                Work::write(at(&region, key, 2999)).sge(pair.near.sge(0, 1)),
                Work::write(at(&region, key, 3001)).sge(pair.near.sge(0, 1000)),
                Work::fetch_add(at(&region, key, 3000), 1).sge(here),
                Work::write(region.remote(3000)).sge(here),
            ];
            for (index, work) in refused.iter().enumerate() {
                let mut pair = Pair::rc(&setting);
                let (again, same) = bound(&mut pair, kind, RIGHTS);
                assert_eq!((again, same), (region, key), "hosts are alike");
                assert_eq!(pair.finish(work).status, Status::RemoteAccess, "{kind:?}, {index}");
                assert_eq!(pair.sim.async_events(pair.b), [AsyncEvent::QpAccessError]);
                assert!(pair.sim.bytes(&region).iter().all(|byte| *byte == 0));
            }
        }
    }
}

#[test]
fn an_atomic_runs_through_a_window_that_grants_it() {
    for kind in KINDS {
        let mut pair = Pair::rc(&Setting::default());
        let (region, key) = bound(&mut pair, kind, Access::REMOTE_ATOMIC);
        let end = pair.succeed(&Work::fetch_add(at(&region, key, 3008), 5).sge(pair.near.sge(0, 8)));
        assert_eq!(end.kind, CompletionKind::FetchAdd);
        assert_eq!(pair.sim.bytes(&region)[3008..3016], 5u64.to_ne_bytes());
    }
}

#[test]
fn a_windows_addresses_may_count_from_zero() {
    let mut pair = Pair::rc(&Setting::default());
    let (region, key) = bound(&mut pair, WindowKind::Type2, RIGHTS | Access::ZERO_BASED);
    pair.succeed(&Work::write(Remote { address: 0, key }).sge(pair.near.sge(0, 1000)));
    assert_eq!(&pair.sim.bytes(&region)[3000..4000], pair.near_bytes(0, 1000));
    let past = Work::write(Remote { address: 1, key }).sge(pair.near.sge(0, 1000));
    assert_eq!(pair.finish(&past).status, Status::RemoteAccess);
}

#[test]
fn a_key_works_from_its_binding_on_and_not_before() {
    for setting in Setting::each_link() {
        for kind in KINDS {
            let mut pair = Pair::rc(&setting);
            let region = bindable(&mut pair);
            let window = pair.sim.allocate_window(pair.bob, WindowSpec { pd: QpSpec::PD, kind });
            let write = Work::write(at(&region, window, 0)).sge(pair.near.sge(0, 8));
            assert_eq!(pair.finish(&write).status, Status::RemoteAccess, "never bound");

            // The binding, and the message that gives the key away, posted together.
            let mut pair = Pair::rc(&setting);
            let region = bindable(&mut pair);
            let window = pair.sim.allocate_window(pair.bob, WindowSpec { pd: QpSpec::PD, kind });
            let bind = bind_of(window, &region, 0, 100, RIGHTS);
            pair.sim.receive(pair.a, 1, &[pair.near.sge(0, 4)]).unwrap();
            pair.sim.post(pair.b, &Work::bind(bind).id(1)).unwrap();
            let key = bind.new_key.value().to_be_bytes();
            pair.sim.post(pair.b, &Work::send().inline(&key).id(2)).unwrap();
            pair.sim.run_until_idle();
            let ids: Vec<_> = pair.sim.completions(pair.b).iter().map(|end| (end.wr_id, end.status)).collect();
            assert_eq!(ids, [(1, Status::Success), (2, Status::Success)]);
            pair.sim.completions(pair.a);
            let told = Key::new(u32::from_be_bytes(pair.near_bytes(0, 4).try_into().unwrap()));
            pair.succeed(&Work::write(at(&region, told, 0)).sge(pair.near.sge(0, 100)));
            let old = Work::write(at(&region, window, 0)).sge(pair.near.sge(0, 8));
            assert_eq!(pair.finish(&old).status, Status::RemoteAccess, "the key it had before is dead");
        }
    }
}

#[test]
fn a_type_1_window_is_for_all_of_its_domain_and_a_type_2_window_for_one_queue_pair() {
    for kind in KINDS {
        let mut pair = Pair::rc(&Setting::default());
        let (region, key) = bound(&mut pair, kind, RIGHTS);
        let other = pair.sim.create_qp(pair.alice, QpSpec::rc());
        let target = pair.sim.create_qp(pair.bob, QpSpec::rc());
        pair.sim.connect(other, target, &pair.options.clone());
        let write = Work::write(at(&region, key, 3000)).sge(pair.near.sge(0, 8));
        let status = finish(&mut pair, other, &write).status;
        let expected = if kind == WindowKind::Type1 { Status::Success } else { Status::RemoteAccess };
        assert_eq!(status, expected, "{kind:?}");

        // Another domain has no business with either.
        let stranger = QpSpec { pd: ProtectionDomain(2), ..QpSpec::rc() };
        let other = pair.sim.create_qp(pair.alice, QpSpec::rc());
        let target = pair.sim.create_qp(pair.bob, stranger);
        pair.sim.connect(other, target, &pair.options.clone());
        assert_eq!(finish(&mut pair, other, &write).status, Status::RemoteAccess, "{kind:?}");
        pair.succeed(&write);
    }
}

#[test]
fn binding_a_type_1_window_again_moves_it_and_a_binding_of_no_length_closes_it() {
    let mut pair = Pair::rc(&Setting::default());
    let (region, first) = bound(&mut pair, WindowKind::Type1, RIGHTS);
    let second = bind_of(first, &region, 0, 10, RIGHTS);
    assert_eq!(bobs(&mut pair, &Work::bind(second)).status, Status::Success);
    pair.succeed(&Work::write(at(&region, second.new_key, 0)).sge(pair.near.sge(0, 10)));
    assert!(!pair.sim.deregister(&region), "bound");
    let third = bind_of(second.new_key, &region, 0, 0, RIGHTS);
    assert_eq!(bobs(&mut pair, &Work::bind(third)).status, Status::Success);
    assert!(pair.sim.deregister(&region), "free again");
    let closed = Work::write(at(&region, third.new_key, 0)).sge(pair.near.sge(0, 1));
    assert_eq!(pair.finish(&closed).status, Status::RemoteAccess);
}

#[test]
fn a_binding_that_may_not_be_fails_where_it_is_posted() {
    for case in 0..8 {
        let mut pair = Pair::rc(&Setting::default());
        let region = bindable(&mut pair);
        let kind = if case == 7 { WindowKind::Type2 } else { WindowKind::Type1 };
        let window = pair.sim.allocate_window(pair.bob, WindowSpec { pd: QpSpec::PD, kind });
        let good = bind_of(window, &region, 0, 100, RIGHTS);
        let bind = match case {
            0 => Bind { region: Key::new(0xbad0_0000), ..good },
            1 => Bind { window: Key::new(0xbad0_0000), ..good },
            2 => bind_of(window, &region, 8000, 193, RIGHTS),
            3 => bind_of(window, &pair.far.clone(), 0, 100, RIGHTS), // grants no binding
            4 => {
                let fixed = pair.sim.register(pair.bob, QpSpec::PD, 100, Access::MW_BIND);
                bind_of(window, &fixed, 0, 100, Access::REMOTE_WRITE) // cannot be written by anybody
            }
            5 => {
                let other = pair.sim.register(pair.bob, ProtectionDomain(3), 100, ALL_ACCESS | Access::MW_BIND);
                bind_of(window, &other, 0, 100, RIGHTS)
            }
            6 => {
                let spec = WindowSpec { pd: ProtectionDomain(3), kind };
                bind_of(pair.sim.allocate_window(pair.bob, spec), &region, 0, 100, RIGHTS)
            }
            _ => bind_of(window, &region, 0, 0, RIGHTS), // a type 2 window is closed by invalidation only
        };
        pair.sim.post(pair.b, &Work::write(pair.near.remote(0)).inline(b"before").id(1)).unwrap();
        pair.sim.post(pair.b, &Work::bind(bind).id(2)).unwrap();
        pair.sim.post(pair.b, &Work::write(pair.near.remote(0)).inline(b"after").id(3)).unwrap();
        pair.sim.run_until_idle();
        let ends: Vec<_> = pair.sim.completions(pair.b).iter().map(|end| (end.wr_id, end.status)).collect();
        let expected = [(1, Status::Success), (2, Status::MemoryWindowBind), (3, Status::WorkRequestFlushed)];
        assert_eq!(ends, expected, "case {case}");
        assert_eq!(pair.near_bytes(0, 6), b"before", "case {case}");
        assert_eq!((pair.sim.state(pair.a), pair.sim.state(pair.b)), (State::ReadyToSend, State::Error));
    }
}

#[test]
fn of_the_key_for_a_binding_only_the_lowest_byte_counts() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let mut pair = Pair::rc(&Setting::default());
        let region = bindable(&mut pair);
        let window = pair.sim.allocate_window(pair.bob, WindowSpec { pd: QpSpec::PD, kind });
        let good = bind_of(window, &region, 0, 100, RIGHTS);
        let chosen = Key::new(0x5a5a_5a00 | good.new_key.value() & 0xff);
        assert_eq!(bobs(&mut pair, &Work::bind(Bind { new_key: chosen, ..good })).status, Status::Success);
        pair.succeed(&Work::write(at(&region, good.new_key, 0)).sge(pair.near.sge(0, 50)));
        assert_eq!(pair.finish(&Work::write(at(&region, chosen, 0)).inline(b"x")).status, Status::RemoteAccess);
    }
}

#[test]
fn another_queue_pairs_window_cannot_be_invalidated() {
    let mut pair = Pair::rc(&Setting::default());
    let (region, key) = bound(&mut pair, WindowKind::Type2, RIGHTS);
    let other = pair.sim.create_qp(pair.bob, QpSpec::rc());
    let peer = pair.sim.create_qp(pair.alice, QpSpec::rc());
    pair.sim.connect(other, peer, &Setting::default().options);
    pair.sim.post(other, &Work::local_invalidate(key).id(3)).unwrap();
    pair.sim.run_until_idle();
    let ends: Vec<_> = pair.sim.completions(other).iter().map(|end| (end.wr_id, end.status)).collect();
    assert_eq!(ends, [(3, Status::MemoryWindowBind)]);
    assert_eq!(pair.sim.state(other), State::Error);
    pair.succeed(&Work::write(at(&region, key, 3000)).sge(pair.near.sge(0, 50)));
}

#[test]
fn a_type_2_window_must_be_invalidated_before_it_is_bound_again() {
    let mut pair = Pair::rc(&Setting::default());
    let (region, key) = bound(&mut pair, WindowKind::Type2, RIGHTS);
    let end = bobs(&mut pair, &Work::local_invalidate(key).id(4));
    assert_eq!((end.wr_id, end.status, end.kind), (4, Status::Success, CompletionKind::LocalInvalidate));
    let again = bind_of(key, &region, 0, 50, RIGHTS);
    assert_eq!(bobs(&mut pair, &Work::bind(again)).status, Status::Success);
    pair.succeed(&Work::write(at(&region, again.new_key, 0)).sge(pair.near.sge(0, 50)));
    let bold = bind_of(again.new_key, &region, 0, 60, RIGHTS);
    assert_eq!(bobs(&mut pair, &Work::bind(bold)).status, Status::MemoryWindowBind);
}

/// A region whose key may be invalidated, as fast-registered memory's may.
fn fleeting(pair: &mut Pair) -> Region {
    let spec = RegionSpec { invalidatable: true, ..RegionSpec::new(QpSpec::PD, ALL_ACCESS) };
    pair.sim.register_spec(pair.bob, vec![0; 4096], &spec)
}

#[test]
fn a_send_with_invalidate_takes_the_key_away_and_says_so() {
    for setting in Setting::each_link() {
        for window in [false, true] {
            let mut pair = Pair::rc(&setting);
            let (region, key) = match window {
                true => bound(&mut pair, WindowKind::Type2, RIGHTS),
                false => {
                    let region = fleeting(&mut pair);
                    (region, region.key)
                }
            };
            let write = Work::write(at(&region, key, 3000)).sge(pair.near.sge(0, 8));
            pair.succeed(&write);
            pair.sim.receive(pair.b, 5, &[pair.far.sge(0, 3000)]).unwrap();
            let end = pair.succeed(&Work::send_invalidate(key).sge(pair.near.sge(0, 3000)).id(6));
            assert_eq!((end.wr_id, end.kind), (6, CompletionKind::Send));
            let got = pair.received();
            assert_eq!((got.wr_id, got.status, got.bytes), (5, Status::Success, 3000));
            assert_eq!((got.kind, got.invalidated, got.immediate), (CompletionKind::Receive, Some(key), None));
            assert_eq!(pair.far_bytes(0, 3000), pair.near_bytes(0, 3000));
            assert_eq!(pair.finish(&write).status, Status::RemoteAccess, "window: {window}");
        }
    }
}

#[test]
fn a_send_that_invalidates_what_it_may_not_fails_on_both_sides() {
    for setting in Setting::each_link() {
        for case in 0..4 {
            let mut pair = Pair::rc(&setting);
            let key = match case {
                0 => Key::new(0xbad0_0000),
                1 => pair.far.key, // an ordinary region is deregistered, not invalidated
                2 => bound(&mut pair, WindowKind::Type1, RIGHTS).1,
                _ => {
                    let region = fleeting(&mut pair);
                    assert_eq!(bobs(&mut pair, &Work::local_invalidate(region.key)).status, Status::Success);
                    region.key // gone already
                }
            };
            pair.sim.receive(pair.b, 5, &[pair.far.sge(0, 100)]).unwrap();
            pair.sim.receive(pair.b, 6, &[pair.far.sge(0, 100)]).unwrap();
            let end = pair.finish(&Work::send_invalidate(key).inline(b"x"));
            assert_eq!(end.status, Status::RemoteAccess, "case {case}");
            let ends: Vec<_> = pair.sim.completions(pair.b).iter().map(|end| (end.wr_id, end.status)).collect();
            assert_eq!(ends, [(5, Status::RemoteInvalidRequest), (6, Status::WorkRequestFlushed)], "case {case}");
            assert_eq!(pair.sim.state(pair.b), State::Error);
        }
    }
}

#[test]
fn a_local_invalidation_acts_in_its_place_among_the_work() {
    let mut pair = Pair::rc(&Setting::default());
    let spec = RegionSpec { invalidatable: true, ..RegionSpec::new(QpSpec::PD, ALL_ACCESS) };
    let own = pair.sim.register_spec(pair.alice, b"own bytes".to_vec(), &spec);
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(own.whole()).id(1)).unwrap();
    pair.sim.post(pair.a, &Work::local_invalidate(own.key).id(2).unsignaled()).unwrap();
    pair.sim.post(pair.a, &Work::write(pair.far.remote(100)).sge(own.whole()).id(3)).unwrap();
    pair.sim.run_until_idle();
    let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
    assert_eq!(ends, [(1, Status::Success), (3, Status::LocalProtection)]);
    assert_eq!(pair.far_bytes(0, 9), b"own bytes");
    assert_eq!(pair.far_bytes(100, 9), [0; 9]);
}

#[test]
fn a_fenced_invalidation_waits_for_the_reads_into_the_memory() {
    for (fenced, status) in [(true, Status::Success), (false, Status::LocalProtection)] {
        let mut pair = Pair::rc(&Setting::default());
        let spec = RegionSpec { invalidatable: true, ..RegionSpec::new(QpSpec::PD, ALL_ACCESS) };
        let own = pair.sim.register_spec(pair.alice, vec![0; 100], &spec);
        pair.sim.post(pair.a, &Work::read(pair.far.remote(0)).sge(own.whole()).id(1)).unwrap();
        let invalidate = Work::local_invalidate(own.key).id(2);
        pair.sim.post(pair.a, &if fenced { invalidate.fenced() } else { invalidate }).unwrap();
        pair.sim.run_until_idle();
        let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
        assert_eq!(ends[0], (1, status), "fenced: {fenced}");
        assert_eq!(ends.len(), 2);
    }
}

#[test]
fn invalidating_what_cannot_be_fails_here() {
    for case in 0..3 {
        let mut pair = Pair::rc(&Setting::default());
        let key = match case {
            0 => Key::new(0xbad0_0000),
            1 => pair.near.key,
            _ => pair.far.key, // the peer's
        };
        assert_eq!(pair.finish(&Work::local_invalidate(key)).status, Status::MemoryWindowBind, "case {case}");
        assert_eq!(pair.sim.state(pair.a), State::Error);
    }
}

#[test]
fn a_flush_needs_the_right_of_its_kind_on_queue_pair_and_region() {
    let global = Access::FLUSH_GLOBAL;
    let persistent = Access::FLUSH_PERSISTENT;
    let both = Placement::GLOBAL | Placement::PERSISTENT;
    let cases = [
        (Placement::GLOBAL, global, true),
        (Placement::GLOBAL, persistent, false),
        (Placement::PERSISTENT, persistent, true),
        (Placement::PERSISTENT, global, false),
        (both, global | persistent, true),
        (both, global, false),
    ];
    for (placement, granted, fine) in cases {
        let mut pair = Pair::rc(&Setting::default());
        let region = pair.sim.register(pair.bob, QpSpec::PD, 100, granted);
        let end = pair.finish(&Work::flush(region.remote(0), 100, placement));
        let expected = if fine { Status::Success } else { Status::RemoteAccess };
        assert_eq!((end.status, end.kind), (expected, CompletionKind::Flush), "region {granted:?}, {placement:?}");

        let mut setting = Setting::default();
        setting.options.access = granted;
        let mut pair = Pair::rc(&setting);
        let end = pair.finish(&Work::flush(pair.far.remote(0), 100, placement));
        let expected = if fine { Status::Success } else { Status::RemoteInvalidRequest };
        assert_eq!(end.status, expected, "queue pair {granted:?}, {placement:?}");
    }
}

#[test]
fn a_flush_of_a_whole_region_needs_its_key_but_no_range() {
    let whole = |remote| {
        let (placement, selectivity) = (Placement::GLOBAL, Selectivity::Region);
        Work::new(Operation::Flush { remote, length: 0, placement, selectivity })
    };
    let mut pair = Pair::rc(&Setting::default());
    pair.succeed(&whole(pair.far.remote(0)));
    pair.succeed(&whole(Remote { address: 0, ..pair.far.remote(0) }));
    assert_eq!(pair.finish(&whole(Remote { key: Key::new(0xbad0_0000), address: 0 })).status, Status::RemoteAccess);

    let mut pair = Pair::rc(&Setting::default());
    let poor = pair.sim.register(pair.bob, QpSpec::PD, 100, ALL_ACCESS - Access::FLUSH_GLOBAL);
    assert_eq!(pair.finish(&whole(poor.remote(0))).status, Status::RemoteAccess);
    let mut pair = Pair::rc(&Setting::default());
    let foreign = pair.sim.register(pair.bob, ProtectionDomain(7), 100, ALL_ACCESS);
    assert_eq!(pair.finish(&whole(foreign.remote(0))).status, Status::RemoteAccess);
}
