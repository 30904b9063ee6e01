//! The vocabulary of an access: who asks, for which bytes, with which rights, and why the answer was no. Nothing here knows where a byte
//! lies; the bit values and the names are those of the specification.

use std::fmt;

bitflags::bitflags! {
    /// Rights over memory, with the bit values of `ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u32 {
        /// The NIC may write on behalf of the owner (receives, read results).
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may run atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from the start of the region.
        const ZERO_BASED = 1 << 5;
        /// Pages may be absent until used, and unmapped without harm to the process.
        const ON_DEMAND = 1 << 6;
        /// The program promises huge pages; it changes nothing here.
        const HUGETLB = 1 << 7;
        /// Peers may flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may become visible out of order; a permission this crate does not use.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// The bits a provider may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL: u32 = 0x3ff0_0000;

    /// The rights in the bits of `ibv_access_flags`: unknown optional bits are dropped, any other unknown bit is `None`.
    #[must_use]
    pub const fn from_verbs(bits: u32) -> Option<Access> {
        let known = Access::from_bits_truncate(bits);
        if bits & !known.bits() & !Access::OPTIONAL == 0 { Some(known) } else { None }
    }

    /// Whether anyone may change bytes.
    pub(crate) const fn writes(self) -> bool {
        self.intersects(Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC))
    }

    /// Whether a peer may change bytes, which only memory that the owner may change grants (IBA 10.6.3.1).
    pub(crate) const fn peers_write(self) -> bool {
        self.intersects(Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC))
    }
}

/// A protection domain, by the number its owner gave it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Domain(pub u32);

/// A queue pair number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Qpn(pub u32);

/// A memory key: of a region, L_Key and R_Key in one; of a window, an R_Key. The upper 24 bits find the object; the lower 8 belong to
/// whoever binds the window (IBA 10.6.3.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u32);

impl Key {
    /// The same object with the next owner's byte, as `ibv_inc_rkey` computes it.
    #[must_use]
    pub const fn next(self) -> Key {
        Key(self.0 & !0xff | self.0.wrapping_add(1) & 0xff)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:#010x})", self.0)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// On whose behalf memory is touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subject {
    /// The protection domain of the queue pair (or of the shared receive queue, for XRC).
    pub domain: Domain,
    /// The queue pair, since a type 2 window belongs to one.
    pub qpn: Qpn,
    /// True when a peer asked, false when the queue pair's own work did.
    pub remote: bool,
}

/// A run of bytes behind a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The memory key.
    pub key: Key,
    /// The address inside the key's address space.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
}

/// An operation on eight bytes that nobody sees half done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atomic {
    /// Replace with `swap` if equal to `compare`.
    CompareSwap {
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd {
        /// The addend.
        add: u64,
    },
    /// Store eight bytes, in the order they travelled, as one (ATOMIC WRITE).
    Write {
        /// The bytes.
        bytes: [u8; 8],
    },
}

impl Atomic {
    /// The right it needs. ATOMIC WRITE is a write that happens at once; it asks for the right to write.
    #[must_use]
    pub const fn access(self) -> Access {
        match self {
            Atomic::CompareSwap { .. } | Atomic::FetchAdd { .. } => Access::REMOTE_ATOMIC,
            Atomic::Write { .. } => Access::REMOTE_WRITE,
        }
    }
}

/// Why memory may not be touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What was asked for.
    pub range: Range,
    /// With which rights.
    pub access: Access,
    /// What is wrong with it.
    pub cause: Cause,
}

/// What is wrong with an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// No region or window has this key.
    UnknownKey,
    /// The region or window exists, in another protection domain.
    WrongProtectionDomain,
    /// The window is bound to another queue pair.
    WrongQueuePair,
    /// The region or window does not grant this kind of access.
    NotPermitted,
    /// The range reaches outside.
    OutOfBounds {
        /// First address of the region or window.
        start: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// The address of an atomic operation is not a multiple of 8.
    Misaligned,
    /// The key has been invalidated, or is being taken away or changed at this moment.
    Invalidated,
    /// The window exists and is bound to nothing.
    WindowUnbound,
    /// The key names something that cannot be used this way.
    WrongKind,
    /// The rights are there and the bytes are not: the program unmapped or protected the memory of an on-demand region, or its storage
    /// failed. Bytes before the first missing one may have been copied.
    Faulted,
    /// More accesses at a time than a region can count: somebody keeps guards for ever.
    TooManyGuards,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownKey => "no region or window has this key",
            Self::WrongProtectionDomain => "it belongs to another protection domain",
            Self::WrongQueuePair => "the window is bound to another queue pair",
            Self::NotPermitted => "it does not grant this access",
            Self::OutOfBounds { start, length } => {
                let end = u128::from(*start) + u128::from(*length);
                return write!(f, "the range reaches outside {start:#x}..{end:#x}");
            }
            Self::Misaligned => "the address is not aligned to 8 bytes",
            Self::Invalidated => "the key has been invalidated",
            Self::WindowUnbound => "the window is not bound to a region",
            Self::WrongKind => "the key names something that cannot be used this way",
            Self::Faulted => "the memory behind it is not there",
            Self::TooManyGuards => "too many accesses to it are under way",
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { key, address, length } = self.range;
        write!(f, "{length} bytes at {address:#x} behind key {key}: {}", self.cause)
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_bits_are_tolerated_and_others_are_not() {
        assert_eq!(Access::from_verbs(1 | 1 << 20), Some(Access::LOCAL_WRITE | Access::RELAXED_ORDERING));
        assert_eq!(Access::from_verbs(4 | 1 << 21 | 1 << 29), Some(Access::REMOTE_READ));
        for bit in (10..20).chain(30..32) {
            assert_eq!(Access::from_verbs(1 | 1 << bit), None, "bit {bit}");
        }
        assert_eq!(Access::from_verbs(0x3ff), Some(Access::from_bits_truncate(0x3ff)));
    }

    #[test]
    fn the_next_key_stays_with_its_object() {
        assert_eq!(Key(0x1234_5601).next(), Key(0x1234_5602));
        assert_eq!(Key(0xffff_ffff).next(), Key(0xffff_ff00));
    }

    #[test]
    fn a_refusal_reads_as_a_sentence() {
        let range = Range { key: Key(0x10), address: 0xfff, length: 2 };
        let cause = Cause::OutOfBounds { start: u64::MAX, length: 1 };
        let refusal = Refusal { range, access: Access::empty(), cause };
        let said =
            "2 bytes at 0xfff behind key 0x00000010: the range reaches outside 0xffffffffffffffff..0x10000000000000000";
        assert_eq!(refusal.to_string(), said);
    }
}
