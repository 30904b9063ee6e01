//! Memory: UV-02xx.

use alloc::format;

use trace::Kind;

use crate::checker::{Examine, Moment, Out};
use crate::finding::{Finding, Subject};
use crate::rule::rules;

rules! {
    CHANGED_UNDER_WAY = 201 Error "a buffer was changed while its work was under way";
}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Memory;

impl Examine for Memory {
    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let Kind::Completed { wr_id, queue: trace::Queue::Send, .. } = moment.event.kind else { return };
        let Some(pair) = moment.model.pair_of(moment.event) else { return };
        let Some(work) = pair.sends.find(wr_id) else { return };
        if !out.wants(CHANGED_UNDER_WAY) {
            return;
        }
        let now = work.digest.and_then(|_| moment.witness.digest(&work.pieces));
        if now.is_some() && now != work.digest {
            out.tell(Finding::new(
                CHANGED_UNDER_WAY,
                Subject::QueuePair(pair.qpn),
                format!(
                    "the buffer of work request {wr_id} ({}, {} bytes) on QP {} was changed before its completion",
                    work.opcode, work.pieces.bytes, pair.qpn
                ),
                "leave the buffer alone until the completion of the work was polled",
            ));
        }
    }
}
