//! Something that takes a while: to be awaited, or waited for.

use latch::lock;
use seam::wake;
use seam::{Error, environment};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// An attempt of the connection manager's that is under way, whether or not anybody looks at this handle. It is a
/// future for any executor, or for [`block_on`](crate::block_on); or [`wait`](Pending::wait) for it. Dropping it gives
/// the attempt up.
///
/// # Cancel safety
/// The function that made it says what dropping it loses. A caller that wants to go on later keeps it and awaits `&mut
/// pending`, as [`wait_for`](Pending::wait_for) does.
///
/// ```
/// use std::time::Duration;
/// use ubiverbs::cm;
///
/// let listener = cm::Listener::bind("127.0.0.1:0")?;
/// let mut next = listener.next();
/// assert!(next.wait_for(Duration::from_millis(1)).is_none(), "nobody has asked yet");
/// drop(next); // and a peer that asks now is there for the next call
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[must_use = "await it, or `wait` for it; dropping it gives the attempt up"]
pub struct Pending<R> {
    under: Under<R>,
}

type Attempt<R> = Pin<Box<dyn Future<Output = Result<R, Error>> + Send>>;

enum Under<R> {
    /// It goes on by itself.
    Way(Arc<Task<R>>),
    /// It takes nothing from anybody before it is waited for.
    Wait(Attempt<R>),
    Taken,
}

/// The futures are in boxes of their own.
impl<R> Unpin for Pending<R> {}

impl<R: Send + 'static> Pending<R> {
    /// Begins at once; the thread that brings news of it takes it on.
    pub(super) fn start(attempt: impl Future<Output = Result<R, Error>> + Send + 'static) -> Pending<R> {
        let task = Arc::new(Task {
            attempt: Mutex::new(Some(Box::pin(attempt))),
            again: AtomicBool::new(false),
            outcome: Mutex::new(Outcome { result: None, waiter: None, given_up: false }),
        });
        task.run();
        Pending { under: Under::Way(task) }
    }

    /// Begins when it is waited for.
    pub(super) fn later(attempt: impl Future<Output = Result<R, Error>> + Send + 'static) -> Pending<R> {
        Pending { under: Under::Wait(Box::pin(attempt)) }
    }
}

impl<R> Pending<R> {
    /// Waits until it is done. The waiting thread drives.
    pub fn wait(self) -> Result<R, Error> {
        crate::block_on(self)
    }

    /// Waits until it is done, but not longer than `limit`. It goes on then, and can be waited for again.
    ///
    /// # Cancel safety
    /// The attempt is only borrowed, and goes on.
    pub fn wait_for(&mut self, limit: Duration) -> Option<Result<R, Error>> {
        crate::block_on::block_on_for(Pin::new(self), limit)
    }
}

impl<R> Future for Pending<R> {
    type Output = Result<R, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match &mut self.under {
            Under::Way(task) => task.poll(context),
            Under::Wait(attempt) => attempt.as_mut().poll(context),
            // The answer has been taken; there is no other.
            Under::Taken => Poll::Pending,
        };
        match (&result, &self.under) {
            (Poll::Ready(_), _) => self.under = Under::Taken,
            // Its own task waits, and is polled by the thread that brings news.
            (Poll::Pending, Under::Way(_)) => {
                environment::waits_for(|| format!("the connection manager: {}", std::any::type_name::<R>()));
            }
            _ => {}
        }
        result
    }
}

impl<R> Drop for Pending<R> {
    fn drop(&mut self) {
        if let Under::Way(task) = &self.under {
            task.give_up();
        }
    }
}

impl<R> fmt::Debug for Pending<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.under {
            Under::Way(_) | Under::Wait(_) => "Pending(under way)",
            Under::Taken => "Pending(done)",
        })
    }
}

/// An attempt that goes on whether a task waits for it or not: its waker polls it on the spot. The steps between two
/// events are short.
struct Task<R> {
    /// Nothing once it is done or given up. The lock's holder polls it.
    attempt: Mutex<Option<Attempt<R>>>,
    /// There is news since it was last polled.
    again: AtomicBool,
    outcome: Mutex<Outcome<R>>,
}

struct Outcome<R> {
    result: Option<Result<R, Error>>,
    waiter: Option<Waker>,
    given_up: bool,
}

impl<R: Send + 'static> Task<R> {
    fn run(self: &Arc<Task<R>>) {
        self.again.store(true, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(self));
        while self.again.load(Ordering::SeqCst) {
            // The thread that polls it already looks again when it is through.
            let Ok(mut attempt) = self.attempt.try_lock() else { return };
            self.again.store(false, Ordering::SeqCst);
            let Some(running) = attempt.as_mut() else { return };
            if let Poll::Ready(result) = running.as_mut().poll(&mut Context::from_waker(&waker)) {
                let done = attempt.take();
                drop(attempt);
                drop(done);
                return self.finish(result);
            }
            drop(attempt);
            if lock(&self.outcome).given_up {
                self.let_go();
            }
        }
    }

    fn finish(&self, result: Result<R, Error>) {
        let mut outcome = lock(&self.outcome);
        if outcome.given_up {
            drop(outcome);
            return drop(result);
        }
        outcome.result = Some(result);
        let waiter = outcome.waiter.take();
        drop(outcome);
        waiter.into_iter().for_each(wake);
    }
}

impl<R> Task<R> {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<R, Error>> {
        let mut outcome = lock(&self.outcome);
        if let Some(result) = outcome.result.take() {
            return Poll::Ready(result);
        }
        outcome.waiter = Some(context.waker().clone());
        Poll::Pending
    }

    fn give_up(&self) {
        let mut outcome = lock(&self.outcome);
        outcome.given_up = true;
        let left = outcome.result.take();
        drop(outcome);
        drop(left);
        self.let_go();
    }

    /// Drops what was given up; who polls it at this moment does so afterwards.
    fn let_go(&self) {
        let Ok(mut attempt) = self.attempt.try_lock() else { return };
        let left = attempt.take();
        drop(attempt);
        drop(left);
    }
}

impl<R: Send + 'static> Wake for Task<R> {
    fn wake(self: Arc<Task<R>>) {
        self.run();
    }
}
