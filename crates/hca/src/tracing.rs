//! Where the NIC's events go: nowhere, until somebody wants them. Off, it costs one relaxed load per event site.

use crate::nic::lock;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The NIC's end of the trace.
#[derive(Default)]
pub struct Tracing {
    on: AtomicBool,
    sink: Mutex<Option<Box<dyn trace::Sink + Send>>>,
}

impl Tracing {
    /// Sends events to `sink` from now on; answers what they went to before.
    pub fn to(&self, sink: Option<Box<dyn trace::Sink + Send>>) -> Option<Box<dyn trace::Sink + Send>> {
        let mut held = lock(&self.sink);
        self.on.store(sink.is_some(), Ordering::Relaxed);
        std::mem::replace(&mut held, sink)
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn record(&self, event: &trace::Event) {
        if let Some(sink) = lock(&self.sink).as_mut() {
            sink.record(event);
        }
    }
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Tracing(on)" } else { "Tracing(off)" })
    }
}
