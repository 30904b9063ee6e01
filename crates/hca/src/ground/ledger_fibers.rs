//! The fibers as which ThreadSanitizer sees queue pairs: one for what a queue pair does for its own sends, one for what
//! lands in its receives, one for what its peer does.

use latch::sanitizer::{Fiber, Step, Token};
use latch::{Mutex, Rank};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use wire::Qpn;

/// Fibers at a time, three for a queue pair: the runtime has room for some thousand threads. Queue pairs beyond share
/// those of [`OTHERS`].
const MAX_OWNERS: usize = 3 * 128;
const OTHERS: Qpn = Qpn::new(0);

/// How long a thread waits for another one that tells of what has landed. That one may be in a function of the program,
/// which waits for this thread.
const TELLER_PATIENCE: Duration = Duration::from_secs(1);

/// What a fiber is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Side {
    Sends,
    Receives,
    Peers,
}

impl Side {
    const fn name(self) -> &'static str {
        match self {
            Side::Sends => "its own sends",
            Side::Receives => "its receives",
            Side::Peers => "its peer's work",
        }
    }
}

#[derive(Debug, Default)]
struct Owned {
    /// Those that run nowhere now. More than one only if threads, or a signal handler, came at once.
    idle: Vec<Fiber>,
    /// Orders what one does after what another did.
    chain: std::sync::Arc<Token>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Fibers {
    owned: Mutex<HashMap<(Qpn, Side), Owned>>,
    /// The thread that tells of what has landed; 0 for none.
    teller: AtomicU32,
}

impl Default for Fibers {
    fn default() -> Fibers {
        Fibers { owned: Mutex::new(Rank::WorkFibers, HashMap::new()), teller: AtomicU32::new(0) }
    }
}

impl Fibers {
    /// Does these steps as the fiber of a queue pair. No lock is held meanwhile, since a report calls functions of the
    /// program.
    pub fn run<'a>(&self, qpn: Qpn, side: Side, steps: impl IntoIterator<Item = Step<'a>>) {
        let (owner, idle, chain) = {
            let mut owned = self.owned.lock();
            let owner = if owned.len() < MAX_OWNERS || owned.contains_key(&(qpn, side)) { qpn } else { OTHERS };
            let of_owner = owned.entry((owner, side)).or_default();
            (owner, of_owner.idle.pop(), std::sync::Arc::clone(&of_owner.chain))
        };
        let named = || Fiber::create(&format!("NIC, queue pair {:#x}: {}", owner.value(), side.name()));
        let Some(mut fiber) = idle.or_else(named) else { return };
        fiber.run([Step::Acquire(&chain)]);
        fiber.run(steps);
        fiber.run([Step::Release(&chain)]);
        if let Some(of_owner) = self.owned.lock().get_mut(&(owner, side)) {
            of_owner.idle.push(fiber);
        }
    }

    /// A queue pair is gone.
    pub fn forget(&self, qpn: Qpn) {
        let sides = [Side::Sends, Side::Receives, Side::Peers];
        let gone: Vec<Owned> = {
            let mut owned = self.owned.lock();
            sides.into_iter().filter_map(|side| owned.remove(&(qpn, side))).collect()
        };
        drop(gone);
    }

    /// Has one thread after the other tell of what has landed. A thread that is at it already leaves it at that.
    pub fn one_after_another(&self, tell: impl FnOnce()) {
        let me = host::thread::number();
        let since = Instant::now();
        while let Err(other) = self.teller.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            if other == me || since.elapsed() > TELLER_PATIENCE {
                return;
            }
            std::thread::yield_now();
        }
        tell();
        self.teller.store(0, Ordering::Release);
    }
}
