//! The tests of the library on the simulator: nothing is seen that is forbidden, and with the weakest NIC everything
//! that is allowed.

use litmus::{library, run_simulated};
use transport::weak::Weakness;

/// Enough that everything is seen that may be seen; the task that runs a million is `ubiverbs litmus --runs 1000000`.
const RUNS: u64 = 2048;

#[test]
fn the_weakest_nic_shows_all_that_is_allowed_and_nothing_that_is_forbidden() {
    let mut failed = Vec::new();
    for (file, test) in library() {
        let tally = run_simulated(&test, Some(Weakness::all(1)), 1, RUNS);
        if tally.fails(&test) || !tally.saw_all(&test) {
            let seen = test.outcomes.iter().zip(&tally.outcomes).map(|(outcome, (count, _))| {
                format!("  {} {}: {count}\n", outcome.verdict.word(), outcome.told(&test))
            });
            let unlisted = tally.unlisted.keys().map(|seen| format!("  not listed: {}\n", seen.told(&test)));
            let lines: String = seen.chain(unlisted).collect();
            failed.push(format!("{file}: {}\n{lines}{:?}", test.name, tally.broken));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_usual_nic_shows_nothing_that_is_forbidden() {
    for (file, test) in library() {
        let tally = run_simulated(&test, None, 1, RUNS / 4);
        assert!(!tally.fails(&test), "{file}: {}: {tally:?}", test.name);
    }
}

#[test]
fn a_run_can_be_had_again_alone() {
    let tests = library();
    let (_, test) = tests.iter().find(|(_, test)| test.name == "spin-on-written-flag").expect("it is there");
    let weakness = Some(Weakness::all(1));
    let tally = run_simulated(test, weakness, 1, RUNS);
    let (index, (_, seed)) = tally.outcomes.iter().enumerate().min_by_key(|(_, (count, _))| *count).expect("outcomes");
    let again = run_simulated(test, weakness, seed.expect("it was seen"), 1);
    assert_eq!(again.outcomes[index].0, 1, "seed {seed:?}");
}
