//! The Ethernet frames of the captures beside these tests. The tests of other crates read them too.

use std::path::PathBuf;

use pcap_file::pcapng::{Block, PcapNgReader};

/// Every frame of `captures/<name>.pcapng`, in order.
pub fn of(name: &str) -> Vec<Vec<u8>> {
    let path = folder().join(format!("{name}.pcapng"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut reader = PcapNgReader::new(bytes.as_slice()).expect("a pcapng section header");
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        if let (Block::EnhancedPacket(packet), _) = block.expect("a whole block") {
            assert_eq!(packet.data.len(), packet.original_len as usize, "{name} holds whole frames");
            frames.push(packet.data.into_owned());
        }
    }
    frames
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
