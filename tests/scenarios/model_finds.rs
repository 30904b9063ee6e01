//! What random programs beside the model found wrong, told again as scenarios of their own.
#![allow(missing_docs)]

use scenery::{ALL_ACCESS, Pair, Setting};
use sim::{Fate, QpSpec, WindowKind, WindowSpec, Work};
use std::cell::RefCell;
use std::rc::Rc;
use transport::{Access, AsyncEvent, Bind, Remote, Sge, State, Status};
use wire::{Headers, Key, Operation, Syndrome};

/// A pair in which Alice may read the first bytes of Bob's memory through a window, and what she calls it.
fn with_window() -> (Pair, Remote) {
    let mut pair = Pair::rc(&Setting::default());
    let spec = WindowSpec { pd: QpSpec::PD, kind: WindowKind::Type2 };
    let window = pair.sim.allocate_window(pair.bob, spec);
    let heap = pair.sim.register(pair.bob, QpSpec::PD, 64, ALL_ACCESS | Access::MW_BIND);
    let new_key = Key::new(window.value() + 1);
    let (region, address) = (heap.key, heap.address);
    let bind = Bind { window, new_key, region, address, length: 64, access: Access::REMOTE_READ };
    pair.sim.post(pair.b, &Work::bind(bind)).unwrap();
    pair.sim.run_until_idle();
    assert_eq!(pair.sim.completions(pair.b)[0].status, Status::Success);
    (pair, Remote { address, key: new_key })
}

/// Bob takes his window away.
fn revoke(pair: &mut Pair, window: Remote) {
    pair.sim.post(pair.b, &Work::local_invalidate(window.key)).unwrap();
    pair.sim.run_for(1);
    assert_eq!(pair.sim.completions(pair.b)[0].status, Status::Success);
}

#[test]
fn a_read_that_the_network_repeats_after_its_window_was_revoked_hurts_nobody() {
    let (mut pair, window) = with_window();
    let asked: Rc<RefCell<Option<Headers>>> = Rc::default();
    let seen = Rc::clone(&asked);
    pair.sim.intercept(move |sighting| {
        if sighting.headers.bth.opcode.operation() == Operation::ReadRequest {
            *seen.borrow_mut() = Some(*sighting.headers);
        }
        Fate::Pass
    });
    pair.succeed(&Work::read(window).sge(pair.near.sge(0, 64)));
    revoke(&mut pair, window);

    let alice = pair.sim.gid(pair.alice, 0);
    let request = asked.borrow().expect("the READ was asked for");
    pair.sim.inject(pair.bob, alice, &request, &[]).unwrap();
    pair.sim.run_until_idle();
    assert_eq!((pair.sim.state(pair.a), pair.sim.state(pair.b)), (State::ReadyToSend, State::ReadyToSend));
    assert_eq!(pair.sim.async_events(pair.b), []);
    pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 8)));
}

#[test]
fn who_still_waits_for_a_read_of_memory_that_is_gone_is_refused() {
    let (mut pair, window) = with_window();
    let lost = |sighting: &sim::Sighting<'_>| sighting.headers.bth.opcode.operation() == Operation::ReadResponse;
    pair.sim.script(sim::script::once(lost, Fate::Drop));
    pair.sim.post(pair.a, &Work::read(window).sge(pair.near.sge(0, 64))).unwrap();
    pair.sim.run_for(100_000);
    revoke(&mut pair, window);
    pair.sim.run_until_idle();
    let completions = pair.sim.completions(pair.a);
    assert_eq!(completions.iter().map(|completion| completion.status).collect::<Vec<_>>(), [Status::RemoteAccess]);
    assert_eq!(pair.sim.state(pair.a), State::Error);
}

#[test]
fn work_behind_a_local_failure_is_flushed_although_a_late_refusal_made_it_wait() {
    let mut pair = Pair::rc(&Setting::default());
    // The refusal of the first SEND is so late that it comes just before the acknowledgement of the second try.
    let not_ready = |sighting: &sim::Sighting<'_>| matches!(sighting.headers.aeth, Some(aeth) if matches!(aeth.syndrome, Syndrome::RnrNak { .. }));
    pair.sim.script(sim::script::once(not_ready, Fate::Delay(1_048_400)));
    let nobodys = Sge { key: Key::new(0x00dd_dd00), ..pair.near.sge(0, 8) };
    pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(0, 8)).id(1)).unwrap();
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(nobodys).id(2)).unwrap();
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 8)).id(3)).unwrap();
    pair.sim.run_for(100_000);
    pair.sim.receive(pair.b, 9, &[pair.far.sge(64, 8)]).unwrap();
    pair.sim.run_until_idle();

    let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
    let expected = [(1, Status::Success), (2, Status::LocalProtection), (3, Status::WorkRequestFlushed)];
    assert_eq!(ends, expected);
    assert_eq!(pair.sim.state(pair.a), State::Error);
    assert_eq!(pair.far_bytes(0, 8), [0; 8], "what comes behind a failure does not happen");
    assert_eq!(pair.far_bytes(64, 8), pair.near_bytes(0, 8));
    assert_eq!(pair.sim.async_events(pair.b), [] as [AsyncEvent; 0]);
}
