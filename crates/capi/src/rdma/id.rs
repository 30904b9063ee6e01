//! Communication ids: the structure that programs hold, which belongs to them until they destroy it, and what stands behind it.
//!
//! The NIC names an id by a number, not by its address: an event that was under way when its id was destroyed then finds nobody. An event is
//! counted under the lock under which an id leaves the list, and who destroys an id waits until what was counted is acknowledged.

use super::address;
use super::channel::Channel;
use super::device::Opened;
use super::event;
use super::multicast::Group;
use crate::boundary::{number, value};
use crate::context::{Pointer, lock};
use crate::errno::Errno;
use crate::events::Acknowledgements;
use crate::query::gid_to_c;
use crate::registry::PerProcess;
use abi::{ibv_pd, ibv_qp_init_attr, ibv_sa_path_rec, rdma_cm_id, rdma_event_channel};
use hca::Nic;
use hca::cm::{EventChannel, Id, PathFacts};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use transport::Kind;
use wire::cm::PortSpace;
use wire::{Gid, Pkey};

/// A communication id.
#[repr(C)]
pub struct ConnectionId {
    /// What C sees, and changes when it likes.
    base: UnsafeCell<rdma_cm_id>,
    pub(super) id: Arc<Id>,
    /// What the NIC calls it.
    number: u64,
    pub(super) events: Acknowledgements,
    state: Mutex<State>,
}

/// What changes in the life of an id.
pub(super) struct State {
    pub channel: Arc<EventChannel>,
    /// The channel of an id that waits for its own events.
    pub hidden: *mut rdma_event_channel,
    /// Connecting failed here; what the peer says of it afterwards is no news.
    pub connect_error: bool,
    pub initiator_depth: u8,
    pub responder_resources: u8,
    pub device: Option<&'static Opened>,
    path: Option<Box<ibv_sa_path_rec>>,
    /// What queue pairs of an endpoint's connections are to be.
    pub endpoint: Option<(*mut ibv_pd, ibv_qp_init_attr)>,
    /// Data that goes before a program's own when it connects.
    pub connect_data: Vec<u8>,
    pub local_ece: (u32, u32),
    pub remote_ece: (u32, u32),
    pub groups: Vec<Arc<Group>>,
}

// SAFETY: its pointers are only followed for calls of the program, which must not destroy what it still uses.
unsafe impl Send for State {}
// SAFETY: C answers for the fields it shares between threads; ours are behind a lock.
unsafe impl Sync for ConnectionId {}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionId").field("number", &self.number).finish_non_exhaustive()
    }
}

/// The ids that are alive, by number.
static LIVE: PerProcess<HashMap<u64, Pointer<ConnectionId>>> = PerProcess::new();

/// Numbers are not used twice.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl ConnectionId {
    /// The id behind a pointer from C.
    pub(super) unsafe fn of<'a>(id: *mut rdma_cm_id) -> Result<&'a ConnectionId, Errno> {
        id.cast::<ConnectionId>().as_ref().ok_or_else(Errno::null)
    }

    /// The pointer C gets, and where its fields are.
    pub(super) fn as_c(&self) -> *mut rdma_cm_id {
        self.base.get()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Makes an id for C out of the NIC's.
    pub(super) unsafe fn make(
        id: Arc<Id>,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        space: c_uint,
        qp_type: c_uint,
    ) -> Result<*mut rdma_cm_id, Errno> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        id.set_user(number);
        // SAFETY: all zeros are null pointers and no addresses.
        let mut base: rdma_cm_id = zeroed();
        base.channel = channel;
        base.context = context;
        base.ps = space;
        base.qp_type = qp_type;
        let state = State {
            channel: Channel::of(channel)?,
            hidden: null_mut(),
            connect_error: false,
            initiator_depth: 0,
            responder_resources: 0,
            device: None,
            path: None,
            endpoint: None,
            connect_data: Vec::new(),
            local_ece: (0, 0),
            remote_ece: (0, 0),
            groups: Vec::new(),
        };
        let events = Acknowledgements::default();
        let made = ConnectionId { base: UnsafeCell::new(base), id, number, events, state: Mutex::new(state) };
        let made = Box::into_raw(Box::new(made));
        LIVE.lock().insert(number, Pointer(made));
        Ok(made.cast())
    }

    /// A new id. Without a channel it gets a hidden one, and its calls wait for their events.
    pub(super) unsafe fn create(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        space: c_uint,
        qp_type: c_uint,
    ) -> Result<*mut rdma_cm_id, Errno> {
        let (port_space, kind) = (port_space(space)?, kind(qp_type)?);
        let nic = Nic::of_process()?;
        if nic.shown_devices().is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        let hidden = if channel.is_null() { Channel::make()? } else { null_mut() };
        let channel = if channel.is_null() { hidden } else { channel };
        let id = Id::new(&nic, &Channel::of(channel)?, port_space, kind, 0);
        let made = ConnectionId::make(id, channel, context, space, qp_type)?;
        ConnectionId::of(made)?.state().hidden = hidden;
        Ok(made)
    }

    /// The id of that number, and one of its events handed out; `None` if it is gone.
    pub(super) unsafe fn hand_out<'a>(number: u64) -> Option<&'a ConnectionId> {
        let live = LIVE.lock();
        let id = &*live.get(&number)?.0;
        id.events.hand_out();
        Some(id)
    }

    /// Whether it waits for its own events.
    pub(super) fn is_synchronous(&self) -> bool {
        !self.state().hidden.is_null()
    }

    /// Acknowledges the event that an id keeps for itself.
    pub(super) unsafe fn drop_event(&self) {
        let event = std::mem::replace(&mut (*self.as_c()).event, null_mut());
        if !event.is_null() {
            event::acknowledge(event);
        }
    }

    /// Ends a call of an id: one with a hidden channel waits for the event, and fails as that says.
    pub(super) unsafe fn complete(&self) -> Result<c_int, Errno> {
        if !self.is_synchronous() {
            return Ok(0);
        }
        self.drop_event();
        let channel = Arc::clone(&self.state().channel);
        let event = event::next(&channel)?;
        (*self.as_c()).event = event;
        match (*event).status {
            0 => Ok(0),
            _ if (*event).event == abi::RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
            status => Err(Errno(status.saturating_abs())),
        }
    }

    /// Ties the id to its device, and tells C the addresses, as far as the NIC knows them.
    pub(super) unsafe fn refresh(&self) -> Result<(), Errno> {
        let c = self.as_c();
        let route = &raw mut (*c).route;
        if let Some(source) = self.id.source() {
            (*route).addr.src_addr = address::to_c(source);
        }
        if let Some(destination) = self.id.destination() {
            (*route).addr.dst_addr = address::to_c(destination);
        }
        let Some(device) = self.id.device() else { return Ok(()) };
        let mut state = self.state();
        if state.device.is_none() {
            let device = Opened::of(&device)?;
            let pd = device.join()?;
            state.device = Some(device);
            (*c).verbs = device.context();
            (*c).port_num = 1;
            if (*c).pd.is_null() {
                (*c).pd = pd;
            }
        }
        if let Some((sgid, _)) = self.id.source_gid() {
            let dgid = self.id.destination().map_or(sgid, |peer| Gid::from_ip(peer.ip()));
            let (sgid, dgid) = (gid_to_c(sgid), gid_to_c(dgid));
            (*route).addr.addr = abi::rdma_ib_addr { sgid, dgid, pkey: Pkey::DEFAULT.value().to_be() };
        }
        Ok(())
    }

    /// Tells C the way to the peer.
    pub(super) unsafe fn refresh_path(&self) {
        let Some(path) = self.id.path() else { return };
        let mut state = self.state();
        let record = record(&path);
        let place = match &mut state.path {
            Some(place) => {
                **place = record;
                place
            }
            none => none.insert(Box::new(record)),
        };
        (*self.as_c()).route.path_rec = &raw mut **place;
        (*self.as_c()).route.num_paths = 1;
    }

    /// The device it is tied to.
    pub(super) fn device(&self) -> Result<&'static Opened, Errno> {
        self.state().device.ok_or_else(|| Errno::invalid("the id has no device: neither bound nor resolved"))
    }
}

/// The way to a peer, as a path record.
fn record(path: &PathFacts) -> ibv_sa_path_rec {
    /// The values are exact.
    const EXACTLY: u8 = 2;
    ibv_sa_path_rec {
        dgid: gid_to_c(path.dgid),
        sgid: gid_to_c(path.sgid),
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: path.flow_label.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: Pkey::DEFAULT.value().to_be(),
        sl: path.service_level,
        mtu_selector: EXACTLY,
        mtu: path.mtu.code(),
        rate_selector: EXACTLY,
        rate: abi::IBV_RATE_10_GBPS as u8,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_lifetime,
        preference: 0,
    }
}

fn port_space(space: c_uint) -> Result<PortSpace, Errno> {
    match space {
        abi::RDMA_PS_TCP => Ok(PortSpace::Tcp),
        abi::RDMA_PS_UDP => Ok(PortSpace::Udp),
        abi::RDMA_PS_IPOIB => Ok(PortSpace::Ipoib),
        abi::RDMA_PS_IB => Ok(PortSpace::Ib),
        _ => Err(Errno::invalid("no such port space")),
    }
}

fn kind(qp_type: c_uint) -> Result<Kind, Errno> {
    crate::queue_pair::kind(qp_type)
}

/// A new id.
#[unsafe(export_name = "ubiverbs_rdma_create_id")]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: c_uint,
) -> c_int {
    number("rdma_create_id", || {
        if id.is_null() {
            return Err(Errno::null());
        }
        let datagrams = matches!(space, abi::RDMA_PS_UDP | abi::RDMA_PS_IPOIB);
        let qp_type = if datagrams { abi::IBV_QPT_UD } else { abi::IBV_QPT_RC };
        id.write(ConnectionId::create(channel, context, space, qp_type)?);
        Ok(0)
    })
}

/// Destroys an id, in whatever state: its connection ends, events that were not yet taken vanish, and those that were must be acknowledged first.
#[unsafe(export_name = "ubiverbs_rdma_destroy_id")]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    number("rdma_destroy_id", || {
        let it = ConnectionId::of(id)?;
        it.drop_event();
        // From here on its events find nobody.
        LIVE.lock().remove(&it.number);
        it.id.destroy();
        it.events.wait();
        let it = Box::from_raw(id.cast::<ConnectionId>());
        let state = it.state();
        for group in &state.groups {
            group.events.wait();
        }
        Channel::free(state.hidden);
        if let Some(device) = state.device {
            device.leave();
        }
        drop(state);
        Ok(0)
    })
}

/// Moves an id to another channel, its events with it; without one it gets a hidden one, and its calls wait for their events from then on.
#[unsafe(export_name = "ubiverbs_rdma_migrate_id")]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    number("rdma_migrate_id", || {
        ConnectionId::of(id)?.migrate(channel)?;
        Ok(0)
    })
}

impl ConnectionId {
    pub(super) unsafe fn migrate(&self, channel: *mut rdma_event_channel) -> Result<(), Errno> {
        if channel.is_null() && self.is_synchronous() {
            return Err(Errno::invalid("the id has a channel of its own already"));
        }
        let hidden = if channel.is_null() { Channel::make()? } else { null_mut() };
        let channel = if channel.is_null() { hidden } else { channel };
        let to = Channel::of(channel)?;
        self.id.migrate(&to)?;
        // What it keeps for itself was reported by the old channel.
        self.drop_event();
        let old = {
            let mut state = self.state();
            state.channel = to;
            std::mem::replace(&mut state.hidden, hidden)
        };
        Channel::free(old);
        (*self.as_c()).channel = channel;
        self.events.wait();
        Ok(())
    }
}

/// The local port, most significant byte first.
#[unsafe(export_name = "ubiverbs_rdma_get_src_port")]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    value("rdma_get_src_port", 0, || if id.is_null() { 0 } else { address::port(&raw const (*id).route.addr.src_addr) })
}

/// The peer's port, most significant byte first.
#[unsafe(export_name = "ubiverbs_rdma_get_dst_port")]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    value("rdma_get_dst_port", 0, || if id.is_null() { 0 } else { address::port(&raw const (*id).route.addr.dst_addr) })
}
