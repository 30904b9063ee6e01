//! What changes between two bursts: memory is taken away and given anew, queue pairs are reset and connected again.

use std::time::Duration;

use crate::connect::Prepared;
use crate::harvest::Style;
use crate::memory::{Inbox, receive_buffers};
use crate::plan::Kind;
use crate::post::Qp;
use crate::watch::{Result, Trouble};
use crate::worker::{MESSAGE_TIMEOUT, Worker};

impl Worker<'_> {
    /// What the peer says with the next burst's work is about new memory and new numbers.
    pub fn change(&mut self, number: u32) -> Result<()> {
        for index in 0..self.pairs.len() {
            let plan = &self.pairs[index].plan;
            if plan.renew_after == Some(number) && (plan.kind == Kind::Reliable || self.options.lossless) {
                self.renew(index, None)?;
            }
            if self.pairs[index].plan.reset_after == Some(number) {
                self.reset(index)?;
            }
        }
        Ok(())
    }

    /// Gives the peer another inbox. The one it had is kept for what comes late to it before this burst, or taken away.
    pub fn renew(&mut self, index: usize, before: Option<u32>) -> Result<()> {
        let inbox = Inbox::new(self.pd, self.pairs[index].plan.inbox())?;
        let said = self.control.exchange("inbox", &inbox.region.remote_slice().to_string())?;
        let pair = &mut self.pairs[index];
        let old = std::mem::replace(&mut pair.inbox, inbox);
        match before {
            Some(burst) => pair.retired.push((burst, old)),
            None => old.region.revoke().map_err(|e| Trouble::wrong(format!("revoking: {e}")))?,
        }
        pair.theirs[0] = said.parse().map_err(|e| Trouble::wrong(format!("no slice: {e}")))?;
        Ok(())
    }

    /// Resets a queue pair and connects it again.
    fn reset(&mut self, index: usize) -> Result<()> {
        let failed = |e: &dyn std::fmt::Display| Trouble::wrong(format!("resetting: {e}"));
        let pair = &mut self.pairs[index];
        // Its receives come back from a reset without completions; those that are awaited say that they are gone.
        pair.closing = true;
        let prepared = match pair.qp.take() {
            Some(Qp::Reliable(qp)) => Prepared::Reliable(qp.reset().map_err(|e| failed(&e.error))?),
            Some(Qp::Unreliable(qp)) => Prepared::Unreliable(qp.reset().map_err(|e| failed(&e.error))?),
            _ => return Ok(()),
        };
        if self.harvest.style == Style::Await {
            let what = format!("qp {} was reset", self.pairs[index].plan.id);
            if !self.until(&what, MESSAGE_TIMEOUT, |worker| worker.pairs[index].receives == 0)? {
                return Err(self.stuck(&what));
            }
        }
        // A message that came twice may have completed meanwhile: its receive is not posted again.
        while self.harvest(Duration::ZERO)? {}
        let pair = &mut self.pairs[index];
        (pair.receives, pair.closing) = (0, false);
        let said = self.control.exchange("endpoint", &prepared.endpoint().to_string())?;
        let peer = said.parse().map_err(|e: ubiverbs::Error| failed(&e))?;
        let qp = prepared.connect(self.pd, &peer).map_err(|e| failed(&e))?;
        let pair = &mut self.pairs[index];
        pair.qp = Some(qp);
        if pair.plan.shared_receives {
            return Ok(());
        }
        let (buffers, guards) = receive_buffers(self.pd, pair.plan.receives, pair.plan.longest_send.max(16))?;
        pair.guards.extend(guards);
        buffers.into_iter().try_for_each(|buffer| self.receive(Some(index), buffer))
    }
}
