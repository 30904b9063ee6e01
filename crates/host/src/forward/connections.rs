//! Connections that other processes opened to names of this one, and the packets on them.

use super::{claims, message};
use crate::arrival::{Arrival, Origin};
use crate::callers::Caller;
use crate::connection_records;
use crate::descriptor::Descriptor;
use crate::event_set::EventSet;
use crate::family::{Family, Scope};
use crate::holders::{self, Trust};
use crate::inquiry::Injection;
use crate::names::Name;
use crate::offer::Offer;
use crate::slots::Registry;
use crate::target::Target;
use crate::{greeting, inquiry, passing};
use std::collections::BTreeMap;
use std::time::Instant;

/// Messages taken from one connection before the others get their turn.
const MESSAGES_PER_TURN: usize = 4;

/// Connections kept: forwarding processes times our names. Beyond that one is hung up, and its owner connects again.
const MAX_CONNECTIONS: usize = 256;

/// Of these, those of one other user.
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

    fn each(&mut self, other: &Collected, change: impl Fn(u64, u64) -> u64) {
        for (own, other) in [
            (&mut self.messages, other.messages),
            (&mut self.packets, other.packets),
            (&mut self.malformed, other.malformed),
            (&mut self.misdelivered, other.misdelivered),
            (&mut self.refused, other.refused),
            (&mut self.turned_away, other.turned_away),
            (&mut self.bad_records, other.bad_records),
        ] {
            *own = change(*own, other);
        }
    }

    /// Adds what else came in.
    pub fn add(&mut self, other: &Collected) {
        self.each(other, |own, other| own + other);
    }

    /// What came in since then.
    #[must_use]
    pub fn since(mut self, before: &Collected) -> Collected {
        self.each(before, |own, before| own - before);
        self
    }
}

/// Where connections are served: the process's names, and the set in which the connections are watched.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionService<'a> {
    pub registry: &'a Registry,
    pub set: &'a EventSet,
}

/// The connections that one thread at a time serves: those of our own user, or those of others.
#[derive(Debug)]
pub(crate) struct Connections {
    open: BTreeMap<u64, Connection>,
    buffer: Vec<u8>,
    trust: Trust,
    claims: claims::Claims,
    collected: Collected,
}

#[derive(Debug)]
struct Connection {
    socket: Descriptor,
    name: Name,
    uid: u32,
    /// It is of this process itself.
    own: bool,
    /// The connection records of its process, to be read when it ends.
    will: Option<Descriptor>,
    /// Its process forwards. A process that only checks whether this name is taken does not.
    forwards: bool,
    /// We ended it: that says nothing of its process.
    hung_up: bool,
}

impl Connections {
    pub fn new() -> Connections {
        Connections {
            open: BTreeMap::new(),
            buffer: vec![0; message::MAX_MESSAGE_BYTES],
            trust: Trust::default(),
            claims: claims::Claims::default(),
            collected: Collected::default(),
        }
    }

    /// What came in so far.
    pub fn collected(&self) -> Collected {
        self.collected
    }

    /// Adds what came in elsewhere.
    pub fn add(&mut self, other: &Collected) {
        self.collected.add(other);
    }

    /// The sockets that this process could not bind, because another user has them: for those that user forwards.
    pub fn rely_on_others_for(&mut self, sides: Vec<(Family, Scope)>) {
        self.trust.rely_on_others_for(sides);
    }

    /// Serves a connection from now on. Any user may speak to this process, but not on so many connections that others
    /// cannot.
    pub fn admit(&mut self, place: ConnectionService<'_>, caller: Caller, take: &mut impl FnMut(&Arrival<'_>)) {
        let Caller { socket, name, uid, own } = caller;
        let of_user = self.open.values().filter(|connection| connection.uid == uid).count();
        if !self.trust.is_own(uid) && of_user >= OF_ONE_STRANGER {
            self.make_room(place, Some(uid), take);
        } else if self.open.len() >= MAX_CONNECTIONS {
            self.make_room(place, None, take);
        }
        let key = place.registry.new_key();
        if place.set.add(socket.raw(), key).is_ok() {
            self.open.insert(key, Connection { socket, name, uid, own, will: None, forwards: false, hung_up: false });
        }
    }

    /// Serves a descriptor of the set that is ready, if it is one of ours. True if another user's process that
    /// forwarded to us has gone.
    pub fn serve(&mut self, place: ConnectionService<'_>, key: u64, take: &mut impl FnMut(&Arrival<'_>)) -> bool {
        self.read(place, key, take).is_some_and(|uid| !self.trust.is_own(uid))
    }

    /// Parts with a connection, of that user if one is named: those that have ended, else the oldest of another user,
    /// else of our own, and one with connection records last of all. What waits on it is taken first.
    pub fn make_room(&mut self, place: ConnectionService<'_>, uid: Option<u32>, take: &mut impl FnMut(&Arrival<'_>)) {
        let of_user = |connection: &Connection| uid.is_none_or(|uid| connection.uid == uid);
        let keys: Vec<_> =
            self.open.iter().filter(|(_, connection)| of_user(connection)).map(|(key, _)| *key).collect();
        let before = self.open.len();
        for key in &keys {
            self.read(place, *key, take);
        }
        if self.open.len() < before {
            return;
        }
        let worth = |key: &u64| {
            let connection = self.open.get(key)?;
            Some((connection.will.is_some(), self.trust.is_own(connection.uid), *key))
        };
        let Some((.., key)) = keys.iter().filter_map(worth).min() else { return };
        self.hang_up(key);
        for _ in 0..MOST_WAITING / MESSAGES_PER_TURN {
            if !self.open.contains_key(&key) {
                return;
            }
            self.read(place, key, take);
        }
        self.close(place, key);
    }

    /// Lets the other end send no more: what is on its way can be read, and then the connection ends.
    fn hang_up(&mut self, key: u64) {
        let Some(connection) = self.open.get_mut(&key) else { return };
        connection.hung_up = true;
        // SAFETY: two numbers.
        unsafe { libc::shutdown(connection.socket.raw(), libc::SHUT_RD) };
    }

    fn close(&mut self, place: ConnectionService<'_>, key: u64) -> Option<Connection> {
        let connection = self.open.remove(&key)?;
        place.set.remove(connection.socket.raw());
        Some(connection)
    }

    /// Reads some messages; returns the user on the other end if it forwarded and has closed the connection.
    fn read(&mut self, place: ConnectionService<'_>, key: u64, take: &mut impl FnMut(&Arrival<'_>)) -> Option<u32> {
        for _ in 0..MESSAGES_PER_TURN {
            let connection = self.open.get(&key)?;
            let uid = connection.uid;
            let mut descriptors = Vec::new();
            let answer = passing::receive(&connection.socket, &mut self.buffer, &mut descriptors);
            let length = match answer {
                Ok(0) => {
                    let Connection { will, forwards, .. } =
                        self.close(place, key).filter(|connection| !connection.hung_up)?;
                    if let Some(will) = will {
                        place.registry.take_over(will);
                    }
                    return forwards.then_some(uid);
                }
                Ok(length) => length,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return None,
                    Some(libc::EINTR) => continue,
                    _ => {
                        self.close(place, key);
                        return Some(uid);
                    }
                },
            };
            self.collected.messages += 1;
            let kind = self.buffer.get(..length).and_then(greeting::kind);
            if kind == Some(greeting::CONNECTION_RECORDS) {
                match self.open.get_mut(&key).filter(|_| holders::is_our_user(uid)) {
                    Some(connection) => {
                        connection.will = connection_records::keep(descriptors);
                        self.collected.bad_records += u64::from(connection.will.is_none());
                    }
                    None => self.collected.refused += 1,
                }
                continue;
            }
            if let Some(kind @ (greeting::RING_OFFER | greeting::REPORT_INQUIRY | greeting::INJECTION)) = kind {
                // From now on the connection is the exchange's, or of those who answer.
                let Connection { socket, .. } = self.close(place, key)?;
                match kind {
                    greeting::RING_OFFER if holders::is_our_user(uid) => {
                        place.registry.offer(Offer { socket, uid, descriptors });
                    }
                    greeting::REPORT_INQUIRY if inquiry::may_ask(uid) => place.registry.inquire(socket),
                    greeting::INJECTION if holders::is_our_user(uid) => {
                        place.registry.inject(Injection { socket, text: descriptors.pop() });
                    }
                    _ => self.collected.refused += 1,
                }
                return None;
            }
            // Longer than any message of ours: its end is missing.
            if length > self.buffer.len() {
                self.collected.malformed += 1;
                self.close(place, key);
                return None;
            }
            // A part of this process speaks to each name by a connection of its own, also of what no process has an ear
            // for. Another process has one connection to all that is ours.
            let own = connection.own;
            if own && !place.registry.has(connection.name) {
                let bytes = self.buffer.get(..length).unwrap_or_default();
                self.collected.misdelivered += u64::from(message::count(bytes));
                self.hang_up(key);
                continue;
            }
            if let Some(connection) = self.open.get_mut(&key) {
                connection.forwards = true;
            }
            let (mut packets, mut refused, mut misdelivered, now) = (0, 0, 0, Instant::now());
            let Connections { trust, claims, buffer, .. } = self;
            let malformed = message::read(buffer.get(..length).unwrap_or_default(), |arrival| {
                let believed = match arrival.origin {
                    Origin::Local => claims.are_true(uid, arrival, now),
                    _ => trust.forwards(uid, &arrival.ip, now),
                };
                if !(believed && claims::is_intact(arrival)) {
                    refused += 1;
                } else if own || place.registry.is_target(Target::of(arrival)) {
                    packets += 1;
                    take(arrival);
                } else {
                    misdelivered += 1;
                }
            });
            self.collected.packets += packets;
            self.collected.refused += refused;
            self.collected.misdelivered += misdelivered;
            if misdelivered > 0 {
                // The sender connects again, and so finds the present owner.
                self.hang_up(key);
            }
            if malformed > 0 {
                // It does not speak as we do. It may connect again.
                self.collected.malformed += u64::from(malformed);
                self.close(place, key);
                return None;
            }
        }
        None
    }
}
