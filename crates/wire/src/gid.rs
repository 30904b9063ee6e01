//! The global identifier of a port, which on RoCEv2 is an IP address: 16 bytes, an IPv4 address in its IPv6-mapped
//! form.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A port's address, or a multicast group's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid([u8; 16]);

impl Gid {
    /// All zero: no address.
    pub const ZERO: Gid = Gid([0; 16]);

    /// From its bytes, most significant first.
    pub const fn new(bytes: [u8; 16]) -> Gid {
        Gid(bytes)
    }

    /// From an IPv4 address: `::ffff:a.b.c.d`.
    pub const fn from_ipv4(address: Ipv4Addr) -> Gid {
        Gid(address.to_ipv6_mapped().octets())
    }

    /// From an IPv6 address.
    pub const fn from_ipv6(address: Ipv6Addr) -> Gid {
        Gid(address.octets())
    }

    /// From either.
    pub const fn from_ip(address: IpAddr) -> Gid {
        match address {
            IpAddr::V4(address) => Gid::from_ipv4(address),
            IpAddr::V6(address) => Gid::from_ipv6(address),
        }
    }

    /// The IP address it stands for; a mapped IPv4 address comes back as IPv4.
    pub const fn to_ip(self) -> IpAddr {
        let address = Ipv6Addr::from_bits(u128::from_be_bytes(self.0));
        match address.to_ipv4_mapped() {
            Some(address) => IpAddr::V4(address),
            None => IpAddr::V6(address),
        }
    }

    /// Its bytes, most significant first.
    pub const fn octets(self) -> [u8; 16] {
        self.0
    }

    /// Whether it names a multicast group, IPv4 or IPv6.
    pub const fn is_multicast(self) -> bool {
        match self.to_ip() {
            IpAddr::V4(address) => address.is_multicast(),
            IpAddr::V6(address) => address.is_multicast(),
        }
    }

    /// Whether it is no address at all.
    pub const fn is_zero(self) -> bool {
        Ipv6Addr::from_bits(u128::from_be_bytes(self.0)).is_unspecified()
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Gid {
        Gid::from_ip(address)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from_bits(u128::from_be_bytes(self.0)).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn an_ipv4_address_is_mapped_and_comes_back() {
        let gid = Gid::from_ipv4(Ipv4Addr::new(10, 77, 0, 2));
        assert_eq!(gid.octets(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 2]);
        assert_eq!(gid.to_string(), "::ffff:10.77.0.2");
        assert_eq!(gid.to_ip(), IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)));
        assert!(!gid.is_multicast() && !gid.is_zero() && Gid::ZERO.is_zero());
    }

    #[test]
    fn multicast_is_told_in_both_families() {
        assert!(Gid::from_ipv4(Ipv4Addr::new(239, 77, 0, 1)).is_multicast());
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        assert!(Gid::from_ipv6(group).is_multicast());
        assert_eq!(Gid::from_ipv6(group).to_ip(), IpAddr::V6(group));
    }
}
