//! The contexts of GPU regions, by number, and the streams that the NIC copies in: its own, so that it waits for no
//! work of the program. Places in the table are not used again: a region names its context by number, and a context
//! that was destroyed must not be taken for one that was made later.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::driver::{Allocation, Context, Driver, DriverError, NO_STREAM, Stream};

/// How many contexts there may be in the life of a process.
const CONTEXTS: usize = 256;

/// How many streams wait for their next use: as many threads copy at once without making one.
const STREAMS: usize = 8;

/// The driver's number for a context that was destroyed.
const CONTEXT_DESTROYED: DriverError = DriverError(709);
/// The driver's number for "no room".
const OUT_OF_MEMORY: DriverError = DriverError(2);

/// A context of regions, by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ContextNumber(pub u16);

/// A context and streams in it.
#[derive(Debug)]
struct Entry {
    context: usize,
    id: u64,
    streams: [AtomicUsize; STREAMS],
}

/// Entries stay for ever: accesses look at them without a lock.
static TABLE: [AtomicPtr<Entry>; CONTEXTS] = [const { AtomicPtr::new(null_mut()) }; CONTEXTS];

fn entry(number: usize) -> Option<&'static Entry> {
    // SAFETY: null, or what `number_of` leaked.
    unsafe { TABLE.get(number)?.load(Ordering::Acquire).as_ref() }
}

/// The number of the context in which an allocation is reached.
pub(super) fn number_of(driver: &Driver, allocation: &Allocation) -> Result<ContextNumber, DriverError> {
    let context: Context = match allocation.context {
        // Memory of no context is reached in that which all share.
        0 => driver.primary_context(allocation.device)?,
        context => context as Context,
    };
    let (context, id) = (context as usize, driver.context_id(context));
    let mut made: *mut Entry = null_mut();
    let mut found = Err(OUT_OF_MEMORY);
    // Streams are made now: while a kernel of the program waits for the NIC, a call that needs the whole GPU would wait
    // for the kernel.
    for (number, place) in TABLE.iter().enumerate() {
        if entry(number).is_none() {
            if made.is_null() {
                let streams = [const { AtomicUsize::new(0) }; STREAMS];
                made = Box::into_raw(Box::new(Entry { context, id, streams }));
            }
            if place.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                let made = entry(number).ok_or(CONTEXT_DESTROYED)?;
                driver.within(context as Context, || {
                    made.streams.iter().try_for_each(|_| driver.make_stream().map(|stream| made.put(stream)))
                })?;
                return Ok(ContextNumber(number as u16));
            }
        }
        if entry(number).is_some_and(|entry| entry.context == context && entry.id == id) {
            found = Ok(ContextNumber(number as u16));
            break;
        }
    }
    if !made.is_null() {
        // SAFETY: made above, and it did not get into the table.
        drop(unsafe { Box::from_raw(made) });
    }
    found
}

/// Runs `f` in a context.
pub(super) fn within<R>(
    driver: &Driver,
    number: ContextNumber,
    f: impl FnOnce() -> Result<R, DriverError>,
) -> Result<R, DriverError> {
    let entry = entry(number.0.into()).ok_or(CONTEXT_DESTROYED)?;
    driver.within(entry.context as Context, f)
}

/// Begins work in a stream of a context, and waits until it is done.
pub(super) fn finish(
    driver: &Driver,
    number: ContextNumber,
    begin: impl FnOnce(Stream) -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    let entry = entry(number.0.into()).ok_or(CONTEXT_DESTROYED)?;
    driver.within(entry.context as Context, || {
        let stream = match entry.take() {
            NO_STREAM => driver.make_stream()?,
            stream => stream,
        };
        // A stream in which something failed is not used again, not even to wait: of a context that was destroyed it
        // is no stream any more. Nothing is under way then.
        begin(stream)?;
        driver.wait(stream)?;
        entry.put(stream);
        Ok(())
    })
}

impl Entry {
    fn take(&self) -> Stream {
        let taken = self.streams.iter().find_map(|place| match place.load(Ordering::Relaxed) {
            0 => None,
            _ => Some(place.swap(0, Ordering::Acquire)).filter(|stream| *stream != 0),
        });
        taken.map_or(NO_STREAM, |stream| stream as Stream)
    }

    fn put(&self, stream: Stream) {
        let free = |place: &AtomicUsize| {
            place.compare_exchange(0, stream as usize, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        // More than eight threads at once: the ninth's is not used again.
        self.streams.iter().any(free);
    }
}
