//! An access under way: entered through the gate, with its first byte and length, and counted out when it is dropped.
//! The copies themselves start here, because here it is proven that the bytes are there.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use crate::current_access::CurrentAccess;
use crate::gate::Bell;
use crate::slot::{Kind, Reach, Slot};
use crate::{copy, gpu, mapped, on_demand};
use wire::access::{Access, Atomic, Range, RefusalCause, Subject};
use wire::refuse_if;

/// Where an access is counted, so that a thread that closes its slot waits for it.
#[derive(Clone, Copy)]
pub(crate) enum Counted<'m> {
    /// Nowhere: that thread waits for this one, which uses its right to all locks.
    Not,
    /// At the gate of the slot: it may last, and there may be many.
    AtGate,
    /// On the thread's own line, as it is over soon; at the gate while there is another one.
    AtThread(&'m CurrentAccess),
}

/// An access of the NIC's that the program itself may not make.
#[cold]
fn describe(subject: Subject, range: Range, first: *mut u8, writes: bool) -> String {
    let doing = if writes { "writes" } else { "reads" };
    let whose = if subject.remote { "its peer" } else { "its own work" };
    let name = latch::sanitizer::work_name(subject.qpn.value(), first.addr(), subject.remote);
    format!(
        "the NIC {doing} {} bytes at {:#x} (key {:#x}) for queue pair {:#x}{}, as {whose} asks, and the program may not \
         touch all of them",
        range.length,
        range.address,
        range.key.value(),
        subject.qpn.value(),
        name.unwrap_or_default()
    )
}

/// The right to touch a range, until it is dropped.
pub(crate) struct RangeAccess<'m> {
    slot: &'m Slot,
    bell: &'m Bell,
    counted: Counted<'m>,
    first: *mut u8,
    length: usize,
    reach: Reach,
    /// There is no memory: zeros to read, and nowhere to write to.
    null: bool,
    /// AddressSanitizer has reported the access: nothing is written.
    withheld: bool,
}

impl<'m> RangeAccess<'m> {
    /// The range must not be empty.
    #[inline]
    pub(crate) fn new(
        slot: &'m Slot,
        bell: &'m Bell,
        subject: Subject,
        range: Range,
        access: Access,
        mut counted: Counted<'m>,
    ) -> Result<RangeAccess<'m>, RefusalCause> {
        if let Counted::AtThread(current) = counted
            && !current.begin(range.key.value())
        {
            counted = Counted::AtGate;
        }
        match counted {
            Counted::AtGate => slot.enter_gate(range.key, bell)?,
            Counted::Not => slot.pass_gate(range.key)?,
            Counted::AtThread(current) => slot.pass_gate(range.key).inspect_err(|_| current.end())?,
        }
        // From here on, dropping it counts it out.
        let (first, reach) = (std::ptr::null_mut(), Reach::Processor);
        let (null, withheld) = (false, false);
        let mut entry = RangeAccess { slot, bell, counted, first, length: 0, reach, null, withheld };
        if let (Some(first), Ok(length)) = (slot.admit_plain(subject, range, access), usize::try_from(range.length)) {
            (entry.first, entry.length) = (first, length);
            return Ok(entry);
        }
        let terms = slot.load();
        (entry.reach, entry.null) = (terms.reach, terms.kind == Kind::Null);
        entry.first = terms.admit(subject, range, access)?;
        entry.length = usize::try_from(range.length)
            .map_err(|_| RefusalCause::OutOfBounds { start: terms.start, length: terms.length })?;
        if entry.reach == Reach::Processor && !entry.null {
            let writes = access.writes();
            let first = entry.first;
            let work = || describe(subject, range, first, writes);
            entry.withheld = latch::sanitizer::judge_access(first, entry.length, writes, work);
        }
        Ok(entry)
    }

    /// Copies the range out. The length of `out` is that of the range.
    #[inline]
    pub(crate) fn load(&self, out: &mut [u8]) -> Result<(), RefusalCause> {
        debug_assert_eq!(out.len(), self.length);
        if self.null {
            out.fill(0);
            return Ok(());
        }
        match self.reach {
            Reach::Processor => {}
            Reach::OnDemand => return on_demand::load(out, self.first).map_err(|_| RefusalCause::Faulted),
            Reach::Gpu(device) => return gpu::load(out, self.first, device),
        }
        // SAFETY: the code that registered the region vouched for its bytes until it is deregistered, which waits for
        // this entry; `admit` found the range inside.
        unsafe { copy::load(out, self.first) };
        Ok(())
    }

    /// Copies into the range. The length of `bytes` is that of the range.
    #[inline]
    pub(crate) fn store(&self, bytes: &[u8]) -> Result<(), RefusalCause> {
        debug_assert_eq!(bytes.len(), self.length);
        if self.null || self.withheld {
            return Ok(());
        }
        match self.reach {
            Reach::Processor => {}
            Reach::OnDemand => {
                // SAFETY: the code that registered the region vouched that peers may write there.
                return unsafe { on_demand::store(self.first, bytes) }.map_err(|_| RefusalCause::Faulted);
            }
            Reach::Gpu(device) => return gpu::store(self.first, bytes, device),
        }
        // SAFETY: as in `load`; and rights to write were granted, which registration gives only to memory that may be
        // written.
        unsafe { copy::store(self.first, bytes) };
        Ok(())
    }

    /// Copies what another process named into the range.
    pub(crate) fn store_named(&self, source: &gpu::Source, offset: u64) -> Result<(), RefusalCause> {
        /// What is copied at a time where the kernel has to.
        const PIECE_BYTES: usize = 64 * 1024;
        if self.null {
            return Ok(());
        }
        match self.reach {
            // SAFETY: as in `store`.
            Reach::Processor => unsafe { gpu::load_from(self.first, (source, offset), self.length) },
            Reach::Gpu(device) => gpu::store_from(self.first, (source, offset), self.length, device),
            Reach::OnDemand => {
                let mut piece = vec![0; PIECE_BYTES.min(self.length)];
                for at in (0..self.length).step_by(PIECE_BYTES) {
                    let length = PIECE_BYTES.min(self.length - at);
                    // SAFETY: a buffer of our own, as long; then as in `store`.
                    unsafe {
                        gpu::load_from(piece.as_mut_ptr(), (source, offset + at as u64), length)?;
                        on_demand::store(self.first.wrapping_add(at), &piece[..length])
                            .map_err(|_| RefusalCause::Faulted)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Runs an atomic operation on the range, which is eight bytes long.
    pub(crate) fn atomic(&self, operation: Atomic) -> Result<u64, RefusalCause> {
        refuse_if!(self.null, RefusalCause::WrongKind);
        if self.withheld {
            return Ok(0);
        }
        // The address the peer named is aligned, but a region may sit at an odd place under an even address, and a
        // split atomic stops every core of the machine.
        refuse_if!(!self.first.addr().is_multiple_of(8), RefusalCause::Misaligned);
        match self.reach {
            Reach::Processor => {}
            Reach::OnDemand => on_demand::prepare_word(self.first).map_err(|_| RefusalCause::Faulted)?,
            Reach::Gpu(device) => return gpu::atomic(self.first, operation, device),
        }
        // SAFETY: eight bytes as in `store`, aligned. The program's side of any race is its own atomic, or tolerates
        // this one.
        let cell = unsafe { AtomicU64::from_ptr(self.first.cast()) };
        Ok(match operation {
            Atomic::CompareSwap { compare, swap } => {
                match cell.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(before) | Err(before) => before,
                }
            }
            Atomic::FetchAdd { add } => cell.fetch_add(add, Ordering::SeqCst),
            Atomic::Write { bytes } => cell.swap(u64::from_ne_bytes(bytes), Ordering::SeqCst),
        })
    }

    /// Whether there are bytes at all that the kernel can reach.
    pub(crate) fn is_lendable(&self) -> bool {
        !self.null && !matches!(self.reach, Reach::Gpu(_))
    }

    /// Makes stores visible to all, and persistent if the range is a file's.
    pub(crate) fn flush(&self, persistent: bool) -> Result<(), RefusalCause> {
        fence(Ordering::SeqCst);
        if !persistent || self.null || cfg!(miri) {
            return Ok(());
        }
        if let Reach::Gpu(_) = self.reach {
            // It does not outlast the process.
            return Err(RefusalCause::WrongKind);
        }
        let start = self.first.addr() & !(mapped::page_size() - 1);
        let length = self.first.addr() - start + self.length;
        // SAFETY: writes back what is mapped there and changes no byte; whether it is mapped the kernel finds out.
        let result = unsafe { libc::msync(start as *mut libc::c_void, length, libc::MS_SYNC) };
        if result == 0 { Ok(()) } else { Err(RefusalCause::Faulted) }
    }
}

impl Drop for RangeAccess<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.counted {
            Counted::Not => {}
            Counted::AtGate => self.slot.leave(self.bell),
            Counted::AtThread(current) => current.end(),
        }
    }
}

/// Bytes of a region, lent until it is dropped.
pub struct Guard<'m> {
    /// None of an empty range.
    entry: Option<RangeAccess<'m>>,
}

impl<'m> Guard<'m> {
    pub(crate) fn new(entry: Option<RangeAccess<'m>>) -> Guard<'m> {
        Guard { entry }
    }

    /// The first byte; dangling where there is none.
    ///
    /// Meant for system calls. A caller that dereferences it shares the bytes with the program and its peers, and with
    /// [`may_vanish`](Guard::may_vanish) must not do so at all.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.entry.as_ref().map_or(std::ptr::dangling_mut(), |entry| entry.first)
    }

    /// The bytes, for a caller that hands them to a system call; none where they may vanish.
    #[must_use]
    pub fn cells(&self) -> &[AtomicU8] {
        match &self.entry {
            // SAFETY: the code that registered the region vouched for its bytes until it is deregistered, which waits
            // for this guard, and knows that other threads share them: atomics may. Where they may not be written, no
            // code here writes.
            Some(entry) if entry.reach == Reach::Processor => unsafe {
                std::slice::from_raw_parts(entry.first.cast::<AtomicU8>().cast_const(), entry.length)
            },
            _ => &[],
        }
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entry.as_ref().map_or(0, |entry| entry.length)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the program may unmap the bytes at any time (an on-demand region): a system call copes, an access by
    /// hand would not.
    #[must_use]
    pub fn may_vanish(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.reach == Reach::OnDemand)
    }
}

// SAFETY: the pointer is an address that any thread of the process may use as well as another; the slot and the bell
// are shared anyway.
unsafe impl Send for Guard<'_> {}
// SAFETY: a shared guard only gives out the address and the length.
unsafe impl Sync for Guard<'_> {}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({} bytes at {:p})", self.len(), self.as_ptr())
    }
}
