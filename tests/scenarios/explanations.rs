//! What a checker makes of a simulation: each host has one, and sees only its own events, as if it were on the network.

use checks::{Absent, Checker, Finding, Settings};
use scenery::{Pair, Setting};
use sim::{HostId, Work};
use std::cell::RefCell;
use std::rc::Rc;
use trace::{Access, Event};
use transport::Status;

/// What Alice's and Bob's checkers tell of what `play` does.
fn told(play: impl FnOnce(&mut Pair)) -> [Vec<Finding>; 2] {
    let mut setting = Setting::default();
    setting.options.rnr_retry = 2;
    let mut pair = Pair::rc(&setting);
    let events: Rc<RefCell<Vec<(HostId, Event)>>> = Rc::default();
    let seen = Rc::clone(&events);
    pair.sim.observe(move |host, event| seen.borrow_mut().push((host, *event)));
    play(&mut pair);
    [pair.alice, pair.bob].map(|host| {
        let mut checker = Checker::new(Settings::why());
        let mut findings = Vec::new();
        for (_, event) in events.borrow().iter().filter(|(at, _)| *at == host) {
            checker.observe(event, &mut Absent, &mut |finding| findings.push(finding));
        }
        findings
    })
}

fn rules(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|finding| finding.rule.to_string()).collect()
}

#[test]
fn both_ends_explain_a_write_that_memory_refuses() {
    let [alice, bob] = told(|pair| {
        let closed = pair.sim.register(pair.bob, sim::QpSpec::rc().pd, 64, Access::REMOTE_READ);
        let here = pair.near.sge(0, 8);
        let end = pair.finish(&Work::write(closed.remote(0)).sge(here).id(7));
        assert_eq!(end.status, Status::RemoteAccess);
    });
    assert_eq!(rules(&alice), ["UV-0120"], "{alice:?}");
    assert!(alice[0].what.starts_with("work request 7 (RDMA_WRITE, 8 bytes) on QP "), "{}", alice[0]);
    assert_eq!(rules(&bob), ["UV-0901"], "{bob:?}");
    assert!(bob[0].to_string().contains("the region does not grant this access"), "{}", bob[0]);
}

#[test]
fn a_message_without_a_receive_is_explained_where_it_failed() {
    let [alice, bob] = told(|pair| {
        let here = pair.near.sge(0, 8);
        let end = pair.finish(&Work::send().sge(here).id(7));
        assert_eq!(end.status, Status::RnrRetryExceeded);
    });
    assert_eq!(rules(&alice), ["UV-0142"], "{alice:?}");
    assert_eq!(rules(&bob), Vec::<String>::new(), "{bob:?}");
}

#[test]
fn nothing_is_told_of_what_works() {
    let [alice, bob] = told(|pair| {
        let (here, there) = (pair.near.sge(0, 4096), pair.far.sge(0, 4096));
        pair.sim.receive(pair.b, 1, &[there]).expect("the receive is taken");
        pair.succeed(&Work::send().sge(here));
    });
    assert_eq!((rules(&alice), rules(&bob)), (Vec::new(), Vec::new()), "{alice:?} {bob:?}");
}
