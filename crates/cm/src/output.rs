//! What waits to be taken from the manager: messages, events, trace events. All of it is bounded, whatever the peers send.

use alloc::collections::VecDeque;

use trace::Kind;
use wire::Qpn;
use wire::cm::{CmDatagram, CommId, MessageKind};

use crate::connection::State;
use crate::{Event, Route, Time, Transmit};

/// The three queues.
pub(crate) struct Output {
    pub transmits: VecDeque<Transmit>,
    pub events: VecDeque<Event>,
    traces: VecDeque<trace::Event>,
    pub tracing: bool,
    /// How many answers to strangers may still be sent, and when that was counted.
    answers: u32,
    counted: Time,
}

impl Output {
    /// Beyond this many events a request from a stranger is dropped.
    const EVENTS: usize = 16384;
    /// Beyond this many messages nothing is repeated.
    const TRANSMITS: usize = 65536;
    /// Beyond this many messages strangers get no answer.
    const STRANGERS: usize = 1024;
    /// Trace events that nobody took; the oldest are lost.
    const TRACES: usize = 4096;
    /// Answers to strangers at once, and per second.
    const ANSWERS: u32 = 4096;

    pub fn new() -> Output {
        Output {
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            traces: VecDeque::new(),
            tracing: false,
            answers: Output::ANSWERS,
            counted: Time::ZERO,
        }
    }

    /// Sends a message that moves a connection forward.
    pub fn send(&mut self, route: Route, datagram: CmDatagram) {
        self.transmits.push_back(Transmit { route, datagram });
    }

    /// Sends a message that was sent before.
    pub fn send_again(&mut self, route: Route, datagram: &CmDatagram) {
        if self.transmits.len() < Output::TRANSMITS {
            self.send(route, *datagram);
        }
    }

    /// Answers somebody of whom nothing is known, as long as there are not too many of them.
    pub fn answer_stranger(&mut self, now: Time, route: Route, datagram: CmDatagram) {
        const ONE: u64 = 1_000_000_000 / Output::ANSWERS as u64;
        let earned = (now.since(self.counted) / ONE).min(Output::ANSWERS.into()) as u32;
        if earned > 0 {
            self.answers = (self.answers + earned).min(Output::ANSWERS);
            self.counted = now;
        }
        if self.answers > 0 && self.transmits.len() < Output::STRANGERS {
            self.answers -= 1;
            self.send(route, datagram);
        }
    }

    /// Whether a stranger's request may become an event.
    pub fn has_room(&self) -> bool {
        self.events.len() < Output::EVENTS && self.transmits.len() < Output::TRANSMITS
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
        if self.traces.len() >= Output::TRACES {
            self.traces.pop_front();
        }
        let name = |state: Option<State>| state.map_or("idle", State::name);
        let kind = Kind::CmTransition {
            local_comm_id: id.value(),
            from: name(from),
            to: name(to),
            message: message.map(MessageKind::name),
        };
        self.traces.push_back(trace::Event { at: now.as_nanos(), qpn: Some(qpn), kind });
    }

    pub fn take_trace(&mut self) -> Option<trace::Event> {
        self.traces.pop_front()
    }
}
