//! The send queue: work in the order it was posted, from posting until its completion is taken. The requester marks
//! work as started, the completer decides its outcome, and completions leave in posting order; none of them knows the
//! others' position in the queue.

use crate::completed_work::Counts;
use crate::completion::{Cause, Completion, CompletionKind, Queue, Status};
use crate::congestion::Window;
use crate::connection::Connection;
use crate::ring::Ring;
use crate::work::{Data, DatagramTarget, Operation, PostError, SendFlags, SendRequest, Sge};
use alloc::boxed::Box;
use alloc::vec::Vec;
use trace::Failure;
use wire::access::Subject;
use wire::{Key, Psn, Qpn, Srqn};

/// How a piece of work ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Done,
    Failed(Status, Failure),
}

/// Work of the queue pair's own, of which the program does not know: a rendezvous.
const OWN_WORK: SendFlags = SendFlags::from_bits_retain(1 << 7);

/// Inline data up to this length lies in the slot itself.
const NEAR_INLINE_BYTES: usize = 64;

/// Where the bytes of a work request are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum RequestBytes {
    /// Inline data in `near`.
    Near,
    /// Inline data in `far`.
    Far,
    /// In the one piece `sge`.
    One,
    /// In the pieces of `sges`.
    #[default]
    Many,
}

/// How far work has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Ended {
    #[default]
    No,
    Done,
    /// `failure` says how.
    Failed,
}

/// One posted work request and how far it has come. With thousands of queue pairs every cache line of a slot comes from
/// afar: what the common message needs is in the first, its inline data in the second.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct SendWork {
    pub wr_id: u64,
    pub operation: Operation,
    /// Bytes of the message. FLUSH has none of its own.
    pub length: u32,
    /// Its first sequence number.
    pub first: Psn,
    /// How many sequence numbers it takes: packets sent, or packets of answer for a READ. Local work takes none.
    pub packets: u32,
    pub flags: SendFlags,
    place: RequestBytes,
    /// Packets may have been sent; `first` and `packets` are set.
    pub started: bool,
    ended: Ended,
    near: [u8; NEAR_INLINE_BYTES],
    sge: Sge,
    sges: Vec<Sge>,
    far: Vec<u8>,
    pub target: Option<DatagramTarget>,
    pub xrc_srq: Option<Srqn>,
    failure: Option<(Status, Failure)>,
}

const _: () = assert!(core::mem::offset_of!(SendWork, near) == 64);

impl Default for SendWork {
    fn default() -> SendWork {
        SendWork {
            wr_id: 0,
            operation: Operation::default(),
            length: 0,
            first: Psn::default(),
            packets: 0,
            flags: SendFlags::empty(),
            place: RequestBytes::default(),
            started: false,
            ended: Ended::No,
            near: [0; NEAR_INLINE_BYTES],
            sge: Sge::default(),
            sges: Vec::new(),
            far: Vec::new(),
            target: None,
            xrc_srq: None,
            failure: None,
        }
    }
}

impl SendWork {
    /// Remembers where the bytes are, or what they are. What a slot allocated for that it keeps.
    #[inline]
    fn hold(&mut self, data: Data<'_>) {
        self.place = match data {
            Data::Gather(&[sge]) => {
                self.sge = sge;
                RequestBytes::One
            }
            Data::Gather(sges) => {
                self.sges.clear();
                self.sges.extend_from_slice(sges);
                RequestBytes::Many
            }
            Data::Inline(bytes) => match self.near.get_mut(..bytes.len()) {
                Some(near) => {
                    near.copy_from_slice(bytes);
                    RequestBytes::Near
                }
                None => {
                    self.far.clear();
                    self.far.extend_from_slice(bytes);
                    RequestBytes::Far
                }
            },
        };
    }

    /// Reads the bytes out of the program's memory, if `read` can: from here on they are as good as inline data.
    fn keep(&mut self, read: impl FnOnce(&[Sge], &mut [u8]) -> bool) {
        let mut bytes = core::mem::take(&mut self.far);
        bytes.resize(self.length as usize, 0);
        if read(self.sges(), &mut bytes) {
            self.place = RequestBytes::Far;
        }
        self.far = bytes;
    }

    /// The pieces of memory that its bytes come from or go to.
    #[inline]
    pub fn sges(&self) -> &[Sge] {
        match self.place {
            RequestBytes::One => core::slice::from_ref(&self.sge),
            RequestBytes::Many => &self.sges,
            RequestBytes::Near | RequestBytes::Far => &[],
        }
    }

    /// Its bytes, if it came with them.
    #[inline]
    pub fn inline(&self) -> Option<&[u8]> {
        match self.place {
            RequestBytes::Near => self.near.get(..self.length as usize),
            RequestBytes::Far => Some(&self.far),
            RequestBytes::One | RequestBytes::Many => None,
        }
    }

    /// Whether it came with its bytes.
    #[inline]
    pub fn is_inline(&self) -> bool {
        matches!(self.place, RequestBytes::Near | RequestBytes::Far)
    }

    /// As it was posted.
    pub fn as_request(&self) -> SendRequest<'_> {
        let data = self.inline().map_or(Data::Gather(self.sges()), Data::Inline);
        let &SendWork { wr_id, operation, flags, target, xrc_srq, .. } = self;
        SendRequest { wr_id, operation, flags, data, target, xrc_srq }
    }

    /// On whose behalf it touches local memory.
    #[inline]
    pub fn subject(&self, connection: &Connection) -> Subject {
        match self.is_own() {
            false => connection.local(),
            true => Subject { pd: connection.tag_domain, ..connection.local() },
        }
    }

    /// Whether it is the queue pair's own.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.flags.contains(OWN_WORK)
    }

    /// Whether it is not known yet how it ends.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.ended == Ended::No
    }

    /// Whether it has succeeded.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.ended == Ended::Done
    }

    /// How it ended, if it has.
    #[inline]
    pub fn outcome(&self) -> Option<Outcome> {
        match self.ended {
            Ended::No => None,
            Ended::Done => Some(Outcome::Done),
            Ended::Failed => self.failure.map(|(status, cause)| Outcome::Failed(status, cause)),
        }
    }

    #[inline]
    fn end(&mut self, outcome: Option<Outcome>) {
        self.ended = match outcome {
            None => Ended::No,
            Some(Outcome::Done) => Ended::Done,
            Some(Outcome::Failed(status, cause)) => {
                self.failure = Some((status, cause));
                Ended::Failed
            }
        };
    }

    /// Bytes of the message that `count` packets from packet `from` on carry.
    pub fn span(&self, from: u32, count: u32, mtu: u32) -> (u32, u32) {
        let start = u64::from(from) * u64::from(mtu);
        let end = (u64::from(from) + u64::from(count)) * u64::from(mtu);
        let length = u64::from(self.length);
        let start = start.min(length);
        (start as u32, (end.min(length) - start) as u32)
    }

    /// Payload bytes of packet `index`.
    pub fn packet_length(&self, index: u32, mtu: u32) -> u32 {
        self.span(index, 1, mtu).1
    }

    /// What `count` packets from packet `from` on cost in a congestion window.
    pub fn charge(&self, from: u32, count: u32, mtu: u32) -> u64 {
        match count {
            0 => 0,
            count => Window::charge_of(mtu, count, self.packet_length(from + count - 1, mtu)),
        }
    }

    pub fn kind(&self) -> CompletionKind {
        match self.operation {
            Operation::Send { .. } | Operation::SendInvalidate { .. } => CompletionKind::Send,
            Operation::Write { .. } => CompletionKind::Write,
            Operation::Read { .. } => CompletionKind::Read,
            Operation::CompareSwap { .. } => CompletionKind::CompareSwap,
            Operation::FetchAdd { .. } => CompletionKind::FetchAdd,
            Operation::AtomicWrite { .. } => CompletionKind::AtomicWrite,
            Operation::Flush { .. } => CompletionKind::Flush,
            Operation::LocalInvalidate { .. } => CompletionKind::LocalInvalidate,
            Operation::BindWindow(_) => CompletionKind::Bind,
        }
    }
}

#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: Ring<SendWork>,
    max_sge: u32,
    max_inline: u32,
    signal_all: bool,
    /// Work that was started, wants an answer from the peer, and has no outcome yet: what a fence waits for.
    unanswered: u32,
    /// Work before this number was asked to keep its bytes.
    kept: u64,
    /// What has completed, where completions are counted.
    pub counts: Option<Box<Counts>>,
    /// Work of the queue pair's own, for which the ring has room beyond what the program asked for; and how many READs
    /// there are in it.
    own: u32,
    own_reads: u32,
    /// The shared receive queue that they are for.
    srq: Option<Srqn>,
}

impl SendQueue {
    pub fn new(capacity: u32, max_sge: u32, max_inline: u32, signal_all: bool) -> SendQueue {
        SendQueue {
            ring: Ring::new(capacity),
            max_sge,
            max_inline,
            signal_all,
            unanswered: 0,
            kept: 0,
            own: 0,
            own_reads: 0,
            srq: None,
            counts: None,
        }
    }

    /// Takes work of the queue pair's own, for shared receive queue `srq`. The program's room stays what it is. Answers
    /// its number.
    pub fn post_own(&mut self, request: &SendRequest<'_>, srq: Srqn) -> Option<u64> {
        self.release_unsignaled();
        self.ring.set_capacity(self.ring.capacity() + 1);
        let own = SendRequest { flags: request.flags | OWN_WORK, ..*request };
        let seq = self.take(&own, request.data.length() as u32, None, None).ok()?;
        self.own += 1;
        self.own_reads += u32::from(request.operation.is_answered());
        self.srq = Some(srq);
        Some(seq)
    }

    /// How many tagged buffers it fills.
    pub fn own_reads(&self) -> u32 {
        self.own_reads
    }

    /// Work of the queue pair's own has left the ring, and its room with it.
    #[cold]
    fn own_ended(&mut self, is_read: bool) {
        self.own -= 1;
        self.own_reads -= u32::from(is_read);
        self.ring.set_capacity(self.ring.capacity() - 1);
    }

    /// Takes a work request. `outcome` is set when it is already clear how it ends (a queue pair in error flushes).
    pub fn post(&mut self, request: &SendRequest<'_>, outcome: Option<Outcome>) -> Result<(), PostError> {
        self.admit(request)?;
        self.release_unsignaled();
        let length = request.data.length() as u32;
        self.take(request, length, None, outcome).map(|_| ())
    }

    /// Takes a work request of one packet that goes out at once, with this sequence number, after
    /// [`may_post`](SendQueue::may_post) has agreed. Returns its number in the queue.
    #[inline]
    pub fn post_started(&mut self, request: &SendRequest<'_>, length: u32, psn: Psn) -> Result<u64, PostError> {
        self.take(request, length, Some(psn), None)
    }

    /// Takes a work request that is done, after [`may_post`](SendQueue::may_post) has agreed. Returns its number in the
    /// queue.
    pub fn post_done(&mut self, request: &SendRequest<'_>, length: u32) -> Result<u64, PostError> {
        self.take(request, length, None, Some(Outcome::Done))
    }

    /// Whether anybody hears of a work request that has succeeded.
    #[inline]
    pub fn hears_of(&self, request: &SendRequest<'_>) -> bool {
        self.signal_all || request.flags.contains(SendFlags::SIGNALED) || self.counts.is_some()
    }

    /// Whether a work request would be taken now.
    #[inline]
    pub fn may_post(&mut self, request: &SendRequest<'_>) -> bool {
        self.release_unsignaled();
        self.room() > 0 && self.admit(request).is_ok()
    }

    /// Whether a work request is of a size that the queue is made for.
    #[inline]
    fn admit(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        match request.data {
            Data::Gather(sges) if sges.len() > self.max_sge as usize => {
                Err(PostError::TooManySges { given: sges.len(), max: self.max_sge })
            }
            Data::Inline(bytes) if bytes.len() > self.max_inline as usize => {
                Err(PostError::InlineTooLong { given: bytes.len(), max: self.max_inline })
            }
            _ => Ok(()),
        }
    }

    #[inline]
    fn take(
        &mut self,
        request: &SendRequest<'_>,
        length: u32,
        first: Option<Psn>,
        outcome: Option<Outcome>,
    ) -> Result<u64, PostError> {
        let capacity = self.ring.capacity();
        let pushed = self.ring.push_with(|work| {
            work.wr_id = request.wr_id;
            work.operation = request.operation;
            work.flags = request.flags;
            work.hold(request.data);
            work.length = length;
            if first.is_none() {
                // Work that goes out at once has neither, and nor has anything else on its queue pair.
                work.target = request.target;
                work.xrc_srq = request.xrc_srq;
            }
            work.started = first.is_some();
            work.first = first.unwrap_or_default();
            work.packets = u32::from(first.is_some());
            work.end(outcome);
        });
        pushed.map_err(|_| PostError::QueueFull { queue: "send", capacity })
    }

    /// How many more it takes.
    pub fn room(&self) -> u32 {
        self.ring.capacity().saturating_sub(self.ring.len())
    }

    #[inline]
    pub fn get(&self, seq: u64) -> Option<&SendWork> {
        self.ring.get(seq)
    }

    #[inline]
    pub fn get_mut(&mut self, seq: u64) -> Option<&mut SendWork> {
        self.ring.get_mut(seq)
    }

    /// The number of the oldest work whose completion has not been taken.
    pub fn head(&self) -> u64 {
        self.ring.head()
    }

    /// The number the next posted work gets.
    pub fn tail(&self) -> u64 {
        self.ring.tail()
    }

    /// Marks work as begun: from here on it owns its sequence numbers.
    pub fn start(&mut self, seq: u64, first: Psn, packets: u32) {
        if let Some(work) = self.ring.get_mut(seq) {
            work.started = true;
            work.first = first;
            work.packets = packets;
            if work.operation.is_answered() {
                self.unanswered += 1;
            }
        }
    }

    /// Copies the bytes of all work from `from` on, if it has no more of them than `max`. Each is asked once.
    pub fn keep(&mut self, from: u64, max: u32, mut read: impl FnMut(&[Sge], &mut [u8]) -> bool) {
        for seq in from.max(self.kept)..self.ring.tail() {
            if let Some(work) = self.ring.get_mut(seq)
                && work.is_open()
                && !work.is_inline()
                && (1..=max).contains(&work.length)
            {
                work.keep(&mut read);
            }
        }
        self.kept = self.ring.tail();
    }

    /// Work that is not answered yet and takes its bytes from the one region of this key takes them from elsewhere from
    /// now on: `to` is asked for each piece, and answers two, of which the second may be empty.
    pub fn relocate(&mut self, key: Key, mut to: impl FnMut(Sge) -> [Sge; 2]) {
        for seq in self.ring.head()..self.ring.tail() {
            if let Some(work) = self.ring.get_mut(seq)
                && work.is_open()
                && work.place == RequestBytes::One
                && work.sge.key == key
            {
                let pieces = to(work.sge);
                work.hold(Data::Gather(&pieces[..if pieces[1].length == 0 { 1 } else { 2 }]));
            }
        }
    }

    /// Decides how work ended. The first verdict stands.
    pub fn settle(&mut self, seq: u64, outcome: Outcome) {
        if let Some(work) = self.ring.get_mut(seq)
            && work.is_open()
        {
            work.end(Some(outcome));
            if work.started && work.operation.is_answered() {
                self.unanswered = self.unanswered.saturating_sub(1);
            }
        }
    }

    /// Work has failed, even if it seemed to have succeeded (an unreliable send is done when it is handed out).
    pub fn overrule(&mut self, seq: u64, status: Status, cause: Failure) {
        self.settle(seq, Outcome::Done);
        if let Some(work) = self.ring.get_mut(seq) {
            work.end(Some(Outcome::Failed(status, cause)));
        }
    }

    /// Flushes everything from `from` on that has no outcome yet.
    pub fn flush(&mut self, from: u64) -> u32 {
        let mut flushed = 0;
        for seq in from.max(self.ring.head())..self.ring.tail() {
            flushed += u32::from(self.ring.get(seq).is_some_and(SendWork::is_open));
            self.settle(seq, Outcome::Failed(Status::WorkRequestFlushed, Failure::Flushed));
        }
        flushed
    }

    /// Whether READs or atomics that were started have not been answered.
    pub fn awaits_answers(&self) -> bool {
        self.unanswered > 0
    }

    pub fn clear(&mut self) {
        self.ring.clear();
        self.unanswered = 0;
        self.ring.set_capacity(self.ring.capacity() - self.own);
        (self.own, self.own_reads) = (0, 0);
    }

    /// Whether it is known how the oldest work ended.
    #[inline]
    pub fn has_outcome(&self) -> bool {
        self.ring.front().is_some_and(|work| !work.is_open())
    }

    /// Whether it is known, and may be told before what was received: a rendezvous ends after its match was told.
    #[inline]
    pub fn goes_first(&self, received: bool) -> bool {
        self.ring.front().is_some_and(|work| !(work.is_open() || received && work.is_own()))
    }

    /// The oldest completion not yet taken. Unsignaled successes leave no trace.
    pub fn completion(&mut self, qpn: Qpn) -> Option<Completion> {
        let mut taken = None;
        self.show_completion(qpn, |completion| taken = Some(*completion));
        taken
    }

    /// Shows it instead, if there is one, and returns whether there was.
    #[inline]
    pub fn show_completion(&mut self, qpn: Qpn, show: impl FnOnce(&Completion)) -> bool {
        self.release_unsignaled();
        let Some(work) = self.ring.front() else { return false };
        let (status, cause) = match work.outcome() {
            None => return false,
            Some(Outcome::Done) => (Status::Success, None),
            Some(Outcome::Failed(status, cause)) => (status, Some(cause)),
        };
        let own = work.is_own();
        let bytes = if status == Status::Success { work.length } else { 0 };
        if let Some(counts) = &mut self.counts
            && !own
        {
            counts.completed(work.kind(), status, bytes.into());
        }
        let kind = if own { CompletionKind::TagData } else { work.kind() };
        let queue = self.srq.filter(|_| own).map_or(Queue::Send, Queue::Shared);
        show(&Completion {
            bytes,
            solicited: status != Status::Success,
            cause: cause.map(Cause::Failed),
            ..Completion::of(work.wr_id, kind, status, queue, qpn)
        });
        self.ring.pop();
        if own {
            self.own_ended(true);
        }
        true
    }

    fn release_unsignaled(&mut self) {
        while let Some(work) = self.ring.front() {
            let own = work.is_own();
            let signaled = self.signal_all && !own || work.flags.contains(SendFlags::SIGNALED);
            // Nobody hears of the end of a rendezvous, not even if it could not be told to the peer.
            let over = work.is_done() || own && !work.is_open();
            if !over || signaled {
                return;
            }
            if let Some(counts) = &mut self.counts
                && !own
            {
                counts.completed(work.kind(), Status::Success, work.length.into());
            }
            self.ring.pop();
            if own {
                self.own_ended(false);
            }
        }
    }
}
