//! Registering plain memory of the process, the usual case. What is registered, and the copying, is the memory crate's.

use crate::error::Error;
use crate::nic::Nic;
use transport::{Access, ProtectionDomain};
use wire::Key;

impl Nic {
    /// Registers memory of the process at its own address and returns its key, L_Key and R_Key in one.
    ///
    /// # Safety
    /// As for [`memory::Memory::register`]: until the key is deregistered the range must stay mapped, and no code of
    /// the process may rely on references to it while the NIC, by the rights given, may touch it.
    pub unsafe fn register(
        &self,
        address: *mut u8,
        length: usize,
        domain: ProtectionDomain,
        access: Access,
    ) -> Result<Key, Error> {
        let spec = memory::RegionSpec { translation: memory::Translation::new(address, length), domain, access };
        // SAFETY: the caller's promise is the one asked for here.
        Ok(unsafe { self.memory().register(&spec) }?)
    }

    /// Takes a key away. When this returns, nothing touches the memory through it any more.
    pub fn deregister(&self, key: Key) -> Result<(), Error> {
        Ok(self.memory().deregister(key)?)
    }

    /// A memory window of type 2, or else 1, that is bound to nothing, by its key.
    pub fn allocate_window(&self, domain: ProtectionDomain, type_2: bool) -> Result<Key, Error> {
        let kind = if type_2 { memory::WindowType::Type2 } else { memory::WindowType::Type1 };
        Ok(self.memory().allocate_window(domain, kind)?)
    }

    /// Frees a window, by any key it ever had. When this returns, nothing touches memory through it any more.
    pub fn free_window(&self, key: Key) -> Result<(), Error> {
        let present = self.memory().window_key(key).unwrap_or(key);
        Ok(self.memory().free_window(present)?)
    }

    /// Registers bytes for as long as `f` runs: queue pairs of the domain may read them by the key that it is given.
    /// Work that still needs them afterwards fails.
    pub fn lend<R>(&self, bytes: &[u8], domain: ProtectionDomain, f: impl FnOnce(Key) -> R) -> Result<R, Error> {
        // SAFETY: the bytes stay while `f` runs, and there is no right to write to them. The key ends with `Loan`.
        let key = unsafe { self.register(bytes.as_ptr().cast_mut(), bytes.len(), domain, Access::empty()) }?;
        let loan = Loan { nic: self, key };
        Ok(f(loan.key))
    }
}

/// A key that ends with it.
struct Loan<'a> {
    nic: &'a Nic,
    key: Key,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let ended = self.nic.deregister(self.key);
        assert!(ended.is_ok(), "a region of its own, without windows, can be deregistered");
    }
}
