//! Ending a connection, in one direction or in both.

use crate::deferred_tasks::{self, DeferredTask};
use crate::error::Error;
use crate::socket::{Phase, Socket};
use crate::wait::{Waitable, Waiter};
use rsocket::Shutdown;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use transport::Status;

/// How long a close sleeps before it looks again.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Why a connection ended that neither side has closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The peer is gone without a word, or has broken the rules.
    Reset,
    /// The peer does not answer.
    NoAnswer,
    /// The device is gone.
    DeviceGone,
}

impl Socket {
    /// Ends a direction. The peer hears of it after everything that was sent before. A socket that listens stops, and
    /// calls that wait for a connection are over.
    pub fn shutdown(&self, which: Shutdown) -> Result<(), Error> {
        // After what another caller is sending.
        let _turn = self.send_turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let endpoint = match &mut state.phase {
            Phase::Connected(endpoint) => endpoint,
            // There is nothing to write to; with TCP neither.
            Phase::Listening(_) if which == Shutdown::Write => return Ok(()),
            Phase::Listening(_) => {
                let listening = std::mem::replace(&mut state.phase, Phase::Stopped);
                state.mark_changed();
                drop(state);
                let stopped = self.id.stop_listening();
                drop(listening);
                return Ok(stopped?);
            }
            _ => return Err(Error::NOT_CONNECTED),
        };
        if endpoint.protocol.shutdown(which) {
            endpoint.post_due();
            state.mark_changed();
        }
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
        let flushed = self.is_flushed() || !patience.is_zero() && self.wait_until_flushed(patience);
        match flushed && !deferred_tasks::is_in_nic() {
            true => self.end(),
            false => self.linger(),
        }
    }

    fn wait_until_flushed(&self, patience: Duration) -> bool {
        let Ok(waiter) = Waiter::new() else { return false };
        let until = Instant::now() + patience;
        self.waiters().join(&waiter);
        let flushed = loop {
            self.arm();
            let left = until.saturating_duration_since(Instant::now());
            if self.is_flushed() || left.is_zero() {
                break self.is_flushed();
            }
            // Another call that waits may have taken the event: so it is looked for now and then.
            if self.nic.wait_for(waiter.channel(), Some(left.min(LOOK_INTERVAL))).is_err() {
                break false;
            }
        };
        self.waiters().leave(waiter.number());
        waiter.end();
        flushed
    }

    /// Why nothing more comes, if that is not because the peer has said so, or the program here.
    pub fn broken(&self) -> Option<Broken> {
        let mut state = self.lock();
        state.progress();
        let broken = state.broken;
        let endpoint = state.connection().ok()?;
        let failed = || match endpoint.failure {
            Some(Status::RetryExceeded) => Broken::NoAnswer,
            _ => Broken::Reset,
        };
        broken.or_else(|| endpoint.protocol.has_failed().then(failed))
    }

    /// Ends it at once: what was not sent is lost, and the peer hears that the connection is gone.
    pub fn abort(&self) {
        self.end();
    }

    /// It is closed, but the peer has not got everything. It stays until the peer has, or is gone.
    fn linger(self: &Arc<Socket>) {
        self.hub.keep(self);
        self.begin_to_linger();
    }

    pub(crate) fn let_go_if_flushed(&self) {
        self.hub.moved(self.key);
        if self.is_flushed()
            && let Some(socket) = self.hub.let_go(self.key)
        {
            // Not here: this may be the middle of the NIC.
            self.hub.defer(socket, DeferredTask::End);
        }
    }

    /// Gives back what it has.
    pub(crate) fn end(&self) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        self.take_all_back();
        // Those that no program has taken end with it.
        let phase = std::mem::take(&mut self.lock().phase);
        drop(phase);
        self.id.destroy();
    }
}
