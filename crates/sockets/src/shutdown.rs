//! Ending a connection, in one direction or in both.

use crate::error::Error;
use crate::socket::{Phase, Socket};
use crate::wait::Waitable;
use rsocket::Shutdown;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long a close sleeps before it looks again.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

impl Socket {
    /// Ends a direction. The peer hears of it after everything that was sent before.
    pub fn shutdown(&self, which: Shutdown) -> Result<(), Error> {
        // After what another caller is sending.
        let _turn = self.send_turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let endpoint = match &mut state.phase {
            Phase::Connected(endpoint) => endpoint,
            _ => return Err(Error::NOT_CONNECTED),
        };
        endpoint.protocol.shutdown(which);
        endpoint.post_due();
        state.mark_changed();
        Ok(())
    }

    /// Whether everything that was sent has arrived; also if nothing can any more.
    pub fn is_flushed(&self) -> bool {
        let mut state = self.lock();
        state.progress();
        match &state.phase {
            Phase::Connected(endpoint) => endpoint.protocol.is_idle() || !endpoint.protocol.is_connected(),
            _ => true,
        }
    }

    /// Ends it. What was sent arrives first: the caller waits for that as long as `patience`, and after that it goes on
    /// without the caller.
    pub fn close(self: &Arc<Socket>, patience: Duration) {
        let _ = self.shutdown(Shutdown::Both);
        let until = Instant::now() + patience;
        let mut flushed = self.is_flushed();
        while !flushed {
            self.arm();
            flushed = self.is_flushed();
            let left = until.saturating_duration_since(Instant::now());
            // Another call that waits may have taken the event: so it is looked for now and then.
            if flushed || left.is_zero() || self.nic.wait_for(&self.channel, Some(left.min(LOOK_INTERVAL))).is_err() {
                break;
            }
            flushed = self.is_flushed();
        }
        match flushed {
            true => self.end(),
            false => self.linger(),
        }
    }

    /// Ends it at once: what was not sent is lost, and the peer hears that the connection is gone.
    pub fn abort(&self) {
        self.end();
    }

    /// It is closed, but the peer has not got everything. It stays until the peer has, or is gone.
    fn linger(self: &Arc<Socket>) {
        self.hub.keep(self);
        let (hub, key) = (self.hub, self.key);
        let look = move || {
            if let Some(socket) = hub.find(key)
                && socket.is_flushed()
            {
                // Not here, where the socket may be in use: the last owner ends it.
                drop(hub.let_go(key));
            }
        };
        if !self.observe(look) {
            self.end();
            drop(self.hub.let_go(self.key));
        }
    }

    /// Gives back what it has.
    fn end(&self) {
        self.take_all_back();
        // Those that no program has taken end with it.
        let phase = std::mem::take(&mut self.lock().phase);
        drop(phase);
        self.id.destroy();
    }
}
