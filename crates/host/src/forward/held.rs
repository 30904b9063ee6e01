//! Messages of this process that wait because the process they are for has not read earlier ones: a thousand
//! connections begun at once fill its socket. Without this they were lost, and each connection waited until its message
//! was repeated. What is for one process stays in order; what is for others does not wait for it.

use super::sender::Owner;
use crate::names::Name;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How much waits at most: tens of thousands of messages. What goes beyond is lost, and repeated by its sender.
const HELD_MAX_BYTES: usize = 8 << 20;

/// How soon it is tried again while the process reads.
const TRY_AGAIN_MIN: Duration = Duration::from_millis(1);

/// How late it is tried again while the process does not read: it may be stopped.
const TRY_AGAIN_MAX: Duration = Duration::from_millis(250);

/// A message, and for whom.
#[derive(Debug)]
pub(super) struct HeldMessage {
    pub owner: Owner,
    pub name: Name,
    pub bytes: Vec<u8>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HeldMessages {
    messages: VecDeque<HeldMessage>,
    bytes: usize,
    /// When to try again, and how long after the time before that is.
    next: Option<Instant>,
    pause: Duration,
}

impl HeldMessages {
    /// Whether something waits for that process.
    pub fn any_for(&self, owner: Owner) -> bool {
        self.messages.iter().any(|held| held.owner == owner)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Keeps a message. Returns it if there is no room.
    pub fn push(&mut self, held: HeldMessage, now: Instant) -> Result<(), Vec<u8>> {
        if self.bytes + held.bytes.len() > HELD_MAX_BYTES {
            return Err(held.bytes);
        }
        if self.messages.is_empty() {
            (self.pause, self.next) = (TRY_AGAIN_MIN, Some(now + TRY_AGAIN_MIN));
        }
        self.bytes += held.bytes.len();
        self.messages.push_back(held);
        Ok(())
    }

    /// When to try again.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Takes all messages, to try them.
    pub fn take(&mut self) -> VecDeque<HeldMessage> {
        self.bytes = 0;
        std::mem::take(&mut self.messages)
    }

    /// Puts back what could not be sent; `progress` if anything was.
    pub fn put_back(&mut self, left: VecDeque<HeldMessage>, progress: bool, now: Instant) {
        self.pause = if progress { TRY_AGAIN_MIN } else { (self.pause * 2).min(TRY_AGAIN_MAX) };
        self.next = (!left.is_empty()).then_some(now + self.pause);
        self.bytes = left.iter().map(|held| held.bytes.len()).sum();
        self.messages = left;
    }
}
