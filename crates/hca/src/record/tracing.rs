//! Where the NIC's events go: nowhere, until the program or its user wants them. Off, it costs one relaxed load per
//! event site.

use latch::Rank;
use latch::plain::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

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
        self.on.store(sink.is_some(), Ordering::Relaxed);
        std::mem::replace(&mut held, sink)
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn record(&self, event: &trace::Event) {
        if let Some(sink) = self.sink.lock().as_mut() {
            sink.record(event);
        }
    }
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Tracing(on)" } else { "Tracing(off)" })
    }
}
