//! Groups: ids of datagrams join them, and their queue pairs are attached when the program takes the event.

use super::address;
use super::group::Group;
use super::id::ConnectionId;
use crate::acknowledgements::Acknowledgements;
use crate::boundary::{number, zero};
use crate::errno::{Errno, refuse_if};
use crate::object::Object;
use crate::registry::Pointer;
use abi::{Handle, In, rdma_cm_id, rdma_cm_join_mc_attr_ex};
use libc::sockaddr;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

impl ConnectionId {
    fn join(&self, address: SocketAddr, send_only: bool, context: *mut c_void) -> Result<c_int, Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.device()?;
        let group = Arc::new(Group {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            address,
            send_only,
            context: Pointer(context),
            events: Acknowledgements::default(),
            attached: Mutex::new(None),
        });
        let number = group.number;
        self.state().groups.push(group);
        if let Err(error) = self.id.join(address.ip(), number) {
            self.state().groups.retain(|group| group.number != number);
            return Err(error.into());
        }
        self.complete()
    }
}

/// Joins a group.
///
/// # Safety
/// `group` is null or a socket address.
#[unsafe(export_name = "ubiverbs_rdma_join_multicast")]
pub unsafe extern "C" fn rdma_join_multicast(
    id: Handle<'_, rdma_cm_id>,
    group: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    number("rdma_join_multicast", || {
        // SAFETY: null, or an address.
        let group = unsafe { address::group_from_c(group) };
        let it = ConnectionId::of(id)?;
        it.tell("rdma_join_multicast");
        it.join(group?, false, context)
    })
}

/// Joins a group, perhaps only to send to it.
///
/// # Safety
/// The address among the attributes is null or a socket address.
#[unsafe(export_name = "ubiverbs_rdma_join_multicast_ex")]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: Handle<'_, rdma_cm_id>,
    attributes: In<'_, rdma_cm_join_mc_attr_ex>,
    context: *mut c_void,
) -> c_int {
    number("rdma_join_multicast_ex", || {
        let it = ConnectionId::of(id)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let needed = abi::RDMA_CM_JOIN_MC_ATTR_ADDRESS | abi::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        refuse_if!(attributes.comp_mask >= abi::RDMA_CM_JOIN_MC_ATTR_RESERVED, Errno::of(libc::ENOTSUP));
        if attributes.comp_mask & needed != needed {
            return Err(Errno::invalid("comp_mask has address or join flags missing"));
        }
        refuse_if!(attributes.join_flags >= abi::RDMA_MC_JOIN_FLAG_RESERVED, Errno::invalid("no such join flag"));
        let send_only = attributes.join_flags == abi::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
        it.tell("rdma_join_multicast_ex");
        // SAFETY: null, or an address.
        it.join(unsafe { address::group_from_c(attributes.addr) }?, send_only, context)
    })
}

/// Leaves a group, once its events are acknowledged.
///
/// # Safety
/// `group` is null or a socket address.
#[unsafe(export_name = "ubiverbs_rdma_leave_multicast")]
pub unsafe extern "C" fn rdma_leave_multicast(id: Handle<'_, rdma_cm_id>, group: *mut sockaddr) -> c_int {
    zero("rdma_leave_multicast", || {
        let it = ConnectionId::of(id)?;
        // SAFETY: null, or an address.
        let address = unsafe { address::group_from_c(group) }?;
        let (group, last) = {
            let mut state = it.state();
            let same = |group: &Arc<Group>| address::same_group(group.address, address);
            let found = state.groups.iter().position(same).ok_or(Errno::of(libc::EADDRNOTAVAIL))?;
            let group = state.groups.swap_remove(found);
            (group, !state.groups.iter().any(same))
        };
        group.detach(it.qp());
        // A program may join twice, and then leaves twice.
        if last {
            it.id.leave(address.ip())?;
        }
        if it.is_synchronous() {
            it.drop_event();
        }
        it.wait_for_acks(&group.events);
        it.tell("rdma_leave_multicast");
        Ok(())
    })
}
