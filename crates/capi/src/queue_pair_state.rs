//! Changing and asking for the state and the attributes of a queue pair (RESET, INIT, RTR, RTS, SQD, SQE, ERR): from C
//! and to C. What each transition needs is in `transport::state`, what it does in `transport::queue_pair`.

use crate::address_handle::{vector_from_c, vector_to_c};
use crate::boundary::status;
use crate::completion_counter::{ALL_WORK, CompletionCounter};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, set_field};
use crate::queue_pair::{QueuePair, capabilities_to_c};
use crate::registry::lock;
use abi::{
    Handle, In, Out, ibv_comp_cntr, ibv_qp, ibv_qp_attach_comp_cntr_attr, ibv_qp_attr, ibv_qp_init_attr,
    ibv_qp_rate_limit_attr,
};
use hca::{AttachError, CountedWork};
use profiles::Feature;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use trace::Call;
use transport::{Access, AlternatePath, Capabilities, Kind, MigrationState, Modify, RateLimit, State};
use wire::{Mtu, Psn, Qkey, Qpn};

/// Every bit of `ibv_qp_attr_mask`.
const KNOWN_ATTRIBUTES: u32 = ((abi::IBV_QP_DEST_QPN << 1) - 1) | abi::IBV_QP_RATE_LIMIT;

fn state(value: c_uint) -> Result<State, Errno> {
    State::ALL.into_iter().find(|state| *state as c_uint == value).ok_or_else(|| Errno::invalid("no such state"))
}

fn migration(value: c_uint) -> Result<MigrationState, Errno> {
    match value {
        0 => Ok(MigrationState::Migrated),
        1 => Ok(MigrationState::Rearm),
        2 => Ok(MigrationState::Armed),
        _ => Err(Errno::INVALID),
    }
}

/// What C asks for, in the transport's words.
fn modification(pair: &QueuePair, attributes: &ibv_qp_attr, mask: u32) -> Result<Modify, Errno> {
    refuse_if!(mask & !KNOWN_ATTRIBUTES != 0, Errno::invalid("attr_mask has a bit that is no attribute"));
    fn take<T>(mask: u32, bit: u32, value: impl FnOnce() -> Result<T, Errno>) -> Result<Option<T>, Errno> {
        if mask & bit == 0 { Ok(None) } else { value().map(Some) }
    }
    // The halves of an XRC connection are set up by programs as if they were whole; what the other half has is passed
    // over, as kernels do.
    let mask = match pair.qp.kind() {
        Kind::XrcInitiator => mask & !(abi::IBV_QP_MAX_DEST_RD_ATOMIC | abi::IBV_QP_MIN_RNR_TIMER),
        Kind::XrcTarget => mask & !(abi::IBV_QP_MAX_QP_RD_ATOMIC | abi::IBV_QP_RETRY_CNT | abi::IBV_QP_RNR_RETRY),
        _ => mask,
    };
    let device = pair.opened.device();
    let a = attributes;
    Ok(Modify {
        state: take(mask, abi::IBV_QP_STATE, || state(a.qp_state))?,
        current_state: take(mask, abi::IBV_QP_CUR_STATE, || state(a.cur_qp_state))?,
        sqd_async_notify: take(mask, abi::IBV_QP_EN_SQD_ASYNC_NOTIFY, || Ok(a.en_sqd_async_notify != 0))?,
        access: take(mask, abi::IBV_QP_ACCESS_FLAGS, || Ok(Access::from_bits_truncate(a.qp_access_flags)))?,
        pkey_index: take(mask, abi::IBV_QP_PKEY_INDEX, || Ok(a.pkey_index))?,
        port: take(mask, abi::IBV_QP_PORT, || Ok(a.port_num))?,
        qkey: take(mask, abi::IBV_QP_QKEY, || Ok(Qkey::new(a.qkey)))?,
        av: take(mask, abi::IBV_QP_AV, || vector_from_c(device, &a.ah_attr))?,
        path_mtu: take(mask, abi::IBV_QP_PATH_MTU, || mtu(a.path_mtu))?,
        timeout: take(mask, abi::IBV_QP_TIMEOUT, || Ok(a.timeout))?,
        retry_cnt: take(mask, abi::IBV_QP_RETRY_CNT, || Ok(a.retry_cnt))?,
        rnr_retry: take(mask, abi::IBV_QP_RNR_RETRY, || Ok(a.rnr_retry))?,
        rq_psn: take(mask, abi::IBV_QP_RQ_PSN, || Ok(Psn::new(a.rq_psn)))?,
        max_rd_atomic: take(mask, abi::IBV_QP_MAX_QP_RD_ATOMIC, || Ok(a.max_rd_atomic))?,
        alternate: take(mask, abi::IBV_QP_ALT_PATH, || {
            let av = vector_from_c(device, &a.alt_ah_attr)?;
            let (pkey_index, port, timeout) = (a.alt_pkey_index, a.alt_port_num, a.alt_timeout);
            Ok(AlternatePath { av, pkey_index, port, timeout })
        })?,
        min_rnr_timer: take(mask, abi::IBV_QP_MIN_RNR_TIMER, || Ok(a.min_rnr_timer))?,
        sq_psn: take(mask, abi::IBV_QP_SQ_PSN, || Ok(Psn::new(a.sq_psn)))?,
        max_dest_rd_atomic: take(mask, abi::IBV_QP_MAX_DEST_RD_ATOMIC, || Ok(a.max_dest_rd_atomic))?,
        migration: take(mask, abi::IBV_QP_PATH_MIG_STATE, || migration(a.path_mig_state))?,
        capabilities: take(mask, abi::IBV_QP_CAP, || {
            Ok(Capabilities {
                max_send_wr: a.cap.max_send_wr,
                max_recv_wr: a.cap.max_recv_wr,
                max_send_sge: a.cap.max_send_sge,
                max_recv_sge: a.cap.max_recv_sge,
                max_inline_data: a.cap.max_inline_data,
            })
        })?,
        dest_qpn: take(mask, abi::IBV_QP_DEST_QPN, || Ok(Qpn::new(a.dest_qp_num)))?,
        rate_limit: take(mask, abi::IBV_QP_RATE_LIMIT, || Ok(RateLimit::kbps(a.rate_limit)))?,
    })
}

fn mtu(code: c_uint) -> Result<Mtu, Errno> {
    u8::try_from(code).ok().and_then(Mtu::from_code).ok_or_else(|| {
        // A number of bytes is the usual mistake.
        match Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == code) {
            Some(mtu) => {
                let right = mtu.code();
                Errno::invalid(format_args!("path_mtu is {code}, but IBV_MTU_{code} is {right}; it may be 1 to 5"))
            }
            None => Errno::invalid(format_args!("path_mtu is {code}; it may be 1 (IBV_MTU_256) to 5 (IBV_MTU_4096)")),
        }
    })
}

/// Changes state and attributes, or neither.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_modify_qp(qp: Handle<'_, ibv_qp>, attributes: In<'_, ibv_qp_attr>, mask: c_int) -> c_int {
    modify(qp, attributes, mask, Modifier::Program)
}

/// Who changes a queue pair. Some cards connect theirs by the connection manager alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Modifier {
    Program,
    ConnectionManager,
}

/// [`ibv_modify_qp`], for the program or for the connection manager.
pub(crate) fn modify(
    qp: Handle<'_, ibv_qp>,
    attributes: In<'_, ibv_qp_attr>,
    mask: c_int,
    modifier: Modifier,
) -> c_int {
    status("ibv_modify_qp", || {
        let pair = QueuePair::by_handle(qp)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let modify = modification(pair, attributes, mask as u32)?;
        let connects = matches!(modify.state, Some(State::ReadyToReceive | State::ReadyToSend));
        if connects && modifier == Modifier::Program && pair.qp.kind().is_connected() {
            pair.opened.device().offers(Feature::ByHand)?;
        }
        pair.qp.modify(&pair.opened.nic, &modify)?;
        if let (Some(cut), given) = (modify.dest_qpn, attributes.dest_qp_num)
            && cut.value() != given
        {
            pair.opened.nic.called(Some(pair.qp.qpn()), || Call::NumberCut { given });
        }
        if let Some(state) = modify.state {
            set_field!(pair.base, qp_base.state, state as c_uint);
            if state == State::Reset {
                pair.opened.nic.forget_judged(&pair.qp);
                for cq in pair.completion_queues().into_iter().flatten() {
                    cq.cq.forget(pair.qp.qpn());
                }
            }
        }
        Ok(())
    })
}

/// What it is now. The mask is a hint, and everything is answered; but the state in the program's structure changes
/// only if the mask asks for it: UCX compares that field with what it set itself.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp(
    qp: Handle<'_, ibv_qp>,
    mut attributes: Out<'_, ibv_qp_attr>,
    mask: c_int,
    mut init: Out<'_, ibv_qp_init_attr>,
) -> c_int {
    status("ibv_query_qp", || {
        let pair = QueuePair::by_handle(qp)?;
        let now = pair.qp.query(&pair.opened.nic);
        let mut out = ibv_qp_attr::zeroed();
        out.qp_state = now.state as c_uint;
        out.cur_qp_state = now.state as c_uint;
        out.path_mtu = now.path_mtu.code().into();
        out.path_mig_state = now.migration as c_uint;
        out.qkey = now.qkey.value();
        out.rq_psn = now.rq_psn.value();
        out.sq_psn = now.sq_psn.value();
        out.dest_qp_num = now.dest_qpn.value();
        out.qp_access_flags = now.access.bits();
        out.cap = capabilities_to_c(&now.capabilities);
        out.ah_attr = vector_to_c(&now.av);
        out.alt_ah_attr = vector_to_c(&now.alternate.av);
        out.pkey_index = now.pkey_index;
        out.alt_pkey_index = now.alternate.pkey_index;
        out.en_sqd_async_notify = now.sqd_async_notify.into();
        out.max_rd_atomic = now.max_rd_atomic;
        out.max_dest_rd_atomic = now.max_dest_rd_atomic;
        out.min_rnr_timer = now.min_rnr_timer;
        out.port_num = now.port;
        out.timeout = now.timeout;
        out.retry_cnt = now.retry_cnt;
        out.rnr_retry = now.rnr_retry;
        out.alt_port_num = now.alternate.port;
        out.alt_timeout = now.alternate.timeout;
        out.rate_limit = now.rate_limit.kbps;
        attributes.write(out).ok_or_else(Errno::null)?;
        init.write(ibv_qp_init_attr { cap: out.cap, ..pair.init });
        if mask as u32 & abi::IBV_QP_STATE != 0 {
            set_field!(pair.base, qp_base.state, out.qp_state);
        }
        Ok(())
    })
}

/// Limits what a queue pair sends.
pub(crate) extern "C" fn modify_qp_rate_limit(
    qp: Handle<'_, ibv_qp>,
    attributes: In<'_, ibv_qp_rate_limit_attr>,
) -> c_int {
    status("ibv_modify_qp_rate_limit", || {
        let pair = QueuePair::by_handle(qp)?;
        let asked = attributes.as_ref().ok_or_else(Errno::null)?;
        pair.opened.device().offers(Feature::RateLimit)?;
        if asked.comp_mask != 0 {
            return Err(Errno::invalid("comp_mask names fields that ibv_qp_rate_limit_attr does not have"));
        }
        let limit =
            RateLimit { kbps: asked.rate_limit, max_burst: asked.max_burst_sz, typical_packet: asked.typical_pkt_sz };
        Ok(pair.qp.modify(&pair.opened.nic, &Modify { rate_limit: Some(limit), ..Modify::default() })?)
    })
}

/// Has a counter count some of a queue pair's work, until the queue pair is destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_qp_attach_comp_cntr(
    qp: Handle<'_, ibv_qp>,
    counter: Handle<'_, ibv_comp_cntr>,
    attributes: In<'_, ibv_qp_attach_comp_cntr_attr>,
) -> c_int {
    status("ibv_qp_attach_comp_cntr", || {
        let (pair, it) = (QueuePair::by_handle(qp)?, CompletionCounter::by_handle(counter)?);
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        refuse_if!(attributes.comp_mask != 0, Errno::invalid("comp_mask has bits that are not known"));
        refuse_if!(attributes.op_mask & !ALL_WORK != 0, Errno::unsupported("work that the device does not count"));
        refuse_if!(attributes.op_mask == 0, Errno::invalid("nothing to count"));
        if !Arc::ptr_eq(&it.opened, &pair.opened) {
            return Err(Errno::invalid("the counter is of another context than the queue pair"));
        }
        let wanted = |work: CountedWork| attributes.op_mask & 1 << work as u32 != 0;
        pair.qp.attach_counter(wanted, &it.counter).map_err(|error| {
            let errno = match error {
                AttachError::State => Errno::INVALID,
                AttachError::Taken(_) => Errno::BUSY,
            };
            errno.with_reason(&error)
        })?;
        it.users.join();
        lock(&pair.counters).0.push(counter.as_ptr());
        Ok(())
    })
}
