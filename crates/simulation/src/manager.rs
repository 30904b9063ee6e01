//! The connection manager of a simulated host, on the ids of the crate `cm`, as the NIC of a process is: messages
//! between the queue pairs 1 of hosts, ports, and events for the channels of the program. Queue pairs are not touched
//! here.

use super::connections::{Channel, SimulatedId};
use super::nic;
use super::world::After;
use cm::id::{Body, EventKind, LocalAddress, Output};
use cm::{IdError, IdKey, Ids, Time};
use seam::connections::ConnectionEvent;
use sim::{HostId, Management, QpId, Sim};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use wire::cm::{CmDatagram, CommId, PortSpace, RejectReason};
use wire::mad::{MAD_LEN, MadHeader};
use wire::{Deth, Gid, Headers, Opcode, Pkey, Psn, Qkey, Qpn};

pub(super) struct Manager {
    pub(super) ids: Ids,
    pub(super) handles: BTreeMap<IdKey, Handle>,
    pub(super) ports: Ports,
    /// Counts the packets that carry messages.
    psn: u32,
    /// Channels whose observers are to be told.
    pub(super) told: Vec<Arc<Channel>>,
}

/// What a program has of an id.
pub(super) struct Handle {
    pub(super) id: Weak<SimulatedId>,
    pub(super) channel: Arc<Channel>,
}

/// The ports of a host.
#[derive(Default)]
pub(super) struct Ports {
    taken: BTreeSet<(PortSpace, u16)>,
    last: u16,
}

impl Ports {
    /// The lowest port that is given to ids that want any.
    const FIRST_DYNAMIC: u16 = 32_768;

    /// Takes a port, any free one for 0.
    pub(super) fn take(&mut self, space: PortSpace, address: SocketAddr) -> Result<u16, IdError> {
        let mut port = address.port();
        if port == 0 {
            let dynamic = Ports::FIRST_DYNAMIC..=u16::MAX;
            let next = dynamic.clone().filter(|port| *port > self.last).chain(dynamic);
            let mut free = next.filter(|port| !self.taken.contains(&(space, *port)));
            port = free.next().ok_or(IdError::Invalid("all ports are in use"))?;
            self.last = port;
        }
        self.taken.insert((space, port));
        Ok(port)
    }
}

/// What came of a call.
pub(super) struct Outcome {
    pub(super) after: Vec<After>,
    pub(super) deadline: Option<Time>,
}

/// The addresses of a host: one of IPv4, one of IPv6.
pub(super) fn gids(sim: &Sim, host: HostId) -> Vec<Gid> {
    vec![sim.gid(host, 0), sim.gid(host, 1)]
}

/// The addresses of a host as ids know them.
pub(super) fn addresses(sim: &Sim, host: HostId) -> Vec<LocalAddress> {
    let local =
        |(index, gid)| LocalAddress { gid, port: 1, index, mtu: nic::PATH_MTU, ca_guid: nic::guid(host), interface: 0 };
    (0u8..).zip(gids(sim, host)).map(local).collect()
}

impl Manager {
    pub(super) fn new(seed: u128) -> Manager {
        let ids = Ids::new(cm::Config::new(CommId::new(1), CommId::new(u32::MAX), seed));
        Manager { ids, handles: BTreeMap::new(), ports: Ports::default(), psn: 0, told: Vec::new() }
    }

    /// A datagram came for queue pair 1.
    pub(super) fn receive(&mut self, now: Time, datagram: &Management) {
        let Some(message) = read(datagram) else { return };
        let route = cm::Route { source: datagram.from, destination: datagram.to };
        self.ids.handle(now, route, &message, false);
    }

    /// A deadline has come, perhaps.
    pub(super) fn wake(&mut self, now: Time, sim: &Sim, host: HostId) {
        self.ids.handle_timeout(now, |record| {
            sim.queue_pair(QpId { host, qpn: record.qpn }).is_some_and(|queue_pair| queue_pair.has_heard())
        });
    }

    /// The process has ended, and its host tells peers so if it still has power. Returns what may only be let go of
    /// without the lock.
    pub(super) fn process_ended(&mut self, now: Time, power: bool) -> BTreeMap<IdKey, Handle> {
        if power {
            self.ids.end_process(now);
        }
        self.ports.taken.clear();
        std::mem::take(&mut self.handles)
    }

    /// Sends what is to be sent, and tells what is to be told.
    pub(super) fn pump(&mut self, now: Time, party: usize, sim: &mut Sim, host: HostId) -> Outcome {
        let own = addresses(sim, host);
        loop {
            while let Some(cm::Transmit { route, datagram, .. }) = self.ids.manager.poll_transmit() {
                self.psn = self.psn.wrapping_add(1);
                let mut bytes = [0; MAD_LEN];
                if datagram.encode(&mut bytes).is_ok() {
                    sim.send_packet(host, route.source, route.destination, &headers(self.psn), &bytes);
                }
            }
            match self.ids.poll_output(now, |gid| own.iter().find(|own| own.gid == gid).copied()) {
                Some(output) => self.bring(now, output),
                None => break,
            }
        }
        self.ids.manager.take_drops();
        let observers = self.told.drain(..).filter_map(|channel| channel.observer());
        let after = observers.map(|observer| After::Tell(party, observer)).collect();
        Outcome { after, deadline: self.ids.poll_timeout() }
    }

    /// Brings to programs what there is for them.
    fn bring(&mut self, now: Time, output: Output) {
        match output {
            Output::Event { key, kind, status, body } => {
                let Some(Handle { id, channel }) = self.handles.get(&key) else { return };
                if let Some(id) = id.upgrade() {
                    channel.push(key, ConnectionEvent { id, listener: None, kind, status, body });
                    self.told.push(Arc::clone(channel));
                }
            }
            Output::Request { key, listener, body } => self.introduce(now, key, listener, body),
            Output::PortFreed { space, port } => drop(self.ports.taken.remove(&(space, port))),
            // Numbers of queue pairs are not used again in a simulation, so none is asked for twice, and no connection
            // suspected.
            Output::Ended { .. } | Output::Suspected { .. } => {}
        }
    }

    /// Gives a peer's request an id, and tells the program that listens.
    fn introduce(&mut self, now: Time, key: IdKey, listener: IdKey, body: Body) {
        let listening = self.handles.get(&listener).and_then(|handle| Some((handle.id.upgrade()?, handle)));
        let Some((listener, Handle { channel, .. })) = listening else {
            let _ = self.ids.reject(now, key, RejectReason::InvalidServiceId, &[]);
            return self.ids.destroy(now, key, false);
        };
        let channel = Arc::clone(channel);
        let id = SimulatedId::new(listener.place.clone(), key);
        self.handles.insert(key, Handle { id: Arc::downgrade(&id), channel: Arc::clone(&channel) });
        let event = ConnectionEvent { id, listener: Some(listener), kind: EventKind::ConnectRequest, status: 0, body };
        channel.push(key, event);
        self.told.push(channel);
    }
}

fn headers(psn: u32) -> Headers {
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(psn));
    headers.bth.pkey = Pkey::DEFAULT;
    headers.deth = Some(Deth { qkey: Qkey::GSI, src_qpn: Qpn::GSI });
    headers
}

/// The message in a packet for queue pair 1, if it is one that a queue pair 1 of the default partition has sent.
fn read(datagram: &Management) -> Option<CmDatagram> {
    let headers = &datagram.headers;
    let deth = headers.deth?;
    let proper = headers.bth.opcode == Opcode::UdSendOnly
        && Pkey::DEFAULT.matches(headers.bth.pkey)
        && deth.qkey == Qkey::GSI
        && deth.src_qpn == Qpn::GSI;
    let (header, _) = MadHeader::parse(&datagram.payload).ok()?;
    let ours = header.management_class == MadHeader::CLASS_CM && header.method == MadHeader::METHOD_SEND;
    (proper && ours).then(|| CmDatagram::parse(&datagram.payload).ok()).flatten()
}
