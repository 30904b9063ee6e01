//! Posting, twice: to the simulator, and to the model, where work takes effect at once and in order. What is expected of its completion is written
//! down beside it.

use super::judge::Message;
use super::program::*;
use super::run::{Addition, Run, Ticket, Verdict};
use super::stage::NO_KEY;
use sim::{Region, Rng, Work};
use std::ops::Range;
use transport::{CompletionKind, Operation, PostError, Remote, Sge};
use wire::{Key, Placement};

/// A posted work request that has not completed.
#[derive(Clone, Debug)]
pub struct Expect {
    pub wr_id: u64,
    pub kind: CompletionKind,
    pub bytes: u32,
    pub signaled: bool,
    pub flaw: Option<Flaw>,
    /// It takes effect, unless a fault with a time of its own comes first.
    pub takes_effect: bool,
    /// Where its result lands, in the heap.
    pub lands: Vec<Range<usize>>,
}

/// What a work request did to its target.
#[derive(Clone, Debug)]
pub struct Effect {
    /// Number of the work request.
    pub wr_id: u64,
    /// In the heap of the target's host.
    pub range: Range<usize>,
    pub before: Vec<u8>,
    pub after: Vec<u8>,
}

impl Run<'_> {
    /// Posts work of an end.
    pub fn post(&mut self, end: usize, item: &Item) -> Result<(), PostError> {
        let wr_id = self.tickets.len() as u64;
        let work = self.request(end, item).id(wr_id);
        let work = if item.signaled { work } else { work.unsignaled() };
        let work = if item.fenced { work.fenced() } else { work };
        let work = if item.solicited { work.solicited() } else { work };
        self.stage.sim.post(self.actors[end].qp, &work)?;
        self.tickets.push(Ticket::Send(end));
        self.carry_out(end, item, wr_id);
        Ok(())
    }

    /// Posts work on its own behalf that a peer asked for.
    pub fn post_errand(&mut self, end: usize, operation: Operation) -> Result<u64, PostError> {
        let wr_id = self.tickets.len() as u64;
        self.stage.sim.post(self.actors[end].qp, &Work::new(operation).id(wr_id))?;
        self.tickets.push(Ticket::Send(end));
        let kind = match operation {
            Operation::BindWindow(_) => CompletionKind::Bind,
            _ => CompletionKind::LocalInvalidate,
        };
        let (flaw, lands) = (None, Vec::new());
        let expect = Expect { wr_id, kind, bytes: 0, signaled: true, flaw, takes_effect: true, lands };
        self.actors[end].expects.push_back(expect);
        Ok(wr_id)
    }

    fn request(&self, end: usize, item: &Item) -> Work {
        let ground = &self.stage.ends[end];
        let mut work = Work::new(match item.action {
            Action::Send { immediate } => Operation::Send { immediate },
            Action::SendInvalidate => {
                let key = self.actors[end].key.filter(|_| item.flaw.is_none()).unwrap_or(NO_KEY);
                Operation::SendInvalidate { key }
            }
            Action::Write { at, immediate } => Operation::Write { remote: self.remote(end, item, at), immediate },
            Action::Read { at } => Operation::Read { remote: self.remote(end, item, at) },
            Action::CompareSwap { at, hit, swap } => {
                let there = self.word(ground.target.host, ground.target.offset + at);
                let compare = if hit { there } else { !there };
                Operation::CompareSwap { remote: self.remote(end, item, at), compare, swap }
            }
            Action::FetchAdd { at, add } => Operation::FetchAdd { remote: self.remote(end, item, at), add },
            Action::SharedAdd { counter, add } => {
                let host = ground.target.host;
                let offset = self.stage.counters[host] + 8 * counter as u32;
                Operation::FetchAdd { remote: self.stage.heaps[host].remote(u64::from(offset)), add }
            }
            Action::AtomicWrite { at } => Operation::AtomicWrite { remote: self.remote(end, item, at) },
            Action::Flush { at, length } => {
                let selectivity = wire::Selectivity::Range;
                let placement = Placement::GLOBAL;
                Operation::Flush { remote: self.remote(end, item, at), length, placement, selectivity }
            }
            Action::LocalInvalidate => Operation::LocalInvalidate { key: self.stage.heaps[ground.source.host].key },
        });
        if item.inline {
            work = work.inline(&self.gather(end, &item.pieces));
        } else if let Action::SharedAdd { .. } = item.action {
            work = work.sge(ground.tally.sge(8 * self.actors[end].tallied, 8));
        } else {
            let sges: Vec<_> = item.pieces.iter().map(|piece| self.sge(end, item.flaw, *piece)).collect();
            work = work.sges(&sges);
        }
        match self.program.channels[end / 2].service {
            Service::Ud => {
                let to = self.actors[item.to.unwrap_or(end ^ 1)].qp;
                let options = &self.program.channels[end / 2].options;
                work.to(self.stage.sim.datagram_target(to, options))
            }
            Service::Xrc => match item.to {
                Some(queue) if item.action != Action::LocalInvalidate => work.to_srq(self.stage.shared[queue].0.srqn),
                _ => work,
            },
            _ => work,
        }
    }

    fn remote(&self, end: usize, item: &Item, at: u32) -> Remote {
        let ground = &self.stage.ends[end];
        let behind = |region: Region| region.remote(u64::from(at));
        match item.flaw {
            Some(Flaw::RemoteKeyUnknown) => Remote { key: NO_KEY, ..ground.target.remote(at) },
            Some(Flaw::RemoteDomain) => behind(ground.wrong.target_foreign),
            Some(Flaw::RemoteRight) => behind(ground.wrong.target_closed),
            Some(Flaw::RemoteBeyond) => behind(ground.wrong.target_exact),
            _ if item.by_window => {
                let key = self.actors[end].key.unwrap_or(NO_KEY);
                let heap = &self.stage.heaps[ground.target.host];
                let address = match self.actors[end].window {
                    // Behind a mistake nothing is bound any more, and such work may name any place.
                    Some((offset, _, true)) => u64::from(at).wrapping_sub(u64::from(offset)),
                    _ => heap.address + u64::from(ground.target.offset + at),
                };
                Remote { address, key }
            }
            _ => ground.target.remote(at),
        }
    }

    fn sge(&self, end: usize, flaw: Option<Flaw>, piece: Piece) -> Sge {
        let ground = &self.stage.ends[end];
        let Piece { place, offset, length } = piece;
        let (area, exact, foreign) = match place {
            MemorySide::Source => (&ground.source, &ground.wrong.source_exact, &ground.wrong.source_foreign),
            MemorySide::Landing => (&ground.landing, &ground.wrong.landing_exact, &ground.wrong.landing_foreign),
        };
        match flaw {
            Some(Flaw::LocalKeyUnknown) => Sge { key: NO_KEY, ..area.sge(offset, length) },
            Some(Flaw::LocalDomain) => foreign.sge(u64::from(offset), length),
            Some(Flaw::LocalBeyond) => exact.sge(u64::from(offset), length),
            Some(Flaw::LocalRight) => ground.wrong.landing_closed.sge(u64::from(offset), length),
            _ => area.sge(offset, length),
        }
    }

    /// Eight bytes as the model has them.
    fn word(&self, host: usize, offset: u32) -> u64 {
        let bytes = self.stage.image[host].get(offset as usize..offset as usize + 8);
        bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
    }

    fn ranges(&self, end: usize, pieces: &[Piece]) -> Vec<Range<usize>> {
        let ground = &self.stage.ends[end];
        let range = |piece: &Piece| match piece.place {
            MemorySide::Source => ground.source.range(piece.offset, piece.length),
            MemorySide::Landing => ground.landing.range(piece.offset, piece.length),
        };
        pieces.iter().map(range).collect()
    }

    fn gather(&self, end: usize, pieces: &[Piece]) -> Vec<u8> {
        let image = &self.stage.image[self.program.end(end).host];
        self.ranges(end, pieces).into_iter().flat_map(|range| image.get(range).unwrap_or(&[])).copied().collect()
    }

    /// Does to the model what the work will do.
    fn carry_out(&mut self, end: usize, item: &Item, wr_id: u64) {
        let service = self.program.channels[end / 2].service;
        let mtu = self.program.channels[end / 2].options.mtu.bytes();
        self.ideal += 2 * u64::from(item.length().div_ceil(mtu).max(1));
        let kind = match item.action {
            Action::Send { .. } | Action::SendInvalidate => CompletionKind::Send,
            Action::Write { .. } => CompletionKind::Write,
            Action::Read { .. } => CompletionKind::Read,
            Action::CompareSwap { .. } => CompletionKind::CompareSwap,
            Action::FetchAdd { .. } | Action::SharedAdd { .. } => CompletionKind::FetchAdd,
            Action::AtomicWrite { .. } => CompletionKind::AtomicWrite,
            Action::Flush { .. } => CompletionKind::Flush,
            Action::LocalInvalidate => CompletionKind::LocalInvalidate,
        };
        let signaled = item.signaled || self.program.end(end).signal_all;
        let takes_effect = !self.actors[end].doomed && !self.actors[end].failed && item.flaw.is_none();
        let bytes = if matches!(item.action, Action::SharedAdd { .. }) { 8 } else { item.length() };
        let mut expect = Expect { wr_id, kind, bytes, signaled, flaw: item.flaw, takes_effect, lands: Vec::new() };
        if item.flaw.is_some() && !self.actors[end].doomed {
            self.actors[end].doomed = true;
            if item.flaw.is_some_and(|flaw| !flaw.is_local()) {
                self.send(end, item, wr_id);
            }
            if let (Some(Flaw::NeverReady), Action::Write { at, .. }) = (item.flaw, item.action) {
                // Only the last packet of a WRITE needs the receive.
                let target = self.stage.ends[end].target;
                self.doubtful.push((target.host, target.range(at, item.length())));
            }
            if item.flaw == Some(Flaw::RemoteBeyond) && matches!(item.action, Action::Read { .. }) {
                // A long READ is asked for in parts, and the first of them may be within bounds.
                let host = self.program.end(end).host;
                let lands = self.ranges(end, &item.pieces).into_iter().map(|range| (host, range));
                self.doubtful.extend(lands);
            }
        }
        if takes_effect {
            let target = self.stage.ends[end].target;
            match item.action {
                Action::Send { .. } | Action::SendInvalidate => self.send(end, item, wr_id),
                Action::Write { at, .. } => {
                    let bytes = self.gather(end, &item.pieces);
                    if service == Service::Uc {
                        self.send_unreliable_write(end, item, target.range(at, item.length()), bytes, wr_id);
                    } else {
                        self.change(end, wr_id, target.range(at, item.length()), bytes);
                        self.send(end, item, wr_id);
                    }
                }
                Action::Read { at } => {
                    let bytes = self.stage.image[target.host][target.range(at, item.length())].to_vec();
                    expect.lands = self.land(end, &item.pieces, &bytes);
                }
                Action::CompareSwap { at, hit, swap } => {
                    let there = self.word(target.host, target.offset + at);
                    let now = if hit { swap } else { there };
                    self.change(end, wr_id, target.range(at, 8), now.to_ne_bytes().to_vec());
                    expect.lands = self.land(end, &item.pieces, &there.to_ne_bytes());
                }
                Action::FetchAdd { at, add } => {
                    let there = self.word(target.host, target.offset + at);
                    self.change(end, wr_id, target.range(at, 8), there.wrapping_add(add).to_ne_bytes().to_vec());
                    expect.lands = self.land(end, &item.pieces, &there.to_ne_bytes());
                }
                Action::SharedAdd { counter, add } => {
                    let place = 8 * self.actors[end].tallied;
                    self.actors[end].tallied += 1;
                    self.additions.push(Addition { host: target.host, counter, add, end, place });
                }
                Action::AtomicWrite { at } => {
                    let bytes = self.gather(end, &item.pieces);
                    self.change(end, wr_id, target.range(at, 8), bytes);
                }
                Action::Flush { .. } | Action::LocalInvalidate => {}
            }
        }
        self.actors[end].expects.push_back(expect);
    }

    fn change(&mut self, end: usize, wr_id: u64, range: Range<usize>, after: Vec<u8>) {
        let image = &mut self.stage.image[self.stage.ends[end].target.host][range.clone()];
        let timed = self.program.fault.is_some_and(|fault| fault.end == end && fault.kind.is_timed());
        let before = if timed { image.to_vec() } else { Vec::new() };
        image.copy_from_slice(&after);
        if timed {
            self.actors[end].effects.push(Effect { wr_id, range, before, after });
        }
    }

    fn land(&mut self, end: usize, pieces: &[Piece], bytes: &[u8]) -> Vec<Range<usize>> {
        let ranges = self.ranges(end, pieces);
        let image = &mut self.stage.image[self.program.end(end).host];
        let mut rest = bytes;
        for range in &ranges {
            let (now, later) = rest.split_at(range.len());
            image[range.clone()].copy_from_slice(now);
            rest = later;
        }
        ranges
    }

    /// A message leaves for its receiver, if the work is one.
    fn send(&mut self, end: usize, item: &Item, wr_id: u64) {
        if !item.consumes() {
            return;
        }
        let is_write = matches!(item.action, Action::Write { .. });
        let key = self.actors[end].key;
        let invalidated = key.filter(|_| item.action == Action::SendInvalidate && item.flaw.is_none());
        if invalidated.is_some() {
            self.actors[end].window = None;
        }
        let message = self.message(end, item, wr_id, invalidated, is_write);
        let to = item.to.filter(|_| self.program.channels[end / 2].service == Service::Ud);
        self.actors[to.unwrap_or(end ^ 1)].incoming.send(message, self.program.channels[end / 2].service);
    }

    /// A WRITE that may be lost: its bytes are looked for when all is over.
    fn send_unreliable_write(&mut self, end: usize, item: &Item, range: Range<usize>, after: Vec<u8>, wr_id: u64) {
        let message = self.message(end, item, wr_id, None, true);
        let incoming = &mut self.actors[end ^ 1].incoming;
        let number = item.consumes().then(|| incoming.send(message, Service::Uc));
        incoming.write(range, after, number);
    }

    fn message(&self, end: usize, item: &Item, wr_id: u64, invalidated: Option<Key>, is_write: bool) -> Message {
        let immediate = match item.action {
            Action::Send { immediate } | Action::Write { immediate, .. } => immediate,
            _ => None,
        };
        Message {
            wr_id,
            from: self.actors[end].qp.qpn,
            bytes: if is_write { Vec::new() } else { self.gather(end, &item.pieces) },
            length: item.length(),
            is_write,
            immediate,
            invalidated,
            solicited: item.solicited,
            queue: item.to.filter(|_| self.program.channels[end / 2].service == Service::Xrc),
            flaw: item.flaw,
        }
    }

    /// Posts a receive of an end's own.
    pub fn post_receive(&mut self, end: usize, index: usize) -> Verdict {
        if self.actors[end].gone {
            return Ok(());
        }
        let sges = self.receive_sges(&self.stage.ends[end].slots[index]);
        let wr_id = self.tickets.len() as u64;
        match self.stage.sim.receive(self.actors[end].qp, wr_id, &sges) {
            Ok(()) => {
                self.tickets.push(Ticket::Receive(end, index));
                self.actors[end].posted.push_back(wr_id);
                Ok(())
            }
            // Its program has just reset it.
            Err(PostError::WrongState { .. }) if self.program.fault.is_some_and(|fault| fault.end ^ 1 == end) => Ok(()),
            Err(error) => Err(format!("end {end} may not post a receive: {error}")),
        }
    }

    /// Posts a receive to a shared queue.
    pub fn post_shared(&mut self, queue: usize, index: usize) -> Verdict {
        let sges = self.receive_sges(&self.stage.shared[queue].1[index]);
        let wr_id = self.tickets.len() as u64;
        let srq = self.stage.shared[queue].0;
        self.stage.sim.receive_shared(srq, wr_id, &sges).map_err(|error| format!("shared queue {queue}: {error}"))?;
        self.tickets.push(Ticket::Shared(queue, index));
        self.shared[queue].posted += 1;
        self.shared[queue].used.push(false);
        Ok(())
    }

    fn receive_sges(&self, slot: &super::stage::Slot) -> Vec<Sge> {
        let heap = &self.stage.heaps[slot.host];
        let mut sges: Vec<_> =
            slot.pieces.iter().map(|(offset, length)| heap.sge(u64::from(*offset), *length)).collect();
        if let (true, Some(last)) = (slot.flawed, sges.last_mut()) {
            last.key = NO_KEY;
        }
        sges
    }

    /// New bytes in part of a source.
    pub fn refill(&mut self, end: usize, offset: u32, length: u32, seed: u64) {
        let area = self.stage.ends[end].source;
        let range = area.range(offset, length);
        let image = &mut self.stage.image[area.host][range.clone()];
        Rng::new(seed).fill(image);
        let heap = self.stage.heaps[area.host];
        self.stage.sim.bytes_mut(&heap)[range.clone()].copy_from_slice(&self.stage.image[area.host][range]);
    }
}
