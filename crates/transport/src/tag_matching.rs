//! Tag matching: the list of tagged buffers of a shared receive queue, and which message takes which of them. A message
//! is matched by the tag in its first bytes ([`header`]); what matches nothing takes an ordinary receive, and software
//! matches it. Sans-IO: the NIC owns the list, locks it, and carries the completions to the program.

mod header;

pub use header::TaggedMessage;

pub(crate) use header::{FIN_LENGTH, TMH_LENGTH, fin};

use crate::completion::{Cause, Completion, CompletionKind, Queue, Status};
use crate::work::ReceiveWork;
use crate::work::{PostError, Sge};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use wire::{Qpn, Srqn, refuse_if};

/// A rendezvous request may be this long, with what the program adds to its headers. It fits into one packet of any
/// path MTU.
pub const MAX_RENDEZVOUS_HEADER: u32 = 64;

/// So many messages may be unhandled before their completions ask for a synchronization. Hardware counts in 16 bits,
/// and asks at a quarter.
const UNHANDLED_MAX: u32 = 0x3fff;

/// The tagged buffers of one shared receive queue, in the order in which they were added.
///
/// # The race, and the count that settles it
/// A message that matches nothing goes to software, which may be adding a buffer for it at that moment. If the next
/// message with that tag took the buffer, messages would have changed places. Therefore both sides count those
/// messages: the list as it hands them out, software as it has compared each with its own list. An operation may bring
/// software's count along.
///
/// | when | what becomes of buffers |
/// |---|---|
/// | the counts agree | all are matched, also those added before |
/// | a message matches nothing | the counts differ from now on; buffers that are matched still are |
/// | a buffer is added while the counts differ | it waits; completions say that a synchronization is needed |
#[derive(Debug)]
pub struct TagList {
    entries: VecDeque<TagEntry>,
    /// The first so many entries are matched, the others wait for the counts to agree.
    active: usize,
    capacity: u32,
    max_sge: u32,
    /// Buffers that were matched and whose data has not arrived. They count as added: that bounds what peers can begin.
    in_hand: u32,
    next_handle: u32,
    /// Messages that matched nothing, and how many of them software has handled.
    unexpected: u32,
    handled: u32,
    /// Lists of pieces that are used again.
    spare: Vec<Vec<Sge>>,
}

#[derive(Debug)]
struct TagEntry {
    handle: u32,
    wr_id: u64,
    tag: u64,
    mask: u64,
    sges: Vec<Sge>,
}

/// An operation on the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_ops_wr")]
pub struct TagRequest<'a> {
    /// Comes back in the completion of the operation.
    pub wr_id: u64,
    /// What to do.
    pub operation: TagOperation<'a>,
    /// Complete with an entry in the completion queue.
    pub signaled: bool,
    /// How many messages that matched nothing software has handled, if it says so.
    pub handled: Option<u32>,
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TagOperation<'a> {
    /// Adds a buffer.
    #[doc(alias = "IBV_WR_TAG_ADD")]
    Add {
        /// Comes back in the completion of the message.
        wr_id: u64,
        /// A message matches if its tag, masked, is this.
        tag: u64,
        /// The bits of a message's tag that count.
        mask: u64,
        /// Where the bytes go.
        sges: &'a [Sge],
    },
    /// Takes a buffer back.
    #[doc(alias = "IBV_WR_TAG_DEL")]
    Delete {
        /// What adding it answered.
        handle: u32,
    },
    /// Says how many messages software has handled, and nothing else.
    #[doc(alias = "IBV_WR_TAG_SYNC")]
    Synchronize,
}

/// What came of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagOutcome {
    /// The buffer that was added.
    pub handle: Option<u32>,
    /// False if a buffer was to be deleted that is not there any more.
    pub done: bool,
    /// The counts differ.
    pub out_of_step: bool,
}

impl TagList {
    /// An empty list for `capacity` buffers of up to `max_sge` pieces.
    pub fn new(capacity: u32, max_sge: u32) -> TagList {
        TagList {
            entries: VecDeque::new(),
            active: 0,
            capacity,
            max_sge,
            in_hand: 0,
            next_handle: 0,
            unexpected: 0,
            handled: 0,
            spare: Vec::new(),
        }
    }

    /// How many buffers it holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many messages matched nothing.
    pub fn unexpected(&self) -> u32 {
        self.unexpected
    }

    /// Carries out an operation, or says why not: then nothing has changed.
    pub fn run(&mut self, request: &TagRequest<'_>) -> Result<TagOutcome, PostError> {
        let (mut handle, mut done) = (None, true);
        match request.operation {
            TagOperation::Add { wr_id, tag, mask, sges } => handle = Some(self.add(wr_id, tag, mask, sges)?),
            TagOperation::Delete { handle } => done = self.delete(handle),
            TagOperation::Synchronize => {}
        }
        if let Some(handled) = request.handled {
            self.handled = handled;
        }
        let out_of_step = self.handled != self.unexpected;
        if !out_of_step {
            self.active = self.entries.len();
        }
        Ok(TagOutcome { handle, done, out_of_step })
    }

    fn add(&mut self, wr_id: u64, tag: u64, mask: u64, sges: &[Sge]) -> Result<u32, PostError> {
        refuse_if!(sges.len() > self.max_sge as usize, PostError::TooManySges { given: sges.len(), max: self.max_sge });
        if self.entries.len() + self.in_hand as usize >= self.capacity as usize {
            return Err(PostError::QueueFull { queue: "tag matching", capacity: self.capacity });
        }
        let handle = self.free_handle();
        let mut pieces = self.spare.pop().unwrap_or_default();
        pieces.clear();
        pieces.extend_from_slice(sges);
        self.entries.push_back(TagEntry { handle, wr_id, tag, mask, sges: pieces });
        Ok(handle)
    }

    /// The next handle. They go round, and a buffer may stay for longer than that takes.
    fn free_handle(&mut self) -> u32 {
        loop {
            let handle = self.next_handle;
            self.next_handle = handle.wrapping_add(1);
            if !self.entries.iter().any(|entry| entry.handle == handle) {
                return handle;
            }
        }
    }

    fn delete(&mut self, handle: u32) -> bool {
        match self.entries.iter().position(|entry| entry.handle == handle) {
            Some(index) => {
                self.remove(index);
                true
            }
            None => false,
        }
    }

    fn remove(&mut self, index: usize) {
        self.active -= usize::from(index < self.active);
        if let Some(entry) = self.entries.remove(index) {
            self.spare.push(entry.sges);
        }
    }

    /// Takes the first buffer that a message with this tag matches into `into`. It is in hand until
    /// [`finished`](TagList::finished).
    pub fn take(&mut self, tag: u64, into: &mut ReceiveWork) -> bool {
        let found = self.entries.iter().take(self.active).position(|entry| tag & entry.mask == entry.tag);
        let Some(index) = found else { return false };
        if let Some(entry) = self.entries.get_mut(index) {
            into.wr_id = entry.wr_id;
            core::mem::swap(&mut into.sges, &mut entry.sges);
        }
        self.remove(index);
        self.in_hand += 1;
        true
    }

    /// A message matched nothing, and has an ordinary receive. Returns whether software has fallen far behind.
    pub fn was_unexpected(&mut self) -> bool {
        self.unexpected = self.unexpected.wrapping_add(1);
        self.unexpected.wrapping_sub(self.handled) > UNHANDLED_MAX
    }

    /// So many buffers that were in hand are not any more: their messages have ended, well or badly.
    pub fn finished(&mut self, buffers: u32) {
        self.in_hand = self.in_hand.saturating_sub(buffers);
    }
}

impl TagRequest<'_> {
    /// The completion of the operation on shared receive queue `srq`.
    pub fn completion(&self, srq: Srqn, outcome: &TagOutcome) -> Completion {
        let status = if outcome.done { Status::Success } else { Status::TagOperation };
        let kind = match self.operation {
            TagOperation::Add { .. } => CompletionKind::TagAdd,
            TagOperation::Delete { .. } => CompletionKind::TagDelete,
            TagOperation::Synchronize => CompletionKind::TagSynchronize,
        };
        Completion {
            solicited: !outcome.done,
            cause: outcome.out_of_step.then_some(Cause::OutOfStep),
            ..Completion::of(self.wr_id, kind, status, Queue::Shared(srq), Qpn::default())
        }
    }
}

#[cfg(test)]
mod tests;
