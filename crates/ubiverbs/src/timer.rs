//! Deadlines without a runtime: one thread for all of them, which lives while there are any.

use crate::completion_queue::wake;
use crate::lock;
use latch::PerProcess;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// What waits, soonest first. The number tells apart what is due at once.
#[derive(Default)]
struct Book {
    waiting: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    running: bool,
}

static BOOK: PerProcess<(Mutex<Book>, Condvar)> = PerProcess::new();

fn book() -> &'static (Mutex<Book>, Condvar) {
    BOOK.get_or_make(Default::default)
}

/// The outcome of a future, or nothing if it takes longer than `limit`: then it is dropped. For any executor; it needs
/// no runtime, as it has a timer of its own.
///
/// ```
/// use std::{future::pending, time::Duration};
/// use ubiverbs::{block_on, within};
///
/// assert_eq!(block_on(within(Duration::from_secs(60), async { 5 })), Some(5));
/// assert_eq!(block_on(within(Duration::from_millis(1), pending::<()>())), None);
/// ```
pub async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut deadline = Deadline { at: Instant::now().checked_add(limit), key: None };
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        deadline.poll(context).map(|()| None)
    })
    .await
}

/// A moment that a task waits for; none is never.
struct Deadline {
    at: Option<Instant>,
    /// Where it is in the book.
    key: Option<(Instant, u64)>,
}

impl Deadline {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.at else { return Poll::Pending };
        if Instant::now() >= at {
            return Poll::Ready(());
        }
        let (mutex, changed) = book();
        let mut book = lock(mutex);
        let key = *self.key.get_or_insert_with(|| {
            book.next += 1;
            (at, book.next)
        });
        book.waiting.insert(key, context.waker().clone());
        if !book.running {
            book.running = hca::spawn("ubiverbs-timer", run).is_ok();
        }
        drop(book);
        changed.notify_one();
        Poll::Pending
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let (mutex, changed) = book();
            lock(mutex).waiting.remove(&key);
            // The thread ends if this was the last.
            changed.notify_one();
        }
    }
}

fn run() {
    let (mutex, changed) = book();
    let mut book = lock(mutex);
    while let Some((&(next, _), _)) = book.waiting.first_key_value() {
        let left = next.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            book = changed.wait_timeout(book, left).unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        let due = book.waiting.pop_first();
        drop(book);
        due.into_iter().for_each(|(_, waker)| wake(waker));
        book = lock(mutex);
    }
    book.running = false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_given_up_and_what_does_not_is_not() {
        let soon = Duration::from_millis(5);
        assert_eq!(crate::block_on(within(soon, std::future::pending::<()>())), None);
        assert_eq!(crate::block_on(within(Duration::from_secs(600), async { 5 })), Some(5));
        assert_eq!(crate::block_on(within(Duration::MAX, async { 5 })), Some(5));
        assert_eq!(crate::block_on(within(Duration::ZERO, std::future::pending::<()>())), None);
    }

    #[test]
    fn the_soonest_is_first() {
        let (soon, late) = (Duration::from_millis(5), Duration::from_secs(600));
        let never = std::future::pending::<()>;
        assert_eq!(crate::block_on(within(late, within(soon, never()))), Some(None));
        assert_eq!(crate::block_on(within(soon, within(late, never()))), None);
    }
}
