//! The bell: how a thread that has something for the engine wakes it, and how the engine goes to sleep without missing
//! anything. One word says what the engine does: it is awake and will look anyway, it sleeps and must be rung for, or
//! it leaves the driving to a program that polls. The publishing thread publishes, then reads the word; the engine
//! writes the word, then looks once more before it sleeps; a full fence on both sides makes it impossible that both
//! miss. A burst rings once: the first thread to ring takes the word back.

use crate::progress::sync::{AtomicU32, Ordering, fence};

/// Awake: it will look before it sleeps.
const STATE_AWAKE: u32 = 0;
/// Asleep: ring.
const STATE_ASLEEP: u32 = 1;
/// The program polls: ring only for what must not wait until it polls again.
const STATE_LEASED: u32 = 2;

/// What actually wakes a sleeper: an eventfd, or in the model something that can be checked.
pub(crate) trait WakeSignal {
    /// Wakes the sleeper, or makes its next sleep end at once.
    fn strike(&self);
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Bell<C> {
    word: AtomicU32,
    signal: C,
}

impl<C: WakeSignal> Bell<C> {
    pub fn new(signal: C) -> Bell<C> {
        Bell { word: AtomicU32::new(STATE_AWAKE), signal }
    }

    pub fn signal(&self) -> &C {
        &self.signal
    }

    /// Something was published that can wait until the program polls again, if it polls. Returns whether the bell was
    /// struck.
    pub fn ring(&self) -> bool {
        // Between what was published and the word: pairs with the fence of `prepare_sleep`.
        fence(Ordering::SeqCst);
        self.word.load(Ordering::Relaxed) == STATE_ASLEEP && self.strike_if(STATE_ASLEEP)
    }

    /// Something was published that only the engine will see to, though a polling program drives.
    pub fn ring_even_if_leased(&self) -> bool {
        fence(Ordering::SeqCst);
        match self.word.load(Ordering::Relaxed) {
            STATE_AWAKE => false,
            word => self.strike_if(word),
        }
    }

    /// The program that drove will do so no longer. An engine that sleeps on everything need not be rung for that.
    pub fn ring_if_leased(&self) -> bool {
        fence(Ordering::SeqCst);
        self.word.load(Ordering::Relaxed) == STATE_LEASED && self.strike_if(STATE_LEASED)
    }

    fn strike_if(&self, word: u32) -> bool {
        // The thread that takes the word back strikes; the other threads of the burst need not.
        let first = self.word.compare_exchange(word, STATE_AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if first {
            self.signal.strike();
        }
        first
    }

    /// The sleeper is about to sleep. It must look for work once more after this and before it sleeps.
    pub fn prepare_sleep(&self) {
        self.word.store(STATE_ASLEEP, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The sleeper leaves the driving to a program that polls, and sleeps for a short time whatever happens. It must
    /// look once more for what ends a lease after this and before it sleeps.
    pub fn prepare_sleep_leased(&self) {
        self.word.store(STATE_LEASED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The sleeper is awake and will look. Returns whether another thread rang, or is about to.
    pub fn wake(&self) -> bool {
        self.word.swap(STATE_AWAKE, Ordering::AcqRel) == STATE_AWAKE
    }
}
