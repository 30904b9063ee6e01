//! The connection manager of this process: ids with addresses and ports, the messages of [`::cm`] between the general service interfaces (queue
//! pair 1) of hosts, and events on channels that programs wait for. Queue pairs are not touched here: whoever takes an event sees to its own.

mod bindings;
mod death;
mod dispatch;
mod error;
mod event;
mod id;
mod mad;
mod record;
mod refusal;
mod route;

pub use error::CmError;
pub use event::{Body, ConnectionBody, DatagramBody, Event, EventChannel, EventKind};
pub use id::{ConnectParameters, Id, IdOption, MAX_READS};
pub use record::UDP_QKEY;
pub use route::PathFacts;

use crate::device::Device;
use crate::nic::{Nic, lock};
use crate::timers::Alarm;
use bindings::Bindings;
use link::slots::Slot;
use link::wills::Will;
use record::Record;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use transport::Time;
use wire::cm::{CmDatagram, CommId};
use wire::{Gid, Qpn};

/// The connection manager of a NIC. One lock for all of it: connections are made seldom, compared with what goes over them.
#[derive(Debug)]
pub(crate) struct Cm {
    inner: Mutex<Inner>,
    next_key: AtomicU64,
}

pub(crate) struct Inner {
    manager: ::cm::Manager,
    records: HashMap<u64, Record>,
    communications: HashMap<CommId, u64>,
    listeners: HashMap<::cm::ListenerId, u64>,
    bindings: Bindings,
    /// The deadline that stands in the NIC's timers.
    alarm: Alarm,
    /// Counts the packets that carry messages.
    psn: u32,
    will: Will,
    /// When to look for somebody to leave it to.
    search: Option<Time>,
    last_words: Vec<death::LastWords>,
    /// Connections whose end is to be told, and when.
    farewells: VecDeque<(Time, u64)>,
    /// Ids that were looked at: their last reference must not go while the lock is held.
    leaving: Vec<Arc<Id>>,
    /// Channels whose observers are to be told, once the lock is let go.
    told: Vec<Arc<EventChannel>>,
}

impl Cm {
    /// The communication ids of this process are those of a slot of its own.
    pub fn new(slot: Slot) -> Cm {
        let (first, last) = (slot.communication(1), slot.communication(Slot::COMMUNICATIONS - 1));
        let config = ::cm::Config::new(first, last, link::random());
        Cm {
            inner: Mutex::new(Inner {
                manager: ::cm::Manager::new(config),
                records: HashMap::new(),
                communications: HashMap::new(),
                listeners: HashMap::new(),
                bindings: Bindings::default(),
                alarm: Alarm::default(),
                psn: link::random() as u32,
                will: Will::default(),
                search: None,
                last_words: Vec::new(),
                farewells: VecDeque::new(),
                leaving: Vec::new(),
                told: Vec::new(),
            }),
            next_key: AtomicU64::new(1),
        }
    }

    fn new_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// Does something with everything locked, then sends and tells what follows from it.
    fn with<R>(&self, nic: &Nic, work: impl FnOnce(&mut Inner, Time) -> R) -> R {
        let now = nic.now();
        let mut inner = lock(&self.inner);
        inner.manager.set_tracing(nic.trace.is_on());
        let answer = work(&mut inner, now);
        inner.pump(nic, now);
        let leaving = std::mem::take(&mut inner.leaving);
        let told = std::mem::take(&mut inner.told);
        drop(inner);
        drop(leaving);
        told.iter().for_each(|channel| channel.announce());
        answer
    }

    fn read<R>(&self, key: u64, look: impl FnOnce(&Record) -> R) -> Option<R> {
        lock(&self.inner).records.get(&key).map(look)
    }

    /// Takes messages that arrived.
    pub fn receive(&self, nic: &Nic, messages: &[(::cm::Route, CmDatagram)]) {
        if messages.is_empty() {
            return;
        }
        self.with(nic, |inner, now| {
            for (route, datagram) in messages {
                if inner.is_hasty(now, datagram) {
                    continue;
                }
                inner.manager.handle(now, *route, datagram);
                // Told in the order in which they came.
                inner.tell_all(nic);
            }
        });
    }

    /// Whether the program uses it.
    pub fn has_ids(&self) -> bool {
        !lock(&self.inner).records.is_empty()
    }

    /// An entry of the NIC's timers came up: a deadline has come, perhaps.
    pub fn wake(&self, nic: &Nic, entry: Time) {
        self.with(nic, |inner, now| {
            if inner.alarm.comes_up(entry) && inner.manager.poll_timeout().is_some_and(|deadline| deadline <= now) {
                inner.manager.handle_timeout(now);
            }
        });
    }

    /// A device is gone: its ids hear of it.
    pub fn device_gone(&self, nic: &Nic, device: &Arc<Device>) {
        self.with(nic, |inner, _| {
            let on_it =
                |record: &&Record| record.place.as_ref().is_some_and(|place| Arc::ptr_eq(&place.device, device));
            let Inner { records, told, .. } = inner;
            for record in records.values().filter(on_it) {
                let _ = record.tell(EventKind::DeviceRemoval, 0, Body::None);
                told.push(Arc::clone(&record.channel));
            }
        });
    }

    /// Ends an id.
    fn destroy(&self, nic: &Arc<Nic>, key: u64) {
        let record = self.with(nic, |inner, now| {
            let mut record = inner.records.remove(&key)?;
            record.let_go_of_peer(nic);
            if let Some(at) = record.bequeathed {
                inner.will.strike(at);
            }
            if let Some(listener) = record.listener {
                inner.listeners.remove(&listener);
                inner.manager.stop_listening(now, listener);
            }
            if let Some(communication) = record.communication {
                inner.communications.remove(&communication);
                // Unknown if it has ended already.
                let _ = inner.manager.abandon(now, communication);
            }
            if let (true, Some(source)) = (record.bound, record.source) {
                inner.bindings.release(record.space, source.port(), key);
            }
            Some(record)
        });
        let Some(record) = record else { return };
        // Outside the lock: requests that nobody took end with their ids.
        drop(record.channel.extract(|event| id::belongs(event, key)));
    }

    /// Says goodbye to all peers, because the process ends, and gives them a moment to say that they heard. Whoever holds the lock may be the one who
    /// ends the process: then nothing is said.
    pub fn leave(&self, nic: &Nic) {
        let last = nic.now() + GOODBYE;
        while nic.now() < last {
            match self.inner.try_lock() {
                Ok(mut inner) => {
                    let now = nic.now();
                    inner.manager.abandon_all(now);
                    inner.will.revoke();
                    inner.pump(nic, now);
                    if inner.manager.live() == 0 || now >= last {
                        return;
                    }
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Poisoned(_)) => return,
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
            nic.progress();
        }
    }
}

/// How long a process that ends waits for its peers: long enough to say it twice.
const GOODBYE: std::time::Duration = std::time::Duration::from_millis(300);

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("records", &self.records).finish_non_exhaustive()
    }
}

impl Inner {
    fn record(&mut self, key: u64) -> Result<&mut Record, CmError> {
        self.records.get_mut(&key).ok_or(CmError::Invalid("the id is destroyed"))
    }

    /// Remembers to tell the observer of an id's channel, if it has one.
    fn note(&mut self, key: u64) {
        if let Some(record) = self.records.get(&key)
            && record.channel.has_news()
        {
            self.told.push(Arc::clone(&record.channel));
        }
    }

    /// Sends what is to be sent and tells what is to be told, until there is nothing.
    fn pump(&mut self, nic: &Nic, now: Time) {
        loop {
            while let Some(transmit) = self.manager.poll_transmit() {
                self.psn = self.psn.wrapping_add(1);
                mad::send(nic, &transmit.route, &transmit.datagram, self.psn);
            }
            if !self.tell_all(nic) {
                break;
            }
        }
        while let Some(event) = self.manager.poll_trace() {
            nic.trace.record(&event);
        }
        let answers = self.manager.poll_timeout();
        let deadlines =
            [answers, self.tell_farewells(now), self.entrust_will(nic, now), self.speak_for_the_dead(nic, now)];
        if let Some(deadline) = deadlines.into_iter().flatten().min().map(|deadline| deadline.max(now))
            && self.alarm.advances_to(deadline)
        {
            nic.wake_at(deadline, Qpn::GSI);
        }
    }
}

/// Which requests a listener wants, by the address they were sent to.
fn filter(address: SocketAddr, only_its_family: bool) -> (Option<IpAddr>, ::cm::Families) {
    let families = match address {
        SocketAddr::V4(_) => ::cm::Families::V4,
        SocketAddr::V6(_) if only_its_family => ::cm::Families::V6,
        SocketAddr::V6(_) => ::cm::Families::Both,
    };
    (Some(address.ip()).filter(|ip| !ip.is_unspecified()), families)
}

/// From whom to whom a message goes.
fn route_of(source: Gid, destination: Gid) -> ::cm::Route {
    ::cm::Route { source, destination }
}
