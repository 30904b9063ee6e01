//! Completion events: waiting for them at a channel, and acknowledging them. How a waiting thread sleeps and is woken
//! is in the NIC: `hca::drive::blocked_call` drives it, `hca::objects::channel` has the events.

use crate::boundary::unreported;
use crate::cancellation::{Turn, Waits, call_that_waits};
use crate::completion_channel::Channel;
use crate::completion_queue::CompletionQueue;
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, field, set_field};
use abi::{Handle, Out, ibv_comp_channel, ibv_cq};
use hca::{BlockedCall, Look, Sleep};
use std::ffi::{c_int, c_uint, c_void};
use trace::Call;

/// Waits for the next event of a channel, unless its descriptor does not block.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn ibv_get_cq_event(
    channel: Handle<'_, ibv_comp_channel>,
    cq: Out<'_, *mut ibv_cq>,
    cq_context: Out<'_, *mut c_void>,
) -> c_int {
    call_that_waits(NextEvent { channel, cq, cq_context, blocked: BlockedCall::default() })
}

/// The call, while it waits.
struct NextEvent<'a> {
    channel: Handle<'a, ibv_comp_channel>,
    cq: Out<'a, *mut ibv_cq>,
    cq_context: Out<'a, *mut c_void>,
    blocked: BlockedCall,
}

impl Waits for NextEvent<'_> {
    const CALL: &'static str = "ibv_get_cq_event";

    fn go_on(&mut self, sleep: &mut Sleep) -> Result<Turn, Errno> {
        let channel = Channel::of(self.channel)?;
        refuse_if!(self.cq.is_null() || self.cq_context.is_null(), Errno::INVALID);
        self.blocked.sleep = *sleep;
        loop {
            let nic = &channel.opened.nic;
            let id = match channel.channel.is_nonblocking()? {
                true => nic.take_event_now(&channel.channel)?,
                false => match nic.look_for_event(&channel.channel, &mut self.blocked, None) {
                    Look::Event(id) => id,
                    Look::Sleep | Look::TooLate => {
                        *sleep = self.blocked.sleep;
                        return Ok(Turn::Sleep);
                    }
                },
            };
            // Counted under the lock under which a queue that is destroyed leaves the list: it waits for what was
            // counted.
            let objects = channel.opened.objects();
            let Some(handle) = objects.cqs.get(id) else { continue };
            let queue = CompletionQueue::of(handle)?;
            queue.completion_events.hand_out();
            self.cq.write(handle.as_ptr());
            self.cq_context.write(field!(queue.base, cq_context));
            nic.took_event(&channel.channel, id);
            return Ok(Turn::Done);
        }
    }

    fn end(&mut self) {
        if let Ok(channel) = Channel::of(self.channel) {
            channel.opened.nic.end_wait(&mut self.blocked);
        }
    }
}

/// Acknowledges events of a completion queue.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(cq: Handle<'_, ibv_cq>, count: c_uint) {
    unreported("ibv_ack_cq_events", || {
        let queue = CompletionQueue::of(cq)?;
        queue.opened.nic.called(None, || Call::AckCqEvents { cq: queue.cq.id, count });
        queue.completion_events.acknowledge_with(count, |total| set_field!(queue.base, comp_events_completed, total));
        Ok(())
    });
}
