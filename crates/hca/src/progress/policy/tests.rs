use super::*;
use std::time::Duration;

const LONG: u64 = nanos(POLLER_CHECK_MAX);
const SHORT: u64 = nanos(POLLER_CHECK_MIN);

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

fn polls(polls: u64) -> Polls {
    Polls { polls, socket_looks: 0 }
}

#[test]
fn a_program_that_let_something_wait_is_looked_at_sooner() {
    let mut policy = EnginePolicy::new(2);
    let late = at(1_000_000_000);
    assert_eq!(policy.check_interval(late), LONG);
    assert!(!EnginePolicy::is_soon(LONG), "the first time is no habit");
    policy.missed(late);
    assert_eq!(policy.check_interval(late), SHORT);
    assert!(EnginePolicy::is_soon(SHORT));
    assert_eq!(policy.check_interval(late + Duration::from_millis(4)), 4_000_000 / POLLER_CHECK_SHARE);
    assert_eq!(policy.check_interval(late + Duration::from_secs(1)), LONG);
}

#[test]
fn a_program_is_trusted_more_only_after_the_second_long_look_in_a_row() {
    let trusted = |intervals: &[u64]| {
        let mut policy = EnginePolicy::new(2);
        let mut last = false;
        for (round, &interval) in intervals.iter().enumerate() {
            let before = polls(round as u64);
            match policy.check(before, polls(round as u64 + 1), false, interval) {
                Verdict::Polls { trusted } => last = trusted,
                other => panic!("{other:?}"),
            }
        }
        last
    };
    assert!(!trusted(&[LONG]));
    assert!(!trusted(&[SHORT, SHORT, SHORT]));
    assert!(trusted(&[LONG, LONG]));
}

#[test]
fn a_program_that_stopped_polling_is_driven_for() {
    let mut policy = EnginePolicy::new(2);
    assert_eq!(policy.check(polls(7), polls(7), false, LONG), Verdict::Stopped);
    assert_eq!(policy.check(polls(7), polls(8), false, LONG), Verdict::Polls { trusted: false });
    assert_eq!(policy.check(polls(7), polls(700), true, LONG), Verdict::Insisted, "a peer knows better");
}

#[test]
fn a_busy_program_is_left_alone_until_it_is_not() {
    let mut policy = EnginePolicy::new(2);
    assert!(policy.drives_before_check());
    assert_eq!(policy.check(polls(0), polls(BUSY_POLLS), false, SHORT), Verdict::Busy { trusted: false });
    assert!(!policy.drives_before_check());
    let thorough = Polls { polls: 4, socket_looks: BUSY_SOCKET_LOOKS };
    assert_eq!(policy.check(polls(0), thorough, false, LONG), Verdict::Busy { trusted: true });
    policy.woke(false);
    assert!(policy.drives_before_check());
}

#[test]
fn an_engine_that_is_only_rung_for_looks_at_everything_now_and_then() {
    let mut policy = EnginePolicy::new(2);
    let (start, interval) = (1_000_000_000, nanos(FULL_SCAN_INTERVAL));
    assert_eq!(policy.before_sleep(at(start)), Scan::Full);
    policy.woke(true);
    assert_eq!(policy.before_sleep(at(start + interval - 1)), Scan::Rings);
    assert_eq!(policy.before_sleep(at(start + interval)), Scan::Full);
    policy.woke(false);
    assert_eq!(policy.before_sleep(at(start + interval + 1)), Scan::Full, "something else woke it");
}

#[test]
fn an_engine_spins_in_a_stream_and_longer_where_processors_are_spare() {
    let start = at(1_000_000_000);
    let after = |nanos: u64| at(1_000_000_000 + nanos);
    for (processors, stream, limit) in [
        (2, 0, None),
        (2, STREAM_BYTES, Some(nanos(STREAM_SPIN))),
        (16, 0, Some(nanos(SPARE_PROCESSOR_SPIN))),
        (16, STREAM_BYTES, Some(nanos(SPARE_PROCESSOR_SPIN))),
    ] {
        let mut policy = EnginePolicy::new(processors);
        policy.before_sleep(start);
        let mut spin = policy.spin_after_ring(start, 5);
        match limit {
            None => assert!(!spin.goes_on(start, 5 + stream)),
            Some(limit) => {
                assert!(spin.goes_on(after(limit), 5 + stream));
                assert!(!spin.goes_on(after(limit + 1), 5 + stream));
                spin.found(after(limit));
                assert!(spin.goes_on(after(2 * limit), 5 + stream), "from the last find on");
            }
        }
    }
    let mut policy = EnginePolicy::new(16);
    policy.before_sleep(start);
    let spin = policy.spin_after_ring(after(nanos(SPARE_PROCESSOR_SPIN) + 1), 0);
    assert!(
        !spin.goes_on(after(nanos(SPARE_PROCESSOR_SPIN) + 1), 0),
        "it had slept long: the next ring will be far, too"
    );
}

#[test]
fn one_of_some_empty_looks_goes_beyond_the_rings() {
    let mut spin = Spin::new(at(0), 0);
    let beyond = (0..10 * FULL_SCAN_EVERY).filter(|_| spin.found_nothing()).count();
    assert_eq!(beyond, 10);
}

#[test]
fn the_engine_sleeps_until_the_deadline_and_not_for_ever_where_rings_are_read() {
    let check = nanos(UNHEARD_BELL_CHECK);
    assert_eq!(EnginePolicy::sleep_limit(None, false), None);
    assert_eq!(EnginePolicy::sleep_limit(Some(7), false), Some(7));
    assert_eq!(EnginePolicy::sleep_limit(Some(7), true), Some(7));
    assert_eq!(EnginePolicy::sleep_limit(Some(2 * check), true), Some(check));
    assert_eq!(EnginePolicy::sleep_limit(None, true), Some(check));
}
