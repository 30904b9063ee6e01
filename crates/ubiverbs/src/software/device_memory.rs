//! Memory of the device, which the NIC of this process keeps beside the program's.

use hca::Nic;
use seam::{DeviceMemory, Error};
use std::sync::Arc;
use transport::{Access, ProtectionDomain};
use wire::Key;

pub(super) fn allocate(nic: &Arc<Nic>, length: usize, alignment: usize) -> Result<Arc<dyn DeviceMemory>, Error> {
    let memory = hca::DeviceMemory::allocate(nic, length, alignment.ilog2()).map_err(Error::create("device memory"))?;
    Ok(Arc::new(Ours(memory)))
}

#[derive(Debug)]
struct Ours(hca::DeviceMemory);

fn copy(source: hca::Error) -> Error {
    Error::DeviceMemory { source: Box::new(source) }
}

// SAFETY: its keys come from the same table as those of other memory.
#[allow(unsafe_code)]
unsafe impl DeviceMemory for Ours {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.0.write(offset, bytes).map_err(copy)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.0.read(offset, out).map_err(copy)
    }

    fn register(&self, offset: u64, length: usize, domain: ProtectionDomain, access: Access) -> Result<Key, Error> {
        let registered = self.0.register(offset, length, domain, access);
        registered.map_err(Error::register(length))
    }
}
