//! The NIC. Apart from these are `one_process`, which asks the host what this process has and so wants no NIC that stays
//! open, and `fork`, whose process has no other threads that hold locks.
//!
//! - `connecting`: ids of one process that find each other
//! - `bell_model`: the bell under a model checker

mod bell_model;
mod connecting;

/// Where the bell's source finds its atomics.
use bell_model::progress;
