//! Connecting, accepting, rejecting, disconnecting. A queue pair that the program made through its id follows: it is ready to receive before the peer
//! can know, and in error once the connection ends.

use super::id::ConnectionId;
use crate::boundary::number;
use crate::ece::{ibv_query_ece, ibv_set_ece};
use crate::errno::Errno;
use abi::{ibv_ece, rdma_cm_id, rdma_conn_param};
use hca::cm::{ConnectParameters, IdOption};
use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use wire::Qpn;
use wire::cm::RejectReason;

/// How often to retry when the program does not say.
const RETRIES: u8 = 7;

/// Bytes of C's.
unsafe fn bytes<'a>(data: *const c_void, length: u8) -> &'a [u8] {
    if data.is_null() || length == 0 { &[] } else { slice::from_raw_parts(data.cast(), length.into()) }
}

impl ConnectionId {
    /// Whether parameters make sense for this id; only connected services know of READs.
    unsafe fn check(&self, parameters: Option<&rdma_conn_param>) -> Result<(), Errno> {
        let c = self.as_c();
        if (*c).ps != abi::RDMA_PS_TCP {
            return Ok(());
        }
        let Some(parameters) = parameters else {
            return match (*c).qp.is_null() {
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
    unsafe fn parameters<'a>(&self, given: Option<&rdma_conn_param>, private_data: &'a [u8]) -> ConnectParameters<'a> {
        let qp = (*self.as_c()).qp;
        let state = self.state();
        let (qpn, srq) = match (qp.as_ref(), given) {
            (Some(qp), _) => (qp.qp_num, !qp.srq.is_null()),
            (None, Some(given)) => (given.qp_num, given.srq != 0),
            (None, None) => (0, false),
        };
        ConnectParameters {
            private_data,
            responder_resources: state.responder_resources,
            initiator_depth: state.initiator_depth,
            flow_control: given.is_some_and(|given| given.flow_control != 0),
            retry_count: given.map_or(RETRIES, |given| given.retry_count),
            rnr_retry_count: given.map_or(RETRIES, |given| given.rnr_retry_count),
            srq,
            qpn: Qpn::new(qpn),
            qkey: None,
        }
    }

    /// What the device and its queue pair agreed to; if it has no queue pair, what the program said.
    unsafe fn offer_ece(&self) -> Result<(), Errno> {
        let c = self.as_c();
        let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        if !(*c).qp.is_null() && ibv_query_ece((*c).qp, &raw mut ece) == 0 {
            self.state().local_ece = (ece.vendor_id, ece.options);
        }
        let (vendor, options) = self.state().local_ece;
        Ok(self.id.set(IdOption::Ece(vendor, options))?)
    }

    /// The answer to the peer's offer speaks of the peer's vendor, or its library takes it for a broken handshake; of another's options
    /// nothing was taken.
    unsafe fn answer_ece(&self) -> Result<(), Errno> {
        self.offer_ece()?;
        let state = self.state();
        let ((asked, _), (vendor, options)) = (state.remote_ece, state.local_ece);
        let taken = if vendor == asked { options } else { 0 };
        Ok(self.id.set(IdOption::Ece(asked, taken))?)
    }

    /// Tells the queue pair what the peer's device can do. Not being able to is no error: it is an offer.
    unsafe fn take_ece(&self) {
        let (vendor_id, options) = self.state().remote_ece;
        if vendor_id != 0 {
            let mut ece = ibv_ece { vendor_id, options, comp_mask: 0 };
            ibv_set_ece((*self.as_c()).qp, &raw mut ece);
        }
    }

    /// The peer accepted: makes the queue pair ready, and says so.
    pub(super) unsafe fn confirm(&self) -> Result<(), Errno> {
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
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int {
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
            data.extend_from_slice(given.map_or(&[], |given| bytes(given.private_data, given.private_data_len)));
            data
        };
        it.offer_ece()?;
        it.id.connect(&it.parameters(given, &data))?;
        it.state().connect_data.clear();
        it.complete()
    })
}

/// Accepts what a peer asked for.
#[unsafe(export_name = "ubiverbs_rdma_accept")]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, parameters: *mut rdma_conn_param) -> c_int {
    number("rdma_accept", || {
        let it = ConnectionId::of(id)?;
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
        let datagrams = (*id).qp_type == abi::IBV_QPT_UD;
        let connects = !datagrams && !(*id).qp.is_null();
        if connects {
            it.take_ece();
            it.ready_queue_pair(Some(resources), Some(depth))?;
        }
        let data = given.map_or(&[][..], |given| bytes(given.private_data, given.private_data_len));
        let accepted = || -> Result<(), Errno> {
            it.answer_ece()?;
            Ok(it.id.accept(&it.parameters(given, data))?)
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

unsafe fn reject(id: *mut rdma_cm_id, reason: RejectReason, data: *const c_void, length: u8) -> Result<c_int, Errno> {
    let it = ConnectionId::of(id)?;
    it.id.reject(reason, bytes(data, length))?;
    Ok(0)
}

/// Rejects what a peer asked for, or answered.
#[unsafe(export_name = "ubiverbs_rdma_reject")]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    number("rdma_reject", || reject(id, RejectReason::Consumer, data, length))
}

/// Rejects it because of what the peer's device wants.
#[unsafe(export_name = "ubiverbs_rdma_reject_ece")]
pub unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    number("rdma_reject_ece", || reject(id, RejectReason::VendorOption, data, length))
}

/// Says that a queue pair which is not the id's own is ready.
#[unsafe(export_name = "ubiverbs_rdma_establish")]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    number("rdma_establish", || {
        let it = ConnectionId::of(id)?;
        if !(*id).qp.is_null() {
            return Err(Errno::invalid("the id has a queue pair, and is established without this call"));
        }
        it.offer_ece()?;
        it.id.establish()?;
        Ok(0)
    })
}

/// Tells of an event of the queue pair: that data came means that the connection stands.
#[unsafe(export_name = "ubiverbs_rdma_notify")]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int {
    number("rdma_notify", || {
        let it = ConnectionId::of(id)?;
        if event != abi::IBV_EVENT_COMM_EST {
            return Err(Errno::invalid("only IBV_EVENT_COMM_EST says something of a connection"));
        }
        it.id.notify_established()?;
        Ok(0)
    })
}

/// Ends a connection, or agrees to its end. Work that is not done is flushed.
#[unsafe(export_name = "ubiverbs_rdma_disconnect")]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    number("rdma_disconnect", || {
        let it = ConnectionId::of(id)?;
        it.device()?;
        it.queue_pair_to_error()?;
        it.id.disconnect()?;
        it.complete()
    })
}

/// What the program's own queue pair wants its peer's device to know.
#[unsafe(export_name = "ubiverbs_rdma_set_local_ece")]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    number("rdma_set_local_ece", || {
        let it = ConnectionId::of(id)?;
        let ece = ece.as_ref().ok_or_else(Errno::null)?;
        // Nothing of nobody is what a device without options has to say.
        let of_nobody = ece.vendor_id == 0 && ece.options != 0;
        if !(*id).qp.is_null() || of_nobody || ece.comp_mask != 0 {
            return Err(Errno::invalid("for queue pairs of the program's own, of a vendor, without comp_mask"));
        }
        it.state().local_ece = (ece.vendor_id, ece.options);
        Ok(0)
    })
}

/// What the peer's device wants ours to know.
#[unsafe(export_name = "ubiverbs_rdma_get_remote_ece")]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    number("rdma_get_remote_ece", || {
        let it = ConnectionId::of(id)?;
        let ece = ece.as_mut().ok_or_else(Errno::null)?;
        if !(*id).qp.is_null() {
            return Err(Errno::invalid("for queue pairs of the program's own"));
        }
        let (vendor_id, options) = it.state().remote_ece;
        *ece = ibv_ece { vendor_id, options, comp_mask: 0 };
        Ok(0)
    })
}
