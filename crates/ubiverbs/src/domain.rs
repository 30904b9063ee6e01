//! Protection domains, and the memory registered in them.

use crate::device::{Context, ContextCore};
use seam::Error;
use std::fmt;
use std::sync::Arc;
use transport::Access;

/// Memory and queues that belong together: a queue pair reaches only memory of its own protection domain. A handle;
/// clones are the same domain, which lasts as long as anything in it.
#[derive(Clone)]
#[doc(alias = "ibv_pd")]
pub struct ProtectionDomain {
    pub(crate) context: Context,
    pub(crate) id: transport::ProtectionDomain,
}

impl Context {
    /// A protection domain: memory and queues that belong together.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, Error> {
        Ok(ProtectionDomain { context: self.clone(), id: self.core.opened.new_domain() })
    }
}

/// What peers may be allowed.
pub(crate) const GRANTABLE_ACCESS: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT)
    .union(Access::MW_BIND)
    .union(Access::LOCAL_WRITE);

impl ProtectionDomain {
    /// The opened device it is of.
    pub fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn core(&self) -> &Arc<ContextCore> {
        &self.context.core
    }
}

/// Whether peers can be given these rights.
pub(crate) fn grantable(rights: Access) -> Result<(), Error> {
    let beyond = rights.difference(GRANTABLE_ACCESS);
    if beyond.is_empty() { Ok(()) } else { Err(Error::Rights { bits: beyond.bits() }) }
}

impl PartialEq for ProtectionDomain {
    fn eq(&self, other: &ProtectionDomain) -> bool {
        self.id == other.id && Arc::ptr_eq(self.core(), other.core())
    }
}

impl Eq for ProtectionDomain {}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({} of {})", self.id.0, self.context.name())
    }
}
