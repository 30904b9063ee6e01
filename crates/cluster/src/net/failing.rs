//! What fails, and how all members come to name the same one.
//!
//! A member that learns of a failure tells its neighbours, who tell theirs: every part of the group that is left has a
//! neighbour of the member that died. A member that waits too long says for whom. Those who hear it and wait in the
//! same call say for whom they wait; the one that is waited for and does not wait is the one that takes no part.

use super::{Net, State};
use crate::call::{Header, Kind};
use crate::error::Error;
use crate::verdict;
use std::time::Duration;
use ubiverbs::{Key, RemoteSlice};

/// Ticks that a member listens to others before it says who takes no part.
const LISTEN_TICKS: u32 = 4;

/// Ticks after which a neighbour that sent nothing is asked whether it lives.
const ASKS_AFTER: u32 = 10;

/// Ticks in which what a member said before it left may still arrive.
const LAST_WORDS: u32 = 6;

/// Ticks at most that a member stays until its neighbours have heard of a failure.
const MAX_STAY_TICKS: u32 = 20;

impl Net {
    /// The group has failed: everybody is told. Returns what failed first.
    pub fn fail(&mut self, error: Error) -> Error {
        if let Some(failure) = &self.failure {
            return failure.clone();
        }
        self.failure = Some(error.clone());
        let header = Header { kind: Kind::Failure, ..self.header(self.rank, 0, 0) };
        self.tell_all(header, &verdict::encode(&error, self.rank), None);
        error
    }

    /// After a failure: waits until the neighbours have heard of it, but not for long. A member that is dropped takes
    /// with it what it said and nobody heard, and would be blamed itself.
    pub async fn last_words(&mut self) {
        let Some(failure) = self.failure.clone().filter(|_| !self.parted) else { return };
        for rank in 0..self.size {
            self.ask_for_answer(rank);
        }
        let is_dead = |rank| matches!(failure, Error::Died { rank: dead, .. } if dead == rank);
        let until = self.quiet.saturating_add(MAX_STAY_TICKS);
        while self.quiet < until && (0..self.size).any(|rank| self.may_hear(rank) && !is_dead(rank)) {
            // Where the NIC does not work, nobody hears anything. Whatever else goes wrong follows from the failure.
            if let Err(Error::Verbs(_)) = self.progress().await {
                break;
            }
        }
        self.parted = true;
    }

    /// Whether a member may still hear what it was told.
    fn may_hear(&self, rank: u32) -> bool {
        let peer = &self.peers[rank as usize];
        match peer.state {
            State::Up { .. } => peer.posted != peer.completed,
            State::Asking(_) | State::Accepting(_) => true,
            State::Apart | State::Gone => false,
        }
    }

    /// A connection stands. If the group has failed meanwhile, the member there does not know.
    pub(super) fn tell_late(&mut self, rank: u32) {
        let Some(failure) = &self.failure else { return };
        let words = verdict::encode(failure, self.rank);
        let header = Header { kind: Kind::Failure, ..self.header(self.rank, 0, 0) };
        self.tell(rank, header, &words);
        self.ask_for_answer(rank);
    }

    pub(super) fn ticked(&mut self) -> Result<(), Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        for rank in 0..self.size {
            let peer = &mut self.peers[rank as usize];
            let nothing = peer.parts.is_empty() && peer.letters.is_empty();
            match &mut peer.left {
                Some(ticks) => {
                    *ticks += 1;
                    let late = *ticks >= LAST_WORDS;
                    let hop = self.awaits.map(|rank| self.routes.hop(rank));
                    let wanted = self.awaits == Some(rank) || hop == Some(rank) || !peer.outbox.is_empty();
                    if late && nothing && wanted {
                        return Err(self.fail(Error::Left { rank }));
                    }
                }
                None => {
                    let wanted = matches!(peer.state, State::Apart) && !peer.outbox.is_empty();
                    if wanted || self.is_due(rank) {
                        self.reach(rank)?;
                    }
                }
            }
        }
        if self.quiet.is_multiple_of(ASKS_AFTER) && self.quiet > 0 {
            self.ask_whether_alive();
        }
        let Some(whom) = self.awaits.filter(|_| self.current.is_some()) else { return Ok(()) };
        let limit = ticks(self.settings.deadline);
        if self.quiet > limit && self.said.is_none() {
            return self.say_wait(whom);
        }
        if let Some(said) = self.said
            && self.quiet >= said + LISTEN_TICKS
        {
            return Err(self.blame());
        }
        Ok(())
    }

    /// Whether it is for us to ask a neighbour for the connection, once more.
    fn is_due(&self, rank: u32) -> bool {
        rank < self.rank && matches!(self.peers[rank as usize].state, State::Apart) && self.near.contains(&rank)
    }

    /// A WRITE of nothing: the NIC of a neighbour answers it, or the connection ends.
    fn ask_whether_alive(&mut self) {
        for peer in &mut self.peers {
            if let State::Up { connection, .. } = &peer.state
                && peer.posted == peer.completed
            {
                let nothing = RemoteSlice::new(0, 0, Key::new(0));
                if let Ok(asking) = connection.write_inline(&[], nothing) {
                    asking.polled(peer.posted.into());
                }
            }
        }
    }

    fn say_wait(&mut self, whom: u32) -> Result<(), Error> {
        self.said = Some(self.quiet);
        self.waits.insert(self.rank, whom);
        let header = Header { kind: Kind::Waits, ..self.header(self.rank, whom, 0) };
        self.tell_all(header, &[], None);
        Ok(())
    }

    /// A member waits. If we do as well, in the same call, we say so.
    pub(super) fn heard_wait(&mut self, via: u32, origin: u32, whom: u32, sequence: u32) -> Result<(), Error> {
        if whom >= self.size || self.current.is_none() || sequence != self.sequence {
            return Ok(());
        }
        if self.waits.insert(origin, whom).is_none() && origin != self.rank {
            let header = Header { kind: Kind::Waits, origin, ..self.header(self.rank, whom, 0) };
            self.tell_all(header, &[], Some(via));
        }
        match self.awaits {
            Some(whom) if self.said.is_none() => self.say_wait(whom),
            _ => Ok(()),
        }
    }

    /// Who is waited for and does not wait.
    fn blame(&mut self) -> Error {
        let mut ranks: Vec<u32> = self.waits.values().copied().filter(|rank| !self.waits.contains_key(rank)).collect();
        if ranks.is_empty() {
            ranks = self.awaits.into_iter().collect();
        }
        ranks.sort_unstable();
        ranks.dedup();
        let limit = self.settings.deadline;
        match self.current {
            Some(call) => self.fail(Error::Silent { ranks, call, limit }),
            None => Error::Silent { ranks, call: crate::call::Call::of(crate::call::Collective::Message), limit },
        }
    }
}

/// A time in ticks, one at least.
pub(crate) fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_millis() / super::TICK_INTERVAL.as_millis()).unwrap_or(u32::MAX).max(1)
}
