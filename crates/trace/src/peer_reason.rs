//! What a responder knows about its refusal and a NAK does not say: as a value, and as the bytes that travel beside the
//! NAK between processes of one host. Nothing of it is on the wire between hosts, and nothing but words is made of it.

use core::fmt;

use wire::Key;
use wire::access::{Access, Refusal, RefusalCause};

use crate::reason::RequestFault;

/// Why a responder refused a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PeerReason {
    /// Its memory was refused.
    Refused {
        /// The key that was shown.
        key: Key,
        /// The rights it needed.
        access: Access,
        /// Why not.
        cause: RefusalCause,
    },
    /// Its region or window does not grant this kind of access.
    RegionForbids {
        /// The key that was shown.
        key: Key,
        /// The rights it needed.
        access: Access,
        /// The rights there are.
        granted: Access,
    },
    /// The region is in another protection domain than its queue pair.
    OtherDomain {
        /// The key that was shown.
        key: Key,
        /// The domain of the region.
        region: u32,
        /// The domain of the queue pair.
        pair: u32,
    },
    /// Its queue pair does not grant this kind of access.
    PairForbids {
        /// The rights it needed; none if that is not known.
        access: Access,
        /// The rights that the queue pair grants (`qp_access_flags`).
        granted: Access,
    },
    /// A message met less space than it needs.
    TooLong {
        /// The message, or as much of it as had been seen.
        length: u64,
        /// The space that its receive had.
        space: u64,
    },
    /// More READs and atomics at once than its `max_dest_rd_atomic`.
    TooManyReads {
        /// How many it takes.
        max: u32,
    },
    /// The request made no sense to it.
    Fault(RequestFault),
}

impl PeerReason {
    /// How many bytes it is beside a NAK.
    pub const SIZE: usize = 40;
    /// Bytes that are something else begin otherwise.
    const REPORT_MARK: u32 = 0x5556_7072;

    /// The stable name: what JSON lines say.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::RegionForbids { .. } => "region_forbids",
            Self::OtherDomain { .. } => "other_domain",
            Self::PairForbids { .. } => "pair_forbids",
            Self::TooLong { .. } => "too_long",
            Self::TooManyReads { .. } => "too_many_reads",
            Self::Fault(_) => "fault",
        }
    }

    /// The reason of a refused access to memory.
    #[must_use]
    pub const fn refused(refusal: &Refusal) -> Self {
        Self::Refused { key: refusal.range.key, access: refusal.access, cause: refusal.cause }
    }

    /// As it travels.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut fields = Fields::default();
        match *self {
            Self::Refused { key, access, cause } => {
                fields.kind = 1;
                fields.word = cause_code(cause);
                fields.short = [key.value(), access.bits()];
                if let RefusalCause::OutOfBounds { start, length } = cause {
                    fields.long = [start, length];
                }
                if let RefusalCause::GpuFailed { error } = cause {
                    fields.long = [error.into(), 0];
                }
            }
            Self::RegionForbids { key, access, granted } => {
                fields.kind = 2;
                fields.short = [key.value(), access.bits()];
                fields.long[0] = granted.bits().into();
            }
            Self::OtherDomain { key, region, pair } => {
                fields.kind = 3;
                fields.short = [key.value(), 0];
                fields.long = [region.into(), pair.into()];
            }
            Self::PairForbids { access, granted } => {
                fields.kind = 4;
                fields.short = [granted.bits(), access.bits()];
            }
            Self::TooLong { length, space } => {
                fields.kind = 5;
                fields.long = [length, space];
            }
            Self::TooManyReads { max } => {
                fields.kind = 6;
                fields.short = [max, 0];
            }
            Self::Fault(fault) => {
                fields.kind = 7;
                let place = RequestFault::ALL.iter().position(|one| *one == fault);
                fields.word = place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX);
            }
        }
        fields.to_bytes()
    }

    /// What another process says. Anything that is not exactly such a record is nothing.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let Fields { kind, word, short, long } = Fields::from_bytes(bytes)?;
        let access = |bits: u32| Access::from_bits_truncate(bits);
        let key = Key::new(short[0]);
        Some(match kind {
            1 => Self::Refused {
                key,
                access: access(short[1]),
                cause: match RefusalCause::ALL.get(usize::from(word))? {
                    RefusalCause::OutOfBounds { .. } => RefusalCause::OutOfBounds { start: long[0], length: long[1] },
                    RefusalCause::GpuFailed { .. } => {
                        RefusalCause::GpuFailed { error: u32::try_from(long[0]).unwrap_or(u32::MAX) }
                    }
                    cause => *cause,
                },
            },
            2 => Self::RegionForbids {
                key,
                access: access(short[1]),
                granted: access(u32::try_from(long[0]).unwrap_or_default()),
            },
            3 => Self::OtherDomain { key, region: u32::try_from(long[0]).ok()?, pair: u32::try_from(long[1]).ok()? },
            4 => Self::PairForbids { access: access(short[1]), granted: access(short[0]) },
            5 => Self::TooLong { length: long[0], space: long[1] },
            6 => Self::TooManyReads { max: short[0] },
            7 => Self::Fault(*RequestFault::ALL.get(usize::from(word))?),
            _ => return None,
        })
    }
}

fn cause_code(cause: RefusalCause) -> u8 {
    let place = RefusalCause::ALL.iter().position(|one| one.name() == cause.name());
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX)
}

/// The record: a mark, the kind, a word of a list, two zeros, two numbers of 32 bits, three of 64 of which the last is 0.
#[derive(Default)]
struct Fields {
    kind: u8,
    word: u8,
    short: [u32; 2],
    long: [u64; 2],
}

impl Fields {
    fn to_bytes(&self) -> [u8; PeerReason::SIZE] {
        let mut bytes = [0; PeerReason::SIZE];
        bytes[0..4].copy_from_slice(&PeerReason::REPORT_MARK.to_le_bytes());
        bytes[4..6].copy_from_slice(&[self.kind, self.word]);
        for (place, number) in bytes[8..16].chunks_exact_mut(4).zip(self.short) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        for (place, number) in bytes[16..32].chunks_exact_mut(8).zip(self.long) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Fields> {
        let bytes: &[u8; PeerReason::SIZE] = bytes.try_into().ok()?;
        let short = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let proper = short(0)? == PeerReason::REPORT_MARK && bytes[6..8] == [0, 0] && long(32)? == 0;
        proper.then_some(Fields {
            kind: bytes[4],
            word: bytes[5],
            short: [short(8)?, short(12)?],
            long: [long(16)?, long(24)?],
        })
    }
}

impl fmt::Display for PeerReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Refused { key, cause, .. } => write!(f, "key {key}: {cause}"),
            Self::RegionForbids { key, access, granted } => {
                write!(f, "the region of key {key} grants {granted}, and the request needs {access}")
            }
            Self::OtherDomain { key, region, pair } => {
                write!(f, "the region of key {key} is in PD {region}, and the queue pair in PD {pair}")
            }
            Self::PairForbids { access, granted } if granted.is_empty() && access.is_empty() => {
                f.write_str("the queue pair grants its peer nothing (qp_access_flags 0)")
            }
            Self::PairForbids { access, granted } if granted.is_empty() => {
                write!(f, "the queue pair grants its peer nothing (qp_access_flags 0), and the request needs {access}")
            }
            Self::PairForbids { access, granted } if access.is_empty() => {
                write!(f, "the queue pair grants its peer {granted} and nothing else")
            }
            Self::PairForbids { access, granted } => {
                write!(f, "the queue pair grants its peer {granted}, and the request needs {access}")
            }
            Self::TooLong { length, space } => write!(f, "a message of {length} bytes met a receive of {space}"),
            Self::TooManyReads { max } => write!(f, "more READs and atomics at once than max_dest_rd_atomic {max}"),
            Self::Fault(fault) => fmt::Display::fmt(&fault, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn every_reason() -> Vec<PeerReason> {
        let (key, access, granted) = (Key::new(0x77), Access::REMOTE_WRITE, Access::LOCAL_WRITE);
        let mut all: Vec<_> = RefusalCause::ALL
            .iter()
            .map(|cause| {
                let cause = match cause {
                    RefusalCause::OutOfBounds { .. } => RefusalCause::OutOfBounds { start: 1 << 40, length: 4096 },
                    RefusalCause::GpuFailed { .. } => RefusalCause::GpuFailed { error: 909 },
                    cause => *cause,
                };
                PeerReason::Refused { key, access, cause }
            })
            .collect();
        all.extend([
            PeerReason::RegionForbids { key, access, granted },
            PeerReason::OtherDomain { key, region: u32::MAX, pair: 3 },
            PeerReason::PairForbids { access, granted },
            PeerReason::TooLong { length: 128, space: 64 },
            PeerReason::TooManyReads { max: 1 },
        ]);
        all.extend(RequestFault::ALL.iter().copied().map(PeerReason::Fault));
        all
    }

    #[test]
    fn every_reason_arrives_as_it_left() {
        for reason in every_reason() {
            assert_eq!(PeerReason::from_bytes(&reason.to_bytes()), Some(reason), "{reason}");
        }
    }

    #[test]
    fn bytes_that_are_something_else_are_nothing() {
        for reason in every_reason() {
            let bytes = reason.to_bytes();
            assert_eq!(PeerReason::from_bytes(&bytes[1..]), None);
            for (place, wrong) in [(0, 0), (4, 0), (4, 8), (6, 1), (39, 1)] {
                let mut bytes = bytes;
                bytes[place] = wrong;
                assert_eq!(PeerReason::from_bytes(&bytes), None, "{reason}: byte {place}");
            }
        }
        let mut bytes = PeerReason::Fault(RequestFault::NotGranted).to_bytes();
        bytes[5] = 200;
        assert_eq!(PeerReason::from_bytes(&bytes), None);
    }
}
