//! The primitives of the queue inside the process and of the word that says "ring for me", in one place so that a model checker can put its own in their stead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
