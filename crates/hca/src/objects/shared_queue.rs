//! Shared receive queues: the transport's queue behind a lock, with its events and, for XRC, its domain and completion
//! queue.

use crate::objects::completion_queue::CompletionQueue;
use crate::objects::context::{AsyncEvent, Context};
use latch::Rank;
use latch::plain::Mutex;
use std::sync::Arc;
use transport::{
    PostError, ProtectionDomain, ReceiveRequest, ReceiveWork, SharedReceiveQueue, SrqAttributes, SrqError, SrqEvent,
    SrqModify, Taken,
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

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedQueue {
    number: Srqn,
    domain: ProtectionDomain,
    xrc: Option<Xrc>,
    context: Arc<Context>,
    queue: Mutex<SharedReceiveQueue>,
}

impl SharedQueue {
    pub(crate) fn new(
        number: Srqn,
        domain: ProtectionDomain,
        max_wr: u32,
        max_sge: u32,
        xrc: Option<Xrc>,
        context: Arc<Context>,
    ) -> SharedQueue {
        let queue = Mutex::new(Rank::SharedQueue, SharedReceiveQueue::new(number, domain, max_wr, max_sge));
        SharedQueue { number, domain, xrc, context, queue }
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

    /// Posts a receive.
    pub fn post(&self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        self.queue.lock().post(request)
    }

    /// Changes its size or its limit.
    pub fn modify(&self, modify: &SrqModify) -> Result<(), SrqError> {
        self.queue.lock().modify(modify)
    }

    /// What it is now.
    pub fn query(&self) -> SrqAttributes {
        self.queue.lock().query()
    }

    pub(crate) fn take(&self, into: &mut ReceiveWork) -> Taken {
        let mut queue = self.queue.lock();
        let taken = queue.take(into);
        while let Some(event) = queue.poll_event() {
            if event == SrqEvent::LimitReached {
                self.context.raise(AsyncEvent::SrqLimit(self.number));
            }
        }
        if taken { Taken::Taken } else { Taken::Empty }
    }
}
