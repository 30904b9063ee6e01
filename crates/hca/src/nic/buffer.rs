//! Memory of the library's own that queue pairs work with: allocated and registered, and taken back together. It is
//! read and written by copies only, since a peer may write into it at any moment.

use crate::call_trace::OwnCalls;
use crate::error::{Error, system};
use crate::nic::Nic;
use memory::Mapping;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use transport::{Access, ProtectionDomain};
use wire::access::{Refusal, Subject};
use wire::{Key, Qpn};

/// Registered memory, zeros at first.
#[derive(Debug)]
pub struct Buffer {
    nic: Arc<Nic>,
    mapping: ManuallyDrop<Mapping>,
    length: usize,
    key: Key,
    /// The address of its first byte, as its key sees it.
    address: u64,
    domain: ProtectionDomain,
}

/// A key and addresses for a buffer that takes no memory yet: peers may be told of them before.
#[derive(Debug)]
pub struct ReservedBuffer {
    nic: Arc<Nic>,
    /// Until it belongs to a buffer.
    key: Option<Key>,
    address: u64,
    domain: ProtectionDomain,
}

/// Addresses that keys see where they are not the memory's own: whole pages, with room behind for every buffer.
const RESERVED_ADDRESSES: u64 = 0x3fff_ffff_f000;

impl ReservedBuffer {
    /// A key that leads nowhere, and addresses that nobody can foresee.
    pub fn new(nic: &Arc<Nic>, domain: ProtectionDomain) -> Result<ReservedBuffer, Error> {
        let _own = OwnCalls::told_by(&nic.ground.records.trace);
        let key = nic.register_null(domain)?;
        let address = ::host::random() & RESERVED_ADDRESSES;
        Ok(ReservedBuffer { nic: Arc::clone(nic), key: Some(key), address, domain })
    }

    /// The key it will have.
    pub fn key(&self) -> Key {
        self.key.unwrap_or_default()
    }

    /// The address that its first byte will have.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Takes memory: so many bytes, which peers may touch as `access` says.
    pub fn allocate(mut self, length: usize, access: Access) -> Result<Buffer, Error> {
        let (nic, domain, address) = (Arc::clone(&self.nic), self.domain, self.address);
        Buffer::make(&nic, length, domain, |place, size| {
            let translation = memory::Translation { address: place, length: size, iova: Some(address) };
            let spec = memory::RegionSpec { translation, domain, access: access | Access::LOCAL_WRITE };
            // SAFETY: the memory stays until the buffer's `drop` has deregistered it, and is reached through its key
            // only.
            unsafe { nic.fill_region(self.key(), &spec) }?;
            Ok((self.key.take().unwrap_or_default(), address))
        })
    }
}

impl Drop for ReservedBuffer {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let _own = OwnCalls::told_by(&self.nic.ground.records.trace);
            let _ = self.nic.deregister(key);
        }
    }
}

impl Buffer {
    /// So many bytes, which peers may touch as `access` says.
    pub fn allocate(nic: &Arc<Nic>, length: usize, domain: ProtectionDomain, access: Access) -> Result<Buffer, Error> {
        Buffer::make(nic, length, domain, |place, size| {
            // SAFETY: the memory stays until `drop` has deregistered it, and is reached through its key only.
            let key = unsafe { nic.register(place, size, domain, access | Access::LOCAL_WRITE) }?;
            Ok((key, place as u64))
        })
    }

    /// Memory that `register` gives a key and the address that the key sees.
    fn make(
        nic: &Arc<Nic>,
        length: usize,
        domain: ProtectionDomain,
        register: impl FnOnce(*mut u8, usize) -> Result<(Key, u64), Error>,
    ) -> Result<Buffer, Error> {
        // Pages of its own: a program that keeps pages from its children keeps no others, and all of them come back.
        let mapping = Mapping::anonymous(length.max(1)).map_err(system("cannot allocate a buffer"))?;
        let _own = OwnCalls::told_by(&nic.ground.records.trace);
        let (key, address) = register(mapping.first(), length.max(1))?;
        Ok(Buffer { nic: Arc::clone(nic), mapping: ManuallyDrop::new(mapping), length, key, address, domain })
    }

    /// Its R_Key, by which local work may name it as well.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The address of its first byte, for those that have its key.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies bytes out, from an offset on.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Refusal> {
        self.nic.memory().read(self.subject(), self.key, self.address() + offset as u64, out)
    }

    /// Copies bytes in, from an offset on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Refusal> {
        self.nic.memory().write(self.subject(), self.key, self.address() + offset as u64, bytes)
    }

    /// Its owner touches it as a queue pair of its domain would.
    fn subject(&self) -> Subject {
        Subject { qpn: Qpn::default(), pd: self.domain, remote: false }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _own = OwnCalls::told_by(&self.nic.ground.records.trace);
        // Where it cannot be deregistered it may still be written, and so it stays.
        if self.nic.deregister(self.key).is_ok() {
            // SAFETY: dropped once, here; no key leads to it any more.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}
