//! Looks at memory of the process that may not be there, for observers of a program: what a buffer holds, whether it is
//! mapped. No lock is taken, no signal is raised and no access is counted, so an observer may look while any lock is
//! held.

use crate::memory::Memory;
use crate::on_demand::PAGES_PER_LOOK;
use crate::slot::{Reach, within};
use crate::{gpu, mapped, on_demand};
use wire::Key;

impl Memory {
    /// Where the bytes lie that a key reaches at this address; `None` if the key does not reach all of them now, is being
    /// changed, or if they are a GPU's, which the processor cannot look at.
    #[must_use]
    pub fn place(&self, key: Key, address: u64, length: u64) -> Option<u64> {
        let terms = self.slot(key)?.glance(key)?;
        let offset = within(terms.start, terms.length, address, length)?;
        let is_here = match terms.reach {
            Reach::Processor => !terms.base.is_null(),
            Reach::OnDemand => true,
            Reach::Gpu(_) => false,
        };
        is_here.then(|| (terms.base as u64).wrapping_add(offset))
    }
}

/// Copies what lies at these places, address and length of each, one after the other into `out`, by one system call for
/// many of them. Returns whether everything was there.
pub fn peek(places: &[(u64, usize)], out: &mut [u8]) -> bool {
    let mut rest = out;
    for some in places.chunks(PAGES_PER_LOOK) {
        let length = some.iter().map(|(_, length)| length).sum();
        let Some((now, later)) = rest.split_at_mut_checked(length) else { return false };
        if !on_demand::load_together(now, some) {
            return false;
        }
        rest = later;
    }
    true
}

/// Whether all pages of a range are mapped; `None` if the system does not say, or if they are a GPU's.
#[must_use]
pub fn is_mapped(address: u64, length: u64) -> Option<bool> {
    if gpu::may_be_in_gpu_region(address, length) {
        return None;
    }
    let (address, length) = (usize::try_from(address).ok()?, usize::try_from(length).ok()?);
    if length == 0 {
        return Some(true);
    }
    let Some((start, span)) = mapped::pages(address, length) else { return Some(false) };
    // SAFETY: since Linux 2.6.19 it changes nothing and waits for nothing, and tells whether there are holes.
    let result = unsafe { libc::msync(start as *mut libc::c_void, span, libc::MS_ASYNC) };
    match result {
        0 => Some(true),
        _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) => Some(false),
        _ => None,
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::{Access, ProtectionDomain, RegionSpec, Translation};

    #[test]
    fn what_is_not_there_is_told_and_not_fatal() {
        let page = mapped::page_size();
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, whose second half may not be touched any more.
        let start = unsafe {
            let start = libc::mmap(std::ptr::null_mut(), 2 * page, rights, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(start.byte_add(page), page, libc::PROT_NONE), 0);
            start.addr() as u64
        };
        let mut out = [1; 8];
        assert!(peek(&[(start, 3), (start + 100, 5)], &mut out) && out == [0; 8]);
        assert!(!peek(&[(start, 3), (start + page as u64, 5)], &mut out));
        assert!(!peek(&[(start + page as u64 - 4, 8)], &mut out), "half of it is there");
        assert!(!peek(&[(0, 8)], &mut out) && !peek(&[(u64::MAX - 3, 8)], &mut out));
        assert_eq!(is_mapped(start, page as u64), Some(true));
        // SAFETY: the first half, which nothing refers to.
        assert_eq!(unsafe { libc::munmap(start as *mut libc::c_void, page) }, 0);
        assert_eq!(is_mapped(start, page as u64), Some(false));
        assert_eq!(is_mapped(start + 17, 1), Some(false));
        assert_eq!(is_mapped(u64::MAX - 4096, 4096), Some(false));
    }

    #[test]
    fn many_places_are_one_after_the_other() {
        let bytes: Vec<u8> = (0..=255).collect();
        let first = bytes.as_ptr().addr() as u64;
        let places: Vec<(u64, usize)> = (0..100).map(|index| (first + 2 * index, 1)).collect();
        let mut out = [0; 100];
        assert!(peek(&places, &mut out));
        assert!(out.iter().copied().eq((0..100).map(|index| 2 * index)));
    }

    #[test]
    fn a_key_leads_to_where_its_memory_lies() {
        let memory = Memory::new();
        let mut bytes = [0u8; 64];
        let translation = Translation { address: bytes.as_mut_ptr(), length: 64, iova: Some(0x5000) };
        let spec = RegionSpec { translation, domain: ProtectionDomain(1), access: Access::empty() };
        // SAFETY: `bytes` is not used until the region is gone.
        let key = unsafe { memory.register(&spec) }.unwrap();
        let first = bytes.as_ptr().addr() as u64;
        assert_eq!(memory.place(key, 0x5000, 64), Some(first));
        assert_eq!(memory.place(key, 0x5010, 48), Some(first + 16));
        assert_eq!(memory.place(key, 0x5010, 49), None, "past its end");
        assert_eq!(memory.place(key, first, 1), None, "it is known by other addresses");
        assert_eq!(memory.place(Key::new(1), 0, 1), None);
        memory.deregister(key).unwrap();
        assert_eq!(memory.place(key, 0x5000, 64), None);
    }
}
