//! Work queues, each the receiving half of a raw queue pair, and the tables by which a queue pair spreads what it
//! receives over them.

use crate::boundary::{data_path, object, status};
use crate::completion_queue::CompletionQueue;
use crate::context::{Context, OpenDevice};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, Public, field, program_field, set_field};
use crate::posting::post_receives;
use crate::protection_domain::Pd;
use crate::use_count::UseCount;
use abi::{
    Handle, In, InOut, Out, Owned, ibv_context, ibv_recv_wr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq,
    ibv_wq_attr, ibv_wq_init_attr,
};
use hca::{Joins, Qp, RawOptions};
use profiles::Feature;
use std::ffi::{c_int, c_uint};
use std::slice;
use std::sync::Arc;
use transport::{Capabilities, Kind, Limits, Modify, QueuePairConfig, State};
use wire::{Mtu, Pkey, Qpn};

/// The largest table, as a power of two.
pub(crate) const MAX_LOG_TABLE: u32 = 11;

/// A work queue.
#[repr(C)]
pub struct WorkQueue {
    base: Public<ibv_wq>,
    opened: Arc<OpenDevice>,
    qp: Arc<Qp>,
    /// Tables that have it.
    users: UseCount,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for WorkQueue {
    type C = ibv_wq;

    fn device_has_failed(&self) -> bool {
        self.opened.device().has_failed()
    }

    fn has_its_handle(&self) -> bool {
        field!(self.base, handle) == self.qp.qpn().value()
    }
}

/// Whether flags of a work queue are all of them offered.
fn check_flags(flags: u32) -> Result<(), Errno> {
    if flags & !(abi::IBV_WQ_FLAGS_RESERVED - 1) != 0 {
        return Err(Errno::invalid("the flags of the work queue have bits that are not known"));
    }
    match flags & !abi::IBV_WQ_FLAGS_CVLAN_STRIPPING {
        0 => Ok(()),
        _ => Err(Errno::unsupported("of the flags of work queues only IBV_WQ_FLAGS_CVLAN_STRIPPING is offered")),
    }
}

pub(crate) extern "C" fn create_wq(
    context: Handle<'_, ibv_context>,
    attributes: InOut<'_, ibv_wq_init_attr>,
) -> *mut ibv_wq {
    object("ibv_create_wq", || {
        let context = Context::working(context)?;
        context.opened.device().offers(Feature::CreateWq)?;
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        if attributes.comp_mask & !abi::IBV_WQ_INIT_ATTR_FLAGS != 0 {
            return Err(Errno::invalid("comp_mask has bits that are not known"));
        }
        refuse_if!(attributes.wq_type != abi::IBV_WQT_RQ, Errno::invalid("no such type of work queue"));
        let flags = if attributes.comp_mask == 0 { 0 } else { attributes.create_flags };
        check_flags(flags)?;
        refuse_if!(attributes.max_wr == 0, Errno::invalid("max_wr is 0"));
        // SAFETY: fields of the attributes, which the manual page wants null or objects of these types.
        let (pd, cq) = unsafe { (Handle::new(attributes.pd), Handle::new(attributes.cq)) };
        let (domain, queue) = (Pd::by_handle(pd)?, CompletionQueue::by_handle(cq)?);
        let capabilities = Capabilities {
            max_recv_wr: attributes.max_wr,
            max_recv_sge: attributes.max_sge.max(1),
            ..Capabilities::default()
        };
        let config = QueuePairConfig {
            qpn: Qpn::SMI,
            kind: Kind::RawPacket,
            pd: domain.domain,
            capabilities: Capabilities { max_send_wr: 0, max_send_sge: 0, max_inline_data: 0, ..capabilities },
            srq: None,
            signal_all: false,
            limits: Limits::default(),
            pkey: Pkey::DEFAULT,
            port_mtu: Mtu::B4096,
        };
        let receive_cq = Some(Arc::clone(&queue.cq));
        let joins = Joins { context: Arc::clone(&context.opened.hca), send_cq: None, receive_cq, xrc_domain: None };
        let strips_tags = flags & abi::IBV_WQ_FLAGS_CVLAN_STRIPPING != 0;
        let options = RawOptions { strips_tags, is_work_queue: true, ..RawOptions::default() };
        let qp = context.opened.nic.create_raw_qp(config, joins, options)?;
        domain.join();
        queue.users.join();
        attributes.max_sge = capabilities.max_recv_sge;
        let mut base = ibv_wq::zeroed();
        base.context = context.as_c();
        base.wq_context = attributes.wq_context;
        (base.pd, base.cq) = (pd.as_ptr(), cq.as_ptr());
        (base.wq_num, base.handle) = (qp.qpn().value(), qp.qpn().value());
        (base.state, base.wq_type) = (abi::IBV_WQS_RESET, attributes.wq_type);
        base.post_recv = Some(post_wq_recv);
        base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        base.cond = libc::PTHREAD_COND_INITIALIZER;
        let (base, opened, users) = (Public::new(base), Arc::clone(&context.opened), UseCount::default());
        Ok(Box::new(WorkQueue { base, opened, qp, users }).into_c())
    })
}

impl WorkQueue {
    /// The state of its queue pair, in the words of work queues.
    fn state(&self) -> c_uint {
        match self.qp.state() {
            State::Reset => abi::IBV_WQS_RESET,
            State::Error => abi::IBV_WQS_ERR,
            _ => abi::IBV_WQS_RDY,
        }
    }

    fn enter(&self, state: c_uint) -> Result<(), Errno> {
        let nic = &self.opened.nic;
        let to = |state| Modify { state: Some(state), ..Modify::default() };
        match (self.state(), state) {
            (abi::IBV_WQS_RESET, abi::IBV_WQS_RDY) => {
                self.qp.modify(nic, &Modify { port: Some(1), ..to(State::Init) })?;
                self.qp.modify(nic, &to(State::ReadyToReceive))?;
            }
            (_, abi::IBV_WQS_RESET) => {
                self.qp.modify(nic, &to(State::Reset))?;
                // SAFETY: the queue it was made with, which is not destroyed before it.
                let cq = CompletionQueue::of(unsafe { Handle::new(field!(self.base, cq)) })?;
                cq.cq.forget(self.qp.qpn());
            }
            (abi::IBV_WQS_RDY, abi::IBV_WQS_ERR) => self.qp.modify(nic, &to(State::Error))?,
            (now, then) if now == then => {}
            _ => return Err(Errno::invalid("a work queue goes from RESET to RDY, then to ERR, and back to RESET")),
        }
        Ok(())
    }
}

pub(crate) extern "C" fn modify_wq(wq: Handle<'_, ibv_wq>, attributes: In<'_, ibv_wq_attr>) -> c_int {
    status("ibv_modify_wq", || {
        let queue = WorkQueue::by_handle(wq)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let has = |bit: u32| attributes.attr_mask & bit != 0;
        if attributes.attr_mask >= abi::IBV_WQ_ATTR_FLAGS << 1 {
            return Err(Errno::invalid("attr_mask has a bit that is no attribute"));
        }
        if has(abi::IBV_WQ_ATTR_CURR_STATE) && attributes.curr_wq_state != queue.state() {
            return Err(Errno::invalid("the work queue is not in the state that curr_wq_state says"));
        }
        if has(abi::IBV_WQ_ATTR_STATE) && attributes.wq_state > abi::IBV_WQS_ERR {
            return Err(Errno::invalid("no such state"));
        }
        if has(abi::IBV_WQ_ATTR_FLAGS) {
            check_flags(attributes.flags_mask)?;
            check_flags(attributes.flags)?;
        }
        if has(abi::IBV_WQ_ATTR_STATE) {
            queue.enter(attributes.wq_state)?;
            set_field!(queue.base, state, attributes.wq_state);
        }
        if has(abi::IBV_WQ_ATTR_FLAGS) && attributes.flags_mask != 0 {
            queue.qp.strip_tags(attributes.flags & abi::IBV_WQ_FLAGS_CVLAN_STRIPPING != 0);
        }
        Ok(())
    })
}

pub(crate) extern "C" fn destroy_wq(wq: Owned<'_, ibv_wq>) -> c_int {
    status("ibv_destroy_wq", || {
        let queue = WorkQueue::given_back(&wq)?;
        queue.users.require_zero()?;
        queue.opened.nic.destroy_qp(&queue.qp);
        // SAFETY: what it was made with, which is not destroyed before it.
        unsafe {
            Pd::leave(field!(queue.base, pd));
            CompletionQueue::of(Handle::new(field!(queue.base, cq)))?.users.leave();
        }
        drop(WorkQueue::from_c(wq)?);
        Ok(())
    })
}

extern "C" fn post_wq_recv(
    wq: Handle<'_, ibv_wq>,
    list: In<'_, ibv_recv_wr>,
    bad_list: Out<'_, *mut ibv_recv_wr>,
) -> c_int {
    data_path::status("ibv_post_wq_recv", || {
        let queue = WorkQueue::of(wq)?;
        post_receives(list, bad_list, |request, index| {
            let posted = queue.qp.post_more_receives(&queue.opened.nic, slice::from_ref(request), index);
            posted.map_err(|(_, error)| error.into())
        })
    })
}

/// A table of work queues.
#[repr(C)]
pub struct IndirectionTable {
    base: ibv_rwq_ind_table,
    pub(crate) queues: Vec<Arc<Qp>>,
    /// The work queues as C has them, to let go of them.
    held: Vec<*mut ibv_wq>,
    /// Queue pairs that use it.
    pub(crate) users: UseCount,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for IndirectionTable {
    type C = ibv_rwq_ind_table;

    fn has_its_handle(&self) -> bool {
        program_field!(self.base, ind_tbl_handle) == self.base.ind_tbl_num
    }
}

pub(crate) extern "C" fn create_rwq_ind_table(
    context: Handle<'_, ibv_context>,
    attributes: In<'_, ibv_rwq_ind_table_init_attr>,
) -> *mut ibv_rwq_ind_table {
    object("ibv_create_rwq_ind_table", || {
        let context = Context::working(context)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        refuse_if!(attributes.comp_mask != 0, Errno::invalid("comp_mask has bits that are not known"));
        if attributes.log_ind_tbl_size > MAX_LOG_TABLE || attributes.ind_tbl.is_null() {
            return Err(Errno::invalid("ind_tbl is null, or larger than the device takes"));
        }
        // SAFETY: not null, so of as many entries as the size says.
        let held = unsafe { slice::from_raw_parts(attributes.ind_tbl, 1 << attributes.log_ind_tbl_size) }.to_vec();
        // SAFETY: entries of the table, which the manual page wants work queues.
        let found = held.iter().map(|wq| WorkQueue::by_handle(unsafe { Handle::new(*wq) }));
        let found = found.collect::<Result<Vec<&WorkQueue>, Errno>>()?;
        if found.iter().any(|queue| !Arc::ptr_eq(&queue.opened, &context.opened)) {
            return Err(Errno::invalid("a work queue of the table is of another context"));
        }
        found.iter().for_each(|queue| queue.users.join());
        let queues: Vec<Arc<Qp>> = found.iter().map(|queue| Arc::clone(&queue.qp)).collect();
        let number = queues.first().map_or(0, |queue| queue.qpn().value()) as c_int;
        let base =
            ibv_rwq_ind_table { context: context.as_c(), ind_tbl_handle: number, ind_tbl_num: number, comp_mask: 0 };
        Ok(Box::new(IndirectionTable { base, queues, held, users: UseCount::default() }).into_c())
    })
}

pub(crate) extern "C" fn destroy_rwq_ind_table(table: Owned<'_, ibv_rwq_ind_table>) -> c_int {
    status("ibv_destroy_rwq_ind_table", || {
        IndirectionTable::given_back(&table)?.users.require_zero()?;
        let table = IndirectionTable::from_c(table)?;
        for wq in &table.held {
            // SAFETY: the queues it was made with, which are not destroyed before it.
            WorkQueue::of(unsafe { Handle::new(*wq) })?.users.leave();
        }
        Ok(())
    })
}
