//! Which device a call means. Programs may leave out the name, and the port: then the first device will do. The rules
//! are those of the original, which prefers ports of InfiniBand and takes those of Ethernet where there are none.

use crate::errno::{Errno, with_sources};
use crate::log;
use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

/// The NIC and the devices that the program sees, in order.
pub(super) fn devices() -> Result<(Arc<hca::Nic>, Vec<Arc<hca::Device>>), Errno> {
    let nic = hca::Nic::of_process().inspect_err(|error| log::print(with_sources(error)))?;
    let devices = nic.shown_devices();
    Ok((nic, devices))
}

/// The device of that name.
pub(super) fn named<'a>(devices: &'a [Arc<hca::Device>], name: &CStr) -> Option<&'a Arc<hca::Device>> {
    devices.iter().find(|device| device.name().as_bytes() == name.to_bytes())
}

/// A name from C; none if it is null.
///
/// # Safety
/// It is null or a C string, which stays as it is during `'a`.
pub(super) unsafe fn name<'a>(name: *const c_char) -> Option<&'a CStr> {
    // SAFETY: not null, so a string.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
}

/// What a program named, or what it left to us to find.
pub(super) enum Found {
    /// This device and port, which need not exist.
    Named(c_int),
    /// The first port that will do, as a device.
    Device(Arc<hca::Device>),
}

/// Finds a device and a port, as far as they are not named. `port` is none for calls that are about a device alone.
pub(super) fn resolve(devices: &[Arc<hca::Device>], name: Option<&CStr>, port: Option<c_int>) -> Result<Found, Errno> {
    let no_device = || Err(Errno::of(libc::ENODEV));
    match (name, port) {
        (Some(_), None) => Ok(Found::Named(1)),
        (Some(_), Some(port)) if port != 0 => Ok(Found::Named(port)),
        // Ethernet is second choice, and a port that is disabled is none.
        (Some(name), _) => match named(devices, name).and_then(active_port) {
            Some(port) => Ok(Found::Device(port)),
            None => no_device(),
        },
        (None, _) if devices.is_empty() => no_device(),
        // A port by its number is looked for among those of InfiniBand only; a name that no device has is made up.
        (None, Some(port)) if port > 0 => Ok(Found::Named(port)),
        (None, _) => Ok(devices.iter().find_map(active_port).map_or(Found::Named(1), Found::Device)),
    }
}

/// The first port of a device that is active.
pub(super) fn active_port(device: &Arc<hca::Device>) -> Option<Arc<hca::Device>> {
    device.ports().find(|port| port.port().active).cloned()
}

/// The port to use, as a device; none where there is no such device or no such port.
pub(super) fn device(
    devices: &[Arc<hca::Device>],
    wanted: Option<&CStr>,
    port: Option<c_int>,
) -> Result<Option<Arc<hca::Device>>, Errno> {
    Ok(match resolve(devices, wanted, port)? {
        Found::Device(device) => Some(device),
        Found::Named(number) => {
            let device = wanted.and_then(|wanted| named(devices, wanted));
            device.and_then(|device| device.at_port(u8::try_from(number).ok()?)).cloned()
        }
    })
}
