//! Captures, read back by Wireshark: it must see real packets, the names of the hosts, nanoseconds, and the comments.
#![cfg(feature = "std")]

use crate::samples;
use std::fs;
use std::io;
use std::process::Command;

use trace::{Direction, Error, PcapNg};

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

/// A block. Its length stands at its beginning and at its end.
fn block(kind: u32, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let length = (body.len() as u32 + 12).to_be_bytes();
    [&kind.to_be_bytes()[..], &length, &body, &length].concat()
}

#[test]
fn every_byte_is_where_the_format_wants_it() {
    let mut capture = PcapNg::new(Vec::new()).unwrap();
    let host = capture.interface("host0").unwrap();
    capture.frame(host, 0x1_0000_0002, b"12345", Some("abc")).unwrap();
    capture.directed(host, 3, b"1234", Direction::Outbound).unwrap();
    capture.frame(host, 4, b"123", None).unwrap();
    let program = concat!("ubiverbs ", env!("CARGO_PKG_VERSION"));
    assert_eq!(program.len(), 14, "or it needs other padding");
    const END: &[u8] = b"\0\0\0\0";
    let section = [b"\x1a\x2b\x3c\x4d\0\x01\0\0", &[0xff; 8][..], b"\0\x04\0\x0e", program.as_bytes(), b"\0\0", END];
    let interface = [&b"\0\x01\0\0\0\0\0\0"[..], b"\0\x02\0\x05host0\0\0\0", b"\0\x09\0\x01\x09\0\0\0", END];
    let commented =
        [&b"\0\0\0\0\0\0\0\x01\0\0\0\x02"[..], b"\0\0\0\x05\0\0\0\x05", b"12345\0\0\0", b"\0\x01\0\x03abc\0", END];
    let directed =
        [&b"\0\0\0\0\0\0\0\0\0\0\0\x03"[..], b"\0\0\0\x04\0\0\0\x04", b"1234", b"\0\x02\0\x04\0\0\0\x02", END];
    let bare = [&b"\0\0\0\0\0\0\0\0\0\0\0\x04"[..], b"\0\0\0\x03\0\0\0\x03", b"123\0"];
    let expected = [
        block(0x0a0d_0d0a, &section),
        block(1, &interface),
        block(6, &commented),
        block(6, &directed),
        block(6, &bare),
    ];
    assert_eq!(capture.finish().unwrap(), expected.concat());
}

#[test]
fn wireshark_reads_which_way_a_frame_went() {
    let mut capture = PcapNg::new(Vec::new()).unwrap();
    let host = capture.interface("host").unwrap();
    let frame = samples::frame(samples::ack_headers(1), &[]);
    capture.directed(host, 0, &frame, Direction::Inbound).unwrap();
    capture.directed(host, 1, &frame, Direction::Outbound).unwrap();
    let frames = tshark(&capture.finish().unwrap(), "ways", &["frame.packet_flags_direction"]);
    assert_eq!(frames, [["0x00000001"], ["0x00000002"]]);
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
