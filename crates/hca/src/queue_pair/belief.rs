//! Whose packets a connected queue pair takes: those that come by the link to its peer. Sequence numbers are no secret:
//! any user of the host could try all 2^24 of them in seconds.
//!
//! | the queue pair's link | inside the process | a ring | UDP |
//! |---|---|---|---|
//! | inside the process | its own | none | none |
//! | shared memory | none | of the peer's process | none, once the peer was heard through its ring; before, see below |
//! | UDP, the peer on this host | none | of the peer's process | from a socket of the peer's user, or of ours |
//! | UDP, the peer elsewhere | none | none | from the peer's address: the transport checks it |
//!
//! Two processes of a user need not agree on their link: one of them may lack memory for a ring, or may not want one.
//! So a queue pair on shared memory takes packets from UDP until its peer was heard through a ring, and one on UDP
//! takes the trains of its peer's process; strangers have no part in either. On this host any user can send from any
//! address, and only the kernel knows which user has a port ([`PortUsers`](host::holders::PortUsers)). Addresses of
//! other hosts nobody can send from without a privilege.

use crate::ground::host_share::HostShare;
use crate::links::path::{Link, Path};
use crate::tuning::PEER_SOCKET_BELIEF;
use ::host::holders;
use ::host::names::{self, Name};
use ::host::slots::Slot;
use std::time::Instant;
use trace::DropReason;
use transport::Time;
use wire::Qpn;

/// By which way something came for a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ArrivalWay<'a> {
    /// By a link that is used through the trait alone.
    General(&'a dyn link::Link),
    /// Through a ring of that process.
    Ring(i32),
}

/// Numbers that no process has: nothing is taken from rings; and there is no peer yet, so that the transport refuses
/// what comes, whatever the way.
const NO_PROCESS: i32 = -1;
const NO_PEER: i32 = -2;
/// The port is down: nothing is taken.
const PORT_DOWN: i32 = -3;

/// What a queue pair knows of its peer.
#[derive(Debug)]
pub(super) struct Belief {
    /// The peer's process, if its trains are taken.
    process: i32,
    /// A port that is known to be the peer's, and until when.
    port: u16,
    until: Time,
    /// Packets from UDP are taken from any port: the peer is on another host, or there is none yet.
    any_port: bool,
    /// The peer was heard through its ring.
    heard: bool,
    /// The user that has the peer's slot.
    user: Option<u32>,
    /// When to look again which users have which ports, before something is sent.
    look: Time,
}

impl Default for Belief {
    fn default() -> Belief {
        Belief {
            process: NO_PEER,
            port: 0,
            until: Time::ZERO,
            any_port: true,
            heard: false,
            user: None,
            look: Time::ZERO,
        }
    }
}

impl Belief {
    /// The peer is known from now on, and the way there.
    pub fn of(host: &HostShare, path: &Path, peer: Qpn) -> Belief {
        match &path.link {
            Link::General(_) => Belief { process: NO_PROCESS, any_port: false, ..Belief::default() },
            Link::Down => Belief::with_port_down(),
            // Rings are of our own user only.
            Link::Shared(link) => Belief { process: link.peer(), any_port: false, ..Belief::default() },
            Link::Udp | Link::BlackHole | Link::None if !host.is_own_address(path.destination) => {
                Belief { process: NO_PROCESS, ..Belief::default() }
            }
            Link::Udp | Link::BlackHole | Link::None => {
                // The peer's number was given to it by a process that has this slot. If none has it any more, or that
                // process is not to be asked, only our own user is believed.
                let owner = Slot::of(peer).and_then(|slot| names::owner(Name::Slot(slot)).ok().flatten());
                host.slots.port_users().look(Instant::now());
                Belief {
                    process: owner
                        .filter(|owner| holders::is_our_user(owner.uid))
                        .map_or(NO_PROCESS, |owner| owner.pid),
                    user: owner.map(|owner| owner.uid),
                    any_port: false,
                    ..Belief::default()
                }
            }
        }
    }

    /// Nothing is taken, whatever the way, as the port is down.
    pub fn with_port_down() -> Belief {
        Belief { process: PORT_DOWN, any_port: false, ..Belief::default() }
    }

    /// Whether the port is up, for queue pairs that take packets of all peers.
    #[inline]
    pub fn takes_any(&self) -> Result<(), DropReason> {
        if self.process == PORT_DOWN { Err(DropReason::PortDown) } else { Ok(()) }
    }

    /// Whether the peer is another process of this host.
    #[inline]
    pub fn is_of_this_host(&self) -> bool {
        !self.any_port
    }

    /// Whether to take what came over UDP from this port. The transport checks the address.
    #[inline]
    pub fn takes_from_port(&mut self, host: &HostShare, link: &Link, port: u16, now: Time) -> Result<(), DropReason> {
        if self.any_port || port == self.port && now < self.until {
            return Ok(());
        }
        self.prove(host, link, port, now)
    }

    /// Something is about to be sent that the peer may answer. It may end as soon as it has: by then it is known which
    /// ports are its user's.
    #[inline]
    pub fn expects_answer(&mut self, host: &HostShare, now: Time) {
        if !self.any_port && now >= self.look {
            self.look_ahead(host, now);
        }
    }

    #[cold]
    fn look_ahead(&mut self, host: &HostShare, now: Time) {
        self.look = now + PEER_SOCKET_BELIEF / 2;
        let port = (self.port != 0).then_some(self.port);
        host.slots.want_ports(port, Instant::now());
    }

    #[cold]
    fn prove(&mut self, host: &HostShare, link: &Link, port: u16, now: Time) -> Result<(), DropReason> {
        let otherwise = match link {
            Link::Down => return Err(DropReason::PortDown),
            Link::General(_) => return Err(DropReason::WrongLink),
            Link::Shared(_) if self.heard => return Err(DropReason::WrongLink),
            Link::Shared(_) => DropReason::WrongLink,
            Link::Udp | Link::BlackHole | Link::None => DropReason::WrongSocket,
        };
        if !host.slots.port_users().is_of(port, self.user, Instant::now()) {
            return Err(otherwise);
        }
        (self.port, self.until) = (port, now + PEER_SOCKET_BELIEF);
        Ok(())
    }

    /// Whether to take what came through a ring of this process.
    #[inline]
    pub fn takes_from_ring(&mut self, process: i32) -> Result<(), DropReason> {
        if process != self.process {
            return match self.process {
                NO_PEER => Ok(()),
                PORT_DOWN => Err(DropReason::PortDown),
                _ => Err(DropReason::WrongLink),
            };
        }
        if !self.heard {
            (self.heard, self.until) = (true, Time::ZERO);
        }
        Ok(())
    }

    /// Whether to take what came by this way.
    pub fn takes(&mut self, link: &Link, came: ArrivalWay<'_>) -> Result<(), DropReason> {
        match (link, came) {
            (_, ArrivalWay::Ring(process)) => self.takes_from_ring(process),
            (Link::General(entry), ArrivalWay::General(link)) if std::ptr::addr_eq(entry.link(), link) => Ok(()),
            (_, ArrivalWay::General(_)) if self.process == NO_PEER => Ok(()),
            (Link::Down, ArrivalWay::General(_)) => Err(DropReason::PortDown),
            // It comes from this process.
            (Link::BlackHole, ArrivalWay::General(_)) => Ok(()),
            (_, ArrivalWay::General(_)) => Err(DropReason::WrongLink),
        }
    }
}
