//! Slots: the shares of a host's queue pair numbers that its processes own. A queue pair number is 12 bits of slot and
//! 12 bits of index; a process has the slots whose names it has bound, and so no number is handed out twice, and any
//! process can tell which process a packet is for. Slot 0 has no owner: the numbers 0 and 1 in it belong to the
//! management queue pairs of every process. Neither is the last one, which has the number of multicast in it.

use crate::callers::Callers;
use crate::descriptor::Descriptor;
use crate::event_set::EventSet;
use crate::holders::{self, PortUsers};
use crate::inquiry::Injection;
use crate::names::{self, Name, PORTS_PER_BLOCK};
use crate::offer::Offer;
use crate::shares;
pub use crate::slot::Slot;
use crate::target::Target;
use latch::Rank;
use latch::plain::{Guard, Mutex};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Instant;

/// Why there is no slot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// Every slot of the host that this user may have is taken.
    #[error("all slots of this host that this user may have are taken, of {}", Slot::COUNT)]
    Exhausted,
    /// The system refused.
    #[error("cannot bind a slot's socket")]
    System(#[from] io::Error),
}

/// The slots of this process. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Slots {
    registry: Arc<Registry>,
    /// Ends with the last handle.
    _threads: Arc<Threads>,
}

/// The registry's threads.
#[derive(Debug)]
struct Threads(Arc<Registry>);

impl Drop for Threads {
    fn drop(&mut self) {
        // A forked child has none.
        if self.0.epoll() < 0 {
            return;
        }
        for name in self.0.names() {
            self.0.leave(name);
        }
        self.0.callers.end();
    }
}

impl Slots {
    /// A process without slots yet.
    pub fn open() -> io::Result<Slots> {
        let registry = Registry::open()?;
        registry.callers.start(&registry)?;
        Ok(Slots { _threads: Arc::new(Threads(registry.clone())), registry })
    }

    /// Which users have which UDP ports of this host.
    pub fn port_users(&self) -> Guard<MutexGuard<'_, PortUsers>> {
        self.registry.callers.port_users.lock()
    }

    /// Has the UDP port of a peer looked at, or all ports while it is not known, by a thread that nothing waits for;
    /// unless that was done a short while ago.
    pub fn want_ports(&self, port: Option<u16>, now: Instant) {
        self.registry.callers.want_ports(port, now);
    }

    /// Takes one more slot: the first free one from a random place on. Random, because numbers of a process that has
    /// just ended should not come back while packets for it are still under way, and because most slots are free, so
    /// that the first try succeeds.
    pub fn take(&self) -> Result<Slot, SlotError> {
        let socket = names::socket()?;
        let uid = holders::own_uid();
        let mut bound = Vec::new();
        let start = random() % u64::from(Slot::COUNT);
        for step in 0..u64::from(Slot::COUNT) {
            let Some(slot) = Slot::new(((start + step) % u64::from(Slot::COUNT)) as u16 + 1) else { continue };
            if !shares::may_have_slot(uid, slot) {
                continue;
            }
            match names::listen(&socket, Name::Slot(slot)) {
                Ok(()) => {
                    self.registry.enter(Name::Slot(slot), socket)?;
                    return Ok(slot);
                }
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => bound.push(slot),
                Err(error) => return Err(error.into()),
            }
        }
        self.take_from_squatters(bound)
    }

    /// Takes a slot whose name is bound by a user that may not have it. A process that takes one so publishes before it
    /// looks for others who do, so of two at least one sees the other.
    fn take_from_squatters(&self, bound: Vec<Slot>) -> Result<Slot, SlotError> {
        // A process that accepts no more connections is stopped, and may be the owner.
        let has_owner = |name| match names::connect_to(name) {
            Ok(_) => true,
            Err(error) => error.raw_os_error() != Some(libc::ECONNREFUSED),
        };
        let is_other = |name: &Name, slot| matches!(name, Name::Other(of, _) if *of == slot);
        let names = Name::of_this_host()?;
        for slot in bound {
            if has_owner(Name::Slot(slot)) || names.iter().any(|name| is_other(name, slot) && has_owner(*name)) {
                continue;
            }
            let name = Name::Other(slot, random() as u32);
            let socket = names::socket()?;
            if names::listen(&socket, name).is_err() {
                continue;
            }
            let mut others = Name::of_this_host()?.into_iter();
            if others.any(|other| other != name && is_other(&other, slot) && has_owner(other)) {
                continue;
            }
            self.registry.enter(name, socket)?;
            return Ok(slot);
        }
        Err(SlotError::Exhausted)
    }

    /// Whether a slot is ours.
    #[inline]
    pub fn owns(&self, slot: Slot) -> bool {
        self.registry.owns(slot)
    }

    /// Our slots, in order.
    pub fn owned(&self) -> Vec<Slot> {
        (1..=Slot::COUNT).filter_map(Slot::new).filter(|slot| self.owns(*slot)).collect()
    }

    /// Gives a slot back. A queue pair that is still in it gets no more packets.
    pub fn release(&self, slot: Slot) {
        let names = self.registry.names().into_iter();
        names.filter(|name| name.slot() == Some(slot)).for_each(|name| self.registry.leave(name));
    }

    /// The slots that some process of this host has, in order.
    pub fn of_this_host() -> io::Result<Vec<Slot>> {
        let names = Name::of_this_host()?;
        let mut slots: Vec<_> = names.into_iter().filter_map(Name::slot).collect();
        slots.sort_unstable();
        slots.dedup();
        Ok(slots)
    }

    /// What this process has bound.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }
}

/// So many wait for an answer at a time; others hear nothing.
const MOST_INQUIRIES: usize = 64;

/// Injections that wait. More are dropped, and their connections end.
const MAX_INJECTIONS: usize = 16;

/// A few random bits, from the randomness that the system gave to the process.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// What this process has bound, and the epoll set that tells when another process calls.
#[derive(Debug)]
pub struct Registry {
    set: EventSet,
    listeners: Mutex<Vec<Listener>>,
    next: AtomicU64,
    /// One bit per slot: packets are looked up without a lock.
    owned: [AtomicU64; 64],
    /// Counts changes of what is owned.
    changes: AtomicU64,
    /// Connections that offer shared memory, until the exchange takes them.
    offers: Mutex<Vec<Offer>>,
    /// Connections of processes that want to know what this one has.
    inquiries: Mutex<Vec<Descriptor>>,
    /// What processes of our own user want to happen to this one.
    injections: Mutex<Vec<Injection>>,
    /// There are some, or those that were accepted have something.
    called: AtomicBool,
    /// A process whose end matters has ended, until [`deaths_seen`](Registry::deaths_seen).
    died: AtomicBool,
    connection_records: Mutex<Vec<Descriptor>>,
    callers: Callers,
    own: Weak<Registry>,
}

/// A name that this process has bound.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Its key in the epoll set.
    pub key: u64,
    /// The name.
    pub name: Name,
    /// The socket that has it.
    pub socket: Arc<Descriptor>,
}

impl Registry {
    /// Keys below this are for modules that add a descriptor of their own.
    const FIRST_KEY: u64 = 16;

    /// The key of the processes whose end matters.
    pub const PROCESS_WATCH_KEY: u64 = 6;

    /// The key of sockets for raw packets.
    pub const PACKET_SOCKETS_KEY: u64 = 9;

    /// The key of those who connect to our names.
    pub const CALLERS_KEY: u64 = 10;

    /// One of them has ended.
    pub fn died(&self) {
        self.died.store(true, Ordering::Release);
    }

    /// The caller is about to look which.
    pub fn deaths_seen(&self) {
        self.died.store(false, Ordering::Release);
    }

    /// Whether a process whose end matters has ended since the last look.
    #[inline]
    pub fn has_died(&self) -> bool {
        self.died.load(Ordering::Acquire)
    }

    /// A process ended, and this one keeps its connection records.
    pub fn take_over(&self, will: Descriptor) {
        self.connection_records.lock().push(will);
        self.died();
    }

    /// The connection records of processes that have ended.
    pub fn take_connection_records(&self) -> Vec<Descriptor> {
        std::mem::take(&mut *self.connection_records.lock())
    }

    /// The key of the exchange of shared memory.
    pub const EXCHANGE_KEY: u64 = 5;

    /// Another process offers shared memory.
    pub fn offer(&self, offer: Offer) {
        self.offers.lock().push(offer);
        self.call();
    }

    /// What was offered.
    pub fn take_offers(&self) -> Vec<Offer> {
        std::mem::take(&mut *self.offers.lock())
    }

    /// Another process, which may, wants to know what this one has.
    pub fn inquire(&self, socket: Descriptor) {
        let mut inquiries = self.inquiries.lock();
        if inquiries.len() < MOST_INQUIRIES {
            inquiries.push(socket);
        }
        self.call();
    }

    /// The connections of those that do.
    pub fn take_inquiries(&self) -> Vec<Descriptor> {
        std::mem::take(&mut *self.inquiries.lock())
    }

    /// A process of our own user wants something to happen to this one.
    pub(crate) fn inject(&self, injection: Injection) {
        let mut injections = self.injections.lock();
        if injections.len() < MAX_INJECTIONS {
            injections.push(injection);
        }
        self.call();
    }

    /// What is to happen.
    pub fn take_injections(&self) -> Vec<Injection> {
        std::mem::take(&mut *self.injections.lock())
    }

    /// The exchange of shared memory has something to do.
    pub fn call(&self) {
        self.called.store(true, Ordering::Release);
    }

    /// It is about to do it.
    pub fn answered(&self) {
        self.called.store(false, Ordering::Release);
    }

    /// Whether the exchange of shared memory has something to do.
    #[inline]
    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }

    fn open() -> io::Result<Arc<Registry>> {
        let set = EventSet::new()?;
        let callers = Callers::new()?;
        let bell = callers.raw_fd();
        let registry = Arc::new_cyclic(|own| Registry {
            set,
            listeners: Mutex::new(Rank::Listeners, Vec::new()),
            next: AtomicU64::new(Registry::FIRST_KEY),
            owned: [const { AtomicU64::new(0) }; 64],
            changes: AtomicU64::new(0),
            offers: Mutex::new(Rank::Offers, Vec::new()),
            inquiries: Mutex::new(Rank::Inquiries, Vec::new()),
            injections: Mutex::new(Rank::Injections, Vec::new()),
            called: AtomicBool::new(false),
            died: AtomicBool::new(false),
            connection_records: Mutex::new(Rank::Records, Vec::new()),
            callers,
            own: Weak::clone(own),
        });
        registry.watch(bell, Registry::CALLERS_KEY)?;
        Ok(registry)
    }

    /// Those who connect to our names.
    pub(crate) fn callers(&self) -> &Callers {
        &self.callers
    }

    fn listeners(&self) -> Guard<MutexGuard<'_, Vec<Listener>>> {
        self.listeners.lock()
    }

    /// A key that no other descriptor in the set has.
    pub fn new_key(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// From now on `name`, on which `socket` listens, is ours.
    pub fn enter(&self, name: Name, socket: Descriptor) -> io::Result<()> {
        let key = self.new_key();
        let socket = Arc::new(socket);
        let mut listeners = self.listeners();
        let listener = Listener { key, name, socket };
        self.callers.attend(&listener)?;
        listeners.push(listener);
        self.mark(name, true);
        Ok(())
    }

    /// Gives `name` back.
    pub fn leave(&self, name: Name) {
        let mut listeners = self.listeners();
        let at = listeners.iter().position(|listener| listener.name == name);
        let listener = at.map(|at| listeners.swap_remove(at));
        drop(listeners);
        if let Some(listener) = listener {
            self.mark(name, false);
            // It is there: this is one of its methods.
            if let Some(own) = self.own.upgrade() {
                self.callers.leave(&listener, &own);
            }
        }
    }

    fn mark(&self, name: Name, ours: bool) {
        if let Some(slot) = name.slot()
            && let Some(word) = self.owned.get(usize::from(slot.number() / 64))
        {
            let bit = 1 << (slot.number() % 64);
            if ours {
                word.fetch_or(bit, Ordering::AcqRel)
            } else {
                word.fetch_and(!bit, Ordering::AcqRel)
            };
        }
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a slot is ours.
    #[inline]
    pub fn owns(&self, slot: Slot) -> bool {
        let word = self.owned.get(usize::from(slot.number() / 64));
        word.is_some_and(|word| word.load(Ordering::Acquire) & 1 << (slot.number() % 64) != 0)
    }

    /// A number that is another after slots or ports were taken or given back.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// All names that are ours.
    pub fn names(&self) -> Vec<Name> {
        self.listeners().iter().map(|listener| listener.name).collect()
    }

    /// Whether `name` is ours.
    pub fn has(&self, name: Name) -> bool {
        match name {
            Name::Slot(slot) => self.owns(slot),
            name => self.listeners().iter().any(|listener| listener.name == name),
        }
    }

    /// Whether a packet may be for this process, as far as it tells.
    pub(crate) fn is_target(&self, target: Target) -> bool {
        match target {
            Target::Queue(slot) | Target::Communication(slot) => self.owns(slot),
            Target::Service(space, port) => {
                self.has(Name::Port(space, port)) || self.has(Name::Block(space, port / PORTS_PER_BLOCK))
            }
            Target::AllProcesses | Target::Here => true,
            Target::NoProcess => false,
        }
    }

    /// The name with this key in the epoll set.
    pub fn listener(&self, key: u64) -> Option<Listener> {
        self.listeners().iter().find(|listener| listener.key == key).cloned()
    }

    /// The epoll set.
    pub fn epoll(&self) -> RawFd {
        self.set.raw()
    }

    pub(crate) fn set(&self) -> &EventSet {
        &self.set
    }

    /// Adds a descriptor to the set.
    pub fn watch(&self, fd: RawFd, key: u64) -> io::Result<()> {
        self.set.add(fd, key)
    }

    /// Removes one.
    pub fn unwatch(&self, fd: RawFd) {
        self.set.remove(fd);
    }

    /// Those of the set that are ready, without waiting: their keys in `keys`.
    pub fn ready<'a>(&self, keys: &'a mut [u64; 32]) -> io::Result<&'a [u64]> {
        let ready = self.set.ready()?;
        let count = ready.iter().zip(&mut *keys).map(|(ready, key)| *key = ready).count();
        Ok(keys.get(..count).unwrap_or(&[]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Qpn;

    #[test]
    fn a_number_is_slot_and_index() {
        let slot = Slot::new(0xabc).unwrap();
        assert_eq!(slot.qpn(0xdef).value(), 0xabcdef);
        assert_eq!(slot.qpn(0xfdef).value(), 0xabcdef);
        assert_eq!(Slot::of(Qpn::new(0xabcdef)), Some(slot));
        assert_eq!(Slot::index(Qpn::new(0xabcdef)), 0xdef);
        assert_eq!(Slot::of_communication(slot.communication(0xf1_2345)), Some(slot));
        for qpn in [Qpn::SMI, Qpn::GSI, Qpn::MULTICAST, Qpn::new(0xfff), Qpn::new(0xfff000)] {
            assert_eq!(Slot::of(qpn), None);
        }
        assert_eq!(Slot::new(Slot::COUNT).map(Slot::number), Some(4094));
    }

    #[test]
    fn a_slot_has_one_owner() {
        let (one, other) = (Slots::open().unwrap(), Slots::open().unwrap());
        let slot = one.take().unwrap();
        assert!(one.owns(slot) && !other.owns(slot));
        assert!(Slots::of_this_host().unwrap().contains(&slot));
        let socket = names::socket().unwrap();
        let error = names::listen(&socket, Name::Slot(slot)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EADDRINUSE));
        one.release(slot);
        assert!(!one.owns(slot) && one.owned().is_empty());
        names::listen_patiently(&socket, Name::Slot(slot)).unwrap();
    }

    #[test]
    fn many_slots_and_all_of_them_go() {
        let before = Slots::of_this_host().unwrap().len();
        let slots = Slots::open().unwrap();
        let mut taken: Vec<_> = (0..100).map(|_| slots.take().unwrap()).collect();
        taken.sort_unstable();
        assert_eq!(slots.owned(), taken);
        assert!(Slots::of_this_host().unwrap().len() >= before.min(1) + 100 - 1);
        drop(slots);
        let left = Slots::of_this_host().unwrap();
        // Another test may have taken one of them by now, but hardly many.
        assert!(taken.iter().filter(|slot| left.contains(slot)).count() < 10);
    }
}
