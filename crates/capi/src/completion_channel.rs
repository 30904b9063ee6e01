//! Completion channels: where a program waits for its completion queues to have something.

use crate::boundary::{object, status};
use crate::context::{Context, OpenDevice};
use crate::errno::Errno;
use crate::object::{Object, Public};
use abi::{Handle, Owned, ibv_comp_channel, ibv_context};
use hca::CompletionChannel;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// A completion channel.
#[repr(C)]
pub struct Channel {
    base: Public<ibv_comp_channel>,
    pub(crate) opened: Arc<OpenDevice>,
    pub(crate) channel: Arc<CompletionChannel>,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for Channel {
    type C = ibv_comp_channel;
}

impl Channel {
    /// How many completion queues report to it, in the field where C has it.
    pub(crate) fn users(&self) -> &AtomicI32 {
        // SAFETY: the field lives as long as the channel, and the library changes it only here.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.base.as_ptr()).refcnt) }
    }
}

/// A new channel.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: Handle<'_, ibv_context>) -> *mut ibv_comp_channel {
    object("ibv_create_comp_channel", || {
        let context = Context::working(context)?;
        let channel = context.opened.nic.create_channel()?;
        let base = Public::new(ibv_comp_channel { context: context.as_c(), fd: channel.raw_fd(), refcnt: 0 });
        Ok(Box::new(Channel { base, opened: Arc::clone(&context.opened), channel }).into_c())
    })
}

/// Destroys a channel that no completion queue reports to.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_comp_channel(channel: Owned<'_, ibv_comp_channel>) -> c_int {
    status("ibv_destroy_comp_channel", || {
        if Channel::given_back(&channel)?.users().load(Ordering::Acquire) > 0 {
            return Err(Errno::busy("completion queues still report to it"));
        }
        let channel = Channel::from_c(channel)?;
        channel.opened.nic.destroy_channel(&channel.channel);
        Ok(())
    })
}
