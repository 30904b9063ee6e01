//! What a process shows the others of its host: one word that says whether it must be rung for, and the bell. Who has written to a ring reads the
//! word afterwards; who goes to sleep writes the word and looks at its rings once more afterwards; a full fence on both sides makes it
//! impossible that both miss. A burst rings once: the first to ring takes the word back.

use super::map::Mapping;
use super::word::{self, Sleeper};
use crate::descriptor::{Descriptor, check};
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// One page is the least there is.
const LENGTH: usize = 4096;

fn bell() -> io::Result<Descriptor> {
    // SAFETY: plain call; the descriptor it returns is owned from here on.
    let bell = unsafe { OwnedFd::from_raw_fd(check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?) };
    Ok(Descriptor::keep(bell))
}

/// Our own.
#[derive(Debug)]
pub struct Face {
    map: Mapping,
    /// For those who want to see it.
    pub(super) memory: Descriptor,
    /// For the engine, and for a thread in a call.
    pub(super) bells: [Descriptor; 2],
    /// The engine's may have been struck and not read.
    unread: AtomicBool,
}

impl Face {
    pub(crate) fn new() -> io::Result<Face> {
        let (map, memory) = Mapping::create(LENGTH)?;
        Ok(Face { map, memory: Descriptor::keep(memory), bells: [bell()?, bell()?], unread: AtomicBool::new(false) })
    }

    fn word(&self) -> Option<&AtomicU32> {
        // A forked child has neither.
        (self.memory.raw() >= 0).then(|| self.map.word(0))
    }

    /// Readable when somebody rang for this sleeper.
    pub fn fd(&self, sleeper: Sleeper) -> RawFd {
        self.bells[usize::from(sleeper == Sleeper::Caller)].raw()
    }

    /// From now on this sleeper is rung for. Look once more after this, then sleep on [`fd`](Face::fd).
    pub fn settle_down(&self, sleeper: Sleeper) {
        if let Some(word) = self.word() {
            word::settle_down(word, sleeper);
        }
    }

    /// The same for the engine, which is not rung for because of acknowledgements unless somebody waits for them.
    pub fn settle_down_lazily(&self, waited_for: impl FnOnce() -> bool) {
        if let Some(word) = self.word() {
            word::settle_down_lazily(word, waited_for);
        }
    }

    /// Somebody begins to wait for acknowledgements.
    pub fn expect(&self) {
        if let Some(word) = self.word() {
            word::expect(word);
        }
    }

    /// The program polls: nobody need ring.
    pub fn lease(&self) {
        // Who insists is to be told from who rang before.
        if self.unread.swap(false, Ordering::Relaxed) {
            self.was_insisted_on();
        }
        if let Some(word) = self.word() {
            word::lease(word);
        }
    }

    /// Whether somebody rang for the engine though the program polls.
    pub fn was_insisted_on(&self) -> bool {
        let mut count = [0u8; 8];
        // SAFETY: eight live bytes, as an eventfd wants; the descriptor does not block.
        unsafe { libc::read(self.fd(Sleeper::Engine), count.as_mut_ptr().cast(), count.len()) > 0 }
    }

    /// The engine is awake again, and will look. It hears its bell whether or not that was read.
    pub fn wake_engine(&self) {
        if let Some(word) = self.word()
            && word::wake(word)
        {
            self.unread.store(true, Ordering::Relaxed);
        }
    }

    /// This sleeper is awake again, and will look.
    pub fn wake(&self, sleeper: Sleeper) {
        let Some(word) = self.word() else { return };
        if word::wake(word) {
            let mut count = [0u8; 8];
            // SAFETY: eight live bytes, as an eventfd wants; the descriptor does not block.
            unsafe { libc::read(self.fd(sleeper), count.as_mut_ptr().cast(), count.len()) };
        }
    }
}

/// Another process's.
#[derive(Debug)]
pub(super) struct PeerFace {
    map: Mapping,
    bells: [Descriptor; 2],
}

impl PeerFace {
    /// What the other process gave us, if it can be believed.
    pub fn accept(memory: BorrowedFd<'_>, bells: [OwnedFd; 2]) -> io::Result<PeerFace> {
        let map = Mapping::accept(memory, |length| length == LENGTH as u64)?;
        let bells = bells.map(Descriptor::keep);
        for bell in &bells {
            // It may be anything: nothing that we write to may make us wait.
            // SAFETY: numbers.
            let flags = check(unsafe { libc::fcntl(bell.raw(), libc::F_GETFL) })?;
            if flags & libc::O_NONBLOCK == 0 {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(PeerFace { map, bells })
    }

    /// Something was written for it, `urgent` if it is more than an acknowledgement. Who must be rung for, if it sleeps: nobody else will.
    #[inline]
    pub fn to_ring_for(&self, urgent: bool) -> Option<Sleeper> {
        word::to_ring_for(self.map.word(0), urgent)
    }

    /// Whether its program is said to poll.
    #[inline]
    pub fn is_leased(&self) -> bool {
        word::is_leased(self.map.word(0))
    }

    /// Rings for its engine though its program is said to poll. False if it does not say so now.
    pub fn insist(&self) -> bool {
        let insists = word::to_insist(self.map.word(0));
        if insists {
            self.strike(Sleeper::Engine);
        }
        insists
    }

    pub fn strike(&self, sleeper: Sleeper) {
        let (bell, one) = (&self.bells[usize::from(sleeper == Sleeper::Caller)], 1u64.to_ne_bytes());
        // SAFETY: eight live bytes, as an eventfd wants; the descriptor does not block.
        unsafe { libc::write(bell.raw(), one.as_ptr().cast(), one.len()) };
    }
}
