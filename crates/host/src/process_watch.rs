//! Tells when the process that has a slot has ended, however it ended. A name vanishes with its process, and no message
//! says so; a descriptor of the process itself becomes readable.

use crate::connection_records::{self, ConnectionRecord};
use crate::descriptor::{Descriptor, check};
use crate::names::{self, Name};
use crate::slots::{Registry, Slot, Slots};
use latch::Rank;
use latch::plain::{Guard, Mutex};
use std::collections::HashMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, MutexGuard};

/// The processes that are watched.
#[derive(Debug)]
pub struct ProcessWatch {
    registry: Arc<Registry>,
    epoll: Descriptor,
    watched: Mutex<HashMap<Slot, Watched>>,
}

#[derive(Debug)]
struct Watched {
    /// How many asked.
    count: usize,
    process: Descriptor,
}

impl ProcessWatch {
    /// Watches no process yet. A thread that waits for the registry's descriptor wakes up when a watched process ends.
    pub fn new(slots: &Slots) -> io::Result<ProcessWatch> {
        // SAFETY: a number; the descriptor it returns is owned from here on.
        let epoll = unsafe {
            let fd = check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?;
            Descriptor::keep(OwnedFd::from_raw_fd(fd))
        };
        let registry = slots.registry().clone();
        registry.watch(epoll.raw(), Registry::PROCESS_WATCH)?;
        Ok(ProcessWatch { registry, epoll, watched: Mutex::new(Rank::ProcessWatch, HashMap::new()) })
    }

    /// Watches the process that has `slot`; false if none has it, or none that can be watched. Asking twice needs
    /// letting go twice.
    pub fn watch(&self, slot: Slot) -> io::Result<bool> {
        let mut watched = self.lock();
        if let Some(known) = watched.get_mut(&slot) {
            known.count += 1;
            return Ok(true);
        }
        // In another namespace of processes it has no number here.
        let Some(peer) = names::owner(Name::Slot(slot))?.filter(|peer| peer.pid > 0) else { return Ok(false) };
        // SAFETY: two numbers; the descriptor it returns is owned from here on.
        let process = unsafe {
            let fd = check(libc::syscall(libc::SYS_pidfd_open, peer.pid, 0) as libc::c_int)?;
            Descriptor::keep(OwnedFd::from_raw_fd(fd))
        };
        // Had it ended in between, its number might be another's; its name would be free.
        if !names::is_reachable(Name::Slot(slot))? {
            return Ok(false);
        }
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: u64::from(slot.number()) };
        // SAFETY: numbers, and a live event that the kernel reads.
        check(unsafe { libc::epoll_ctl(self.epoll.raw(), libc::EPOLL_CTL_ADD, process.raw(), &raw mut event) })?;
        watched.insert(slot, Watched { count: 1, process });
        Ok(true)
    }

    /// A caller that asked for `slot` asks no more.
    pub fn unwatch(&self, slot: Slot) {
        let mut watched = self.lock();
        let Some(known) = watched.get_mut(&slot) else { return };
        known.count -= 1;
        if known.count == 0 {
            self.forget(&mut watched, slot);
        }
    }

    /// Whether a watched process may have ended: look at [`ended`](ProcessWatch::ended).
    #[inline]
    pub fn has_news(&self) -> bool {
        self.registry.has_died()
    }

    /// The connections of processes that ended and had chosen this process as keeper of their records. Answers also how
    /// many records could not be read.
    pub fn connections_of_dead(&self) -> (Vec<ConnectionRecord>, u32) {
        let (mut connections, mut unreadable) = (Vec::new(), 0);
        for will in self.registry.take_connection_records() {
            match connection_records::open(&will).map(connection_records::read) {
                Ok((read, nonsense)) => {
                    connections.extend(read);
                    unreadable += nonsense;
                }
                Err(_) => unreadable += 1,
            }
        }
        (connections, unreadable)
    }

    /// The slots whose process has ended since the last call. They are watched no more.
    pub fn ended(&self) -> Vec<Slot> {
        self.registry.deaths_seen();
        let mut ended = Vec::new();
        let mut watched = self.lock();
        loop {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
            // SAFETY: the kernel writes at most as many events as there is room for.
            let count = unsafe { libc::epoll_wait(self.epoll.raw(), events.as_mut_ptr(), 16, 0) };
            let count = usize::try_from(count).unwrap_or(0);
            for event in events.iter().take(count) {
                if let Some(slot) = Slot::new(event.u64 as u16) {
                    self.forget(&mut watched, slot);
                    ended.push(slot);
                }
            }
            if count < events.len() {
                return ended;
            }
        }
    }

    fn forget(&self, watched: &mut HashMap<Slot, Watched>, slot: Slot) {
        if let Some(gone) = watched.remove(&slot) {
            // SAFETY: numbers; the event may be null for this operation.
            unsafe {
                libc::epoll_ctl(self.epoll.raw(), libc::EPOLL_CTL_DEL, gone.process.raw(), std::ptr::null_mut());
            }
        }
    }

    fn lock(&self) -> Guard<MutexGuard<'_, HashMap<Slot, Watched>>> {
        self.watched.lock()
    }
}

impl Drop for ProcessWatch {
    fn drop(&mut self) {
        self.registry.unwatch(self.epoll.raw());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::exit;
    use std::time::{Duration, Instant};

    #[test]
    fn a_process_that_is_killed_is_told_of_once() {
        let slots = Slots::open().unwrap();
        let process_watch = ProcessWatch::new(&slots).unwrap();
        let mut pipe = [0; 2];
        // SAFETY: a live array of two; the child only takes a slot, says which, and waits to be killed.
        let child = unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            match libc::fork() {
                0 => {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    let Ok(slots) = Slots::open() else { exit(1) };
                    let Ok(slot) = slots.take() else { exit(1) };
                    let number = slot.number().to_ne_bytes();
                    libc::write(pipe[1], number.as_ptr().cast(), 2);
                    libc::pause();
                    exit(0);
                }
                child => child,
            }
        };
        let mut number = [0; 2];
        // SAFETY: two live bytes.
        assert_eq!(unsafe { libc::read(pipe[0], number.as_mut_ptr().cast(), 2) }, 2);
        let slot = Slot::new(u16::from_ne_bytes(number)).unwrap();
        assert!(process_watch.watch(slot).unwrap() && process_watch.watch(slot).unwrap());
        assert!(process_watch.ended().is_empty());
        process_watch.unwatch(slot);
        // SAFETY: our own child.
        unsafe { libc::kill(child, libc::SIGKILL) };
        let deadline = Instant::now() + Duration::from_secs(60);
        let ended = loop {
            let ended = process_watch.ended();
            if !ended.is_empty() || Instant::now() > deadline {
                break ended;
            }
        };
        assert_eq!(ended, [slot]);
        assert!(process_watch.ended().is_empty());
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        assert!(!process_watch.watch(slot).unwrap(), "nobody has it");
    }
}
