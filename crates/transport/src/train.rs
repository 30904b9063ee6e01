//! Trains: what a queue pair puts on a link and takes from it. A train is a run of consecutive packets of one message,
//! written down once: the headers as if the path MTU were large enough for a single packet, how many packets it stands
//! for, and where its payload lies. A datagram link expands it packet by packet ([`Train::packet`]); a shared-memory
//! link carries it whole. Because packet sequence numbers count path-MTU units either way, both ends agree on them
//! whatever the link.

use crate::attributes::AddressVector;
use crate::port::Port;
use crate::work::Sge;
use wire::access::{Range, Refusal, Subject};
use wire::{Gid, Headers};

/// Packets to send.
#[derive(Clone, Copy, Debug)]
pub struct Train<'a> {
    /// Headers of the whole train as one packet: `bth.psn` is the first packet's, the opcode says whether the train
    /// starts or ends its message, and the extended headers are those of its first and last packet together.
    pub headers: Headers,
    /// How many packets it is on the wire.
    pub count: u32,
    /// Payload bytes of every packet but the last.
    pub mtu: u32,
    /// The payload, described.
    pub payload: Payload<'a>,
    /// Where it goes.
    pub to: &'a AddressVector,
    /// The work request it belongs to, when it is a request.
    pub wr_id: Option<u64>,
    /// Whether all of it was sent before.
    pub retransmission: bool,
}

/// Where a train's payload lies.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Bytes the queue pair holds: inline data.
    Bytes(&'a [u8]),
    /// `length` bytes of the concatenated local pieces, from `offset` on.
    Gather {
        /// On whose behalf.
        subject: Subject,
        /// The pieces.
        sges: &'a [Sge],
        /// Bytes to skip.
        offset: u64,
        /// Bytes to take.
        length: u32,
    },
    /// A run of memory a peer asked to read.
    Region {
        /// On whose behalf.
        subject: Subject,
        /// The run.
        range: Range,
    },
}

/// One contiguous piece of payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece<'a> {
    /// Bytes at hand.
    Bytes(&'a [u8]),
    /// Bytes behind a key.
    Memory(Subject, Range),
}

impl Piece<'_> {
    /// Its length.
    pub fn len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Memory(_, range) => range.length as usize,
        }
    }

    /// Whether it is empty; pieces of an iteration never are.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> Payload<'a> {
    /// No payload.
    pub const NONE: Payload<'static> = Payload::Bytes(&[]);

    /// Its length in bytes.
    pub fn len(&self) -> u32 {
        match self {
            Payload::Bytes(bytes) => bytes.len() as u32,
            Payload::Gather { length, .. } => *length,
            Payload::Region { range, .. } => range.length as u32,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The contiguous pieces of `length` bytes from `from` on, in order: what a gathering system call wants.
    pub fn pieces(&self, from: u32, length: u32) -> Pieces<'a> {
        let length = length.min(self.len().saturating_sub(from));
        match *self {
            Payload::Bytes(bytes) => {
                let (from, length) = (from as usize, length as usize);
                Pieces { rest: Rest::Bytes(bytes.get(from..from + length).unwrap_or(&[])) }
            }
            Payload::Gather { subject, sges, offset, .. } => {
                Pieces { rest: Rest::Gather { subject, sges, skip: offset + u64::from(from), left: u64::from(length) } }
            }
            Payload::Region { subject, range } => Pieces {
                rest: Rest::Region(
                    subject,
                    Range {
                        key: range.key,
                        address: range.address.wrapping_add(u64::from(from)),
                        length: u64::from(length),
                    },
                ),
            },
        }
    }

    /// Copies `out.len()` bytes from `from` on into `out`.
    #[inline]
    pub fn copy<P: Port>(&self, from: u32, out: &mut [u8], port: &mut P) -> Result<(), Refusal> {
        // Mostly it lies in one place.
        if let Payload::Gather { subject, sges: [sge], offset, .. } = *self {
            let (skip, length) = (offset + u64::from(from), out.len() as u64);
            if length > 0 && skip + length <= u64::from(sge.length) {
                return port.read(
                    subject,
                    Range { key: sge.key, address: sge.address.wrapping_add(skip), length },
                    out,
                );
            }
        }
        self.copy_pieces(from, out, port)
    }

    fn copy_pieces<P: Port>(&self, from: u32, out: &mut [u8], port: &mut P) -> Result<(), Refusal> {
        let mut rest = out;
        for piece in self.pieces(from, rest.len() as u32) {
            let (now, later) = core::mem::take(&mut rest).split_at_mut(piece.len());
            match piece {
                Piece::Bytes(bytes) => now.copy_from_slice(bytes),
                Piece::Memory(subject, range) => port.read(subject, range, now)?,
            }
            rest = later;
        }
        Ok(())
    }
}

/// Iterator over the pieces of a payload.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    rest: Rest<'a>,
}

#[derive(Clone, Debug)]
enum Rest<'a> {
    Bytes(&'a [u8]),
    Gather { subject: Subject, sges: &'a [Sge], skip: u64, left: u64 },
    Region(Subject, Range),
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        match &mut self.rest {
            Rest::Bytes(bytes) => {
                let bytes = core::mem::take(bytes);
                (!bytes.is_empty()).then_some(Piece::Bytes(bytes))
            }
            Rest::Region(subject, range) => {
                let piece = *range;
                range.length = 0;
                (piece.length > 0).then_some(Piece::Memory(*subject, piece))
            }
            Rest::Gather { subject, sges, skip, left } => loop {
                if *left == 0 {
                    return None;
                }
                let (sge, later) = sges.split_first()?;
                *sges = later;
                let here = u64::from(sge.length);
                if *skip >= here {
                    *skip -= here;
                    continue;
                }
                let length = (here - *skip).min(*left);
                let range = Range { key: sge.key, address: sge.address.wrapping_add(*skip), length };
                *skip = 0;
                *left -= length;
                return Some(Piece::Memory(*subject, range));
            },
        }
    }
}

impl Train<'_> {
    /// The headers of packet `index`, which is less than `count`.
    pub fn packet(&self, index: u32) -> Headers {
        wire::packet_of(&self.headers, self.count, index, self.payload.len(), self.mtu)
    }

    /// Whether packet `index` has the headers and the length of the one before it, but for its sequence number: both
    /// are in the middle of the message, and neither is asked about.
    #[inline]
    pub fn follows(&self, index: u32) -> bool {
        let bth = &self.headers.bth;
        let first = u32::from(bth.opcode.starts());
        let special = bth.opcode.ends() || bth.ack_req || bth.solicited;
        index > first && index + u32::from(special) < self.count
    }

    /// Where packet `index` finds its payload inside the train's: offset and length.
    pub fn slice(&self, index: u32) -> (u32, u32) {
        wire::slice_of(self.count, index, self.payload.len(), self.mtu)
    }
}

/// Bytes that fill a payload up to a multiple of four.
pub(crate) fn pad(length: u32) -> u8 {
    (length.wrapping_neg() & 3) as u8
}

/// A packet, or a whole train, that arrived for a queue pair. Its ICRC, if the link has one, has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Inbound<'a> {
    /// Its headers, as in [`Train::headers`].
    pub headers: &'a Headers,
    /// How many packets it stands for: 1 from a datagram link.
    pub count: u32,
    /// Its payload without pad bytes.
    pub payload: &'a [u8],
    /// Who sent it.
    pub from: Gid,
    /// The 40 bytes a UD receiver sees before the data.
    pub grh: &'a [u8; 40],
    /// The network marked it "congestion experienced".
    pub congestion_marked: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Opcode, Psn, Qpn};

    #[test]
    fn packets_that_follow_differ_in_their_sequence_number_only() {
        let to = AddressVector::default();
        let bytes = [0; 4000];
        for opcode in [
            Opcode::RcWriteOnly,
            Opcode::RcWriteFirst,
            Opcode::RcSendMiddle,
            Opcode::RcSendLast,
            Opcode::RcReadResponseOnly,
        ] {
            for (count, asks) in (1..8).flat_map(|count| [(count, true), (count, false)]) {
                let mut headers = Headers::new(opcode, Qpn::new(7), Psn::new(0xff_fffd));
                (headers.bth.ack_req, headers.bth.solicited) = (asks, asks && opcode.ends());
                let last = if opcode.ends() { 3 } else { 512 };
                let payload = Payload::Bytes(&bytes[..(count as usize - 1) * 512 + last]);
                let train = Train { headers, count, mtu: 512, payload, to: &to, wr_id: None, retransmission: false };
                let following = (0..count).filter(|index| train.follows(*index));
                let others = 1 + u32::from(opcode.starts()) + u32::from(opcode.ends() || asks);
                assert_eq!(following.clone().count() as u32, count.saturating_sub(others));
                for index in following {
                    let mut before = train.packet(index - 1);
                    before.bth.psn = before.bth.psn.add(1);
                    assert_eq!(train.packet(index), before);
                    assert_eq!(train.slice(index).1, train.slice(index - 1).1);
                }
            }
        }
    }
}
