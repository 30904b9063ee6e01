//! Ids: what a program connects, listens and joins groups with (`rdma_cm_id`). [`Ids`] are all of a process: where each
//! is in its life, which ports it has, what its peer and it agreed on; over a [`Manager`], which carries the messages.
//! What is the NIC's own is not here: devices and routes, queue pairs, channels of events, processes of the host. A
//! driver finds addresses and hands them in, and brings what comes out to programs.
//!
//! Driving it is driving the manager: send what [`poll_transmit`](Manager::poll_transmit) of
//! [`Ids::manager`] has, take [outputs](Ids::poll_output), and wake up at the [deadline](Ids::poll_timeout). Messages,
//! timeouts and calls go through the ids.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

use trace::ConnectionEnd;
use transport::{AddressVector, Kind};
use wire::cm::{CommId, Data, IpCm, PortSpace, RejectReason, ServiceId, SidrStatus};
use wire::{Gid, Qpn, Timeout, Transport, refuse_if};

use crate::{Accept, Config, Connect, Families, Listen, ListenerId, Manager, Resolve, Route, SidrAnswer, Time};
use claims::{Claim, Claims};

pub mod address;
mod claims;
mod derive;
mod error;
mod event;
mod record;

pub use address::{LocalAddress, PathFacts};
pub use error::IdError;
pub use event::{Body, ConnectParameters, ConnectionBody, DatagramBody, EventKind, IdOption, Output};
pub use record::{Agreement, Asked, IdRecord, Stage, UDP_QKEY};

/// The most READs and atomics at a time that devices allow.
pub const MAX_READS: u8 = 128;

/// The name of an id; none is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IdKey(pub u64);

impl fmt::Display for IdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The ids of a process.
pub struct Ids {
    /// What carries their messages. Calls that change connections go through the ids.
    pub manager: Manager,
    records: BTreeMap<IdKey, IdRecord>,
    communications: BTreeMap<CommId, IdKey>,
    /// Ids of requests that were accepted, by the number of their queue pair.
    accepted: BTreeMap<Qpn, IdKey>,
    listeners: BTreeMap<ListenerId, IdKey>,
    claims: Claims,
    /// Connections whose end is to be told, and when.
    farewells: VecDeque<(Time, IdKey)>,
    outputs: VecDeque<Output>,
    last_key: u64,
    /// How many connections have begun.
    begun: u32,
}

impl fmt::Debug for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ids").field("records", &self.records).finish_non_exhaustive()
    }
}

const DESTROYED_ID: IdError = IdError::Invalid("the id is destroyed");

impl Ids {
    /// None yet.
    pub fn new(config: Config) -> Ids {
        Ids {
            manager: Manager::new(config),
            records: BTreeMap::new(),
            communications: BTreeMap::new(),
            accepted: BTreeMap::new(),
            listeners: BTreeMap::new(),
            claims: Claims::default(),
            farewells: VecDeque::new(),
            outputs: VecDeque::new(),
            last_key: 0,
            begun: 0,
        }
    }

    /// Makes an id.
    #[doc(alias = "rdma_create_id")]
    pub fn create(&mut self, space: PortSpace, kind: Kind) -> IdKey {
        let record = IdRecord::new(space, kind, self.manager.ids.draw_psn());
        self.insert(record)
    }

    fn insert(&mut self, record: IdRecord) -> IdKey {
        self.last_key += 1;
        let key = IdKey(self.last_key);
        self.records.insert(key, record);
        key
    }

    /// What is known of an id.
    pub fn get(&self, key: IdKey) -> Option<&IdRecord> {
        self.records.get(&key)
    }

    /// The id of a connection or of a request for a datagram service.
    pub fn of(&self, communication: CommId) -> Option<&IdRecord> {
        self.communications.get(&communication).and_then(|key| self.records.get(key))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (IdKey, &IdRecord)> {
        self.records.iter().map(|(key, record)| (*key, record))
    }

    fn record(&mut self, key: IdKey) -> Result<&mut IdRecord, IdError> {
        self.records.get_mut(&key).ok_or(DESTROYED_ID)
    }

    /// What [`IdOption`] says.
    #[doc(alias = "rdma_set_option")]
    pub fn set(&mut self, key: IdKey, option: IdOption) -> Result<(), IdError> {
        let record = self.record(key)?;
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
            IdOption::ByGid(value) => {
                record.expect("choosing a family of addresses", &[Stage::Idle, Stage::Bound])?;
                if record.bound && record.settings.by_gid != value {
                    return Err(IdError::Invalid("the id is bound to an address of another family"));
                }
                record.settings.by_gid = value;
            }
            IdOption::AckTimeout(value) => {
                if record.is_datagram() || value > 31 {
                    return Err(IdError::Invalid("an ACK timeout is 0 to 31, and of a connected service"));
                }
                record.settings.ack_timeout = Some(value);
            }
            IdOption::Ece(vendor_id, options) => record.settings.ece = crate::Ece { vendor_id, options },
        }
        Ok(())
    }

    /// Takes an address and port; port 0 is any. `local` is the device's address, unless it is none in particular.
    /// `take` gets the port for the process and returns which.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind<E: From<IdError>>(
        &mut self,
        key: IdKey,
        address: SocketAddr,
        local: Option<LocalAddress>,
        take: impl FnOnce(PortSpace, SocketAddr) -> Result<u16, E>,
    ) -> Result<(), E> {
        let Ids { records, claims, .. } = self;
        let record = records.get_mut(&key).ok_or(DESTROYED_ID)?;
        record.expect("binding", &[Stage::Idle])?;
        let claim = Claim {
            key,
            address: address.ip(),
            only_its_family: record.settings.only_its_family,
            reuse: record.settings.reuse_address,
            listening: false,
        };
        let port = claims.bind(record.space, address.port(), claim, take)?;
        let mut address = address;
        address.set_port(port);
        (record.source, record.bound, record.local, record.stage) = (Some(address), true, local, Stage::Bound);
        Ok(())
    }

    /// Waits for requests, at most `backlog` of them that the program has not looked at; 0 is as many as usual. It is
    /// called at `address`, which is its own unless that is a loopback address that is called by another.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&mut self, key: IdKey, called_at: Option<IpAddr>, backlog: u32) -> Result<(), IdError> {
        let Ids { records, claims, manager, listeners, .. } = self;
        let record = records.get_mut(&key).ok_or(DESTROYED_ID)?;
        record.expect("listening", &[Stage::Bound])?;
        let Some(address) = record.source else { return record.refuse("listening") };
        claims.listen(record.space, address.port(), key)?;
        let called_at = called_at.unwrap_or(address.ip());
        let service = Listen::new(ServiceId::ip(record.space, address.port()));
        let listen = Listen {
            address: Some(called_at).filter(|ip| !ip.is_unspecified()),
            families: match called_at {
                IpAddr::V4(_) => Families::V4,
                IpAddr::V6(_) if record.settings.only_its_family => Families::V6,
                IpAddr::V6(_) => Families::Both,
            },
            backlog: if backlog == 0 { service.backlog } else { backlog },
            ..service
        };
        let in_use = IdError::InUse { address, anywhere: address::is_anywhere(address.ip()) };
        let listener = manager.listen(listen).map_err(|_| in_use)?;
        listeners.insert(listener, key);
        (record.listener, record.stage) = (Some(listener), Stage::Listening);
        Ok(())
    }

    /// Listens no more. Requests that the program has not taken are refused; its address stays, and it may listen
    /// again.
    pub fn stop_listening(&mut self, now: Time, key: IdKey) -> Result<(), IdError> {
        let Ids { records, claims, manager, listeners, .. } = self;
        let record = records.get_mut(&key).ok_or(DESTROYED_ID)?;
        record.expect("ending to listen", &[Stage::Listening])?;
        if let Some(listener) = record.listener.take() {
            listeners.remove(&listener);
            manager.stop_listening(now, listener);
        }
        if let Some(address) = record.source {
            claims.set_listening(record.space, address.port(), key, false);
        }
        record.stage = Stage::Bound;
        Ok(())
    }

    /// The address that an id has chosen to reach a peer from, if it has. An error if it cannot resolve an address now,
    /// or not one of the peer's family.
    pub fn chosen_source(&self, key: IdKey, destination: SocketAddr) -> Result<Option<IpAddr>, IdError> {
        let record = self.get(key).ok_or(DESTROYED_ID)?;
        record.expect("resolving an address", &[Stage::Idle, Stage::Bound])?;
        let chosen = record.source.map(|source| source.ip()).filter(|ip| !ip.is_unspecified());
        match chosen.filter(|chosen| chosen.is_ipv4() != destination.is_ipv4()) {
            Some(_) => Err(IdError::Invalid("source and destination are of different families")),
            None => Ok(chosen),
        }
    }

    /// The device and the source address for a peer are found: `from`, which is `local`, and the peer can be reached.
    /// [`EventKind::AddressResolved`] follows.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_address<E: From<IdError>>(
        &mut self,
        key: IdKey,
        from: IpAddr,
        local: LocalAddress,
        destination: SocketAddr,
        take: impl FnOnce(PortSpace, SocketAddr) -> Result<u16, E>,
    ) -> Result<(), E> {
        self.query_address(key, from, local, destination, take)?;
        self.address_resolved(key, local);
        Ok(())
    }

    /// The device and the source address for a peer are found, and whether the peer can be reached has yet to be found
    /// out: [`address_resolved`](Ids::address_resolved) or [`address_failed`](Ids::address_failed) says so.
    pub fn query_address<E: From<IdError>>(
        &mut self,
        key: IdKey,
        from: IpAddr,
        local: LocalAddress,
        destination: SocketAddr,
        take: impl FnOnce(PortSpace, SocketAddr) -> Result<u16, E>,
    ) -> Result<(), E> {
        self.chosen_source(key, destination)?;
        let Ids { records, claims, begun, .. } = self;
        let record = records.get_mut(&key).ok_or(DESTROYED_ID)?;
        if record.order == 0 {
            *begun += 1;
            record.order = *begun;
        }
        let port = match record.source.filter(|_| record.bound) {
            Some(source) => source.port(),
            None => {
                let reuse = record.settings.reuse_address;
                let claim = Claim { key, address: from, only_its_family: false, reuse, listening: false };
                claims.bind(record.space, 0, claim, take)?
            }
        };
        record.bound = true;
        record.source = Some(local.scoped(from, port));
        record.destination = Some(destination);
        record.stage = Stage::AddressQueried;
        Ok(())
    }

    /// The peer of an id that asked for its address can be reached: [`EventKind::AddressResolved`] follows. False if it
    /// does not wait for that any more.
    pub fn address_resolved(&mut self, key: IdKey, local: LocalAddress) -> bool {
        let record = self.records.get_mut(&key).filter(|record| record.stage == Stage::AddressQueried);
        let Some(record) = record else { return false };
        if record.local.is_none_or(|bound| bound.gid == local.gid) {
            record.local = Some(local);
        }
        record.stage = Stage::AddressResolved;
        self.tell(key, EventKind::AddressResolved, 0, Body::None);
        true
    }

    /// The peer of an id that asked for its address cannot be reached: [`EventKind::AddressError`] follows, with this
    /// negative errno, and the id may ask again.
    pub fn address_failed(&mut self, key: IdKey, status: i32) {
        let record = self.records.get_mut(&key).filter(|record| record.stage == Stage::AddressQueried);
        let Some(record) = record else { return };
        record.stage = Stage::Bound;
        self.tell(key, EventKind::AddressError, status, Body::None);
    }

    /// No device reaches the peer: [`EventKind::AddressError`] follows, with this negative errno.
    pub fn fail_to_resolve_address(&mut self, key: IdKey, to: SocketAddr, status: i32) -> Result<(), IdError> {
        self.chosen_source(key, to)?;
        self.record(key)?.destination = Some(to);
        self.tell(key, EventKind::AddressError, status, Body::None);
        Ok(())
    }

    /// Finds the way. [`EventKind::RouteResolved`] follows.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&mut self, key: IdKey) -> Result<(), IdError> {
        let record = self.record(key)?;
        record.expect("resolving a route", &[Stage::AddressResolved])?;
        record.path = record.peer_gid().and_then(|peer| record.path_to(peer));
        record.stage = Stage::RouteResolved;
        self.tell(key, EventKind::RouteResolved, 0, Body::None);
        Ok(())
    }

    /// Asks the peer for a connection, or for its queue pair of datagrams. The last message of a handshake is repeated
    /// unless `peer_is_here`: then the peer repeats its own.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        &mut self,
        now: Time,
        key: IdKey,
        parameters: &ConnectParameters<'_>,
        peer_is_here: bool,
    ) -> Result<(), IdError> {
        let Ids { records, manager, communications, .. } = self;
        let record = records.get_mut(&key).ok_or(DESTROYED_ID)?;
        record.expect("connecting", &[Stage::RouteResolved])?;
        let (Some(source), Some(destination), Some(path), Some(local)) =
            (record.source, record.destination, record.path, record.local)
        else {
            return record.refuse("connecting");
        };
        let header = IpCm::new(source.port(), source.ip(), destination.ip());
        let header = Some(&header).filter(|_| !record.settings.by_gid);
        let service = ServiceId::ip(record.space, destination.port());
        let route = Route { source: path.sgid, destination: path.dgid };
        let id = if record.is_datagram() {
            let private_data = with_header(header, parameters.private_data)?;
            manager.resolve(now, Resolve { private_data, ..Resolve::new(route, service) })?
        } else {
            let asked = asked(parameters)?;
            let connect = Connect {
                transport: match record.kind {
                    Kind::UnreliableConnected => Transport::Uc,
                    Kind::XrcInitiator | Kind::XrcTarget => Transport::Xrc,
                    _ => Transport::Rc,
                },
                ca_guid: local.ca_guid,
                responder_resources: asked.responder_resources,
                initiator_depth: asked.initiator_depth,
                retry_count: asked.retry_count,
                rnr_retry_count: asked.rnr_retry_count,
                flow_control: parameters.flow_control,
                srq: parameters.srq,
                mtu: path.mtu,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                flow_label: path.flow_label,
                service_level: path.service_level,
                local_ack_timeout: Timeout::new(record.ack_timeout()),
                private_data: with_header(header, parameters.private_data)?,
                ece: record.settings.ece,
                repeat_rtu: !peer_is_here,
                ..Connect::new(route, service, parameters.qpn, record.receive_psn)
            };
            record.asked = Some(asked);
            manager.connect(now, connect)?
        };
        communications.insert(id, key);
        (record.communication, record.qpn, record.asked_at) = (Some(id), parameters.qpn, Some(now));
        record.stage = Stage::Connecting;
        Ok(())
    }

    /// Accepts what a peer asked for. The queue pair must be able to receive before. This fails if the peer has given
    /// up meanwhile; of an id that is not accepted there are no events.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&mut self, now: Time, key: IdKey, parameters: &ConnectParameters<'_>) -> Result<(), IdError> {
        let Ids { records, manager, accepted, .. } = self;
        let record = records.get_mut(&key).ok_or(DESTROYED_ID)?;
        record.expect("accepting", &[Stage::Requested])?;
        let Some(communication) = record.communication else { return record.refuse("accepting") };
        if record.is_datagram() {
            let valid = SidrAnswer::valid(parameters.qpn, parameters.qkey.unwrap_or(UDP_QKEY));
            manager.answer(now, communication, SidrAnswer { private_data: data(parameters.private_data)?, ..valid })?;
            (record.stage, record.unaccepted) = (Stage::Connected, false);
            return Ok(());
        }
        let private_data = data(parameters.private_data)?;
        let asked = asked(parameters)?;
        if let Some(Agreement { numbers, .. }) = &mut record.agreement {
            numbers.responder_resources = asked.responder_resources;
            numbers.initiator_depth = asked.initiator_depth;
        }
        let accept = Accept {
            ca_guid: record.local.map_or(0, |local| local.ca_guid),
            responder_resources: asked.responder_resources,
            initiator_depth: asked.initiator_depth,
            rnr_retry_count: asked.rnr_retry_count,
            flow_control: parameters.flow_control,
            srq: parameters.srq,
            private_data,
            ece: record.settings.ece,
            ..Accept::new(parameters.qpn, record.receive_psn)
        };
        manager.accept(now, communication, accept)?;
        accepted.insert(parameters.qpn, key);
        record.qpn = parameters.qpn;
        (record.stage, record.unaccepted) = (Stage::Accepted, false);
        Ok(())
    }

    /// Refuses what a peer asked for, or what it answered.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&mut self, now: Time, key: IdKey, reason: RejectReason, private_data: &[u8]) -> Result<(), IdError> {
        let Ids { records, manager, .. } = self;
        let record = records.get_mut(&key).ok_or(DESTROYED_ID)?;
        record.expect("rejecting", &[Stage::Requested, Stage::Answered])?;
        let Some(communication) = record.communication else { return record.refuse("rejecting") };
        if record.is_datagram() {
            let refusal = SidrAnswer::refused(SidrStatus::Rejected);
            manager.answer(now, communication, SidrAnswer { private_data: data(private_data)?, ..refusal })?;
        } else {
            manager.reject(now, communication, reason, &[], private_data)?;
        }
        record.stage = Stage::Ended;
        Ok(())
    }

    /// Says to the peer that our queue pair is ready: after [`EventKind::ConnectResponse`].
    #[doc(alias = "rdma_establish")]
    pub fn establish(&mut self, now: Time, key: IdKey) -> Result<(), IdError> {
        let Ids { records, manager, .. } = self;
        let record = records.get_mut(&key).ok_or(DESTROYED_ID)?;
        record.expect("establishing", &[Stage::Answered])?;
        let Some(communication) = record.communication else { return record.refuse("establishing") };
        manager.confirm(now, communication, &[])?;
        record.stage = Stage::Connected;
        Ok(())
    }

    /// Data came before the peer said that it is ready: it is.
    #[doc(alias = "rdma_notify")]
    pub fn notify_established(&mut self, now: Time, key: IdKey) -> Result<(), IdError> {
        let record = self.records.get(&key).ok_or(DESTROYED_ID)?;
        match (record.stage, record.communication) {
            (Stage::Connected, _) => Ok(()),
            (Stage::Accepted, Some(communication)) => Ok(self.manager.established(now, communication)?),
            _ => record.refuse("notifying"),
        }
    }

    /// Ends the connection, with up to 220 bytes for the peer's program, or agrees to its end.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self, now: Time, key: IdKey, private_data: &[u8]) -> Result<(), IdError> {
        let Ids { records, manager, .. } = self;
        let record = records.get_mut(&key).ok_or(DESTROYED_ID)?;
        let Some(communication) = record.communication else { return record.refuse("disconnecting") };
        if record.is_datagram() {
            // There is no connection to end; Linux takes it for done, too.
            return Ok(());
        }
        match record.stage {
            Stage::Connected | Stage::Accepted => {
                manager.disconnect(now, communication, private_data)?;
                record.stage = Stage::Disconnecting;
            }
            Stage::PeerLeft => {
                manager.answer_disconnect(now, communication, &[])?;
                record.stage = Stage::Ended;
            }
            // Once is enough.
            Stage::Disconnecting | Stage::Ended => {}
            _ => return record.refuse("disconnecting"),
        }
        Ok(())
    }

    /// Joins a group. [`EventKind::MulticastJoin`] follows; a program that wants to receive attaches its queue pair
    /// then.
    #[doc(alias = "rdma_join_multicast")]
    pub fn join(&mut self, key: IdKey, group: IpAddr, user: u64) -> Result<(), IdError> {
        let record = self.record(key)?;
        record.expect("joining", &[Stage::Bound, Stage::AddressResolved, Stage::RouteResolved, Stage::Connected])?;
        let Some(local) = record.local else { return record.refuse("joining") };
        refuse_if!(!record.is_datagram(), IdError::Invalid("only datagrams go to groups"));
        refuse_if!(!group.is_unspecified() && !group.is_multicast(), IdError::Invalid("not the address of a group"));
        if !group.is_unspecified() && group.is_ipv4() != local.gid.to_ip().is_ipv4() {
            return Err(IdError::Invalid("the group is of another family than the id's address"));
        }
        let dgid = Gid::from_ip(group);
        let traffic_class = record.settings.type_of_service;
        let av = AddressVector { dgid, sgid_index: local.index, traffic_class, ..AddressVector::default() };
        if !record.groups.contains(&dgid) {
            record.groups.push(dgid);
        }
        let body = DatagramBody { private_data: Vec::new(), av, qpn: Qpn::MULTICAST, qkey: UDP_QKEY, user };
        self.tell(key, EventKind::MulticastJoin, 0, Body::Datagram(body));
        Ok(())
    }

    /// Leaves a group.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(&mut self, key: IdKey, group: IpAddr) -> Result<(), IdError> {
        let record = self.record(key)?;
        let at = record.groups.iter().position(|member| *member == Gid::from_ip(group));
        record.groups.swap_remove(at.ok_or(IdError::NotLocal(group))?);
        Ok(())
    }

    /// A program has taken the event of a request: it no longer counts towards the backlog.
    pub fn taken(&mut self, key: IdKey) {
        if let Some(communication) = self.get(key).and_then(|record| record.communication) {
            self.manager.taken(communication);
        }
    }

    /// Its device is gone: [`EventKind::DeviceRemoval`] follows.
    pub fn device_gone(&mut self, now: Time, key: IdKey) {
        if let Some(record) = self.records.get(&key) {
            trace_end(&mut self.manager, now, record, ConnectionEnd::DeviceGone);
        }
        self.tell(key, EventKind::DeviceRemoval, 0, Body::None);
    }

    /// Its program hears of a failure in place of what it was about to hear: the id is as the failure leaves it. An
    /// attempt to connect ends, and the peer hears that it does.
    pub fn fail(&mut self, now: Time, key: IdKey, failure: EventKind) {
        let Some(record) = self.records.get_mut(&key) else { return };
        match (failure, record.stage) {
            (EventKind::AddressError, Stage::AddressResolved) => record.stage = Stage::Bound,
            (EventKind::RouteError, Stage::RouteResolved) => {
                (record.stage, record.path) = (Stage::AddressResolved, None);
            }
            (
                EventKind::ConnectError | EventKind::Unreachable | EventKind::Rejected,
                Stage::Answered | Stage::Accepted | Stage::Connected,
            ) => {
                record.stage = Stage::Ended;
                if let Some(communication) = record.communication {
                    // Unknown if it has ended already.
                    let _ = self.manager.abandon(now, communication);
                }
            }
            _ => {}
        }
    }

    /// Ends an id: what stands is taken down without an event for its program. With `forgets`, of a request that its
    /// peer has not confirmed nothing is remembered; otherwise late messages are answered for a while.
    #[doc(alias = "rdma_destroy_id")]
    pub fn destroy(&mut self, now: Time, key: IdKey, forgets: bool) {
        let Some(record) = self.records.remove(&key) else { return };
        if let Some(listener) = record.listener {
            self.listeners.remove(&listener);
            self.manager.stop_listening(now, listener);
        }
        if record.stage == Stage::Connected {
            trace_end(&mut self.manager, now, &record, ConnectionEnd::Local);
        }
        if let Some(communication) = record.communication {
            self.communications.remove(&communication);
            // Unknown if it has ended already.
            let _ = match forgets {
                true => self.manager.forget(now, communication),
                false => self.manager.abandon(now, communication),
            };
        }
        if self.accepted.get(&record.qpn) == Some(&key) {
            self.accepted.remove(&record.qpn);
        }
        if let (true, Some(source)) = (record.bound, record.source) {
            let (space, port) = (record.space, source.port());
            if self.claims.release(space, port, key) {
                self.outputs.push_back(Output::PortFreed { space, port });
            }
        }
    }

    /// The process has ended without a word, and its host ends what it has: peers hear
    /// [why](crate::PROCESS_ENDED). Afterwards there are no ids.
    pub fn end_process(&mut self, now: Time) {
        let keys: Vec<IdKey> = self.records.keys().copied().collect();
        self.manager.abandon_all(now);
        keys.into_iter().for_each(|key| self.destroy(now, key, false));
        self.manager.parting = Data::default();
        self.farewells.clear();
        self.outputs.clear();
    }

    /// Whether the tables agree, or what does not: for tests, as [`Manager::audit`].
    pub fn audit(&self) -> Result<(), &'static str> {
        let check = |holds: bool, what| if holds { Ok(()) } else { Err(what) };
        self.manager.audit()?;
        let of = |key: &IdKey| self.records.get(key);
        for (id, key) in &self.communications {
            check(of(key).is_some_and(|record| record.communication == Some(*id)), "a communication is of no id")?;
        }
        for (listener, key) in &self.listeners {
            check(of(key).is_some_and(|record| record.listener == Some(*listener)), "a listener is no id's")?;
        }
        for (qpn, key) in &self.accepted {
            check(of(key).is_some_and(|record| record.qpn == *qpn), "an accepted queue pair is no id's")?;
        }
        let bound = self.records.values().filter(|record| record.bound).count();
        check(bound == self.claims.count(), "an id without a port has one, or the other way round")
    }
}

/// Says in the log how a connection ended.
fn trace_end(manager: &mut Manager, now: Time, record: &IdRecord, by: ConnectionEnd) {
    if let Some(communication) = record.communication {
        let kind = trace::Kind::ConnectionEnded { local_comm_id: communication.value(), by };
        manager.out.push_trace(trace::Event { at: now.as_nanos(), qpn: Some(record.qpn), kind });
    }
}

/// The numbers of a request or an answer, as far as messages can carry them.
fn asked(parameters: &ConnectParameters<'_>) -> Result<Asked, IdError> {
    let &ConnectParameters { responder_resources, initiator_depth, .. } = parameters;
    if responder_resources > MAX_READS || initiator_depth > MAX_READS {
        return Err(IdError::Invalid("more READs at a time than the device allows"));
    }
    let (retry_count, rnr_retry_count) = (parameters.retry_count.min(7), parameters.rnr_retry_count.min(7));
    Ok(Asked { responder_resources, initiator_depth, retry_count, rnr_retry_count })
}

/// Private data that begins with the addresses, if they are IP addresses.
fn with_header<const N: usize>(header: Option<&IpCm>, private_data: &[u8]) -> Result<Data<N>, IdError> {
    let (length, room) = (private_data.len(), N - header.map_or(0, |_| IpCm::LEN));
    refuse_if!(length > room, IdError::PrivateData { length, room });
    let mut whole = [0; N];
    // It fits: both sizes are larger than the header.
    let at = header.and_then(|header| header.encode(&mut whole).ok()).unwrap_or(0);
    if let Some(rest) = whole.get_mut(at..at + length) {
        rest.copy_from_slice(private_data);
    }
    Ok(Data::new(whole))
}

/// Private data of a message.
fn data<const N: usize>(bytes: &[u8]) -> Result<Data<N>, IdError> {
    Data::from_slice(bytes).map_err(|_| IdError::PrivateData { length: bytes.len(), room: N })
}
