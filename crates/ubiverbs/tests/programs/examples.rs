//! Every example runs, as one command, in one process, and ends well.

use crate::example;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What each example says at the end.
const LAST_WORDS: &[(&str, &str)] = &[
    ("async_echo_server", "echoed 160 messages to 8 clients in one thread"),
    ("atomic_counter", "under the lock: 40"),
    ("buffers", "server: all 65536 bytes are there"),
    ("completion_channel_epoll", "15 messages in"),
    ("connect", r#"had said "hello from the client""#),
    ("device_memory", "server: the client counted to 10"),
    ("file_transfer", "sent 3000000 bytes, and the copy is the same"),
    // What it does with one is tested on the stand-in for its driver, in gpu.rs.
    ("gpu_write", "GPU"),
    ("hello", r#"alice: received "hello, alice""#),
    ("multicast_chat", "3 members heard 3 messages each"),
    ("reconnect", "connections, each done once"),
    ("ring_and_mesh", "ring: the sum of 32 KiB of each: a node sent 1.75 times its data"),
    ("shared_receive_queue_many_clients", "answered 1000 messages of 100 clients with 16 buffers"),
    ("streams", "server: answered 3 lines"),
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
        let run = example::command(name).output().expect("it runs");
        let (said, complained) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{name}: {}\n{said}\n{complained}", run.status);
        assert!(said.contains(words), "{name} did not say {words:?} but:\n{said}");
    }
}

/// Not run: Cargo would build everything once more, with the features of all default members.
#[test]
fn cargo_finds_the_examples_from_the_root_of_the_workspace() {
    let run = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&run.stdout);
    let members = said.split_once("\"workspace_default_members\":[").expect("a list of members").1;
    let members = members.split_once(']').expect("an end").0;
    assert!(members.contains("/crates/ubiverbs#"), "`cargo run --example hello` finds no example: {members}");
}

/// An example in a process of its own, talked to like a person would.
struct Terminal {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Terminal {
    fn start(name: &str, arguments: &[&str]) -> Terminal {
        let mut command = example::command(name);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Terminal { child, input, output }
    }

    /// The next line that contains `mark`, from there on.
    fn line_with(&mut self, mark: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).expect("readable"), 0, "it ended without saying {mark:?}");
            if let Some(at) = line.find(mark) {
                return line[at..].trim().to_owned();
            }
        }
    }

    fn paste(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it reads");
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().expect("it ends").success());
    }
}

#[test]
fn an_error_that_main_returns_is_a_sentence_with_a_hint() {
    let run = example::command("buffers").args(["client", "127.0.0.1:1"]).output().expect("it runs");
    assert!(!run.status.success());
    let complained = String::from_utf8_lossy(&run.stderr);
    let sentence = "Error: connection refused: nobody listens at 127.0.0.1:1 (hint: is the server running, and is this its port? RDMA \
                    ports are not TCP's)";
    assert!(complained.contains(sentence) && !complained.contains('{'), "{complained}");
}

#[test]
fn hello_between_two_processes() {
    let (mut bob, mut alice) = (Terminal::start("hello", &["bob"]), Terminal::start("hello", &["alice"]));
    let (at_bob, at_alice) = (bob.line_with("rc/"), alice.line_with("rc/"));
    bob.paste(&at_alice);
    alice.paste(&at_bob);
    assert!(bob.line_with("bob: received").contains("hello, bob"));
    assert!(alice.line_with("alice: received").contains("hello, alice"));
    bob.end();
    alice.end();
}

#[test]
fn write_and_read_between_two_processes() {
    let mut server = Terminal::start("write_and_read", &["server"]);
    let mut client = Terminal::start("write_and_read", &["client"]);
    let (at_server, at_client) = (server.line_with("rc/"), client.line_with("rc/"));
    server.paste(&at_client);
    client.paste(&at_server);
    client.line_with("read 256 bytes back, and they are the same");
    server.line_with("the last byte is there");
    client.end();
    server.paste("");
    server.end();
}

#[test]
fn descriptors_between_two_processes() {
    let mut server = Terminal::start("buffers", &["server", "127.0.0.1:0"]);
    let line = server.line_with("listening at ");
    let address = line.strip_prefix("listening at ").expect("as it was found");
    Terminal::start("buffers", &["client", address]).end();
    server.line_with("all 65536 bytes are there");
    server.child.kill().expect("it runs until it is stopped");
    server.child.wait().expect("it ends");
}

#[test]
fn datagrams_between_two_processes() {
    let mut server = Terminal::start("ud_datagrams", &["server"]);
    let endpoint = server.line_with("ud/");
    let mut client = Terminal::start("ud_datagrams", &["client", &endpoint]);
    client.line_with("GOOD MORNING FROM CLIENT");
    client.end();
    server.child.kill().expect("it runs until it is stopped");
    server.child.wait().expect("it ends");
}
