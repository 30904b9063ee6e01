//! Shared receive queues: the transport's queue behind a lock, with its events; for XRC its domain and completion
//! queue; for tag matching the list of tagged buffers and their completion queue.

use crate::objects::completion_queue::{Added, CompletionQueue};
use crate::objects::context::{AsyncEvent, Context};
use latch::Rank;
use latch::plain::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use transport::{
    PostError, ProtectionDomain, ReceiveRequest, ReceiveWork, SharedReceiveQueue, SrqAttributes, SrqError, SrqEvent,
    SrqModify, TagList, TagRequest, TaggedTaken, TakenReceive,
};
use wire::Srqn;

/// What makes a shared receive queue an XRC one.
#[derive(Clone, Debug)]
pub struct Xrc {
    /// The domain whose targets may use it.
    pub domain: u32,
    /// Where its completions go.
    pub cq: Arc<CompletionQueue>,
}

/// What makes a shared receive queue one that matches tags.
#[derive(Clone, Debug)]
pub struct TagMatching {
    /// How many tagged buffers there may be.
    pub max_tags: u32,
    /// How many pieces each may have.
    pub max_sge: u32,
    /// Where all completions of the queue go.
    pub cq: Arc<CompletionQueue>,
}

/// What else a shared receive queue is.
#[derive(Clone, Debug)]
pub enum SharedQueueKind {
    /// Nothing.
    Basic,
    /// One that XRC senders name.
    Xrc(Xrc),
    /// One that matches tags.
    Tags(TagMatching),
}

/// The tagged buffers, and where they complete.
#[derive(Debug)]
struct Tags {
    cq: Arc<CompletionQueue>,
    list: Mutex<TagList>,
}

/// The shared receive queues of a process.
#[derive(Debug)]
pub(crate) struct SharedQueueTable {
    queues: RwLock<HashMap<Srqn, Arc<SharedQueue>>>,
    next_number: AtomicU32,
}

impl Default for SharedQueueTable {
    fn default() -> SharedQueueTable {
        let queues = RwLock::new(Rank::SharedQueues, HashMap::new());
        SharedQueueTable { queues, next_number: AtomicU32::new(1) }
    }
}

impl SharedQueueTable {
    /// Adds the queue that `make` makes for a new number; none if there are `limit` already.
    pub fn add(&self, limit: usize, make: impl FnOnce(Srqn) -> SharedQueue) -> Option<Arc<SharedQueue>> {
        let mut queues = self.queues.write();
        if queues.len() >= limit {
            return None;
        }
        // Numbers go round, and a queue may live for longer than that takes.
        let number = loop {
            let number = Srqn::new(self.next_number.fetch_add(1, Ordering::Relaxed));
            if !queues.contains_key(&number) {
                break number;
            }
        };
        let queue = Arc::new(make(number));
        queues.insert(number, Arc::clone(&queue));
        Some(queue)
    }

    pub fn remove(&self, number: Srqn) {
        self.queues.write().remove(&number);
    }

    /// All of them, as they are now.
    pub fn all(&self) -> Vec<Arc<SharedQueue>> {
        self.queues.read().values().cloned().collect()
    }

    /// The queue of that number, if a queue pair of this XRC domain (or none) may use it.
    pub fn usable_by(&self, number: Srqn, xrc_domain: Option<u32>) -> Option<Arc<SharedQueue>> {
        let queues = self.queues.read();
        queues.get(&number).filter(|queue| queue.xrc().map(|xrc| xrc.domain) == xrc_domain).cloned()
    }

    /// Tells the observers of the completion queues that shared receive queues have of their own.
    #[cold]
    pub fn announce(&self) {
        let queues: Vec<_> =
            self.queues.read().values().filter_map(|queue| queue.completion_queue().cloned()).collect();
        queues.iter().for_each(|queue| queue.announce());
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedQueue {
    number: Srqn,
    domain: ProtectionDomain,
    xrc: Option<Xrc>,
    tags: Option<Tags>,
    context: Arc<Context>,
    queue: Mutex<SharedReceiveQueue>,
}

impl SharedQueue {
    /// The opened device that it is on.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn new(
        number: Srqn,
        domain: ProtectionDomain,
        max_wr: u32,
        max_sge: u32,
        kind: SharedQueueKind,
        context: Arc<Context>,
    ) -> SharedQueue {
        let (mut xrc, mut tags) = (None, None);
        match kind {
            SharedQueueKind::Basic => {}
            SharedQueueKind::Xrc(kind) => xrc = Some(kind),
            SharedQueueKind::Tags(TagMatching { max_tags, max_sge, cq }) => {
                let list = TagList::new(max_tags, max_sge);
                tags = Some(Tags { cq, list: Mutex::new(Rank::TaggedBuffers, list) });
            }
        }
        let queue = Mutex::new(Rank::SharedQueue, SharedReceiveQueue::new(number, domain, max_wr, max_sge));
        SharedQueue { number, domain, xrc, tags, context, queue }
    }

    /// It fails: its program hears of it.
    pub(crate) fn break_down(&self) {
        self.context.raise(AsyncEvent::SrqError(self.number));
    }

    /// Its number, which XRC senders name.
    pub fn number(&self) -> Srqn {
        self.number
    }

    /// The protection domain its receives act in.
    pub fn domain(&self) -> ProtectionDomain {
        self.domain
    }

    /// What makes it an XRC one.
    pub fn xrc(&self) -> Option<&Xrc> {
        self.xrc.as_ref()
    }

    /// Whether it matches tags.
    pub fn matches_tags(&self) -> bool {
        self.tags.is_some()
    }

    /// The completion queue of its own, if it has one: then all its receives complete there.
    pub(crate) fn completion_queue(&self) -> Option<&Arc<CompletionQueue>> {
        self.xrc.as_ref().map(|xrc| &xrc.cq).or(self.tags.as_ref().map(|tags| &tags.cq))
    }

    /// Carries out an operation on its tagged buffers at the time `at` of the NIC's clock. Returns the handle of a
    /// buffer that was added.
    pub fn run_tag_request(&self, request: &TagRequest<'_>, at: u64) -> Result<Option<u32>, PostError> {
        let Some(tags) = &self.tags else { return Err(PostError::NoTags) };
        let mut list = tags.list.lock();
        let outcome = list.run(request)?;
        if request.signaled {
            // Before the list is let go: a message that matches the buffer completes after this.
            match tags.cq.push(&request.completion(self.number, &outcome), at) {
                Added::Fine | Added::Dead => {}
                Added::Overflowed | Added::Dropped => self.context.raise(AsyncEvent::CqError(tags.cq.id)),
                // No queue pair keeps the time for it.
                Added::Later(_) => tags.cq.rouse(),
            }
        }
        drop(list);
        tags.cq.announce();
        Ok(outcome.handle)
    }

    /// Takes the tagged buffer that a message with this tag matches, or else a receive.
    pub(crate) fn take_tagged(&self, tag: Option<u64>, into: &mut ReceiveWork) -> TaggedTaken {
        let Some(tags) = &self.tags else { return TaggedTaken::Unknown };
        let mut list = tags.list.lock();
        if tag.is_some_and(|tag| list.take(tag, into)) {
            return TaggedTaken::Matched;
        }
        match self.take(into) {
            TakenReceive::Taken => TaggedTaken::Unmatched { out_of_step: tag.is_some() && list.was_unexpected() },
            TakenReceive::Empty => TaggedTaken::Empty,
            TakenReceive::Unknown => TaggedTaken::Unknown,
        }
    }

    /// So many tagged buffers that messages had matched have completed, or will not.
    pub(crate) fn tagged_finished(&self, buffers: u32) {
        if let (1.., Some(tags)) = (buffers, &self.tags) {
            tags.list.lock().finished(buffers);
        }
    }

    /// Posts a receive.
    pub fn post(&self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        self.queue.lock().post(request)
    }

    /// Posts a receive, and has `posted` called before anything can take it.
    pub(crate) fn post_and(&self, request: &ReceiveRequest<'_>, posted: impl FnOnce()) -> Result<(), PostError> {
        let mut queue = self.queue.lock();
        queue.post(request)?;
        posted();
        Ok(())
    }

    /// Changes its size or its limit.
    pub fn modify(&self, modify: &SrqModify) -> Result<(), SrqError> {
        self.queue.lock().modify(modify)
    }

    /// What it is now.
    pub fn query(&self) -> SrqAttributes {
        self.queue.lock().query()
    }

    pub(crate) fn take(&self, into: &mut ReceiveWork) -> TakenReceive {
        let mut queue = self.queue.lock();
        let taken = queue.take(into);
        while let Some(event) = queue.poll_event() {
            if event == SrqEvent::LimitReached {
                self.context.raise(AsyncEvent::SrqLimit(self.number));
            }
        }
        if taken { TakenReceive::Taken } else { TakenReceive::Empty }
    }
}
