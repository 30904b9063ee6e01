//! Work requests from being posted to being polled: what each accesses, which receive a message went to, and what a
//! program knows when it has polled a completion.

use alloc::sync::Arc;
use alloc::vec::Vec;

use trace::{Call, Queue};
use wire::{Headers, Key, Qpn};

use super::clock::{Clock, Point, SharedClock, Way};
use super::shadow::{Access, Doing, Side, Work};
use super::world::{Message, Outcome, Pair, Receive, Service, filled, push};
use super::{Races, Step};

/// How many messages of a queue pair are searched for one by its sequence number.
const MAX_MESSAGES_SEARCHED: usize = 4096;

/// How many addresses of atomic operations are known.
const MAX_ATOMICS: usize = 1 << 14;

/// What an operation does: to memory of its own process, to that of the peer, and whether the peer gets a message.
#[derive(Clone, Copy)]
struct Effects {
    local: Option<(Doing, Way)>,
    remote: Option<(Doing, Way)>,
    is_message: bool,
}

impl Effects {
    fn of(opcode: &str) -> Effects {
        let source = Some((Doing::Reading, Way::Sent));
        let result = Some((Doing::Writing, Way::Answered));
        let (local, remote, is_message) = match opcode {
            "SEND" | "SEND_WITH_IMM" | "SEND_WITH_INV" => (source, None, true),
            "RDMA_WRITE" => (source, Some((Doing::Writing, Way::Placed)), false),
            "RDMA_WRITE_WITH_IMM" => (source, Some((Doing::Writing, Way::Placed)), true),
            "RDMA_READ" => (result, Some((Doing::Reading, Way::Answered)), false),
            "ATOMIC_CMP_AND_SWP" | "ATOMIC_FETCH_AND_ADD" => (result, Some((Doing::Atomic, Way::Answered)), false),
            "ATOMIC_WRITE" => (source, Some((Doing::Atomic, Way::Answered)), false),
            _ => (None, None, false),
        };
        Effects { local, remote, is_message }
    }

    fn is_answered(&self) -> bool {
        self.remote.is_some_and(|(_, way)| way == Way::Answered)
    }
}

impl Races {
    /// A work request of a send queue was accepted.
    pub(super) fn accepted(&mut self, process: u32, id: u32, wr_id: u64) {
        let Some(pair) = self.pairs.get_mut(&id) else { return };
        let Some((call, thread, at)) = pair.pending.take() else { return };
        let Call::PostSend {
            wr_id: posted, opcode, signaled, inline, fence, pieces, remote_address, remote_key, ..
        } = call
        else {
            return;
        };
        if posted != wr_id {
            return;
        }
        let effects = Effects::of(opcode);
        pair.posted += 1;
        let index = pair.posted;
        if fence {
            pair.fenced = pair.last_answered;
        }
        if effects.is_answered() {
            pair.last_answered = index;
        }
        let fenced = pair.fenced;
        let mut has_lost = push(&mut pair.sends, (index, wr_id, signaled || pair.signals_all));
        let (service, qpn) = (pair.service, pair.qpn);
        let peer = self.peer_of(id);
        let target = peer.and_then(|peer| self.pairs.get(&peer)).map(|peer| peer.process);
        let region = target.zip(remote_key).and_then(|(target, key)| self.region(target, key)).cloned();
        if let Some(region) = &region {
            // The program was given the key, in whatever way.
            self.processes[process as usize].clock.join(&region.born);
        }
        let stack = self.processes[process as usize].stacks.get(&thread).copied().unwrap_or(0);
        let work = Arc::new(Work { process, pair: id, qpn, index, wr_id, opcode, thread, at, fenced, stack });
        let before = Arc::clone(&self.processes[process as usize].clock.0);
        if effects.is_message
            && let Some(pair) = self.pairs.get_mut(&id)
        {
            pair.message_count += 1;
            let number = pair.message_count;
            let fills = opcode != "RDMA_WRITE_WITH_IMM";
            let message = Message { number, psn: None, work: Arc::clone(&work), before: Arc::clone(&before), fills };
            has_lost |= push(&mut pair.messages, message);
            if service != Service::Reliable {
                push(&mut pair.unsent, (number, wr_id));
            }
        }
        if has_lost {
            self.forget();
        }
        self.count_clock(&before);
        if let Some((doing, way)) = effects.local.filter(|_| !inline) {
            let over = Point { pair: id, way, index };
            for (start, length, key) in filled(&pieces, u64::MAX) {
                let access = self.access_of(&work, doing, Side::Local, over, &before, process, (start, length, key));
                self.access(access);
            }
        }
        if let (Some((doing, way)), Some(target), Some(region), Some(address)) =
            (effects.remote, target, region, remote_address)
        {
            let length = if doing == Doing::Atomic { 8 } else { pieces.bytes };
            if let Some((start, end)) = region.place(address, length).filter(|_| length > 0) {
                let access = Access {
                    work: Arc::clone(&work),
                    doing,
                    side: Side::Remote,
                    over: Point { pair: id, way, index },
                    before: Arc::clone(&before),
                    target,
                    region: region.id,
                    key: remote_key.map_or(0, Key::value),
                    start,
                    end,
                    receive: None,
                };
                self.access(access);
                if doing == Doing::Atomic {
                    self.release((target, start), id, index, &before);
                }
            }
        }
        if opcode == "LOCAL_INV"
            && let Some(key) = remote_key
        {
            self.drop_region(process, key);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of an access")]
    fn access_of(
        &self,
        work: &Arc<Work>,
        doing: Doing,
        side: Side,
        over: Point,
        before: &Arc<Clock>,
        target: u32,
        (address, length, key): (u64, u64, u32),
    ) -> Access {
        let region = self.region(target, Key::new(key));
        let (start, end) = region
            .and_then(|region| region.place(address, length))
            .unwrap_or((address, address.saturating_add(length)));
        Access {
            work: Arc::clone(work),
            doing,
            side,
            over,
            before: Arc::clone(before),
            target,
            region: region.map_or(0, |region| region.id),
            key,
            start,
            end,
            receive: None,
        }
    }

    /// An atomic operation may release what its poster knows: an operation on the same bytes that is polled later has
    /// seen it, perhaps.
    fn release(&mut self, place: (u32, u64), pair: u32, index: u64, before: &Arc<Clock>) {
        let key = (u64::from(place.0), place.1);
        if self.released.len() >= MAX_ATOMICS && !self.released.contains_key(&key) {
            self.forget();
        }
        let released = self.released.entry(key).or_default();
        released.join(before);
        released.learn(Point { pair, way: Way::Placed, index });
        // Answers are in order: those before it were carried out when it is.
        released.learn(Point { pair, way: Way::Answered, index });
        if let Some(pair) = self.pairs.get_mut(&pair) {
            pair.atomics.push_back((index, key));
            if pair.atomics.len() > MAX_MESSAGES_SEARCHED {
                pair.atomics.pop_front();
            }
        }
    }

    /// A packet of a request left: of unreliable services its number says which message arrives.
    pub(super) fn packet_left(&mut self, id: u32, headers: &Headers, packets: u32) {
        let Some(pair) = self.pairs.get_mut(&id) else { return };
        let opcode = headers.bth.opcode;
        let is_message = opcode.operation() == wire::Operation::Send || opcode.has_immediate();
        if !is_message || !opcode.ends() && packets <= 1 {
            return;
        }
        // A train ends with the last packet of its message; others have no receive.
        let last = headers.bth.psn.add(packets.saturating_sub(1)).value();
        if let Some((number, _)) = pair.unsent.front().copied() {
            if opcode.ends() || opcode.starts() && packets > 1 {
                pair.unsent.pop_front();
            }
            if let Some(message) = pair.messages.iter_mut().rev().find(|message| message.number == number) {
                message.psn = Some(last);
            }
        }
    }

    /// Work of a send queue completed.
    pub(super) fn send_completed(&mut self, id: u32, wr_id: u64, is_success: bool) {
        let Some(pair) = self.pairs.get_mut(&id) else { return };
        let is_it = |(_, known, signaled): &(u64, u64, bool)| *known == wr_id && (*signaled || !is_success);
        let Some(place) = pair.sends.iter().position(is_it) else { return };
        let Some((index, ..)) = pair.sends.drain(..=place).next_back() else { return };
        let outcome = if is_success { Outcome::Sent(index) } else { Outcome::Failed };
        let has_lost = push(&mut pair.completed, (wr_id, outcome));
        if !is_success {
            self.found.failed(id, index);
        }
        if has_lost {
            self.forget();
        }
    }

    /// A message has filled a receive; `bytes` if all went well.
    pub(super) fn receive_completed(
        &mut self,
        process: u32,
        id: u32,
        wr_id: u64,
        queue: Queue,
        bytes: Option<u64>,
        is_last: bool,
    ) -> Step {
        let Some(pair) = self.pairs.get(&id) else { return Step::Done };
        let Some(bytes) = bytes else {
            self.take_receive(process, id, wr_id, queue);
            if let Some(pair) = self.pairs.get_mut(&id) {
                push(&mut pair.completed, (wr_id, Outcome::Failed));
            }
            return Step::Done;
        };
        let (service, number, arrived) = (pair.service, pair.received + 1, pair.arrived);
        let message = match service {
            Service::Reliable => match self.peer_of(id) {
                None => None,
                Some(peer) => match self.pairs.get_mut(&peer).map(|peer| take_numbered(peer, number)) {
                    Some(Taken::Message(message)) => Some(message),
                    Some(Taken::NotYet) if !is_last => return Step::Early,
                    _ => None,
                },
            },
            _ => match arrived.map(|(from, psn)| self.take_by_psn(id, from, psn)) {
                Some(Taken::Message(message)) => Some(message),
                Some(Taken::NotYet) if !is_last => return Step::Early,
                _ => None,
            },
        };
        let receive = self.take_receive(process, id, wr_id, queue);
        if let Some(message) = &message {
            self.looked.messages += 1;
            if let Some(receive) = receive.filter(|_| message.fills) {
                self.landed(process, message, &receive, bytes);
            }
        } else {
            self.looked.strange_messages += 1;
            // Whoever sent it may have been told of anything.
            self.forget_accesses();
        }
        let Some(pair) = self.pairs.get_mut(&id) else { return Step::Done };
        pair.received = number;
        if push(&mut pair.completed, (wr_id, Outcome::Received(message))) {
            self.forget();
        }
        Step::Done
    }

    /// The bytes of a message are in a receive.
    fn landed(&mut self, process: u32, message: &Message, receive: &Receive, bytes: u64) {
        let Message { work, .. } = message;
        let mut before = SharedClock(Arc::clone(&message.before));
        // What was placed before it by its queue pair is ordered by that; a fence says more.
        before.learn(Point { pair: work.pair, way: Way::Answered, index: work.fenced });
        before.join(&receive.before);
        self.count_clock(&before.0);
        let over = Point { pair: work.pair, way: Way::Placed, index: work.index };
        for piece in filled(&receive.pieces, bytes) {
            let mut access = self.access_of(work, Doing::Writing, Side::Remote, over, &before.0, process, piece);
            access.receive = Some((process, receive.wr_id));
            self.access(access);
        }
    }

    fn take_receive(&mut self, process: u32, id: u32, wr_id: u64, queue: Queue) -> Option<Receive> {
        let pair = self.pairs.get_mut(&id)?;
        let receives = match (queue, pair.srq) {
            (Queue::SharedReceive, Some(srq)) | (_, Some(srq)) => {
                self.processes.get_mut(process as usize)?.shared_receives.get_mut(&srq)?
            }
            _ => &mut pair.receives,
        };
        let place = receives.iter().position(|receive| receive.wr_id == wr_id)?;
        receives.remove(place)
    }

    /// The message of this number, of a datagram or of an unreliable connection.
    fn take_by_psn(&mut self, to: u32, from: Qpn, psn: u32) -> Taken {
        let Some(process) = self.pairs.get(&to).map(|pair| pair.process) else { return Taken::Unknown };
        let host = self.processes[process as usize].facts.host;
        let Some(sender) = self.by_host.get(&(host.into(), from.value().into())) else { return Taken::Unknown };
        let Some(pair) = self.pairs.get_mut(sender) else { return Taken::Unknown };
        let newest = pair.messages.iter().rev().take(MAX_MESSAGES_SEARCHED);
        match newest.into_iter().find(|message| message.psn == Some(psn)) {
            // Others may get it as well: it may be for a group.
            Some(message) => Taken::Message(message.clone()),
            None => Taken::NotYet,
        }
    }

    /// The program has polled a completion.
    pub(super) fn polled(&mut self, process: u32, id: u32, wr_id: u64) {
        let Some(pair) = self.pairs.get_mut(&id) else { return };
        let Some(place) = pair.completed.iter().position(|(known, _)| *known == wr_id) else { return };
        let Some((_, outcome)) = pair.completed.remove(place) else { return };
        let service = pair.service;
        match outcome {
            Outcome::Sent(index) => {
                let ways: &[Way] = match service {
                    Service::Reliable => &[Way::Placed, Way::Answered, Way::Sent],
                    // That they left does not say that they arrived.
                    _ => &[Way::Sent],
                };
                let atomics: Vec<_> = {
                    let done = pair.atomics.iter().take_while(|(posted, _)| *posted <= index).count();
                    pair.atomics.drain(..done).map(|(_, place)| place).collect()
                };
                let clock = &mut self.processes[process as usize].clock;
                ways.iter().for_each(|way| clock.learn(Point { pair: id, way: *way, index }));
                for place in atomics {
                    if let Some(released) = self.released.get(&place) {
                        self.processes[process as usize].clock.join(&released.0);
                    }
                }
            }
            Outcome::Received(Some(message)) => {
                let clock = &mut self.processes[process as usize].clock;
                clock.join(&message.before);
                let Work { pair, index, fenced, .. } = *message.work;
                clock.learn(Point { pair, way: Way::Placed, index });
                clock.learn(Point { pair, way: Way::Sent, index });
                clock.learn(Point { pair, way: Way::Answered, index: fenced });
            }
            // What is flushed is over.
            Outcome::Failed => {
                let posted = pair.posted;
                let clock = &mut self.processes[process as usize].clock;
                for way in [Way::Placed, Way::Answered, Way::Sent] {
                    clock.learn(Point { pair: id, way, index: posted });
                }
            }
            Outcome::Received(None) => {}
        }
    }
}

enum Taken {
    Message(Message),
    /// It was not posted so far, as it seems.
    NotYet,
    Unknown,
}

/// Takes the message of this number, and drops those before it.
fn take_numbered(pair: &mut Pair, number: u64) -> Taken {
    while pair.messages.front().is_some_and(|message| message.number < number) {
        pair.messages.pop_front();
    }
    match pair.messages.pop_front_if(|message| message.number == number) {
        Some(message) => Taken::Message(message),
        None if pair.message_count < number => Taken::NotYet,
        None => Taken::Unknown,
    }
}
