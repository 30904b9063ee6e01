//! A queue of events behind a real descriptor: completion channels and asynchronous events. The descriptor is an eventfd that counts the
//! events waiting, so `poll`, `epoll`, `O_NONBLOCK` and blocking reads work on it as on any other.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// Events of type `T`, oldest first.
#[derive(Debug)]
pub struct Channel<T> {
    fd: OwnedFd,
    events: Mutex<VecDeque<T>>,
}

impl<T> Channel<T> {
    /// An empty one.
    pub fn new() -> io::Result<Channel<T>> {
        // SAFETY: plain call; the descriptor it returns is owned from here on.
        let fd = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Channel { fd, events: Mutex::new(VecDeque::new()) })
    }

    /// Adds an event and wakes a waiter.
    pub fn push(&self, event: T) {
        self.lock().push_back(event);
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight live bytes, as an eventfd wants. It can only fail by overflow, 2^64 events from now.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// The oldest event. Waits for one unless the descriptor is non-blocking; the error is `WouldBlock` then.
    pub fn take(&self) -> io::Result<T> {
        loop {
            self.wait()?;
            // Events that were purged leave their count behind: then there is nothing, and we wait on.
            if let Some(event) = self.lock().pop_front() {
                return Ok(event);
            }
        }
    }

    /// The oldest event, if there is one.
    pub fn try_take(&self) -> Option<T> {
        let mut events = self.lock();
        let event = events.pop_front()?;
        // The count goes with the event; nobody else can have taken it, since takers take counts first and we hold the events.
        self.discount(1);
        Some(event)
    }

    /// Forgets the events that `gone` picks: their object is being destroyed.
    pub fn purge(&self, mut gone: impl FnMut(&T) -> bool) {
        let mut events = self.lock();
        let before = events.len();
        events.retain(|event| !gone(event));
        self.discount(before - events.len());
    }

    /// Takes out the events that `wanted` picks, oldest first.
    pub fn extract(&self, mut wanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut events = self.lock();
        let (taken, left): (VecDeque<T>, VecDeque<T>) = events.drain(..).partition(|event| wanted(event));
        *events = left;
        self.discount(taken.len());
        taken.into()
    }

    /// Whether the program has made the descriptor non-blocking.
    pub fn is_nonblocking(&self) -> io::Result<bool> {
        // SAFETY: plain call on an open descriptor.
        let flags = unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_GETFL) };
        if flags < 0 { Err(io::Error::last_os_error()) } else { Ok(flags & libc::O_NONBLOCK != 0) }
    }

    /// The descriptor to wait for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The descriptor's number, for programs.
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) -> io::Result<()> {
        let mut count = [0u8; 8];
        // SAFETY: eight live bytes, as an eventfd wants.
        let answer = unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes counts without waiting, whatever the descriptor's mode: others may take them at the same time.
    fn discount(&self, counts: usize) {
        for _ in 0..counts {
            let mut count = [0u8; 8];
            let vector = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
            // SAFETY: one vector of eight live bytes, as an eventfd wants.
            unsafe { libc::preadv2(self.fd.as_raw_fd(), &raw const vector, 1, -1, libc::RWF_NOWAIT) };
        }
    }
}
