//! Captures, read back by Wireshark: it must see real packets, the names of the hosts, nanoseconds, and the comments.
#![cfg(feature = "std")]

mod samples;

use std::fs;
use std::io;
use std::process::Command;

use trace::{Error, PcapNg};

/// Reads fields of every frame with tshark.
fn tshark(capture: &[u8], name: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let path = std::env::temp_dir().join(format!("ubiverbs-trace-{name}-{}.pcapng", std::process::id()));
    fs::write(&path, capture).unwrap();
    let mut command = Command::new("tshark");
    command.args(["--disable-protocol", "rpcordma", "-T", "fields"]).arg("-r").arg(&path);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            panic!("tshark is missing; install it with: apt-get install tshark")
        }
        Err(e) => panic!("tshark did not start: {e}"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::remove_file(&path).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_string).collect()).collect()
}

#[test]
fn wireshark_reads_what_we_write() {
    let mut capture = PcapNg::new(Vec::new()).unwrap();
    let alice = capture.interface("alice").unwrap();
    let bob = capture.interface("bob").unwrap();
    let write = samples::frame(samples::write_headers(100), &[7; 61]);
    let ack = samples::frame(samples::ack_headers(100), &[]);
    capture.frame(alice, 1_000_000_001, &write, Some("QP 0x11: work request 7")).unwrap();
    capture.frame(bob, 1_000_000_002, &ack, None).unwrap();
    let bytes = capture.finish().unwrap();

    let frames = tshark(
        &bytes,
        "reads",
        &[
            "frame.time_epoch",
            "frame.interface_name",
            "frame.comment",
            "frame.protocols",
            "infiniband.bth.opcode",
            "infiniband.bth.psn",
            "infiniband.reth.r_key",
            "frame.len",
        ],
    );
    let write_length = write.len().to_string();
    let ack_length = ack.len().to_string();
    let protocols = "eth:ethertype:ip:udp:infiniband";
    assert_eq!(frames.len(), 2, "{frames:?}");
    assert!(frames[0][3].starts_with(protocols) && !frames[0][3].contains("malformed"), "{frames:?}");
    assert_eq!(frames[0][..3], ["1.000000001", "alice", "QP 0x11: work request 7"]);
    assert_eq!(frames[0][4..], ["10", "100", "0x00000077", &write_length]);
    assert_eq!(frames[1], ["1.000000002", "bob", "", protocols, "17", "100", "", &ack_length]);
}

#[test]
fn a_comment_too_long_for_the_format_is_cut_between_characters() {
    let mut capture = PcapNg::new(Vec::new()).unwrap();
    let host = capture.interface("host").unwrap();
    let frame = samples::frame(samples::ack_headers(1), &[]);
    // 1 + 2 n bytes: the limit falls into the middle of a letter.
    let long = format!("a{}", "ü".repeat(100_000));
    capture.frame(host, 0, &frame, Some(&long)).unwrap();
    let frames = tshark(&capture.finish().unwrap(), "long", &["frame.comment"]);
    assert_eq!(frames.len(), 1);
    assert!(long.starts_with(&frames[0][0]) && frames[0][0].len() > 4000, "{} bytes", frames[0][0].len());
}

#[test]
fn the_largest_time_survives() {
    let mut capture = PcapNg::new(Vec::new()).unwrap();
    let host = capture.interface("host").unwrap();
    let frame = samples::frame(samples::ack_headers(1), &[]);
    capture.frame(host, i64::MAX as u64, &frame, None).unwrap();
    let frames = tshark(&capture.finish().unwrap(), "late", &["frame.time_epoch"]);
    assert_eq!(frames, [["9223372036.854775807"]]);
}

#[test]
fn an_interface_of_another_capture_is_refused_and_nothing_is_written() {
    let mut other = PcapNg::new(Vec::new()).unwrap();
    other.interface("a").unwrap();
    let foreign = other.interface("b").unwrap();
    let mut capture = PcapNg::new(Vec::new()).unwrap();
    capture.interface("only").unwrap();
    let error = capture.frame(foreign, 5, &[0; 60], None).unwrap_err();
    assert!(matches!(error, Error::Frame { at: 5, .. }), "{error}");
    assert!(tshark(&capture.finish().unwrap(), "foreign", &["frame.number"]).is_empty());
}
