//! Queue pairs, as C has them.

use crate::acknowledgements::Acknowledgements;
use crate::completion_counter::Attached;
use crate::completion_queue::CompletionQueue;
use crate::context::OpenDevice;
use crate::cross_call_lock::CrossCallLock;
use crate::errno::Errno;
use crate::object::{Object, Public, field};
use crate::work_builder::Builder;
use abi::{Handle, ibv_context, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_rwq_ind_table, ibv_xrcd};
use hca::Qp;
use std::ffi::c_uint;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use transport::{Capabilities, Kind};

/// A queue pair; every one is laid out as an extended one.
#[repr(C)]
pub struct QueuePair {
    pub(crate) base: Public<ibv_qp_ex>,
    pub(crate) opened: Arc<OpenDevice>,
    pub(crate) qp: Arc<Qp>,
    pub(crate) events: Acknowledgements,
    pub(crate) init: ibv_qp_init_attr,
    /// The operations its program may build by calls, if it asked for that.
    pub(crate) operations: Option<u64>,
    pub(crate) builder: CrossCallLock<Builder>,
    pub(crate) xrcd: *mut ibv_xrcd,
    /// The table of work queues of one that spreads what it receives.
    pub(crate) table: *mut ibv_rwq_ind_table,
    /// Options of enhanced connection establishment: at first what it can do, then what was agreed on.
    pub(crate) ece: AtomicU32,
    pub(crate) counters: Mutex<Attached>,
    /// An XRC target lives as long as a queue pair of the program holds it.
    pub(crate) handles: Arc<()>,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for QueuePair {
    type C = ibv_qp;

    fn device_has_failed(&self) -> bool {
        self.opened.device().has_failed()
    }

    fn has_its_handle(&self) -> bool {
        field!(self.base, qp_base.handle) == self.qp.qpn().value()
    }
}

impl QueuePair {
    /// The pointer that C has to its context.
    pub(crate) fn context_in_c(&self) -> *mut ibv_context {
        field!(self.base, qp_base.context)
    }

    /// The completion queues of its sends and of its receives.
    pub(crate) fn completion_queues(&self) -> [Option<&CompletionQueue>; 2] {
        // SAFETY: null, or the queues it was made with, which are not destroyed while queue pairs complete into them.
        let (send, receive) = unsafe {
            (Handle::new(field!(self.base, qp_base.send_cq)), Handle::new(field!(self.base, qp_base.recv_cq)))
        };
        [CompletionQueue::of(send).ok(), CompletionQueue::of(receive).ok()]
    }
}

pub(crate) fn kind(qp_type: c_uint) -> Result<Kind, Errno> {
    Ok(match qp_type {
        abi::IBV_QPT_RC => Kind::ReliableConnected,
        abi::IBV_QPT_UC => Kind::UnreliableConnected,
        abi::IBV_QPT_UD => Kind::UnreliableDatagram,
        abi::IBV_QPT_XRC_SEND => Kind::XrcInitiator,
        abi::IBV_QPT_XRC_RECV => Kind::XrcTarget,
        abi::IBV_QPT_RAW_PACKET => Kind::RawPacket,
        abi::IBV_QPT_DRIVER => return Err(Errno::unsupported("there are no queue pairs of the driver's own kind")),
        _ => return Err(Errno::invalid("no such type of queue pair")),
    })
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
