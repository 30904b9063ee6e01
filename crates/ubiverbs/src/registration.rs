//! A key and what became of it: what all registered memory has in common, wherever it lies.

use seam::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use transport::ProtectionDomain;
use wire::Key;

/// A registration with the NIC. The memory's owner revokes it before the memory is freed.
pub(crate) struct Registration {
    context: Arc<dyn seam::Context>,
    domain: ProtectionDomain,
    key: Key,
    /// The key has been taken away. Written under the lock, under which it is taken away once.
    revoked: AtomicBool,
    revoking: Mutex<()>,
}

impl Registration {
    pub fn new(context: &Arc<dyn seam::Context>, domain: ProtectionDomain, key: Key) -> Registration {
        Registration {
            context: Arc::clone(context),
            domain,
            key,
            revoked: AtomicBool::new(false),
            revoking: Mutex::new(()),
        }
    }

    /// This key for a part of the memory, whose owner keeps this one and never revokes it before.
    pub fn again(&self) -> Registration {
        Registration::new(&self.context, self.domain, self.key)
    }

    pub fn key(&self) -> Key {
        self.key
    }

    pub fn domain(&self) -> ProtectionDomain {
        self.domain
    }

    /// Takes the key away. When this returns, the NIC touches the memory no more, for anybody.
    pub fn revoke(&self) -> Result<(), Error> {
        let _revoking = latch::lock(&self.revoking);
        if !self.is_revoked() {
            self.context.deregister(self.key)?;
            self.revoked.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }
}

/// Whether a range lies within so many bytes.
pub(crate) fn within(size: usize, offset: usize, length: usize) -> Result<(), Error> {
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfBounds { offset: offset as u64, length: length as u64, size: size as u64 }),
    }
}

/// Why nothing cannot be registered.
pub(crate) fn empty() -> Error {
    Error::Register {
        length: 0,
        source: "an empty buffer cannot be registered; send nothing with `send_inline(&[])`".into(),
    }
}
