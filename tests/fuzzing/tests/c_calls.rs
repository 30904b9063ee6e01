//! The corpus of the fuzz target `c_calls`: C programs. A program of its own, with the NIC of its process.
#![allow(missing_docs, dead_code)]

mod corpus;

use std::sync::mpsc;
use std::time::Duration;

/// Far more than all of it takes.
const TOO_LONG: Duration = Duration::from_secs(240);

#[test]
fn whatever_a_c_program_calls_every_call_answers_and_nothing_is_left() {
    let (done, is_done) = mpsc::channel();
    let player = std::thread::spawn(move || {
        corpus::play("c_calls", 200, fuzzing::c_calls);
        // Connections to other names are kept, and which there are is chance: what is lost grows each time.
        let left = [(); 5].map(|()| {
            corpus::play("c_calls", 0, fuzzing::c_calls);
            fuzzing::open_descriptors()
        });
        assert!(left.windows(2).any(|pair| pair[1] <= pair[0]), "each time leaves more descriptors open: {left:?}");
        let _ = done.send(());
    });
    // If it panicked, the channel has ended, and joining says so.
    if let Err(mpsc::RecvTimeoutError::Timeout) = is_done.recv_timeout(TOO_LONG) {
        panic!("a call does not answer");
    }
    if let Err(panic) = player.join() {
        std::panic::resume_unwind(panic);
    }
}
