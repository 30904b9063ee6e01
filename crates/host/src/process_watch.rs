//! Tells when the process that has a slot has ended, however it ended. A name vanishes with its process, and no message
//! says so; a descriptor of the process itself becomes readable.

use crate::connection_records::{self, ConnectionRecord};
use crate::descriptor::Descriptor;
use crate::event_set::EventSet;
use crate::names::{self, Name};
use crate::slots::{Registry, Slot, Slots};
use latch::Rank;
use latch::plain::{Guard, Mutex};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// How many processes are watched that no caller asks for any more: programs that connect again and again need not find
/// out anew, and the peer not be asked, who has a slot.
const MAX_IDLE_WATCHES: usize = 8;

/// How long a process is believed to have its slot: one that goes on may have given it back.
const OWNER_CACHE_TIME: Duration = Duration::from_secs(1);

/// The processes that are watched.
#[derive(Debug)]
pub struct ProcessWatch {
    registry: Arc<Registry>,
    set: EventSet,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    next_key: u64,
    processes: HashMap<WatchedProcess, ProcessWatchers>,
}

/// A process that is watched: the owner of a slot, and no later owner of the same slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WatchedProcess {
    slot: Slot,
    /// No two have the same; also in the epoll set.
    key: u64,
}

impl WatchedProcess {
    /// The slot that it has or had.
    pub fn slot(self) -> Slot {
        self.slot
    }
}

#[derive(Debug)]
struct ProcessWatchers {
    /// How many asked.
    count: usize,
    pid: i32,
    process: Descriptor,
    /// When the process was last seen to have the slot.
    verified: Instant,
}

impl ProcessWatchers {
    /// Whether the process has ended, as the kernel knows it now.
    fn has_ended(&self) -> bool {
        let mut process = libc::pollfd { fd: self.process.raw(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live structure.
        unsafe { libc::poll(&raw mut process, 1, 0) > 0 }
    }

    /// Whether the process still has the slot, as far as is known.
    fn has(&mut self, slot: Slot, now: Instant) -> bool {
        // One that has ended and was not told of yet is not the slot's owner any more.
        if self.has_ended() {
            return false;
        }
        let is_believed = now.saturating_duration_since(self.verified) < OWNER_CACHE_TIME;
        if !is_believed {
            match names::owner(Name::Slot(slot)) {
                Ok(Some(peer)) if peer.pid == self.pid => self.verified = now,
                // It is stopped, or there is no descriptor to ask with.
                Err(_) => {}
                Ok(_) => return false,
            }
        }
        true
    }
}

impl ProcessWatch {
    /// Watches no process yet. A thread that waits for the registry's descriptor wakes up when a watched process ends.
    pub fn new(slots: &Slots) -> io::Result<ProcessWatch> {
        let set = EventSet::new()?;
        let registry = slots.registry().clone();
        registry.watch(set.raw(), Registry::PROCESS_WATCH_KEY)?;
        Ok(ProcessWatch { registry, set, watched: Mutex::new(Rank::ProcessWatch, Watched::default()) })
    }

    /// Watches the process that has `slot`; `None` if no process has it, or none that can be watched. Asking twice
    /// needs letting go twice.
    pub fn watch(&self, slot: Slot) -> io::Result<Option<WatchedProcess>> {
        let (mut watched, now) = (self.lock(), Instant::now());
        for (known, entry) in watched.processes.iter_mut().filter(|(known, _)| known.slot == slot) {
            if entry.has(slot, now) {
                entry.count += 1;
                return Ok(Some(*known));
            }
        }
        // In another namespace of processes it has no number here.
        let Some(peer) = names::owner(Name::Slot(slot))?.filter(|peer| peer.pid > 0) else { return Ok(None) };
        let process = Descriptor::of_process(peer.pid)?;
        // Had it ended in between, its number might be another's; its name would be free.
        if !names::is_reachable(Name::Slot(slot))? {
            return Ok(None);
        }
        watched.next_key += 1;
        let known = WatchedProcess { slot, key: watched.next_key };
        self.set.add(process.raw(), known.key)?;
        watched.processes.insert(known, ProcessWatchers { count: 1, pid: peer.pid, process, verified: now });
        Ok(Some(known))
    }

    /// A caller that asked for a process asks no more.
    pub fn unwatch(&self, process: WatchedProcess) {
        let mut watched = self.lock();
        let Some(entry) = watched.processes.get_mut(&process) else { return };
        entry.count -= 1;
        let idle = || watched.processes.iter().filter(|(_, entry)| entry.count == 0);
        if idle().count() > MAX_IDLE_WATCHES
            && let Some(oldest) = idle().min_by_key(|(_, entry)| entry.verified).map(|(process, _)| *process)
        {
            self.forget(&mut watched, oldest);
        }
    }

    /// Whether a watched process may have ended: look at [`ended`](ProcessWatch::ended).
    #[inline]
    pub fn has_news(&self) -> bool {
        self.registry.has_died()
    }

    /// The connections of processes that ended and had chosen this process as keeper of their records. Returns also how
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

    /// The processes that have ended since the last call. They are watched no more.
    pub fn ended(&self) -> Vec<WatchedProcess> {
        self.registry.deaths_seen();
        let mut ended = Vec::new();
        let mut watched = self.lock();
        loop {
            let ready = self.set.ready().unwrap_or_default();
            for key in ready.iter() {
                let gone = watched.processes.keys().find(|process| process.key == key).copied();
                if let Some(process) = gone {
                    self.forget(&mut watched, process);
                    ended.push(process);
                }
            }
            if !ready.is_full() {
                return ended;
            }
        }
    }

    fn forget(&self, watched: &mut Watched, process: WatchedProcess) {
        if let Some(gone) = watched.processes.remove(&process) {
            self.set.remove(gone.process.raw());
        }
    }

    fn lock(&self) -> Guard<MutexGuard<'_, Watched>> {
        self.watched.lock()
    }
}

impl Drop for ProcessWatch {
    fn drop(&mut self) {
        self.registry.unwatch(self.set.raw());
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
        let watched = process_watch.watch(slot).unwrap().unwrap();
        assert_eq!(process_watch.watch(slot).unwrap(), Some(watched));
        assert!(process_watch.ended().is_empty());
        process_watch.unwatch(watched);
        process_watch.unwatch(watched);
        assert_eq!(process_watch.watch(slot).unwrap(), Some(watched), "it is remembered for a while");
        // SAFETY: our own child.
        unsafe { libc::kill(child, libc::SIGKILL) };
        let deadline = Instant::now() + Duration::from_secs(60);
        let ended = loop {
            let ended = process_watch.ended();
            if !ended.is_empty() || Instant::now() > deadline {
                break ended;
            }
        };
        assert_eq!(ended, [watched]);
        assert!(process_watch.ended().is_empty());
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        assert_eq!(process_watch.watch(slot).unwrap(), None, "no process has it");
    }
}
