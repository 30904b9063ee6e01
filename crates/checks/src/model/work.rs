//! Work under way: what was posted and has not completed.

use alloc::collections::VecDeque;

use trace::{Call, Pieces};
use wire::{Key, Qpn};

use crate::witness::Witness;

/// Receives of more bytes are not compared: a program may have posted gigabytes of them.
const RECEIVE_DIGEST_MAX: u64 = 4096;

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
    /// How many were posted to its queue before it, since RESET.
    pub serial: u64,
    /// Its place in the list that was posted.
    pub index: u32,
    /// Whether it completes if it succeeds.
    pub signaled: bool,
    /// Whether its bytes were taken at once.
    pub inline: bool,
    /// Whether it waits for READs and atomics before it.
    pub fence: bool,
    /// Its local memory.
    pub pieces: Pieces,
    /// The peer's memory.
    pub remote: Option<(u64, Key)>,
    /// For datagrams: the queue pair it goes to.
    pub remote_qpn: Option<Qpn>,
    /// What its memory held when it was posted, if the witness could say.
    pub digest: Option<u64>,
    /// Its opcode is that of a READ or an atomic.
    is_answered: bool,
    /// Its opcode is that of a receive.
    is_receive: bool,
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
            fence,
            pieces,
            remote_address,
            remote_key,
            remote_qpn,
            ..
        } = *call
        else {
            return None;
        };
        let mut work = Work {
            at,
            thread,
            index,
            signaled: signaled || signals_all,
            inline,
            fence,
            pieces,
            remote: remote_address.zip(remote_key),
            remote_qpn,
            ..Work::bare(wr_id, opcode)
        };
        // Only what leaves from memory later is compared later.
        if work.leaves_memory() {
            work.digest = witness.digest(&pieces);
        }
        Some(work)
    }

    pub(crate) fn of_receive(at: u64, thread: u32, call: &Call, witness: &mut dyn Witness) -> Option<Work> {
        let Call::PostReceive { wr_id, index, pieces, .. } = *call else { return None };
        let digest = if pieces.bytes <= RECEIVE_DIGEST_MAX { witness.digest(&pieces) } else { None };
        Some(Work { at, thread, index, pieces, digest, ..Work::bare(wr_id, "RECV") })
    }

    /// Whether the NIC writes to its pieces: receives, READs, atomics.
    #[must_use]
    pub fn fills_memory(&self) -> bool {
        self.is_answered || self.is_receive
    }

    /// Whether the peer answers it with data: READs and atomics. They count against `max_rd_atomic`.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Whether the NIC reads its pieces later: SENDs and WRITEs whose bytes were not taken at once.
    #[must_use]
    pub fn leaves_memory(&self) -> bool {
        !self.inline && (self.opcode.starts_with("SEND") || self.opcode.starts_with("RDMA_WRITE"))
    }

    /// Work of which only its completion will be known.
    fn bare(wr_id: u64, opcode: &'static str) -> Work {
        Work {
            wr_id,
            opcode,
            at: 0,
            thread: 0,
            serial: 0,
            index: 0,
            signaled: true,
            inline: false,
            fence: false,
            pieces: Pieces::default(),
            remote: None,
            remote_qpn: None,
            digest: None,
            is_answered: matches!(opcode, "RDMA_READ" | "ATOMIC_CMP_AND_SWP" | "ATOMIC_FETCH_AND_ADD"),
            is_receive: opcode == "RECV",
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
    /// How many under way ask for a completion.
    signaled_under_way: usize,
    /// How many of those posted have a free place again: their completion, or that of later work, was polled.
    freed: u64,
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

    /// How many under way will complete, if they succeed.
    #[must_use]
    pub fn signaled_under_way(&self) -> usize {
        self.signaled_under_way
    }

    /// How many places of the queue are taken as hardware counts: until a completion is polled, of the work itself or
    /// of later work.
    #[must_use]
    pub fn places_taken(&self) -> u64 {
        self.posted.saturating_sub(self.freed)
    }

    /// A completion was polled that frees the places of the first `count`.
    pub(super) fn free(&mut self, count: u64) {
        self.freed = self.freed.max(count);
    }

    /// The oldest work of that name.
    #[must_use]
    pub fn find(&self, wr_id: u64) -> Option<&Work> {
        self.works.iter().find(|work| work.wr_id == wr_id)
    }

    /// Whether the work that is being posted asks for a completion.
    #[must_use]
    pub(crate) fn next_is_signaled(&self, wr_id: u64, signals_all: bool) -> bool {
        signals_all || self.about_to_post.as_ref().is_none_or(|work| work.wr_id != wr_id || work.signaled)
    }

    /// What the program is posting, told before the queue has taken it.
    pub(crate) fn about_to_post(&self) -> Option<&Work> {
        self.about_to_post.as_ref()
    }

    /// The program calls the function that posts.
    pub(super) fn prepare(&mut self, work: Option<Work>) {
        self.about_to_post = work.map(|work| Work { serial: self.posted, ..work });
    }

    pub(super) fn push(&mut self, work: Work) {
        let work = Work { serial: self.posted, ..work };
        self.posted += 1;
        self.signaled += u64::from(work.signaled);
        self.signaled_under_way += usize::from(work.signaled);
        self.works.push_back(work);
    }

    /// The queue took what was about to be posted.
    pub(super) fn posted(&mut self, at: u64, wr_id: u64, opcode: &'static str, bytes: u64) -> Work {
        let work = self.about_to_post.take().filter(|work| work.wr_id == wr_id).unwrap_or_else(|| {
            let mut bare = Work { at, ..Work::bare(wr_id, opcode) };
            bare.pieces.bytes = bytes;
            bare
        });
        self.push(work);
        work
    }

    /// The work that a completion of that name ends, the oldest first. Where work completes in order, what is before it
    /// is done, too.
    pub fn ended_by(&self, wr_id: u64, in_order: bool) -> impl Iterator<Item = &Work> {
        let (first, behind) = self.places(wr_id, in_order);
        self.works.range(first..behind)
    }

    /// Work completed. How many were posted up to it.
    pub(super) fn completed(&mut self, wr_id: u64, in_order: bool) -> Option<u64> {
        let (first, behind) = self.places(wr_id, in_order);
        let last = self.works.range(first..behind).next_back().map(|work| work.serial + 1);
        let done = self.works.drain(first..behind).filter(|work| work.signaled).count();
        self.signaled_under_way -= done;
        last
    }

    /// The places of what a completion ends.
    fn places(&self, wr_id: u64, in_order: bool) -> (usize, usize) {
        let named = |work: &Work| work.wr_id == wr_id;
        let place = self.works.iter().position(|work| named(work) && (work.signaled || !in_order));
        // Or an unsignaled one that failed.
        match place.or_else(|| self.works.iter().position(named)) {
            Some(place) if in_order => (0, place + 1),
            Some(place) => (place, place + 1),
            None => (0, 0),
        }
    }
}
