//! Queue pairs: making and destroying them.

use crate::boundary::{object, status};
use crate::completion_queue::CompletionQueue;
use crate::context::{Context, Pointer, Shared};
use crate::errno::Errno;
use crate::events::Acknowledgements;
use crate::memory_region::context_of;
use crate::protection_domain::Pd;
use crate::queue_pair_ex::{self, Builder};
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::turns::Turns;
use crate::xrc::XrcDomain;
use abi::{ibv_context, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_xrcd};
use hca::{AsyncEvent, Joins, Qp};
use std::ffi::{c_int, c_uint};
use std::fmt;
use std::mem::{offset_of, zeroed};
use std::ptr::null_mut;
use std::sync::Arc;
use transport::{Capabilities, Kind, Limits, ProtectionDomain, QueuePairConfig};
use wire::{Pkey, Qpn};

/// A queue pair; every one is laid out as an extended one.
#[repr(C)]
pub struct QueuePair {
    pub(crate) base: ibv_qp_ex,
    pub(crate) shared: Arc<Shared>,
    pub(crate) qp: Arc<Qp>,
    pub(crate) events: Acknowledgements,
    pub(crate) init: ibv_qp_init_attr,
    /// The operations its program may build by calls, if it asked for that.
    pub(crate) operations: Option<u64>,
    pub(crate) builder: Turns<Builder>,
    pub(crate) xrcd: *mut ibv_xrcd,
    /// An XRC target lives as long as anybody holds it.
    handles: Arc<()>,
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair").field("qpn", &self.qp.qpn()).finish_non_exhaustive()
    }
}

/// What a program asks for, in either form.
struct Wanted {
    init: ibv_qp_init_attr,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    operations: Option<u64>,
}

impl QueuePair {
    /// The queue pair behind a pointer from C.
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> Result<&'a QueuePair, Errno> {
        qp.cast::<QueuePair>().as_ref().ok_or_else(Errno::null)
    }

    /// Where a program finds the public part of its queue pair.
    pub(crate) fn public(&self) -> &ibv_qp {
        &self.base.qp_base
    }

    unsafe fn create(context: &Context, wanted: &Wanted) -> Result<*mut ibv_qp, Errno> {
        let init = &wanted.init;
        let kind = kind(init.qp_type)?;
        let sends = kind != Kind::XrcTarget;
        let receives = !matches!(kind, Kind::XrcInitiator | Kind::XrcTarget);
        // An XRC target acts in the domain of the queue each message names.
        let domain = if sends { Pd::of(wanted.pd)?.domain } else { ProtectionDomain(0) };
        let xrc_domain = if sends { None } else { Some(XrcDomain::of(wanted.xrcd)?.number) };
        let send_cq = sends.then(|| CompletionQueue::of(init.send_cq)).transpose()?;
        let receive_cq = receives.then(|| CompletionQueue::of(init.recv_cq)).transpose()?;
        let srq = match receives && !init.srq.is_null() {
            true => Some(SharedReceiveQueue::of(init.srq)?),
            false => None,
        };
        if srq.is_some_and(|srq| srq.queue.xrc().is_some()) {
            return Err(Errno::invalid("an XRC shared receive queue takes messages of XRC targets only"));
        }
        let port_mtu = context.shared.device().port().mtu();
        let mut capabilities = capabilities(&init.cap, sends, receives && srq.is_none());
        if wanted.operations.is_some_and(|operations| operations & u64::from(abi::IBV_QP_EX_WITH_ATOMIC_WRITE) != 0) {
            // The call that builds an atomic write brings its eight bytes along.
            capabilities.max_inline_data = capabilities.max_inline_data.max(8);
        }
        let config = QueuePairConfig {
            qpn: Qpn::SMI,
            kind,
            pd: domain,
            capabilities,
            srq: srq.map(|srq| srq.queue.number()),
            signal_all: init.sq_sig_all != 0,
            limits: Limits { max_mtu: port_mtu, gids: hca::device::GIDS as u16, ..Limits::default() },
            pkey: Pkey::DEFAULT,
            port_mtu,
        };
        let joins = Joins {
            context: Arc::clone(&context.shared.hca),
            send_cq: send_cq.map(|cq| Arc::clone(&cq.cq)),
            receive_cq: receive_cq.map(|cq| Arc::clone(&cq.cq)),
            xrc_domain,
        };
        let qp = context.shared.nic.create_qp(config, joins)?;
        if sends {
            Pd::of(wanted.pd)?.join();
        } else {
            let domain = XrcDomain::of(wanted.xrcd)?;
            domain.users.join();
        }
        for cq in [send_cq, receive_cq].into_iter().flatten() {
            cq.users.join();
        }
        if let Some(srq) = srq {
            srq.users.join();
        }
        let handles = Arc::new(());
        if !sends {
            XrcDomain::of(wanted.xrcd)?.enter(&qp, &handles);
        }
        Ok(QueuePair::hand_out(context, qp, wanted, handles, receives))
    }

    unsafe fn hand_out(
        context: &Context,
        qp: Arc<Qp>,
        wanted: &Wanted,
        handles: Arc<()>,
        receives: bool,
    ) -> *mut ibv_qp {
        let mut init = wanted.init;
        init.cap = capabilities_to_c(&qp.attributes().capabilities);
        // SAFETY: all zeros are null pointers and no functions.
        let mut base: ibv_qp_ex = zeroed();
        let public = &mut base.qp_base;
        public.context = context.as_c();
        public.qp_context = init.qp_context;
        public.pd = wanted.pd;
        public.send_cq = init.send_cq;
        public.recv_cq = if receives { init.recv_cq } else { null_mut() };
        public.srq = if receives { init.srq } else { null_mut() };
        public.handle = qp.qpn().value();
        public.qp_num = qp.qpn().value();
        public.state = qp.state() as c_uint;
        public.qp_type = init.qp_type;
        public.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        public.cond = libc::PTHREAD_COND_INITIALIZER;
        if wanted.operations.is_some() {
            queue_pair_ex::fill(&mut base);
        }
        let number = qp.qpn().value();
        let pair = Box::into_raw(Box::new(QueuePair {
            base,
            shared: Arc::clone(&context.shared),
            qp,
            events: Acknowledgements::default(),
            init,
            operations: wanted.operations,
            builder: Turns::new(Builder::default()),
            xrcd: wanted.xrcd,
            handles,
        }));
        (*pair).shared.live().qps.insert(number, Pointer(pair));
        pair.cast()
    }

    /// Another handle of an XRC target.
    pub(crate) unsafe fn open(
        context: &Context,
        xrcd: *mut ibv_xrcd,
        number: u32,
        qp_context: *mut std::ffi::c_void,
    ) -> Result<*mut ibv_qp, Errno> {
        let domain = XrcDomain::of(xrcd)?;
        let (qp, handles) = domain.find(number).ok_or(Errno::INVALID)?;
        domain.users.join();
        let init = ibv_qp_init_attr { qp_context, qp_type: abi::IBV_QPT_XRC_RECV, ..zeroed() };
        let wanted = Wanted { init, pd: null_mut(), xrcd, operations: None };
        Ok(QueuePair::hand_out(context, qp, &wanted, handles, false))
    }
}

pub(crate) fn kind(qp_type: c_uint) -> Result<Kind, Errno> {
    Ok(match qp_type {
        abi::IBV_QPT_RC => Kind::ReliableConnected,
        abi::IBV_QPT_UC => Kind::UnreliableConnected,
        abi::IBV_QPT_UD => Kind::UnreliableDatagram,
        abi::IBV_QPT_XRC_SEND => Kind::XrcInitiator,
        abi::IBV_QPT_XRC_RECV => Kind::XrcTarget,
        abi::IBV_QPT_RAW_PACKET => return Err(Errno::unsupported("raw Ethernet is not offered")),
        abi::IBV_QPT_DRIVER => return Err(Errno::unsupported("there are no queue pairs of the driver's own kind")),
        _ => return Err(Errno::invalid("no such type of queue pair")),
    })
}

/// What is asked for, and never less than one of what there is.
fn capabilities(cap: &ibv_qp_cap, sends: bool, receives: bool) -> Capabilities {
    let at_least_one = |has: bool, value: u32| if has { value.max(1) } else { 0 };
    Capabilities {
        max_send_wr: at_least_one(sends, cap.max_send_wr),
        max_recv_wr: at_least_one(receives, cap.max_recv_wr),
        max_send_sge: at_least_one(sends, cap.max_send_sge),
        max_recv_sge: at_least_one(receives, cap.max_recv_sge),
        max_inline_data: if sends { cap.max_inline_data } else { 0 },
    }
}

pub(crate) fn capabilities_to_c(capabilities: &Capabilities) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: capabilities.max_send_wr,
        max_recv_wr: capabilities.max_recv_wr,
        max_send_sge: capabilities.max_send_sge,
        max_recv_sge: capabilities.max_recv_sge,
        max_inline_data: capabilities.max_inline_data,
    }
}

/// A new queue pair, in RESET.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    object("ibv_create_qp", || {
        let context = context_of(pd)?;
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        let wanted = Wanted { init: *attributes, pd, xrcd: null_mut(), operations: None };
        let qp = QueuePair::create(context, &wanted)?;
        attributes.cap = QueuePair::of(qp)?.init.cap;
        Ok(qp)
    })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    object("ibv_create_qp_ex", || {
        let context = Context::of(context)?;
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        let has = |bit: u32| attributes.comp_mask & bit != 0;
        let known = (abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS << 1) - 1;
        if attributes.comp_mask & !known != 0 {
            return Err(Errno::INVALID);
        }
        if has(abi::IBV_QP_INIT_ATTR_MAX_TSO_HEADER)
            || has(abi::IBV_QP_INIT_ATTR_IND_TABLE)
            || has(abi::IBV_QP_INIT_ATTR_RX_HASH)
            || has(abi::IBV_QP_INIT_ATTR_CREATE_FLAGS)
                && attributes.create_flags & !abi::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0
        {
            return Err(Errno::UNSUPPORTED);
        }
        let operations = has(abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attributes.send_ops_flags);
        if let Some(operations) = operations {
            queue_pair_ex::check(kind(attributes.qp_type)?, operations)?;
        }
        let part = std::ptr::from_ref(attributes).cast::<ibv_qp_init_attr>();
        // The extended structure begins with the plain one.
        const { assert!(offset_of!(ibv_qp_init_attr_ex, comp_mask) == offset_of!(ibv_qp_init_attr, sq_sig_all) + 4) };
        let wanted = Wanted {
            init: part.read(),
            pd: if has(abi::IBV_QP_INIT_ATTR_PD) { attributes.pd } else { null_mut() },
            xrcd: if has(abi::IBV_QP_INIT_ATTR_XRCD) { attributes.xrcd } else { null_mut() },
            operations,
        };
        let qp = QueuePair::create(context, &wanted)?;
        let pair = QueuePair::of(qp)?;
        if has(abi::IBV_QP_INIT_ATTR_CREATE_FLAGS) && attributes.create_flags != 0 {
            pair.qp.ignore_own_multicast();
        }
        attributes.cap = pair.init.cap;
        Ok(qp)
    })
}

/// Destroys a queue pair, once its events are acknowledged. Completions that wait stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    status("ibv_destroy_qp", || {
        let pair = QueuePair::of(qp)?;
        if pair.qp.is_attached(&pair.shared.nic) {
            return Err(Errno::busy("the queue pair is attached to a multicast group"));
        }
        let qpn = pair.qp.qpn();
        {
            let mut live = pair.shared.live();
            if live.qps.get(&qpn.value()).is_some_and(|found| found.0.cast() == qp) {
                live.qps.remove(&qpn.value());
            }
        }
        let last = Arc::strong_count(&pair.handles) == 1;
        if last {
            pair.shared.nic.destroy_qp(&pair.qp);
            pair.shared.hca.events().purge(|event| matches!(event, AsyncEvent::Qp(other, _) if *other == qpn));
        }
        pair.events.wait();
        let public = pair.public();
        if pair.qp.kind() != Kind::XrcTarget {
            Pd::leave(public.pd);
        }
        for cq in [public.send_cq, public.recv_cq] {
            if let Ok(cq) = CompletionQueue::of(cq) {
                cq.users.leave();
            }
        }
        if let Ok(srq) = SharedReceiveQueue::of(public.srq) {
            srq.users.leave();
        }
        if let Ok(xrcd) = XrcDomain::of(pair.xrcd) {
            xrcd.users.leave();
        }
        drop(Box::from_raw(qp.cast::<QueuePair>()));
        Ok(())
    })
}
