//! The right of one thread to all locks. Its owner takes it by a store and a load, without a fence; every other thread
//! asks the kernel to put one into the owner's way (`membarrier`), takes the right away, and waits until the owner is
//! not using it. So the owner pays nothing, and the other threads pay, seldom.
//!
//! This file is run under a model checker, too, by `tests/suite/protocol.rs`, which puts other types behind
//! `crate::sync`.

use crate::sync::{AtomicU32, AtomicUsize, Ordering, heavy_fence, light_fence, pause};

/// No thread has the right.
const NO_OWNER: usize = 0;
/// It is being taken from its owner. No thread is called that.
const LEAVING_OWNER: usize = 1;

/// The thread that has the right, and whether it is in use. Threads are called by numbers above 1; 0, at first, is in
/// all of them.
#[derive(Debug)]
pub(crate) struct Bias {
    pub owner: AtomicUsize,
    /// The owner, while it uses its right. Written by the owner only.
    pub inside: AtomicUsize,
    /// Locks it holds by its right. Written by the owner only.
    pub held: AtomicU32,
}

impl Bias {
    /// Begins to use the right, if this thread has it and is not using it already.
    #[inline]
    pub fn enter(&self, me: usize) -> bool {
        if self.owner.load(Ordering::Relaxed) != me || self.inside.load(Ordering::Relaxed) == me {
            return false;
        }
        self.inside.store(me, Ordering::Relaxed);
        light_fence();
        if self.owner.load(Ordering::Relaxed) == me {
            return true;
        }
        self.inside.store(0, Ordering::Release);
        false
    }

    /// Ceases to use it. No lock may be held by it any more.
    #[inline]
    pub fn leave(&self) {
        if self.held.load(Ordering::Relaxed) != 0 {
            // Other threads would be let in while something is held: there is no way on from here.
            std::process::abort();
        }
        self.inside.store(0, Ordering::Release);
    }

    /// Whether this thread is using its right.
    #[inline]
    pub fn is_inside(&self, me: usize) -> bool {
        self.inside.load(Ordering::Relaxed) == me
    }

    /// A lock was taken by right.
    #[inline]
    pub fn hold(&self) {
        self.held.store(self.held.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A lock that was taken by right was let go.
    #[inline]
    pub fn let_go(&self) {
        self.held.store(self.held.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }

    /// Waits until no other thread uses a right to all locks, and takes it away. This thread must have said before that
    /// it is about to hold one, where `others_hold` of [`grant`](Bias::grant) sees it, and must not be inside.
    #[inline]
    pub fn admit(&self, me: usize) {
        light_fence();
        let owner = self.owner.load(Ordering::Acquire);
        if owner != NO_OWNER && owner != me {
            self.revoke(me);
        }
    }

    #[cold]
    fn revoke(&self, me: usize) {
        for times in 0.. {
            let owner = self.owner.load(Ordering::Acquire);
            if owner == NO_OWNER || owner == me {
                return;
            }
            if owner != LEAVING_OWNER
                && self.owner.compare_exchange(owner, LEAVING_OWNER, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                // Either the owner sees now that it is no longer, or it is seen to be inside.
                heavy_fence();
                for times in 0.. {
                    if self.inside.load(Ordering::Acquire) == 0 {
                        break;
                    }
                    pause(times);
                }
                self.owner.store(NO_OWNER, Ordering::Release);
                return;
            }
            pause(times);
        }
    }

    /// Gives this thread the right, if no thread has it and none holds a lock.
    pub fn grant(&self, me: usize, others_hold: impl FnOnce() -> bool) -> bool {
        if self.owner.compare_exchange(NO_OWNER, me, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return false;
        }
        // A thread that is about to hold a lock is seen by `others_hold`, or sees that this thread has the right.
        heavy_fence();
        if !others_hold() {
            return true;
        }
        // It may have been taken away already.
        let _ = self.owner.compare_exchange(me, NO_OWNER, Ordering::SeqCst, Ordering::Relaxed);
        false
    }

    /// No thread has it, in a process that has just been forked: the parent's threads are not there.
    pub fn forget(&self) {
        self.owner.store(NO_OWNER, Ordering::Relaxed);
        self.inside.store(0, Ordering::Relaxed);
        self.held.store(0, Ordering::Relaxed);
    }
}
