//! `rdma_getaddrinfo`: names and services into addresses, the C library's way, with what the connection manager wants to know beside them. No
//! service here resolves routes ahead of time, so `RAI_NOROUTE` is always so.

use crate::boundary::{number, quietly};
use crate::errno::Errno;
use abi::rdma_addrinfo;
use libc::{addrinfo, sockaddr, socklen_t};
use std::ffi::{c_char, c_int, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut};

/// What the C library is asked, by what the program asks us.
unsafe fn hints_for_c(hints: &rdma_addrinfo) -> Result<addrinfo, c_int> {
    let flags = hints.ai_flags as u32;
    let mut c: addrinfo = zeroed();
    if flags & abi::RAI_PASSIVE != 0 {
        c.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & abi::RAI_NUMERICHOST != 0 {
        c.ai_flags |= libc::AI_NUMERICHOST;
    }
    c.ai_family = hints.ai_family;
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
unsafe fn copied(bytes: *const c_void, length: usize) -> Result<*mut c_void, Errno> {
    let copy = libc::malloc(length.max(1));
    if copy.is_null() {
        return Err(Errno::NO_MEMORY);
    }
    copy.copy_from_nonoverlapping(bytes, length);
    Ok(copy)
}

unsafe fn copied_address(address: *const sockaddr, length: socklen_t) -> Result<(*mut sockaddr, socklen_t), Errno> {
    if address.is_null() || length == 0 {
        return Ok((null_mut(), 0));
    }
    if length as usize > size_of::<libc::sockaddr_storage>() {
        return Err(Errno::invalid("no address is that long"));
    }
    Ok((copied(address.cast(), length as usize)?.cast(), length))
}

unsafe fn copied_name(name: *const c_char) -> *mut c_char {
    if name.is_null() { null_mut() } else { libc::strdup(name) }
}

/// The first answer of the C library, in our words.
unsafe fn convert(out: &mut rdma_addrinfo, hints: Option<&rdma_addrinfo>, found: &addrinfo) -> Result<(), Errno> {
    let asked = |value: fn(&rdma_addrinfo) -> c_int| hints.map(value).filter(|value| *value != 0);
    let datagrams = found.ai_socktype == libc::SOCK_DGRAM;
    let (qp_type, space) =
        if datagrams { (abi::IBV_QPT_UD, abi::RDMA_PS_UDP) } else { (abi::IBV_QPT_RC, abi::RDMA_PS_TCP) };
    out.ai_family = found.ai_family;
    out.ai_qp_type = asked(|hints| hints.ai_qp_type).unwrap_or(qp_type as c_int);
    out.ai_port_space = asked(|hints| hints.ai_port_space).unwrap_or(space as c_int);
    let (address, length) = copied_address(found.ai_addr, found.ai_addrlen)?;
    if hints.is_some_and(|hints| hints.ai_flags as u32 & abi::RAI_PASSIVE != 0) {
        out.ai_flags = abi::RAI_PASSIVE as c_int;
        (out.ai_src_addr, out.ai_src_len) = (address, length);
        out.ai_src_canonname = copied_name(found.ai_canonname);
    } else {
        (out.ai_dst_addr, out.ai_dst_len) = (address, length);
        out.ai_dst_canonname = copied_name(found.ai_canonname);
    }
    Ok(())
}

/// Fills an answer; an error is one of errno, or one of the C library's for `gai_strerror`.
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
        (out.ai_dst_addr, out.ai_dst_len) = copied_address(hints.ai_dst_addr, hints.ai_dst_len).map_err(Err)?;
    } else {
        let c_hints = hints.map(|hints| hints_for_c(hints)).transpose().map_err(Ok)?;
        let mut list: *mut addrinfo = null_mut();
        let c_hints = c_hints.as_ref().map_or(null(), std::ptr::from_ref);
        let code = libc::getaddrinfo(node, service, c_hints, &raw mut list);
        if code != 0 {
            return Err(Ok(code));
        }
        let converted = match list.as_ref() {
            Some(first) => convert(out, hints, first),
            None => Err(Errno(libc::ENODATA)),
        };
        libc::freeaddrinfo(list);
        converted.map_err(Err)?;
    }
    if let Some(hints) = hints.filter(|_| out.ai_src_len == 0) {
        (out.ai_src_addr, out.ai_src_len) = copied_address(hints.ai_src_addr, hints.ai_src_len).map_err(Err)?;
    }
    Ok(())
}

/// Resolves a name and a service. Answers 0, -1 with errno, or a code for `gai_strerror`.
#[unsafe(export_name = "ubiverbs_rdma_getaddrinfo")]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    number("rdma_getaddrinfo", || {
        let hints = hints.as_ref();
        if result.is_null() || node.is_null() && service.is_null() && hints.is_none() {
            return Err(Errno::null());
        }
        if hca::Nic::of_process()?.shown_devices().is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        let out = libc::calloc(1, size_of::<rdma_addrinfo>()).cast::<rdma_addrinfo>();
        match fill(out.as_mut().ok_or(Errno::NO_MEMORY)?, node, service, hints) {
            Ok(()) => {
                result.write(out);
                Ok(0)
            }
            Err(failed) => {
                free(out);
                failed
            }
        }
    })
}

unsafe fn free(mut list: *mut rdma_addrinfo) {
    while let Some(entry) = list.as_ref() {
        let next = entry.ai_next;
        for part in [
            entry.ai_src_addr.cast::<c_void>(),
            entry.ai_dst_addr.cast(),
            entry.ai_src_canonname.cast(),
            entry.ai_dst_canonname.cast(),
            entry.ai_route,
            entry.ai_connect,
        ] {
            libc::free(part);
        }
        libc::free(list.cast());
        list = next;
    }
}

/// Frees what `rdma_getaddrinfo` answered.
#[unsafe(export_name = "ubiverbs_rdma_freeaddrinfo")]
pub unsafe extern "C" fn rdma_freeaddrinfo(list: *mut rdma_addrinfo) {
    quietly("rdma_freeaddrinfo", || {
        free(list);
        Ok(())
    });
}
