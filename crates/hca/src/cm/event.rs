//! What the connection manager tells a program, on a channel whose descriptor is a real one.

use super::id::Id;
use crate::objects::channel::Channel;
use crate::objects::completion_queue::Observer;
use ::cm::id::{Body, EventKind};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Where events of ids arrive, oldest first.
#[derive(Debug)]
#[doc(alias = "rdma_event_channel")]
pub struct EventChannel {
    events: Channel<Event>,
    observer: OnceLock<Observer>,
    /// Something was added that the observer has not been told of.
    fresh: AtomicBool,
    /// The thread that took an event last; 0 for none.
    taker: AtomicUsize,
}

impl EventChannel {
    /// An empty one.
    pub fn new() -> io::Result<EventChannel> {
        let (observer, fresh, taker) = (OnceLock::new(), AtomicBool::new(false), AtomicUsize::new(0));
        Ok(EventChannel { events: Channel::new()?, observer, fresh, taker })
    }

    /// A number that no other channel of the process has.
    pub fn number(&self) -> u32 {
        self.events.number()
    }

    /// The oldest event. Waits for one unless the descriptor is non-blocking; the error is `WouldBlock` then.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn take(&self) -> io::Result<Event> {
        self.events.take().inspect(|event| self.taken(event))
    }

    /// The oldest event, if there is one.
    pub fn try_take(&self) -> Option<Event> {
        self.events.try_take().inspect(|event| self.taken(event))
    }

    fn taken(&self, event: &Event) {
        self.taker.store(latch::this_thread(), Ordering::Relaxed);
        event.seen();
    }

    /// The thread that took an event last; 0 for none.
    pub(crate) fn taken_by(&self) -> usize {
        self.taker.load(Ordering::Relaxed)
    }

    /// Whether the program has made the descriptor non-blocking.
    pub fn is_nonblocking(&self) -> io::Result<bool> {
        self.events.is_nonblocking()
    }

    /// The descriptor to wait for: readable while there are events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// The descriptor's number, for programs.
    pub fn raw_fd(&self) -> RawFd {
        self.events.raw_fd()
    }

    /// Calls `observer` after something was added, in whichever thread did so, with no lock held. Set once; false if
    /// there was one.
    pub fn observe(&self, observer: impl Fn() + Send + Sync + 'static) -> bool {
        self.observer.set(Observer(Box::new(observer))).is_ok()
    }

    pub(crate) fn push(&self, event: Event) {
        self.events.push(event);
        self.fresh.store(true, Ordering::Release);
    }

    /// Whether there is something to tell an observer.
    pub(crate) fn has_news(&self) -> bool {
        self.observer.get().is_some() && self.fresh.load(Ordering::Acquire)
    }

    /// Tells the observer, which may call the connection manager: nothing of it must be locked.
    pub(crate) fn announce(&self) {
        if let Some(Observer(observer)) = self.observer.get()
            && self.fresh.swap(false, Ordering::AcqRel)
        {
            observer();
        }
    }

    pub(crate) fn extract(&self, wanted: impl FnMut(&Event) -> bool) -> Vec<Event> {
        self.events.extract(wanted)
    }
}

/// Something that happened to an id.
#[derive(Clone, Debug)]
pub struct Event {
    /// To which. A request comes with an id of its own.
    pub id: Arc<Id>,
    /// The id that listens, if it is a request.
    pub listener: Option<Arc<Id>>,
    /// What.
    pub kind: EventKind,
    /// 0, a negative errno, or the reason of a rejection.
    pub status: i32,
    /// What comes with it.
    pub body: Body,
}

impl Event {
    /// A program has it: a request no longer counts towards the backlog.
    fn seen(&self) {
        if self.kind == EventKind::ConnectRequest {
            self.id.taken();
        }
    }
}
