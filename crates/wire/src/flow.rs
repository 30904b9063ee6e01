//! Ethernet frames as raw queue pairs have them: where their headers are, which rules of a program match them, to which
//! work queue their hash leads, and their checksums. Pure: sockets and queue pairs are elsewhere.

mod checksum;
mod congestion;
mod layers;
mod rss;
mod segment;
mod spec;
mod table;
mod vlan;

pub use checksum::{Checksums, checksums, complete_checksum, fill_checksums};
pub use congestion::mark_congestion;
pub use layers::{EthernetHeader, Gre, Internet, Layers, Ports, Stack, Upper};
pub use rss::{HASH_KEY_LENGTH, HashFields, Rss, toeplitz};
pub use segment::{Offload, OffloadKind, each_segment};
pub use spec::{Action, Filter, FlowPart, Match, SpecError, SpecType};
pub use table::{Loopback, Origin, Rule, RuleKind, Table, Verdict};
pub use vlan::{insert_tag, remove_tag};

/// The length of an Ethernet header without tags.
pub const ETHERNET_HEADER: usize = 14;

/// `N` bytes at `at`.
pub(crate) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// A number at `at`, most significant byte first.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes_at(bytes, at).map(u16::from_be_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes_at(bytes, at).map(u32::from_be_bytes)
}

/// Writes bytes at `at`; nothing where there is no room for all of them.
pub(crate) fn put_at<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = value;
    }
}
