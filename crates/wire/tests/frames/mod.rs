//! The Ethernet frames of the captures beside these tests. The tests of other crates read them too.

use std::path::PathBuf;

/// Every frame of `captures/<name>.pcapng`, in order.
pub fn of(name: &str) -> Vec<Vec<u8>> {
    let path = folder().join(format!("{name}.pcapng"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(bytes.starts_with(&SECTION_HEADER.to_le_bytes()), "{name} is pcapng");
    assert_eq!(number(&bytes, 8), BYTE_ORDER, "{name} is of a machine with little-endian numbers");
    let (mut frames, mut rest) = (Vec::new(), &bytes[..]);
    while !rest.is_empty() {
        let (kind, length) = (number(rest, 0), number(rest, 4) as usize);
        assert!(length >= 12 && number(rest, length - 4) as usize == length, "{name} holds whole blocks");
        let (block, after) = rest.split_at(length);
        if kind == ENHANCED_PACKET {
            let (captured, original) = (number(block, 20), number(block, 24));
            assert_eq!(captured, original, "{name} holds whole frames");
            frames.push(block[28..28 + captured as usize].to_vec());
        }
        rest = after;
    }
    frames
}

// Blocks of pcapng. Each is its kind, its length, what stands in it, and its length again.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The names of all captures, sorted.
#[allow(dead_code)] // not every test that reads frames lists them
pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).expect("the folder of the captures");
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.path().file_name()?.to_str()?.strip_suffix(".pcapng")?.to_owned()))
        .collect();
    names.sort();
    names
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures")
}
