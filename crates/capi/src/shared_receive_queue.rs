//! Shared receive queues, plain and XRC.

use crate::boundary::{object, status};
use crate::completion_queue::CompletionQueue;
use crate::context::{Context, Pointer, Shared};
use crate::errno::Errno;
use crate::events::Acknowledgements;
use crate::memory_region::context_of;
use crate::protection_domain::{Pd, Users};
use crate::xrc::XrcDomain;
use abi::{ibv_context, ibv_cq, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd};
use hca::{AsyncEvent, SharedQueue, Xrc};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;
use transport::SrqModify;

/// A shared receive queue.
#[repr(C)]
pub struct SharedReceiveQueue {
    base: ibv_srq,
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Arc<SharedQueue>,
    pub(crate) events: Acknowledgements,
    pub(crate) users: Users,
    xrcd: *mut ibv_xrcd,
    cq: *mut ibv_cq,
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue").field("number", &self.queue.number()).finish_non_exhaustive()
    }
}

/// What makes it an XRC one.
struct XrcPart {
    xrcd: *mut ibv_xrcd,
    cq: *mut ibv_cq,
}

impl SharedReceiveQueue {
    /// The queue behind a pointer from C.
    pub(crate) unsafe fn of<'a>(srq: *mut ibv_srq) -> Result<&'a SharedReceiveQueue, Errno> {
        srq.cast::<SharedReceiveQueue>().as_ref().ok_or_else(Errno::null)
    }

    unsafe fn make(
        context: &Context,
        pd: *mut ibv_pd,
        srq_context: *mut c_void,
        attributes: &mut ibv_srq_attr,
        part: Option<&XrcPart>,
    ) -> Result<*mut ibv_srq, Errno> {
        let domain = Pd::of(pd)?;
        let shared = Arc::clone(&context.shared);
        if attributes.max_wr == 0 {
            return Err(Errno::invalid("max_wr is 0"));
        }
        let mut xrc = None;
        if let Some(part) = part {
            let cq = Arc::clone(&CompletionQueue::of(part.cq)?.cq);
            xrc = Some(Xrc { domain: XrcDomain::of(part.xrcd)?.number, cq });
        }
        let (max_wr, max_sge) = (attributes.max_wr, attributes.max_sge.max(1));
        let queue = shared.nic.create_srq(&shared.hca, domain.domain, max_wr, max_sge, xrc)?;
        attributes.max_sge = max_sge;
        domain.join();
        if let Some(part) = part {
            XrcDomain::of(part.xrcd)?.users.join();
            CompletionQueue::of(part.cq)?.users.join();
        }
        // SAFETY: all zeros are null pointers.
        let mut base: ibv_srq = zeroed();
        base.context = context.as_c();
        base.srq_context = srq_context;
        base.pd = pd;
        base.handle = queue.number().value();
        base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        base.cond = libc::PTHREAD_COND_INITIALIZER;
        let number = queue.number().value();
        let srq = Box::into_raw(Box::new(SharedReceiveQueue {
            base,
            shared,
            queue,
            events: Acknowledgements::default(),
            users: Users::default(),
            xrcd: part.map_or(null_mut(), |part| part.xrcd),
            cq: part.map_or(null_mut(), |part| part.cq),
        }));
        (*srq).shared.live().srqs.insert(number, Pointer(srq));
        Ok(srq.cast())
    }
}

/// A new shared receive queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, attributes: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    object("ibv_create_srq", || {
        let context = context_of(pd)?;
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        SharedReceiveQueue::make(context, pd, attributes.srq_context, &mut attributes.attr, None)
    })
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    object("ibv_create_srq_ex", || {
        let context = Context::of(context)?;
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        let known = (abi::IBV_SRQ_INIT_ATTR_TM << 1) - 1;
        if attributes.comp_mask & !known != 0 || attributes.comp_mask & abi::IBV_SRQ_INIT_ATTR_PD == 0 {
            return Err(Errno::INVALID);
        }
        let kind = match attributes.comp_mask & abi::IBV_SRQ_INIT_ATTR_TYPE {
            0 => abi::IBV_SRQT_BASIC,
            _ => attributes.srq_type,
        };
        let part = match kind {
            abi::IBV_SRQT_BASIC => None,
            abi::IBV_SRQT_XRC => {
                let needed = abi::IBV_SRQ_INIT_ATTR_XRCD | abi::IBV_SRQ_INIT_ATTR_CQ;
                if attributes.comp_mask & needed != needed {
                    return Err(Errno::INVALID);
                }
                Some(XrcPart { xrcd: attributes.xrcd, cq: attributes.cq })
            }
            abi::IBV_SRQT_TM => return Err(Errno::unsupported("tag matching is not offered")),
            _ => return Err(Errno::invalid("no such type of shared receive queue")),
        };
        SharedReceiveQueue::make(context, attributes.pd, attributes.srq_context, &mut attributes.attr, part.as_ref())
    })
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    status("ibv_get_srq_num", || {
        let queue = SharedReceiveQueue::of(srq)?;
        if queue.queue.xrc().is_none() {
            return Err(Errno::INVALID);
        }
        *number.as_mut().ok_or_else(Errno::null)? = queue.queue.number().value();
        Ok(())
    })
}

/// Changes its size or its limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attributes: *mut ibv_srq_attr, mask: c_int) -> c_int {
    status("ibv_modify_srq", || {
        let queue = SharedReceiveQueue::of(srq)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let mask = mask as u32;
        if mask & !(abi::IBV_SRQ_MAX_WR | abi::IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::INVALID);
        }
        let modify = SrqModify {
            max_wr: (mask & abi::IBV_SRQ_MAX_WR != 0).then_some(attributes.max_wr),
            limit: (mask & abi::IBV_SRQ_LIMIT != 0).then_some(attributes.srq_limit),
        };
        if modify.max_wr.is_some_and(|max_wr| max_wr == 0 || max_wr > hca::limits::MAX_WR) {
            return Err(Errno::INVALID);
        }
        Ok(queue.queue.modify(&modify)?)
    })
}

/// What it is now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, out: *mut ibv_srq_attr) -> c_int {
    status("ibv_query_srq", || {
        let now = SharedReceiveQueue::of(srq)?.queue.query();
        *out.as_mut().ok_or_else(Errno::null)? =
            ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit };
        Ok(())
    })
}

/// Destroys a queue that no queue pair receives from, once its events are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    status("ibv_destroy_srq", || {
        let queue = SharedReceiveQueue::of(srq)?;
        queue.users.none()?;
        let number = queue.queue.number();
        queue.shared.nic.destroy_srq(&queue.queue);
        queue.shared.live().srqs.remove(&number.value());
        queue.shared.hca.events().purge(|event| *event == AsyncEvent::SrqLimit(number));
        queue.events.wait();
        Pd::leave(queue.base.pd);
        if !queue.xrcd.is_null() {
            XrcDomain::of(queue.xrcd)?.users.leave();
            CompletionQueue::of(queue.cq)?.users.leave();
        }
        drop(Box::from_raw(srq.cast::<SharedReceiveQueue>()));
        Ok(())
    })
}
