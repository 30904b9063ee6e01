//! What a queue pair takes in: packets and the passing of time.

use super::{AsyncEvent, QueuePair, State};
use crate::completer::{Progress, Verdict};
use crate::completion::{CompletionKind, Status};
use crate::congestion::{FULL_PACKET, LostBehind, Window};
use crate::port::{Port, Toward};
use crate::responder::{Fault, Reaction};
use crate::state::Kind;
use crate::stop::Stop;
use crate::train::Inbound;
use crate::work::Operation as Work;
use trace::Time;
use trace::{DropReason, Failure, RetryCause, StateCause, Timer, WindowCause};
use wire::access::Refusal;
use wire::{Aeth, Headers, Msn, NakCode, Opcode, Operation, Psn, Syndrome, refuse_if};

/// How often a packet is sent that is missing: if it is lost again, only time tells. The second copy also shows a peer
/// that we repeat packets alone (`responder/ahead.rs`).
const COPIES: u32 = 2;

impl QueuePair {
    /// Takes a packet, or a whole train, that arrived for this queue pair.
    pub fn handle<P: Port>(&mut self, now: Time, inbound: &Inbound<'_>, port: &mut P) {
        let headers = inbound.headers;
        self.trace(now, port, || trace::Kind::PacketReceived {
            headers: *headers,
            payload_len: inbound.payload.len() as u32,
            packets: inbound.count,
        });
        if self.take_at_once(inbound, port) {
            self.traffic.received(headers.bth.opcode, 1, inbound.payload.len() as u32, self.ip_header);
            return;
        }
        self.count_received(inbound);
        if let Err(reason) = self.screen(inbound) {
            if headers.bth.opcode == Opcode::Cnp {
                self.incidents.cnps_ignored += 1;
            }
            return self.dropped(now, Some(headers), reason, port);
        }
        let opcode = headers.bth.opcode;
        if inbound.congestion_marked && opcode.operation() != Operation::Cnp {
            // Never for a notification: on a path that marks everything two queue pairs would go on notifying each
            // other.
            self.note_mark(now, inbound);
        }
        match opcode.operation() {
            Operation::Cnp => self.handle_notification(now, headers, port),
            _ if opcode.is_request() => {
                self.handle_request(now, inbound, port);
                if self.responder.may_go_on() {
                    self.handle_kept(now, port);
                }
            }
            Operation::Acknowledge => {
                let Some(aeth) = headers.aeth else {
                    return self.dropped(now, Some(headers), DropReason::Malformed, port);
                };
                if let Some(code) = refusal_name(aeth.syndrome) {
                    self.incidents.nak_received(aeth.syndrome);
                    self.trace(now, port, || trace::Kind::NakReceived { psn: headers.bth.psn, code });
                }
                self.note_answer(inbound);
                let (psn, high) = (headers.bth.psn, self.requester.high());
                let (progress, verdict) =
                    self.completer.acknowledge(now, psn, aeth, high, &self.connection, &mut self.queue);
                self.conclude(now, progress, verdict, Some(inbound), port);
            }
            _ => {
                let (count, high) = (inbound.count, self.requester.high());
                let (progress, verdict) = self.completer.answer(
                    now,
                    headers,
                    count,
                    inbound.payload,
                    high,
                    &self.connection,
                    &mut self.queue,
                    port,
                );
                self.conclude(now, progress, verdict, Some(inbound), port);
            }
        }
        if self.completer.has_kept() {
            self.handle_kept_answers(now, port);
        }
    }

    /// Lets deadlines pass.
    pub fn handle_timeout<P: Port>(&mut self, now: Time, port: &mut P) {
        if let Some(rate) = &mut self.rate {
            rate.time_has_come(now);
        }
        let deadline = |time: Option<Time>| time.map_or(0, Time::as_nanos);
        let rnr = deadline(self.completer.not_ready_until());
        if self.completer.not_ready_over(now) {
            self.trace(now, port, || trace::Kind::TimerFired { timer: Timer::Rnr, deadline: rnr });
        }
        let ack = deadline(self.completer.ack_deadline());
        if let Some(verdict) = self.completer.timed_out(now, &self.connection) {
            if verdict != Verdict::Repeat(RetryCause::TailLoss) {
                self.trace(now, port, || trace::Kind::TimerFired { timer: Timer::Ack, deadline: ack });
            }
            self.conclude(now, Progress::default(), verdict, None, port);
        }
    }

    /// The peer has not even had what was sent (it is stopped, say), as a link that loses nothing can tell: its time to
    /// answer begins now, and no retry is used up.
    pub fn hold_timers(&mut self, now: Time) {
        self.completer.hold(now, self.connection.attributes.timeout);
    }

    /// A timeout that is due now is not counted as a retry before the pauses between them have grown to `patience`
    /// nanoseconds: programs choose timeouts that are shorter than a process may have to wait for a processor.
    pub fn forgive_timeout(&mut self, now: Time, patience: u64) {
        self.completer.forgive(now, self.connection.attributes.timeout, patience);
    }

    /// Whether a request with this number comes a little before the one that is expected.
    #[inline]
    pub fn is_behind(&self, psn: Psn) -> bool {
        const A_LITTLE: i32 = 1 << 14;
        (-A_LITTLE..0).contains(&psn.diff(self.responder.expected()))
    }

    /// How many messages it has executed as a responder, modulo 2^24.
    pub fn msn(&self) -> Msn {
        self.responder.msn()
    }

    /// How long the peer has to answer, in nanoseconds; `None` is for ever.
    pub fn time_to_answer(&self) -> Option<u64> {
        self.limits.timers.ack_timeout_nanos(self.connection.attributes.timeout)
    }

    /// The request whose answer is waited for, and how often requests were sent again: while both stay the same, it is the
    /// same answer that is late.
    pub fn awaited_answer(&self) -> (Psn, u64) {
        (self.completer.una(), self.incidents.retries + self.incidents.rnr_naks_received)
    }

    /// The peer has gone for good, as a link may know: what it has not acknowledged fails now, as it would when all
    /// retries were used up.
    pub fn peer_gone<P: Port>(&mut self, now: Time, port: &mut P) {
        let waits = matches!(self.state(), State::ReadyToSend | State::SendQueueDrained);
        let una = self.completer.una();
        if self.kind().is_reliable() && waits && una != self.requester.high() {
            let cause = Failure::PeerGone { psn: una };
            self.fail_oldest(now, Status::RetryExceeded, cause, port);
        }
    }

    /// The peer has gone for good, and the program wants to hear of it also where nothing was under way that could
    /// fail: the queue pair stops, its receives are flushed, and an event says so. Hardware leaves it waiting.
    pub fn stop_without_peer<P: Port>(&mut self, now: Time, port: &mut P) {
        if self.kind().is_reliable() && self.state().receives() {
            self.raise(now, AsyncEvent::QpFatal, port);
            self.enter_error(now, StateCause::Local("the peer's process has ended"), Stop::Disconnected, port);
        }
    }

    /// What every packet must have right before anything else is looked at (IBA 9.6).
    fn screen(&self, inbound: &Inbound<'_>) -> Result<(), DropReason> {
        let headers = inbound.headers;
        let (kind, state, opcode) = (self.kind(), self.state(), headers.bth.opcode);
        refuse_if!(kind == Kind::RawPacket, DropReason::BadOpcodeForTransport);
        if opcode.operation() == Operation::Cnp {
            return self.screen_notification(inbound.from);
        }
        refuse_if!(opcode.transport() != self.connection.transport(), DropReason::BadOpcodeForTransport);
        let in_state = if opcode.is_request() {
            refuse_if!(!kind.responds(), DropReason::BadOpcodeForTransport);
            state.receives()
        } else {
            refuse_if!(!kind.has_send_queue(), DropReason::BadOpcodeForTransport);
            matches!(state, State::ReadyToSend | State::SendQueueDrained)
        };
        refuse_if!(!in_state, DropReason::WrongState);
        refuse_if!(!self.connection.pkey.matches(headers.bth.pkey), DropReason::PkeyMismatch);
        if kind.is_connected() {
            refuse_if!(inbound.from != self.connection.attributes.av.dgid, DropReason::WrongSource);
        } else if headers.deth.is_none_or(|deth| deth.qkey != self.connection.attributes.qkey) {
            return Err(DropReason::QkeyMismatch);
        }
        let several = matches!(opcode.operation(), Operation::Send | Operation::Write | Operation::ReadResponse);
        if inbound.count == 0 || inbound.count > 1 && !several || inbound.count >= Psn::COUNT / 2 {
            return Err(DropReason::BadLength);
        }
        Ok(())
    }

    /// A packet goes no further.
    #[cold]
    pub(super) fn dropped<P: Port>(&mut self, now: Time, headers: Option<&Headers>, reason: DropReason, port: &mut P) {
        port.dropped(reason);
        self.incidents.dropped(reason, 1);
        self.trace(now, port, || trace::Kind::PacketDropped { headers: headers.copied(), reason });
    }

    fn handle_request<P: Port>(&mut self, now: Time, inbound: &Inbound<'_>, port: &mut P) {
        if self.state() == State::ReadyToReceive && !self.established {
            self.established = true;
            self.raise(now, AsyncEvent::CommunicationEstablished, port);
        }
        let reaction = match self.kind() {
            Kind::UnreliableConnected => self.responder.unreliable(inbound, &self.connection, port),
            Kind::UnreliableDatagram => self.responder.datagram(inbound, &self.connection, port),
            _ => self.responder.reliable(now, inbound, &self.connection, port),
        };
        if self.rendezvouses.is_some() {
            self.begin_rendezvouses();
        }
        match reaction {
            Reaction::Fine => {}
            Reaction::Dropped(reason) => self.dropped(now, Some(inbound.headers), reason, port),
            Reaction::Forbidden(refusal) => {
                self.trace_refusal(now, &refusal, port);
                self.dropped(now, Some(inbound.headers), DropReason::AccessRefused, port);
            }
            Reaction::Refused(reason, psn, syndrome) => {
                self.dropped(now, Some(inbound.headers), reason, port);
                self.incidents.rnr_naks_sent += u64::from(matches!(syndrome, Syndrome::RnrNak { .. }));
                let code = refusal_name(syndrome).unwrap_or("");
                self.trace(now, port, || trace::Kind::NakSent { psn, code });
            }
            Reaction::Fault(fault) => {
                if let Failure::Refused(refusal) = &fault.cause {
                    self.trace_refusal(now, refusal, port);
                    if fault.code == NakCode::RemoteAccess {
                        self.dropped(now, Some(inbound.headers), DropReason::AccessRefused, port);
                    }
                }
                if self.kind().is_reliable() {
                    let code = refusal_name(Syndrome::Nak(fault.code)).unwrap_or("");
                    self.trace(now, port, || trace::Kind::NakSent { psn: inbound.headers.bth.psn, code });
                }
                self.fault(now, fault, port);
            }
        }
    }

    /// Requests that came before their turn, and whose turn it is now.
    #[cold]
    fn handle_kept<P: Port>(&mut self, now: Time, port: &mut P) {
        while self.state().receives()
            && self.responder.may_go_on()
            && let Some(kept) = self.responder.next_kept()
        {
            let from = self.connection.attributes.av.dgid;
            let (headers, payload) = (&kept.headers, &kept.payload[..]);
            let inbound =
                Inbound { headers, count: kept.count, payload, from, grh: &[0; 40], congestion_marked: false };
            self.handle_request(now, &inbound, port);
        }
        if !self.responder.may_go_on() && !self.responder.waits_for_sequence() {
            // No receive for it: the peer comes back with all that follows.
            self.responder.forget_kept();
        }
    }

    /// Answers that came before their turn, and whose turn it is now.
    #[cold]
    fn handle_kept_answers<P: Port>(&mut self, now: Time, port: &mut P) {
        while matches!(self.state(), State::ReadyToSend | State::SendQueueDrained) {
            let (high, connection, queue) = (self.requester.high(), &self.connection, &mut self.queue);
            let (progress, verdict) = if let Some(kept) = self.completer.next_kept() {
                let (headers, payload) = (&kept.headers, &kept.payload[..]);
                self.completer.answer(now, headers, kept.count, payload, high, connection, queue, port)
            } else if let Some(psn) = self.completer.due_acknowledgement(queue) {
                let aeth = Aeth { syndrome: Syndrome::ACK, msn: Msn::default() };
                self.completer.acknowledge(now, psn, aeth, high, connection, queue)
            } else {
                break;
            };
            self.conclude(now, progress, verdict, None, port);
        }
        if let Some(verdict) = self.completer.still_missing(now, &self.connection) {
            self.conclude(now, Progress::default(), verdict, None, port);
        }
    }

    /// The responder cannot go on.
    pub(super) fn fault<P: Port>(&mut self, now: Time, fault: Fault, port: &mut P) {
        if let (true, Some(event)) = (self.kind().is_reliable(), fault.event) {
            self.raise(now, event, port);
        }
        let stop = match fault.event {
            None => Stop::Work { kind: CompletionKind::Receive, status: fault.receive, cause: fault.cause },
            Some(_) => Stop::PeerRequest { cause: fault.cause },
        };
        let cause = match fault.cause {
            Failure::PeerFault { what, .. } => StateCause::PeerRequest(what),
            Failure::TooLong { .. } => StateCause::PeerRequest("a message longer than the receive for it"),
            Failure::Refused(refusal) if fault.code == NakCode::RemoteAccess => {
                StateCause::PeerRequest(refusal.cause.name())
            }
            _ => StateCause::Local("a receive names memory that may not be written"),
        };
        self.enter_error(now, cause, stop, port);
    }

    /// Passes on what the completer concluded.
    fn conclude<P: Port>(
        &mut self,
        now: Time,
        progress: Progress,
        verdict: Verdict,
        inbound: Option<&Inbound<'_>>,
        port: &mut P,
    ) {
        if progress.moved {
            let charge = progress.charge.min(*self.requester.charges());
            *self.requester.charges() -= charge;
            let trip = progress.round_trip;
            self.adjust(now, Toward::Peer, WindowCause::Acknowledged, port, |window| {
                window.acknowledged(now, charge, trip);
            });
            let here = progress.charge_here.min(*self.requester.charges_here());
            if here > 0 {
                *self.requester.charges_here() -= here;
                self.adjust(now, Toward::Here, WindowCause::Acknowledged, port, |window| {
                    window.acknowledged(now, here, progress.round_trip_here);
                });
            }
            let una = self.completer.una();
            if una.is_after(self.requester.psn()) {
                // Packets from before the last retry have arrived after all: no need to send them once more.
                self.requester.resume_at(una, self.completer.oldest(), &self.queue);
            }
        }
        match verdict {
            Verdict::Fine => {}
            Verdict::Drop(reason) => self.dropped(now, inbound.map(|inbound| inbound.headers), reason, port),
            Verdict::Repeat(cause) if self.limits.keeps_early => self.repeat(now, cause, port),
            Verdict::GoBack(cause) | Verdict::Repeat(cause) => {
                let left = Some(self.completer.retries_left(&self.connection));
                self.go_back(now, cause, left, port);
            }
            Verdict::Wait(timer) => {
                let left = self.completer.not_ready_left(&self.connection);
                self.go_back(now, RetryCause::RnrNak, left, port);
                let deadline = now.plus_nanos(self.limits.timers.rnr_nanos(timer));
                self.completer.wait_until(deadline);
                self.trace(now, port, || trace::Kind::TimerSet { timer: Timer::Rnr, deadline: deadline.as_nanos() });
            }
            Verdict::Fail(status, cause) => self.fail_oldest(now, status, self.with_reason(cause), port),
        }
        if self.rendezvouses.is_some() {
            self.advance_rendezvouses();
        }
        let armed = self.completer.ack_deadline().is_some();
        self.completer.settle_timer(self.requester.psn());
        if armed && self.completer.ack_deadline().is_none() {
            self.trace(now, port, || trace::Kind::TimerCleared { timer: Timer::Ack });
        }
        self.check_halted(now, port);
        self.check_drained(now, port);
    }

    /// The oldest unacknowledged packet is sent again, and nothing else.
    fn repeat<P: Port>(&mut self, now: Time, cause: RetryCause, port: &mut P) {
        let (from, left) = (self.completer.una(), Some(self.completer.retries_left(&self.connection)));
        if !from.is_before(self.requester.psn()) {
            // It has not gone out since we went back to it, and goes out with what follows.
            return self.go_back(now, cause, left, port);
        }
        self.incidents.retried(cause);
        self.trace(now, port, || trace::Kind::Retry { cause, from, left });
        let oldest = self.completer.catch_up(&self.queue);
        if cause != RetryCause::TailLoss {
            let (lost, mtu) = (self.lost_toward(oldest), self.connection.mtu());
            self.adjust(now, lost, WindowCause::Loss, port, |window| window.lost(now, mtu, LostBehind::Nothing));
        }
        self.completer.repeats(now, cause, self.connection.attributes.timeout);
        let alone = cause == RetryCause::TailLoss && from.add(1) == self.requester.high();
        self.requester.repeat(from, oldest, if alone { 1 } else { COPIES });
    }

    /// Which window a loss is about.
    fn lost_toward(&self, seq: u64) -> Toward {
        match self.queue.get(seq).map(|work| work.operation) {
            Some(Work::Read { .. }) => Toward::Here,
            _ => Toward::Peer,
        }
    }

    /// Go-back-N: everything from the oldest unacknowledged packet on is sent again.
    fn go_back<P: Port>(&mut self, now: Time, cause: RetryCause, left: Option<u8>, port: &mut P) {
        let from = self.completer.una();
        self.incidents.retried(cause);
        self.trace(now, port, || trace::Kind::Retry { cause, from, left });
        let oldest = self.completer.catch_up(&self.queue);
        let lost = self.lost_toward(oldest);
        self.release_windows(port);
        let is_answered = self.queue.get(oldest).is_some_and(|work| work.operation.is_answered());
        let (mtu, behind) = match cause {
            // Requests are short, whatever they ask for.
            RetryCause::SequenceNak if is_answered => (self.connection.mtu(), LostBehind::Nothing),
            _ => (self.connection.mtu(), self.completer.lost_behind()),
        };
        match cause {
            RetryCause::RnrNak => {}
            RetryCause::Timeout => {
                self.adjust(now, lost, WindowCause::Timeout, port, |window| window.timed_out(now));
            }
            _ => self.adjust(now, lost, WindowCause::Loss, port, |window| window.lost(now, mtu, behind)),
        }
        self.completer.went_back(cause);
        self.requester.resume_at(from, oldest, &self.queue);
        if cause == RetryCause::SequenceNak && !is_answered && self.limits.keeps_early {
            self.requester.repeat(from, oldest, COPIES - 1);
        }
    }

    /// Changes a window, and says so if it is a different one now.
    fn adjust<P: Port>(
        &self,
        now: Time,
        toward: Toward,
        cause: WindowCause,
        port: &mut P,
        change: impl FnOnce(&mut Window),
    ) {
        let (before, after) = port.window(self.qpn(), toward, |window| {
            let before = window.cwnd();
            change(window);
            (before, window.cwnd())
        });
        if before != after {
            let packets = |size: u64| u32::try_from(size / FULL_PACKET).unwrap_or(u32::MAX);
            // It only ever grows by acknowledgements; when one makes it shrink, the round trip was too long.
            let cause = if cause == WindowCause::Acknowledged && after < before { WindowCause::Delay } else { cause };
            let (from, to) = (packets(before), packets(after));
            self.trace(now, port, || trace::Kind::WindowChanged { from, to, cause });
        }
    }

    /// Gives back what our packets in flight hold of the windows.
    pub(super) fn release_windows<P: Port>(&mut self, port: &mut P) {
        let qpn = self.qpn();
        let charge = core::mem::take(self.requester.charges());
        if charge > 0 {
            port.window(qpn, Toward::Peer, |window| window.release(charge));
        }
        let here = core::mem::take(self.requester.charges_here());
        if here > 0 {
            port.window(qpn, Toward::Here, |window| window.release(here));
        }
    }

    /// Work cannot be carried out: on an unreliable queue pair sending stops; on a reliable one everything before it is
    /// settled first.
    pub(super) fn fail_work<P: Port>(&mut self, now: Time, seq: u64, status: Status, cause: Failure, port: &mut P) {
        if let Failure::Refused(refusal) = &cause {
            self.trace_refusal(now, refusal, port);
        }
        self.queue.overrule(seq, status, cause);
        self.requester.halt_at(seq);
        if self.kind().is_reliable() {
            self.check_halted(now, port);
        } else {
            self.enter_send_queue_error(now, seq, port);
        }
    }

    fn fail_oldest<P: Port>(&mut self, now: Time, status: Status, cause: Failure, port: &mut P) {
        if let Failure::Refused(refusal) = &cause {
            self.trace_refusal(now, refusal, port);
        }
        self.incidents.retries_exceeded += u64::from(status == Status::RetryExceeded);
        self.incidents.rnr_retries_exceeded += u64::from(status == Status::RnrRetryExceeded);
        let seq = self.completer.catch_up(&self.queue);
        self.queue.overrule(seq, status, cause);
        let (wr_id, kind) = self.queue.get(seq).map_or((0, CompletionKind::Send), |work| (work.wr_id, work.kind()));
        let stop = Stop::Work { kind, status, cause };
        self.enter_error(now, StateCause::SendFailed { wr_id, status: status.name() }, stop, port);
    }

    /// Has everything before the work that failed locally been settled? Then the queue pair stops here and now: the
    /// requester may have been moved away from that work by a retry, and must not come back when its completion has
    /// been taken and it can no longer be seen.
    pub(super) fn check_halted<P: Port>(&mut self, now: Time, port: &mut P) {
        let seq = self.completer.catch_up(&self.queue);
        if self.kind().is_reliable()
            && let Some(work) = self.queue.get(seq)
            && let Some(crate::send_queue::Outcome::Failed(status, cause)) = work.outcome()
        {
            let (wr_id, stop) = (work.wr_id, Stop::Work { kind: work.kind(), status, cause });
            self.enter_error(now, StateCause::SendFailed { wr_id, status: status.name() }, stop, port);
        }
    }

    pub(super) fn trace_refusal<P: Port>(&self, now: Time, refusal: &Refusal, port: &mut P) {
        self.trace(now, port, || trace::Kind::AccessRefused {
            key: refusal.range.key,
            address: refusal.range.address,
            length: refusal.range.length,
            access: refusal.access,
            cause: refusal.cause,
        });
    }

    /// Says that the acknowledgement timer runs now and did not before.
    pub(super) fn trace_timer<P: Port>(&self, now: Time, before: Option<Time>, port: &mut P) {
        if let (None, Some(deadline)) = (before, self.completer.ack_deadline()) {
            self.trace(now, port, || trace::Kind::TimerSet { timer: Timer::Ack, deadline: deadline.as_nanos() });
        }
    }
}

fn refusal_name(syndrome: Syndrome) -> Option<&'static str> {
    match syndrome {
        Syndrome::RnrNak { .. } => Some("receiver not ready"),
        Syndrome::Nak(NakCode::SequenceError) => Some("PSN sequence error"),
        Syndrome::Nak(NakCode::InvalidRequest) => Some("invalid request"),
        Syndrome::Nak(NakCode::RemoteAccess) => Some("remote access error"),
        Syndrome::Nak(NakCode::RemoteOperational) => Some("remote operational error"),
        Syndrome::Nak(_) => Some("reserved NAK code"),
        _ => None,
    }
}
