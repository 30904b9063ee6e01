//! Ids: what a program connects, listens and joins groups with. An id is a name for a record that the connection
//! manager keeps; calls take its lock, do what they do at once, and the rest arrives as events.

use super::Inner;
use super::error::CmError;
use super::event::{Event, EventChannel};
use super::handle::Handle;
use super::ports::{self, HeldPorts};
use super::route::{self, DeviceAddress};
use crate::nic::Nic;
use crate::objects::device::Device;
use ::cm::id::address::{is_anywhere, is_link_local};
use ::cm::id::{Body, ConnectParameters, EventKind, IdOption, IdRecord, PathFacts, Stage};
use ::cm::{IdError, IdKey, Time};
use ::host::holders::is_our_user;
use ::host::names::{self, Name};
use ::host::slots::Slot;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use transport::{Kind, Modify, State};
use wire::cm::{PortSpace, RejectReason};
use wire::{Gid, Psn};

const DESTROYED_ID: IdError = IdError::Invalid("the id is destroyed");

/// An endpoint of the connection manager.
#[doc(alias = "rdma_cm_id")]
pub struct Id {
    pub(crate) key: IdKey,
    nic: Arc<Nic>,
    user: AtomicU64,
}

impl Id {
    /// A fresh id whose events go to `channel`.
    pub fn new(nic: &Arc<Nic>, channel: &Arc<EventChannel>, space: PortSpace, kind: Kind, user: u64) -> Arc<Id> {
        nic.cm.with(nic, |cm, _| {
            let key = cm.ids.create(space, kind);
            let id = Arc::new(Id { key, nic: Arc::clone(nic), user: AtomicU64::new(user) });
            cm.handles.insert(key, Handle::new(&id, channel, None));
            id
        })
    }

    /// The id of a peer's request to a listener.
    pub(crate) fn for_request(listener: &Id, key: IdKey) -> Arc<Id> {
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
        self.nic.cm.with(&self.nic, |cm, _| cm.ids.taken(self.key));
    }

    fn read<R>(&self, look: impl FnOnce(&IdRecord) -> R) -> Option<R> {
        self.nic.cm.read(self.key, look)
    }

    fn change<R, E: Into<CmError>>(&self, change: impl FnOnce(&mut Inner, Time) -> Result<R, E>) -> Result<R, CmError> {
        self.nic.cm.with(&self.nic, |inner, now| {
            let answer = change(inner, now);
            inner.note(self.key);
            answer.map_err(E::into)
        })
    }

    /// Takes a port of the host for this process.
    fn take_port<'a>(&'a self, held: &'a mut HeldPorts) -> impl FnOnce(PortSpace, SocketAddr) -> Result<u16, CmError> {
        |space, address| ports::take(&self.nic.ground.host.ports, held, space, address)
    }

    /// Whether it waits for requests.
    pub fn is_listening(&self) -> bool {
        self.read(|record| record.stage == Stage::Listening) == Some(true)
    }

    /// The device it is bound to.
    pub fn device(&self) -> Option<Arc<Device>> {
        self.nic.cm.inner.lock().handles.get(&self.key).and_then(|handle| handle.device.clone())
    }

    /// The port of its device that it is bound to: 1 as long as it is bound to none.
    pub fn port_number(&self) -> u8 {
        self.read(|record| record.local.map(|local| local.port)).flatten().unwrap_or(1)
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
        self.read(|record| record.local.map(|local| (local.gid, local.index))).flatten()
    }

    /// The peer's GID, if the id is bound to a device and knows its peer.
    pub fn peer_gid(&self) -> Option<Gid> {
        self.read(IdRecord::peer_gid).flatten()
    }

    /// The way to the peer, once it is resolved.
    pub fn path(&self) -> Option<PathFacts> {
        self.read(|record| record.path).flatten()
    }

    /// Its kind of service.
    pub fn kind(&self) -> Kind {
        self.read(|record| record.kind).unwrap_or(Kind::ReliableConnected)
    }

    /// Whether its addresses are GIDs.
    pub fn is_by_gid(&self) -> bool {
        self.read(IdRecord::is_by_gid).unwrap_or(false)
    }

    /// Its namespace of ports.
    pub fn space(&self) -> PortSpace {
        self.read(|record| record.space).unwrap_or(PortSpace::Tcp)
    }

    /// Where its events go.
    pub fn channel(&self) -> Option<Arc<EventChannel>> {
        self.nic.cm.inner.lock().handles.get(&self.key).map(|handle| Arc::clone(&handle.channel))
    }

    /// The first sequence number of what its queue pair receives.
    pub fn receive_psn(&self) -> Psn {
        self.read(|record| record.receive_psn).unwrap_or(Psn::new(0))
    }

    /// What [`IdOption`] says.
    pub fn set(&self, option: IdOption) -> Result<(), CmError> {
        self.change(|cm, _| cm.ids.set(self.key, option))
    }

    /// Takes an address and port; port 0 is any. A loopback address chooses no device, like a wildcard: with kernels it
    /// is of no device, and libfabric finds no device that connects where it is. But those of NICs that share the
    /// loopback choose theirs, all but the first's, which is the one that such programs know.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, address: SocketAddr) -> Result<(), CmError> {
        self.read(|record| record.expect("binding", &[Stage::Idle])).unwrap_or(Ok(()))?;
        let place = match address.ip() {
            ip if is_anywhere(ip) => self.nic.place_on_shared_loopback(ip),
            ip if ip.is_multicast() => return Err(IdError::NotLocal(ip).into()),
            ip => Some(self.nic.place(ip, route::scope_of(address))?),
        };
        self.change(|cm, _| {
            let Inner { ids, handles, ports, .. } = cm;
            ids.bind(self.key, address, place.as_ref().map(DeviceAddress::local), self.take_port(ports))?;
            if let Some(handle) = handles.get_mut(&self.key) {
                handle.device = place.map(|place| place.device);
            }
            Ok::<_, CmError>(())
        })
    }

    /// Waits for requests, at most `backlog` of them that the program has not looked at.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<(), CmError> {
        if self.read(|record| record.stage == Stage::Idle) == Some(true) {
            self.bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        let called_at = self.source().and_then(|address| self.called_at(address.ip()));
        self.change(|cm, _| cm.ids.listen(self.key, called_at, backlog))
    }

    /// Listens no more. Requests that the program has not taken are refused; its address stays, and it may listen
    /// again.
    pub fn stop_listening(&self) -> Result<(), CmError> {
        self.change(|cm, now| cm.ids.stop_listening(now, self.key))
    }

    /// Where an id that listens at `address` is called, if that is elsewhere. Without the loopback's device the
    /// loopback is another one: see [`resolve_address`](Id::resolve_address).
    fn called_at(&self, address: IpAddr) -> Option<IpAddr> {
        let elsewhere = address.is_loopback() && self.nic.known_place(address, 0).is_none();
        let place = if elsewhere { self.nic.loopback_place(address) } else { None };
        place.map(|place| place.gid.to_ip())
    }

    /// Finds the device and the source address for a peer. A peer on the loopback is on the first device, if programs
    /// may not see the loopback's. [`EventKind::AddressResolved`] follows.
    pub fn resolve_address(&self, source: Option<SocketAddr>, destination: SocketAddr) -> Result<(), CmError> {
        self.find_address(source, destination, None)
    }

    /// Finds the device and the source address like [`resolve_address`](Id::resolve_address), and asks the network for
    /// the peer's neighbour where it is not known: [`EventKind::AddressResolved`] follows when that has answered, or
    /// [`EventKind::AddressError`] when it has not in that time.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_address_within(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<(), CmError> {
        self.find_address(source, destination, Some(timeout))
    }

    /// Waits until the neighbour is known by which a peer is reached, a second at most: for a program that waits for
    /// its connection.
    pub fn await_neighbour(&self, destination: SocketAddr) -> Result<(), CmError> {
        let (from, destination) = self.way_to(destination)?;
        self.nic.await_neighbour(from, destination.ip(), route::scope_of(destination))
    }

    /// From which address a peer is reached, and its own on a link.
    fn way_to(&self, destination: SocketAddr) -> Result<(IpAddr, SocketAddr), CmError> {
        let fixed = self.nic.cm.inner.lock().ids.chosen_source(self.key, destination)?;
        let destination = self.nic.on_a_link(route::concrete(destination, fixed), fixed, self.is_by_gid());
        // A group is reached from wherever the id is bound; the system need not have a route for it.
        let from = match (destination.ip().is_multicast(), fixed) {
            (true, Some(fixed)) => fixed,
            _ => route::source_for(fixed, destination)?,
        };
        Ok((from, destination))
    }

    fn find_address(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Option<Duration>,
    ) -> Result<(), CmError> {
        let stage = self.read(|record| record.stage).ok_or(DESTROYED_ID)?;
        if let (Stage::Idle, Some(source)) = (stage, source.filter(|source| !source.ip().is_unspecified())) {
            self.bind(source)?;
        }
        let (from, destination) = self.way_to(destination)?;
        let scope = route::scope_of(destination);
        let place = self.nic.place(from, if is_link_local(from) { scope } else { 0 });
        let place = match place {
            Err(error) if from.is_loopback() => self.nic.loopback_place(from).ok_or(error),
            place => place,
        };
        let place = match place {
            Ok(place) => place,
            // The address is this host's and no device's: told as an event, as the kernel does.
            Err(error) => {
                return self.change(|cm, _| cm.ids.fail_to_resolve_address(self.key, destination, -error.errno()));
            }
        };
        let search = match timeout {
            Some(timeout) => self.nic.begin_search(from, destination.ip(), scope, timeout)?,
            None => None,
        };
        let local = place.local();
        self.change(|cm, _| {
            let Inner { ids, ports, .. } = cm;
            ids.query_address(self.key, from, local, destination, self.take_port(ports))
        })?;
        match search {
            None => self.nic.cm.address_found(&self.nic, self.key, place, Ok(())),
            Some(search) => self.nic.search_for(search, self.key, place),
        }
        Ok(())
    }

    /// Finds the way. [`EventKind::RouteResolved`] follows.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self) -> Result<(), CmError> {
        self.change(|cm, _| cm.ids.resolve_route(self.key))
    }

    /// Asks the peer for a connection, or for its queue pair of datagrams.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, parameters: &ConnectParameters<'_>) -> Result<(), CmError> {
        self.change(|cm, now| {
            let path = cm.ids.get(self.key).and_then(|record| record.path);
            let peer_is_here = path.is_some_and(|path| self.nic.ground.host.is_own_address(path.dgid));
            cm.ids.connect(now, self.key, parameters, peer_is_here)
        })
    }

    /// Accepts what a peer asked for. The queue pair must be able to receive before. This fails if the peer has given
    /// up meanwhile; of an id that is not accepted there are no events.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, parameters: &ConnectParameters<'_>) -> Result<(), CmError> {
        self.change(|cm, now| {
            cm.ids.accept(now, self.key, parameters)?;
            cm.watch_peer(&self.nic, self.key);
            Ok::<_, CmError>(())
        })
    }

    /// Refuses what a peer asked for, or what it answered.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), CmError> {
        self.change(|cm, now| cm.ids.reject(now, self.key, reason, private_data))
    }

    /// Says to the peer that our queue pair is ready: after [`EventKind::ConnectResponse`].
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<(), CmError> {
        self.change(|cm, now| {
            cm.ids.establish(now, self.key)?;
            cm.record_connection(&self.nic, self.key);
            Ok::<_, CmError>(())
        })
    }

    /// Data came before the peer said that it is ready: it is.
    #[doc(alias = "rdma_notify")]
    pub fn notify_established(&self) -> Result<(), CmError> {
        self.change(|cm, now| cm.ids.notify_established(now, self.key))
    }

    /// Ends the connection, or agrees to its end.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<(), CmError> {
        self.disconnect_with(&[])
    }

    /// Ends the connection with up to 220 bytes for the peer's program, which not all of them look at.
    pub fn disconnect_with(&self, private_data: &[u8]) -> Result<(), CmError> {
        self.change(|cm, now| cm.ids.disconnect(now, self.key, private_data))
    }

    /// What a queue pair of this id must be told on its way to `state`.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn modify_for(&self, state: State) -> Result<Modify, CmError> {
        self.nic.called(None, || trace::Call::CmMovesQp { id: self.user(), state: state.name() });
        Ok(self.read(|record| record.modify_for(state)).ok_or(DESTROYED_ID)??)
    }

    /// Joins a group. [`EventKind::MulticastJoin`] follows; a program that wants to receive attaches its queue pair
    /// then.
    #[doc(alias = "rdma_join_multicast")]
    pub fn join(&self, group: IpAddr, user: u64) -> Result<(), CmError> {
        self.change(|cm, _| cm.ids.join(self.key, group, user))
    }

    /// Leaves a group.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(&self, group: IpAddr) -> Result<(), CmError> {
        self.change(|cm, _| cm.ids.leave(self.key, group))
    }

    /// Sends its events elsewhere from now on, those that wait included.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, to: &Arc<EventChannel>) -> Result<(), CmError> {
        self.change(|cm, _| {
            let handle = cm.handles.get_mut(&self.key).ok_or(DESTROYED_ID)?;
            let from = std::mem::replace(&mut handle.channel, Arc::clone(to));
            for event in from.extract(|event| belongs(event, self.key)) {
                to.push(event);
            }
            Ok::<_, CmError>(())
        })
    }

    /// Writes an event of the program's own to where the id reports.
    #[doc(alias = "rdma_write_cm_event")]
    pub fn write_event(self: &Arc<Self>, kind: EventKind, status: i32, number: u64) -> Result<(), CmError> {
        self.change(|cm, _| {
            let Handle { channel, .. } = cm.handles.get(&self.key).ok_or(DESTROYED_ID)?;
            channel.push(Event { id: Arc::clone(self), listener: None, kind, status, body: Body::Number(number) });
            Ok::<_, CmError>(())
        })
    }

    /// Ends it: what stands is taken down without an event for its program, what waits for it on its channel is
    /// forgotten, its port is free.
    #[doc(alias = "rdma_destroy_id")]
    pub fn destroy(&self) {
        self.nic.cm.destroy(&self.nic, self.key, false);
    }

    /// Ends it like [`destroy`](Id::destroy), for a request that its peer has not confirmed, and remembers nothing of
    /// it: where there are more of them than can be kept.
    pub fn forget(&self) {
        self.nic.cm.destroy(&self.nic, self.key, true);
    }

    /// The peer's address, if nothing has proven that the peer is there: anybody may have written it.
    pub fn unproven_address(&self) -> Option<Gid> {
        let asked = self.read(|record| Some((record.path?.dgid, record.communication?))).flatten();
        let (peer, communication) = asked?;
        let proven = self.nic.cm.with(&self.nic, |cm, _| cm.ids.manager.is_proven(communication));
        (!proven).then_some(peer)
    }

    /// Whether the peer that asked for it is a process of our own user on this host. The kernel has said which user
    /// asked, and a user speaks for its own queue pairs only.
    pub fn is_asked_by_our_user(&self) -> bool {
        let asked = self.read(|record| Some((record.path?.dgid, record.agreement?.peer_qpn))).flatten();
        let Some((peer, slot)) = asked.and_then(|(peer, qpn)| Some((peer, Slot::of(qpn)?))) else { return false };
        let is_ours =
            || names::owner(Name::Slot(slot)).is_ok_and(|owner| owner.is_some_and(|owner| is_our_user(owner.uid)));
        self.nic.ground.host.is_own_address(peer) && (self.nic.ground.host.has_slot(slot) || is_ours())
    }
}

/// Whether an event is about an id, or asks it for something.
pub(crate) fn belongs(event: &Event, key: IdKey) -> bool {
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
