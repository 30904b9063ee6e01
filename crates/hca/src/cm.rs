//! The connection manager of this process: drives the [ids](::cm::id) of the crate `cm`, whose messages go between the
//! general service interfaces (queue pair 1) of hosts. The NIC's own is here: addresses and devices, ports of the host,
//! channels of events that programs wait for, peers that are watched. Queue pairs are not touched: the program that
//! takes an event changes its own.

mod breakage;
mod death;
mod deserted_hosts;
mod error;
mod event;
mod handle;
mod id;
mod mad;
mod neighbours;
mod ports;
mod route;
mod secret;
mod stale;

pub use ::cm::IdError;
pub use ::cm::id::address::with_scope;
pub use ::cm::id::{
    Body, ConnectParameters, ConnectionBody, DatagramBody, EventKind, IdOption, MAX_READS, PathFacts, UDP_QKEY,
};
pub(crate) use breakage::connection_of;
pub use error::CmError;
pub use event::{Event, EventChannel};
pub use id::Id;
pub use trace::ConnectionEnd;

use crate::nic::Nic;
use crate::objects::device::Device;
use crate::progress::timers::Alarm;
use crate::tuning::{EXIT_DISCONNECT_WAIT, PROVOKED_PACKETS, STALE_SUSPICION_INTERVAL};
use ::cm::id::IdRecord;
use ::cm::{IdKey, Ids, Transmit};
use ::host::connection_records::ConnectionRecords;
use ::host::slots::Slot;
use handle::Handle;
use latch::Rank;
use latch::plain::Mutex;
use neighbours::Searches;
use ports::HeldPorts;
use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use trace::DropReason;
use transport::Time;
use wire::cm::{CmDatagram, CommId, Data, Dreq, Message};
use wire::{Gid, Headers, Psn, Qpn};

/// The connection manager of a NIC. One lock for all of it: connections are made seldom, compared with what goes over
/// them.
#[derive(Debug)]
pub(crate) struct Cm {
    inner: Mutex<Inner>,
    /// Messages that have arrived, in order. They are put here while the sockets are locked, and taken while the rest is:
    /// whichever thread takes them, it takes them in the order in which they came.
    arrived: Mutex<VecDeque<(::cm::Route, CmDatagram)>>,
    /// Peers whose neighbours are searched for.
    searches: Searches,
    /// The process's slot, whose communication ids it gives out.
    slot: Slot,
}

#[derive(Debug)]
pub(crate) struct Inner {
    ids: Ids,
    /// What the NIC keeps of each id.
    handles: HashMap<IdKey, Handle>,
    ports: HeldPorts,
    /// The deadline that stands in the NIC's timers.
    alarm: Alarm,
    /// Counts the packets that carry messages.
    psn: u32,
    connection_records: ConnectionRecords,
    /// When to look for another process to keep the connection records.
    search: Option<Time>,
    dreqs_for_dead: Vec<death::DreqForDead>,
    host_probes: deserted_hosts::HostProbes,
    /// Peers that may have lost their connection.
    questions: Vec<stale::PeerProbe>,
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
                    ids: Ids::new(config),
                    handles: HashMap::new(),
                    ports: HeldPorts::new(),
                    alarm: Alarm::default(),
                    psn: ::host::random() as u32,
                    connection_records: ConnectionRecords::default(),
                    search: None,
                    dreqs_for_dead: Vec::new(),
                    host_probes: deserted_hosts::HostProbes::default(),
                    questions: Vec::new(),
                    told: Vec::new(),
                },
            ),
            arrived: Mutex::new(Rank::ArrivedMessages, VecDeque::new()),
            searches: Searches::default(),
            slot,
        }
    }

    /// Does something with everything locked, then sends and tells what follows from it.
    fn with<R>(&self, nic: &Nic, work: impl FnOnce(&mut Inner, Time) -> R) -> R {
        let now = nic.now();
        let mut inner = self.inner.lock();
        inner.ids.manager.set_tracing(nic.ground.records.trace.is_on());
        let answer = work(&mut inner, now);
        inner.pump(nic, now);
        let told = std::mem::take(&mut inner.told);
        drop(inner);
        told.iter().for_each(|channel| channel.announce());
        answer
    }

    fn read<R>(&self, key: IdKey, look: impl FnOnce(&IdRecord) -> R) -> Option<R> {
        self.inner.lock().ids.get(key).map(look)
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
            let transmit = Transmit { route, datagram: CmDatagram::new(number, message), again: true };
            mad::send(&nic.ground, &transmit, (number >> 32) as u32);
        }
    }

    /// The message in a packet that was sent to queue pair 1, or what is wrong with the packet; none for a datagram of
    /// another class.
    pub fn message_in(&self, headers: &Headers, payload: &[u8]) -> Result<Option<CmDatagram>, DropReason> {
        mad::read(headers, payload)
    }

    /// A message has arrived: [`receive`](Cm::receive) takes it, once the sockets are let go.
    pub fn has_arrived(&self, route: ::cm::Route, message: CmDatagram) {
        self.arrived.lock().push_back((route, message));
    }

    /// Takes messages that have arrived.
    pub fn receive(&self, nic: &Nic) {
        self.with(nic, |inner, now| {
            loop {
                let next = self.arrived.lock().pop_front();
                let Some((route, datagram)) = next else { break };
                if inner.loses(nic, &route, &datagram, false) {
                    continue;
                }
                // What comes from an address of this host comes from this host: the kernel takes it from no other.
                inner.ids.handle(now, route, &datagram, nic.ground.host.is_own_address(route.source));
                // Told in the order in which they came.
                inner.tell_all(nic, now);
            }
        });
    }

    /// Tells at once of disconnections whose program has looked at all completions of its queue pair, in the thread that
    /// takes the event. Others are told a moment later: threads look at their completion queues first.
    pub fn tell_farewells(&self, nic: &Nic) {
        if !self.inner.lock().ids.has_farewells() {
            return;
        }
        // What the peer sent before it disconnected.
        nic.receive_shared(None, None);
        self.with(nic, |inner, _| {
            let Inner { ids, handles, .. } = inner;
            ids.tell_farewells_of(|key, record| {
                let (handle, qp) = (handles.get(&key), nic.objects.qps.get(record.qpn));
                handle.zip(qp).is_some_and(|(handle, qp)| qp.is_looked_through(handle.channel.taken_by()))
            });
        });
    }

    /// A packet came for a queue pair that does not exist yet. If it is the first of a connection that waits for its
    /// peer's confirmation, it is as good as one: it has two numbers right that only the peer was told.
    pub fn heard_early(&self, nic: &Nic, source: Gid, qpn: Qpn, psn: Psn) {
        self.with(nic, |inner, now| inner.ids.heard_early(now, source, qpn, psn));
    }

    /// Its ids, for those who ask what there is.
    pub fn report(&self) -> Vec<inventory::ConnectionId> {
        let inner = self.inner.lock();
        let device = |key| inner.handles.get(&key).and_then(|handle| handle.device.as_ref());
        inner.ids.iter().map(|(key, record)| handle::report(key, record, device(key))).collect()
    }

    /// Whether the program uses it.
    pub fn has_ids(&self) -> bool {
        !self.inner.lock().handles.is_empty()
    }

    /// An entry of the NIC's timers came up: a deadline has come, perhaps.
    pub fn wake(&self, nic: &Nic, entry: Time) {
        self.with(nic, |inner, now| {
            if inner.alarm.comes_up(entry) {
                inner.ids.handle_timeout(now, |record| {
                    let peer = record.path.zip(record.agreement).map(|(path, agreed)| (path.dgid, agreed.peer_qpn));
                    nic.objects.qps.get(record.qpn).is_some_and(|qp| peer.is_some_and(|peer| qp.has_heard(peer)))
                });
            }
        });
    }

    /// A device is gone: its ids hear of it.
    pub fn device_gone(&self, nic: &Nic, device: &Arc<Device>) {
        self.with(nic, |inner, now| {
            let Inner { ids, handles, .. } = inner;
            let on_it = |handle: &Handle| handle.device.as_ref().is_some_and(|own| Arc::ptr_eq(own, device));
            handles.iter().filter(|(_, handle)| on_it(handle)).for_each(|(key, _)| ids.device_gone(now, *key));
        });
    }

    /// Ends an id. A request that is forgotten leaves nothing behind; otherwise late messages are answered for a while.
    fn destroy(&self, nic: &Arc<Nic>, key: IdKey, forgets: bool) {
        let handle = self.with(nic, |inner, now| {
            let handle = inner.handles.remove(&key)?;
            if let Some(process) = handle.watched {
                nic.ground.host.process_watch.unwatch(process);
            }
            if let Some(at) = handle.recorded_at {
                inner.connection_records.strike(at);
            }
            inner.ids.destroy(now, key, forgets);
            Some(handle)
        });
        let Some(handle) = handle else { return };
        // An event has its ids, so where none but the program has this one there is none of it. Outside the lock:
        // requests that the program did not take end with their ids.
        if handle.id.strong_count() > 1 {
            drop(handle.channel.extract(|event| id::belongs(event, key)));
        }
    }

    /// Disconnects from all peers, because the process ends, and gives them a moment to answer. The lock's holder may
    /// be the thread that ends the process: then nothing is sent.
    pub fn leave(&self, nic: &Nic) {
        let last = nic.now() + EXIT_DISCONNECT_WAIT;
        while nic.now() < last {
            if let Some(mut inner) = self.inner.try_lock() {
                let now = nic.now();
                inner.ids.manager.abandon_all(now);
                inner.connection_records.revoke();
                inner.pump(nic, now);
                if inner.ids.manager.live() == 0 || now >= last {
                    return;
                }
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
            nic.progress();
        }
    }
}

impl Inner {
    /// Sends what is to be sent and tells what is to be told, until there is nothing.
    fn pump(&mut self, nic: &Nic, now: Time) {
        self.ask_suspects(nic, now);
        let probes = self.probe_hosts(nic, now);
        loop {
            while let Some(transmit) = self.ids.manager.poll_transmit() {
                if self.loses(nic, &transmit.route, &transmit.datagram, true) {
                    continue;
                }
                self.psn = self.psn.wrapping_add(1);
                mad::send(&nic.ground, &transmit, self.psn);
            }
            if !self.tell_all(nic, now) {
                break;
            }
        }
        while let Some(event) = self.ids.manager.poll_trace() {
            nic.ground.records.trace.record(&event);
        }
        for (reason, count) in self.ids.manager.take_drops() {
            nic.ground.records.drops.count(reason, count);
        }
        let deadlines = [
            self.ids.poll_timeout(),
            self.entrust_connection_records(nic, now),
            self.send_dreqs_for_dead(nic, now),
            probes,
            self.questions.iter().map(|question| question.next).min(),
        ];
        if let Some(deadline) = deadlines.into_iter().flatten().min().map(|deadline| deadline.max(now))
            && self.alarm.advances_to(deadline)
        {
            nic.ground.progress.wake_at(deadline, Qpn::GSI);
        }
    }
}
