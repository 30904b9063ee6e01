//! The primitives of the bell and the lease, in one place so that a model checker can put its own in their stead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
