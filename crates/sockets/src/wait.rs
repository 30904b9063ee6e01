//! Waiting until a socket has changed. A thread may be ended while it sleeps (`pthread_cancel`), and then no destructor
//! runs: so a call that waits is taken apart, as [`hca::BlockedCall`] is. What it has taken is plain data.

use crate::socket::Readiness;
use hca::{BlockedCall, CompletionChannel, Look, Nic};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use transport::Time;

/// A call that waits for a socket, between two looks. It has nothing to drop.
#[derive(Debug, Default)]
pub struct Wait {
    /// What to sleep on.
    pub call: BlockedCall,
    /// The socket knows of it.
    counted: bool,
}

/// A socket that calls may wait for.
pub trait Waitable: Send + Sync {
    /// The NIC it is on.
    fn nic(&self) -> &Arc<Nic>;

    /// Wakes callers that sleep: completions do, and so do threads that have changed something.
    fn channel(&self) -> &Arc<CompletionChannel>;

    /// Callers that sleep, or are about to.
    fn sleepers(&self) -> &AtomicU32;

    /// Has the next completion make [`wake_fd`](Waitable::wake_fd) readable.
    fn arm(&self);

    /// What a program could do without waiting, after a look at what has arrived.
    fn readiness(&self) -> Readiness;

    /// The descriptor to sleep on after [`arm`](Waitable::arm), for a thread that sleeps on others too: readable when the
    /// socket should be looked at.
    fn wake_fd(&self) -> RawFd {
        self.channel().raw_fd()
    }

    /// From now on a change wakes this call: it must look once more before it sleeps, or it misses one.
    fn begin_wait(&self, wait: &mut Wait) {
        if !std::mem::replace(&mut wait.counted, true) {
            self.count_sleeper(true);
        }
        self.arm();
    }

    /// Whether something has happened. If nothing has, the caller is to sleep as `wait` says, and to ask again.
    fn look(&self, wait: &mut Wait, deadline: Option<Time>) -> Look {
        self.nic().look_for_event(self.channel(), &mut wait.call, deadline)
    }

    /// Takes what has woken a thread that slept on [`wake_fd`](Waitable::wake_fd).
    fn clear_wake(&self) {
        while self.channel().try_take().is_some() {}
    }

    /// A thread that sleeps on [`wake_fd`](Waitable::wake_fd) begins, or ends.
    fn count_sleeper(&self, begins: bool) {
        match begins {
            true => self.sleepers().fetch_add(1, Ordering::SeqCst),
            false => self.sleepers().fetch_sub(1, Ordering::SeqCst),
        };
    }

    /// The call is over, however it ended.
    fn end_wait(&self, wait: &mut Wait) {
        self.nic().end_wait(&mut wait.call);
        if std::mem::take(&mut wait.counted) {
            self.count_sleeper(false);
        }
    }

    /// Callers that sleep look again.
    fn wake_sleepers(&self) {
        fence(Ordering::SeqCst);
        let sleepers = self.sleepers().load(Ordering::SeqCst);
        for _ in 0..sleepers {
            self.channel().push_if(0, |waiting| waiting.len() < sleepers as usize);
        }
    }
}
