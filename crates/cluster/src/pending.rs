//! A call under way: to be awaited, or waited for.

use crate::error::Error;
use std::fmt;
use std::future::Future;
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

    /// Waits until it is done. The waiting thread drives: it looks for a while, lets others run in between, and then
    /// sleeps until something happens.
    pub fn wait(mut self) -> Result<R, Error> {
        let mut context = Context::from_waker(Waker::noop());
        let begun = Instant::now();
        loop {
            if let Poll::Ready(result) = self.call.as_mut().poll(&mut context) {
                return result;
            }
            if begun.elapsed() > LOOKS_FOR {
                return ubiverbs::block_on(self.call);
            }
            // Members may be more than processors: the one we wait for may need this one.
            std::thread::yield_now();
        }
    }
}

/// How long a waiting thread looks before it sleeps. Where many wait for few processors, one turn takes that long, and
/// those that wait sleep.
const LOOKS_FOR: Duration = Duration::from_micros(100);

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
