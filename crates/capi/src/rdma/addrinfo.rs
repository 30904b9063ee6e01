//! `rdma_getaddrinfo`: names and services into addresses, the C library's way, with what the connection manager wants
//! to know beside them. No service here resolves routes ahead of time, so `RAI_NOROUTE` is always so.

use super::address::{self, AF_IB};
use super::id::port_space;
use crate::boundary::{number, unreported};
use crate::errno::{Errno, refuse_if};
use abi::{In, Out, rdma_addrinfo};
use libc::{addrinfo, sockaddr, socklen_t};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut};

/// What the C library is asked, by what the program asks this one.
pub(super) fn hints_for_c(hints: &rdma_addrinfo) -> Result<addrinfo, c_int> {
    let flags = hints.ai_flags as u32;
    // SAFETY: all zeros are numbers and null pointers.
    let mut c: addrinfo = unsafe { zeroed() };
    if flags & abi::RAI_PASSIVE != 0 {
        c.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & abi::RAI_NUMERICHOST != 0 {
        c.ai_flags |= libc::AI_NUMERICHOST;
    }
    c.ai_family = hints.ai_family;
    if hints.ai_family == AF_IB {
        // GIDs are written as addresses of IPv6 are, those of IPv4 among them.
        (c.ai_family, c.ai_flags) = (libc::AF_INET6, c.ai_flags | libc::AI_V4MAPPED);
    }
    c.ai_socktype = match hints.ai_qp_type as u32 {
        0 => 0,
        abi::IBV_QPT_RC | abi::IBV_QPT_UC | abi::IBV_QPT_XRC_SEND | abi::IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        abi::IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => return Err(libc::EAI_SOCKTYPE),
    };
    c.ai_protocol = match (hints.ai_port_space as u32, c.ai_socktype) {
        (0, _) => 0,
        (abi::RDMA_PS_TCP, _) | (abi::RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (abi::RDMA_PS_UDP | abi::RDMA_PS_IPOIB, _) | (abi::RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        (abi::RDMA_PS_IB, _) => 0,
        _ => return Err(libc::EAI_SOCKTYPE),
    };
    Ok(c)
}

/// Copies bytes to where `rdma_freeaddrinfo` frees them.
///
/// # Safety
/// There are `length` bytes to copy.
unsafe fn copied(bytes: *const c_void, length: usize) -> Result<*mut c_void, Errno> {
    // SAFETY: takes a size and returns null or as many bytes.
    let copy = unsafe { libc::malloc(length.max(1)) };
    refuse_if!(copy.is_null(), Errno::NO_MEMORY);
    // SAFETY: that many bytes to copy, and new room for them.
    unsafe { copy.copy_from_nonoverlapping(bytes, length) };
    Ok(copy)
}

/// Copies an address, which may be null.
///
/// # Safety
/// `address` is null or has `length` bytes.
unsafe fn copied_address(address: *const sockaddr, length: socklen_t) -> Result<(*mut sockaddr, socklen_t), Errno> {
    if address.is_null() || length == 0 {
        return Ok((null_mut(), 0));
    }
    refuse_if!(length as usize > size_of::<libc::sockaddr_storage>(), Errno::invalid("no address is that long"));
    // SAFETY: not null, so of that length.
    Ok((unsafe { copied(address.cast(), length as usize) }?.cast(), length))
}

/// Copies a name, which may be null.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn copied_name(name: *const c_char) -> *mut c_char {
    // SAFETY: not null, so a C string.
    if name.is_null() { null_mut() } else { unsafe { libc::strdup(name) } }
}

/// The first answer of the C library, in the words of `rdma_cma.h`.
fn convert(out: &mut rdma_addrinfo, hints: Option<&rdma_addrinfo>, found: &addrinfo) -> Result<(), Errno> {
    let asked = |value: fn(&rdma_addrinfo) -> c_int| hints.map(value).filter(|value| *value != 0);
    let datagrams = found.ai_socktype == libc::SOCK_DGRAM;
    let (qp_type, space) =
        if datagrams { (abi::IBV_QPT_UD, abi::RDMA_PS_UDP) } else { (abi::IBV_QPT_RC, abi::RDMA_PS_TCP) };
    out.ai_family = found.ai_family;
    out.ai_qp_type = asked(|hints| hints.ai_qp_type).unwrap_or(qp_type as c_int);
    out.ai_port_space = asked(|hints| hints.ai_port_space).unwrap_or(space as c_int);
    let gid = match hints.is_some_and(|hints| hints.ai_family == AF_IB) {
        true => {
            out.ai_family = AF_IB;
            // SAFETY: the C library returns null or an address.
            let found = unsafe { address::from_c(found.ai_addr) }?;
            Some(address::gid_to_c(found, port_space(out.ai_port_space as c_uint)?))
        }
        false => None,
    };
    let (place, length) = match &gid {
        Some(gid) => (std::ptr::from_ref(gid).cast(), address::GID_ADDRESS_LENGTH),
        None => (found.ai_addr.cast_const(), found.ai_addrlen),
    };
    // SAFETY: null or an address of that length, and null or a C string.
    let (address, name) = unsafe { (copied_address(place, length)?, copied_name(found.ai_canonname)) };
    if hints.is_some_and(|hints| hints.ai_flags as u32 & abi::RAI_PASSIVE != 0) {
        out.ai_flags = abi::RAI_PASSIVE as c_int;
        (out.ai_src_addr, out.ai_src_len) = address;
        out.ai_src_canonname = name;
    } else {
        (out.ai_dst_addr, out.ai_dst_len) = address;
        out.ai_dst_canonname = name;
    }
    Ok(())
}

/// Fills an answer; an error is one of errno, or one of the C library's for `gai_strerror`.
///
/// # Safety
/// `node` and `service` are null or C strings, and the addresses of `hints` null or as long as it says.
unsafe fn fill(
    out: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<(), Result<c_int, Errno>> {
    if node.is_null() && service.is_null() {
        let hints = hints.ok_or(Err(Errno::INVALID))?;
        out.ai_flags = hints.ai_flags;
        out.ai_family = hints.ai_family;
        out.ai_qp_type = hints.ai_qp_type;
        out.ai_port_space = hints.ai_port_space;
        // SAFETY: null, or of that length.
        let destination = unsafe { copied_address(hints.ai_dst_addr, hints.ai_dst_len) };
        (out.ai_dst_addr, out.ai_dst_len) = destination.map_err(Err)?;
    } else {
        let c_hints = hints.map(hints_for_c).transpose().map_err(Ok)?;
        let mut list: *mut addrinfo = null_mut();
        let c_hints = c_hints.as_ref().map_or(null(), std::ptr::from_ref);
        // SAFETY: null or C strings; the hints and the place for the answer are this call's own.
        let code = unsafe { libc::getaddrinfo(node, service, c_hints, &raw mut list) };
        refuse_if!(code != 0, Ok(code));
        // SAFETY: null, or what the C library answered.
        let converted = match unsafe { list.as_ref() } {
            Some(first) => convert(out, hints, first),
            None => Err(Errno::of(libc::ENODATA)),
        };
        // SAFETY: what the C library answered, and what was copied from it is not part of it.
        unsafe { libc::freeaddrinfo(list) };
        converted.map_err(Err)?;
    }
    if let Some(hints) = hints.filter(|_| out.ai_src_len == 0) {
        // SAFETY: null, or of that length.
        let source = unsafe { copied_address(hints.ai_src_addr, hints.ai_src_len) };
        (out.ai_src_addr, out.ai_src_len) = source.map_err(Err)?;
    }
    Ok(())
}

/// Resolves a name and a service. Answers 0, -1 with errno, or a code for `gai_strerror`.
///
/// # Safety
/// `node` and `service` are null or C strings, and the addresses of `hints` null or as long as it says.
#[unsafe(export_name = "ubiverbs_rdma_getaddrinfo")]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: In<'_, rdma_addrinfo>,
    mut result: Out<'_, *mut rdma_addrinfo>,
) -> c_int {
    number("rdma_getaddrinfo", || {
        let hints = hints.as_ref();
        refuse_if!(result.is_null() || node.is_null() && service.is_null() && hints.is_none(), Errno::null());
        // SAFETY: as this call demands.
        match unsafe { look_up(node, service, hints) } {
            Ok(found) => {
                result.write(found);
                Ok(0)
            }
            Err(failed) => failed,
        }
    })
}

/// Looks up a name and a service; an error is one of errno, or one of the C library's for `gai_strerror`.
///
/// # Safety
/// As for [`rdma_getaddrinfo`].
pub(super) unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<*mut rdma_addrinfo, Result<c_int, Errno>> {
    if hints.is_some_and(|hints| hints.ai_flags as u32 & abi::RAI_SA != 0) {
        return Err(Err(Errno::unsupported("no subnet administration on Ethernet")));
    }
    let nic = hca::Nic::of_process().map_err(|error| Err(error.into()))?;
    refuse_if!(nic.shown_devices().is_empty(), Err(Errno::of(libc::ENODEV)));
    // SAFETY: takes sizes and returns null or as many bytes, all zero.
    let out = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) }.cast::<rdma_addrinfo>();
    // SAFETY: null, or room for the answer, for which all zeros are a value.
    let answer = unsafe { out.as_mut() }.ok_or(Err(Errno::NO_MEMORY))?;
    // SAFETY: as this function demands.
    match unsafe { fill(answer, node, service, hints) } {
        Ok(()) => Ok(out),
        Err(failed) => {
            // SAFETY: made above, and not handed out.
            unsafe { free(out) };
            Err(failed)
        }
    }
}

/// Frees a list of answers.
///
/// # Safety
/// `list` is null or a list that `rdma_getaddrinfo` answers, and is not used any more.
pub(super) unsafe fn free(mut list: *mut rdma_addrinfo) {
    // SAFETY: null, or an entry that is not freed yet.
    while let Some(entry) = unsafe { list.as_ref() } {
        let next = entry.ai_next;
        for part in [
            entry.ai_src_addr.cast::<c_void>(),
            entry.ai_dst_addr.cast(),
            entry.ai_src_canonname.cast(),
            entry.ai_dst_canonname.cast(),
            entry.ai_route,
            entry.ai_connect,
        ] {
            // SAFETY: null, or from `malloc`, and only this entry has it.
            unsafe { libc::free(part) };
        }
        // SAFETY: from `calloc`, and not used after this.
        unsafe { libc::free(list.cast()) };
        list = next;
    }
}

/// Frees what `rdma_getaddrinfo` answered.
///
/// # Safety
/// `list` is null or from [`rdma_getaddrinfo`], and not used any more.
#[unsafe(export_name = "ubiverbs_rdma_freeaddrinfo")]
pub unsafe extern "C" fn rdma_freeaddrinfo(list: *mut rdma_addrinfo) {
    unreported("rdma_freeaddrinfo", || {
        // SAFETY: as this call demands.
        unsafe { free(list) };
        Ok(())
    });
}
