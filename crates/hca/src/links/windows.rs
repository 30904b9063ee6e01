//! Congestion windows of this process: one towards each other process, shared by all queue pairs that send to it, and
//! one for what our own receive buffer can take, which bounds the READ answers under way to us. And which queue pair's
//! turn it is when one is full.

use latch::{Mutex, Rank, plain};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transport::congestion::{Window, WindowConfig};
use wire::{Gid, Qpn};

/// A congestion window: none where nothing can be lost, or one shared with all that send to the same process.
#[derive(Clone, Debug)]
pub(crate) enum WindowOf {
    None,
    Shared(Arc<SharedWindow>),
}

/// A congestion window, and which queue pair's turn it is.
#[derive(Debug)]
pub(crate) struct SharedWindow {
    inner: Mutex<WindowTurns>,
    /// A queue pair waits or was told to go on. Threads see here without the lock that none does.
    sought: AtomicBool,
}

#[derive(Debug)]
struct WindowTurns {
    window: Window,
    /// The queue pair that was told to go on and has not been driven since. Naming the next takes the turn from it: two
    /// threads that did so for each other would hand the turn around for ever, and no queue pair would use it.
    named: Option<Qpn>,
}

impl SharedWindow {
    pub fn new(config: WindowConfig) -> SharedWindow {
        let inner = Mutex::new(Rank::Window, WindowTurns { window: Window::new(config), named: None });
        SharedWindow { inner, sought: AtomicBool::new(false) }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Window) -> R) -> R {
        let mut turns = self.inner.lock();
        let answer = f(&mut turns.window);
        self.note(&turns);
        answer
    }

    pub fn congestion(&self) -> Congestion {
        Congestion::of(&self.inner.lock().window)
    }

    /// Under the lock, after whatever happened there: what was noted before may be from another thread.
    #[inline]
    fn note(&self, turns: &WindowTurns) {
        let sought = turns.window.has_waiters() || turns.named.is_some();
        if self.sought.load(Ordering::Relaxed) != sought {
            self.sought.store(sought, Ordering::Relaxed);
        }
    }

    /// `driven` has had its chance. Returns which queue pair may go on now.
    #[inline]
    fn pass_on(&self, driven: Qpn) -> Option<Qpn> {
        // A queue pair that begins to wait in another thread at this moment passes the turn on itself afterwards.
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
    /// How congested the way is, unless there is no window or a thread uses it at this moment.
    pub fn try_congestion(&self) -> Option<Congestion> {
        match self {
            WindowOf::None => None,
            WindowOf::Shared(window) => window.inner.try_lock().map(|turns| Congestion::of(&turns.window)),
        }
    }

    #[inline]
    pub fn with<R>(&mut self, f: impl FnOnce(&mut Window) -> R) -> R {
        match self {
            // One that counts nothing has nothing to remember.
            WindowOf::None => f(&mut Window::unlimited()),
            WindowOf::Shared(window) => window.with(f),
        }
    }

    /// The queue pair that may go on, now that `driven` has been.
    #[inline]
    pub fn pass_on(&self, driven: Qpn) -> Option<Qpn> {
        match self {
            WindowOf::None => None,
            WindowOf::Shared(window) => window.pass_on(driven),
        }
    }
}

/// How congested the way to a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Congestion {
    /// The smoothed round trip in nanoseconds, once one was measured.
    pub round_trip_nanos: Option<u64>,
    /// How much may be on its way: what packets cost the socket buffer in which they wait.
    pub window: u64,
    /// How much is.
    pub in_flight: u64,
}

impl Congestion {
    fn of(window: &Window) -> Congestion {
        Congestion { round_trip_nanos: window.round_trip_nanos(), window: window.cwnd(), in_flight: window.in_flight() }
    }
}

/// The windows a queue pair sends under.
#[derive(Debug)]
pub(crate) struct Windows {
    pub peer: WindowOf,
    pub local_receive_window: WindowOf,
}

impl Windows {
    /// Whether others may wait for room in them.
    #[inline]
    pub fn are_shared(&self) -> bool {
        !matches!((&self.peer, &self.local_receive_window), (WindowOf::None, WindowOf::None))
    }

    /// For links that lose nothing.
    pub fn unlimited() -> Windows {
        Windows { peer: WindowOf::None, local_receive_window: WindowOf::None }
    }
}

/// The windows towards other processes, and the one of our own receive buffer.
#[derive(Debug)]
pub(crate) struct ProcessWindows {
    towards_peers: plain::Mutex<HashMap<(Gid, u16), Arc<SharedWindow>>>,
    /// How windows towards peers behave.
    peer_config: WindowConfig,
    local_receive: Arc<SharedWindow>,
}

impl ProcessWindows {
    pub fn new(peer_config: WindowConfig, local_receive: WindowConfig) -> ProcessWindows {
        ProcessWindows {
            towards_peers: plain::Mutex::new(Rank::Windows, HashMap::new()),
            peer_config,
            local_receive: Arc::new(SharedWindow::new(local_receive)),
        }
    }

    /// The windows under which packets go to a process: an address, and the number of a slot there.
    pub fn towards(&self, process: (Gid, u16)) -> Windows {
        let mut windows = self.towards_peers.lock();
        if windows.len() == windows.capacity() {
            // Before it grows: processes come and go, and no queue pair sends to those that went.
            windows.retain(|_, window| Arc::strong_count(window) > 1);
        }
        let window = windows.entry(process).or_insert_with(|| Arc::new(SharedWindow::new(self.peer_config)));
        Windows {
            peer: WindowOf::Shared(Arc::clone(window)),
            local_receive_window: WindowOf::Shared(Arc::clone(&self.local_receive)),
        }
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
        // A queue pair that looks at the window meanwhile, in whatever thread, names no other before the one named has
        // been driven.
        let named = shared.pass_on(Qpn::new(9)).unwrap();
        assert_eq!(shared.pass_on(Qpn::new(9)), None);
        assert_eq!(shared.pass_on(Qpn::new(8)), None);
        assert!(reserve(named, 10) > 0, "it still has its turn");
        let next = shared.pass_on(named).unwrap();
        assert_ne!(next, named);
        assert!(reserve(next, 10) > 0);
    }
}
