//! Sets of descriptors, of which the kernel says which are readable (epoll). A descriptor of a set has a key that the
//! caller chooses.

use crate::descriptor::{Descriptor, Opening, check};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;

/// So many keys are asked for at once.
const MAX_READY_KEYS: usize = 32;

/// The keys of descriptors that were readable.
#[derive(Clone, Copy, Debug)]
pub struct ReadyKeys {
    events: [libc::epoll_event; MAX_READY_KEYS],
    count: usize,
}

impl Default for ReadyKeys {
    fn default() -> ReadyKeys {
        ReadyKeys { events: [libc::epoll_event { events: 0, u64: 0 }; MAX_READY_KEYS], count: 0 }
    }
}

impl ReadyKeys {
    /// The keys.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.events.iter().take(self.count).map(|event| event.u64)
    }

    /// Whether there may be more than were asked for.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count == MAX_READY_KEYS
    }
}

/// A set of this process: it has none in a forked child.
#[derive(Debug)]
pub struct EventSet(Descriptor);

impl EventSet {
    /// An empty one.
    pub fn new() -> io::Result<EventSet> {
        let _opening = Opening::begin();
        // SAFETY: a number; the descriptor that comes back is ours.
        let set = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(EventSet(Descriptor::keep(set)))
    }

    /// Readable while a descriptor of the set is; -1 in a forked child.
    #[inline]
    pub fn raw(&self) -> RawFd {
        self.0.raw()
    }

    /// Adds a descriptor, which is ready while it is readable.
    pub fn add(&self, fd: RawFd, key: u64) -> io::Result<()> {
        self.change(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, key)
    }

    /// Adds a descriptor, which is ready once each time it becomes readable.
    pub fn add_edge(&self, fd: RawFd, key: u64) -> io::Result<()> {
        self.change(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN | libc::EPOLLET, key)
    }

    /// Heeds a descriptor of the set, or passes over it until it is heeded again.
    pub fn heed(&self, fd: RawFd, key: u64, heeds: bool) -> io::Result<()> {
        self.change(libc::EPOLL_CTL_MOD, fd, if heeds { libc::EPOLLIN } else { 0 }, key)
    }

    /// Removes one. Closing it would do so too, unless a forked child has not closed its copy yet.
    pub fn remove(&self, fd: RawFd) {
        // One that is not there any more is no error.
        let _ = self.change(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    fn change(&self, operation: libc::c_int, fd: RawFd, events: libc::c_int, key: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: key };
        // SAFETY: numbers, and a live event that the kernel reads.
        check(unsafe { libc::epoll_ctl(self.raw(), operation, fd, &raw mut event) }).map(drop)
    }

    /// Those that are ready now.
    pub fn ready(&self) -> io::Result<ReadyKeys> {
        self.look(0)
    }

    /// Sleeps until one is ready, or a signal comes: then none may be.
    pub fn wait(&self) -> io::Result<ReadyKeys> {
        self.look(-1)
    }

    fn look(&self, millis: libc::c_int) -> io::Result<ReadyKeys> {
        let mut keys = ReadyKeys::default();
        // The last argument travels on the stack, where half of a word would be left undefined.
        let (room, no_mask, mask_size) = (MAX_READY_KEYS as libc::c_int, null_mut::<libc::sigset_t>(), 0usize);
        let events = keys.events.as_mut_ptr();
        // Not `epoll_wait`, at which a thread can be cancelled: polling threads come here with locks.
        // SAFETY: the kernel writes at most as many events as there is room for.
        let count =
            unsafe { libc::syscall(libc::SYS_epoll_pwait, self.raw(), events, room, millis, no_mask, mask_size) };
        match check(count as libc::c_int) {
            Ok(count) => keys.count = count as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_fd::Bell;

    #[test]
    fn what_is_ready_is_told_by_its_key() {
        let (set, level, edge) = (EventSet::new().unwrap(), Bell::new().unwrap(), Bell::new().unwrap());
        set.add(level.raw(), 7).unwrap();
        set.add_edge(edge.raw(), 9).unwrap();
        let ready = || set.ready().unwrap().iter().collect::<Vec<_>>();
        assert_eq!(ready(), []);
        level.strike();
        edge.strike();
        let mut both: Vec<u64> = set.wait().unwrap().iter().collect();
        both.sort_unstable();
        assert_eq!(both, [7, 9]);
        assert_eq!(ready(), [7], "the other was told once");
        set.remove(level.raw());
        set.remove(level.raw());
        assert_eq!(ready(), []);
        assert!(set.add(-1, 1).is_err());
    }

    #[test]
    fn no_more_are_told_at_once_than_there_is_room_for() {
        let set = EventSet::new().unwrap();
        let bells: Vec<Bell> = (0..MAX_READY_KEYS + 1).map(|_| Bell::new().unwrap()).collect();
        for (key, bell) in bells.iter().enumerate() {
            set.add(bell.raw(), key as u64).unwrap();
            bell.strike();
        }
        assert!(set.ready().unwrap().is_full());
        bells[0].hear();
        bells[1].hear();
        assert_eq!(set.ready().unwrap().iter().count(), MAX_READY_KEYS - 1);
    }
}
