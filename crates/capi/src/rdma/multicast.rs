//! Groups: ids of datagrams join them, and their queue pairs are attached when the program takes the event.

use super::address;
use super::id::ConnectionId;
use crate::boundary::number;
use crate::context::{Pointer, lock};
use crate::errno::Errno;
use crate::events::Acknowledgements;
use crate::multicast::{ibv_attach_mcast, ibv_detach_mcast};
use abi::{ibv_gid, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_ud_param};
use libc::sockaddr;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A group that an id has joined, or is joining.
pub(super) struct Group {
    /// What the NIC calls it.
    pub number: u64,
    address: SocketAddr,
    /// It is only sent to, and nothing is received.
    send_only: bool,
    /// What the program wants to see again in the event.
    pub context: Pointer<c_void>,
    pub events: Acknowledgements,
    /// The GID under which the queue pair is attached.
    attached: Mutex<Option<ibv_gid>>,
}

// SAFETY: the program's pointer is handed back to it and never followed.
unsafe impl Sync for Group {}

impl Group {
    /// Attaches the queue pair of the id to the group, if it has one and wants to receive.
    pub unsafe fn attach(&self, owner: &ConnectionId, way: &rdma_ud_param) -> Result<(), Errno> {
        let qp = (*owner.as_c()).qp;
        if qp.is_null() || self.send_only {
            return Ok(());
        }
        let gid = way.ah_attr.grh.dgid;
        match ibv_attach_mcast(qp, &raw const gid, way.ah_attr.dlid) {
            0 => {
                *lock(&self.attached) = Some(gid);
                Ok(())
            }
            code => Err(Errno(code)),
        }
    }

    unsafe fn detach(&self, owner: &ConnectionId) {
        let qp = (*owner.as_c()).qp;
        if let Some(gid) = lock(&self.attached).take().filter(|_| !qp.is_null()) {
            ibv_detach_mcast(qp, &raw const gid, 0);
        }
    }
}

impl ConnectionId {
    unsafe fn join(&self, address: SocketAddr, send_only: bool, context: *mut c_void) -> Result<c_int, Errno> {
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
#[unsafe(export_name = "ubiverbs_rdma_join_multicast")]
pub unsafe extern "C" fn rdma_join_multicast(id: *mut rdma_cm_id, group: *mut sockaddr, context: *mut c_void) -> c_int {
    number("rdma_join_multicast", || ConnectionId::of(id)?.join(address::group_from_c(group)?, false, context))
}

/// Joins a group, perhaps only to send to it.
#[unsafe(export_name = "ubiverbs_rdma_join_multicast_ex")]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attributes: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    number("rdma_join_multicast_ex", || {
        let it = ConnectionId::of(id)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let needed = abi::RDMA_CM_JOIN_MC_ATTR_ADDRESS | abi::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attributes.comp_mask >= abi::RDMA_CM_JOIN_MC_ATTR_RESERVED {
            return Err(Errno(libc::ENOTSUP));
        }
        if attributes.comp_mask & needed != needed {
            return Err(Errno::invalid("comp_mask has address or join flags missing"));
        }
        if attributes.join_flags >= abi::RDMA_MC_JOIN_FLAG_RESERVED {
            return Err(Errno::invalid("no such join flag"));
        }
        let send_only = attributes.join_flags == abi::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
        it.join(address::group_from_c(attributes.addr)?, send_only, context)
    })
}

/// Leaves a group, once its events are acknowledged.
#[unsafe(export_name = "ubiverbs_rdma_leave_multicast")]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, group: *mut sockaddr) -> c_int {
    number("rdma_leave_multicast", || {
        let it = ConnectionId::of(id)?;
        let address = address::group_from_c(group)?;
        let (group, last) = {
            let mut state = it.state();
            let same = |group: &Arc<Group>| address::same_group(group.address, address);
            let found = state.groups.iter().position(same).ok_or(Errno(libc::EADDRNOTAVAIL))?;
            let group = state.groups.swap_remove(found);
            (group, !state.groups.iter().any(same))
        };
        group.detach(it);
        // A program may join twice, and then leaves twice.
        if last {
            it.id.leave(address.ip())?;
        }
        if it.is_synchronous() {
            it.drop_event();
        }
        group.events.wait();
        Ok(0)
    })
}
