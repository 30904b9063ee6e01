//! Event channels: where ids report. The descriptor in the structure is a real one.

use super::call_trace;
use crate::boundary::{object, unreported};
use crate::errno::{Errno, refuse_if, with_sources};
use crate::log;
use crate::registry::PerProcess;
use abi::rdma_event_channel;
use hca::cm::EventChannel;
use std::collections::HashMap;
use std::sync::Arc;

/// The event channels that exist, by where C has them. Programs end with a thread that asks for the next event while
/// another destroys the channel: such a pointer must not be followed.
static EVENT_CHANNELS: PerProcess<Channels> = PerProcess::new();

#[derive(Default)]
struct Channels {
    existing: HashMap<usize, Arc<EventChannel>>,
    /// This process has made one, ever.
    any: bool,
}

/// An event channel, as C has it: `EventChannel` behind a structure with its descriptor.
#[derive(Debug)]
pub struct Channel;

impl Channel {
    /// The channel behind a pointer from C.
    pub(super) fn of(channel: *mut rdma_event_channel) -> Result<Arc<EventChannel>, Errno> {
        refuse_if!(channel.is_null(), Errno::null());
        let channels = EVENT_CHANNELS.lock();
        match channels.existing.get(&channel.addr()) {
            Some(channel) => Ok(Arc::clone(channel)),
            None if channels.any => Err(Errno::of(libc::EBADF)),
            // Then it can only be a parent's.
            None => Err(Errno::inherited()),
        }
    }

    /// A new one, which C or an id owns.
    pub(super) fn make() -> Result<*mut rdma_event_channel, Errno> {
        let channel = Arc::new(EventChannel::new()?);
        let base = Box::into_raw(Box::new(rdma_event_channel { fd: channel.raw_fd() }));
        let mut channels = EVENT_CHANNELS.lock();
        channels.any = true;
        channels.existing.insert(base.addr(), channel);
        Ok(base)
    }

    /// Frees it. Ids that report to it go on, unheard; a thread that waits on it keeps it until then.
    pub(super) fn free(channel: *mut rdma_event_channel) {
        let known = EVENT_CHANNELS.lock().existing.remove(&channel.addr());
        if known.is_some() {
            // SAFETY: it was in the list, so made by `make` and not freed before.
            drop(unsafe { Box::from_raw(channel) });
        }
        // The channel itself ends here, without the lock.
        drop(known);
    }
}

/// A new event channel.
#[unsafe(export_name = "ubiverbs_rdma_create_event_channel")]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    object("rdma_create_event_channel", || {
        let nic = hca::Nic::of_process().inspect_err(|error| log::print(with_sources(error)))?;
        refuse_if!(nic.shown_devices().is_empty(), Errno::of(libc::ENODEV));
        let made = Channel::make()?;
        call_trace::channel("rdma_create_event_channel", &*Channel::of(made)?);
        Ok(made)
    })
}

/// Closes an event channel. All ids must have gone before, and all events been acknowledged.
#[unsafe(export_name = "ubiverbs_rdma_destroy_event_channel")]
pub extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    unreported("rdma_destroy_event_channel", || {
        if let Ok(known) = Channel::of(channel) {
            call_trace::channel("rdma_destroy_event_channel", &known);
        }
        Channel::free(channel);
        Ok(())
    });
}
