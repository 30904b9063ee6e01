//! How long a loop that spins goes on without anything happening.

use crate::control::{ANSWER_TIMEOUT, Gone};
use crate::exit::Failure;
use crate::measure::machine;
use std::time::Instant;

/// How often it looks in vain before it looks at the clock and at the peer.
const LOOKS_PER_CLOCK: u32 = 4096;

/// Counts looks in vain.
pub struct Patience<'a> {
    gone: &'a Gone,
    vain: u32,
    /// How often it looks in vain before it lets others run: hardly ever where each side has a processor, and soon
    /// where the peer waits for ours.
    yields: u32,
    since: Option<Instant>,
}

impl Patience<'_> {
    pub fn new(gone: &Gone) -> Patience<'_> {
        let yields = if machine::processors() > 1 { 2048 } else { 8 };
        Patience { gone, vain: 0, yields, since: None }
    }

    /// Something happened.
    pub fn renew(&mut self) {
        self.vain = 0;
        self.since = None;
    }

    /// Nothing happened, again.
    pub fn wear(&mut self) -> Result<(), Failure> {
        self.vain += 1;
        if self.vain < LOOKS_PER_CLOCK {
            if self.vain.is_multiple_of(self.yields) {
                std::thread::yield_now();
            }
            return Ok(());
        }
        self.vain = 0;
        self.check()
    }

    /// Nothing happened for a while.
    pub fn check(&mut self) -> Result<(), Failure> {
        if self.gone.is_so() {
            return Err(Failure::PeerGone);
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() > ANSWER_TIMEOUT {
            return Err(Failure::PeerSilent(ANSWER_TIMEOUT));
        }
        Ok(())
    }
}
