//! The NIC's own context on each GPU, and the streams in it that it copies in. In a context of the program it would
//! wait for the program: all streams of a context share a few queues, what waits in one holds up what comes after it,
//! and the program's work may wait for a kernel that waits for the NIC. It reaches all memory of the process as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use latch::Rank;
use latch::plain::Mutex;

use super::copier;
use super::driver::{self, Context, Driver, DriverError, NO_STREAM, Stream};
use crate::slot::DeviceNumber;

/// How many streams wait for their next use: as many threads copy at once without making one.
const MAX_SPARE_STREAMS: usize = 8;

/// What the driver says of arguments that are wrong, and of no room. After any other error it says the same of all that
/// is done in the context.
const ARGUMENT_ERRORS: [DriverError; 2] = [DriverError(1), DriverError(2)];

static NIC_CONTEXTS: Mutex<Vec<(DeviceNumber, Arc<NicContext>)>> = Mutex::new(Rank::GpuContexts, Vec::new());

/// A context of the NIC's own and streams in it. It ends when nothing uses it any more.
#[derive(Debug)]
pub(super) struct NicContext {
    context: usize,
    streams: [AtomicUsize; MAX_SPARE_STREAMS],
    is_broken: AtomicBool,
}

/// The NIC's context on a GPU. It is made when memory of that GPU is registered for the first time, which takes a while,
/// and again after it broke.
pub(super) fn on(driver: &Driver, device: DeviceNumber) -> Result<Arc<NicContext>, DriverError> {
    let mut contexts = NIC_CONTEXTS.lock();
    if let Some((_, context)) = contexts.iter().find(|(number, one)| *number == device && !one.is_broken()) {
        return Ok(Arc::clone(context));
    }
    let context = driver.make_context(device.0.into())? as usize;
    let streams = [const { AtomicUsize::new(0) }; MAX_SPARE_STREAMS];
    let made = Arc::new(NicContext { context, streams, is_broken: AtomicBool::new(false) });
    // Streams are made now: while a kernel of the program waits for the NIC, a call that needs the whole GPU would wait
    // for the kernel.
    made.within(driver, || made.streams.iter().try_for_each(|_| driver.make_stream().map(|stream| made.put(stream))))?;
    contexts.retain(|(number, _)| *number != device);
    contexts.push((device, Arc::clone(&made)));
    Ok(made)
}

impl NicContext {
    /// Whether an error has made it useless.
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Runs `f` in it.
    pub fn within<R>(&self, driver: &Driver, f: impl FnOnce() -> Result<R, DriverError>) -> Result<R, DriverError> {
        driver.within(self.context as Context, f)
    }

    /// Begins work in a stream, and waits until it is done.
    pub fn finish(
        &self,
        driver: &Driver,
        begin: impl FnOnce(Stream) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let finished = self.within(driver, || {
            let stream = match self.take() {
                NO_STREAM => driver.make_stream()?,
                stream => stream,
            };
            let begun = begin(stream);
            // What was begun before the failure ends first.
            let ended = driver.wait(stream);
            self.put(stream);
            begun.and(ended)
        });
        finished.inspect_err(|error| {
            if !ARGUMENT_ERRORS.contains(error) {
                self.is_broken.store(true, Ordering::Relaxed);
            }
        })
    }

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

impl Drop for NicContext {
    fn drop(&mut self) {
        if let Some(driver) = driver::known() {
            let context = self.context;
            copier::run_later(move || driver.end_context(context as Context));
        }
    }
}
