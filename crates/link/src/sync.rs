//! The primitives of the queue inside the process, in one place so that a model checker can put its own in their stead.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};
