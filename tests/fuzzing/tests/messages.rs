//! The corpus of the fuzz target `messages`. A program of its own: it counts the descriptors of the process.
#![allow(missing_docs, dead_code)]

mod corpus;

#[test]
fn messages_replay_and_leave_no_descriptor_open() {
    corpus::play("messages", 2000, fuzzing::messages);
}
