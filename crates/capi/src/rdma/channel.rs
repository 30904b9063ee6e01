//! Event channels: where ids report. The descriptor in the structure is a real one.

use crate::boundary::{object, quietly};
use crate::errno::Errno;
use abi::rdma_event_channel;
use hca::cm::EventChannel;
use std::fmt;
use std::sync::Arc;

/// An event channel.
#[repr(C)]
pub struct Channel {
    base: rdma_event_channel,
    pub(super) channel: Arc<EventChannel>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("fd", &self.base.fd).finish_non_exhaustive()
    }
}

impl Channel {
    /// The channel behind a pointer from C.
    pub(super) unsafe fn of<'a>(channel: *mut rdma_event_channel) -> Result<&'a Channel, Errno> {
        channel.cast::<Channel>().as_ref().ok_or_else(Errno::null)
    }

    /// A new one, which C or an id owns.
    pub(super) fn make() -> Result<*mut rdma_event_channel, Errno> {
        let channel = Arc::new(EventChannel::new()?);
        let base = rdma_event_channel { fd: channel.raw_fd() };
        Ok(Box::into_raw(Box::new(Channel { base, channel })).cast())
    }

    /// Frees it. Ids that report to it go on, unheard; who waits on it keeps it until then.
    pub(super) unsafe fn free(channel: *mut rdma_event_channel) {
        if !channel.is_null() {
            drop(Box::from_raw(channel.cast::<Channel>()));
        }
    }
}

/// A new event channel.
#[unsafe(export_name = "ubiverbs_rdma_create_event_channel")]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    object("rdma_create_event_channel", || {
        if hca::Nic::of_process()?.shown_devices().is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        Channel::make()
    })
}

/// Closes an event channel. All ids must have gone before, and all events been acknowledged.
#[unsafe(export_name = "ubiverbs_rdma_destroy_event_channel")]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    quietly("rdma_destroy_event_channel", || {
        Channel::free(channel);
        Ok(())
    });
}
