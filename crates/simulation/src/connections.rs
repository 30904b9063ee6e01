//! Ids and event channels of simulated NICs: what programs connect and listen with.

use super::manager::{Handle, Manager};
use super::nic::{DEVICE_NAME, Nic, gone};
use super::queue::{Events, must_not_wait};
use super::world::{After, Observer, PartyLife};
use cm::id::address::is_anywhere;
use cm::id::{ConnectParameters, EventKind, IdOption, IdRecord, LocalAddress, Stage};
use cm::{IdError, IdKey, Time};
use seam::{
    Backend, ConnectError, Error,
    connections::{ConnectionEvent, ConnectionId, Connections, EventChannel},
    own,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use transport::{Kind, Modify, State};
use wire::Gid;
use wire::cm::{PortSpace, RejectReason};

/// Where events of ids arrive.
pub(super) struct Channel {
    events: Events<(IdKey, ConnectionEvent)>,
    observer: OnceLock<Observer>,
}

impl Channel {
    pub(super) fn push(&self, key: IdKey, event: ConnectionEvent) {
        self.events.push((key, event));
    }

    pub(super) fn observer(&self) -> Option<Observer> {
        self.observer.get().cloned()
    }
}

#[derive(Clone)]
struct SimulatedEvents {
    place: PartyLife,
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
            let key = manager.ids.create(space, kind);
            let id = SimulatedId::new(self.place.clone(), key);
            manager.handles.insert(key, Handle { id: Arc::downgrade(&id), channel });
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
            self.place.with(|inner, party| inner.parties[party].manager.ids.taken(key));
        }
        Some(event)
    }

    fn observe(&self, observer: Box<dyn Fn() + Send + Sync>) {
        let _ = self.channel.observer.set(observer.into());
    }
}

/// An endpoint of the connection manager of a party.
pub(super) struct SimulatedId {
    pub(super) place: PartyLife,
    pub(super) key: IdKey,
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

/// What ids of a party answer that is no more.
const PARTY_ENDED: IdError = IdError::State { what: "this", state: "at its end" };

/// What an id refused, as programs know it.
fn refused(error: IdError) -> Error {
    Error::Connect(error.into())
}

impl SimulatedId {
    pub(super) fn new(place: PartyLife, key: IdKey) -> Arc<SimulatedId> {
        Arc::new(SimulatedId { place, key, user: AtomicU64::new(0) })
    }

    fn read<R>(&self, look: impl FnOnce(&IdRecord) -> R) -> Option<R> {
        self.place.with(|inner, party| inner.parties[party].manager.ids.get(self.key).map(look)).flatten()
    }

    /// Changes the id, then sends and tells what follows from it. `change` gets the manager and the party's addresses.
    fn change<R>(
        &self,
        change: impl FnOnce(&mut Manager, Time, &[LocalAddress]) -> Result<R, IdError>,
    ) -> Result<R, Error> {
        let changed = self.place.with(|inner, party| {
            let now = inner.now();
            let own = super::manager::addresses(inner.sim_ref(), inner.parties[party].host);
            let answer = change(&mut inner.parties[party].manager, now, &own);
            inner.pump(party);
            answer
        });
        changed.unwrap_or(Err(PARTY_ENDED)).map_err(refused)
    }
}

impl ConnectionId for SimulatedId {
    fn identity(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn user(&self) -> u64 {
        self.user.load(Ordering::Acquire)
    }

    fn set_user(&self, user: u64) {
        self.user.store(user, Ordering::Release);
    }

    fn device(&self) -> Option<String> {
        self.read(|record| record.local.map(|_| DEVICE_NAME.to_owned())).flatten()
    }

    fn source(&self) -> Option<SocketAddr> {
        self.read(|record| record.source).flatten()
    }

    fn destination(&self) -> Option<SocketAddr> {
        self.read(|record| record.destination).flatten()
    }

    fn set(&self, option: IdOption) -> Result<(), Error> {
        self.change(|manager, _, _| manager.ids.set(self.key, option))
    }

    fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        self.change(|Manager { ids, ports, .. }, _, own| {
            let ip = address.ip();
            let local = own.iter().find(|own| own.gid == Gid::from_ip(ip)).copied();
            if !is_anywhere(ip) && local.is_none() {
                return Err(IdError::NotLocal(ip));
            }
            ids.bind(self.key, address, local, |space, address| ports.take(space, address))
        })
    }

    fn listen(&self, backlog: u32) -> Result<(), Error> {
        if self.read(|record| record.stage == Stage::Idle) == Some(true) {
            self.bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        // The loopback of a host is called at its first address.
        let loopback = self.source().map(|address| address.ip()).filter(IpAddr::is_loopback);
        self.change(|manager, _, own| {
            let called_at = loopback.and_then(|ip| of_family(own, ip)).map(|own| own.gid.to_ip());
            manager.ids.listen(self.key, called_at, backlog)
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
        let routed = if is_anywhere(to) { None } else { Some(nic.source_towards(to).map_err(no_route)?) };
        self.change(|Manager { ids, ports, .. }, _, own| {
            let fixed = ids.chosen_source(self.key, destination)?.filter(|ip| !ip.is_loopback());
            let chosen = fixed.or(routed).map(Gid::from_ip);
            let local = own.iter().find(|own| chosen == Some(own.gid)).or(of_family(own, to)).ok_or(PARTY_ENDED)?;
            let from = local.gid.to_ip();
            // What is sent to the loopback, or nowhere in particular, is for this host.
            let peer = SocketAddr::new(if is_anywhere(to) { from } else { to }, destination.port());
            ids.resolve_address(self.key, from, *local, peer, |space, address| ports.take(space, address))
        })
    }

    fn resolve_route(&self) -> Result<(), Error> {
        self.change(|manager, _, _| manager.ids.resolve_route(self.key))
    }

    fn connect(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        self.change(|manager, now, _| manager.ids.connect(now, self.key, parameters, false))
    }

    fn accept(&self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        self.change(|manager, now, _| manager.ids.accept(now, self.key, parameters))
    }

    fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), Error> {
        self.change(|manager, now, _| manager.ids.reject(now, self.key, reason, private_data))
    }

    fn establish(&self) -> Result<(), Error> {
        self.change(|manager, now, _| manager.ids.establish(now, self.key))
    }

    fn notify_established(&self) -> Result<(), Error> {
        self.change(|manager, now, _| manager.ids.notify_established(now, self.key))
    }

    fn disconnect(&self, private_data: &[u8]) -> Result<(), Error> {
        self.change(|manager, now, _| manager.ids.disconnect(now, self.key, private_data))
    }

    fn modify_for(&self, to: State) -> Result<Modify, Error> {
        let modify = self.read(|record| record.modify_for(to));
        modify.unwrap_or(Err(PARTY_ENDED)).map_err(refused)
    }

    fn join(&self, group: IpAddr, user: u64) -> Result<(), Error> {
        self.change(|manager, _, _| manager.ids.join(self.key, group, user))
    }

    fn leave(&self, group: IpAddr) -> Result<(), Error> {
        self.change(|manager, _, _| manager.ids.leave(self.key, group))
    }

    fn migrate(&self, to: &Arc<dyn EventChannel>) -> Result<(), Error> {
        let to = Arc::clone(&own::<SimulatedEvents>(&**to, "event channel")?.channel);
        self.change(|manager, _, _| {
            let handle = manager.handles.get_mut(&self.key).ok_or(PARTY_ENDED)?;
            let from = std::mem::replace(&mut handle.channel, Arc::clone(&to));
            for (key, event) in from.events.extract(|(key, _)| *key == self.key) {
                to.push(key, event);
            }
            manager.told.push(to);
            Ok(())
        })
    }

    fn destroy(&self) {
        self.place.with(|inner, party| {
            let now = inner.now();
            let Manager { ids, handles, .. } = &mut inner.parties[party].manager;
            let Some(handle) = handles.remove(&self.key) else { return };
            ids.destroy(now, self.key, false);
            // Requests that the program did not take end with their ids, without the lock.
            let of_listener = |event: &ConnectionEvent| {
                event.listener.as_ref().is_some_and(|listener| std::ptr::addr_eq(Arc::as_ptr(listener), self))
            };
            let left = handle.channel.events.extract(|(key, event)| *key == self.key || of_listener(event));
            inner.after(After::Drop(Box::new((left, handle))));
            inner.pump(party);
        });
    }
}

/// The first address of a family.
fn of_family(own: &[LocalAddress], ip: IpAddr) -> Option<&LocalAddress> {
    own.iter().find(|own| own.gid.to_ip().is_ipv4() == ip.is_ipv4())
}
