//! Raw Ethernet frames of an interface, by packet sockets of Linux (`AF_PACKET`). The kernel wants `CAP_NET_RAW` in the
//! network namespace for one. Its own stack sees the same frames; what such a socket gets are copies.
//!
//! What comes is made what a wire would have brought: tags that the kernel took out are told beside, checksums that it
//! left to a device are completed, and what it left to a device to cut is cut (`receive`). What the host sends to
//! itself through an interface comes back, as from a NIC (`loop_filter`).

mod loop_filter;
mod receive;
mod send;
#[cfg(test)]
mod tests;

pub use receive::{FrameIn, Membership, Receiver};
pub use send::{MAX_BATCH, Sender};

use ::host::descriptor::Descriptor;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use wire::refuse_if;

/// All protocols, most significant byte first.
const ALL_PROTOCOLS: u16 = (libc::ETH_P_ALL as u16).to_be();

/// A packet socket of an interface; `protocol` 0 for one that receives nothing.
fn socket(interface: u32, protocol: u16) -> io::Result<Descriptor> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: numbers; the descriptor that comes back is ours.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_PACKET, kind, 0);
        refuse_if!(fd < 0, io::Error::last_os_error());
        Descriptor::keep(OwnedFd::from_raw_fd(fd))
    };
    bind(&socket, interface, protocol)?;
    Ok(socket)
}

fn bind(socket: &Descriptor, interface: u32, protocol: u16) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol,
        sll_ifindex: interface as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: a live address of that length.
    check(unsafe { libc::bind(socket.raw(), (&raw const address).cast(), length) })
}

/// Sets an option of a packet socket, or of sockets as such.
fn set<T: Copy>(socket: &Descriptor, level: i32, option: i32, value: T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: a live value of that length.
    check(unsafe { libc::setsockopt(socket.raw(), level, option, (&raw const value).cast(), length) })
}

fn check(answer: libc::c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
