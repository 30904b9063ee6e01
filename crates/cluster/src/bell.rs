//! What wakes a group beside its completion queue: requests, ends of connections, ticks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

/// Rung by whatever goes on in the background. A call that waits looks at one flag, not at all of that.
#[derive(Default)]
pub(crate) struct Bell {
    rung: AtomicBool,
    waiter: Mutex<Option<Waker>>,
}

impl Bell {
    /// Whether it was rung since the last look. If not, the waiter is woken when it is.
    pub fn was_rung(&self, waiter: &Waker) -> bool {
        if self.rung.swap(false, Ordering::SeqCst) {
            return true;
        }
        let mut kept = self.waiter.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waiter)) {
            *kept = Some(waiter.clone());
        }
        drop(kept);
        self.rung.swap(false, Ordering::SeqCst)
    }

    pub fn ring(&self) {
        self.rung.store(true, Ordering::SeqCst);
        let waiter = self.waiter.lock().unwrap_or_else(PoisonError::into_inner).take();
        waiter.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.ring();
    }
}
