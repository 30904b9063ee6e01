//! The ring of shared memory, with a writer that keeps to the rules until the bytes want otherwise, and then writes
//! anything anywhere, between any two steps of the reader. The reader gives nothing that lies outside the ring; what an
//! honest writer wrote arrives as it was.

use crate::choices::Choices;
use link::shared::{LARGE_RING_BYTES, MAX_NAME_BYTES, MAX_PAYLOAD_BYTES, Reader, SMALL_RING_BYTES, Writer};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::{Gid, Headers, Key, Opcode, Psn, Qpn, Reth};

/// Where records begin.
const CONTROL: usize = 4096;
const LINE: usize = 64;

/// A train that an honest writer wrote.
struct Sent {
    psn: u32,
    byte: u8,
    length: usize,
}

fn headers(psn: u32) -> Headers {
    let mut headers = Headers::new(Opcode::RcWriteOnly, Qpn::new(7), Psn::new(psn));
    headers.reth = Some(Reth { va: 8, rkey: Key::new(9), len: 10 });
    headers
}

fn create(lap: usize) -> (Writer, Reader, File) {
    let (writer, fd): (Writer, OwnedFd) = Writer::create(lap).expect("memory for a ring");
    let mut reader = Reader::accept(fd.as_fd()).expect("it is a ring");
    // So that records which name their payload are read too.
    reader.take_names();
    (writer, reader, fd.into())
}

/// Looks at the train at the front as the NIC does. False if the ring makes no sense.
fn look(reader: &mut Reader, into: &mut Vec<u8>) -> bool {
    let extent = reader.extent();
    let Ok(front) = reader.front() else { return false };
    let Some(front) = front.cloned() else { return true };
    assert!(front.count > 0 && front.mtu <= 255 * 256);
    assert!(!front.is_named || reader.train_and_payload().is_some_and(|(_, name)| name.len() == MAX_NAME_BYTES));
    let _ = (reader.following(), front.acknowledgement());
    let (again, payload) = reader.train_and_payload().expect("there is a train");
    assert_eq!(
        (again.headers, again.addresses),
        (front.headers, front.addresses),
        "what was copied out stays as it was"
    );
    let range = payload.as_ptr_range();
    assert!(
        payload.len() <= MAX_PAYLOAD_BYTES && range.start >= extent.start && range.end <= extent.end,
        "outside the ring"
    );
    into.clear();
    into.extend_from_slice(payload);
    true
}

/// Lets bytes decide what is written to a ring, by its writer and by others, and how it is read.
///
/// # Panics
/// If a rule is broken.
pub fn ring(bytes: &[u8]) {
    let mut choices = Choices { bytes };
    let lap = if choices.one_in(4) { LARGE_RING_BYTES } else { SMALL_RING_BYTES };
    let (mut writer, mut reader, memory) = create(lap);
    let mut sent: VecDeque<Sent> = VecDeque::new();
    let (mut honest, mut psn, mut position) = (true, 0, 0usize);
    let mut payload = Vec::new();
    while !choices.bytes.is_empty() {
        match choices.byte() % 16 {
            0..=4 if writer.has_room() => {
                let length = match choices.byte() % 4 {
                    0 => 0,
                    1 => usize::from(choices.byte()),
                    2 => usize::from(choices.short()),
                    _ => MAX_PAYLOAD_BYTES,
                };
                let (byte, address) = (choices.byte(), choices.byte() % 2);
                let fill = |out: &mut [u8]| -> Result<(), ()> {
                    out.fill(byte);
                    if byte == 0xee { Err(()) } else { Ok(()) }
                };
                let address = (Gid::new([address; 16]), Gid::new([2; 16]));
                if writer.push(address, &headers(psn), (1 + u32::from(byte), 256), length, fill).is_ok() {
                    sent.push_back(Sent { psn, byte, length });
                }
                psn += 1;
            }
            // Anything, anywhere: at the front, at the words of both sides, or at a place of the bytes' choice.
            5..=8 => {
                honest = false;
                let at = match choices.byte() % 4 {
                    0 => usize::from(choices.short() % 512),
                    1 => CONTROL + (choices.word() as usize % lap),
                    _ => CONTROL + position % lap + usize::from(choices.byte() % 16) * 8,
                };
                let length = usize::from(choices.byte() % 80);
                let bytes = choices.slice(length);
                let room = (CONTROL + lap).saturating_sub(at);
                memory.write_all_at(&bytes[..bytes.len().min(room)], at as u64).expect("the memory is there");
            }
            // A record that might be one.
            9 | 10 => {
                honest = false;
                let (kind, length) =
                    (u32::from(choices.byte() % 6), choices.of(&[0, 8, 1000, 1024, 65_536, 65_537, 0xff_ffff]));
                let headers_length = choices.of(&[12, 16, 28, 0, 40, 56, 57, 255]);
                let mut record = [0; LINE];
                record[..4].copy_from_slice(&(kind << 24 | length).to_ne_bytes());
                record[4..6].copy_from_slice(&u16::from(choices.byte()).to_ne_bytes());
                record[6..8].copy_from_slice(&[headers_length, choices.byte()]);
                for (place, byte) in record[8..].iter_mut().zip(choices.slice(32)) {
                    *place = *byte;
                }
                let at = CONTROL + (position % lap).min(lap - LINE);
                memory.write_all_at(&record, at as u64).expect("the memory is there");
            }
            11 => {
                reader.tell(choices.one_in(2));
                writer.want_room();
                let end = writer.position();
                writer.was_read(end);
            }
            _ => {
                if !look(&mut reader, &mut payload) {
                    assert!(!honest, "an honest ring makes no sense");
                    return;
                }
                match (reader.train_and_payload().map(|(front, _)| front.clone()), honest) {
                    (Some(front), true) => {
                        let Sent { psn, byte, length } = sent.pop_front().expect("it was sent");
                        assert_eq!((front.headers, payload.len()), (headers(psn), length));
                        assert!(payload.iter().all(|other| *other == byte));
                    }
                    (None, true) => assert!(sent.is_empty(), "a train was lost"),
                    _ => {}
                }
                reader.consume();
                // Where the reader is by now: what it tells the writer, modulo the lap.
                reader.tell(false);
                let mut told = [0; 8];
                memory.read_exact_at(&mut told, 256).expect("the memory is there");
                position = (u64::from_ne_bytes(told) % lap as u64) as usize;
            }
        }
        assert!(!honest || !writer.is_broken(), "an honest reader's word is no word");
    }
}

/// Plays with a second thread that writes the bytes to the ring over and over while it is read.
///
/// # Panics
/// If a rule is broken.
pub fn ring_under_attack(bytes: &[u8], turns: usize) {
    let (mut writer, _, memory) = create(SMALL_RING_BYTES);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut choices = Choices { bytes };
            while !done.load(Ordering::Relaxed) {
                if choices.bytes.is_empty() {
                    choices = Choices { bytes };
                }
                let at = CONTROL + usize::from(choices.byte()) * 8;
                let length = usize::from(choices.byte() % 72) + 1;
                memory.write_all_at(choices.slice(length), at as u64).expect("the memory is there");
            }
        });
        let mut payload = Vec::new();
        for turn in 0..turns {
            // Each time from the beginning: a ring that makes no sense is given up.
            let mut reader = Reader::accept(memory.as_fd()).expect("it is a ring");
            reader.take_names();
            if turn % 8 == 0 && writer.has_room() {
                let _ = writer.push(<(Gid, Gid)>::default(), &headers(1), (1, 256), 100, |_| Ok::<(), ()>(()));
            }
            for _ in 0..64 {
                if !look(&mut reader, &mut payload) {
                    break;
                }
                reader.consume();
                reader.tell(false);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}
