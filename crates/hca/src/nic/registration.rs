//! Registering plain memory of the process, the usual case. What is registered, and the copying, is the memory crate's.

use crate::call_trace::OwnCalls;
use crate::error::Error;
use crate::nic::Nic;
use trace::Call;
use transport::{Access, ProtectionDomain};
use wire::Key;

impl Nic {
    /// Registers memory of the process at its own address and returns its R_Key.
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
        // SAFETY: the range stays mapped, and no reference is relied on, until the key is deregistered.
        Ok(unsafe { self.register_region(&spec) }?)
    }

    /// Registers memory of the process as [`memory::Memory::register`] does.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn register_region(&self, spec: &memory::RegionSpec) -> Result<Key, memory::Error> {
        // SAFETY: the range stays mapped, and no reference is relied on, until the key is deregistered.
        let key = unsafe { self.memory().register(spec) }?;
        self.registered(key);
        Ok(key)
    }

    /// Registers nothing, as [`memory::Memory::register_null`] does.
    pub fn register_null(&self, domain: ProtectionDomain) -> Result<Key, memory::Error> {
        let key = self.memory().register_null(domain)?;
        self.registered(key);
        Ok(key)
    }

    /// Registers part of device memory, as [`memory::Memory::register_device`] does.
    pub fn register_device(
        &self,
        device: memory::DeviceMemory,
        offset: u64,
        length: usize,
        domain: ProtectionDomain,
        access: Access,
    ) -> Result<Key, memory::Error> {
        let key = self.memory().register_device(device, offset, length, domain, access)?;
        self.registered(key);
        Ok(key)
    }

    /// Tells the trace that a region was registered.
    fn registered(&self, key: Key) {
        self.told_of(key, |facts| Call::RegisterMemory {
            key,
            pd: facts.domain.0,
            address: facts.place,
            length: facts.length,
            iova: facts.address,
            access: facts.access,
        });
    }

    fn told_of(&self, key: Key, call: impl FnOnce(&memory::RegionFacts) -> Call) {
        if self.ground.records.trace.is_on()
            && let Some(facts) = self.memory().region(key)
        {
            self.called(None, || call(&facts));
        }
    }

    /// Changes a region, as [`memory::Memory::reregister`] does.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn reregister(&self, key: Key, change: &memory::Change) -> Result<(), memory::Error> {
        // SAFETY: the same holds for the changed range.
        unsafe { self.memory().reregister(key, change) }?;
        self.reregistered(key);
        Ok(())
    }

    fn reregistered(&self, key: Key) {
        self.told_of(key, |facts| Call::ReregisterMemory {
            old_key: key,
            key,
            pd: facts.domain.0,
            address: facts.place,
            length: facts.length,
            iova: facts.address,
            access: facts.access,
        });
    }

    /// Gives a key of [`register_null`](Nic::register_null) memory, as [`memory::Memory::fill`] does.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn fill_region(&self, key: Key, spec: &memory::RegionSpec) -> Result<(), memory::Error> {
        // SAFETY: the range stays mapped, and no reference is relied on, until the key is deregistered.
        unsafe { self.memory().fill(key, spec) }?;
        self.reregistered(key);
        Ok(())
    }

    /// Takes a key away. When this returns, nothing touches the memory through it any more.
    pub fn deregister(&self, key: Key) -> Result<(), Error> {
        self.memory().deregister(key)?;
        self.ground.ledger.deregistered();
        // Keys that are free rest before they are given out again: no other region has it yet.
        self.called(None, || Call::DeregisterMemory { key });
        Ok(())
    }

    /// A memory window of type 2, or else 1, that is bound to nothing, by its key.
    pub fn allocate_window(&self, domain: ProtectionDomain, type_2: bool) -> Result<Key, Error> {
        let kind = if type_2 { memory::WindowType::Type2 } else { memory::WindowType::Type1 };
        let key = self.memory().allocate_window(domain, kind)?;
        self.called(None, || Call::AllocWindow { key, pd: domain.0, type_2 });
        Ok(key)
    }

    /// Frees a window, by any key it ever had. When this returns, nothing touches memory through it any more.
    pub fn free_window(&self, key: Key) -> Result<(), Error> {
        let present = self.memory().window_key(key).unwrap_or(key);
        self.memory().free_window(present)?;
        self.called(None, || Call::FreeWindow { key });
        Ok(())
    }

    /// Registers bytes for as long as `f` runs: queue pairs of the domain may read them by the key that it is given.
    /// Work that still needs them afterwards fails. The library does it for programs that know nothing of keys: the
    /// trace is not told.
    pub fn lend<R>(&self, bytes: &[u8], domain: ProtectionDomain, f: impl FnOnce(Key) -> R) -> Result<R, Error> {
        let own = OwnCalls::told_by(&self.ground.records.trace);
        // SAFETY: the bytes stay while `f` runs, and there is no right to write to them. The key ends with `Loan`.
        let key = unsafe { self.register(bytes.as_ptr().cast_mut(), bytes.len(), domain, Access::empty()) }?;
        drop(own);
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
        let _own = OwnCalls::told_by(&self.nic.ground.records.trace);
        let ended = self.nic.deregister(self.key);
        assert!(ended.is_ok(), "a region of its own, without windows, can be deregistered");
    }
}
