//! Failures on purpose: what a driver does to a queue pair that is to break, as hardware breaks.

use super::{AsyncEvent, QueuePair, State, tell};
use crate::completion::{Cause, Completion, Queue, Status};
use crate::port::Port;
use crate::stop::Stop;
use trace::{Failure, StateCause, Time};

/// What the trace says of a state that a failure script changed.
const CAUSE: StateCause = StateCause::Local("a failure script says so");

impl QueuePair {
    /// It fails: it goes to ERR, with an event, and its work is flushed. Returns whether it was in a state that does
    /// work.
    pub fn break_down<P: Port>(&mut self, now: Time, port: &mut P) -> bool {
        if !self.state().receives() {
            return false;
        }
        self.enter_error(now, CAUSE, Stop::Injected, port);
        self.raise(now, AsyncEvent::QpFatal, port);
        true
    }

    /// Its send queue fails: it goes to SQE, and work of the send queue is flushed. Only of an unreliable queue pair
    /// that may send; returns whether it is one.
    pub fn break_send_queue<P: Port>(&mut self, now: Time, port: &mut P) -> bool {
        let may = !self.kind().is_reliable() && matches!(self.state(), State::ReadyToSend | State::SendQueueDrained);
        if may {
            self.stop_sends(now, CAUSE, Stop::Injected, port);
        }
        may
    }

    /// Raises an event for its program.
    pub fn raise_event<P: Port>(&mut self, now: Time, event: AsyncEvent, port: &mut P) {
        self.raise(now, event, port);
    }

    /// The next completion, if any, before the trace hears of it: it may be changed, or lost, before
    /// [`tell_completion`](QueuePair::tell_completion).
    pub fn take_untold_completion(&mut self) -> Option<Completion> {
        if self.may_complete() { self.next_completion() } else { None }
    }

    /// Tells the trace of a completion that was taken.
    pub fn tell_completion<P: Port>(&self, now: Time, completion: &Completion, port: &mut P) {
        tell(now, self.qpn(), completion, port);
    }

    /// Work that had completed fails after all. What follows it fails as after an error of its own: the queue pair goes
    /// to ERR, or to SQE if it is an unreliable one's send, and the rest is flushed.
    pub fn fail_completed<P: Port>(
        &mut self,
        now: Time,
        completion: &mut Completion,
        status: Status,
        cause: Failure,
        port: &mut P,
    ) {
        completion.status = status;
        completion.cause = Some(Cause::Failed(cause));
        completion.solicited = true;
        let stop = Stop::Work { kind: completion.kind, status, cause };
        let (wr_id, status) = (completion.wr_id, status.name());
        match completion.queue {
            Queue::Send if self.kind().is_reliable() => {
                self.enter_error(now, StateCause::SendFailed { wr_id, status }, stop, port);
            }
            Queue::Send => self.stop_sends(now, StateCause::SendFailed { wr_id, status }, stop, port),
            _ => self.enter_error(now, StateCause::ReceiveFailed { wr_id, status }, stop, port),
        }
    }
}
