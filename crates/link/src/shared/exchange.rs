//! How two processes come by a link: the process that wants to write makes the ring and offers it on a connection to
//! the other's slot; the other answers with its bell, when it gets to it. Nothing here ever waits: a process that is
//! stopped accepts connections and answers none. The connection stays, and its end is the end of the link; so is the
//! end of the process, even if another process holds the connection open.

use super::direct::Published;
use super::doorbell::{Doorbell, PeerDoorbell};
use super::link::{Heard, Inbound, Outbound, State};
use super::ring::{LARGE_RING_BYTES, Reader, SMALL_RING_BYTES, Writer};
use crate::dropped::Drops;
use host::descriptor::Descriptor;
use host::event_set::EventSet;
use host::holders;
use host::names::{self, Name};
use host::offer::Offer;
use host::slots::{Registry, Slot, Slots};
use host::{greeting, passing};
use latch::{Apart, Mutex, Rank, RwLock, STRIPE_COUNT};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use wire::Qpn;

/// Rings we write that may be large: with these and the small ones 64 processes that all talk to one another stay below
/// a gigabyte.
const LARGE_RINGS: usize = 4;

/// The lanes to one process, and up to how many rings of ours there are several.
const LANES_PER_PROCESS: u32 = 8;
const FEW_RINGS: usize = 16;

/// The most rings of others that we read.
const MOST_INBOUND: usize = 4096;

/// What has become of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It is up, or will never be: the queue pairs that wait can go on.
    Decided,
    /// The other process has gone.
    Died,
}

/// The links of this process.
#[derive(Debug)]
pub struct Exchange {
    registry: Arc<Registry>,
    doorbell: Arc<Doorbell>,
    /// Our connections; in the registry's set in turn.
    set: EventSet,
    /// Whether links are wanted at all.
    willing: bool,
    /// What peers may reach of our memory; then we ask for theirs, too.
    published: OnceLock<Arc<Published>>,
    links: Mutex<Links>,
    /// The rings that are read, the same list several times: threads that poll look at one each.
    inbound: [Apart<RwLock<Vec<Arc<Inbound>>>>; STRIPE_COUNT],
    /// How many there are.
    inbound_count: AtomicU32,
    /// Links that queue pairs wait for.
    stalled: Mutex<Vec<Arc<Outbound>>>,
    stalled_count: AtomicU32,
    /// What went no further while faults strike.
    pub(super) drops: Mutex<Drops>,
}

#[derive(Debug, Default)]
struct Links {
    next_key: u64,
    outbound: HashMap<(Slot, u32), Arc<Outbound>>,
    watched: HashMap<u64, Watched>,
}

#[derive(Clone, Debug)]
enum Watched {
    /// The connection of a link.
    Outbound(Arc<Outbound>),
    /// The process at its end.
    Process(Arc<Outbound>),
    Inbound(Arc<Inbound>),
}

/// Whether the system has no memory to share, or forbids it, as sandboxes and limits of file sizes do.
fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EFBIG))
}

impl Exchange {
    /// The links of the process that has these slots; there should be one. If it is not `willing` it offers none and
    /// refuses all.
    pub fn new(slots: &Slots, willing: bool) -> io::Result<Exchange> {
        let set = EventSet::new()?;
        let (doorbell, willing) = match willing.then(|| Writer::may_create().and_then(|()| Doorbell::new())) {
            None => (Doorbell::private()?, false),
            Some(Err(error)) if is_forbidden(&error) => {
                host::standard_error::say(format_args!(
                    "no shared memory ({error}): processes of this host are reached over UDP"
                ));
                (Doorbell::private()?, false)
            }
            Some(doorbell) => (doorbell?, true),
        };
        let registry = slots.registry().clone();
        registry.watch(set.raw(), Registry::EXCHANGE_KEY)?;
        Ok(Exchange {
            registry,
            doorbell: Arc::new(doorbell),
            set,
            willing,
            published: OnceLock::new(),
            links: Mutex::new(Rank::Links, Links::default()),
            inbound: std::array::from_fn(|_| Apart(RwLock::new(Rank::InboundRings, Vec::new()))),
            inbound_count: AtomicU32::new(0),
            stalled: Mutex::new(Rank::StalledLinks, Vec::new()),
            stalled_count: AtomicU32::new(0),
            drops: Mutex::new(Rank::LinkDrops, Drops::default()),
        })
    }

    /// From now on peers may ask for what is published, and are asked.
    pub fn publish(&self, published: Arc<Published>) {
        let _ = self.published.set(published);
    }

    /// Whether links are wanted at all.
    pub fn is_willing(&self) -> bool {
        self.willing
    }

    /// What others see of us.
    pub fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// The link to the process that has `slot`, begun if there is none; nothing if that process is not of our user, or
    /// not there, or if the system has no memory for it. A caller that wants a link that others use less names a
    /// `lane`, of which there are several as long as there are few links.
    pub fn reach(&self, slot: Slot, lane: u32) -> Option<Arc<Outbound>> {
        if !self.willing {
            return None;
        }
        let mut links = self.links.lock();
        let lane = lane % LANES_PER_PROCESS;
        // A link whose peer has ended leads to the slot's former owner until `serve` hears of the end.
        let is_open = |link: &&Arc<Outbound>| !link.peer_has_ended();
        let known = |links: &Links, lane| links.outbound.get(&(slot, lane)).filter(is_open).map(Arc::clone);
        let few = links.outbound.len() < FEW_RINGS;
        let lane = if few || links.outbound.contains_key(&(slot, lane)) { lane } else { 0 };
        known(&links, lane).or_else(|| self.connect(&mut links, slot, lane).ok())
    }

    fn connect(&self, links: &mut Links, slot: Slot, lane: u32) -> io::Result<Arc<Outbound>> {
        let (socket, peer) = names::converse_with_owner(Name::Slot(slot), |peer| holders::is_our_user(peer.uid))?;
        let size = if links.outbound.len() < LARGE_RINGS { LARGE_RING_BYTES } else { SMALL_RING_BYTES };
        let (writer, memory) = Writer::create(size)?;
        passing::send(&socket, &greeting::of(greeting::RING_OFFER), &[std::os::fd::AsRawFd::as_raw_fd(&memory)])?;
        let process = (peer.pid as u32 != std::process::id()).then(|| watch_process(peer.pid)).flatten();
        let outbound = Arc::new(Outbound::new((slot, lane), socket, (peer.pid, process), writer));
        self.watch(links, outbound.socket.raw(), Watched::Outbound(Arc::clone(&outbound)))?;
        if let Some(process) = &outbound.process {
            self.watch(links, process.raw(), Watched::Process(Arc::clone(&outbound)))?;
        }
        links.outbound.insert((slot, lane), Arc::clone(&outbound));
        Ok(outbound)
    }

    fn watch(&self, links: &mut Links, fd: RawFd, what: Watched) -> io::Result<()> {
        links.next_key += 1;
        let key = links.next_key;
        self.set.add(fd, key)?;
        links.watched.insert(key, what);
        Ok(())
    }

    fn unwatch(&self, links: &mut Links, key: u64, fd: RawFd) {
        self.set.remove(fd);
        links.watched.remove(&key);
    }

    /// Whether another process has called: then [`serve`](Exchange::serve).
    #[inline]
    pub fn is_called(&self) -> bool {
        self.registry.is_called()
    }

    /// Whether trains come from other processes this way.
    #[inline]
    pub fn has_inbound(&self) -> bool {
        self.inbound_count.load(Ordering::Relaxed) > 0
    }

    /// Does what there is to do on the connections, without waiting, and tells what has become of links. Answers how
    /// many rings of other processes were refused.
    pub fn serve(&self, mut tell: impl FnMut(&Arc<Outbound>, Change)) -> u32 {
        self.registry.answered();
        let mut refused = 0;
        for offer in self.registry.take_offers() {
            // The process that made the offer learns from the end of the connection that nothing came of it.
            refused += u32::from(!self.accept(offer).unwrap_or(false));
        }
        for key in self.set.ready().unwrap_or_default().iter() {
            let watched = self.links.lock().watched.get(&key).cloned();
            match watched {
                Some(Watched::Outbound(outbound)) => {
                    if let Some(change) = self.hear(key, &outbound) {
                        tell(&outbound, change);
                    }
                }
                Some(Watched::Process(outbound)) => {
                    self.end_link(&outbound, State::Dead);
                    tell(&outbound, Change::Died);
                }
                Some(Watched::Inbound(inbound)) => self.hear_writer(key, &inbound),
                None => {}
            }
        }
        refused
    }

    /// Takes an offer, or refuses it, and says which.
    fn accept(&self, offer: Offer) -> io::Result<bool> {
        let Offer { socket, uid, descriptors } = offer;
        let ring = descriptors.first().filter(|_| self.willing && holders::is_our_user(uid));
        let full = self.inbound_count.load(Ordering::Relaxed) as usize >= MOST_INBOUND;
        let Some(Ok(reader)) = ring.filter(|_| !full).map(|ring| Reader::accept(ring.as_fd())) else {
            return passing::send(&socket, &greeting::of(greeting::RING_REFUSAL), &[]).map(|_| false);
        };
        let writer = names::peer(&socket)?.pid;
        let inbound = Arc::new(Inbound::new(socket, writer, reader, self.published.get().cloned()));
        self.watch(&mut self.links.lock(), inbound.socket.raw(), Watched::Inbound(Arc::clone(&inbound)))?;
        // Before the answer: the first train may come right after it. Not under the lock of the links: a thread that
        // reads rings waits for a queue pair, and a queue pair that looks for its way waits for the links.
        self.change_inbound(|list| list.push(Arc::clone(&inbound)));
        let Doorbell { memory, bells: [engine, caller], .. } = &*self.doorbell;
        let descriptors = [memory.raw(), engine.raw(), caller.raw()];
        let answer = passing::send(&inbound.socket, &greeting::of(greeting::RING_WELCOME), &descriptors);
        if answer.is_err() {
            self.drop_inbound(&inbound);
        }
        answer.map(|_| true)
    }

    fn change_inbound(&self, change: impl Fn(&mut Vec<Arc<Inbound>>)) {
        for list in &self.inbound {
            let mut list = list.0.write();
            change(&mut list);
            self.inbound_count.store(list.len() as u32, Ordering::Relaxed);
        }
    }

    /// Something came on the connection of a link that we write.
    fn hear(&self, key: u64, outbound: &Arc<Outbound>) -> Option<Change> {
        let (mut bytes, mut descriptors) = ([0; 16], Vec::new());
        let answer = passing::receive(&outbound.socket, &mut bytes, &mut descriptors);
        let state = outbound.state();
        let kind = match answer {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => return None,
            Ok(8) => greeting::kind(&bytes[..8]),
            Ok(16) => greeting::number(&bytes).map(|(kind, _)| kind),
            _ => None,
        };
        match (state, kind) {
            (State::Connecting, Some(greeting::RING_WELCOME)) => {
                let mut descriptors = descriptors.into_iter();
                let doorbell = match (descriptors.next(), descriptors.next(), descriptors.next()) {
                    (Some(memory), Some(engine), Some(caller)) => {
                        PeerDoorbell::accept(memory.as_fd(), [engine, caller]).ok()
                    }
                    _ => None,
                };
                match doorbell {
                    Some(doorbell) => {
                        let _ = outbound.doorbell.set(doorbell);
                        outbound.enter(State::Up);
                        if self.published.get().is_some() {
                            let inquiry = greeting::numbered(greeting::DIRECT_INQUIRY, 0);
                            let _ = passing::send(&outbound.socket, &inquiry, &[]);
                        }
                    }
                    None => self.end_link(outbound, State::Refused),
                }
                Some(Change::Decided)
            }
            (State::Up, Some(greeting::ROOM_NOTICE)) => None,
            (State::Up, Some(kind @ (greeting::DIRECT_PLACE | greeting::DIRECT_GRANT))) => {
                // Where it cannot be had, packets go on to do.
                let number = greeting::number(&bytes).map_or(0, |(_, number)| number);
                let _ = match descriptors.pop().filter(|_| kind == greeting::DIRECT_GRANT) {
                    Some(memory) => outbound.take_memory(memory, descriptors.pop(), number),
                    None => outbound.ask_for_memory(number),
                };
                None
            }
            (State::Connecting, _) => {
                self.end_link(outbound, State::Refused);
                Some(Change::Decided)
            }
            (State::Up, _) => {
                self.end_link(outbound, State::Dead);
                Some(Change::Died)
            }
            (State::Refused | State::Dead, _) => {
                self.unwatch(&mut self.links.lock(), key, outbound.socket.raw());
                None
            }
        }
    }

    /// Something came on the connection of a link that we read: memory, or the end.
    fn hear_writer(&self, key: u64, inbound: &Arc<Inbound>) {
        if inbound.hear() == Heard::End {
            self.unwatch(&mut self.links.lock(), key, inbound.socket.raw());
            inbound.end();
        }
    }

    /// The link is no more.
    pub fn end_link(&self, outbound: &Arc<Outbound>, state: State) {
        outbound.enter(state);
        let mut links = self.links.lock();
        if links.outbound.get(&outbound.place()).is_some_and(|other| Arc::ptr_eq(other, outbound)) {
            links.outbound.remove(&outbound.place());
        }
        let ours = |watched: &Watched| match watched {
            Watched::Outbound(other) | Watched::Process(other) => Arc::ptr_eq(other, outbound),
            Watched::Inbound(_) => false,
        };
        let keys: Vec<u64> = links.watched.iter().filter(|(_, watched)| ours(watched)).map(|(key, _)| *key).collect();
        for key in keys {
            let fd = match links.watched.get(&key) {
                Some(Watched::Process(_)) => outbound.process.as_ref().map_or(-1, Descriptor::raw),
                _ => outbound.socket.raw(),
            };
            self.unwatch(&mut links, key, fd);
        }
    }

    /// Whether there is a ring to look at. None if that cannot be told without taking a lock.
    #[inline]
    pub fn glance(&self, alone: &latch::Alone) -> Option<bool> {
        let list = &self.inbound[latch::stripe()].0;
        list.look(alone, |list| list.iter().any(|inbound| inbound.wants_reading() || inbound.has_ended()))
    }

    /// Whether there is a ring to look at.
    pub(super) fn has_something(&self) -> bool {
        let list = self.inbound[latch::stripe()].0.read();
        list.iter().any(|inbound| inbound.wants_reading() || inbound.has_ended())
    }

    /// Shows every ring that has something, and those whose writer has gone; for a thread that polls and is in a hurry
    /// only those that are not another's.
    #[inline]
    pub fn each_with_something(&self, alone: Option<&latch::Alone>, hurry: bool, mut show: impl FnMut(&Arc<Inbound>)) {
        if !self.has_inbound() {
            return;
        }
        let mut each = |list: &Vec<Arc<Inbound>>| {
            let mut ended = false;
            for inbound in list {
                // In this order: what another thread reads is not even looked at, or its line would come here.
                if !(hurry && inbound.is_anothers()) && inbound.wants_reading() {
                    show(inbound);
                }
                ended |= inbound.has_ended();
            }
            ended
        };
        let list = &self.inbound[latch::stripe()].0;
        let ended = alone.and_then(|alone| list.look(alone, &mut each)).unwrap_or_else(|| each(&list.read()));
        if ended {
            // What a process wrote before it ended counts.
            self.change_inbound(|list| list.retain(|inbound| !inbound.has_ended() || inbound.has_something()));
        }
    }

    /// What was remembered about trains may no longer be so, and must not be kept.
    pub fn forget_notes(&self) {
        let list = self.inbound[0].0.read();
        list.iter().for_each(|inbound| inbound.forget_notes());
    }

    /// The writer of a ring does not keep to the rules: we read it no more, and it learns of that by the end of the
    /// connection.
    pub fn drop_inbound(&self, inbound: &Arc<Inbound>) {
        let mut links = self.links.lock();
        let key = links.watched.iter().find_map(|(key, watched)| match watched {
            Watched::Inbound(other) if Arc::ptr_eq(other, inbound) => Some(*key),
            _ => None,
        });
        if let Some(key) = key {
            self.unwatch(&mut links, key, inbound.socket.raw());
        }
        drop(links);
        self.change_inbound(|list| list.retain(|other| !Arc::ptr_eq(other, inbound)));
    }

    /// `qpn` wants to go on when the link has room, or is up. Returns whether it has to wait: look at the link once
    /// more if not.
    pub fn stall(&self, outbound: &Arc<Outbound>, qpn: Qpn) {
        outbound.add_waiting(qpn);
        let mut stalled = self.stalled.lock();
        if !stalled.iter().any(|other| Arc::ptr_eq(other, outbound)) {
            stalled.push(Arc::clone(outbound));
        }
        self.stalled_count.store(stalled.len() as u32, Ordering::SeqCst);
    }

    /// Whether any queue pair waits.
    #[inline]
    pub fn has_stalled(&self) -> bool {
        self.stalled_count.load(Ordering::Relaxed) > 0
    }

    /// Lets the queue pairs go on that can; `asleep` if no thread will look again before it is woken.
    pub fn resume(&self, asleep: bool, mut go: impl FnMut(Qpn)) {
        let stalled = self.stalled.lock().clone();
        for outbound in &stalled {
            // Bounded: a queue pair that goes on may have to wait again.
            for _ in 0..64 {
                match outbound.next_waiting(asleep) {
                    Some(qpn) => go(qpn),
                    None => break,
                }
            }
        }
        let mut stalled = self.stalled.lock();
        stalled.retain(|outbound| outbound.has_waiting());
        self.stalled_count.store(stalled.len() as u32, Ordering::SeqCst);
    }
}

/// A descriptor that becomes readable when a process ends. None where the system has none, or where the process cannot
/// be seen from here.
fn watch_process(pid: i32) -> Option<Descriptor> {
    if pid <= 0 {
        return None;
    }
    Descriptor::of_process(pid).ok()
}
