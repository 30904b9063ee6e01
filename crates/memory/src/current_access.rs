//! The access that a thread is in the middle of, for as long as a copy takes. Most accesses are counted here, on a
//! cache line of the thread's own, and not at the gate of their slot: threads that use one region would pass the gate's
//! line to and fro, twice for each message. Run under a model checker together with the gate, by
//! `tests/suite/protocol.rs`.

use crate::sync::{AtomicU32, Ordering, fence, fence_after_exchange, pause};

/// The key that the threads of one stripe use; 0 for none. One access at a time: another one is counted at the gate.
#[derive(Debug)]
pub(crate) struct CurrentAccess(AtomicU32);

impl CurrentAccess {
    pub(crate) fn new() -> CurrentAccess {
        CurrentAccess(AtomicU32::new(0))
    }

    /// Says that this key is used from now on, unless another one is. The gate must be looked at afterwards: a thread
    /// that closes it either sees the key here, or is seen there.
    #[inline]
    pub(crate) fn begin(&self, key: u32) -> bool {
        let free = self.0.load(Ordering::Relaxed) == 0
            && self.0.compare_exchange(0, key, Ordering::Acquire, Ordering::Relaxed).is_ok();
        fence_after_exchange();
        free
    }

    /// It is not any more.
    #[inline]
    pub(crate) fn end(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Waits until this key is not used, in a thread that has closed its gate. A gate may be opened anew under the same
    /// key meanwhile, by which this waits for accesses that it need not wait for.
    pub(crate) fn wait_until_over<'a>(all: impl Iterator<Item = &'a CurrentAccess>, key: u32) {
        // Pairs with the one in `begin`.
        fence(Ordering::SeqCst);
        for access in all {
            for times in 0.. {
                if access.0.load(Ordering::Acquire) != key {
                    break;
                }
                pause(times);
            }
        }
    }
}
