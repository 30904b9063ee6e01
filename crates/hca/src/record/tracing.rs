//! Where the NIC's events go: nowhere, until the program or its user wants them. Off, it costs one relaxed load per
//! event site.

#[cfg(feature = "capture")]
use crate::record::recording::Recorder;
#[cfg(feature = "checks")]
use crate::record::why::Why;
use latch::Rank;
use latch::plain::Mutex;
use std::fmt;
#[cfg(feature = "capture")]
use std::sync::Arc;
#[cfg(any(feature = "capture", feature = "checks"))]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many NICs of this process have a sink.
static LISTENED_TO: AtomicU32 = AtomicU32::new(0);

/// How many of them are watched: see [`Tracing::is_watched`].
static WATCHED: AtomicU32 = AtomicU32::new(0);

/// Whether a sink listens to a NIC of this process: for callers that would have to prepare what they tell.
#[inline]
pub fn is_traced() -> bool {
    LISTENED_TO.load(Ordering::Relaxed) != 0
}

/// Whether more than a recording listens to a NIC of this process: a log, a checker, or a failure script, which may
/// strike calls.
#[inline]
pub fn is_watched() -> bool {
    WATCHED.load(Ordering::Relaxed) != 0
}

/// The NIC's end of the trace.
pub struct Tracing {
    on: AtomicBool,
    /// More listens than a recording.
    watched: AtomicBool,
    /// Whether there is a sink besides the checker, or a failure script runs.
    logged: AtomicBool,
    /// A failure script runs: it hears of everything, whether or not a sink does.
    kept_on: AtomicBool,
    sink: Mutex<Option<Box<dyn trace::Sink + Send>>>,
    /// The checker, whatever the sink is.
    #[cfg(feature = "checks")]
    why: OnceLock<Why>,
    /// The recording, whatever the sink is.
    #[cfg(feature = "capture")]
    recorder: OnceLock<Arc<Recorder>>,
}

impl Default for Tracing {
    fn default() -> Tracing {
        Tracing {
            on: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            logged: AtomicBool::new(false),
            kept_on: AtomicBool::new(false),
            sink: Mutex::new(Rank::Trace, None),
            #[cfg(feature = "checks")]
            why: OnceLock::new(),
            #[cfg(feature = "capture")]
            recorder: OnceLock::new(),
        }
    }
}

impl Tracing {
    /// Sends events to `sink` from now on; returns what they went to before.
    pub fn to(&self, sink: Option<Box<dyn trace::Sink + Send>>) -> Option<Box<dyn trace::Sink + Send>> {
        let mut held = self.sink.lock();
        self.logged.store(sink.is_some() || self.kept_on.load(Ordering::Relaxed), Ordering::Relaxed);
        self.switch();
        std::mem::replace(&mut held, sink)
    }

    /// From now on everything is told, whether or not a sink listens, and nothing takes a way past the trace.
    pub(crate) fn keep_on(&self) {
        let _held = self.sink.lock();
        self.kept_on.store(true, Ordering::Relaxed);
        self.logged.store(true, Ordering::Relaxed);
        self.switch();
    }

    /// Whether a sink listens.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Whether a reader may see the events one by one: then acknowledgements are not held back to travel with others.
    #[inline]
    pub(crate) fn is_logged(&self) -> bool {
        self.logged.load(Ordering::Relaxed)
    }

    /// Whether each packet is to be seen by itself, and nothing to go past the trace. A recording alone does not ask
    /// for that: it has what travels along with others, and what goes without packets, as events of their own.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn record(&self, event: &trace::Event) {
        #[cfg(feature = "capture")]
        if let Some(recorder) = self.recorder.get() {
            recorder.record(event);
        }
        if self.is_logged()
            && let Some(sink) = self.sink.lock().as_mut()
        {
            sink.record(event);
        }
        #[cfg(feature = "checks")]
        if let Some(why) = self.why.get() {
            why.record(event);
        }
    }

    /// Records an event for a thread that may hold any lock, as it may be in a signal handler: an event is lost if the
    /// sink is in use.
    #[cold]
    pub(crate) fn try_record(&self, event: &trace::Event) {
        #[cfg(feature = "capture")]
        if let Some(recorder) = self.recorder.get() {
            recorder.try_record(event);
        }
        if let Some(sink) = self.sink.try_lock().as_deref_mut().and_then(Option::as_mut) {
            sink.record(event);
        }
        #[cfg(feature = "checks")]
        if let Some(why) = self.why.get() {
            why.try_record(event);
        }
    }

    /// Switches it on or off after what listens has changed, under the lock of the sink.
    fn switch(&self) {
        let is_watched = self.is_logged() || self.is_checked();
        self.set(is_watched || self.is_recorded(), is_watched);
    }

    fn set(&self, is_on: bool, is_watched: bool) {
        for (state, count, is) in [(&self.on, &LISTENED_TO, is_on), (&self.watched, &WATCHED, is_watched)] {
            let was = state.swap(is, Ordering::Relaxed);
            count.fetch_add(is.into(), Ordering::Relaxed);
            count.fetch_sub(was.into(), Ordering::Relaxed);
        }
    }
}

/// The recording.
impl Tracing {
    /// Records every event from now on. There can be one recording.
    #[cfg(feature = "capture")]
    pub(crate) fn record_in(&self, recorder: Recorder) {
        let _held = self.sink.lock();
        if self.recorder.set(Arc::new(recorder)).is_ok() {
            self.switch();
        }
    }

    /// Records an event that is for the recording alone.
    #[inline]
    pub(crate) fn record_only(&self, event: impl FnOnce() -> trace::Event) {
        #[cfg(feature = "capture")]
        if let Some(recorder) = self.recorder.get() {
            recorder.record(&event());
        }
        #[cfg(not(feature = "capture"))]
        let _ = event;
    }

    /// The recording, if there is one.
    #[cfg(feature = "capture")]
    pub(crate) fn recorder(&self) -> Option<Arc<Recorder>> {
        self.recorder.get().cloned()
    }

    /// Where the calling thread posts work, for a recording that wants to know.
    #[cfg(feature = "capture")]
    pub(crate) fn posting_stack(&self) -> Option<(u64, trace::Text<160>)> {
        self.recorder.get().filter(|recorder| recorder.stacks).map(|_| super::posting_stack::look())
    }

    pub(crate) fn is_recorded(&self) -> bool {
        #[cfg(feature = "capture")]
        return self.recorder.get().is_some();
        #[cfg(not(feature = "capture"))]
        false
    }
}

/// The checker.
impl Tracing {
    /// Shows every event to this checker from now on. There can be one; returns whether it is this.
    #[cfg(feature = "checks")]
    pub(crate) fn check(&self, why: Why) -> bool {
        let _held = self.sink.lock();
        let is_first = self.why.set(why).is_ok();
        self.switch();
        is_first
    }

    #[cfg(feature = "checks")]
    pub(crate) fn why(&self) -> Option<&Why> {
        self.why.get()
    }

    /// Whether there is a checker.
    pub(crate) fn is_checked(&self) -> bool {
        #[cfg(feature = "checks")]
        return self.why.get().is_some();
        #[cfg(not(feature = "checks"))]
        false
    }

    /// How long until the checker wants to hear that time has passed.
    #[inline]
    pub(crate) fn until_tick(&self, _now: u64) -> Option<u64> {
        #[cfg(feature = "checks")]
        return self.why.get().and_then(|why| why.until_tick(_now));
        #[cfg(not(feature = "checks"))]
        None
    }

    /// A poll found nothing: there may be time for the checker, and for the recording.
    #[inline]
    pub(crate) fn catch_up(&self) {
        #[cfg(feature = "capture")]
        if let Some(recorder) = self.recorder.get() {
            recorder.catch_up();
        }
        #[cfg(feature = "checks")]
        if let Some(why) = self.why.get() {
            why.catch_up_if_idle();
        }
    }

    /// Polls that find nothing are told once in each round, so that a checker knows which queues are polled still. Never
    /// 0.
    pub(crate) fn poll_round(&self) -> u32 {
        #[cfg(feature = "checks")]
        return self.why.get().map_or(1, Why::round);
        #[cfg(not(feature = "checks"))]
        1
    }

    /// Time has passed.
    #[inline]
    pub(crate) fn tick(&self, _now: u64) {
        #[cfg(feature = "checks")]
        if let Some(why) = self.why.get() {
            why.tick(_now);
        }
    }

    /// The process ends.
    pub(crate) fn end(&self, _now: u64) {
        #[cfg(feature = "checks")]
        if let Some(why) = self.why.get() {
            why.end(_now);
        }
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        self.set(false, false);
    }
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Tracing(on)" } else { "Tracing(off)" })
    }
}
