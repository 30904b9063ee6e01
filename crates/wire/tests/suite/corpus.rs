//! Replays the corpus of the fuzz targets, and holds it to be complete: one packet of every opcode, one datagram of
//! every CM message, and frames of each kind the captures have. With `WRITE_CORPUS=1` the seeds are written instead.

use crate::frames;
use crate::harness;
use std::collections::BTreeMap;
use std::path::PathBuf;

use wire::cm::{BODY_LEN, CmDatagram, Message, MessageKind};
use wire::mad::MAD_LEN;
use wire::{Frame, Gid, Headers, IpHeader, Opcode, Packet, ParseError, ROCE_PORT, UdpHeader};

fn folder(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// The seeds by file name.
fn seeds() -> BTreeMap<String, Vec<u8>> {
    let mut seeds = BTreeMap::new();
    // The shortest captured packet of each opcode and datagram of each message.
    let mut keep = |name: String, bytes: &[u8]| {
        let seed: &mut Vec<u8> = seeds.entry(name).or_insert_with(|| bytes.to_vec());
        if bytes.len() < seed.len() {
            *seed = bytes.to_vec();
        }
    };
    for name in frames::names() {
        for bytes in frames::of(&name) {
            match Frame::parse(&bytes) {
                Ok(Frame { udp: UdpHeader { destination_port: ROCE_PORT, .. }, ip, payload, .. }) => {
                    let packet = Packet::parse(payload).unwrap();
                    keep(format!("opcode-{:02x}", packet.headers.bth.opcode.byte()), payload);
                    if let Ok(datagram) = CmDatagram::parse(packet.payload) {
                        keep(format!("cm-{}", datagram.message.kind().name().to_lowercase()), packet.payload);
                    }
                    keep(format!("frame-{}", if matches!(ip, IpHeader::V4(_)) { "ipv4" } else { "ipv6" }), &bytes);
                }
                Err(ParseError::Ipv4Options(_)) => keep("frame-ipv4-options".into(), &bytes),
                _ => keep("frame-other".into(), &bytes),
            }
        }
    }
    // What the kernel did not show, we make.
    let address = Gid::from_ipv4([10, 0, 0, 1].into());
    for &opcode in Opcode::ALL {
        let mut bytes = vec![0x5a; opcode.header_length()];
        bytes[..2].copy_from_slice(&[opcode.byte(), 0]);
        let (headers, _) = Headers::parse(&bytes).unwrap();
        let packet = Packet { headers, payload: if opcode.has_payload() { &[1, 2, 3, 4, 5, 6, 7] } else { &[] } };
        let length = packet.encoded_length();
        let mut out = vec![0; length];
        let ip = IpHeader::udp(address, address, length).unwrap();
        packet.encode(&ip, &UdpHeader::roce(0xc000, length).unwrap(), &mut out).unwrap();
        seeds.entry(format!("opcode-{:02x}", opcode.byte())).or_insert(out);
    }
    for &kind in MessageKind::ALL {
        let mut out = vec![0; MAD_LEN];
        CmDatagram::new(1, Message::parse(kind, &[0x5a; BODY_LEN]).unwrap()).encode(&mut out).unwrap();
        seeds.entry(format!("cm-{}", kind.name().to_lowercase())).or_insert(out);
    }
    seeds
}

fn replay(target: &str, run: fn(&[u8])) {
    let folder = folder(target);
    let seeds = seeds();
    assert_eq!(seeds.len(), Opcode::ALL.len() + MessageKind::ALL.len() + 4);
    if std::env::var_os("WRITE_CORPUS").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in &seeds {
            std::fs::write(folder.join(name), bytes).unwrap();
        }
    }
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let entry = entry.unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        println!("{}", entry.path().display()); // shown when the next line panics
        run(&bytes);
        found.insert(entry.file_name().into_string().unwrap(), bytes);
    }
    for (name, bytes) in seeds {
        assert_eq!(found.get(&name), Some(&bytes), "{target}/{name}: make it anew with WRITE_CORPUS=1");
    }
}

#[test]
fn the_corpus_of_parse_replays() {
    replay("parse", harness::parse);
}

#[test]
fn the_corpus_of_round_trip_replays() {
    replay("round_trip", harness::round_trip);
}
