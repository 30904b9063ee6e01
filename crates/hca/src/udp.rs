//! The NIC's UDP sockets: one that receives for each address family, and a few to send from, chosen by queue pair so that its packets keep
//! their order and different queue pairs do not wait for one another.

use crate::nic::lock;
use link::udp::{Arrival, BindError, Cargo, Family, Receiver, Route, SendError, Sender, Sent};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};
use wire::Qpn;

/// Sockets to send from, per family.
const SENDERS: usize = 4;

/// What happened to packets outside of any queue pair.
#[derive(Debug, Default)]
pub struct UdpCounters {
    /// Packets whose ICRC was wrong.
    pub damaged: AtomicU64,
    /// Packets that could not be read.
    pub malformed: AtomicU64,
    /// Trains the system did not take.
    pub unsent: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Udp {
    receivers: Vec<(Family, RawFd, Mutex<Receiver>)>,
    senders: Vec<(Family, Mutex<Sender>)>,
    /// Why a family is missing.
    pub errors: Vec<BindError>,
    pub counters: UdpCounters,
}

impl Udp {
    /// Opens what can be opened. Without any socket the NIC still works inside the process.
    pub fn open() -> Udp {
        let mut udp =
            Udp { receivers: Vec::new(), senders: Vec::new(), errors: Vec::new(), counters: UdpCounters::default() };
        for family in [Family::V4, Family::V6] {
            match Receiver::open(family) {
                Ok(receiver) => {
                    let fd = receiver.raw_fd();
                    udp.receivers.push((family, fd, Mutex::new(receiver)));
                }
                Err(error) => {
                    udp.errors.push(error);
                    continue;
                }
            }
            for _ in 0..SENDERS {
                if let Ok(sender) = Sender::open(family) {
                    udp.senders.push((family, Mutex::new(sender)));
                }
            }
        }
        udp
    }

    /// The descriptors to wait for.
    pub fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.receivers.iter().map(|(_, fd, _)| *fd)
    }

    /// The smallest receive buffer: what all our READ answers together must fit.
    pub fn buffer_size(&self) -> Option<u64> {
        let sizes = self.receivers.iter().filter_map(|(_, _, receiver)| lock(receiver).buffer_size().ok());
        sizes.min().map(|size| size as u64)
    }

    /// Takes what has arrived. A socket that another thread is reading is left to it.
    pub fn receive(&self, mut take: impl FnMut(&Arrival<'_>)) -> bool {
        let mut any = false;
        for (_, _, receiver) in &self.receivers {
            let mut receiver = match receiver.try_lock() {
                Ok(receiver) => receiver,
                Err(TryLockError::Poisoned(receiver)) => receiver.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if let Ok(received) = receiver.receive(&mut take) {
                any |= received.datagrams > 0;
                self.counters.damaged.fetch_add(u64::from(received.damaged), Ordering::Relaxed);
                self.counters.malformed.fetch_add(u64::from(received.malformed), Ordering::Relaxed);
            }
        }
        any
    }

    /// Sends a train.
    pub fn send<C: Cargo>(
        &self,
        route: &Route,
        from: Qpn,
        cargo: &mut C,
        one_by_one: bool,
    ) -> Result<Sent, SendError<C::Error>> {
        let family = if route.destination.is_ipv4() { Family::V4 } else { Family::V6 };
        let wanted = from.value() as usize % SENDERS;
        let mut senders = self.senders.iter().filter(|(of, _)| *of == family);
        let Some((_, sender)) = senders.clone().nth(wanted).or_else(|| senders.next()) else {
            self.counters.unsent.fetch_add(1, Ordering::Relaxed);
            return Ok(Sent::default());
        };
        let sent = lock(sender).send(route, cargo, one_by_one);
        if sent.is_err() {
            self.counters.unsent.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }
}
