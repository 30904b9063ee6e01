//! The responder: takes the peer's requests one by one and carries them out. Each gets one [`Verdict`]; one place
//! ([`Responder::conclude`]) turns verdicts into acknowledgements, refusals, silence and errors. Reliable requests are
//! judged here, unreliable ones in `unreliable`.

mod ahead;
mod at_once;
mod frames;
mod reads_and_atomics;
pub(crate) mod responses;
mod tagged;
mod unreliable;

pub(crate) use responses::ResponseTrain;
pub(crate) use tagged::Rendezvous;

use crate::completed_work::{Count, Counts};
use crate::completion::{AsyncEvent, Cause, Completion, CompletionKind, Queue, Status};
use crate::connection::Connection;
use crate::port::{Port, TakenReceive};
use crate::receive::{ReceiveQueue, scatter};
use crate::train::Inbound;
use crate::work::{MAX_MESSAGE, PostError, ReceiveRequest, ReceiveWork};
use ahead::Ahead;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use responses::Responses;
use tagged::{Tagged, Tags};
use trace::{DropReason, Failure, RequestFault, Time};
use wire::access::{Access, ProtectionDomain, Range, Refusal, Subject};
use wire::{Key, Msn, NakCode, Operation, Position, Psn, Reth, RnrTimer, Srqn, Syndrome, refuse_if};

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// Carried out.
    Accepted,
    /// Carried out before; the answer was given again, or an acknowledgement is.
    Repeated,
    /// Passed over in silence.
    Drop(DropReason),
    /// A packet before it is missing.
    OutOfOrder,
    /// There is no receive for it.
    NotReady,
    /// It cannot be carried out, and the queue pair stops.
    Fault(Fault),
}

/// What stops a responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    /// What the peer is told.
    pub code: NakCode,
    /// How the receive in hand completes.
    pub receive: Status,
    /// What was wrong, for people.
    pub cause: Failure,
    /// How the program hears of it where no completion of a receive can tell it (IBA 11.6.3.2).
    pub event: Option<AsyncEvent>,
}

/// What the queue pair has to know after a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reaction {
    Fine,
    Dropped(DropReason),
    /// Dropped because memory refused it, without a word to the peer.
    Forbidden(Refusal),
    /// A refusal was owed: sequence error or receiver not ready.
    Refused(DropReason, Psn, Syndrome),
    Fault(Fault),
}

/// The message being received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Message {
    #[default]
    None,
    Send {
        placed: u64,
    },
    Write {
        reth: Reth,
        placed: u64,
    },
}

/// Whether the peer was told to come back and has not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum RnrWait {
    #[default]
    No,
    ForSequence,
    /// What was missing is there: the next packet shows how the peer repeats.
    ForProof,
    ForReceive,
}

/// The receive that the present message fills.
#[derive(Debug)]
#[repr(C)]
struct Hand {
    held: bool,
    work: ReceiveWork,
    queue: Queue,
    space: u64,
    subject: Option<Subject>,
    tagged: Tagged,
}

/// A packet or train of a SEND or WRITE, cut to what is new.
struct Arrival<'a> {
    starts: bool,
    psn: Psn,
    count: u32,
    payload: &'a [u8],
}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Responder {
    expected: Psn,
    msn: Msn,
    waiting: RnrWait,
    /// UC: the rest of a damaged message is passed over.
    abandoned: bool,
    message: Message,
    /// What has completed, where completions are counted.
    pub counts: Option<Box<Counts>>,
    completions: VecDeque<Completion>,
    responses: Responses,
    hand: Hand,
    own: Option<ReceiveQueue>,
    srq: Option<Srqn>,
    /// Where its shared receive queue matches tags.
    tags: Option<Box<Tags>>,
    /// Whether what comes before its turn is kept, and what was.
    keeps_early: bool,
    ahead: Option<Box<Ahead>>,
}

impl Responder {
    /// Up to this byte every message needs it.
    pub const HOT: usize = core::mem::offset_of!(Responder, hand) + core::mem::size_of::<bool>();

    pub fn new(own: Option<ReceiveQueue>, srq: Option<Srqn>, keeps_early: bool) -> Responder {
        let hand = Hand {
            held: false,
            work: ReceiveWork::default(),
            queue: Queue::Receive,
            space: 0,
            subject: None,
            tagged: Tagged::No,
        };
        Responder {
            expected: Psn::default(),
            msn: Msn::default(),
            message: Message::None,
            counts: None,
            hand,
            own,
            srq,
            tags: None,
            keeps_early,
            ahead: None,
            waiting: RnrWait::No,
            responses: Responses::default(),
            completions: VecDeque::new(),
            abandoned: false,
        }
    }

    /// Ready to receive from `psn` on.
    pub fn start(&mut self, psn: Psn, max_dest_rd_atomic: u8) {
        self.expected = psn;
        self.msn = Msn::default();
        self.responses.reset(max_dest_rd_atomic);
        self.ahead = None;
    }

    /// Forgets everything, posted receives included.
    pub fn reset(&mut self) {
        if let Some(own) = &mut self.own {
            own.clear();
        }
        self.hand.held = false;
        self.message = Message::None;
        self.waiting = RnrWait::No;
        self.responses.reset(0);
        self.completions.clear();
        self.abandoned = false;
        self.ahead = None;
        if let Some(tags) = &mut self.tags {
            tags.clear();
        }
    }

    pub fn expected(&self) -> Psn {
        self.expected
    }

    /// Whether the peer has sent the request that is expected, and was told to come back as there was no receive.
    pub fn has_asked_back(&self) -> bool {
        self.waiting == RnrWait::ForReceive
    }

    /// Whether a packet is missing.
    pub fn waits_for_sequence(&self) -> bool {
        matches!(self.waiting, RnrWait::ForSequence | RnrWait::ForProof)
    }

    /// The shared receive queue that its receives come from.
    pub fn srq(&self) -> Option<Srqn> {
        self.srq
    }

    pub fn uses_srq(&self) -> bool {
        self.srq.is_some()
    }

    pub fn post(&mut self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        refuse_if!(self.srq.is_some(), PostError::UsesSrq);
        self.own.as_mut().ok_or(PostError::NoReceiveQueue)?.post(request)
    }

    /// Whether it has something to say.
    #[inline]
    pub fn owes(&self) -> bool {
        self.responses.owes()
    }

    /// Whether that is an acknowledgement and nothing else.
    #[inline]
    pub fn owes_acknowledgement_only(&self) -> bool {
        self.responses.owes_acknowledgement_only()
    }

    /// Takes the acknowledgement that is owed, if it is all that is.
    #[inline]
    pub fn take_acknowledgement(&mut self) -> Option<(Psn, Msn)> {
        self.responses.take_acknowledgement()
    }

    /// How many messages were executed.
    pub fn msn(&self) -> Msn {
        self.msn
    }

    /// Owes one again.
    pub fn owe_acknowledgement(&mut self, psn: Psn, msn: Msn) {
        self.responses.acknowledge(psn, msn);
    }

    /// Whether what is owed first is an answer, and no acknowledgement.
    pub fn owes_response_next(&self) -> bool {
        self.responses.owes_response_next()
    }

    /// The next answer to send, if one is owed, in so many packets at most.
    #[inline]
    pub fn next_response<P: Port>(
        &mut self,
        connection: &Connection,
        packets: u32,
        port: &mut P,
    ) -> Result<Option<ResponseTrain>, Fault> {
        self.responses.next(connection, packets, port).map_err(|(psn, refusal)| self.unanswerable(psn, refusal))
    }

    /// A READ that was granted cannot be answered after all.
    pub fn unanswerable(&mut self, psn: Psn, refusal: Refusal) -> Fault {
        let fault = access_fault(refusal);
        // Nothing that was asked after it will be answered.
        self.responses.give_up();
        self.responses.refuse(psn, self.msn, Syndrome::Nak(fault.code));
        fault
    }

    /// Whether a receive has completed.
    #[inline]
    pub fn has_completion(&self) -> bool {
        !self.completions.is_empty()
    }

    /// The next completion of a receive.
    pub fn completion(&mut self) -> Option<Completion> {
        let completion = self.completions.pop_front()?;
        self.count(&completion);
        Some(completion)
    }

    fn count(&mut self, completion: &Completion) {
        if let Some(counts) = &mut self.counts {
            counts.shown(completion);
        }
    }

    /// READs of the peer that were answered since the last time.
    pub fn answers_read(&mut self) -> Count {
        core::mem::take(&mut self.responses.read)
    }

    /// The next completion, where it is: [`completed`](Responder::completed) lets go of it.
    #[inline]
    pub fn next_completion(&self) -> Option<&Completion> {
        self.completions.front()
    }

    #[inline]
    pub fn completed(&mut self) {
        if let (Some(counts), Some(completion)) = (&mut self.counts, self.completions.front()) {
            counts.shown(completion);
        }
        self.completions.pop_front();
    }

    /// How many receives of its own wait, the one in hand included.
    pub fn waiting_receives(&self) -> u32 {
        self.own.as_ref().map_or(0, ReceiveQueue::len) + u32::from(self.hand.held)
    }

    /// In the error state: the next receive that was never filled.
    pub fn flushed(&mut self, connection: &Connection) -> Option<Completion> {
        if !self.hand.held {
            if !self.own.as_mut()?.take(&mut self.hand.work) {
                return None;
            }
            self.hand.queue = Queue::Receive;
        }
        self.hand.held = false;
        self.message = Message::None;
        let completion = self.failed_receive(Status::WorkRequestFlushed, Failure::Flushed, connection);
        self.count(&completion);
        Some(completion)
    }

    /// A request of a reliable connection.
    pub fn reliable<P: Port>(
        &mut self,
        now: Time,
        inbound: &Inbound<'_>,
        connection: &Connection,
        port: &mut P,
    ) -> Reaction {
        let verdict = self.judge(now, inbound, connection, port);
        self.conclude(now, verdict, inbound, connection)
    }

    /// The one place where a verdict becomes an answer.
    fn conclude(&mut self, now: Time, verdict: Verdict, inbound: &Inbound<'_>, connection: &Connection) -> Reaction {
        match verdict {
            Verdict::Accepted => {
                let was_missing = core::mem::take(&mut self.waiting) == RnrWait::ForSequence;
                let may_tell = !was_missing || self.filled(now, inbound.headers.bth.psn);
                let answered_otherwise = answered(inbound.headers.bth.opcode.operation());
                if inbound.headers.bth.ack_req && !answered_otherwise && may_tell {
                    self.responses.acknowledge(self.expected.sub(1), self.msn);
                }
                Reaction::Fine
            }
            Verdict::Repeated => Reaction::Dropped(DropReason::Duplicate),
            Verdict::Drop(reason) => Reaction::Dropped(reason),
            Verdict::OutOfOrder => {
                let syndrome = Syndrome::Nak(NakCode::SequenceError);
                self.waiting = RnrWait::ForSequence;
                if self.message != Message::None {
                    // Soft-RoCE ignores a second refusal unless it was told of progress since the first, and waits for
                    // its timer.
                    self.responses.acknowledge(self.expected.sub(1), self.msn);
                }
                self.responses.refuse(self.expected, self.msn, syndrome);
                Reaction::Refused(DropReason::OutOfOrder, self.expected, syndrome)
            }
            Verdict::NotReady => {
                let timer = RnrTimer::new(connection.attributes.min_rnr_timer);
                let syndrome = Syndrome::RnrNak { timer };
                self.waiting = RnrWait::ForReceive;
                self.responses.refuse(self.expected, self.msn, syndrome);
                Reaction::Refused(DropReason::NoReceive, self.expected, syndrome)
            }
            Verdict::Fault(mut fault) => {
                self.responses.refuse(self.expected, self.msn, Syndrome::Nak(fault.code));
                if self.hand.held {
                    fault.event = None;
                    self.hand.held = false;
                    let completion = self.failed_receive(fault.receive, fault.cause, connection);
                    self.completions.push_back(completion);
                }
                Reaction::Fault(fault)
            }
        }
    }

    fn judge<P: Port>(&mut self, now: Time, inbound: &Inbound<'_>, connection: &Connection, port: &mut P) -> Verdict {
        let headers = inbound.headers;
        let (psn, opcode) = (headers.bth.psn, headers.bth.opcode);
        let operation = opcode.operation();
        let ahead = psn.diff(self.expected);
        if self.waiting == RnrWait::ForProof && self.proves(now, psn) {
            return Verdict::Repeated;
        }
        if ahead > 0 {
            let tells = match self.waiting {
                RnrWait::No | RnrWait::ForSequence if self.keeps_early => self.keep_ahead(inbound),
                waiting => waiting == RnrWait::No,
            };
            return if tells { Verdict::OutOfOrder } else { Verdict::Drop(DropReason::AfterNak) };
        }
        let mut arrival = Arrival { starts: opcode.starts(), psn, count: inbound.count, payload: inbound.payload };
        if ahead < 0 {
            let known = ahead.unsigned_abs();
            if answered(operation) || known >= inbound.count {
                return self.repeated(inbound, connection);
            }
            // A train that was cut differently the first time: its beginning is known, its end is new.
            let skip = known as usize * connection.mtu() as usize;
            let Some(payload) = inbound.payload.get(skip..) else {
                return Verdict::Drop(DropReason::BadLength);
            };
            arrival = Arrival { starts: false, psn: self.expected, count: inbound.count - known, payload };
        }
        if answered(operation) {
            return self.read_or_atomic(inbound, connection, port);
        }
        self.place(inbound, &arrival, connection, port)
    }

    /// A request we have seen: what was kept of it answers it again, all others are acknowledged as far as we are. The
    /// end of a message is acknowledged only where the peer asks for it: Soft-RoCE does not survive a second such
    /// acknowledgement while it repeats the message. It completes the message in the middle of the repetition, and its
    /// send queue stands still for ever if the program fills it meanwhile.
    fn repeated(&mut self, inbound: &Inbound<'_>, connection: &Connection) -> Verdict {
        let headers = inbound.headers;
        let operation = headers.bth.opcode.operation();
        if answered(operation) {
            return match self.responses.repeat(headers.bth.psn, operation, headers.reth, connection.mtu()) {
                true => Verdict::Repeated,
                false => Verdict::Drop(DropReason::NoReplaySlot),
            };
        }
        if headers.bth.ack_req || self.message != Message::None {
            self.responses.acknowledge(self.expected.sub(1), self.msn);
        }
        Verdict::Repeated
    }

    /// A SEND or WRITE, or a part of one.
    fn place<P: Port>(
        &mut self,
        inbound: &Inbound<'_>,
        arrival: &Arrival<'_>,
        connection: &Connection,
        port: &mut P,
    ) -> Verdict {
        let headers = inbound.headers;
        let opcode = headers.bth.opcode;
        let ends = opcode.ends();
        let invalid = |what| invalid_request(what, arrival.psn);
        let follows = match self.message {
            Message::None => arrival.starts,
            Message::Send { .. } => !arrival.starts && opcode.operation() == Operation::Send,
            Message::Write { .. } => !arrival.starts && opcode.operation() == Operation::Write,
        };
        if !follows {
            return invalid(RequestFault::OutOfSequence);
        }
        if !length_fits(arrival, ends, connection.mtu()) {
            return Verdict::Fault(excess_of(RequestFault::PayloadLength, arrival.psn));
        }
        let subject = match self.subject(headers.xrc, connection, port) {
            Some(subject) => subject,
            None => return invalid(RequestFault::ForeignXrcQueue),
        };
        let granted = connection.attributes.access.contains(Access::REMOTE_WRITE);
        if opcode.operation() == Operation::Write && !granted {
            // Before a receive is looked for: a program that grants no WRITE may never post one.
            return invalid(RequestFault::NotGranted);
        }
        let needs_receive = match opcode.operation() {
            Operation::Send => arrival.starts,
            _ => ends && opcode.has_immediate(),
        };
        if needs_receive && !self.hand.held {
            let taken = match self.matches_tags() && opcode.operation() == Operation::Send {
                false => self.take_receive(headers.xrc, connection, port),
                true => self.take_for_tag(arrival, ends, connection, port),
            };
            match taken {
                TakenReceive::Taken => {}
                TakenReceive::Empty => return Verdict::NotReady,
                TakenReceive::Unknown => return invalid(RequestFault::SharedQueueGone),
            }
        }
        let data = self.after_tag(arrival);
        let arrival = data.as_ref().unwrap_or(arrival);
        let opens = self.message == Message::None;
        if self.hand.tagged.is_rendezvous() {
            if let Err(fault) = self.begin_rendezvous(inbound, connection, port) {
                return Verdict::Fault(fault);
            }
        } else if opens {
            let (message, fault) = self.open(inbound, subject, connection, port);
            if let Some(fault) = fault {
                return Verdict::Fault(fault);
            }
            self.message = message;
        }
        if let Err(fault) = self.store(arrival, ends, subject, port) {
            if opens {
                self.message = Message::None;
            }
            return Verdict::Fault(fault);
        }
        let mut invalidated = None;
        if let (true, Some(key)) = (ends, headers.invalidate) {
            if let Err(refusal) = port.invalidate(subject, key) {
                // The receive fails and the queue pair stops (IBA 9.9.3, class J). The specification asks for no
                // refusal, and Soft-RoCE acknowledges the message: its sender takes it for received, and finds out when
                // its next work is not answered. A refusal tells it at once.
                return Verdict::Fault(Fault {
                    code: NakCode::RemoteAccess,
                    receive: Status::RemoteInvalidRequest,
                    cause: Failure::Refused(refusal),
                    event: None,
                });
            }
            invalidated = Some(key);
        }
        self.expected = arrival.psn.add(arrival.count);
        if arrival.starts && self.hand.tagged != Tagged::No {
            self.announce_match(inbound, connection);
        }
        if ends {
            self.msn = self.msn.add(1);
            self.finish(inbound, invalidated, connection);
        }
        Verdict::Accepted
    }

    /// Begins a message: for a WRITE, checks all of its target at once.
    fn open<P: Port>(
        &mut self,
        inbound: &Inbound<'_>,
        subject: Subject,
        connection: &Connection,
        port: &mut P,
    ) -> (Message, Option<Fault>) {
        let headers = inbound.headers;
        if headers.bth.opcode.operation() == Operation::Send {
            return (Message::Send { placed: 0 }, None);
        }
        let psn = headers.bth.psn;
        let Some(reth) = headers.reth else {
            return (Message::None, Some(fault_of(RequestFault::WriteWithoutReth, psn)));
        };
        let message = Message::Write { reth, placed: 0 };
        (message, grant(reth, Access::REMOTE_WRITE, subject, psn, connection, port).err())
    }

    /// Puts payload where the message wants it. The message is changed in place: a copy of it that is written in parts
    /// and read as a whole waits for all the payload that was stored before.
    fn store<P: Port>(
        &mut self,
        arrival: &Arrival<'_>,
        ends: bool,
        subject: Subject,
        port: &mut P,
    ) -> Result<(), Fault> {
        let length = arrival.payload.len() as u64;
        match &mut self.message {
            Message::None => Ok(()),
            Message::Send { placed } => {
                if *placed + length > self.hand.space {
                    return Err(Fault {
                        code: NakCode::InvalidRequest,
                        receive: Status::LocalLength,
                        cause: Failure::TooLong { length: *placed + length, space: self.hand.space },
                        event: None,
                    });
                }
                let local = Subject { remote: false, ..self.hand.subject.unwrap_or(subject) };
                scatter(&self.hand.work.sges, *placed, arrival.payload, local, port).map_err(|refusal| Fault {
                    code: NakCode::RemoteOperational,
                    receive: Status::LocalProtection,
                    cause: Failure::Refused(refusal),
                    event: None,
                })?;
                *placed += length;
                Ok(())
            }
            Message::Write { reth, placed } => {
                let after = *placed + length;
                if after > u64::from(reth.len) || ends != (after == u64::from(reth.len)) {
                    return Err(excess_of(RequestFault::WriteLength, arrival.psn));
                }
                if length > 0 {
                    let range = Range { key: reth.rkey, address: reth.va.wrapping_add(*placed), length };
                    port.write(subject, range, arrival.payload).map_err(access_fault)?;
                }
                *placed = after;
                Ok(())
            }
        }
    }

    /// A message is complete: so is the receive it used.
    fn finish(&mut self, inbound: &Inbound<'_>, invalidated: Option<Key>, connection: &Connection) {
        let headers = inbound.headers;
        let (kind, bytes) = match core::mem::take(&mut self.message) {
            Message::None => return,
            Message::Send { placed } => (CompletionKind::Receive, placed),
            Message::Write { reth, .. } => {
                if let Some(counts) = &mut self.counts {
                    counts.remote_writes.add(reth.len.into());
                }
                // A WRITE uses a receive only for its immediate; one in hand may wait for a SEND.
                if headers.immediate.is_none() {
                    return;
                }
                (CompletionKind::ReceiveWriteImmediate, u64::from(reth.len))
            }
        };
        if !self.hand.held {
            return;
        }
        self.hand.held = false;
        let kind = match kind {
            CompletionKind::Receive => self.hand.tagged.kind(),
            kind => kind,
        };
        self.received(self.hand.work.wr_id, kind, bytes, inbound, invalidated, connection);
        if self.hand.tagged != Tagged::No {
            self.name_tag();
        }
    }

    /// A receive of the queue in hand has completed.
    #[inline]
    fn received(
        &mut self,
        wr_id: u64,
        kind: CompletionKind,
        bytes: u64,
        inbound: &Inbound<'_>,
        invalidated: Option<Key>,
        connection: &Connection,
    ) {
        let headers = inbound.headers;
        self.completions.push_back(Completion {
            bytes: bytes as u32,
            immediate: headers.immediate,
            invalidated,
            src_qpn: Some(connection.attributes.dest_qpn),
            solicited: headers.bth.solicited,
            ..Completion::of(wr_id, kind, Status::Success, self.hand.queue, connection.qpn)
        });
    }

    /// On whose behalf a request acts. An XRC request acts in the domain of the shared receive queue it names.
    fn subject<P: Port>(&self, xrc: Option<Srqn>, connection: &Connection, port: &mut P) -> Option<Subject> {
        let pd = match xrc {
            None => connection.pd,
            Some(srq) => port.shared_domain(connection.qpn, srq)?,
        };
        Some(Subject { pd, ..connection.remote() })
    }

    fn take_receive<P: Port>(&mut self, xrc: Option<Srqn>, connection: &Connection, port: &mut P) -> TakenReceive {
        let taken = match xrc.or(self.srq) {
            Some(srq) => {
                self.hand.queue = Queue::Shared(srq);
                let pd: Option<ProtectionDomain> = port.shared_domain(connection.qpn, srq);
                self.hand.subject = pd.map(|pd| Subject { pd, ..connection.local() });
                port.take_receive(connection.qpn, srq, &mut self.hand.work)
            }
            None => {
                self.hand.queue = Queue::Receive;
                self.hand.subject = None;
                match &mut self.own {
                    None => TakenReceive::Unknown,
                    Some(own) => match own.take(&mut self.hand.work) {
                        true => TakenReceive::Taken,
                        false => TakenReceive::Empty,
                    },
                }
            }
        };
        self.hand.held = taken == TakenReceive::Taken;
        self.hand.space = self.hand.work.space();
        self.hand.tagged = Tagged::No;
        taken
    }

    /// The completion of the receive in hand, which went wrong.
    fn failed_receive(&self, status: Status, cause: Failure, connection: &Connection) -> Completion {
        let (wr_id, kind) = (self.hand.work.wr_id, self.hand.tagged.failed_kind());
        let failed = Completion::of(wr_id, kind, status, self.hand.queue, connection.qpn);
        Completion { solicited: true, cause: Some(Cause::Failed(cause)), ..failed }
    }
}

/// Whether a request is answered with more than an acknowledgement.
fn answered(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::ReadRequest
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::AtomicWrite
            | Operation::Flush
    )
}

/// Every packet but a message's last is full, and a last one of several is not empty.
fn length_fits(arrival: &Arrival<'_>, ends: bool, mtu: u32) -> bool {
    let full = u64::from(arrival.count) * u64::from(mtu);
    let length = arrival.payload.len() as u64;
    match Position::of(arrival.starts, ends) {
        _ if arrival.count == 0 => false,
        Position::First | Position::Middle => length == full,
        Position::Only if arrival.count == 1 => length <= full,
        Position::Last | Position::Only => length <= full && length > full - u64::from(mtu),
    }
}

/// Whether the queue pair and the memory let the peer do this.
fn grant<P: Port>(
    reth: Reth,
    access: Access,
    subject: Subject,
    psn: Psn,
    connection: &Connection,
    port: &mut P,
) -> Result<(), Fault> {
    refuse_if!(!connection.attributes.access.contains(access), fault_of(RequestFault::NotGranted, psn));
    refuse_if!(u64::from(reth.len) > MAX_MESSAGE, excess_of(RequestFault::MessageTooLong, psn));
    if reth.len == 0 {
        return Ok(());
    }
    let range = Range { key: reth.rkey, address: reth.va, length: u64::from(reth.len) };
    port.check(subject, range, access).map_err(access_fault)?;
    if access == Access::REMOTE_READ {
        port.read_requested(subject, range);
    }
    Ok(())
}

fn access_fault(refusal: Refusal) -> Fault {
    let (cause, event) = (Failure::Refused(refusal), Some(AsyncEvent::QpAccessError));
    Fault { code: NakCode::RemoteAccess, receive: Status::LocalAccess, cause, event }
}

/// A request that means nothing here: its opcode is out of sequence or not granted.
fn fault_of(what: RequestFault, psn: Psn) -> Fault {
    let (cause, event) = (Failure::PeerFault { what: what.sentence(), psn }, Some(AsyncEvent::QpRequestError));
    Fault { code: NakCode::InvalidRequest, receive: Status::RemoteInvalidRequest, cause, event }
}

/// A request beyond a limit: its length, its alignment, or one too many. The peer hears what it hears of any invalid
/// request, the program here that its memory was reached for in a wrong way.
fn excess_of(what: RequestFault, psn: Psn) -> Fault {
    Fault { event: Some(AsyncEvent::QpAccessError), ..fault_of(what, psn) }
}

fn invalid_request(what: RequestFault, psn: Psn) -> Verdict {
    Verdict::Fault(fault_of(what, psn))
}
