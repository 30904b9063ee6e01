//! Memory that the NIC may touch, and the only place of this crate that reaches it: an allocation with its registration, and the spans of it that
//! have exactly one owner. Who may have a span when is the business of the buffer types and of the table of work in flight.
//!
//! # Why this is sound
//!
//! An allocation is registered for as long as it exists; dropping it deregisters first, which waits for accesses under way, and frees
//! afterwards. So the NIC never touches freed memory, whatever else goes wrong.
//!
//! The NIC touches an allocation *without* rights for peers only to carry out work posted for a part of it. Posting moves the [`Span`] of that
//! part into the table of work in flight, where nothing dereferences it, and it comes back only when the work has completed or its queue is
//! destroyed. Spans of one allocation never overlap: they are made by cutting one in two. So a reference made here from a span is
//! exclusive or shared exactly as the span is borrowed.
//!
//! An allocation *with* rights for peers ([`Allocation::shared`]) has no spans; its bytes are only loaded and stored as atomics.
#![allow(unsafe_code)]

use crate::backend;
use crate::error::Error;
use crate::registration::{Registration, empty, within};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use transport::{Access, ProtectionDomain};

/// A cache line: no two buffers share one, and atomics on any multiple of eight are aligned.
const ALIGNMENT: usize = 64;

/// Registered memory.
pub(crate) struct Allocation {
    first: NonNull<u8>,
    layout: Layout,
    registration: Registration,
}

// SAFETY: the memory belongs to the allocation, not to a thread; it is reached through spans, which have one owner, or by atomics.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Zeroed memory for one owner at a time: no rights for peers.
    pub fn owned(
        context: &Arc<dyn backend::Context>,
        domain: ProtectionDomain,
        length: usize,
    ) -> Result<Arc<Allocation>, Error> {
        let (first, layout) = zeroed(length)?;
        // SAFETY: fresh memory of that layout, which nobody else refers to.
        unsafe { Allocation::register(context, domain, first, layout, Access::LOCAL_WRITE) }.map_err(|error| error.0)
    }

    /// Zeroed memory that peers may reach too.
    pub fn shared(
        context: &Arc<dyn backend::Context>,
        domain: ProtectionDomain,
        length: usize,
        access: Access,
    ) -> Result<Arc<Allocation>, Error> {
        let (first, layout) = zeroed(length)?;
        // SAFETY: as in `owned`.
        unsafe { Allocation::register(context, domain, first, layout, access | Access::LOCAL_WRITE) }
            .map_err(|error| error.0)
    }

    /// Takes over bytes the program has. Gives them back if they cannot be registered.
    pub fn adopt(
        context: &Arc<dyn backend::Context>,
        domain: ProtectionDomain,
        bytes: Box<[u8]>,
    ) -> Result<Arc<Allocation>, (Error, Box<[u8]>)> {
        let length = bytes.len();
        if length == 0 {
            return Err((empty(), bytes));
        }
        let layout = Layout::for_value(&*bytes);
        let first = NonNull::from(Box::leak(bytes)).cast::<u8>();
        // SAFETY: the box is leaked, so the memory is ours alone, and its layout is the one it was allocated with.
        let registered = unsafe { Allocation::register(context, domain, first, layout, Access::LOCAL_WRITE) };
        registered.map_err(|Unregistered(error, memory)| {
            std::mem::forget(memory);
            // SAFETY: what was leaked above and is not registered; the box takes it back.
            (error, unsafe { Box::from_raw(NonNull::slice_from_raw_parts(first, length).as_ptr()) })
        })
    }

    /// # Safety
    /// `first` must be allocated with `layout`, which is not empty, and nothing else may refer to it or free it.
    unsafe fn register(
        context: &Arc<dyn backend::Context>,
        domain: ProtectionDomain,
        first: NonNull<u8>,
        layout: Layout,
        access: Access,
    ) -> Result<Arc<Allocation>, Unregistered> {
        let memory = Memory { first, layout };
        // SAFETY: the memory stays allocated until `Drop` has deregistered it; what the NIC may do with it meanwhile is the module's
        // first paragraph.
        match unsafe { context.register(first.as_ptr(), layout.size(), domain, access) } {
            Ok(key) => {
                std::mem::forget(memory);
                let registration = Registration::new(context, domain, key);
                Ok(Arc::new(Allocation { first, layout, registration }))
            }
            Err(error) => Err(Unregistered(error, memory)),
        }
    }

    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    pub fn address(&self) -> u64 {
        self.first.addr().get() as u64
    }

    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Loads bytes that others may be storing: each aligned word whole, none of them ordered but that all happen before what follows.
    /// The range must lie within, or nothing is loaded.
    pub fn load(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check(offset, out.len())?;
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let taken = match self.word(at) {
                Ok(word) if rest.len() >= 8 => {
                    let (now, later) = rest.split_at_mut(8);
                    now.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
                    rest = later;
                    8
                }
                _ => {
                    let (now, later) = rest.split_at_mut(1);
                    now.fill(self.byte(at)?.load(Ordering::Relaxed));
                    rest = later;
                    1
                }
            };
            at += taken;
        }
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Stores bytes that others may be loading: ascending, aligned words whole, the last store after all others.
    pub fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check(offset, bytes.len())?;
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            if rest.len() <= 8 {
                // Whoever sees any of the last bytes sees all that came before.
                fence(Ordering::Release);
            }
            at += match (rest.first_chunk::<8>(), self.word(at)) {
                (Some(chunk), Ok(word)) => {
                    word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
                    rest = rest.get(8..).unwrap_or_default();
                    8
                }
                _ => {
                    if let Some((first, later)) = rest.split_first() {
                        self.byte(at)?.store(*first, Ordering::Relaxed);
                        rest = later;
                    }
                    1
                }
            };
        }
        Ok(())
    }

    /// Eight aligned bytes as an atomic.
    pub fn word(&self, offset: usize) -> Result<&AtomicU64, Error> {
        self.check(offset, 8)?;
        let address = self.address() + offset as u64;
        if !address.is_multiple_of(8) {
            return Err(Error::Misaligned { offset: offset as u64 });
        }
        // SAFETY: eight allocated bytes, aligned, that live as long as `self`. Others reach them as atomics or through the NIC, whose
        // copies tolerate and are tolerated by racing accesses; no plain reference to them exists, by the module's first paragraph.
        Ok(unsafe { AtomicU64::from_ptr(self.first.add(offset).cast().as_ptr()) })
    }

    fn byte(&self, offset: usize) -> Result<&AtomicU8, Error> {
        self.check(offset, 1)?;
        // SAFETY: as in `word`; a byte is always aligned.
        Ok(unsafe { AtomicU8::from_ptr(self.first.add(offset).as_ptr()) })
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), Error> {
        within(self.len(), offset, length)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // Memory that the NIC does not let go of is never freed. It has no reason to refuse: no windows are bound to what we register.
        if self.registration.revoke().is_ok() {
            drop(Memory { first: self.first, layout: self.layout });
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:p} with key {}", self.len(), self.first, self.registration.key())
    }
}

/// Memory that is not registered: dropping frees it.
struct Memory {
    first: NonNull<u8>,
    layout: Layout,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made only of memory allocated with this layout, which nothing refers to any more.
        unsafe { dealloc(self.first.as_ptr(), self.layout) };
    }
}

/// Memory that could not be registered, and why.
struct Unregistered(Error, Memory);

fn zeroed(length: usize) -> Result<(NonNull<u8>, Layout), Error> {
    if length == 0 {
        return Err(empty());
    }
    let layout = Layout::from_size_align(length, ALIGNMENT)
        .map_err(|source| Error::Register { length, source: Box::new(source) })?;
    // SAFETY: the layout is not empty.
    let first = unsafe { alloc_zeroed(layout) };
    match NonNull::new(first) {
        Some(first) => Ok((first, layout)),
        // So much that nobody has it is the caller's mistake; little that is not there is the end of the program, as everywhere else.
        None if length > 1 << 30 => Err(Error::Register { length, source: "there is not so much memory".into() }),
        None => handle_alloc_error(layout),
    }
}

/// A part of an allocation that has one owner.
pub(crate) struct Span {
    allocation: Arc<Allocation>,
    start: usize,
    length: usize,
}

impl Span {
    /// All of an allocation without rights for peers. The caller has the only handle.
    pub fn all(allocation: Arc<Allocation>) -> Span {
        debug_assert_eq!(Arc::strong_count(&allocation), 1);
        let length = allocation.len();
        Span { allocation, start: 0, length }
    }

    pub fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    pub fn start(&self) -> usize {
        self.start
    }

    /// Cuts off everything from `at` on. `at` is at most the length.
    pub fn split_off(&mut self, at: usize) -> Span {
        assert!(at <= self.length, "cannot split {} bytes at {at}", self.length);
        let rest = Span { allocation: Arc::clone(&self.allocation), start: self.start + at, length: self.length - at };
        self.length = at;
        rest
    }

    /// Joins a span that begins where this one ends; gives it back if it does not.
    pub fn unsplit(&mut self, next: Span) -> Result<(), Span> {
        if !Arc::ptr_eq(&self.allocation, &next.allocation) || self.start + self.length != next.start {
            return Err(next);
        }
        self.length += next.length;
        Ok(())
    }
}

impl Deref for Span {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the allocation, is initialised, and is this span's alone; the NIC has no work for it, because a span
        // that it has work for lies in the table of work in flight.
        unsafe { std::slice::from_raw_parts(self.allocation.first.add(self.start).as_ptr(), self.length) }
    }
}

impl DerefMut for Span {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the span is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.allocation.first.add(self.start).as_ptr(), self.length) }
    }
}
