//! What the program has, as its calls and the NIC's events tell: domains, memory, queues, queue pairs, and the work
//! under way. It believes the events and judges nothing.

mod completion_queue;
mod objects;
mod work;

pub(crate) use completion_queue::is_failure;
pub use completion_queue::{CompletionQueue, Unpolled};
pub use objects::{AskedForNone, Connection, Context, Domain, Pair, Region, SharedQueue, Window};
pub use work::{Work, WorkQueue};

use crate::map::Map;
use alloc::collections::VecDeque;

use trace::{Call, Event, Kind, Queue};
use wire::access::Access;

use wire::{Key, Operation, Qpn};

use crate::witness::Witness;

/// How many objects that are gone are remembered, of each kind.
const MAX_REMEMBERED_OBJECTS: usize = 256;

/// What the program has.
#[derive(Default, Debug)]
pub struct Model {
    /// Open devices.
    pub(crate) contexts: Map<u32, Context>,
    /// Protection domains.
    pub(crate) domains: Map<u32, Domain>,
    /// Registered memory, by key.
    pub(crate) regions: Map<u32, Region>,
    /// Memory that was deregistered, the newest last.
    pub gone_regions: VecDeque<Region>,
    /// Memory windows, by the key they were made with.
    pub(crate) windows: Map<u32, Window>,
    /// Completion queues.
    pub(crate) cqs: Map<u32, CompletionQueue>,
    /// Shared receive queues.
    pub(crate) srqs: Map<u32, SharedQueue>,
    /// Queue pairs.
    pub(crate) pairs: Map<Qpn, Pair>,
    /// Queue pairs that were destroyed, with when, the newest last.
    pub gone_pairs: VecDeque<(Qpn, u64)>,
    /// Completion channels.
    pub(crate) channels: Map<u32, ()>,
    /// Address handles.
    pub(crate) handles: Map<u64, u32>,
    /// `ibv_fork_init` was called.
    pub fork_is_safe: bool,
}

impl Model {
    /// The region with this key, or the newest that had it.
    #[must_use]
    pub fn region_ever(&self, key: Key) -> Option<&Region> {
        self.regions.get(&key.value()).or_else(|| self.gone_regions.iter().rev().find(|region| region.key == key))
    }

    /// The region that local work names by this key.
    #[must_use]
    pub fn local_region(&self, key: Key) -> Option<&Region> {
        self.regions.get(&key.of_region().value()).or_else(|| self.regions.get(&key.value()))
    }

    /// The region that is, or was, named by this key: its `rkey` or its `lkey`.
    #[must_use]
    pub fn region_named(&self, key: Key) -> Option<&Region> {
        self.region_ever(key).or_else(|| self.region_ever(key.of_region()))
    }

    /// The registered regions that have bytes of this range.
    pub fn regions_at(&self, address: u64, length: u64) -> impl Iterator<Item = &Region> {
        self.regions.values().filter(move |region| region.overlaps(address, length))
    }

    /// A queue pair by its number.
    #[must_use]
    pub fn pair(&self, qpn: Qpn) -> Option<&Pair> {
        self.pairs.get(&qpn)
    }

    /// The queue pair of an event.
    #[must_use]
    pub fn pair_of(&self, event: &Event) -> Option<&Pair> {
        event.qpn.and_then(|qpn| self.pairs.get(&qpn))
    }

    /// The work of a queue pair that a completion is about.
    #[must_use]
    pub fn work(&self, qpn: Qpn, queue: Queue, wr_id: u64) -> Option<&Work> {
        let pair = self.pairs.get(&qpn)?;
        match queue {
            Queue::Send => pair.sends.find(wr_id),
            Queue::Receive => pair.receives.find(wr_id),
            _ => self.srqs.get(&pair.srq?)?.receives.find(wr_id),
        }
    }

    /// Takes note of an event.
    pub(crate) fn apply(&mut self, event: &Event, witness: &mut dyn Witness) {
        match &event.kind {
            Kind::Called { thread, call } => self.called(event, *thread, call, witness),
            Kind::WorkPosted { wr_id, queue, opcode, bytes } => {
                self.posted(event, *wr_id, *queue, opcode, *bytes);
            }
            Kind::PostRefused { .. } => {
                if let Some(pair) = event.qpn.and_then(|qpn| self.pairs.get_mut(&qpn)) {
                    pair.sends.about_to_post = None;
                    pair.receives.about_to_post = None;
                }
            }
            Kind::Completed { wr_id, queue, status, opcode, failure, .. } => {
                self.completed(event, *wr_id, *queue, status, opcode);
                if let (Some(failure), Some(pair)) = (failure, event.qpn.and_then(|qpn| self.pairs.get_mut(&qpn)))
                    && *failure != trace::Failure::Flushed
                    && pair.first_failure.is_none()
                {
                    pair.first_failure = Some((*wr_id, status, *failure));
                }
            }
            Kind::StateChanged { to, cause, .. } => {
                let pair = event.qpn.map(|qpn| self.pairs.entry(qpn).or_insert_with(|| Pair::unknown(qpn)));
                if let Some(pair) = pair {
                    pair.state = to;
                    pair.state_since = event.at;
                    pair.state_cause = Some(*cause);
                    if *to == "RESET" {
                        pair.reset();
                        let (qpn, cqs) = (pair.qpn, [pair.send_cq, pair.receive_cq]);
                        self.cqs_of(cqs, |cq| cq.orphan(qpn));
                    }
                }
            }
            Kind::PacketReceived { headers, .. } => {
                self.accessed(headers);
                if let Some(pair) = event.qpn.and_then(|qpn| self.pairs.get_mut(&qpn)) {
                    pair.heard_at = Some(event.at);
                    if headers.bth.opcode.is_request() {
                        pair.asked_at = Some(event.at);
                    }
                }
            }
            Kind::NakReceived { .. } => {
                if let Some(pair) = event.qpn.and_then(|qpn| self.pairs.get_mut(&qpn)) {
                    pair.heard_at = Some(event.at);
                }
            }
            _ => {}
        }
    }

    fn cqs_of(&mut self, numbers: [Option<u32>; 2], mut change: impl FnMut(&mut CompletionQueue)) {
        for number in numbers.into_iter().flatten() {
            if let Some(cq) = self.cqs.get_mut(&number) {
                change(cq);
            }
        }
    }

    /// The window that has this key or had it: the keys of a window differ in the lowest byte only.
    #[must_use]
    pub fn window(&self, key: Key) -> Option<&Window> {
        self.windows.iter().find(|(first, _)| is_of_window(**first, key)).map(|(_, window)| window)
    }

    fn window_mut(&mut self, key: Key) -> Option<&mut Window> {
        let first = *self.windows.keys().find(|first| is_of_window(**first, key))?;
        self.windows.get_mut(&first)
    }

    /// A peer's request reaches memory.
    fn accessed(&mut self, headers: &wire::Headers) {
        let right = match headers.bth.opcode.operation() {
            Operation::Write | Operation::AtomicWrite => Access::REMOTE_WRITE,
            Operation::ReadRequest => Access::REMOTE_READ,
            Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            _ => return,
        };
        let key = headers.reth.map(|reth| reth.rkey).or(headers.atomic.map(|atomic| atomic.rkey));
        if let Some(region) = key.and_then(|key| self.regions.get_mut(&key.value())) {
            region.used |= right;
        }
    }

    /// The program lets the NIC write to its memory.
    fn lends(&mut self, work: &Work) {
        if work.fills_memory() {
            for piece in work.pieces.kept() {
                let key = self.local_region(piece.key).map(|region| region.key.value());
                if let Some(region) = key.and_then(|key| self.regions.get_mut(&key)) {
                    region.used |= Access::LOCAL_WRITE;
                }
            }
        }
    }

    /// A work request was taken by its queue.
    fn posted(&mut self, event: &Event, wr_id: u64, queue: Queue, opcode: &'static str, bytes: u64) {
        let Some(qpn) = event.qpn else { return };
        let pair = self.pairs.entry(qpn).or_insert_with(|| Pair::unknown(qpn));
        let works = match queue {
            Queue::Send => &mut pair.sends,
            Queue::Receive => &mut pair.receives,
            // Shared receives are told by the call alone.
            _ => return,
        };
        let work = works.posted(event.at, wr_id, opcode, bytes);
        self.lends(&work);
    }

    fn completed(&mut self, event: &Event, wr_id: u64, queue: Queue, status: &'static str, opcode: &str) {
        let Some(pair) = event.qpn.and_then(|qpn| self.pairs.get_mut(&qpn)) else { return };
        pair.completed += 1;
        let mut frees = None;
        match queue {
            Queue::Send => frees = pair.sends.completed(wr_id, true),
            Queue::Receive => _ = pair.receives.completed(wr_id, true),
            _ => {
                if let Some(srq) = pair.srq.and_then(|srq| self.srqs.get_mut(&srq)) {
                    srq.receives.completed(wr_id, false);
                }
            }
        }
        let cq = match queue {
            Queue::Send => pair.send_cq,
            // Shared receive queues that match tags have a completion queue of their own.
            _ if opcode.starts_with("TM_") => None,
            _ => pair.receive_cq,
        };
        if let Some(cq) = cq.and_then(|cq| self.cqs.get_mut(&cq)) {
            let one = Unpolled { qpn: pair.qpn, wr_id, status, at: event.at, is_live: true, frees };
            if cq.completed(one) {
                frees.into_iter().for_each(|count| pair.sends.free(count));
            }
        }
    }

    fn called(&mut self, event: &Event, thread: u32, call: &Call, witness: &mut dyn Witness) {
        let at = event.at;
        match *call {
            Call::OpenDevice { context, device } => {
                self.contexts.insert(context, Context { device });
            }
            Call::CloseDevice { context } => {
                self.contexts.remove(&context);
            }
            Call::AllocPd { pd, context } => {
                self.domains.insert(pd, Domain { context });
            }
            Call::DeallocPd { pd } => {
                self.domains.remove(&pd);
            }
            Call::RegisterMemory { key, pd, address, length, iova, access } => {
                let (used, windowed) = (Access::empty(), false);
                let region =
                    Region { key, pd, address, length, iova, access, used, windowed, made_at: at, gone_at: None };
                self.regions.insert(key.value(), region);
            }
            Call::ReregisterMemory { old_key, key, pd, address, length, iova, access } => {
                let before = self.regions.remove(&old_key.value());
                let (used, windowed) = before.map_or((Access::empty(), false), |region| (region.used, region.windowed));
                let region =
                    Region { key, pd, address, length, iova, access, used, windowed, made_at: at, gone_at: None };
                self.regions.insert(key.value(), region);
            }
            Call::DeregisterMemory { key } => {
                if let Some(region) = self.regions.remove(&key.value()) {
                    remember(&mut self.gone_regions, Region { gone_at: Some(at), ..region });
                }
            }
            Call::AllocWindow { key, pd, type_2 } => {
                self.windows.insert(key.value(), Window { pd, type_2, bound_as: None });
            }
            Call::BindWindow { window, new_key, region, length, .. } => {
                if let Some(window) = self.window_mut(window)
                    && length > 0
                {
                    window.bound_as = Some(new_key);
                }
                if let Some(region) = self.regions.get_mut(&region.value()) {
                    region.windowed = true;
                    region.used |= Access::MW_BIND;
                }
            }
            Call::FreeWindow { key } => {
                self.windows.retain(|first, _| !is_of_window(*first, key));
            }
            Call::CreateChannel { channel } => {
                self.channels.insert(channel, ());
            }
            Call::DestroyChannel { channel } => {
                self.channels.remove(&channel);
            }
            Call::CreateCq { cq, capacity, wanted, channel } => {
                self.cqs.insert(cq, CompletionQueue::new(capacity, wanted, channel));
            }
            Call::ResizeCq { cq, capacity } => {
                if let Some(cq) = self.cqs.get_mut(&cq) {
                    cq.capacity = capacity;
                }
            }
            Call::DestroyCq { cq } => {
                self.cqs.remove(&cq);
            }
            Call::CreateSrq { srq, pd, max_wr, max_sge } => {
                let made = SharedQueue { pd, max_wr, max_sge, limit: 0, receives: WorkQueue::default() };
                self.srqs.insert(srq.value(), made);
            }
            Call::ModifySrq { srq, limit, max_wr } => {
                if let Some(srq) = self.srqs.get_mut(&srq.value()) {
                    srq.limit = limit.unwrap_or(srq.limit);
                    srq.max_wr = max_wr.unwrap_or(srq.max_wr);
                }
            }
            Call::DestroySrq { srq } => {
                self.srqs.remove(&srq.value());
            }
            Call::CreateQp { .. } => {
                if let Some(qpn) = event.qpn {
                    self.pairs.insert(qpn, Pair::made(qpn, at, call));
                }
            }
            Call::AskedForNone { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge } => {
                if let Some(pair) = event.qpn.and_then(|qpn| self.pairs.get_mut(&qpn)) {
                    pair.asked_for_none = AskedForNone {
                        sends: max_send_wr == 0 && pair.max_send_wr > 0,
                        receives: max_recv_wr == 0 && pair.max_recv_wr > 0,
                        send_pieces: max_send_sge == 0 && pair.max_send_sge > 0,
                        receive_pieces: max_recv_sge == 0 && pair.max_recv_sge > 0,
                    };
                }
            }
            Call::ModifyQp { .. } => {
                if let Some(pair) = event.qpn.and_then(|qpn| self.pairs.get_mut(&qpn)) {
                    pair.connection.modified(call);
                    if let Call::ModifyQp { state: Some("RESET"), .. } = call {
                        let (qpn, cqs) = (pair.qpn, [pair.send_cq, pair.receive_cq]);
                        self.cqs_of(cqs, |cq| cq.forget(qpn));
                    }
                }
            }
            Call::Path { sgid, dgid, hop_limit } => {
                if let Some(pair) = event.qpn.and_then(|qpn| self.pairs.get_mut(&qpn)) {
                    pair.connection.sends_by(sgid, dgid, hop_limit);
                }
            }
            Call::DestroyQp { .. } => {
                if let Some(qpn) = event.qpn {
                    if let Some(pair) = self.pairs.remove(&qpn) {
                        self.cqs_of([pair.send_cq, pair.receive_cq], |cq| cq.orphan(qpn));
                    }
                    remember(&mut self.gone_pairs, (qpn, at));
                }
            }
            Call::CreateAh { ah, pd, .. } => {
                self.handles.insert(ah, pd);
            }
            Call::DestroyAh { ah } => {
                self.handles.remove(&ah);
            }
            Call::PostSend { .. } => {
                if let Some(pair) = event.qpn.and_then(|qpn| self.pairs.get_mut(&qpn)) {
                    let work = Work::of_send(at, thread, call, pair.signals_all, witness);
                    pair.sends.prepare(work);
                }
            }
            Call::PostReceive { srq, .. } => {
                let work = Work::of_receive(at, thread, call, witness);
                match (srq, event.qpn) {
                    (Some(srq), _) => {
                        work.iter().for_each(|work| self.lends(work));
                        if let (Some(srq), Some(work)) = (self.srqs.get_mut(&srq.value()), work) {
                            srq.receives.push(work);
                        }
                    }
                    (None, Some(qpn)) => {
                        if let Some(pair) = self.pairs.get_mut(&qpn) {
                            pair.receives.prepare(work);
                        }
                    }
                    (None, None) => {}
                }
            }
            Call::Poll { cq, got, .. } => {
                let Model { cqs, pairs, .. } = self;
                if let Some(cq) = cqs.get_mut(&cq) {
                    cq.polled(at, thread, got, |one| {
                        if let Some(count) = one.frees.filter(|_| one.is_live)
                            && let Some(pair) = pairs.get_mut(&one.qpn)
                        {
                            pair.sends.free(count);
                        }
                    });
                }
            }
            Call::Polled { .. } => {
                if let Some(pair) = event.qpn.and_then(|qpn| self.pairs.get_mut(&qpn)) {
                    pair.polled += 1;
                }
            }
            Call::ForkInit {} => self.fork_is_safe = true,
            _ => {}
        }
    }
}

fn is_of_window(first_key: u32, key: Key) -> bool {
    first_key >> 8 == key.value() >> 8
}

fn remember<T>(gone: &mut VecDeque<T>, one: T) {
    if gone.len() == MAX_REMEMBERED_OBJECTS {
        gone.pop_front();
    }
    gone.push_back(one);
}
