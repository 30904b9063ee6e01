//! Receives: the queue that holds them, one taken out of it, and putting a message's bytes where it says. Which message
//! takes which receive is the responder's decision.

use crate::port::Port;
use crate::ring::Ring;
use crate::work::{PostError, ReceiveRequest, ReceiveWork, Sge};
use wire::access::{Access, Range, Refusal, RefusalCause, Subject};
use wire::{Key, refuse_if};

/// The receive queue of one queue pair.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    ring: Ring<ReceiveWork>,
    max_sge: u32,
    name: &'static str,
}

impl ReceiveQueue {
    /// An empty queue for `max_wr` receives of up to `max_sge` pieces.
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> ReceiveQueue {
        ReceiveQueue::named("receive", max_wr, max_sge)
    }

    /// One whose errors call it `name`.
    pub(crate) fn named(name: &'static str, max_wr: u32, max_sge: u32) -> ReceiveQueue {
        ReceiveQueue { ring: Ring::new(max_wr), max_sge, name }
    }

    /// Queues a receive.
    pub(crate) fn post(&mut self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        let given = request.sges.len();
        refuse_if!(given > self.max_sge as usize, PostError::TooManySges { given, max: self.max_sge });
        let full = PostError::QueueFull { queue: self.name, capacity: self.ring.capacity() };
        self.ring.push_with(|slot| slot.fill(request)).map(|_| ()).map_err(|_| full)
    }

    /// Takes the oldest receive into `into`, whose own memory stays behind for the next one posted. False if there is
    /// none.
    pub(crate) fn take(&mut self, into: &mut ReceiveWork) -> bool {
        match self.ring.pop() {
            Some(slot) => {
                core::mem::swap(slot, into);
                true
            }
            None => false,
        }
    }

    /// The oldest receive.
    #[inline]
    pub(crate) fn front(&self) -> Option<&ReceiveWork> {
        self.ring.front()
    }

    /// Lets go of the oldest receive, which was filled where it is.
    #[inline]
    pub(crate) fn pop(&mut self) {
        self.ring.pop();
    }

    /// How many receives wait.
    pub(crate) fn len(&self) -> u32 {
        self.ring.len()
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// How many may wait.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Changes how many may wait.
    pub(crate) fn set_capacity(&mut self, capacity: u32) {
        self.ring.set_capacity(capacity);
    }

    /// How many pieces a receive may have.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Forgets all receives, without completions (RESET).
    pub(crate) fn clear(&mut self) {
        self.ring.clear();
    }
}

/// Writes `data` at byte `offset` of the pieces laid end to end. Pieces of length zero are never touched, so their keys
/// may be anything. Data that runs past the last piece is refused as out of bounds, after what fits was written:
/// callers compare lengths first.
pub(crate) fn scatter<P: Port>(
    sges: &[Sge],
    offset: u64,
    mut data: &[u8],
    subject: Subject,
    port: &mut P,
) -> Result<(), Refusal> {
    each_piece(sges, offset, data.len() as u64, Access::LOCAL_WRITE, |range| {
        // `each_piece` never hands out more than it was asked to cover, so the split always succeeds.
        let Some((now, later)) = data.split_at_checked(range.length as usize) else {
            return Err(past_the_end(sges, range.length, Access::LOCAL_WRITE));
        };
        data = later;
        port.write(subject, range, now)
    })
}

/// Asks the port about `length` bytes at byte `offset` of the pieces laid end to end.
pub(crate) fn check_all<P: Port>(
    sges: &[Sge],
    offset: u64,
    length: u64,
    access: Access,
    subject: Subject,
    port: &mut P,
) -> Result<(), Refusal> {
    each_piece(sges, offset, length, access, |range| port.check(subject, range, access))
}

/// Cuts `length` bytes at `offset` into the runs that lie in one piece each.
fn each_piece(
    sges: &[Sge],
    offset: u64,
    length: u64,
    access: Access,
    mut run: impl FnMut(Range) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let mut skip = offset;
    let mut left = length;
    for sge in sges {
        if left == 0 {
            break;
        }
        let piece = u64::from(sge.length);
        if skip >= piece {
            skip -= piece;
            continue;
        }
        let length = (piece - skip).min(left);
        // A piece may claim to wrap around the end of the address space; the port would have to refuse it, so it is
        // refused here.
        let Some(address) = sge.address.checked_add(skip) else {
            return Err(Refusal {
                range: Range { key: sge.key, address: sge.address, length: piece },
                access,
                cause: RefusalCause::OutOfBounds { start: sge.address, length: u64::MAX - sge.address },
            });
        };
        run(Range { key: sge.key, address, length })?;
        left -= length;
        skip = 0;
    }
    if left == 0 { Ok(()) } else { Err(past_the_end(sges, left, access)) }
}

/// The refusal for `left` bytes that no piece holds, said of the last piece.
fn past_the_end(sges: &[Sge], left: u64, access: Access) -> Refusal {
    let (key, start, length) =
        sges.last().map_or((Key::default(), 0, 0), |sge| (sge.key, sge.address, u64::from(sge.length)));
    Refusal {
        range: Range { key, address: start.saturating_add(length), length: left },
        access,
        cause: RefusalCause::OutOfBounds { start, length },
    }
}

#[cfg(test)]
mod tests;
