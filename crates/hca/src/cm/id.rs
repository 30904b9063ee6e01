//! Ids: what a program connects, listens and joins groups with. An id is a name for a record that the connection
//! manager keeps; calls take its lock, do what they do at once, and the rest arrives as events.

use super::bindings::Claim;
use super::error::CmError;
use super::event::{Body, DatagramBody, Event, EventChannel, EventKind};
use super::record::{Asked, Member, PACKET_LIFETIME, Record, Stage, UDP_QKEY};
use super::route::{self, PathFacts};
use crate::nic::Nic;
use crate::objects::device::Device;
use crate::tuning::DEFAULT_BACKLOG;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use transport::{AddressVector, Kind, Modify, State};
use wire::cm::{Data, IpCm, PortSpace, RejectReason, ServiceId, SidrStatus};
use wire::{Gid, Psn, Qkey, Qpn, Timeout};

/// The most READs and atomics at a time that devices allow.
pub const MAX_READS: u8 = 128;

/// An endpoint of the connection manager.
#[doc(alias = "rdma_cm_id")]
pub struct Id {
    pub(crate) key: u64,
    nic: Arc<Nic>,
    user: AtomicU64,
}

/// What one side offers when it connects or accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "rdma_conn_param")]
pub struct ConnectParameters<'a> {
    /// For the peer's program.
    pub private_data: &'a [u8],
    /// READs and atomics of the peer's that we answer at a time.
    pub responder_resources: u8,
    /// READs and atomics of ours outstanding at a time.
    pub initiator_depth: u8,
    /// Whether we do end-to-end flow control.
    pub flow_control: bool,
    /// How often to retry after a missing acknowledgement.
    pub retry_count: u8,
    /// How often to retry when the receiver is not ready; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Whether our queue pair has a shared receive queue.
    pub srq: bool,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The key of our datagrams, if it is another than the usual one.
    pub qkey: Option<Qkey>,
}

/// What may be set on an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "rdma_set_option")]
pub enum IdOption {
    /// IP type of service of everything it sends.
    TypeOfService(u8),
    /// Others that say so may bind the same address.
    ReuseAddress(bool),
    /// A wildcard of IPv6 leaves IPv4 alone.
    OnlyItsFamily(bool),
    /// The ACK timeout of its queue pair, `4.096 us * 2^n`.
    AckTimeout(u8),
    /// Vendor and options of enhanced connection establishment.
    Ece(u32, u32),
}

impl Id {
    /// A fresh id whose events go to `channel`.
    pub fn new(nic: &Arc<Nic>, channel: &Arc<EventChannel>, space: PortSpace, kind: Kind, user: u64) -> Arc<Id> {
        let key = nic.cm.new_key();
        let id = Arc::new(Id { key, nic: Arc::clone(nic), user: AtomicU64::new(user) });
        let psn = super::secret::psn();
        let record = Record::new(Arc::downgrade(&id), Arc::clone(channel), space, kind, psn);
        nic.cm.with(nic, |cm, _| cm.records.insert(key, record));
        id
    }

    /// The id of a peer's request to a listener.
    pub(crate) fn for_request(listener: &Id, key: u64) -> Arc<Id> {
        Arc::new(Id { key, nic: Arc::clone(&listener.nic), user: AtomicU64::new(0) })
    }

    /// What the program keeps with it.
    pub fn user(&self) -> u64 {
        self.user.load(Ordering::Acquire)
    }

    /// Keeps something else with it.
    pub fn set_user(&self, user: u64) {
        self.user.store(user, Ordering::Release);
    }

    /// The NIC it is of.
    pub fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    /// A program has taken the request.
    pub(crate) fn taken(&self) {
        if let Some(communication) = self.read(|record| record.communication).flatten() {
            self.nic.cm.with(&self.nic, |cm, _| cm.manager.taken(communication));
        }
    }

    fn read<R>(&self, look: impl FnOnce(&Record) -> R) -> Option<R> {
        self.nic.cm.read(self.key, look)
    }

    fn change<R>(
        &self,
        change: impl FnOnce(&mut super::Inner, ::cm::Time) -> Result<R, CmError>,
    ) -> Result<R, CmError> {
        self.nic.cm.with(&self.nic, |inner, now| {
            let answer = change(inner, now);
            inner.note(self.key);
            answer
        })
    }

    /// Whether it waits for requests.
    pub fn is_listening(&self) -> bool {
        self.read(|record| record.stage == Stage::Listening) == Some(true)
    }

    /// The device it is bound to.
    pub fn device(&self) -> Option<Arc<Device>> {
        self.read(|record| record.place.as_ref().map(|place| Arc::clone(&place.device))).flatten()
    }

    /// Our address; unspecified as long as there is none.
    pub fn source(&self) -> Option<SocketAddr> {
        self.read(|record| record.source).flatten()
    }

    /// The peer's address.
    pub fn destination(&self) -> Option<SocketAddr> {
        self.read(|record| record.destination).flatten()
    }

    /// Our GID and its index, if it is bound to a device.
    pub fn source_gid(&self) -> Option<(Gid, u8)> {
        self.read(|record| record.place.as_ref().map(|place| (place.gid, place.index))).flatten()
    }

    /// The peer's GID, if the id is bound to a device and knows its peer.
    pub fn peer_gid(&self) -> Option<Gid> {
        self.read(Record::peer_gid).flatten()
    }

    /// The way to the peer, once it is resolved.
    pub fn path(&self) -> Option<PathFacts> {
        self.read(|record| record.path).flatten()
    }

    /// Its kind of service.
    pub fn kind(&self) -> Kind {
        self.read(|record| record.kind).unwrap_or(Kind::ReliableConnected)
    }

    /// Its namespace of ports.
    pub fn space(&self) -> PortSpace {
        self.read(|record| record.space).unwrap_or(PortSpace::Tcp)
    }

    /// Where its events go.
    pub fn channel(&self) -> Option<Arc<EventChannel>> {
        self.read(|record| Arc::clone(&record.channel))
    }

    /// The first sequence number of what its queue pair receives.
    pub fn receive_psn(&self) -> Psn {
        self.read(|record| record.receive_psn).unwrap_or(Psn::new(0))
    }

    /// What [`IdOption`] says.
    pub fn set(&self, option: IdOption) -> Result<(), CmError> {
        self.change(|cm, _| {
            let record = cm.record(self.key)?;
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
                        return Err(CmError::Invalid("an ACK timeout is 0 to 31, and of a connected service"));
                    }
                    record.settings.ack_timeout = Some(value);
                }
                IdOption::Ece(vendor_id, options) => record.settings.ece = ::cm::Ece { vendor_id, options },
            }
            Ok(())
        })
    }

    /// Takes an address and port; port 0 is any. A loopback address chooses no device, like a wildcard: with kernels it
    /// is of no device, and libfabric finds no device that connects where it is.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, address: SocketAddr) -> Result<(), CmError> {
        self.read(|record| record.expect("binding", &[Stage::Idle])).unwrap_or(Ok(()))?;
        let place = match address.ip() {
            ip if route::is_anywhere(ip) => None,
            ip if ip.is_multicast() => return Err(CmError::NotLocal(ip)),
            ip => Some(self.nic.place(ip, route::scope_of(address))?),
        };
        self.change(|cm, _| {
            let super::Inner { records, bindings, .. } = cm;
            let record = records.get_mut(&self.key).ok_or(CmError::Invalid("the id is destroyed"))?;
            record.expect("binding", &[Stage::Idle])?;
            let claim = Claim {
                key: self.key,
                address: address.ip(),
                only_its_family: record.settings.only_its_family,
                reuse: record.settings.reuse_address,
                listening: false,
            };
            let port = bindings.bind(&self.nic.ports, record.space, address.port(), claim)?;
            let mut address = address;
            address.set_port(port);
            record.source = Some(address);
            record.bound = true;
            record.place = place;
            record.stage = Stage::Bound;
            Ok(())
        })
    }

    /// Waits for requests, at most `backlog` of them that the program has not looked at.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<(), CmError> {
        if self.read(|record| record.stage == Stage::Idle) == Some(true) {
            self.bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        self.change(|cm, _| {
            let super::Inner { records, bindings, manager, listeners, .. } = cm;
            let record = records.get_mut(&self.key).ok_or(CmError::Invalid("the id is destroyed"))?;
            record.expect("listening", &[Stage::Bound])?;
            let Some(address) = record.source else { return record.refuse("listening") };
            bindings.listen(record.space, address.port(), self.key)?;
            let (address_filter, families) = super::filter(self.heard_at(address), record.settings.only_its_family);
            let listen = ::cm::Listen {
                service: ServiceId::ip(record.space, address.port()),
                mask: u64::MAX,
                address: address_filter,
                families,
                backlog: if backlog == 0 { DEFAULT_BACKLOG } else { backlog },
            };
            let listener = manager
                .listen(listen)
                .map_err(|_| CmError::InUse { address, anywhere: route::is_anywhere(address.ip()) })?;
            listeners.insert(listener, self.key);
            record.listener = Some(listener);
            record.stage = Stage::Listening;
            Ok(())
        })
    }

    /// Where an id that listens at `address` is called. Without the loopback's device the loopback is another one: see
    /// [`resolve_address`](Id::resolve_address).
    fn heard_at(&self, address: SocketAddr) -> SocketAddr {
        let ip = address.ip();
        let elsewhere = ip.is_loopback() && self.nic.known_place(ip, 0).is_none();
        let place = if elsewhere { self.nic.loopback_place(ip) } else { None };
        place.map_or(address, |place| SocketAddr::new(place.gid.to_ip(), address.port()))
    }

    /// Finds the device and the source address for a peer. A peer on the loopback is on the first device, if programs
    /// may not see the loopback's. [`EventKind::AddressResolved`] follows.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_address(&self, source: Option<SocketAddr>, destination: SocketAddr) -> Result<(), CmError> {
        let stage = self.read(|record| record.stage).ok_or(CmError::Invalid("the id is destroyed"))?;
        if let (Stage::Idle, Some(source)) = (stage, source.filter(|source| !source.ip().is_unspecified())) {
            self.bind(source)?;
        }
        let (bound, reached) = self
            .read(|record| {
                let expected = record.expect("resolving an address", &[Stage::Idle, Stage::Bound]);
                expected.map(|()| (record.source, record.place.is_some()))
            })
            .unwrap_or(Err(CmError::Invalid("the id is destroyed")))?;
        let fixed = bound.map(|bound| bound.ip()).filter(|ip| !ip.is_unspecified());
        if fixed.is_some_and(|fixed| fixed.is_ipv4() != destination.is_ipv4()) {
            return Err(CmError::Invalid("source and destination are of different families"));
        }
        let destination = route::concrete(destination, fixed);
        let scope = route::scope_of(destination);
        // A group is reached from wherever the id is bound; the system need not have a route for it.
        let from = match (destination.ip().is_multicast(), fixed) {
            (true, Some(fixed)) => fixed,
            _ => route::source_for(fixed, destination)?,
        };
        let place = self.nic.place(from, if route::is_link_local(from) { scope } else { 0 });
        let place = match place {
            Err(error) if from.is_loopback() => self.nic.loopback_place(from).ok_or(error),
            place => place,
        };
        let port = bound.map_or(0, |bound| bound.port());
        self.change(|cm, _| {
            let super::Inner { records, bindings, .. } = cm;
            let record = records.get_mut(&self.key).ok_or(CmError::Invalid("the id is destroyed"))?;
            record.expect("resolving an address", &[Stage::Idle, Stage::Bound])?;
            let place = match place {
                Ok(place) => place,
                // The address is this host's and no device's: told as an event, as the kernel does.
                Err(error) => {
                    record.destination = Some(destination);
                    return record.tell(EventKind::AddressError, -error.errno(), Body::None);
                }
            };
            let port = match record.bound {
                true => port,
                false => {
                    let claim = Claim {
                        key: self.key,
                        address: from,
                        only_its_family: false,
                        reuse: record.settings.reuse_address,
                        listening: false,
                    };
                    bindings.bind(&self.nic.ports, record.space, 0, claim)?
                }
            };
            record.bound = true;
            let own_scope = if route::is_link_local(from) { place.device.interface_index() } else { 0 };
            record.source = Some(route::with_scope(from, port, own_scope));
            record.destination = Some(destination);
            if !reached {
                record.place = Some(place);
            }
            record.stage = Stage::AddressResolved;
            record.tell(EventKind::AddressResolved, 0, Body::None)
        })
    }

    /// Finds the way. [`EventKind::RouteResolved`] follows.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self) -> Result<(), CmError> {
        self.change(|cm, _| {
            let record = cm.record(self.key)?;
            record.expect("resolving a route", &[Stage::AddressResolved])?;
            record.find_path();
            record.stage = Stage::RouteResolved;
            record.tell(EventKind::RouteResolved, 0, Body::None)
        })
    }

    /// Asks the peer for a connection, or for its queue pair of datagrams.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, parameters: &ConnectParameters<'_>) -> Result<(), CmError> {
        self.change(|cm, now| {
            let super::Inner { records, manager, communications, .. } = cm;
            let record = records.get_mut(&self.key).ok_or(CmError::Invalid("the id is destroyed"))?;
            record.expect("connecting", &[Stage::RouteResolved])?;
            let (Some(source), Some(destination), Some(path), Some(place)) =
                (record.source, record.destination, record.path, record.place.as_ref())
            else {
                return record.refuse("connecting");
            };
            let header = IpCm::new(source.port(), source.ip(), destination.ip());
            let service = ServiceId::ip(record.space, destination.port());
            let route = ::cm::Route { source: path.sgid, destination: path.dgid };
            let id = if record.is_datagram() {
                let private_data = with_header(&header, parameters.private_data)?;
                manager.resolve(now, ::cm::Resolve { private_data, ..::cm::Resolve::new(route, service) })
            } else {
                reads(parameters)?;
                let private_data = with_header(&header, parameters.private_data)?;
                record.asked = Some(Asked {
                    responder_resources: parameters.responder_resources,
                    initiator_depth: parameters.initiator_depth,
                    retry_count: parameters.retry_count.min(7),
                    rnr_retry_count: parameters.rnr_retry_count.min(7),
                });
                manager.connect(
                    now,
                    ::cm::Connect {
                        transport: transport_of(record.kind),
                        ca_guid: place.device.guid(),
                        responder_resources: parameters.responder_resources,
                        initiator_depth: parameters.initiator_depth,
                        retry_count: parameters.retry_count.min(7),
                        rnr_retry_count: parameters.rnr_retry_count.min(7),
                        flow_control: parameters.flow_control,
                        srq: parameters.srq,
                        mtu: path.mtu,
                        traffic_class: path.traffic_class,
                        hop_limit: path.hop_limit,
                        flow_label: path.flow_label,
                        service_level: path.service_level,
                        local_ack_timeout: Timeout::new(record.ack_timeout()),
                        private_data,
                        ece: record.settings.ece,
                        repeat_rtu: !self.nic.is_own_address(path.dgid),
                        ..::cm::Connect::new(route, service, parameters.qpn, record.receive_psn)
                    },
                )
            };
            let id = id.map_err(refused)?;
            communications.insert(id, self.key);
            record.communication = Some(id);
            record.qpn = parameters.qpn;
            record.asked_at = Some(now);
            record.stage = Stage::Connecting;
            Ok(())
        })
    }

    /// Accepts what a peer asked for. The queue pair must be able to receive before. This fails if the peer has given
    /// up meanwhile; of an id that is not accepted there are no events.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, parameters: &ConnectParameters<'_>) -> Result<(), CmError> {
        self.change(|cm, now| {
            let super::Inner { records, manager, .. } = cm;
            let record = records.get_mut(&self.key).ok_or(CmError::Invalid("the id is destroyed"))?;
            record.expect("accepting", &[Stage::Requested])?;
            let Some(communication) = record.communication else { return record.refuse("accepting") };
            if record.is_datagram() {
                let private_data = data(parameters.private_data)?;
                let valid = ::cm::SidrAnswer::valid(parameters.qpn, parameters.qkey.unwrap_or(UDP_QKEY));
                let answer = ::cm::SidrAnswer { private_data, ..valid };
                manager.answer(now, communication, answer).map_err(refused)?;
                (record.stage, record.unaccepted) = (Stage::Connected, false);
                return Ok(());
            }
            let private_data = data(parameters.private_data)?;
            reads(parameters)?;
            if let Some(agreement) = &mut record.agreement {
                agreement.responder_resources = parameters.responder_resources;
                agreement.initiator_depth = parameters.initiator_depth;
            }
            let accept = ::cm::Accept {
                ca_guid: record.place.as_ref().map_or(0, |place| place.device.guid()),
                responder_resources: parameters.responder_resources,
                initiator_depth: parameters.initiator_depth,
                rnr_retry_count: parameters.rnr_retry_count.min(7),
                flow_control: parameters.flow_control,
                srq: parameters.srq,
                private_data,
                ece: record.settings.ece,
                ..::cm::Accept::new(parameters.qpn, record.receive_psn)
            };
            manager.accept(now, communication, accept).map_err(refused)?;
            record.qpn = parameters.qpn;
            record.watch_peer(&self.nic);
            (record.stage, record.unaccepted) = (Stage::Accepted, false);
            Ok(())
        })
    }

    /// Refuses what a peer asked for, or what it answered.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), CmError> {
        self.change(|cm, now| {
            let super::Inner { records, manager, .. } = cm;
            let record = records.get_mut(&self.key).ok_or(CmError::Invalid("the id is destroyed"))?;
            record.expect("rejecting", &[Stage::Requested, Stage::Answered])?;
            let Some(communication) = record.communication else { return record.refuse("rejecting") };
            if record.is_datagram() {
                let private_data = data(private_data)?;
                let answer = ::cm::SidrAnswer { private_data, ..::cm::SidrAnswer::refused(SidrStatus::Rejected) };
                manager.answer(now, communication, answer).map_err(refused)?;
            } else {
                manager.reject(now, communication, reason, &[], private_data).map_err(refused)?;
            }
            record.stage = Stage::Ended;
            Ok(())
        })
    }

    /// Says to the peer that our queue pair is ready: after [`EventKind::ConnectResponse`].
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<(), CmError> {
        self.change(|cm, now| {
            let super::Inner { records, manager, connection_records, .. } = cm;
            let record = records.get_mut(&self.key).ok_or(CmError::Invalid("the id is destroyed"))?;
            record.expect("establishing", &[Stage::Answered])?;
            let Some(communication) = record.communication else { return record.refuse("establishing") };
            manager.confirm(now, communication, &[]).map_err(refused)?;
            record.stage = Stage::Connected;
            record.record_connection(connection_records, &self.nic);
            Ok(())
        })
    }

    /// Data came before the peer said that it is ready: it is.
    #[doc(alias = "rdma_notify")]
    pub fn notify_established(&self) -> Result<(), CmError> {
        self.change(|cm, now| {
            let super::Inner { records, manager, .. } = cm;
            let record = records.get_mut(&self.key).ok_or(CmError::Invalid("the id is destroyed"))?;
            match (record.stage, record.communication) {
                (Stage::Connected, _) => Ok(()),
                (Stage::Accepted, Some(communication)) => manager.established(now, communication).map_err(refused),
                _ => record.refuse("notifying"),
            }
        })
    }

    /// Ends the connection, or agrees to its end.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), CmError> {
        self.disconnect_with(&[])
    }

    /// The same with up to 220 bytes for the peer's program, which not all of them look at.
    pub fn disconnect_with(&self, private_data: &[u8]) -> Result<(), CmError> {
        self.change(|cm, now| {
            let super::Inner { records, manager, .. } = cm;
            let record = records.get_mut(&self.key).ok_or(CmError::Invalid("the id is destroyed"))?;
            let Some(communication) = record.communication else { return record.refuse("disconnecting") };
            if record.is_datagram() {
                // There is no connection to end; Linux takes it for done, too.
                return Ok(());
            }
            match record.stage {
                Stage::Connected | Stage::Accepted => {
                    manager.disconnect(now, communication, private_data).map_err(refused)?;
                    record.stage = Stage::Disconnecting;
                }
                Stage::PeerLeft => {
                    manager.answer_disconnect(now, communication, &[]).map_err(refused)?;
                    record.stage = Stage::Ended;
                }
                // Once is enough.
                Stage::Disconnecting | Stage::Ended => {}
                _ => return record.refuse("disconnecting"),
            }
            Ok(())
        })
    }

    /// What a queue pair of this id must be told on its way to `state`.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn modify_for(&self, state: State) -> Result<Modify, CmError> {
        self.nic.called(None, || trace::Call::CmMovesQp { id: self.user(), state: state.name() });
        self.read(|record| record.modify_for(state)).unwrap_or(Err(CmError::Invalid("the id is destroyed")))
    }

    /// Joins a group. [`EventKind::MulticastJoin`] follows; a program that wants to receive attaches its queue pair
    /// then.
    #[doc(alias = "rdma_join_multicast")]
    pub fn join(&self, group: IpAddr, user: u64) -> Result<(), CmError> {
        self.change(|cm, _| {
            let record = cm.record(self.key)?;
            record
                .expect("joining", &[Stage::Bound, Stage::AddressResolved, Stage::RouteResolved, Stage::Connected])?;
            let Some(place) = &record.place else { return record.refuse("joining") };
            if !record.is_datagram() {
                return Err(CmError::Invalid("only datagrams go to groups"));
            }
            if !group.is_unspecified() && !group.is_multicast() {
                return Err(CmError::Invalid("not the address of a group"));
            }
            if !group.is_unspecified() && group.is_ipv4() != place.gid.to_ip().is_ipv4() {
                return Err(CmError::Invalid("the group is of another family than the id's address"));
            }
            let group = Gid::from_ip(group);
            let av = AddressVector {
                dgid: group,
                sgid_index: place.index,
                traffic_class: record.settings.type_of_service,
                ..AddressVector::default()
            };
            if !record.groups.contains(&Member { group }) {
                record.groups.push(Member { group });
            }
            let body = DatagramBody { private_data: Vec::new(), av, qpn: Qpn::MULTICAST, qkey: UDP_QKEY, user };
            record.tell(EventKind::MulticastJoin, 0, Body::Datagram(body))
        })
    }

    /// Leaves a group.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(&self, group: IpAddr) -> Result<(), CmError> {
        self.change(|cm, _| {
            let record = cm.record(self.key)?;
            let group = Gid::from_ip(group);
            let Some(at) = record.groups.iter().position(|member| member.group == group) else {
                return Err(CmError::NotLocal(group.to_ip()));
            };
            record.groups.swap_remove(at);
            Ok(())
        })
    }

    /// Sends its events elsewhere from now on, those that wait included.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, to: &Arc<EventChannel>) -> Result<(), CmError> {
        self.change(|cm, _| {
            let record = cm.record(self.key)?;
            let from = std::mem::replace(&mut record.channel, Arc::clone(to));
            for event in from.extract(|event| belongs(event, self.key)) {
                to.push(event);
            }
            Ok(())
        })
    }

    /// Writes an event of the program's own to where the id reports.
    #[doc(alias = "rdma_write_cm_event")]
    pub fn write_event(self: &Arc<Self>, kind: EventKind, status: i32, number: u64) -> Result<(), CmError> {
        self.change(|cm, _| {
            let channel = Arc::clone(&cm.record(self.key)?.channel);
            channel.push(Event { id: Arc::clone(self), listener: None, kind, status, body: Body::Number(number) });
            Ok(())
        })
    }

    /// Ends it: what stands is taken down without an event for its program, what waits for it on its channel is
    /// forgotten, its port is free.
    #[doc(alias = "rdma_destroy_id")]
    pub fn destroy(&self) {
        self.nic.cm.destroy(&self.nic, self.key);
    }
}

/// Whether an event is about an id, or asks it for something.
pub(crate) fn belongs(event: &Event, key: u64) -> bool {
    event.id.key == key || event.listener.as_ref().is_some_and(|listener| listener.key == key)
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {}", self.key)
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl Record {
    /// Tells the program, unless it has yet to accept.
    pub(crate) fn tell(&self, kind: EventKind, status: i32, body: Body) -> Result<(), CmError> {
        if let Some(id) = self.id.upgrade().filter(|_| !self.unaccepted) {
            self.channel.push(Event { id, listener: None, kind, status, body });
        }
        Ok(())
    }

    /// The way between the two addresses.
    /// The peer's GID. The loopback of another device than the loopback's is that device itself.
    fn peer_gid(&self) -> Option<Gid> {
        let (place, destination) = (self.place.as_ref()?, self.destination?.ip());
        let itself = destination.is_loopback() && !place.gid.to_ip().is_loopback();
        Some(if itself { place.gid } else { Gid::from_ip(destination) })
    }

    pub(crate) fn find_path(&mut self) {
        let (Some(place), Some(dgid)) = (&self.place, self.peer_gid()) else { return };
        self.path = Some(PathFacts {
            sgid: place.gid,
            dgid,
            sgid_index: place.index,
            mtu: place.device.port().mtu(),
            traffic_class: self.settings.type_of_service,
            flow_label: 0,
            hop_limit: 64,
            service_level: self.settings.type_of_service >> 5,
            packet_lifetime: PACKET_LIFETIME,
        });
    }
}

fn transport_of(kind: Kind) -> wire::Transport {
    match kind {
        Kind::UnreliableConnected => wire::Transport::Uc,
        Kind::XrcInitiator | Kind::XrcTarget => wire::Transport::Xrc,
        _ => wire::Transport::Rc,
    }
}

fn reads(parameters: &ConnectParameters<'_>) -> Result<(), CmError> {
    if parameters.responder_resources > MAX_READS || parameters.initiator_depth > MAX_READS {
        return Err(CmError::Invalid("more READs at a time than the device allows"));
    }
    Ok(())
}

fn room(private_data: &[u8], room: usize) -> Result<(), CmError> {
    let length = private_data.len();
    if length > room { Err(CmError::PrivateData { length, room }) } else { Ok(()) }
}

/// The addresses, then what the program has to say.
fn with_header<const N: usize>(header: &IpCm, private_data: &[u8]) -> Result<Data<N>, CmError> {
    room(private_data, N - IpCm::LEN)?;
    let mut whole = [0; N];
    // It fits: both sizes are larger than the header.
    let at = header.encode(&mut whole).unwrap_or(0);
    if let Some(rest) = whole.get_mut(at..at + private_data.len()) {
        rest.copy_from_slice(private_data);
    }
    Ok(Data::new(whole))
}

/// Private data of a message.
fn data<const N: usize>(bytes: &[u8]) -> Result<Data<N>, CmError> {
    Data::from_slice(bytes).map_err(|_| CmError::PrivateData { length: bytes.len(), room: N })
}

fn refused(error: ::cm::CmError) -> CmError {
    match error {
        ::cm::CmError::DataTooLong { have, room, .. } => CmError::PrivateData { length: have, room },
        ::cm::CmError::NoId => CmError::Exhausted,
        ::cm::CmError::OutOfRange(what) => CmError::Invalid(what),
        // It knows the communication no longer, or it is further than we: what happened is on its way as an event.
        _ => CmError::State { what: "this", state: "at its end" },
    }
}
