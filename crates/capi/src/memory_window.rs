//! Memory windows. Type 1 windows are bound by a call of their own, type 2 windows by work requests; both are work for a send queue.

use crate::boundary::{object, status};
use crate::context::Shared;
use crate::errno::Errno;
use crate::memory_region::{access, context_of};
use crate::posting;
use crate::protection_domain::Pd;
use crate::queue_pair::QueuePair;
use abi::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};
use memory::{Domain, Key, WindowType};
use std::ffi::{c_int, c_uint};
use std::fmt;
use std::sync::Arc;
use transport::{Bind, Data, Operation, SendRequest};

/// A memory window.
#[repr(C)]
pub struct MemoryWindow {
    base: ibv_mw,
    shared: Arc<Shared>,
    /// The key it was made with; later ones differ in the lowest byte only.
    first_key: Key,
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow").field("first_key", &self.first_key).finish_non_exhaustive()
    }
}

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    object("ibv_alloc_mw", || {
        let domain = Pd::of(pd)?;
        let window_type = match kind {
            abi::IBV_MW_TYPE_1 => WindowType::Type1,
            abi::IBV_MW_TYPE_2 => WindowType::Type2,
            _ => return Err(Errno::invalid("a memory window is of type 1 or 2")),
        };
        let context = context_of(pd)?.as_c();
        let key = domain.shared.nic.memory().allocate_window(Domain(domain.domain.0), window_type)?;
        domain.join();
        let base = ibv_mw { context, pd, rkey: key.0, handle: key.0 >> 8, type_: kind };
        let window = MemoryWindow { base, shared: Arc::clone(&domain.shared), first_key: key };
        Ok(Box::into_raw(Box::new(window)).cast())
    })
}

pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    status("ibv_dealloc_mw", || {
        let window = mw.cast::<MemoryWindow>().as_ref().ok_or_else(Errno::null)?;
        let memory = window.shared.nic.memory();
        let key = memory.window_key(window.first_key).ok_or(Errno::INVALID)?;
        memory.free_window(key)?;
        Pd::leave(window.base.pd);
        drop(Box::from_raw(mw.cast::<MemoryWindow>()));
        Ok(())
    })
}

/// What binds `mw` as `info` says, under `new_key`.
pub(crate) unsafe fn bind(mw: *mut ibv_mw, new_key: u32, info: &ibv_mw_bind_info) -> Result<Operation, Errno> {
    let mw = mw.as_ref().ok_or_else(Errno::null)?;
    let region = match info.mr.as_ref() {
        Some(mr) => mr.lkey,
        // Unbinding needs no region.
        None if info.length == 0 => 0,
        None => return Err(Errno::INVALID),
    };
    Ok(Operation::BindWindow(Bind {
        window: wire::Key::new(mw.rkey),
        new_key: wire::Key::new(new_key),
        region: wire::Key::new(region),
        address: info.addr,
        length: info.length,
        access: transport::Access::from_bits_truncate(access(info.mw_access_flags)?.bits()),
    }))
}

/// Binds a window of type 1. Its new key is known at once.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, how: *mut ibv_mw_bind) -> c_int {
    status("ibv_bind_mw", || {
        let pair = QueuePair::of(qp)?;
        let how = how.as_ref().ok_or_else(Errno::null)?;
        let window = mw.as_mut().ok_or_else(Errno::null)?;
        let new_key = Key(window.rkey).next();
        let request = SendRequest {
            wr_id: how.wr_id,
            operation: bind(mw, new_key.0, &how.bind_info)?,
            flags: posting::flags(how.send_flags),
            data: Data::Gather(&[]),
            target: None,
            xrc_srq: None,
        };
        pair.qp.post_send(&pair.shared.nic, &[request]).map_err(|(_, error)| error)?;
        window.rkey = new_key.0;
        Ok(())
    })
}
