//! AETH, the acknowledgement header: syndrome and message sequence number (specification 9.3.5 and 9.7.5).

use core::fmt;

use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, Msn, ParseError};

/// The acknowledgement header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// What the responder says.
    pub syndrome: Syndrome,
    /// How many requests it has completed.
    pub msn: Msn,
}

impl Aeth {
    /// Its encoded length.
    pub const LEN: usize = 4;

    /// Reads it from the front of `bytes`; returns what follows.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Aeth, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::Aeth, Aeth::LEN, bytes)?;
        let word = reader.u32()?;
        let aeth = Aeth { syndrome: Syndrome::from_byte((word >> 24) as u8), msn: Msn::new(word) };
        Ok((aeth, reader.rest()))
    }

    /// Writes it to the front of `out`; returns its length.
    #[inline]
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Aeth, Aeth::LEN, out)?;
        writer.u32(u32::from(self.syndrome.byte()) << 24 | self.msn.value())?;
        Ok(writer.finish())
    }
}

/// What an acknowledgement says: three bits of kind, five of value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Everything up to this PSN arrived.
    Ack {
        /// The encoded credit count, five bits; [`Syndrome::NO_CREDITS`] when the responder does not count.
        credits: u8,
    },
    /// Receiver not ready: try again after the timer.
    RnrNak {
        /// How long to wait.
        timer: RnrTimer,
    },
    /// Refused.
    Nak(NakCode),
    /// A kind that is not assigned: the whole byte.
    Reserved(u8),
}

impl Syndrome {
    /// The credit field of a responder that does not do end-to-end flow control.
    pub const NO_CREDITS: u8 = 31;
    /// An ACK without credits.
    pub const ACK: Syndrome = Syndrome::Ack { credits: Syndrome::NO_CREDITS };

    /// From the byte on the wire; every byte has a meaning, if only `Reserved`.
    pub const fn from_byte(byte: u8) -> Syndrome {
        match byte >> 5 {
            0b000 => Syndrome::Ack { credits: byte & 0x1f },
            0b001 => Syndrome::RnrNak { timer: RnrTimer::new(byte) },
            0b011 => Syndrome::Nak(NakCode::from_code(byte)),
            _ => Syndrome::Reserved(byte),
        }
    }

    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 0b001 << 5 | timer.code(),
            Syndrome::Nak(code) => 0b011 << 5 | code.code(),
            Syndrome::Reserved(byte) => byte,
        }
    }

    /// How many messages an ACK's credit field allows: powers of two and the values half way between them.
    /// Nothing for 31, which means unlimited, and for anything that is no ACK.
    pub const fn credit_count(self) -> Option<u32> {
        match self {
            Syndrome::Ack { credits } if credits & 0x1f == Syndrome::NO_CREDITS => None,
            Syndrome::Ack { credits } => Some(match credits & 0x1f {
                0 => 0,
                1 => 1,
                even if even % 2 == 0 => 1 << (even / 2),
                odd => 3 << (odd / 2 - 1),
            }),
            _ => None,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Syndrome::Ack { credits: Syndrome::NO_CREDITS } => f.write_str("ACK"),
            Syndrome::Ack { credits } => write!(f, "ACK credits {credits}"),
            Syndrome::RnrNak { timer } => write!(f, "RNR NAK {timer}"),
            Syndrome::Nak(code) => write!(f, "NAK {code}"),
            Syndrome::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}"),
        }
    }
}

/// Why a responder refuses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NakCode {
    /// A packet is missing: resend from the PSN of the NAK.
    SequenceError,
    /// The request makes no sense to this queue pair.
    InvalidRequest,
    /// The key, the range or the permission is wrong.
    RemoteAccess,
    /// The responder itself failed.
    RemoteOperational,
    /// Reliable datagram only.
    InvalidRdRequest,
    /// Not assigned: five bits.
    Reserved(u8),
}

impl NakCode {
    /// From the low five bits of the syndrome.
    pub const fn from_code(code: u8) -> NakCode {
        match code & 0x1f {
            0 => NakCode::SequenceError,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccess,
            3 => NakCode::RemoteOperational,
            4 => NakCode::InvalidRdRequest,
            other => NakCode::Reserved(other),
        }
    }

    /// The five bits.
    pub const fn code(self) -> u8 {
        match self {
            NakCode::SequenceError => 0,
            NakCode::InvalidRequest => 1,
            NakCode::RemoteAccess => 2,
            NakCode::RemoteOperational => 3,
            NakCode::InvalidRdRequest => 4,
            NakCode::Reserved(code) => code & 0x1f,
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NakCode::SequenceError => f.write_str("PSN sequence error"),
            NakCode::InvalidRequest => f.write_str("invalid request"),
            NakCode::RemoteAccess => f.write_str("remote access error"),
            NakCode::RemoteOperational => f.write_str("remote operational error"),
            NakCode::InvalidRdRequest => f.write_str("invalid RD request"),
            NakCode::Reserved(code) => write!(f, "reserved code {code}"),
        }
    }
}

/// How long a requester waits after an RNR NAK: a five-bit code into a table of the specification.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RnrTimer(u8);

/// The table of the RNR NAK timer field, in steps of ten microseconds.
const RNR_STEPS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// From the low five bits of `code`.
    pub const fn new(code: u8) -> RnrTimer {
        RnrTimer(code & 0x1f)
    }

    /// The five bits.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time it stands for: 655.36 ms for 0, then rising from 0.01 ms for 1 to 491.52 ms for 31.
    pub const fn duration_ns(self) -> u64 {
        RNR_STEPS[(self.0 & 0x1f) as usize] as u64 * 10_000
    }
}

impl fmt::Display for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.duration_ns() / 1000;
        write!(f, "{}.{:02} ms", micros / 1000, micros % 1000 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_syndrome_byte_survives() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_byte(byte).byte(), byte);
        }
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::ACK);
        assert_eq!(Syndrome::from_byte(0x60), Syndrome::Nak(NakCode::SequenceError));
        assert_eq!(Syndrome::from_byte(0x62), Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(Syndrome::from_byte(0x2c), Syndrome::RnrNak { timer: RnrTimer::new(12) });
        assert_eq!(Syndrome::from_byte(0x45), Syndrome::Reserved(0x45));
        assert_eq!(Syndrome::from_byte(0x80), Syndrome::Reserved(0x80));
    }

    #[test]
    fn rnr_timers_are_the_specification_s() {
        assert_eq!(RnrTimer::new(0).to_string(), "655.36 ms");
        assert_eq!(RnrTimer::new(1).to_string(), "0.01 ms");
        assert_eq!(RnrTimer::new(12).to_string(), "0.64 ms");
        assert_eq!(RnrTimer::new(31).to_string(), "491.52 ms");
        for code in 2..32 {
            assert!(RnrTimer::new(code).duration_ns() > RnrTimer::new(code - 1).duration_ns());
        }
        assert_eq!(RnrTimer::new(0x21), RnrTimer::new(1));
    }

    #[test]
    fn credits_decode_to_powers_of_two_and_the_halves_between() {
        let count = |credits| Syndrome::Ack { credits }.credit_count();
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(count), [0, 1, 2, 3, 4, 6, 8, 12].map(Some));
        assert_eq!((count(30), count(31)), (Some(32768), None));
        assert_eq!(Syndrome::Nak(NakCode::SequenceError).credit_count(), None);
    }
}
