//! Memory of the library's own that queue pairs work with: allocated and registered, and taken back together. It is
//! read and written by copies only, since a peer may write into it at any moment.

use crate::error::{Error, system};
use crate::nic::Nic;
use crate::told_calls::OwnCalls;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use transport::{Access, ProtectionDomain};
use wire::access::{Refusal, Subject};
use wire::{Key, Qpn};

/// Whole pages: a program that keeps pages from its children keeps no others.
const PAGE: usize = 4096;

/// Registered memory, zeros at first.
#[derive(Debug)]
pub struct Buffer {
    nic: Arc<Nic>,
    place: NonNull<u8>,
    layout: Layout,
    length: usize,
    key: Key,
    domain: ProtectionDomain,
}

// SAFETY: the pointer is followed by `memory` alone, which is made for all threads, until the buffer is dropped.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// So many bytes, which peers may touch as `access` says.
    pub fn allocate(nic: &Arc<Nic>, length: usize, domain: ProtectionDomain, access: Access) -> Result<Buffer, Error> {
        let no_memory = || system("cannot allocate a buffer")(io::ErrorKind::OutOfMemory.into());
        let size = length.max(1).checked_next_multiple_of(PAGE).ok_or_else(no_memory)?;
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| no_memory())?;
        // SAFETY: the size is not zero.
        let place = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_memory)?;
        let _own = OwnCalls::told_by(nic);
        // SAFETY: the memory stays until `drop` has deregistered it, and is reached through its key only.
        match unsafe { nic.register(place.as_ptr(), size, domain, access | Access::LOCAL_WRITE) } {
            Ok(key) => Ok(Buffer { nic: Arc::clone(nic), place, layout, length, key, domain }),
            Err(error) => {
                // SAFETY: allocated above with this layout, and nowhere else known.
                unsafe { dealloc(place.as_ptr(), layout) };
                Err(error)
            }
        }
    }

    /// Its key, L_Key and R_Key in one.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The address of its first byte.
    pub fn address(&self) -> u64 {
        self.place.as_ptr() as u64
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
        let _own = OwnCalls::told_by(&self.nic);
        // Where it cannot be deregistered it may still be written, and so it stays.
        if self.nic.deregister(self.key).is_ok() {
            // SAFETY: allocated with this layout, and no key leads to it any more.
            unsafe { dealloc(self.place.as_ptr(), self.layout) };
        }
    }
}
