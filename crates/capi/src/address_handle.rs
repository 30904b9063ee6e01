//! Address handles: the way to a peer, as a program writes it down or as it came with a datagram.

use crate::boundary::{number, object, status};
use crate::context::Context;
use crate::errno::Errno;
use crate::memory_region::context_of;
use crate::protection_domain::Pd;
use crate::query::{gid_from_c, gid_to_c};
use abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_global_route, ibv_grh, ibv_pd, ibv_wc};
use std::ffi::c_int;
use std::fmt;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr};
use transport::AddressVector;
use wire::Gid;

/// An address handle.
#[repr(C)]
pub struct AddressHandle {
    base: ibv_ah,
    pub(crate) vector: AddressVector,
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").field("vector", &self.vector).finish_non_exhaustive()
    }
}

impl AddressHandle {
    /// The handle behind a pointer from C.
    pub(crate) unsafe fn of<'a>(ah: *mut ibv_ah) -> Result<&'a AddressHandle, Errno> {
        ah.cast::<AddressHandle>().as_ref().ok_or_else(Errno::null)
    }
}

/// An address of C's, which must lead somewhere: over this device's port, from an address it has, to a GID.
pub(crate) fn vector_from_c(device: &hca::Device, attributes: &ibv_ah_attr) -> Result<AddressVector, Errno> {
    let route = &attributes.grh;
    if attributes.is_global == 0 {
        return Err(Errno::invalid("is_global is 0: on RoCE a peer is found by its GID alone"));
    }
    if device.port().gid(route.sgid_index).is_none() {
        return Err(Errno::invalid("grh.sgid_index is an empty entry of the GID table"));
    }
    if attributes.port_num > 1 {
        return Err(Errno::invalid("the device has one port, number 1"));
    }
    Ok(AddressVector {
        dgid: gid_from_c(&route.dgid),
        sgid_index: route.sgid_index,
        flow_label: route.flow_label,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        service_level: attributes.sl,
        port: attributes.port_num,
        static_rate: attributes.static_rate,
        dlid: attributes.dlid,
        src_path_bits: attributes.src_path_bits,
        is_global: true,
    })
}

/// An address as C has it.
pub(crate) fn vector_to_c(vector: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: gid_to_c(vector.dgid),
            flow_label: vector.flow_label,
            sgid_index: vector.sgid_index,
            hop_limit: vector.hop_limit,
            traffic_class: vector.traffic_class,
        },
        dlid: vector.dlid,
        sl: vector.service_level,
        src_path_bits: vector.src_path_bits,
        static_rate: vector.static_rate,
        is_global: vector.is_global.into(),
        port_num: vector.port,
    }
}

/// A new address handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah {
    object("ibv_create_ah", || {
        let (context, domain) = (context_of(pd)?, Pd::of(pd)?);
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        if attributes.port_num != 1 {
            return Err(Errno::invalid("the device has one port, number 1"));
        }
        let vector = vector_from_c(context.shared.device(), attributes)?;
        domain.join();
        let base = ibv_ah { context: context.as_c(), pd, handle: 0 };
        Ok(Box::into_raw(Box::new(AddressHandle { base, vector })).cast())
    })
}

/// Frees an address handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    status("ibv_destroy_ah", || {
        Pd::leave(AddressHandle::of(ah)?.base.pd);
        drop(Box::from_raw(ah.cast::<AddressHandle>()));
        Ok(())
    })
}

/// Who sent a datagram, and to which address, by the forty bytes before it.
struct Envelope {
    source: Gid,
    destination: Gid,
    traffic_class: u8,
    flow_label: u32,
}

/// Reads the forty bytes: an IPv6 header, or an IPv4 header in the last twenty.
fn envelope(bytes: &[u8; 40]) -> Option<Envelope> {
    let [.., a, b, c, d, e, f, g, h] = *bytes;
    let ipv4_source = Ipv4Addr::new(a, b, c, d);
    let ipv4_destination = Ipv4Addr::new(e, f, g, h);
    if bytes[20] == 0x45 && ipv4_checksum_is_right(&bytes[20..]) {
        return Some(Envelope {
            source: Gid::from_ip(IpAddr::V4(ipv4_source)),
            destination: Gid::from_ip(IpAddr::V4(ipv4_destination)),
            traffic_class: bytes[21],
            flow_label: 0,
        });
    }
    if bytes[0] >> 4 != 6 {
        return None;
    }
    let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let gid = |at: usize| bytes[at..at + 16].try_into().map(Gid::new).ok();
    Some(Envelope {
        source: gid(8)?,
        destination: gid(24)?,
        traffic_class: (first >> 20) as u8,
        flow_label: first & 0xf_ffff,
    })
}

fn ipv4_checksum_is_right(header: &[u8]) -> bool {
    let sum: u32 = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    // A device that does not see the checksum leaves it zero.
    folded == 0xffff || (header[10], header[11]) == (0, 0)
}

fn address_of_sender(
    context: &Context,
    port: u8,
    completion: &ibv_wc,
    grh: Option<&[u8; 40]>,
) -> Result<ibv_ah_attr, Errno> {
    if port != 1 || completion.wc_flags & abi::IBV_WC_GRH == 0 {
        return Err(Errno::invalid("the completion has no GRH, so it does not say who sent the message"));
    }
    let unreadable = || Errno::invalid("the first 40 bytes of the buffer are neither an IPv6 nor an IPv4 header");
    let envelope = grh.and_then(envelope).ok_or_else(unreadable)?;
    let gids = context.shared.device().port().gids.clone();
    let same_family = |gid: &Gid| gid.to_ip().is_ipv4() == envelope.destination.to_ip().is_ipv4();
    let exact = gids.iter().position(|gid| *gid == Some(envelope.destination));
    // A multicast came to no address of ours; any of the family will do.
    let index = exact.or_else(|| gids.iter().position(|gid| gid.as_ref().is_some_and(same_family)));
    // SAFETY: all zeros are numbers.
    let mut attributes: ibv_ah_attr = unsafe { zeroed() };
    attributes.is_global = 1;
    attributes.port_num = port;
    attributes.sl = completion.sl;
    attributes.grh.dgid = gid_to_c(envelope.source);
    attributes.grh.sgid_index = index.ok_or(Errno::INVALID)? as u8;
    attributes.grh.flow_label = envelope.flow_label;
    attributes.grh.traffic_class = envelope.traffic_class;
    attributes.grh.hop_limit = 0xff;
    Ok(attributes)
}

/// The address of a datagram's sender.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    completion: *mut ibv_wc,
    grh: *mut ibv_grh,
    out: *mut ibv_ah_attr,
) -> c_int {
    number("ibv_init_ah_from_wc", || {
        let context = Context::of(context)?;
        let completion = completion.as_ref().ok_or_else(Errno::null)?;
        let grh = grh.cast::<[u8; 40]>().as_ref();
        *out.as_mut().ok_or_else(Errno::null)? = address_of_sender(context, port, completion, grh)?;
        Ok(0)
    })
}

/// An address handle for a datagram's sender.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    completion: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let mut attributes = None;
    let found = object("ibv_create_ah_from_wc", || {
        let context = context_of(pd)?;
        let completion = completion.as_ref().ok_or_else(Errno::null)?;
        let address = address_of_sender(context, port, completion, grh.cast::<[u8; 40]>().as_ref())?;
        Ok(&raw mut *attributes.insert(address))
    });
    if found.is_null() { std::ptr::null_mut() } else { ibv_create_ah(pd, found) }
}
