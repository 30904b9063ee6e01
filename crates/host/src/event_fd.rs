//! The eventfd: a count behind a descriptor, readable while it is not zero. Bells of the NIC are made of it.

use crate::descriptor::{Descriptor, Opening, above_standard, check};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// A new count of zero, which is taken whole and never waited for.
pub fn open() -> io::Result<OwnedFd> {
    // SAFETY: numbers; the descriptor that comes back is owned from here on.
    above_standard(unsafe { OwnedFd::from_raw_fd(check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?) })
}

/// Counts one more. It can only fail by overflow, 2^64 counts from now, or because the descriptor is no eventfd.
pub fn add(fd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // Not `write`, at which a thread can be cancelled: the caller may have locks.
    // SAFETY: eight live bytes, as an eventfd wants.
    unsafe { libc::syscall(libc::SYS_write, fd, one.as_ptr(), one.len()) };
}

/// Takes the count. Returns whether there was one.
fn take(fd: RawFd) -> bool {
    let mut count = [0u8; 8];
    // Not `read`, for the same reason.
    // SAFETY: eight live bytes, as an eventfd wants.
    unsafe { libc::syscall(libc::SYS_read, fd, count.as_mut_ptr(), count.len()) >= 0 }
}

/// A bell of this process: it has none in a forked child.
#[derive(Debug)]
pub struct Bell(Descriptor);

impl Bell {
    /// A bell that has not been struck.
    pub fn new() -> io::Result<Bell> {
        let _opening = Opening::begin();
        Ok(Bell(Descriptor::keep(open()?)))
    }

    /// Readable when it was struck, and not heard since; -1 in a forked child.
    pub fn raw(&self) -> RawFd {
        self.0.raw()
    }

    /// Strikes it.
    pub fn strike(&self) {
        add(self.raw());
    }

    /// Hears it. Returns whether it had been struck.
    pub fn hear(&self) -> bool {
        take(self.raw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_heard_once_however_often_it_was_struck() {
        let bell = Bell::new().unwrap();
        assert!(!bell.hear());
        bell.strike();
        bell.strike();
        assert!(bell.hear() && !bell.hear());
    }
}
