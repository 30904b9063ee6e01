//! The owner's side: connections that come in on its names, and the packets on them.

use super::message;
use crate::descriptor::{Descriptor, check};
use crate::holders::{self, Trust};
use crate::names::{self, Name};
use crate::shared::{self, Offer, passing};
use crate::slots::{Listener, Registry, Slots};
use crate::udp::Arrival;
use crate::wills;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Messages taken from one connection before the others get their turn.
const TURN: usize = 4;

/// Connections kept: forwarding processes times our names. Beyond that the oldest goes, and its owner connects again.
const CONNECTIONS: usize = 256;

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
    /// Connections of users that have no business here.
    pub refused: u64,
}

/// What other processes forward to this one.
#[derive(Debug)]
pub struct Inbox {
    registry: Arc<Registry>,
    connections: BTreeMap<u64, Connection>,
    buffer: Vec<u8>,
    /// Given up when the process has no descriptors left, so that somebody can be accepted and sent away.
    reserve: Option<Descriptor>,
    trust: Trust,
    collected: Collected,
}

#[derive(Debug)]
struct Connection {
    socket: Descriptor,
    name: Name,
    uid: u32,
    /// What its process wants to be said when it dies.
    will: Option<Descriptor>,
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
            collected: Collected::default(),
        }
    }

    /// What came in so far.
    pub fn collected(&self) -> Collected {
        self.collected
    }

    /// Takes what has come in, without waiting, and gives it on; for those who have no [`Attachment`](crate::attachment::Attachment).
    /// True if there may be more.
    pub fn receive(&mut self, mut take: impl FnMut(&Arrival<'_>)) -> io::Result<bool> {
        let mut keys = [0; 32];
        let registry = self.registry.clone();
        let ready = registry.ready(&mut keys)?;
        for key in ready {
            self.serve(*key, &mut take);
        }
        Ok(!ready.is_empty())
    }

    /// Serves a descriptor of the set that is ready, if it is the inbox's. True if another user's process closed its connection.
    pub(crate) fn serve(&mut self, key: u64, take: &mut impl FnMut(&Arrival<'_>)) -> bool {
        if self.connections.contains_key(&key) {
            let Some(uid) = self.read(key, take) else { return false };
            return !self.trust.is_own(uid);
        }
        if let Some(listener) = self.registry.listener(key) {
            self.accept(&listener);
        }
        false
    }

    fn accept(&mut self, listener: &Listener) {
        let mut turn_away = false;
        loop {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: no address is asked for.
            let answer = check(unsafe {
                libc::accept4(listener.socket.raw(), std::ptr::null_mut(), std::ptr::null_mut(), flags)
            });
            let socket = match answer {
                // SAFETY: just opened, and nobody else's.
                Ok(fd) => Descriptor::keep(unsafe { OwnedFd::from_raw_fd(fd) }),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::ECONNABORTED) => continue,
                    // Without descriptors an old connection makes room, or the new one is sent away: otherwise the set would stay ready
                    // for ever.
                    Some(libc::EMFILE | libc::ENFILE) if !self.connections.is_empty() => {
                        self.close_oldest();
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
                self.collected.refused += 1;
                drop(socket);
                self.reserve = names::socket().ok();
                continue;
            }
            let Ok(peer) = names::peer(&socket) else { continue };
            if !self.trust.accepts(peer.uid, Instant::now()) {
                self.collected.refused += 1;
                continue;
            }
            if self.connections.len() >= CONNECTIONS {
                self.close_oldest();
            }
            let key = self.registry.new_key();
            if self.registry.watch(socket.raw(), key).is_ok() {
                self.connections.insert(key, Connection { socket, name: listener.name, uid: peer.uid, will: None });
            }
        }
        if self.reserve.is_none() {
            self.reserve = names::socket().ok();
        }
    }

    fn close_oldest(&mut self) {
        if let Some(key) = self.connections.keys().next().copied() {
            self.close(key);
        }
    }

    fn close(&mut self, key: u64) {
        if let Some(connection) = self.connections.remove(&key) {
            self.registry.unwatch(connection.socket.raw());
        }
    }

    /// Reads some messages; answers the user on the other end if it has closed the connection.
    fn read(&mut self, key: u64, take: &mut impl FnMut(&Arrival<'_>)) -> Option<u32> {
        for _ in 0..TURN {
            let connection = self.connections.get(&key)?;
            let uid = connection.uid;
            let mut descriptors = Vec::new();
            let answer = passing::receive(&connection.socket, &mut self.buffer, &mut descriptors);
            let length = match answer {
                Ok(0) => {
                    if let Some(will) = self.connections.get_mut(&key).and_then(|connection| connection.will.take()) {
                        self.registry.inherit(will);
                    }
                    self.close(key);
                    return Some(uid);
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
            // A user that had the port once may not have it now.
            if !self.trust.accepts(uid, Instant::now()) {
                self.collected.refused += 1;
                self.close(key);
                return Some(uid);
            }
            let kind = self.buffer.get(..length).and_then(shared::kind);
            if kind == Some(shared::WILL) {
                if let Some(connection) = self.connections.get_mut(&key).filter(|_| holders::is_our_user(uid)) {
                    connection.will = wills::keep(descriptors);
                }
                continue;
            }
            if kind == Some(shared::OFFER) {
                // From now on the connection is the exchange's.
                self.registry.unwatch(connection.socket.raw());
                let Connection { socket, uid, .. } = self.connections.remove(&key)?;
                self.registry.offer(Offer { socket, uid, descriptors });
                return None;
            }
            // Longer than any message of ours: its end is missing.
            let Some(bytes) = self.buffer.get(..length) else {
                self.collected.malformed += 1;
                self.close(key);
                return None;
            };
            if !self.registry.has(connection.name) {
                self.collected.misdelivered += u64::from(message::count(bytes));
                self.close(key);
                return None;
            }
            let mut packets = 0;
            let malformed = message::read(bytes, |arrival| {
                packets += 1;
                take(arrival);
            });
            self.collected.packets += packets;
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
