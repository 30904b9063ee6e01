//! Where the engine runs, on machines with two or three processors. A program that spins on memory keeps its processor
//! busy, and what it waits for is put there by the engine. On the program's processor the engine would have to take it
//! away first, and give it back before the program can see anything; on the other one, the peer's, which has just rung
//! and now waits, it works while the program looks. So the engine stays off the processor from which its program last
//! sent something.

use crate::tuning::{AFFINITY_MIN_STAY, FEW_PROCESSORS, nanos};
use std::io;
use std::mem::{size_of, zeroed};
use std::sync::atomic::{AtomicU32, Ordering};
use transport::Time;

const UNKNOWN_PROCESSOR: u32 = u32::MAX;

/// The processor that the program was last seen on.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Whether it matters.
    matters: bool,
    processor: AtomicU32,
}

impl Seen {
    pub fn new(processors: usize) -> Seen {
        Seen { matters: FEW_PROCESSORS.contains(&processors), processor: AtomicU32::new(UNKNOWN_PROCESSOR) }
    }

    /// The program sends something.
    #[inline]
    pub fn here(&self) {
        if self.matters {
            // SAFETY: a plain call. What it answers if it cannot tell is no processor.
            self.processor.store(unsafe { libc::sched_getcpu() } as u32, Ordering::Relaxed);
        }
    }
}

/// Where the engine does not run.
#[derive(Debug, Default)]
pub(crate) struct EngineAffinity {
    /// Where it may.
    allowed: Option<libc::cpu_set_t>,
    avoids: Option<u32>,
    since: Time,
}

impl EngineAffinity {
    /// Steps aside, if the program is where the engine may be. For the engine's thread.
    #[inline]
    pub fn step(&mut self, seen: &Seen, now: Time) {
        let processor = seen.processor.load(Ordering::Relaxed);
        if processor != UNKNOWN_PROCESSOR && self.avoids != Some(processor) {
            self.avoid(processor, now);
        }
    }

    #[cold]
    fn avoid(&mut self, processor: u32, now: Time) {
        if self.avoids.is_some() && now.since(self.since) < nanos(AFFINITY_MIN_STAY) {
            return;
        }
        (self.avoids, self.since) = (Some(processor), now);
        if let Some(allowed) = self.allowed.or_else(|| allowed().ok()) {
            self.allowed = Some(allowed);
            // Where it cannot be done the engine runs where it did.
            let _ = keep_off(allowed, processor);
        }
    }
}

/// Where this thread may run.
fn allowed() -> io::Result<libc::cpu_set_t> {
    // SAFETY: the kernel fills in a live set of the size it is told, for which zeros are a value.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        match libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) {
            0 => Ok(set),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Lets this thread run there, but not on this processor, if there is another.
fn keep_off(mut set: libc::cpu_set_t, processor: u32) -> io::Result<()> {
    if processor >= libc::CPU_SETSIZE as u32 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a live set, and a number within it.
    unsafe {
        libc::CPU_CLR(processor as usize, &mut set);
        if libc::CPU_COUNT(&set) == 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        match libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_run_on(processor: u32) -> bool {
        // SAFETY: a live set, and a number within it.
        unsafe { libc::CPU_ISSET(processor as usize, &allowed().unwrap()) }
    }

    #[test]
    fn the_engine_stays_off_the_processor_of_its_program() {
        let before = allowed().unwrap();
        // SAFETY: a live set.
        let processors = unsafe { libc::CPU_COUNT(&before) };
        let (seen, mut aside) = (Seen::new(2), EngineAffinity::default());
        aside.step(&seen, Time::ZERO);
        assert_eq!(aside.avoids, None, "nothing is known");
        seen.here();
        let first = seen.processor.load(Ordering::Relaxed);
        aside.step(&seen, Time::ZERO);
        assert_eq!(aside.avoids, Some(first));
        assert_eq!(may_run_on(first), processors == 1);
        // Where it has gone it may meet it again: not at once.
        seen.here();
        let second = seen.processor.load(Ordering::Relaxed);
        aside.step(&seen, Time::from_nanos(nanos(AFFINITY_MIN_STAY) - 1));
        assert_eq!(aside.avoids, Some(first));
        aside.step(&seen, Time::from_nanos(nanos(AFFINITY_MIN_STAY)));
        assert_eq!(aside.avoids, Some(second));
        assert_eq!(may_run_on(second), processors == 1);
    }

    #[test]
    fn where_there_are_processors_to_spare_nobody_steps_aside() {
        let (seen, mut aside) = (Seen::new(8), EngineAffinity::default());
        seen.here();
        aside.step(&seen, Time::ZERO);
        assert_eq!(aside.avoids, None);
    }
}
