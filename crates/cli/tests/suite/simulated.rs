//! The demo on simulated hosts, as a user runs it.
#![allow(missing_docs)]

use crate::program::{code, scratch, stderr, stdout, ubiverbs};
use std::fs;
use std::process::Command;

#[test]
fn the_demo_shows_losses_retries_and_verified_bytes() {
    let output = ubiverbs(&["demo", "--simulated"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let text = stdout(&output);
    for part in [
        "simulated",
        "RC WRITE First",
        "RC READ Response",
        "RC FetchAdd",
        "RC SEND Only",
        "LOST",
        "retry from PSN",
        "(again)",
        "IBV_WC_SUCCESS",
        "All four operations completed, and every byte was verified.",
        "The same run again: ubiverbs demo --simulated --loss",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(!text.contains("FAILED") && !text.contains("WRONG"), "{text}");
}

#[test]
fn the_same_seed_shows_the_same_run_and_another_does_not() {
    let run = |seed| stdout(&ubiverbs(&["demo", "--simulated", "--loss", "20", "--seed", seed]));
    assert_eq!(run("3"), run("3"));
    assert_ne!(run("3"), run("4"));
}

#[test]
fn a_perfect_wire_loses_nothing_at_any_size_and_mtu() {
    for (size, mtu) in [("1", "256"), ("256", "256"), ("100000", "4096"), ("65536", "512")] {
        let output = ubiverbs(&["demo", "--simulated", "--loss", "0", "--size", size, "--mtu", mtu]);
        assert_eq!(code(&output), 0, "{}", stdout(&output));
        assert!(stdout(&output).contains("none was lost"), "{}", stdout(&output));
        assert!(!stdout(&output).contains("LOST"));
    }
}

#[test]
fn a_dead_wire_fails_the_job_and_says_why() {
    let output = ubiverbs(&["demo", "--simulated", "--loss", "100"]);
    assert_eq!(code(&output), 1);
    let text = stdout(&output);
    assert!(text.contains("FAILED with IBV_WC_RETRY_EXC_ERR: packet"), "{text}");
    assert!(text.contains("The demo failed at its WRITE."), "{text}");
    let output = ubiverbs(&["demo", "--simulated", "--loss", "100", "--json"]);
    assert_eq!(code(&output), 1);
}

#[test]
fn json_is_one_document_that_admits_to_be_simulated() {
    let output = ubiverbs(&["demo", "--simulated", "--json", "--loss", "10"]);
    assert_eq!(code(&output), 0);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&document["ok"], &document["simulated"]), (&true.into(), &true.into()));
    let operations = document["operations"].as_array().expect("a list");
    assert_eq!(operations.len(), 4);
    assert!(operations.iter().all(|operation| operation["verified"] == true));
    let packets = document["log"].as_array().expect("a list").iter().filter(|line| line["kind"] == "packet");
    assert_eq!(packets.count() as u64, document["packets_sent"].as_u64().expect("a number"));
}

#[test]
fn a_capture_that_cannot_be_written_is_the_system_s_fault() {
    let output = ubiverbs(&["demo", "--simulated", "--pcap", "/nonexistent/demo.pcapng"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("cannot write /nonexistent/demo.pcapng"), "{}", stderr(&output));
    let output = ubiverbs(&["demo", "--simulated", "--pcap", "/dev/full"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("/dev/full"), "{}", stderr(&output));
}

/// Every frame is InfiniBand to Wireshark, and none malformed, over both a quiet and a bad wire.
#[test]
fn wireshark_understands_the_capture() {
    for (loss, mtu, size) in [("0", "1024", "5000"), ("10", "256", "20000"), ("30", "4096", "3")] {
        let file = scratch(&format!("demo-{loss}-{mtu}.pcapng"));
        let path = file.to_str().expect("a plain path");
        let output = ubiverbs(&[
            "demo",
            "--simulated",
            "--loss",
            loss,
            "--mtu",
            mtu,
            "--size",
            size,
            "--seed",
            "11",
            "--pcap",
            path,
            "--json",
        ]);
        assert_eq!(code(&output), 0, "{}", stdout(&output));
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let tshark = Command::new("tshark")
            .args(["--disable-protocol", "rpcordma", "-T", "fields", "-e", "frame.protocols", "-e", "frame.comment"])
            .args(["-r", path])
            .output()
            .expect("tshark is needed: apt-get install tshark");
        assert!(tshark.status.success(), "{}", stderr(&tshark));
        let text = stdout(&tshark);
        assert_eq!(text.lines().count() as u64, document["packets_sent"].as_u64().expect("a number"));
        for line in text.lines() {
            assert!(line.contains("infiniband") && !line.contains("malformed"), "{line}");
        }
        assert!(text.contains("work request 1"), "comments name the work request:\n{text}");
        assert_eq!(loss != "0", text.contains("sent again") && text.contains("dropped"), "{loss} %:\n{text}");
        fs::remove_file(file).expect("the capture was written");
    }
}
