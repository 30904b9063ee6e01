//! What the oldest work of a send queue waits for, for people who ask why a queue pair is stuck. Nothing here changes
//! anything, and nothing of it is kept up to date while messages flow: it is read off the machine when it is asked for.

use super::{QueuePair, State};
use trace::Time;
use wire::Psn;

wire::named! {
    /// What keeps the oldest work that is not done.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[repr(u8)]
    pub enum WaitReason {
        /// The peer has not acknowledged it.
        Acknowledgement = 1: "acknowledgement",
        /// The peer has not answered a READ or atomic.
        Answer = 2: "answer",
        /// The peer had no receive for it: it is sent again later.
        NotReady = 3: "receiver_not_ready",
        /// A rate limit, of the program or because of congestion.
        Rate = 4: "rate",
        /// The program moved the send queue to SQD.
        Drained = 5: "drained",
        /// It has not been sent: the link or the congestion window has no room.
        Room = 6: "room",
    }
}

/// Work that is looked through for the oldest that is not done. More of it would take long under the queue pair's lock.
const MAX_WORK_LOOKED_AT: u64 = 1024;

impl WaitReason {
    /// The reason with this number, as a report has it.
    pub fn from_code(code: u8) -> Option<WaitReason> {
        WaitReason::ALL.into_iter().find(|reason| *reason as u8 == code)
    }
}

/// The oldest work that is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// What it waits for.
    pub reason: WaitReason,
    /// Its number among all that was posted: while it stays, nothing has been done.
    pub oldest: u64,
    /// The oldest sequence number that was not acknowledged.
    pub psn: Psn,
    /// How often it was sent again, or was refused because the receiver was not ready.
    pub tries: u32,
    /// How often that may happen; none if there is no limit.
    pub tries_allowed: Option<u8>,
    /// The identifier that the program gave it.
    pub wr_id: u64,
    /// What it is.
    pub operation: &'static str,
    /// Since when nothing was heard of it, as far as the machine remembers.
    pub since: Option<Time>,
}

impl QueuePair {
    /// The number of the oldest work that is not done.
    fn oldest_open(&self) -> Option<u64> {
        let (first, tail) = (self.completer.oldest().max(self.queue.head()), self.queue.tail());
        let looked_at = first..tail.min(first + MAX_WORK_LOOKED_AT);
        looked_at.into_iter().find(|seq| self.queue.get(*seq).is_some_and(|work| work.is_open()))
    }

    /// How many sends are not done yet: they have no outcome, however many completions the program has still to take.
    pub fn unfinished_sends(&self) -> u32 {
        let waits = matches!(self.state(), State::ReadyToSend | State::SendQueueDrained);
        let oldest = self.oldest_open().filter(|_| waits);
        oldest.map_or(0, |oldest| u32::try_from(self.queue.tail() - oldest).unwrap_or(u32::MAX))
    }

    /// What the oldest work waits for; none if all work is done, or will not be.
    pub fn waiting(&self) -> Option<Waiting> {
        if !matches!(self.state(), State::ReadyToSend | State::SendQueueDrained) {
            return None;
        }
        let oldest = self.oldest_open()?;
        let work = self.queue.get(oldest)?;
        let sent = work.started && self.requester.high().is_after(self.completer.una());
        let retries = self.connection.attributes.retry_cnt;
        let left = self.completer.retries_left(&self.connection);
        let (mut tries, mut tries_allowed) = (u32::from(retries.saturating_sub(left)), Some(retries));
        let reason = if self.completer.not_ready_until().is_some() {
            (tries, tries_allowed) = self.completer.not_ready_tries(&self.connection);
            WaitReason::NotReady
        } else if sent && work.operation.is_answered() {
            WaitReason::Answer
        } else if sent {
            WaitReason::Acknowledgement
        } else if self.state() == State::SendQueueDrained {
            WaitReason::Drained
        } else if self.paced_until().is_some() {
            WaitReason::Rate
        } else {
            WaitReason::Room
        };
        Some(Waiting {
            reason,
            oldest,
            psn: self.completer.una(),
            tries,
            tries_allowed,
            wr_id: work.wr_id,
            operation: work.operation.name(),
            since: self.completer.silent_since().filter(|_| sent),
        })
    }
}
