//! The demo on the NIC, between two processes, as a user runs it.
#![allow(missing_docs)]

use crate::program::{Running, await_death, code, document, is_alive, kill, stderr, stdout, ubiverbs, ubiverbs_with};
use serde_json::Value;
use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

/// Long enough for a busy machine, short enough to be called bounded.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

#[track_caller]
fn all_right(document: &Value) {
    assert_eq!((&document["ok"], &document["simulated"]), (&true.into(), &false.into()), "{document:#}");
    let steps = document["steps"].as_array().expect("a list");
    let names: Vec<&str> = steps.iter().filter_map(|step| step["step"].as_str()).collect();
    assert_eq!(
        names,
        ["send", "write", "write_immediate", "read", "fetch_add", "compare_swap", "datagram", "wrong_key"]
    );
    for step in steps {
        assert_eq!(step["ok"], true, "{step:#}");
        let expected = if step["step"] == "wrong_key" { "IBV_WC_REM_ACCESS_ERR" } else { "IBV_WC_SUCCESS" };
        assert_eq!(step["status"], expected, "{step:#}");
    }
}

#[test]
fn every_step_is_right_and_measured_beside_tcp() {
    let output = ubiverbs(&["demo", "--json"]);
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let document = document(&output);
    all_right(&document);
    for (figure, unit) in [("round_trip", "rdma_send_ns"), ("bandwidth", "rdma_write_bytes_per_second")] {
        let figure = &document["figures"][figure];
        assert!(figure[unit].as_f64() > Some(0.0) && figure["ratio"].as_f64() > Some(0.0), "{figure}");
    }
    let bob = document["bob"]["process"].as_u64().expect("a number");
    assert_ne!(document["alice"]["process"].as_u64(), Some(bob));
    assert!(!is_alive(bob as u32), "bob has outlived the demo");
}

#[test]
fn it_says_what_carries_the_bytes() {
    let text = stdout(&ubiverbs(&["demo", "--quick"]));
    assert!(text.contains("their messages go through shared memory") && !text.contains("Packets between"), "{text}");
    let output = ubiverbs_with(&[("UBIVERBS_LINK", "udp")], &["demo", "--quick"]);
    let text = stdout(&output);
    assert!(text.contains("RoCEv2 on UDP port 4791") && !text.contains("shared memory"), "{text}");
}

#[test]
fn it_tells_what_happens_in_plain_words() {
    let output = ubiverbs(&["demo", "--quick"]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()), "{}", stdout(&output));
    let text = stdout(&output);
    for part in [
        "alice  process",
        "1. SEND",
        "bob answered \"hello, alice\"",
        "Her NIC cuts it into 256 packets",
        "the counter stands at 42",
        "received a datagram from queue pair",
        "IBV_WC_REM_ACCESS_ERR: the peer answered packet",
        "All 8 steps went as they should, and every byte was verified.",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(!text.contains("FAILED") && !text.contains("WRONG"), "{text}");
}

/// The second process of a running demo.
fn bob_of(demo: &mut Running) -> u32 {
    let line = demo.line_with("bob    process");
    line.split_whitespace().nth(2).and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn a_peer_that_is_killed_ends_the_demo_with_the_reason() {
    for when in ["0. Both", "2. WRITE", "5. FETCH_ADD", "8. A failure", "Now the same two"] {
        let mut demo = Running::start(&["demo"]);
        let bob = bob_of(&mut demo);
        demo.line_with(when);
        kill(bob);
        let (code, errors) = demo.end_within(STEP_TIMEOUT);
        assert_eq!(code, Some(1), "killed at {when:?}: {errors}");
        assert!(errors.contains("the peer is gone"), "killed at {when:?}: {errors}");
        assert!(!is_alive(bob));
    }
}

#[test]
fn packets_that_go_wrong_are_sent_again_and_a_dead_network_is_an_error() {
    let faulty = |plan: &str| ubiverbs_with(&[("UBIVERBS_FAULTS", plan)], &["demo", "--quick", "--json"]);
    let output = faulty("drop=5%,dup=5%,reorder=5%,corrupt=2%,seed=15");
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    assert_eq!(document(&output)["ok"], true);
    let output = faulty("partition");
    assert_eq!(code(&output), 1);
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("IBV_WC_RETRY_EXC_ERR") && stderr(&output).contains("hint"),
        "{}",
        stderr(&output)
    );
    assert_eq!(document(&output)["ok"], false);
    let output = faulty("drop=often");
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("often"), "{}", stderr(&output));
}

#[test]
fn a_peer_does_not_outlive_the_demo() {
    for when in ["0. Both", "4. READ", "Now the same two"] {
        let mut demo = Running::start(&["demo"]);
        let bob = bob_of(&mut demo);
        demo.line_with(when);
        demo.kill();
        await_death(bob);
    }
}

#[test]
fn two_halves_find_each_other_over_either_family() {
    for address in ["127.0.0.1", "[::1]"] {
        let mut server = Running::start(&["demo", "--server", &format!("{address}:0")]);
        let waiting = server.line_with("Waiting on");
        let place = waiting.split_whitespace().nth(2).expect("an address").to_owned();
        let output = ubiverbs(&["demo", "--quick", "--json", "--connect", &place]);
        assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
        let document = document(&output);
        all_right(&document);
        let bare = address.trim_matches(['[', ']']);
        assert_eq!(document["bob"]["address"], bare);
        server.line_with("bob: Write: all 1048576 bytes");
        server.line_with("alice said farewell");
        assert_eq!(server.end_within(STEP_TIMEOUT).0, Some(0));
    }
}

#[test]
fn a_server_whose_caller_dies_says_so() {
    let mut server = Running::start(&["demo", "--server", "127.0.0.1:0"]);
    let waiting = server.line_with("Waiting on");
    let place = waiting.split_whitespace().nth(2).expect("an address").to_owned();
    let mut alice = Running::start(&["demo", "--connect", &place]);
    alice.line_with("Now the same two");
    alice.kill();
    let (code, errors) = server.end_within(STEP_TIMEOUT);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("the peer is gone"), "{errors}");
}

#[test]
fn what_cannot_be_done_is_said_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let busy = listener.local_addr().expect("an address").to_string();
    for (arguments, reason) in [
        (&["demo", "--server", &busy][..], "another program holds the port"),
        (&["demo", "--server", "192.0.2.1"], "no interface of this host has that address"),
        (&["demo", "--connect", "127.0.0.1:1"], "start the other side there first"),
        (&["demo", "--connect", "host.invalid"], "cannot find \"host.invalid\""),
        (&["demo", "--connect", "127.0.0.1:nonsense"], "cannot find"),
        (&["peer"], "this command is for the program itself"),
    ] {
        let output = ubiverbs(arguments);
        assert_eq!(code(&output), 1, "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(reason), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn a_device_that_is_none_is_a_wrong_command_line() {
    for arguments in [&["demo", "--device", "ubi_nonsense"][..], &["demo", "--server", "--device", "ubi_nonsense"]] {
        let output = ubiverbs(arguments);
        assert_eq!(code(&output), 2, "{arguments:?}: {}", stderr(&output));
        let reason = "no device \"ubi_nonsense\"; this host has";
        assert!(stderr(&output).contains(reason), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn something_else_that_answers_is_no_peer() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("an address").to_string();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a caller");
        stream.write_all(b"SSH-2.0-something\r\n").expect("sent");
    });
    let output = ubiverbs(&["demo", "--connect", &place]);
    other.join().expect("it answered");
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("does not speak our protocol"), "{}", stderr(&output));
}

#[test]
fn a_wrong_command_line_is_2_with_the_reason_on_stderr() {
    for (arguments, reason) in [
        (&[][..], "Usage"),
        (&["dance"], "unrecognized subcommand"),
        (&["demo", "--frobnicate"], "unexpected argument"),
        (&["demo", "--server", "--connect", "127.0.0.1"], "cannot be used with"),
        (&["demo", "--simulated", "--connect", "127.0.0.1"], "cannot be used with"),
        (&["demo", "--loss", "10"], "--simulated"),
        (&["demo", "--pcap", "x"], "--simulated"),
        (&["demo", "--simulated", "--loss", "101"], "0 to 100"),
        (&["demo", "--simulated", "--loss", "NaN"], "0 to 100"),
        (&["demo", "--simulated", "--mtu", "1500"], "one of 256, 512, 1024, 2048 and 4096"),
        (&["demo", "--simulated", "--size", "0"], "0 is not in 1..=16777216"),
        (&["demo", "--simulated", "--seed", "x"], "invalid digit"),
        (&["bench", "--sizes", "0"], "1 to 64M"),
        (&["bench", "--sizes", "8,x"], "1 to 64M"),
        (&["bench", "--time", "0"], "0.001 to 60"),
        (&["bench", "--only", "dancing"], "invalid value"),
        (&["completions", "cobol"], "invalid value"),
    ] {
        let output = ubiverbs(arguments);
        assert_eq!(code(&output), 2, "{arguments:?}");
        assert!(stderr(&output).contains(reason), "{arguments:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{arguments:?}");
    }
}

#[test]
fn help_teaches_and_succeeds() {
    for (arguments, parts) in [
        (&["--help"][..], &["Exit codes: 0 it worked", "Begin with: ubiverbs demo"][..]),
        (
            &["demo", "--help"],
            &["--connect <ADDRESS[:PORT]>", "--simulated", "--loss <PERCENT>", "Examples:", "[default: 1024]"],
        ),
        (&["bench", "--help"], &["--sizes <SIZES>", "--events", "Examples:", "[default: 0.2]"]),
        (&["completions", "--help"], &["bash", "zsh", "fish"]),
    ] {
        let output = ubiverbs(arguments);
        assert_eq!(code(&output), 0);
        for part in parts {
            assert!(stdout(&output).contains(part), "{arguments:?} {part}: {}", stdout(&output));
        }
        assert!(!stdout(&output).contains("  peer"), "{}", stdout(&output));
    }
    assert_eq!(code(&ubiverbs(&["--version"])), 0);
    for shell in ["bash", "zsh", "fish"] {
        let output = ubiverbs(&["completions", shell]);
        assert_eq!(code(&output), 0);
        assert!(stdout(&output).contains("UBIVERBS_COMPLETE"), "{shell}");
    }
}
