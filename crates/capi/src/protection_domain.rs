//! Protection domains, thread domains, and parent domains, which are protection domains with an opinion about threads
//! and memory. The queues of this NIC are its own business, so it never asks a parent domain's allocator for memory,
//! and takes locks where threads meet anyway.

use crate::boundary::{object, status, unreported};
use crate::context::{Context, OpenDevice};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, program_field};
use crate::registry::PerProcess;
use crate::use_count::UseCount;
use abi::{Handle, In, Owned, ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use std::collections::HashSet;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use transport::ProtectionDomain;

/// A protection domain.
#[repr(C)]
pub struct Pd {
    base: ibv_pd,
    pub(crate) opened: Arc<OpenDevice>,
    pub(crate) domain: ProtectionDomain,
    users: UseCount,
    /// A parent domain's own protection domain, which cannot go before it.
    underlying: *mut Pd,
    /// A parent domain's thread domain.
    thread_domain: *mut Td,
    /// Another object has the domain, and deallocates it.
    imported: bool,
}

/// Domains that can be imported, by their numbers.
static IMPORTABLE_DOMAINS: PerProcess<HashSet<u32>> = PerProcess::new();

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for Pd {
    type C = ibv_pd;

    fn device_has_failed(&self) -> bool {
        self.opened.device().has_failed()
    }

    fn has_its_handle(&self) -> bool {
        program_field!(self.base, handle) == self.domain.0
    }
}

impl Pd {
    /// The pointer that C has to its context.
    pub(crate) fn context_in_c(&self) -> *mut ibv_context {
        self.base.context
    }

    /// The context it was made in: where the objects of a program that gave only the domain belong.
    pub(crate) fn context(&self) -> Result<&Context, Errno> {
        // SAFETY: the context that it was made with, which a program closes after the last call for its objects.
        Context::of(unsafe { Handle::new(self.context_in_c()) })
    }

    /// An object was made in it.
    pub(crate) fn join(&self) {
        self.users.join();
    }

    /// An object of it is gone.
    ///
    /// # Safety
    /// `pd` is the domain that the object joined when it was made, or null if it joined none.
    pub(crate) unsafe fn leave(pd: *mut ibv_pd) {
        // SAFETY: the object is still counted as a user of its domain, which is not deallocated while it has users.
        if let Ok(pd) = Pd::of(unsafe { Handle::new(pd) }) {
            pd.users.leave();
        }
    }

    fn make(
        context: &Context,
        domain: ProtectionDomain,
        underlying: *mut Pd,
        td: *mut Td,
        imported: bool,
    ) -> *mut ibv_pd {
        let base = ibv_pd { context: context.as_c(), handle: domain.0 };
        let opened = Arc::clone(&context.opened);
        let users = UseCount::default();
        Box::new(Pd { base, opened, domain, users, underlying, thread_domain: td, imported }).into_c()
    }
}

/// A new protection domain.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: Handle<'_, ibv_context>) -> *mut ibv_pd {
    object("ibv_alloc_pd", || {
        let context = Context::working(context)?;
        let domain = context.opened.nic.allocate_domain(&context.opened.hca);
        IMPORTABLE_DOMAINS.lock().insert(domain.0);
        Ok(Pd::make(context, domain, null_mut(), null_mut(), false))
    })
}

/// Frees a protection domain, or a parent domain, that nothing uses.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_pd(pd: Owned<'_, ibv_pd>) -> c_int {
    status("ibv_dealloc_pd", || {
        let domain = Pd::given_back(&pd)?;
        domain.users.require_zero()?;
        // SAFETY: a parent domain counts as a user of these two, which therefore are not deallocated before it.
        let (underlying, thread_domain) = unsafe { (domain.underlying.as_ref(), domain.thread_domain.as_ref()) };
        if let Some(underlying) = underlying {
            underlying.users.leave();
        } else if !domain.imported {
            IMPORTABLE_DOMAINS.lock().remove(&domain.domain.0);
            domain.opened.nic.free_domain(&domain.opened.hca, domain.domain);
        }
        if let Some(td) = thread_domain {
            td.users.leave();
        }
        drop(Pd::from_c(pd)?);
        Ok(())
    })
}

/// The protection domain of another context of this process, by its handle.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(context: Handle<'_, ibv_context>, handle: u32) -> *mut ibv_pd {
    object("ibv_import_pd", || {
        let context = Context::working(context)?;
        refuse_if!(!IMPORTABLE_DOMAINS.lock().contains(&handle), Errno::of(libc::ENOENT));
        Ok(Pd::make(context, ProtectionDomain(handle), null_mut(), null_mut(), true))
    })
}

/// Lets go of an imported protection domain; the domain itself stays.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_pd(pd: Owned<'_, ibv_pd>) {
    unreported("ibv_unimport_pd", || {
        if Pd::given_back(&pd)?.imported {
            drop(Pd::from_c(pd)?);
        }
        Ok(())
    });
}

/// A thread domain.
#[repr(C)]
pub struct Td {
    base: ibv_td,
    users: UseCount,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for Td {
    type C = ibv_td;
}

pub(crate) extern "C" fn alloc_td(
    context: Handle<'_, ibv_context>,
    attributes: In<'_, ibv_td_init_attr>,
) -> *mut ibv_td {
    object("ibv_alloc_td", || {
        let context = Context::working(context)?;
        refuse_if!(attributes.as_ref().is_none_or(|attributes| attributes.comp_mask != 0), Errno::INVALID);
        let td = Td { base: ibv_td { context: context.as_c() }, users: UseCount::default() };
        Ok(Box::new(td).into_c())
    })
}

pub(crate) extern "C" fn dealloc_td(td: Owned<'_, ibv_td>) -> c_int {
    status("ibv_dealloc_td", || {
        Td::given_back(&td)?.users.require_zero()?;
        drop(Td::from_c(td)?);
        Ok(())
    })
}

pub(crate) extern "C" fn alloc_parent_domain(
    context: Handle<'_, ibv_context>,
    attributes: In<'_, ibv_parent_domain_init_attr>,
) -> *mut ibv_pd {
    object("ibv_alloc_parent_domain", || {
        let context = Context::working(context)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let known = abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
            | abi::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
            // Memory that a guest shares with its host: no device here needs it, and plain memory will do.
            | abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
        if attributes.comp_mask & !known != 0 {
            // As mlx5 answers it; the manual page is silent.
            return Err(Errno::invalid("comp_mask has bits that are not known"));
        }
        // SAFETY: fields of the attributes, which the manual page wants null or objects of these types.
        let (pd, td) = unsafe { (Handle::new(attributes.pd), Handle::new(attributes.td)) };
        let underlying = Pd::by_handle(pd)?;
        underlying.join();
        if let Ok(td) = Td::of(td) {
            td.users.join();
        }
        Ok(Pd::make(context, underlying.domain, pd.as_ptr().cast(), td.as_ptr().cast(), false))
    })
}
