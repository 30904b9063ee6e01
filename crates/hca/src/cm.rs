//! The connection manager of this process: ids with addresses and ports, the messages of [`::cm`] between the general
//! service interfaces (queue pair 1) of hosts, and events on channels that programs wait for. Queue pairs are not
//! touched here: the program that takes an event changes its own.

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
mod secret;
mod stale;

pub use error::CmError;
pub use event::{Body, ConnectionBody, DatagramBody, Event, EventChannel, EventKind};
pub use id::{ConnectParameters, Id, IdOption, MAX_READS};
pub use record::UDP_QKEY;
pub use route::PathFacts;
pub use trace::ConnectionEnd;

use crate::nic::Nic;
use crate::objects::device::Device;
use crate::progress::timers::Alarm;
use crate::tuning::{EXIT_DISCONNECT_WAIT, PROVOKED_PACKETS, STALE_SUSPICION_INTERVAL};
use ::host::connection_records::ConnectionRecords;
use ::host::slots::Slot;
use bindings::Bindings;
use latch::Rank;
use latch::plain::Mutex;
use record::{Record, Stage};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trace::DropReason;
use transport::Time;
use wire::cm::{CmDatagram, CommId, Data, Dreq, Message};
use wire::{Gid, Headers, Qpn};

/// The connection manager of a NIC. One lock for all of it: connections are made seldom, compared with what goes over
/// them.
#[derive(Debug)]
pub(crate) struct Cm {
    inner: Mutex<Inner>,
    next_key: AtomicU64,
    /// The process's slot, whose communication ids it gives out.
    slot: Slot,
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
    connection_records: ConnectionRecords,
    /// When to look for another process to keep the connection records.
    search: Option<Time>,
    dreqs_for_dead: Vec<death::DreqForDead>,
    /// Peers that may have lost their connection.
    questions: Vec<stale::Question>,
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
        let suspicion = STALE_SUSPICION_INTERVAL;
        let config =
            ::cm::Config { suspicion, ..::cm::Config::new(first, last, u128::from_ne_bytes(secret::random())) };
        Cm {
            inner: Mutex::new(
                Rank::ConnectionManager,
                Inner {
                    manager: ::cm::Manager::new(config),
                    records: HashMap::new(),
                    communications: HashMap::new(),
                    listeners: HashMap::new(),
                    bindings: Bindings::default(),
                    alarm: Alarm::default(),
                    psn: ::host::random() as u32,
                    connection_records: ConnectionRecords::default(),
                    search: None,
                    dreqs_for_dead: Vec::new(),
                    questions: Vec::new(),
                    farewells: VecDeque::new(),
                    leaving: Vec::new(),
                    told: Vec::new(),
                },
            ),
            next_key: AtomicU64::new(1),
            slot,
        }
    }

    fn new_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// Does something with everything locked, then sends and tells what follows from it.
    fn with<R>(&self, nic: &Nic, work: impl FnOnce(&mut Inner, Time) -> R) -> R {
        let now = nic.now();
        let mut inner = self.inner.lock();
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
        self.inner.lock().records.get(&key).map(look)
    }

    /// Makes a host send a few packets: its connection manager is asked to end a connection that does not exist, and
    /// answers that it has. The UDP link holds back the host's packets until there are some (`link::udp`).
    pub fn question(&self, nic: &Nic, here: Ipv4Addr, peer: Ipv4Addr) {
        let route = ::cm::Route { source: Gid::from_ipv4(here), destination: Gid::from_ipv4(peer) };
        for _ in 0..PROVOKED_PACKETS {
            let number = ::host::random();
            let message = Message::Dreq(Dreq {
                // No connection has it, and what is for it comes to this process.
                local_comm_id: self.slot.communication(0),
                remote_comm_id: CommId::new(number as u32),
                remote_qpn: Qpn::new(0),
                private_data: Data::default(),
            });
            mad::send(nic, &route, &CmDatagram::new(number, message), (number >> 32) as u32);
        }
    }

    /// The message in a packet that was sent to queue pair 1, or what is wrong with the packet; none for a datagram of
    /// another class.
    pub fn message_in(&self, headers: &Headers, payload: &[u8]) -> Result<Option<CmDatagram>, DropReason> {
        mad::read(headers, payload)
    }

    /// Takes messages that arrived.
    pub fn receive(&self, nic: &Nic, messages: &[(::cm::Route, CmDatagram)]) {
        if messages.is_empty() {
            return;
        }
        self.with(nic, |inner, now| {
            for (route, datagram) in messages {
                if inner.is_hasty(now, datagram) {
                    inner.manager.drop_message(now, datagram, DropReason::CmTooSoon);
                    continue;
                }
                // What comes from an address of this host comes from this host: the kernel takes it from no other.
                match nic.is_own_address(route.source) {
                    true => inner.manager.handle_proven(now, *route, datagram),
                    false => inner.manager.handle(now, *route, datagram),
                }
                // Told in the order in which they came.
                inner.tell_all(nic);
            }
        });
    }

    /// Its ids, for those who ask what there is.
    pub fn report(&self) -> Vec<inventory::ConnectionId> {
        let inner = self.inner.lock();
        let mut ids: Vec<_> = inner.records.iter().map(|(key, record)| record.report(*key as u32)).collect();
        ids.sort_by_key(|id| id.number);
        ids
    }

    /// Whether the program uses it.
    pub fn has_ids(&self) -> bool {
        !self.inner.lock().records.is_empty()
    }

    /// An entry of the NIC's timers came up: a deadline has come, perhaps.
    pub fn wake(&self, nic: &Nic, entry: Time) {
        self.with(nic, |inner, now| {
            if inner.alarm.comes_up(entry) && inner.manager.poll_timeout().is_some_and(|deadline| deadline <= now) {
                inner.look_for_packets(nic, now);
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
                record.trace_end(nic, ConnectionEnd::DeviceGone);
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
            if let Some(at) = record.recorded_at {
                inner.connection_records.strike(at);
            }
            if let Some(listener) = record.listener {
                inner.listeners.remove(&listener);
                inner.manager.stop_listening(now, listener);
            }
            if record.stage == Stage::Connected {
                record.trace_end(nic, ConnectionEnd::Local);
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
        // Outside the lock: requests that the program did not take end with their ids.
        drop(record.channel.extract(|event| id::belongs(event, key)));
    }

    /// Disconnects from all peers, because the process ends, and gives them a moment to answer. The lock's holder may
    /// be the thread that ends the process: then nothing is sent.
    pub fn leave(&self, nic: &Nic) {
        let last = nic.now() + EXIT_DISCONNECT_WAIT;
        while nic.now() < last {
            if let Some(mut inner) = self.inner.try_lock() {
                let now = nic.now();
                inner.manager.abandon_all(now);
                inner.connection_records.revoke();
                inner.pump(nic, now);
                if inner.manager.live() == 0 || now >= last {
                    return;
                }
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
            nic.progress();
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("records", &self.records).finish_non_exhaustive()
    }
}

impl Inner {
    fn record(&mut self, key: u64) -> Result<&mut Record, CmError> {
        self.records.get_mut(&key).ok_or(CmError::Invalid("the id is destroyed"))
    }

    /// Looks whether peers that are about to be reminded have sent something to their queue pairs: then they need not
    /// be.
    fn look_for_packets(&mut self, nic: &Nic, now: Time) {
        let unheard: Vec<CommId> = self.manager.unheard(now).collect();
        for id in unheard {
            let record = self.communications.get(&id).and_then(|key| self.records.get(key));
            let Some((record, agreement)) = record.and_then(|record| Some((record, record.agreement?))) else {
                continue;
            };
            let peer = record.path.map(|path| (path.dgid, agreement.peer_qpn));
            if nic.qps.get(record.qpn).is_some_and(|qp| peer.is_some_and(|peer| qp.has_heard(peer))) {
                self.manager.heard(now, id);
            }
        }
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
        self.ask_suspects(nic, now);
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
        for (reason, count) in self.manager.take_drops() {
            nic.drops.count(reason, count);
        }
        let answers = self.manager.poll_timeout();
        let deadlines = [
            answers,
            self.tell_farewells(now),
            self.entrust_connection_records(nic, now),
            self.send_dreqs_for_dead(nic, now),
            self.questions.iter().map(|question| question.next).min(),
        ];
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

/// From which address to which a message goes.
fn route_of(source: Gid, destination: Gid) -> ::cm::Route {
    ::cm::Route { source, destination }
}
