//! The mark of a congested switch (CE) on a frame.

use super::{Internet, Layers, put_at, u16_at};
use crate::Ecn;

/// Marks a frame, if its sender takes marks (ECT): the outer IP header says "congestion experienced", and its checksum
/// stays as right as it was. Returns whether it is marked now.
pub fn mark_congestion(frame: &mut [u8], layers: &Layers) -> bool {
    let at = layers.outer.internet_at;
    match layers.outer.internet {
        Some(Internet::V4 { tos, .. }) if Ecn::of(tos) != Ecn::NotCapable => {
            let marked = Ecn::Experienced.in_class(tos);
            // RFC 1624, equation 3: the sum of a header in which one word changes.
            if let Some(sum) = u16_at(frame, at + 10) {
                let sum = u32::from(!sum) + (0xffff - u32::from(tos)) + u32::from(marked);
                let sum = (sum & 0xffff) + (sum >> 16);
                let sum = (sum & 0xffff) + (sum >> 16);
                put_at(frame, at + 10, (!(sum as u16)).to_be_bytes());
            }
            put_at(frame, at + 1, [marked]);
            true
        }
        Some(Internet::V6 { traffic_class, .. }) if Ecn::of(traffic_class) != Ecn::NotCapable => {
            let class = u16::from(Ecn::Experienced.in_class(traffic_class));
            if let Some(word) = u16_at(frame, at) {
                put_at(frame, at, (word & 0xf00f | class << 4).to_be_bytes());
            }
            true
        }
        _ => false,
    }
}
