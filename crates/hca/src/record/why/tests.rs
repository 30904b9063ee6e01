use super::*;
use checks::Absent;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, channel};
use trace::{Failure, Kind, Queue};
use wire::access::{Access, Range, Refusal, RefusalCause};
use wire::{Key, Qpn};

fn why() -> (Why, Receiver<Finding>, Arc<AtomicU32>) {
    let ((sender, receiver), woken) = (channel(), Arc::new(AtomicU32::new(0)));
    let asked = Asked::in_code(Settings::all(), sender);
    let counted = Arc::clone(&woken);
    let wake = move || {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    (Why::new(asked, Box::new(Absent), wake), receiver, woken)
}

fn failure(at: u64) -> Event {
    failure_of(17, at)
}

fn failure_of(qpn: u32, at: u64) -> Event {
    let range = Range { key: Key::new(7), address: 0x1000, length: 64 };
    let refusal = Refusal { range, access: Access::empty(), cause: RefusalCause::UnknownKey };
    let kind = Kind::Completed {
        wr_id: 1,
        queue: Queue::Send,
        status: "IBV_WC_LOC_PROT_ERR",
        opcode: "SEND",
        bytes: 64,
        failure: Some(Failure::Refused(refusal)),
    };
    Event { at, qpn: Some(Qpn::new(qpn)), kind }
}

#[test]
fn a_finding_is_told_once_and_counted() {
    let (why, found, _) = why();
    (0..5).for_each(|at| why.record(&failure(at)));
    let told: Vec<Finding> = found.try_iter().collect();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].rule, Number(101));
    let inside = why.inside.lock();
    let text = summary::text(&inside.checker, true, 5).unwrap();
    assert!(text.contains("error UV-0101, 5 times (QP 0x11)"), "{text}");
    let stamp = checks::Stamp { wall: 1, process: 2, thread: 3 };
    let json = summary::json(&inside.checker, stamp, 5);
    assert!(json.contains("\"subject\":\"QP 0x11\",\"count\":5}"), "{json}");
}

#[test]
fn an_idle_process_is_left_to_sleep_and_an_event_wakes_the_ticks() {
    let (why, _found, woken) = why();
    let mut now = 0;
    let mut ticks = 0;
    while let Some(until) = why.until_tick(now) {
        now += until;
        why.tick(now);
        ticks += 1;
        assert!(ticks < 200);
    }
    assert!(now > nanos(CHECK_TICKS_END) && ticks < 120, "{ticks} ticks until {now}");
    assert_eq!(woken.load(Ordering::Relaxed), 0);
    why.record(&failure(now));
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert_eq!(why.until_tick(now), Some(nanos(CHECK_TICK)));
}

#[test]
fn of_many_findings_of_one_rule_some_are_printed_and_all_are_kept() {
    let (why, found, _) = why();
    (0..20).for_each(|at| why.record(&failure_of(17 + at as u32, at)));
    let told: Vec<Finding> = found.try_iter().collect();
    assert_eq!(told.len(), 20, "listeners and reports have each");
    let mut inside = why.inside.lock();
    inside.teller.printed.clear();
    let mut printed = |finding: &Finding| inside.teller.printing(finding);
    let printings: Vec<Printing> = told.iter().map(&mut printed).collect();
    let most = PRINTED_ERRORS_PER_RULE as usize;
    assert!(printings[..most].iter().all(|it| *it == Printing::Whole));
    assert_eq!(printings[most], Printing::LastHint);
    assert!(printings[most + 1..].iter().all(|it| *it == Printing::Counted));
    let warning = Finding { rule: Number(203), severity: Severity::Warning, ..told[0].clone() };
    let printings: Vec<Printing> = (0..6).map(|_| printed(&warning)).collect();
    assert_eq!(printings.iter().filter(|it| **it == Printing::Whole).count(), PRINTED_PER_RULE as usize);
}
