//! Device memory: memory of the NIC, copied into and out of, and registered like any other.

use crate::boundary::{object, quietly, status};
use crate::context::{Context, Shared};
use crate::errno::Errno;
use crate::memory_region::{MemoryRegion, access};
use crate::protection_domain::Pd;
use abi::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use memory::Domain;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::slice;
use std::sync::Arc;

/// A piece of device memory.
#[repr(C)]
pub struct DeviceMemory {
    base: ibv_dm,
    shared: Arc<Shared>,
    piece: memory::DeviceMemory,
    imported: bool,
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory").field("piece", &self.piece).finish_non_exhaustive()
    }
}

impl DeviceMemory {
    unsafe fn of<'a>(dm: *mut ibv_dm) -> Result<&'a DeviceMemory, Errno> {
        dm.cast::<DeviceMemory>().as_ref().ok_or_else(Errno::null)
    }

    fn make(context: &Context, piece: memory::DeviceMemory, imported: bool) -> *mut ibv_dm {
        let base = ibv_dm {
            context: context.as_c(),
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: abi::IBV_DM_MASK_HANDLE,
            handle: piece.0,
        };
        let shared = Arc::clone(&context.shared);
        Box::into_raw(Box::new(DeviceMemory { base, shared, piece, imported })).cast()
    }
}

pub(crate) unsafe extern "C" fn alloc_dm(context: *mut ibv_context, attributes: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    object("ibv_alloc_dm", || {
        let context = Context::of(context)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        if attributes.comp_mask != 0 {
            return Err(Errno::INVALID);
        }
        let piece = context.shared.nic.memory().allocate_device(attributes.length, attributes.log_align_req)?;
        Ok(DeviceMemory::make(context, piece, false))
    })
}

pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    status("ibv_free_dm", || {
        let memory = DeviceMemory::of(dm)?;
        if memory.imported {
            return Err(Errno::INVALID);
        }
        memory.shared.nic.memory().free_device(memory.piece)?;
        drop(Box::from_raw(dm.cast::<DeviceMemory>()));
        Ok(())
    })
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    status("ibv_memcpy_to_dm", || {
        let memory = DeviceMemory::of(dm)?;
        if from.is_null() && length > 0 {
            return Err(Errno(libc::EFAULT));
        }
        let bytes = if length == 0 { &[] } else { slice::from_raw_parts(from.cast(), length) };
        Ok(memory.shared.nic.memory().write_device(memory.piece, offset, bytes)?)
    })
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    status("ibv_memcpy_from_dm", || {
        let memory = DeviceMemory::of(dm)?;
        if to.is_null() && length > 0 {
            return Err(Errno(libc::EFAULT));
        }
        let bytes = if length == 0 { &mut [] } else { slice::from_raw_parts_mut(to.cast(), length) };
        Ok(memory.shared.nic.memory().read_device(memory.piece, offset, bytes)?)
    })
}

pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    flags: c_uint,
) -> *mut ibv_mr {
    object("ibv_reg_dm_mr", || {
        let (domain, memory) = (Pd::of(pd)?, DeviceMemory::of(dm)?);
        let access = access(flags)?;
        let books = domain.shared.nic.memory();
        let key = books.register_device(memory.piece, offset, length, Domain(domain.domain.0), access)?;
        Ok(MemoryRegion::make(domain, pd, key, null_mut(), length))
    })
}

/// Device memory of another context of this process, by its handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    object("ibv_import_dm", || {
        let context = Context::of(context)?;
        let piece = memory::DeviceMemory(handle);
        // Copying nothing succeeds where there is something.
        context.shared.nic.memory().read_device(piece, 0, &mut []).map_err(|_| Errno(libc::ENOENT))?;
        Ok(DeviceMemory::make(context, piece, true))
    })
}

/// Lets go of imported device memory; the memory itself stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    quietly("ibv_unimport_dm", || {
        if DeviceMemory::of(dm)?.imported {
            drop(Box::from_raw(dm.cast::<DeviceMemory>()));
        }
        Ok(())
    });
}
