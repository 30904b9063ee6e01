//! Protection domains, thread domains, and parent domains, which are protection domains with an opinion about threads and memory. The queues
//! of this NIC are its own business, so it never asks a parent domain's allocator for memory, and takes locks where threads meet anyway.

use crate::boundary::{object, quietly, status};
use crate::context::{Context, Shared};
use crate::errno::Errno;
use crate::log;
use crate::registry::PerProcess;
use abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use std::collections::HashSet;
use std::ffi::c_int;
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use transport::ProtectionDomain;

/// A protection domain.
#[repr(C)]
pub struct Pd {
    base: ibv_pd,
    pub(crate) shared: Arc<Shared>,
    pub(crate) domain: ProtectionDomain,
    users: Users,
    /// A parent domain's own protection domain, which cannot go before it.
    behind: *mut Pd,
    /// A parent domain's thread domain.
    thread_domain: *mut Td,
    /// Another object has the domain: it is not ours to deallocate.
    imported: bool,
}

/// How many objects need another to stay.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicU32);

impl Users {
    pub fn join(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    pub fn none(&self) -> Result<(), Errno> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            users => {
                log::because(format_args!("{users} other objects still need it"));
                Err(Errno::BUSY)
            }
        }
    }
}

/// Domains that can be imported, by their numbers.
static DOMAINS: PerProcess<HashSet<u32>> = PerProcess::new();

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl Pd {
    /// The domain behind a pointer from C.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> Result<&'a Pd, Errno> {
        pd.cast::<Pd>().as_ref().ok_or_else(Errno::null)
    }

    /// An object was made in it.
    pub(crate) fn join(&self) {
        self.users.join();
    }

    /// An object of it is gone.
    pub(crate) unsafe fn leave(pd: *mut ibv_pd) {
        if let Some(pd) = pd.cast::<Pd>().as_ref() {
            pd.users.leave();
        }
    }

    fn make(context: &Context, domain: ProtectionDomain, behind: *mut Pd, td: *mut Td, imported: bool) -> *mut ibv_pd {
        let base = ibv_pd { context: context.as_c(), handle: domain.0 };
        let shared = Arc::clone(&context.shared);
        let users = Users::default();
        Box::into_raw(Box::new(Pd { base, shared, domain, users, behind, thread_domain: td, imported })).cast()
    }
}

/// A new protection domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object("ibv_alloc_pd", || {
        let context = Context::of(context)?;
        let domain = context.shared.hca.new_domain();
        DOMAINS.lock().insert(domain.0);
        Ok(Pd::make(context, domain, null_mut(), null_mut(), false))
    })
}

/// Frees a protection domain, or a parent domain, that nothing uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status("ibv_dealloc_pd", || {
        let domain = Pd::of(pd)?;
        domain.users.none()?;
        if let Some(behind) = domain.behind.as_ref() {
            behind.users.leave();
        } else if !domain.imported {
            DOMAINS.lock().remove(&domain.domain.0);
        }
        if let Some(td) = domain.thread_domain.as_ref() {
            td.users.leave();
        }
        drop(Box::from_raw(pd.cast::<Pd>()));
        Ok(())
    })
}

/// The protection domain of another context of this process, by its handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    object("ibv_import_pd", || {
        let context = Context::of(context)?;
        if !DOMAINS.lock().contains(&handle) {
            return Err(Errno(libc::ENOENT));
        }
        Ok(Pd::make(context, ProtectionDomain(handle), null_mut(), null_mut(), true))
    })
}

/// Lets go of an imported protection domain; the domain itself stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    quietly("ibv_unimport_pd", || {
        if Pd::of(pd)?.imported {
            drop(Box::from_raw(pd.cast::<Pd>()));
        }
        Ok(())
    });
}

/// A thread domain.
#[repr(C)]
pub struct Td {
    base: ibv_td,
    users: Users,
}

impl fmt::Debug for Td {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Td").field("users", &self.users).finish_non_exhaustive()
    }
}

pub(crate) unsafe extern "C" fn alloc_td(context: *mut ibv_context, attributes: *mut ibv_td_init_attr) -> *mut ibv_td {
    object("ibv_alloc_td", || {
        let context = Context::of(context)?;
        if attributes.as_ref().is_none_or(|attributes| attributes.comp_mask != 0) {
            return Err(Errno::INVALID);
        }
        let td = Td { base: ibv_td { context: context.as_c() }, users: Users::default() };
        Ok(Box::into_raw(Box::new(td)).cast())
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    status("ibv_dealloc_td", || {
        td.cast::<Td>().as_ref().ok_or_else(Errno::null)?.users.none()?;
        drop(Box::from_raw(td.cast::<Td>()));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attributes: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    object("ibv_alloc_parent_domain", || {
        let context = Context::of(context)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let known = abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | abi::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if attributes.comp_mask & !known != 0 {
            return Err(Errno::INVALID);
        }
        let behind = Pd::of(attributes.pd)?;
        behind.join();
        let td = attributes.td.cast::<Td>();
        if let Some(td) = td.as_ref() {
            td.users.join();
        }
        Ok(Pd::make(context, behind.domain, attributes.pd.cast(), td, false))
    })
}
