//! Findings while the program runs: a checker listens to the trace, and what it finds is told at once, on standard
//! error and to listeners that collect findings. Each is told once and counted from then on; at the end of the process
//! comes a summary.
//!
//! Findings are told under the lock of the checker. Telling takes no other lock of ours and calls nothing of the
//! program's, so it may happen wherever an event may.
//!
//! What happens with every message is only written down at first: the checker sees it, in order, when a poll finds
//! nothing to do, before anything that is not of every day, or when much has gathered. While buffers are compared, work
//! is looked at when it is posted, when it completes and when that is polled; the witness says when there is time for
//! that.

mod spool;
mod summary;

use checks::{Checker, Finding, Number, Settings, Severity, Witness};
use host::memory_faults;
use host::stamp::Stamp;
use host::standard_error::{StandardError, say};
use latch::Rank;
use latch::plain::Mutex;
use spool::Spool;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use trace::{Call, Event, Kind, Pieces};

use crate::tuning::{CHECK_TICK, CHECK_TICK_MAX, CHECK_TICKS_END, nanos};

/// No tick is due.
const NO_TICK: u64 = u64::MAX;

/// How findings look on standard error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Format {
    /// Sentences.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
    /// Not at all: the program takes them itself.
    Silent,
}

/// The checker of a NIC, and where its findings go.
pub(crate) struct Why {
    /// When the checker wants to hear that time has passed; read without the lock.
    next_tick: AtomicU64,
    /// How many ticks there were.
    ticks: AtomicU32,
    /// Wakes the thread that ticks.
    wake: Box<dyn Fn() + Send + Sync>,
    inside: Mutex<Inside>,
    /// What happened and was not shown to the checker yet.
    queue: Mutex<Vec<Event>>,
    /// How much is in it, about; read without the lock.
    behind: AtomicUsize,
    /// How many polls in a row found nothing.
    idle: AtomicU32,
    /// Whether buffers are compared now: then they are looked at when work is posted and when it completes.
    compares: AtomicBool,
}

/// So many events may gather.
const MAX_QUEUED_EVENTS: usize = 512;

/// So many are looked at by the first poll that finds nothing.
const MAX_EVENTS_PER_POLL: usize = 256;

/// So many polls in a row find nothing where a program waits for longer than a message takes.
const IDLE_POLLS: u32 = 64;

/// Whether an event comes with every message and tells of no trouble.
fn is_usual(event: &Event) -> bool {
    match &event.kind {
        Kind::WorkPosted { .. } | Kind::PacketSent { retransmit: false, .. } | Kind::PacketReceived { .. } => true,
        Kind::Completed { failure, .. } => failure.is_none(),
        Kind::Called { call, .. } => {
            matches!(call, Call::PostSend { .. } | Call::PostReceive { .. } | Call::Poll { .. } | Call::Polled { .. })
        }
        _ => false,
    }
}

/// A witness of what was before: what a buffer held then cannot be asked any more.
struct Late<'a>(&'a mut dyn Witness);

impl Witness for Late<'_> {
    fn digest(&mut self, _pieces: &Pieces) -> Option<u64> {
        None
    }

    fn is_mapped(&mut self, address: u64, length: u64) -> Option<bool> {
        self.0.is_mapped(address, length)
    }

    fn is_on_stack(&mut self, address: u64, length: u64) -> Option<bool> {
        self.0.is_on_stack(address, length)
    }
}

struct Inside {
    checker: Checker,
    witness: Box<dyn Witness + Send>,
    teller: Teller,
    /// The time of the last event.
    last: u64,
    ended: bool,
    /// Room for events, to be used again.
    spare: Vec<Event>,
}

impl Why {
    /// A checker as the environment or the program asks for it.
    pub fn new(asked: Asked, witness: Box<dyn Witness + Send>, wake: impl Fn() + Send + Sync + 'static) -> Why {
        let Asked { settings, format, spool, listeners, recorder } = asked;
        let spool = spool.and_then(|path| Spool::open(&path));
        let teller = Teller {
            format,
            spool,
            listeners,
            recorder,
            at: 0,
            validates: settings.validate,
            events: 0,
            printed: BTreeMap::new(),
        };
        let inside =
            Inside { checker: Checker::new(settings), witness, teller, last: 0, ended: false, spare: Vec::new() };
        Why {
            next_tick: AtomicU64::new(nanos(CHECK_TICK)),
            ticks: AtomicU32::new(0),
            wake: Box::new(wake),
            inside: Mutex::new(Rank::Trace, inside),
            queue: Mutex::new(Rank::TraceQueue, Vec::new()),
            behind: AtomicUsize::new(0),
            idle: AtomicU32::new(0),
            compares: AtomicBool::new(true),
        }
    }

    /// Takes an event.
    pub fn record(&self, event: &Event) {
        if !checks::is_of_use(event) {
            return;
        }
        if is_usual(event) && !self.is_compared(event) {
            let mut queue = self.queue.lock();
            queue.push(*event);
            let length = queue.len();
            drop(queue);
            self.behind.store(length, Ordering::Relaxed);
            self.idle.store(0, Ordering::Relaxed);
            if length >= MAX_QUEUED_EVENTS {
                self.catch_up();
            }
        } else {
            let mut inside = self.inside.lock();
            self.show_queue(&mut inside);
            inside.record(event);
            self.compares.store(inside.witness.may_look(), Ordering::Relaxed);
        }
        self.expect_tick(event.at);
    }

    /// Whether the buffers of work are looked at because of this event.
    fn is_compared(&self, event: &Event) -> bool {
        let looks = matches!(
            event.kind,
            Kind::Called { call: Call::PostSend { .. } | Call::PostReceive { .. } | Call::Polled { .. }, .. }
                | Kind::WorkPosted { .. }
                | Kind::Completed { .. }
        );
        looks && self.compares.load(Ordering::Relaxed)
    }

    /// A poll found nothing: if there is time, or much has gathered, the checker is shown it. Much at once costs less
    /// than a little after each message.
    #[inline]
    pub fn catch_up_if_idle(&self) {
        let behind = self.behind.load(Ordering::Relaxed);
        if behind > 0 && (self.idle.fetch_add(1, Ordering::Relaxed) >= IDLE_POLLS || behind >= MAX_EVENTS_PER_POLL) {
            self.catch_up();
        }
    }

    #[cold]
    fn catch_up(&self) {
        let mut inside = self.inside.lock();
        self.show_queue(&mut inside);
        self.compares.store(inside.witness.may_look(), Ordering::Relaxed);
    }

    /// Under the lock of the checker, so that two threads do not mix the order up.
    fn show_queue(&self, inside: &mut Inside) {
        let mut events = std::mem::take(&mut inside.spare);
        std::mem::swap(&mut *self.queue.lock(), &mut events);
        self.behind.store(0, Ordering::Relaxed);
        events.iter().for_each(|event| inside.record_late(event));
        events.clear();
        inside.spare = events;
    }

    /// Records an event for a thread that may hold any lock: the event is lost if the checker is in use. The end of the
    /// process, which may come in a signal handler in the middle of anything, is told by the engine.
    pub fn try_record(&self, event: &Event) {
        if !matches!(event.kind, Kind::Called { call: Call::Exit {}, .. })
            && let Some(mut inside) = self.inside.try_lock()
        {
            // What has gathered is shown later, if the thread holds that lock itself.
            if let Some(mut queue) = self.queue.try_lock() {
                let events = std::mem::take(&mut *queue);
                drop(queue);
                events.iter().for_each(|event| inside.record_late(event));
            }
            inside.record(event);
        }
    }

    /// Something happened, so what does not happen after it is to be noticed.
    fn expect_tick(&self, now: u64) {
        let soon = now.saturating_add(nanos(CHECK_TICK));
        let next = self.next_tick.load(Ordering::Relaxed);
        // A tick that is a little late will do; one that is far away, or never, is brought near.
        if next > soon.saturating_add(nanos(CHECK_TICK)) {
            self.next_tick.store(soon, Ordering::Relaxed);
            (self.wake)();
        }
    }

    /// The time between two ticks, by a number that is not 0.
    pub fn round(&self) -> u32 {
        self.ticks.load(Ordering::Relaxed) | 1 << 31
    }

    /// How long until a tick is due.
    pub fn until_tick(&self, now: u64) -> Option<u64> {
        match self.next_tick.load(Ordering::Relaxed) {
            NO_TICK => None,
            next => Some(next.saturating_sub(now)),
        }
    }

    /// Time has passed. The less happens the rarer are ticks, until there are none: a process that does nothing sleeps.
    pub fn tick(&self, now: u64) {
        if self.next_tick.load(Ordering::Relaxed) > now {
            return;
        }
        let mut inside = self.inside.lock();
        self.show_queue(&mut inside);
        let idle = now.saturating_sub(inside.last);
        let next = if idle > nanos(CHECK_TICKS_END) {
            NO_TICK
        } else {
            let slower = idle / 8;
            now.saturating_add(slower.clamp(nanos(CHECK_TICK), nanos(CHECK_TICK_MAX)))
        };
        self.next_tick.store(next, Ordering::Relaxed);
        inside.tick(now);
        self.ticks.fetch_add(1, Ordering::Relaxed);
    }

    /// The program ends.
    pub fn end(&self, now: u64) {
        let mut inside = self.inside.lock();
        self.show_queue(&mut inside);
        inside.end(now);
    }

    /// Sends findings to `listener`, too.
    pub fn add_listener(&self, listener: Sender<Finding>) {
        self.inside.lock().teller.listeners.push(listener);
    }
}

/// A NIC may be gone before its process is.
impl Drop for Inside {
    fn drop(&mut self) {
        self.end(self.last);
    }
}

impl Inside {
    fn record(&mut self, event: &Event) {
        if let Kind::Called { call, .. } = &event.kind {
            note_memory(call);
        }
        let Inside { checker, witness, teller, last, .. } = self;
        (*last, teller.at) = (event.at, event.at);
        teller.events += 1;
        checker.observe(event, &mut **witness, &mut |finding| teller.tell(finding));
    }

    /// Takes an event of which some time has passed since it happened.
    fn record_late(&mut self, event: &Event) {
        let Inside { checker, witness, teller, last, .. } = self;
        (*last, teller.at) = (event.at, event.at);
        teller.events += 1;
        checker.observe(event, &mut Late(&mut **witness), &mut |finding| teller.tell(finding));
    }

    fn tick(&mut self, now: u64) {
        let Inside { checker, witness, teller, .. } = self;
        teller.at = now;
        checker.tick(now, &mut **witness, &mut |finding| teller.tell(finding));
    }

    fn end(&mut self, now: u64) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.record(&Event { at: now, qpn: None, kind: Kind::Called { thread: 0, call: Call::Exit {} } });
        let Inside { checker, witness, teller, .. } = self;
        checker.finish(now, &mut **witness, &mut |finding| teller.tell(finding));
        teller.summarize(checker);
    }
}

/// What a fault in registered memory will be told by. Under the lock of the checker.
fn note_memory(call: &Call) {
    match *call {
        Call::RegisterMemory { key, address, length, .. } => memory_faults::note(key.value(), address, length),
        Call::ReregisterMemory { old_key, key, address, length, .. } => {
            memory_faults::forget(old_key.value());
            memory_faults::note(key.value(), address, length);
        }
        Call::DeregisterMemory { key } => memory_faults::forget(key.value()),
        _ => {}
    }
}

/// The recording that findings go to, too.
#[cfg(feature = "capture")]
pub(crate) type FindingRecorder = Option<std::sync::Arc<crate::record::recording::Recorder>>;

/// There is none.
#[cfg(not(feature = "capture"))]
pub(crate) type FindingRecorder = ();

/// Where findings go.
struct Teller {
    format: Format,
    spool: Option<Spool>,
    listeners: Vec<Sender<Finding>>,
    #[cfg_attr(not(feature = "capture"), expect(dead_code, reason = "there is none"))]
    recorder: FindingRecorder,
    /// The time of what findings come from.
    at: u64,
    /// Whether the program is checked against rules: then it wants to hear that all is well.
    validates: bool,
    /// How many events there were.
    events: u64,
    /// How many findings of each rule were printed as sentences.
    printed: BTreeMap<Number, u32>,
}

/// So many findings of one rule, each about another object, are printed as sentences; the others are counted.
const PRINTED_PER_RULE: u32 = 3;

/// So many errors of one rule are printed as sentences.
const PRINTED_ERRORS_PER_RULE: u32 = 10;

impl Teller {
    fn tell(&mut self, finding: Finding) {
        let mut stamp = Stamp::now();
        if finding.thread != 0 {
            stamp.thread = finding.thread;
        }
        let json = || finding.json(Some(outside(&stamp)));
        #[cfg(feature = "capture")]
        if let Some(recorder) = &self.recorder {
            recorder.finding(self.at, &json());
        }
        match self.format {
            Format::Text => match self.printing(&finding) {
                Printing::Whole => say(format_args!("{stamp} {finding}")),
                Printing::LastHint => say(format_args!(
                    "{stamp} more of {} are counted, not printed: see the summary; --check-report has them all",
                    finding.rule
                )),
                Printing::Counted => {}
            },
            Format::Json => line(json()),
            Format::Silent => {}
        }
        if let Some(spool) = &mut self.spool {
            spool.write(json());
        }
        self.listeners.retain(|listener| listener.send(finding.clone()).is_ok());
    }

    /// How much of a finding is printed: enough of each rule to understand it, and not a page of the same.
    fn printing(&mut self, finding: &Finding) -> Printing {
        let printed = self.printed.entry(finding.rule).or_default();
        *printed = printed.saturating_add(1);
        let most = if finding.severity == Severity::Error { PRINTED_ERRORS_PER_RULE } else { PRINTED_PER_RULE };
        match *printed {
            number if number <= most => Printing::Whole,
            number if number == most + 1 => Printing::LastHint,
            _ => Printing::Counted,
        }
    }

    fn summarize(&mut self, checker: &Checker) {
        let stamp = Stamp::now();
        let json = || summary::json(checker, outside(&stamp), self.events);
        match self.format {
            Format::Text => {
                if let Some(text) = summary::text(checker, self.validates, self.events) {
                    say(format_args!("{stamp} {text}"));
                }
            }
            Format::Json => line(json()),
            Format::Silent => {}
        }
        let json = self.spool.is_some().then(json);
        if let (Some(spool), Some(json)) = (&mut self.spool, json) {
            spool.write(json);
        }
    }
}

/// What is printed of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Printing {
    /// All its sentences.
    Whole,
    /// That it and those to come are counted only.
    LastHint,
    /// Nothing.
    Counted,
}

/// A line of JSON on standard error, in one write.
fn line(mut json: String) {
    json.push('\n');
    // If standard error is closed no reader can be told.
    let _ = StandardError.write_all(json.as_bytes());
}

/// What the crate of rules calls a stamp.
fn outside(stamp: &Stamp) -> checks::Stamp {
    checks::Stamp { wall: stamp.wall.as_nanos() as u64, process: stamp.process, thread: stamp.thread }
}

impl fmt::Debug for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Why")
    }
}

/// A checker that is wanted.
#[derive(Debug)]
pub(crate) struct Asked {
    pub settings: Settings,
    pub format: Format,
    /// The file that findings are appended to.
    pub spool: Option<PathBuf>,
    pub listeners: Vec<Sender<Finding>>,
    pub recorder: FindingRecorder,
}

impl Asked {
    /// What a Rust program asks for in code.
    pub fn in_code(settings: Settings, listener: Sender<Finding>) -> Asked {
        Asked {
            settings,
            format: Format::Silent,
            spool: None,
            listeners: vec![listener],
            recorder: FindingRecorder::default(),
        }
    }
}

#[cfg(test)]
mod tests;
