//! Shared receive queues, plain, XRC and tag matching.

use crate::acknowledgements::Acknowledgements;
use crate::boundary::{object, status};
use crate::completion_queue::CompletionQueue;
use crate::context::{Context, OpenDevice};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, Public, field};
use crate::protection_domain::Pd;
use crate::use_count::UseCount;
use crate::xrc::XrcDomain;
use abi::{
    Handle, In, InOut, Out, Owned, ibv_context, ibv_cq, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_tm_cap, ibv_xrcd,
};
use hca::{AsyncEvent, Device, SharedQueue, SharedQueueKind, TagMatching, Xrc};
use profiles::{Feature, Grant, Limit};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use transport::SrqModify;

/// A shared receive queue.
#[repr(C)]
pub struct SharedReceiveQueue {
    pub(crate) base: Public<ibv_srq>,
    pub(crate) opened: Arc<OpenDevice>,
    pub(crate) queue: Arc<SharedQueue>,
    pub(crate) events: Acknowledgements,
    pub(crate) users: UseCount,
    xrcd: *mut ibv_xrcd,
    cq: *mut ibv_cq,
}

/// Hardware rounds up to one less than a power of two, and programs live off what it rounds up to.
fn rounded_up(receives: u32) -> u32 {
    match receives {
        1..hca::limits::MAX_WR => ((receives + 1).next_power_of_two() - 1).min(hca::limits::MAX_WR),
        // Nonsense stays what it is, and is refused.
        _ => receives,
    }
}

/// How many receives a device grants.
fn granted(device: &Device, receives: u32) -> u32 {
    device.grant(Grant::SrqWr, receives, Limit::MaxSrqWr, rounded_up(receives)).min(receives.max(hca::limits::MAX_WR))
}

/// What makes it more than a plain one.
enum QueueExtra<'a> {
    Xrc { xrcd: Handle<'a, ibv_xrcd>, cq: Handle<'a, ibv_cq> },
    Tags { max_tags: u32, cq: Handle<'a, ibv_cq> },
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for SharedReceiveQueue {
    type C = ibv_srq;

    fn device_has_failed(&self) -> bool {
        self.opened.device().has_failed()
    }

    fn has_its_handle(&self) -> bool {
        field!(self.base, handle) == self.queue.number().value()
    }
}

impl SharedReceiveQueue {
    fn make(
        context: &Context,
        pd: Handle<'_, ibv_pd>,
        srq_context: *mut c_void,
        attributes: &mut ibv_srq_attr,
        part: Option<&QueueExtra<'_>>,
    ) -> Result<*mut ibv_srq, Errno> {
        let domain = Pd::by_handle(pd)?;
        let opened = Arc::clone(&context.opened);
        refuse_if!(attributes.max_wr == 0, Errno::invalid("max_wr is 0"));
        opened.device().at_most(Limit::MaxSrqWr, attributes.max_wr.into())?;
        let (max_wr, max_sge) = (granted(opened.device(), attributes.max_wr), attributes.max_sge.max(1));
        let (mut xrcd, mut completion_queue) = (Handle::null(), Handle::null());
        let kind = match part {
            None => SharedQueueKind::Basic,
            Some(QueueExtra::Xrc { xrcd: domain, cq }) => {
                (xrcd, completion_queue) = (*domain, *cq);
                let cq = Arc::clone(&CompletionQueue::of(*cq)?.cq);
                SharedQueueKind::Xrc(Xrc { domain: XrcDomain::of(xrcd)?.number, cq })
            }
            Some(QueueExtra::Tags { max_tags, cq }) => {
                completion_queue = *cq;
                let cq = Arc::clone(&CompletionQueue::of(*cq)?.cq);
                SharedQueueKind::Tags(TagMatching { max_tags: *max_tags, max_sge: hca::limits::MAX_SGE, cq })
            }
        };
        let queue = opened.nic.create_srq(&opened.hca, domain.domain, max_wr, max_sge, kind)?;
        (attributes.max_wr, attributes.max_sge) = (max_wr, max_sge);
        domain.join();
        if let Ok(xrcd) = XrcDomain::of(xrcd) {
            xrcd.users.join();
        }
        if let Ok(cq) = CompletionQueue::of(completion_queue) {
            cq.users.join();
        }
        let mut base = ibv_srq::zeroed();
        base.context = context.as_c();
        base.srq_context = srq_context;
        base.pd = pd.as_ptr();
        base.handle = queue.number().value();
        base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        base.cond = libc::PTHREAD_COND_INITIALIZER;
        let number = queue.number().value();
        let srq = Box::new(SharedReceiveQueue {
            base: Public::new(base),
            opened: Arc::clone(&opened),
            queue,
            events: Acknowledgements::default(),
            users: UseCount::default(),
            xrcd: xrcd.as_ptr(),
            cq: completion_queue.as_ptr(),
        })
        .into_c();
        // SAFETY: `ibv_destroy_srq` removes it.
        unsafe { opened.objects().srqs.insert(number, srq) };
        Ok(srq)
    }
}

/// A new shared receive queue.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_srq(pd: Handle<'_, ibv_pd>, attributes: InOut<'_, ibv_srq_init_attr>) -> *mut ibv_srq {
    object("ibv_create_srq", || {
        let context = Pd::of(pd)?.context()?;
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        SharedReceiveQueue::make(context, pd, attributes.srq_context, &mut attributes.attr, None)
    })
}

pub(crate) extern "C" fn create_srq_ex(
    context: Handle<'_, ibv_context>,
    attributes: InOut<'_, ibv_srq_init_attr_ex>,
) -> *mut ibv_srq {
    object("ibv_create_srq_ex", || {
        let context = Context::working(context)?;
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        let known = (abi::IBV_SRQ_INIT_ATTR_TM << 1) - 1;
        if attributes.comp_mask & !known != 0 || attributes.comp_mask & abi::IBV_SRQ_INIT_ATTR_PD == 0 {
            return Err(Errno::invalid("comp_mask lacks IBV_SRQ_INIT_ATTR_PD, or has bits that are not known"));
        }
        let kind = match attributes.comp_mask & abi::IBV_SRQ_INIT_ATTR_TYPE {
            0 => abi::IBV_SRQT_BASIC,
            _ => attributes.srq_type,
        };
        let part = match kind {
            abi::IBV_SRQT_BASIC => None,
            abi::IBV_SRQT_XRC => {
                let needed = abi::IBV_SRQ_INIT_ATTR_XRCD | abi::IBV_SRQ_INIT_ATTR_CQ;
                refuse_if!(attributes.comp_mask & needed != needed, Errno::INVALID);
                // SAFETY: fields of the attributes, which the manual page wants null or objects of these types.
                Some(unsafe { QueueExtra::Xrc { xrcd: Handle::new(attributes.xrcd), cq: Handle::new(attributes.cq) } })
            }
            abi::IBV_SRQT_TM => {
                let needed = abi::IBV_SRQ_INIT_ATTR_CQ | abi::IBV_SRQ_INIT_ATTR_TM;
                let ibv_tm_cap { max_num_tags: max_tags, max_ops } = attributes.tm_cap;
                if attributes.comp_mask & needed != needed || max_tags == 0 {
                    return Err(Errno::invalid("tag matching needs a completion queue and a number of tags"));
                }
                refuse_if!(max_ops > hca::limits::MAX_WR, Errno::invalid("max_ops is more than the device takes"));
                // SAFETY: as above.
                Some(QueueExtra::Tags { max_tags, cq: unsafe { Handle::new(attributes.cq) } })
            }
            _ => return Err(Errno::invalid("no such type of shared receive queue")),
        };
        // SAFETY: as above.
        let pd = unsafe { Handle::new(attributes.pd) };
        SharedReceiveQueue::make(context, pd, attributes.srq_context, &mut attributes.attr, part.as_ref())
    })
}

pub(crate) extern "C" fn get_srq_num(srq: Handle<'_, ibv_srq>, mut number: Out<'_, u32>) -> c_int {
    status("ibv_get_srq_num", || {
        let queue = SharedReceiveQueue::of(srq)?;
        refuse_if!(queue.queue.xrc().is_none(), Errno::INVALID);
        number.write(queue.queue.number().value()).ok_or_else(Errno::null)?;
        Ok(())
    })
}

/// Changes its size or its limit.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_modify_srq(srq: Handle<'_, ibv_srq>, attributes: In<'_, ibv_srq_attr>, mask: c_int) -> c_int {
    status("ibv_modify_srq", || {
        let queue = SharedReceiveQueue::by_handle(srq)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let mask = mask as u32;
        refuse_if!(mask & !(abi::IBV_SRQ_MAX_WR | abi::IBV_SRQ_LIMIT) != 0, Errno::INVALID);
        let device = queue.opened.device();
        device.offers(Feature::ModifySrq)?;
        if mask & abi::IBV_SRQ_MAX_WR != 0 {
            device.offers(Feature::ResizeSrq)?;
            device.at_most(Limit::MaxSrqWr, attributes.max_wr.into())?;
        }
        let modify = SrqModify {
            max_wr: (mask & abi::IBV_SRQ_MAX_WR != 0).then(|| granted(device, attributes.max_wr)),
            limit: (mask & abi::IBV_SRQ_LIMIT != 0).then_some(attributes.srq_limit),
        };
        refuse_if!(modify.max_wr.is_some_and(|max_wr| max_wr == 0 || max_wr > hca::limits::MAX_WR), Errno::INVALID);
        Ok(queue.opened.nic.modify_srq(&queue.queue, &modify)?)
    })
}

/// What it is now.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_srq(srq: Handle<'_, ibv_srq>, mut out: Out<'_, ibv_srq_attr>) -> c_int {
    status("ibv_query_srq", || {
        let now = SharedReceiveQueue::by_handle(srq)?.queue.query();
        out.write(ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit })
            .ok_or_else(Errno::null)?;
        Ok(())
    })
}

/// Destroys a queue that no queue pair receives from, once its events are acknowledged.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_srq(srq: Owned<'_, ibv_srq>) -> c_int {
    status("ibv_destroy_srq", || {
        let queue = SharedReceiveQueue::given_back(&srq)?;
        queue.users.require_zero()?;
        let number = queue.queue.number();
        queue.opened.nic.destroy_srq(&queue.queue);
        queue.opened.objects().srqs.remove(number.value());
        queue.opened.hca.events().purge(
            |event| matches!(event, AsyncEvent::SrqLimit(about) | AsyncEvent::SrqError(about) if *about == number),
        );
        queue.events.wait(|missing| queue.opened.tell_wait("srq", number.value().into(), missing));
        // SAFETY: the domain of the queue.
        unsafe { Pd::leave(field!(queue.base, pd)) };
        // SAFETY: null, or what it was made with, which is not destroyed while the queue uses it.
        let (xrcd, cq) = unsafe { (Handle::new(queue.xrcd), Handle::new(queue.cq)) };
        if let Ok(xrcd) = XrcDomain::of(xrcd) {
            xrcd.users.leave();
        }
        if let Ok(cq) = CompletionQueue::of(cq) {
            cq.users.leave();
        }
        drop(SharedReceiveQueue::from_c(srq)?);
        Ok(())
    })
}
