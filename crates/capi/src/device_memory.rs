//! Device memory: memory of the NIC, copied into and out of, and registered like any other.

use crate::boundary::{number, object, status, unreported};
use crate::context::{Context, OpenDevice};
use crate::errno::{Errno, refuse_if};
use crate::memory_region::{MemoryRegion, access};
use crate::object::{Object, program_field};
use crate::protection_domain::Pd;
use abi::{Handle, In, Owned, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use profiles::Feature;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::IntoRawFd;
use std::ptr::null_mut;
use std::slice;
use std::sync::Arc;
use wire::access::ProtectionDomain;

/// A piece of device memory.
#[repr(C)]
pub struct DeviceMemory {
    base: ibv_dm,
    opened: Arc<OpenDevice>,
    piece: memory::DeviceMemory,
    imported: bool,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for DeviceMemory {
    type C = ibv_dm;

    fn device_has_failed(&self) -> bool {
        self.opened.device().has_failed()
    }

    fn has_its_handle(&self) -> bool {
        program_field!(self.base, handle) == self.piece.0
    }
}

impl DeviceMemory {
    fn make(context: &Context, opened: Arc<OpenDevice>, piece: memory::DeviceMemory, imported: bool) -> *mut ibv_dm {
        let base = ibv_dm {
            context: context.as_c(),
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: abi::IBV_DM_MASK_HANDLE,
            handle: piece.0,
        };
        Box::new(DeviceMemory { base, opened, piece, imported }).into_c()
    }
}

pub(crate) extern "C" fn alloc_dm(
    context: Handle<'_, ibv_context>,
    attributes: In<'_, ibv_alloc_dm_attr>,
) -> *mut ibv_dm {
    object("ibv_alloc_dm", || {
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        refuse_if!(attributes.comp_mask != 0, Errno::INVALID);
        // On hardware this works in a forked child, too, and programs do it.
        let opened = Context::device_here(context)?;
        opened.device().offers(Feature::AllocDm)?;
        let piece = opened.nic.memory().allocate_device(attributes.length, attributes.log_align_req)?;
        Ok(DeviceMemory::make(Context::of_any(context)?, opened, piece, false))
    })
}

pub(crate) extern "C" fn free_dm(dm: Owned<'_, ibv_dm>) -> c_int {
    status("ibv_free_dm", || {
        let memory = DeviceMemory::given_back(&dm)?;
        refuse_if!(memory.imported, Errno::INVALID);
        memory.opened.nic.memory().free_device(memory.piece)?;
        drop(DeviceMemory::from_c(dm)?);
        Ok(())
    })
}

/// # Safety
/// `from` is null or has `length` bytes.
unsafe extern "C" fn memcpy_to_dm(dm: Handle<'_, ibv_dm>, offset: u64, from: *const c_void, length: usize) -> c_int {
    status("ibv_memcpy_to_dm", || {
        let memory = DeviceMemory::of(dm)?;
        refuse_if!(from.is_null() && length > 0, Errno::of(libc::EFAULT));
        // SAFETY: not null, and of that length.
        let bytes = if length == 0 { &[] } else { unsafe { slice::from_raw_parts(from.cast(), length) } };
        Ok(memory.opened.nic.memory().write_device(memory.piece, offset, bytes)?)
    })
}

/// # Safety
/// `to` is null or has room for `length` bytes.
unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: Handle<'_, ibv_dm>, offset: u64, length: usize) -> c_int {
    status("ibv_memcpy_from_dm", || {
        let memory = DeviceMemory::of(dm)?;
        refuse_if!(to.is_null() && length > 0, Errno::of(libc::EFAULT));
        // SAFETY: not null, and of that length.
        let bytes = if length == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(to.cast(), length) } };
        Ok(memory.opened.nic.memory().read_device(memory.piece, offset, bytes)?)
    })
}

pub(crate) extern "C" fn reg_dm_mr(
    pd: Handle<'_, ibv_pd>,
    dm: Handle<'_, ibv_dm>,
    offset: u64,
    length: usize,
    flags: c_uint,
) -> *mut ibv_mr {
    object("ibv_reg_dm_mr", || {
        let (domain, memory) = (Pd::by_handle(pd)?, DeviceMemory::by_handle(dm)?);
        let access = access(flags)?;
        let nic = &domain.opened.nic;
        let key = nic.register_device(memory.piece, offset, length, ProtectionDomain(domain.domain.0), access)?;
        MemoryRegion::make(pd, key, null_mut(), length)
    })
}

/// A descriptor of the device memory, for `ibv_reg_dmabuf_mr` here and in other processes.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dm_export_dmabuf_fd(dm: Handle<'_, ibv_dm>) -> c_int {
    number("ibv_dm_export_dmabuf_fd", || {
        let memory = DeviceMemory::by_handle(dm)?;
        Ok(memory.opened.nic.memory().export_device(memory.piece)?.into_raw_fd())
    })
}

/// Device memory of another context of this process, by its handle.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(context: Handle<'_, ibv_context>, handle: u32) -> *mut ibv_dm {
    object("ibv_import_dm", || {
        let context = Context::working(context)?;
        let piece = memory::DeviceMemory(handle);
        // Copying nothing succeeds where there is something.
        context.opened.nic.memory().read_device(piece, 0, &mut []).map_err(|_| Errno::of(libc::ENOENT))?;
        Ok(DeviceMemory::make(context, Arc::clone(&context.opened), piece, true))
    })
}

/// Lets go of imported device memory; the memory itself stays.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_dm(dm: Owned<'_, ibv_dm>) {
    unreported("ibv_unimport_dm", || {
        if DeviceMemory::given_back(&dm)?.imported {
            drop(DeviceMemory::from_c(dm)?);
        }
        Ok(())
    });
}
