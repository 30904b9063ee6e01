//! Judges completions as they come: each piece of work completes once, in order and as the model says, and each message arrives as it was sent. What
//! can only be judged when all is over is in `reckon`.

use super::post::Expect;
use super::program::*;
use super::run::{Run, Ticket, Verdict};
use std::collections::VecDeque;
use std::ops::Range;
use transport::{Completion, CompletionKind, Failure, Queue, Status};
use wire::{Key, Qpn};

/// A message as it left.
#[derive(Clone, Debug)]
pub struct Message {
    pub wr_id: u64,
    pub from: Qpn,
    /// What the receive gets; a WRITE brings it nothing.
    pub bytes: Vec<u8>,
    pub length: u32,
    pub is_write: bool,
    pub immediate: Option<u32>,
    pub invalidated: Option<Key>,
    pub solicited: bool,
    /// XRC: the shared queue it names.
    pub queue: Option<usize>,
    pub flaw: Option<Flaw>,
}

/// What is under way to an end.
#[derive(Default)]
pub struct Incoming {
    /// Reliable: in the order it must arrive.
    pub due: VecDeque<Message>,
    /// Unreliable: everything that was sent, and how often it arrived.
    pub sent: Vec<(Message, u32)>,
    /// The latest that arrived.
    latest: usize,
    /// Unreliable WRITEs: where, what, and which message tells that it is complete.
    pub writes: Vec<(Range<usize>, Vec<u8>, Option<usize>)>,
}

impl Incoming {
    /// A message leaves. Answers its number among the unreliable ones.
    pub fn send(&mut self, message: Message, service: Service) -> usize {
        if service.is_reliable() {
            self.due.push_back(message);
        } else {
            self.sent.push((message, 0));
        }
        self.sent.len().wrapping_sub(1)
    }

    pub fn write(&mut self, range: Range<usize>, bytes: Vec<u8>, message: Option<usize>) {
        self.writes.push((range, bytes, message));
    }
}

/// Fails with a sentence unless something is so.
macro_rules! ensure {
    ($what:expr, $($says:tt)+) => {
        if !$what {
            return Err(format!($($says)+));
        }
    };
}

pub(crate) use ensure;

impl Run<'_> {
    /// Takes all completions there are.
    pub fn collect(&mut self) -> Verdict {
        if !std::mem::take(&mut self.watch.borrow_mut().news) {
            return Ok(());
        }
        for end in 0..self.actors.len() {
            if self.actors[end].gone {
                continue;
            }
            while let Some(completion) = self.stage.sim.next_completion(self.actors[end].qp) {
                let judged = match completion.queue {
                    Queue::Send => self.sent(end, &completion),
                    _ => self.received(end, &completion),
                };
                judged.map_err(|what| format!("end {end}: {what}: {completion:?}"))?;
            }
        }
        Ok(())
    }

    /// A send completed.
    fn sent(&mut self, end: usize, completion: &Completion) -> Verdict {
        ensure!(!self.watch.borrow().closing, "work was flushed that should have been done");
        let actor = &mut self.actors[end];
        let expect = loop {
            let Some(expect) = actor.expects.pop_front() else {
                return Err("nothing is outstanding".into());
            };
            if expect.wr_id == completion.wr_id {
                break expect;
            }
            ensure!(!expect.signaled, "work {} was passed over", expect.wr_id);
            ensure!(!actor.failed && expect.flaw.is_none(), "work {} failed without a word", expect.wr_id);
        };
        ensure!(completion.qpn == actor.qp.qpn, "the wrong queue pair");
        ensure!(completion.kind == expect.kind, "work of another kind, {:?}", expect.kind);
        if completion.status == Status::Success {
            ensure!(!actor.failed, "success after a failure");
            ensure!(expect.signaled, "an unsignaled success completed");
            ensure!(expect.flaw.is_none(), "it should have failed: {:?}", expect.flaw);
            ensure!(completion.cause.is_none(), "a success has no cause");
            actor.last_success = Some(expect.wr_id);
            let counts =
                !matches!(expect.kind, CompletionKind::Send | CompletionKind::Write | CompletionKind::AtomicWrite);
            ensure!(!counts || completion.bytes == expect.bytes, "{} bytes were asked for", expect.bytes);
            return self.landed(end, &expect);
        }
        ensure!(completion.cause.is_some(), "a failure has a cause");
        if actor.failed {
            ensure!(completion.status == Status::WorkRequestFlushed, "only flushes follow a failure");
        } else {
            actor.failed = true;
            self.first_failure(end, &expect, completion)?;
        }
        if expect.takes_effect {
            // An answer may have arrived in part.
            let host = self.program.end(end).host;
            self.doubtful.extend(expect.lands.into_iter().map(|range| (host, range)));
        }
        Ok(())
    }

    /// The result of a READ or atomic is there when it completes, unless later work has overwritten it.
    fn landed(&self, end: usize, expect: &Expect) -> Verdict {
        let host = self.program.end(end).host;
        let later = || self.actors[end].expects.iter().flat_map(|later| &later.lands);
        for range in &expect.lands {
            if later().any(|other| other.start < range.end && range.start < other.end) {
                continue;
            }
            let (memory, image) = (&self.stage.memory(host)[range.clone()], &self.stage.image[host][range.clone()]);
            ensure!(memory == image, "the result is not what the model says, from {}", difference(memory, image));
        }
        Ok(())
    }

    /// Whether this failure is the one the program asked for.
    fn first_failure(&mut self, end: usize, expect: &Expect, completion: &Completion) -> Verdict {
        let status = completion.status;
        let fault = self.program.fault.filter(|fault| fault.end == end).ok_or("nothing was wrong with it")?;
        let options = &self.program.channels[end / 2].options;
        let rough = self.watch.borrow().is_rough();
        match (fault.kind, expect.flaw) {
            (FaultKind::Work(_), Some(flaw)) => {
                // A queue pair that failed at the other end no longer answers, and what it last said may have been
                // lost.
                let unheard = rough && !flaw.is_local() && status == Status::RetryExceeded;
                ensure!(unheard || flaw.statuses().contains(&status), "expected {:?}", flaw.statuses());
            }
            (FaultKind::Work(flaw), None) => {
                let unheard = rough && !flaw.is_local() && flaw != Flaw::NeverReady && self.actors[end].doomed;
                ensure!(unheard && status == Status::RetryExceeded, "work before the flawed one failed");
                self.actors[end].unheard = true;
            }
            (FaultKind::Aborts(_), _) => {
                ensure!(status == Status::WorkRequestFlushed, "its program moved it to ERR");
            }
            (FaultKind::Silence(_) | FaultKind::PeerLeaves(..), _) => {
                ensure!(status == Status::RetryExceeded, "nobody can have answered");
            }
        }
        match completion.failure() {
            Some(Failure::NoAnswer { tries, .. }) => {
                ensure!(
                    tries == u32::from(options.retry_cnt) + 1,
                    "it should have tried once and {} times more",
                    options.retry_cnt
                );
            }
            Some(Failure::NotReady { tries, .. }) => {
                ensure!(
                    tries == u32::from(options.rnr_retry) + 1,
                    "it should have tried once and {} times more",
                    options.rnr_retry
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// A receive completed.
    fn received(&mut self, end: usize, completion: &Completion) -> Verdict {
        let (slot_host, pieces) = self.claim(end, completion)?;
        let service = self.program.channels[end / 2].service;
        let actor = &mut self.actors[end];
        if completion.status != Status::Success {
            let may_fail =
                self.watch.borrow().closing || self.program.fault.is_some_and(|fault| fault.end / 2 == end / 2);
            ensure!(may_fail, "a receive failed for nothing");
            let first = !actor.receives_failed;
            if completion.status == Status::WorkRequestFlushed {
                actor.receives_failed = true;
            } else {
                ensure!(first, "only flushes follow a failure");
                actor.receives_failed = true;
                let message = actor.incoming.due.pop_front().ok_or("no message can have caused it")?;
                let expected = match message.flaw {
                    Some(Flaw::TooLong) => Some(Status::LocalLength),
                    Some(Flaw::BadReceive) => Some(Status::LocalProtection),
                    Some(_) => None,
                    None => return Err(format!("message {} was lawful", message.wr_id)),
                };
                ensure!(expected.is_none_or(|status| status == completion.status), "expected {expected:?}");
            }
            if first {
                // A message may have arrived in part.
                self.doubt(slot_host, &pieces);
            }
            return Ok(());
        }
        ensure!(!actor.receives_failed, "success after a failure");
        let message = match service {
            Service::Rc | Service::Xrc => {
                let message = actor.incoming.due.pop_front().ok_or("nobody sent anything")?;
                ensure!(message.flaw.is_none(), "message {} should have failed", message.wr_id);
                message
            }
            Service::Uc | Service::Ud => self.recognise(end, completion, slot_host, &pieces)?,
        };
        let header = if service == Service::Ud { 40 } else { 0 };
        let kind = if message.is_write { CompletionKind::ReceiveWriteImmediate } else { CompletionKind::Receive };
        let sent = message.wr_id;
        ensure!(completion.kind == kind, "message {sent} is a {kind:?}");
        ensure!(completion.bytes == message.length + header, "message {sent} has {} bytes", message.length);
        ensure!(completion.immediate == message.immediate, "message {sent} has immediate {:?}", message.immediate);
        ensure!(completion.invalidated == message.invalidated, "message {sent} invalidates {:?}", message.invalidated);
        ensure!(completion.solicited == message.solicited, "message {sent}: solicited is {}", message.solicited);
        ensure!(completion.src_qpn == Some(message.from), "message {sent} came from {}", message.from);
        ensure!(completion.grh == (service == Service::Ud), "only a datagram has a GRH");
        if let Some(queue) = message.queue {
            let srqn = self.stage.shared[queue].0.srqn;
            ensure!(completion.queue == Queue::Shared(srqn), "message {sent} names shared queue {srqn}");
        }
        let reused = service == Service::Uc && self.watch.borrow().is_rough();
        self.place(slot_host, &pieces, header, &message, reused)
    }

    /// It cannot be said whether these pieces were written.
    pub fn doubt(&mut self, host: usize, pieces: &[(u32, u32)]) {
        let ranges = pieces.iter().map(|(offset, length)| *offset as usize..(offset + length) as usize);
        self.doubtful.extend(ranges.map(|range| (host, range)));
    }

    /// The receive that completed: it must be the oldest posted, and never have completed before.
    fn claim(&mut self, end: usize, completion: &Completion) -> Result<(usize, Vec<(u32, u32)>), String> {
        let ticket = self.tickets.get(completion.wr_id as usize).copied();
        let slot = match (ticket, completion.queue) {
            (Some(Ticket::Receive(owner, index)), Queue::Receive) => {
                let oldest = self.actors[end].posted.pop_front();
                ensure!(owner == end && oldest == Some(completion.wr_id), "the oldest receive is {oldest:?}");
                &self.stage.ends[end].slots[index]
            }
            (Some(Ticket::Shared(queue, index)), Queue::Shared(srqn)) => {
                let (srq, slots) = &self.stage.shared[queue];
                ensure!(srq.srqn == srqn, "receive {index} belongs to another shared queue");
                ensure!(!std::mem::replace(&mut self.shared[queue].used[index], true), "this receive completed before");
                let xrc = self.program.shared[queue].xrc;
                let last = self.actors[end].last_shared.filter(|_| !xrc);
                ensure!(last.is_none_or(|last| index > last), "receive {last:?} was taken after receive {index}");
                self.actors[end].last_shared = Some(index);
                &slots[index]
            }
            _ => return Err("no such receive was posted".into()),
        };
        Ok((slot.host, slot.pieces.clone()))
    }

    /// The unreliable message that this can be. None is lost in part, and none arrives more often than the network can have made it.
    fn recognise(
        &mut self,
        end: usize,
        completion: &Completion,
        host: usize,
        pieces: &[(u32, u32)],
    ) -> Result<Message, String> {
        let header = if self.program.channels[end / 2].service == Service::Ud { 40 } else { 0 };
        let is_write = completion.kind == CompletionKind::ReceiveWriteImmediate;
        let memory = self.stage.memory(host);
        let all = pieces.iter().flat_map(|(offset, length)| &memory[*offset as usize..(offset + length) as usize]);
        let length = if is_write { 0 } else { completion.bytes.saturating_sub(header) as usize };
        let bytes: Vec<u8> = all.skip(header as usize).take(length).copied().collect();
        let rough = self.watch.borrow().is_rough();
        let incoming = &mut self.actors[end].incoming;
        let fits = |message: &Message| {
            message.is_write == is_write
                && message.bytes == bytes
                && message.length + header == completion.bytes
                && message.immediate == completion.immediate
                && Some(message.from) == completion.src_qpn
                && message.solicited == completion.solicited
        };
        let most = if rough { 2 } else { 1 };
        // In order where nothing was disturbed; otherwise wherever there is one left.
        let found = (incoming.latest..incoming.sent.len())
            .chain(0..incoming.latest)
            .find(|index| fits(&incoming.sent[*index].0) && incoming.sent[*index].1 < most);
        let index = found.ok_or("nobody sent this, or not as often")?;
        let in_order = index >= incoming.latest || rough || header > 0;
        ensure!(in_order, "a message was overtaken although nothing was disturbed");
        incoming.latest = incoming.latest.max(index);
        let (message, arrivals) = &mut incoming.sent[index];
        *arrivals += 1;
        Ok(message.clone())
    }

    /// Puts a message into the image where its receive is, and compares. A receive that a damaged message has `reused` may hold anything behind it.
    fn place(&mut self, host: usize, pieces: &[(u32, u32)], header: u32, message: &Message, reused: bool) -> Verdict {
        let memory = self.stage.sim.bytes(&self.stage.heaps[host]);
        let image = &mut self.stage.image[host];
        let mut at = 0usize;
        let end = header as usize + message.bytes.len();
        for (offset, length) in pieces {
            let range = *offset as usize..(offset + length) as usize;
            for index in range.clone() {
                if at >= header as usize && at < end {
                    image[index] = message.bytes[at - header as usize];
                } else if at < header as usize || reused {
                    // The route header is the network's.
                    image[index] = memory[index];
                }
                at += 1;
            }
            let (memory, image) = (&memory[range.clone()], &image[range]);
            ensure!(memory == image, "message {} arrived changed, from {}", message.wr_id, difference(memory, image));
        }
        Ok(())
    }

    /// All work of an end has completed: its memory is as the model says, on both sides.
    pub fn compare_end(&self, end: usize) -> Verdict {
        let uncertain = self.program.fault.is_some_and(|fault| fault.end == end);
        if uncertain || !self.program.channels[end / 2].service.is_reliable() {
            return Ok(());
        }
        let ground = &self.stage.ends[end];
        for (name, area) in [("source", ground.source), ("landing", ground.landing), ("target", ground.target)] {
            let range = area.range(0, area.length);
            let (memory, image) = (&self.stage.memory(area.host)[range.clone()], &self.stage.image[area.host][range]);
            ensure!(
                memory == image,
                "end {end} waited for its work, but its {name} differs from {}",
                difference(memory, image)
            );
        }
        Ok(())
    }
}

/// Where two runs of bytes first differ.
pub fn difference(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()))
}
