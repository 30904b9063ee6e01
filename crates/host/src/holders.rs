//! The users that hold UDP port 4791 on this host, from the kernel's table of UDP sockets. It tells a port that is
//! shared by another user's ubiverbs from one that is held by something else, and whose forwarded packets may be
//! believed.

use crate::descriptor::Opening;
use crate::family::{Family, Scope};
use crate::names::{self, Name};
use crate::socket_table::{self, SocketRow};
use crate::thread::Shield;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use wire::{IpHeader, ROCE_PORT};

/// The user of each socket that is bound to `port`.
pub fn holders(family: Family, port: u16) -> io::Result<Vec<u32>> {
    read(family, None, port)
}

/// The user of each socket that is bound to `port` of this very address.
pub fn holders_at(family: Family, address: IpAddr, port: u16) -> io::Result<Vec<u32>> {
    read(family, Some(address), port)
}

fn read(family: Family, address: Option<IpAddr>, port: u16) -> io::Result<Vec<u32>> {
    // A polling thread may be here that is cancelled.
    let _shield = Shield::up();
    let Ok(sockets) = socket_table::read(family, Some(port), MOST_OF_A_PORT) else {
        return Ok(users(&table(family)?, address, port));
    };
    let is_at = |entry: &SocketRow| match address {
        None => true,
        Some(IpAddr::V4(address)) => entry.address.starts_with(&address.octets()),
        Some(IpAddr::V6(address)) => entry.address == address.octets(),
    };
    Ok(sockets.into_iter().filter(is_at).map(|entry| entry.uid).collect())
}

/// The kernel's table of a family's sockets as text; empty if there is no such family.
fn table(family: Family) -> io::Result<String> {
    let _opening = Opening::begin();
    let path = match family {
        Family::V4 => "/proc/thread-self/net/udp",
        Family::V6 => "/proc/thread-self/net/udp6",
    };
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        table => table,
    }
}

/// Shows the local address, the port and the user of each socket. The table's lines are: number, local address and
/// port, remote ones, state, queues, timer, retransmissions, user, and more.
fn each_line(table: &str, mut show: impl FnMut(&str, u16, u32)) {
    for line in table.lines().skip(1) {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1).and_then(|local| local.rsplit_once(':'));
        let Some((at, Ok(port))) = local.map(|(at, port)| (at, u16::from_str_radix(port, 16))) else { continue };
        if let Some(Ok(uid)) = fields.nth(5).map(str::parse) {
            show(at, port, uid);
        }
    }
}

#[doc(hidden)] // for fuzzing
pub fn users(table: &str, address: Option<IpAddr>, port: u16) -> Vec<u32> {
    let words = |octets: &[u8]| -> String {
        // As words of this machine.
        octets
            .chunks(4)
            .map(|word| format!("{:08X}", u32::from_ne_bytes([word[0], word[1], word[2], word[3]])))
            .collect()
    };
    let address = address.map(|address| match address {
        IpAddr::V4(address) => words(&address.octets()),
        IpAddr::V6(address) => words(&address.octets()),
    });
    let mut users = Vec::new();
    each_line(table, |at, local, uid| {
        if local == port && address.as_ref().is_none_or(|address| address == at) {
            users.push(uid);
        }
    });
    users
}

/// The user that has most sockets, and how many: for a sentence to a person.
pub fn greatest_holder() -> Option<(u32, usize)> {
    let mut counts = HashMap::new();
    for family in [Family::V4, Family::V6] {
        for entry in socket_table::read(family, None, usize::MAX).unwrap_or_default() {
            *counts.entry(entry.uid).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count)
}

/// The other user whose ubiverbs holds the port, if that is what holds it.
pub fn other_user(family: Family, port: u16) -> io::Result<Option<u32>> {
    let mut users = holders(family, port)?;
    users.retain(|uid| *uid != own_uid());
    users.dedup();
    if users.is_empty() {
        return Ok(None);
    }
    // A process takes a slot before it binds the port, so if it is one of ours there is a slot of that user.
    for name in Name::of_this_host()? {
        if name.slot().is_some()
            && let Ok((_, owner)) = names::connect_to(name)
            && users.contains(&owner.uid)
        {
            return Ok(Some(owner.uid));
        }
    }
    Ok(None)
}

/// Sockets of one port that are looked at, and of all ports for a peer whose port is not known yet: another user may
/// have any number.
const MOST_OF_A_PORT: usize = 4096;
const MOST_OF_ALL: usize = 2048;

/// How long the table of sockets is believed.
pub const SOCKET_TABLE_CACHE_TIME: Duration = Duration::from_millis(500);

/// How often the table of all sockets is read in a row, and how long it takes until it may be read once more: a
/// stranger that sends from ever new ports must not keep us reading.
const READS_IN_A_ROW: u32 = 32;
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// Which users have sockets with which UDP port, whatever address those are bound to. A socket may send from any
/// address of the host, and one of IPv6 from those of IPv4, too: so the sender of a packet is proven by its port alone,
/// and only if all sockets that have it are of one user.
///
/// The sockets of a process vanish when it ends, and the last it sent may be looked at only then. So a queue pair that
/// expects something from another process has the table read before, and what was seen is believed for a while. Reading
/// takes longer the more sockets other users have: while a peer's port is known, a thread does it that nothing waits for.
#[derive(Debug, Default)]
pub struct PortUsers {
    /// With the moment at which the port was last seen.
    users: HashMap<u16, (Vec<u32>, Instant)>,
    read: Option<Instant>,
    /// When all ports were looked at.
    looked: Option<Instant>,
    /// Reads since there was a pause long enough.
    reads: u32,
    /// Ports that the thread is to look at, or all.
    wanted: Vec<Option<u16>>,
}

impl PortUsers {
    /// Whether what comes from this port of this host was sent by `user`, or by our own user: all sockets that have the
    /// port are theirs, and there is one. Where the table may not be read now, the last one answers.
    pub fn is_of(&mut self, port: u16, user: Option<u32>, now: Instant) -> bool {
        let is_known =
            |(_, seen): &(Vec<u32>, Instant)| now.saturating_duration_since(*seen) <= SOCKET_TABLE_CACHE_TIME;
        if !self.users.get(&port).is_some_and(is_known) {
            self.read(Some(port), now);
        }
        let is_theirs = |uid: u32| uid == own_uid() || Some(uid) == user;
        let users = self.users.get(&port).map_or(&[][..], |(users, _)| users.as_slice());
        !users.is_empty() && users.iter().all(|uid| is_theirs(*uid) && !is_nobody_in_particular(*uid))
    }

    /// Looks at all ports: there is a new peer.
    pub fn look(&mut self, now: Instant) {
        self.read(None, now);
    }

    /// Notes that the port of a peer should be looked at, or all ports while it is not known. False if that was done a
    /// short while ago, or is to be done.
    pub(crate) fn want(&mut self, port: Option<u16>, now: Instant) -> bool {
        let seen = match port {
            Some(port) => self.users.get(&port).map(|(_, seen)| *seen),
            None => self.looked,
        };
        let is_fresh = seen.is_some_and(|seen| now.saturating_duration_since(seen) <= SOCKET_TABLE_CACHE_TIME / 2);
        let is_wanted = !is_fresh && !self.wanted.contains(&port);
        if is_wanted {
            self.wanted.push(port);
        }
        is_wanted
    }

    /// What is wanted, and may be read now.
    pub(crate) fn next_wanted(&mut self, now: Instant) -> Option<Option<u16>> {
        let port = self.wanted.pop()?;
        match self.may_read(now) {
            true => Some(port),
            false => {
                self.wanted.clear();
                None
            }
        }
    }

    /// Reads the table, if it may be read once more.
    fn read(&mut self, port: Option<u16>, now: Instant) {
        if self.may_read(now) {
            self.learn(port, survey(port), now);
        }
    }

    /// Notes what a [`survey`] has found.
    pub(crate) fn learn(&mut self, port: Option<u16>, found: Option<HashMap<u16, Vec<u32>>>, now: Instant) {
        if port.is_none() {
            self.looked = Some(now);
        }
        self.users.retain(|_, (_, seen)| now.saturating_duration_since(*seen) <= SOCKET_TABLE_CACHE_TIME);
        self.users.extend(found.into_iter().flatten().map(|(port, users)| (port, (users, now))));
    }

    /// Whether the table may be read once more; it is read then.
    fn may_read(&mut self, now: Instant) -> bool {
        let rested = self.read.map_or(READS_IN_A_ROW, |read| {
            let age = now.saturating_duration_since(read);
            u32::try_from(age.as_micros() / READ_INTERVAL.as_micros()).unwrap_or(READS_IN_A_ROW)
        });
        self.reads = self.reads.saturating_sub(rested);
        let may = self.reads < READS_IN_A_ROW;
        if may {
            self.reads += 1;
            self.read = Some(now);
        }
        may
    }
}

/// The users of a port, or of all ports. None if there are so many sockets that some user may be missing.
pub(crate) fn survey(port: Option<u16>) -> Option<HashMap<u16, Vec<u32>>> {
    let _shield = Shield::up();
    let mut found: HashMap<u16, Vec<u32>> = HashMap::new();
    let mut add = |port, uid| {
        let users = found.entry(port).or_default();
        if !users.contains(&uid) {
            users.push(uid);
        }
    };
    let most = if port.is_some() { MOST_OF_A_PORT } else { MOST_OF_ALL };
    for family in [Family::V4, Family::V6] {
        match socket_table::read(family, port, most) {
            Ok(sockets) if sockets.len() < most => sockets.iter().for_each(|entry| add(entry.port, entry.uid)),
            Ok(_) => return None,
            // Where the table cannot be read, nothing is proven.
            Err(_) => each_line(&table(family).unwrap_or_default(), |_, port, uid| add(port, uid)),
        }
    }
    Some(found)
}

/// Whose forwarded packets are believed. The kernel gives packets to the process that has the socket, so another user
/// is believed for those sockets that it has and that this process could not have, and for nothing else.
#[derive(Debug, Default)]
pub struct Trust {
    /// The sockets that we could not have, and the users that have them.
    others: Vec<(Family, Scope, Vec<u32>)>,
    read: Option<Instant>,
}

impl Trust {
    /// The sockets that this process could not bind because another user has them.
    pub fn rely_on_others_for(&mut self, sides: Vec<(Family, Scope)>) {
        self.others = sides.into_iter().map(|(family, scope)| (family, scope, Vec::new())).collect();
        self.read = None;
    }

    /// Whether a packet with this IP header, passed on by this user, is to be believed: the user could change this
    /// process's memory anyway, or it has the socket that gets such packets.
    pub fn forwards(&mut self, uid: u32, ip: &IpHeader, now: Instant) -> bool {
        if is_nobody_in_particular(uid) {
            return false;
        }
        if self.is_own(uid) {
            return true;
        }
        if self.read.is_none_or(|read| now.saturating_duration_since(read) > SOCKET_TABLE_CACHE_TIME) {
            self.read = Some(now);
            for (family, scope, holders) in &mut self.others {
                *holders = holders_at(*family, scope.address(*family), ROCE_PORT).unwrap_or_default();
            }
        }
        let (family, destination) = match ip {
            IpHeader::V4(ip) => (Family::V4, IpAddr::V4(ip.destination)),
            IpHeader::V6(ip) => (Family::V6, IpAddr::V6(ip.destination)),
        };
        let gets = |scope: Scope| scope == Scope::Everywhere || destination == scope.address(family);
        self.others.iter().any(|(own, scope, users)| *own == family && gets(*scope) && users.contains(&uid))
    }

    /// Whether this is our own user.
    pub fn is_own(&self, uid: u32) -> bool {
        uid == own_uid()
    }
}

/// Whether this is our own user for certain: then it could change our memory anyway.
pub fn is_our_user(uid: u32) -> bool {
    uid == own_uid() && !is_nobody_in_particular(uid)
}

/// The user that this process acts for.
pub fn own_uid() -> u32 {
    // SAFETY: asks a number, cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether the number stands for every user that this user namespace does not know: then equal numbers are not equal
/// users.
fn is_nobody_in_particular(uid: u32) -> bool {
    const OVERFLOW_UID: u32 = 65_534;
    if uid != OVERFLOW_UID {
        return false;
    }
    // One line that maps everything is the first namespace: all users are known, and this is one of them.
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_ascii_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn users_are_read_from_the_table() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
            1: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 5 2 0000000000000000 0\n\
            2: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000   101        0 6 2 0000000000000000 0\n\
            3: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 7 2 0000000000000000 3\n\
            garbage\n";
        assert_eq!(users(table, None, 4791), [1000, 0]);
        assert_eq!(users(table, None, 53), [101]);
        assert!(users("", None, 53).is_empty());
        let at = |address: &str, port| users(table, Some(address.parse().unwrap()), port);
        assert_eq!(at("0.0.0.0", 4791), [1000]);
        assert_eq!(at("::", 4791), [0]);
        #[cfg(target_endian = "little")]
        assert_eq!((at("127.0.0.1", 53), at("127.0.0.1", 4791)), (vec![101], vec![]));
    }

    #[test]
    fn the_sender_of_a_packet_is_known_by_its_port() {
        let mut ports = PortUsers::default();
        let now = Instant::now();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(ports.is_of(port, None, now), "our own user's");
        // Another user has a socket with the same port, on whatever address: either may have sent it.
        ports.users.insert(port, (vec![own_uid(), own_uid() + 1], now));
        assert!(!ports.is_of(port, None, now));
        assert!(ports.is_of(port, Some(own_uid() + 1), now), "the peer's, or our own");
        ports.users.insert(port, (vec![own_uid() + 1], now));
        assert!(!ports.is_of(port, Some(own_uid() + 2), now));
        assert!(ports.is_of(port, None, now + SOCKET_TABLE_CACHE_TIME * 2), "read again");
    }

    #[test]
    fn who_was_looked_at_is_believed_for_a_moment_after_its_end() {
        let (mut ports, now) = (PortUsers::default(), Instant::now());
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        ports.look(now);
        drop(socket);
        // Others make us read the table again meanwhile.
        assert!(!ports.is_of(0, None, now + SOCKET_TABLE_CACHE_TIME / 2));
        assert!(ports.is_of(port, None, now + SOCKET_TABLE_CACHE_TIME));
        assert!(!ports.is_of(port, None, now + SOCKET_TABLE_CACHE_TIME * 2), "and then no more");
    }

    #[test]
    fn a_stranger_does_not_make_us_read_without_end() {
        let mut ports = PortUsers::default();
        let (start, mut reads) = (Instant::now(), 0);
        let second = Duration::from_secs(1);
        for step in 0..100_000 {
            // Port 0 is no socket's: each packet from there would have to be looked up.
            let before = ports.read;
            assert!(!ports.is_of(0, None, start + second * step / 100_000));
            reads += u32::from(ports.read != before);
        }
        assert!((50..=READS_IN_A_ROW + 51).contains(&reads), "{reads} reads in a second");
    }

    #[test]
    fn our_own_sockets_are_seen() {
        let receiver = std::net::UdpSocket::bind("0.0.0.0:14791").unwrap();
        assert_eq!(holders(Family::V4, 14_791).unwrap(), [own_uid()]);
        drop(receiver);
        // What another test starts in this moment holds it, too, until it has become its program.
        let freed = (0..1000).any(|_| {
            thread::sleep(Duration::from_millis(5));
            holders(Family::V4, 14_791).unwrap().is_empty()
        });
        assert!(freed, "nobody holds it any more");
    }
}
