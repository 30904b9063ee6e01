//! What the NIC offers a queue pair: the transport's port over registered memory, shared receive queues, windows and the trace.

use crate::nic::Nic;
use latch::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transport::congestion::{Window, WindowConfig};
use transport::{Access, Atomic, Bind, Port, ProtectionDomain, Range, ReceiveWork, Refusal, Subject, Taken, Toward};
use wire::{Feth, Key, Qpn, Srqn};

/// A congestion window: none where nothing can be lost, or one shared with all that send to the same process.
#[derive(Debug)]
pub(crate) enum WindowOf {
    None,
    Shared(Arc<SharedWindow>),
}

/// A congestion window, and whose turn it is.
#[derive(Debug)]
pub(crate) struct SharedWindow {
    inner: Mutex<Turns>,
    /// Somebody waits or was told to go on, to see without the lock that nobody does.
    sought: AtomicBool,
}

#[derive(Debug)]
struct Turns {
    window: Window,
    /// Who was told to go on and has not been driven since. Naming the next takes the turn from it: two threads that did so for each other
    /// would hand the turn around for ever, and nobody would use it.
    named: Option<Qpn>,
}

impl SharedWindow {
    pub fn new(config: WindowConfig) -> SharedWindow {
        let inner = Mutex::new(Turns { window: Window::new(config), named: None });
        SharedWindow { inner, sought: AtomicBool::new(false) }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Window) -> R) -> R {
        let mut turns = self.inner.lock();
        let answer = f(&mut turns.window);
        self.note(&turns);
        answer
    }

    /// Under the lock, after whatever happened there: what was noted before may be from another thread.
    #[inline]
    fn note(&self, turns: &Turns) {
        let sought = turns.window.has_waiters() || turns.named.is_some();
        if self.sought.load(Ordering::Relaxed) != sought {
            self.sought.store(sought, Ordering::Relaxed);
        }
    }

    /// `driven` has had its chance. Answers who may go on now.
    #[inline]
    fn pass_on(&self, driven: Qpn) -> Option<Qpn> {
        // Who begins to wait elsewhere at this moment has its own turn to pass on behind it.
        if self.sought.load(Ordering::Relaxed) { self.name_next(driven) } else { None }
    }

    fn name_next(&self, driven: Qpn) -> Option<Qpn> {
        let mut turns = self.inner.lock();
        if turns.named == Some(driven) {
            turns.named = None;
        }
        let mut named = None;
        if turns.named.is_none() && turns.window.has_waiters() {
            turns.named = turns.window.next_waiter();
            named = turns.named;
        }
        self.note(&turns);
        named
    }
}

impl WindowOf {
    #[inline]
    fn with<R>(&mut self, f: impl FnOnce(&mut Window) -> R) -> R {
        match self {
            // One that counts nothing has nothing to remember.
            WindowOf::None => f(&mut Window::unlimited()),
            WindowOf::Shared(window) => window.with(f),
        }
    }

    /// Who may go on, now that `driven` has been.
    #[inline]
    pub fn pass_on(&self, driven: Qpn) -> Option<Qpn> {
        match self {
            WindowOf::None => None,
            WindowOf::Shared(window) => window.pass_on(driven),
        }
    }
}

/// The windows a queue pair sends under.
#[derive(Debug)]
pub(crate) struct Windows {
    pub peer: WindowOf,
    pub here: WindowOf,
}

impl Windows {
    /// Whether others may wait for room in them.
    #[inline]
    pub fn are_shared(&self) -> bool {
        !matches!((&self.peer, &self.here), (WindowOf::None, WindowOf::None))
    }

    /// For links that lose nothing.
    pub fn unlimited() -> Windows {
        Windows { peer: WindowOf::None, here: WindowOf::None }
    }
}

/// The NIC as one queue pair sees it, for the duration of one call.
pub(crate) struct Host<'a> {
    pub nic: &'a Nic,
    pub windows: &'a mut Windows,
    /// The XRC domain of a target.
    pub xrc_domain: Option<u32>,
}

impl Host<'_> {
    fn refusal(refusal: memory::Refusal) -> Refusal {
        use memory::Cause as From;
        use trace::RefusalCause as To;
        let cause = match refusal.cause {
            From::WrongProtectionDomain => To::WrongProtectionDomain,
            From::WrongQueuePair => To::WrongQueuePair,
            From::NotPermitted => To::NotPermitted,
            From::OutOfBounds { start, length } => To::OutOfBounds { start, length },
            From::Misaligned => To::Misaligned,
            From::Invalidated => To::Invalidated,
            From::WindowUnbound => To::WindowUnbound,
            From::WrongKind => To::WrongKind,
            _ => To::UnknownKey,
        };
        let memory::Range { key, address, length } = refusal.range;
        Refusal {
            range: Range { key: Key::new(key.0), address, length },
            access: Access::from_bits_truncate(refusal.access.bits()),
            cause,
        }
    }
}

pub(crate) fn subject(subject: Subject) -> memory::Subject {
    memory::Subject {
        domain: memory::Domain(subject.pd.0),
        qpn: memory::Qpn(subject.qpn.value()),
        remote: subject.remote,
    }
}

pub(crate) fn range(range: Range) -> memory::Range {
    memory::Range { key: memory::Key(range.key.value()), address: range.address, length: range.length }
}

fn access(access: Access) -> memory::Access {
    memory::Access::from_bits_truncate(access.bits())
}

impl Port for Host<'_> {
    fn check(&mut self, who: Subject, what: Range, rights: Access) -> Result<(), Refusal> {
        self.nic.memory.check(subject(who), range(what), access(rights)).map_err(Host::refusal)
    }

    fn read(&mut self, who: Subject, what: Range, out: &mut [u8]) -> Result<(), Refusal> {
        let key = memory::Key(what.key.value());
        self.nic.memory.read(subject(who), key, what.address, out).map_err(Host::refusal)
    }

    fn write(&mut self, who: Subject, what: Range, data: &[u8]) -> Result<(), Refusal> {
        let key = memory::Key(what.key.value());
        self.nic.memory.write(subject(who), key, what.address, data).map_err(Host::refusal)
    }

    fn atomic(&mut self, who: Subject, what: Range, operation: Atomic) -> Result<u64, Refusal> {
        let operation = match operation {
            Atomic::CompareSwap { compare, swap } => memory::Atomic::CompareSwap { compare, swap },
            Atomic::FetchAdd { add } => memory::Atomic::FetchAdd { add },
            Atomic::Write { bytes } => memory::Atomic::Write { bytes },
        };
        let key = memory::Key(what.key.value());
        self.nic.memory.atomic(subject(who), key, what.address, operation).map_err(Host::refusal)
    }

    fn flush(&mut self, who: Subject, what: Range, feth: Feth) -> Result<(), Refusal> {
        let mut rights = memory::Access::empty();
        rights.set(memory::Access::FLUSH_GLOBAL, feth.placement.contains(wire::Placement::GLOBAL));
        rights.set(memory::Access::FLUSH_PERSISTENT, feth.placement.contains(wire::Placement::PERSISTENT));
        self.nic.memory.flush(subject(who), range(what), rights).map_err(Host::refusal)
    }

    fn invalidate(&mut self, who: Subject, key: Key) -> Result<(), Refusal> {
        self.nic.memory.invalidate(subject(who), memory::Key(key.value())).map_err(Host::refusal)
    }

    fn bind(&mut self, who: Subject, bind: &Bind) -> Result<(), Refusal> {
        let window = memory::Key(bind.window.value());
        let bind = memory::Bind {
            // A program that has several binds under way knows the key the window will have, not the one it has.
            window: self.nic.memory.window_key(window).unwrap_or(window),
            new_key: memory::Key(bind.new_key.value()),
            region: memory::Key(bind.region.value()),
            address: bind.address,
            length: bind.length,
            access: access(bind.access),
        };
        self.nic.memory.bind(subject(who), &bind).map_err(Host::refusal)
    }

    fn take_receive(&mut self, _qpn: Qpn, srq: Srqn, into: &mut ReceiveWork) -> Taken {
        match self.nic.shared_queue(srq, self.xrc_domain) {
            Some(queue) => queue.take(into),
            None => Taken::Unknown,
        }
    }

    fn shared_domain(&mut self, _qpn: Qpn, srq: Srqn) -> Option<ProtectionDomain> {
        self.nic.shared_queue(srq, self.xrc_domain).map(|queue| queue.domain())
    }

    fn window<R>(&mut self, _qpn: Qpn, toward: Toward, f: impl FnOnce(&mut Window) -> R) -> R {
        match toward {
            Toward::Peer => self.windows.peer.with(f),
            Toward::Here => self.windows.here.with(f),
        }
    }

    #[inline]
    fn is_unlimited(&mut self, _qpn: Qpn, toward: Toward) -> bool {
        let window = match toward {
            Toward::Peer => &self.windows.peer,
            Toward::Here => &self.windows.here,
        };
        matches!(window, WindowOf::None)
    }

    fn tracing(&self) -> bool {
        self.nic.trace.is_on()
    }

    fn record(&mut self, event: &trace::Event) {
        self.nic.trace.record(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_not_taken_from_one_who_has_not_used_it() {
        let [a, b, c] = [1, 2, 3].map(Qpn::new);
        let config = WindowConfig::default();
        let shared = SharedWindow::new(config);
        let reserve = |qpn, packets| shared.with(|window| window.reserve(qpn, 4096, packets, 4096));
        let sent = reserve(a, 1000);
        assert!(sent > 0 && reserve(b, 10) == 0 && reserve(c, 10) == 0, "the window is full");
        shared.with(|window| window.release(Window::charge_of(4096, sent, 4096)));
        shared.with(|window| window.reserve(a, 64, 1, 64));
        // Whoever looks at the window meanwhile, in whatever thread, names nobody else before the one named has been driven.
        let named = shared.pass_on(Qpn::new(9)).unwrap();
        assert_eq!(shared.pass_on(Qpn::new(9)), None);
        assert_eq!(shared.pass_on(Qpn::new(8)), None);
        assert!(reserve(named, 10) > 0, "it still has its turn");
        let next = shared.pass_on(named).unwrap();
        assert_ne!(next, named);
        assert!(reserve(next, 10) > 0);
    }
}
