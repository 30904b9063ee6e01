//! Address handles: the way to a peer, as a program writes it down or as it came with a datagram.

use crate::boundary::{object, status, zero};
use crate::context::{Context, port_of};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, program_field};
use crate::protection_domain::Pd;
use abi::{Handle, In, Out, Owned, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_pd, ibv_wc};
use profiles::Feature;
use std::ffi::c_int;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trace::Call;
use transport::AddressVector;
use wire::Gid;

/// Address handles of an opened device. They take nothing but memory; a program with so many forgets to destroy them.
pub(crate) const MAX_AH: u32 = 1 << 20;

/// An address handle.
#[repr(C)]
pub struct AddressHandle {
    base: ibv_ah,
    pub(crate) vector: AddressVector,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for AddressHandle {
    type C = ibv_ah;

    fn has_its_handle(&self) -> bool {
        program_field!(self.base, handle) == 0
    }
}

/// That there is no GID at an index of the table, and where there are some.
struct EmptyEntry<'a>(&'a hca::Device, u8);

impl fmt::Display for EmptyEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EmptyEntry(device, index) = self;
        write!(f, "grh.sgid_index is {index}, an empty entry of the GID table of {}; ", device.port_name())?;
        write!(f, "it has GIDs at")?;
        for index in (0..=u8::MAX).filter(|index| device.port().gid(*index).is_some()) {
            write!(f, " {index}")?;
        }
        Ok(())
    }
}

/// An address of C's, which must lead somewhere: over a port of this device, from an address
/// that the port has, to a GID.
pub(crate) fn vector_from_c(device: &Arc<hca::Device>, attributes: &ibv_ah_attr) -> Result<AddressVector, Errno> {
    let route = &attributes.grh;
    refuse_if!(attributes.is_global == 0, Errno::invalid("is_global is 0: on RoCE a peer is found by its GID alone"));
    // Whether port 0 will do, the transport says.
    let device = port_of(device, attributes.port_num.max(1).into())?;
    refuse_if!(device.port().gid(route.sgid_index).is_none(), Errno::invalid(EmptyEntry(device, route.sgid_index)));
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
pub extern "C" fn ibv_create_ah(pd: Handle<'_, ibv_pd>, attributes: In<'_, ibv_ah_attr>) -> *mut ibv_ah {
    object("ibv_create_ah", || {
        let domain = Pd::by_handle(pd)?;
        let context = domain.context()?;
        context.opened.device().offers(Feature::CreateAh)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let device = context.port(attributes.port_num.into())?;
        let vector = vector_from_c(context.opened.device(), attributes)?;
        let (from, to) = (device.port().gid(vector.sgid_index).map(Gid::to_ip), vector.dgid.to_ip());
        if let Some(from) = from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
            let is_on_link = matches!(to, IpAddr::V6(to) if to.is_unicast_link_local());
            let scope = if is_on_link { device.interface_index() } else { 0 };
            // As with kernels: a wrong address is an error where it is given.
            context.opened.nic.await_neighbour(from, to, scope)?;
        }
        context.opened.nic.tell_path(device, &vector);
        let count = &domain.opened.address_handles;
        let more = |count: u32| (count < MAX_AH).then_some(count + 1);
        if count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            return Err(Errno::no_memory("the opened device has max_ah address handles"));
        }
        domain.join();
        let base = ibv_ah { context: context.as_c(), pd: pd.as_ptr(), handle: 0 };
        let ah = Box::new(AddressHandle { base, vector }).into_c();
        let (number, pd, dgid) = (ah.addr() as u64, domain.domain.0, vector.dgid.octets());
        domain.opened.nic.called(None, || Call::CreateAh { ah: number, pd, dgid });
        Ok(ah)
    })
}

/// Frees an address handle.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_ah(ah: Owned<'_, ibv_ah>) -> c_int {
    status("ibv_destroy_ah", || {
        let pd = AddressHandle::given_back(&ah)?.base.pd;
        // SAFETY: the domain of the handle, which is not deallocated before it.
        let opened = &Pd::of(unsafe { Handle::new(pd) })?.opened;
        opened.address_handles.fetch_sub(1, Ordering::AcqRel);
        opened.nic.called(None, || Call::DestroyAh { ah: ah.handle().as_ptr().addr() as u64 });
        // SAFETY: as above.
        unsafe { Pd::leave(pd) };
        drop(AddressHandle::from_c(ah)?);
        Ok(())
    })
}

/// From which address a datagram came, and to which, by the forty bytes before it.
struct DatagramRoute {
    source: Gid,
    destination: Gid,
    traffic_class: u8,
    flow_label: u32,
}

/// Reads the forty bytes: an IPv6 header, or an IPv4 header in the last twenty.
fn parse_grh(bytes: &[u8; 40]) -> Option<DatagramRoute> {
    let [.., a, b, c, d, e, f, g, h] = *bytes;
    let ipv4_source = Ipv4Addr::new(a, b, c, d);
    let ipv4_destination = Ipv4Addr::new(e, f, g, h);
    if bytes[20] == 0x45 && ipv4_checksum_is_right(&bytes[20..]) {
        return Some(DatagramRoute {
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
    Some(DatagramRoute {
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
    let device = context.port(port.into())?;
    if completion.wc_flags & abi::IBV_WC_GRH == 0 {
        return Err(Errno::invalid("the completion has no GRH, so it does not say who sent the message"));
    }
    let unreadable = || Errno::invalid("the first 40 bytes of the buffer are neither an IPv6 nor an IPv4 header");
    let route = grh.and_then(parse_grh).ok_or_else(unreadable)?;
    let gids = device.port().gids.clone();
    let same_family = |gid: &Gid| gid.to_ip().is_ipv4() == route.destination.to_ip().is_ipv4();
    let exact = gids.iter().position(|gid| *gid == Some(route.destination));
    // A multicast came to no address of this device; any of the family will do.
    let index = exact.or_else(|| gids.iter().position(|gid| gid.as_ref().is_some_and(same_family)));
    let mut attributes = ibv_ah_attr::zeroed();
    attributes.is_global = 1;
    attributes.port_num = port;
    attributes.sl = completion.sl;
    attributes.grh.dgid = gid_to_c(route.source);
    attributes.grh.sgid_index = index.ok_or(Errno::INVALID)? as u8;
    attributes.grh.flow_label = route.flow_label;
    attributes.grh.traffic_class = route.traffic_class;
    attributes.grh.hop_limit = 0xff;
    Ok(attributes)
}

/// The address of a datagram's sender.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_init_ah_from_wc(
    context: Handle<'_, ibv_context>,
    port: u8,
    completion: In<'_, ibv_wc>,
    grh: In<'_, [u8; 40]>,
    mut out: Out<'_, ibv_ah_attr>,
) -> c_int {
    zero("ibv_init_ah_from_wc", || {
        let context = Context::working(context)?;
        let completion = completion.as_ref().ok_or_else(Errno::null)?;
        let grh = grh.as_ref();
        out.write(address_of_sender(context, port, completion, grh)?).ok_or_else(Errno::null)
    })
}

/// An address handle for a datagram's sender.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_ah_from_wc(
    pd: Handle<'_, ibv_pd>,
    completion: In<'_, ibv_wc>,
    grh: In<'_, [u8; 40]>,
    port: u8,
) -> *mut ibv_ah {
    let mut attributes = None;
    let found = status("ibv_create_ah_from_wc", || {
        let context = Pd::of(pd)?.context()?;
        let completion = completion.as_ref().ok_or_else(Errno::null)?;
        let address = address_of_sender(context, port, completion, grh.as_ref())?;
        attributes = Some(address);
        Ok(())
    });
    match &attributes {
        Some(attributes) if found == 0 => ibv_create_ah(pd, attributes.into()),
        _ => std::ptr::null_mut(),
    }
}

/// A GID as C has it.
pub(crate) fn gid_to_c(gid: Gid) -> ibv_gid {
    ibv_gid { raw: gid.octets() }
}

/// A GID from C.
pub(crate) fn gid_from_c(gid: &ibv_gid) -> Gid {
    // SAFETY: any sixteen bytes are a GID.
    Gid::new(unsafe { gid.raw })
}
