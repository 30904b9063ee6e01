//! Connecting, accepting, rejecting, disconnecting. A queue pair that the program made through its id follows: it is
//! ready to receive before the peer can know, and in error once the connection ends.

use super::id::ConnectionId;
use crate::boundary::{number, tell, zero};
use crate::ece::{ibv_query_ece, ibv_set_ece};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, field};
use crate::queue_pair::QueuePair;
use abi::{Handle, In, Out, ibv_ece, rdma_cm_id, rdma_conn_param};
use hca::cm::{ConnectParameters, IdOption};
use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use trace::Call;
use transport::Kind;
use wire::Qpn;
use wire::cm::RejectReason;

/// How often to retry when the program does not say.
const DEFAULT_RETRY_COUNT: u8 = 7;

/// Bytes of C's.
///
/// # Safety
/// `data` is null or has `length` bytes, for as long as they are used.
unsafe fn bytes<'a>(data: *const c_void, length: u8) -> &'a [u8] {
    // SAFETY: not null, so of that length.
    if data.is_null() || length == 0 { &[] } else { unsafe { slice::from_raw_parts(data.cast(), length.into()) } }
}

/// The private data of a program that connects or accepts.
fn private_data(given: Option<&rdma_conn_param>) -> &[u8] {
    // SAFETY: `rdma_connect` and `rdma_accept` want it null or of that length.
    given.map_or(&[], |given| unsafe { bytes(given.private_data, given.private_data_len) })
}

impl ConnectionId {
    /// Tells the trace of private data without a length.
    fn tell_empty_data(&self, function: &'static str, given: Option<&rdma_conn_param>) {
        if given.is_some_and(|given| !given.private_data.is_null() && given.private_data_len == 0) {
            tell(None, || Call::CmEmptyData { function, id: self.number() });
        }
    }

    /// Whether parameters make sense for this id; only connected services know of READs.
    fn check(&self, parameters: Option<&rdma_conn_param>) -> Result<(), Errno> {
        if field!(self.base, ps) != abi::RDMA_PS_TCP {
            return Ok(());
        }
        let Some(parameters) = parameters else {
            return match self.qp().is_null() {
                true => Err(Errno::invalid("neither parameters nor a queue pair")),
                false => Ok(()),
            };
        };
        let device = self.device()?;
        let fits = |value: u8, most: u8| u32::from(value) == abi::RDMA_MAX_RESP_RES || value <= most;
        if fits(parameters.responder_resources, device.max_responder_resources)
            && fits(parameters.initiator_depth, device.max_initiator_depth)
        {
            Ok(())
        } else {
            Err(Errno::invalid("more READs and atomics at a time than the device allows"))
        }
    }

    /// What the connection manager is told.
    fn parameters<'a>(&self, given: Option<&rdma_conn_param>, private_data: &'a [u8]) -> ConnectParameters<'a> {
        let state = self.state();
        let (qpn, srq) = match (QueuePair::of(self.qp()).ok(), given) {
            (Some(pair), _) => (pair.qp.qpn().value(), !field!(pair.base, qp_base.srq).is_null()),
            (None, Some(given)) => (given.qp_num, given.srq != 0),
            (None, None) => (0, false),
        };
        ConnectParameters {
            private_data,
            responder_resources: state.responder_resources,
            initiator_depth: state.initiator_depth,
            flow_control: given.is_some_and(|given| given.flow_control != 0),
            retry_count: given.map_or(DEFAULT_RETRY_COUNT, |given| given.retry_count),
            rnr_retry_count: given.map_or(DEFAULT_RETRY_COUNT, |given| given.rnr_retry_count),
            srq,
            qpn: Qpn::new(qpn),
            qkey: None,
        }
    }

    /// What the device and its queue pair agreed to; if it has no queue pair, what the program said.
    fn offer_ece(&self) -> Result<(), Errno> {
        let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        if !self.qp().is_null() && ibv_query_ece(self.qp(), (&mut ece).into()) == 0 {
            self.state().local_ece = (ece.vendor_id, ece.options);
        }
        let (vendor, options) = self.state().local_ece;
        Ok(self.id.set(IdOption::Ece(vendor, options))?)
    }

    /// The answer to the peer's offer speaks of the peer's vendor, or its library takes it for a broken handshake; of
    /// another's options nothing was taken.
    fn answer_ece(&self) -> Result<(), Errno> {
        self.offer_ece()?;
        let state = self.state();
        let ((asked, _), (vendor, options)) = (state.remote_ece, state.local_ece);
        let taken = if vendor == asked { options } else { 0 };
        Ok(self.id.set(IdOption::Ece(asked, taken))?)
    }

    /// Tells the queue pair what the peer's device can do. A device of another vendor, or one that says nothing, has
    /// none of this one's options.
    fn take_ece(&self) {
        let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        if ibv_query_ece(self.qp(), (&mut ece).into()) == 0 {
            let (vendor_id, options) = self.state().remote_ece;
            ece.options = if vendor_id == ece.vendor_id { options } else { 0 };
            ibv_set_ece(self.qp(), (&mut ece).into());
        }
    }

    /// The peer accepted: makes the queue pair ready, and says so.
    pub(super) fn confirm(&self) -> Result<(), Errno> {
        self.take_ece();
        let ready = || -> Result<(), Errno> {
            self.ready_queue_pair(None, None)?;
            Ok(self.id.establish()?)
        };
        ready().inspect_err(|_| {
            let _ = self.queue_pair_to_error();
        })
    }
}

/// Asks the peer for a connection, or for its queue pair of datagrams.
#[unsafe(export_name = "ubiverbs_rdma_connect")]
pub extern "C" fn rdma_connect(id: Handle<'_, rdma_cm_id>, parameters: In<'_, rdma_conn_param>) -> c_int {
    number("rdma_connect", || {
        let it = ConnectionId::of(id)?;
        let given = parameters.as_ref();
        it.check(given)?;
        let device = it.device()?;
        let or_most = |value: Option<u8>, most: u8| {
            value.filter(|value| u32::from(*value) != abi::RDMA_MAX_RESP_RES).unwrap_or(most)
        };
        let data = {
            let mut state = it.state();
            state.initiator_depth = or_most(given.map(|given| given.initiator_depth), device.max_initiator_depth);
            state.responder_resources =
                or_most(given.map(|given| given.responder_resources), device.max_responder_resources);
            let mut data = state.connect_data.clone();
            data.extend_from_slice(private_data(given));
            data
        };
        it.offer_ece()?;
        let offer = it.parameters(given, &data);
        it.tell_offer("rdma_connect", &offer);
        it.tell_empty_data("rdma_connect", given);
        it.id.connect(&offer)?;
        it.state().connect_data.clear();
        it.complete()
    })
}

/// Accepts what a peer asked for.
#[unsafe(export_name = "ubiverbs_rdma_accept")]
pub extern "C" fn rdma_accept(id: Handle<'_, rdma_cm_id>, parameters: In<'_, rdma_conn_param>) -> c_int {
    number("rdma_accept", || {
        let it = ConnectionId::of(id)?;
        if it.id.is_listening() {
            return Err(Errno::invalid("the id listens; the one to accept is that of RDMA_CM_EVENT_CONNECT_REQUEST"));
        }
        let given = parameters.as_ref();
        it.check(given)?;
        let device = it.device()?;
        let (depth, resources) = {
            let mut state = it.state();
            let chosen = |value: Option<u8>, asked: u8, most: u8| match value {
                Some(value) if u32::from(value) != abi::RDMA_MAX_RESP_RES => value,
                _ => asked.min(most),
            };
            state.initiator_depth =
                chosen(given.map(|given| given.initiator_depth), state.initiator_depth, device.max_initiator_depth);
            state.responder_resources = chosen(
                given.map(|given| given.responder_resources),
                state.responder_resources,
                device.max_responder_resources,
            );
            (state.initiator_depth, state.responder_resources)
        };
        let datagrams = field!(it.base, qp_type) == abi::IBV_QPT_UD;
        let connects = !datagrams && !it.qp().is_null();
        if connects {
            it.take_ece();
            it.ready_queue_pair(Some(resources), Some(depth))?;
        }
        let data = private_data(given);
        let accepted = || -> Result<(), Errno> {
            it.answer_ece()?;
            let offer = it.parameters(given, data);
            it.tell_offer("rdma_accept", &offer);
            it.tell_empty_data("rdma_accept", given);
            Ok(it.id.accept(&offer)?)
        };
        accepted().inspect_err(|_| {
            if connects {
                let _ = it.queue_pair_to_error();
            }
        })?;
        if datagrams {
            // Nothing follows; the request is dealt with.
            if it.is_synchronous() {
                it.drop_event();
            }
            return Ok(0);
        }
        it.complete()
    })
}

fn reject(id: Handle<'_, rdma_cm_id>, reason: RejectReason, data: &[u8]) -> Result<c_int, Errno> {
    let it = ConnectionId::of(id)?;
    it.id.reject(reason, data)?;
    it.tell(if reason == RejectReason::VendorOption { "rdma_reject_ece" } else { "rdma_reject" });
    Ok(0)
}

/// Rejects what a peer asked for, or answered.
///
/// # Safety
/// `data` is null or has `length` bytes.
#[unsafe(export_name = "ubiverbs_rdma_reject")]
pub unsafe extern "C" fn rdma_reject(id: Handle<'_, rdma_cm_id>, data: *const c_void, length: u8) -> c_int {
    // SAFETY: null, or of that length.
    number("rdma_reject", || reject(id, RejectReason::Consumer, unsafe { bytes(data, length) }))
}

/// Rejects it because of what the peer's device wants.
///
/// # Safety
/// `data` is null or has `length` bytes.
#[unsafe(export_name = "ubiverbs_rdma_reject_ece")]
pub unsafe extern "C" fn rdma_reject_ece(id: Handle<'_, rdma_cm_id>, data: *const c_void, length: u8) -> c_int {
    // SAFETY: null, or of that length.
    number("rdma_reject_ece", || reject(id, RejectReason::VendorOption, unsafe { bytes(data, length) }))
}

/// Says that a queue pair which is not the id's own is ready.
#[unsafe(export_name = "ubiverbs_rdma_establish")]
pub extern "C" fn rdma_establish(id: Handle<'_, rdma_cm_id>) -> c_int {
    zero("rdma_establish", || {
        let it = ConnectionId::of(id)?;
        refuse_if!(!it.qp().is_null(), Errno::invalid("the id has a queue pair, and is established without this call"));
        it.offer_ece()?;
        it.id.establish()?;
        it.tell("rdma_establish");
        Ok(())
    })
}

/// Tells of an event of the queue pair: that data came means that the connection stands.
#[unsafe(export_name = "ubiverbs_rdma_notify")]
pub extern "C" fn rdma_notify(id: Handle<'_, rdma_cm_id>, event: c_uint) -> c_int {
    zero("rdma_notify", || {
        let it = ConnectionId::of(id)?;
        if event != abi::IBV_EVENT_COMM_EST {
            return Err(Errno::invalid("only IBV_EVENT_COMM_EST says something of a connection"));
        }
        it.id.notify_established()?;
        it.tell("rdma_notify");
        Ok(())
    })
}

/// Ends a connection, or agrees to its end. Work that is not done is flushed.
#[unsafe(export_name = "ubiverbs_rdma_disconnect")]
pub extern "C" fn rdma_disconnect(id: Handle<'_, rdma_cm_id>) -> c_int {
    number("rdma_disconnect", || {
        let it = ConnectionId::of(id)?;
        it.device()?;
        it.tell("rdma_disconnect");
        it.queue_pair_to_error()?;
        it.id.disconnect()?;
        // Of datagrams there was no connection, and no event tells of its end.
        if it.id.kind() == Kind::UnreliableDatagram { Ok(0) } else { it.complete() }
    })
}

/// What the program's own queue pair wants its peer's device to know.
#[unsafe(export_name = "ubiverbs_rdma_set_local_ece")]
pub extern "C" fn rdma_set_local_ece(id: Handle<'_, rdma_cm_id>, ece: In<'_, ibv_ece>) -> c_int {
    zero("rdma_set_local_ece", || {
        let it = ConnectionId::of(id)?;
        let ece = ece.as_ref().ok_or_else(Errno::null)?;
        // No options of no vendor are what a device without options has to say.
        let of_no_vendor = ece.vendor_id == 0 && ece.options != 0;
        if !it.qp().is_null() || of_no_vendor || ece.comp_mask != 0 {
            return Err(Errno::invalid("for queue pairs of the program's own, of a vendor, without comp_mask"));
        }
        it.state().local_ece = (ece.vendor_id, ece.options);
        Ok(())
    })
}

/// What the peer's device wants this one to know.
#[unsafe(export_name = "ubiverbs_rdma_get_remote_ece")]
pub extern "C" fn rdma_get_remote_ece(id: Handle<'_, rdma_cm_id>, mut ece: Out<'_, ibv_ece>) -> c_int {
    zero("rdma_get_remote_ece", || {
        let it = ConnectionId::of(id)?;
        refuse_if!(!it.qp().is_null(), Errno::invalid("for queue pairs of the program's own"));
        let (vendor_id, options) = it.state().remote_ece;
        ece.write(ibv_ece { vendor_id, options, comp_mask: 0 }).ok_or_else(Errno::null)
    })
}
