//! DMA handles: hints to the bus about which processor will read what the NIC writes. Here the processor itself copies,
//! so hints that make sense are taken, and nothing comes of them.

use crate::boundary::{object, status};
use crate::context::Context;
use crate::errno::{Errno, refuse_if};
use crate::object::Object;
use crate::use_count::UseCount;
use abi::{Handle, In, Owned, ibv_context, ibv_dmah, ibv_dmah_init_attr};
use std::ffi::c_int;

/// A DMA handle.
#[repr(C)]
pub struct DmaHandle {
    base: ibv_dmah,
    /// Regions that were registered with it.
    pub(crate) users: UseCount,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for DmaHandle {
    type C = ibv_dmah;
}

impl DmaHandle {
    /// The pointer that C has to its context.
    pub(crate) fn context_in_c(&self) -> *mut ibv_context {
        self.base.context
    }
}

/// The largest processing hint: there are two bits for it on the bus (PCIe 6.2.1).
const MAX_HINT: u8 = 3;

/// Whether this thread may run on that processor. The kernel has no hints for others.
fn may_run_on(processor: u32) -> Result<bool, Errno> {
    // SAFETY: all zeros are a set of no processors.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: room for an answer of that size.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let processor = processor as usize;
    // SAFETY: inside the set.
    Ok(processor < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(processor, &set) })
}

/// A new DMA handle.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_dmah(
    context: Handle<'_, ibv_context>,
    attributes: In<'_, ibv_dmah_init_attr>,
) -> *mut ibv_dmah {
    object("ibv_alloc_dmah", || {
        let context = Context::working(context)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let has = |bit: u32| attributes.comp_mask & bit != 0;
        let known = (abi::IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE << 1) - 1;
        refuse_if!(attributes.comp_mask & !known != 0, Errno::invalid("comp_mask has bits that are not known"));
        if has(abi::IBV_DMAH_INIT_ATTR_MASK_PH) && attributes.ph > MAX_HINT {
            return Err(Errno::invalid("a processing hint has two bits"));
        }
        if has(abi::IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE)
            && u32::from(attributes.tph_mem_type) > abi::IBV_TPH_MEM_TYPE_PM
        {
            return Err(Errno::invalid("memory is volatile or persistent"));
        }
        refuse_if!(has(abi::IBV_DMAH_INIT_ATTR_MASK_CPU_ID) && !may_run_on(attributes.cpu_id)?, Errno::of(libc::EPERM));
        let handle = DmaHandle { base: ibv_dmah { context: context.as_c() }, users: UseCount::default() };
        Ok(Box::new(handle).into_c())
    })
}

/// Frees a DMA handle that no region has.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_dmah(handle: Owned<'_, ibv_dmah>) -> c_int {
    status("ibv_dealloc_dmah", || {
        DmaHandle::given_back(&handle)?.users.require_zero()?;
        drop(DmaHandle::from_c(handle)?);
        Ok(())
    })
}
