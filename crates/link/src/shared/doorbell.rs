//! What a process shows the others of its host: one word that says whether it must be rung for, and the bell. The
//! writer of a ring reads the word after it has written; a sleeper writes the word, then looks at its rings once more
//! before it sleeps; a full fence on both sides makes it impossible that both miss. Writers need none while the word
//! says that the program polls: the sleeper puts one into their way when that ends. A burst rings once: the first to
//! ring takes the word back.

use super::map::Mapping;
use super::word::{self, Needs, Sleeper};
use crate::sync::{heavy_fence, is_registered_for_fences, register_for_fences};
use host::descriptor::{Descriptor, check};
use host::event_fd::{self, Bell};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use wire::refuse_if;

/// One page is the least there is.
const DOORBELL_PAGE_BYTES: usize = 4096;

/// Our own.
#[derive(Debug)]
pub struct Doorbell {
    map: Mapping,
    /// For the processes that map it.
    pub(super) memory: Descriptor,
    /// For the engine, and for a thread in a call.
    pub(super) bells: [Bell; 2],
    /// The engine's may have been struck and not read.
    unread: AtomicBool,
    /// How often peers were let write without fences, and up to which of these times a fence was put into their way.
    leases: AtomicU32,
    fenced_leases: AtomicU32,
}

impl Doorbell {
    /// One that other processes can map.
    pub(crate) fn new() -> io::Result<Doorbell> {
        let (map, memory) = Mapping::create(DOORBELL_PAGE_BYTES)?;
        Doorbell::of(map, memory)
    }

    /// One that no other process rings: for a process without shared memory.
    pub(crate) fn private() -> io::Result<Doorbell> {
        // Nothing is passed to others; the descriptor only tells whether this is a forked child.
        Doorbell::of(Mapping::private(DOORBELL_PAGE_BYTES)?, event_fd::open()?)
    }

    fn of(map: Mapping, memory: OwnedFd) -> io::Result<Doorbell> {
        Ok(Doorbell {
            map,
            memory: Descriptor::keep(memory),
            bells: [Bell::new()?, Bell::new()?],
            unread: AtomicBool::new(false),
            leases: AtomicU32::new(0),
            fenced_leases: AtomicU32::new(0),
        })
    }

    fn word(&self) -> Option<&AtomicU32> {
        // A forked child has neither.
        (self.memory.raw() >= 0).then(|| self.map.word(0))
    }

    /// Readable when another process rang for this sleeper.
    pub fn fd(&self, sleeper: Sleeper) -> RawFd {
        self.bell(sleeper).raw()
    }

    fn bell(&self, sleeper: Sleeper) -> &Bell {
        &self.bells[usize::from(sleeper == Sleeper::Caller)]
    }

    /// From now on this sleeper is rung for. Look once more after this, then sleep on [`fd`](Doorbell::fd).
    pub fn prepare_sleep(&self, sleeper: Sleeper) {
        if let Some(word) = self.word() {
            word::prepare_sleep(word, sleeper);
            self.fence_after_lease();
        }
    }

    /// Peers that saw that the program polls have written without fences. What they wrote is to be seen by the look that
    /// comes next.
    fn fence_after_lease(&self) {
        let leases = self.leases.load(Ordering::SeqCst);
        if self.fenced_leases.load(Ordering::SeqCst) != leases {
            heavy_fence();
            self.fenced_leases.store(leases, Ordering::SeqCst);
        }
    }

    /// [`prepare_sleep`](Doorbell::prepare_sleep) for the engine, which is not rung for because of acknowledgements
    /// unless a thread of this process waits for them.
    pub fn prepare_sleep_lazily(&self, waited_for: impl FnOnce() -> bool) {
        if let Some(word) = self.word() {
            word::prepare_sleep_lazily(word, waited_for);
            self.fence_after_lease();
        }
    }

    /// A thread of this process begins to wait for acknowledgements.
    pub fn expect(&self) {
        if let Some(word) = self.word() {
            word::expect(word);
        }
    }

    /// The program polls: its peers need not ring.
    pub fn lease(&self) {
        // Empties the bell: a ring that insists must be told from one that came before the lease.
        if self.unread.swap(false, Ordering::Relaxed) {
            self.was_insisted_on();
        }
        if let Some(word) = self.word() {
            let fenced = register_for_fences();
            if fenced {
                // Before the word: a thread that prepares to sleep after it sees that a fence is due.
                self.leases.fetch_add(1, Ordering::SeqCst);
            }
            word::lease(word, fenced);
        }
    }

    /// Whether another process rang for the engine though the program polls.
    pub fn was_insisted_on(&self) -> bool {
        self.bell(Sleeper::Engine).hear()
    }

    /// The engine is awake again, and will look. It hears its bell whether or not that was read.
    pub fn wake_engine(&self) {
        if let Some(word) = self.word()
            && word::wake(word)
        {
            self.unread.store(true, Ordering::Relaxed);
        }
    }

    /// This sleeper is awake again, and will look; `struck` if its bell woke it. Then the bell is heard whatever the
    /// word says: who took the word may strike late, when a sleeper has written the word anew, and a bell that is not
    /// heard ends every sleep at once.
    pub fn wake(&self, sleeper: Sleeper, struck: bool) {
        let Some(word) = self.word() else { return };
        if word::wake(word) || struck {
            self.bell(sleeper).hear();
        }
    }
}

/// Another process's.
#[derive(Debug)]
pub(super) struct PeerDoorbell {
    map: Mapping,
    bells: [Descriptor; 2],
}

impl PeerDoorbell {
    /// What the other process gave us, if it can be believed.
    pub fn accept(memory: BorrowedFd<'_>, bells: [OwnedFd; 2]) -> io::Result<PeerDoorbell> {
        let map = Mapping::accept(memory, |length| length == DOORBELL_PAGE_BYTES as u64)?;
        let bells = bells.map(Descriptor::keep);
        for bell in &bells {
            // It may be anything: nothing that we write to may make us wait.
            // SAFETY: numbers.
            let flags = check(unsafe { libc::fcntl(bell.raw(), libc::F_GETFL) })?;
            refuse_if!(flags & libc::O_NONBLOCK == 0, io::ErrorKind::InvalidData.into());
        }
        Ok(PeerDoorbell { map, bells })
    }

    /// Something was written for it, `urgent` if it is more than an acknowledgement. Returns what it needs.
    #[inline]
    pub fn needs(&self, urgent: bool) -> Needs {
        word::needs(self.map.word(0), urgent, is_registered_for_fences())
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
        event_fd::add(self.bells[usize::from(sleeper == Sleeper::Caller)].raw());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(fd: RawFd) -> bool {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one live entry.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    /// The writer takes the word and stops; the sleeper wakes for another reason and sleeps again; then the writer
    /// strikes, and ends.
    #[test]
    fn a_bell_that_is_struck_late_ends_one_sleep() {
        for sleeper in [Sleeper::Engine, Sleeper::Caller] {
            let doorbell = Doorbell::new().unwrap();
            let word = doorbell.word().unwrap();
            doorbell.prepare_sleep(sleeper);
            assert_eq!(word::needs(word, true, true), Needs::Ring(sleeper));
            doorbell.wake(sleeper, false);
            doorbell.prepare_sleep(sleeper);
            doorbell.bell(sleeper).strike();
            assert!(is_readable(doorbell.fd(sleeper)));
            doorbell.wake(sleeper, true);
            doorbell.prepare_sleep(sleeper);
            assert!(!is_readable(doorbell.fd(sleeper)), "{sleeper:?} never sleeps again");
        }
    }
}
