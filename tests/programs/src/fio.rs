//! fio's RDMA engine, whose server is the job that reads. With SEND the server gets the data and verifies it by the
//! checksum in each block. With WRITE and READ it only lends its memory and looks at nothing: what is written is looked
//! for in a capture of what arrived there. What is read is verified by other programs.

use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Scene, Stage, Where};
use crate::{Test, expect};
use std::collections::BTreeMap;
use std::fs;

const ROW: Row = Row {
    program: "`fio --ioengine=rdma`",
    version: Version::Package("fio"),
    what: "SEND (each block by its crc32c), WRITE (every byte in a capture of what arrived), READ (unverified: fio \
        cannot), 512 KiB; one host and two",
};

/// What all jobs have. `thread`: else it keeps its buffers in System V memory, and starts further processes.
const JOB: &str = "fio --ioengine=rdma --name=job --thread --eta=never --bs=64k --iodepth=8 --size=512k";

/// No more blocks than receives that the server has posted: fio gives up soon where there is none, and a busy machine
/// keeps its server waiting.
const FILE_BYTES: usize = 512 << 10;

/// What a written buffer is full of.
const PATTERN: &[u8; 8] = b"Verified";

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for verb in ["send", "write", "read"] {
        for at in [Where::OneHost, Where::TwoHosts] {
            let hosts = if at == Where::OneHost { "one host" } else { "two hosts" };
            let test = Test::new(format!("fio rdma, verb={verb}, {hosts}"), move |stage| transfer(stage, verb, at));
            tests.push(if at == Where::TwoHosts { test.for_root() } else { test });
        }
    }
    all_of(&ROW, tests)
}

fn transfer(stage: &Stage, verb: &str, at: Where) -> Result<(), String> {
    let hosts = match (at, &stage.joined) {
        (Where::OneHost, _) => [&stage.alone; 2],
        (Where::TwoHosts, Some([left, right])) => [left, right],
        (Where::TwoHosts, None) => return Err("there is one host only".into()),
    };
    let (port, capture) = (stage.next_port(), stage.place.join("fio.pcapng"));
    let _ = fs::remove_file(&capture);
    let (server, client) = match verb {
        "send" => (String::from("--verify=crc32c"), "--verify=crc32c --do_verify=0"),
        _ => (String::new(), "--buffer_pattern=\"Verified\""),
    };
    let before = if verb == "write" { format!("env UBIVERBS_PCAP={} ", capture.display()) } else { String::new() };
    let told = stage.play(&Scene {
        hosts,
        user: None,
        options: &[],
        server: format!("{before}{JOB} --rw=read --port={port} {server}"),
        port,
        clients: vec![format!("{JOB} --rw=write --hostname={} --port={port} --verb={verb} {client}", hosts[0].address)],
        stays: false,
    })?;
    expect(&told[0], &["io=512KiB", "err= 0"])?;
    expect(&told[1], &["err= 0"])?;
    match verb {
        "send" => expect(&told[1], &["io=512KiB"]),
        "write" => {
            let bytes = fs::read(&capture).map_err(|e| format!("no capture of the server: {e}"))?;
            let found = written(&bytes);
            if found == FILE_BYTES {
                Ok(())
            } else {
                Err(format!("{found} bytes arrived as they were written, not {FILE_BYTES}"))
            }
        }
        _ => Ok(()),
    }
}

/// How many bytes of the pattern arrived. Packets have multiples of eight of them. One that was sent again, as the
/// machine was busy, counts once: it has the same sequence number.
fn written(capture: &[u8]) -> usize {
    let (mut packets, mut at) = (BTreeMap::new(), 0);
    while let Some(rest) = capture.get(at..) {
        let length = rest.chunks_exact(PATTERN.len()).take_while(|chunk| chunk == PATTERN).count() * PATTERN.len();
        if length == 0 {
            if rest.is_empty() {
                break;
            }
            at += 1;
            continue;
        }
        // The number ends the base header, which is right before the bytes, or before the 16 of an RDMA header.
        let number = |behind: usize| at.checked_sub(behind + 3).and_then(|from| capture.get(from..from + 3));
        packets.insert((number(0), number(16)), length);
        at += length;
    }
    packets.values().sum()
}

#[cfg(test)]
mod tests {
    use super::{PATTERN, written};

    #[test]
    fn a_packet_that_came_twice_counts_once() {
        let packet = |number: u8, times: usize| {
            let mut bytes = vec![1; 30];
            bytes[29] = number;
            bytes.extend(PATTERN.repeat(times));
            bytes.extend([9, 9, 9, 9]);
            bytes
        };
        let capture = [packet(1, 4), packet(2, 4), packet(1, 4), packet(3, 2)].concat();
        assert_eq!(written(&capture), 10 * PATTERN.len());
        assert_eq!(written(&[]), 0);
    }
}
