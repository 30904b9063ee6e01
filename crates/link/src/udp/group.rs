//! Multicast: which groups a receiving socket is in, per interface. The kernel gives a datagram to every socket that
//! joined its group, so unlike other packets it is neither steered nor forwarded.

use host::descriptor::check;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// A multicast group as one interface hears it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Group {
    /// The group's address.
    pub address: IpAddr,
    /// The number of the interface.
    pub interface: u32,
}

impl Group {
    pub(super) fn join(&self, socket: RawFd) -> io::Result<()> {
        self.tell(socket, libc::IP_ADD_MEMBERSHIP, libc::IPV6_ADD_MEMBERSHIP)
    }

    pub(super) fn leave(&self, socket: RawFd) -> io::Result<()> {
        self.tell(socket, libc::IP_DROP_MEMBERSHIP, libc::IPV6_DROP_MEMBERSHIP)
    }

    fn tell(&self, socket: RawFd, v4: libc::c_int, v6: libc::c_int) -> io::Result<()> {
        match self.address {
            IpAddr::V4(address) => {
                let request = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
                    imr_address: libc::in_addr { s_addr: 0 },
                    imr_ifindex: self.interface as libc::c_int,
                };
                set(socket, libc::IPPROTO_IP, v4, &request)
            }
            IpAddr::V6(address) => {
                let request = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr { s6_addr: address.octets() },
                    ipv6mr_interface: self.interface,
                };
                set(socket, libc::IPPROTO_IPV6, v6, &request)
            }
        }
    }
}

/// Sets an option whose value is a plain structure of the kernel's.
fn set<T: Copy>(socket: RawFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `size` bytes of a live value.
    check(unsafe { libc::setsockopt(socket, level, name, std::ptr::from_ref(value).cast(), size) })?;
    Ok(())
}
