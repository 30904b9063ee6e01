//! A queue pair: requester, completer and responder under one roof, with the state machine that says which of them
//! works. The three never touch each other's fields; this file passes what one concludes on to the others.

mod counts;
mod express;
mod frames;
mod inbound;
mod injected;
mod outbound;
mod pacing;
mod placed;
mod probe;
mod refusal;
mod rendezvous;
mod transitions;
mod waiting;

pub use express::AtOnce;
pub use frames::FrameOut;
pub use placed::{MayPlace, Placement};
pub use waiting::{WaitReason, Waiting};

use self::pacing::{MarkedDatagram, RecentTargets};
use self::probe::ProbeOutcome;
use self::rendezvous::Rendezvouses;
use crate::attributes::{Attributes, Capabilities, Limits};
use crate::completed_work::Counts;
use crate::completer::Completer;
use crate::completion::{AsyncEvent, Completion, Queue, Status};
use crate::connection::Connection;
use crate::packet_counters::{Incidents, Traffic};
use crate::port::Port;
use crate::rate::Rate;
use crate::receive::ReceiveQueue;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::send_queue::{Outcome, SendQueue};
use crate::state::{Kind, State};
use crate::stop::Stop;
use crate::work::{Data, MAX_MESSAGE, Operation, PostError, ReceiveRequest, SendRequest};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::mem::offset_of;
use core::ops::Range;
use trace::{Failure, PeerReason, Time};
use wire::access::ProtectionDomain;
use wire::flow::ETHERNET_HEADER;
use wire::{Mtu, Pkey, Qpn, Srqn, refuse_if};

pub(crate) use outbound::Handed;

/// What a queue pair is created from; none of it changes later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePairConfig {
    /// Its number.
    pub qpn: Qpn,
    /// Its kind of service.
    pub kind: Kind,
    /// The protection domain its work and its peer's requests act in.
    pub pd: ProtectionDomain,
    /// The sizes of its queues.
    pub capabilities: Capabilities,
    /// Takes its receives from this shared receive queue.
    pub srq: Option<Srqn>,
    /// Every send completes with an entry, signaled or not.
    pub signal_all: bool,
    /// What the device allows.
    pub limits: Limits,
    /// The partition key (index 0 of the port's table).
    pub pkey: Pkey,
    /// The longest datagram payload the port carries.
    pub port_mtu: Mtu,
}

/// A queue pair, as a machine without a world: packets, work and time go in, trains, completions, events and deadlines
/// come out.
///
/// After every call that takes something in (`modify`, `post_*`, `handle*`), drive it: call
/// [`poll_transmit`](QueuePair::poll_transmit) until it returns `None` and send each train, then take completions and
/// events until there are none, then ask for the next deadline. **A completion must not be shown to the program before
/// the trains that were ready with it have been sent.** The crate's documentation has the loop as code.
///
/// Fields lie in the order in which they are written down, here and in the parts: what every message needs lies
/// together, so that a message of a queue pair that was not used for long brings few cache lines.
#[derive(Debug)]
#[repr(C)]
pub struct QueuePair {
    limits: Limits,
    incidents: Incidents,
    /// When the last congestion notification was sent.
    last_cnp: Option<Time>,
    /// When the last one was believed.
    believed_cnp: Option<Time>,
    /// Datagrams: whom the notification that is owed, or was last sent, is for.
    marked_by: Option<Box<MarkedDatagram>>,
    /// Datagrams: whose notifications are believed.
    recent: RecentTargets,
    requester: Requester,
    queue: SendQueue,
    /// What the last train was, for the link's complaint that it could not gather it.
    handed: Handed,
    traffic: Traffic,
    /// How long the IP header of a packet to or from the peer is.
    ip_header: u64,
    completer: Completer,
    events: VecDeque<AsyncEvent>,
    /// Requests and responses take turns.
    requests_next: bool,
    /// Entering SQD was asked for and the drained event is still owed.
    drain_owed: bool,
    /// A congestion notification is owed to the peer.
    cnp_owed: bool,
    /// The device refuses operations: requests are looked at.
    refuses_work: bool,
    /// Work that has not begun stays in the queue.
    holds_back: bool,
    /// A packet has arrived since the queue pair became ready to receive.
    established: bool,
    probe: ProbeOutcome,
    /// Where its shared receive queue matches tags: the data that is to be read.
    rendezvouses: Option<Box<Rendezvouses>>,
    /// How fast it may send, where anything limits that.
    rate: Option<Box<Rate>>,
    connection: Connection,
    responder: Responder,
    /// What stopped it, if something has.
    stop: Option<Stop>,
    /// What a peer on this host says about the refusal that is being handled.
    peer_said: Option<PeerReason>,
}

impl QueuePair {
    /// Which bytes of it every message needs.
    pub const HOT: Range<usize> = {
        let first = offset_of!(QueuePair, requester) + Requester::HOT;
        let last = offset_of!(QueuePair, responder) + Responder::HOT;
        first..last
    };

    /// A queue pair in RESET.
    pub fn new(config: QueuePairConfig) -> QueuePair {
        let caps = config.capabilities;
        let own = (config.kind.has_receive_queue() && config.srq.is_none())
            .then(|| ReceiveQueue::new(caps.max_recv_wr, caps.max_recv_sge));
        let send_wr = if config.kind.has_send_queue() { caps.max_send_wr } else { 0 };
        QueuePair {
            connection: Connection {
                qpn: config.qpn,
                kind: config.kind,
                pd: config.pd,
                pkey: config.pkey,
                port_mtu: config.port_mtu,
                attributes: Attributes { capabilities: caps, ..Attributes::default() },
                tag_domain: config.pd,
            },
            limits: config.limits,
            incidents: Incidents::default(),
            traffic: Traffic::default(),
            ip_header: 0,
            queue: SendQueue::new(send_wr, caps.max_send_sge, caps.max_inline_data, config.signal_all),
            requester: Requester::default(),
            completer: Completer::with_timers(config.limits.timers),
            responder: Responder::new(own, config.srq, config.limits.keeps_early),
            events: VecDeque::new(),
            handed: Handed::Nothing,
            requests_next: false,
            drain_owed: false,
            cnp_owed: false,
            holds_back: false,
            refuses_work: !config.limits.refused_work.is_empty(),
            last_cnp: None,
            believed_cnp: None,
            marked_by: None,
            recent: RecentTargets::default(),
            rate: None,
            established: false,
            probe: ProbeOutcome::None,
            rendezvouses: None,
            stop: None,
            peer_said: None,
        }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.connection.qpn
    }

    /// Its kind of service.
    pub fn kind(&self) -> Kind {
        self.connection.kind
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        self.connection.attributes.state
    }

    /// What stopped it, while it is in an error state.
    pub fn stop(&self) -> Option<Stop> {
        self.stop.filter(|_| matches!(self.state(), State::Error | State::SendQueueError))
    }

    /// Its attributes as they are now: the sequence numbers are the next to send and the next expected.
    pub fn attributes(&self) -> Attributes {
        let mut attributes = self.connection.attributes;
        if matches!(self.state(), State::ReadyToSend | State::SendQueueDrained | State::SendQueueError) {
            attributes.sq_psn = self.requester.psn();
        }
        if self.state().receives() {
            attributes.rq_psn = self.responder.expected();
        }
        attributes
    }

    /// The sequence numbers that it began with, as the program gave them: of what it sends, and of what it expects.
    pub fn first_psns(&self) -> [wire::Psn; 2] {
        let attributes = &self.connection.attributes;
        [attributes.sq_psn, attributes.rq_psn]
    }

    /// Posts a work request to the send queue.
    pub fn post_send<P: Port>(&mut self, now: Time, request: &SendRequest<'_>, port: &mut P) -> Result<(), PostError> {
        if let Err(error) = self.take_send(request) {
            self.trace(now, port, || trace::Kind::PostRefused {
                wr_id: request.wr_id,
                queue: trace::Queue::Send,
                reason: error.name(),
            });
            return Err(error);
        }
        self.trace_posted(now, request, port);
        Ok(())
    }

    #[inline]
    fn trace_posted<P: Port>(&self, now: Time, request: &SendRequest<'_>, port: &mut P) {
        self.trace(now, port, || trace::Kind::WorkPosted {
            wr_id: request.wr_id,
            queue: trace::Queue::Send,
            opcode: request.operation.name(),
            bytes: request.data.length(),
        });
    }

    /// How many more work requests the send queue takes: for a driver that posts several or none.
    pub fn send_room(&self) -> u32 {
        self.queue.room()
    }

    /// How much work has not completed: of the send queue, and of a receive queue of its own.
    pub fn outstanding(&self) -> [u32; 2] {
        let sends = self.connection.attributes.capabilities.max_send_wr.saturating_sub(self.queue.room());
        [sends, self.responder.waiting_receives()]
    }

    /// Queues a work request, or says why not.
    fn take_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.admit(request)?;
        let outcome = match self.state() {
            State::Error | State::SendQueueError => Some(Outcome::Failed(Status::WorkRequestFlushed, Failure::Flushed)),
            _ => None,
        };
        self.queue.post(request, outcome)?;
        if outcome.is_some() {
            self.requester.reset(self.queue.tail());
        }
        Ok(())
    }

    /// What the kind and state of the queue pair have against a work request.
    fn admit(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let (kind, state) = (self.kind(), self.state());
        let operation = &request.operation;
        if !kind.has_send_queue() {
            // No state would do.
            return Err(PostError::NotSupported { transport: kind.name(), operation: operation.name() });
        }
        if matches!(state, State::Reset | State::Init | State::ReadyToReceive) {
            return Err(PostError::WrongState { state, queue: "send" });
        }
        if self.refuses_work
            && let Some(refusal) = self.limits.refused_work.of(operation.name())
        {
            return Err(refusal.into());
        }
        // Hardware takes what only a better transport could send, and fails when it comes to it; so does the requester.
        let is_carried = operation.is_of(kind);
        if !is_carried && (kind == Kind::RawPacket || operation.is_local()) {
            return Err(PostError::NotSupported { transport: kind.name(), operation: operation.name() });
        }
        let writes_locally =
            matches!(operation, Operation::Read { .. } | Operation::CompareSwap { .. } | Operation::FetchAdd { .. });
        if writes_locally && matches!(request.data, Data::Inline(_)) {
            return Err(PostError::InlineNotAllowed { operation: operation.name() });
        }
        let length = request.data.length();
        refuse_if!(length > MAX_MESSAGE, PostError::MessageTooLong { length });
        refuse_if!(kind == Kind::RawPacket && length < ETHERNET_HEADER as u64, PostError::FrameTooShort { length });
        refuse_if!(is_carried && request.target.is_some() != (kind == Kind::UnreliableDatagram), PostError::Target);
        if request.xrc_srq.is_some() != (kind == Kind::XrcInitiator && !operation.is_local()) {
            return Err(PostError::XrcTarget);
        }
        Ok(())
    }

    /// Posts a work request to the receive queue.
    pub fn post_receive<P: Port>(
        &mut self,
        now: Time,
        request: &ReceiveRequest<'_>,
        port: &mut P,
    ) -> Result<(), PostError> {
        let state = self.state();
        let taken = match state {
            State::Reset => Err(PostError::WrongState { state, queue: "receive" }),
            _ => self.responder.post(request),
        };
        if let Err(error) = taken {
            self.trace(now, port, || trace::Kind::PostRefused {
                wr_id: request.wr_id,
                queue: trace::Queue::Receive,
                reason: error.name(),
            });
            return Err(error);
        }
        self.trace(now, port, || trace::Kind::WorkPosted {
            wr_id: request.wr_id,
            queue: trace::Queue::Receive,
            opcode: "RECV",
            bytes: request.sges.iter().map(|sge| u64::from(sge.length)).sum(),
        });
        Ok(())
    }

    /// Whether there may be a completion: if not, [`poll_completion`](QueuePair::poll_completion) need not be asked.
    #[inline]
    pub fn may_complete(&self) -> bool {
        self.queue.has_outcome() || self.responder.has_completion() || self.state() == State::Error
    }

    /// The next completion, if any. Sends complete in the order they were posted, and so do receives.
    pub fn poll_completion<P: Port>(&mut self, now: Time, port: &mut P) -> Option<Completion> {
        let completion = self.next_completion()?;
        tell(now, self.qpn(), &completion, port);
        Some(completion)
    }

    fn next_completion(&mut self) -> Option<Completion> {
        let qpn = self.qpn();
        // Sends first: a peer acknowledges a request before it answers it, and programs that wait for both expect that
        // order.
        let sends_first = self.queue.goes_first(self.responder.has_completion());
        let sent = if sends_first { self.queue.completion(qpn) } else { None };
        match sent {
            Some(completion) => Some(completion),
            None if self.responder.has_completion() => {
                let completion = self.responder.completion()?;
                self.count_receive(&completion);
                Some(completion)
            }
            None if self.state() == State::Error => self.responder.flushed(&self.connection),
            None => None,
        }
    }

    /// Counts what completes from now on.
    pub fn count(&mut self) {
        self.responder.answers_read();
        self.queue.counts.get_or_insert_default();
        self.responder.counts.get_or_insert_default();
    }

    /// What has completed since the last time, if it counts. Ask after [`poll_transmit`](QueuePair::poll_transmit): a
    /// READ of the peer is complete once its answer is on its way.
    #[inline]
    pub fn take_counts(&mut self) -> Option<Counts> {
        let mut taken = core::mem::take(&mut **self.queue.counts.as_mut()?);
        taken.join(&core::mem::take(&mut **self.responder.counts.as_mut()?));
        taken.remote_reads = self.responder.answers_read();
        Some(taken)
    }

    /// Shows all completions, in the same order. They are not copied on the way, as they would be by the other.
    #[inline]
    pub fn show_completions<P: Port>(&mut self, now: Time, port: &mut P, mut show: impl FnMut(&Completion)) {
        let qpn = self.connection.qpn;
        while self.may_complete() {
            if self.queue.goes_first(self.responder.has_completion())
                && self.queue.show_completion(qpn, |completion| {
                    tell(now, qpn, completion, port);
                    show(completion);
                })
            {
                continue;
            }
            if let Some(completion) = self.responder.next_completion() {
                tell(now, qpn, completion, port);
                show(completion);
                self.traffic.receives += u64::from(completion.status == Status::Success);
                self.responder.completed();
            } else if self.state() == State::Error
                && let Some(completion) = self.responder.flushed(&self.connection)
            {
                tell(now, qpn, &completion, port);
                show(&completion);
            } else {
                return;
            }
        }
    }

    /// The next event, if any.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](QueuePair::handle_timeout) wants to be called.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        let answer = self.answer_deadline();
        match self.paced_until() {
            None => answer,
            paced => answer.into_iter().chain(paced).min(),
        }
    }

    /// When the peer's time to answer is over, or the time it has asked for.
    #[inline]
    pub fn answer_deadline(&self) -> Option<Time> {
        match (self.completer.next_deadline(), self.completer.not_ready_until()) {
            (Some(ack), Some(rnr)) => Some(ack.min(rnr)),
            (ack, rnr) => ack.or(rnr),
        }
    }

    fn raise<P: Port>(&mut self, now: Time, event: AsyncEvent, port: &mut P) {
        self.events.push_back(event);
        self.trace(now, port, || trace::Kind::AsyncEvent { name: event.name() });
    }

    #[inline]
    fn trace<P: Port>(&self, now: Time, port: &mut P, kind: impl FnOnce() -> trace::Kind) {
        if port.tracing() {
            port.record(&trace::Event { at: now.as_nanos(), qpn: Some(self.qpn()), kind: kind() });
        }
    }
}

/// A completion is about to be shown.
#[inline]
fn tell<P: Port>(now: Time, qpn: Qpn, completion: &Completion, port: &mut P) {
    port.tells(completion.queue);
    if port.tracing() {
        let kind = trace::Kind::Completed {
            wr_id: completion.wr_id,
            queue: match completion.queue {
                Queue::Send => trace::Queue::Send,
                Queue::Receive => trace::Queue::Receive,
                Queue::Shared(_) => trace::Queue::SharedReceive,
            },
            status: completion.status.name(),
            opcode: completion.kind.name(),
            bytes: u64::from(completion.bytes),
            failure: completion.failure(),
        };
        port.record(&trace::Event { at: now.as_nanos(), qpn: Some(qpn), kind });
    }
}
