//! Socket addresses, as C has them and as Rust does.

use crate::errno::{Errno, refuse_if};
use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use std::mem::{offset_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use wire::Gid;
use wire::cm::{PortSpace, ServiceId};

/// The family of an address; `None` if it is null.
///
/// # Safety
/// `address` is null or a socket address of C's.
unsafe fn c_family(address: *const sockaddr) -> Option<i32> {
    // Not a reference: what follows the family may be longer than `sockaddr`, and need not be aligned as that.
    // SAFETY: not null, and every address begins with its family.
    (!address.is_null()).then(|| i32::from(unsafe { (&raw const (*address).sa_family).read_unaligned() }))
}

/// An address of C's, which may be null.
///
/// # Safety
/// It is null, or as long as the addresses of its family are.
pub(crate) unsafe fn from_c(address: *const sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: null, or an address.
    match unsafe { c_family(address) } {
        Some(libc::AF_INET) => {
            // SAFETY: as long as this family's are.
            let address = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Ok(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(address.sin_port))))
        }
        Some(libc::AF_INET6) => {
            // SAFETY: as long as this family's are.
            let address = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            let port = u16::from_be(address.sin6_port);
            Ok(SocketAddr::V6(SocketAddrV6::new(ip, port, u32::from_be(address.sin6_flowinfo), address.sin6_scope_id)))
        }
        Some(_) => Err(Errno::invalid("the address is neither IPv4 nor IPv6")),
        None => Err(Errno::null()),
    }
}

/// The family of addresses that are GIDs.
pub(super) const AF_IB: i32 = 27;

/// An address whose family is that: `sockaddr_ib`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GidAddress {
    family: sa_family_t,
    pkey: u16,
    flow_information: u32,
    gid: [u8; 16],
    /// The service id, which for an IP service is its namespace of ports and the port, and which bits of it count. Most
    /// significant byte first.
    service: u64,
    service_mask: u64,
    scope: u64,
}

/// The length of such an address.
pub(super) const GID_ADDRESS_LENGTH: socklen_t = size_of::<GidAddress>() as socklen_t;

impl GidAddress {
    /// Its port, as far as it has one.
    fn port(&self) -> u16 {
        (u64::from_be(self.service) & u64::from_be(self.service_mask)) as u16
    }

    /// Whether its service may be one of that namespace.
    fn is_of(&self, space: PortSpace) -> bool {
        let mask = u64::from_be(self.service_mask) & !u64::from(u16::MAX);
        (u64::from_be(self.service) ^ ServiceId::ip(space, 0).value()) & mask == 0
    }
}

/// An address of an id: whether it is a GID, and the address in any case.
///
/// # Safety
/// As for [`from_c`].
pub(super) unsafe fn of_id_from_c(address: *const sockaddr, space: PortSpace) -> Result<(bool, SocketAddr), Errno> {
    // SAFETY: null, or an address.
    match unsafe { c_family(address) } {
        Some(AF_IB) => {
            // SAFETY: as long as this family's are.
            let address = unsafe { address.cast::<GidAddress>().read_unaligned() };
            refuse_if!(!address.is_of(space), Errno::invalid("sib_sid is not of the id's port space"));
            let scope = u32::try_from(address.scope).unwrap_or(0);
            let ip = Gid::new(address.gid).to_ip();
            Ok((true, hca::cm::with_scope(ip, address.port(), scope)))
        }
        // SAFETY: as this function demands.
        _ => Ok((false, unsafe { from_c(address) }?)),
    }
}

/// The address of an id that has GIDs for addresses, as C has it.
pub(super) fn gid_to_c(address: SocketAddr, space: PortSpace) -> sockaddr_storage {
    // SAFETY: all zeros are an address of no family.
    let mut storage: sockaddr_storage = unsafe { zeroed() };
    let scope = match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let c = GidAddress {
        family: AF_IB as sa_family_t,
        pkey: wire::Pkey::DEFAULT.value().to_be(),
        flow_information: 0,
        gid: Gid::from_ip(address.ip()).octets(),
        service: ServiceId::ip(space, address.port()).value().to_be(),
        service_mask: u64::MAX,
        scope: scope.into(),
    };
    // SAFETY: the storage has room for every kind of address, and is aligned for all.
    unsafe { (&raw mut storage).cast::<GidAddress>().write(c) };
    storage
}

/// The address of a group, which may also be its GID.
///
/// # Safety
/// As for [`from_c`].
pub(crate) unsafe fn group_from_c(address: *const sockaddr) -> Result<SocketAddr, Errno> {
    // SAFETY: null, or an address.
    match unsafe { c_family(address) } {
        Some(AF_IB) => {
            // SAFETY: as long as this family's are, and no more is read than the GID: programs have groups in less room.
            let gid = unsafe { address.byte_add(offset_of!(GidAddress, gid)).cast::<[u8; 16]>().read_unaligned() };
            Ok(SocketAddr::new(Gid::new(gid).to_ip(), 0))
        }
        // SAFETY: as this function demands.
        _ => unsafe { from_c(address) },
    }
}

/// An address as C has it.
pub(crate) fn to_c(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: all zeros are an address of no family.
    let mut storage: sockaddr_storage = unsafe { zeroed() };
    let place = &raw mut storage;
    match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage has room for every kind of address, and is aligned for all.
            let c = unsafe { &mut *place.cast::<sockaddr_in>() };
            c.sin_family = libc::AF_INET as sa_family_t;
            c.sin_port = address.port().to_be();
            c.sin_addr.s_addr = u32::from(*address.ip()).to_be();
        }
        SocketAddr::V6(address) => {
            // SAFETY: as above.
            let c = unsafe { &mut *place.cast::<sockaddr_in6>() };
            c.sin6_family = libc::AF_INET6 as sa_family_t;
            c.sin6_port = address.port().to_be();
            c.sin6_flowinfo = address.flowinfo().to_be();
            c.sin6_addr.s6_addr = address.ip().octets();
            c.sin6_scope_id = address.scope_id();
        }
    }
    storage
}

/// The port of an address, most significant byte first; 0 where it has none.
pub(crate) fn port(address: &sockaddr_storage) -> u16 {
    let place = std::ptr::from_ref(address);
    if i32::from(address.ss_family) == AF_IB {
        // SAFETY: the storage is as long as the addresses of every family.
        return unsafe { place.cast::<GidAddress>().read() }.port().to_be();
    }
    // SAFETY: as above.
    unsafe { from_c(place.cast()) }.map_or(0, |address| address.port().to_be())
}

/// Whether two addresses are the same group: a group has no port.
pub(crate) fn same_group(one: SocketAddr, other: SocketAddr) -> bool {
    one.ip() == other.ip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_to_c_and_come_back() {
        for text in ["10.1.2.3:7174", "[fe80::1%7]:65535", "[::]:0", "0.0.0.0:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = to_c(address);
            // SAFETY: a whole address.
            let back = unsafe { from_c((&raw const c).cast()) };
            assert_eq!(back, Ok(address));
            assert_eq!(port(&c), address.port().to_be());
        }
    }

    #[test]
    fn a_group_may_be_a_gid() {
        let text = "ff0e::77";
        let gid = gid_to_c(format!("[{text}]:0").parse().unwrap(), PortSpace::Udp);
        let place = (&raw const gid).cast::<sockaddr>();
        // SAFETY: a whole address.
        unsafe {
            assert_eq!(group_from_c(place), Ok(format!("[{text}]:0").parse().unwrap()));
            assert!(from_c(place).is_err());
        }
    }

    #[test]
    fn gids_of_ids_have_their_port_in_the_service_id() {
        for text in ["[::ffff:10.1.2.3]:7174", "[fe80::1%7]:65535", "[::]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = gid_to_c(address, PortSpace::Tcp);
            assert_eq!(port(&c), address.port().to_be());
            let place = (&raw const c).cast();
            // SAFETY: a whole address.
            let (back, other) = unsafe { (of_id_from_c(place, PortSpace::Tcp), of_id_from_c(place, PortSpace::Udp)) };
            let (by_gid, back) = back.unwrap();
            assert!(by_gid && back.port() == address.port() && other.is_err());
            assert_eq!(Gid::from_ip(back.ip()), Gid::from_ip(address.ip()));
        }
    }

    #[test]
    fn other_families_and_nothing_are_refused() {
        let mut c = to_c("1.2.3.4:5".parse().unwrap());
        c.ss_family = 27;
        // SAFETY: a whole address of a family that is not known, and none.
        unsafe {
            assert!(from_c((&raw const c).cast()).is_err());
            assert!(from_c(std::ptr::null()).is_err());
        }
    }
}
