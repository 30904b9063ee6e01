//! Storms: random bytes, and the corpus of the fuzz target `queue_pair`, played over live queue pairs of every kind. What must hold is in
//! `scenery::storm`.
#![allow(missing_docs)]

use scenery::{Tally, storm};
use sim::{Rng, SEED_VARIABLE};
use std::path::PathBuf;
use trace::DropReason;
use transport::{Kind, State, Status};

/// How many storms the default run has; the variable `UBIVERBS_STORMS` asks for more.
const STORMS: u64 = 500;

/// Bytes of one storm, from a seed.
fn bytes_of(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = vec![0; 500 + rng.below(3000) as usize];
    rng.fill(&mut bytes);
    bytes
}

/// Plays one storm and says whose it was if it goes wrong.
fn play(name: &str, bytes: &[u8]) -> Tally {
    let result = std::panic::catch_unwind(|| storm(bytes));
    result.unwrap_or_else(|panic| {
        eprintln!("the storm was {name}");
        std::panic::resume_unwind(panic);
    })
}

#[test]
fn whatever_comes_nothing_breaks_but_the_connection_it_comes_on() {
    if let Some(seed) = std::env::var(SEED_VARIABLE).ok().and_then(|value| value.parse().ok()) {
        play("of the environment", &bytes_of(seed));
        return;
    }
    let storms = std::env::var("UBIVERBS_STORMS").ok().and_then(|value| value.parse().ok()).unwrap_or(STORMS);
    let mut tally = Tally::default();
    for seed in 0..storms {
        tally.add(&play(&format!("{SEED_VARIABLE}={seed}"), &bytes_of(seed)));
    }
    assert!(tally.forged >= 20_000, "{} forged packets", tally.forged);
    // It was a storm worth the name: it met every kind in every state, and reached nearly everything that can go wrong.
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::RawPacket) {
        for state in State::ALL.into_iter().filter(|state| *state != State::SendQueueError) {
            assert!(tally.states.contains_key(&(kind, state)), "no packet met {kind} in {state}");
        }
    }
    use DropReason::*;
    for reason in [
        Malformed,
        BadIcrc,
        BadOpcodeForTransport,
        BadLength,
        WrongState,
        WrongSource,
        PkeyMismatch,
        QkeyMismatch,
        OutOfOrder,
        Duplicate,
        BadSequence,
        NoReceive,
        AfterNak,
        AccessRefused,
        MessageAbandoned,
        NoReplaySlot,
        StaleAck,
        GhostAck,
        UnexpectedResponse,
        AfterRetry,
    ] {
        assert!(tally.drops.contains_key(&reason), "no packet was dropped because {reason}");
    }
    use Status::*;
    for status in [
        Success,
        LocalLength,
        WorkRequestFlushed,
        BadResponse,
        LocalAccess,
        RemoteInvalidRequest,
        RemoteAccess,
        RetryExceeded,
        RnrRetryExceeded,
    ] {
        assert!(tally.ends.contains_key(&status), "no work ended with {status}");
    }
}

#[test]
fn a_storm_is_the_same_every_time() {
    for seed in [1, 2, 3] {
        let (first, second) = (storm(&bytes_of(seed)), storm(&bytes_of(seed)));
        assert_eq!(format!("{first:?}"), format!("{second:?}"));
    }
}

#[test]
fn the_corpus_of_the_fuzz_target_replays() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/queue_pair");
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
