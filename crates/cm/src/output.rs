//! What waits to be taken from the manager: messages, events, trace events. All of it is bounded, whatever the peers
//! send.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use trace::{DropReason, Kind};
use wire::cm::{CmDatagram, CommId, MessageKind};
use wire::{Qpn, refuse_if};

use crate::connection::State;
use crate::{Event, Route, Time, Transmit};

/// What became of a message: it went further, or why not.
pub(crate) type Passed = Result<(), DropReason>;

/// The three queues.
pub(crate) struct Output {
    pub transmits: VecDeque<Transmit>,
    pub events: VecDeque<Event>,
    traces: VecDeque<trace::Event>,
    pub tracing: bool,
    /// Messages that went no further, by reason.
    dropped: Vec<(DropReason, u64)>,
    /// How many answers to strangers may still be sent, and when that was counted.
    answers: u32,
    counted: Time,
}

impl Output {
    /// Beyond this many events a request from a stranger is dropped.
    const MAX_EVENTS: usize = 16384;
    /// Beyond this many messages nothing is repeated.
    const MAX_TRANSMITS: usize = 65536;
    /// Beyond this many messages strangers get no answer.
    const MAX_STRANGER_MESSAGES: usize = 1024;
    /// Trace events that nobody took; the oldest are lost.
    const MAX_TRACE_EVENTS: usize = 4096;
    /// Answers to strangers at once, and per second.
    const STRANGER_ANSWERS_PER_SECOND: u32 = 4096;

    pub fn new() -> Output {
        Output {
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            traces: VecDeque::new(),
            tracing: false,
            dropped: Vec::new(),
            answers: Output::STRANGER_ANSWERS_PER_SECOND,
            counted: Time::ZERO,
        }
    }

    /// Sends a message that moves a connection forward.
    pub fn send(&mut self, route: Route, datagram: CmDatagram) {
        self.transmits.push_back(Transmit { route, datagram, again: false });
    }

    /// Sends a message that was sent before.
    pub fn send_again(&mut self, route: Route, datagram: &CmDatagram) -> Passed {
        refuse_if!(self.transmits.len() >= Output::MAX_TRANSMITS, DropReason::CmCrowded);
        self.transmits.push_back(Transmit { route, datagram: *datagram, again: true });
        Ok(())
    }

    /// Answers a stranger of whom nothing is known, as long as there are not too many of them.
    pub fn answer_stranger(&mut self, now: Time, route: Route, datagram: CmDatagram) -> Passed {
        const ONE: u64 = 1_000_000_000 / Output::STRANGER_ANSWERS_PER_SECOND as u64;
        let earned = (now.since(self.counted) / ONE).min(Output::STRANGER_ANSWERS_PER_SECOND.into()) as u32;
        if earned > 0 {
            self.answers = (self.answers + earned).min(Output::STRANGER_ANSWERS_PER_SECOND);
            self.counted = now;
        }
        refuse_if!(self.answers == 0 || self.transmits.len() >= Output::MAX_STRANGER_MESSAGES, DropReason::CmCrowded);
        self.answers -= 1;
        self.send(route, datagram);
        Ok(())
    }

    /// A message that names this connection goes no further.
    #[cold]
    pub fn drop_message(&mut self, now: Time, id: CommId, message: MessageKind, reason: DropReason) {
        match self.dropped.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => self.dropped.push((reason, 1)),
        }
        let kind = Kind::CmMessageDropped { message: message.name(), local_comm_id: id.value(), reason };
        self.push_trace(trace::Event { at: now.as_nanos(), qpn: None, kind });
    }

    /// What has gone no further since the last call.
    pub fn take_drops(&mut self) -> Vec<(DropReason, u64)> {
        core::mem::take(&mut self.dropped)
    }

    /// Whether a stranger's request may become an event.
    pub fn has_room(&self) -> bool {
        self.events.len() < Output::MAX_EVENTS && self.transmits.len() < Output::MAX_TRANSMITS
    }

    pub fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Nobody wants to hear of it any more.
    pub fn forget(&mut self, id: CommId) {
        self.events.retain(|event| event.id() != id);
    }

    pub fn trace(
        &mut self,
        now: Time,
        qpn: Qpn,
        id: CommId,
        from: Option<State>,
        to: Option<State>,
        message: Option<MessageKind>,
    ) {
        if !self.tracing {
            return;
        }
        let name = |state: Option<State>| state.map_or("idle", State::name);
        let kind = Kind::CmTransition {
            local_comm_id: id.value(),
            from: name(from),
            to: name(to),
            message: message.map(MessageKind::name),
        };
        self.push_trace(trace::Event { at: now.as_nanos(), qpn: Some(qpn), kind });
    }

    pub fn push_trace(&mut self, event: trace::Event) {
        if !self.tracing {
            return;
        }
        if self.traces.len() >= Output::MAX_TRACE_EVENTS {
            self.traces.pop_front();
        }
        self.traces.push_back(event);
    }

    pub fn take_trace(&mut self) -> Option<trace::Event> {
        self.traces.pop_front()
    }
}
