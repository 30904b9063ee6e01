//! Threads of the NIC's own that call the GPU's driver. A call of the program may wait inside the driver until kernels
//! have ended, and the driver does nothing else for the process meanwhile; if such a kernel waits for the NIC, each
//! waits for the other. So no thread of the program, and none that has a queue pair's lock, waits in the driver: it
//! waits here, for so long and no longer. What a call needs it owns, so that it may be left alone in the middle.
//! It takes no lock of [`latch`] but plain ones: a thread that waits for it may have the right to all others.

use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use latch::PerProcess;

use super::driver::DriverError;
use wire::refuse_if;

/// The driver's number for a call that took too long.
const TIMEOUT_ERROR: DriverError = DriverError(909);

/// As many calls may be under way at once.
const MAX_CALLS_UNDER_WAY: usize = 8;

/// For so long a thread looks for the next call before it sleeps, and a caller for its answer.
const SPIN_TIME: Duration = Duration::from_micros(50);

/// How long a call may take before the work that needs it fails, in nanoseconds: longer than kernels run that do not
/// wait for the NIC. While an earlier call is stuck, others get a part of it.
static CALL_TIMEOUT_NANOS: AtomicU64 = AtomicU64::new(30_000_000_000);
const PART_WHILE_STUCK: u32 = 10;

/// How many calls took too long and have not come back.
static STUCK_CALLS: AtomicU32 = AtomicU32::new(0);

/// Sets how long the driver may take for a copy before the work that needs it fails; 30 s otherwise.
pub fn set_gpu_patience(patience: Duration) {
    CALL_TIMEOUT_NANOS.store(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread and the call that it is to make.
struct Lane {
    taken: AtomicBool,
    started: AtomicBool,
    job: AtomicPtr<Job>,
    /// 1 while it sleeps.
    asleep: AtomicU32,
}

static LANES: PerProcess<[Lane; MAX_CALLS_UNDER_WAY]> = PerProcess::new();

/// What came of a call: 1 in the word when it is there.
struct CallAnswer<R> {
    word: AtomicU32,
    abandoned: AtomicBool,
    value: Mutex<Option<Result<R, DriverError>>>,
}

/// Whether a caller still waits.
#[derive(Debug)]
pub(super) struct Caller<'a>(&'a AtomicBool);

impl Caller<'_> {
    /// An error if it does not: then nothing more is to be done for it.
    pub fn waits(&self) -> Result<(), DriverError> {
        if self.0.load(Ordering::Acquire) { Err(TIMEOUT_ERROR) } else { Ok(()) }
    }
}

/// A call of the driver that is under way. What becomes of it is asked for once.
#[must_use]
pub(super) struct Started<R> {
    answer: Arc<CallAnswer<R>>,
    begun: Instant,
    patience: Duration,
}

/// Calls the driver, and waits for the answer as long as patience lasts.
pub(super) fn run<R: Send + 'static>(
    call: impl FnOnce(&Caller<'_>) -> Result<R, DriverError> + Send + 'static,
) -> Result<R, DriverError> {
    start(call)?.wait()
}

/// Begins a call of the driver.
pub(super) fn start<R: Send + 'static>(
    call: impl FnOnce(&Caller<'_>) -> Result<R, DriverError> + Send + 'static,
) -> Result<Started<R>, DriverError> {
    let begun = Instant::now();
    let mut patience = Duration::from_nanos(CALL_TIMEOUT_NANOS.load(Ordering::Relaxed));
    if STUCK_CALLS.load(Ordering::Relaxed) > 0 {
        patience /= PART_WHILE_STUCK;
    }
    let lane = claim(begun, patience)?;
    let (word, abandoned, value) = (AtomicU32::new(0), AtomicBool::new(false), Mutex::new(None));
    let answer = Arc::new(CallAnswer { word, abandoned, value });
    let told = Arc::clone(&answer);
    let job: Job = Box::new(move || {
        let result = call(&Caller(&told.abandoned));
        *told.value.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        lane.taken.store(false, Ordering::Release);
        if told.abandoned.swap(true, Ordering::AcqRel) {
            STUCK_CALLS.fetch_sub(1, Ordering::Relaxed);
        }
        told.word.store(1, Ordering::SeqCst);
        wake(&told.word);
    });
    lane.give(job);
    Ok(Started { answer, begun, patience })
}

impl<R> Started<R> {
    /// The answer, waited for as long as patience lasts.
    pub fn wait(self) -> Result<R, DriverError> {
        let Started { answer, begun, patience } = self;
        while answer.word.load(Ordering::SeqCst) == 0 {
            let waited = begun.elapsed();
            if waited < SPIN_TIME {
                std::hint::spin_loop();
            } else if waited < patience {
                wait(&answer.word, 0, Some(patience - waited));
            } else if !answer.abandoned.swap(true, Ordering::AcqRel) {
                STUCK_CALLS.fetch_add(1, Ordering::Relaxed);
                return Err(TIMEOUT_ERROR);
            }
        }
        let mut value = answer.value.lock().unwrap_or_else(PoisonError::into_inner);
        value.take().unwrap_or(Err(TIMEOUT_ERROR))
    }
}

/// Calls the driver some time soon. The caller does not wait.
pub(super) fn run_later(call: impl FnOnce() + Send + 'static) {
    let Ok(lane) = claim(Instant::now(), Duration::ZERO) else { return call() };
    lane.give(Box::new(move || {
        call();
        lane.taken.store(false, Ordering::Release);
    }));
}

/// A lane that makes no call.
fn claim(begun: Instant, patience: Duration) -> Result<&'static Lane, DriverError> {
    let lanes = LANES.get_or_make(|| std::array::from_fn(|_| Lane::new()));
    loop {
        let free =
            |lane: &&Lane| lane.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if let Some(lane) = lanes.iter().find(free) {
            return Ok(lane);
        }
        refuse_if!(begun.elapsed() >= patience, TIMEOUT_ERROR);
        std::thread::yield_now();
    }
}

impl Lane {
    fn new() -> Lane {
        let (taken, started, asleep) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU32::new(0));
        Lane { taken, started, job: AtomicPtr::new(null_mut()), asleep }
    }

    /// Has its thread make a call. A process that may have no more threads calls by itself.
    fn give(&'static self, job: Job) {
        if !self.started.load(Ordering::Relaxed) && self.start().is_err() {
            return job();
        }
        self.job.store(Box::into_raw(Box::new(job)), Ordering::SeqCst);
        if self.asleep.swap(0, Ordering::SeqCst) == 1 {
            wake(&self.asleep);
        }
    }

    /// Starts the thread, which the program's signals do not reach.
    fn start(&'static self) -> std::io::Result<()> {
        // SAFETY: sets of signals of our own; the mask of this thread is put back below.
        let before = unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            before
        };
        let started = std::thread::Builder::new().name("ubiverbs-gpu".into()).spawn(move || {
            let _unjudged = latch::sanitizer::begin_thread();
            self.serve();
        });
        // SAFETY: the mask from above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut()) };
        started.map(|_| self.started.store(true, Ordering::Relaxed))
    }

    fn serve(&self) {
        let mut idle = Instant::now();
        loop {
            let job = self.job.swap(null_mut(), Ordering::SeqCst);
            if !job.is_null() {
                // SAFETY: leaked by the caller for this thread.
                let job = unsafe { Box::from_raw(job) };
                job();
                idle = Instant::now();
            } else if idle.elapsed() < SPIN_TIME {
                std::hint::spin_loop();
            } else {
                self.asleep.store(1, Ordering::SeqCst);
                if self.job.load(Ordering::SeqCst).is_null() {
                    wait(&self.asleep, 1, None);
                }
                self.asleep.store(0, Ordering::SeqCst);
            }
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("taken", &self.taken).finish_non_exhaustive()
    }
}

/// Sleeps while the word has this value, or until it is woken, or for so long.
fn wait(word: &AtomicU32, value: u32, limit: Option<Duration>) {
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a live word; the kernel reads the time, if there is one.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, value, limit) };
}

fn wake(word: &AtomicU32) {
    // SAFETY: a live word, and numbers.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
}
