//! The NIC's share of the host's UDP port, and a few sockets to send from, chosen by queue pair so that its packets keep their order and
//! different queue pairs do not wait for one another.

use crate::nic::lock;
use link::attachment::{AttachError, Attachment};
use link::ports::Ports;
use link::slots::Slots;
use link::udp::{Arrival, BindError, Cargo, Family, Group, Route, SendError, Sender};
use memory::Guard;
use std::convert::Infallible;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};
use wire::Qpn;

/// Sockets to send from, per family.
const SENDERS: usize = 4;

#[derive(Debug)]
pub(crate) struct Udp {
    attachment: Mutex<Attachment>,
    fd: RawFd,
    /// To send from: as many as it should be, or none where the family is switched off.
    v4: Vec<Socket>,
    v6: Vec<Socket>,
    /// Trains the system did not take.
    unsent: AtomicU64,
}

/// What a look at the sockets found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    /// Anything: then there may be more.
    pub any: bool,
    /// Something beside the socket that brought packets last.
    pub elsewhere: bool,
}

/// A socket to send from.
#[derive(Debug)]
struct Socket {
    family: Family,
    port: u16,
    /// Of the kind that queue pairs are locked with: a thread that uses its right to those must not wait for one that sends and wants one.
    sender: latch::Mutex<Sender>,
}

impl Udp {
    /// Joins the other processes of the host. Without the port the NIC still works inside the host.
    pub fn open(slots: &Slots, ports: &Ports) -> Result<Udp, AttachError> {
        let attachment = Attachment::open(slots, ports)?;
        let fd = attachment.fd();
        let (v4, v6) = (sockets(Family::V4)?, sockets(Family::V6)?);
        Ok(Udp { attachment: Mutex::new(attachment), fd, v4, v6, unsent: AtomicU64::new(0) })
    }

    /// Readable when something has arrived.
    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// The smallest receive buffer: what all our READ answers together must fit.
    pub fn buffer_size(&self) -> Option<u64> {
        let attachment = lock(&self.attachment);
        let sizes = [Family::V4, Family::V6].into_iter().filter_map(|family| {
            let receiver = attachment.receiver(family)?;
            receiver.buffer_size().ok()
        });
        sizes.min().map(|size| size as u64)
    }

    /// Why packets of other hosts do not reach us, if they do not.
    pub fn error(&self, family: Family) -> Option<String> {
        lock(&self.attachment).error(family).map(BindError::to_string)
    }

    /// What keeps packets of other hosts from us for good: nothing, if another user's processes forward them.
    pub fn obstacle(&self, family: Family) -> Option<&'static str> {
        Some(match lock(&self.attachment).error(family)? {
            BindError::OtherUser { .. } => return None,
            BindError::Taken => {
                "UDP port 4791 is held by something that does not share it (kernel Soft-RoCE, or another program), \
                 so no answer would arrive; only queue pairs of this process can be reached"
            }
            BindError::NoFamily(Family::V4) => "the system has no IPv4",
            BindError::NoFamily(Family::V6) => "the system has no IPv6",
            _ => "the system gave no socket for UDP port 4791, so no answer would arrive",
        })
    }

    /// Lets packets tell from now on their class and how many hops they had left.
    pub fn tell_all(&self) {
        lock(&self.attachment).tell_all();
    }

    /// Joins a multicast group, as often as it is left again.
    pub fn join(&self, group: Group) -> std::io::Result<()> {
        lock(&self.attachment).join(group)
    }

    /// Leaves it once.
    pub fn leave(&self, group: Group) {
        lock(&self.attachment).leave(group);
    }

    /// Whether a thread is at it. Gives it a moment to finish.
    pub fn is_tended(&self) -> bool {
        let tended = matches!(self.attachment.try_lock(), Err(TryLockError::WouldBlock));
        if tended {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        tended
    }

    /// Takes what has arrived; with a single system call, mostly, if only the socket that brought packets last is to be looked at. If another
    /// thread is at it, leaves it to that one.
    pub fn receive(&self, hot_only: bool, take: impl FnMut(&[Arrival<'_>])) -> Found {
        let mut attachment = match self.attachment.try_lock() {
            Ok(attachment) => attachment,
            Err(TryLockError::Poisoned(attachment)) => attachment.into_inner(),
            Err(TryLockError::WouldBlock) => return Found::default(),
        };
        if hot_only {
            return Found { any: attachment.poll_runs(take, |_, _| ()), elsewhere: false };
        }
        let any = attachment.receive_runs(take, |_, _| ());
        Found { any, elsewhere: attachment.found_elsewhere() }
    }

    /// How long until the attachment wants to be looked at, though nothing arrives.
    pub fn patience(&self) -> Option<u64> {
        let deadline = lock(&self.attachment).deadline()?;
        Some(deadline.saturating_duration_since(std::time::Instant::now()).as_nanos() as u64)
    }

    /// Begins to send what one queue pair has to send, which may be nothing.
    pub fn outgoing(&self, from: Qpn) -> Outgoing<'_> {
        Outgoing { udp: self, from, sender: None }
    }

    /// Sends the packets of a queue pair from one port, whatever they are.
    pub fn keep_ports(&self) {
        for socket in self.v4.iter().chain(&self.v6) {
            socket.sender.lock().keep_port();
        }
    }

    /// The port that packets of a queue pair come from; 0 if there is no socket to send them.
    pub fn port(&self, route: &Route, from: Qpn) -> u16 {
        self.socket(route, from).map_or(0, |socket| socket.port)
    }

    fn was_unsent(&self) {
        self.unsent.fetch_add(1, Ordering::Relaxed);
    }

    /// The socket that packets of a queue pair are sent from.
    fn socket(&self, route: &Route, from: Qpn) -> Option<&Socket> {
        let sockets = if route.destination.is_ipv4() { &self.v4 } else { &self.v6 };
        sockets.get(from.value() as usize % SENDERS)
    }
}

/// Sockets to send from; none if the family is switched off. Anything else would be a NIC that stays mute for ever.
fn sockets(family: Family) -> Result<Vec<Socket>, AttachError> {
    let mut sockets = Vec::new();
    for _ in 0..SENDERS {
        match Sender::open(family) {
            Ok(sender) => sockets.push(Socket { family, port: sender.port(), sender: latch::Mutex::new(sender) }),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sockets)
}

/// What a queue pair sends at once: trains that are put together into as few datagrams as they fit. What was not sent yet is when this is
/// dropped. It holds the socket from the first train on, so that no other packets come in between.
pub(crate) struct Outgoing<'a> {
    udp: &'a Udp,
    from: Qpn,
    sender: Option<(Family, latch::Guard<'a, Sender>)>,
}

impl Outgoing<'_> {
    /// Sends a train, soon. Its payload may be lent: `lend` is asked when nobody need be waited for any more.
    pub fn send<'m, C: Cargo>(
        &mut self,
        route: &Route,
        cargo: &mut C,
        lend: impl FnOnce() -> Option<Guard<'m>>,
        one_by_one: bool,
    ) -> Result<(), SendError<C::Error>> {
        let Some(sender) = self.sender(route) else { return Ok(()) };
        let lent = lend();
        let staged = sender.stage(route, cargo, lent.as_ref().map_or(&[], Guard::cells), one_by_one);
        if staged.is_err() {
            self.udp.was_unsent();
        }
        staged.map(drop)
    }

    /// Sends a packet, soon, that `write` writes down: so many bytes of headers, and of payload.
    #[inline]
    pub fn send_one<E>(
        &mut self,
        route: &Route,
        to: Qpn,
        lengths: (usize, usize),
        write: impl FnOnce(&mut [u8], &mut [u8]) -> Result<(), E>,
    ) -> Result<(), SendError<E>> {
        let Some(sender) = self.sender(route) else { return Ok(()) };
        let staged = sender.stage_one(route, to, lengths, write);
        if staged.is_err() {
            self.udp.was_unsent();
        }
        staged.map(drop)
    }

    /// The socket for packets to go that way; none if there is none, and then they are counted.
    fn sender(&mut self, route: &Route) -> Option<&mut Sender> {
        if self.sender.as_ref().is_none_or(|(family, _)| (*family == Family::V4) != route.destination.is_ipv4()) {
            self.flush();
            let Some(socket) = self.udp.socket(route, self.from) else {
                self.udp.was_unsent();
                return None;
            };
            self.sender = Some((socket.family, socket.sender.lock()));
        }
        self.sender.as_mut().map(|(_, sender)| &mut **sender)
    }

    /// Sends what is left, and lets others send.
    pub fn flush(&mut self) {
        if let Some((_, mut sender)) = self.sender.take()
            && sender.flush::<Infallible>().is_err()
        {
            self.udp.was_unsent();
        }
    }
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}
