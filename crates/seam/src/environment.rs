//! In what the code of a thread runs: in the process, with its NIC, clock and resolver, or in an environment that says
//! what those are. A simulation puts the code of its parties into one, with the feature `environments`.

use super::{Backend, Error};
use std::any::Any;
use std::cell::{OnceCell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// What a program asks of the environment that it runs in.
pub trait Environment: Any {
    /// Its NIC.
    fn backend(&self) -> Result<Arc<dyn Backend>, Error>;

    /// Room for what the API keeps for one program, as long as that lives; none if the code is of no program.
    fn kept(&self) -> Option<Rc<OnceCell<Arc<dyn Any + Send + Sync>>>>;

    /// The addresses that a name means.
    fn look_up(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>>;

    /// A moment so much later, by its clock.
    fn deadline(&self, limit: Duration) -> Box<dyn Deadline>;

    /// Does something a while later, by its clock. False if it cannot, and the process must.
    fn later(&self, delay: Duration, work: Box<dyn FnOnce() + Send>) -> bool;

    /// The task that is polled is about to wait for something.
    fn waits_for(&self, what: String);
}

/// A moment that a task waits for.
pub trait Deadline: Send + Sync {
    /// Whether it has come; if not, wakes the task then.
    fn has_come(&mut self, waker: &Waker) -> bool;
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn Environment>>> = const { RefCell::new(None) };
}

/// The environment of this thread's code; none if that is the process. Known at compile time where nothing makes any.
#[inline]
pub fn current() -> Option<Rc<dyn Environment>> {
    if !cfg!(feature = "environments") {
        return None;
    }
    CURRENT.with(|current| current.try_borrow().ok()?.clone())
}

/// Tells the environment, if there is one, what the task that is polled is about to wait for.
#[inline]
pub fn waits_for(what: impl FnOnce() -> String) {
    if let Some(environment) = current() {
        environment.waits_for(what());
    }
}

/// Restores what was.
#[cfg(feature = "environments")]
struct Restore(Option<Rc<dyn Environment>>);

#[cfg(feature = "environments")]
impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.with(|current| *current.borrow_mut() = self.0.take());
    }
}

/// Runs something in an environment.
#[cfg(feature = "environments")]
pub fn run_in<R>(environment: Rc<dyn Environment>, work: impl FnOnce() -> R) -> R {
    let _restore = Restore(CURRENT.with(|current| current.borrow_mut().replace(environment)));
    work()
}
