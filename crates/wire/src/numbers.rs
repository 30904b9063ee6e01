//! The numbers of the protocol, each a type of its own so that a key is never taken for a queue pair. Width and
//! wrap-around live here; what a number refers to does not.

use core::fmt;
use core::time::Duration;

/// Defines a newtype over an unsigned integer, of which `$mask` are the bits that exist on the wire.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($repr:ty), mask $mask:literal, show $show:literal $(, derive $more:ident)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default $(, $more)*)]
        #[repr(transparent)]
        pub struct $name($repr);

        impl $name {
            /// From the low bits of `value`; bits beyond the field's width are dropped.
            #[inline]
            pub const fn new(value: $repr) -> Self {
                Self(value & $mask)
            }

            /// The plain number.
            #[inline]
            pub const fn value(self) -> $repr {
                self.0
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, $show, self.0)
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "(", $show, ")"), self.0)
            }
        }
    };
}

number! {
    /// A packet sequence number: 24 bits that wrap. Its order is that of serial numbers (which of two is *before* the
    /// other is decided by the shorter way around), so it is not `Ord`.
    Psn(u32), mask 0xff_ffff, show "{}"
}

number! {
    /// A message sequence number, the 24-bit count of requests a responder has completed.
    Msn(u32), mask 0xff_ffff, show "{}"
}

number! {
    /// A queue pair number.
    Qpn(u32), mask 0xff_ffff, show "{:#x}", derive PartialOrd, derive Ord
}

number! {
    /// The number of a shared receive queue, as XRC requests name it.
    Srqn(u32), mask 0xff_ffff, show "{:#x}", derive PartialOrd, derive Ord
}

number! {
    /// A memory key: of a region or a window its R_Key, or a region's L_Key (see [`Key::local`]). The upper 24 bits find
    /// the object; the lower 8 belong to the program that binds the window (IBA 10.6.3.3).
    Key(u32), mask 0xffff_ffff, show "{:#x}", derive PartialOrd, derive Ord
}

number! {
    /// The key that a datagram must show to the queue pair it is sent to.
    Qkey(u32), mask 0xffff_ffff, show "{:#x}", derive PartialOrd, derive Ord
}

number! {
    /// A partition key: 15 bits of partition, and in the top bit whether the member is a full one.
    Pkey(u16), mask 0xffff, show "{:#06x}", derive PartialOrd, derive Ord
}

number! {
    /// A time as CM messages and verbs encode it: five bits, the exponent of a power of two in units of 4.096
    /// microseconds.
    Timeout(u8), mask 0x1f, show "{}", derive PartialOrd, derive Ord
}

impl Timeout {
    /// The time it stands for: 4.096 microseconds for 0, doubling up to 2.4 hours for 31. As a queue pair's timeout, 0
    /// means never.
    pub const fn duration_ns(self) -> u64 {
        4096 << self.0
    }

    /// The time it stands for, as a [`Duration`]; see [`duration_ns`](Timeout::duration_ns).
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.duration_ns())
    }
}

// Inherent and `const`, so that tables of PSNs can be written down; the operator traits could not be.
#[allow(clippy::should_implement_trait)]
impl Psn {
    /// How many there are.
    pub const COUNT: u32 = 1 << 24;

    /// `count` packets later.
    pub const fn add(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }

    /// `count` packets earlier.
    pub const fn sub(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(count))
    }

    /// How many steps forward lead from `earlier` to this one: 0 to 2^24 - 1.
    pub const fn distance_from(self, earlier: Psn) -> u32 {
        self.sub(earlier.0).0
    }

    /// The signed distance from `other`, the shorter way around: -2^23 to 2^23 - 1, negative when this one is before.
    pub const fn diff(self, other: Psn) -> i32 {
        // The 24-bit difference moved to the top of the word, so that the shift back extends its sign.
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Whether this one comes before `other`.
    pub const fn is_before(self, other: Psn) -> bool {
        self.diff(other) < 0
    }

    /// Whether this one comes after `other`.
    pub const fn is_after(self, other: Psn) -> bool {
        self.diff(other) > 0
    }
}

#[allow(clippy::should_implement_trait)]
impl Msn {
    /// `count` messages later.
    pub const fn add(self, count: u32) -> Msn {
        Msn::new(self.0.wrapping_add(count))
    }

    /// `count` messages earlier.
    pub const fn sub(self, count: u32) -> Msn {
        Msn::new(self.0.wrapping_sub(count))
    }
}

impl Qpn {
    /// Subnet management, QP 0. RoCE does not use it.
    pub const SMI: Qpn = Qpn(0);
    /// General services, QP 1: where connection management lives.
    pub const GSI: Qpn = Qpn(1);
    /// The destination of a multicast datagram.
    pub const MULTICAST: Qpn = Qpn(0xff_ffff);
}

impl Key {
    /// What distinguishes the L_Key of a region from its R_Key, in which it is 0. On much hardware both are the same
    /// number, so that a program that mixes them up is not told; here they never are.
    const LOCAL: u32 = 0x80;

    /// The L_Key of the region whose R_Key this is.
    #[must_use]
    #[inline]
    pub const fn local(self) -> Key {
        Key(self.0 | Key::LOCAL)
    }

    /// The R_Key of the region whose L_Key or R_Key this is.
    #[must_use]
    #[inline]
    pub const fn of_region(self) -> Key {
        Key(self.0 & !Key::LOCAL)
    }

    /// Whether a region with this R_Key is named by that L_Key or R_Key.
    #[must_use]
    pub const fn is_named_by(self, shown: Key) -> bool {
        self.0 == shown.0 || self.local().0 == shown.0
    }

    /// The key of this object with the next owner's byte, as `ibv_inc_rkey` computes it.
    #[must_use]
    pub const fn next(self) -> Key {
        Key(self.0 & !0xff | self.0.wrapping_add(1) & 0xff)
    }
}

impl Qkey {
    /// The key of QP 1.
    pub const GSI: Qkey = Qkey(0x8001_0000);

    /// Whether only privileged programs may set this key: bit 31 is set.
    pub const fn is_privileged(self) -> bool {
        self.0 >> 31 == 1
    }
}

impl Pkey {
    /// The default partition, full member.
    pub const DEFAULT: Pkey = Pkey(0xffff);

    /// Whether this is a full member's key.
    pub const fn is_full_member(self) -> bool {
        self.0 >> 15 == 1
    }

    /// The partition, without the membership bit.
    pub const fn partition(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Whether holders of the two keys may talk (specification 10.9.3): the same partition, not the invalid one, and
    /// not two limited members.
    pub const fn matches(self, other: Pkey) -> bool {
        self.partition() == other.partition()
            && self.partition() != 0
            && (self.is_full_member() || other.is_full_member())
    }
}

/// The most payload a packet of a path may carry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // the names say it
pub enum Mtu {
    B256 = 1,
    B512 = 2,
    B1024 = 3,
    B2048 = 4,
    B4096 = 5,
}

impl Mtu {
    /// Every one, ascending.
    pub const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// The number of bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// From a number of bytes, which must be one of the five.
    pub const fn from_bytes(bytes: u32) -> Option<Mtu> {
        match bytes {
            256 => Some(Mtu::B256),
            512 => Some(Mtu::B512),
            1024 => Some(Mtu::B1024),
            2048 => Some(Mtu::B2048),
            4096 => Some(Mtu::B4096),
            _ => None,
        }
    }

    /// From the code that CM messages and verbs use: 1 to 5.
    pub const fn from_code(code: u8) -> Option<Mtu> {
        match code {
            1 => Some(Mtu::B256),
            2 => Some(Mtu::B512),
            3 => Some(Mtu::B1024),
            4 => Some(Mtu::B2048),
            5 => Some(Mtu::B4096),
            _ => None,
        }
    }

    /// The code that CM messages and verbs use: 1 to 5.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

pub(crate) use number;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn psn_wraps_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.add(1), Psn::new(0));
        assert_eq!(Psn::new(0).sub(1), last);
        assert_eq!(Psn::new(0x0100_0005), Psn::new(5));
        assert_eq!(last.add(u32::MAX), Psn::new(0xff_fffe));
    }

    #[test]
    fn psn_order_takes_the_shorter_way_around() {
        let last = Psn::new(0xff_ffff);
        let first = Psn::new(0);
        assert!(last.is_before(first) && first.is_after(last));
        assert_eq!(first.diff(last), 1);
        assert_eq!(last.diff(first), -1);
        assert_eq!(first.distance_from(last), 1);
        assert_eq!(last.distance_from(first), 0xff_ffff);
        // Exactly half way is before, from either side: there is no shorter way.
        assert_eq!(Psn::new(1 << 23).diff(first), -(1 << 23));
        assert_eq!(first.diff(Psn::new(1 << 23)), -(1 << 23));
        assert_eq!(Psn::new((1 << 23) - 1).diff(first), (1 << 23) - 1);
        assert!(!first.is_before(first) && !first.is_after(first));
    }

    #[test]
    fn the_keys_of_a_region_differ_and_name_it() {
        for value in [0, 1, 0x1234_5600, 0x1234_567f] {
            let key = Key::new(value);
            assert_ne!(key.local(), key);
            assert_eq!((key.local().of_region(), key.of_region()), (key, key));
            assert!(key.is_named_by(key) && key.is_named_by(key.local()) && !key.local().is_named_by(key));
            assert!(!key.is_named_by(Key::new(value ^ 0x100)));
        }
    }

    #[test]
    fn the_next_key_stays_with_its_object() {
        assert_eq!(Key::new(0x1234_5601).next(), Key::new(0x1234_5602));
        assert_eq!(Key::new(0xffff_ffff).next(), Key::new(0xffff_ff00));
    }

    #[test]
    fn pkeys_match_by_partition_and_membership() {
        let full = Pkey::new(0x8001);
        let limited = Pkey::new(0x0001);
        assert!(full.matches(full) && full.matches(limited) && limited.matches(full));
        assert!(!limited.matches(limited));
        assert!(!full.matches(Pkey::DEFAULT));
        assert!(!Pkey::new(0x8000).matches(Pkey::new(0x8000)), "partition 0 is invalid");
    }

    #[test]
    fn mtu_codes_and_sizes_agree() {
        for mtu in Mtu::ALL {
            assert_eq!(Mtu::from_code(mtu.code()), Some(mtu));
            assert_eq!(Mtu::from_bytes(mtu.bytes()), Some(mtu));
        }
        assert_eq!(Mtu::B256.bytes(), 256);
        assert_eq!(Mtu::B4096.bytes(), 4096);
        assert_eq!((Mtu::from_code(0), Mtu::from_code(6), Mtu::from_bytes(1500)), (None, None, None));
    }

    #[test]
    fn timeouts_double() {
        assert_eq!(Timeout::new(0).duration_ns(), 4096);
        assert_eq!(Timeout::new(14).duration_ns(), 67_108_864);
        assert_eq!(Timeout::new(31).duration_ns(), 8_796_093_022_208);
        assert_eq!(Timeout::new(32), Timeout::new(0));
    }

    #[test]
    fn numbers_print_as_people_write_them() {
        assert_eq!(format!("{} {:?}", Qpn::new(17), Qpn::new(17)), "0x11 Qpn(0x11)");
        assert_eq!(format!("{} {:?}", Psn::new(17), Psn::new(17)), "17 Psn(17)");
        assert_eq!(format!("{}", Pkey::new(1)), "0x0001");
        assert!(Qkey::GSI.is_privileged() && !Qkey::new(0x7fff_ffff).is_privileged());
    }
}
