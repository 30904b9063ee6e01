//! Queue pairs of ids: made with what the program left out, and moved along with the connection.

use super::id::ConnectionId;
use crate::address_handle::vector_to_c;
use crate::boundary::{inner_failure, unreported, zero};
use crate::completion_channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::completion_queue::{ibv_create_cq, ibv_destroy_cq};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, field, set_field};
use crate::protection_domain::Pd;
use crate::queue_pair::QueuePair;
use crate::queue_pair_create::{create_qp_ex, ibv_destroy_qp};
use crate::queue_pair_state::{Modifier, modify as modify_qp};
use abi::{
    Handle, InOut, Out, Owned, ibv_comp_channel, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_sge, rdma_cm_id,
};
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use transport::{Modify, State};

/// What a call of verbs left in errno.
pub(super) fn last_error() -> Errno {
    // SAFETY: the location is this thread's own.
    match unsafe { *libc::__errno_location() } {
        0 => Errno::of(libc::EIO),
        code => inner_failure(code),
    }
}

fn done(code: c_int) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(inner_failure(code)) }
}

/// Attributes as C has them, and which of them count.
fn attributes(modify: &Modify) -> (ibv_qp_attr, u32) {
    let mut out = ibv_qp_attr::zeroed();
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

/// Destroys a completion queue of an id's own and its channel; what is left of the two. A queue that is still in use
/// stays, and with it its channel.
fn destroy_cq(cq: *mut ibv_cq, channel: *mut ibv_comp_channel) -> (*mut ibv_cq, *mut ibv_comp_channel) {
    // SAFETY: null, or made by `make_cq` for the id, which gives them up.
    let (owned_cq, owned_channel) = unsafe { (Owned::new(cq), Owned::new(channel)) };
    if !cq.is_null() && ibv_destroy_cq(owned_cq) != 0 {
        return (cq, channel);
    }
    if !channel.is_null() && ibv_destroy_comp_channel(owned_channel) != 0 {
        return (null_mut(), channel);
    }
    (null_mut(), null_mut())
}

impl ConnectionId {
    /// Moves a queue pair to a state, with the attributes this connection has there.
    fn move_to(&self, qp: Handle<'_, ibv_qp>, state: State, adjust: impl FnOnce(&mut Modify)) -> Result<(), Errno> {
        let mut modify = self.id.modify_for(state)?;
        adjust(&mut modify);
        let (attributes, mask) = attributes(&modify);
        if let Ok(pair) = QueuePair::of(qp) {
            self.tell_move(pair.qp.qpn(), state);
        }
        done(modify_qp(qp, (&attributes).into(), mask as c_int, Modifier::ConnectionManager))
    }

    /// Makes the id's queue pair ready for its connection, with fewer READs at a time than that has where it is said.
    pub(super) fn ready_queue_pair(&self, resources: Option<u8>, depth: Option<u8>) -> Result<(), Errno> {
        let qp = self.qp();
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
    pub(super) fn queue_pair_to_error(&self) -> Result<(), Errno> {
        let qp = self.qp();
        if qp.is_null() {
            return Ok(());
        }
        let modify = Modify { state: Some(State::Error), ..Modify::default() };
        let (attributes, mask) = attributes(&modify);
        if let Ok(pair) = QueuePair::of(qp) {
            self.tell_move(pair.qp.qpn(), State::Error);
        }
        done(modify_qp(qp, (&attributes).into(), mask as c_int, Modifier::ConnectionManager))
    }

    /// A completion queue of the id's own, and the channel it reports to.
    fn make_cq(&self, entries: u32) -> Result<(*mut ibv_cq, *mut ibv_comp_channel), Errno> {
        let entries = c_int::try_from(entries).map_err(|_| Errno::INVALID)?;
        let channel = ibv_create_comp_channel(self.verbs());
        refuse_if!(channel.is_null(), last_error());
        // SAFETY: just made.
        let made = unsafe { Owned::new(channel) };
        let cq = ibv_create_cq(self.verbs(), entries, self.as_c().cast(), made.handle(), 0);
        if cq.is_null() {
            let error = last_error();
            ibv_destroy_comp_channel(made);
            return Err(error);
        }
        Ok((cq, channel))
    }

    /// Makes the completion queues that the program left to the id; 0 entries are none.
    pub(super) fn make_cqs(&self, send: u32, receive: u32) -> Result<(), Errno> {
        if receive > 0 && field!(self.base, recv_cq).is_null() {
            let (cq, channel) = self.make_cq(receive)?;
            set_field!(self.base, recv_cq, cq);
            set_field!(self.base, recv_cq_channel, channel);
        }
        if send > 0 && field!(self.base, send_cq).is_null() {
            let (cq, channel) = self.make_cq(send).inspect_err(|_| self.destroy_cqs())?;
            set_field!(self.base, send_cq, cq);
            set_field!(self.base, send_cq_channel, channel);
        }
        Ok(())
    }

    /// Destroys the id's own completion queues, unless a shared receive queue still completes into one.
    pub(super) fn destroy_cqs(&self) {
        if field!(self.base, qp_type) == abi::IBV_QPT_XRC_RECV && !field!(self.base, srq).is_null() {
            return;
        }
        let (cq, channel) = destroy_cq(field!(self.base, recv_cq), field!(self.base, recv_cq_channel));
        set_field!(self.base, recv_cq, cq);
        set_field!(self.base, recv_cq_channel, channel);
        let (cq, channel) = destroy_cq(field!(self.base, send_cq), field!(self.base, send_cq_channel));
        set_field!(self.base, send_cq, cq);
        set_field!(self.base, send_cq_channel, channel);
    }

    fn create_qp(&self, attributes: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
        let device = self.device()?;
        refuse_if!(!self.qp().is_null(), Errno::invalid("the id has a queue pair already"));
        match (field!(self.base, qp_type) == abi::IBV_QPT_UD, attributes.qp_type == abi::IBV_QPT_UD) {
            (true, false) => {
                let why = "the id is for datagrams (RDMA_PS_UDP, RDMA_PS_IPOIB), and the queue pair is not of type UD";
                return Err(Errno::invalid(why));
            }
            (false, true) => {
                return Err(Errno::invalid(
                    "the id is for connections (RDMA_PS_TCP), and the queue pair is of type UD",
                ));
            }
            _ => {}
        }
        if attributes.comp_mask & abi::IBV_QP_INIT_ATTR_PD == 0 || attributes.pd.is_null() {
            attributes.comp_mask |= abi::IBV_QP_INIT_ATTR_PD;
            attributes.pd = field!(self.base, pd);
        // SAFETY: a field of the attributes, which the manual page wants null or a protection domain.
        } else if Pd::of(unsafe { Handle::new(attributes.pd) })?.context_in_c() != self.verbs().as_ptr() {
            return Err(Errno::invalid("the protection domain is of another context than the id"));
        }
        let conflict = |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
        if conflict(field!(self.base, recv_cq), attributes.recv_cq)
            || conflict(field!(self.base, send_cq), attributes.send_cq)
        {
            return Err(Errno::invalid("the id has another completion queue of its own"));
        }
        if field!(self.base, qp_type) == abi::IBV_QPT_XRC_RECV
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
            attributes.send_cq = field!(self.base, send_cq);
        }
        if attributes.recv_cq.is_null() {
            attributes.recv_cq = field!(self.base, recv_cq);
        }
        if attributes.srq.is_null() {
            attributes.srq = field!(self.base, srq);
        }
        // A work request that holds so many gather entries holds as many bytes in their place, on other devices;
        // programs live off it.
        attributes.cap.max_inline_data = attributes
            .cap
            .max_inline_data
            .max(attributes.cap.max_send_sge.saturating_mul(size_of::<ibv_sge>() as u32).min(256));
        match self.make_qp(attributes) {
            Ok(qp) => {
                set_field!(self.base, pd, attributes.pd);
                set_field!(self.base, qp, qp);
                self.tell("rdma_create_qp");
                Ok(())
            }
            Err(error) => {
                self.destroy_cqs();
                Err(error)
            }
        }
    }

    /// Makes the queue pair and takes it as far as it can go before there is a connection: datagrams need none.
    fn make_qp(&self, attributes: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
        let qp = create_qp_ex(self.verbs(), attributes.into());
        refuse_if!(qp.is_null(), last_error());
        // SAFETY: just made.
        let made = unsafe { Owned::new(qp) };
        let states: &[State] = match field!(self.base, qp_type) {
            abi::IBV_QPT_UD => &[State::Init, State::ReadyToReceive, State::ReadyToSend],
            _ => &[State::Init],
        };
        for state in states {
            if let Err(error) = self.move_to(made.handle(), *state, |_| {}) {
                ibv_destroy_qp(made);
                return Err(error);
            }
        }
        Ok(qp)
    }
}

/// A queue pair for an id. Completion queues, protection domain and the like that are not given are the id's own.
#[unsafe(export_name = "ubiverbs_rdma_create_qp_ex")]
pub extern "C" fn rdma_create_qp_ex(id: Handle<'_, rdma_cm_id>, attributes: InOut<'_, ibv_qp_init_attr_ex>) -> c_int {
    zero("rdma_create_qp_ex", || ConnectionId::of(id)?.create_qp(attributes.as_mut().ok_or_else(Errno::null)?))
}

/// The plain form.
#[unsafe(export_name = "ubiverbs_rdma_create_qp")]
pub extern "C" fn rdma_create_qp(
    id: Handle<'_, rdma_cm_id>,
    pd: Handle<'_, ibv_pd>,
    attributes: InOut<'_, ibv_qp_init_attr>,
) -> c_int {
    zero("rdma_create_qp", || {
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        ConnectionId::of(id)?.create_plain_qp(pd, attributes)
    })
}

impl ConnectionId {
    pub(super) fn create_plain_qp(
        &self,
        pd: Handle<'_, ibv_pd>,
        attributes: &mut ibv_qp_init_attr,
    ) -> Result<(), Errno> {
        let mut extended = ibv_qp_init_attr_ex::from(*attributes);
        extended.comp_mask = abi::IBV_QP_INIT_ATTR_PD;
        extended.pd = pd.as_ptr();
        self.create_qp(&mut extended)?;
        *attributes = extended.plain();
        Ok(())
    }
}

/// Destroys the queue pair of an id, and what was made for it.
#[unsafe(export_name = "ubiverbs_rdma_destroy_qp")]
pub extern "C" fn rdma_destroy_qp(id: Handle<'_, rdma_cm_id>) {
    unreported("rdma_destroy_qp", || {
        let it = ConnectionId::of(id)?;
        if !it.qp().is_null() {
            // SAFETY: the queue pair of the id, which the program gives up.
            done(ibv_destroy_qp(unsafe { Owned::new(it.qp().as_ptr()) }))?;
            set_field!(it.base, qp, null_mut());
            it.tell("rdma_destroy_qp");
        }
        it.destroy_cqs();
        Ok(())
    });
}

/// What a queue pair that is not the id's own must be told on its way to `qp_state`.
#[unsafe(export_name = "ubiverbs_rdma_init_qp_attr")]
pub extern "C" fn rdma_init_qp_attr(
    id: Handle<'_, rdma_cm_id>,
    out: InOut<'_, ibv_qp_attr>,
    mut mask: Out<'_, c_int>,
) -> c_int {
    zero("rdma_init_qp_attr", || {
        let it = ConnectionId::of(id)?;
        it.device()?;
        let out = out.as_mut().ok_or_else(Errno::null)?;
        let wanted = out.qp_state;
        let state = State::ALL.into_iter().find(|state| *state as c_uint == wanted).ok_or(Errno::INVALID)?;
        let (attributes, bits) = attributes(&it.id.modify_for(state)?);
        mask.write(bits as c_int).ok_or_else(Errno::null)?;
        *out = attributes;
        Ok(())
    })
}
