//! Every example runs, as one command, in one process, and ends well.

use std::path::Path;
use std::process::Command;

/// What each example says at the end.
const LAST_WORDS: &[(&str, &str)] = &[
    ("async_echo_server", "echoed 160 messages to 8 clients in one thread"),
    ("atomic_counter", "under the lock: 40"),
    ("completion_channel_epoll", "15 messages in"),
    ("hello", r#"alice: received "hello, alice""#),
    ("shared_receive_queue_many_clients", "answered 1000 messages of 100 clients with 16 buffers"),
    ("ud_datagrams", "cleo: GOOD MORNING FROM CLEO"),
    ("write_and_read", "server: SharedRegion(1048576 bytes, revoked)"),
];

#[test]
fn every_example_runs_and_none_is_forgotten() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<String> = folder
        .read_dir()
        .expect("the examples are there")
        .map(|entry| entry.expect("readable").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, LAST_WORDS.iter().map(|(name, _)| *name).collect::<Vec<_>>());

    for (name, words) in LAST_WORDS {
        let run = Command::new(env!("CARGO"))
            .args(["run", "--quiet", "--example", name])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        let (said, complained) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{name}: {}\n{said}\n{complained}", run.status);
        assert!(said.contains(words), "{name} did not say {words:?} but:\n{said}");
    }
}
