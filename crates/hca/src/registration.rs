//! Registered memory in the words of verbs: protection domains and keys as the transport knows them. What is registered, and the copying, is the
//! memory crate's.

use crate::nic::{Error, Nic};
use transport::{Access, ProtectionDomain};
use wire::Key;

impl Nic {
    /// Registers memory of the process at its own address and returns its key, L_Key and R_Key in one.
    ///
    /// # Safety
    /// As for [`memory::Memory::register`]: until the key is deregistered the range must stay mapped, and nobody may rely on references to it
    /// while the NIC, by the rights given, may touch it.
    pub unsafe fn register(
        &self,
        address: *mut u8,
        length: usize,
        domain: ProtectionDomain,
        access: Access,
    ) -> Result<Key, Error> {
        let spec = memory::RegionSpec {
            translation: memory::Translation::new(address, length),
            domain: memory::Domain(domain.0),
            access: memory::Access::from_bits_retain(access.bits()),
        };
        // SAFETY: the caller's promise is the one asked for here.
        let key = unsafe { self.memory().register(&spec) }?;
        Ok(Key::new(key.0))
    }

    /// Takes a key away. When this returns, nothing touches the memory through it any more.
    pub fn deregister(&self, key: Key) -> Result<(), Error> {
        Ok(self.memory().deregister(memory::Key(key.value()))?)
    }
}
