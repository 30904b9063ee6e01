//! The work requests of a queue pair, from being posted to being polled. Names of work requests need not differ: the
//! order says which is which.

use super::fill::unwrapped;
use std::collections::{BTreeMap, HashMap, VecDeque};
use web::timeline::{MessageId, Queue};
use wire::Headers;

/// Work that has not completed.
struct Waiting {
    wr_id: u64,
    message: MessageId,
    /// It completes if it succeeds.
    signaled: bool,
}

/// What is under way at a queue pair.
#[derive(Default)]
pub struct LaneWork {
    /// Every send completes.
    pub signals_all: bool,
    /// Its receives are those of this shared receive queue.
    pub srq: Option<u32>,
    sends: VecDeque<Waiting>,
    receives: VecDeque<Waiting>,
    /// Sends whose first packet has not left.
    unsent: VecDeque<MessageId>,
    /// The send whose packets leave.
    current: Option<MessageId>,
    /// By the first sequence number of a message.
    starts: BTreeMap<i64, MessageId>,
    last_psn: Option<i64>,
    completed: VecDeque<(u64, MessageId)>,
    /// The newest that was posted, until it is accepted.
    posted: Option<(u64, bool)>,
    /// Sends of the peer that filled a receive, and when.
    pub arrived: Vec<(i64, MessageId)>,
    /// Receives that were filled, in order.
    pub received: Vec<MessageId>,
}

/// So many beginnings of messages are remembered: what answers and repetitions belong to.
const MAX_STARTS: usize = 1 << 16;

impl LaneWork {
    /// A new queue pair.
    pub fn new(signals_all: bool, srq: Option<u32>) -> LaneWork {
        LaneWork { signals_all, srq, ..LaneWork::default() }
    }

    /// A work request is posted.
    pub fn posts(&mut self, wr_id: u64, queue: Queue, signaled: bool, message: MessageId) {
        let signaled = signaled || self.signals_all;
        let waiting = Waiting { wr_id, message, signaled };
        match queue {
            Queue::Send => {
                self.sends.push_back(waiting);
                self.unsent.push_back(message);
            }
            Queue::Receive => self.receives.push_back(waiting),
        }
        self.posted = Some((wr_id, queue == Queue::Send));
    }

    /// Whether a work request was accepted that the program has posted.
    pub fn accepts(&mut self, wr_id: u64, is_send: bool) -> bool {
        self.posted.take_if(|posted| *posted == (wr_id, is_send)).is_some()
    }

    /// The newest was refused.
    pub fn refused(&mut self, wr_id: u64, is_send: bool) -> Option<MessageId> {
        self.posted = None;
        let queue = if is_send { &mut self.sends } else { &mut self.receives };
        let newest = queue.pop_back_if(|waiting| waiting.wr_id == wr_id)?;
        self.unsent.pop_back_if(|message| *message == newest.message);
        Some(newest.message)
    }

    /// A packet leaves: the work request that it belongs to.
    pub fn sends_packet(
        &mut self,
        headers: &Headers,
        packets: u32,
        wr_id: Option<u64>,
        again: bool,
    ) -> Option<MessageId> {
        if headers.bth.opcode.operation().is_response() {
            return None;
        }
        wr_id?;
        let psn = unwrapped(self.last_psn.unwrap_or_else(|| headers.bth.psn.value().into()), headers.bth.psn);
        if again || self.last_psn.is_some_and(|last| psn < last) {
            return self.at(psn);
        }
        self.last_psn = Some(psn + i64::from(packets) - 1);
        if headers.bth.opcode.starts() {
            self.current = self.unsent.pop_front();
            if let Some(message) = self.current {
                self.starts.insert(psn, message);
                if self.starts.len() > MAX_STARTS {
                    self.starts.pop_first();
                }
            }
        }
        self.current
    }

    /// The newest is done without packets.
    pub fn sends_directly(&mut self) -> Option<MessageId> {
        self.unsent.pop_back()
    }

    fn at(&self, psn: i64) -> Option<MessageId> {
        self.starts.range(..=psn).next_back().map(|(_, message)| *message)
    }

    /// An answer of the peer comes: the work request that it belongs to.
    pub fn receives_answer(&mut self, headers: &Headers) -> Option<MessageId> {
        let last = self.last_psn?;
        if !headers.bth.opcode.operation().is_response() {
            return None;
        }
        self.at(unwrapped(last, headers.bth.psn))
    }

    /// A work request completes.
    pub fn completes(
        &mut self,
        wr_id: u64,
        queue: trace::Queue,
        is_success: bool,
        shared: &mut HashMap<(u32, u64), Vec<MessageId>>,
    ) -> Option<MessageId> {
        let message = match queue {
            trace::Queue::Send => {
                let is_it = |waiting: &Waiting| waiting.wr_id == wr_id && (waiting.signaled || !is_success);
                let place = self.sends.iter().position(is_it)?;
                // What was before it has completed without a word.
                self.sends.drain(..=place).next_back()?.message
            }
            _ if self.srq.is_some() => shared.get_mut(&(self.srq?, wr_id))?.pop()?,
            _ => {
                let place = self.receives.iter().position(|waiting| waiting.wr_id == wr_id)?;
                self.receives.remove(place)?.message
            }
        };
        if queue != trace::Queue::Send && is_success {
            self.received.push(message);
        }
        self.completed.push_back((wr_id, message));
        Some(message)
    }

    /// The program takes a completion.
    pub fn polled(&mut self, wr_id: u64) -> Option<MessageId> {
        let place = self.completed.iter().position(|(known, _)| *known == wr_id)?;
        self.completed.remove(place).map(|(_, message)| message)
    }
}
