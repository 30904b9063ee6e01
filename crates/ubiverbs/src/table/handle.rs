//! What the handle of an operation asks of the table: whether it is done, to report it elsewhere, to let go of it.

use super::dropped_receives::Message;
use super::{Finish, Observer, Reporter, Slot, State, Table, Ticket};
use latch::lock;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

impl Table {
    /// What a handle asks when it is polled.
    pub fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Finish> {
        if let Poll::Ready(finish) = self.check(ticket, context) {
            return Poll::Ready(finish);
        }
        if self.asynchronous.load(Ordering::SeqCst) || self.asynchronous.swap(true, Ordering::SeqCst) {
            return Poll::Pending;
        }
        // The first to wait: from now on completions are reported at once. What completed before is looked for here.
        let queues: Vec<Arc<dyn Reporter>> = lock(&self.queues).iter().filter_map(Weak::upgrade).collect();
        for queue in queues {
            Arc::clone(&queue).make_asynchronous();
            queue.dispatch();
        }
        self.check(ticket, context)
    }

    fn check(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Finish> {
        let mut inner = lock(&self.inner);
        match inner.slot(ticket).map(|slot| &mut slot.state) {
            Some(State::Pending(Observer::Handle(waker) | Observer::HandleWithout(waker))) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            Some(State::Done) => inner.finish(ticket).map_or(Poll::Pending, Poll::Ready),
            // Its answer came with another receive; or was taken already: there is no second one.
            _ => inner.take_early(ticket).map_or(Poll::Pending, |message| Poll::Ready(message.into_finish())),
        }
    }

    /// Whether it is done, for a handle that only asks.
    pub fn is_done(&self, ticket: Ticket) -> bool {
        let mut inner = lock(&self.inner);
        matches!(inner.slot(ticket), Some(Slot { state: State::Done, .. })) || inner.has_early(ticket)
    }

    /// The handle lets the completion queue report it, under the program's number. If it is done already, that is up to
    /// the caller.
    #[inline]
    pub fn hand_to_queue(&self, ticket: Ticket, wr_id: u64) -> Option<Finish> {
        let mut inner = lock(&self.inner);
        match inner.slot(ticket).map(|slot| &mut slot.state) {
            Some(State::Pending(observer @ (Observer::Handle(_) | Observer::HandleWithout(_)))) => {
                let queue = match observer {
                    Observer::Handle(_) => Observer::Queue(wr_id),
                    _ => Observer::QueueWithout(wr_id),
                };
                let before = std::mem::replace(observer, queue);
                // A waker may do anything when it is dropped: not under the lock.
                drop(inner);
                drop(before);
                None
            }
            Some(State::Done) => inner.finish(ticket),
            _ => inner.take_early(ticket).map(Message::into_finish),
        }
    }

    /// The handle is gone. A receive stays, for the next who waits.
    pub fn abandon(&self, ticket: Ticket) {
        if self.may_be_left.is_some() { self.leave(ticket) } else { self.discard(ticket) }
    }

    /// The handle is gone, and nobody wants to know what comes of the work.
    pub fn discard(&self, ticket: Ticket) {
        let mut inner = lock(&self.inner);
        let (mut before, mut held) = (None, None);
        let done = match inner.slot(ticket).map(|slot| &mut slot.state) {
            Some(State::Pending(observer @ Observer::Handle(_))) => {
                before = Some(std::mem::replace(observer, Observer::Nobody));
                None
            }
            Some(State::Pending(observer @ Observer::HandleWithout(_))) => {
                before = Some(std::mem::replace(observer, Observer::HandleWithout(None)));
                held = inner.vacate(ticket);
                None
            }
            Some(State::Done) => inner.finish(ticket),
            _ => inner.take_early(ticket).map(Message::into_finish),
        };
        // Freeing a buffer takes a while, and a waker may do anything when it is dropped: not under the lock.
        drop(inner);
        drop((done, before, held));
    }
}
