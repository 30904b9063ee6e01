//! The life of a queue pair: what each move between states does, whatever caused it. Which moves are legal is `state`'s
//! business.

use super::pacing::RecentTargets;
use super::{AsyncEvent, QueuePair, State};
use crate::attributes::{Attributes, Modify};
use crate::packet_counters::ip_header;
use crate::port::{Port, Toward};
use crate::state::{self, ModifyError};
use crate::stop::Stop;
use trace::StateCause;
use trace::Time;

impl QueuePair {
    /// Changes state and attributes, or neither.
    pub fn modify<P: Port>(&mut self, now: Time, modify: &Modify, port: &mut P) -> Result<(), ModifyError> {
        let from = self.state();
        let to = state::check(self.kind(), from, modify, &self.limits)?;
        self.connection.attributes.apply(modify);
        self.ip_header = ip_header(self.connection.attributes.av.dgid);
        if modify.rate_limit.is_some() || modify.av.is_some() {
            self.limit_rate(now);
        }
        if modify.state.is_none() {
            return Ok(());
        }
        match (from, to) {
            (_, State::Reset) => self.enter_reset(now, port),
            (_, State::Error) => self.enter_error(now, StateCause::Modify, Stop::Program, port),
            (State::Init, State::ReadyToReceive) => {
                let attributes = &self.connection.attributes;
                self.responder.start(attributes.rq_psn, attributes.max_dest_rd_atomic);
                self.established = false;
                self.set_state(now, to, StateCause::Modify, port);
            }
            (State::ReadyToReceive, State::ReadyToSend) => {
                let psn = self.connection.attributes.sq_psn;
                self.requester.start(psn);
                self.completer.start(psn);
                self.set_state(now, to, StateCause::Modify, port);
            }
            (State::ReadyToSend, State::SendQueueDrained) => {
                self.drain_owed = modify.sqd_async_notify.unwrap_or(false);
                self.set_state(now, to, StateCause::Modify, port);
                self.check_drained(now, port);
            }
            _ => self.set_state(now, to, StateCause::Modify, port),
        }
        Ok(())
    }

    /// Its connection has ended, as the connection manager says: all work is flushed.
    pub fn disconnect<P: Port>(&mut self, now: Time, port: &mut P) {
        self.enter_error(now, StateCause::Disconnected, Stop::Disconnected, port);
    }

    fn set_state<P: Port>(&mut self, now: Time, to: State, cause: StateCause, port: &mut P) {
        let from = core::mem::replace(&mut self.connection.attributes.state, to);
        if from != to {
            self.trace(now, port, || trace::Kind::StateChanged { from: from.name(), to: to.name(), cause });
        }
    }

    /// Nothing is outstanding, posted or remembered.
    fn enter_reset<P: Port>(&mut self, now: Time, port: &mut P) {
        self.leave_windows(port);
        self.forget_rendezvouses();
        self.queue.clear();
        let psn = self.requester.psn();
        self.requester.reset(self.queue.tail());
        self.completer.reset(self.queue.tail(), psn);
        self.responder.reset();
        self.events.clear();
        self.drain_owed = false;
        self.cnp_owed = false;
        self.last_cnp = None;
        self.believed_cnp = None;
        self.marked_by = None;
        self.recent = RecentTargets::default();
        self.rate = None;
        self.holds_back = false;
        self.established = false;
        self.probe = Default::default();
        self.stop = None;
        self.set_state(now, State::Reset, StateCause::Modify, port);
        // All that was ever set is forgotten, as if the queue pair had just been created (IBA 10.3.1.1).
        let capabilities = self.connection.attributes.capabilities;
        self.connection.attributes = Attributes { capabilities, ..Attributes::default() };
    }

    /// All work is flushed. What the responder owes is still sent: a last refusal tells the peer why.
    pub(super) fn enter_error<P: Port>(&mut self, now: Time, cause: StateCause, stop: Stop, port: &mut P) {
        if self.state() == State::Error {
            return;
        }
        // If the send queue had stopped before, its reason is the first.
        self.stop = self.stop().or(Some(stop));
        self.leave_windows(port);
        self.give_up_rendezvouses();
        let (sends, receives) = (self.queue.flush(0), self.responder.waiting_receives());
        let psn = self.requester.psn();
        self.requester.reset(self.queue.tail());
        self.completer.reset(self.queue.tail(), psn);
        self.drain_owed = false;
        self.set_state(now, State::Error, cause, port);
        self.trace_flushed(now, sends, receives, port);
        if self.responder.uses_srq() {
            self.raise(now, AsyncEvent::LastWqeReached, port);
        }
    }

    /// A send failed on an unreliable queue pair: what follows it is flushed, receiving goes on.
    pub(super) fn enter_send_queue_error<P: Port>(&mut self, now: Time, seq: u64, port: &mut P) {
        let failed = self.queue.get(seq).and_then(|work| match work.outcome() {
            Some(crate::send_queue::Outcome::Failed(status, cause)) => {
                Some((work.wr_id, Stop::Work { kind: work.kind(), status, cause }, status))
            }
            _ => None,
        });
        let (wr_id, status) = failed.map_or((0, ""), |(wr_id, _, status)| (wr_id, status.name()));
        self.leave_send_states(now, StateCause::SendFailed { wr_id, status }, failed.map(|(_, stop, _)| stop), port);
    }

    /// What an unreliable queue pair has to send is flushed, receiving goes on; unless it has stopped before.
    pub(super) fn stop_sends<P: Port>(&mut self, now: Time, cause: StateCause, stop: Stop, port: &mut P) {
        if matches!(self.state(), State::ReadyToSend | State::SendQueueDrained) {
            self.leave_send_states(now, cause, Some(stop), port);
        }
    }

    fn leave_send_states<P: Port>(&mut self, now: Time, cause: StateCause, stop: Option<Stop>, port: &mut P) {
        self.stop = stop;
        let sends = self.queue.flush(0);
        self.requester.reset(self.queue.tail());
        self.set_state(now, State::SendQueueError, cause, port);
        self.trace_flushed(now, sends, 0, port);
    }

    /// Says how much work was lost, once: a connection may end with a thousand receives.
    fn trace_flushed<P: Port>(&self, now: Time, sends: u32, receives: u32, port: &mut P) {
        if sends + receives > 0 {
            self.trace(now, port, || trace::Kind::Flushed { sends, receives });
        }
    }

    /// In SQD: has all work that had begun ended?
    pub(super) fn check_drained<P: Port>(&mut self, now: Time, port: &mut P) {
        if !self.drain_owed || self.state() != State::SendQueueDrained || self.requester.is_mid_work(&self.queue) {
            return;
        }
        if !self.kind().is_reliable() || self.completer.una() == self.requester.high() {
            self.drain_owed = false;
            self.raise(now, AsyncEvent::SendQueueDrained, port);
        }
    }

    fn leave_windows<P: Port>(&mut self, port: &mut P) {
        self.release_windows(port);
        let qpn = self.qpn();
        port.window(qpn, Toward::Peer, |window| window.leave(qpn));
        port.window(qpn, Toward::Here, |window| window.leave(qpn));
    }
}
