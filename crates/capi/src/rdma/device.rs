//! The devices of the connection manager: each is opened once in a process, stays open, and is shared by all ids, which
//! programs rely on (they compare the pointers). Ids that name no protection domain share one, as long as any of them
//! lives.

use crate::boundary::{object, unreported};
use crate::device::{Device, c_array};
use crate::errno::{Errno, refuse_if};
use crate::open::ibv_open_device;
use crate::protection_domain::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::query::ibv_query_device;
use crate::registry::{PerProcess, Pointer, lock};
use crate::xrc::{close_xrcd, open_xrcd};
use abi::{Handle, Out, Owned, ibv_context, ibv_device_attr, ibv_pd, ibv_xrcd, ibv_xrcd_init_attr};
use hca::OwnCalls;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// A device that is open.
#[derive(Debug)]
pub(super) struct CmDevice {
    device: &'static Device,
    context: Pointer<ibv_context>,
    /// The most READs and atomics of a peer's that a queue pair answers at a time.
    pub max_responder_resources: u8,
    /// The most that a queue pair asks a peer for at a time.
    pub max_initiator_depth: u8,
    common: Mutex<SharedObjects>,
}

// SAFETY: the context is never closed and takes calls from all threads; the rest is behind a lock.
unsafe impl Sync for CmDevice {}

/// What ids share.
#[derive(Debug)]
struct SharedObjects {
    ids: u32,
    pd: Pointer<ibv_pd>,
    xrcd: Pointer<ibv_xrcd>,
}

static CM_DEVICES: PerProcess<Vec<&'static CmDevice>> = PerProcess::new();

impl CmDevice {
    /// The one for a device of the NIC.
    pub fn of(device: &Arc<hca::Device>) -> Result<&'static CmDevice, Errno> {
        let device = Device::known(device);
        let mut opened = CM_DEVICES.lock();
        if let Some(found) = opened.iter().find(|entry| std::ptr::eq(entry.device, device)) {
            return Ok(found);
        }
        // All ids share it, and it is never closed.
        let _own = OwnCalls::begin();
        // SAFETY: a device of the library, which is never freed.
        let context = ibv_open_device(unsafe { Handle::new(device.as_c()) });
        let mut attributes = ibv_device_attr::zeroed();
        // SAFETY: null, or a context that was just opened.
        if ibv_query_device(unsafe { Handle::new(context) }, (&mut attributes).into()) != 0 {
            return Err(Errno::of(libc::ENODEV));
        }
        let limit = |value: c_int| u8::try_from(value).unwrap_or(u8::MAX);
        let entry: &'static CmDevice = Box::leak(Box::new(CmDevice {
            device,
            context: Pointer(context),
            max_responder_resources: limit(attributes.max_qp_rd_atom),
            max_initiator_depth: limit(attributes.max_qp_init_rd_atom),
            common: Mutex::new(SharedObjects { ids: 0, pd: Pointer(null_mut()), xrcd: Pointer(null_mut()) }),
        }));
        opened.push(entry);
        Ok(entry)
    }

    /// The context that C gets.
    pub fn context(&self) -> Handle<'static, ibv_context> {
        // SAFETY: opened when this was made, and never closed.
        unsafe { Handle::new(self.context.0) }
    }

    /// An id uses the device; returns the protection domain that it shares.
    pub fn join(&self) -> Result<*mut ibv_pd, Errno> {
        let mut common = lock(&self.common);
        if common.pd.0.is_null() {
            let _own = OwnCalls::begin();
            common.pd.0 = ibv_alloc_pd(self.context());
            refuse_if!(common.pd.0.is_null(), Errno::NO_MEMORY);
        }
        common.ids += 1;
        Ok(common.pd.0)
    }

    /// The XRC domain that ids share.
    pub fn xrc_domain(&self) -> Result<*mut ibv_xrcd, Errno> {
        let mut common = lock(&self.common);
        if common.xrcd.0.is_null() {
            let comp_mask = abi::IBV_XRCD_INIT_ATTR_FD | abi::IBV_XRCD_INIT_ATTR_OFLAGS;
            let attributes = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
            common.xrcd.0 = open_xrcd(self.context(), (&attributes).into());
            refuse_if!(common.xrcd.0.is_null(), Errno::NO_MEMORY);
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
        let _own = OwnCalls::begin();
        // Both refuse if something is still in them, and stay for the next id then.
        // SAFETY: made above, and given up here: the last id that had it is gone.
        let (xrcd, pd) = unsafe { (Owned::new(common.xrcd.0), Owned::new(common.pd.0)) };
        if !common.xrcd.0.is_null() && close_xrcd(xrcd) == 0 {
            common.xrcd.0 = null_mut();
        }
        if !common.pd.0.is_null() && ibv_dealloc_pd(pd) == 0 {
            common.pd.0 = null_mut();
        }
    }
}

/// Every device, opened: an array that ends with a null. They stay open when it is freed.
#[unsafe(export_name = "ubiverbs_rdma_get_devices")]
pub extern "C" fn rdma_get_devices(mut count: Out<'_, c_int>) -> *mut *mut ibv_context {
    object("rdma_get_devices", || {
        count.write(0);
        let devices = hca::Nic::of_process()?.shown_devices();
        refuse_if!(devices.is_empty(), Errno::of(libc::ENODEV));
        let opened: Result<Vec<_>, Errno> =
            devices.iter().map(|device| Ok(CmDevice::of(device)?.context().as_ptr())).collect();
        let mut list = opened?;
        count.write(list.len() as c_int);
        list.push(null_mut());
        c_array(&list)
    })
}

/// Frees the array.
///
/// # Safety
/// `list` is null or from [`rdma_get_devices`], and not used any more.
#[unsafe(export_name = "ubiverbs_rdma_free_devices")]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    unreported("rdma_free_devices", || {
        // SAFETY: null, or from `malloc` by way of `c_array`, and the program has given it up.
        unsafe { libc::free(list.cast()) };
        Ok(())
    });
}
