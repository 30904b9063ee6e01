//! Payload that is named instead of carried: between two processes that use one GPU, a train says where its bytes lie,
//! and the receiver copies them inside the GPU. The name is the driver's handle of the allocation, which only processes
//! of the same user get; with it goes what the receiver needs to tell a new allocation at an old place from the old
//! one. Memory that was made with `cuMemCreate` has no such handle: it is passed by a descriptor before it is named.
//!
//! | bytes | of a reference |
//! |---|---|
//! | 64 | the driver's handle of the allocation; of a passed one its length, its number, and zeros |
//! | 8 | the allocation's number in its process |
//! | 4 | the process |
//! | 4 | 1 if the allocation was passed |
//! | 8 | the offset of the first byte |
//! | 8 | how many bytes |

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use latch::{Mutex, Rank};

use super::contexts;
use super::copier::{self, Caller};
use super::driver::{self, Allocation, Context, Driver, DriverError, Handle};
use crate::mapping::Mapping;
use crate::slot::DeviceNumber;
use crate::slot::within;

/// The length of a reference.
pub const REFERENCE_BYTES: usize = 96;

/// The most bytes one reference names.
pub const LONGEST_REFERENCE: u32 = 64 << 20;

/// In the word that has the process: the allocation was passed.
const PASSED_BIT: u64 = 1 << 32;

/// The driver's number for what makes no sense.
const INVALID_ERROR: DriverError = DriverError(1);

/// How many allocations of other processes are kept open, and how many handles of our own.
const MAX_KEPT_ALLOCATIONS: usize = 64;

/// The GPU for which other processes' memory is opened, and the context of the program in which: those of the region
/// registered last. The driver opens a handle in one context of a process and in no other, so where the program opens it
/// too it must be the program's.
static IMPORT_DEVICE: AtomicU32 = AtomicU32::new(u32::MAX);
static IMPORT_CONTEXT: AtomicUsize = AtomicUsize::new(0);

static EXPORTED_HANDLES: Mutex<Vec<(u64, u64, Option<Named>)>> = Mutex::new(Rank::GpuExports, Vec::new());
static IMPORTED_MEMORY: Mutex<Vec<Arc<Import>>> = Mutex::new(Rank::GpuImports, Vec::new());

/// How an allocation is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Named {
    /// By the driver's handle.
    Handle(Handle),
    /// By its number, when it was passed.
    Passed(Handle),
}

/// What names bytes of a GPU in other processes.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// What is written into a train.
    pub bytes: [u8; REFERENCE_BYTES],
    /// The number of the allocation if it must be passed before, by [`descriptor_of`].
    pub to_pass: Option<u64>,
    start: u64,
}

/// An allocation of another process, open here until it is dropped.
#[derive(Debug)]
struct Import {
    handle: Handle,
    id: u64,
    /// With whether it was passed.
    process: u64,
    device: DeviceNumber,
    /// Where a handle was opened.
    context: usize,
    address: u64,
    length: u64,
    /// The driver's number for it in this process.
    number: u64,
}

impl Drop for Import {
    fn drop(&mut self) {
        if let Some(driver) = driver::known() {
            let (context, address, length) = (self.context, self.address, self.length);
            let is_passed = self.process >= PASSED_BIT;
            copier::run_later(move || {
                // A context that was destroyed has closed it.
                let _ = match is_passed {
                    true => driver.close_descriptor(address, length as usize),
                    false => driver.within(context as Context, || driver.close(address)),
                };
            });
        }
    }
}

/// Bytes in memory that another process named.
#[derive(Clone, Debug)]
pub struct Source {
    import: Arc<Import>,
    offset: u64,
    length: u64,
}

impl Source {
    /// How many bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length as usize
    }

    /// Where `length` bytes from `offset` on lie.
    pub(super) fn part(&self, offset: u64, length: u64) -> Option<u64> {
        let inside = within(0, self.length, offset, length)?;
        Some(self.import.address + self.offset + inside)
    }

    /// The driver, if the memory is still open. It is asked: a context of the program that was destroyed has closed it.
    pub(super) fn opened_by(&self) -> Result<&'static Driver, DriverError> {
        let driver = driver::known().ok_or(INVALID_ERROR)?;
        let opened = driver.allocation(self.import.address).ok_or(INVALID_ERROR)?;
        if opened.id == self.import.number { Ok(driver) } else { Err(INVALID_ERROR) }
    }

    pub(super) fn device(&self) -> DeviceNumber {
        self.import.device
    }
}

/// A region of a GPU was registered, for which references may be opened from now on.
pub(super) fn note(device: DeviceNumber, context: usize) {
    IMPORT_CONTEXT.store(context, Ordering::Relaxed);
    IMPORT_DEVICE.store(device.0.into(), Ordering::Relaxed);
}

/// No region is left.
pub(super) fn forget() {
    let closed = std::mem::take(&mut *IMPORTED_MEMORY.lock());
    drop(closed);
    EXPORTED_HANDLES.lock().clear();
}

/// What names bytes of a GPU in other processes, if the driver lets them be named.
pub(crate) fn refer(address: u64, length: u64, device: DeviceNumber) -> Option<Reference> {
    let allocation = allocation(address)?;
    let offset = within(allocation.start, allocation.length, address, length)?;
    let named = named(&allocation, device)?;
    let mut process = u64::from(std::process::id());
    let (handle, to_pass) = match named {
        Named::Handle(handle) => (handle, None),
        Named::Passed(handle) => {
            process |= PASSED_BIT;
            (handle, Some(allocation.id))
        }
    };
    let mut bytes = [0; REFERENCE_BYTES];
    bytes[..64].copy_from_slice(&handle.0);
    for (place, word) in bytes[64..].chunks_exact_mut(8).zip([allocation.id, process, offset, length]) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    Some(Reference { bytes, to_pass, start: allocation.start })
}

/// Whether bytes there can be named.
pub(crate) fn can_refer(address: u64, device: DeviceNumber) -> bool {
    allocation(address).is_some_and(|allocation| named(&allocation, device).is_some())
}

/// The descriptor by which the memory of a reference is passed.
///
/// # Errors
/// The driver's.
pub fn descriptor_of(reference: &Reference) -> Result<OwnedFd, DriverError> {
    let (driver, start) = (driver::known().ok_or(INVALID_ERROR)?, reference.start);
    copier::run(move |_| driver.export_descriptor(start))
}

/// What the driver knows of an address.
fn allocation(address: u64) -> Option<Allocation> {
    let driver = driver::known()?;
    copier::run(move |_| Ok(driver.allocation(address))).ok()?
}

/// How an allocation is named. The driver is asked once.
fn named(allocation: &Allocation, device: DeviceNumber) -> Option<Named> {
    let (driver, start, id) = (driver::known()?, allocation.start, allocation.id);
    let mut exports = EXPORTED_HANDLES.lock();
    if let Some((_, _, named)) = exports.iter().find(|(at, number, _)| (*at, *number) == (start, id)) {
        return *named;
    }
    let named = if allocation.is_exportable {
        let export = move |_: &Caller<'_>| contexts::on(driver, device)?.within(driver, || driver.export(start));
        copier::run(export).ok().map(Named::Handle)
    } else {
        // Without a number, new memory at an old place would be taken for the old.
        let exports = id != 0 && copier::run(move |_| driver.export_descriptor(start)).is_ok();
        let mut handle = Handle([0; 64]);
        handle.0[..8].copy_from_slice(&allocation.length.to_ne_bytes());
        handle.0[8..16].copy_from_slice(&id.to_ne_bytes());
        exports.then_some(Named::Passed(handle))
    };
    exports.retain(|(at, ..)| *at != start);
    if exports.len() == MAX_KEPT_ALLOCATIONS {
        exports.remove(0);
    }
    exports.push((start, id, named));
    named
}

/// Opens what another process named. Nothing of it is believed but by the driver: the handle is the driver's to judge,
/// and the range is held against the allocation as the driver knows it here.
///
/// `take` gives the descriptor of memory of that number, if it was passed.
///
/// # Errors
/// The driver's: of a GPU that this process does not use, or a handle that is none.
pub fn open(
    reference: &[u8; REFERENCE_BYTES],
    take: impl FnOnce(u64) -> Option<OwnedFd>,
) -> Result<Source, DriverError> {
    let word = |at: usize| {
        reference.get(at..at + 8).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    let mut handle = Handle([0; 64]);
    handle.0.copy_from_slice(&reference[..64]);
    let (id, process, offset, length) = (word(64), word(72), word(80), word(88));
    let import = import(handle, id, process, take)?;
    if length > u64::from(LONGEST_REFERENCE) || within(0, import.length, offset, length).is_none() {
        return Err(INVALID_ERROR);
    }
    Ok(Source { import, offset, length })
}

fn import(
    handle: Handle,
    id: u64,
    process: u64,
    take: impl FnOnce(u64) -> Option<OwnedFd>,
) -> Result<Arc<Import>, DriverError> {
    const NO_CONTEXT: DriverError = DriverError(201);
    let mut imports = IMPORTED_MEMORY.lock();
    let wanted = |import: &Arc<Import>| import.handle == handle && import.id == id && import.process == process;
    if let Some(at) = imports.iter().position(wanted) {
        // The one used longest ago is the first.
        let import = imports.remove(at);
        imports.push(Arc::clone(&import));
        return Ok(import);
    }
    // What lay there before is gone in its process. A process that has ended needs nothing here.
    imports.retain(|import| import.handle != handle && is_there(import.process % PASSED_BIT));
    if imports.len() == MAX_KEPT_ALLOCATIONS {
        imports.remove(0);
    }
    let driver = driver::known().ok_or(NO_CONTEXT)?;
    let device = u16::try_from(IMPORT_DEVICE.load(Ordering::Relaxed)).map(DeviceNumber).map_err(|_| NO_CONTEXT)?;
    let (context, address, length, number) = if process < PASSED_BIT {
        copier::run(move |_| {
            let context = match IMPORT_CONTEXT.load(Ordering::Relaxed) {
                0 => driver.primary_context(device.0.into())?,
                context => context as Context,
            };
            let address = driver.within(context, || driver.import(handle))?;
            let opened = driver.allocation(address).ok_or(INVALID_ERROR)?;
            Ok((context as usize, address, opened.length, opened.id))
        })?
    } else {
        let descriptor = take(id).ok_or(INVALID_ERROR)?;
        let length = handle.0.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        // The driver maps no more than there is.
        let mapped = usize::try_from(length).map_err(|_| INVALID_ERROR)?;
        copier::run(move |_| {
            let context = contexts::on(driver, device)?;
            let address = context.within(driver, || driver.import_descriptor(&descriptor, mapped))?;
            Ok((0, address, length, driver.allocation(address).ok_or(INVALID_ERROR)?.id))
        })?
    };
    let import = Arc::new(Import { handle, id, process, device, context, address, length, number });
    imports.push(Arc::clone(&import));
    Ok(import)
}

/// Whether a process is still there, as far as can be seen.
fn is_there(process: u64) -> bool {
    let Ok(process) = libc::pid_t::try_from(process) else { return false };
    // SAFETY: signal 0 is none: the kernel only looks.
    process > 0
        && (unsafe { libc::kill(process, 0) } == 0
            || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM))
}

/// As many zeros as a reference names bytes, which stand for these where a slice is wanted: no memory is behind them.
#[must_use]
pub fn shadow(length: usize) -> Option<&'static [u8]> {
    static ZEROS: OnceLock<Option<Mapping>> = OnceLock::new();
    let mapping = ZEROS.get_or_init(|| Mapping::zeros(LONGEST_REFERENCE as usize).ok()).as_ref()?;
    if length > LONGEST_REFERENCE as usize {
        return None;
    }
    // SAFETY: mapped for reading, as long, and never unmapped.
    Some(unsafe { std::slice::from_raw_parts(mapping.first(), length) })
}

/// Where in the shadow a slice lies, if it does.
pub(crate) fn offset_in_shadow(bytes: &[u8]) -> Option<u64> {
    let offset = bytes.as_ptr().addr().checked_sub(shadow(0)?.as_ptr().addr())?;
    (offset <= LONGEST_REFERENCE as usize).then_some(offset as u64)
}
