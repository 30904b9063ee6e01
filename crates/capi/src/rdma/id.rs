//! Communication ids: the structure that programs hold, which belongs to them until they destroy it, and what stands
//! behind it.
//!
//! The NIC names an id by a number, not by its address: an event that was under way when its id was destroyed then
//! finds no id. An event is counted under the lock under which an id leaves the list, and a call that destroys an id
//! waits until what was counted is acknowledged.

use super::address;
use super::channel::Channel;
use super::device::CmDevice;
use super::group::Group;
use super::lookup::Lookup;
use crate::acknowledgements::Acknowledgements;
use crate::address_handle::gid_to_c;
use crate::boundary::{tell, value};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, Public, field, set_field};
use crate::registry::{LiveObjects, PerProcess, lock};
use abi::{
    Handle, Owned, ibv_context, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_sa_path_rec, rdma_cm_id, rdma_event_channel,
};
use hca::Nic;
use hca::cm::{EventChannel, Id, PathFacts};
use libc::sockaddr_storage;
use std::ffi::{c_uint, c_void};
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use trace::Call;
use transport::Kind;
use wire::Pkey;
use wire::cm::PortSpace;

/// A communication id.
#[repr(C)]
pub struct ConnectionId {
    /// What C sees, and changes when it likes.
    pub(super) base: Public<rdma_cm_id>,
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
    pub sync_channel: *mut rdma_event_channel,
    /// Connecting failed here; what the peer says of it afterwards is no news.
    pub connect_error: bool,
    pub initiator_depth: u8,
    pub responder_resources: u8,
    pub device: Option<&'static CmDevice>,
    path: Option<Box<ibv_sa_path_rec>>,
    /// What queue pairs of an endpoint's connections are to be.
    pub endpoint: Option<(*mut ibv_pd, ibv_qp_init_attr)>,
    /// Data that goes before a program's own when it connects.
    pub connect_data: Vec<u8>,
    pub local_ece: (u32, u32),
    pub remote_ece: (u32, u32),
    pub groups: Vec<Arc<Group>>,
    pub lookup: Lookup,
}

// SAFETY: its pointers are only followed for calls of the program, which must not destroy what it still uses.
unsafe impl Send for State {}
// SAFETY: C answers for the fields it shares between threads; the others are behind a lock.
unsafe impl Sync for ConnectionId {}

/// The ids that are alive, by number.
static LIVE_IDS: PerProcess<LiveObjects<u64, rdma_cm_id>> = PerProcess::new();

/// Numbers are not used twice.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for ConnectionId {
    type C = rdma_cm_id;

    /// Programs try again with an id that they have destroyed: perftest 4.5-0.17 after its first attempt failed.
    const ALWAYS_CHECKED: bool = true;
}

impl ConnectionId {
    /// The pointer C gets, and where its fields are.
    pub(super) fn as_c(&self) -> *mut rdma_cm_id {
        self.base.as_ptr()
    }

    /// The context of its device; none as long as it has no device.
    pub(super) fn verbs(&self) -> Handle<'_, ibv_context> {
        // SAFETY: null, or the context of its device, which is never closed.
        unsafe { Handle::new(field!(self.base, verbs)) }
    }

    /// Its queue pair, if it has one.
    pub(super) fn qp(&self) -> Handle<'_, ibv_qp> {
        // SAFETY: null, or the queue pair that the program made with the id. It is destroyed by `rdma_destroy_qp`,
        // which a program does not call during another call for the id.
        unsafe { Handle::new(field!(self.base, qp)) }
    }

    /// Waits until its events, or those of a group of it, are acknowledged.
    pub(super) fn wait_for_acks(&self, events: &Acknowledgements) {
        events.wait(|missing| tell(None, || Call::WaitForAcks { object: "id", number: self.number, missing }));
    }

    /// What the NIC calls it.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Makes an id for C out of the NIC's.
    pub(super) fn make(
        id: Arc<Id>,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        space: c_uint,
        qp_type: c_uint,
    ) -> Result<Owned<'static, rdma_cm_id>, Errno> {
        let number = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        id.set_user(number);
        let mut base = rdma_cm_id::zeroed();
        base.channel = channel;
        base.context = context;
        base.ps = space;
        base.qp_type = qp_type;
        let state = State {
            channel: Channel::of(channel)?,
            sync_channel: null_mut(),
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
            lookup: Lookup::default(),
        };
        let events = Acknowledgements::default();
        let made = ConnectionId { base: Public::new(base), id, number, events, state: Mutex::new(state) };
        let made = Box::new(made).into_c();
        // SAFETY: `rdma_destroy_id` removes it.
        unsafe { LIVE_IDS.lock().insert(number, made) };
        // SAFETY: new, and the caller's to hand out or to destroy.
        Ok(unsafe { Owned::new(made) })
    }

    /// A new id. Without a channel it gets one of its own, and its calls wait for their events.
    pub(super) fn create(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        space: c_uint,
        qp_type: c_uint,
    ) -> Result<Owned<'static, rdma_cm_id>, Errno> {
        let (port_space, kind) = (port_space(space)?, kind(qp_type)?);
        let nic = Nic::of_process()?;
        refuse_if!(nic.shown_devices().is_empty(), Errno::of(libc::ENODEV));
        let sync_channel = if channel.is_null() { Channel::make()? } else { null_mut() };
        let channel = if channel.is_null() { sync_channel } else { channel };
        let id = Id::new(&nic, &Channel::of(channel)?, port_space, kind, 0);
        let made = ConnectionId::make(id, channel, context, space, qp_type)?;
        let it = ConnectionId::of(made.handle())?;
        it.state().sync_channel = sync_channel;
        it.tell("rdma_create_id");
        it.tell_channel();
        Ok(made)
    }

    /// The id of that number, and one of its events handed out; `None` if it is gone.
    ///
    /// # Safety
    /// The answer is not used any more once the event is acknowledged.
    pub(super) unsafe fn hand_out<'a>(number: u64) -> Option<&'a ConnectionId> {
        let live = LIVE_IDS.lock();
        let id = live.get(number)?.as_ptr();
        // SAFETY: in the list, so alive, and `rdma_destroy_id` waits until the event is acknowledged.
        let id = ConnectionId::of(unsafe { Handle::new(id) }).ok()?;
        id.events.hand_out();
        Some(id)
    }

    /// Takes it from the list: its events find no id any more.
    pub(super) fn unlist(&self) {
        LIVE_IDS.lock().remove(self.number);
    }

    /// Whether it waits for its own events.
    pub(super) fn is_synchronous(&self) -> bool {
        !self.state().sync_channel.is_null()
    }

    /// Ties the id to its device, and tells C the addresses, as far as the NIC knows them.
    pub(super) fn refresh(&self) -> Result<(), Errno> {
        if let Some(source) = self.id.source() {
            set_field!(self.base, route.addr.src_addr, self.address_to_c(source));
        }
        if let Some(destination) = self.id.destination() {
            set_field!(self.base, route.addr.dst_addr, self.address_to_c(destination));
        }
        let Some(device) = self.id.device() else { return Ok(()) };
        let mut state = self.state();
        if state.device.is_none() {
            let device = CmDevice::of(&device)?;
            let pd = device.join()?;
            state.device = Some(device);
            set_field!(self.base, verbs, device.context().as_ptr());
            set_field!(self.base, port_num, self.id.port_number());
            if field!(self.base, pd).is_null() {
                set_field!(self.base, pd, pd);
            }
        }
        if let Some((sgid, _)) = self.id.source_gid() {
            let dgid = self.id.peer_gid().unwrap_or(sgid);
            let (sgid, dgid) = (gid_to_c(sgid), gid_to_c(dgid));
            let address = abi::rdma_ib_addr { sgid, dgid, pkey: Pkey::DEFAULT.value().to_be() };
            set_field!(self.base, route.addr.addr, address);
        }
        Ok(())
    }

    /// An address as C has it, of the family that the program has named.
    pub(super) fn address_to_c(&self, address: SocketAddr) -> sockaddr_storage {
        match self.id.is_by_gid() {
            true => address::gid_to_c(address, self.id.space()),
            false => address::to_c(address),
        }
    }

    /// Tells C the way to the peer.
    pub(super) fn refresh_path(&self) {
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
        set_field!(self.base, route.path_rec, &raw mut **place);
        set_field!(self.base, route.num_paths, 1);
    }

    /// The device it is tied to.
    pub(super) fn device(&self) -> Result<&'static CmDevice, Errno> {
        self.state().device.ok_or_else(|| Errno::invalid("the id has no device: neither bound nor resolved"))
    }
}

/// The way to a peer, as a path record.
fn record(path: &PathFacts) -> ibv_sa_path_rec {
    /// The values are exact.
    const SELECTOR_EXACT: u8 = 2;
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
        mtu_selector: SELECTOR_EXACT,
        mtu: path.mtu.code(),
        rate_selector: SELECTOR_EXACT,
        rate: abi::IBV_RATE_10_GBPS as u8,
        packet_life_time_selector: SELECTOR_EXACT,
        packet_life_time: path.packet_lifetime,
        preference: 0,
    }
}

pub(super) fn port_space(space: c_uint) -> Result<PortSpace, Errno> {
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

/// The local port, most significant byte first.
#[unsafe(export_name = "ubiverbs_rdma_get_src_port")]
pub extern "C" fn rdma_get_src_port(id: Handle<'_, rdma_cm_id>) -> u16 {
    value("rdma_get_src_port", 0, || {
        ConnectionId::of(id).map_or(0, |it| address::port(&field!(it.base, route.addr.src_addr)))
    })
}

/// The peer's port, most significant byte first.
#[unsafe(export_name = "ubiverbs_rdma_get_dst_port")]
pub extern "C" fn rdma_get_dst_port(id: Handle<'_, rdma_cm_id>) -> u16 {
    value("rdma_get_dst_port", 0, || {
        ConnectionId::of(id).map_or(0, |it| address::port(&field!(it.base, route.addr.dst_addr)))
    })
}
