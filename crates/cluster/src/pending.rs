//! A call under way: to be awaited, or waited for.

use crate::error::Error;
use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A call that is to be awaited, with any executor, or [waited](Pending::wait) for. Nothing happens before that.
///
/// # Cancel safety
/// **Not cancel safe**: the others count on every member. A group whose call was dropped half done answers
/// [`Error::Abandoned`] from then on, and tells the others so.
#[must_use = "await it, or `wait` for it"]
pub struct Pending<'a, R> {
    call: Pin<Box<dyn Future<Output = Result<R, Error>> + Send + 'a>>,
}

impl<'a, R> Pending<'a, R> {
    pub(crate) fn new(call: impl Future<Output = Result<R, Error>> + Send + 'a) -> Pending<'a, R> {
        Pending { call: Box::pin(call) }
    }

    /// Waits until it is done. The waiting thread drives: it looks again and again, and lets others run in between.
    /// Where nothing comes for a while, it sleeps until something does.
    pub fn wait(mut self) -> Result<R, Error> {
        let mut looking = Context::from_waker(Waker::noop());
        let mut arrivals = ARRIVAL_COUNT.get();
        let mut since = Instant::now();
        loop {
            if let Poll::Ready(result) = self.call.as_mut().poll(&mut looking) {
                return result;
            }
            if arrivals == ARRIVAL_COUNT.get() && since.elapsed() > LOOKS_FOR {
                let slept = ubiverbs::block_on(poll_fn(|context| match self.call.as_mut().poll(context) {
                    Poll::Ready(result) => Poll::Ready(Some(result)),
                    Poll::Pending if arrivals != ARRIVAL_COUNT.get() => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }));
                if let Some(result) = slept {
                    return result;
                }
            }
            if arrivals != ARRIVAL_COUNT.get() {
                (arrivals, since) = (ARRIVAL_COUNT.get(), Instant::now());
            }
            // Members may be more than processors: the one we wait for may need this one.
            std::thread::yield_now();
        }
    }
}

/// How long a waiting thread looks, after something came, before it sleeps. To sleep and to be woken takes as long as
/// some pieces of a long call: a thread that sleeps between two of them holds up all members. 16 MiB between four
/// members on two processors: 0.1 ms 1.48 of Open MPI's time, 2 ms 1.15.
const LOOKS_FOR: Duration = Duration::from_millis(2);

thread_local! {
    /// How often something came for a group while this thread looked.
    static ARRIVAL_COUNT: Cell<u32> = const { Cell::new(0) };
}

/// Something has come for a group.
pub(crate) fn has_arrived() {
    ARRIVAL_COUNT.set(ARRIVAL_COUNT.get().wrapping_add(1));
}

impl<R> Future for Pending<'_, R> {
    type Output = Result<R, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.call.as_mut().poll(context)
    }
}

impl<R> fmt::Debug for Pending<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}
