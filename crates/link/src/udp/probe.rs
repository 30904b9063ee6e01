//! Whether any process of another host has port 4791. The kernel of a host where none has answers a datagram with an
//! ICMP message that quotes it, which the socket of this probe is told of. Hosts that answer nothing are not known to
//! be anything.

use super::call;
use super::send::Sender;
use super::socket::set_raw;
use super::way::Route;
use crate::Train;
use host::family::Family;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::Headers;

/// What an ICMP message quotes of a datagram, at most: more than a management datagram has.
const QUOTE_BYTES: usize = 512;

/// ICMP's and ICMPv6's "destination unreachable: port".
const PORT_UNREACHABLE_V4: (u8, u8) = (3, 3);
const PORT_UNREACHABLE_V6: (u8, u8) = (1, 4);

/// A socket of its own: on one that sends for queue pairs the kernel would report such a message as the error of
/// another send.
#[derive(Debug)]
pub struct PortProbe {
    sender: Sender,
}

impl PortProbe {
    /// Opens the socket.
    pub fn open(family: Family) -> io::Result<PortProbe> {
        let sender = Sender::open(family)?;
        match family {
            Family::V4 => set_raw(sender.raw_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, 1)?,
            Family::V6 => set_raw(sender.raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?,
        }
        Ok(PortProbe { sender })
    }

    /// The port that its packets come from.
    pub fn port(&self) -> u16 {
        self.sender.port()
    }

    /// Sends a packet to port 4791. One that the system does not take is lost, as on the way.
    pub fn send(&mut self, route: &Route, headers: &Headers, payload: &[u8]) {
        let mut fill = |from: usize, out: &mut [u8]| {
            out.copy_from_slice(payload.get(from..from + out.len()).ok_or(crate::NoPayload)?);
            Ok(())
        };
        let mut train = Train { headers, count: 1, mtu: 0, length: payload.len(), fill: &mut fill };
        let _ = self.sender.send(route, &mut train, true);
        self.sender.take_drops();
    }

    /// Shows what a host has sent back since the last time because no process there has the port: the host, and the
    /// beginning of the datagram. Anybody can make up such a message, but not what it quotes.
    pub fn refusals(&mut self, mut take: impl FnMut(IpAddr, &[u8])) {
        let mut quote = [0; QUOTE_BYTES];
        // Bounded: the queue of errors is the socket's receive buffer.
        for _ in 0..1024 {
            match next_error(self.sender.raw_fd(), &mut quote) {
                Some((Some(host), length)) => take(host, quote.get(..length).unwrap_or(&[])),
                Some((None, _)) => {}
                None => return,
            }
        }
    }
}

/// The next error that a socket was told of: who says that a port is unreachable, if it is that, and how much was
/// quoted. Never waits.
fn next_error(socket: libc::c_int, quote: &mut [u8]) -> Option<(Option<IpAddr>, usize)> {
    #[repr(C, align(8))]
    struct Room([u8; 256]);
    let mut room = Room([0; 256]);
    let mut part = libc::iovec { iov_base: quote.as_mut_ptr().cast(), iov_len: quote.len() };
    // SAFETY: a structure of numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (room.0.as_mut_ptr().cast(), room.0.len() as _);
    // SAFETY: every pointer in `message` is to live memory of the length given.
    let length = unsafe { call::receive(socket, &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    let length = usize::try_from(length).ok()?;
    let mut host = None;
    // SAFETY: the kernel has written the control messages that `message` describes, and they are walked with the macros
    // for that. An extended error has its offender's address behind it, as long as the control message says; both are
    // read without a demand on their alignment.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(header) = control.as_ref() {
            let data = libc::CMSG_DATA(control);
            let bytes = header.cmsg_len.saturating_sub(data.offset_from(control.cast()) as usize);
            if bytes >= size_of::<libc::sock_extended_err>() {
                let error = data.cast::<libc::sock_extended_err>().read_unaligned();
                let behind = data.add(size_of::<libc::sock_extended_err>());
                let rest = bytes - size_of::<libc::sock_extended_err>();
                let what = (error.ee_type, error.ee_code);
                if (header.cmsg_level, header.cmsg_type) == (libc::IPPROTO_IP, libc::IP_RECVERR)
                    && error.ee_origin == libc::SO_EE_ORIGIN_ICMP
                    && what == PORT_UNREACHABLE_V4
                    && rest >= size_of::<libc::sockaddr_in>()
                {
                    let address = behind.cast::<libc::sockaddr_in>().read_unaligned();
                    host = Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into());
                }
                if (header.cmsg_level, header.cmsg_type) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
                    && error.ee_origin == libc::SO_EE_ORIGIN_ICMP6
                    && what == PORT_UNREACHABLE_V6
                    && rest >= size_of::<libc::sockaddr_in6>()
                {
                    let address = behind.cast::<libc::sockaddr_in6>().read_unaligned();
                    host = Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into());
                }
            }
            control = libc::CMSG_NXTHDR(&raw const message, control);
        }
    }
    Some((host, length))
}
