//! Who holds UDP port 4791 on this host, by user, from the kernel's table of UDP sockets. It tells a port that is shared by another user's
//! ubiverbs from one that is held by something else, and whose forwarded packets may be believed.

use crate::names::{self, Name};
use crate::udp::Family;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use wire::ROCE_PORT;

/// The user of each socket that is bound to `port`.
pub fn holders(family: Family, port: u16) -> io::Result<Vec<u32>> {
    read(family, None, port)
}

/// The same of those that are bound to this very address.
pub(crate) fn holders_at(family: Family, address: IpAddr, port: u16) -> io::Result<Vec<u32>> {
    read(family, Some(address), port)
}

fn read(family: Family, address: Option<IpAddr>, port: u16) -> io::Result<Vec<u32>> {
    let path = match family {
        Family::V4 => "/proc/thread-self/net/udp",
        Family::V6 => "/proc/thread-self/net/udp6",
    };
    match fs::read_to_string(path) {
        Ok(table) => Ok(users(&table, address, port)),
        // No such family.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The table's lines are: number, local address and port, remote ones, state, queues, timer, retransmissions, user, and more.
fn users(table: &str, address: Option<IpAddr>, port: u16) -> Vec<u32> {
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
    let user = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (at, local) = fields.nth(1)?.rsplit_once(':')?;
        if u16::from_str_radix(local, 16) != Ok(port) || address.as_ref().is_some_and(|address| address != at) {
            return None;
        }
        fields.nth(5)?.parse().ok()
    };
    table.lines().skip(1).filter_map(user).collect()
}

/// The other user whose ubiverbs holds the port, if that is what holds it.
pub(crate) fn other_user(family: Family, port: u16) -> io::Result<Option<u32>> {
    let mut users = holders(family, port)?;
    users.retain(|uid| *uid != own_uid());
    users.dedup();
    if users.is_empty() {
        return Ok(None);
    }
    // A process takes a slot before it binds the port, so if it is one of ours there is a slot of that user.
    for name in Name::of_this_host()? {
        if let Name::Slot(_) = name
            && let Ok(Some(owner)) = names::owner(name)
            && users.contains(&owner.uid)
        {
            return Ok(Some(owner.uid));
        }
    }
    Ok(None)
}

/// How long the table of sockets is believed.
const BELIEF: Duration = Duration::from_millis(500);

/// Whom to believe.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    holders: Vec<u32>,
    read: Option<Instant>,
}

impl Trust {
    /// Whether packets forwarded by this user are to be believed: it could change this process's memory anyway, or it has the port and so
    /// gets the packets from the network.
    pub fn accepts(&mut self, uid: u32, now: Instant) -> bool {
        if is_nobody_in_particular(uid) {
            return false;
        }
        if self.is_own(uid) {
            return true;
        }
        if self.read.is_none_or(|read| now.saturating_duration_since(read) > BELIEF) {
            self.read = Some(now);
            self.holders.clear();
            for family in [Family::V4, Family::V6] {
                self.holders.extend(holders(family, ROCE_PORT).unwrap_or_default());
            }
        }
        self.holders.contains(&uid)
    }

    /// Whether this is our own user.
    pub fn is_own(&self, uid: u32) -> bool {
        uid == own_uid()
    }
}

/// Whether this is our own user for certain: then it could change our memory anyway.
pub(crate) fn is_our_user(uid: u32) -> bool {
    uid == own_uid() && !is_nobody_in_particular(uid)
}

pub(crate) fn own_uid() -> u32 {
    // SAFETY: asks a number, cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether the number stands for every user that this user namespace does not know: then equal numbers are not equal users.
fn is_nobody_in_particular(uid: u32) -> bool {
    const OVERFLOW: u32 = 65_534;
    if uid != OVERFLOW {
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
    fn our_own_sockets_are_seen() {
        let receiver = crate::udp::Receiver::open_port(Family::V4, 14_791).unwrap();
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
