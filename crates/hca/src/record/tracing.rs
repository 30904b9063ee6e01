//! Where the NIC's events go: nowhere, until the program or its user wants them. Off, it costs one relaxed load per
//! event site.

use latch::Rank;
use latch::plain::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many NICs of this process have a sink.
static LISTENED_TO: AtomicU32 = AtomicU32::new(0);

/// Whether a sink listens to a NIC of this process: for callers that would have to prepare what they tell.
#[inline]
pub fn is_traced() -> bool {
    LISTENED_TO.load(Ordering::Relaxed) != 0
}

/// The NIC's end of the trace.
pub struct Tracing {
    on: AtomicBool,
    sink: Mutex<Option<Box<dyn trace::Sink + Send>>>,
}

impl Default for Tracing {
    fn default() -> Tracing {
        Tracing { on: AtomicBool::new(false), sink: Mutex::new(Rank::Trace, None) }
    }
}

impl Tracing {
    /// Sends events to `sink` from now on; answers what they went to before.
    pub fn to(&self, sink: Option<Box<dyn trace::Sink + Send>>) -> Option<Box<dyn trace::Sink + Send>> {
        let mut held = self.sink.lock();
        let (was_on, is_on) = (self.on.swap(sink.is_some(), Ordering::Relaxed), sink.is_some());
        LISTENED_TO.fetch_add(is_on.into(), Ordering::Relaxed);
        LISTENED_TO.fetch_sub(was_on.into(), Ordering::Relaxed);
        std::mem::replace(&mut held, sink)
    }

    /// Whether a sink listens.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn record(&self, event: &trace::Event) {
        if let Some(sink) = self.sink.lock().as_mut() {
            sink.record(event);
        }
    }

    /// The same for a thread that may hold any lock, as it may be in a signal handler: an event is lost if the sink is
    /// in use.
    #[cold]
    pub(crate) fn try_record(&self, event: &trace::Event) {
        if let Some(sink) = self.sink.try_lock().as_deref_mut().and_then(Option::as_mut) {
            sink.record(event);
        }
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        self.to(None);
    }
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Tracing(on)" } else { "Tracing(off)" })
    }
}
