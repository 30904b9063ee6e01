//! Memory that the NIC may touch, and the only place of this crate that reaches it: an allocation with its
//! registration, and the spans of it that have exactly one owner. Who may have a span when is the business of the
//! buffer types and of the table of work in flight.
//!
//! # Why this is sound
//!
//! An allocation is registered for as long as it exists; dropping it deregisters first, which waits for accesses under
//! way, and frees afterwards. So the NIC never touches freed memory, whatever else goes wrong.
//!
//! The NIC touches an allocation *without* rights for peers only to carry out work posted for a part of it. Posting
//! moves the [`Span`] of that part into the table of work in flight, where nothing dereferences it, and it comes back
//! only when the work has completed or its queue is destroyed. Spans of one allocation never overlap: they are made by
//! cutting one in two. So a reference made here from a span is exclusive or shared exactly as the span is borrowed.
//!
//! An allocation *with* rights for peers ([`Allocation::shared`]) has no spans; its bytes are only loaded and stored as
//! atomics. The one exception: where nobody may write at all, neither the program nor the NIC for anybody, spans and
//! peers may read together.
//!
//! The memory itself is the heap's, or a mapping's, or that of a value which the program gave ([`own`](crate::own)), or a part of an
//! arena that nobody else has.
#![allow(unsafe_code)]

use crate::own::{Kept, Memory as OwnMemory};
use crate::registration::{Registration, empty, within};
use hca::Mapping;
use seam::Error;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use transport::{Access, ProtectionDomain};
use wire::refuse_if;

/// A cache line: no two buffers share one, and atomics on any multiple of eight are aligned.
const BUFFER_ALIGNMENT: usize = 64;

/// Registered memory.
pub(crate) struct Allocation {
    memory: ManuallyDrop<Memory>,
    registration: Registration,
    /// What the NIC may do with it. If it may not write for us, nobody may, not even the program.
    access: Access,
}

// SAFETY: the memory belongs to the allocation, not to a thread; it is reached through spans, which have one owner, or
// by atomics.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Zeroed memory for one owner at a time: no rights for peers.
    pub fn owned(
        context: &Arc<dyn seam::Context>,
        domain: ProtectionDomain,
        length: usize,
    ) -> Result<Arc<Allocation>, Error> {
        Allocation::register(context, domain, zeroed(length)?, Access::LOCAL_WRITE).map_err(|error| error.0)
    }

    /// Zeroed memory that peers may reach too: where it can be, of a file that those on this host map.
    pub fn shared(
        context: &Arc<dyn seam::Context>,
        domain: ProtectionDomain,
        length: usize,
        access: Access,
    ) -> Result<Arc<Allocation>, Error> {
        let memory = match Mapping::shareable(length) {
            Some(mapping) => of_mapping(mapping, length)?,
            None => zeroed(length)?,
        };
        Allocation::register(context, domain, memory, access | Access::LOCAL_WRITE).map_err(|error| error.0)
    }

    /// Takes over bytes the program has. Gives them back if they cannot be registered.
    pub fn adopt(
        context: &Arc<dyn seam::Context>,
        domain: ProtectionDomain,
        bytes: Box<[u8]>,
    ) -> Result<Arc<Allocation>, (Error, Box<[u8]>)> {
        refuse_if!(bytes.is_empty(), (empty(), bytes));
        let layout = Layout::for_value(&*bytes);
        let first = NonNull::from(Box::leak(bytes)).cast::<u8>();
        let memory = Memory { first, length: layout.size(), owner: Owner::Heap(layout) };
        Allocation::register(context, domain, memory, Access::LOCAL_WRITE)
            .map_err(|Unregistered(error, memory)| (error, memory.into_box().expect("it came as a box")))
    }

    /// Takes over memory inside a value that the program has. Gives it back if it cannot be registered. Without
    /// [`Access::LOCAL_WRITE`] nobody writes it from now on, and others may be reading it.
    pub fn keep<M: OwnMemory>(
        context: &Arc<dyn seam::Context>,
        domain: ProtectionDomain,
        memory: M,
        access: Access,
    ) -> Result<Arc<Allocation>, (Error, M)> {
        let (first, length, kept) = Kept::new(memory);
        refuse_if!(length == 0, (empty(), kept.into_inner()));
        let memory = Memory { first, length, owner: Owner::Program(Box::new(kept)) };
        Allocation::register(context, domain, memory, access).map_err(|Unregistered(error, memory)| {
            (error, memory.into_program().unwrap_or_else(|_| unreachable!("it was made of this type")))
        })
    }

    /// A part of memory that an arena has registered.
    pub fn of_arena(block: ArenaBlock, (whole, start, length): (&Allocation, usize, usize)) -> Arc<Allocation> {
        debug_assert!(!whole.is_read_only() && whole.check(start, length).is_ok());
        // SAFETY: the part lies within.
        let first = unsafe { whole.memory.first.add(start) };
        let memory = ManuallyDrop::new(Memory { first, length, owner: Owner::Arena(block) });
        Arc::new(Allocation { memory, registration: whole.registration.again(), access: whole.access })
    }

    /// The memory lives until `Drop` has deregistered it; what the NIC may do with it meanwhile is the module's first
    /// paragraph.
    fn register(
        context: &Arc<dyn seam::Context>,
        domain: ProtectionDomain,
        memory: Memory,
        access: Access,
    ) -> Result<Arc<Allocation>, Unregistered> {
        // SAFETY: the memory stays allocated until `Drop` has deregistered it, and nothing else refers to it, or nobody
        // writes it.
        match unsafe { context.register(memory.first.as_ptr(), memory.length, domain, access) } {
            Ok(key) => Ok(Arc::new(Allocation {
                memory: ManuallyDrop::new(memory),
                registration: Registration::new(context, domain, key),
                access,
            })),
            Err(error) => Err(Unregistered(error, Box::new(memory))),
        }
    }

    /// Deregisters the memory and gives it back, if this is its last handle; or the handle, with why not.
    fn release<T>(
        self: Arc<Allocation>,
        fits: impl FnOnce(&Memory) -> bool,
        take: impl FnOnce(Memory) -> Option<T>,
    ) -> Result<T, (Error, Arc<Allocation>)> {
        let mut alone = self;
        if Arc::get_mut(&mut alone).is_none_or(|allocation| !fits(&allocation.memory)) {
            return Err((Error::Shared { what: "memory" }, alone));
        }
        if let Err(error) = alone.registration.revoke() {
            return Err((error, alone));
        }
        let allocation = Arc::try_unwrap(alone).unwrap_or_else(|_| unreachable!("there are no other handles"));
        let mut allocation = ManuallyDrop::new(allocation);
        // SAFETY: neither the allocation, which is not dropped, nor the NIC, which has let go of it, has the memory any
        // more.
        let memory = unsafe { ManuallyDrop::take(&mut allocation.memory) };
        // SAFETY: as above; the registration is dropped once.
        unsafe { std::ptr::drop_in_place(&raw mut allocation.registration) };
        Ok(take(memory).unwrap_or_else(|| unreachable!("it fits")))
    }

    /// Gives the value back that the memory is of, and takes the memory away from everybody else.
    ///
    /// # Errors
    /// If there are other handles, or if it is no such value.
    pub fn into_program<M: OwnMemory>(self: Arc<Allocation>) -> Result<M, (Error, Arc<Allocation>)> {
        self.release(Memory::is_of::<M>, |memory| memory.into_program().ok())
    }

    /// Whether it is memory of such a value.
    pub fn is_of<M: OwnMemory>(&self) -> bool {
        self.memory.is_of::<M>()
    }

    pub fn access(&self) -> Access {
        self.access
    }

    pub fn is_read_only(&self) -> bool {
        !self.access.contains(Access::LOCAL_WRITE)
    }

    pub fn registration(&self) -> &Registration {
        &self.registration
    }

    pub fn address(&self) -> u64 {
        self.memory.first.addr().get() as u64
    }

    pub fn len(&self) -> usize {
        self.memory.length
    }

    /// Loads bytes that others may be storing: each aligned word whole, none of them ordered but that all happen before
    /// what follows. The range must lie within, or nothing is loaded.
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
                // A reader of any of the last bytes sees all that came before.
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
        refuse_if!(!address.is_multiple_of(8), Error::Misaligned { offset: offset as u64 });
        // SAFETY: eight allocated bytes, aligned, that live as long as `self`. Others reach them as atomics or through
        // the NIC, whose copies tolerate and are tolerated by racing accesses; no plain reference to them exists, by
        // the module's first paragraph.
        Ok(unsafe { AtomicU64::from_ptr(self.memory.first.add(offset).cast().as_ptr()) })
    }

    fn byte(&self, offset: usize) -> Result<&AtomicU8, Error> {
        self.check(offset, 1)?;
        // SAFETY: as in `word`; a byte is always aligned.
        Ok(unsafe { AtomicU8::from_ptr(self.memory.first.add(offset).as_ptr()) })
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), Error> {
        within(self.len(), offset, length)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // Memory that the NIC does not let go of is never freed: it refuses where windows are bound that the program
        // keeps. An arena keeps the registration that its parts have in common.
        if matches!(self.memory.owner, Owner::Arena(_)) || self.registration.revoke().is_ok() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:p} with key {}", self.len(), self.memory.first, self.registration.key())
    }
}

/// Memory that is not registered, of which this is the only handle: dropping frees it.
struct Memory {
    first: NonNull<u8>,
    length: usize,
    owner: Owner,
}

enum Owner {
    /// Allocated with this layout.
    Heap(Layout),
    /// A mapping of a file.
    File(#[allow(dead_code)] Mapping),
    /// Inside a value of the program's: a [`Kept`].
    Program(Box<dyn Any + Send + Sync>),
    /// A part of an arena, which has it again when this is dropped.
    Arena(#[allow(dead_code)] ArenaBlock),
}

/// What parts of memory go back to: an arena.
pub(crate) trait Lender: Send + Sync {
    /// The program uses so many bytes from there on no more.
    fn take_back(&self, start: usize, length: usize);
}

/// A range of an arena that is in use. Dropping it gives it back.
pub(crate) struct ArenaBlock {
    pub lender: Arc<dyn Lender>,
    pub start: usize,
    pub length: usize,
}

impl Drop for ArenaBlock {
    fn drop(&mut self) {
        self.lender.take_back(self.start, self.length);
    }
}

impl Memory {
    fn is_of<M: OwnMemory>(&self) -> bool {
        matches!(&self.owner, Owner::Program(kept) if kept.is::<Kept<M>>())
    }

    fn into_program<M: OwnMemory>(self) -> Result<M, Memory> {
        refuse_if!(!self.is_of::<M>(), self);
        let mut memory = ManuallyDrop::new(self);
        // SAFETY: the memory is not dropped, so its owner is taken once.
        let Owner::Program(kept) = (unsafe { std::ptr::read(&raw mut memory.owner) }) else {
            unreachable!("it is one")
        };
        let kept = kept.downcast::<Kept<M>>().unwrap_or_else(|_| unreachable!("it is of this type"));
        Ok(kept.into_inner())
    }

    /// The box it was, if it was one.
    fn is_box(&self) -> bool {
        matches!(self.owner, Owner::Heap(layout) if layout.align() == 1)
    }

    fn into_box(self) -> Option<Box<[u8]>> {
        if !self.is_box() {
            return None;
        }
        let memory = ManuallyDrop::new(self);
        // SAFETY: bytes that the global allocator gave out with this length and an alignment of one, which nobody else
        // has.
        Some(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(memory.first, memory.length).as_ptr()) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Owner::Heap(layout) = self.owner {
            // SAFETY: made only of memory allocated with this layout, which nothing refers to any more.
            unsafe { dealloc(self.first.as_ptr(), layout) };
        }
    }
}

/// Memory that could not be registered, and why.
struct Unregistered(Error, Box<Memory>);

fn zeroed(length: usize) -> Result<Memory, Error> {
    refuse_if!(length == 0, empty());
    let layout = Layout::from_size_align(length, BUFFER_ALIGNMENT)
        .map_err(|source| Error::Register { length, source: Box::new(source) })?;
    // SAFETY: the layout is not empty.
    let first = unsafe { alloc_zeroed(layout) };
    match NonNull::new(first) {
        Some(first) => Ok(Memory { first, length, owner: Owner::Heap(layout) }),
        // So much that nobody has it is the caller's mistake; little that is not there is the end of the program, as
        // everywhere else.
        None if length > 1 << 30 => Err(Error::Register { length, source: "there is not so much memory".into() }),
        None => handle_alloc_error(layout),
    }
}

/// Memory that is all of a mapping.
fn of_mapping(mapping: Mapping, length: usize) -> Result<Memory, Error> {
    let first = NonNull::new(mapping.first()).ok_or_else(empty)?;
    Ok(Memory { first, length, owner: Owner::File(mapping) })
}

/// A part of an allocation that has one owner.
pub(crate) struct Span {
    allocation: Arc<Allocation>,
    start: usize,
    length: usize,
}

impl Span {
    /// All of an allocation without rights for peers, or that nobody may write. The caller has the only handle.
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
        refuse_if!(!Arc::ptr_eq(&self.allocation, &next.allocation) || self.start + self.length != next.start, next);
        self.length += next.length;
        Ok(())
    }
}

impl Span {
    /// Deregisters the memory and gives the value back that it is of, if this is all of it and nobody else has any.
    pub fn into_program<M: OwnMemory>(self) -> Result<M, Span> {
        self.back(Allocation::into_program)
    }

    /// Deregisters the memory and gives back the box that the bytes came in.
    pub fn into_box(self) -> Result<Box<[u8]>, Span> {
        self.back(|allocation| allocation.release(Memory::is_box, Memory::into_box))
    }

    fn back<T>(self, release: impl FnOnce(Arc<Allocation>) -> Result<T, (Error, Arc<Allocation>)>) -> Result<T, Span> {
        let Span { allocation, start, length } = self;
        refuse_if!(length < allocation.len(), Span { allocation, start, length });
        release(allocation).map_err(|(_, allocation)| Span { allocation, start, length })
    }
}

impl Deref for Span {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the allocation, is initialised, and is this span's alone; the NIC has no work
        // for it, because a span that it has work for lies in the table of work in flight.
        unsafe { std::slice::from_raw_parts(self.allocation.memory.first.add(self.start).as_ptr(), self.length) }
    }
}

impl DerefMut for Span {
    fn deref_mut(&mut self) -> &mut [u8] {
        assert!(!self.allocation.is_read_only(), "others may be reading this memory");
        // SAFETY: as in `deref`, the span is borrowed mutably, and nobody was promised that it stays as it is.
        unsafe { std::slice::from_raw_parts_mut(self.allocation.memory.first.add(self.start).as_ptr(), self.length) }
    }
}
