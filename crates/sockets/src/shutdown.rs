//! Ending a connection, in one direction or in both.

use crate::error::Error;
use crate::socket::{Phase, Socket};
use crate::wait::Wait;
use rsocket::Shutdown;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

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

    /// Ends it. What was sent arrives first, for which the caller waits as long as `patience`.
    pub fn close(&self, patience: Duration) {
        let _ = self.shutdown(Shutdown::Both);
        let until = Instant::now() + patience;
        let mut wait = Wait::default();
        while !self.is_flushed() {
            self.begin_wait(&mut wait);
            let left = until.saturating_duration_since(Instant::now());
            if self.is_flushed() || left.is_zero() || self.nic.wait_for(&self.channel, Some(left)).is_err() {
                break;
            }
        }
        self.end_wait(&mut wait);
        // Those that no program has taken end with it.
        let phase = std::mem::take(&mut self.lock().phase);
        drop(phase);
        self.id.destroy();
    }
}
