//! Waiting until a socket has changed. A thread may be ended while it sleeps (`pthread_cancel`), and then no destructor
//! runs: so a call that waits is taken apart, as [`hca::BlockedCall`] is. What it has taken is plain data.

use crate::socket::{Phase, Socket};
use hca::{BlockedCall, Look, Notify};
use std::sync::atomic::Ordering;
use transport::Time;

/// A call that waits for a socket, between two looks. It has nothing to drop.
#[derive(Debug, Default)]
pub struct Wait {
    /// What to sleep on.
    pub call: BlockedCall,
    /// The socket knows of it.
    counted: bool,
}

impl Socket {
    /// From now on a change wakes this call: it must look once more before it sleeps, or it misses one.
    pub fn begin_wait(&self, wait: &mut Wait) {
        if !std::mem::replace(&mut wait.counted, true) {
            self.sleepers.fetch_add(1, Ordering::SeqCst);
        }
        self.arm();
    }

    /// Has the next completion make [`wake_fd`](Socket::wake_fd) readable.
    pub fn arm(&self) {
        if let Phase::Connected(endpoint) | Phase::Connecting(endpoint) = &self.lock().phase {
            endpoint.parts.cq.arm(Notify::Any);
        }
    }

    /// Whether something has happened. If nothing has, the caller is to sleep as `wait` says, and to ask again.
    pub fn look(&self, wait: &mut Wait, deadline: Option<Time>) -> Look {
        self.nic.look_for_event(&self.channel, &mut wait.call, deadline)
    }

    /// Takes what has woken a thread that slept on [`wake_fd`](Socket::wake_fd).
    pub fn clear_wake(&self) {
        while self.channel.try_take().is_some() {}
    }

    /// A thread that sleeps on [`wake_fd`](Socket::wake_fd) begins, or ends.
    pub fn count_sleeper(&self, begins: bool) {
        match begins {
            true => self.sleepers.fetch_add(1, Ordering::SeqCst),
            false => self.sleepers.fetch_sub(1, Ordering::SeqCst),
        };
    }

    /// The call is over, however it ended.
    pub fn end_wait(&self, wait: &mut Wait) {
        self.nic.end_wait(&mut wait.call);
        if std::mem::take(&mut wait.counted) {
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
