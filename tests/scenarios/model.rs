//! The model test: random programs of work on several queue pairs over a bad network, against a plain model in which work simply happens, in order.
//!
//! `UBIVERBS_MODEL_PROGRAMS` says how many programs each test runs, `UBIVERBS_MODEL_FIRST` where it begins to count; `UBIVERBS_SEED` runs the one of
//! that seed and prints it.
#![allow(missing_docs)]

pub mod generate;
pub mod judge;
pub mod post;
pub mod program;
pub mod reckon;
pub mod run;
pub mod shrink;
pub mod stage;
pub mod watch;

use generate::Sort;
use program::Program;
use run::Verdict;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Events printed of a run that failed.
const LAST_EVENTS: usize = 150;

#[test]
fn reliable_work_happens_once_and_in_order() {
    try_programs(Sort::Connected, 4000);
}

#[test]
fn shared_receives_serve_every_queue_pair() {
    try_programs(Sort::Shared, 2000);
}

#[test]
fn unreliable_messages_arrive_whole_or_not_at_all() {
    try_programs(Sort::Unreliable, 2000);
}

#[test]
fn one_mistake_fails_where_it_was_made_and_flushes_the_rest() {
    try_programs(Sort::Mistaken, 4000);
}

#[test]
fn a_program_runs_the_same_way_twice() {
    for seed in 0..20 {
        let program = generate::program(Sort::Connected, seed);
        let [first, second] = [(); 2].map(|()| {
            let events = Rc::default();
            attempt(&program, Some(Rc::clone(&events))).unwrap();
            events.take()
        });
        assert!(first.len() > 10 && first == second, "program {seed}");
    }
}

/// Runs programs of a sort, or the one whose seed the environment names.
fn try_programs(sort: Sort, usual: u64) {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = number(sim::SEED_VARIABLE) {
        let program = generate::program(sort, seed);
        println!("{program}");
        return report(sort, seed, &program);
    }
    let first = number("UBIVERBS_MODEL_FIRST").unwrap_or(0);
    for seed in (first..).take(number("UBIVERBS_MODEL_PROGRAMS").unwrap_or(usual) as usize) {
        report(sort, seed, &generate::program(sort, seed));
    }
}

/// Runs a program; if it fails, says how, and shows the smallest program that still does.
fn report(sort: Sort, seed: u64, program: &Program) {
    let Err(failure) = attempt(program, None) else { return };
    let small = shrink::shrink(program, 300, |candidate| attempt(candidate, None).is_err());
    let events = Rc::default();
    let small_failure = attempt(&small, Some(Rc::clone(&events))).err().unwrap_or_default();
    let events = events.borrow();
    for event in &events[events.len().saturating_sub(LAST_EVENTS)..] {
        println!("{event}");
    }
    println!("{small}");
    println!("The program above fails: {small_failure}");
    let thread = std::thread::current();
    let again = format!(
        "UBIVERBS_SEED={seed} cargo test -p ubiverbs-scenarios --test scenarios {}",
        thread.name().unwrap_or("")
    );
    panic!("program {seed} of sort {sort:?}: {failure}\nto see it again: {again}");
}

fn attempt(program: &Program, events: Option<Rc<RefCell<Vec<trace::Event>>>>) -> Verdict {
    let ran = catch_unwind(AssertUnwindSafe(|| run::run(program, events)));
    match ran {
        Ok((verdict, _)) => verdict,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}
