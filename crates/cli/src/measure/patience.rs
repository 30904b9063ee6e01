//! How long a loop that spins goes on without anything happening.

use crate::control::{Control, PATIENCE};
use crate::exit::Failure;
use std::time::Instant;

/// How often it looks in vain before it looks at the clock and at the peer.
const LOOKS: u32 = 4096;

/// Counts looks in vain.
pub struct Patience<'a> {
    control: &'a Control,
    vain: u32,
    since: Option<Instant>,
}

impl Patience<'_> {
    pub fn new(control: &Control) -> Patience<'_> {
        Patience { control, vain: 0, since: None }
    }

    /// Something happened.
    pub fn renew(&mut self) {
        self.vain = 0;
        self.since = None;
    }

    /// Nothing happened, again.
    pub fn wear(&mut self) -> Result<(), Failure> {
        self.vain += 1;
        if self.vain < LOOKS {
            std::hint::spin_loop();
            return Ok(());
        }
        self.vain = 0;
        self.check()
    }

    /// Nothing happened for a while.
    pub fn check(&mut self) -> Result<(), Failure> {
        if self.control.is_gone() {
            return Err(Failure::PeerGone);
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(Failure::PeerSilent(PATIENCE));
        }
        Ok(())
    }
}
