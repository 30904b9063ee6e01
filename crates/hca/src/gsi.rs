//! The general service interface (queue pair 1) for programs: management agents of this process ([`::mad`]) between the
//! links, the other processes of the host, and the descriptors that programs wait on. Connection management has its own
//! room, [`cm`](crate::cm).

use crate::ground::Ground;
use crate::ground::host_share::HostShare;
use crate::objects::channel::Channel;
use crate::objects::device::Device;
use crate::progress::timers::Alarm;
use crate::tuning::WAITING_DATAGRAMS;
use ::host::arrival::{Arrival, Origin};
use ::host::classes::Class;
use ::host::names::ManagementClass;
use ::host::slots::Slot;
use latch::Rank;
use latch::plain::Mutex;
use link::Destination;
pub(crate) use mad::answer::Counters;
pub use mad::{Delivery, Outgoing, Peer, PortId, Refusal, Registration, Route, SendError};
use mad::{Handled, Key, Manager, Transmit};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use trace::DropReason;
use transport::Time;
use wire::mad::MAD_LEN;
use wire::{Deth, Gid, Headers, IpHeader, Opcode, Pkey, Psn, Qkey, Qpn};

/// Why an agent was not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The port does not allow it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The system refused.
    #[error("cannot bind the name of the management class")]
    System(#[source] io::Error),
}

/// A request for the counters of a port that no agent took.
#[derive(Debug)]
pub(crate) struct CounterRequest {
    /// Where it came from.
    pub route: Route,
    datagram: [u8; MAD_LEN],
}

/// Answers requests for counters, later: other processes of the host have some of them.
type Counting = dyn Fn(CounterRequest) + Send + Sync;

/// The agents of a NIC. One lock for all of them: management is rare.
pub(crate) struct Gsi {
    inner: Mutex<Inner>,
    counting: OnceLock<Box<Counting>>,
}

impl std::fmt::Debug for Gsi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gsi").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Inner {
    manager: Manager,
    channels: HashMap<PortId, Arc<Channel<Delivery>>>,
    /// The classes whose requests come to this process.
    classes: HashMap<Key, Class>,
    /// The deadline that stands in the NIC's timers.
    alarm: Alarm,
    /// Counts the packets.
    psn: u32,
}

/// A datagram that arrived, kept until the sockets are let go.
#[derive(Debug)]
pub(crate) struct Datagram {
    headers: Headers,
    ip: IpHeader,
    port: u16,
    origin: Origin,
    /// As on the wire, and what of it is the datagram.
    bytes: Vec<u8>,
    payload: Vec<u8>,
}

impl Datagram {
    pub fn of(arrival: &Arrival<'_>) -> Datagram {
        let Arrival { headers, payload, ip, bytes, port, origin, .. } = *arrival;
        Datagram { headers, ip, port, origin, bytes: bytes.to_vec(), payload: payload.to_vec() }
    }

    fn arrival(&self) -> Arrival<'_> {
        let Datagram { headers, ip, port, origin, .. } = *self;
        Arrival { headers, payload: &self.payload, ip, bytes: &self.bytes, port, origin, ..Arrival::NONE }
    }

    /// Seen from here.
    fn route(&self) -> Route {
        let arrival = self.arrival();
        let (traffic_class, hop_limit, flow_label) = match self.ip {
            IpHeader::V4(ip) => (ip.tos, ip.ttl, 0),
            IpHeader::V6(ip) => (ip.traffic_class, ip.hop_limit, ip.flow_label),
        };
        let qpn = self.headers.deth.map_or(Qpn::GSI, |deth| deth.src_qpn);
        Route { local: arrival.destination(), remote: arrival.source(), qpn, traffic_class, hop_limit, flow_label }
    }
}

impl Gsi {
    /// The numbers of agents are those of a slot of the process, so that answers find it. They are not told apart from
    /// communication ids, and need not be: they stand elsewhere in other messages.
    pub fn new(slot: Slot) -> Gsi {
        let number = |number| slot.communication(number).value();
        let seed = number(::host::random() as u32);
        let config = mad::Config { first: number(1), last: number(Slot::COMMUNICATIONS - 1), seed };
        Gsi {
            inner: Mutex::new(
                Rank::Agents,
                Inner {
                    manager: Manager::new(config),
                    channels: HashMap::new(),
                    classes: HashMap::new(),
                    alarm: Alarm::default(),
                    psn: ::host::random() as u32,
                },
            ),
            counting: OnceLock::new(),
        }
    }

    /// Says who answers requests for counters.
    pub fn count_with(&self, counting: Box<Counting>) {
        let _ = self.counting.set(counting);
    }

    /// Does something with everything locked, then sends and delivers what follows from it.
    fn with<R>(&self, ground: &Ground, work: impl FnOnce(&mut Inner, Time) -> R) -> R {
        let now = ground.now();
        let mut inner = self.inner.lock();
        let answer = work(&mut inner, now);
        inner.pump(ground, now);
        answer
    }

    /// Opens the port of a device: its number, and where datagrams for its agents come.
    pub fn open(&self, device: &Device) -> io::Result<(PortId, Arc<Channel<Delivery>>)> {
        let channel = Arc::new(Channel::new()?);
        let mut inner = self.inner.lock();
        let port = inner.manager.open(device.port_id());
        inner.channels.insert(port, Arc::clone(&channel));
        Ok((port, channel))
    }

    pub fn close(&self, port: PortId) {
        let mut inner = self.inner.lock();
        for key in inner.manager.close(port) {
            inner.classes.remove(&key);
        }
        inner.channels.remove(&port);
    }

    pub fn register(
        &self,
        host: &HostShare,
        device: &Device,
        port: PortId,
        wanted: &Registration,
    ) -> Result<u8, RegisterError> {
        wanted.check()?;
        let mut inner = self.inner.lock();
        // Of a class that this process does not have yet, nobody else may have the requests.
        let bound = match wanted.key(device.port_id()) {
            Some(key) if !inner.manager.has_class(key) => {
                let class = Class::bind(&host.slots, class_of(key)).map_err(|error| match error.raw_os_error() {
                    Some(libc::EADDRINUSE) => RegisterError::Refused(Refusal::Taken),
                    _ => RegisterError::System(error),
                })?;
                Some((key, class))
            }
            _ => None,
        };
        let id = inner.manager.register(port, wanted)?;
        inner.classes.extend(bound);
        Ok(id)
    }

    pub fn unregister(&self, port: PortId, agent: u8) -> Result<(), SendError> {
        let mut inner = self.inner.lock();
        if let Some(key) = inner.manager.unregister(port, agent)? {
            inner.classes.remove(&key);
        }
        Ok(())
    }

    pub fn send(
        &self,
        ground: &Ground,
        device: &Device,
        from: (PortId, u8),
        out: &Outgoing<'_>,
    ) -> Result<(), SendError> {
        self.with(ground, |inner, now| inner.manager.send(now, from, out, |remote| source_towards(device, remote)))
    }

    /// Takes datagrams that arrived.
    pub fn receive(&self, ground: &Ground, datagrams: &[Datagram]) {
        for datagram in datagrams {
            let route = datagram.route();
            let interface = ground.host.port_id_of(route.local);
            let handled =
                self.with(ground, |inner, now| inner.manager.handle(now, interface, &route, &datagram.payload));
            let dropped = |reason| ground.dropped(ground.now(), Some(Qpn::GSI), Some(&datagram.headers), reason);
            match handled {
                Handled::Taken => {}
                Handled::Dropped(reason) => dropped(reason),
                // Another process of this host may have the class, unless this one was chosen for it.
                Handled::Unclaimed(key) => match datagram.origin {
                    Origin::Socket => match ground.links.udp.pass_on(class_of(key), &datagram.arrival()) {
                        Ok(true) => {}
                        Ok(false) => self.answer(ground, &route, &datagram.payload),
                        Err(_) => dropped(DropReason::Overflow),
                    },
                    _ => self.answer(ground, &route, &datagram.payload),
                },
            }
        }
    }

    /// Answers a request that no agent of the host wants.
    fn answer(&self, ground: &Ground, route: &Route, payload: &[u8]) {
        let Some(datagram) = payload.first_chunk::<MAD_LEN>().copied() else { return };
        let question = CounterRequest { route: *route, datagram };
        match self.counting.get().filter(|_| mad::answer::asks_for_counters(&datagram)) {
            Some(counting) => counting(question),
            None => self.answer_with(ground, &question, Counters::default()),
        }
    }

    /// Answers a request, now that the counters are known.
    pub fn answer_with(&self, ground: &Ground, question: &CounterRequest, counters: Counters) {
        match mad::answer::answer(&question.datagram, || counters) {
            Some(bytes) => self.inner.lock().transmit(ground, &Transmit { to: question.route, bytes }),
            None => ground.dropped(ground.now(), Some(Qpn::GSI), None, DropReason::CmUnknown),
        }
    }

    /// An entry of the NIC's timers came up: a deadline has come, perhaps.
    pub fn wake(&self, ground: &Ground, entry: Time) {
        self.with(ground, |inner, now| {
            if inner.alarm.comes_up(entry) {
                inner.manager.handle_timeout(now);
            }
        });
    }
}

impl Inner {
    /// Sends what is to be sent, and delivers what is to be delivered.
    fn pump(&mut self, ground: &Ground, now: Time) {
        while let Some(transmit) = self.manager.poll_transmit() {
            self.transmit(ground, &transmit);
        }
        while let Some((port, delivery)) = self.manager.poll_delivery() {
            let Some(channel) = self.channels.get(&port) else { continue };
            if !channel.push_if(delivery, |waiting| waiting.len() < WAITING_DATAGRAMS) {
                ground.dropped(now, Some(Qpn::GSI), None, DropReason::Overflow);
            }
        }
        if let Some(deadline) = self.manager.poll_timeout().map(|deadline| deadline.max(now))
            && self.alarm.advances_to(deadline)
        {
            ground.progress.wake_at(deadline, Qpn::GSI);
        }
    }

    fn transmit(&mut self, ground: &Ground, transmit: &Transmit) {
        self.psn = self.psn.wrapping_add(1);
        let Route { local, remote, qpn, traffic_class, hop_limit, .. } = transmit.to;
        let mut headers = Headers::new(Opcode::UdSendOnly, qpn, Psn::new(self.psn));
        headers.bth.pkey = Pkey::DEFAULT;
        headers.deth = Some(Deth { qkey: Qkey::GSI, src_qpn: Qpn::GSI });
        let is_link_local = matches!(remote.to_ip(), IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80);
        let scope = if is_link_local { ground.host.interface_of(local) } else { 0 };
        let hop_limit = if hop_limit == 0 { 64 } else { hop_limit };
        // Each from another socket: if one flow does not get through, the repeats do.
        let from = Qpn::new(self.psn);
        let to = Destination { source: local, destination: remote, from, scope, traffic_class, hop_limit };
        ground.send_mad(&to, &headers, &transmit.bytes);
    }
}

fn class_of(Key { interface, class, version, oui }: Key) -> ManagementClass {
    ManagementClass { interface, class, version, oui }
}

/// The address of a device from which another is reached: the first of the same family, and for a link-local one a
/// link-local one.
pub(crate) fn source_towards(device: &Device, remote: Gid) -> Option<Gid> {
    let port = device.port();
    let kind = |gid: Gid| match gid.to_ip() {
        IpAddr::V4(_) => 4,
        IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80 => 0xfe,
        IpAddr::V6(_) => 6,
    };
    port.gids.iter().flatten().copied().find(|gid| kind(*gid) == kind(remote))
}
