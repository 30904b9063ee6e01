//! What a process shows the others of its host: one word that says whether it must be rung for, and the bell. Who has written to a ring reads the
//! word afterwards; who goes to sleep writes the word and looks at its rings once more afterwards; a full fence on both sides makes it
//! impossible that both miss. A burst rings once: the first to ring takes the word back.

use super::map::Mapping;
use crate::descriptor::{Descriptor, check};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// One page is the least there is.
const LENGTH: usize = 4096;

/// Awake: it will look before it sleeps.
const AWAKE: u32 = 0;
/// Asleep: ring.
const RING: u32 = 1;
/// Its program polls: it will look soon.
const LEASED: u32 = 2;

/// Takes the word back if it says that it must be rung for: then ring. Something must have been published before.
#[inline]
pub(crate) fn must_ring(word: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    word.load(Ordering::Relaxed) == RING
        && word.compare_exchange(RING, AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Our own.
#[derive(Debug)]
pub struct Face {
    map: Mapping,
    /// For those who want to see it.
    pub(super) memory: Descriptor,
    pub(super) bell: Descriptor,
}

impl Face {
    pub(crate) fn new() -> io::Result<Face> {
        let (map, memory) = Mapping::create(LENGTH)?;
        // SAFETY: plain call; the descriptor it returns is owned from here on.
        let bell = unsafe { OwnedFd::from_raw_fd(check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?) };
        Ok(Face { map, memory: Descriptor::keep(memory), bell: Descriptor::keep(bell) })
    }

    fn word(&self) -> Option<&AtomicU32> {
        // A forked child has neither.
        (self.bell.raw() >= 0).then(|| self.map.word(0))
    }

    /// Readable when somebody rang.
    pub fn fd(&self) -> RawFd {
        self.bell.raw()
    }

    /// From now on it is rung for. Look once more after this, then sleep on [`fd`](Face::fd).
    pub fn settle_down(&self) {
        if let Some(word) = self.word() {
            word.store(RING, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// The program polls: nobody need ring.
    pub fn lease(&self) {
        if let Some(word) = self.word() {
            word.store(LEASED, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Awake again.
    pub fn wake(&self) {
        let Some(word) = self.word() else { return };
        if word.swap(AWAKE, Ordering::AcqRel) == AWAKE {
            let mut count = [0u8; 8];
            // SAFETY: eight live bytes, as an eventfd wants; the descriptor does not block.
            unsafe { libc::read(self.bell.raw(), count.as_mut_ptr().cast(), count.len()) };
        }
    }
}

/// Another process's.
#[derive(Debug)]
pub(super) struct PeerFace {
    map: Mapping,
    bell: Descriptor,
}

impl PeerFace {
    /// What the other process gave us, if it can be believed.
    pub fn accept(memory: BorrowedFd<'_>, bell: OwnedFd) -> io::Result<PeerFace> {
        let map = Mapping::accept(memory, |length| length == LENGTH as u64)?;
        let bell = Descriptor::keep(bell);
        // It may be anything: nothing that we write to may make us wait.
        // SAFETY: numbers.
        unsafe {
            let flags = check(libc::fcntl(bell.raw(), libc::F_GETFL))?;
            if flags & libc::O_NONBLOCK == 0 {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(PeerFace { map, bell })
    }

    /// Something was written for it: rings, if it sleeps.
    #[inline]
    pub fn ring(&self) {
        if must_ring(self.map.word(0)) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight live bytes, as an eventfd wants; the descriptor does not block.
            unsafe { libc::write(self.bell.raw(), one.as_ptr().cast(), one.len()) };
        }
    }
}
