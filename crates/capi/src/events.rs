//! Asynchronous events, and the counting that keeps an object alive until its program has acknowledged every event it was handed.

use crate::boundary::{number, quietly};
use crate::context::{Context, lock};
use crate::errno::Errno;
use abi::{ibv_async_event, ibv_async_event_element, ibv_context};
use hca::AsyncEvent;
use std::ffi::c_int;
use std::sync::{Condvar, Mutex};

/// Events handed out and acknowledged, of one object.
#[derive(Debug, Default)]
pub struct Acknowledgements {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    handed_out: u32,
    acknowledged: u32,
}

impl Acknowledgements {
    /// An event is being handed out.
    pub fn hand_out(&self) {
        let mut counts = lock(&self.counts);
        counts.handed_out = counts.handed_out.wrapping_add(1);
    }

    /// The program is done with `count` of them. Answers how many it has acknowledged in all.
    pub fn acknowledge(&self, count: u32) -> u32 {
        let mut counts = lock(&self.counts);
        counts.acknowledged = counts.acknowledged.wrapping_add(count);
        self.changed.notify_all();
        counts.acknowledged
    }

    /// Waits until every event that was handed out so far is acknowledged.
    pub fn wait(&self) {
        let mut counts = lock(&self.counts);
        let until = counts.handed_out;
        while (until.wrapping_sub(counts.acknowledged) as i32) > 0 {
            counts = self.changed.wait(counts).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

/// The number of `ibv_event_type` for what happened to a queue pair.
fn of_queue_pair(event: transport::AsyncEvent) -> u32 {
    use transport::AsyncEvent as E;
    match event {
        E::CommunicationEstablished => abi::IBV_EVENT_COMM_EST,
        E::SendQueueDrained => abi::IBV_EVENT_SQ_DRAINED,
        E::LastWqeReached => abi::IBV_EVENT_QP_LAST_WQE_REACHED,
        E::QpFatal => abi::IBV_EVENT_QP_FATAL,
        E::QpRequestError => abi::IBV_EVENT_QP_REQ_ERR,
        E::QpAccessError => abi::IBV_EVENT_QP_ACCESS_ERR,
    }
}

/// An event as C sees it, counted; `None` if its object is gone.
unsafe fn translate(context: &Context, event: AsyncEvent) -> Option<ibv_async_event> {
    let live = context.shared.live();
    let of_port = |event_type| ibv_async_event { element: ibv_async_event_element { port_num: 1 }, event_type };
    Some(match event {
        AsyncEvent::Qp(qpn, event) => {
            let qp = live.qps.get(&qpn.value())?.0;
            (*qp).events.hand_out();
            ibv_async_event { element: ibv_async_event_element { qp: qp.cast() }, event_type: of_queue_pair(event) }
        }
        AsyncEvent::CqError(id) => {
            let cq = live.cqs.get(&id)?.0;
            (*cq).async_events.hand_out();
            let element = ibv_async_event_element { cq: cq.cast() };
            ibv_async_event { element, event_type: abi::IBV_EVENT_CQ_ERR }
        }
        AsyncEvent::SrqLimit(number) => {
            let srq = live.srqs.get(&number.value())?.0;
            (*srq).events.hand_out();
            let element = ibv_async_event_element { srq: srq.cast() };
            ibv_async_event { element, event_type: abi::IBV_EVENT_SRQ_LIMIT_REACHED }
        }
        AsyncEvent::PortActive => of_port(abi::IBV_EVENT_PORT_ACTIVE),
        AsyncEvent::PortError => of_port(abi::IBV_EVENT_PORT_ERR),
        AsyncEvent::GidChange => of_port(abi::IBV_EVENT_GID_CHANGE),
        AsyncEvent::DeviceFatal => of_port(abi::IBV_EVENT_DEVICE_FATAL),
        // A kind of event that C has no number for.
        _ => return None,
    })
}

/// Waits for the next event, unless the descriptor does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    number("ibv_get_async_event", || {
        let context = Context::of(context)?;
        if event.is_null() {
            return Err(Errno::INVALID);
        }
        loop {
            let happened = context.shared.hca.events().take()?;
            if let Some(translated) = translate(context, happened) {
                event.write(translated);
                return Ok(0);
            }
        }
    })
}

/// Acknowledges an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    quietly("ibv_ack_async_event", || {
        let event = event.as_ref().ok_or_else(Errno::null)?;
        match event.event_type {
            abi::IBV_EVENT_CQ_ERR => {
                let cq = event.element.cq;
                let queue = cq.cast::<crate::completion_queue::CompletionQueue>();
                (*cq).async_events_completed = (*queue).async_events.acknowledge(1);
            }
            abi::IBV_EVENT_QP_FATAL
            | abi::IBV_EVENT_QP_REQ_ERR
            | abi::IBV_EVENT_QP_ACCESS_ERR
            | abi::IBV_EVENT_COMM_EST
            | abi::IBV_EVENT_SQ_DRAINED
            | abi::IBV_EVENT_PATH_MIG
            | abi::IBV_EVENT_PATH_MIG_ERR
            | abi::IBV_EVENT_QP_LAST_WQE_REACHED => {
                let qp = event.element.qp;
                let pair = qp.cast::<crate::queue_pair::QueuePair>();
                (*qp).events_completed = (*pair).events.acknowledge(1);
            }
            abi::IBV_EVENT_SRQ_ERR | abi::IBV_EVENT_SRQ_LIMIT_REACHED => {
                let srq = event.element.srq;
                let queue = srq.cast::<crate::shared_receive_queue::SharedReceiveQueue>();
                (*srq).events_completed = (*queue).events.acknowledge(1);
            }
            // Events of the device and of its port belong to no object.
            _ => {}
        }
        Ok(())
    });
}
