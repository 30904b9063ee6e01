//! Opening and setting up the sockets: those that receive on port 4791 together with other processes, one for each
//! address family and one for what is sent inside the host; and unbound ones that send.

use host::descriptor::{Descriptor, check};
use host::family::{Family, Scope};
use host::holders::{holders, holders_at, other_user};
use host::steering::program::{self, Table};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use wire::ROCE_PORT;

/// How much we ask the kernel to buffer. It grants what the system allows (`net.core.rmem_max`), which need not be this
/// much; root gets it.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;

/// Why port 4791 is not ours.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another program has it for itself: kernel Soft-RoCE, or one that does not share it. Only this host can be
    /// reached.
    #[error("UDP port {ROCE_PORT} is held by something that does not share it (kernel Soft-RoCE, or another program)")]
    Taken,
    /// ubiverbs of another user has it. It forwards what is for us.
    #[error("UDP port {ROCE_PORT} is held by ubiverbs of user {uid}, which forwards our packets")]
    OtherUser {
        /// The user.
        uid: u32,
    },
    /// The family is switched off.
    #[error("the system has no {0:?}")]
    NoFamily(Family),
    /// Anything else.
    #[error("cannot open a UDP socket for {family:?}")]
    System {
        /// The family.
        family: Family,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// A socket that shares port 4791 with the other processes of this user. Never SO_REUSEADDR: it would let another user
/// take the traffic.
/// A user that was found to have it is not looked for again while it does.
pub(super) fn receiver(family: Family, port: u16, scope: Scope, known: Option<u32>) -> Result<Descriptor, BindError> {
    let still = |uid: &u32| holders(family, port).is_ok_and(|users| users.contains(uid));
    let socket = open(family, port, Some(scope)).map_err(|source| match source.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            match known.filter(still).map_or_else(|| other_user(family, port), |uid| Ok(Some(uid))) {
                Ok(Some(uid)) => BindError::OtherUser { uid },
                _ => BindError::Taken,
            }
        }
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) => BindError::NoFamily(family),
        _ => BindError::System { family, source },
    })?;
    // The first one gets everything until a table says more, so that a process that joins gets nothing that is
    // another's. (A socket with a program cannot be bound to a port that is shared already: the program has to come
    // after.)
    if holders_at(family, scope.address(family), port).is_ok_and(|users| users.len() == 1) {
        // Without one the kernel hashes, and packets are forwarded.
        let _ = program::attach(socket.raw(), &program::build(&Table::all_to(0)));
    }
    Ok(socket)
}

/// The class of what is sent and does not say another: its sender takes marks.
pub(super) const DEFAULT_TRAFFIC_CLASS: u8 = wire::Ecn::Capable0.in_class(0);

/// A socket to send from, with that port; 0 leaves the choice to the system. No other socket has it.
pub(super) fn sender(family: Family, port: u16) -> io::Result<Descriptor> {
    open(family, port, None)
}

fn open(family: Family, port: u16, receives: Option<Scope>) -> io::Result<Descriptor> {
    let domain = match family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(receives.is_some())?;
    let scope = receives.unwrap_or(Scope::Everywhere);
    let address = SocketAddr::new(scope.address(family), port);
    match family {
        Family::V4 => {
            // Don't fragment; identification 0.
            set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        }
        Family::V6 => {
            socket.set_only_v6(true)?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        }
    }
    if receives.is_some() {
        socket.set_reuse_port(true)?;
        match family {
            Family::V4 if scope == Scope::Inside => {}
            Family::V4 => {
                set(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
                set(&socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
                only_own_groups(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL)?;
            }
            Family::V6 => {
                set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
                set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
                // Peers send UDP checksum 0, also where IPv6 forbids it: RoCE has the ICRC.
                set(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)?;
                only_own_groups(&socket, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL)?;
            }
        }
        // Several packets of one train in one buffer; without it everything still works, slower.
        let _ = set(&socket, libc::IPPROTO_UDP, libc::UDP_GRO, 1);
        receive_buffer(&socket);
    } else {
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
        match family {
            Family::V4 => set(&socket, libc::IPPROTO_IP, libc::IP_TOS, DEFAULT_TRAFFIC_CLASS.into())?,
            Family::V6 => set(&socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, DEFAULT_TRAFFIC_CLASS.into())?,
        }
    }
    // A child that is forked before this line has a socket without a port, and one forked after it knows what to close.
    let socket = Descriptor::keep(socket.into());
    let address = SockAddr::from(address);
    // SAFETY: `address` is live and as long as it says.
    check(unsafe { libc::bind(socket.raw(), address.as_ptr().cast(), address.len()) })?;
    Ok(socket)
}

/// Asks for a long receive buffer, as the window of its senders is as long: with the stock one of 208 KiB long messages
/// come two thirds as fast. Root may have more than the system allows others.
fn receive_buffer(socket: &Socket) {
    let granted = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES).and_then(|()| socket.recv_buffer_size());
    // The kernel tells twice what it grants.
    if granted.is_ok_and(|bytes| bytes < 2 * SOCKET_BUFFER_BYTES) {
        let _ = set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, SOCKET_BUFFER_BYTES as libc::c_int);
    }
}

/// Lets a socket tell of each datagram its class, and how many hops it had left.
pub(super) fn tell_all(socket: RawFd, family: Family) -> io::Result<()> {
    match family {
        Family::V4 => set_raw(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)
            .and_then(|()| set_raw(socket, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)),
        Family::V6 => set_raw(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1),
    }
}

/// Missing from `libc` for Linux.
const UDP_NO_CHECK6_RX: libc::c_int = 102;
const IPV6_MULTICAST_ALL: libc::c_int = 29;

/// Keeps out what is for groups that only other sockets joined. Linux before 4.20 cannot do it for IPv6, and sandboxes
/// and emulators often not at all: then such datagrams arrive, and are dropped where no queue pair is in their group.
fn only_own_groups(socket: &Socket, level: libc::c_int, name: libc::c_int) -> io::Result<()> {
    match set(socket, level, name, 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        result => result,
    }
}

fn set(socket: &Socket, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    set_raw(socket.as_raw_fd(), level, name, value)
}

/// Sets an option that is a number.
pub(super) fn set_raw(socket: RawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option value is a live `c_int` of the size given.
    check(unsafe { libc::setsockopt(socket, level, name, (&raw const value).cast(), size) })?;
    Ok(())
}

/// An option that is a number.
pub(super) fn get(socket: RawFd, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes to a live `c_int`.
    check(unsafe { libc::getsockopt(socket, level, name, (&raw mut value).cast(), &raw mut size) })?;
    Ok(value)
}

/// Datagrams dropped because the buffer was full: the last of the nine numbers that describe a socket's memory.
pub(super) fn drops(socket: RawFd) -> io::Result<u32> {
    let mut numbers = [0u32; 9];
    let mut size = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes to a live array.
    check(unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, numbers.as_mut_ptr().cast(), &raw mut size)
    })?;
    let [.., drops] = numbers;
    Ok(drops)
}

/// The address and port that a socket has.
pub(super) fn local_address(socket: RawFd) -> io::Result<SocketAddr> {
    // SAFETY: the kernel writes an address of at most the length given into the storage, and its length.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| check(libc::getsockname(socket, storage.cast(), length)).map(drop))?
    };
    address.as_socket().ok_or_else(|| io::ErrorKind::InvalidData.into())
}
