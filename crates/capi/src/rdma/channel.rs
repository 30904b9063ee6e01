//! Event channels: where ids report. The descriptor in the structure is a real one.

use crate::boundary::{object, quietly};
use crate::errno::Errno;
use abi::rdma_event_channel;
use hca::cm::EventChannel;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// The event channels that exist, by where C has them. Programs end with a thread that asks for the next event while another destroys the channel:
/// such a pointer must not be followed.
static CHANNELS: LazyLock<Mutex<HashMap<usize, Arc<EventChannel>>>> = LazyLock::new(Mutex::default);

fn channels() -> MutexGuard<'static, HashMap<usize, Arc<EventChannel>>> {
    CHANNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event channel, as C has it: `EventChannel` behind a structure with its descriptor.
#[derive(Debug)]
pub struct Channel;

impl Channel {
    /// The channel behind a pointer from C.
    pub(super) fn of(channel: *mut rdma_event_channel) -> Result<Arc<EventChannel>, Errno> {
        if channel.is_null() {
            return Err(Errno::null());
        }
        channels().get(&channel.addr()).cloned().ok_or(Errno(libc::EBADF))
    }

    /// A new one, which C or an id owns.
    pub(super) fn make() -> Result<*mut rdma_event_channel, Errno> {
        let channel = Arc::new(EventChannel::new()?);
        let base = Box::into_raw(Box::new(rdma_event_channel { fd: channel.raw_fd() }));
        channels().insert(base.addr(), channel);
        Ok(base)
    }

    /// Frees it. Ids that report to it go on, unheard; who waits on it keeps it until then.
    pub(super) unsafe fn free(channel: *mut rdma_event_channel) {
        let known = channels().remove(&channel.addr());
        if known.is_some() {
            drop(Box::from_raw(channel));
        }
        // The channel itself ends here, without the lock.
        drop(known);
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
