//! What went wrong, who says so, and a thread that looks whether anything moves at all.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use crate::options::Options;

/// So long may nothing move.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// How often threads that await something look around all the same.
const TICK: Duration = Duration::from_millis(20);

/// Why a run ends before its time.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// A check failed.
    Wrong(String),
    /// Something failed that the death of the peer would explain.
    Broken(String),
    /// The control channel broke off.
    PeerGone(String),
    /// It could not be set up.
    Setup(String),
}

impl Trouble {
    pub fn wrong(what: impl fmt::Display) -> Trouble {
        Trouble::Wrong(what.to_string())
    }

    pub fn setup(what: &str, why: impl fmt::Display) -> Trouble {
        Trouble::Setup(format!("{what}: {why}"))
    }
}

pub type Result<T> = std::result::Result<T, Trouble>;

/// Ends the program because a check failed.
pub fn fail(options: &Options, what: &str) -> ! {
    println!("soak-rust: FAIL: seed {} {}: {what}", options.seed, options.role.name());
    std::process::exit(1);
}

/// What all threads do, as far as others want to know.
#[derive(Debug, Default)]
pub struct Watch {
    beats: AtomicU64,
    pub operations: AtomicU64,
    pub bytes: AtomicU64,
    doing: Mutex<Vec<String>>,
    waiting: Mutex<Vec<Waker>>,
}

impl Watch {
    /// Looks on from a thread of its own; when nothing has moved for a minute it says what everybody was doing, and
    /// ends the program.
    pub fn start(options: &Options) -> Arc<Watch> {
        let watch = Arc::new(Watch::default());
        let (options, seen) = (options.clone(), Arc::clone(&watch));
        thread::spawn(move || {
            let mut last = (0, Instant::now());
            loop {
                // A clock: those who await something look around at every tick.
                thread::sleep(TICK);
                let waiting = std::mem::take(&mut *lock(&seen.waiting));
                waiting.into_iter().for_each(Waker::wake);
                let beats = seen.beats.load(Ordering::Relaxed);
                if beats != last.0 {
                    last = (beats, Instant::now());
                } else if last.1.elapsed() > STALL_TIMEOUT {
                    let doing = lock(&seen.doing).join("; ");
                    fail(&options, &format!("nothing has moved for {STALL_TIMEOUT:?}: {doing}"));
                }
            }
        });
        watch
    }

    /// Something moved.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Says what thread `who` does now.
    pub fn doing(&self, who: usize, what: String) {
        let mut doing = lock(&self.doing);
        if doing.len() <= who {
            doing.resize(who + 1, String::new());
        }
        doing[who] = what;
    }

    pub fn count(&self, bytes: usize) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.beat();
    }

    /// Wakes it at the next tick.
    pub fn tick(&self, waker: &Waker) {
        lock(&self.waiting).push(waker.clone());
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
