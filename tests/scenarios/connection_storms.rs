//! Storms over a connection manager: random bytes, and the corpus of the fuzz target `connection`. What must hold is in
//! `scenery::connection_storm`.
#![allow(missing_docs)]

use std::path::PathBuf;

use cm::State;
use scenery::{Reached, connection_storm};
use sim::{Rng, SEED_VARIABLE};
use wire::cm::MessageKind;

/// How many storms the default run has; the variable `UBIVERBS_STORMS` asks for more.
const STORMS: u64 = 1200;

/// Bytes of one storm, from a seed.
fn bytes_of(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = vec![0; 200 + rng.below(6000) as usize];
    rng.fill(&mut bytes);
    bytes
}

/// Plays one storm and says whose it was if it goes wrong.
fn play(name: &str, bytes: &[u8]) -> Reached {
    std::panic::catch_unwind(|| connection_storm(bytes)).unwrap_or_else(|panic| {
        eprintln!("the storm was {name}");
        std::panic::resume_unwind(panic);
    })
}

#[test]
fn whatever_is_said_to_a_manager_it_keeps_its_tables_and_its_word() {
    if let Some(seed) = std::env::var(SEED_VARIABLE).ok().and_then(|value| value.parse().ok()) {
        play("of the environment", &bytes_of(seed));
        return;
    }
    let storms = std::env::var("UBIVERBS_STORMS").ok().and_then(|value| value.parse().ok()).unwrap_or(STORMS);
    let mut reached = Reached::default();
    for seed in 0..storms {
        reached.add(&play(&format!("{SEED_VARIABLE}={seed}"), &bytes_of(seed)));
    }
    // It was a storm worth the name: every message met a connection in every state, and everything was heard of and said.
    for &kind in MessageKind::ALL {
        for state in State::ALL.into_iter().map(Some).chain([None]) {
            assert!(reached.met.contains_key(&(state, kind)), "no {kind} met {state:?}");
        }
        assert!(kind == MessageKind::Lap || reached.sent.contains_key(&kind), "no {kind} was sent");
    }
    for word in [
        "request",
        "reply",
        "established",
        "rejected 8",
        "timed out Req",
        "timed out Rep",
        "timed out Dreq",
        "disconnect requested",
        "disconnected",
        "timewait ended",
        "service request",
        "service answer 0",
        "service timed out",
    ] {
        assert!(reached.heard.contains_key(word), "nobody heard of {word}: {:?}", reached.heard);
    }
}

#[test]
fn a_storm_over_a_manager_is_the_same_every_time() {
    for seed in [1, 2, 3] {
        let (first, second) = (connection_storm(&bytes_of(seed)), connection_storm(&bytes_of(seed)));
        assert_eq!(format!("{first:?}"), format!("{second:?}"));
    }
}

#[test]
fn the_corpus_of_the_fuzz_target_connection_replays() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/connection");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a folder can be listed").path())
        .collect();
    files.sort();
    assert!(files.len() >= 20, "{} has only {} files", folder.display(), files.len());
    for file in files {
        play(&file.display().to_string(), &std::fs::read(&file).expect("a file can be read"));
    }
}
