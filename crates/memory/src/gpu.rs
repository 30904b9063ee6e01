//! GPU memory: found by asking the driver about an address, reached by the driver's copies. The processor never
//! touches it. Which bytes a key opens is decided by the same terms as for other memory; only the copy differs.
//!
//! | what | how |
//! |---|---|
//! | is it GPU memory? | the driver's attributes of the pointer; managed memory counts as the processor's |
//! | copies | in a context and by threads of the NIC's own, waited for: when an access returns, kernels see its bytes |
//! | atomic operations | a copy out and a copy in under one lock: atomic towards one another, not towards kernels |
//! | what was freed, or a context that was destroyed | the driver refuses the copy, and so is the access |

mod bounce;
mod contexts;
mod copier;
mod detour;
mod driver;
pub(crate) mod references;

use std::ops;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use latch::{Mutex, Rank};

use crate::copy;
use crate::error::Error;
use crate::mapped;
use crate::mapping::file_size;
use crate::slot::DeviceNumber;
use bounce::Bounce;
pub use copier::set_gpu_patience;
use copier::{Caller, Started};
use driver::Driver;
pub use driver::DriverError;
pub use references::{LONGEST_REFERENCE, REFERENCE_BYTES, Reference, Source, descriptor_of, open, shadow};
use wire::access::{Atomic, RefusalCause};
use wire::refuse_if;

/// GPU memory, and whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) device: DeviceNumber,
}

/// Where GPU memory is registered: so many regions, for a look without the lock, and their first address and length.
static GPU_REGION_COUNT: AtomicUsize = AtomicUsize::new(0);
static GPU_RANGES: Mutex<Vec<(u64, u64)>> = Mutex::new(Rank::GpuRanges, Vec::new());

/// One atomic operation at a time.
static GPU_ATOMICS: Mutex<()> = Mutex::new(Rank::GpuAtomics, ());

/// Whether there is a driver to ask at no cost worth mentioning.
pub(crate) fn is_known() -> bool {
    driver::known().is_some()
}

/// Whether a range is memory of a GPU. One that begins in such memory and ends elsewhere is an error; it may end on the
/// page on which the memory does, as NICs register pages and programs round up. What is not allocated there is refused
/// when it is accessed.
pub(crate) fn find(address: u64, length: u64) -> Result<Option<Found>, Error> {
    let Some(driver) = driver::driver() else { return Ok(None) };
    let Some(first) = driver.allocation(address) else { return Ok(None) };
    let past = Error::GpuRange { address, length };
    let end = address.checked_add(length).ok_or(past)?;
    let mut reached = first.start.saturating_add(first.length);
    // Memory that was mapped piece by piece is several allocations in a row.
    while reached < end {
        let Some(next) = driver.allocation(reached) else {
            let page_end = reached.checked_next_multiple_of(mapped::page_size() as u64);
            if page_end.is_some_and(|page_end| end <= page_end) {
                break;
            }
            return Err(past);
        };
        let after = next.start.saturating_add(next.length);
        refuse_if!(next.device != first.device || after <= reached, past);
        reached = after;
    }
    let device = u16::try_from(first.device).map(DeviceNumber).map_err(|_| past)?;
    contexts::on(driver, device).map_err(|error| Error::GpuDriver { error: error.0 })?;
    references::note(device, first.context);
    Ok(Some(Found { device }))
}

/// Whether a descriptor that the processor cannot map stands for memory of a GPU, at an address that the GPU's driver
/// knows. There is no way back from such a descriptor to an address, so the program must have named it.
///
/// # Errors
/// The memory there ends before the range does, or the driver does not let it be reached.
pub fn is_gpu_memory(file: BorrowedFd<'_>, offset: u64, address: u64, length: usize) -> Result<bool, Error> {
    let fits = |size| offset.checked_add(length as u64).is_some_and(|end| end <= size);
    Ok(length > 0 && file_size(file).is_ok_and(fits) && find(address, length as u64)?.is_some())
}

/// A region covers a range from now on, or does so no more.
pub(crate) fn note(range: (u64, u64), registered: bool) {
    let mut ranges = GPU_RANGES.lock();
    if registered {
        ranges.push(range);
    } else if let Some(index) = ranges.iter().position(|known| *known == range) {
        ranges.swap_remove(index);
    }
    GPU_REGION_COUNT.store(ranges.len(), Ordering::Relaxed);
    if ranges.is_empty() {
        drop(ranges);
        references::forget();
    }
}

/// Whether any GPU memory is registered: costs a load.
#[inline]
#[must_use]
pub fn has_gpu_regions() -> bool {
    GPU_REGION_COUNT.load(Ordering::Relaxed) != 0
}

/// Whether a range has bytes of a GPU region: memory that the processor must not touch. Costs a load in programs that
/// have none.
#[inline]
#[must_use]
pub fn is_in_gpu_region(address: u64, length: u64) -> bool {
    has_gpu_regions() && is_in_ranges(address, length)
}

/// Whether a range may have such bytes, for observers that wait for no lock: one that is held may cover it.
pub(crate) fn may_be_in_gpu_region(address: u64, length: u64) -> bool {
    has_gpu_regions() && GPU_RANGES.try_lock().is_none_or(|ranges| meets(&ranges, address, length))
}

#[cold]
fn is_in_ranges(address: u64, length: u64) -> bool {
    meets(&GPU_RANGES.lock(), address, length)
}

fn meets(ranges: &[(u64, u64)], address: u64, length: u64) -> bool {
    ranges.iter().any(|(start, size)| address < start.saturating_add(*size) && *start < address.saturating_add(length))
}

/// Whether a copy is to fail on purpose: asked before each.
static FAILS: OnceLock<fn() -> bool> = OnceLock::new();

/// Has `fails` say from now on of each copy from and to GPU memory whether it is to fail, as if the driver said so. The
/// first caller is heard.
pub fn fail_gpu_copies_if(fails: fn() -> bool) {
    let _ = FAILS.set(fails);
}

fn is_to_fail() -> bool {
    FAILS.get().is_some_and(|fails| fails())
}

/// Copies piece by piece. While one is under way the next one begins, and the processor's part of the one before is
/// done. `start` begins one, `end` is told what came of it. After a failure no more begin, and none is under way when
/// this returns, but such as the driver took too long for.
fn in_pieces<R: Send + 'static>(
    length: usize,
    mut start: impl FnMut(ops::Range<usize>) -> Result<Started<R>, DriverError>,
    mut end: impl FnMut(ops::Range<usize>, R),
) -> Result<(), RefusalCause> {
    let mut under_way: Option<(ops::Range<usize>, Started<R>)> = None;
    let mut result = Ok(());
    if is_to_fail() {
        return Err(refused(DriverError::UNKNOWN));
    }
    for at in (0..length).step_by(bounce::BOUNCE_BYTES) {
        let piece = at..length.min(at + bounce::BOUNCE_BYTES);
        let started = start(piece.clone());
        if let Some((earlier, started)) = under_way.take() {
            result = started.wait().map(|done| end(earlier, done));
        }
        match started {
            Ok(started) => under_way = Some((piece, started)),
            Err(error) => result = result.and(Err(error)),
        }
        if result.is_err() {
            break;
        }
    }
    if let Some((piece, started)) = under_way {
        result = result.and(started.wait().map(|done| end(piece, done)));
    }
    result.map_err(refused)
}

/// Copies out of GPU memory.
#[cold]
pub(crate) fn load(out: &mut [u8], source: *const u8, device: DeviceNumber) -> Result<(), RefusalCause> {
    let from = source.addr() as u64;
    in_pieces(
        out.len(),
        |piece| start_out(from + piece.start as u64, piece.len(), device, None),
        |piece, mut bounce| {
            let length = piece.len();
            out[piece].copy_from_slice(bounce.bytes(length));
        },
    )
}

/// Begins to copy a part of GPU memory that is no longer than a bounce.
fn start_out(
    from: u64,
    length: usize,
    device: DeviceNumber,
    source: Option<Source>,
) -> Result<Started<Bounce>, DriverError> {
    let mut bounce = Bounce::take()?;
    copier::start(move |caller| {
        let driver = source.as_ref().map_or_else(|| there(from, length), Source::opened_by)?;
        caller.waits()?;
        bounce.register(driver, device);
        contexts::on(driver, device)?.finish(driver, |stream| {
            // SAFETY: valid for writes, as long, and kept until the copy has ended.
            unsafe { driver.begin_out(bounce.first(), from, length, stream) }
        })?;
        Ok(bounce)
    })
}

/// Copies into GPU memory. Kernels that begin afterwards see it.
#[cold]
pub(crate) fn store(target: *mut u8, bytes: &[u8], device: DeviceNumber) -> Result<(), RefusalCause> {
    let target = target.addr() as u64;
    let start = |piece: ops::Range<usize>| {
        let (mut bounce, to, length) = (Bounce::take()?, target + piece.start as u64, piece.len());
        bounce.bytes(length).copy_from_slice(&bytes[piece]);
        copier::start(move |caller| {
            let driver = there(to, length)?;
            caller.waits()?;
            bounce.register(driver, device);
            contexts::on(driver, device)?.finish(driver, |stream| {
                // SAFETY: valid for reads, as long, and kept until the copy has ended.
                unsafe { driver.begin_into(to, bounce.first(), length, stream) }
            })?;
            Ok(bounce)
        })
    };
    in_pieces(bytes.len(), start, |_, bounce| drop(bounce))
}

/// Runs an atomic operation on eight aligned bytes: as hardware does it (`IBV_ATOMIC_HCA`), atomic towards other
/// operations of this NIC and not towards kernels.
#[cold]
pub(crate) fn atomic(word: *mut u8, operation: Atomic, device: DeviceNumber) -> Result<u64, RefusalCause> {
    let _turn = GPU_ATOMICS.lock();
    let mut bytes = [0; 8];
    load(&mut bytes, word, device)?;
    let before = u64::from_ne_bytes(bytes);
    let after = match operation {
        Atomic::CompareSwap { compare, swap } if before == compare => swap,
        Atomic::CompareSwap { .. } => return Ok(before),
        Atomic::FetchAdd { add } => before.wrapping_add(add),
        Atomic::Write { bytes } => u64::from_ne_bytes(bytes),
    };
    store(word, &after.to_ne_bytes(), device)?;
    Ok(before)
}

/// Copies from memory that another process named into GPU memory.
#[cold]
pub(crate) fn store_from(
    target: *mut u8,
    (source, offset): (&Source, u64),
    length: usize,
    device: DeviceNumber,
) -> Result<(), RefusalCause> {
    let (target, from) = (target.addr() as u64, source.part(offset, length as u64).ok_or(RefusalCause::WrongKind)?);
    if detour::is_quicker() {
        return store_through_host(target, from, source, length, device);
    }
    if is_to_fail() {
        return Err(refused(DriverError::UNKNOWN));
    }
    // The source stays open until the copy has ended, also where the caller has given up.
    let source = source.clone();
    let call = move |caller: &Caller<'_>| {
        source.opened_by()?;
        let driver = there(target, length)?;
        caller.waits()?;
        let begun = Instant::now();
        let copied =
            contexts::on(driver, device)?.finish(driver, |stream| driver.begin_across(target, from, length, stream));
        detour::note(length, begun.elapsed());
        drop(source);
        copied
    };
    copier::run(call).map_err(refused)
}

/// Copies from memory that another process named into GPU memory by way of the host.
fn store_through_host(
    target: u64,
    from: u64,
    source: &Source,
    length: usize,
    device: DeviceNumber,
) -> Result<(), RefusalCause> {
    let start = |piece: ops::Range<usize>| {
        let (mut bounce, kept, length) = (Bounce::take()?, source.clone(), piece.len());
        let (target, from) = (target + piece.start as u64, from + piece.start as u64);
        copier::start(move |caller| {
            kept.opened_by()?;
            let driver = there(target, length)?;
            caller.waits()?;
            bounce.register(driver, device);
            let copied = contexts::on(driver, device)?.finish(driver, |stream| {
                // SAFETY: the bounce is as long, and kept until both copies have ended, which come one after the other.
                unsafe {
                    driver.begin_out(bounce.first(), from, length, stream)?;
                    driver.begin_into(target, bounce.first(), length, stream)
                }
            });
            drop(kept);
            copied.map(|()| bounce)
        })
    };
    in_pieces(length, start, |_, bounce| drop(bounce))
}

/// Copies from memory that another process named into other memory.
///
/// # Safety
/// `target` is valid for writes of `length` bytes.
#[cold]
pub(crate) unsafe fn load_from(
    target: *mut u8,
    (source, offset): (&Source, u64),
    length: usize,
) -> Result<(), RefusalCause> {
    let from = source.part(offset, length as u64).ok_or(RefusalCause::WrongKind)?;
    in_pieces(
        length,
        |piece| start_out(from + piece.start as u64, piece.len(), source.device(), Some(source.clone())),
        |piece, mut bounce| {
            // SAFETY: a part of what the caller vouches for; programs may write there meanwhile.
            unsafe { copy::store(target.wrapping_add(piece.start), bounce.bytes(piece.len())) };
        },
    )
}

/// The driver, which a region was found by.
fn known() -> Result<&'static Driver, DriverError> {
    driver::known().ok_or(DriverError(3))
}

/// The driver, if memory is still there. It is asked: that the program has freed memory, or destroyed its context, the
/// NIC's context would only learn by a fault.
fn there(address: u64, length: usize) -> Result<&'static Driver, DriverError> {
    const INVALID: DriverError = DriverError(1);
    let driver = known()?;
    let (mut at, end) = (address, address.saturating_add(length as u64));
    while at < end {
        let allocation = driver.allocation(at).ok_or(INVALID)?;
        at = allocation.start.saturating_add(allocation.length).max(at + 1);
    }
    Ok(driver)
}

fn refused(error: DriverError) -> RefusalCause {
    RefusalCause::GpuFailed { error: error.0 }
}

/// Memory of this process that GPUs reach by themselves until this is dropped, which makes copies to and from it
/// faster.
#[derive(Debug)]
struct HostRegistration {
    first: usize,
    registered: bool,
}

impl HostRegistration {
    /// Registers whole pages of memory that the caller keeps mapped until this is dropped. Where the driver refuses,
    /// copies work all the same.
    fn new(first: *mut u8, length: usize) -> HostRegistration {
        // The driver looks the pages up, pins them, and changes no byte.
        let registered = driver::known().is_some_and(|driver| driver.register_host(first, length).is_ok());
        HostRegistration { first: first.addr(), registered }
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        if let (true, Some(driver)) = (self.registered, driver::known()) {
            let _ = driver.unregister_host(std::ptr::without_provenance_mut(self.first));
        }
    }
}
