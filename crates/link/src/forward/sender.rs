//! The forwarding side: connections to owners, opened when first needed and kept, and a message under construction for each.

use super::message;
use crate::descriptor::{Descriptor, check_length};
use crate::names::{self, Name, Peer};
use crate::udp::Arrival;
use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

/// How many connections are kept. Programs have few descriptors; the one least used makes room.
const CONNECTIONS: usize = 128;

/// How much an owner may leave unread; the kernel grants what the system allows (`net.core.wmem_max`).
const BACKLOG: libc::c_int = 4 << 20;

/// How long a connection is believed to lead to whoever has the name now. A child that was forked while its parent accepted can hold the
/// connection of a dead owner open.
const BELIEF: Duration = Duration::from_secs(1);

/// The same once it takes no more packets.
const DOUBT: Duration = Duration::from_millis(20);

/// Why a packet was not forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Loss {
    /// Nobody has the name: the owner is gone, or never was.
    Nobody,
    /// The owner does not take packets as fast as they come, or at all.
    Full,
    /// The system refused: no descriptors or no memory.
    System,
}

/// What was forwarded and what was not, in packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forwarded {
    /// Handed to the owner's socket.
    pub packets: u64,
    /// In so many messages.
    pub messages: u64,
    /// Lost: nobody has the name.
    pub nobody: u64,
    /// Lost: the owner's socket is full.
    pub full: u64,
    /// Lost: the system refused.
    pub system: u64,
}

/// Passes packets on to other processes of this host. Nothing is sent before [`flush`](Forwarder::flush), or before a message is full.
#[derive(Debug, Default)]
pub struct Forwarder {
    connections: HashMap<Name, Connection>,
    /// Messages under construction.
    messages: Vec<(Name, Vec<u8>)>,
    buffers: Vec<Vec<u8>>,
    /// A socket that has not found a peer yet.
    spare: Option<Descriptor>,
    uses: u64,
    forwarded: Forwarded,
}

#[derive(Debug)]
struct Connection {
    socket: Descriptor,
    peer: Peer,
    /// When it was last seen to lead to whoever has the name.
    verified: Instant,
    used: u64,
}

impl Forwarder {
    /// One without connections.
    pub fn new() -> Forwarder {
        Forwarder::default()
    }

    /// What it has done.
    pub fn forwarded(&self) -> Forwarded {
        self.forwarded
    }

    /// Whether somebody has this name.
    pub fn reaches(&mut self, name: Name) -> bool {
        self.connections.contains_key(&name) || self.connect(name, Instant::now()).is_ok()
    }

    /// Puts a packet into the message for the owner of `name`. Packets that are lost on the way are told to `lost`, which may include
    /// earlier ones.
    pub fn push(&mut self, name: Name, arrival: &Arrival<'_>, mut lost: impl FnMut(&Arrival<'_>, Loss)) {
        let at = match self.messages.iter().position(|(other, _)| *other == name) {
            Some(at) => at,
            None => {
                self.messages.push((name, self.buffers.pop().unwrap_or_default()));
                self.messages.len() - 1
            }
        };
        let Some((_, bytes)) = self.messages.get_mut(at) else { return };
        if message::append(bytes, arrival) {
            return;
        }
        let mut full = std::mem::take(bytes);
        self.send(name, &full, &mut lost);
        full.clear();
        if !message::append(&mut full, arrival) {
            self.lose(Loss::System, 1);
            lost(arrival, Loss::System);
        }
        if let Some((_, bytes)) = self.messages.get_mut(at) {
            *bytes = full;
        }
    }

    /// Sends what was put together.
    pub fn flush(&mut self, mut lost: impl FnMut(&Arrival<'_>, Loss)) {
        while let Some((name, mut bytes)) = self.messages.pop() {
            if !bytes.is_empty() {
                self.send(name, &bytes, &mut lost);
            }
            bytes.clear();
            self.buffers.push(bytes);
        }
    }

    fn send(&mut self, name: Name, bytes: &[u8], lost: &mut impl FnMut(&Arrival<'_>, Loss)) {
        let count = u64::from(message::count(bytes));
        match self.deliver(name, bytes) {
            Ok(()) => {
                self.forwarded.packets += count;
                self.forwarded.messages += 1;
            }
            Err(loss) => {
                self.lose(loss, count);
                message::read(bytes, |arrival| lost(arrival, loss));
            }
        }
    }

    fn lose(&mut self, loss: Loss, count: u64) {
        match loss {
            Loss::Nobody => self.forwarded.nobody += count,
            Loss::Full => self.forwarded.full += count,
            Loss::System => self.forwarded.system += count,
        }
    }

    fn deliver(&mut self, name: Name, bytes: &[u8]) -> Result<(), Loss> {
        let now = Instant::now();
        self.uses += 1;
        self.verify(name, now, BELIEF);
        // An owner that has gone leaves a broken connection; the name may have a new owner already. Two tries find that out.
        let mut loss = Loss::Nobody;
        for _ in 0..2 {
            if !self.connections.contains_key(&name) {
                self.connect(name, now)?;
            }
            let Some(connection) = self.connections.get_mut(&name) else { return Err(Loss::System) };
            connection.used = self.uses;
            match send(&connection.socket, bytes) {
                Ok(()) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                        if !self.verify(name, now, DOUBT) {
                            return Err(Loss::Full);
                        }
                        loss = Loss::Full;
                    }
                    _ => {
                        self.connections.remove(&name);
                    }
                },
            }
        }
        Err(loss)
    }

    /// Forgets a connection that does not lead to whoever has the name now, and says so.
    fn verify(&mut self, name: Name, now: Instant, belief: Duration) -> bool {
        let Some(connection) = self.connections.get_mut(&name) else { return false };
        if now.saturating_duration_since(connection.verified) < belief {
            return false;
        }
        connection.verified = now;
        match names::owner(name) {
            Ok(Some(peer)) if peer == connection.peer => false,
            // Stopped with a full backlog, or no descriptors to ask with: nothing was learnt.
            Err(_) => false,
            Ok(_) => {
                self.connections.remove(&name);
                true
            }
        }
    }

    fn connect(&mut self, name: Name, now: Instant) -> Result<(), Loss> {
        let socket = match self.spare.take() {
            Some(socket) if socket.raw() >= 0 => socket,
            _ => names::socket().map_err(|_| Loss::System)?,
        };
        match names::connect(&socket, name) {
            Ok(()) => {}
            Err(error) => {
                self.spare = Some(socket);
                return Err(match error.raw_os_error() {
                    Some(libc::ECONNREFUSED) => Loss::Nobody,
                    Some(libc::EAGAIN) => Loss::Full,
                    _ => Loss::System,
                });
            }
        }
        let (backlog, size) = (BACKLOG, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: the value is a live `c_int` of the size given. If it is refused the stock buffer has to do.
        unsafe {
            libc::setsockopt(socket.raw(), libc::SOL_SOCKET, libc::SO_SNDBUF, (&raw const backlog).cast(), size);
        }
        let peer = names::peer(&socket).map_err(|_| Loss::System)?;
        if self.connections.len() >= CONNECTIONS {
            let oldest = self.connections.iter().min_by_key(|(_, connection)| connection.used).map(|(name, _)| *name);
            oldest.and_then(|name| self.connections.remove(&name));
        }
        self.connections.insert(name, Connection { socket, peer, verified: now, used: self.uses });
        Ok(())
    }
}

fn send(socket: &Descriptor, bytes: &[u8]) -> io::Result<()> {
    loop {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `bytes` is live and as long as it says.
        match check_length(unsafe { libc::send(socket.raw(), bytes.as_ptr().cast(), bytes.len(), flags) }) {
            Ok(_) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}
