//! What the crate asks about simulations when it is built without the feature `simulation`: there are none.

use crate::backend::Backend;
use crate::cm::Hub;
use crate::error::Error;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

#[inline]
pub(crate) fn backend() -> Option<Result<Arc<dyn Backend>, Error>> {
    None
}

#[inline]
pub(crate) fn hub(_: impl FnOnce() -> Result<Arc<Hub>, Error>) -> Option<Result<Arc<Hub>, Error>> {
    None
}

#[inline]
pub(crate) fn look_up(_: &str, _: u16) -> Option<io::Result<Vec<SocketAddr>>> {
    None
}

#[inline]
pub(crate) fn later<W: FnOnce() + Send + 'static>(_: Duration, work: W) -> Result<(), W> {
    Err(work)
}

#[inline]
pub(crate) fn is_simulated() -> bool {
    false
}

#[inline]
pub(crate) fn waits_for(_: impl FnOnce() -> String) {}

#[inline]
pub(crate) fn must_not_block() {}

/// A moment of a simulation.
pub(crate) struct Deadline(Infallible);

#[inline]
pub(crate) fn deadline(_: Duration) -> Option<Deadline> {
    None
}

impl Deadline {
    pub(crate) fn has_come(&mut self, _: &Waker) -> bool {
        match self.0 {}
    }
}
