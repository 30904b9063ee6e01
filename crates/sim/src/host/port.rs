//! What a host offers its queue pairs: the transport's port, over the host's memory, shared receive queues and
//! congestion windows. It knows which queue pair is being driven, because only one is at a time.

use super::{HostId, Slot, SrqSpec};
use crate::memory::{HostMemory, Memory};
use std::collections::HashMap;
use trace::Event;
use transport::congestion::{Window, WindowConfig};
use transport::weak::{Before, Turn, Weak, Weakness};
use transport::{
    Access, Atomic, Bind, Port, ProtectionDomain, Queue, Range, ReceiveWork, Refusal, SharedReceiveQueue, SrqEvent,
    Subject, TakenReceive, Time, Toward,
};
use wire::{Feth, Gid, Key, Qpn, Srqn};

pub(crate) struct SharedQueue {
    pub(crate) queue: SharedReceiveQueue,
    pub(crate) xrc_domain: Option<u32>,
}

/// Everything of a host but its queue pairs.
pub(crate) struct World {
    pub(crate) memory: Memory,
    /// Memory that the program keeps, in place of the host's own.
    pub(crate) outside: Option<Box<dyn HostMemory>>,
    /// What the queue pairs of a weak NIC keep back.
    weak: HashMap<Qpn, Weak>,
    entered: Qpn,
    srqs: HashMap<Srqn, SharedQueue>,
    /// XRC targets and the domain each reaches.
    xrc_domains: HashMap<Qpn, u32>,
    windows: Vec<Window>,
    window_config: WindowConfig,
    by_destination: HashMap<Gid, usize>,
    current: (usize, usize),
    pub(crate) srq_events: Vec<(Srqn, SrqEvent)>,
    pub(crate) tracing: bool,
    /// What the queue pair being driven had to say; the simulation passes it on after each call.
    pub(crate) events: Vec<Event>,
}

impl World {
    /// The window that guards the host itself.
    pub(crate) const HOST_WINDOW: usize = 0;
    /// The window of links that lose nothing.
    pub(crate) const UNLIMITED_WINDOW: usize = 1;

    pub(crate) fn new(host: HostId, window: WindowConfig) -> World {
        World {
            memory: Memory::new(host),
            outside: None,
            weak: HashMap::new(),
            entered: Qpn::GSI,
            srqs: HashMap::new(),
            xrc_domains: HashMap::new(),
            windows: vec![Window::new(window), Window::unlimited()],
            window_config: window,
            by_destination: HashMap::new(),
            current: (World::UNLIMITED_WINDOW, World::UNLIMITED_WINDOW),
            srq_events: Vec::new(),
            tracing: false,
            events: Vec::new(),
        }
    }

    /// From now on it is this queue pair that is driven.
    pub(crate) fn enter(&mut self, slot: &Slot) {
        (self.current, self.entered) = (slot.windows, slot.qpn);
    }

    /// From now on this queue pair does things in an order that is no stronger than it must be.
    pub(crate) fn weaken(&mut self, qpn: Qpn, weakness: Weakness) {
        self.weak.insert(qpn, Weak::new(weakness, qpn.value()));
    }

    /// Begins chance anew for all queue pairs that are weak.
    pub(crate) fn reseed(&mut self, seed: u64) {
        for (qpn, weak) in &mut self.weak {
            weak.reseed(seed ^ u64::from(qpn.value()) << 32);
        }
    }

    pub(crate) fn is_weak(&self) -> bool {
        self.weak.contains_key(&self.entered)
    }

    /// What the queue pair may do that is driven.
    pub(crate) fn turn(&mut self, now: Time) -> Turn {
        self.weak.get_mut(&self.entered).map_or(Turn::All, |weak| weak.turn(now))
    }

    /// When [`place_some`](World::place_some) is to be called, or the queue pair may do more.
    pub(crate) fn weak_deadline(&self) -> Option<Time> {
        self.weak.get(&self.entered)?.deadline()
    }

    /// Places some of the payload that waits, if it is time.
    pub(crate) fn place_some(&mut self, now: Time) {
        let World { weak, entered, memory, outside, .. } = self;
        if let Some(weak) = weak.get_mut(entered) {
            weak.time_has_come(now, |subject, range, bytes| store(memory, outside, subject, range, bytes));
        }
    }

    /// Places the payload that what happens now may not overtake.
    fn before(&mut self, what: Before) {
        let World { weak, entered, memory, outside, .. } = self;
        if let Some(weak) = weak.get_mut(entered) {
            weak.before(what, |subject, range, bytes| store(memory, outside, subject, range, bytes));
        }
    }

    /// The window towards a destination, made when it is first asked for.
    pub(crate) fn window_towards(&mut self, destination: Gid) -> usize {
        *self.by_destination.entry(destination).or_insert_with(|| {
            self.windows.push(Window::new(self.window_config));
            self.windows.len() - 1
        })
    }

    pub(crate) fn set_own_address(&mut self, own: Gid) {
        self.by_destination.insert(own, World::HOST_WINDOW);
    }

    pub(crate) fn window_mut(&mut self, index: usize) -> &mut Window {
        &mut self.windows[index]
    }

    pub(crate) fn window_at(&self, destination: Gid) -> Option<&Window> {
        self.windows.get(*self.by_destination.get(&destination)?)
    }

    /// Forgets a queue pair that is gone.
    pub(crate) fn forget(&mut self, slot: &Slot) {
        self.xrc_domains.remove(&slot.qpn);
        self.weak.remove(&slot.qpn);
        for index in [slot.windows.0, slot.windows.1] {
            self.windows[index].leave(slot.qpn);
        }
    }

    pub(crate) fn join_xrc_domain(&mut self, qpn: Qpn, domain: u32) {
        self.xrc_domains.insert(qpn, domain);
    }

    pub(crate) fn add_srq(&mut self, srqn: Srqn, spec: &SrqSpec) {
        let queue = SharedReceiveQueue::new(srqn, spec.pd, spec.max_wr, spec.max_sge);
        self.srqs.insert(srqn, SharedQueue { queue, xrc_domain: spec.xrc_domain });
    }

    pub(crate) fn srq_mut(&mut self, srqn: Srqn) -> Option<&mut SharedReceiveQueue> {
        self.srqs.get_mut(&srqn).map(|shared| &mut shared.queue)
    }

    /// Forgets all shared receive queues and the memory: the host has lost its power.
    pub(crate) fn lose_power(&mut self) {
        self.srqs.clear();
        self.srq_events.clear();
        self.outside = None;
    }

    pub(crate) fn remove_srq(&mut self, srqn: Srqn) -> bool {
        self.srqs.remove(&srqn).is_some()
    }

    /// An XRC target reaches the queues of its domain, any other queue pair the one it was created with.
    fn may_use(&self, qpn: Qpn, srqn: Srqn) -> bool {
        let Some(shared) = self.srqs.get(&srqn) else { return false };
        match self.xrc_domains.get(&qpn) {
            Some(domain) => shared.xrc_domain == Some(*domain),
            None => shared.xrc_domain.is_none(),
        }
    }
}

impl Port for World {
    fn check(&mut self, subject: Subject, range: Range, access: Access) -> Result<(), Refusal> {
        check(&self.memory, &mut self.outside, subject, range, access)
    }

    fn read_requested(&mut self, subject: Subject, range: Range) {
        if !self.is_weak() {
            return;
        }
        self.before(Before::Read(range));
        let World { weak, entered, memory, outside, .. } = self;
        if let Some(weak) = weak.get_mut(entered) {
            weak.read_requested(range, |part, bytes| load(memory, outside, subject, part, bytes));
        }
    }

    fn read(&mut self, subject: Subject, range: Range, out: &mut [u8]) -> Result<(), Refusal> {
        if subject.remote {
            self.before(Before::Read(range));
        }
        let World { weak, entered, memory, outside, .. } = self;
        load(memory, outside, subject, range, out)?;
        if let (Some(weak), true) = (weak.get_mut(entered), subject.remote) {
            weak.answered(range, out);
        }
        Ok(())
    }

    fn write(&mut self, subject: Subject, range: Range, data: &[u8]) -> Result<(), Refusal> {
        let World { weak, entered, memory, outside, .. } = self;
        let Some(weak) = weak.get_mut(entered) else { return store(memory, outside, subject, range, data) };
        check(memory, outside, subject, range, Weak::right_to_write(subject))?;
        weak.write(subject, range, data, |subject, range, bytes| store(memory, outside, subject, range, bytes))
    }

    fn atomic(&mut self, subject: Subject, range: Range, operation: Atomic) -> Result<u64, Refusal> {
        self.before(Before::Atomic);
        match &mut self.outside {
            Some(outside) => outside.atomic(subject, range, operation),
            None => self.memory.atomic(subject, range, operation),
        }
    }

    fn flush(&mut self, subject: Subject, range: Range, feth: Feth) -> Result<(), Refusal> {
        self.before(Before::Everything);
        match &mut self.outside {
            Some(outside) => outside.flush(subject, range, feth),
            None => self.memory.flush(subject, range, feth),
        }
    }

    fn invalidate(&mut self, subject: Subject, key: Key) -> Result<(), Refusal> {
        self.before(Before::Everything);
        match &mut self.outside {
            Some(outside) => outside.invalidate(subject, key),
            None => self.memory.invalidate(subject, key),
        }
    }

    fn bind(&mut self, subject: Subject, bind: &Bind) -> Result<(), Refusal> {
        self.before(Before::Everything);
        match &mut self.outside {
            Some(outside) => outside.bind(subject, bind),
            None => self.memory.bind(subject, bind),
        }
    }

    fn take_receive(&mut self, qpn: Qpn, srq: Srqn, into: &mut ReceiveWork) -> TakenReceive {
        if !self.may_use(qpn, srq) {
            return TakenReceive::Unknown;
        }
        let Some(shared) = self.srqs.get_mut(&srq) else { return TakenReceive::Unknown };
        let taken = shared.queue.take(into);
        while let Some(event) = shared.queue.poll_event() {
            self.srq_events.push((srq, event));
        }
        if taken { TakenReceive::Taken } else { TakenReceive::Empty }
    }

    fn shared_domain(&mut self, qpn: Qpn, srq: Srqn) -> Option<ProtectionDomain> {
        if !self.may_use(qpn, srq) {
            return None;
        }
        self.srqs.get(&srq).map(|shared| shared.queue.pd())
    }

    fn window<R>(&mut self, _qpn: Qpn, toward: Toward, f: impl FnOnce(&mut Window) -> R) -> R {
        let index = match toward {
            Toward::Peer => self.current.0,
            Toward::Here => self.current.1,
        };
        f(&mut self.windows[index])
    }

    fn tells(&mut self, queue: Queue) {
        self.before(Before::Completion(queue));
    }

    fn tracing(&self) -> bool {
        self.tracing
    }

    fn record(&mut self, event: &Event) {
        self.events.push(*event);
    }
}

fn check(
    memory: &Memory,
    outside: &mut Option<Box<dyn HostMemory>>,
    subject: Subject,
    range: Range,
    access: Access,
) -> Result<(), Refusal> {
    match outside {
        Some(outside) => outside.check(subject, range, access),
        None => memory.check(subject, range, access),
    }
}

fn load(
    memory: &mut Memory,
    outside: &mut Option<Box<dyn HostMemory>>,
    subject: Subject,
    range: Range,
    out: &mut [u8],
) -> Result<(), Refusal> {
    match outside {
        Some(outside) => outside.read(subject, range, out),
        None => memory.read(subject, range, out),
    }
}

fn store(
    memory: &mut Memory,
    outside: &mut Option<Box<dyn HostMemory>>,
    subject: Subject,
    range: Range,
    bytes: &[u8],
) -> Result<(), Refusal> {
    match outside {
        Some(outside) => outside.write(subject, range, bytes),
        None => memory.write(subject, range, bytes),
    }
}
