//! One process's share of the host's UDP port: it receives what the kernel gives this process, keeps what is its own,
//! passes on the rest, takes what others pass on, and keeps the kernel's choice good. Its owner drives it, and no call
//! ever waits; [`fd`](Attachment::fd) tells when there is something to do, and [`deadline`](Attachment::deadline) when
//! there is though nothing arrives.
//!
//! ```no_run
//! use link::udp::attachment::Attachment;
//! use host::ports::Ports;
//! use host::slots::Slots;
//!
//! let slots = Slots::open()?;
//! let ports = Ports::new(&slots);
//! let slot = slots.take()?;
//! let mut attachment = Attachment::open(&slots, &ports)?;
//! loop {
//!     // Wait for `attachment.fd()` to become readable, at most until `attachment.deadline()`. Then:
//!     attachment.receive(|arrival| println!("{}", arrival.headers.bth.dest_qpn), |_, loss| println!("{loss:?}"));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod groups;

pub use host::target::Target;

use self::groups::Groups;
use crate::dropped::{Dropped, Drops};
use crate::faults::{Faults, Plan, PlanError};
use crate::udp::{Arrival, BindError, Family, Received, Receiver, Scope};
use host::forward::{Collected, Forwarded, Forwarder, Inbox, Loss};
use host::names::Name;
use host::ports::Ports;
use host::slots::{Registry, Slots};
use host::steering::{Steered, Steering};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trace::DropReason;
use wire::ROCE_PORT;

/// How often a port that another program holds is tried again.
const PORT_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// So long after something has come the kernel is asked what it dropped.
const OVERFLOW_INTERVAL: Duration = Duration::from_millis(100);

/// Polls of only the socket where packets came last before everything is looked at.
const HOT_SOCKET_POLLS: u32 = 1024;

/// The sockets that receive: for each family, and, as the kernel gives those what it would else give the first, for
/// packets inside the host.
const RECEIVING_SIDES: [(Family, Scope); 3] =
    [(Family::V4, Scope::Everywhere), (Family::V6, Scope::Everywhere), (Family::V4, Scope::Inside)];

/// Keys of our own descriptors in the set: the receiving sockets, and those that ask.
const RECEIVER_KEYS: [u64; RECEIVING_SIDES.len()] = [1, 2, 7];
const PROBER_KEYS: [u64; RECEIVING_SIDES.len()] = [3, 4, 8];

/// Why there is no attachment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The text in `UBIVERBS_FAULTS` is wrong.
    #[error("cannot read UBIVERBS_FAULTS")]
    Faults(#[from] PlanError),
    /// The system refused.
    #[error("cannot attach to the host")]
    System(#[from] io::Error),
}

/// What has passed through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Undamaged packets that the kernel gave us.
    pub received: u64,
    /// Of these, how many were another process's.
    pub misdirected: u64,
    /// Packets whose ICRC was wrong.
    pub damaged: u64,
    /// Packets that could not be read.
    pub malformed: u64,
    /// Datagrams that the kernel dropped because our buffer was full.
    pub overflowed: u64,
    /// What we passed on.
    pub forwarded: Forwarded,
    /// What others passed on to us.
    pub collected: Collected,
    /// How the kernel was told where packets go, IPv4, IPv6 and inside the host.
    pub steered: [Steered; 3],
}

/// The process's place on the host. There should be one.
#[derive(Debug)]
pub struct Attachment {
    slots: Slots,
    ports: Ports,
    sides: [Side; RECEIVING_SIDES.len()],
    inbox: Inbox,
    forwarder: Forwarder,
    port: u16,
    faults: Option<Plan>,
    /// Packets tell their class and how many hops they had left.
    tells_all: bool,
    groups: Groups,
    /// The side that brought something last.
    hot: Option<usize>,
    /// Polls since everything was looked at.
    polls: u32,
    /// When everything was last looked at, something was ready beside the socket that had brought something before.
    elsewhere: bool,
    /// The state of the registry whose names were announced.
    changes: u64,
    traffic: Traffic,
    drops: Drops,
    /// When the kernel is to be asked what it dropped, and how much of that was told.
    overflow_due: Option<Instant>,
    overflow_told: u64,
}

/// A socket that receives, or why it does not.
#[derive(Debug)]
struct Side {
    family: Family,
    scope: Scope,
    state: Result<Receiver, BindError>,
    steering: Steering,
    /// When to try again.
    retry: Option<Instant>,
}

impl Attachment {
    /// Joins the others on port 4791. Take a slot first: it shows other users that this port is shared. Never fails
    /// because of the port: see [`error`](Attachment::error).
    pub fn open(slots: &Slots, ports: &Ports) -> Result<Attachment, AttachError> {
        Attachment::open_port(slots, ports, ROCE_PORT)
    }

    /// Joins the others on another port, for tests.
    pub fn open_port(slots: &Slots, ports: &Ports, port: u16) -> Result<Attachment, AttachError> {
        let faults = Plan::from_environment()?;
        let side = |(family, scope)| Side {
            family,
            scope,
            state: Err(BindError::NoFamily(family)),
            steering: Steering::new(family, scope, port),
            retry: None,
        };
        let mut attachment = Attachment {
            slots: slots.clone(),
            ports: ports.clone(),
            sides: RECEIVING_SIDES.map(side),
            inbox: Inbox::new(slots),
            forwarder: Forwarder::new(),
            port,
            faults,
            tells_all: false,
            groups: Groups::default(),
            hot: None,
            polls: 0,
            elsewhere: false,
            changes: slots.registry().changes(),
            traffic: Traffic::default(),
            drops: Drops::default(),
            overflow_due: None,
            overflow_told: 0,
        };
        let now = Instant::now();
        for at in 0..RECEIVING_SIDES.len() {
            attachment.try_bind(at, now);
        }
        Ok(attachment)
    }

    /// Readable when [`receive`](Attachment::receive) has something to do.
    pub fn fd(&self) -> RawFd {
        self.slots.registry().epoll()
    }

    /// When [`receive`](Attachment::receive) should be called though nothing has arrived.
    pub fn deadline(&self) -> Option<Instant> {
        let side = |side: &Side| {
            let due = side.state.as_ref().ok().and_then(Receiver::due);
            [side.retry, side.steering.deadline(), due].into_iter().flatten().min()
        };
        self.sides.iter().filter_map(side).chain(self.overflow_due).min()
    }

    /// How many datagrams the kernel has dropped, because our buffer was full, that were not told yet.
    pub fn take_overflow(&mut self) -> u64 {
        let now = Instant::now();
        if self.overflow_due.is_none_or(|due| now < due) {
            return 0;
        }
        self.overflow_due = None;
        let overflowed = self.overflowed();
        // A socket that was opened anew begins at zero.
        let untold = overflowed.saturating_sub(self.overflow_told);
        self.overflow_told = overflowed;
        untold
    }

    fn overflowed(&self) -> u64 {
        let count = |side: &Side| side.state.as_ref().ok().and_then(|receiver| receiver.overflowed().ok());
        self.sides.iter().map(|side| u64::from(count(side).unwrap_or(0))).sum()
    }

    /// Why a family cannot be received, if it cannot. `OtherUser` is no obstacle: that user's processes forward. What
    /// is not permanent is tried again.
    pub fn error(&self, family: Family) -> Option<&BindError> {
        self.sides.iter().find(|side| side.family == family)?.state.as_ref().err()
    }

    /// The receiving socket of a family, to ask about it.
    pub fn receiver(&self, family: Family) -> Option<&Receiver> {
        self.sides.iter().find(|side| side.family == family)?.state.as_ref().ok()
    }

    /// Lets packets tell from now on their class and how many hops they had left: see [`Receiver::tell_all`].
    pub fn tell_all(&mut self) {
        if std::mem::replace(&mut self.tells_all, true) {
            return;
        }
        for side in &self.sides {
            if let Ok(receiver) = &side.state {
                // A socket that refuses goes without.
                let _ = receiver.tell_all();
            }
        }
    }

    /// Changes the faults that packets meet before their ICRC is checked.
    pub fn inject(&mut self, plan: Option<Plan>) {
        self.faults = plan;
        for side in &mut self.sides {
            if let Ok(receiver) = &mut side.state {
                receiver.inject(self.faults.clone().map(Faults::new));
            }
        }
    }

    /// Changes the faults: what they hold back stays. Those of an empty plan are none.
    pub fn change_faults(&mut self, plan: &Plan) {
        self.faults = Some(plan.clone()).filter(|plan| !plan.is_empty());
        for side in &mut self.sides {
            if let Ok(receiver) = &mut side.state {
                receiver.change_faults(plan);
            }
        }
    }

    /// This process is about to end: from now on the kernel gives it nothing more, and what is there already should be
    /// [received](Attachment::receive) and so passed on.
    pub fn leave_soon(&mut self) {
        for side in &mut self.sides {
            if let Ok(receiver) = &side.state {
                side.steering.leave(receiver.raw_fd());
            }
        }
    }

    /// What has passed through so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            overflowed: self.overflowed(),
            forwarded: self.forwarder.forwarded(),
            collected: self.inbox.collected(),
            steered: self.sides.each_ref().map(|side| side.steering.steered()),
            ..self.traffic
        }
    }

    /// Does what there is to do, without waiting, and gives each packet that is for this process to `take`. Packets
    /// that could not be passed on are told to `lost`. True if there was something; then there may be more.
    pub fn receive(&mut self, mut take: impl FnMut(&Arrival<'_>), lost: impl FnMut(&Arrival<'_>, Loss)) -> bool {
        self.receive_runs(|run| run.iter().for_each(&mut take), lost)
    }

    /// [`receive`](Attachment::receive), with packets that came together and are for one queue pair together.
    pub fn receive_runs(
        &mut self,
        mut take: impl FnMut(&[Arrival<'_>]),
        mut lost: impl FnMut(&Arrival<'_>, Loss),
    ) -> bool {
        self.polls = 0;
        let any = self.receive_ready(&mut take, &mut lost);
        self.tend(Instant::now());
        any
    }

    /// [`receive`](Attachment::receive) for a thread that calls again and again: mostly it asks only the socket that
    /// brought the last packets, which is one system call instead of two or more. Before sleeping call
    /// [`receive`](Attachment::receive), or wait for [`fd`](Attachment::fd), which is readable if anything was left.
    pub fn poll(&mut self, mut take: impl FnMut(&Arrival<'_>), lost: impl FnMut(&Arrival<'_>, Loss)) -> bool {
        self.poll_runs(|run| run.iter().for_each(&mut take), lost)
    }

    /// [`poll`](Attachment::poll), with packets that came together and are for one queue pair together.
    pub fn poll_runs(
        &mut self,
        mut take: impl FnMut(&[Arrival<'_>]),
        mut lost: impl FnMut(&Arrival<'_>, Loss),
    ) -> bool {
        match self.hot {
            Some(hot) if self.polls < HOT_SOCKET_POLLS => {
                self.polls += 1;
                self.receive_side(hot, &mut take, &mut lost).is_news()
            }
            _ => self.receive_runs(take, lost),
        }
    }

    /// Whether the last look at everything found something that [`poll`](Attachment::poll) alone would not have found.
    pub fn found_elsewhere(&self) -> bool {
        self.elsewhere
    }

    /// Does what there is to do on whatever is ready.
    fn receive_ready(
        &mut self,
        take: &mut impl FnMut(&[Arrival<'_>]),
        lost: &mut impl FnMut(&Arrival<'_>, Loss),
    ) -> bool {
        let mut keys = [0; 32];
        let registry = self.registry();
        let Ok(ready) = registry.ready(&mut keys) else { return false };
        let hot = self.hot.and_then(|hot| RECEIVER_KEYS.get(hot));
        self.elsewhere = ready.iter().any(|key| Some(key) != hot);
        for key in ready {
            if let Some(at) = RECEIVER_KEYS.iter().position(|own| own == key) {
                if self.receive_side(at, take, lost).is_news() {
                    self.hot = Some(at);
                }
            } else if let Some(at) = PROBER_KEYS.iter().position(|own| own == key) {
                if let Some(side) = self.sides.get_mut(at) {
                    side.steering.is_answered();
                }
            } else if *key == Registry::EXCHANGE_KEY {
                registry.call();
            } else if *key == Registry::PROCESS_WATCH_KEY {
                registry.died();
            } else if *key == Registry::PACKET_SOCKETS_KEY {
                // The NIC takes frames itself.
            } else if self.receive_forwarded(*key, take) {
                // Another user's process has gone, and perhaps left the port.
                for side in &mut self.sides {
                    side.retry = side.retry.map(|_| Instant::now());
                }
            }
        }
        // What faults held back comes without the socket knowing.
        let now = Instant::now();
        for at in 0..RECEIVING_SIDES.len() {
            let due = self.sides.get(at).and_then(|side| side.state.as_ref().ok()?.due());
            if due.is_some_and(|due| due <= now) {
                self.receive_side(at, take, lost);
            }
        }
        !ready.is_empty()
    }

    /// Whether something went no further since [`take_drops`](Attachment::take_drops) was called.
    #[inline]
    pub fn has_drops(&self) -> bool {
        !self.drops.is_empty()
    }

    /// What went no further: what the sockets could not take, what could not be passed on, and what other processes
    /// passed on in vain.
    pub fn take_drops(&mut self) -> Vec<Dropped> {
        self.drops.take()
    }

    /// Takes what other processes pass on. What they have found undamaged tells where its sender's identifications are.
    /// True if a process has gone.
    fn receive_forwarded(&mut self, key: u64, take: &mut impl FnMut(&[Arrival<'_>])) -> bool {
        let Attachment { inbox, sides, drops, .. } = self;
        let before = inbox.collected();
        let gone = inbox.serve(key, &mut |arrival| {
            for side in sides.iter_mut() {
                if let Ok(receiver) = &mut side.state {
                    receiver.learn(&arrival.ip, arrival.port, &mut *take);
                }
            }
            take(std::slice::from_ref(arrival));
        });
        let after = inbox.collected();
        if after.unread() != before.unread() {
            drops.add_some(after.malformed - before.malformed, DropReason::Malformed);
            drops.add_some(after.misdelivered - before.misdelivered, DropReason::UnknownQp);
            drops.add_some(after.refused - before.refused, DropReason::Untrusted);
            drops.add_some(after.turned_away - before.turned_away, DropReason::SystemRefused);
            drops.add_some(after.bad_records - before.bad_records, DropReason::BadRecord);
        }
        for receiver in sides.iter_mut().filter_map(|side| side.state.as_mut().ok()) {
            if receiver.has_drops() {
                drops.append(receiver.take_drops());
            }
        }
        gone
    }

    /// Senders that should be made to send something, and the addresses of ours that they sent to: see
    /// [`Receiver::questions`].
    pub fn questions(&mut self) -> Vec<(Ipv4Addr, Ipv4Addr)> {
        let receivers = self.sides.iter_mut().filter_map(|side| side.state.as_mut().ok());
        receivers.filter(|receiver| receiver.has_questions()).flat_map(Receiver::questions).collect()
    }

    fn receive_side(
        &mut self,
        at: usize,
        take: &mut impl FnMut(&[Arrival<'_>]),
        lost: &mut impl FnMut(&Arrival<'_>, Loss),
    ) -> Received {
        let Some(side) = self.sides.get_mut(at) else { return Received::default() };
        let Ok(receiver) = &mut side.state else { return Received::default() };
        let (slots, ports, forwarder, steering) = (&self.slots, &self.ports, &mut self.forwarder, &mut side.steering);
        let (mut misdirected, drops) = (0, &mut self.drops);
        let received = receiver.receive_runs(|run| {
            for packets in run.chunk_by(|a, b| a.headers.bth.dest_qpn == b.headers.bth.dest_qpn) {
                let [first, ..] = packets else { continue };
                // All of them are for one queue pair, and mostly it is ours.
                if let Target::Queue(slot) = Target::of(first)
                    && slots.owns(slot)
                {
                    take(packets);
                    continue;
                }
                for arrival in packets {
                    let own = std::slice::from_ref(arrival);
                    let name = match Target::of(arrival) {
                        Target::Here => {
                            take(own);
                            continue;
                        }
                        Target::AllProcesses => {
                            take(own);
                            match forwarder.all_slots(Instant::now()) {
                                Some(all) => {
                                    for slot in all.into_iter().filter(|slot| !slots.owns(*slot)) {
                                        forwarder.push(Name::Slot(slot), arrival, |arrival, loss| {
                                            drops.add(Some(arrival.headers), reason(loss));
                                        });
                                    }
                                }
                                None => drops.add(Some(arrival.headers), DropReason::CmCrowded),
                            }
                            continue;
                        }
                        Target::NoProcess => {
                            drops.add(Some(arrival.headers), DropReason::WrongDestination);
                            continue;
                        }
                        Target::Queue(slot) => Name::Slot(slot),
                        // If no process has it, this process has to tell the peer so.
                        Target::Communication(slot) if slots.owns(slot) || !forwarder.reaches(Name::Slot(slot)) => {
                            take(own);
                            continue;
                        }
                        Target::Communication(slot) => Name::Slot(slot),
                        Target::Service(space, port) if ports.holds(space, port) => {
                            take(own);
                            continue;
                        }
                        Target::Service(space, port) => {
                            let names =
                                [Name::Port(space, port), Name::Block(space, port / host::ports::PORTS_PER_BLOCK)];
                            match names.into_iter().find(|name| forwarder.reaches(*name)) {
                                Some(name) => name,
                                None => {
                                    take(own);
                                    continue;
                                }
                            }
                        }
                    };
                    misdirected += 1;
                    steering.misdirected();
                    forwarder.push(name, arrival, |arrival, loss| {
                        drops.add(Some(arrival.headers), reason(loss));
                        lost(arrival, loss);
                    });
                }
            }
        });
        forwarder.flush(|arrival, loss| {
            drops.add(Some(arrival.headers), reason(loss));
            lost(arrival, loss);
        });
        if receiver.has_drops() {
            drops.append(receiver.take_drops());
        }
        let received = received.unwrap_or_default();
        if received.datagrams > 0 && self.overflow_due.is_none() {
            self.overflow_due = Some(Instant::now() + OVERFLOW_INTERVAL);
        }
        self.traffic.received += u64::from(received.packets);
        self.traffic.misdirected += misdirected;
        self.traffic.damaged += u64::from(received.damaged);
        self.traffic.malformed += u64::from(received.malformed);
        received
    }

    /// What is done now and then: announcing slots, steering, trying for the port again.
    fn tend(&mut self, now: Instant) {
        // Files are read and sockets made: a polling thread that is cancelled must not end there, with our locks.
        let _shield = host::thread::Shield::up();
        let changes = self.registry().changes();
        let changed = changes != self.changes;
        self.changes = changes;
        for at in 0..RECEIVING_SIDES.len() {
            let registry = self.registry();
            let (Some(side), Some(key)) = (self.sides.get_mut(at), PROBER_KEYS.get(at)) else { continue };
            if side.retry.is_some_and(|retry| now >= retry) {
                self.try_bind(at, now);
                continue;
            }
            let Ok(receiver) = &mut side.state else { continue };
            if changed {
                receiver.announce(&registry.names());
                side.steering.want();
            }
            let before = side.steering.socket();
            if receiver.has_changed() {
                side.steering.suspect();
            }
            side.steering.progress(receiver.raw_fd(), receiver.identity(), now);
            self.forwarder.note_own(side.steering.take_found(), now);
            if let (None, Some(socket)) = (before, side.steering.socket()) {
                // If it cannot be watched, answers are read when the round ends.
                let _ = registry.watch(socket, *key);
            }
        }
    }

    fn try_bind(&mut self, at: usize, now: Instant) {
        let (registry, faults, port, tells_all) = (self.registry(), self.faults.clone(), self.port, self.tells_all);
        let (Some(side), Some(key)) = (self.sides.get_mut(at), RECEIVER_KEYS.get(at)) else { return };
        let (family, scope) = (side.family, side.scope);
        let known = match side.state {
            Err(BindError::OtherUser { uid }) => Some(uid),
            _ => None,
        };
        side.state = Receiver::open_scope(family, port, scope, known).and_then(|mut receiver| {
            receiver.announce(&registry.names());
            receiver.inject(faults.map(Faults::new));
            if tells_all {
                let _ = receiver.tell_all();
            }
            registry.watch(receiver.raw_fd(), *key).map_err(|source| BindError::System { family, source })?;
            Ok(receiver)
        });
        // The process with a socket that we could not have passes on what comes there.
        let sides = self.sides.iter().filter(|side| side.state.is_err());
        self.inbox.rely_on_others_for(sides.map(|side| (side.family, side.scope)).collect());
        let Some(side) = self.sides.get_mut(at) else { return };
        side.retry = match &side.state {
            Ok(_) => {
                side.steering.want();
                None
            }
            Err(BindError::NoFamily(_)) => None,
            Err(_) => Some(now + PORT_RETRY_INTERVAL),
        };
    }

    fn registry(&self) -> Arc<Registry> {
        self.slots.registry().clone()
    }
}

/// Why a packet that could not be passed on went no further.
fn reason(loss: Loss) -> DropReason {
    match loss {
        Loss::NoOwner => DropReason::UnknownQp,
        Loss::Full => DropReason::Overflow,
        Loss::System => DropReason::SystemRefused,
    }
}

/// Leaving: what has already arrived for others is passed on. Packets of ours that wait there have no queue pair any
/// more.
impl Drop for Attachment {
    fn drop(&mut self) {
        self.leave_soon();
        for at in 0..RECEIVING_SIDES.len() {
            // More than a buffer holds, and bounded: packets may come as fast as they are taken.
            for _ in 0..8192 {
                if self.receive_side(at, &mut |_| {}, &mut |_, _| {}).datagrams == 0 {
                    break;
                }
            }
        }
        let registry = self.registry();
        for side in &self.sides {
            if let Ok(receiver) = &side.state {
                registry.unwatch(receiver.raw_fd());
            }
        }
    }
}
