//! Multicast groups of datagram queue pairs.

use crate::boundary::status;
use crate::errno::Errno;
use crate::query::gid_from_c;
use crate::queue_pair::QueuePair;
use abi::{ibv_gid, ibv_qp};
use std::ffi::c_int;
use transport::Kind;
use wire::Gid;

unsafe fn group<'a>(qp: *mut ibv_qp, gid: *const ibv_gid) -> Result<(&'a QueuePair, Gid), Errno> {
    let pair = QueuePair::of(qp)?;
    let gid = gid_from_c(gid.as_ref().ok_or_else(Errno::null)?);
    let is_group = gid.to_ip().is_multicast();
    if is_group && pair.qp.kind() == Kind::UnreliableDatagram { Ok((pair, gid)) } else { Err(Errno::INVALID) }
}

/// Joins a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status("ibv_attach_mcast", || {
        group(qp, gid)?;
        Err(Errno::UNSUPPORTED)
    })
}

/// Leaves a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status("ibv_detach_mcast", || {
        group(qp, gid)?;
        Err(Errno::INVALID)
    })
}
