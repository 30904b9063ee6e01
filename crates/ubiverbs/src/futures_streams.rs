//! What comes one after the other, as a `Stream` of the crate `futures`: completions of a queue, connections of a
//! listener.

use crate::cm::{Connection, Listener, Pending};
use crate::completion::Completion;
use crate::completion_queue::CompletionQueue;
use crate::transports::{Connected, Transport};
use futures_core::Stream;
use seam::Error;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// The completions of a queue. Made by [`CompletionQueue::completions`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Completions<'a> {
    queue: &'a CompletionQueue,
    ended: bool,
}

impl CompletionQueue {
    /// The completions that are left to the queue, oldest first, as a `Stream`. It ends after an error: the queue has
    /// overflowed. Dropping it loses none.
    pub fn completions(&self) -> Completions<'_> {
        Completions { queue: self, ended: false }
    }
}

impl Stream for Completions<'_> {
    type Item = Result<Completion, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let next = pin!(self.queue.next()).poll(context);
        self.ended = matches!(next, Poll::Ready(Err(_)));
        next.map(Some)
    }
}

/// The connections of a listener. Made by [`Listener::incoming`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct IncomingConnections<'a, T: Transport> {
    listener: &'a Listener<T>,
    next: Option<Pending<Connection<T>>>,
}

impl<T: Connected> Listener<T> {
    /// The connections that come, each accepted as by [`accept`](Listener::accept), as a `Stream` that never ends.
    /// Dropping it loses none.
    pub fn incoming(&self) -> IncomingConnections<'_, T> {
        IncomingConnections { listener: self, next: None }
    }
}

impl<T: Connected> Stream for IncomingConnections<'_, T> {
    type Item = Result<Connection<T>, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let next = this.next.get_or_insert_with(|| this.listener.accept());
        let polled = Pin::new(next).poll(context);
        if polled.is_ready() {
            this.next = None;
        }
        polled.map(Some)
    }
}
