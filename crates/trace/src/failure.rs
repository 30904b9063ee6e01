//! Why a work request failed, with the values that show it. The transport knows; explanations are made of this.

use core::fmt;

use wire::access::Refusal;
use wire::{NakCode, Psn};

use crate::peer_reason::PeerReason;

/// Why a work request failed, in more detail than its status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// Local memory was refused.
    Refused(Refusal),
    /// The peer said no.
    Nak {
        /// Its code.
        code: NakCode,
        /// The packet it complained about.
        psn: Psn,
        /// What the peer said beside the NAK, where both are processes of one host.
        peer: Option<PeerReason>,
    },
    /// Retries ran out.
    NoAnswer {
        /// The first packet nobody acknowledged.
        psn: Psn,
        /// How often it was sent.
        tries: u32,
    },
    /// The peer's process has ended, as the link to it knows.
    PeerGone {
        /// The first packet it did not acknowledge.
        psn: Psn,
    },
    /// Receiver-not-ready retries ran out.
    NotReady {
        /// The packet the peer had no receive for.
        psn: Psn,
        /// How often it was sent.
        tries: u32,
    },
    /// A message met less space than it needs.
    TooLong {
        /// The message, or as much of it as had been seen.
        length: u64,
        /// The space.
        space: u64,
    },
    /// A datagram or a frame longer than the link carries.
    OverMtu {
        /// Its length.
        length: u64,
        /// The longest.
        mtu: u64,
    },
    /// The local memory of an atomic is shorter than its 8 bytes.
    AtomicTooShort {
        /// Its length.
        length: u64,
    },
    /// An answer did not fit its request.
    BadAnswer {
        /// What was wrong.
        what: &'static str,
        /// The answer's number.
        psn: Psn,
    },
    /// The transport has no such operation.
    NotCarried {
        /// Its name.
        transport: &'static str,
    },
    /// The work cannot run on this queue pair.
    Unsuitable {
        /// Why.
        what: &'static str,
    },
    /// The peer's message was wrong; it was told so.
    PeerFault {
        /// What was wrong.
        what: &'static str,
        /// The message's number.
        psn: Psn,
    },
    /// The queue pair left the states that do work.
    Flushed,
    /// A failure script says so.
    Injected {
        /// The line that says so.
        line: u32,
        /// The vendor error that it asks for.
        vendor: u32,
    },
}

impl Failure {
    /// The stable name: what JSON lines and counters say.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Nak { .. } => "nak",
            Self::NoAnswer { .. } => "no_answer",
            Self::PeerGone { .. } => "peer_gone",
            Self::NotReady { .. } => "not_ready",
            Self::TooLong { .. } => "too_long",
            Self::OverMtu { .. } => "over_mtu",
            Self::AtomicTooShort { .. } => "atomic_too_short",
            Self::BadAnswer { .. } => "bad_answer",
            Self::NotCarried { .. } => "not_carried",
            Self::Unsuitable { .. } => "unsuitable",
            Self::PeerFault { .. } => "peer_fault",
            Self::Flushed => "flushed",
            Self::Injected { .. } => "injected",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "{refusal}"),
            Self::Nak { code, psn, peer: None } => write!(f, "the peer answered packet {psn} with {code}"),
            Self::Nak { code, psn, peer: Some(peer) } => {
                write!(f, "the peer answered packet {psn} with {code}, and said: {peer}")
            }
            Self::NoAnswer { psn, tries } => write!(f, "packet {psn} was sent {tries} times and never acknowledged"),
            Self::PeerGone { psn } => write!(f, "the peer's process ended and did not acknowledge packet {psn}"),
            Self::NotReady { psn, tries } => {
                write!(f, "packet {psn} was sent {tries} times and each time the peer had no receive posted")
            }
            Self::TooLong { length, space } => write!(f, "a message of {length} bytes met space for {space}"),
            Self::OverMtu { length, mtu } => write!(f, "{length} bytes in one packet, which carries {mtu}"),
            Self::AtomicTooShort { length } => {
                write!(f, "the 8 bytes of the answer to an atomic met local memory of {length}")
            }
            Self::BadAnswer { what, psn } => write!(f, "answer {psn}: {what}"),
            Self::NotCarried { transport } => write!(f, "{transport} has no such operation"),
            Self::Unsuitable { what } => f.write_str(what),
            Self::PeerFault { what, psn } => write!(f, "the peer's packet {psn}: {what}"),
            Self::Flushed => f.write_str("the queue pair had stopped before this work was finished"),
            Self::Injected { line, .. } => write!(f, "injected by line {line} of a failure script"),
        }
    }
}
