//! Memory of GPUs: found by asking the driver about an address, reached by the driver's copies. The processor never
//! touches it. Which bytes a key opens is decided by the same terms as for other memory; only the copy differs.
//!
//! | what | how |
//! |---|---|
//! | is it GPU memory? | the driver's attributes of the pointer; managed memory is the processor's too and counts as that |
//! | copies | in streams of the NIC's own, waited for: an access that returns has its bytes where kernels see them |
//! | atomic operations | a copy out and a copy in under one lock: atomic towards one another, not towards kernels |
//! | what was freed, or a context that was destroyed | the driver refuses the copy, and so is the access |

mod contexts;
mod driver;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use latch::{Mutex, Rank};

use crate::error::Error;
use crate::mapping::file_size;
pub(crate) use contexts::ContextNumber;
pub use driver::DriverError;
use wire::access::{Atomic, RefusalCause};

/// GPU memory: where it lies for the driver, and in which context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) context: ContextNumber,
}

/// Where GPU memory is registered: so many regions, for a look without the lock, and their first address and length.
static REGIONS: AtomicUsize = AtomicUsize::new(0);
static RANGES: Mutex<Vec<(u64, u64)>> = Mutex::new(Rank::GpuRanges, Vec::new());

/// One atomic operation at a time.
static ATOMICS: Mutex<()> = Mutex::new(Rank::GpuAtomics, ());

/// Whether there is a driver to ask at no cost worth mentioning.
pub(crate) fn is_known() -> bool {
    driver::known().is_some()
}

/// Whether a range is memory of a GPU. One that begins in such memory and ends elsewhere is an error.
pub(crate) fn find(address: u64, length: u64) -> Result<Option<Found>, Error> {
    let Some(driver) = driver::driver() else { return Ok(None) };
    let Some(first) = driver.allocation(address) else { return Ok(None) };
    let past = Error::GpuRange { address, length };
    let end = address.checked_add(length).ok_or(past)?;
    let mut reached = first.start.saturating_add(first.length);
    // Memory that was mapped piece by piece is several allocations in a row.
    while reached < end {
        let next = driver.allocation(reached).ok_or(past)?;
        let after = next.start.saturating_add(next.length);
        if (next.device, next.context) != (first.device, first.context) || after <= reached {
            return Err(past);
        }
        reached = after;
    }
    let context = contexts::number_of(driver, &first).map_err(|error| Error::GpuDriver { error: error.0 })?;
    Ok(Some(Found { context }))
}

/// Whether a descriptor that the processor cannot map stands for memory of a GPU, at an address that the GPU's driver
/// knows. There is no way back from such a descriptor to an address, so the program must have named it.
#[must_use]
pub fn is_gpu_memory(file: BorrowedFd<'_>, offset: u64, address: u64, length: usize) -> bool {
    let fits = |size| offset.checked_add(length as u64).is_some_and(|end| end <= size);
    length > 0 && file_size(file).is_ok_and(fits) && matches!(find(address, length as u64), Ok(Some(_)))
}

/// A region covers a range from now on, or does so no more.
pub(crate) fn note(range: (u64, u64), registered: bool) {
    let mut ranges = RANGES.lock();
    if registered {
        ranges.push(range);
    } else if let Some(index) = ranges.iter().position(|known| *known == range) {
        ranges.swap_remove(index);
    }
    REGIONS.store(ranges.len(), Ordering::Relaxed);
}

/// Whether a range has bytes of a GPU region: memory that the processor must not touch. Costs a load in programs that
/// have none.
#[inline]
#[must_use]
pub fn is_in_gpu_region(address: u64, length: u64) -> bool {
    REGIONS.load(Ordering::Relaxed) != 0 && is_in_ranges(address, length)
}

#[cold]
fn is_in_ranges(address: u64, length: u64) -> bool {
    let meets =
        |(start, size): &(u64, u64)| address < start.saturating_add(*size) && *start < address.saturating_add(length);
    RANGES.lock().iter().any(meets)
}

/// Copies out of GPU memory.
#[cold]
pub(crate) fn load(out: &mut [u8], source: *const u8, context: ContextNumber) -> Result<(), RefusalCause> {
    let driver = driver::known().ok_or(RefusalCause::Faulted)?;
    contexts::finish(driver, context, |stream| {
        // SAFETY: `out` is valid for writes, and waited for before it is used.
        unsafe { driver.begin_out(out.as_mut_ptr(), source.addr() as u64, out.len(), stream) }
    })
    .map_err(refused)
}

/// Copies into GPU memory. Kernels that begin afterwards see it.
#[cold]
pub(crate) fn store(target: *mut u8, bytes: &[u8], context: ContextNumber) -> Result<(), RefusalCause> {
    let driver = driver::known().ok_or(RefusalCause::Faulted)?;
    contexts::finish(driver, context, |stream| {
        // SAFETY: `bytes` is valid for reads until the stream was waited for.
        unsafe { driver.begin_into(target.addr() as u64, bytes.as_ptr(), bytes.len(), stream) }
    })
    .map_err(refused)
}

/// Runs an atomic operation on eight aligned bytes: as hardware does it (`IBV_ATOMIC_HCA`), atomic towards other
/// operations of this NIC and not towards kernels.
#[cold]
pub(crate) fn atomic(word: *mut u8, operation: Atomic, context: ContextNumber) -> Result<u64, RefusalCause> {
    let _turn = ATOMICS.lock();
    let mut bytes = [0; 8];
    load(&mut bytes, word, context)?;
    let before = u64::from_ne_bytes(bytes);
    let after = match operation {
        Atomic::CompareSwap { compare, swap } if before == compare => swap,
        Atomic::CompareSwap { .. } => return Ok(before),
        Atomic::FetchAdd { add } => before.wrapping_add(add),
        Atomic::Write { bytes } => u64::from_ne_bytes(bytes),
    };
    store(word, &after.to_ne_bytes(), context)?;
    Ok(before)
}

fn refused(error: DriverError) -> RefusalCause {
    RefusalCause::GpuFailed { error: error.0 }
}
