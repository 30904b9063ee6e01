//! The work that C programs have under way, kept only where a sanitizer wants to know: what the NIC may do with which
//! bytes from when on, and what ends that.
//!
//! | moment | MemorySanitizer, memcheck | ThreadSanitizer |
//! |---|---|---|
//! | a send is posted | its bytes must be initialised | the queue pair's fiber reads them, or writes them for a READ |
//! | a message lands in a receive | its bytes count as uninitialised | a second fiber writes them, after all that was posted before |
//! | a peer's WRITE lands | its bytes are initialised | atomic loads of them come after all that was posted before |
//! | a completion is polled | what it is of is initialised | what follows comes after that work, and after all that was posted |
//!
//! Two accesses of the NIC's are never reported as a race: what two queue pairs place in the same buffer, or send from it
//! meanwhile, is the program's own choice (`ibv_srq_pingpong` does), and nothing here knows what its peers wait for. So
//! each comes after those before it that touched the same bytes.
//!
//! ThreadSanitizer may call functions of the program when it reports. So what lands, which it does under locks, is noted
//! and told by the next call that posts or polls, before that call orders anything.

use super::ledger_books::{Books, Piece, PostedTo, RecentAccess, Untold, Work};
use super::ledger_fibers::{Fibers, Side};
use latch::sanitizer::{self, Step, Token};
use latch::{Mutex, Rank};
use memory::Memory;
use std::cell::Cell;
use std::sync::Arc;
use transport::{
    Completion, CompletionKind, Data, Operation, Queue, ReceiveRequest, SendFlags, SendRequest, Sge, Status,
};
use wire::access::{Access, Range, Subject};
use wire::{Qpn, Srqn};

/// Work that is kept of a queue. More can be under way only where completions are never polled.
const MAX_KEPT_WORK: usize = 1 << 16;

/// Accesses that are kept to be put before later ones.
const MAX_RECENT_ACCESSES: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ledger {
    books: Mutex<Books>,
    fibers: Fibers,
    /// Comes after everything that was posted.
    posted: Token,
}

thread_local! {
    /// The work request that this thread is about to post.
    static CURRENT_WORK: Cell<Option<u64>> = const { Cell::new(None) };
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            books: Mutex::new(Rank::WorkLedger, Books::default()),
            fibers: Fibers::default(),
            posted: Token::new(),
        }
    }
}

impl Ledger {
    /// Whether anything is kept.
    #[inline]
    pub fn is_kept() -> bool {
        sanitizer::is_present()
    }

    /// A queue pair is there.
    pub fn opened(&self, qpn: Qpn, signal_all: bool) {
        if Ledger::is_kept() && signal_all {
            self.books.lock().signal_all.insert(qpn);
        }
    }

    /// What was posted to a queue pair does not complete any more.
    pub fn forget(&self, qpn: Qpn, is_gone: bool) {
        if !Ledger::is_kept() {
            return;
        }
        self.settle(|access| access.fiber.0 == qpn);
        let mut books = self.books.lock();
        let gone = [PostedTo::Sends(qpn), PostedTo::Receives(qpn)].map(|queue| books.queues.remove(&queue));
        if is_gone {
            books.signal_all.remove(&qpn);
            books.peers.remove(&qpn);
        }
        drop(books);
        gone.iter().flatten().flatten().for_each(Work::give_back);
        if is_gone {
            self.fibers.forget(qpn);
        }
    }

    /// Nothing is done with a region any more: what the program does with its memory from now on comes after what was.
    pub fn deregistered(&self) {
        if Ledger::is_kept() {
            self.settle(|_| true);
        }
    }

    /// What the program does from now on comes after these accesses.
    fn settle(&self, which: impl Fn(&RecentAccess) -> bool) {
        if !sanitizer::follows_accesses() {
            return;
        }
        self.flush();
        let recent: Vec<Arc<Token>> = {
            let books = self.books.lock();
            books.recent.iter().filter(|access| which(access)).map(|access| Arc::clone(&access.after)).collect()
        };
        recent.iter().for_each(|after| after.acquire());
    }

    /// A fiber touches bytes after `posted`, and after earlier accesses of the same bytes.
    fn access(&self, fiber: (Qpn, Side), posted: &Token, piece: Piece, writes: bool, stack: &[usize]) {
        let after = Arc::new(Token::new());
        let before: Vec<Arc<Token>> = {
            let mut books = self.books.lock();
            let met = |access: &&RecentAccess| access.piece.meets(piece);
            let before = books.recent.iter().filter(met).map(|access| Arc::clone(&access.after)).collect();
            books.recent.retain(|access| access.fiber != fiber || !piece.covers(access.piece));
            if books.recent.len() >= MAX_RECENT_ACCESSES {
                books.recent.pop_front();
            }
            books.recent.push_back(RecentAccess { fiber, piece, after: Arc::clone(&after) });
            before
        };
        let steps = [Step::Acquire(posted)].into_iter().chain(before.iter().map(|before| Step::Acquire(before)));
        let access = Step::Access { start: piece.first(), length: piece.length, writes, stack };
        self.fibers.run(fiber.0, fiber.1, steps.chain([access, Step::Release(&after)]));
    }

    /// A shared receive queue is gone.
    pub fn forget_shared(&self, srqn: Srqn) {
        if Ledger::is_kept() {
            let gone = self.books.lock().queues.remove(&PostedTo::Shared(srqn));
            gone.iter().flatten().for_each(Work::give_back);
        }
    }

    /// These sends are about to be posted by `subject`, whose peer is this.
    pub fn sends(&self, memory: &Memory, subject: Subject, peer: String, requests: &[SendRequest<'_>]) {
        self.flush();
        self.note_peer(subject.qpn, peer);
        let stack = stack_of_call();
        for request in requests {
            let (reads, fills) = match request.operation {
                Operation::Send { .. } | Operation::SendInvalidate { .. } | Operation::Write { .. } => (true, false),
                Operation::AtomicWrite { .. } => (true, false),
                Operation::Read { .. } | Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => (false, true),
                _ => (false, false),
            };
            CURRENT_WORK.set(Some(request.wr_id));
            let pieces = match request.data {
                _ if !reads && !fills => Vec::new(),
                Data::Gather(sges) => {
                    let access = if fills { Access::LOCAL_WRITE } else { Access::empty() };
                    sges.iter().filter_map(|sge| place_of(memory, subject, sge, access)).collect()
                }
                Data::Inline(bytes) => vec![Piece { start: bytes.as_ptr().expose_provenance(), length: bytes.len() }],
            };
            CURRENT_WORK.set(None);
            for piece in pieces.iter().filter(|_| reads) {
                sanitizer::judge_initialised(
                    piece.first(),
                    piece.length,
                    || self.withholds(*piece),
                    || {
                        let (name, peer) = (request.operation.name(), self.peer(subject.qpn));
                        let (qpn, wr_id) = (subject.qpn.value(), request.wr_id);
                        format!(
                            "queue pair {qpn:#x}{peer} is to send {} bytes at {:#x} ({name}, wr_id {wr_id:#x}), and not all of \
                         them are initialised",
                            piece.length, piece.start
                        )
                    },
                );
            }
            let done = Arc::new(Token::new());
            if sanitizer::follows_accesses() {
                let posted = Token::new();
                posted.release();
                for piece in &pieces {
                    self.access((subject.qpn, Side::Sends), &posted, *piece, fills, &stack);
                }
                self.fibers.run(subject.qpn, Side::Sends, [Step::Release(&done)]);
                if let Data::Inline(_) = request.data {
                    // The buffer is the program's again when the call returns.
                    done.acquire();
                }
            }
            let work = Work {
                wr_id: request.wr_id,
                signaled: request.flags.contains(SendFlags::SIGNALED),
                is_send: true,
                fills,
                pieces,
                landed: Vec::new(),
                taker: Some(subject.qpn),
                finished: false,
                stack: Arc::clone(&stack),
                done,
            };
            self.keep(PostedTo::Sends(subject.qpn), work);
        }
        self.posted.release();
    }

    /// These receives are about to be posted to the subject's queue, or to a shared one.
    pub fn receives(&self, memory: &Memory, subject: Subject, srqn: Option<Srqn>, requests: &[ReceiveRequest<'_>]) {
        self.flush();
        let stack = stack_of_call();
        for request in requests {
            CURRENT_WORK.set(Some(request.wr_id));
            let places = request.sges.iter().filter_map(|sge| place_of(memory, subject, sge, Access::LOCAL_WRITE));
            let work = Work {
                wr_id: request.wr_id,
                signaled: true,
                is_send: false,
                fills: true,
                pieces: places.collect(),
                landed: Vec::new(),
                taker: None,
                finished: false,
                stack: Arc::clone(&stack),
                done: Arc::new(Token::new()),
            };
            CURRENT_WORK.set(None);
            self.keep(srqn.map_or(PostedTo::Receives(subject.qpn), PostedTo::Shared), work);
        }
        self.posted.release();
    }

    /// Who the peer of a queue pair is, in words.
    pub fn note_peer(&self, qpn: Qpn, peer: String) {
        self.books.lock().peers.insert(qpn, peer);
    }

    fn keep(&self, queue: PostedTo, work: Work) {
        let mut books = self.books.lock();
        let kept = books.queues.entry(queue).or_default();
        kept.push_back(work);
        let dropped = if kept.len() > MAX_KEPT_WORK { kept.pop_front() } else { None };
        drop(books);
        dropped.iter().for_each(Work::give_back);
    }

    /// The last so many sends that were said to be posted were refused.
    pub fn refused_sends(&self, qpn: Qpn, count: usize) {
        self.refused(PostedTo::Sends(qpn), count);
    }

    /// The last so many receives that were said to be posted were refused.
    pub fn refused_receives(&self, qpn: Qpn, srqn: Option<Srqn>, count: usize) {
        self.refused(srqn.map_or(PostedTo::Receives(qpn), PostedTo::Shared), count);
    }

    fn refused(&self, queue: PostedTo, count: usize) {
        let mut books = self.books.lock();
        let kept = books.queues.entry(queue).or_default();
        let refused = kept.split_off(kept.len().saturating_sub(count));
        drop(books);
        // The NIC did nothing: what the program does next comes after what it was thought to do.
        refused.iter().for_each(|work| work.done.acquire());
    }

    /// Bytes have been written, as a peer's own access or for work of this process.
    #[cold]
    pub fn landed(&self, memory: &Memory, subject: Subject, range: Range) {
        let access = if subject.remote { Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        let Ok(bytes) = sanitizer::judged(|| memory.lend_briefly(subject, range, access)) else { return };
        let piece = Piece { start: bytes.as_ptr().expose_provenance(), length: bytes.len() };
        drop(bytes);
        if piece.length == 0 {
            return;
        }
        sanitizer::release_to_tools();
        if subject.remote {
            sanitizer::hand_over(piece.first(), piece.length);
            if sanitizer::follows_accesses() {
                let flags = flag_addresses(piece)
                    .map(|address| Step::ReleaseAddress(std::ptr::with_exposed_provenance(address)));
                let steps = [Step::Acquire(&self.posted)].into_iter().chain(flags);
                self.fibers.run(subject.qpn, Side::Peers, steps);
            }
            return;
        }
        let mut books = self.books.lock();
        let Some(work) = books.filled(subject.qpn, piece.start) else { return };
        work.taker = Some(subject.qpn);
        work.landed.push(piece);
        sanitizer::withhold(piece.first(), piece.length);
        if sanitizer::follows_accesses() && !work.is_send {
            let stack = Arc::clone(&work.stack);
            books.untold.push(Untold::Landed { qpn: subject.qpn, piece, stack });
        }
    }

    /// Bytes of the program have been read.
    #[cold]
    pub fn has_read(&self) {
        sanitizer::release_to_tools();
    }

    /// Work is about to complete.
    #[cold]
    pub fn finished(&self, qpn: Qpn, queue: Queue) {
        sanitizer::release_to_tools();
        if queue == Queue::Send {
            return;
        }
        let mut books = self.books.lock();
        let Some(kept) = books.queues.get_mut(&PostedTo::of(queue, qpn)) else { return };
        let mine = kept.iter().position(|work| !work.finished && work.taker == Some(qpn));
        let next = mine.or_else(|| kept.iter().position(|work| !work.finished && work.taker.is_none()));
        let Some(work) = next.and_then(|next| kept.get_mut(next)) else { return };
        work.finished = true;
        work.taker = Some(qpn);
        let done = Arc::clone(&work.done);
        if sanitizer::follows_accesses() {
            books.untold.push(Untold::Finished { qpn, done });
        }
    }

    /// The program has polled these completions.
    pub fn told(&self, completions: &[Completion]) {
        self.flush();
        for completion in completions {
            self.told_one(completion);
        }
        if !completions.is_empty() {
            self.posted.acquire();
        }
    }

    fn told_one(&self, completion: &Completion) {
        let queue = PostedTo::of(completion.queue, completion.qpn);
        let succeeded = completion.status == Status::Success;
        let ended: Vec<Work> = {
            let mut books = self.books.lock();
            let signals_all = books.signal_all.contains(&completion.qpn);
            let Some(kept) = books.queues.get_mut(&queue) else { return };
            match queue {
                PostedTo::Sends(_) => {
                    let ends = |work: &Work| match succeeded {
                        true => work.signaled || signals_all,
                        false => work.wr_id == completion.wr_id,
                    };
                    let Some(last) = kept.iter().position(ends) else { return };
                    kept.drain(..=last).collect()
                }
                PostedTo::Receives(_) | PostedTo::Shared(_) => {
                    let is_it = |work: &Work| work.wr_id == completion.wr_id;
                    let finished = |work: &Work| is_it(work) && work.finished && work.taker == Some(completion.qpn);
                    let place = kept.iter().position(finished).or_else(|| kept.iter().position(is_it));
                    place.and_then(|place| kept.remove(place)).into_iter().collect()
                }
            }
        };
        for work in &ended {
            work.done.acquire();
            let bytes = match completion.kind {
                CompletionKind::ReceiveWriteImmediate => 0,
                _ if !succeeded || !work.fills => 0,
                _ if queue == PostedTo::Sends(completion.qpn) => usize::MAX,
                _ => completion.bytes as usize,
            };
            work.hand_over(bytes);
        }
    }

    /// Tells ThreadSanitizer of what has landed. No lock is held.
    pub fn flush(&self) {
        if !sanitizer::follows_accesses() {
            return;
        }
        self.fibers.one_after_another(|| {
            let untold = std::mem::take(&mut self.books.lock().untold);
            for untold in untold {
                match untold {
                    Untold::Landed { qpn, piece, stack } => {
                        self.access((qpn, Side::Receives), &self.posted, piece, true, &stack);
                    }
                    Untold::Finished { qpn, done } => {
                        self.fibers.run(qpn, Side::Receives, [Step::Release(&done)]);
                    }
                }
            }
        });
    }

    /// The work request and the peer behind an access, for a report.
    pub fn name(&self, qpn: Qpn, address: usize, remote: bool) -> String {
        let peer = self.peer(qpn);
        let wr_id = CURRENT_WORK.get().or_else(|| {
            let mut books = self.books.lock();
            let reads = |books: &Books| {
                books.queues.get(&PostedTo::Sends(qpn))?.iter().find(|work| work.has(address)).map(|work| work.wr_id)
            };
            books.filled(qpn, address).map(|work| work.wr_id).or_else(|| reads(&books))
        });
        match wr_id.filter(|_| !remote) {
            Some(wr_id) => format!("{peer}, wr_id {wr_id:#x}"),
            None => peer,
        }
    }

    /// Whether some of these bytes have been placed and the program is not told yet. That it sends them all the same is
    /// no use of uninitialised memory.
    fn withholds(&self, piece: Piece) -> bool {
        let books = self.books.lock();
        books.queues.values().flatten().flat_map(|work| &work.landed).any(|landed| landed.meets(piece))
    }

    fn peer(&self, qpn: Qpn) -> String {
        self.books.lock().peers.get(&qpn).cloned().unwrap_or_default()
    }
}

/// Where programs look for what a peer has written: every word of a short WRITE, the ends of a long one.
fn flag_addresses(piece: Piece) -> impl Iterator<Item = usize> {
    const SHORT_BYTES: usize = 64;
    let words = piece.length.min(SHORT_BYTES).div_ceil(4);
    let end = piece.start + piece.length;
    let ends = [1, 2, 4, 8].into_iter().filter(move |back| *back <= piece.length).map(move |back| end - back);
    (0..words).map(move |word| piece.start + 4 * word).chain(ends)
}

/// Where the bytes of a piece of work are, if the work may use them.
fn place_of(memory: &Memory, subject: Subject, sge: &Sge, access: Access) -> Option<Piece> {
    let range = Range { key: sge.key.of_region(), address: sge.address, length: sge.length.into() };
    // What cannot be had fails when the work is carried out.
    let bytes =
        memory.lend_briefly(subject, range, access).ok().filter(|bytes| !bytes.is_empty() && !bytes.may_vanish())?;
    Some(Piece { start: bytes.as_ptr().expose_provenance(), length: bytes.len() })
}

fn stack_of_call() -> Arc<[usize]> {
    if sanitizer::follows_accesses() { sanitizer::callers().into() } else { Arc::new([]) }
}
