//! How queue pairs go: in peace, in the middle of their work, or because the peer has died. However that is, each piece
//! of work ends once.

use std::time::Duration;

use ubiverbs::{Modify, State, Status};

use crate::connect::{Kept, soon};
use crate::harvest::Style;
use crate::memory::Written;
use crate::options::Role;
use crate::plan::{Kind, burst};
use crate::post::Qp;
use crate::watch::{Result, Trouble};
use crate::worker::Worker;

/// So long may it take until all work has come back.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(20);

fn to_error(qp: &Qp) -> std::result::Result<(), ubiverbs::Error> {
    let modify = Modify { state: Some(State::Error), ..Modify::default() };
    match qp {
        Qp::Reliable(qp) => qp.modify(&modify),
        Qp::Unreliable(qp) => qp.modify(&modify),
        Qp::Datagram(qp, _) => qp.modify(&modify),
    }
}

/// Whether work was refused. A refusal that gets lost is not repeated: the peer's queue pair is in error by then and says nothing more.
fn is_refusal(error: &ubiverbs::Error, lossless: bool) -> bool {
    let refuses = |status| status == Status::RemoteAccess || !lossless && status == Status::RetryExceeded;
    matches!(error, ubiverbs::Error::Completion(error) if refuses(error.status))
}

impl Worker<'_> {
    /// Lets all queue pairs of the round go.
    pub fn finish(&mut self) -> Result<()> {
        self.control.exchange("finish", "")?;
        self.watch.doing(self.number, format!("thread {} ends round {}", self.number, self.round.number));
        for pair in &mut self.pairs {
            pair.closing = true;
        }
        let rough: Vec<usize> = self.pairs.iter().filter(|pair| pair.plan.rough_end).map(|pair| pair.index).collect();
        self.end_roughly(&rough)?;
        self.trespass()?;
        self.control.exchange("finished", "")?;
        let others: Vec<usize> = self.pairs.iter().filter(|pair| pair.qp.is_some()).map(|pair| pair.index).collect();
        for index in others {
            self.disconnect(index)?;
            self.flush(index)?;
            self.let_go(index)?;
        }
        self.look_behind_receives()?;
        self.control.exchange("over", "")?;
        Ok(())
    }

    /// Both ends send, and let go while they do.
    fn end_roughly(&mut self, rough: &[usize]) -> Result<()> {
        let (options, round) = (self.options, self.round);
        for &index in rough {
            if self.pairs[index].plan.kind == Kind::Unreliable && !options.lossless {
                self.renew(index, Some(round.bursts))?;
            }
            let pair = &mut self.pairs[index];
            pair.expect(burst(options, round.number, &pair.plan, options.role.other(), round.bursts));
        }
        self.control.exchange("rough", "")?;
        for (turn, &index) in rough.iter().enumerate() {
            let pair = &self.pairs[index];
            let messages = burst(options, round.number, &pair.plan, options.role, round.bursts);
            match self.send(index, messages) {
                // The peer's may have gone before.
                Err(Trouble::Broken(_)) | Ok(()) => {}
                Err(other) => return Err(other),
            }
            for _ in 0..turn * 3 % 7 {
                self.harvest(Duration::ZERO)?;
            }
            self.let_go(index)?;
        }
        Ok(())
    }

    /// The server takes its inboxes away; the client writes to them, and is refused.
    fn trespass(&mut self) -> Result<()> {
        let server = self.options.role == Role::Server;
        let chosen = self.pairs.iter().filter(|pair| pair.plan.trespass && pair.qp.is_some());
        for pair in chosen.clone().filter(|_| server) {
            pair.inbox.region.revoke().map_err(|e| Trouble::wrong(format!("revoking: {e}")))?;
        }
        self.control.exchange("trespass", "")?;
        for pair in chosen.filter(|_| !server) {
            let Some(Qp::Reliable(qp)) = &pair.qp else { continue };
            let broken = |e: &dyn std::fmt::Display| {
                Trouble::Broken(format!("qp {}: a WRITE with a key that was taken away: {e}", pair.plan.id))
            };
            let there = pair.theirs[0].slice(0..8).map_err(|e| broken(&e))?;
            let mut writing = qp.write_inline(&[0; 8], there).map_err(|e| broken(&e))?;
            match writing.wait_for(FLUSH_TIMEOUT) {
                Some(Err(failed)) if is_refusal(&failed.error, self.options.lossless) => self.watch.count(0),
                Some(Err(failed)) => return Err(broken(&failed.error)),
                Some(Ok(())) => {
                    let what = format!(
                        "qp {}: a WRITE with a key that was taken away: expected a refusal, seen success",
                        pair.plan.id
                    );
                    return Err(Trouble::Wrong(what));
                }
                None => return Err(broken(&format!("nothing for {FLUSH_TIMEOUT:?}"))),
            }
        }
        Ok(())
    }

    /// The connection manager says goodbye.
    fn disconnect(&mut self, index: usize) -> Result<()> {
        let client = self.options.role == Role::Client;
        let pair = &self.pairs[index];
        let what = format!("qp {}: disconnecting", pair.plan.id);
        match &pair.kept {
            Kept::Nothing => Ok(()),
            Kept::Reliable(connection) if client => soon(&what, self.control, connection.disconnect()),
            Kept::Reliable(connection) => soon(&what, self.control, connection.closed()).map(drop),
            Kept::Unreliable(connection) if client => soon(&what, self.control, connection.disconnect()),
            Kept::Unreliable(connection) => soon(&what, self.control, connection.closed()).map(drop),
        }
    }

    /// A queue pair in error gives all its work back, each piece once.
    fn flush(&mut self, index: usize) -> Result<()> {
        let pair = &self.pairs[index];
        let Some(qp) = &pair.qp else { return Ok(()) };
        to_error(qp).map_err(|e| Trouble::wrong(format!("qp {}: going to the error state: {e}", pair.plan.id)))?;
        let empty = |worker: &Worker<'_>| {
            let pair = &worker.pairs[index];
            pair.outstanding() == 0 && pair.receives == 0
        };
        if self.until("flushing", FLUSH_TIMEOUT, empty)? {
            return Ok(());
        }
        let pair = &self.pairs[index];
        Err(Trouble::wrong(format!(
            "qp {} ({:?}, {:?}) in error: expected all work back, seen {} sends and {} receives not ended",
            pair.plan.id,
            pair.plan.kind,
            self.harvest.style,
            pair.outstanding(),
            pair.receives
        )))
    }

    /// Destroys a queue pair. Nobody writes into its memory after that.
    fn let_go(&mut self, index: usize) -> Result<()> {
        let pair = &mut self.pairs[index];
        pair.kept = Kept::Nothing;
        drop(pair.qp.take());
        if self.harvest.style == Style::Await {
            self.await_the_rest(index)?;
        } else {
            while self.harvest(Duration::ZERO)? {}
            // What had not completed is not told.
            self.pairs[index].forget_sent();
            self.pairs[index].gone = true;
            self.pairs[index].receives = 0;
        }
        let pair = &self.pairs[index];
        pair.about(pair.inbox.look_around_all(pair.current(), Written::Perhaps))
    }

    /// What is awaited ends in any case, and tells how.
    fn await_the_rest(&mut self, index: usize) -> Result<()> {
        let empty = |worker: &Worker<'_>| {
            let pair = &worker.pairs[index];
            pair.outstanding() == 0 && pair.receives == 0
        };
        if self.until("awaiting what was destroyed", FLUSH_TIMEOUT, empty)? {
            return Ok(());
        }
        let (pair, awaited) = (&self.pairs[index], self.harvest.awaited());
        Err(Trouble::wrong(format!(
            "qp {}: destroyed; expected every operation to end, seen {} sends and {} receives that did not ({awaited} awaited in all)",
            pair.plan.id,
            pair.outstanding(),
            pair.receives
        )))
    }

    /// The peer has died: all work comes back, and nothing was written where it should not have been.
    pub fn mourn(&mut self) -> Result<()> {
        for pair in &mut self.pairs {
            pair.closing = true;
        }
        for index in 0..self.pairs.len() {
            self.flush(index)?;
            self.let_go(index)?;
        }
        self.look_behind_receives()
    }
}
