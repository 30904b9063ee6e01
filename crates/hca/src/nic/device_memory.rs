//! Memory of the device as an object with an owner: freed when its last owner has let go of it. How it is kept, and how
//! much there is, is the memory crate's.

use crate::error::Error;
use crate::nic::Nic;
use std::sync::Arc;
use transport::{Access, ProtectionDomain};
use wire::Key;

/// A piece of device memory. Dropping it frees it; a caller that registers a part of it holds on to it until that is
/// deregistered.
#[derive(Debug)]
pub struct DeviceMemory {
    nic: Arc<Nic>,
    piece: memory::DeviceMemory,
}

impl DeviceMemory {
    /// Allocates `length` zeroed bytes, aligned to `1 << log_alignment`.
    pub fn allocate(nic: &Arc<Nic>, length: usize, log_alignment: u32) -> Result<DeviceMemory, Error> {
        let piece = nic.memory().allocate_device(length, log_alignment)?;
        Ok(DeviceMemory { nic: Arc::clone(nic), piece })
    }

    /// How many bytes the device has in all.
    pub fn size(nic: &Nic) -> u64 {
        nic.memory().limits().device_memory
    }

    /// Copies bytes in.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.nic.memory().write_device(self.piece, offset, bytes)?)
    }

    /// Copies bytes out.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        Ok(self.nic.memory().read_device(self.piece, offset, out)?)
    }

    /// Registers a part of it, whose addresses count from zero. The key is taken away by [`Nic::deregister`].
    pub fn register(&self, offset: u64, length: usize, domain: ProtectionDomain, access: Access) -> Result<Key, Error> {
        let access = access | Access::ZERO_BASED;
        Ok(self.nic.register_device(self.piece, offset, length, domain, access)?)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // Refused only while it is registered: it stays then, as memory in use does everywhere.
        let _ = self.nic.memory().free_device(self.piece);
    }
}
