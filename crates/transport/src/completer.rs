//! The completer: matches acknowledgements and answers to the work that waits for them, settles that work in order, and
//! keeps the retry counters and timers. It never sends: what must be sent again it tells as a [`Verdict`].

use crate::completion::Status;
use crate::congestion::LostBehind;
use crate::connection::Connection;
use crate::kept::{Kept, KeptPackets};
use crate::port::Port;
use crate::receive::scatter;
use crate::requester::MAX_COPIED_ANSWER;
use crate::send_queue::{Outcome, SendQueue};
use crate::time::Timers;
use crate::work::Operation;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use trace::Time;
use trace::{DropReason, Failure, RetryCause};
use wire::{Aeth, Headers, NakCode, Psn, RnrTimer, Syndrome};

/// Silence shorter than this is never suspicious: the peer may just not be running.
const MIN_SUSPICIOUS_NANOS: u64 = 200_000;

/// An RNR retry count that never runs out.
const ENDLESS_RNR_RETRIES: u8 = 7;

/// What follows from an acknowledgement, an answer or a timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Nothing more to do.
    Fine,
    /// The packet says nothing we can use.
    Drop(DropReason),
    /// Send again from the oldest unacknowledged packet.
    GoBack(RetryCause),
    /// Send the oldest unacknowledged packet again, and see what the peer says.
    Repeat(RetryCause),
    /// The peer has no receive: wait, then send again.
    Wait(RnrTimer),
    /// The oldest unsettled work has failed.
    Fail(Status, Failure),
}

/// What an acknowledgement freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress {
    /// Something was acknowledged that was not before.
    pub moved: bool,
    /// Share of the peer's window.
    pub charge: u64,
    /// Share of our own window.
    pub charge_here: u64,
    /// How long the peer took to acknowledge, or to answer, where that was measured.
    pub round_trip: Option<u64>,
    pub round_trip_here: Option<u64>,
}

/// A READ, atomic or flush under way.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    first: Psn,
    psns: u32,
}

/// Where a request ends: the number after its last.
#[derive(Clone, Copy, Debug)]
struct End {
    psn: Psn,
    /// As it was first asked. Asked again, the window may have let only a part of it through.
    first_time: bool,
}

/// A packet that was sent once more, and why, and when.
#[derive(Clone, Copy, Debug)]
struct Repetition {
    psn: Psn,
    cause: RetryCause,
    at: Time,
}

/// How often in a row a peer may have kept nothing behind a packet that was missing, before it is taken for one that
/// never does.
const KEEPING_TRIES: u8 = 3;

/// A round trip being measured: until `psn` is acknowledged, or for a READ, begins to be answered.
#[derive(Clone, Copy, Debug)]
struct Stopwatch {
    psn: Psn,
    since: Time,
    has_response: bool,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Completer {
    /// The oldest sequence number not acknowledged, and the work it belongs to (or will).
    una: Psn,
    /// The link loses nothing: silence is never suspicious.
    trusting: bool,
    oldest: u64,
    ack_deadline: Option<Time>,
    not_ready_until: Option<Time>,
    /// When silence is suspicious, long before it is a timeout; and how often in a row it was.
    suspicion: Option<Time>,
    suspicions: u32,
    retries_used: u32,
    not_ready_used: u32,
    /// We went back to this number and nothing was acknowledged since: further calls to go back there are echoes.
    went_back_to: Option<Psn>,
    /// A packet that was sent once more, alone, and was not acknowledged since.
    repeated: Option<Repetition>,
    /// How often in a row the peer has kept nothing behind a packet that was missing.
    not_kept: u8,
    /// It has kept something.
    has_kept_behind: bool,
    /// The packet whose round trip is being measured, and when it left.
    stopwatch: Option<Stopwatch>,
    /// The smoothed round trip, once one was measured, and how far samples are from it.
    round_trip: Option<u64>,
    deviation: u64,
    awaiting_response: VecDeque<PendingRequest>,
    /// Where the requests that were ever asked and are not yet answered end. A READ that is asked again must not reach
    /// across such an end: the responder keeps its answers request by request.
    ends: VecDeque<End>,
    /// Answers that came before their turn, as one before them was lost.
    kept: Option<Box<KeptPackets>>,
    /// The last acknowledgement that came while an answer before it was missing.
    acknowledged_ahead: Option<Psn>,
    /// How the device rounds times.
    timers: Timers,
}

impl Completer {
    pub fn with_timers(timers: Timers) -> Completer {
        Completer { timers, ..Completer::default() }
    }

    pub fn start(&mut self, psn: Psn) {
        self.una = psn;
    }

    /// Forgets everything; the next work is `seq`.
    pub fn reset(&mut self, seq: u64, psn: Psn) {
        self.awaiting_response.clear();
        self.ends.clear();
        *self = Completer {
            una: psn,
            oldest: seq,
            awaiting_response: core::mem::take(&mut self.awaiting_response),
            ends: core::mem::take(&mut self.ends),
            timers: self.timers,
            ..Completer::default()
        };
    }

    pub fn una(&self) -> Psn {
        self.una
    }

    /// The oldest work without an outcome.
    pub fn oldest(&self) -> u64 {
        self.oldest
    }

    /// Passes over settled work that took no packets; returns the oldest work without an outcome of success.
    pub fn catch_up(&mut self, queue: &SendQueue) -> u64 {
        self.oldest = self.oldest.max(queue.head());
        while queue.get(self.oldest).is_some_and(|work| work.is_done()) {
            self.oldest += 1;
        }
        self.oldest
    }

    pub fn awaited_responses(&self) -> usize {
        self.awaiting_response.len()
    }

    /// How many sequence numbers from `psn` on belong to the request that was asked with it before, if it was.
    #[inline]
    pub fn asked_before(&self, psn: Psn) -> Option<u32> {
        self.ends.iter().find(|end| end.psn.is_after(psn)).map(|end| end.psn.distance_from(psn))
    }

    /// Whether `psn` goes on with a request of which another part is under way again. It has to wait for that part's
    /// answer: kernel Soft-RoCE remembers where in a request it was last asked to begin again, and is silent when it is
    /// asked for something before that.
    #[inline]
    pub fn is_partly_under_way(&self, psn: Psn) -> bool {
        self.awaiting_response.back().is_some_and(|request| request.first.add(request.psns) == psn)
            && !self.ends.iter().rev().any(|end| end.psn == psn && end.first_time)
    }

    pub fn ack_deadline(&self) -> Option<Time> {
        self.ack_deadline
    }

    /// The next moment at which [`Completer::timed_out`] has something to say.
    pub fn next_deadline(&self) -> Option<Time> {
        match (self.ack_deadline, self.suspicion) {
            (Some(ack), Some(suspicion)) => Some(ack.min(suspicion)),
            (ack, _) => ack,
        }
    }

    pub fn not_ready_until(&self) -> Option<Time> {
        self.not_ready_until
    }

    /// Whether the link on which the next request leaves loses nothing.
    #[inline]
    pub fn trust(&mut self, lossless: bool) {
        self.trusting = lossless;
    }

    /// A request has left: start what has to be started.
    pub fn sent(&mut self, now: Time, first: Psn, psns: u32, has_response: bool, again: bool, timeout: u8) {
        if has_response && self.repeated.is_none_or(|repeated| repeated.psn != first) {
            self.awaiting_response.push_back(PendingRequest { first, psns });
            let end = first.add(psns);
            let place = self.ends.iter().rposition(|known| !known.psn.is_after(end)).map_or(0, |before| before + 1);
            if place == 0 || self.ends[place - 1].psn != end {
                self.ends.insert(place, End { psn: end, first_time: !again });
            }
        }
        if self.stopwatch.is_none() && !again && self.repeated.is_none() {
            let psn = if has_response { first } else { first.add(psns - 1) };
            self.stopwatch = Some(Stopwatch { psn, since: now, has_response });
        }
        if self.ack_deadline.is_none() {
            self.restart_timer(now, timeout);
        } else if self.suspicion.is_none() && !self.trusting {
            self.suspect(now, timeout);
        }
    }

    /// The peer's time to answer begins now.
    pub fn hold(&mut self, now: Time, timeout: u8) {
        if self.ack_deadline.is_some() {
            self.restart_timer(now, timeout);
        }
    }

    /// A timeout that is due is not counted before the pauses have grown to `patience`: what is not acknowledged is
    /// sent again after each.
    pub fn forgive(&mut self, now: Time, timeout: u8, patience: u64) {
        let is_due = self.ack_deadline.is_some_and(|deadline| deadline <= now);
        let pause = self.timers.ack_timeout_nanos(timeout).map(|nanos| nanos << self.suspicions.min(16));
        if let (true, Some(pause)) = (is_due, pause.filter(|pause| *pause < patience)) {
            self.ack_deadline = Some(now.plus_nanos(2 * pause));
            self.suspicion = Some(now);
        }
    }

    fn restart_timer(&mut self, now: Time, timeout: u8) {
        self.ack_deadline = self.timers.ack_timeout_nanos(timeout).map(|nanos| now.plus_nanos(nanos));
        self.suspicions = 0;
        self.suspect(now, timeout);
    }

    /// Programs choose ACK timeouts of 67 ms to 4 s, and a loss at the end of what is in flight shows by nothing but
    /// silence. Where a round trip is known, silence for several of them is answered by sending again, with growing
    /// patience and without counting as a retry: the oldest packet alone, as the peer may just be slow. The ACK timer
    /// and its count run on as the specification has them.
    fn suspect(&mut self, now: Time, timeout: u8) {
        self.suspicion = match (self.round_trip, self.timers.ack_timeout_nanos(timeout)) {
            _ if self.trusting => None,
            (Some(round_trip), Some(patience)) => {
                // Answers wait for their turn among others, and to ask for one again takes as long as it did first.
                let deviation = if self.awaiting_response.is_empty() { 0 } else { 4 * self.deviation };
                let first = (round_trip + deviation).max(2 * round_trip) + MIN_SUSPICIOUS_NANOS;
                let wait = first.saturating_mul(1 << self.suspicions.min(16));
                (wait < patience / 2).then(|| now.plus_nanos(wait))
            }
            _ => None,
        };
    }

    /// The queue pair has moved the requester back to the oldest unacknowledged packet. Mere suspicion leaves the ACK
    /// timer alone.
    pub fn went_back(&mut self, cause: RetryCause) {
        self.went_back_to = Some(self.una);
        self.repeated = None;
        self.kept = None;
        self.acknowledged_ahead = None;
        self.awaiting_response.clear();
        self.stopwatch = None;
        self.suspicion = None;
        if cause != RetryCause::TailLoss {
            self.ack_deadline = None;
        }
    }

    /// The oldest unacknowledged packet is about to be sent once more.
    pub fn repeats(&mut self, now: Time, cause: RetryCause, timeout: u8) {
        self.repeated = Some(Repetition { psn: self.una, cause, at: now });
        self.stopwatch = None;
        self.suspect(now, timeout);
    }

    /// An ACK or NAK packet. `high` is the first sequence number never sent.
    pub fn acknowledge(
        &mut self,
        now: Time,
        psn: Psn,
        aeth: Aeth,
        high: Psn,
        connection: &Connection,
        queue: &mut SendQueue,
    ) -> (Progress, Verdict) {
        if psn.is_before(self.una) {
            return (Progress::default(), Verdict::Drop(DropReason::StaleAck));
        }
        if !psn.is_before(high) {
            return (Progress::default(), Verdict::Drop(DropReason::GhostAck));
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                let repeated = self.repeated;
                let (progress, blocked) = self.advance(now, psn.add(1), connection, queue);
                let verdict = match (blocked, repeated) {
                    (true, _) => {
                        self.acknowledged_ahead = Some(psn);
                        self.missing_answer(now, connection)
                    }
                    (false, Some(repeated)) if self.una.is_before(high) => self.repetition_arrived(repeated, psn),
                    (false, _) => Verdict::Fine,
                };
                (progress, verdict)
            }
            Syndrome::RnrNak { timer } => {
                let (progress, blocked) = self.advance(now, psn, connection, queue);
                let verdict = if blocked {
                    self.implied(now, connection)
                } else if self.not_ready_until.is_some() {
                    Verdict::Drop(DropReason::Duplicate)
                } else {
                    self.not_ready(psn, timer, connection)
                };
                (progress, verdict)
            }
            Syndrome::Nak(NakCode::SequenceError) => {
                let (progress, blocked) = self.advance(now, psn, connection, queue);
                let echo = self.went_back_to == Some(self.una)
                    || self.not_ready_until.is_some()
                    || self.has_just_repeated(now);
                let verdict = match (blocked, echo) {
                    (true, _) => self.implied(now, connection),
                    (false, true) => Verdict::Drop(DropReason::AfterRetry),
                    // It was lost again. The peer lives, and this is no other failure.
                    (false, false) if self.repeated.is_some() => match self.asks_all_again() {
                        true => Verdict::GoBack(RetryCause::SequenceNak),
                        false => Verdict::Repeat(RetryCause::SequenceNak),
                    },
                    (false, false) => match self.retry(RetryCause::SequenceNak, connection) {
                        Verdict::GoBack(cause) if self.may_keep() && !self.asks_all_again() => Verdict::Repeat(cause),
                        verdict => verdict,
                    },
                };
                (progress, verdict)
            }
            Syndrome::Nak(code) => {
                let (progress, blocked) = self.advance(now, psn, connection, queue);
                if blocked {
                    return (progress, self.implied(now, connection));
                }
                let status = match code {
                    NakCode::InvalidRequest => Status::RemoteInvalidRequest,
                    NakCode::RemoteAccess => Status::RemoteAccess,
                    NakCode::RemoteOperational => Status::RemoteOperation,
                    _ => Status::BadResponse,
                };
                (progress, Verdict::Fail(status, Failure::Nak { code, psn, peer: None }))
            }
            _ => (Progress::default(), Verdict::Drop(DropReason::Malformed)),
        }
    }

    /// The acknowledgement of the oldest packet, where that is all of its work. `None` if it is not, and then nothing
    /// has happened.
    #[inline]
    pub fn acknowledge_one(
        &mut self,
        now: Time,
        psn: Psn,
        connection: &Connection,
        queue: &mut SendQueue,
    ) -> Option<Progress> {
        let work = queue.get(self.oldest)?;
        let ordinary = work.started && work.packets == 1 && work.is_open() && !work.operation.is_answered();
        if psn != self.una || psn != work.first || !ordinary {
            return None;
        }
        let mut progress = Progress { charge: work.charge(0, 1, connection.mtu()), ..Progress::default() };
        queue.settle(self.oldest, Outcome::Done);
        self.oldest += 1;
        self.una = psn.add(1);
        self.moved(now, connection, &mut progress);
        Some(progress)
    }

    /// READ responses, atomic acknowledgements and the empty answers to FLUSH and ATOMIC WRITE.
    #[expect(clippy::too_many_arguments, reason = "one call site; every argument is a different thing")]
    pub fn answer<P: Port>(
        &mut self,
        now: Time,
        headers: &Headers,
        count: u32,
        payload: &[u8],
        high: Psn,
        connection: &Connection,
        queue: &mut SendQueue,
        port: &mut P,
    ) -> (Progress, Verdict) {
        let psn = headers.bth.psn;
        let past = psn.add(count);
        if psn.is_before(self.una) {
            return (Progress::default(), Verdict::Drop(DropReason::StaleAck));
        }
        // Counted from `psn`: the end of a long train far ahead would come around to what was sent.
        if !psn.is_before(high) || count > high.distance_from(psn) {
            return (Progress::default(), Verdict::Drop(DropReason::GhostAck));
        }
        let (mut progress, blocked) = self.advance(now, psn, connection, queue);
        if blocked || self.una != psn {
            // An answer before this one is missing.
            if queue.get(self.oldest).is_some_and(|work| work.operation.is_answered()) {
                self.kept.get_or_insert_with(Box::default).keep(headers, count, payload, self.una);
            }
            return (progress, self.missing_answer(now, connection));
        }
        let Some(work) = queue.get(self.oldest).filter(|work| work.started && work.is_open()) else {
            return (progress, Verdict::Drop(DropReason::UnexpectedResponse));
        };
        let bad = |what| Verdict::Fail(Status::BadResponse, Failure::BadAnswer { what, psn });
        let from = psn.distance_from(work.first);
        if !work.operation.is_answered() || from + count > work.packets {
            return (progress, Verdict::Drop(DropReason::UnexpectedResponse));
        }
        if headers.aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. })) {
            return (progress, bad("it carries a refusal"));
        }
        let value;
        let (offset, bytes) = match (work.operation, headers.bth.opcode.operation()) {
            (Operation::Read { .. }, wire::Operation::ReadResponse) => {
                let (offset, length) = work.span(from, count, connection.mtu());
                if payload.len() != length as usize {
                    return (progress, bad("the length of a READ response does not fit its place in the message"));
                }
                (offset, payload)
            }
            (Operation::CompareSwap { .. } | Operation::FetchAdd { .. }, wire::Operation::AtomicAcknowledge) => {
                let Some(answer) = headers.atomic_ack else {
                    return (progress, Verdict::Drop(DropReason::Malformed));
                };
                value = answer.original.to_ne_bytes();
                (0, &value[..])
            }
            (Operation::Flush { .. } | Operation::AtomicWrite { .. }, wire::Operation::ReadResponse) => {
                if !payload.is_empty() {
                    return (progress, bad("the answer to a FLUSH or ATOMIC WRITE carries data"));
                }
                (0, payload)
            }
            _ => return (progress, bad("the kind of answer does not fit the request")),
        };
        if let Err(refusal) = scatter(work.sges(), u64::from(offset), bytes, work.subject(connection), port) {
            return (progress, Verdict::Fail(Status::LocalProtection, Failure::Refused(refusal)));
        }
        progress.charge_here += work.charge(from, count, connection.mtu());
        let finished = from + count == work.packets;
        self.una = past;
        if finished {
            queue.settle(self.oldest, Outcome::Done);
            self.oldest += 1;
        }
        self.moved(now, connection, &mut progress);
        (progress, Verdict::Fine)
    }

    /// Everything before `upto` is acknowledged. Stops at work whose answer is missing: true then.
    fn advance(&mut self, now: Time, upto: Psn, connection: &Connection, queue: &mut SendQueue) -> (Progress, bool) {
        let mut progress = Progress::default();
        let mut blocked = false;
        let before = self.una;
        self.catch_up(queue);
        while let Some(work) = queue.get(self.oldest) {
            match work.outcome() {
                Some(Outcome::Done) => {
                    self.oldest += 1;
                    continue;
                }
                Some(Outcome::Failed(..)) => break,
                None => {}
            }
            // `una` lies in this work or at its beginning. The beginning itself may be half of all numbers away, and no
            // longer comparable.
            if !work.started || !upto.is_after(self.una) {
                break;
            }
            if work.operation.is_answered() {
                blocked = true;
                break;
            }
            let from = self.una.distance_from(work.first).min(work.packets);
            let covered = upto.distance_from(work.first).min(work.packets);
            if covered > from {
                progress.charge += work.charge(from, covered - from, connection.mtu());
                self.una = work.first.add(covered);
            }
            if covered < work.packets {
                break;
            }
            queue.settle(self.oldest, Outcome::Done);
            self.oldest += 1;
        }
        if self.una != before {
            self.moved(now, connection, &mut progress);
        }
        (progress, blocked)
    }

    /// The oldest unacknowledged number has moved: the peer lives, counters start afresh.
    fn moved(&mut self, now: Time, connection: &Connection, progress: &mut Progress) {
        progress.moved = true;
        self.retries_used = 0;
        self.not_ready_used = 0;
        self.went_back_to = None;
        self.repeated = None;
        if let Some(stopwatch) = self.stopwatch
            && stopwatch.psn.is_before(self.una)
        {
            self.stopwatch = None;
            let sample = now.since(stopwatch.since);
            // An eighth of the way towards each sample, as TCP does (RFC 6298).
            let smoothed = self.round_trip.unwrap_or(sample);
            self.deviation = self.deviation - self.deviation / 4 + smoothed.abs_diff(sample) / 4;
            self.round_trip = Some(smoothed - smoothed / 8 + sample / 8);
            // Answers come from another queue than acknowledgements: they say nothing about the peer's window.
            progress.round_trip = Some(sample).filter(|_| !stopwatch.has_response);
            progress.round_trip_here = Some(sample).filter(|_| stopwatch.has_response);
        }
        while self.ends.front().is_some_and(|end| !end.psn.is_after(self.una)) {
            self.ends.pop_front();
        }
        while let Some(request) = self.awaiting_response.front() {
            if request.first.add(request.psns).is_after(self.una) {
                break;
            }
            self.awaiting_response.pop_front();
        }
        self.restart_timer(now, connection.attributes.timeout);
    }

    /// Stops the timer when nothing is outstanding. `next` is the next number to send. After a mere suspicion the timer
    /// runs on, though everything is about to be sent again.
    pub fn settle_timer(&mut self, next: Psn) {
        if self.una == next && self.suspicions == 0 {
            self.ack_deadline = None;
            self.suspicion = None;
        }
    }

    /// The peer has acknowledged everything up to `psn` after a packet was sent once more.
    fn repetition_arrived(&mut self, repeated: Repetition, psn: Psn) -> Verdict {
        let was_refused = repeated.cause == RetryCause::SequenceNak;
        if psn != repeated.psn {
            if was_refused {
                self.not_kept = 0;
                self.has_kept_behind = true;
            }
            return Verdict::Fine;
        }
        // It was missing, and nothing that came after it was kept.
        if was_refused {
            self.not_kept = self.not_kept.saturating_add(1);
        }
        Verdict::GoBack(repeated.cause)
    }

    /// Whether all requests are to be asked again where the oldest is missing: it asks for a long answer, so it is not
    /// sent twice, and a peer that has not shown yet that it keeps what comes behind a missing packet takes nothing. To
    /// ask again costs little.
    fn asks_all_again(&self) -> bool {
        !self.has_kept_behind && self.asked_before(self.una).is_some_and(|psns| psns > MAX_COPIED_ANSWER)
    }

    /// Whether the peer may keep what it gets behind a packet that is missing.
    fn may_keep(&self) -> bool {
        self.not_kept < KEEPING_TRIES
    }

    /// What a lost packet costs beside itself.
    pub fn lost_behind(&self) -> LostBehind {
        if self.may_keep() { LostBehind::Unknown } else { LostBehind::Everything }
    }

    /// Whether the oldest packet was sent once more so lately that what comes now is older than that.
    fn has_just_repeated(&self, now: Time) -> bool {
        let echo = self.round_trip.map_or(MIN_SUSPICIOUS_NANOS, |round_trip| round_trip + round_trip / 4);
        self.repeated.is_some_and(|repeated| now.since(repeated.at) < echo)
    }

    /// An acknowledgement that came while an answer before it was missing, if that is there now.
    #[cold]
    pub fn due_acknowledgement(&mut self, queue: &SendQueue) -> Option<Psn> {
        self.catch_up(queue);
        let psn = self.acknowledged_ahead.filter(|psn| !psn.is_before(self.una));
        if queue.get(self.oldest).is_some_and(|work| work.started && work.operation.is_answered()) && psn.is_some() {
            return None;
        }
        self.acknowledged_ahead = None;
        psn
    }

    /// An answer is missing before one that was kept.
    fn missing_answer(&mut self, now: Time, connection: &Connection) -> Verdict {
        if self.repeated.is_some() {
            // It comes after the answers that are on their way. If it is lost as well, silence tells.
            return Verdict::Drop(DropReason::AfterRetry);
        }
        match self.implied(now, connection) {
            Verdict::GoBack(cause) => Verdict::Repeat(cause),
            verdict => verdict,
        }
    }

    /// How many sequence numbers are missing before the first answer that was kept.
    pub fn missing(&self) -> u32 {
        let first = self.kept.as_ref().and_then(|kept| kept.first());
        first.map_or(u32::MAX, |first| first.distance_from(self.una))
    }

    /// Whether answers were kept, or an acknowledgement.
    #[inline]
    pub fn has_kept(&self) -> bool {
        self.kept.is_some() || self.acknowledged_ahead.is_some()
    }

    /// The next answer that was kept, if its turn has come.
    #[cold]
    pub fn next_kept(&mut self) -> Option<Kept> {
        let kept = self.kept.as_deref_mut()?;
        let next = kept.next(self.una);
        if next.is_none() && kept.first().is_none() {
            self.kept = None;
        }
        next
    }

    /// What follows if another answer is missing before the next that was kept.
    pub fn still_missing(&mut self, now: Time, connection: &Connection) -> Option<Verdict> {
        if self.kept.is_none() || self.repeated.is_some() || self.went_back_to == Some(self.una) {
            return None;
        }
        Some(self.missing_answer(now, connection))
    }

    fn implied(&mut self, now: Time, connection: &Connection) -> Verdict {
        if self.went_back_to == Some(self.una) || self.not_ready_until.is_some() || self.has_just_repeated(now) {
            Verdict::Drop(DropReason::AfterRetry)
        } else {
            self.retry(RetryCause::ImpliedNak, connection)
        }
    }

    /// Goes back, if there are retries left. One limit counts timeouts, sequence NAKs and implied NAKs (IBA 9.9.2.1).
    fn retry(&mut self, cause: RetryCause, connection: &Connection) -> Verdict {
        if self.retries_left(connection) == 0 {
            let tries = self.retries_used + 1;
            return Verdict::Fail(Status::RetryExceeded, Failure::NoAnswer { psn: self.una, tries });
        }
        self.retries_used += 1;
        Verdict::GoBack(cause)
    }

    fn not_ready(&mut self, psn: Psn, timer: RnrTimer, connection: &Connection) -> Verdict {
        let allowed = connection.attributes.rnr_retry;
        if allowed != ENDLESS_RNR_RETRIES && self.not_ready_used >= u32::from(allowed) {
            let tries = self.not_ready_used + 1;
            return Verdict::Fail(Status::RnrRetryExceeded, Failure::NotReady { psn, tries });
        }
        self.not_ready_used = self.not_ready_used.saturating_add(1);
        // It is an answer, though not the one that was hoped for: those that are missing are counted from here.
        self.retries_used = 0;
        Verdict::Wait(timer)
    }

    /// How many more times the peer may be not ready; `None` is forever.
    pub fn not_ready_left(&self, connection: &Connection) -> Option<u8> {
        match connection.attributes.rnr_retry {
            ENDLESS_RNR_RETRIES => None,
            allowed => Some(allowed.saturating_sub(u8::try_from(self.not_ready_used).unwrap_or(u8::MAX))),
        }
    }

    /// How often the peer was not ready, and how often it may be; none is forever.
    pub fn not_ready_tries(&self, connection: &Connection) -> (u32, Option<u8>) {
        let allowed = connection.attributes.rnr_retry;
        (self.not_ready_used, (allowed != ENDLESS_RNR_RETRIES).then_some(allowed))
    }

    /// Since when nothing was heard of what was sent: no later than the packet left whose round trip is measured.
    pub fn silent_since(&self) -> Option<Time> {
        self.stopwatch.map(|stopwatch| stopwatch.since).or(self.repeated.map(|repeated| repeated.at))
    }

    /// How many more times the oldest packet may be sent again.
    pub fn retries_left(&self, connection: &Connection) -> u8 {
        connection.attributes.retry_cnt.saturating_sub(u8::try_from(self.retries_used).unwrap_or(u8::MAX))
    }

    pub fn wait_until(&mut self, deadline: Time) {
        self.not_ready_until = Some(deadline);
    }

    /// A deadline may have passed. `true` when the wait for a receive is over.
    pub fn not_ready_over(&mut self, now: Time) -> bool {
        match self.not_ready_until {
            Some(deadline) if deadline <= now => {
                self.not_ready_until = None;
                true
            }
            _ => false,
        }
    }

    /// The acknowledgement timer, if it has fired.
    pub fn timed_out(&mut self, now: Time, connection: &Connection) -> Option<Verdict> {
        if self.ack_deadline? > now {
            if self.suspicion.is_none_or(|suspicion| suspicion > now) {
                return None;
            }
            self.suspicion = None;
            self.suspicions += 1;
            return Some(Verdict::Repeat(RetryCause::TailLoss));
        }
        self.ack_deadline = None;
        Some(self.retry(RetryCause::Timeout, connection))
    }
}
