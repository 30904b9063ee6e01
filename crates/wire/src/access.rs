//! The vocabulary of an access to registered memory: on whose behalf, for which bytes, with which rights, and why it
//! was refused. The transport asks in these words, and the memory behind its port answers in them. Nothing here knows
//! where a byte lies or grants anything; the bit values and the names are those of the specification.

use crate::numbers::{Key, Qpn};
use core::fmt;

bitflags::bitflags! {
    /// Rights over memory and over a queue pair, with the bit values of `ibv_access_flags`.
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
        /// Addresses count from the start of the region, not from a virtual address.
        const ZERO_BASED = 1 << 5;
        /// Pages may be absent until used, and unmapped without harm to the process.
        const ON_DEMAND = 1 << 6;
        /// The program promises huge pages; it changes nothing here.
        const HUGETLB = 1 << 7;
        /// Peers may flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may become visible out of order; a permission that is not used.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// The bits a provider may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL: u32 = 0x3ff0_0000;

    /// The rights in the bits of `ibv_access_flags`: unknown optional bits are dropped, any other unknown bit is
    /// `None`.
    #[must_use]
    pub const fn from_verbs(bits: u32) -> Option<Access> {
        let known = Access::from_bits_truncate(bits);
        if bits & !known.bits() & !Access::OPTIONAL == 0 { Some(known) } else { None }
    }

    /// Whether the owner or a peer may change bytes.
    #[must_use]
    #[inline]
    pub const fn writes(self) -> bool {
        self.intersects(Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC))
    }

    /// Whether a peer may change bytes, which only memory that the owner may change grants (IBA 10.6.3.1).
    #[must_use]
    #[inline]
    pub const fn peers_write(self) -> bool {
        self.intersects(Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC))
    }
}

/// The names joined by `|`, bits without a name as one hexadecimal number. None is `LOCAL_READ`: reading one's own
/// memory needs no right beyond the key.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("LOCAL_READ");
        }
        let mut separator = "";
        for (name, _) in self.iter_names() {
            write!(f, "{separator}{name}")?;
            separator = "|";
        }
        let unnamed = self.bits() & !Access::all().bits();
        if unnamed != 0 {
            write!(f, "{separator}{unnamed:#x}")?;
        }
        Ok(())
    }
}

/// A protection domain, by the number its owner gave it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProtectionDomain(pub u32);

/// On whose behalf memory is touched: decides which keys count and which protection domain must match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subject {
    /// The queue pair, since a type 2 memory window belongs to one.
    pub qpn: Qpn,
    /// The protection domain of the queue pair (or of the shared receive queue, for XRC).
    pub pd: ProtectionDomain,
    /// True when a peer asked (the key is an R_Key), false when the queue pair's own work did (an L_Key).
    pub remote: bool,
}

/// A run of bytes behind a memory key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The memory key.
    pub key: Key,
    /// The address inside the key's address space.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
}

/// Why memory may not be touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What was asked for.
    pub range: Range,
    /// With which rights.
    pub access: Access,
    /// What is wrong with it.
    pub cause: RefusalCause,
}

/// Why an access to registered memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalCause {
    /// No region or window has this key.
    UnknownKey,
    /// A peer shows the L_Key of a region, and not its R_Key.
    LocalKey,
    /// The region or window exists, in another protection domain than the queue pair's.
    WrongProtectionDomain,
    /// The window is bound to another queue pair.
    WrongQueuePair,
    /// The region or window does not grant this kind of access.
    NotPermitted,
    /// The queue pair does not grant this kind of access to its peer.
    QueuePairForbids,
    /// The range reaches outside the region or window.
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
    /// A region with windows bound to it cannot be invalidated.
    WindowsBound,
    /// The key names something that cannot be used this way.
    WrongKind,
    /// The rights are there and the bytes are not: the program unmapped or protected the memory of an on-demand region,
    /// or its storage failed. Bytes before the first missing one may have been copied.
    Faulted,
    /// More accesses at a time than a region can count: a caller keeps guards for ever.
    TooManyGuards,
    /// The GPU's driver did not make the copy: the memory was freed, its context destroyed, or the GPU failed. Some
    /// bytes may have been copied.
    GpuFailed {
        /// The driver's number for why.
        error: u32,
    },
}

impl RefusalCause {
    /// Every cause; those with values have zeros. Processes tell each other of a cause by its place here: new ones come
    /// last.
    pub const ALL: &'static [RefusalCause] = &[
        Self::UnknownKey,
        Self::WrongProtectionDomain,
        Self::WrongQueuePair,
        Self::NotPermitted,
        Self::QueuePairForbids,
        Self::OutOfBounds { start: 0, length: 0 },
        Self::Misaligned,
        Self::Invalidated,
        Self::WindowUnbound,
        Self::WindowsBound,
        Self::WrongKind,
        Self::Faulted,
        Self::TooManyGuards,
        Self::GpuFailed { error: 0 },
        Self::LocalKey,
    ];

    /// The stable name: what JSON lines and counters say.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownKey => "unknown_key",
            Self::LocalKey => "local_key",
            Self::WrongProtectionDomain => "wrong_protection_domain",
            Self::WrongQueuePair => "wrong_queue_pair",
            Self::NotPermitted => "not_permitted",
            Self::QueuePairForbids => "queue_pair_forbids",
            Self::OutOfBounds { .. } => "out_of_bounds",
            Self::Misaligned => "misaligned",
            Self::Invalidated => "invalidated",
            Self::WindowUnbound => "window_unbound",
            Self::WindowsBound => "windows_bound",
            Self::WrongKind => "wrong_kind",
            Self::Faulted => "faulted",
            Self::TooManyGuards => "too_many_guards",
            Self::GpuFailed { .. } => "gpu_failed",
        }
    }
}

impl fmt::Display for RefusalCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownKey => "no region or window has this key",
            Self::LocalKey => "the key is the lkey of a region, and requests of a peer show its rkey",
            Self::WrongProtectionDomain => "the region belongs to another protection domain",
            Self::WrongQueuePair => "the window is bound to another queue pair",
            Self::NotPermitted => "the region does not grant this access",
            Self::QueuePairForbids => "the queue pair does not grant this access to its peer",
            Self::OutOfBounds { start, length } => {
                let end = u128::from(*start) + u128::from(*length);
                return write!(f, "the range reaches outside the region {start:#x}..{end:#x}");
            }
            Self::Misaligned => "the address is not aligned to 8 bytes",
            Self::Invalidated => "the key has been invalidated",
            Self::WindowUnbound => "the window is not bound to a region",
            Self::WindowsBound => "windows are still bound to the region",
            Self::WrongKind => "the key names something that cannot be used this way",
            Self::Faulted => "the memory behind the key is not there",
            Self::TooManyGuards => "too many accesses to the region are under way",
            Self::GpuFailed { error } => return write!(f, "the GPU's driver refused the copy with error {error}"),
        })
    }
}

/// An operation on the eight bytes of a range that no thread sees half done.
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
    /// Store eight bytes as one (ATOMIC WRITE); the bytes are stored in the order they travelled.
    Write {
        /// The bytes.
        bytes: [u8; 8],
    },
}

impl Atomic {
    /// The right it needs. ATOMIC WRITE is a write that happens at once; it asks for the right to write.
    #[must_use]
    #[inline]
    pub const fn access(self) -> Access {
        match self {
            Atomic::CompareSwap { .. } | Atomic::FetchAdd { .. } => Access::REMOTE_ATOMIC,
            Atomic::Write { .. } => Access::REMOTE_WRITE,
        }
    }
}

/// A memory window bind, the local half of `IBV_WR_BIND_MW`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// The window's present R_Key.
    pub window: Key,
    /// Its lowest byte is that of the R_Key the window answers to afterwards; [`Key::next`] makes one.
    pub new_key: Key,
    /// The L_Key of the region behind it.
    pub region: Key,
    /// First byte of the window, as the region's key sees it.
    pub address: u64,
    /// Length; zero unbinds a window of type 1.
    pub length: u64,
    /// Rights of the window.
    pub access: Access,
}

impl Bind {
    /// The R_Key the window answers to afterwards. The program owns the lowest byte of a key and nothing else (IBA
    /// 10.6.7); hardware and Soft-RoCE do not look at what it writes into the others.
    #[must_use]
    pub const fn bound_key(&self) -> Key {
        Key::new(self.window.value() & !0xff | self.new_key.value() & 0xff)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { key, address, length } = self.range;
        write!(f, "{length} bytes at {address:#x} behind key {key}: {}", self.cause)
    }
}

impl core::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

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
    fn rights_show_their_names_and_keep_unknown_bits() {
        let shown = |bits| Access::from_bits_retain(bits).to_string();
        assert_eq!(shown(0), "LOCAL_READ");
        assert_eq!(shown(1 << 3), "REMOTE_ATOMIC");
        assert_eq!(shown(1 << 1 | 1 << 20), "REMOTE_WRITE|RELAXED_ORDERING");
        assert_eq!(shown(1 << 1 | 1 << 30), "REMOTE_WRITE|0x40000000");
        assert_eq!(shown(1 << 30), "0x40000000");
    }

    #[test]
    fn a_refusal_reads_as_a_sentence() {
        let range = Range { key: Key::new(0x10), address: 0xfff, length: 2 };
        let cause = RefusalCause::OutOfBounds { start: u64::MAX, length: 1 };
        let refusal = Refusal { range, access: Access::empty(), cause };
        let said = "2 bytes at 0xfff behind key 0x10: \
                    the range reaches outside the region 0xffffffffffffffff..0x10000000000000000";
        assert_eq!(refusal.to_string(), said);
    }
}
