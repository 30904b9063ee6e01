//! A time of day for a set of descriptors: a timer behind a descriptor (timerfd), which is readable once the timer has
//! run out. Setting it wakes no thread.

use crate::descriptor::{Descriptor, Opening, above_standard, check};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::time::Duration;

/// A timer of this process: it has none in a forked child.
#[derive(Debug)]
pub struct TimerFd(Descriptor);

impl TimerFd {
    /// A timer that does not run.
    pub fn new() -> io::Result<TimerFd> {
        let _opening = Opening::begin();
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: numbers; the descriptor that comes back is owned from here on.
        let timer = unsafe { OwnedFd::from_raw_fd(check(libc::timerfd_create(libc::CLOCK_MONOTONIC, flags))?) };
        Ok(TimerFd(Descriptor::keep(above_standard(timer)?)))
    }

    /// Readable once it has run out; -1 in a forked child.
    pub fn raw(&self) -> RawFd {
        self.0.raw()
    }

    /// Lets it run out once, so long from now. A time of zero stops it.
    pub fn set(&self, after: Duration) {
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec { tv_sec: after.as_secs() as _, tv_nsec: after.subsec_nanos().into() };
        let setting = libc::itimerspec { it_interval: none, it_value: value };
        // SAFETY: a live setting, and no place for the old one. It fails for a descriptor that is no timer only.
        unsafe { libc::timerfd_settime(self.raw(), 0, &raw const setting, null_mut()) };
    }

    /// Makes it unreadable. Returns whether it had run out.
    pub fn hear(&self) -> bool {
        let mut count = [0u8; 8];
        // Not `read`, at which a thread can be cancelled.
        // SAFETY: eight live bytes, as a timer wants.
        unsafe { libc::syscall(libc::SYS_read, self.raw(), count.as_mut_ptr(), count.len()) >= 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_set::EventSet;

    #[test]
    fn it_runs_out_once_and_can_be_stopped() {
        let (set, timer) = (EventSet::new().unwrap(), TimerFd::new().unwrap());
        set.add(timer.raw(), 5).unwrap();
        assert!(!timer.hear());
        timer.set(Duration::from_nanos(1));
        assert!(set.wait().unwrap().iter().eq([5]) && timer.hear() && !timer.hear());
        timer.set(Duration::from_secs(3600));
        timer.set(Duration::ZERO);
        assert!(set.ready().unwrap().iter().next().is_none());
    }
}
