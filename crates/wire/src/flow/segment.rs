//! Frames that the kernel passes on longer than any wire carries: it hands out what TCP or UDP has to send in one piece
//! and leaves the cutting to the device. A raw queue pair gets what would have come off the wire.

use super::layers::{PROTOCOL_TCP, PROTOCOL_UDP};
use super::{Internet, Layers, fill_checksums, put_at, u16_at, u32_at};
use alloc::vec::Vec;

/// What was left to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offload {
    /// Of which protocol.
    pub kind: OffloadKind,
    /// Payload bytes of a segment.
    pub size: u16,
}

/// The protocols that are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OffloadKind {
    /// TCP over either version of IP.
    Tcp,
    /// UDP, each segment a datagram.
    Udp,
}

const FIN_PSH: u8 = 0x09;
const CWR_FLAG: u8 = 0x80;

/// Shows the segments of a frame, in order, each built in `scratch` with its checksums. False if the frame is not what
/// the offload says: then nothing was shown.
pub fn each_segment(frame: &[u8], offload: Offload, scratch: &mut Vec<u8>, mut show: impl FnMut(&mut Vec<u8>)) -> bool {
    let Some(layers) = Layers::parse(frame) else { return false };
    let stack = layers.outer;
    let upper = stack.upper_at;
    let header = match (offload.kind, stack.protocol) {
        (OffloadKind::Tcp, PROTOCOL_TCP) => frame.get(upper + 12).map(|offset| usize::from(offset >> 4) * 4),
        (OffloadKind::Udp, PROTOCOL_UDP) => Some(8),
        _ => None,
    };
    let (Some(header), Some(internet)) = (header, stack.internet) else { return false };
    let at = upper + header;
    let (Some(headers), Some(payload)) = (frame.get(..at), frame.get(at..stack.end)) else { return false };
    if offload.size == 0 || stack.fragment || header < 8 {
        return false;
    }
    let first_id = u16_at(frame, stack.internet_at + 4).unwrap_or(0);
    let first_sequence = u32_at(frame, upper + 4).unwrap_or(0);
    let flags = frame.get(upper + 13).copied().unwrap_or(0);
    let count = payload.len().div_ceil(offload.size.into());
    for (index, piece) in payload.chunks(offload.size.into()).enumerate() {
        scratch.clear();
        scratch.extend_from_slice(headers);
        scratch.extend_from_slice(piece);
        match internet {
            Internet::V4 { .. } => {
                let total = (at - stack.internet_at + piece.len()) as u16;
                put_at(scratch, stack.internet_at + 2, total.to_be_bytes());
                put_at(scratch, stack.internet_at + 4, first_id.wrapping_add(index as u16).to_be_bytes());
            }
            Internet::V6 { .. } => {
                let length = (at - stack.internet_at - 40 + piece.len()) as u16;
                put_at(scratch, stack.internet_at + 4, length.to_be_bytes());
            }
        }
        match offload.kind {
            OffloadKind::Tcp => {
                let sequence = first_sequence.wrapping_add((index * usize::from(offload.size)) as u32);
                let cleared = if index + 1 < count { FIN_PSH } else { 0 } | if index > 0 { CWR_FLAG } else { 0 };
                put_at(scratch, upper + 4, sequence.to_be_bytes());
                put_at(scratch, upper + 13, [flags & !cleared]);
            }
            OffloadKind::Udp => put_at(scratch, upper + 4, ((8 + piece.len()) as u16).to_be_bytes()),
        }
        if let Some(layers) = Layers::parse(scratch) {
            fill_checksums(scratch, &layers);
        }
        show(scratch);
    }
    count > 0
}
