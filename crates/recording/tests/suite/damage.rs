//! Files that end anywhere, of other versions, and lies: an error that says so, or what can be read.

use crate::recorded::{Recorded, entries};
use crate::round_trip::event;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use recording::block::{BLOCK_BYTES, BLOCK_HEAD_BYTES};
use recording::{Entry, Reader, RecordingError};
use std::io::Cursor;

/// A recording of some events, and these.
fn recorded(count: usize) -> (Vec<u8>, Vec<Entry>) {
    let mut runner = TestRunner::deterministic();
    let mut file = Recorded::new(0);
    let mut events = Vec::new();
    for _ in 0..count {
        let event = event().new_tree(&mut runner).unwrap().current();
        file.event(&event);
        events.push(Entry::Event(event));
    }
    (file.bytes[..file.used()].to_vec(), events)
}

#[test]
fn a_file_that_is_cut_off_anywhere_has_what_was_before() {
    let (bytes, events) = recorded(60);
    let mut most = 0;
    for length in 0..bytes.len() {
        // Between the header and the first block nothing stands.
        if (200..BLOCK_BYTES).contains(&length) && length % 997 != 0 {
            continue;
        }
        match Reader::new(Cursor::new(&bytes[..length])) {
            Ok(_) => {
                let read = entries(&bytes[..length]);
                assert_eq!(read, events[..read.len()], "cut at {length}");
                assert!(read.len() >= most, "less of more at {length}");
                most = read.len();
            }
            Err(error) => assert!(length < 100, "{length}: {error}"),
        }
    }
    assert_eq!(most, events.len() - 1);
    assert_eq!(entries(&bytes), events);
}

#[test]
fn what_was_not_committed_does_not_count() {
    let (mut bytes, events) = recorded(60);
    // As if the process had been killed before it said that the last record counts.
    let at = BLOCK_BYTES + 4;
    let committed = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    bytes[at..at + 4].copy_from_slice(&(committed - 1).to_le_bytes());
    assert_eq!(entries(&bytes), events[..events.len() - 1]);
    // More than there is is no more than there is.
    bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(entries(&bytes), events);
}

#[test]
fn what_is_no_recording_is_said_to_be_none() {
    let told = |bytes: &[u8]| match Reader::new(Cursor::new(bytes)) {
        Err(RecordingError::Header(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(told(b"{\"at\":1}\n"), "this is no recording: it does not begin as one");
    assert_eq!(told(b""), "this is no recording: it does not begin as one");
    let (mut bytes, _) = recorded(3);
    assert_eq!(told(&bytes[..20]), "the recording is cut off in its header, after 20 bytes");
    bytes[8] = 9;
    assert_eq!(told(&bytes), "the recording has version 9.0; this program reads version 1");
    bytes[8] = 1;
    bytes[12] ^= 0xff;
    assert_eq!(told(&bytes), "the header of the recording is damaged: its lengths make no sense");
}

#[test]
fn a_block_that_is_damaged_takes_no_other_with_it() {
    let (bytes, events) = recorded(6_000);
    assert!(bytes.len() > 4 * BLOCK_BYTES);
    let mut damaged = bytes.clone();
    damaged[2 * BLOCK_BYTES] ^= 1;
    let read = entries(&damaged);
    assert!(read.len() > events.len() / 3 && read.len() < events.len());
    assert_eq!(read.last(), events.last());
    let mut reader = Reader::new(Cursor::new(&damaged)).unwrap();
    assert_eq!((reader.damaged_blocks(), reader.missing_blocks()), (1, 1));
    while reader.next_entry().unwrap().is_some() {}
    // An unknown record ends its block.
    let mut unknown = bytes;
    unknown[BLOCK_BYTES + BLOCK_HEAD_BYTES + 3] ^= 0x20;
    let mut reader = Reader::new(Cursor::new(&unknown)).unwrap();
    let mut count = 0;
    while reader.next_entry().unwrap().is_some() {
        count += 1;
    }
    assert!(reader.skipped_records() == 1 && count > 0, "{} skipped, {count} read", reader.skipped_records());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn lies_are_survived(changes in prop::collection::vec((any::<u32>(), any::<u8>()), 1..200)) {
        let (mut bytes, _) = recorded(40);
        for (place, byte) in changes {
            let length = bytes.len() - BLOCK_BYTES;
            bytes[BLOCK_BYTES + place as usize % length] = byte;
        }
        let _ = entries(&bytes);
    }

    #[test]
    fn noise_is_survived(noise in prop::collection::vec(any::<u8>(), 0..4_000)) {
        let (mut bytes, _) = recorded(1);
        bytes.truncate(BLOCK_BYTES + BLOCK_HEAD_BYTES);
        bytes.extend(noise);
        bytes[BLOCK_BYTES + 4..BLOCK_BYTES + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        let _ = entries(&bytes);
    }
}
