//! Devices and ports as programs of management see them: lists of names, and what the kernel's files would say.

use super::negative;
use super::resolve;
use crate::boundary::{caught, number, report};
use crate::device::copy_string;
use crate::errno::{Errno, refuse_if};
use abi::{InOut, Out, UMAD_CA_NAME_LEN, umad_ca, umad_device_node, umad_port};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use wire::Pkey;

/// The kind of node of a network adapter.
const ADAPTER_NODE: c_uint = 1;

/// What the port can do, as `ibv_query_port` says: connection management, and GIDs that are IP addresses.
const PORT_CAPABILITIES: u32 = abi::IBV_PORT_CM_SUP | abi::IBV_PORT_IP_BASED_GIDS;

/// The rate, in Gbit/s: that of four lanes of 25.
const RATE_GBITS: c_uint = 100;

/// Does nothing: the library needs no preparation.
#[unsafe(export_name = "ubiverbs_umad_init")]
pub extern "C" fn umad_init() -> c_int {
    0
}

/// Does nothing: there is nothing to clean up.
#[unsafe(export_name = "ubiverbs_umad_done")]
pub extern "C" fn umad_done() -> c_int {
    0
}

/// The names of at most `max` devices, in alphabetical order; how many, or -1.
///
/// # Safety
/// `names` is null or has room for `max` names.
#[unsafe(export_name = "ubiverbs_umad_get_cas_names")]
pub unsafe extern "C" fn umad_get_cas_names(names: *mut [c_char; UMAD_CA_NAME_LEN], max: c_int) -> c_int {
    number("umad_get_cas_names", || {
        refuse_if!(names.is_null(), Errno::null());
        let (_, devices) = resolve::devices()?;
        let mut known: Vec<&str> =
            devices.iter().map(|device| device.name()).filter(|name| name.len() < UMAD_CA_NAME_LEN).collect();
        known.sort_unstable();
        known.truncate(usize::try_from(max).unwrap_or(0));
        for (at, name) in known.iter().enumerate() {
            let mut text = [0; UMAD_CA_NAME_LEN];
            copy_string(&mut text, name);
            // SAFETY: fewer names than there is room for.
            unsafe { names.add(at).write(text) };
        }
        Ok(known.len() as c_int)
    })
}

/// Zeros from C's allocator, since C's `free` gives them back.
pub(super) fn zeroed<T>(count: usize) -> Result<*mut T, Errno> {
    // SAFETY: numbers; the answer is null or as many bytes, aligned for every type of C.
    let place = unsafe { libc::calloc(count, size_of::<T>()) }.cast::<T>();
    if place.is_null() { Err(Errno::NO_MEMORY) } else { Ok(place) }
}

/// What is known of a port. Its partition keys are C's to free.
fn port_of(device: &hca::Device) -> Result<umad_port, Errno> {
    let pkeys = zeroed::<u16>(1)?;
    // SAFETY: room for one.
    unsafe { pkeys.write(Pkey::DEFAULT.value()) };
    let mut port = umad_port::zeroed();
    let now = device.port();
    copy_string(&mut port.ca_name, device.name());
    port.portnum = device.port_number().into();
    port.state = if now.active { abi::IBV_PORT_ACTIVE } else { abi::IBV_PORT_DOWN } as c_uint;
    // Link up, or disabled.
    port.phys_state = if now.active { 5 } else { 3 };
    port.rate = RATE_GBITS;
    port.capmask = PORT_CAPABILITIES.to_be();
    let gid = now.gid(0).unwrap_or_default().octets();
    let half = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    port.gid_prefix = half(gid.first_chunk());
    port.port_guid = half(gid.last_chunk());
    port.pkeys_size = 1;
    port.pkeys = pkeys;
    copy_string(&mut port.link_layer, "Ethernet");
    Ok(port)
}

/// What is known of a device and its ports.
pub(super) fn ca_of(device: &Arc<hca::Device>) -> Result<umad_ca, Errno> {
    let mut ca = umad_ca::zeroed();
    copy_string(&mut ca.ca_name, device.name());
    ca.node_type = ADAPTER_NODE;
    ca.numports = device.port_count().into();
    copy_string(&mut ca.fw_ver, env!("CARGO_PKG_VERSION"));
    copy_string(&mut ca.ca_type, "ubiverbs");
    copy_string(&mut ca.hw_ver, "0x1");
    ca.node_guid = device.guid().to_be();
    ca.system_guid = device.guid().to_be();
    // Port 0 is that of switches.
    for (place, port) in ca.ports.iter_mut().skip(1).zip(device.ports()) {
        match allocated(port) {
            Ok(port) => *place = port,
            Err(error) => {
                release(&mut ca);
                return Err(error);
            }
        }
    }
    Ok(ca)
}

/// A port in memory of C's allocator.
fn allocated(device: &hca::Device) -> Result<*mut umad_port, Errno> {
    let port = zeroed::<umad_port>(1)?;
    match port_of(device) {
        // SAFETY: new, with room for one.
        Ok(known) => unsafe { port.write(known) },
        Err(error) => {
            // SAFETY: from `calloc`, and nobody has seen it.
            unsafe { libc::free(port.cast()) };
            return Err(error);
        }
    }
    Ok(port)
}

/// A device with its ports.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(export_name = "ubiverbs_umad_get_ca")]
pub unsafe extern "C" fn umad_get_ca(name: *const c_char, mut ca: Out<'_, umad_ca>) -> c_int {
    negative("umad_get_ca", || {
        refuse_if!(ca.is_null(), Errno::null());
        let (_, devices) = resolve::devices()?;
        // SAFETY: null or a string, says the caller.
        let wanted = unsafe { resolve::name(name) };
        let device = resolve::device(&devices, wanted, None)?.ok_or(Errno::of(libc::ENOENT))?;
        ca.write(ca_of(&device)?);
        Ok(0)
    })
}

/// Gives back what `umad_get_ca` allocated.
#[unsafe(export_name = "ubiverbs_umad_release_ca")]
pub extern "C" fn umad_release_ca(ca: InOut<'_, umad_ca>) -> c_int {
    negative("umad_release_ca", || {
        let ca = ca.as_mut().ok_or(Errno::of(libc::ENODEV))?;
        release(ca);
        Ok(0)
    })
}

/// Frees the ports of a device.
pub(super) fn release(ca: &mut umad_ca) {
    for port in &mut ca.ports {
        if !port.is_null() {
            // SAFETY: from `ca_of`: a port and its keys, both from `calloc`, and freed once, as the pointer is taken.
            unsafe {
                libc::free((**port).pkeys.cast());
                libc::free((*port).cast());
            }
            *port = null_mut();
        }
    }
}

/// A port.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(export_name = "ubiverbs_umad_get_port")]
pub unsafe extern "C" fn umad_get_port(name: *const c_char, number: c_int, mut port: Out<'_, umad_port>) -> c_int {
    negative("umad_get_port", || {
        refuse_if!(port.is_null(), Errno::null());
        let (_, devices) = resolve::devices()?;
        // SAFETY: null or a string, says the caller.
        let wanted = unsafe { resolve::name(name) };
        let device = resolve::device(&devices, wanted, Some(number))?.ok_or(Errno::of(libc::EIO))?;
        port.write(port_of(&device)?);
        Ok(0)
    })
}

/// Gives back what `umad_get_port` allocated.
#[unsafe(export_name = "ubiverbs_umad_release_port")]
pub extern "C" fn umad_release_port(port: InOut<'_, umad_port>) -> c_int {
    negative("umad_release_port", || {
        let port = port.as_mut().ok_or(Errno::of(libc::ENODEV))?;
        // SAFETY: null, or from `port_of` by way of `calloc`, and freed once, as the pointer is taken.
        unsafe { libc::free(std::mem::replace(&mut port.pkeys, null_mut()).cast()) };
        port.pkeys_size = 0;
        Ok(0)
    })
}

/// The GUIDs of a device's ports, by number; how many, or a negative errno.
///
/// # Safety
/// `name` is null or a C string; `guids` is null or has room for `max`.
#[unsafe(export_name = "ubiverbs_umad_get_ca_portguids")]
pub unsafe extern "C" fn umad_get_ca_portguids(name: *const c_char, guids: *mut u64, max: c_int) -> c_int {
    negative("umad_get_ca_portguids", || {
        let (_, devices) = resolve::devices()?;
        // SAFETY: null or a string, says the caller.
        let wanted = unsafe { resolve::name(name) };
        // The original says -1 for a device that is not there.
        let device = resolve::device(&devices, wanted, None)?.ok_or(Errno::of(libc::EPERM))?;
        if guids.is_null() {
            return Ok(0);
        }
        // Port 0 is that of switches.
        let count = c_int::from(device.port_count()) + 1;
        refuse_if!(max < count, Errno::NO_MEMORY);
        // SAFETY: not null, so with room for `max`, which is no less than was counted.
        unsafe { guids.write_unaligned(0) };
        for (at, port) in (1..).zip(device.ports()) {
            let gid = port.port().gid(0).unwrap_or_default().octets();
            let guid = gid.last_chunk::<8>().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            // SAFETY: as above.
            unsafe { guids.add(at).write_unaligned(guid) };
        }
        Ok(count)
    })
}

/// Where the file would be that makes a port the subnet manager's.
///
/// # Safety
/// `name` is null or a C string; `path` is null or has room for `max` characters.
#[unsafe(export_name = "ubiverbs_umad_get_issm_path")]
pub unsafe extern "C" fn umad_get_issm_path(
    name: *const c_char,
    number: c_int,
    path: *mut c_char,
    max: c_int,
) -> c_int {
    negative("umad_get_issm_path", || {
        let room = usize::try_from(max).unwrap_or(0);
        refuse_if!(path.is_null() || room == 0, Errno::null());
        let (_, devices) = resolve::devices()?;
        // SAFETY: null or a string, says the caller.
        let wanted = unsafe { resolve::name(name) };
        let device = resolve::device(&devices, wanted, Some(number))?.ok_or(Errno::INVALID)?;
        // The files are counted as ports are.
        let at = devices.iter().flat_map(|known| known.ports()).position(|known| Arc::ptr_eq(known, &device));
        let at = at.unwrap_or(0);
        let text = format!("/dev/infiniband/issm{at}");
        // SAFETY: room for `max` characters, the zero at the end included.
        let field = unsafe { std::slice::from_raw_parts_mut(path, room) };
        field.fill(0);
        copy_string(field, &text);
        Ok(0)
    })
}

/// The names of all devices, as a list.
#[unsafe(export_name = "ubiverbs_umad_get_ca_device_list")]
pub extern "C" fn umad_get_ca_device_list() -> *mut umad_device_node {
    let list = caught("umad_get_ca_device_list", || {
        let (_, devices) = resolve::devices()?;
        let mut next: *mut umad_device_node = null_mut();
        for device in devices.iter().rev() {
            let name = device.name().as_bytes();
            // The name stands behind the node, and goes with it. One more for the zero.
            let more = (name.len() + 1).div_ceil(size_of::<umad_device_node>());
            let node = match zeroed::<umad_device_node>(1 + more) {
                Ok(node) => node,
                Err(error) => {
                    // SAFETY: our own list, of which nobody has heard.
                    unsafe { free_list(next) };
                    return Err(error);
                }
            };
            // SAFETY: room for a node, the name and a zero.
            unsafe {
                let text = node.add(1).cast::<u8>();
                text.copy_from_nonoverlapping(name.as_ptr(), name.len());
                node.write(umad_device_node { next, ca_name: text.cast() });
            }
            next = node;
        }
        Ok(next)
    });
    let list = list.inspect_err(|error| {
        report(*error);
    });
    if list.is_ok() {
        // An empty list is no error, and programs look at errno to tell.
        report(Errno::of(0));
    }
    list.unwrap_or(null_mut())
}

/// # Safety
/// It is null, or a list of this library that nobody uses any more.
unsafe fn free_list(mut node: *mut umad_device_node) {
    while !node.is_null() {
        // SAFETY: a node from `calloc`, freed after its successor was read.
        unsafe {
            let next = (*node).next;
            libc::free(node.cast::<c_void>());
            node = next;
        }
    }
}

/// Frees the list.
///
/// # Safety
/// `head` is null or from [`umad_get_ca_device_list`], and not used any more.
#[unsafe(export_name = "ubiverbs_umad_free_ca_device_list")]
pub unsafe extern "C" fn umad_free_ca_device_list(head: *mut umad_device_node) {
    // SAFETY: null, or a list of ours that nothing uses any more.
    unsafe { free_list(head) };
}

/// Puts the list into alphabetical order. `size` is 0, or how many nodes the list has.
///
/// # Safety
/// `head` is null or points to a list of [`umad_get_ca_device_list`].
#[unsafe(export_name = "ubiverbs_umad_sort_ca_device_list")]
pub unsafe extern "C" fn umad_sort_ca_device_list(head: *mut *mut umad_device_node, size: usize) -> c_int {
    crate::boundary::status("umad_sort_ca_device_list", || {
        refuse_if!(head.is_null(), Errno::null());
        let mut nodes = Vec::new();
        // SAFETY: a list whose nodes and names live; it is changed below, after it was read.
        unsafe {
            let mut node = *head;
            while !node.is_null() {
                nodes.push(node);
                node = (*node).next;
            }
        }
        refuse_if!(size != 0 && size != nodes.len(), Errno::INVALID);
        // SAFETY: nodes of the list, whose names are strings.
        nodes.sort_by_key(|node| unsafe { CStr::from_ptr((**node).ca_name) });
        let mut next = null_mut();
        for node in nodes.into_iter().rev() {
            // SAFETY: a node of the list.
            unsafe { (*node).next = next };
            next = node;
        }
        // SAFETY: not null, so the place of the list's head.
        unsafe { *head = next };
        Ok(())
    })
}
