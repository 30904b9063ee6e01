//! The right of one thread to all locks.
//!
//! - `alone`: threads that use it and threads that take it away, one test at a time: it is the process's
//! - `protocol`: its source under a model checker, which has nothing to do with the right of this process

mod alone;
#[cfg(not(miri))]
mod protocol;

/// Where the source finds its atomics.
#[cfg(not(miri))]
use protocol::sync;
