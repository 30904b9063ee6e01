//! Rendezvous: where a shared receive queue matches tags, the queue pair reads the data of a matched message itself and
//! tells the sender when it has it. READ and message are work of its send queue, in order with the program's and under
//! its limits, for which the queue has room of its own.

use super::QueuePair;
use crate::responder::Rendezvous;
use crate::tag_matching::FIN_LENGTH;
use crate::work::{Data, Operation, SendFlags, SendRequest};
use alloc::collections::VecDeque;
use wire::Srqn;
use wire::access::ProtectionDomain;

/// So many READs are in the send queue at once; the rest waits, so that the program's own work comes in between.
const AT_ONCE: usize = 16;

/// The rendezvous of a queue pair.
#[derive(Debug)]
pub(super) struct Rendezvouses {
    srq: Srqn,
    /// Matched, and not yet in the send queue.
    waiting: VecDeque<Rendezvous>,
    /// READs in the send queue: their numbers, and what is sent after them.
    reading: VecDeque<(u64, [u8; FIN_LENGTH])>,
}

impl QueuePair {
    /// Its shared receive queue, of this protection domain, matches tags. Said once, before it is connected.
    pub fn match_tags(&mut self, srq: Srqn, domain: ProtectionDomain) {
        self.connection.tag_domain = domain;
        self.responder.match_tags();
        self.rendezvouses = Some(Rendezvouses { srq, waiting: VecDeque::new(), reading: VecDeque::new() }.into());
    }

    /// How many tagged buffers it has taken whose last completion was not shown: a driver that resets it must tell the
    /// list.
    pub fn tagged_in_hand(&self) -> u32 {
        let waiting = self.rendezvouses.as_ref().map_or(0, |rendezvouses| rendezvouses.waiting.len());
        self.responder.tagged_in_hand() + self.queue.own_reads() + waiting as u32
    }

    /// Takes note of what was matched, and begins to read it.
    pub(super) fn begin_rendezvouses(&mut self) {
        let Some(rendezvouses) = &mut self.rendezvouses else { return };
        while let Some(matched) = self.responder.take_rendezvous() {
            rendezvouses.waiting.push_back(matched);
        }
        self.feed_rendezvouses(AT_ONCE);
    }

    /// Tells the senders whose data is there, and begins to read what waits.
    #[cold]
    pub(super) fn advance_rendezvouses(&mut self) {
        let Some(rendezvouses) = &mut self.rendezvouses else { return };
        while let Some((seq, fin)) = rendezvouses.reading.front() {
            let work = self.queue.get(*seq);
            if work.is_some_and(|work| work.is_open()) {
                break;
            }
            if work.is_some_and(|work| work.is_done()) {
                let operation = Operation::Send { immediate: None };
                let request = SendRequest {
                    wr_id: 0,
                    operation,
                    flags: SendFlags::empty(),
                    data: Data::Inline(fin),
                    target: None,
                    xrc_srq: None,
                };
                self.queue.post_own(&request, rendezvouses.srq);
            }
            rendezvouses.reading.pop_front();
        }
        self.feed_rendezvouses(AT_ONCE);
    }

    /// The queue pair stops: all that waits is flushed with the send queue.
    pub(super) fn give_up_rendezvouses(&mut self) {
        self.begin_rendezvouses();
        self.feed_rendezvouses(usize::MAX);
        if let Some(rendezvouses) = &mut self.rendezvouses {
            rendezvouses.reading.clear();
        }
    }

    /// Forgets all of them (RESET).
    pub(super) fn forget_rendezvouses(&mut self) {
        if let Some(rendezvouses) = &mut self.rendezvouses {
            rendezvouses.waiting.clear();
            rendezvouses.reading.clear();
        }
    }

    fn feed_rendezvouses(&mut self, at_once: usize) {
        let Some(rendezvouses) = &mut self.rendezvouses else { return };
        while rendezvouses.reading.len() < at_once
            && let Some(mut matched) = rendezvouses.waiting.pop_front()
        {
            let mut left = matched.length;
            for sge in &mut matched.work.sges {
                sge.length = sge.length.min(left);
                left -= sge.length;
            }
            let request = SendRequest {
                wr_id: matched.work.wr_id,
                operation: Operation::Read { remote: matched.remote },
                flags: SendFlags::SIGNALED,
                data: Data::Gather(&matched.work.sges),
                target: None,
                xrc_srq: None,
            };
            if let Some(seq) = self.queue.post_own(&request, rendezvouses.srq) {
                rendezvouses.reading.push_back((seq, matched.fin));
            }
        }
    }
}
