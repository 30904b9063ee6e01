//! Pairs of devices for subnet and for general management, which releases after 44 know. Here both are the same device.

use super::resolve;
use crate::boundary::number;
use crate::device::copy_string;
use crate::errno::{Errno, refuse_if};
use abi::{UMAD_CA_NAME_LEN, umad_ca_pair};
use std::ffi::{c_char, c_int, c_uint};

fn pair_of(device: &hca::Device, port: u32) -> umad_ca_pair {
    let mut name = [0; UMAD_CA_NAME_LEN];
    copy_string(&mut name, device.name());
    umad_ca_pair { smi_name: name, smi_preferred_port: port, gsi_name: name, gsi_preferred_port: port }
}

/// The pairs of this host, in alphabetical order; how many, or -1.
///
/// # Safety
/// `pairs` is null or has room for `max`.
#[unsafe(export_name = "ubiverbs_umad_get_smi_gsi_pairs")]
pub unsafe extern "C" fn umad_get_smi_gsi_pairs(pairs: *mut umad_ca_pair, max: usize) -> c_int {
    number("umad_get_smi_gsi_pairs", || {
        refuse_if!(pairs.is_null(), Errno::null());
        let (_, mut devices) = resolve::devices()?;
        devices.sort_by(|one, other| one.name().cmp(other.name()));
        // A port without address has no GUID to tell it by.
        let usable = devices.iter().filter(|device| device.ports().any(|port| port.port().gid(0).is_some()));
        let mut count = 0;
        for (at, device) in usable.take(max).enumerate() {
            // SAFETY: fewer than there is room for.
            unsafe { pairs.add(at).write(pair_of(device, 0)) };
            count += 1;
        }
        Ok(count)
    })
}

/// The pair with a device of that name and a port of that number, or the first; 0, or a negative errno.
///
/// # Safety
/// `name` is null or a C string; `pair` is null or has room for one.
#[unsafe(export_name = "ubiverbs_umad_get_smi_gsi_pair_by_ca_name")]
pub unsafe extern "C" fn umad_get_smi_gsi_pair_by_ca_name(
    name: *const c_char,
    port: u8,
    pair: *mut umad_ca_pair,
    _enforce_smi: c_uint,
) -> c_int {
    if pair.is_null() {
        return -1;
    }
    super::negative("umad_get_smi_gsi_pair_by_ca_name", || {
        let (_, mut devices) = resolve::devices()?;
        devices.sort_by(|one, other| one.name().cmp(other.name()));
        // SAFETY: null or a string, says the caller.
        let wanted = unsafe { resolve::name(name) };
        let fits = |device: &&std::sync::Arc<hca::Device>| match wanted {
            Some(wanted) => wanted.to_bytes() == device.name().as_bytes(),
            None => resolve::active_port(device).is_some(),
        };
        let number = if port == 0 { 1 } else { port };
        let device = devices.iter().find(fits).and_then(|device| device.at_port(number));
        let device = device.ok_or(Errno::of(libc::ENODEV))?;
        // SAFETY: not null, so with room for one.
        unsafe { pair.write(pair_of(device, number.into())) };
        Ok(0)
    })
}
