//! Memory regions: registering, changing, deregistering and importing them.

use crate::boundary::{number, object, quietly, status};
use crate::context::{Context, Shared};
use crate::errno::Errno;
use crate::protection_domain::Pd;
use crate::registry::PerProcess;
use abi::{ibv_mr, ibv_pd, ibv_sge};
use memory::{Access, Change, Domain, Key, Range, RegionSpec, Subject, Translation};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

/// A memory region.
#[repr(C)]
pub struct MemoryRegion {
    pub(crate) base: ibv_mr,
    shared: Arc<Shared>,
    key: Key,
    imported: bool,
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Regions that can be imported: their domain and length, by their handle, which is their key.
static REGIONS: PerProcess<HashMap<u32, (u32, usize)>> = PerProcess::new();

impl MemoryRegion {
    /// Hands a registered key to C.
    pub(crate) fn make(pd: &Pd, pd_in_c: *mut ibv_pd, key: Key, addr: *mut c_void, length: usize) -> *mut ibv_mr {
        pd.join();
        REGIONS.lock().insert(key.0, (pd.domain.0, length));
        MemoryRegion::boxed(pd, pd_in_c, key, addr, length, false)
    }

    fn boxed(pd: &Pd, pd_in_c: *mut ibv_pd, key: Key, addr: *mut c_void, length: usize, imported: bool) -> *mut ibv_mr {
        // SAFETY: the domain is alive, so it is valid to read.
        let context = unsafe { (*pd_in_c).context };
        let base = ibv_mr { context, pd: pd_in_c, addr, length, handle: key.0, lkey: key.0, rkey: key.0 };
        Box::into_raw(Box::new(MemoryRegion { base, shared: Arc::clone(&pd.shared), key, imported })).cast()
    }
}

/// The rights in C's bits.
pub(crate) fn access(bits: c_uint) -> Result<Access, Errno> {
    Access::from_verbs(bits).ok_or_else(|| Errno::invalid("an access flag that is not known and not optional"))
}

unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: Option<u64>,
    flags: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    let domain = Pd::of(pd)?;
    let access = access(flags)?;
    let translation = Translation { address: addr.cast(), length, iova };
    let spec = RegionSpec { translation, domain: Domain(domain.domain.0), access };
    // The program keeps the memory mapped while it is registered; that is what registering means in C.
    let key = domain.shared.nic.memory().register(&spec)?;
    Ok(MemoryRegion::make(domain, pd, key, addr, length))
}

/// Registers memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    object("ibv_reg_mr", || register(pd, addr, length, None, access as c_uint))
}

/// Registers memory under addresses of the program's choice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    object("ibv_reg_mr_iova", || register(pd, addr, length, Some(iova), access as c_uint))
}

/// The same, with rights that a device may not know. The header sends every registration here whose rights it cannot see at compile time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let iova = (iova != addr.addr() as u64).then_some(iova);
    object("ibv_reg_mr_iova2", || register(pd, addr, length, iova, access))
}

/// Memory of another device, which this one cannot reach.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    object("ibv_reg_dmabuf_mr", || {
        Pd::of(pd)?;
        Err(Errno::unsupported("memory of other devices cannot be reached"))
    })
}

/// A region without memory, for parts of messages that are not wanted: it reads as zeros and forgets what is written. Peers cannot reach it.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    object("ibv_alloc_null_mr", || {
        let domain = Pd::of(pd)?;
        let key = domain.shared.nic.memory().register_null(Domain(domain.domain.0))?;
        domain.join();
        let mr = MemoryRegion::boxed(domain, pd, key, null_mut(), usize::MAX, false);
        (*mr).rkey = 0;
        Ok(mr)
    })
}

/// What `ibv_rereg_mr` answers to a request that cannot be, and when the device refuses.
const REREG_BAD_INPUT: c_int = -1;
const REREG_REFUSED: c_int = -4;

/// Changes a region; its keys stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access_flags: c_int,
) -> c_int {
    let mut refused = REREG_BAD_INPUT;
    let done = number("ibv_rereg_mr", || {
        let flags = flags as c_uint;
        let region = &mut *mr.cast::<MemoryRegion>().as_mut().ok_or_else(Errno::null)?;
        let known =
            abi::IBV_REREG_MR_CHANGE_TRANSLATION | abi::IBV_REREG_MR_CHANGE_PD | abi::IBV_REREG_MR_CHANGE_ACCESS;
        if flags == 0 || flags & !known != 0 {
            return Err(Errno::INVALID);
        }
        let mut change = Change::default();
        if flags & abi::IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            if addr.is_null() || length == 0 {
                return Err(Errno::INVALID);
            }
            change.translation = Some(Translation::new(addr.cast(), length));
        }
        if flags & abi::IBV_REREG_MR_CHANGE_PD != 0 {
            change.domain = Some(Domain(Pd::of(pd)?.domain.0));
        }
        if flags & abi::IBV_REREG_MR_CHANGE_ACCESS != 0 {
            change.access = Some(access(access_flags as c_uint)?);
        }
        refused = REREG_REFUSED;
        region.shared.nic.memory().reregister(region.key, &change)?;
        if change.translation.is_some() {
            (region.base.addr, region.base.length) = (addr, length);
        }
        if change.domain.is_some() {
            Pd::of(pd)?.join();
            Pd::leave(region.base.pd);
            region.base.pd = pd;
            region.base.context = (*pd).context;
        }
        let entry = (Pd::of(region.base.pd)?.domain.0, region.base.length);
        REGIONS.lock().insert(region.key.0, entry);
        Ok(0)
    });
    if done == 0 { 0 } else { refused }
}

/// Deregisters a region. When this returns the memory is the program's alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    status("ibv_dereg_mr", || {
        let region = mr.cast::<MemoryRegion>().as_ref().ok_or_else(Errno::null)?;
        if region.imported {
            return Err(Errno::INVALID);
        }
        region.shared.nic.memory().deregister(region.key)?;
        REGIONS.lock().remove(&region.key.0);
        Pd::leave(region.base.pd);
        drop(Box::from_raw(mr.cast::<MemoryRegion>()));
        Ok(())
    })
}

/// A region of another context of this process, by its handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    object("ibv_import_mr", || {
        let domain = Pd::of(pd)?;
        let found = REGIONS.lock().get(&handle).copied();
        let (owner, length) = found.ok_or(Errno(libc::ENOENT))?;
        if owner != domain.domain.0 {
            return Err(Errno::INVALID);
        }
        // Where it lies, an importer is not told.
        Ok(MemoryRegion::boxed(domain, pd, Key(handle), null_mut(), length, true))
    })
}

/// Lets go of an imported region; the region itself stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    quietly("ibv_unimport_mr", || {
        if mr.cast::<MemoryRegion>().as_ref().is_some_and(|region| region.imported) {
            drop(Box::from_raw(mr.cast::<MemoryRegion>()));
        }
        Ok(())
    });
}

/// Tells that memory will be used soon. Pages come in when they are touched; what can be wrong with the ranges is told now.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    _flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    status("ibv_advise_mr", || {
        let domain = Pd::of(pd)?;
        if advice > abi::IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
            return Err(Errno::UNSUPPORTED);
        }
        if list.is_null() && count > 0 {
            return Err(Errno::INVALID);
        }
        let subject = Subject { domain: Domain(domain.domain.0), qpn: memory::Qpn(0), remote: false };
        let rights = match advice {
            abi::IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Access::LOCAL_WRITE,
            _ => Access::empty(),
        };
        for index in 0..count as usize {
            let sge = *list.add(index);
            let range = Range { key: Key(sge.lkey), address: sge.addr, length: sge.length.into() };
            domain.shared.nic.memory().check(subject, range, rights).map_err(|_| Errno(libc::ENOENT))?;
        }
        Ok(())
    })
}

/// The context of a domain: where the objects of a program that gave only the domain belong.
pub(crate) unsafe fn context_of<'a>(pd: *mut ibv_pd) -> Result<&'a Context, Errno> {
    Pd::of(pd)?;
    Context::of((*pd).context)
}
