//! The forwarding side: connections to owners, opened when first needed and kept, and a message under construction for
//! each name. A process has many names, and one connection leads to it, by whichever name it was reached first: so what
//! is sent to it arrives in the order in which it was sent.

use super::all_slots::AllSlots;
use super::message;
use crate::arrival::{Arrival, Origin};
use crate::descriptor::{Descriptor, check_length};
use crate::holders::own_uid;
use crate::names::{self, Name, PORTS_PER_BLOCK, Peer};
use crate::slot::Slot;
use crate::thread::Shield;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::time::{Duration, Instant};
use wire::cm::PortSpace;

/// How many connections are kept. Programs have few descriptors; the one least used makes room.
const MAX_KEPT_CONNECTIONS: usize = 128;

/// Names whose owner is remembered. A process may have many ports.
const MAX_KNOWN_NAMES: usize = 4096;

/// How much an owner may leave unread; the kernel grants what the system allows (`net.core.wmem_max`).
const UNREAD_BYTES_MAX: libc::c_int = 4 << 20;

/// How long a connection is believed to lead to the present owner of the name. A child that was forked while its parent
/// accepted can hold the connection of an owner that has ended open.
const OWNER_CACHE_TIME: Duration = Duration::from_secs(1);

/// How long a connection is believed to lead to the present owner of the name, once it takes no more packets.
const FULL_OWNER_CACHE_TIME: Duration = Duration::from_millis(20);

/// Why a packet was not forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Loss {
    /// No process has the name: the owner is gone, or never was.
    NoOwner,
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
    /// Lost: no process has the name.
    pub no_owner: u64,
    /// Lost: the owner's socket is full.
    pub full: u64,
    /// Lost: the system refused.
    pub system: u64,
}

/// How long a new owner of a slot that is another user gets nothing, from the former owner's end on, or from the first
/// packet on if that was not noticed: the former owner's peers should have given up by then.
const NEW_OWNER_QUARANTINE: Duration = Duration::from_secs(10);

/// More slots than these are not remembered.
const MAX_REMEMBERED_SLOTS: usize = 4096;

/// Which user had a slot. A name is free when its process ends, and another user may bind it at once; what still comes
/// then was meant for the former owner.
#[derive(Debug, Default)]
struct FormerOwners {
    /// The user, and when it was noticed that it has the slot no more.
    slots: HashMap<Slot, (u32, Option<Instant>)>,
}

impl FormerOwners {
    /// A process of that user has the slot.
    fn note(&mut self, slot: Slot, uid: u32) {
        if self.slots.len() < MAX_REMEMBERED_SLOTS {
            let (owner, ended) = self.slots.entry(slot).or_insert((uid, None));
            if *owner == uid {
                *ended = None;
            }
        }
    }

    /// The slots that processes of that user had, as far as is known.
    fn had_by(&self, uid: u32) -> Vec<Slot> {
        let has = |(slot, (owner, ended)): (&Slot, &(u32, Option<Instant>))| {
            (*owner == uid && ended.is_none()).then_some(*slot)
        };
        self.slots.iter().filter_map(has).collect()
    }

    /// The process that had the slot has ended. Another owner gets what comes from some time after this on, whenever it
    /// takes the slot.
    fn ended(&mut self, slot: Slot, now: Instant) {
        if let Some((_, ended)) = self.slots.get_mut(&slot) {
            ended.get_or_insert(now);
        }
        // Of those whose time is over nothing needs to be known.
        let counts = |ended: Instant| now.saturating_duration_since(ended) < NEW_OWNER_QUARANTINE;
        self.slots.retain(|_, (_, ended)| ended.is_none_or(counts));
    }

    /// Whether that user gets what comes for the slot: it had it, or what comes is not the former owner's any more.
    fn may_take_over(&mut self, slot: Slot, uid: u32, now: Instant) -> bool {
        if self.slots.len() >= MAX_REMEMBERED_SLOTS && !self.slots.contains_key(&slot) {
            return true;
        }
        let (owner, ended) = self.slots.entry(slot).or_insert((uid, None));
        if *owner != uid {
            // What comes for the new owner does not begin the wait again, or it would wait for ever.
            let since = *ended.get_or_insert(now);
            if now.saturating_duration_since(since) < NEW_OWNER_QUARANTINE {
                return false;
            }
            *owner = uid;
        }
        *ended = None;
        true
    }
}

/// Passes packets on to other processes of this host. Nothing is sent before [`flush`](Forwarder::flush), or before a
/// message is full.
#[derive(Debug, Default)]
pub struct Forwarder {
    connections: HashMap<Owner, Connection>,
    /// Which process has a name, as found out lately.
    ways: HashMap<Name, Way>,
    /// Ports whose own name no process had, and when that was found out.
    vacant: HashMap<Name, Instant>,
    /// Messages under construction.
    messages: Vec<(Name, Vec<u8>)>,
    buffers: Vec<Vec<u8>>,
    former: FormerOwners,
    all_slots: AllSlots,
    uses: u64,
    forwarded: Forwarded,
}

/// A process, as far as the kernel tells one from another. One in a foreign namespace of processes has no number here,
/// and parts of our own process may each have names: then every name stands for itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Owner {
    process: Peer,
    name: Option<Name>,
}

impl Owner {
    fn of(name: Name, process: Peer) -> Owner {
        let is_told_apart = process.pid > 0 && !process.is_this_process();
        Owner { process, name: (!is_told_apart).then_some(name) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Way {
    owner: Owner,
    /// When the owner was last seen to have the name.
    verified: Instant,
}

#[derive(Debug)]
struct Connection {
    socket: Descriptor,
    used: u64,
}

impl Forwarder {
    /// One without connections.
    pub fn new() -> Forwarder {
        Forwarder::default()
    }

    /// Processes of our own user have these slots: if one of them ends, what is under way for it is not for another user.
    /// Those that had others, and have ended, are not remembered for ever: slots are few, and a process may live long.
    pub fn note_own(&mut self, slots: Vec<Slot>, now: Instant) {
        if slots.is_empty() {
            return;
        }
        let uid = own_uid();
        for slot in self.former.had_by(uid) {
            // One that is stopped answers no probe, and has its slot.
            let has_it =
                || !matches!(names::owner(Name::Slot(slot)), Ok(owner) if owner.is_none_or(|owner| owner.uid != uid));
            if !slots.contains(&slot) && !has_it() {
                self.former.ended(slot, now);
            }
        }
        slots.into_iter().for_each(|slot| self.former.note(slot, uid));
    }

    /// What it has done.
    pub fn forwarded(&self) -> Forwarded {
        self.forwarded
    }

    /// Whether a process has this name.
    pub fn reaches(&mut self, name: Name) -> bool {
        self.ways.contains_key(&name) || self.connect(name, Instant::now()).is_ok()
    }

    /// The names by which a port is reached, in the order in which they are to be tried: its own, then its block's. The
    /// block's is first where it has an owner and the port's own was found to have none: while a block has an owner, no
    /// process takes a port of it by number.
    pub fn names_of_port(&self, space: PortSpace, port: u16, now: Instant) -> [Name; 2] {
        let (own, block) = (Name::Port(space, port), Name::Block(space, port / PORTS_PER_BLOCK));
        let looked = self.vacant.get(&own).filter(|_| self.ways.contains_key(&block));
        match looked.is_some_and(|looked| now.saturating_duration_since(*looked) < OWNER_CACHE_TIME) {
            true => [block, own],
            false => [own, block],
        }
    }

    /// The slots of all processes of this host, for a packet that does not name its own; none if there were too many
    /// such packets lately.
    pub fn all_slots(&mut self, now: Instant) -> Option<BTreeSet<Slot>> {
        self.all_slots.slots(now)
    }

    /// Puts a packet into the message for the owner of `name`. Packets that are lost on the way are told to `lost`,
    /// which may include earlier ones.
    pub fn push(&mut self, name: Name, arrival: &Arrival<'_>, mut lost: impl FnMut(&Arrival<'_>, Loss)) {
        let _shield = Shield::up();
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

    /// Gives a message of this process itself to the owner of `name`, at once.
    pub fn tell(&mut self, name: Name, arrival: &Arrival<'_>) -> Result<(), Loss> {
        let _shield = Shield::up();
        let mut bytes = self.buffers.pop().unwrap_or_default();
        let arrival = Arrival { origin: Origin::Local, ..*arrival };
        let answer = match message::append(&mut bytes, &arrival) {
            true => self.deliver(name, &bytes),
            false => Err(Loss::System),
        };
        match answer {
            Ok(()) => {
                self.forwarded.packets += 1;
                self.forwarded.messages += 1;
            }
            Err(loss) => self.lose(loss, 1),
        }
        bytes.clear();
        self.buffers.push(bytes);
        answer
    }

    /// Sends what was put together.
    pub fn flush(&mut self, mut lost: impl FnMut(&Arrival<'_>, Loss)) {
        let _shield = (!self.messages.is_empty()).then(Shield::up);
        let mut messages = std::mem::take(&mut self.messages);
        for (name, mut bytes) in messages.drain(..) {
            if !bytes.is_empty() {
                self.send(name, &bytes, &mut lost);
            }
            bytes.clear();
            self.buffers.push(bytes);
        }
        self.messages = messages;
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
            Loss::NoOwner => self.forwarded.no_owner += count,
            Loss::Full => self.forwarded.full += count,
            Loss::System => self.forwarded.system += count,
        }
    }

    fn deliver(&mut self, name: Name, bytes: &[u8]) -> Result<(), Loss> {
        let now = Instant::now();
        self.uses += 1;
        self.verify(name, now, OWNER_CACHE_TIME);
        // An owner that has gone leaves a broken connection; the name may have a new owner already. Two tries find that
        // out.
        let mut loss = Loss::NoOwner;
        for _ in 0..2 {
            let owner = match self.ways.get(&name) {
                Some(way) => way.owner,
                None => self.connect(name, now)?,
            };
            let Some(connection) = self.connections.get_mut(&owner) else { return Err(Loss::System) };
            connection.used = self.uses;
            match send(&connection.socket, bytes) {
                Ok(()) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                        if !self.verify(name, now, FULL_OWNER_CACHE_TIME) {
                            return Err(Loss::Full);
                        }
                        loss = Loss::Full;
                    }
                    _ => self.close_ended(owner, now),
                },
            }
        }
        Err(loss)
    }

    /// Forgets who has a name if that is not the present owner, and says so.
    fn verify(&mut self, name: Name, now: Instant, belief: Duration) -> bool {
        let Some(way) = self.ways.get_mut(&name) else { return false };
        if now.saturating_duration_since(way.verified) < belief {
            return false;
        }
        way.verified = now;
        let owner = way.owner;
        match names::owner(name) {
            Ok(Some(peer)) if peer == owner.process => false,
            // Stopped with a full backlog, or no descriptors to ask with: nothing was learnt.
            Err(_) => false,
            Ok(_) => {
                self.ways.remove(&name);
                name.slot().into_iter().for_each(|slot| self.former.ended(slot, now));
                // Without a name that leads there it may be the connection of a process that has ended.
                if !self.ways.values().any(|way| way.owner == owner) {
                    self.connections.remove(&owner);
                }
                true
            }
        }
    }

    fn close(&mut self, owner: Owner) {
        self.connections.remove(&owner);
        self.ways.retain(|_, way| way.owner != owner);
    }

    /// Closes the connection to a process that has ended.
    fn close_ended(&mut self, owner: Owner, now: Instant) {
        let names = self.ways.iter().filter(|(_, way)| way.owner == owner);
        for slot in names.filter_map(|(name, _)| name.slot()).collect::<Vec<_>>() {
            self.former.ended(slot, now);
        }
        self.close(owner);
    }

    /// Closes the connections whose other end has gone. A server whose clients come and go would keep one for each of
    /// the last [`MAX_KEPT_CONNECTIONS`], and a program has few descriptors.
    fn forget_ended(&mut self, now: Instant) {
        let descriptor = |connection: &Connection| connection.socket.raw();
        let ask = |fd| libc::pollfd { fd, events: 0, revents: 0 };
        let mut asked: Vec<libc::pollfd> = self.connections.values().map(descriptor).map(ask).collect();
        // SAFETY: as many entries as it says, live until it returns, which is at once.
        let ended = unsafe { libc::poll(asked.as_mut_ptr(), asked.len() as libc::nfds_t, 0) };
        if ended > 0 {
            let has_ended = |fd| asked.iter().any(|asked| asked.fd == fd && asked.revents != 0);
            let ended = self.connections.iter().filter(|(_, connection)| has_ended(connection.socket.raw()));
            for owner in ended.map(|(owner, _)| *owner).collect::<Vec<_>>() {
                self.close_ended(owner, now);
            }
        }
    }

    fn note_vacant(&mut self, name: Name, now: Instant) {
        if let Name::Port(..) = name {
            if self.vacant.len() >= MAX_KNOWN_NAMES {
                self.vacant.clear();
            }
            self.vacant.insert(name, now);
        }
    }

    /// Finds out who has a name, and connects, unless a connection leads there already.
    fn connect(&mut self, name: Name, now: Instant) -> Result<Owner, Loss> {
        let (socket, process) = names::connect_to_owner(name).map_err(|error| match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => {
                self.note_vacant(name, now);
                Loss::NoOwner
            }
            Some(libc::EAGAIN) => Loss::Full,
            _ => Loss::System,
        })?;
        if let Some(slot) = name.slot()
            && !self.former.may_take_over(slot, process.uid, now)
        {
            return Err(Loss::NoOwner);
        }
        self.forget_ended(now);
        let owner = Owner::of(name, process);
        if !self.connections.contains_key(&owner) {
            let (backlog, size) = (UNREAD_BYTES_MAX, size_of::<libc::c_int>() as libc::socklen_t);
            // SAFETY: the value is a live `c_int` of the size given. If it is refused the stock buffer has to do.
            unsafe {
                libc::setsockopt(socket.raw(), libc::SOL_SOCKET, libc::SO_SNDBUF, (&raw const backlog).cast(), size);
            }
            if self.connections.len() >= MAX_KEPT_CONNECTIONS {
                let oldest = self.connections.iter().min_by_key(|(_, connection)| connection.used);
                if let Some(oldest) = oldest.map(|(owner, _)| *owner) {
                    self.close(oldest);
                }
            }
            self.connections.insert(owner, Connection { socket, used: self.uses });
        }
        if self.ways.len() >= MAX_KNOWN_NAMES {
            self.ways.clear();
        }
        self.ways.insert(name, Way { owner, verified: now });
        Ok(owner)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Slots;

    #[test]
    fn another_user_waits_for_a_slot_and_not_for_ever() {
        let (mut owners, slot, start) = (FormerOwners::default(), Slot::new(7).unwrap(), Instant::now());
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert!(owners.may_take_over(slot, 1, at(0)));
        assert!(owners.may_take_over(slot, 1, at(1)), "the same user again");
        // Packets come all the time, and the wait ends all the same.
        for second in 5..15 {
            assert!(!owners.may_take_over(slot, 2, at(second * 1000)), "{second} s");
        }
        assert!(owners.may_take_over(slot, 2, at(15_000)));
        assert!(owners.may_take_over(slot, 2, at(15_001)));
        assert!(!owners.may_take_over(slot, 1, at(15_002)), "the first user is now another one");
        assert!(owners.may_take_over(Slot::new(8).unwrap(), 2, at(15_002)), "nobody had this one");
    }

    #[test]
    fn a_slot_whose_owner_ended_long_ago_is_the_next_users_at_once() {
        let (mut owners, start) = (FormerOwners::default(), Instant::now());
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let slots = [7, 8, 9].map(|number| Slot::new(number).unwrap());
        slots.iter().for_each(|slot| owners.note(*slot, 1));
        assert_eq!(owners.had_by(1).len(), 3);
        slots.iter().for_each(|slot| owners.ended(*slot, at(0)));
        assert!(owners.had_by(1).is_empty() && owners.had_by(2).is_empty());
        assert!(!owners.may_take_over(slots[0], 2, at(9_000)), "the former owner's peers may not have given up");
        assert!(owners.may_take_over(slots[0], 2, at(10_000)));
        assert!(owners.may_take_over(slots[1], 2, at(3_600_000)), "the first packet after an hour");
        // It was taken by the same user again.
        owners.note(slots[2], 1);
        assert!(!owners.may_take_over(slots[2], 2, at(3_600_000)));
        // What is over is not kept.
        owners.ended(slots[2], at(3_600_000));
        owners.ended(slots[2], at(7_200_000));
        assert!(!owners.slots.contains_key(&slots[2]));
    }

    #[test]
    fn a_connection_whose_other_end_has_gone_is_closed() {
        let (slots, mut forwarder) = (Slots::open().unwrap(), Forwarder::new());
        for _ in 0..5 {
            let slot = slots.take().unwrap();
            assert!(forwarder.reaches(Name::Slot(slot)));
            assert_eq!(forwarder.connections.len(), 1, "those before have ended");
            slots.release(slot);
        }
        let (one, two) = (slots.take().unwrap(), slots.take().unwrap());
        for slot in [one, two, one] {
            assert!(forwarder.reaches(Name::Slot(slot)));
        }
        assert_eq!(forwarder.connections.len(), 2, "these live");
    }
}
