//! Abstract Unix socket names: the registry of a host, without a process that runs it. A bind is an allocation, atomic
//! within a network namespace; the kernel takes the name back when its process ends; `/proc/net/unix` lists them. Here
//! are the names, how they are bound and reached, and which process has them; what they mean is said in
//! [`slots`](crate::slots) and [`ports`](crate::ports).

use crate::descriptor::{Descriptor, Opening, check};
use crate::shares;
use crate::slot::Slot;
use crate::thread::{self, Shield};
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::str::FromStr;
use std::thread::sleep;
use std::time::{Duration, Instant};
use wire::cm::PortSpace;

/// Ports in a block.
pub const PORTS_PER_BLOCK: u16 = 64;

/// So many names for one slot are looked at: a squatter can have many of them, too, and each costs it a descriptor.
const MOST_OTHERS: usize = 4096;

/// How long a name may outlive its process.
const NAME_RELEASE_TIME: Duration = Duration::from_millis(30);

/// What a process may own on its host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Name {
    /// A share of the queue pair numbers.
    Slot(Slot),
    /// A port of the connection manager.
    Port(PortSpace, u16),
    /// The 64 ports from 64 times this number on.
    Block(PortSpace, u16),
    /// A slot whose own name is bound by a user that may not have it, and any number.
    Other(Slot, u32),
    /// A management class on the port of a device: its requests.
    Class(ManagementClass),
}

/// A class of management datagrams on the port of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ManagementClass {
    /// The interface of the device.
    pub interface: u32,
    /// The class.
    pub class: u8,
    /// Its version.
    pub version: u8,
    /// The vendor, or 0.
    pub oui: u32,
}

impl ManagementClass {
    /// The four numbers of a name.
    fn parse(numbers: &str) -> Option<ManagementClass> {
        let mut numbers = numbers.split('/').map(|digits| {
            // As it is written: no signs, no zeros in front.
            digits.parse::<u32>().ok().filter(|number| number.to_string() == digits)
        });
        let mut next = || numbers.next().flatten();
        let (interface, class, version, oui) = (next()?, next()?, next()?, next()?);
        let whole = numbers.next().is_none();
        let (class, version) = (u8::try_from(class).ok()?, u8::try_from(version).ok()?);
        (whole && oui < 1 << 24).then_some(ManagementClass { interface, class, version, oui })
    }
}

fn space_name(space: PortSpace) -> &'static str {
    match space {
        PortSpace::Ipoib => "ipoib",
        PortSpace::Tcp => "tcp",
        PortSpace::Udp => "udp",
        PortSpace::Ib => "ib",
    }
}

/// As in `/proc/net/unix`, without the `@` that stands for the abstract namespace.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Slot(slot) => write!(f, "ubiverbs/slot/{}", slot.number()),
            Name::Port(space, port) => write!(f, "ubiverbs/cm/{}/{port}", space_name(*space)),
            Name::Block(space, block) => write!(f, "ubiverbs/cm/{}/block/{block}", space_name(*space)),
            Name::Other(slot, any) => write!(f, "ubiverbs/slot/{}/{any:08x}", slot.number()),
            Name::Class(ManagementClass { interface, class, version, oui }) => {
                write!(f, "ubiverbs/mad/{interface}/{class}/{version}/{oui}")
            }
        }
    }
}

/// Not one of our names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a name of ubiverbs")]
pub struct NotAName;

impl FromStr for Name {
    type Err = NotAName;

    fn from_str(name: &str) -> Result<Name, NotAName> {
        let number = |digits: &str| match digits.as_bytes() {
            [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit) => {
                digits.parse::<u16>().map_err(|_| NotAName)
            }
            [b'0'] => Ok(0),
            _ => Err(NotAName),
        };
        if let Some(slot) = name.strip_prefix("ubiverbs/slot/") {
            if let Some((slot, any)) = slot.split_once('/') {
                let digits = any.len() == 8 && any.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                let any = u32::from_str_radix(any, 16).ok().filter(|_| digits).ok_or(NotAName)?;
                return Slot::new(number(slot)?).map(|slot| Name::Other(slot, any)).ok_or(NotAName);
            }
            return Slot::new(number(slot)?).map(Name::Slot).ok_or(NotAName);
        }
        if let Some(numbers) = name.strip_prefix("ubiverbs/mad/") {
            return ManagementClass::parse(numbers).map(Name::Class).ok_or(NotAName);
        }
        let (space, port) = name.strip_prefix("ubiverbs/cm/").and_then(|rest| rest.split_once('/')).ok_or(NotAName)?;
        let spaces = [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];
        let space = spaces.into_iter().find(|one| space_name(*one) == space).ok_or(NotAName)?;
        match port.strip_prefix("block/") {
            Some(block) => Ok(Name::Block(space, number(block)?)),
            None => Ok(Name::Port(space, number(port)?)),
        }
    }
}

impl Name {
    /// The slot that it is of.
    pub fn slot(self) -> Option<Slot> {
        match self {
            Name::Slot(slot) | Name::Other(slot, _) => Some(slot),
            Name::Port(..) | Name::Block(..) | Name::Class(_) => None,
        }
    }

    /// Every name that some process of this host listens on, in order. For tools: what it tells may have changed
    /// already.
    pub fn of_this_host() -> io::Result<Vec<Name>> {
        let (_shield, _opening) = (Shield::up(), Opening::begin());
        // The thread's own namespace: that of the process is another file.
        let table = fs::read("/proc/thread-self/net/unix")?;
        Ok(listening(&String::from_utf8_lossy(&table)).into_iter().collect())
    }

    fn address(self) -> io::Result<SockAddr> {
        SockAddr::unix(format!("\0{self}"))
    }
}

/// The names of ours in the kernel's table: number, references, protocol, flags, type, state, inode, name.
#[doc(hidden)] // for fuzzing
pub fn listening(table: &str) -> BTreeSet<Name> {
    const LISTENING_FLAG: u32 = 0x1_0000;
    const SEQUENCED_PACKETS: &str = "0005";
    let mut names = BTreeSet::new();
    for line in table.lines() {
        let mut fields = line.split_ascii_whitespace();
        let flags = fields.nth(3).and_then(|flags| u32::from_str_radix(flags, 16).ok()).unwrap_or(0);
        // Accepted connections carry the name of the socket that accepted them.
        if flags & LISTENING_FLAG == 0 || fields.next() != Some(SEQUENCED_PACKETS) {
            continue;
        }
        if let Some(name) = fields.nth(2).and_then(|name| name.strip_prefix('@')).and_then(|name| name.parse().ok()) {
            names.insert(name);
        }
    }
    names
}

/// A socket without name or peer, already in the table of descriptors.
pub fn socket() -> io::Result<Descriptor> {
    let _opening = Opening::begin();
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
    Ok(Descriptor::keep(socket.into()))
}

/// Binds `socket` to `name` and listens. The name is taken if this returns `EADDRINUSE`.
pub fn listen(socket: &Descriptor, name: Name) -> io::Result<()> {
    bind(socket, name)?;
    // SAFETY: two numbers.
    check(unsafe { libc::listen(socket.raw(), 1024) })?;
    Ok(())
}

/// Binds without listening: no process can reach it, but no other can have it.
pub fn bind(socket: &Descriptor, name: Name) -> io::Result<()> {
    let address = name.address()?;
    // SAFETY: `address` is live and as long as it says.
    check(unsafe { libc::bind(socket.raw(), address.as_ptr().cast(), address.len()) })?;
    Ok(())
}

/// Listens on `name`, and waits a little if it still belongs to a process that has just ended.
pub fn listen_patiently(socket: &Descriptor, name: Name) -> io::Result<()> {
    let deadline = Instant::now() + NAME_RELEASE_TIME;
    loop {
        match listen(socket, name) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
                // A running process lets us connect. One that is ending, or is between bind and listen, does not.
                if is_reachable(name)? || Instant::now() >= deadline {
                    return Err(error);
                }
                sleep(Duration::from_micros(500));
            }
            answer => return answer,
        }
    }
}

/// Whether a process has `name`, and may have it. It will see a connection that ends at once.
pub fn is_reachable(name: Name) -> io::Result<bool> {
    match owner(name) {
        Ok(owner) => Ok(owner.is_some()),
        // It has more connections waiting than it accepts: it is stopped.
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Connects to the process that listens on `name`. Never waits: `EAGAIN` if it has too many connections to accept,
/// `ECONNREFUSED` if no process listens, after which the socket may be tried again.
pub fn connect(socket: &Descriptor, name: Name) -> io::Result<()> {
    let address = name.address()?;
    loop {
        // SAFETY: `address` is live and as long as it says.
        match check(unsafe { libc::connect(socket.raw(), address.as_ptr().cast(), address.len()) }) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(()),
        }
    }
}

/// A process on the other end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Peer {
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
}

impl Peer {
    /// Whether it is the process that asks.
    pub fn is_this_process(self) -> bool {
        self.pid.cast_unsigned() == std::process::id()
    }
}

/// The process that connected, or that listened, at the time it did.
pub fn peer(socket: &Descriptor) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to a live `ucred`.
    check(unsafe {
        libc::getsockopt(
            socket.raw(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    })?;
    Ok(Peer { pid: credentials.pid, uid: credentials.uid })
}

/// The process that has `name`, and may have it; nothing if there is none, `EAGAIN` if one does that accepts no more
/// connections.
pub fn owner(name: Name) -> io::Result<Option<Peer>> {
    match connect_to_owner(name) {
        Ok((_, peer)) => Ok(Some(peer)),
        Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A connection to the process that has `name`, and may have it. An owner that may not ([`shares`]) only
/// squats on it: then, for a slot, the owner has another name. `ECONNREFUSED` if there is no owner, `EAGAIN` if it
/// accepts no more connections.
pub fn connect_to_owner(name: Name) -> io::Result<(Descriptor, Peer)> {
    find_owner(name).map(|(socket, peer, _)| (socket, peer))
}

/// Like [`connect_to_owner`], with the name by which the owner was found.
fn find_owner(name: Name) -> io::Result<(Descriptor, Peer, Name)> {
    let connect = |name| connect_to(name).map(|(socket, peer)| (socket, peer, name));
    let first = connect(name);
    let Name::Slot(slot) = name else { return first };
    match first {
        // Nobody, or a squatter: most often nobody, and then no name is like it.
        Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) && is_bound(name) => {
            let others =
                Name::of_this_host()?.into_iter().filter(|other| matches!(other, Name::Other(of, _) if *of == slot));
            for other in others.take(MOST_OTHERS) {
                if let Ok(found) = connect(other) {
                    return Ok(found);
                }
            }
            Err(error)
        }
        first => first,
    }
}

/// A connection to the process that has this very name, and may have it. Nothing can be received on it: what another
/// user sends, with descriptors perhaps, would have to be closed with it, and closing a descriptor may take as long as
/// its sender chose.
pub fn connect_to(name: Name) -> io::Result<(Descriptor, Peer)> {
    let _shield = Shield::up();
    let socket = socket()?;
    // SAFETY: two numbers. It lasts, although there is no peer yet.
    unsafe { libc::shutdown(socket.raw(), libc::SHUT_RD) };
    connect_and_check(socket, name)
}

/// A connection on which the owner of `name` can answer, if it `may`; `EPERM` if not.
pub fn converse_with_owner(name: Name, may: impl Fn(Peer) -> bool) -> io::Result<(Descriptor, Peer)> {
    find_owner(name).and_then(|(_, owner, name)| converse(owner, name, may))
}

/// Who it is, is known before it can say anything.
fn converse(owner: Peer, name: Name, may: impl Fn(Peer) -> bool) -> io::Result<(Descriptor, Peer)> {
    let refused = || io::Error::from_raw_os_error(libc::EPERM);
    if !may(owner) {
        return Err(refused());
    }
    let _shield = Shield::up();
    let (socket, peer) = connect_and_check(socket()?, name)?;
    if may(peer) {
        return Ok((socket, peer));
    }
    // The name has changed hands just now.
    thread::spawn("ubiverbs-guest", move || drop(socket))?;
    Err(refused())
}

fn connect_and_check(socket: Descriptor, name: Name) -> io::Result<(Descriptor, Peer)> {
    connect(&socket, name)?;
    let peer = peer(&socket)?;
    let rightful = match name {
        Name::Slot(slot) | Name::Other(slot, _) => shares::may_have_slot(peer.uid, slot),
        Name::Block(space, block) => shares::may_have_block(peer.uid, space, block),
        Name::Port(..) | Name::Class(_) => true,
    };
    if rightful { Ok((socket, peer)) } else { Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)) }
}

/// Whether some process has bound `name`, listening or not.
fn is_bound(name: Name) -> bool {
    socket().and_then(|socket| bind(&socket, name)).is_err_and(|error| error.raw_os_error() == Some(libc::EADDRINUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_they_are_written() {
        let slot = Slot::new(17).unwrap();
        for (name, text) in [
            (Name::Slot(slot), "ubiverbs/slot/17"),
            (Name::Port(PortSpace::Tcp, 18515), "ubiverbs/cm/tcp/18515"),
            (Name::Block(PortSpace::Ib, 512), "ubiverbs/cm/ib/block/512"),
            (
                Name::Class(ManagementClass { interface: 2, class: 0x32, version: 1, oui: 0x1405 }),
                "ubiverbs/mad/2/50/1/5125",
            ),
        ] {
            assert_eq!(name.to_string(), text);
            assert_eq!(text.parse(), Ok(name));
        }
        for text in [
            "",
            "ubiverbs/slot/0",
            "ubiverbs/slot/4095",
            "ubiverbs/slot/017",
            "ubiverbs/slot/+7",
            "ubiverbs/cm/tcp/",
            "ubiverbs/cm/x/1",
            "ubiverbs/cm/tcp/65536",
            "ubiverbs/cm/tcp/block/",
            "ubiverbs/slot/1/2",
            "ubiverbs/mad/2/50/1",
            "ubiverbs/mad/2/50/1/5125/",
            "ubiverbs/mad/2/256/1/0",
            "ubiverbs/mad/02/50/1/0",
            "ubiverbs/mad/2/50/1/16777216",
        ] {
            assert_eq!(text.parse::<Name>(), Err(NotAName), "{text}");
        }
    }

    #[test]
    fn only_those_who_listen_are_listed() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 18 @ubiverbs/slot/9\n\
            0000000000000000: 00000003 00000000 00000000 0005 03 19 @ubiverbs/slot/8\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 20 ubiverbs/slot/7\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21 /run/x y\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 22\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 24 @ubiverbs/slot/6\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 23 @ubiverbs/cm/tcp/7\n";
        let names: Vec<_> = listening(table).into_iter().map(|name| name.to_string()).collect();
        assert_eq!(names, ["ubiverbs/slot/9", "ubiverbs/cm/tcp/7"]);
    }
}
