//! Asynchronous events: handing them to the program, and taking its acknowledgements.

use crate::boundary::unreported;
use crate::cancellation::{Turn, Waits, call_that_waits};
use crate::completion_queue::CompletionQueue;
use crate::context::{Context, OpenDevice};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, set_field};
use crate::queue_pair::QueuePair;
use crate::shared_receive_queue::SharedReceiveQueue;
use abi::{Handle, In, Out, ibv_async_event, ibv_async_event_element, ibv_context};
use hca::{AsyncEvent, Sleep};
use std::ffi::c_int;
use trace::Call;

/// The number of `ibv_event_type` for what happened to a queue pair.
fn qp_event_type(event: transport::AsyncEvent) -> u32 {
    use transport::AsyncEvent as E;
    match event {
        E::CommunicationEstablished => abi::IBV_EVENT_COMM_EST,
        E::SendQueueDrained => abi::IBV_EVENT_SQ_DRAINED,
        E::LastWqeReached => abi::IBV_EVENT_QP_LAST_WQE_REACHED,
        E::QpFatal => abi::IBV_EVENT_QP_FATAL,
        E::QpRequestError => abi::IBV_EVENT_QP_REQ_ERR,
        E::QpAccessError => abi::IBV_EVENT_QP_ACCESS_ERR,
        E::PathMigrated => abi::IBV_EVENT_PATH_MIG,
        E::PathMigrationFailed => abi::IBV_EVENT_PATH_MIG_ERR,
    }
}

/// How C spells an event that can be about an object.
fn event_name(event_type: u32) -> &'static str {
    match event_type {
        abi::IBV_EVENT_CQ_ERR => "IBV_EVENT_CQ_ERR",
        abi::IBV_EVENT_SRQ_ERR => "IBV_EVENT_SRQ_ERR",
        abi::IBV_EVENT_SRQ_LIMIT_REACHED => "IBV_EVENT_SRQ_LIMIT_REACHED",
        abi::IBV_EVENT_PATH_MIG => "IBV_EVENT_PATH_MIG",
        abi::IBV_EVENT_PATH_MIG_ERR => "IBV_EVENT_PATH_MIG_ERR",
        abi::IBV_EVENT_COMM_EST => "IBV_EVENT_COMM_EST",
        abi::IBV_EVENT_SQ_DRAINED => "IBV_EVENT_SQ_DRAINED",
        abi::IBV_EVENT_QP_LAST_WQE_REACHED => "IBV_EVENT_QP_LAST_WQE_REACHED",
        abi::IBV_EVENT_QP_REQ_ERR => "IBV_EVENT_QP_REQ_ERR",
        abi::IBV_EVENT_QP_ACCESS_ERR => "IBV_EVENT_QP_ACCESS_ERR",
        _ => "IBV_EVENT_QP_FATAL",
    }
}

/// An event as C sees it, counted; `None` if its object is gone.
fn translate(context: &Context, event: AsyncEvent) -> Option<ibv_async_event> {
    let objects = context.opened.objects();
    let of_port = |event_type, port: u8| {
        let element = ibv_async_event_element { port_num: port.into() };
        ibv_async_event { element, event_type }
    };
    Some(match event {
        AsyncEvent::Qp(qpn, event) => {
            let qp = objects.qps.get(qpn.value())?;
            QueuePair::of(qp).ok()?.events.hand_out();
            let qp = qp.as_ptr();
            ibv_async_event { element: ibv_async_event_element { qp }, event_type: qp_event_type(event) }
        }
        AsyncEvent::CqError(id) => {
            let cq = objects.cqs.get(id)?;
            CompletionQueue::of(cq).ok()?.async_events.hand_out();
            let cq = cq.as_ptr();
            let element = ibv_async_event_element { cq };
            ibv_async_event { element, event_type: abi::IBV_EVENT_CQ_ERR }
        }
        AsyncEvent::SrqLimit(number) => {
            let srq = objects.srqs.get(number.value())?;
            SharedReceiveQueue::of(srq).ok()?.events.hand_out();
            let srq = srq.as_ptr();
            let element = ibv_async_event_element { srq };
            ibv_async_event { element, event_type: abi::IBV_EVENT_SRQ_LIMIT_REACHED }
        }
        AsyncEvent::SrqError(number) => {
            let srq = objects.srqs.get(number.value())?;
            SharedReceiveQueue::of(srq).ok()?.events.hand_out();
            let srq = srq.as_ptr();
            ibv_async_event { element: ibv_async_event_element { srq }, event_type: abi::IBV_EVENT_SRQ_ERR }
        }
        AsyncEvent::PortActive(port) => of_port(abi::IBV_EVENT_PORT_ACTIVE, port),
        AsyncEvent::PortError(port) => of_port(abi::IBV_EVENT_PORT_ERR, port),
        AsyncEvent::GidChange(port) => of_port(abi::IBV_EVENT_GID_CHANGE, port),
        AsyncEvent::LidChange(port) => of_port(abi::IBV_EVENT_LID_CHANGE, port),
        AsyncEvent::PkeyChange(port) => of_port(abi::IBV_EVENT_PKEY_CHANGE, port),
        AsyncEvent::SmChange(port) => of_port(abi::IBV_EVENT_SM_CHANGE, port),
        AsyncEvent::ClientReregister(port) => of_port(abi::IBV_EVENT_CLIENT_REREGISTER, port),
        AsyncEvent::SpeedChange(port) => of_port(abi::IBV_EVENT_DEVICE_SPEED_CHANGE, port),
        AsyncEvent::DeviceFatal => of_port(abi::IBV_EVENT_DEVICE_FATAL, 1),
        // A kind of event that C has no number for.
        _ => return None,
    })
}

/// Waits for the next event, unless the descriptor does not block.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ibv_get_async_event(
    context: Handle<'_, ibv_context>,
    event: Out<'_, ibv_async_event>,
) -> c_int {
    call_that_waits(NextEvent { context, event })
}

/// The call, while it waits.
struct NextEvent<'a> {
    context: Handle<'a, ibv_context>,
    event: Out<'a, ibv_async_event>,
}

impl Waits for NextEvent<'_> {
    const CALL: &'static str = "ibv_get_async_event";

    fn go_on(&mut self, sleep: &mut Sleep) -> Result<Turn, Errno> {
        let context = Context::of(self.context)?;
        refuse_if!(self.event.is_null(), Errno::INVALID);
        let events = context.opened.hca.events();
        while let Some(happened) = events.try_take() {
            if let Some(translated) = translate(context, happened) {
                context.opened.nic.took_async_event(happened);
                self.event.write(translated);
                return Ok(Turn::Done);
            }
        }
        refuse_if!(events.is_nonblocking()?, Errno::of(libc::EAGAIN));
        *sleep = Sleep::on([events.raw_fd()], None);
        Ok(Turn::Sleep)
    }

    fn end(&mut self) {}
}

/// Tells the trace that an event of this type about an object was acknowledged.
fn tell(opened: &OpenDevice, event_type: u32, about: u32) {
    opened.nic.called(None, || Call::AckAsyncEvent { event: event_name(event_type), about: about.into() });
}

/// Acknowledges an event.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_async_event(event: In<'_, ibv_async_event>) {
    unreported("ibv_ack_async_event", || {
        let event = event.as_ref().ok_or_else(Errno::null)?;
        match event.event_type {
            abi::IBV_EVENT_CQ_ERR => {
                // SAFETY: an event of this type has a completion queue, which is not destroyed before the event is
                // acknowledged.
                let queue = CompletionQueue::of(unsafe { Handle::new(event.element.cq) })?;
                tell(&queue.opened, event.event_type, queue.cq.id);
                queue.async_events.acknowledge_with(1, |total| set_field!(queue.base, async_events_completed, total));
            }
            abi::IBV_EVENT_QP_FATAL
            | abi::IBV_EVENT_QP_REQ_ERR
            | abi::IBV_EVENT_QP_ACCESS_ERR
            | abi::IBV_EVENT_COMM_EST
            | abi::IBV_EVENT_SQ_DRAINED
            | abi::IBV_EVENT_PATH_MIG
            | abi::IBV_EVENT_PATH_MIG_ERR
            | abi::IBV_EVENT_QP_LAST_WQE_REACHED => {
                // SAFETY: as above, of a queue pair.
                let pair = QueuePair::of(unsafe { Handle::new(event.element.qp) })?;
                tell(&pair.opened, event.event_type, pair.qp.qpn().value());
                pair.events.acknowledge_with(1, |total| set_field!(pair.base, qp_base.events_completed, total));
            }
            abi::IBV_EVENT_SRQ_ERR | abi::IBV_EVENT_SRQ_LIMIT_REACHED => {
                // SAFETY: as above, of a shared receive queue.
                let queue = SharedReceiveQueue::of(unsafe { Handle::new(event.element.srq) })?;
                tell(&queue.opened, event.event_type, queue.queue.number().value());
                queue.events.acknowledge_with(1, |total| set_field!(queue.base, events_completed, total));
            }
            // Events of the device and of its port belong to no object.
            _ => {}
        }
        Ok(())
    });
}
