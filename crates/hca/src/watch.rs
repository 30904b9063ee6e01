//! Whose turn it is to watch the sockets, among threads that wait. One watches and drives; the others sleep until their own event comes, or until
//! the one goes and hands the watch over. If all of them woke for every packet, they would fight for the one lock and nobody would get on.

use link::descriptor::Descriptor;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[derive(Debug)]
pub(crate) struct Watch {
    taken: AtomicBool,
    /// How many would take it over.
    relief: AtomicU32,
    /// An eventfd: readable when the watch was given up and nobody has taken it since.
    free: Descriptor,
}

impl Watch {
    pub fn new() -> io::Result<Watch> {
        // SAFETY: plain call; the descriptor it returns is owned from here on.
        let free = unsafe {
            let free = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if free < 0 {
                return Err(io::Error::last_os_error());
            }
            Descriptor::keep(OwnedFd::from_raw_fd(free))
        };
        Ok(Watch { taken: AtomicBool::new(false), relief: AtomicU32::new(0), free })
    }

    /// Takes the watch, if nobody has it.
    pub fn take(&self) -> Option<OnWatch<'_>> {
        self.taken.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        let mut count = [0u8; 8];
        // SAFETY: eight live bytes, as an eventfd wants; the descriptor does not block.
        unsafe { libc::read(self.free.raw(), count.as_mut_ptr().cast(), count.len()) };
        Some(OnWatch { watch: self })
    }

    /// Waits to take it over: `sleep` ends when this descriptor becomes readable, or for reasons of its own. If the watch is free by now there is
    /// nothing to wait for.
    pub fn relieve(&self, sleep: impl FnOnce(RawFd) -> io::Result<()>) -> io::Result<()> {
        self.relief.fetch_add(1, Ordering::SeqCst);
        // Whoever gives it up after this look has seen us.
        let answer = if self.taken.load(Ordering::SeqCst) { sleep(self.free.raw()) } else { Ok(()) };
        self.relief.fetch_sub(1, Ordering::SeqCst);
        answer
    }
}

/// The watch, until it is dropped.
#[derive(Debug)]
pub(crate) struct OnWatch<'a> {
    watch: &'a Watch,
}

impl Drop for OnWatch<'_> {
    fn drop(&mut self) {
        self.watch.taken.store(false, Ordering::SeqCst);
        if self.watch.relief.load(Ordering::SeqCst) > 0 {
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight live bytes, as an eventfd wants.
            unsafe { libc::write(self.watch.free.raw(), one.as_ptr().cast(), one.len()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sleep;
    use std::time::{Duration, Instant};

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
                        match watch.take() {
                            Some(_on_watch) => {
                                assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                                turns += 1;
                                held.fetch_sub(1, Ordering::SeqCst);
                            }
                            // A wake-up that is lost would cost these two minutes.
                            None => watch
                                .relieve(|free| sleep::until_ready([free], Some(120_000_000_000)).map(drop))
                                .unwrap(),
                        }
                    }
                });
            }
        });
        assert!(start.elapsed() < Duration::from_secs(100), "somebody waited for nobody: {:?}", start.elapsed());
    }
}
