//! The kernel's table of UDP sockets, asked by netlink (`sock_diag(7)`): it answers with the sockets of one port only,
//! in a time that other users' sockets hardly lengthen. The text in `/proc` has all of them, and takes a hundred times
//! as long where there are many.

use crate::descriptor::{Descriptor, Opening, check, check_length};
use crate::family::Family;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NETLINK_HEADER_BYTES: usize = 16;
/// `struct inet_diag_req_v2`: family, protocol, what else, states, and the socket's addresses.
const DIAG_REQUEST_BYTES: usize = 56;

/// A socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketRow {
    /// The address it is bound to; of IPv4 the first four.
    pub address: [u8; 16],
    /// Its port.
    pub port: u16,
    /// Its user.
    pub uid: u32,
}

/// The sockets of a family with this port, or of all, but no more than so many. An error where the kernel does not answer
/// such questions.
pub fn read(family: Family, port: Option<u16>, most: usize) -> io::Result<Vec<SocketRow>> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let opening = Opening::begin();
    // SAFETY: numbers; the descriptor that comes back is ours.
    let socket = unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG))?) };
    let socket = Descriptor::keep(socket);
    drop(opening);
    let request = request(family, port.unwrap_or(0));
    // SAFETY: live bytes, as many as said.
    check_length(unsafe { libc::send(socket.raw(), request.as_ptr().cast(), request.len(), 0) })?;
    let (mut found, mut buffer) = (Vec::new(), vec![0_u8; 32 * 1024]);
    while found.len() < most {
        // SAFETY: room for as many bytes as said.
        let length = unsafe { libc::recv(socket.raw(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if !parse(buffer.get(..check_length(length)?).unwrap_or_default(), &mut found)? {
            break;
        }
    }
    // Port 0 asks for all.
    found.retain(|entry| port.is_none_or(|port| entry.port == port));
    Ok(found)
}

fn request(family: Family, port: u16) -> [u8; NETLINK_HEADER_BYTES + DIAG_REQUEST_BYTES] {
    let mut bytes = [0; NETLINK_HEADER_BYTES + DIAG_REQUEST_BYTES];
    let family = match family {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    };
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    bytes[..4].copy_from_slice(&((NETLINK_HEADER_BYTES + DIAG_REQUEST_BYTES) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[16..18].copy_from_slice(&[family as u8, libc::IPPROTO_UDP as u8]);
    // In any state.
    bytes[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    bytes[24..26].copy_from_slice(&port.to_be_bytes());
    bytes
}

/// Reads the messages of an answer. False after the last one.
#[doc(hidden)] // for fuzzing
pub fn parse(mut bytes: &[u8], found: &mut Vec<SocketRow>) -> io::Result<bool> {
    while let Some((header, _)) = bytes.split_first_chunk::<NETLINK_HEADER_BYTES>() {
        let [l0, l1, l2, l3, t0, t1, ..] = *header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let Some(body) = bytes.get(NETLINK_HEADER_BYTES..length) else { return Err(io::ErrorKind::InvalidData.into()) };
        match libc::c_int::from(u16::from_ne_bytes([t0, t1])) {
            libc::NLMSG_DONE => return Ok(false),
            libc::NLMSG_ERROR => {
                let code = body.first_chunk::<4>().map_or(0, |code| i32::from_ne_bytes(*code));
                return Err(io::Error::from_raw_os_error(code.saturating_neg()));
            }
            _ => {
                // `struct inet_diag_msg`: four numbers; ports, addresses, interface, cookie; three more; the user.
                let port = body.get(4..6).and_then(|bytes| bytes.first_chunk::<2>());
                let address = body.get(8..24).and_then(|bytes| bytes.first_chunk::<16>());
                let uid = body.get(64..68).and_then(|bytes| bytes.first_chunk::<4>());
                if let (Some(port), Some(address), Some(uid)) = (port, address, uid) {
                    let (port, uid) = (u16::from_be_bytes(*port), u32::from_ne_bytes(*uid));
                    found.push(SocketRow { address: *address, port, uid });
                }
            }
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::own_uid;
    use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

    #[test]
    fn the_sockets_of_a_port_are_found() {
        let socket = UdpSocket::bind("127.0.0.7:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        // Where the kernel does not answer, the text is read.
        let Ok(found) = read(Family::V4, Some(port), 100) else { return };
        let mut address = [0; 16];
        address[..4].copy_from_slice(&Ipv4Addr::new(127, 0, 0, 7).octets());
        assert!(found.contains(&SocketRow { address, port, uid: own_uid() }), "{found:?}");
        assert!(found.iter().all(|entry| entry.port == port));
        assert!(read(Family::V4, None, usize::MAX).unwrap().iter().any(|entry| entry.port == port));
        if let Ok(socket) = UdpSocket::bind("[::1]:0") {
            let port = socket.local_addr().unwrap().port();
            let found = read(Family::V6, Some(port), 100).unwrap();
            let address = Ipv6Addr::LOCALHOST.octets();
            assert!(found.contains(&SocketRow { address, port, uid: own_uid() }), "{found:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_an_error() {
        let whole = {
            let mut bytes = request(Family::V4, 4791).to_vec();
            bytes.extend([0; 72]);
            bytes[..4].copy_from_slice(&144_u32.to_ne_bytes());
            bytes.resize(144, 0);
            bytes
        };
        for length in 0..whole.len() {
            let mut found = Vec::new();
            let answer = parse(&whole[..length], &mut found);
            assert!(found.is_empty() && (length < NETLINK_HEADER_BYTES || answer.is_err()), "{length}");
        }
        let mut found = Vec::new();
        assert!(parse(&whole, &mut found).unwrap());
        assert_eq!(found.len(), 1);
        // A length of 0 must not be read for ever.
        assert!(parse(&[0; 64], &mut found).is_err());
    }
}
