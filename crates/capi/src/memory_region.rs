//! Memory regions: registering, changing, deregistering and importing them.

use crate::boundary::{number, object, status, unreported};
use crate::context::OpenDevice;
use crate::dma_handle::DmaHandle;
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, Public, field, set_field};
use crate::protection_domain::Pd;
use crate::registry::PerProcess;
use abi::{Handle, Owned, ibv_dmah, ibv_mr, ibv_pd, ibv_sge};
use memory::{Access, Change, Key, Mapping, ProtectionDomain, Range, RegionSpec, Subject, Translation};
use profiles::{Feature, IovaRule};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::slice;
use std::sync::Arc;

/// A memory region.
#[repr(C)]
pub struct MemoryRegion {
    base: Public<ibv_mr>,
    opened: Arc<OpenDevice>,
    key: Key,
    imported: bool,
    needs: Needs,
}

/// What a region needs besides its memory, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Needs {
    /// Memory that the library has mapped for it.
    pub mapping: Option<Arc<Mapping>>,
    /// The hints that it was registered with, which count it as a user; or null.
    pub dma_handle: *mut ibv_dmah,
}

impl Default for Needs {
    fn default() -> Needs {
        Needs { mapping: None, dma_handle: null_mut() }
    }
}

impl Needs {
    fn dma_handle(&self) -> Option<&DmaHandle> {
        // SAFETY: null, or what the region was registered with, which is not freed while it has regions.
        DmaHandle::of(unsafe { Handle::new(self.dma_handle) }).ok()
    }
}

/// Regions that can be imported: their domain and length, by their handle, which is their key.
static IMPORTABLE_REGIONS: PerProcess<HashMap<u32, (u32, usize)>> = PerProcess::new();

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for MemoryRegion {
    type C = ibv_mr;

    fn device_has_failed(&self) -> bool {
        self.opened.device().has_failed()
    }

    fn has_its_handle(&self) -> bool {
        field!(self.base, handle) == self.key.value()
    }
}

impl MemoryRegion {
    /// Hands a registered key to C.
    pub(crate) fn make(
        pd: Handle<'_, ibv_pd>,
        key: Key,
        addr: *mut c_void,
        length: usize,
    ) -> Result<*mut ibv_mr, Errno> {
        MemoryRegion::make_with(pd, key, addr, length, Needs::default())
    }

    /// Hands C the key of a region that needs more than its memory.
    pub(crate) fn make_with(
        pd: Handle<'_, ibv_pd>,
        key: Key,
        addr: *mut c_void,
        length: usize,
        needs: Needs,
    ) -> Result<*mut ibv_mr, Errno> {
        let domain = Pd::of(pd)?;
        domain.join();
        if let Some(handle) = needs.dma_handle() {
            handle.users.join();
        }
        IMPORTABLE_REGIONS.lock().insert(key.value(), (domain.domain.0, length));
        let base = c_region(pd, key, addr, length)?;
        Ok(MemoryRegion::boxed(domain, base, key, false, needs))
    }

    /// The key by which the NIC knows it: its R_Key, also where peers may not use one.
    pub(crate) fn key(&self) -> Key {
        self.key
    }

    fn boxed(domain: &Pd, base: ibv_mr, key: Key, imported: bool, needs: Needs) -> *mut ibv_mr {
        let opened = Arc::clone(&domain.opened);
        Box::new(MemoryRegion { base: Public::new(base), opened, key, imported, needs }).into_c()
    }
}

/// The rights of peers.
const REMOTE_ACCESS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// What C sees of a region.
fn c_region(pd: Handle<'_, ibv_pd>, key: Key, addr: *mut c_void, length: usize) -> Result<ibv_mr, Errno> {
    let domain = Pd::of(pd)?;
    let context = domain.context_in_c();
    let card = domain.opened.device().profile().map(|profile| profile.registration).unwrap_or_default();
    let is_remote = || {
        let region = domain.opened.nic.memory().region(key);
        region.is_none_or(|region| region.access.intersects(REMOTE_ACCESS))
    };
    Ok(ibv_mr {
        context,
        pd: pd.as_ptr(),
        addr,
        length,
        handle: key.value(),
        lkey: if card.equal_keys { key } else { key.local() }.value(),
        rkey: if card.hides_rkeys && !is_remote() { 0 } else { key.value() },
    })
}

/// The rights in C's bits.
pub(crate) fn access(bits: c_uint) -> Result<Access, Errno> {
    Access::from_verbs(bits).ok_or_else(|| Errno::invalid("an access flag that is not known and not optional"))
}

/// Registers memory under the addresses of `iova`, or under its own.
///
/// # Safety
/// The memory stays mapped until the region is gone.
pub(crate) unsafe fn register(
    pd: Handle<'_, ibv_pd>,
    addr: *mut c_void,
    length: usize,
    iova: Option<u64>,
    flags: c_uint,
    needs: Needs,
) -> Result<*mut ibv_mr, Errno> {
    let domain = Pd::by_handle(pd)?;
    let access = access(flags)?;
    let iova = match (domain.opened.device().profile(), iova) {
        (Some(profile), Some(chosen)) => {
            profile.admits_iova(addr.addr() as u64, chosen)?;
            iova.filter(|_| profile.registration.iova != IovaRule::Ignored)
        }
        _ => iova,
    };
    let translation = Translation { address: addr.cast(), length, iova };
    let spec = RegionSpec { translation, domain: ProtectionDomain(domain.domain.0), access };
    domain.opened.nic.profile_admits_region(domain.opened.device(), length, access)?;
    if latch::sanitizer::judges_accesses() && !access.contains(Access::ON_DEMAND) {
        judge_ends(addr.cast(), length);
    }
    // SAFETY: the program keeps the memory mapped while it is registered; that is what registering means in C.
    let key = unsafe { domain.opened.nic.register_region(&spec) }?;
    MemoryRegion::make_with(pd, key, addr, length, needs)
}

/// Has a sanitizer report memory that is registered and that the program itself may not touch. Its ends alone count:
/// inside of a pool may be what the program keeps from itself for now. Caches of registrations round to whole pages,
/// and judge nothing of what else lies there.
#[cold]
fn judge_ends(start: *mut u8, length: usize) {
    const PAGE_BYTES: usize = 4096;
    let is_rounded = start.addr().is_multiple_of(PAGE_BYTES) && length.is_multiple_of(PAGE_BYTES);
    if length == 0 || is_rounded || isize::try_from(length).is_err() {
        return;
    }
    for end in [start, start.wrapping_add(length - 1)] {
        latch::sanitizer::judge_access(end, 1, false, || {
            format!("{length} bytes at {start:p} are registered, and the program may not touch all of them")
        });
    }
}

/// Registers memory.
///
/// # Safety
/// The memory stays mapped until the region is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: Handle<'_, ibv_pd>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    object("ibv_reg_mr", || {
        // SAFETY: the memory stays mapped, as this call demands too.
        unsafe { register(pd, addr, length, None, access as c_uint, Needs::default()) }
    })
}

/// Registers memory under addresses of the program's choice.
///
/// # Safety
/// The memory stays mapped until the region is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: Handle<'_, ibv_pd>,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    object("ibv_reg_mr_iova", || {
        // SAFETY: the memory stays mapped, as this call demands too.
        unsafe { register(pd, addr, length, Some(iova), access as c_uint, Needs::default()) }
    })
}

/// Registers memory like `ibv_reg_mr_iova`, with rights that a device may not know. The header sends every registration
/// here whose rights it cannot see at compile time.
///
/// # Safety
/// The memory stays mapped until the region is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: Handle<'_, ibv_pd>,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let iova = (iova != addr.addr() as u64).then_some(iova);
    object("ibv_reg_mr_iova2", || {
        // SAFETY: the memory stays mapped, as this call demands too.
        unsafe { register(pd, addr, length, iova, access, Needs::default()) }
    })
}

/// A region without memory, for parts of messages that are not wanted: it reads as zeros and forgets what is written.
/// Peers cannot reach it.
pub(crate) extern "C" fn alloc_null_mr(pd: Handle<'_, ibv_pd>) -> *mut ibv_mr {
    object("ibv_alloc_null_mr", || {
        let domain = Pd::by_handle(pd)?;
        domain.opened.device().offers(Feature::AllocNullMr)?;
        let key = domain.opened.nic.register_null(ProtectionDomain(domain.domain.0))?;
        domain.join();
        let base = ibv_mr { rkey: 0, ..c_region(pd, key, null_mut(), usize::MAX)? };
        Ok(MemoryRegion::boxed(domain, base, key, false, Needs::default()))
    })
}

/// What `ibv_rereg_mr` answers to a request that cannot be, and when the device refuses.
const REREG_BAD_INPUT: c_int = -1;
const REREG_REFUSED: c_int = -4;

/// Changes a region; its keys stay.
///
/// # Safety
/// The memory stays mapped until the region is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: Handle<'_, ibv_mr>,
    flags: c_int,
    pd: Handle<'_, ibv_pd>,
    addr: *mut c_void,
    length: usize,
    access_flags: c_int,
) -> c_int {
    let mut refused = REREG_BAD_INPUT;
    let done = number("ibv_rereg_mr", || {
        let flags = flags as c_uint;
        let region = MemoryRegion::by_handle(mr)?;
        region.opened.device().offers(Feature::ReregMr)?;
        let known =
            abi::IBV_REREG_MR_CHANGE_TRANSLATION | abi::IBV_REREG_MR_CHANGE_PD | abi::IBV_REREG_MR_CHANGE_ACCESS;
        refuse_if!(flags == 0 || flags & !known != 0, Errno::INVALID);
        let mut change = Change::default();
        if flags & abi::IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            refuse_if!(addr.is_null() || length == 0, Errno::INVALID);
            if region.needs.mapping.is_some() {
                return Err(Errno::unsupported("memory that the library has mapped for a region stays the region's"));
            }
            change.translation = Some(Translation::new(addr.cast(), length));
        }
        if flags & abi::IBV_REREG_MR_CHANGE_PD != 0 {
            change.domain = Some(Pd::by_handle(pd)?.domain);
        }
        if flags & abi::IBV_REREG_MR_CHANGE_ACCESS != 0 {
            change.access = Some(access(access_flags as c_uint)?);
        }
        refused = REREG_REFUSED;
        // SAFETY: the memory stays mapped, as this call demands too.
        unsafe { region.opened.nic.reregister(region.key, &change) }?;
        if change.translation.is_some() {
            set_field!(region.base, addr, addr);
            set_field!(region.base, length, length);
        }
        if change.domain.is_some() {
            let domain = Pd::of(pd)?;
            domain.join();
            // SAFETY: the domain that the region was in until now.
            unsafe { Pd::leave(field!(region.base, pd)) };
            set_field!(region.base, pd, pd.as_ptr());
            set_field!(region.base, context, domain.context_in_c());
        }
        // SAFETY: the domain of the region, which is a user of it.
        let domain = Pd::of(unsafe { Handle::new(field!(region.base, pd)) })?;
        let entry = (domain.domain.0, field!(region.base, length));
        IMPORTABLE_REGIONS.lock().insert(region.key.value(), entry);
        Ok(0)
    });
    if done == 0 { 0 } else { refused }
}

/// Deregisters a region. When this returns the memory is the program's alone.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dereg_mr(mr: Owned<'_, ibv_mr>) -> c_int {
    status("ibv_dereg_mr", || {
        let region = MemoryRegion::given_back(&mr)?;
        refuse_if!(region.imported, Errno::INVALID);
        region.opened.nic.deregister(region.key)?;
        IMPORTABLE_REGIONS.lock().remove(&region.key.value());
        if let Some(handle) = region.needs.dma_handle() {
            handle.users.leave();
        }
        // SAFETY: the domain of the region.
        unsafe { Pd::leave(field!(region.base, pd)) };
        drop(MemoryRegion::from_c(mr)?);
        Ok(())
    })
}

/// A region of another context of this process, by its handle.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_mr(pd: Handle<'_, ibv_pd>, handle: u32) -> *mut ibv_mr {
    object("ibv_import_mr", || {
        let domain = Pd::of(pd)?;
        let found = IMPORTABLE_REGIONS.lock().get(&handle).copied();
        let (owner, length) = found.ok_or(Errno::of(libc::ENOENT))?;
        refuse_if!(owner != domain.domain.0, Errno::INVALID);
        // Where it lies, an importer is not told.
        let base = c_region(pd, Key::new(handle), null_mut(), length)?;
        Ok(MemoryRegion::boxed(domain, base, Key::new(handle), true, Needs::default()))
    })
}

/// Lets go of an imported region; the region itself stays.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_mr(mr: Owned<'_, ibv_mr>) {
    unreported("ibv_unimport_mr", || {
        if MemoryRegion::given_back(&mr).is_ok_and(|region| region.imported) {
            drop(MemoryRegion::from_c(mr)?);
        }
        Ok(())
    });
}

/// Tells that memory will be used soon. Pages come in when they are touched; what can be wrong with the ranges is told
/// now.
///
/// # Safety
/// `list` is null or has `count` entries.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: Handle<'_, ibv_pd>,
    advice: c_uint,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    status("ibv_advise_mr", || {
        let domain = Pd::of(pd)?;
        domain.opened.device().offers(Feature::AdviseMr)?;
        refuse_if!(advice > abi::IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, Errno::UNSUPPORTED);
        refuse_if!(list.is_null() && count > 0, Errno::INVALID);
        refuse_if!(flags & !abi::IBV_ADVISE_MR_FLAG_FLUSH != 0, Errno::invalid("no such flag of ibv_advise_mr"));
        let subject = Subject { pd: domain.domain, qpn: memory::Qpn::new(0), remote: false };
        let rights = match advice {
            abi::IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Access::LOCAL_WRITE,
            _ => Access::empty(),
        };
        // SAFETY: not null, and of that length.
        let list = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(list, count as usize) } };
        for sge in list {
            let range = Range { key: Key::new(sge.lkey).of_region(), address: sge.addr, length: sge.length.into() };
            domain.opened.nic.memory().check(subject, range, rights).map_err(|_| Errno::of(libc::ENOENT))?;
        }
        Ok(())
    })
}
