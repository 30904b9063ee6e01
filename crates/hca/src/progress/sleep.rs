//! Waiting for descriptors.

use ::host::event_set::EventSet;
use std::io;
use std::os::fd::RawFd;

/// The most descriptors one waits for: the sockets of two address families, the registry's, and one's own.
const MAX_DESCRIPTORS: usize = 8;

/// Sleeps until one of the descriptors is readable or `nanos` have passed; `None` is for ever. Returns which are ready,
/// a bit for each. A signal ends it early: then the error is `Interrupted`, and the caller decides whether to look
/// again.
pub(crate) fn until_ready(fds: impl IntoIterator<Item = RawFd>, nanos: Option<u64>) -> io::Result<u32> {
    let mut sleep = Sleep::on(fds, nanos);
    sleep.until_ready()?;
    Ok(sleep.ready())
}

/// What a thread sleeps on, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Sleep {
    polled: [libc::pollfd; MAX_DESCRIPTORS],
    nanos: Option<u64>,
}

impl Default for Sleep {
    /// On nothing.
    fn default() -> Sleep {
        Sleep { polled: [libc::pollfd { fd: -1, events: 0, revents: 0 }; MAX_DESCRIPTORS], nanos: None }
    }
}

impl Sleep {
    /// Until one of these descriptors is readable or `nanos` have passed; `None` is for ever.
    pub fn on(fds: impl IntoIterator<Item = RawFd>, nanos: Option<u64>) -> Sleep {
        let mut sleep = Sleep { nanos, ..Sleep::default() };
        for (slot, fd) in sleep.polled.iter_mut().zip(fds) {
            *slot = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        }
        sleep
    }

    /// The descriptors, for a thread that sleeps in a way of its own.
    pub fn descriptors(&mut self) -> &mut [libc::pollfd] {
        &mut self.polled
    }

    /// Which of the descriptors were ready in the end, a bit for each.
    pub(crate) fn ready(&self) -> u32 {
        self.polled.iter().rev().fold(0, |bits, slot| bits << 1 | u32::from(slot.revents != 0))
    }

    /// Sleeps, on one descriptor more. Returns whether that was ready; it is not among those that [`ready`](Self::ready)
    /// tells of.
    pub(crate) fn until_ready_or(&mut self, fd: RawFd) -> io::Result<bool> {
        let free = self.polled.iter().position(|slot| slot.fd < 0).unwrap_or(MAX_DESCRIPTORS - 1);
        let kept = std::mem::replace(&mut self.polled[free], libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        let slept = self.until_ready();
        let ready = std::mem::replace(&mut self.polled[free], kept).revents != 0;
        slept.map(|()| ready)
    }

    /// Sleeps. A signal ends it early, with the error `Interrupted`.
    pub(crate) fn until_ready(&mut self) -> io::Result<()> {
        let limit = self.nanos.map(timespec);
        let limit = limit.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
        // SAFETY: `polled` and the limit are live for the duration of the call; negative descriptors are passed over.
        let answer =
            unsafe { libc::ppoll(self.polled.as_mut_ptr(), MAX_DESCRIPTORS as libc::nfds_t, limit, std::ptr::null()) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn timespec(nanos: u64) -> libc::timespec {
    libc::timespec { tv_sec: (nanos / 1_000_000_000) as _, tv_nsec: (nanos % 1_000_000_000) as _ }
}

/// Descriptors that are waited for again and again: the kernel keeps the list, and one of them, a bell, need not be
/// read after it was heard.
#[derive(Debug)]
pub(crate) struct Set {
    set: EventSet,
    /// The place of the sockets.
    sockets: u64,
}

impl Set {
    /// A set of these descriptors; those below zero are passed over. `bell` is the place of the one that is heard each
    /// time it is struck, `sockets` of the one that may be left out at times.
    pub fn new(fds: &[RawFd], bell: usize, sockets: usize) -> io::Result<Set> {
        let set = EventSet::new()?;
        for (place, fd) in fds.iter().enumerate().filter(|(_, fd)| **fd >= 0) {
            match place == bell {
                true => set.add_edge(*fd, place as u64)?,
                false => set.add(*fd, place as u64)?,
            }
        }
        Ok(Set { set, sockets: sockets as u64 })
    }

    /// Takes the sockets out of the set: a datagram does not end a sleep any more, also not one that has begun.
    pub fn leave_out(&self, sockets: RawFd) -> io::Result<()> {
        self.set.heed(sockets, self.sockets, false)
    }

    /// Takes the sockets into the set again: a datagram ends a sleep, also one that has begun.
    pub fn take_in(&self, sockets: RawFd) {
        // They were in the set before, so there is nothing that the kernel would need room for.
        let _ = self.set.heed(sockets, self.sockets, true);
    }

    /// Sleeps like [`until_ready`].
    pub fn until_ready(&self, nanos: Option<u64>) -> io::Result<u32> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX_DESCRIPTORS];
        let limit = nanos.map(timespec);
        let limit = limit.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
        let none = std::ptr::null::<libc::sigset_t>();
        // The last argument travels on the stack, where half of a word would be left undefined.
        let (room, fd, size) = (MAX_DESCRIPTORS as libc::c_int, self.set.raw(), 0usize);
        let mut count = latch::sanitizer::asleep(|| {
            // SAFETY: the events and the limit are live for the duration of the call.
            unsafe { libc::syscall(libc::SYS_epoll_pwait2, fd, events.as_mut_ptr(), room, limit, none, size) }
        });
        // Sandboxes that are older than the call refuse it with EPERM.
        let refused =
            |error: io::Error| matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES));
        if count < 0 && refused(io::Error::last_os_error()) {
            let millis = nanos.map_or(-1, |nanos| nanos.div_ceil(1_000_000).min(i32::MAX as u64) as libc::c_int);
            // SAFETY: as above.
            count =
                latch::sanitizer::asleep(|| unsafe { libc::epoll_wait(fd, events.as_mut_ptr(), room, millis) }).into();
        }
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(events.iter().take(count as usize).fold(0, |bits, event| bits | 1 << event.u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_bell_is_heard_each_time_it_is_struck_and_others_until_they_are_read() {
        let ((bell, mut strikes), (other, mut writes)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let set = Set::new(&[other.as_raw_fd(), -1, bell.as_raw_fd()], 2, 0).unwrap();
        assert_eq!(set.until_ready(Some(1000)).unwrap(), 0);
        for _ in 0..2 {
            strikes.write_all(&[0]).unwrap();
            assert_eq!(set.until_ready(None).unwrap(), 1 << 2);
            assert_eq!(set.until_ready(Some(0)).unwrap(), 0, "heard once");
        }
        writes.write_all(&[0]).unwrap();
        strikes.write_all(&[0]).unwrap();
        assert_eq!(set.until_ready(Some(1_000_000_000)).unwrap(), 1 << 2 | 1);
        assert_eq!(set.until_ready(Some(0)).unwrap(), 1);
        set.leave_out(other.as_raw_fd()).unwrap();
        assert_eq!(set.until_ready(Some(0)).unwrap(), 0);
        set.take_in(other.as_raw_fd());
        assert_eq!(set.until_ready(Some(0)).unwrap(), 1);
    }
}
