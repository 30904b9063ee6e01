//! Making, moving and destroying ids.

use super::channel::Channel;
use super::delivered_event::acknowledge;
use super::id::ConnectionId;
use crate::boundary::zero;
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, field, set_field};
use abi::{Handle, Out, Owned, rdma_cm_id, rdma_event_channel};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

/// A new id.
#[unsafe(export_name = "ubiverbs_rdma_create_id")]
pub extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    mut id: Out<'_, *mut rdma_cm_id>,
    context: *mut c_void,
    space: c_uint,
) -> c_int {
    zero("rdma_create_id", || {
        refuse_if!(id.is_null(), Errno::null());
        let datagrams = matches!(space, abi::RDMA_PS_UDP | abi::RDMA_PS_IPOIB);
        let qp_type = if datagrams { abi::IBV_QPT_UD } else { abi::IBV_QPT_RC };
        id.write(ConnectionId::create(channel, context, space, qp_type)?.into_ptr());
        Ok(())
    })
}

/// Destroys an id, in whatever state: its connection ends, events that were not yet taken vanish, and those that were
/// must be acknowledged first.
#[unsafe(export_name = "ubiverbs_rdma_destroy_id")]
pub extern "C" fn rdma_destroy_id(id: Owned<'_, rdma_cm_id>) -> c_int {
    zero("rdma_destroy_id", || {
        let it = ConnectionId::given_back(&id)?;
        it.drop_event();
        // From here on its events find no id.
        it.unlist();
        it.id.destroy();
        it.wait_for_acks(&it.events);
        let it = ConnectionId::from_c(id)?;
        let state = it.state();
        for group in &state.groups {
            it.wait_for_acks(&group.events);
        }
        it.tell("rdma_destroy_id");
        Channel::free(state.sync_channel);
        if let Some(device) = state.device {
            device.leave();
        }
        drop(state);
        Ok(())
    })
}

/// Moves an id to another channel, its events with it; without one it gets one of its own, and its calls wait for their
/// events from then on.
#[unsafe(export_name = "ubiverbs_rdma_migrate_id")]
pub extern "C" fn rdma_migrate_id(id: Handle<'_, rdma_cm_id>, channel: *mut rdma_event_channel) -> c_int {
    zero("rdma_migrate_id", || {
        let it = ConnectionId::of(id)?;
        it.migrate(channel)?;
        it.tell("rdma_migrate_id");
        Ok(())
    })
}

impl ConnectionId {
    /// Acknowledges the event that an id keeps for itself.
    pub(super) fn drop_event(&self) {
        // SAFETY: null, or the event that an earlier call for the id took, and which only the id has.
        let event = unsafe { Owned::new(field!(self.base, event)) };
        set_field!(self.base, event, null_mut());
        acknowledge(event);
    }

    pub(super) fn migrate(&self, channel: *mut rdma_event_channel) -> Result<(), Errno> {
        if channel.is_null() && self.is_synchronous() {
            return Err(Errno::invalid("the id has a channel of its own already"));
        }
        let sync_channel = if channel.is_null() { Channel::make()? } else { null_mut() };
        let channel = if channel.is_null() { sync_channel } else { channel };
        let to = Channel::of(channel)?;
        self.id.migrate(&to)?;
        // What it keeps for itself was reported by the old channel.
        self.drop_event();
        let old = {
            let mut state = self.state();
            state.channel = to;
            std::mem::replace(&mut state.sync_channel, sync_channel)
        };
        Channel::free(old);
        set_field!(self.base, channel, channel);
        self.tell_channel();
        self.wait_for_acks(&self.events);
        Ok(())
    }
}
