//! The buffer of a datagram: what stands before the datagram itself, and how programs fill it in. A buffer is an
//! `ib_user_mad` with room behind it; a null pointer gets nothing.

use crate::errno::Errno;
use abi::{ib_mad_addr, ib_user_mad};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// The length of what stands before the datagram.
pub(super) const HEADER_BYTES: usize = size_of::<ib_user_mad>();

/// The buffer behind a pointer from C.
///
/// # Safety
/// It is null, or a buffer that no other thread uses during `'a`.
unsafe fn buffer<'a>(umad: *mut c_void) -> Option<&'a mut ib_user_mad> {
    // SAFETY: null, or a buffer that only this thread uses.
    unsafe { umad.cast::<ib_user_mad>().as_mut() }
}

const NULL_ARGUMENT: c_int = -Errno::INVALID.code();

/// The length of what stands before the datagram.
#[unsafe(export_name = "ubiverbs_umad_size")]
pub extern "C" fn umad_size() -> usize {
    HEADER_BYTES
}

/// The datagram itself.
///
/// # Safety
/// `umad` is null or a buffer.
#[unsafe(export_name = "ubiverbs_umad_get_mad")]
pub unsafe extern "C" fn umad_get_mad(umad: *mut c_void) -> *mut c_void {
    // SAFETY: not null, so a buffer with at least its header.
    if umad.is_null() { null_mut() } else { unsafe { umad.byte_add(HEADER_BYTES) } }
}

/// How it went: 0, or the errno of a datagram that got no answer.
///
/// # Safety
/// `umad` is null or a buffer.
#[unsafe(export_name = "ubiverbs_umad_status")]
pub unsafe extern "C" fn umad_status(umad: *mut c_void) -> c_int {
    // SAFETY: null, or a buffer, as this function asks.
    unsafe { buffer(umad) }.map_or(NULL_ARGUMENT, |umad| umad.status as c_int)
}

/// Its address.
///
/// # Safety
/// `umad` is null or a buffer.
#[unsafe(export_name = "ubiverbs_umad_get_mad_addr")]
pub unsafe extern "C" fn umad_get_mad_addr(umad: *mut c_void) -> *mut ib_mad_addr {
    // SAFETY: null, or a buffer, as this function asks.
    unsafe { buffer(umad) }.map_or(null_mut(), |umad| &raw mut umad.addr)
}

/// Sets the global route header, or takes it away. The flow label is in the order of the host.
///
/// # Safety
/// `umad` is null or a buffer; `address` is null or an `ib_mad_addr`.
#[unsafe(export_name = "ubiverbs_umad_set_grh")]
pub unsafe extern "C" fn umad_set_grh(umad: *mut c_void, address: *mut c_void) -> c_int {
    // SAFETY: null, or a buffer, as this function asks.
    let Some(umad) = (unsafe { buffer(umad) }) else { return NULL_ARGUMENT };
    // SAFETY: null, or an address. It may be the buffer's own: it is copied before that is changed.
    match unsafe { address.cast::<ib_mad_addr>().as_ref() }.copied() {
        Some(from) => {
            let to = &mut umad.addr;
            to.grh_present = 1;
            to.gid = from.gid;
            to.flow_label = from.flow_label.to_be();
            to.hop_limit = from.hop_limit;
            to.traffic_class = from.traffic_class;
        }
        None => umad.addr.grh_present = 0,
    }
    0
}

/// Sets the index of the partition key.
///
/// # Safety
/// `umad` is null or a buffer.
#[unsafe(export_name = "ubiverbs_umad_set_pkey")]
pub unsafe extern "C" fn umad_set_pkey(umad: *mut c_void, index: c_int) -> c_int {
    // SAFETY: null, or a buffer, as this function asks.
    let Some(umad) = (unsafe { buffer(umad) }) else { return NULL_ARGUMENT };
    umad.addr.pkey_index = index as u16;
    0
}

/// The index of the partition key.
///
/// # Safety
/// `umad` is null or a buffer.
#[unsafe(export_name = "ubiverbs_umad_get_pkey")]
pub unsafe extern "C" fn umad_get_pkey(umad: *mut c_void) -> c_int {
    // SAFETY: null, or a buffer, as this function asks.
    unsafe { buffer(umad) }.map_or(NULL_ARGUMENT, |umad| umad.addr.pkey_index.into())
}

/// Sets LID, queue pair, service level and queue key, in the order of the host.
///
/// # Safety
/// `umad` is null or a buffer.
#[unsafe(export_name = "ubiverbs_umad_set_addr")]
pub unsafe extern "C" fn umad_set_addr(umad: *mut c_void, lid: c_int, qpn: c_int, sl: c_int, qkey: c_int) -> c_int {
    // SAFETY: null, or a buffer, as this function asks.
    unsafe { umad_set_addr_net(umad, (lid as u16).to_be(), (qpn as u32).to_be(), sl, (qkey as u32).to_be()) }
}

/// Sets LID, queue pair, service level and queue key, in network byte order.
///
/// # Safety
/// `umad` is null or a buffer.
#[unsafe(export_name = "ubiverbs_umad_set_addr_net")]
pub unsafe extern "C" fn umad_set_addr_net(umad: *mut c_void, lid: u16, qpn: u32, sl: c_int, qkey: u32) -> c_int {
    // SAFETY: null, or a buffer, as this function asks.
    let Some(umad) = (unsafe { buffer(umad) }) else { return NULL_ARGUMENT };
    let to = &mut umad.addr;
    (to.lid, to.qpn, to.sl, to.qkey) = (lid, qpn, sl as u8, qkey);
    0
}
