//! VLAN tags: kernels take them out of frames and give them beside; hardware leaves them in unless it is told to.

use super::{ETHERNET_HEADER, bytes_at, u16_at};
use alloc::vec::Vec;

/// Where a tag lies: behind the two addresses.
const TAG_OFFSET: usize = 12;
const TAG_BYTES: usize = 4;

/// Puts a tag into a frame: what kind of tag, and its priority and number.
pub fn insert_tag(frame: &mut Vec<u8>, kind: u16, tag: u16) {
    if frame.len() >= ETHERNET_HEADER {
        let bytes: [u8; TAG_BYTES] = (u32::from(kind) << 16 | u32::from(tag)).to_be_bytes();
        frame.splice(TAG_OFFSET..TAG_OFFSET, bytes);
    }
}

/// Takes the first tag out of a frame, if it has one of a customer's VLAN.
pub fn remove_tag(frame: &[u8]) -> Option<(Vec<u8>, u16)> {
    if u16_at(frame, TAG_OFFSET) != Some(0x8100) {
        return None;
    }
    let tag = u16::from_be_bytes(bytes_at(frame, TAG_OFFSET + 2)?);
    let (addresses, rest) = (frame.get(..TAG_OFFSET)?, frame.get(TAG_OFFSET + TAG_BYTES..)?);
    Some(([addresses, rest].concat(), tag))
}
