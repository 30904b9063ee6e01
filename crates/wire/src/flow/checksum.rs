//! Checksums of IPv4, TCP and UDP: filling them in where a program leaves that to the device, completing them where the
//! kernel left that to a device, and checking them.

use super::layers::{PROTOCOL_TCP, PROTOCOL_UDP};
use super::{Internet, Layers, Stack, put_at, u16_at};

/// What the checksums of a frame are worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checksums {
    /// Of IPv4; none where there is no such header.
    pub internet: Option<bool>,
    /// Of TCP or UDP; none where there is neither, or it is a fragment.
    pub upper: Option<bool>,
}

impl Checksums {
    /// Whether the completion may say `IBV_WC_IP_CSUM_OK`: IPv4, TCP or UDP, and both right, as mlx5 has it.
    pub fn are_right(self) -> bool {
        self.internet == Some(true) && self.upper == Some(true)
    }
}

/// The sum of 16-bit words, most significant byte first, not folded.
fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let mut total = 0u64;
    for word in &mut words {
        let [a, b, c, d, e, f, g, h] = *word else { continue };
        total += u64::from(u32::from_be_bytes([a, b, c, d])) + u64::from(u32::from_be_bytes([e, f, g, h]));
    }
    let mut rest = words.remainder().chunks_exact(2);
    for pair in &mut rest {
        let [high, low] = *pair else { continue };
        total += u64::from(u16::from_be_bytes([high, low]));
    }
    total + rest.remainder().first().map_or(0, |last| u64::from(*last) << 8)
}

fn fold(mut total: u64) -> u16 {
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// The part of the sum that is of addresses, protocol and length.
fn pseudo_header(internet: &Internet, protocol: u8, length: usize) -> u64 {
    let addresses = match internet {
        Internet::V4 { source, destination, .. } => sum(source) + sum(destination),
        Internet::V6 { source, destination, .. } => sum(source) + sum(destination),
    };
    addresses + u64::from(protocol) + length as u64
}

/// Where in TCP or UDP the checksum lies.
fn place_of(protocol: u8) -> Option<usize> {
    match protocol {
        PROTOCOL_TCP => Some(16),
        PROTOCOL_UDP => Some(6),
        _ => None,
    }
}

/// TCP or UDP of a packet that is whole: its bytes and where the checksum is in the frame.
fn upper<'a>(frame: &'a [u8], stack: &Stack) -> Option<(&'a [u8], usize, Internet)> {
    let place = place_of(stack.protocol).filter(|_| !stack.fragment)?;
    let bytes = frame.get(stack.upper_at..stack.end)?;
    bytes.get(place..place + 2)?;
    Some((bytes, stack.upper_at + place, stack.internet?))
}

/// Checks the checksums of a frame's outer headers; that of TCP or UDP not if it is `known` to be right.
pub fn checksums(frame: &[u8], layers: &Layers, known: bool) -> Checksums {
    let stack = &layers.outer;
    let mut found = Checksums::default();
    if let Some(Internet::V4 { .. }) = stack.internet {
        let header = frame.get(stack.internet_at..stack.upper_at);
        found.internet = Some(header.is_some_and(|header| fold(sum(header)) == 0xffff));
    }
    if let Some((bytes, at, internet)) = upper(frame, stack) {
        let none = stack.protocol == PROTOCOL_UDP && u16_at(frame, at) == Some(0);
        // UDP over IPv4 may go without.
        let right = match none {
            _ if known => true,
            true => matches!(internet, Internet::V4 { .. }),
            false => fold(sum(bytes) + pseudo_header(&internet, stack.protocol, bytes.len())) == 0xffff,
        };
        found.upper = Some(right);
    }
    found
}

/// Fills in the checksums of a frame's outer headers.
pub fn fill_checksums(frame: &mut [u8], layers: &Layers) {
    let stack = &layers.outer;
    if let Some(Internet::V4 { .. }) = stack.internet {
        put_at(frame, stack.internet_at + 10, [0; 2]);
        let sum = frame.get(stack.internet_at..stack.upper_at).map_or(0, sum);
        put_at(frame, stack.internet_at + 10, (!fold(sum)).to_be_bytes());
    }
    if let Some((_, at, internet)) = upper(frame, stack) {
        put_at(frame, at, [0; 2]);
        let bytes = frame.get(stack.upper_at..stack.end).unwrap_or_default();
        let total = sum(bytes) + pseudo_header(&internet, stack.protocol, bytes.len());
        put_at(frame, at, filled(!fold(total)).to_be_bytes());
    }
}

/// Zero would say that there is none.
fn filled(sum: u16) -> u16 {
    if sum == 0 { 0xffff } else { sum }
}

/// Completes a checksum that holds the sum of the pseudo header only: it covers everything from `start` on, and lies
/// `offset` bytes after that.
pub fn complete_checksum(frame: &mut [u8], start: usize, offset: usize) {
    if let Some(covered) = frame.get(start..) {
        let sum = filled(!fold(sum(covered)));
        put_at(frame, start.saturating_add(offset), sum.to_be_bytes());
    }
}
