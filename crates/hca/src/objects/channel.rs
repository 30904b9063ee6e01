//! A queue of events behind a real descriptor: completion channels, asynchronous events, events of connections. The
//! descriptor is readable while there are events and never writable, so `poll`, `epoll` and `O_NONBLOCK` work on it as
//! on the kernel's.

use crate::progress::sleep;
use ::host::ready_pipe::ReadyPipe;
use latch::Rank;
use latch::plain::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};

/// Events of type `T`, oldest first.
#[derive(Debug)]
pub struct Channel<T> {
    number: u32,
    ready: Ready,
    waiting: Mutex<WaitingEvents<T>>,
}

/// Who hears that something waits.
enum Ready {
    /// Those who wait for a descriptor.
    Pipe(ReadyPipe),
    /// A function of the owner's, which has no need of one.
    Relay(Box<dyn Fn() + Send + Sync>),
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Ready::Pipe(_)) { "Pipe" } else { "Relay" })
    }
}

/// What waits. While the lock is not held, there is a byte in the pipe if there is an event, and none if there is none.
#[derive(Debug)]
struct WaitingEvents<T> {
    events: VecDeque<T>,
    /// Bytes in the pipe: as many as events, unless it is full.
    bytes: usize,
}

/// How many there were.
static NEXT_CHANNEL: AtomicU32 = AtomicU32::new(1);

impl<T> Channel<T> {
    /// An empty one.
    pub fn new() -> io::Result<Channel<T>> {
        Ok(Channel::with(Ready::Pipe(ReadyPipe::new()?)))
    }

    /// An empty one without a descriptor: `told` is called after each event that is added, in the thread that adds it,
    /// which may hold locks of the NIC. It must not call the NIC.
    pub fn relay(told: impl Fn() + Send + Sync + 'static) -> Channel<T> {
        Channel::with(Ready::Relay(Box::new(told)))
    }

    fn with(ready: Ready) -> Channel<T> {
        let waiting = WaitingEvents { events: VecDeque::new(), bytes: 0 };
        let number = NEXT_CHANNEL.fetch_add(1, Ordering::Relaxed);
        Channel { number, ready, waiting: Mutex::new(Rank::Events, waiting) }
    }

    /// A number that no other channel of the process has.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Adds an event and wakes a waiter.
    pub fn push(&self, event: T) {
        self.push_if(event, |_| true);
    }

    /// Adds an event if those that wait are as `condition` wants. Returns whether it did.
    pub fn push_if(&self, event: T, condition: impl FnOnce(&VecDeque<T>) -> bool) -> bool {
        let mut waiting = self.lock();
        if !condition(&waiting.events) {
            return false;
        }
        waiting.events.push_back(event);
        latch::sanitizer::release_to_tools();
        // Under the lock: a thread that took the event before its byte was there would leave the descriptor readable.
        match &self.ready {
            Ready::Pipe(pipe) => waiting.bytes += usize::from(pipe.add()),
            Ready::Relay(told) => {
                drop(waiting);
                told();
            }
        }
        true
    }

    /// The oldest event. Waits for one unless the descriptor is non-blocking: then the error is `WouldBlock`. A signal
    /// ends the wait, and the error is `Interrupted`.
    pub fn take(&self) -> io::Result<T> {
        loop {
            if let Some(event) = self.try_take() {
                return Ok(event);
            }
            if self.is_nonblocking()? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            sleep::until_ready([self.raw_fd()], None)?;
        }
    }

    /// The oldest event, if there is one.
    pub fn try_take(&self) -> Option<T> {
        let mut waiting = self.lock();
        let event = waiting.events.pop_front()?;
        self.uncount(&mut waiting);
        Some(event)
    }

    /// The oldest event, if there is one and `wanted` says so of it.
    pub fn take_if(&self, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        let mut waiting = self.lock();
        let event = waiting.events.front().is_some_and(wanted).then(|| waiting.events.pop_front()).flatten()?;
        self.uncount(&mut waiting);
        Some(event)
    }

    /// Forgets the events that `gone` picks: their object is being destroyed.
    pub fn purge(&self, mut gone: impl FnMut(&T) -> bool) {
        let mut waiting = self.lock();
        waiting.events.retain(|event| !gone(event));
        self.uncount(&mut waiting);
    }

    /// Takes out the events that `wanted` picks, oldest first.
    pub fn extract(&self, mut wanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut waiting = self.lock();
        let (taken, left): (VecDeque<T>, VecDeque<T>) = waiting.events.drain(..).partition(|event| wanted(event));
        waiting.events = left;
        self.uncount(&mut waiting);
        taken.into()
    }

    /// Whether the program has made the descriptor non-blocking.
    pub fn is_nonblocking(&self) -> io::Result<bool> {
        match &self.ready {
            Ready::Pipe(pipe) => pipe.is_nonblocking(),
            Ready::Relay(_) => Ok(true),
        }
    }

    /// The descriptor to wait for.
    ///
    /// # Panics
    /// If it was made by [`relay`](Channel::relay): its owner has no descriptor to show.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.ready {
            Ready::Pipe(pipe) => pipe.fd(),
            Ready::Relay(_) => unreachable!("a relay has no descriptor"),
        }
    }

    /// The descriptor's number, for programs; -1, which `poll` passes over, if it has none.
    pub fn raw_fd(&self) -> RawFd {
        match &self.ready {
            Ready::Pipe(pipe) => pipe.raw_fd(),
            Ready::Relay(_) => -1,
        }
    }

    fn lock(&self) -> latch::plain::Guard<MutexGuard<'_, WaitingEvents<T>>> {
        self.waiting.lock()
    }

    /// Takes the bytes out of the pipe that are more than there are events.
    fn uncount(&self, waiting: &mut WaitingEvents<T>) {
        let surplus = waiting.bytes.saturating_sub(waiting.events.len());
        if let Ready::Pipe(pipe) = &self.ready {
            pipe.remove(surplus);
        }
        waiting.bytes -= surplus;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn is_readable(channel: &Channel<u64>) -> bool {
        sleep::until_ready([channel.raw_fd()], Some(0)).unwrap() != 0
    }

    /// A byte that is written after its event was taken stays for ever, and the descriptor is readable for nothing.
    #[test]
    fn threads_that_add_and_take_at_once_leave_nothing_readable_behind() {
        const EACH: u64 = 20_000;
        let channel = Channel::new().unwrap();
        let (taken, sum) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (1..=EACH).for_each(|event| channel.push(event)));
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while taken.load(Ordering::Relaxed) < 2 * EACH {
                        if let Some(event) = channel.try_take() {
                            taken.fetch_add(1, Ordering::Relaxed);
                            sum.fetch_add(event, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), EACH * (EACH + 1));
        assert!(!is_readable(&channel));
    }

    #[test]
    fn more_events_than_the_pipe_has_room_for_are_all_there() {
        let channel = Channel::new().unwrap();
        (0..100_000).for_each(|event| channel.push(event));
        channel.purge(|event| event % 2 == 1);
        assert_eq!(channel.extract(|event| event % 4 == 2).len(), 25_000);
        for expected in (0..100_000).step_by(4) {
            assert!(is_readable(&channel));
            assert_eq!(channel.take().unwrap(), expected);
        }
        assert!(!is_readable(&channel) && channel.try_take().is_none());
    }
}
