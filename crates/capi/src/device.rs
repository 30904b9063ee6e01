//! Devices: the list, and what is known of a device without opening it.

use crate::boundary::{object, unreported, value};
use crate::errno::{Errno, refuse_if, with_sources};
use crate::log;
use crate::registry::PerProcess;
use abi::{Handle, Out, ibv_device};
use profiles::NodeType;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null;
use std::sync::Arc;

/// A device as C sees it, laid out so that providers of other hardware, which look behind the public part to see
/// whether it is theirs, find that it is not.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    base: Base,
    /// Where a provider would find its own table.
    ops: *const c_void,
    refcount: c_int,
    entry: [*const c_void; 2],
    sysfs: *const c_void,
    core_support: u64,
    /// The device of the NIC.
    pub device: Arc<hca::Device>,
}

/// The public part, which says nothing when printed.
#[repr(transparent)]
pub struct Base(ibv_device);

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ibv_device")
    }
}

// SAFETY: nothing changes after creation; the pointers are null.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Every device that was ever listed. They stay: programs keep pointers to devices after they have freed the list.
static KNOWN_DEVICES: PerProcess<Vec<&'static Device>> = PerProcess::new();

impl Device {
    /// The device behind a pointer from C. Unlike other objects it may be a parent's: a child opens it anew.
    pub(crate) fn of(handle: Handle<'_, ibv_device>) -> Result<&Device, Errno> {
        // SAFETY: null, or from `as_c` of a device, which is never freed; `base` is the first field of it.
        unsafe { handle.as_ptr().cast::<Device>().as_ref() }.ok_or_else(Errno::null)
    }

    /// The pointer C gets.
    pub(crate) fn as_c(&self) -> *mut ibv_device {
        (&raw const self.base).cast_mut().cast()
    }

    /// The one entry for a device of the NIC, made when it is first seen.
    pub(crate) fn known(device: &Arc<hca::Device>) -> &'static Device {
        let mut known = KNOWN_DEVICES.lock();
        let same = |entry: &&&'static Device| {
            Arc::ptr_eq(&entry.device, device)
                // After a fork the child's NIC has devices of its own, and the same names.
                || entry.device.name() == device.name()
                    && entry.device.number() == device.number()
                    // What is plugged in again is another device.
                    && !entry.device.has_failed()
        };
        if let Some(entry) = known.iter().find(same) {
            return entry;
        }
        let entry: &'static Device = Box::leak(Box::new(Device::new(Arc::clone(device), known.len())));
        known.push(entry);
        entry
    }

    fn new(device: Arc<hca::Device>, position: usize) -> Device {
        let mut base = ibv_device::zeroed();
        (base.node_type, base.transport_type) = node(&device);
        let uverbs = format!("uverbs{position}");
        copy_string(&mut base.name, device.name());
        copy_string(&mut base.dev_name, &uverbs);
        copy_string(&mut base.dev_path, &format!("/sys/class/infiniband_verbs/{uverbs}"));
        copy_string(&mut base.ibdev_path, &format!("/sys/class/infiniband/{}", device.name()));
        Device {
            base: Base(base),
            ops: null(),
            refcount: 1,
            entry: [null(); 2],
            sysfs: null(),
            core_support: 0,
            device,
        }
    }
}

/// What it is, and what it speaks: as the card that it is like.
fn node(device: &hca::Device) -> (c_int, c_int) {
    match device.profile().and_then(|profile| profile.node_type) {
        None | Some(NodeType::Ca) => (abi::IBV_NODE_CA as c_int, abi::IBV_TRANSPORT_IB as c_int),
        Some(NodeType::Rnic) => (abi::IBV_NODE_RNIC as c_int, abi::IBV_TRANSPORT_IWARP as c_int),
        Some(NodeType::Unspecified) => (abi::IBV_NODE_UNSPECIFIED as c_int, abi::IBV_TRANSPORT_UNSPECIFIED as c_int),
    }
}

/// Copies a string into a field of C, cut where the field ends.
pub(crate) fn copy_string(field: &mut [c_char], text: &str) {
    let room = field.len() - 1;
    for (to, from) in field.iter_mut().zip(text.bytes().take(room)) {
        *to = from as c_char;
    }
}

/// Copies a list to C's allocator, since C forgets its length.
pub(crate) fn c_array<T: Copy>(list: &[T]) -> Result<*mut T, Errno> {
    // SAFETY: takes a size and returns null or as many bytes, aligned for every type of C.
    let array = unsafe { libc::malloc(size_of_val(list)) }.cast::<T>();
    refuse_if!(array.is_null(), Errno::NO_MEMORY);
    // SAFETY: the array is new and as long as the list.
    unsafe { array.copy_from_nonoverlapping(list.as_ptr(), list.len()) };
    Ok(array)
}

/// The devices, as an array that ends with a null.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_list(mut count: Out<'_, c_int>) -> *mut *mut ibv_device {
    object("ibv_get_device_list", || {
        count.write(0);
        let nic = hca::Nic::of_process().inspect_err(|error| log::print(with_sources(error)))?;
        let devices = nic.shown_devices();
        let mut list: Vec<*mut ibv_device> = devices.iter().map(|device| Device::known(device).as_c()).collect();
        count.write(list.len() as c_int);
        list.push(std::ptr::null_mut());
        c_array(&list)
    })
}

/// Frees the array, not the devices.
///
/// # Safety
/// `list` is null or from [`ibv_get_device_list`], and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    unreported("ibv_free_device_list", || {
        // SAFETY: null, or from `malloc` by way of `c_array`, and the program has given it up.
        unsafe { libc::free(list.cast()) };
        Ok(())
    });
}

/// Its name.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_name(device: Handle<'_, ibv_device>) -> *const c_char {
    Device::of(device).map_or(null(), |device| device.base.0.name.as_ptr())
}

/// Its GUID, most significant byte first.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(device: Handle<'_, ibv_device>) -> u64 {
    value("ibv_get_device_guid", 0, || Device::of(device).map_or(0, |device| device.device.guid().to_be()))
}

/// A number that stays the same as long as the device exists.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(device: Handle<'_, ibv_device>) -> c_int {
    value("ibv_get_device_index", -1, || Device::of(device).map_or(-1, |device| device.device.number() as c_int))
}
