//! Completion channels: where a program waits for its completion queues to have something.

use crate::boundary::{number, object, quietly, status};
use crate::completion_queue::CompletionQueue;
use crate::context::{Context, Shared};
use crate::errno::Errno;
use crate::log;
use crate::signals;
use abi::{ibv_comp_channel, ibv_context, ibv_cq};
use hca::CompletionChannel;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// A completion channel.
#[repr(C)]
pub struct Channel {
    base: ibv_comp_channel,
    shared: Arc<Shared>,
    pub(crate) channel: Arc<CompletionChannel>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("fd", &self.base.fd).finish_non_exhaustive()
    }
}

impl Channel {
    /// The channel behind a pointer from C.
    pub(crate) unsafe fn of<'a>(channel: *mut ibv_comp_channel) -> Result<&'a Channel, Errno> {
        channel.cast::<Channel>().as_ref().ok_or_else(Errno::null)
    }

    /// How many completion queues report to it, in the field where C has it.
    pub(crate) unsafe fn users<'a>(channel: *mut ibv_comp_channel) -> &'a AtomicI32 {
        AtomicI32::from_ptr(&raw mut (*channel).refcnt)
    }
}

/// A new channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    object("ibv_create_comp_channel", || {
        let context = Context::of(context)?;
        let channel = Arc::new(CompletionChannel::new()?);
        let base = ibv_comp_channel { context: context.as_c(), fd: channel.raw_fd(), refcnt: 0 };
        Ok(Box::into_raw(Box::new(Channel { base, shared: Arc::clone(&context.shared), channel })).cast())
    })
}

/// Destroys a channel that no completion queue reports to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    status("ibv_destroy_comp_channel", || {
        Channel::of(channel)?;
        if Channel::users(channel).load(Ordering::Acquire) > 0 {
            log::because("completion queues still report to it");
            return Err(Errno::BUSY);
        }
        drop(Box::from_raw(channel.cast::<Channel>()));
        Ok(())
    })
}

/// Waits for the next event of a channel, unless its descriptor does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    number("ibv_get_cq_event", || {
        let channel = Channel::of(channel)?;
        if cq.is_null() || cq_context.is_null() {
            return Err(Errno::INVALID);
        }
        loop {
            let id = match channel.shared.nic.wait(&channel.channel) {
                Err(error) if error.kind() == ErrorKind::Interrupted && signals::restart_calls() => continue,
                answer => answer?,
            };
            // Counted under the lock under which a queue that is destroyed leaves the list: it waits for what was counted.
            let live = channel.shared.live();
            let Some(queue) = live.cqs.get(&id) else { continue };
            (*queue.0).completion_events.hand_out();
            let queue: *mut ibv_cq = queue.0.cast();
            cq.write(queue);
            cq_context.write((*queue).cq_context);
            return Ok(0);
        }
    })
}

/// Acknowledges events of a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    quietly("ibv_ack_cq_events", || {
        let queue = CompletionQueue::of(cq)?;
        (*cq).comp_events_completed = queue.completion_events.acknowledge(count);
        Ok(())
    });
}
