//! The count of objects that need another one to stay.

use crate::errno::Errno;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many objects need another to stay.
#[derive(Debug, Default)]
pub(crate) struct UseCount(AtomicU32);

impl UseCount {
    pub fn join(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    pub fn require_zero(&self) -> Result<(), Errno> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            users => Err(Errno::BUSY.because(format_args!("other objects still need it ({users} uses)"))),
        }
    }
}
