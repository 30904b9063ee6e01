//! Memory windows. Type 1 windows are bound by a call of their own, type 2 windows by work requests; both are work for
//! a send queue, and so in `posting`.

use crate::boundary::{object, status};
use crate::context::OpenDevice;
use crate::errno::Errno;
use crate::memory_region::{MemoryRegion, access};
use crate::object::{Object, Public, field};
use crate::protection_domain::Pd;
use abi::{Handle, Owned, ibv_mw, ibv_mw_bind_info, ibv_pd};
use memory::Key;
use profiles::Feature;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use transport::{Bind, Operation};

/// A memory window.
#[repr(C)]
pub struct MemoryWindow {
    pub(crate) base: Public<ibv_mw>,
    opened: Arc<OpenDevice>,
    /// The key it was made with; later ones differ in the lowest byte only.
    first_key: Key,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for MemoryWindow {
    type C = ibv_mw;

    fn has_its_handle(&self) -> bool {
        field!(self.base, handle) == self.first_key.value() >> 8
    }
}

pub(crate) extern "C" fn alloc_mw(pd: Handle<'_, ibv_pd>, kind: c_uint) -> *mut ibv_mw {
    object("ibv_alloc_mw", || {
        let domain = Pd::by_handle(pd)?;
        domain.opened.device().offers(Feature::AllocMw)?;
        let type_2 = match kind {
            abi::IBV_MW_TYPE_1 => false,
            abi::IBV_MW_TYPE_2 => true,
            _ => return Err(Errno::invalid("a memory window is of type 1 or 2")),
        };
        let context = domain.context_in_c();
        let key = domain.opened.nic.allocate_window(domain.domain, type_2)?;
        domain.join();
        let base =
            Public::new(ibv_mw { context, pd: pd.as_ptr(), rkey: key.value(), handle: key.value() >> 8, type_: kind });
        let window = MemoryWindow { base, opened: Arc::clone(&domain.opened), first_key: key };
        Ok(Box::new(window).into_c())
    })
}

pub(crate) extern "C" fn dealloc_mw(mw: Owned<'_, ibv_mw>) -> c_int {
    status("ibv_dealloc_mw", || {
        let window = MemoryWindow::given_back(&mw)?;
        window.opened.nic.free_window(window.first_key)?;
        // SAFETY: the domain of the window.
        unsafe { Pd::leave(field!(window.base, pd)) };
        drop(MemoryWindow::from_c(mw)?);
        Ok(())
    })
}

/// What binds `mw` as `info` says, under `new_key`.
pub(crate) fn bind(mw: Handle<'_, ibv_mw>, new_key: u32, info: &ibv_mw_bind_info) -> Result<Operation, Errno> {
    let window = MemoryWindow::of(mw)?;
    // SAFETY: the manual page wants it null or a region.
    let region = match MemoryRegion::of(unsafe { Handle::new(info.mr) }).ok() {
        Some(region) => region.key(),
        // Unbinding needs no region.
        None if info.length == 0 => Key::default(),
        None => return Err(Errno::INVALID),
    };
    Ok(Operation::BindWindow(Bind {
        window: Key::new(field!(window.base, rkey)),
        new_key: Key::new(new_key),
        region,
        address: info.addr,
        length: info.length,
        access: access(info.mw_access_flags)?,
    }))
}
