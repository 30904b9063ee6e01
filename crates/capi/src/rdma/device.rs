//! The devices of the connection manager: each is opened once in a process, stays open, and is shared by all ids, which programs rely on (they compare
//! the pointers). Ids that name no protection domain share one, as long as any of them lives.

use crate::boundary::{object, quietly};
use crate::context::{Pointer, ibv_open_device, lock};
use crate::device::Device;
use crate::errno::Errno;
use crate::protection_domain::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::query::ibv_query_device;
use crate::registry::PerProcess;
use crate::xrc::{close_xrcd, open_xrcd};
use abi::{ibv_context, ibv_device_attr, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr};
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// A device that is open.
#[derive(Debug)]
pub(super) struct Opened {
    device: &'static Device,
    context: Pointer<ibv_context>,
    /// The most READs and atomics of a peer's that a queue pair answers at a time.
    pub max_responder_resources: u8,
    /// The most that a queue pair asks a peer for at a time.
    pub max_initiator_depth: u8,
    common: Mutex<Common>,
}

// SAFETY: the context is never closed and takes calls from all threads; the rest is behind a lock.
unsafe impl Sync for Opened {}

/// What ids share.
#[derive(Debug)]
struct Common {
    ids: u32,
    pd: Pointer<ibv_pd>,
    xrcd: Pointer<ibv_xrcd>,
}

static OPENED: PerProcess<Vec<&'static Opened>> = PerProcess::new();

impl Opened {
    /// The one for a device of the NIC.
    pub fn of(device: &Arc<hca::Device>) -> Result<&'static Opened, Errno> {
        let device = Device::known(device);
        let mut opened = OPENED.lock();
        if let Some(found) = opened.iter().find(|entry| std::ptr::eq(entry.device, device)) {
            return Ok(found);
        }
        // SAFETY: a device of ours; the place for its attributes is ours.
        let (context, attributes) = unsafe {
            let context = ibv_open_device(device.as_c());
            let mut attributes: ibv_device_attr = zeroed();
            if context.is_null() || ibv_query_device(context, &raw mut attributes) != 0 {
                return Err(Errno(libc::ENODEV));
            }
            (context, attributes)
        };
        let limit = |value: c_int| u8::try_from(value).unwrap_or(u8::MAX);
        let entry: &'static Opened = Box::leak(Box::new(Opened {
            device,
            context: Pointer(context),
            max_responder_resources: limit(attributes.max_qp_rd_atom),
            max_initiator_depth: limit(attributes.max_qp_init_rd_atom),
            common: Mutex::new(Common { ids: 0, pd: Pointer(null_mut()), xrcd: Pointer(null_mut()) }),
        }));
        opened.push(entry);
        Ok(entry)
    }

    /// The context that C gets.
    pub fn context(&self) -> *mut ibv_context {
        self.context.0
    }

    /// An id uses the device; answers the protection domain that it shares.
    pub fn join(&self) -> Result<*mut ibv_pd, Errno> {
        let mut common = lock(&self.common);
        if common.pd.0.is_null() {
            // SAFETY: the context stays open.
            common.pd.0 = unsafe { ibv_alloc_pd(self.context()) };
            if common.pd.0.is_null() {
                return Err(Errno::NO_MEMORY);
            }
        }
        common.ids += 1;
        Ok(common.pd.0)
    }

    /// The XRC domain that ids share.
    pub fn xrc_domain(&self) -> Result<*mut ibv_xrcd, Errno> {
        let mut common = lock(&self.common);
        if common.xrcd.0.is_null() {
            let comp_mask = abi::IBV_XRCD_INIT_ATTR_FD | abi::IBV_XRCD_INIT_ATTR_OFLAGS;
            let mut attributes = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
            // SAFETY: the context stays open.
            common.xrcd.0 = unsafe { open_xrcd(self.context(), &raw mut attributes) };
            if common.xrcd.0.is_null() {
                return Err(Errno::NO_MEMORY);
            }
        }
        Ok(common.xrcd.0)
    }

    /// An id is gone. With the last goes what they shared, unless a program still has something in it.
    pub fn leave(&self) {
        let mut common = lock(&self.common);
        common.ids = common.ids.saturating_sub(1);
        if common.ids > 0 {
            return;
        }
        // SAFETY: made above, and not yet given back. Both refuse if something is still in them, and stay for the next id then.
        unsafe {
            if !common.xrcd.0.is_null() && close_xrcd(common.xrcd.0) == 0 {
                common.xrcd.0 = null_mut();
            }
            if !common.pd.0.is_null() && ibv_dealloc_pd(common.pd.0) == 0 {
                common.pd.0 = null_mut();
            }
        }
    }
}

/// Every device, opened: an array that ends with a null. They stay open when it is freed.
#[unsafe(export_name = "ubiverbs_rdma_get_devices")]
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    object("rdma_get_devices", || {
        if let Some(count) = count.as_mut() {
            *count = 0;
        }
        let devices = hca::Nic::of_process()?.shown_devices();
        if devices.is_empty() {
            return Err(Errno(libc::ENODEV));
        }
        let opened: Result<Vec<_>, Errno> = devices.iter().map(|device| Ok(Opened::of(device)?.context())).collect();
        let mut list = opened?;
        if let Some(count) = count.as_mut() {
            *count = list.len() as c_int;
        }
        list.push(null_mut());
        let array = libc::malloc(size_of_val(&*list)).cast::<*mut ibv_context>();
        if array.is_null() {
            return Err(Errno::NO_MEMORY);
        }
        array.copy_from_nonoverlapping(list.as_ptr(), list.len());
        Ok(array)
    })
}

/// Frees the array.
#[unsafe(export_name = "ubiverbs_rdma_free_devices")]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    quietly("rdma_free_devices", || {
        libc::free(list.cast());
        Ok(())
    });
}
