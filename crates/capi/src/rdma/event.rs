//! Events of ids: taken from a channel, turned into C's, and acknowledged. Taking an event is also when the library does its part: it makes queue
//! pairs follow their connection, and makes ids for those who ask a listener.

use super::channel::Channel;
use super::id::ConnectionId;
use super::multicast::Group;
use crate::address_handle::vector_to_c;
use crate::boundary::{number, value};
use crate::errno::Errno;
use abi::{rdma_cm_event, rdma_cm_event_param, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_ud_param};
use hca::cm::{Body, Event, EventChannel, EventKind, Id};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

/// An event that C has.
#[repr(C)]
struct Handed {
    base: rdma_cm_event,
    /// Whose event it counts as: that of a listener, if it is a request.
    owner: *const ConnectionId,
    group: Option<Arc<Group>>,
    /// What `base` points to.
    private_data: Vec<u8>,
}

/// The next event of a channel. Waits for it, unless the descriptor does not block.
pub(super) unsafe fn next(channel: &EventChannel) -> Result<*mut rdma_cm_event, Errno> {
    loop {
        // A plain read of the descriptor: a signal interrupts it, or not, as the program has decided.
        let happened = channel.take()?;
        if let Some(event) = hand_over(happened) {
            return Ok(event);
        }
    }
}

/// Counts an event, does what is due, and makes it C's. `None` if nobody is to hear of it.
unsafe fn hand_over(happened: Event) -> Option<*mut rdma_cm_event> {
    let Event { id: subject, listener, kind, status, body } = happened;
    let Some(owner) = ConnectionId::hand_out(listener.as_ref().unwrap_or(&subject).user()) else {
        if listener.is_some() {
            // The listener has gone: so does what it was asked for.
            subject.destroy();
        }
        return None;
    };
    let mut event = Box::new(Handed {
        // SAFETY: all zeros are null pointers and numbers.
        base: rdma_cm_event {
            id: owner.as_c(),
            listen_id: null_mut(),
            event: kind as c_uint,
            status,
            param: rdma_cm_event_param { ud: zeroed() },
        },
        owner,
        group: None,
        private_data: Vec::new(),
    });
    let ece = event.carry(owner, body);
    match event.follow(owner, subject, kind, ece) {
        true => Some(Box::into_raw(event).cast()),
        false => {
            owner.events.acknowledge(1);
            None
        }
    }
}

impl Handed {
    /// Takes what came with the event. Answers the peer's enhanced connection establishment.
    unsafe fn carry(&mut self, owner: &ConnectionId, body: Body) -> (u32, u32) {
        match body {
            Body::None => (0, 0),
            Body::Connection(body) => {
                self.private_data = body.private_data;
                self.base.param.conn = rdma_conn_param {
                    private_data: self.data(),
                    private_data_len: self.private_data.len() as u8,
                    responder_resources: body.responder_resources,
                    initiator_depth: body.initiator_depth,
                    flow_control: body.flow_control.into(),
                    retry_count: body.retry_count,
                    rnr_retry_count: body.rnr_retry_count,
                    srq: body.srq.into(),
                    qp_num: body.qpn,
                };
                (body.ece.vendor_id, body.ece.options)
            }
            Body::Datagram(body) => {
                self.private_data = body.private_data;
                self.base.param.ud = rdma_ud_param {
                    private_data: self.data(),
                    private_data_len: self.private_data.len() as u8,
                    ah_attr: vector_to_c(&body.av),
                    qp_num: body.qpn.value(),
                    qkey: body.qkey.value(),
                };
                // Counted under the lock under which a group is left: who leaves it waits for what was counted.
                self.group = owner.state().groups.iter().find(|group| group.number == body.user).cloned();
                if let Some(group) = &self.group {
                    group.events.hand_out();
                }
                (0, 0)
            }
        }
    }

    fn data(&self) -> *const std::ffi::c_void {
        if self.private_data.is_empty() { std::ptr::null() } else { self.private_data.as_ptr().cast() }
    }

    /// Does what is due with an event of this kind. Answers whether C is to hear of it.
    unsafe fn follow(&mut self, owner: &ConnectionId, subject: Arc<Id>, kind: EventKind, ece: (u32, u32)) -> bool {
        let has_queue_pair = !(*owner.as_c()).qp.is_null();
        match kind {
            EventKind::AddressResolved => {
                if let Err(error) = owner.refresh() {
                    self.becomes(abi::RDMA_CM_EVENT_ADDR_ERROR, error);
                }
            }
            EventKind::RouteResolved => owner.refresh_path(),
            EventKind::ConnectRequest => match self.new_id(owner, subject, ece) {
                Ok(id) => {
                    self.base.listen_id = owner.as_c();
                    self.base.id = id;
                }
                Err(_) => return false,
            },
            EventKind::ConnectResponse => {
                owner.state().remote_ece = ece;
                if has_queue_pair {
                    match owner.confirm() {
                        Ok(()) => self.base.event = abi::RDMA_CM_EVENT_ESTABLISHED,
                        Err(error) => {
                            owner.state().connect_error = true;
                            self.becomes(abi::RDMA_CM_EVENT_CONNECT_ERROR, error);
                        }
                    }
                }
            }
            EventKind::Rejected | EventKind::Disconnected if owner.state().connect_error => return false,
            EventKind::Rejected => {
                owner.state().remote_ece = ece;
                // The queue pair may be gone already, or in error.
                let _ = owner.queue_pair_to_error();
            }
            EventKind::MulticastJoin | EventKind::MulticastError => {
                // A group that was left meanwhile is no news.
                let Some(group) = self.group.clone() else { return false };
                let mut way = self.base.param.ud;
                (way.private_data, way.private_data_len) = (group.context.0, 0);
                self.base.param.ud = way;
                if kind == EventKind::MulticastJoin
                    && let Err(error) = group.attach(owner, &way)
                {
                    self.becomes(abi::RDMA_CM_EVENT_MULTICAST_ERROR, error);
                }
            }
            _ => {}
        }
        true
    }

    fn becomes(&mut self, event: c_uint, error: Errno) {
        self.base.event = event;
        self.base.status = -error.0;
    }

    /// An id for somebody who asks a listener. It reports where the listener does, or, if that waits for its own events, does the same.
    unsafe fn new_id(
        &self,
        listener: &ConnectionId,
        subject: Arc<Id>,
        ece: (u32, u32),
    ) -> Result<*mut rdma_cm_id, Errno> {
        let parent = listener.as_c();
        let id = ConnectionId::make(
            Arc::clone(&subject),
            (*parent).channel,
            (*parent).context,
            (*parent).ps,
            (*parent).qp_type,
        )
        .inspect_err(|_| subject.destroy())?;
        let it = ConnectionId::of(id)?;
        {
            let mut state = it.state();
            state.channel = Arc::clone(&listener.state().channel);
            state.initiator_depth = self.base.param.conn.initiator_depth;
            state.responder_resources = self.base.param.conn.responder_resources;
            state.remote_ece = ece;
        }
        let ready = || -> Result<(), Errno> {
            if listener.is_synchronous() {
                it.migrate(null_mut())?;
            }
            it.refresh()?;
            it.refresh_path();
            Ok(())
        };
        if let Err(error) = ready() {
            super::id::rdma_destroy_id(id);
            return Err(error);
        }
        Ok(id)
    }
}

/// The program is done with an event, and with what it points to.
pub(super) unsafe fn acknowledge(event: *mut rdma_cm_event) {
    let event = Box::from_raw(event.cast::<Handed>());
    if let Some(group) = &event.group {
        group.events.acknowledge(1);
    }
    let owner = event.owner;
    drop(event);
    // Last: the owner may go when it is told.
    (*owner).events.acknowledge(1);
}

/// How long it takes until one who asks a channel that is gone hears of it.
const LAST_MOMENTS: Duration = Duration::from_millis(100);

/// The next event of a channel.
#[unsafe(export_name = "ubiverbs_rdma_get_cm_event")]
pub unsafe extern "C" fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int {
    number("rdma_get_cm_event", || {
        if event.is_null() {
            return Err(Errno::null());
        }
        // Ours while we wait, though the program may destroy its own.
        let channel = match Channel::of(channel) {
            Err(Errno(libc::EBADF)) => {
                // A program that ends may have forgotten a thread that asks, and should not end by what that thread then does.
                std::thread::sleep(LAST_MOMENTS);
                return Err(Errno(libc::EBADF));
            }
            channel => channel?,
        };
        event.write(next(&channel)?);
        Ok(0)
    })
}

/// Gives an event back.
#[unsafe(export_name = "ubiverbs_rdma_ack_cm_event")]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    number("rdma_ack_cm_event", || {
        if event.is_null() {
            return Err(Errno::null());
        }
        acknowledge(event);
        Ok(0)
    })
}

/// The names of events, by their numbers.
const NAMES: [&CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

/// The name of an event.
#[unsafe(export_name = "ubiverbs_rdma_event_str")]
pub unsafe extern "C" fn rdma_event_str(event: c_uint) -> *const c_char {
    let unknown = c"UNKNOWN EVENT";
    value("rdma_event_str", unknown.as_ptr(), || NAMES.get(event as usize).copied().unwrap_or(unknown).as_ptr())
}
