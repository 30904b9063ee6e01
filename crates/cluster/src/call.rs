//! What a member calls, as the others see it, and the header of every message.

use crate::element::{self, Op};
use std::fmt;

/// A call as members compare it: all make the same ones in the same order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    pub(crate) what: Collective,
    pub(crate) element: u8,
    pub(crate) op: Option<Op>,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) root: u32,
    pub(crate) count: u64,
}

/// What is called.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum Collective {
    Barrier = 1,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllReduce,
    AllToAll,
    Leave,
    Message,
}

impl Collective {
    const ALL: [Collective; 8] = [
        Collective::Barrier,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllReduce,
        Collective::AllToAll,
        Collective::Leave,
        Collective::Message,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Collective::Barrier => "barrier",
            Collective::Broadcast => "broadcast",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllReduce => "all_reduce",
            Collective::AllToAll => "all_to_all",
            Collective::Leave => "leave",
            Collective::Message => "receive",
        }
    }

    fn of_code(code: u8) -> Option<Collective> {
        Collective::ALL.into_iter().find(|what| *what as u8 == code)
    }
}

/// How an all-reduce goes about it. Chosen by size and topology if not said.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u8)]
pub enum Algorithm {
    /// Pieces go around twice: each member sends less than twice the data, whatever the size of the group. For much
    /// data.
    Ring = 1,
    /// Each with one at distance 1, 2, 4 and so on: the fewest steps. For little data.
    RecursiveDoubling,
    /// Up a tree and down again, piece by piece. For trees, stars, and topologies of a program's own.
    Tree,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 3] = [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::Tree];

    fn of_code(code: u8) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| *algorithm as u8 == code)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Algorithm::Ring => "ring",
            Algorithm::RecursiveDoubling => "recursive-doubling",
            Algorithm::Tree => "tree",
        })
    }
}

impl Call {
    pub(crate) const ENCODED: usize = 16;

    pub(crate) fn of(what: Collective) -> Call {
        Call { what, element: 0, op: None, algorithm: None, root: 0, count: 0 }
    }

    pub(crate) fn encode(&self, bytes: &mut [u8; Call::ENCODED]) {
        bytes[0] = self.what as u8;
        bytes[1] = self.element;
        bytes[2] = self.op.map_or(0, Op::code);
        bytes[3] = self.algorithm.map_or(0, |algorithm| algorithm as u8);
        bytes[4..8].copy_from_slice(&self.root.to_le_bytes());
        bytes[8..].copy_from_slice(&self.count.to_le_bytes());
    }

    /// None if it has no meaning.
    pub(crate) fn decode(bytes: &[u8; Call::ENCODED]) -> Option<Call> {
        let [what, element, op, algorithm, a, b, c, d, count @ ..] = *bytes;
        let op = match op {
            0 => None,
            code => Some(Op::of_code(code)?),
        };
        let algorithm = match algorithm {
            0 => None,
            code => Some(Algorithm::of_code(code)?),
        };
        if element != 0 {
            element::name(element)?;
        }
        let (root, count) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(count));
        Some(Call { what: Collective::of_code(what)?, element, op, algorithm, root, count })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what.name())?;
        let Some(name) = element::name(self.element) else { return Ok(()) };
        write!(f, " of {} {name}", self.count)?;
        if let Some(op) = self.op {
            write!(f, ", {op}")?;
        }
        if let Some(algorithm) = self.algorithm {
            write!(f, " by {algorithm}")?;
        }
        match self.what {
            Collective::Broadcast => write!(f, ", from rank {}", self.root),
            _ => Ok(()),
        }
    }
}

/// What every message begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub kind: Kind,
    /// How many receives the sender has posted since its last message.
    pub credits: u16,
    pub origin: u32,
    pub destination: u32,
    /// The number of the call.
    pub sequence: u32,
    pub step: u32,
    /// Where in the data, in elements.
    pub offset: u64,
    pub call: Call,
}

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A part of a call.
    Part = 1,
    /// From one member to another, outside of calls of all.
    Letter,
    /// Credits only.
    Credits,
    /// The sender waits, for whom the payload says, and nothing comes.
    Waits,
    /// The group has failed; the payload says why.
    Failure,
}

impl Header {
    /// A whole line of the processor's cache, so that the elements behind it begin with one: 16 bytes of it are zeros.
    pub const LENGTH: usize = 64;

    pub fn encode(&self, bytes: &mut [u8; Header::LENGTH]) {
        bytes[0] = self.kind as u8;
        bytes[1] = MESSAGE_VERSION;
        bytes[2..4].copy_from_slice(&self.credits.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.origin.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.destination.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.step.to_le_bytes());
        bytes[20..24].fill(0);
        bytes[24..32].copy_from_slice(&self.offset.to_le_bytes());
        if let Some(call) = bytes[32..].first_chunk_mut() {
            self.call.encode(call);
        }
        bytes[48..].fill(0);
    }

    /// The header of a message in a group of `size`, or what is wrong with it.
    pub fn decode(bytes: &[u8], size: u32) -> Result<Header, &'static str> {
        let bytes: &[u8; Header::LENGTH] = bytes.first_chunk().ok_or("it is shorter than a header")?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let kind = match bytes[0] {
            1 => Kind::Part,
            2 => Kind::Letter,
            3 => Kind::Credits,
            4 => Kind::Waits,
            5 => Kind::Failure,
            _ => return Err("its kind is unknown"),
        };
        if bytes[1] != MESSAGE_VERSION {
            return Err("it is of another version");
        }
        let (origin, destination) = (word(4), word(8));
        if origin >= size || destination >= size {
            return Err("it names a rank that does not exist");
        }
        let offset = u64::from(word(24)) | u64::from(word(28)) << 32;
        let call = bytes[32..].first_chunk().and_then(Call::decode).ok_or("its call is unknown")?;
        let credits = u16::from_le_bytes([bytes[2], bytes[3]]);
        Ok(Header { kind, credits, origin, destination, sequence: word(12), step: word(16), offset, call })
    }
}

/// Of messages and of what members say when they meet.
pub(crate) const MESSAGE_VERSION: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let call = Call {
            what: Collective::AllReduce,
            element: 10,
            op: Some(Op::Max),
            algorithm: Some(Algorithm::Tree),
            root: 3,
            count: 1 << 40,
        };
        let (origin, destination) = (4, 2);
        Header { kind: Kind::Part, credits: 7, origin, destination, sequence: 9, step: 11, offset: 1 << 33, call }
    }

    #[test]
    fn headers_come_back_as_they_were() {
        let mut bytes = [0; Header::LENGTH];
        header().encode(&mut bytes);
        assert_eq!(Header::decode(&bytes, 5), Ok(header()));
        assert_eq!(Header::decode(&bytes, 4), Err("it names a rank that does not exist"));
        assert_eq!(Header::decode(&bytes[..63], 5), Err("it is shorter than a header"));
        assert_eq!(header().call.to_string(), "all_reduce of 1099511627776 f64, max by tree");
    }

    #[test]
    fn no_bytes_are_believed_that_do_not_encode_again() {
        let mut seed = 1u64;
        for _ in 0..100_000 {
            let mut bytes = [0; Header::LENGTH];
            header().encode(&mut bytes);
            for _ in 0..3 {
                seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                bytes[(seed >> 40) as usize % Header::LENGTH] = (seed >> 56) as u8;
            }
            if let Ok(header) = Header::decode(&bytes, 5) {
                let mut again = [0; Header::LENGTH];
                header.encode(&mut again);
                bytes[20..24].fill(0);
                bytes[48..].fill(0);
                assert_eq!(again, bytes);
            }
        }
    }
}
