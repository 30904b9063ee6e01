//! An arena: memory that is registered once and handed out in buffers, each of which comes back when it is dropped.

use crate::allocation::{Allocation, ArenaBlock, Lender, Span};
use crate::buffer::RegisteredMut;
use crate::domain::ProtectionDomain;
use latch::lock;
use seam::Error;
use seam::wake;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Buffers begin and end at multiples of a cache line: no two of them share one.
const GRANULE_BYTES: usize = 64;

/// Memory that is registered once and handed out in buffers of any length. A handle; clones are the same arena.
///
/// Registering costs system calls, and each buffer of its own costs a key. An arena pays once: a buffer from it is an
/// ordinary
/// [`RegisteredMut`], to send, receive, split and freeze. Its memory goes back to the arena when the last piece of it
/// is dropped, also by the NIC, so an operation that nobody waits for loses nothing. The memory lives as long as the
/// arena or a buffer of it does.
///
/// ```
/// # use ubiverbs::Reliable;
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [a, b] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
/// let arena = pd.arena(64 << 10)?;
/// let mut message = arena.allocate(5)?;
/// message.copy_from_slice(b"hello");
///
/// let receiving = b.recv(arena.allocate(4096)?)?;
/// drop(a.send(message)?); // its buffer goes back when it has been sent
/// assert_eq!(receiving.wait()?.payload(), b"hello");
///
/// // Where there is none left, `next` waits until one comes back.
/// let large = arena.next(60 << 10).wait()?;
/// assert!(arena.allocate(60 << 10).is_err());
/// # drop(large);
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// Memory that was in use before is not zeroed again: a buffer begins with what its last owner left there.
#[derive(Clone)]
pub struct Arena {
    core: Arc<Core>,
}

struct Core {
    /// All of it. Nothing is read or written through this handle.
    whole: RegisteredMut,
    free: Mutex<Free>,
}

/// What is free, and who waits for it.
struct Free {
    /// Where each free range begins, and its length. No two touch.
    ranges: BTreeMap<usize, usize>,
    waiters: Vec<Waker>,
}

impl ProtectionDomain {
    /// Allocates and registers `length` bytes, to be handed out in buffers.
    pub fn arena(&self, length: usize) -> Result<Arena, Error> {
        Ok(Arena::over(self.allocate(length)?))
    }
}

impl Arena {
    /// Hands out the memory of this buffer: of one in huge pages, say. [`into_buffer`](Arena::into_buffer) gives it
    /// back.
    pub fn over(buffer: RegisteredMut) -> Arena {
        let ranges = BTreeMap::from([(0, buffer.len())]);
        let free = Mutex::new(Free { ranges, waiters: Vec::new() });
        Arena { core: Arc::new(Core { whole: buffer, free }) }
    }

    /// A buffer of `length` bytes, at least one.
    ///
    /// # Errors
    /// [`Error::TooSmall`] if no free range is so long.
    pub fn allocate(&self, length: usize) -> Result<RegisteredMut, Error> {
        let mut free = lock(&self.core.free);
        let found = free.take(length.max(1));
        let largest = free.largest();
        drop(free);
        let none = Error::TooSmall { needed: length as u64, available: largest as u64 };
        found.map(|range| self.buffer(range, length)).ok_or(none)
    }

    /// A buffer of `length` bytes, as soon as there is one: a future for any executor, or to [`wait`](NextBuffer::wait)
    /// for. Dropping it loses nothing.
    ///
    /// The first caller gets what comes back, so many callers that want little can keep one waiting that wants much.
    pub fn next(&self, length: usize) -> NextBuffer {
        NextBuffer { arena: self.clone(), length }
    }

    /// How many bytes it has, in use or not.
    pub fn capacity(&self) -> usize {
        self.core.whole.len()
    }

    /// How many bytes are free, perhaps in many places.
    pub fn available(&self) -> usize {
        lock(&self.core.free).ranges.values().sum()
    }

    /// The memory, if no buffer of it and no other handle of the arena is left.
    pub fn into_buffer(self) -> Result<RegisteredMut, Arena> {
        Arc::try_unwrap(self.core).map(|core| core.whole).map_err(|core| Arena { core })
    }

    fn buffer(&self, (start, taken): (usize, usize), length: usize) -> RegisteredMut {
        let block = ArenaBlock { lender: Arc::clone(&self.core) as Arc<dyn Lender>, start, length: taken };
        let (whole, first, _) = self.core.whole.place();
        RegisteredMut::new(Span::all(Allocation::of_arena(block, (whole, first + start, length.max(1)))))
    }
}

impl Free {
    /// Takes the beginning of the first range that is long enough.
    fn take(&mut self, length: usize) -> Option<(usize, usize)> {
        let (start, size) =
            self.ranges.iter().map(|(start, size)| (*start, *size)).find(|(_, size)| *size >= length)?;
        // The last range of all may end within a granule.
        let taken = length.checked_next_multiple_of(GRANULE_BYTES)?.min(size);
        self.ranges.remove(&start);
        if taken < size {
            self.ranges.insert(start + taken, size - taken);
        }
        Some((start, taken))
    }

    /// Gives a range back, and joins it with those that touch it.
    fn give(&mut self, mut start: usize, mut length: usize) {
        if let Some(after) = self.ranges.remove(&(start + length)) {
            length += after;
        }
        if let Some((before, size)) = self.ranges.range_mut(..start).next_back()
            && before + *size == start
        {
            start = *before;
            length += *size;
        }
        self.ranges.insert(start, length);
    }

    fn largest(&self) -> usize {
        self.ranges.values().copied().max().unwrap_or(0)
    }
}

impl Lender for Core {
    fn take_back(&self, start: usize, length: usize) {
        let mut free = lock(&self.free);
        free.give(start, length);
        let waiters = std::mem::take(&mut free.waiters);
        drop(free);
        waiters.into_iter().for_each(wake);
    }
}

/// A buffer that an [`Arena`] will have. Made by [`Arena::next`].
#[derive(Debug)]
#[must_use = "await it, or `wait` for it"]
pub struct NextBuffer {
    arena: Arena,
    length: usize,
}

impl NextBuffer {
    /// Waits for it. The waiting thread drives.
    pub fn wait(self) -> Result<RegisteredMut, Error> {
        crate::block_on(self)
    }
}

impl Future for NextBuffer {
    /// [`Error::TooSmall`] if the arena as a whole has less.
    type Output = Result<RegisteredMut, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let NextBuffer { arena, length } = &*self;
        let available = arena.capacity();
        if *length > available {
            return Poll::Ready(Err(Error::TooSmall { needed: *length as u64, available: available as u64 }));
        }
        let mut free = lock(&arena.core.free);
        match free.take((*length).max(1)) {
            Some(range) => {
                drop(free);
                Poll::Ready(Ok(arena.buffer(range, *length)))
            }
            None => {
                if !free.waiters.iter().any(|waiter| waiter.will_wake(context.waker())) {
                    free.waiters.push(context.waker().clone());
                }
                seam::environment::waits_for(|| format!("{length} free bytes of an arena"));
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} of {} bytes free)", self.available(), self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(length: usize) -> Free {
        Free { ranges: BTreeMap::from([(0, length)]), waiters: Vec::new() }
    }

    #[test]
    fn ranges_do_not_overlap_and_join_again() {
        let mut free = free(1000);
        let [a, b, c] = [100, 1, 64].map(|length| free.take(length).unwrap());
        assert_eq!((a, b, c), ((0, 128), (128, 64), (192, 64)));
        free.give(b.0, b.1);
        assert_eq!(free.take(65), Some((256, 128)), "the hole is too small");
        free.give(a.0, a.1);
        assert_eq!(free.take(192), Some((0, 192)), "two neighbours are one range");
        free.give(256, 128);
        free.give(0, 192);
        free.give(c.0, c.1);
        assert_eq!(free.ranges, BTreeMap::from([(0, 1000)]));
    }

    #[test]
    fn the_last_range_may_end_anywhere() {
        let mut free = free(100);
        assert_eq!((free.take(100), free.take(1)), (Some((0, 100)), None));
        free.give(0, 100);
        assert_eq!((free.take(101), free.take(usize::MAX), free.largest()), (None, None, 100));
        assert_eq!((free.take(64), free.take(36)), (Some((0, 64)), Some((64, 36))));
    }
}
