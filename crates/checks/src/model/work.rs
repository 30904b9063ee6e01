//! Work under way: what was posted and has not completed.

use alloc::collections::VecDeque;

use trace::{Call, Pieces};
use wire::{Key, Qpn};

use crate::witness::Witness;

/// A work request that was posted and has not completed.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The program's name for it.
    pub wr_id: u64,
    /// What it asks for, as verbs spell it.
    pub opcode: &'static str,
    /// When it was posted.
    pub at: u64,
    /// By which thread.
    pub thread: u32,
    /// Its place in the list that was posted.
    pub index: u32,
    /// Whether it completes if it succeeds.
    pub signaled: bool,
    /// Whether its bytes were taken at once.
    pub inline: bool,
    /// Its local memory.
    pub pieces: Pieces,
    /// The peer's memory.
    pub remote: Option<(u64, Key)>,
    /// For datagrams: the queue pair it goes to.
    pub remote_qpn: Option<Qpn>,
    /// What its memory held when it was posted, if somebody could say.
    pub digest: Option<u64>,
}

impl Work {
    pub(super) fn of_send(
        at: u64,
        thread: u32,
        call: &Call,
        signals_all: bool,
        witness: &mut dyn Witness,
    ) -> Option<Work> {
        let Call::PostSend {
            wr_id,
            opcode,
            index,
            signaled,
            inline,
            pieces,
            remote_address,
            remote_key,
            remote_qpn,
            ..
        } = *call
        else {
            return None;
        };
        // Only what leaves from memory later is compared later.
        let leaves = !inline && (opcode.starts_with("SEND") || opcode.starts_with("RDMA_WRITE"));
        Some(Work {
            wr_id,
            opcode,
            at,
            thread,
            index,
            signaled: signaled || signals_all,
            inline,
            pieces,
            remote: remote_address.zip(remote_key),
            remote_qpn,
            digest: if leaves { witness.digest(&pieces) } else { None },
        })
    }

    pub(super) fn of_receive(at: u64, thread: u32, call: &Call) -> Option<Work> {
        let Call::PostReceive { wr_id, index, pieces, .. } = *call else { return None };
        let opcode = "RECV";
        Some(Work { wr_id, at, thread, index, pieces, ..Work::bare(wr_id, opcode) })
    }

    /// Work of which only its completion will be known.
    fn bare(wr_id: u64, opcode: &'static str) -> Work {
        Work {
            wr_id,
            opcode,
            at: 0,
            thread: 0,
            index: 0,
            signaled: true,
            inline: false,
            pieces: Pieces::default(),
            remote: None,
            remote_qpn: None,
            digest: None,
        }
    }
}

/// A queue of work, the oldest first.
#[derive(Clone, Default, Debug)]
pub struct WorkQueue {
    works: VecDeque<Work>,
    /// What the program is posting at this moment.
    pub(super) about_to_post: Option<Work>,
    /// How many were posted.
    pub posted: u64,
    /// Of those, how many asked for a completion.
    pub signaled: u64,
}

impl WorkQueue {
    /// The work under way, the oldest first. Unsignaled work counts until work behind it completes.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Work> {
        self.works.iter()
    }

    /// How much is under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.works.len()
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// The oldest work of that name.
    #[must_use]
    pub fn find(&self, wr_id: u64) -> Option<&Work> {
        self.works.iter().find(|work| work.wr_id == wr_id)
    }

    /// What the program is posting at this moment.
    #[must_use]
    pub fn being_posted(&self) -> Option<&Work> {
        self.about_to_post.as_ref()
    }

    pub(super) fn push(&mut self, work: Work) {
        self.posted += 1;
        self.signaled += u64::from(work.signaled);
        self.works.push_back(work);
    }

    /// The queue took what was about to be posted.
    pub(super) fn posted(&mut self, at: u64, wr_id: u64, opcode: &'static str, bytes: u64) {
        let work = self.about_to_post.take().filter(|work| work.wr_id == wr_id).unwrap_or_else(|| {
            let mut bare = Work { at, ..Work::bare(wr_id, opcode) };
            bare.pieces.bytes = bytes;
            bare
        });
        self.push(work);
    }

    /// Work has completed. Where work completes in order, what is before it is done, too.
    pub(super) fn completed(&mut self, wr_id: u64, in_order: bool) {
        let Some(place) = self.works.iter().position(|work| work.wr_id == wr_id && (work.signaled || !in_order)) else {
            // An unsignaled one that failed.
            let place = self.works.iter().position(|work| work.wr_id == wr_id);
            if let Some(place) = place {
                self.works.drain(..=place);
            }
            return;
        };
        if in_order {
            self.works.drain(..=place);
        } else {
            self.works.remove(place);
        }
    }
}
