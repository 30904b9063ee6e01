//! A multicast group of an id.

use crate::acknowledgements::Acknowledgements;
use crate::boundary::inner_failure;
use crate::errno::Errno;
use crate::multicast::{ibv_attach_mcast, ibv_detach_mcast};
use crate::registry::{Pointer, lock};
use abi::{Handle, ibv_gid, ibv_qp, rdma_ud_param};
use std::ffi::c_void;
use std::net::SocketAddr;
use std::sync::Mutex;

/// A group that an id has joined, or is joining.
pub(super) struct Group {
    /// What the NIC calls it.
    pub number: u64,
    pub address: SocketAddr,
    /// It is only sent to, and nothing is received.
    pub send_only: bool,
    /// What the program wants to see again in the event.
    pub context: Pointer<c_void>,
    pub events: Acknowledgements,
    /// The GID under which the queue pair is attached.
    pub attached: Mutex<Option<ibv_gid>>,
}

// SAFETY: the program's pointer is handed back to it and never followed.
unsafe impl Sync for Group {}

impl Group {
    /// Attaches the queue pair of the id to the group, if it has one and wants to receive.
    pub fn attach(&self, qp: Handle<'_, ibv_qp>, ud: &rdma_ud_param) -> Result<(), Errno> {
        if qp.is_null() || self.send_only {
            return Ok(());
        }
        let gid = ud.ah_attr.grh.dgid;
        match ibv_attach_mcast(qp, (&gid).into(), ud.ah_attr.dlid) {
            0 => {
                *lock(&self.attached) = Some(gid);
                Ok(())
            }
            code => Err(inner_failure(code)),
        }
    }

    /// Detaches it.
    pub fn detach(&self, qp: Handle<'_, ibv_qp>) {
        if let Some(gid) = lock(&self.attached).take().filter(|_| !qp.is_null()) {
            ibv_detach_mcast(qp, (&gid).into(), 0);
        }
    }
}
