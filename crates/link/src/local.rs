//! The link inside a process: a queue of whole trains. Sending appends; a thread that finds the queue untended
//! delivers, in order, until it is empty. So delivery never happens inside a send, however many queue pairs answer one
//! another, and a train is never left lying: the thread that appends either delivers, or the thread that delivers will
//! look again.

use crate::sync::{AtomicBool, Mutex, Ordering, in_order};
use latch::Rank;
use std::collections::VecDeque;
use std::ops::DerefMut;
use std::sync::PoisonError;
use wire::Headers;

/// Buffers that wait to be used again: more than this are given back to the allocator. Short ones may be many more: so
/// are the trains of work in batches.
const MAX_SPARE_BUFFERS: usize = 64;
const SHORT_SPARE: usize = 4096;
const SHORT_BUFFER_BYTES: usize = 256;

/// A queue of trains with an address of type `A` each.
#[derive(Debug)]
pub struct Queue<A> {
    inner: Mutex<Inner<A>>,
    /// A thread delivers.
    tended: AtomicBool,
    /// There may be something. Written under the lock.
    any: AtomicBool,
}

#[derive(Debug)]
struct Inner<A> {
    trains: VecDeque<Train<A>>,
    /// How many there were, ever.
    put: u64,
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Train<A> {
    address: A,
    headers: Headers,
    count: u32,
    payload: Vec<u8>,
}

impl<A> Default for Queue<A> {
    fn default() -> Queue<A> {
        let inner = Inner { trains: VecDeque::new(), put: 0, spare: Vec::new() };
        Queue { inner: Mutex::new(inner), tended: AtomicBool::new(false), any: AtomicBool::new(false) }
    }
}

/// Ends tending, also if delivering panics.
struct Tending<'a>(&'a AtomicBool);

impl Drop for Tending<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<A> Queue<A> {
    /// Appends a train whose payload of `length` bytes `fill` writes. Nothing is appended if it cannot.
    pub fn push<E>(
        &self,
        address: A,
        headers: Headers,
        count: u32,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut payload = self.lock().spare.pop().unwrap_or_default();
        payload.resize(length, 0);
        let filled = fill(&mut payload);
        let mut inner = self.lock();
        match filled {
            Ok(()) => {
                inner.trains.push_back(Train { address, headers, count, payload });
                inner.put += 1;
                self.any.store(true, Ordering::Relaxed);
            }
            Err(_) => inner.spare.push(payload),
        }
        filled
    }

    /// Delivers everything, unless another thread does. Returns whether it delivered anything.
    pub fn drain(&self, mut deliver: impl FnMut(A, &Headers, u32, &[u8])) -> bool {
        let mut any = false;
        loop {
            if self.is_empty() {
                return any;
            }
            // A thread that fails here stores nothing: it must not overwrite the word of the thread that has just
            // stopped.
            if self.tended.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
                return any;
            }
            let tending = Tending(&self.tended);
            while let Some(train) = self.take() {
                any = true;
                deliver(train.address, &train.headers, train.count, &train.payload);
                let mut inner = self.lock();
                let most = if train.payload.capacity() <= SHORT_BUFFER_BYTES { SHORT_SPARE } else { MAX_SPARE_BUFFERS };
                if inner.spare.len() < most {
                    inner.spare.push(train.payload);
                }
            }
            drop(tending);
            // A train appended after our last look and before this found the queue tended: so look again.
        }
    }

    /// Whether there is nothing, at a glance: what other threads have just appended may be missed, for they see to it
    /// themselves.
    #[inline]
    pub fn seems_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// How many trains were appended, ever, and how many of these have been delivered. A thread that delivers may be
    /// about to, or have just ended: then one of them does not count yet.
    pub fn traffic(&self) -> (u64, u64) {
        let inner = self.lock();
        let begun = inner.put - inner.trains.len() as u64;
        (inner.put, begun.saturating_sub(u64::from(self.tended.load(Ordering::Acquire))))
    }

    /// Whether trains wait.
    pub fn is_empty(&self) -> bool {
        self.lock().trains.is_empty()
    }

    fn take(&self) -> Option<Train<A>> {
        let mut inner = self.lock();
        let train = inner.trains.pop_front();
        if inner.trains.is_empty() {
            self.any.store(false, Ordering::Relaxed);
        }
        train
    }

    fn lock(&self) -> impl DerefMut<Target = Inner<A>> {
        in_order(Rank::LocalQueue, || self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
