//! An event that C has, until it acknowledges it.

use super::group::Group;
use super::id::ConnectionId;
use crate::errno::Errno;
use crate::object::Object;
use crate::registry::PerProcess;
use abi::{Owned, rdma_cm_event, rdma_cm_id};
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// An event that C has.
#[repr(C)]
pub(super) struct DeliveredEvent {
    pub base: rdma_cm_event,
    /// Whose event it counts as: that of a listener, if it is a request.
    pub owner: *const ConnectionId,
    /// The number of the id it is about, which may be gone before it.
    pub about: u64,
    pub group: Option<Arc<Group>>,
    /// What `base` points to.
    pub private_data: Vec<u8>,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for DeliveredEvent {
    type C = rdma_cm_event;
}

/// What an event says: its kind, and its status.
pub(super) fn outcome(event: &Owned<'_, rdma_cm_event>) -> Result<(c_uint, c_int), Errno> {
    let base = &DeliveredEvent::of(event.handle())?.base;
    Ok((base.event, base.status))
}

/// The id that an event is about.
pub(super) fn subject(event: &Owned<'_, rdma_cm_event>) -> Result<*mut rdma_cm_id, Errno> {
    Ok(DeliveredEvent::of(event.handle())?.base.id)
}

/// Makes private data show that a program uses it after it gave the event back: a checker looks for that.
#[cold]
fn poison(mut private_data: Vec<u8>) {
    /// How much of it is kept from being used again.
    const KEPT_MAX: usize = 64;
    static KEPT: PerProcess<VecDeque<Vec<u8>>> = PerProcess::new();
    if private_data.is_empty() {
        return;
    }
    private_data.fill(trace::POISON_BYTE);
    let mut kept = KEPT.lock();
    if kept.len() >= KEPT_MAX {
        kept.pop_front();
    }
    kept.push_back(private_data);
}

/// The program is done with an event, and with what it points to.
pub(super) fn acknowledge(event: Owned<'_, rdma_cm_event>) {
    let Ok(mut event) = DeliveredEvent::from_c(event) else { return };
    event.tell_ack();
    // A sanitizer finds that by itself, if the memory is freed.
    if hca::is_traced() && !latch::sanitizer::is_present() {
        poison(std::mem::take(&mut event.private_data));
    }
    if let Some(group) = &event.group {
        group.events.acknowledge(1);
    }
    let owner = event.owner;
    drop(event);
    // Last: the owner may go when it is told.
    // SAFETY: the event was counted when it was handed out, and the owner does not go before it is acknowledged.
    unsafe { &*owner }.events.acknowledge(1);
}
