//! Events of ids: taken from a channel, turned into C's, and acknowledged. Taking an event is also when the library
//! does its part: it makes queue pairs follow their connection, and makes ids for peers that ask a listener.

use super::call_trace::Brought;
use super::channel::Channel;
use super::delivered_event::{DeliveredEvent, acknowledge, outcome};
use super::id::ConnectionId;
use super::lifecycle::rdma_destroy_id;
use crate::address_handle::vector_to_c;
use crate::boundary::{tell, value, zero};
use crate::cancellation::{Turn, Waits, call_that_waits};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, field, set_field};
use crate::signals;
use abi::{
    Handle, Out, Owned, rdma_cm_event, rdma_cm_event_param, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_ud_param,
};
use hca::cm::{Body, Event, EventChannel, EventKind, Id};
use hca::{ConnectionWait, Nic, Sleep};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::Duration;
use trace::{Call, Text};
use wire::cm::RejectReason;

/// What the library calls for the program when an event is taken.
const INNER_CALLS: [&str; 2] = ["ibv_modify_qp", "ibv_attach_mcast"];

/// The next event of a channel. Waits for it, unless the descriptor does not block.
pub(super) fn next(nic: &Nic, channel: &EventChannel) -> Result<Owned<'static, rdma_cm_event>, Errno> {
    loop {
        let happened = match nic.wait_for_connection_event(channel) {
            Err(error) if error.kind() == ErrorKind::Interrupted && signals::all_handlers_restart() => continue,
            answer => answer?,
        };
        if let Some(event) = hand_over(happened) {
            // SAFETY: new, and the caller's to hand out or to acknowledge.
            return Ok(unsafe { Owned::new(event.into_c()) });
        }
    }
}

/// Counts an event, does what is due, and makes it C's. `None` if C is not to hear of it.
fn hand_over(happened: Event) -> Option<Box<DeliveredEvent>> {
    let Event { id: subject, listener, kind, status, body } = happened;
    // SAFETY: not used after the event is acknowledged, below or by C.
    let Some(owner) = (unsafe { ConnectionId::hand_out(listener.as_ref().unwrap_or(&subject).user()) }) else {
        if listener.is_some() {
            // The listener has gone: so does what it was asked for.
            subject.destroy();
        }
        return None;
    };
    let mut event = Box::new(DeliveredEvent {
        base: rdma_cm_event {
            id: owner.as_c(),
            listen_id: null_mut(),
            event: kind as c_uint,
            status,
            param: rdma_cm_event_param { ud: rdma_ud_param::zeroed() },
        },
        owner,
        about: 0,
        group: None,
        private_data: Vec::new(),
    });
    let brought = brought(&body);
    let ece = event.take_body(owner, body);
    match event.apply(owner, subject, kind, ece) {
        true => {
            event.tell(&brought);
            // Now that it is known why. The queue pair may be gone already, or in error.
            if kind == EventKind::Rejected {
                let _ = owner.queue_pair_to_error();
            }
            Some(event)
        }
        false => {
            owner.events.acknowledge(1);
            None
        }
    }
}

/// What the trace is told of what came with an event.
fn brought(body: &Body) -> Brought {
    match body {
        Body::Connection(body) => Brought {
            responder_resources: Some(body.responder_resources),
            initiator_depth: Some(body.initiator_depth),
            ..Brought::default()
        },
        Body::Datagram(body) => Brought { peer_qpn: Some(body.qpn), peer_qkey: Some(body.qkey), ..Brought::default() },
        Body::None | Body::Number(_) => Brought::default(),
    }
}

impl DeliveredEvent {
    /// Takes what came with the event. Answers the peer's enhanced connection establishment.
    fn take_body(&mut self, owner: &ConnectionId, body: Body) -> (u32, u32) {
        match body {
            Body::None => (0, 0),
            Body::Number(number) => {
                self.base.param.arg = number;
                (0, 0)
            }
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
                // Counted under the lock under which a group is left: the call that leaves it waits for what was
                // counted.
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
    fn apply(&mut self, owner: &ConnectionId, subject: Arc<Id>, kind: EventKind, ece: (u32, u32)) -> bool {
        let has_queue_pair = !owner.qp().is_null();
        match kind {
            EventKind::AddressResolved => {
                if let Err(error) = owner.refresh() {
                    self.turn_into_error(abi::RDMA_CM_EVENT_ADDR_ERROR, error);
                }
            }
            EventKind::RouteResolved => owner.refresh_path(),
            EventKind::AddressInfoError => owner.lookup_failed(),
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
                            self.turn_into_error(abi::RDMA_CM_EVENT_CONNECT_ERROR, error);
                        }
                    }
                }
            }
            EventKind::Rejected | EventKind::Disconnected if owner.state().connect_error => return false,
            EventKind::Rejected => owner.state().remote_ece = ece,
            EventKind::MulticastJoin | EventKind::MulticastError => {
                // A group that was left meanwhile is no news.
                let Some(group) = self.group.clone() else { return false };
                // SAFETY: an event with a group is one of datagrams: see `take_body`.
                let mut ud = unsafe { self.base.param.ud };
                (ud.private_data, ud.private_data_len) = (group.context.0, 0);
                self.base.param.ud = ud;
                if kind == EventKind::MulticastJoin
                    && let Err(error) = group.attach(owner.qp(), &ud)
                {
                    self.turn_into_error(abi::RDMA_CM_EVENT_MULTICAST_ERROR, error);
                }
            }
            _ => {}
        }
        true
    }

    /// Makes an event of an error that the library met while it did its part. The program gets no more than the errno;
    /// the trace gets the reason.
    fn turn_into_error(&mut self, event: c_uint, error: Errno) {
        self.base.event = event;
        self.base.status = -error.code();
        if let Some(reason) = error.reason() {
            let (function, reason) = INNER_CALLS
                .iter()
                .find_map(|call| reason.strip_prefix(call)?.strip_prefix(": ").map(|rest| (*call, rest)))
                .unwrap_or(("rdma_get_cm_event", &reason));
            let errno = error.code();
            tell(self.id_qpn(), || Call::Refused { function, errno, reason: Text::of(reason) });
        }
    }

    /// An id for a peer that asks a listener. It reports where the listener does, or, if that waits for its own events,
    /// does the same.
    fn new_id(&self, listener: &ConnectionId, subject: Arc<Id>, ece: (u32, u32)) -> Result<*mut rdma_cm_id, Errno> {
        let id = ConnectionId::make(
            Arc::clone(&subject),
            field!(listener.base, channel),
            field!(listener.base, context),
            field!(listener.base, ps),
            field!(listener.base, qp_type),
        )
        .inspect_err(|_| subject.destroy())?;
        let it = ConnectionId::of(id.handle())?;
        {
            let mut state = it.state();
            state.channel = Arc::clone(&listener.state().channel);
            // SAFETY: the parameter is initialised whatever the event is about, and any bits are numbers.
            let conn = unsafe { self.base.param.conn };
            state.initiator_depth = conn.initiator_depth;
            state.responder_resources = conn.responder_resources;
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
            rdma_destroy_id(id);
            return Err(error);
        }
        Ok(id.into_ptr())
    }
}

impl ConnectionId {
    /// Ends a call of an id: one with a channel of its own waits for the event, and fails as that says.
    pub(super) fn complete(&self) -> Result<c_int, Errno> {
        if !self.is_synchronous() {
            return Ok(0);
        }
        self.drop_event();
        let channel = Arc::clone(&self.state().channel);
        let event = next(self.id.nic(), &channel)?;
        let (kind, status) = outcome(&event)?;
        set_field!(self.base, event, event.into_ptr());
        let code = match status {
            0 => return Ok(0),
            _ if kind == abi::RDMA_CM_EVENT_REJECTED => libc::ECONNREFUSED,
            status => status.saturating_abs(),
        };
        Err(Errno::of(code).because(Outcome { kind, status, peer: self.id.destination() }))
    }
}

/// What an event said that a call has waited for, for a person.
struct Outcome {
    kind: c_uint,
    status: c_int,
    peer: Option<SocketAddr>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Outcome { kind, status, peer } = self;
        write!(f, "{} (status {status})", name(kind))?;
        let peer = peer.map_or_else(|| "the peer".to_owned(), |peer| peer.to_string());
        let reject = u16::try_from(status).map(RejectReason::from_code);
        match (kind, reject) {
            (abi::RDMA_CM_EVENT_REJECTED, Ok(RejectReason::InvalidServiceId)) => {
                write!(f, ": nobody listens at {peer}")
            }
            (abi::RDMA_CM_EVENT_REJECTED, Ok(reason)) => write!(f, ": {peer} says: {reason}"),
            (abi::RDMA_CM_EVENT_UNREACHABLE, Err(_)) => write!(f, ": {peer} did not answer"),
            (abi::RDMA_CM_EVENT_DISCONNECTED, Err(_)) => write!(f, ": {peer} did not answer the disconnect request"),
            _ => Ok(()),
        }
    }
}

/// How long a thread waits that asks a channel that is gone, before it is told.
const CLOSED_CHANNEL_DELAY: Duration = Duration::from_millis(100);

/// The next event of a channel.
#[unsafe(export_name = "ubiverbs_rdma_get_cm_event")]
pub extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: Out<'_, *mut rdma_cm_event>,
) -> c_int {
    call_that_waits(NextEvent { channel, event, held: null(), wait: ConnectionWait::default() })
}

/// The call, while it waits.
struct NextEvent<'a> {
    channel: *mut rdma_event_channel,
    event: Out<'a, *mut rdma_cm_event>,
    /// The channel itself, from `Arc::into_raw`, or null: held while this thread waits, though the program may destroy
    /// its own.
    held: *const EventChannel,
    wait: ConnectionWait,
}

impl Waits for NextEvent<'_> {
    const CALL: &'static str = "rdma_get_cm_event";

    fn go_on(&mut self, sleep: &mut Sleep) -> Result<Turn, Errno> {
        refuse_if!(self.event.is_null(), Errno::null());
        if self.held.is_null() {
            self.held = match Channel::of(self.channel) {
                Err(error) if error.code() == libc::EBADF => {
                    // A program that ends may have forgotten a thread that asks, and should not end by what that thread
                    // then does.
                    std::thread::sleep(CLOSED_CHANNEL_DELAY);
                    return Err(error);
                }
                channel => Arc::into_raw(channel?),
            };
        }
        // SAFETY: from `Arc::into_raw`, and not dropped before `end`.
        let channel = unsafe { &*self.held };
        self.wait.sleep = *sleep;
        loop {
            let happened = match channel.try_take() {
                None if channel.is_nonblocking()? => return Err(Errno::of(libc::EAGAIN)),
                None => match Nic::present() {
                    Some(nic) => nic.look_for_connection_event(channel, &mut self.wait),
                    None => {
                        self.wait.sleep = Sleep::on([channel.raw_fd()], None);
                        None
                    }
                },
                taken => taken,
            };
            let Some(happened) = happened else {
                *sleep = self.wait.sleep;
                return Ok(Turn::Sleep);
            };
            if let Some(event) = hand_over(happened) {
                self.event.write(event.into_c());
                return Ok(Turn::Done);
            }
        }
    }

    fn end(&mut self) {
        if let Some(nic) = Nic::present() {
            nic.end_connection_wait(&mut self.wait);
        }
        if !self.held.is_null() {
            // SAFETY: from `Arc::into_raw`, and no reference to it is left.
            drop(unsafe { Arc::from_raw(std::mem::replace(&mut self.held, null())) });
        }
    }
}

/// Writes an event of the program's own to where the id reports, as to wake a thread that waits there.
#[unsafe(export_name = "ubiverbs_rdma_write_cm_event")]
pub extern "C" fn rdma_write_cm_event(
    id: Handle<'_, rdma_cm_id>,
    event: c_uint,
    status: c_int,
    argument: u64,
) -> c_int {
    zero("rdma_write_cm_event", || {
        let it = ConnectionId::of(id)?;
        refuse_if!(event != abi::RDMA_CM_EVENT_USER, Errno::invalid("programs write RDMA_CM_EVENT_USER only"));
        it.tell("rdma_write_cm_event");
        it.id.write_event(EventKind::User, status, argument)?;
        Ok(())
    })
}

/// Gives an event back.
#[unsafe(export_name = "ubiverbs_rdma_ack_cm_event")]
pub extern "C" fn rdma_ack_cm_event(event: Owned<'_, rdma_cm_event>) -> c_int {
    zero("rdma_ack_cm_event", || {
        refuse_if!(event.handle().is_null(), Errno::null());
        // One that was given back before is not there any more.
        DeliveredEvent::given_back(&event)?;
        acknowledge(event);
        Ok(())
    })
}

/// The names of events, by their numbers.
const EVENT_NAMES: [&CStr; 20] = [
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
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
    c"RDMA_CM_EVENT_USER",
    c"RDMA_CM_EVENT_INTERNAL",
];

/// The name of an event, for the trace.
pub(super) fn name(event: c_uint) -> &'static str {
    EVENT_NAMES.get(event as usize).and_then(|name| name.to_str().ok()).unwrap_or("UNKNOWN EVENT")
}

/// How many of [`NAMES`] `rdma_event_str` has: the original says nothing of the events that programs write themselves.
const NAMED_EVENTS: usize = 18;

/// The name of an event.
#[unsafe(export_name = "ubiverbs_rdma_event_str")]
pub extern "C" fn rdma_event_str(event: c_uint) -> *const c_char {
    let unknown = c"UNKNOWN EVENT";
    let named = &EVENT_NAMES[..NAMED_EVENTS];
    value("rdma_event_str", unknown.as_ptr(), || named.get(event as usize).copied().unwrap_or(unknown).as_ptr())
}
