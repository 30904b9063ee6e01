//! What the NIC offers a queue pair: the transport's port over registered memory, shared receive queues, windows and
//! the trace.

use crate::ground::Ground;
use crate::ground::ledger::Ledger;
use crate::links::windows::{WindowOf, Windows};
use crate::objects::landing::Land;
use transport::congestion::Window;
use transport::weak::{Before, Weak};
use transport::{Port, Queue, ReceiveWork, TaggedTaken, TakenReceive, Toward};
use wire::access::{Access, Atomic, Bind, ProtectionDomain, Range, Refusal, RefusalCause, Subject};
use wire::{Feth, Key, Qpn, Srqn};

/// The NIC as one queue pair sees it, for the duration of one call.
pub(crate) struct NicPort<'a> {
    pub nic: &'a Ground,
    pub windows: &'a mut Windows,
    /// What the queue pair keeps back, on the weakest NIC.
    pub weak: Option<&'a mut Weak>,
    /// The XRC domain of a target.
    pub xrc_domain: Option<u32>,
    /// Where the polling thread wants writes to a part of its memory instead.
    pub landing: Option<&'a mut dyn Land>,
    /// What goes on with GPU memory.
    pub gpu: GpuTrains,
}

/// Trains whose payload is in memory of a GPU that both processes use, and stays there until the receiver copies it.
pub(crate) enum GpuTrains {
    /// There are none.
    None,
    /// The receiver takes them: trains of such memory may be long.
    Sent,
    /// This is where the payload of the train lies that is being received.
    Received(memory::Source),
}

/// The key by which the memory knows what is shown to it: local work shows a region's L_Key, or its R_Key, as work of the
/// library and of Rust programs does; a peer shows the R_Key.
#[inline]
pub(super) fn known_key(subject: Subject, key: Key) -> Key {
    if subject.remote { key } else { key.of_region() }
}

impl NicPort<'_> {
    /// A refusal, with the key as it was shown.
    #[cold]
    fn refused(&self, subject: Subject, key: Key, refusal: Refusal) -> Refusal {
        let named = || if key == key.of_region() { None } else { self.nic.memory.region(key.of_region()) };
        let cause = match refusal.cause {
            RefusalCause::UnknownKey if subject.remote => match named() {
                // That of nothing is an L_Key only.
                Some(region) if region.place == 0 => RefusalCause::WrongKind,
                Some(_) => RefusalCause::LocalKey,
                None => RefusalCause::UnknownKey,
            },
            cause => cause,
        };
        Refusal { range: Range { key, ..refusal.range }, cause, ..refusal }
    }
}

impl Port for NicPort<'_> {
    fn check(&mut self, subject: Subject, range: Range, access: Access) -> Result<(), Refusal> {
        let known = Range { key: known_key(subject, range.key), ..range };
        self.nic.memory.check(subject, known, access).map_err(|refusal| self.refused(subject, range.key, refusal))
    }

    fn read_requested(&mut self, subject: Subject, range: Range) {
        if self.weak.is_some() {
            self.read_early(subject, range);
        }
    }

    fn read(&mut self, subject: Subject, range: Range, out: &mut [u8]) -> Result<(), Refusal> {
        if subject.remote {
            self.before(Before::Read(range));
        }
        let key = known_key(subject, range.key);
        let read = self.nic.memory.read(subject, key, range.address, out);
        if let (Some(weak), true, true) = (&mut self.weak, subject.remote, read.is_ok()) {
            weak.answered(range, out);
        }
        if Ledger::is_kept() {
            self.nic.ledger.has_read();
        }
        read.map_err(|refusal| self.refused(subject, range.key, refusal))
    }

    fn write(&mut self, subject: Subject, range: Range, data: &[u8]) -> Result<(), Refusal> {
        let key = known_key(subject, range.key);
        if self.weak.is_some() {
            return self.write_weakly(subject, range, data);
        }
        if let GpuTrains::Received(source) = &self.gpu {
            let written = self.nic.memory.write_named(subject, key, range.address, data, source);
            return written.map_err(|refusal| self.refused(subject, range.key, refusal));
        }
        if let Some(landing) = &mut self.landing
            && subject.remote
        {
            self.nic.memory.check(subject, range, Access::REMOTE_WRITE)?;
            if landing.take(range, data) {
                return Ok(());
            }
        }
        let written = self.nic.memory.write(subject, key, range.address, data);
        if Ledger::is_kept() && written.is_ok() {
            self.nic.ledger.landed(&self.nic.memory, subject, Range { key, ..range });
        }
        written.map_err(|refusal| self.refused(subject, range.key, refusal))
    }

    #[inline]
    fn longest_train(&mut self, key: Key) -> u32 {
        match self.gpu {
            GpuTrains::Sent if self.nic.memory.can_refer(key.of_region()) => memory::LONGEST_REFERENCE,
            _ => transport::MAX_TRAIN,
        }
    }

    fn atomic(&mut self, subject: Subject, range: Range, operation: Atomic) -> Result<u64, Refusal> {
        self.before(Before::Atomic);
        let done = self.nic.memory.atomic(subject, known_key(subject, range.key), range.address, operation);
        done.map_err(|refusal| self.refused(subject, range.key, refusal))
    }

    fn flush(&mut self, subject: Subject, range: Range, feth: Feth) -> Result<(), Refusal> {
        self.before(Before::Everything);
        let mut access = Access::empty();
        access.set(Access::FLUSH_GLOBAL, feth.placement.contains(wire::Placement::GLOBAL));
        access.set(Access::FLUSH_PERSISTENT, feth.placement.contains(wire::Placement::PERSISTENT));
        self.nic.memory.flush(subject, range, access).map_err(|refusal| self.refused(subject, range.key, refusal))
    }

    fn invalidate(&mut self, subject: Subject, key: Key) -> Result<(), Refusal> {
        self.before(Before::Everything);
        self.nic.memory.invalidate(subject, key)
    }

    fn bind(&mut self, subject: Subject, bind: &Bind) -> Result<(), Refusal> {
        self.before(Before::Everything);
        // A program that has several binds under way knows the key the window will have, not the one it has.
        let window = self.nic.memory.window_key(bind.window).unwrap_or(bind.window);
        self.nic.memory.bind(subject, &Bind { window, ..*bind })
    }

    fn take_receive(&mut self, _qpn: Qpn, srq: Srqn, into: &mut ReceiveWork) -> TakenReceive {
        match self.nic.shared_queues.usable_by(srq, self.xrc_domain) {
            Some(queue) => queue.take(into),
            None => TakenReceive::Unknown,
        }
    }

    fn take_tagged(&mut self, _qpn: Qpn, srq: Srqn, tag: Option<u64>, into: &mut ReceiveWork) -> TaggedTaken {
        match self.nic.shared_queues.usable_by(srq, None) {
            Some(queue) => queue.take_tagged(tag, into),
            None => TaggedTaken::Unknown,
        }
    }

    fn shared_domain(&mut self, _qpn: Qpn, srq: Srqn) -> Option<ProtectionDomain> {
        self.nic.shared_queues.usable_by(srq, self.xrc_domain).map(|queue| queue.domain())
    }

    fn window<R>(&mut self, _qpn: Qpn, toward: Toward, f: impl FnOnce(&mut Window) -> R) -> R {
        match toward {
            Toward::Peer => self.windows.peer.with(f),
            Toward::Here => self.windows.local_receive_window.with(f),
        }
    }

    #[inline]
    fn is_unlimited(&mut self, _qpn: Qpn, toward: Toward) -> bool {
        let window = match toward {
            Toward::Peer => &self.windows.peer,
            Toward::Here => &self.windows.local_receive_window,
        };
        matches!(window, WindowOf::None)
    }

    #[inline]
    fn tells(&mut self, queue: Queue) {
        self.before(Before::Completion(queue));
    }

    fn tracing(&self) -> bool {
        self.nic.records.trace.is_on()
    }

    fn separates_packets(&self) -> bool {
        self.nic.records.trace.is_watched()
    }

    fn record(&mut self, event: &trace::Event) {
        self.nic.records.trace.record(event);
    }

    fn dropped(&mut self, reason: trace::DropReason) {
        self.nic.records.drops.count(reason, 1);
    }
}
