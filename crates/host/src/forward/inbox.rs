//! The owner's side: connections that come in on its names, and the packets on them.

use super::{claims, message};
use crate::arrival::Arrival;
use crate::arrival::Origin;
use crate::connection_records;
use crate::descriptor::{Descriptor, check};
use crate::family::{Family, Scope};
use crate::holders::{self, Trust};
use crate::names::{self, Name};
use crate::offer::Offer;
use crate::slots::{Listener, Registry, Slots};
use crate::thread::Shield;
use crate::{greeting, inquiry, passing};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Messages taken from one connection before the others get their turn.
const TURN: usize = 4;

/// Connections kept: forwarding processes times our names. Beyond that one is hung up, and its owner connects again.
const CONNECTIONS: usize = 256;

/// Of these, those of one other user: the rest are for our own, and for others.
const OF_ONE_STRANGER: usize = 64;

/// More messages than these do not wait on one connection: the shortest takes some hundred bytes of its sender's
/// buffer.
const MOST_WAITING: usize = 64 * 1024;

/// What came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Collected {
    /// Messages.
    pub messages: u64,
    /// Packets given on.
    pub packets: u64,
    /// Packets, or whole messages, that could not be read.
    pub malformed: u64,
    /// Packets for a name that is no longer ours.
    pub misdelivered: u64,
    /// Connections and messages of users that have no business here.
    pub refused: u64,
    /// Connections that were sent away because the process had no descriptors left.
    pub turned_away: u64,
    /// Connection records that came without the memory they should be in.
    pub bad_records: u64,
}

impl Collected {
    /// How much of it was not given on.
    pub fn unread(&self) -> u64 {
        self.malformed + self.misdelivered + self.refused + self.turned_away + self.bad_records
    }
}

/// What other processes forward to this one.
#[derive(Debug)]
pub struct Inbox {
    registry: Arc<Registry>,
    connections: BTreeMap<u64, Connection>,
    buffer: Vec<u8>,
    /// Given up when the process has no descriptors left, so that a connection can be accepted and closed at once.
    reserve: Option<Descriptor>,
    trust: Trust,
    claims: claims::Claims,
    collected: Collected,
}

#[derive(Debug)]
struct Connection {
    socket: Descriptor,
    name: Name,
    uid: u32,
    /// The connection records of its process, to be read when it ends.
    will: Option<Descriptor>,
    /// Its process forwards. A process that only checks whether this name is taken does not.
    forwards: bool,
    /// We ended it: that says nothing of its process.
    hung_up: bool,
}

impl Inbox {
    /// The inbox of the process that has these slots; there should be one.
    pub fn new(slots: &Slots) -> Inbox {
        Inbox {
            registry: slots.registry().clone(),
            connections: BTreeMap::new(),
            buffer: vec![0; message::LONGEST],
            reserve: names::socket().ok(),
            trust: Trust::default(),
            claims: claims::Claims::default(),
            collected: Collected::default(),
        }
    }

    /// What came in so far.
    pub fn collected(&self) -> Collected {
        self.collected
    }

    /// The sockets that this process could not bind, because another user has them: for those that user forwards.
    pub fn rely_on_others_for(&mut self, sides: Vec<(Family, Scope)>) {
        self.trust.rely_on_others_for(sides);
    }

    /// Takes what has come in, without waiting, and gives it on; for callers that have no
    /// `link::udp::attachment::Attachment`. True if there may be more.
    pub fn receive(&mut self, mut take: impl FnMut(&Arrival<'_>)) -> io::Result<bool> {
        let mut keys = [0; 32];
        let registry = self.registry.clone();
        let ready = registry.ready(&mut keys)?;
        for key in ready {
            self.serve(*key, &mut take);
        }
        Ok(!ready.is_empty())
    }

    /// Serves a descriptor of the set that is ready, if it is the inbox's. True if another user's process that
    /// forwarded to us has gone.
    pub fn serve(&mut self, key: u64, take: &mut impl FnMut(&Arrival<'_>)) -> bool {
        let _shield = Shield::up();
        if self.connections.contains_key(&key) {
            let Some(uid) = self.read(key, take) else { return false };
            return !self.trust.is_own(uid);
        }
        if let Some(listener) = self.registry.listener(key) {
            self.accept(&listener, take);
        }
        false
    }

    fn accept(&mut self, listener: &Listener, take: &mut impl FnMut(&Arrival<'_>)) {
        let mut turn_away = false;
        loop {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: no address is asked for.
            let answer = check(unsafe {
                libc::accept4(listener.socket.raw(), std::ptr::null_mut(), std::ptr::null_mut(), flags)
            });
            let socket = match answer {
                // SAFETY: just opened, and not shared.
                Ok(fd) => Descriptor::keep(unsafe { OwnedFd::from_raw_fd(fd) }),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::ECONNABORTED) => continue,
                    // Without descriptors an old connection makes room, or the new one is sent away: otherwise the set
                    // would stay ready for ever.
                    Some(libc::EMFILE | libc::ENFILE) if !self.connections.is_empty() => {
                        self.make_room(None, take);
                        continue;
                    }
                    Some(libc::EMFILE | libc::ENFILE) if self.reserve.take().is_some() => {
                        turn_away = true;
                        continue;
                    }
                    _ => break,
                },
            };
            if turn_away {
                turn_away = false;
                self.collected.turned_away += 1;
                drop(socket);
                self.reserve = names::socket().ok();
                continue;
            }
            let Ok(peer) = names::peer(&socket) else { continue };
            // Any user may speak to this process, but not on so many connections that its own user cannot.
            let count = |uid| self.connections.values().filter(|connection| connection.uid == uid).count();
            if !self.trust.is_own(peer.uid) && count(peer.uid) >= OF_ONE_STRANGER {
                self.make_room(Some(peer.uid), take);
            } else if self.connections.len() >= CONNECTIONS {
                self.make_room(None, take);
            }
            let key = self.registry.new_key();
            if self.registry.watch(socket.raw(), key).is_ok() {
                let (name, uid) = (listener.name, peer.uid);
                let connection = Connection { socket, name, uid, will: None, forwards: false, hung_up: false };
                self.connections.insert(key, connection);
            }
        }
        if self.reserve.is_none() {
            self.reserve = names::socket().ok();
        }
    }

    /// Parts with a connection, of that user if one is named: those that have ended, else the oldest of another user,
    /// else of our own, and one with connection records last of all. What waits on it is taken first.
    fn make_room(&mut self, uid: Option<u32>, take: &mut impl FnMut(&Arrival<'_>)) {
        let of_user = |connection: &Connection| uid.is_none_or(|uid| connection.uid == uid);
        let keys: Vec<_> =
            self.connections.iter().filter(|(_, connection)| of_user(connection)).map(|(key, _)| *key).collect();
        let before = self.connections.len();
        for key in &keys {
            self.read(*key, take);
        }
        if self.connections.len() < before {
            return;
        }
        let worth = |key: &u64| {
            let connection = self.connections.get(key)?;
            Some((connection.will.is_some(), self.trust.is_own(connection.uid), *key))
        };
        let Some((.., key)) = keys.iter().filter_map(worth).min() else { return };
        self.hang_up(key);
        for _ in 0..MOST_WAITING / TURN {
            if !self.connections.contains_key(&key) {
                return;
            }
            self.read(key, take);
        }
        self.close(key);
    }

    /// Lets the other end send no more: what is on its way can be read, and then the connection ends.
    fn hang_up(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        connection.hung_up = true;
        // SAFETY: two numbers.
        unsafe { libc::shutdown(connection.socket.raw(), libc::SHUT_RD) };
    }

    fn close(&mut self, key: u64) -> Option<Connection> {
        let connection = self.connections.remove(&key)?;
        self.registry.unwatch(connection.socket.raw());
        Some(connection)
    }

    /// Reads some messages; answers the user on the other end if it forwarded and has closed the connection.
    fn read(&mut self, key: u64, take: &mut impl FnMut(&Arrival<'_>)) -> Option<u32> {
        for _ in 0..TURN {
            let connection = self.connections.get(&key)?;
            let uid = connection.uid;
            let mut descriptors = Vec::new();
            let answer = passing::receive(&connection.socket, &mut self.buffer, &mut descriptors);
            let length = match answer {
                Ok(0) => {
                    let Connection { will, forwards, .. } = self.close(key).filter(|connection| !connection.hung_up)?;
                    if let Some(will) = will {
                        self.registry.take_over(will);
                    }
                    return forwards.then_some(uid);
                }
                Ok(length) => length,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return None,
                    Some(libc::EINTR) => continue,
                    _ => {
                        self.close(key);
                        return Some(uid);
                    }
                },
            };
            self.collected.messages += 1;
            let kind = self.buffer.get(..length).and_then(greeting::kind);
            if kind == Some(greeting::CONNECTION_RECORDS) {
                match self.connections.get_mut(&key).filter(|_| holders::is_our_user(uid)) {
                    Some(connection) => {
                        connection.will = connection_records::keep(descriptors);
                        self.collected.bad_records += u64::from(connection.will.is_none());
                    }
                    None => self.collected.refused += 1,
                }
                continue;
            }
            if kind == Some(greeting::OFFER) {
                // From now on the connection is the exchange's.
                self.registry.unwatch(connection.socket.raw());
                let Connection { socket, uid, .. } = self.connections.remove(&key)?;
                self.registry.offer(Offer { socket, uid, descriptors });
                return None;
            }
            if kind == Some(greeting::INQUIRY) {
                self.registry.unwatch(connection.socket.raw());
                let Connection { socket, uid, .. } = self.connections.remove(&key)?;
                match inquiry::may_ask(uid) {
                    true => self.registry.inquire(socket),
                    false => self.collected.refused += 1,
                }
                return None;
            }
            // Longer than any message of ours: its end is missing.
            if length > self.buffer.len() {
                self.collected.malformed += 1;
                self.close(key);
                return None;
            }
            if !self.registry.has(connection.name) {
                let bytes = self.buffer.get(..length).unwrap_or_default();
                self.collected.misdelivered += u64::from(message::count(bytes));
                self.hang_up(key);
                continue;
            }
            if let Some(connection) = self.connections.get_mut(&key) {
                connection.forwards = true;
            }
            let (mut packets, mut refused, now) = (0, 0, Instant::now());
            let Inbox { trust, claims, buffer, .. } = self;
            let malformed = message::read(buffer.get(..length).unwrap_or_default(), |arrival| {
                let believed = match arrival.origin {
                    Origin::Local => claims.are_true(uid, arrival, now),
                    _ => trust.forwards(uid, &arrival.ip, now),
                };
                if believed && claims::is_intact(arrival) {
                    packets += 1;
                    take(arrival);
                } else {
                    refused += 1;
                }
            });
            self.collected.packets += packets;
            self.collected.refused += refused;
            if malformed > 0 {
                // It does not speak as we do. It may connect again.
                self.collected.malformed += u64::from(malformed);
                self.close(key);
                return None;
            }
        }
        None
    }
}
