//! Multicast groups of datagram queue pairs.

use crate::address_handle::gid_from_c;
use crate::boundary::status;
use crate::errno::Errno;
use crate::object::Object;
use crate::queue_pair::QueuePair;
use abi::{Handle, In, ibv_gid, ibv_qp};
use profiles::Feature;
use std::ffi::c_int;

/// Joins a group. The LID means something on InfiniBand only.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_attach_mcast(qp: Handle<'_, ibv_qp>, gid: In<'_, ibv_gid>, _lid: u16) -> c_int {
    status("ibv_attach_mcast", || {
        let (pair, gid) = (QueuePair::by_handle(qp)?, gid_from_c(gid.as_ref().ok_or_else(Errno::null)?));
        pair.opened.device().offers(Feature::AttachMcast)?;
        Ok(pair.qp.attach(&pair.opened.nic, gid)?)
    })
}

/// Leaves a group.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_detach_mcast(qp: Handle<'_, ibv_qp>, gid: In<'_, ibv_gid>, _lid: u16) -> c_int {
    status("ibv_detach_mcast", || {
        let (pair, gid) = (QueuePair::by_handle(qp)?, gid_from_c(gid.as_ref().ok_or_else(Errno::null)?));
        Ok(pair.qp.detach(&pair.opened.nic, gid)?)
    })
}
