//! Queue pairs of ids: made with what the program left out, and moved along with the connection.

use super::id::ConnectionId;
use crate::address_handle::vector_to_c;
use crate::boundary::{number, quietly};
use crate::completion_channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::completion_queue::{ibv_create_cq, ibv_destroy_cq};
use crate::errno::Errno;
use crate::queue_pair::{create_qp_ex, ibv_destroy_qp};
use crate::queue_pair_state::ibv_modify_qp;
use abi::{
    ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_sge, rdma_cm_id,
};
use std::ffi::{c_int, c_uint};
use std::mem::zeroed;
use std::ptr::null_mut;
use transport::{Modify, State};

/// What a call of verbs left in errno.
pub(super) fn last_error() -> Errno {
    // SAFETY: the location is this thread's own.
    match unsafe { *libc::__errno_location() } {
        0 => Errno(libc::EIO),
        code => Errno(code),
    }
}

fn done(code: c_int) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno(code)) }
}

/// Attributes as C has them, and which of them count.
fn attributes(modify: &Modify) -> (ibv_qp_attr, u32) {
    // SAFETY: all zeros are numbers.
    let mut out: ibv_qp_attr = unsafe { zeroed() };
    let mut mask = 0;
    macro_rules! fill {
        ($($from:ident => $bit:ident, $value:ident: $($to:ident).+ = $conversion:expr;)*) => {
            $(if let Some($value) = modify.$from {
                out.$($to).+ = $conversion;
                mask |= abi::$bit;
            })*
        };
    }
    fill! {
        state => IBV_QP_STATE, value: qp_state = value as c_uint;
        access => IBV_QP_ACCESS_FLAGS, value: qp_access_flags = value.bits();
        pkey_index => IBV_QP_PKEY_INDEX, value: pkey_index = value;
        port => IBV_QP_PORT, value: port_num = value;
        qkey => IBV_QP_QKEY, value: qkey = value.value();
        av => IBV_QP_AV, value: ah_attr = vector_to_c(&value);
        path_mtu => IBV_QP_PATH_MTU, value: path_mtu = value.code().into();
        timeout => IBV_QP_TIMEOUT, value: timeout = value;
        retry_cnt => IBV_QP_RETRY_CNT, value: retry_cnt = value;
        rnr_retry => IBV_QP_RNR_RETRY, value: rnr_retry = value;
        rq_psn => IBV_QP_RQ_PSN, value: rq_psn = value.value();
        max_rd_atomic => IBV_QP_MAX_QP_RD_ATOMIC, value: max_rd_atomic = value;
        min_rnr_timer => IBV_QP_MIN_RNR_TIMER, value: min_rnr_timer = value;
        sq_psn => IBV_QP_SQ_PSN, value: sq_psn = value.value();
        max_dest_rd_atomic => IBV_QP_MAX_DEST_RD_ATOMIC, value: max_dest_rd_atomic = value;
        dest_qpn => IBV_QP_DEST_QPN, value: dest_qp_num = value.value();
    }
    (out, mask)
}

impl ConnectionId {
    /// Moves a queue pair to a state, with the attributes this connection has there.
    unsafe fn move_to(&self, qp: *mut ibv_qp, state: State, adjust: impl FnOnce(&mut Modify)) -> Result<(), Errno> {
        let mut modify = self.id.modify_for(state)?;
        adjust(&mut modify);
        let (mut attributes, mask) = attributes(&modify);
        done(ibv_modify_qp(qp, &raw mut attributes, mask as c_int))
    }

    /// Makes the id's queue pair ready for its connection, with fewer READs at a time than that has where it is said.
    pub(super) unsafe fn ready_queue_pair(&self, resources: Option<u8>, depth: Option<u8>) -> Result<(), Errno> {
        let qp = (*self.as_c()).qp;
        // Again: what the peer may do is known only now.
        self.move_to(qp, State::Init, |_| {})?;
        self.move_to(qp, State::ReadyToReceive, |modify| {
            if let Some(resources) = resources.filter(|_| modify.max_dest_rd_atomic.is_some()) {
                modify.max_dest_rd_atomic = Some(resources);
            }
        })?;
        self.move_to(qp, State::ReadyToSend, |modify| {
            if let Some(depth) = depth.filter(|_| modify.max_rd_atomic.is_some()) {
                modify.max_rd_atomic = Some(depth);
            }
        })
    }

    /// The connection has ended, or will not be.
    pub(super) unsafe fn queue_pair_to_error(&self) -> Result<(), Errno> {
        let qp = (*self.as_c()).qp;
        if qp.is_null() {
            return Ok(());
        }
        let modify = Modify { state: Some(State::Error), ..Modify::default() };
        let (mut attributes, mask) = attributes(&modify);
        done(ibv_modify_qp(qp, &raw mut attributes, mask as c_int))
    }

    /// A completion queue of the id's own, and the channel it reports to.
    unsafe fn make_cq(&self, entries: u32) -> Result<(*mut ibv_cq, *mut ibv_comp_channel), Errno> {
        let c = self.as_c();
        let entries = c_int::try_from(entries).map_err(|_| Errno::INVALID)?;
        let channel = ibv_create_comp_channel((*c).verbs);
        if channel.is_null() {
            return Err(last_error());
        }
        let cq = ibv_create_cq((*c).verbs, entries, c.cast(), channel, 0);
        if cq.is_null() {
            let error = last_error();
            ibv_destroy_comp_channel(channel);
            return Err(error);
        }
        Ok((cq, channel))
    }

    /// Makes the completion queues that the program left to us; 0 entries are none.
    pub(super) unsafe fn make_cqs(&self, send: u32, receive: u32) -> Result<(), Errno> {
        let c = self.as_c();
        if receive > 0 && (*c).recv_cq.is_null() {
            ((*c).recv_cq, (*c).recv_cq_channel) = self.make_cq(receive)?;
        }
        if send > 0 && (*c).send_cq.is_null() {
            match self.make_cq(send) {
                Ok(made) => ((*c).send_cq, (*c).send_cq_channel) = made,
                Err(error) => {
                    self.destroy_cqs();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Destroys the id's own completion queues, unless a shared receive queue still completes into one.
    pub(super) unsafe fn destroy_cqs(&self) {
        let c = self.as_c();
        if (*c).qp_type == abi::IBV_QPT_XRC_RECV && !(*c).srq.is_null() {
            return;
        }
        let receive = (&raw mut (*c).recv_cq, &raw mut (*c).recv_cq_channel);
        let send = (&raw mut (*c).send_cq, &raw mut (*c).send_cq_channel);
        for (cq, channel) in [receive, send] {
            // A queue that is still in use stays, and with it its channel.
            if !(*cq).is_null() && ibv_destroy_cq(*cq) == 0 {
                *cq = null_mut();
            }
            if (*cq).is_null() && !(*channel).is_null() && ibv_destroy_comp_channel(*channel) == 0 {
                *channel = null_mut();
            }
        }
    }

    unsafe fn create_qp(&self, attributes: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
        let c = self.as_c();
        let device = self.device()?;
        if !(*c).qp.is_null() {
            return Err(Errno::invalid("the id has a queue pair already"));
        }
        if attributes.comp_mask & abi::IBV_QP_INIT_ATTR_PD == 0 || attributes.pd.is_null() {
            attributes.comp_mask |= abi::IBV_QP_INIT_ATTR_PD;
            attributes.pd = (*c).pd;
        } else if (*attributes.pd).context != (*c).verbs {
            return Err(Errno::invalid("the protection domain is of another context than the id"));
        }
        let conflict = |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
        if conflict((*c).recv_cq, attributes.recv_cq) || conflict((*c).send_cq, attributes.send_cq) {
            return Err(Errno::invalid("the id has another completion queue of its own"));
        }
        if (*c).qp_type == abi::IBV_QPT_XRC_RECV
            && (attributes.comp_mask & abi::IBV_QP_INIT_ATTR_XRCD == 0 || attributes.xrcd.is_null())
        {
            attributes.comp_mask |= abi::IBV_QP_INIT_ATTR_XRCD;
            attributes.xrcd = device.xrc_domain()?;
        }
        let entries = |given: *mut ibv_cq, size: u32| if given.is_null() { size } else { 0 };
        let send = entries(attributes.send_cq, attributes.cap.max_send_wr);
        let receive = entries(attributes.recv_cq, attributes.cap.max_recv_wr);
        self.make_cqs(send, receive)?;
        if attributes.send_cq.is_null() {
            attributes.send_cq = (*c).send_cq;
        }
        if attributes.recv_cq.is_null() {
            attributes.recv_cq = (*c).recv_cq;
        }
        if attributes.srq.is_null() {
            attributes.srq = (*c).srq;
        }
        // A work request that holds so many gather entries holds as many bytes in their place, on other devices; programs live off it.
        attributes.cap.max_inline_data = attributes
            .cap
            .max_inline_data
            .max(attributes.cap.max_send_sge.saturating_mul(size_of::<ibv_sge>() as u32).min(256));
        match self.make_qp(attributes) {
            Ok(qp) => {
                (*c).pd = attributes.pd;
                (*c).qp = qp;
                Ok(())
            }
            Err(error) => {
                self.destroy_cqs();
                Err(error)
            }
        }
    }

    /// Makes the queue pair and takes it as far as it can go before there is a connection: datagrams need none.
    unsafe fn make_qp(&self, attributes: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
        let c = self.as_c();
        let qp = create_qp_ex((*c).verbs, attributes);
        if qp.is_null() {
            return Err(last_error());
        }
        let states: &[State] = match (*c).qp_type {
            abi::IBV_QPT_UD => &[State::Init, State::ReadyToReceive, State::ReadyToSend],
            _ => &[State::Init],
        };
        for state in states {
            if let Err(error) = self.move_to(qp, *state, |_| {}) {
                ibv_destroy_qp(qp);
                return Err(error);
            }
        }
        Ok(qp)
    }
}

/// A queue pair for an id. Completion queues, protection domain and the like that are not given are the id's own.
#[unsafe(export_name = "ubiverbs_rdma_create_qp_ex")]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, attributes: *mut ibv_qp_init_attr_ex) -> c_int {
    number("rdma_create_qp_ex", || {
        ConnectionId::of(id)?.create_qp(attributes.as_mut().ok_or_else(Errno::null)?)?;
        Ok(0)
    })
}

/// The plain form.
#[unsafe(export_name = "ubiverbs_rdma_create_qp")]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attributes: *mut ibv_qp_init_attr,
) -> c_int {
    number("rdma_create_qp", || {
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        ConnectionId::of(id)?.create_plain_qp(pd, attributes)?;
        Ok(0)
    })
}

impl ConnectionId {
    pub(super) unsafe fn create_plain_qp(
        &self,
        pd: *mut ibv_pd,
        attributes: &mut ibv_qp_init_attr,
    ) -> Result<(), Errno> {
        // SAFETY: all zeros are null pointers and numbers.
        let mut extended: ibv_qp_init_attr_ex = zeroed();
        // The extended structure begins with the plain one.
        (&raw mut extended).cast::<ibv_qp_init_attr>().write(*attributes);
        extended.comp_mask = abi::IBV_QP_INIT_ATTR_PD;
        extended.pd = pd;
        self.create_qp(&mut extended)?;
        *attributes = (&raw const extended).cast::<ibv_qp_init_attr>().read();
        Ok(())
    }
}

/// Destroys the queue pair of an id, and what was made for it.
#[unsafe(export_name = "ubiverbs_rdma_destroy_qp")]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    quietly("rdma_destroy_qp", || {
        let it = ConnectionId::of(id)?;
        if !(*id).qp.is_null() {
            done(ibv_destroy_qp((*id).qp))?;
            (*id).qp = null_mut();
        }
        it.destroy_cqs();
        Ok(())
    });
}

/// What a queue pair that is not the id's own must be told on its way to `qp_state`.
#[unsafe(export_name = "ubiverbs_rdma_init_qp_attr")]
pub unsafe extern "C" fn rdma_init_qp_attr(id: *mut rdma_cm_id, out: *mut ibv_qp_attr, mask: *mut c_int) -> c_int {
    number("rdma_init_qp_attr", || {
        let it = ConnectionId::of(id)?;
        it.device()?;
        let (out, mask) = (out.as_mut().ok_or_else(Errno::null)?, mask.as_mut().ok_or_else(Errno::null)?);
        let wanted = out.qp_state;
        let state = State::ALL.into_iter().find(|state| *state as c_uint == wanted).ok_or(Errno::INVALID)?;
        let (attributes, bits) = attributes(&it.id.modify_for(state)?);
        (*out, *mask) = (attributes, bits as c_int);
        Ok(0)
    })
}
