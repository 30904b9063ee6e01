//! Ids and event channels of simulated NICs: what programs connect and listen with.

use super::manager::Manager;
use super::nic::{DEVICE, Nic, gone, own};
use super::queue::{Events, must_not_wait};
use super::record::{Asked, MTU, Record, Stage};
use super::world::{After, Observer, Place};
use crate::backend::Backend;
use crate::backend::connections::{ConnectionEvent, ConnectionId, Connections, EventChannel};
use crate::cm::ConnectError;
use crate::error::Error;
use cm::Time;
use hca::cm::{Body, ConnectParameters, DatagramBody, EventKind, IdOption, MAX_READS, UDP_QKEY};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use transport::{AddressVector, Kind, Modify, State};
use wire::cm::{Data, IpCm, PortSpace, RejectReason, ServiceId, SidrStatus};
use wire::{Gid, Qpn, Timeout};

/// Requests that may wait for a listener that did not say how many.
const BACKLOG: u32 = 1024;

/// Where events of ids arrive.
pub(super) struct Channel {
    events: Events<(u64, ConnectionEvent)>,
    observer: OnceLock<Observer>,
}

impl Channel {
    pub(super) fn push(&self, key: u64, event: ConnectionEvent) {
        self.events.push((key, event));
    }

    pub(super) fn observer(&self) -> Option<Observer> {
        self.observer.get().cloned()
    }
}

#[derive(Clone)]
struct SimulatedEvents {
    place: Place,
    channel: Arc<Channel>,
}

impl std::fmt::Debug for SimulatedEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a simulated event channel")
    }
}

impl Connections for Nic {
    fn create_event_channel(&self) -> Result<Arc<dyn EventChannel>, Error> {
        let channel = Arc::new(Channel { events: Events::new()?, observer: OnceLock::new() });
        Ok(Arc::new(SimulatedEvents { place: self.place.clone(), channel }))
    }

    fn create_id(
        &self,
        channel: &Arc<dyn EventChannel>,
        space: PortSpace,
        kind: Kind,
    ) -> Result<Arc<dyn ConnectionId>, Error> {
        let channel = Arc::clone(&own::<SimulatedEvents>(&**channel, "event channel")?.channel);
        let made = self.place.with(|inner, party| {
            let manager = &mut inner.parties[party].manager;
            let (key, psn) = (manager.new_key(), manager.new_psn());
            let id = SimulatedId::new(self.place.clone(), key);
            manager.records.insert(key, Record::new(Arc::downgrade(&id), channel, space, kind, psn));
            id
        });
        Ok(made.ok_or_else(|| gone("an id"))?)
    }
}

impl EventChannel for SimulatedEvents {
    fn fd(&self) -> BorrowedFd<'_> {
        self.channel.events.fd()
    }

    fn is_nonblocking(&self) -> io::Result<bool> {
        Err(must_not_wait())
    }

    fn try_take(&self) -> Option<ConnectionEvent> {
        let (key, event) = self.channel.events.take()?;
        if event.kind == EventKind::ConnectRequest {
            // It no longer counts towards the backlog.
            self.place.with(|inner, party| {
                let Manager { core, records, .. } = &mut inner.parties[party].manager;
                if let Some(communication) = records.get(&key).and_then(|record| record.communication) {
                    core.taken(communication);
                }
            });
        }
        Some(event)
    }

    fn observe(&self, observer: Box<dyn Fn() + Send + Sync>) {
        let _ = self.channel.observer.set(observer.into());
    }
}

/// An endpoint of the connection manager of a party.
pub(super) struct SimulatedId {
    pub(super) place: Place,
    pub(super) key: u64,
    user: AtomicU64,
}

impl std::fmt::Debug for SimulatedId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "simulated id {}", self.key)
    }
}

impl Drop for SimulatedId {
    fn drop(&mut self) {
        self.destroy();
    }
}

fn state(what: &'static str) -> Error {
    ConnectError::State { what: format!("{what} is not possible: the id is at its end") }.into()
}

fn refused(what: impl Into<String>) -> Error {
    ConnectError::Refused { what: what.into() }.into()
}

fn by_manager(error: cm::CmError) -> Error {
    match error {
        cm::CmError::DataTooLong { have, room, .. } => ConnectError::PrivateData { length: have, room }.into(),
        cm::CmError::OutOfRange(what) => refused(what),
        cm::CmError::NoId => refused("too many connections"),
        // It is further than we: what happened is on its way as an event.
        _ => state("this"),
    }
}

impl SimulatedId {
    pub(super) fn new(place: Place, key: u64) -> Arc<SimulatedId> {
        Arc::new(SimulatedId { place, key, user: AtomicU64::new(0) })
    }

    fn read<R>(&self, look: impl FnOnce(&Record) -> R) -> Option<R> {
        self.place.with(|inner, party| inner.parties[party].manager.records.get(&self.key).map(look)).flatten()
    }

    /// Changes the id, then sends and tells what follows from it. `change` gets the manager, its record taken out, and
    /// the party's addresses.
    fn change<R>(
        &self,
        change: impl FnOnce(&mut Manager, &mut Record, Time, &[Gid]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let changed = self.place.with(|inner, party| {
            let now = inner.now();
            let gids = super::manager::gids(inner.sim_ref(), inner.parties[party].host);
            let manager = &mut inner.parties[party].manager;
            let mut record = manager.records.remove(&self.key)?;
            let answer = change(manager, &mut record, now, &gids);
            manager.records.insert(self.key, record);
            manager.note(self.key);
            inner.pump(party);
            Some(answer)
        });
        changed.flatten().unwrap_or_else(|| Err(state("this")))
    }

    /// Tells the program of this id, whose handle it has: that is why nothing is let go of here.
    fn tell(&self, record: &Record, kind: EventKind, body: Body) {
        drop(record.tell(kind, 0, body));
    }
}

/// Private data of a message.
fn data<const N: usize>(bytes: &[u8]) -> Result<Data<N>, Error> {
    let too_long = |_| ConnectError::PrivateData { length: bytes.len(), room: N };
    Data::from_slice(bytes).map_err(too_long).map_err(Error::from)
}

/// The addresses, then what the program has to say.
fn with_header<const N: usize>(header: &IpCm, private_data: &[u8]) -> Result<Data<N>, Error> {
    let (length, room) = (private_data.len(), N - IpCm::LEN);
    if length > room {
        return Err(ConnectError::PrivateData { length, room }.into());
    }
    let mut whole = [0; N];
    let at = header.encode(&mut whole).unwrap_or(0);
    whole[at..at + length].copy_from_slice(private_data);
    Ok(Data::new(whole))
}

fn reads(parameters: &ConnectParameters<'_>) -> Result<Asked, Error> {
    if parameters.responder_resources > MAX_READS || parameters.initiator_depth > MAX_READS {
        return Err(refused("more READs at a time than the device allows"));
    }
    Ok(Asked {
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        retry_count: parameters.retry_count & 7,
        rnr_retry_count: parameters.rnr_retry_count & 7,
    })
}

fn transport_of(kind: Kind) -> wire::Transport {
    match kind {
        Kind::UnreliableConnected => wire::Transport::Uc,
        Kind::XrcInitiator | Kind::XrcTarget => wire::Transport::Xrc,
        _ => wire::Transport::Rc,
    }
}

/// Takes a port for an id: any free one for 0.
fn claim(manager: &mut Manager, key: u64, record: &Record, address: SocketAddr) -> Result<u16, Error> {
    let space = record.space;
    let port = match address.port() {
        0 => manager.free_port(space).ok_or_else(|| refused("all ports are in use"))?,
        port => port,
    };
    let users = manager.ports.range((space, port, 0)..=(space, port, u64::MAX));
    for (_, _, user) in users {
        let Some(other) = manager.records.get(user) else { continue };
        let shared = other.settings.reuse_address && record.settings.reuse_address;
        let (Some(theirs), ours) = (other.source.map(|source| source.ip()), address.ip()) else { continue };
        let wide = theirs.is_unspecified() || ours.is_unspecified() || theirs == ours;
        if wide && !shared {
            let what = format!("{} is in use", SocketAddr::new(ours, port));
            return Err(ConnectError::InUse { what }.into());
        }
    }
    manager.ports.insert((space, port, key));
    Ok(port)
}

impl ConnectionId for SimulatedId {
    fn user(&self) -> u64 {
        self.user.load(Ordering::Acquire)
    }

    fn set_user(&self, user: u64) {
        self.user.store(user, Ordering::Release);
    }

    fn device(&self) -> Option<String> {
        self.read(|record| record.path.map(|_| DEVICE.to_owned())).flatten()
    }

    fn source(&self) -> Option<SocketAddr> {
        self.read(|record| record.source).flatten()
    }

    fn destination(&self) -> Option<SocketAddr> {
        self.read(|record| record.destination).flatten()
    }

    fn set(&self, option: IdOption) -> Result<(), Error> {
        self.change(|_, record, _, _| {
            match option {
                IdOption::TypeOfService(value) => record.settings.type_of_service = value,
                IdOption::ReuseAddress(value) => {
                    record.expect("setting REUSEADDR", &[Stage::Idle, Stage::Bound])?;
                    record.settings.reuse_address = value;
                }
                IdOption::OnlyItsFamily(value) => {
                    record.expect("setting AFONLY", &[Stage::Idle, Stage::Bound])?;
                    record.settings.only_its_family = value;
                }
                IdOption::AckTimeout(value) => {
                    if record.is_datagram() || value > 31 {
                        return Err(refused("an ACK timeout is 0 to 31, and of a connected service"));
                    }
                    record.settings.ack_timeout = Some(value);
                }
                IdOption::Ece(vendor_id, options) => record.settings.ece = cm::Ece { vendor_id, options },
            }
            Ok(())
        })
    }

    fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        self.change(|manager, record, _, gids| {
            record.expect("binding", &[Stage::Idle])?;
            let ip = address.ip();
            let anywhere = ip.is_unspecified() || ip.is_loopback();
            let index = gids.iter().position(|gid| *gid == Gid::from_ip(ip));
            if !anywhere && index.is_none() {
                return Err(ConnectError::NotLocal { address: ip }.into());
            }
            let port = claim(manager, self.key, record, address)?;
            record.source = Some(SocketAddr::new(ip, port));
            record.path = index.map(|index| (Gid::from_ip(ip), Gid::default(), index as u8));
            record.stage = Stage::Bound;
            Ok(())
        })
    }

    fn listen(&self, backlog: u32) -> Result<(), Error> {
        if self.read(|record| record.stage == Stage::Idle) == Some(true) {
            self.bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        self.change(|manager, record, _, gids| {
            record.expect("listening", &[Stage::Bound])?;
            let Some(address) = record.source else { return Err(state("listening")) };
            let families = match address {
                SocketAddr::V4(_) => cm::Families::V4,
                SocketAddr::V6(_) if record.settings.only_its_family => cm::Families::V6,
                SocketAddr::V6(_) => cm::Families::Both,
            };
            // The loopback of a host is called at its first address.
            let heard = match address.ip() {
                ip if ip.is_unspecified() => None,
                ip if ip.is_loopback() => gids.iter().map(|gid| gid.to_ip()).find(|own| own.is_ipv4() == ip.is_ipv4()),
                ip => Some(ip),
            };
            let listen = cm::Listen {
                service: ServiceId::ip(record.space, address.port()),
                mask: u64::MAX,
                address: heard,
                families,
                backlog: if backlog == 0 { BACKLOG } else { backlog },
            };
            let in_use = |_| ConnectError::InUse { what: format!("{address} is in use") };
            let listener = manager.core.listen(listen).map_err(in_use)?;
            manager.listeners.insert(listener, self.key);
            record.listener = Some(listener);
            record.stage = Stage::Listening;
            Ok(())
        })
    }

    fn resolve_address(&self, source: Option<SocketAddr>, destination: SocketAddr) -> Result<(), Error> {
        if let Some(source) = source.filter(|source| !source.ip().is_unspecified())
            && self.read(|record| record.stage == Stage::Idle) == Some(true)
        {
            self.bind(source)?;
        }
        let nic = Nic::new(&self.place.world, self.place.party);
        let to = destination.ip();
        let no_route = |source| ConnectError::NoRoute { to, source };
        let here = to.is_unspecified() || to.is_loopback();
        let routed = if here { None } else { Some(nic.source_towards(to).map_err(no_route)?) };
        self.change(|manager, record, _, gids| {
            record.expect("resolving an address", &[Stage::Idle, Stage::Bound])?;
            let fixed = record.source.map(|source| source.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback());
            if fixed.is_some_and(|fixed| fixed.is_ipv4() != destination.is_ipv4()) {
                return Err(refused("source and destination are of different families"));
            }
            let own = gids.iter().map(|gid| gid.to_ip()).find(|own| own.is_ipv4() == to.is_ipv4());
            let Some(from) = fixed.or(routed).or(own) else { return Err(state("resolving an address")) };
            // What is sent to the loopback, or nowhere in particular, is for this host.
            let peer = if here { from } else { to };
            let port = match record.source {
                Some(source) => source.port(),
                None => claim(manager, self.key, record, SocketAddr::new(from, 0))?,
            };
            let index = gids.iter().position(|gid| *gid == Gid::from_ip(from)).unwrap_or(0);
            record.source = Some(SocketAddr::new(from, port));
            record.destination = Some(SocketAddr::new(peer, destination.port()));
            record.path = Some((Gid::from_ip(from), Gid::from_ip(peer), index as u8));
            record.stage = Stage::AddressResolved;
            self.tell(record, EventKind::AddressResolved, Body::None);
            Ok(())
        })
    }

    fn resolve_route(&self) -> Result<(), Error> {
        self.change(|_, record, _, _| {
            record.expect("resolving a route", &[Stage::AddressResolved])?;
            record.stage = Stage::RouteResolved;
            self.tell(record, EventKind::RouteResolved, Body::None);
            Ok(())
        })
    }

    fn connect(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        self.change(|manager, record, now, _| {
            record.expect("connecting", &[Stage::RouteResolved])?;
            let (Some(source), Some(destination), Some((sgid, dgid, _))) =
                (record.source, record.destination, record.path)
            else {
                return Err(state("connecting"));
            };
            let header = IpCm::new(source.port(), source.ip(), destination.ip());
            let service = ServiceId::ip(record.space, destination.port());
            let route = cm::Route { source: sgid, destination: dgid };
            let id = if record.is_datagram() {
                let private_data = with_header(&header, parameters.private_data)?;
                manager.core.resolve(now, cm::Resolve { private_data, ..cm::Resolve::new(route, service) })
            } else {
                let asked = reads(parameters)?;
                record.asked = Some(asked);
                let connect = cm::Connect {
                    transport: transport_of(record.kind),
                    responder_resources: asked.responder_resources,
                    initiator_depth: asked.initiator_depth,
                    retry_count: asked.retry_count,
                    rnr_retry_count: asked.rnr_retry_count,
                    flow_control: parameters.flow_control,
                    srq: parameters.srq,
                    mtu: MTU,
                    traffic_class: record.settings.type_of_service,
                    local_ack_timeout: Timeout::new(record.ack_timeout()),
                    private_data: with_header(&header, parameters.private_data)?,
                    ece: record.settings.ece,
                    ..cm::Connect::new(route, service, parameters.qpn, record.receive_psn)
                };
                manager.core.connect(now, connect)
            };
            let id = id.map_err(by_manager)?;
            manager.communications.insert(id, self.key);
            record.communication = Some(id);
            record.qpn = parameters.qpn;
            record.stage = Stage::Connecting;
            Ok(())
        })
    }

    fn accept(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        self.change(|manager, record, now, _| {
            record.expect("accepting", &[Stage::Requested])?;
            let Some(communication) = record.communication else { return Err(state("accepting")) };
            if record.is_datagram() {
                let private_data = data(parameters.private_data)?;
                let valid = cm::SidrAnswer::valid(parameters.qpn, parameters.qkey.unwrap_or(UDP_QKEY));
                let answer = cm::SidrAnswer { private_data, ..valid };
                manager.core.answer(now, communication, answer).map_err(by_manager)?;
                (record.stage, record.unaccepted) = (Stage::Connected, false);
                return Ok(());
            }
            let asked = reads(parameters)?;
            if let Some(agreement) = &mut record.agreement {
                agreement.numbers.responder_resources = asked.responder_resources;
                agreement.numbers.initiator_depth = asked.initiator_depth;
            }
            let accept = cm::Accept {
                responder_resources: asked.responder_resources,
                initiator_depth: asked.initiator_depth,
                rnr_retry_count: asked.rnr_retry_count,
                flow_control: parameters.flow_control,
                srq: parameters.srq,
                private_data: data(parameters.private_data)?,
                ece: record.settings.ece,
                ..cm::Accept::new(parameters.qpn, record.receive_psn)
            };
            manager.core.accept(now, communication, accept).map_err(by_manager)?;
            record.qpn = parameters.qpn;
            (record.stage, record.unaccepted) = (Stage::Accepted, false);
            Ok(())
        })
    }

    fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), Error> {
        self.change(|manager, record, now, _| {
            record.expect("rejecting", &[Stage::Requested, Stage::Answered])?;
            let Some(communication) = record.communication else { return Err(state("rejecting")) };
            let rejected = if record.is_datagram() {
                let refusal = cm::SidrAnswer::refused(SidrStatus::Rejected);
                let answer = cm::SidrAnswer { private_data: data(private_data)?, ..refusal };
                manager.core.answer(now, communication, answer)
            } else {
                manager.core.reject(now, communication, reason, &[], private_data)
            };
            rejected.map_err(by_manager)?;
            record.stage = Stage::Ended;
            Ok(())
        })
    }

    fn establish(&self) -> Result<(), Error> {
        self.change(|manager, record, now, _| {
            record.expect("establishing", &[Stage::Answered])?;
            let Some(communication) = record.communication else { return Err(state("establishing")) };
            manager.core.confirm(now, communication, &[]).map_err(by_manager)?;
            record.stage = Stage::Connected;
            Ok(())
        })
    }

    fn notify_established(&self) -> Result<(), Error> {
        self.change(|manager, record, now, _| match (record.stage, record.communication) {
            (Stage::Connected, _) => Ok(()),
            (Stage::Accepted, Some(id)) => manager.core.established(now, id).map_err(by_manager),
            _ => Err(state("notifying")),
        })
    }

    fn disconnect(&self, private_data: &[u8]) -> Result<(), Error> {
        self.change(|manager, record, now, _| {
            let (Some(communication), false) = (record.communication, record.is_datagram()) else {
                return Err(state("disconnecting"));
            };
            match record.stage {
                Stage::Connected | Stage::Accepted => {
                    manager.core.disconnect(now, communication, private_data).map_err(by_manager)?;
                    record.stage = Stage::Disconnecting;
                }
                Stage::PeerLeft => {
                    manager.core.answer_disconnect(now, communication, &[]).map_err(by_manager)?;
                    record.stage = Stage::Ended;
                }
                // Once is enough.
                Stage::Disconnecting | Stage::Ended => {}
                _ => return Err(state("disconnecting")),
            }
            Ok(())
        })
    }

    fn modify_for(&self, to: State) -> Result<Modify, Error> {
        self.read(|record| record.modify_for(to)).unwrap_or_else(|| Err(state("this")))
    }

    fn join(&self, group: IpAddr, user: u64) -> Result<(), Error> {
        self.change(|_, record, _, _| {
            let stages = [Stage::Bound, Stage::AddressResolved, Stage::RouteResolved, Stage::Connected];
            record.expect("joining", &stages)?;
            let Some((sgid, _, sgid_index)) = record.path else { return Err(state("joining")) };
            if !record.is_datagram() || !group.is_multicast() {
                return Err(refused("only datagrams go to groups, and only groups are joined"));
            }
            if group.is_ipv4() != sgid.to_ip().is_ipv4() {
                return Err(refused("the group is of another family than the id's address"));
            }
            let dgid = Gid::from_ip(group);
            if !record.groups.contains(&dgid) {
                record.groups.push(dgid);
            }
            let traffic_class = record.settings.type_of_service;
            let av = AddressVector { dgid, sgid_index, traffic_class, ..AddressVector::default() };
            let body = DatagramBody { private_data: Vec::new(), av, qpn: Qpn::MULTICAST, qkey: UDP_QKEY, user };
            self.tell(record, EventKind::MulticastJoin, Body::Datagram(body));
            Ok(())
        })
    }

    fn leave(&self, group: IpAddr) -> Result<(), Error> {
        self.change(|_, record, _, _| {
            let at = record.groups.iter().position(|member| *member == Gid::from_ip(group));
            let at = at.ok_or(ConnectError::NotLocal { address: group })?;
            record.groups.swap_remove(at);
            Ok(())
        })
    }

    fn migrate(&self, to: &Arc<dyn EventChannel>) -> Result<(), Error> {
        let to = Arc::clone(&own::<SimulatedEvents>(&**to, "event channel")?.channel);
        self.change(|_, record, _, _| {
            let from = std::mem::replace(&mut record.channel, Arc::clone(&to));
            for (key, event) in from.events.extract(|(key, _)| *key == self.key) {
                to.push(key, event);
            }
            Ok(())
        })
    }

    fn destroy(&self) {
        self.place.with(|inner, party| {
            let now = inner.now();
            let Some(record) = inner.parties[party].manager.destroy(now, self.key) else { return };
            // Requests that the program did not take end with their ids, without the lock.
            let of_listener = |event: &ConnectionEvent| {
                event.listener.as_ref().is_some_and(|listener| std::ptr::addr_eq(Arc::as_ptr(listener), self))
            };
            let left = record.channel.events.extract(|(key, event)| *key == self.key || of_listener(event));
            inner.after(After::Drop(Box::new((left, record))));
            inner.pump(party);
        });
    }
}
