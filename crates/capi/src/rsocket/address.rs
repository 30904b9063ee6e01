//! Addresses that programs give and get, with their lengths.

use crate::errno::{Errno, refuse_if};
use crate::rdma::address::{from_c, to_c};
use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use std::net::SocketAddr;

const BAD_ADDRESS: Errno = Errno::of(libc::EFAULT);

/// An address of a program's.
///
/// # Safety
/// `address` is null or has `length` bytes.
pub(super) unsafe fn given(address: *const sockaddr, length: socklen_t) -> Result<SocketAddr, Errno> {
    refuse_if!(address.is_null(), BAD_ADDRESS);
    refuse_if!((length as usize) < size_of::<libc::sa_family_t>(), Errno::INVALID);
    // SAFETY: long enough for the family, which every address begins with.
    let family = i32::from(unsafe { (&raw const (*address).sa_family).read_unaligned() });
    let needed = match family {
        libc::AF_INET => size_of::<sockaddr_in>(),
        // Without the scope, as of old.
        libc::AF_INET6 => size_of::<sockaddr_in6>() - size_of::<u32>(),
        _ => return Err(Errno::of(libc::EAFNOSUPPORT)),
    };
    let length = length as usize;
    refuse_if!(length < needed, Errno::INVALID);
    // SAFETY: all zeros are an address of no family.
    let mut whole: sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = length.min(size_of::<sockaddr_storage>());
    // SAFETY: both have that many bytes, and do not overlap: one is this function's.
    unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), (&raw mut whole).cast(), length) };
    // SAFETY: a whole address.
    unsafe { from_c((&raw const whole).cast()) }
}

/// An address of a program's, if it gives one.
///
/// # Safety
/// As for [`given`].
pub(super) unsafe fn maybe_given(address: *const sockaddr, length: socklen_t) -> Result<Option<SocketAddr>, Errno> {
    if address.is_null() && length == 0 {
        return Ok(None);
    }
    // SAFETY: the address is `length` bytes long, as `given` asks.
    unsafe { given(address, length) }.map(Some)
}

/// Writes an address where a program wants it, as far as there is room, and how long it is.
///
/// # Safety
/// `length` is null or a place; `address` is null or has as many bytes as `length` says.
pub(super) unsafe fn answer(found: SocketAddr, address: *mut sockaddr, length: *mut socklen_t) -> Result<(), Errno> {
    refuse_if!(address.is_null() || length.is_null(), BAD_ADDRESS);
    let storage = to_c(found);
    let whole = match found {
        SocketAddr::V4(_) => size_of::<sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<sockaddr_in6>(),
    };
    // SAFETY: a place of the program's.
    let room = unsafe { length.read() };
    refuse_if!(i32::try_from(room).is_err(), Errno::INVALID);
    // SAFETY: the program has room for that many, and the storage has more.
    unsafe {
        let copied = whole.min(room as usize);
        std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), address.cast(), copied);
        length.write(whole as socklen_t);
    }
    Ok(())
}
