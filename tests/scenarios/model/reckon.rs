//! The reckoning when a run is over: all work is accounted for, nothing is in flight, what was left is flushed, and memory is what the model says,
//! byte for byte. Where a fault struck at a moment of its own, some prefix of the work must explain what is there.

use super::judge::{difference, ensure};
use super::program::*;
use super::run::{Addition, Run, Ticket, Verdict};
use super::stage::COUNTERS;
use super::watch::Tally;
use trace::RetryCause;
use transport::{Modify, State};

impl Run<'_> {
    /// Everybody has done what he had to do.
    pub fn reckon(&mut self) -> Verdict {
        self.settle()?;
        self.all_accounted_for()?;
        self.windows_are_empty()?;
        self.close()?;
        self.settle_doubts()?;
        self.settle_writes()?;
        self.settle_additions()?;
        self.compare_all()?;
        self.no_storm()
    }

    fn all_accounted_for(&self) -> Verdict {
        for (end, actor) in self.actors.iter().enumerate().filter(|(_, actor)| !actor.gone) {
            let open = actor.expects.iter().find(|expect| expect.signaled || actor.failed || expect.flaw.is_some());
            if let Some(open) = open {
                return Err(format!("work {} of end {end} never completed", open.wr_id));
            }
            let channel = end / 2;
            let faulty = self.program.fault.is_some_and(|fault| fault.end / 2 == channel);
            ensure!(
                faulty || actor.incoming.due.is_empty(),
                "{} messages never reached end {end}",
                actor.incoming.due.len()
            );
        }
        let watch = self.watch.borrow();
        for (end, actor) in self.actors.iter().enumerate() {
            let lost = actor.incoming.sent.iter().find(|(_, arrivals)| *arrivals == 0);
            // Where nothing was disturbed not even a datagram is lost.
            if let (Some((message, _)), false, true) = (lost, watch.is_rough(), self.program.is_prompt()) {
                let excused = self.program.fault.is_some() && self.actors.iter().any(|actor| actor.failed);
                ensure!(excused, "message {} to end {end} was lost although nothing was disturbed", message.wr_id);
            }
        }
        Ok(())
    }

    fn windows_are_empty(&self) -> Verdict {
        for (host, gid) in self.windows() {
            let Some(window) = self.stage.sim.window(host, gid) else { continue };
            let (left, waiters) = (window.in_flight(), window.has_waiters());
            ensure!(left == 0, "all is over, but host {} has {left} in flight towards {gid}", host.index());
            ensure!(!waiters, "all is over, but a queue pair waits to send from host {} towards {gid}", host.index());
        }
        Ok(())
    }

    /// Moves every queue pair to ERR: the receives that are left are flushed, and nothing else.
    fn close(&mut self) -> Verdict {
        self.watch.borrow_mut().closing = true;
        for end in 0..self.actors.len() {
            let qp = self.actors[end].qp;
            if self.actors[end].gone || self.stage.sim.state(qp) == State::Reset {
                self.forget_receives(end);
                continue;
            }
            let modify = Modify { state: Some(State::Error), ..Modify::default() };
            self.stage.sim.modify(qp, &modify).map_err(|error| format!("end {end} refuses ERR: {error}"))?;
        }
        self.settle()?;
        for (end, actor) in self.actors.iter().enumerate() {
            ensure!(actor.posted.is_empty(), "{} receives of end {end} were not flushed", actor.posted.len());
        }
        for number in 0..self.shared.len() {
            self.close_shared(number)?;
        }
        Ok(())
    }

    /// What was taken from a shared queue was used, and taken in order. Only a queue pair that ceased to be may have had one in hand.
    fn close_shared(&mut self, number: usize) -> Verdict {
        let left = self.stage.sim.srq(self.stage.shared[number].0).len() as usize;
        let taken = self.shared[number].posted - left;
        let used = &self.shared[number].used;
        ensure!(!used[taken..].contains(&true), "shared queue {number} gave a receive before its turn: {used:?}");
        let unused: Vec<_> = (0..taken).filter(|index| !used[*index]).collect();
        let ceased = self
            .program
            .fault
            .is_some_and(|fault| matches!(fault.kind, FaultKind::PeerLeaves(_, Leave::Reset | Leave::Destroyed)));
        ensure!(unused.len() <= usize::from(ceased), "shared queue {number} lost receives {unused:?}");
        for index in unused {
            let slot = &self.stage.shared[number].1[index];
            let (host, pieces) = (slot.host, slot.pieces.clone());
            self.doubt(host, &pieces);
        }
        Ok(())
    }

    /// A queue pair without a life has no receives; the oldest of those it had may have been in use.
    pub fn forget_receives(&mut self, end: usize) {
        if let Some(Ticket::Receive(_, index)) = self.actors[end].posted.front().map(|id| self.tickets[*id as usize]) {
            let slot = &self.stage.ends[end].slots[index];
            let (host, pieces) = (slot.host, slot.pieces.clone());
            self.doubt(host, &pieces);
        }
        self.actors[end].posted.clear();
    }

    /// A fault with a time of its own: the target is as it was after some piece of work that is not older than the last known to be done, or in the
    /// middle of the one after.
    fn settle_doubts(&mut self) -> Verdict {
        let Some(Fault { end, kind }) = self.program.fault else { return Ok(()) };
        if !kind.is_timed() {
            return Ok(());
        }
        let target = self.stage.ends[end].target;
        let all = target.range(0, target.length);
        let mtu = self.program.channels[end / 2].options.mtu.bytes() as usize;
        let memory = self.stage.sim.bytes(&self.stage.heaps[target.host])[all.clone()].to_vec();
        let image = &mut self.stage.image[target.host];
        let actor = &mut self.actors[end];
        while memory != image[all.clone()] {
            let effect = actor.effects.pop().filter(|effect| Some(effect.wr_id) > actor.last_success);
            let Some(effect) = effect else {
                return Err(format!("end {end}: no prefix of its work leaves its target as it is"));
            };
            image[effect.range.clone()].copy_from_slice(&effect.before);
            for part in (mtu..effect.after.len()).step_by(mtu) {
                if memory == image[all.clone()] {
                    break;
                }
                let range = effect.range.start..effect.range.start + part;
                image[range].copy_from_slice(&effect.after[..part]);
            }
            if memory != image[all.clone()] {
                image[effect.range.clone()].copy_from_slice(&effect.before);
            }
        }
        Ok(())
    }

    /// Unreliable WRITEs: the packets that were placed are the first of their message, and all of them if its end was seen.
    fn settle_writes(&mut self) -> Verdict {
        for end in 0..self.actors.len() {
            let target = self.stage.ends[end ^ 1].target;
            let mtu = self.program.channels[end / 2].options.mtu.bytes() as usize;
            let memory = self.stage.sim.bytes(&self.stage.heaps[target.host]);
            let image = &mut self.stage.image[target.host];
            for (range, after, message) in &self.actors[end].incoming.writes {
                let arrived = message.is_some_and(|message| self.actors[end].incoming.sent[message].1 > 0);
                let mut missing = false;
                for (index, part) in after.chunks(mtu).enumerate() {
                    let start = range.start + index * mtu;
                    let place = start..start + part.len();
                    let (now, before) = (&memory[place.clone()], &image[place.clone()]);
                    ensure!(
                        now == part || now == before,
                        "an unreliable WRITE to end {end} was placed in part of a packet"
                    );
                    ensure!(!missing || now == before, "an unreliable WRITE to end {end} has a hole");
                    missing |= now != part;
                    image[place].copy_from_slice(now);
                }
                ensure!(!(arrived && missing), "an unreliable WRITE completed at end {end} without all its bytes");
            }
        }
        Ok(())
    }

    /// Additions to shared counters: each happened once, in some order that keeps the order of each end.
    fn settle_additions(&mut self) -> Verdict {
        for (host, start) in self.stage.counters.clone().into_iter().enumerate() {
            for counter in 0..COUNTERS {
                let range = start as usize + 8 * counter..start as usize + 8 * (counter + 1);
                let mine = |addition: &&Addition| (addition.host, addition.counter) == (host, counter);
                let first = u64_of(&self.stage.image[host][range.clone()]);
                let mut seen = Vec::new();
                let mut sum = 0;
                for addition in self.additions.iter().filter(mine) {
                    sum += addition.add;
                    let tally = self.stage.ends[addition.end].tally;
                    let memory = &self.stage.memory(tally.host)[tally.range(addition.place, 8)];
                    seen.push((u64_of(memory).wrapping_sub(first), addition));
                }
                let certain = seen.iter().all(|(_, addition)| !self.actors[addition.end].unheard);
                for end in 0..self.actors.len() {
                    let own = seen.iter().filter(|(_, addition)| addition.end == end).map(|(before, _)| *before);
                    ensure!(!certain || own.is_sorted(), "end {end} saw a counter of host {host} run backwards");
                }
                seen.sort_by_key(|(before, _)| *before);
                let mut expected = 0;
                for (before, addition) in &seen {
                    let once = *before == expected || !certain;
                    ensure!(once, "end {} added to {before} of a counter of host {host}, not {expected}", addition.end);
                    expected = before.wrapping_add(addition.add);
                }
                self.stage.image[host][range].copy_from_slice(&first.wrapping_add(sum).to_ne_bytes());
            }
        }
        for end in 0..self.actors.len() {
            // What it saw has been judged.
            let tally = self.stage.ends[end].tally;
            let range = tally.range(0, tally.length);
            let memory = self.stage.memory(tally.host)[range.clone()].to_vec();
            self.stage.image[tally.host][range].copy_from_slice(&memory);
        }
        Ok(())
    }

    fn compare_all(&mut self) -> Verdict {
        for (host, range) in std::mem::take(&mut self.doubtful) {
            let memory = self.stage.memory(host)[range.clone()].to_vec();
            self.stage.image[host][range].copy_from_slice(&memory);
        }
        for host in 0..self.stage.hosts.len() {
            let (memory, image) = (self.stage.memory(host), &self.stage.image[host]);
            if memory != image {
                let at = difference(memory, image);
                return Err(format!("memory of host {host} differs from {at}: {}", self.owner(host, at)));
            }
        }
        Ok(())
    }

    /// Whose bytes these are.
    fn owner(&self, host: usize, at: usize) -> String {
        for (end, ground) in self.stage.ends.iter().enumerate() {
            for (name, area) in [("source", ground.source), ("landing", ground.landing), ("target", ground.target)] {
                if area.host == host && area.range(0, area.length).contains(&at) {
                    return format!("byte {} of the {name} of end {end}", at - area.offset as usize);
                }
            }
        }
        "nobody may write there now".into()
    }

    /// The effort is in proportion to the work and to what happened to it. The factors are many times what is ever needed; a storm knows none.
    fn no_storm(&self) -> Verdict {
        let watch = self.watch.borrow();
        let Tally { packets, accidents, retries, .. } = &watch.tally;
        let all: u64 = retries.values().sum();
        let not_ready = retries.get(RetryCause::RnrNak.name()).copied().unwrap_or(0);
        let most = 30 * (self.ideal + all + accidents + 1);
        ensure!(*packets <= most, "{packets} packets for work that needs {}, retries {retries:?}", self.ideal);
        let most = 16 + 4 * accidents + packets / 2;
        ensure!(all - not_ready <= most, "retries {retries:?} for {accidents} accidents");
        let calm = self.program.is_calm() && self.program.fault.is_none();
        ensure!(!calm || all == 0, "retries {retries:?} although nothing happened");
        Ok(())
    }
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}
