//! Deadlines without a runtime: one thread for all of them, which lives while there are any and a little longer.

use latch::PerProcess;
use latch::lock;
use seam::environment;
use seam::wake;
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// What waits, soonest first. The number tells apart what is due at once.
#[derive(Default)]
struct TimerBook {
    waiting: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    running: bool,
}

static DEADLINE_BOOK: PerProcess<(Mutex<TimerBook>, Condvar)> = PerProcess::new();

fn book() -> &'static (Mutex<TimerBook>, Condvar) {
    DEADLINE_BOOK.get_or_make(Default::default)
}

/// Waits. In a party of a simulation (feature `simulation`) by its clock.
///
/// ```
/// # use std::time::Duration;
/// ubiverbs::block_on(ubiverbs::sleep(Duration::from_millis(1)));
/// ```
pub fn sleep(time: Duration) -> Sleep {
    Sleep(Deadline::new(time))
}

/// A wait that [`sleep`] has begun: the time counts from there.
#[must_use = "await it"]
pub struct Sleep(Deadline);

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll(context)
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sleep")
    }
}

/// The outcome of a future, if it does not take longer than `limit`; else it is dropped. What that loses, each method
/// says under *Cancel safety*. No runtime is needed for it. In a party of a simulation (feature `simulation`) it goes by
/// its clock.
///
/// ```
/// # use std::time::Duration;
/// let never = std::future::pending::<()>();
/// assert!(ubiverbs::block_on(ubiverbs::timeout(Duration::from_millis(1), never)).is_err());
/// ```
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    within(limit, future).await.ok_or(Elapsed { limit })
}

/// It took too long: see [`timeout`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it took longer than {limit:?}")]
#[non_exhaustive]
pub struct Elapsed {
    /// How long it might have taken.
    pub limit: Duration,
}

/// The outcome of a future, or nothing if it takes longer than `limit`: then it is dropped.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut deadline = Deadline::new(limit);
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
    /// On the clock of the environment, if there is one.
    elsewhere: Option<Box<dyn environment::Deadline>>,
}

impl Deadline {
    fn new(limit: Duration) -> Deadline {
        let elsewhere = environment::current().map(|environment| environment.deadline(limit));
        let at = if elsewhere.is_some() { None } else { Instant::now().checked_add(limit) };
        Deadline { at, key: None, elsewhere }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(deadline) = &mut self.elsewhere {
            return if deadline.has_come(context.waker()) { Poll::Ready(()) } else { Poll::Pending };
        }
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
            let mut book = lock(mutex);
            book.waiting.remove(&key);
            // The timer's thread sleeps until a deadline that is gone: it wakes to end soon instead.
            if book.waiting.is_empty() {
                drop(book);
                changed.notify_one();
            }
        }
    }
}

/// How long the thread stays when there is nothing to wait for. A program that sleeps again and again would otherwise
/// start one each time.
const IDLE_THREAD_TIME: Duration = Duration::from_secs(1);

fn run() {
    let (mutex, changed) = book();
    let mut book = lock(mutex);
    let mut idle_since = None;
    loop {
        let now = Instant::now();
        let next = match book.waiting.first_key_value() {
            Some((&(next, _), _)) => {
                idle_since = None;
                next
            }
            None => {
                let until = *idle_since.get_or_insert(now) + IDLE_THREAD_TIME;
                if now >= until {
                    break;
                }
                until
            }
        };
        let left = next.saturating_duration_since(now);
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
