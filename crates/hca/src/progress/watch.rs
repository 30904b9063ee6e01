//! Whose turn it is to watch the sockets, among threads that wait. One watches and drives; the others sleep until their
//! own event comes, or until the one goes and hands the watch over. If all of them woke for every packet, they would
//! fight for the one lock and no thread would get on.

use ::host::event_fd::Bell;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[derive(Debug)]
pub(crate) struct Watch {
    taken: AtomicBool,
    /// How many would take it over.
    relief: AtomicU32,
    /// An eventfd: readable when the watch was given up and no thread has taken it since.
    free: Bell,
}

impl Watch {
    pub fn new() -> io::Result<Watch> {
        Ok(Watch { taken: AtomicBool::new(false), relief: AtomicU32::new(0), free: Bell::new()? })
    }

    /// Takes the watch, if no thread has it. Returns whether this thread has it now, until it gives it up.
    pub fn take(&self) -> bool {
        let taken = self.taken.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if taken {
            self.free.hear();
        }
        taken
    }

    /// Gives up the watch, which this thread has.
    pub fn give_up(&self) {
        self.taken.store(false, Ordering::SeqCst);
        if self.relief.load(Ordering::SeqCst) > 0 {
            self.free.strike();
        }
    }

    /// This thread would take it over, until it leaves the line. Returns a descriptor that becomes readable when the
    /// watch is given up; none if it is free by now, and there is nothing to wait for.
    pub fn wait_in_line(&self) -> Option<RawFd> {
        self.relief.fetch_add(1, Ordering::SeqCst);
        // A thread that gives it up after this look has seen us.
        if self.taken.load(Ordering::SeqCst) {
            return Some(self.free.raw());
        }
        self.leave_line();
        None
    }

    /// A thread in line was woken, and did not get the watch: another took it before its bell was struck. Such a late
    /// bell would end every sleep at once for as long as the other has the watch.
    pub fn was_taken(&self) {
        self.free.hear();
        // Given up meanwhile: the next in line is to know.
        if !self.taken.load(Ordering::SeqCst) {
            self.free.strike();
        }
    }

    /// This thread no longer waits for it.
    pub fn leave_line(&self) {
        self.relief.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::sleep;
    use std::time::{Duration, Instant};

    /// One gives the watch up and stops before it strikes; another takes it; then the first strikes.
    #[test]
    fn a_bell_that_is_struck_late_wakes_those_in_line_once() {
        let watch = Watch::new().unwrap();
        assert!(watch.take());
        let free = watch.wait_in_line().unwrap();
        watch.free.strike();
        let is_struck = || sleep::until_ready([free], Some(0)).unwrap() != 0;
        assert!(is_struck() && !watch.take());
        watch.was_taken();
        assert!(!is_struck());
        watch.give_up();
        assert!(is_struck());
        // What is true is not forgotten.
        watch.was_taken();
        assert!(is_struck() && watch.take());
    }

    #[test]
    fn the_watch_goes_from_one_to_the_next_and_is_never_left_alone() {
        const EACH: u32 = 500;
        let watch = Watch::new().unwrap();
        let held = AtomicU32::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut turns = 0;
                    while turns < EACH {
                        if watch.take() {
                            assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                            turns += 1;
                            held.fetch_sub(1, Ordering::SeqCst);
                            watch.give_up();
                        } else if let Some(free) = watch.wait_in_line() {
                            // A wake-up that is lost would cost these two minutes.
                            sleep::until_ready([free], Some(120_000_000_000)).unwrap();
                            watch.leave_line();
                            match watch.take() {
                                true => watch.give_up(),
                                false => watch.was_taken(),
                            }
                        }
                    }
                });
            }
        });
        assert!(start.elapsed() < Duration::from_secs(100), "a thread waited for none: {:?}", start.elapsed());
    }
}
