//! `cluster` as a user runs it.
#![allow(missing_docs)]

use crate::program::ubiverbs;

/// Far more processes than processors.
#[test]
fn sixty_four_processes_meet_and_sum_up() {
    let output =
        ubiverbs(&["cluster", "--topologies", "tree", "-n", "64", "--bytes", "4096", "--limit", "240", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["runs"][0]["queue_pairs_made"], 126, "{text}");
}

#[test]
fn topologies_stand_side_by_side() {
    let output = ubiverbs(&["cluster", "--topologies", "ring,mesh,star", "-n", "4", "--bytes", "64K"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for expected in ["4 processes", "queue pairs in all", "microseconds from row to column", "All-reduce of 64 KiB"] {
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
    assert!(text.contains("8                 12                  6"), "queue pairs of ring, mesh and star:\n{text}");
    assert!(!text.contains('\x1b'), "colours without a terminal");
}

#[test]
fn a_run_is_told_as_json() {
    let output = ubiverbs(&["cluster", "--topologies", "torus", "-n", "4", "--bytes", "4096", "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a JSON document");
    let run = &document["runs"][0];
    assert_eq!((&run["queue_pairs"], &run["queue_pairs_made"]), (&8.into(), &8.into()), "{document:#}");
    let rows = run["latency_us"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().enumerate().all(|(rank, row)| row[rank] == 0.0 && row[(rank + 1) % 4].as_f64() > Some(0.0)));
}

#[test]
fn plans_start_nothing() {
    let output = ubiverbs(&["cluster", "--plan", "--topologies", "ring,mesh", "-n", "1024", "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a JSON document");
    assert_eq!(document["runs"][0]["queue_pairs"], 2048);
    assert_eq!(document["runs"][1]["queue_pairs"], 1_047_552);
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let wrong = [
        (vec!["--topologies", "rings"], "there is no topology"),
        (vec!["--topologies", "hypercube", "-n", "6"], "4 or 8 would do"),
        (vec!["-n", "1"], "2 to 64 processes are possible"),
        (vec!["-n", "65"], "--plan counts for more"),
        (vec!["--bytes", "7"], "8 bytes to 1G are possible"),
        (vec!["--bytes", "many"], "a size like"),
        (vec!["--limit", "0"], "1..=3600"),
    ];
    for (arguments, expected) in wrong {
        let output = ubiverbs(&[vec!["cluster"], arguments.clone()].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}
