//! Requests that came before their turn, as a packet before them was lost. They are kept, and carried out in order once
//! it is there, so that neither program nor peer can tell that they came early.
//!
//! Not every peer may be answered so: kernel Soft-RoCE repeats all that it has sent, and a message that is acknowledged while
//! it repeats it can stop its send queue for ever. So a peer has to show that it repeats a packet alone: it sends it
//! twice, at once. Until then the packet that was missing is not acknowledged before the next has come, and if that is
//! another one, what was kept is thrown away.

use super::{Responder, RnrWait};
use crate::kept::{Kept, KeptPackets};
use crate::train::Inbound;
use alloc::boxed::Box;
use trace::Time;
use wire::{NakCode, Psn, Syndrome};

/// Two copies of a packet that a peer repeats alone come within this time. One that goes back, and whose packets are
/// lost again behind the first, begins anew when its timer runs out: that of kernel Soft-RoCE has 4 ms at least.
const MAX_COPY_NANOS: u64 = 1_000_000;

/// What a responder keeps.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    kept: KeptPackets,
    /// The peer has repeated a packet alone.
    repeats_alone: bool,
    /// The packet that was missing last, and when it came, if the peer has not shown yet how it repeats.
    filled: Option<(Psn, Time)>,
    /// Packets that came since one is missing.
    waiting: u32,
}

impl Responder {
    /// Keeps a request that came before its turn.
    /// Returns whether the peer is to be told what is missing: when the first comes, and where it repeats packets alone
    /// ever more rarely after that, and when it asks. What it was told before may have been lost.
    #[cold]
    pub(super) fn keep_ahead(&mut self, inbound: &Inbound<'_>) -> bool {
        let ahead = self.ahead.get_or_insert_with(Box::default);
        ahead.kept.keep(inbound.headers, inbound.count, inbound.payload, self.expected);
        let first = self.waiting == RnrWait::No;
        ahead.waiting = if first { 1 } else { ahead.waiting + 1 };
        first || ahead.repeats_alone && (ahead.waiting.is_power_of_two() || inbound.headers.bth.ack_req)
    }

    /// The packet `psn` has come that was missing. Whether it may be acknowledged now.
    #[cold]
    pub(super) fn filled(&mut self, now: Time, psn: Psn) -> bool {
        let Some(ahead) = self.ahead.as_deref_mut().filter(|ahead| ahead.kept.first().is_some()) else { return true };
        if !ahead.repeats_alone {
            ahead.filled = Some((psn, now));
            self.waiting = RnrWait::ForProof;
        }
        ahead.repeats_alone
    }

    /// The first packet after one that was missing. Whether it is the same: then the peer repeats packets alone.
    #[cold]
    pub(super) fn proves(&mut self, now: Time, psn: Psn) -> bool {
        self.waiting = RnrWait::No;
        let Some(ahead) = self.ahead.as_deref_mut() else { return false };
        if ahead.filled.take().is_some_and(|(filled, at)| filled == psn && now.since(at) < MAX_COPY_NANOS) {
            ahead.repeats_alone = true;
        } else {
            ahead.kept.clear();
        }
        ahead.repeats_alone
    }

    /// Whether something that was kept may be carried out.
    #[inline]
    pub fn may_go_on(&self) -> bool {
        self.ahead.is_some() && self.waiting == RnrWait::No
    }

    /// The next request that was kept, if it is the one that is expected. If another is missing before it, the peer is
    /// told; if none is kept any more, it is told how far we are.
    #[cold]
    pub fn next_kept(&mut self) -> Option<Kept> {
        let expected = self.expected;
        let ahead = self.ahead.as_deref_mut().filter(|ahead| ahead.repeats_alone)?;
        ahead.kept.first()?;
        if let Some(kept) = ahead.kept.next(expected) {
            return Some(kept);
        }
        match ahead.kept.first() {
            None => self.responses.acknowledge(expected.sub(1), self.msn),
            Some(_) => {
                self.waiting = RnrWait::ForSequence;
                ahead.waiting = 1;
                // The refusal acknowledges what is before it. An acknowledgement would say that nothing was kept.
                self.responses.forget_acknowledgement();
                self.responses.refuse(expected, self.msn, Syndrome::Nak(NakCode::SequenceError));
            }
        }
        None
    }

    /// Forgets what was kept.
    #[cold]
    pub fn forget_kept(&mut self) {
        if let Some(ahead) = &mut self.ahead {
            ahead.kept.clear();
        }
    }
}
