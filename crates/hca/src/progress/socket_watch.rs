//! Which thread waits for the sockets: the engine, or a thread of the program that waits for an event of a connection
//! (`rdma_get_cm_event`). While no queue pair uses UDP only the connection manager's messages come there; so the thread
//! they are for takes them itself, and no second thread has to be woken for each.
//!
//! | holder | the engine | until |
//! |---|---|---|
//! | *engine* | sleeps on the sockets | a caller begins to wait, and no queue pair uses UDP |
//! | *caller* | leaves the sockets out | its wait ends, or a queue pair begins to use UDP |
//! | *between* two waits | leaves the sockets out, and has set a timer | a caller waits again, or the engine takes them back |
//!
//! The engine takes the sockets back when [`CALLER_ABSENCE_MAX`] has passed. A caller that comes and goes so does not wake the engine each time: at most once in [`CALLER_ABSENCE_MAX`]. Rings,
//! deadlines and everything else stay with the engine.

use crate::progress::sleep::Set;
use crate::tuning::CALLER_ABSENCE_MAX;
use ::host::event_fd::Bell;
use ::host::timer_fd::TimerFd;
use latch::Rank;
use latch::plain::Mutex;
use std::io;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A wait of a caller that has the sockets. No two of a process are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SocketTurn(u64);

/// See the module.
#[derive(Debug)]
pub(crate) struct SocketWatch {
    /// What the engine sleeps on, and the sockets. None where it has no set: then the sockets stay with it.
    engine: OnceLock<(Set, RawFd)>,
    /// Runs out when the caller has been away for long.
    timer: TimerFd,
    /// Wakes a caller that is to leave the sockets to the engine.
    bell: Bell,
    /// Queue pairs that may hear from other hosts at any time.
    udp_users: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    holder: Holder,
    /// The timer runs, or has run out and the engine has not heard it.
    timed: bool,
    /// The bell was struck, and no caller has heard it.
    struck: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    Engine,
    Caller(SocketTurn),
    Between,
}

impl SocketWatch {
    /// The engine has the sockets.
    pub fn new() -> io::Result<SocketWatch> {
        let state = State { holder: Holder::Engine, timed: false, struck: false };
        Ok(SocketWatch {
            engine: OnceLock::new(),
            timer: TimerFd::new()?,
            bell: Bell::new()?,
            udp_users: AtomicU32::new(0),
            state: Mutex::new(Rank::SocketWatch, state),
        })
    }

    /// Readable when [`engine_looks`](SocketWatch::engine_looks) is due.
    pub fn timer_fd(&self) -> RawFd {
        self.timer.raw()
    }

    /// Readable when a caller that has the sockets is to leave them.
    pub fn bell_fd(&self) -> RawFd {
        self.bell.raw()
    }

    /// What the engine sleeps on when no other thread looks; `make` is asked once for the set and the sockets in it.
    pub fn engine_set(&self, make: impl FnOnce() -> Option<(Set, RawFd)>) -> Option<&Set> {
        if self.engine.get().is_none()
            && let Some(made) = make()
        {
            let _ = self.engine.set(made);
        }
        self.engine.get().map(|(set, _)| set)
    }

    /// A caller begins to wait. Returns its turn if it is to sleep on the sockets as well, and on
    /// [`bell_fd`](SocketWatch::bell_fd).
    pub fn take(&self) -> Option<SocketTurn> {
        static TURNS: AtomicU64 = AtomicU64::new(0);
        let (set, sockets) = self.engine.get()?;
        let mut state = self.state.lock();
        if self.udp_users.load(Ordering::SeqCst) > 0 {
            return None;
        }
        match state.holder {
            Holder::Caller(_) => return None,
            Holder::Engine => set.leave_out(*sockets).ok()?,
            Holder::Between => {}
        }
        if std::mem::take(&mut state.struck) {
            self.bell.hear();
        }
        let turn = SocketTurn(TURNS.fetch_add(1, Ordering::Relaxed));
        state.holder = Holder::Caller(turn);
        Some(turn)
    }

    /// Whether a caller has the sockets.
    #[cfg(test)]
    pub fn is_taken(&self) -> bool {
        matches!(self.state.lock().holder, Holder::Caller(_))
    }

    /// Whether the sockets are still those of this turn.
    pub fn is_on(&self, turn: SocketTurn) -> bool {
        self.state.lock().holder == Holder::Caller(turn)
    }

    /// The wait of this turn is over.
    pub fn leave(&self, turn: SocketTurn) {
        let mut state = self.state.lock();
        if state.holder == Holder::Caller(turn) {
            state.holder = Holder::Between;
            if !std::mem::replace(&mut state.timed, true) {
                self.timer.set(CALLER_ABSENCE_MAX);
            }
        }
    }

    /// The timer has run out: the engine takes the sockets back, unless a caller waits again.
    pub fn engine_looks(&self) {
        let mut state = self.state.lock();
        if self.timer.hear() {
            state.timed = false;
        }
        if state.holder == Holder::Between && !state.timed {
            self.give_back(&mut state);
        }
    }

    /// A queue pair begins, or ceases, to be one that other hosts may send to.
    pub fn uses_udp(&self, uses: bool) {
        if !uses {
            self.udp_users.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        if self.udp_users.fetch_add(1, Ordering::SeqCst) > 0 {
            return;
        }
        let mut state = self.state.lock();
        if let Holder::Caller(_) = state.holder {
            state.struck = true;
            self.bell.strike();
        }
        self.give_back(&mut state);
    }

    fn give_back(&self, state: &mut State) {
        if let (true, Some((set, sockets))) = (state.holder != Holder::Engine, self.engine.get()) {
            set.take_in(*sockets);
        }
        state.holder = Holder::Engine;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::sleep;

    const SOCKET_PLACE: usize = 1;

    /// A watch, and a bell in the place of sockets that have something.
    fn watch() -> (SocketWatch, Bell) {
        let (watch, sockets) = (SocketWatch::new().unwrap(), Bell::new().unwrap());
        sockets.strike();
        let set = Set::new(&[watch.timer_fd(), sockets.raw()], usize::MAX, SOCKET_PLACE).unwrap();
        watch.engine_set(|| Some((set, sockets.raw()))).unwrap();
        (watch, sockets)
    }

    /// What the engine would wake for; it sleeps until there is something if `waits`.
    fn wakes(watch: &SocketWatch, waits: bool) -> u32 {
        let limit = if waits { None } else { Some(0) };
        watch.engine_set(|| None).unwrap().until_ready(limit).unwrap()
    }

    fn is_told_to_leave(watch: &SocketWatch) -> bool {
        sleep::until_ready([watch.bell_fd()], Some(0)).unwrap() != 0
    }

    #[test]
    fn the_engine_takes_the_sockets_back_when_the_caller_stays_away() {
        let (watch, _sockets) = watch();
        assert_eq!(wakes(&watch, false), 1 << SOCKET_PLACE);
        for _ in 0..3 {
            let turn = watch.take().unwrap();
            assert!(watch.take().is_none(), "one has it");
            assert_eq!(wakes(&watch, false) & 1 << SOCKET_PLACE, 0);
            watch.leave(turn);
            assert!(!watch.is_on(turn));
        }
        assert_eq!(wakes(&watch, true), 1, "the timer");
        watch.engine_looks();
        assert_eq!(wakes(&watch, false), 1 << SOCKET_PLACE);
    }

    #[test]
    fn a_caller_that_waits_when_the_timer_runs_out_keeps_the_sockets() {
        let (watch, _sockets) = watch();
        let first = watch.take().unwrap();
        watch.leave(first);
        let second = watch.take().unwrap();
        watch.leave(first);
        assert!(watch.is_on(second), "that turn was over");
        assert_eq!(wakes(&watch, true), 1);
        watch.engine_looks();
        assert!(watch.is_on(second) && wakes(&watch, false) == 0);
        // It goes, and there is a timer again.
        watch.leave(second);
        assert_eq!(wakes(&watch, true), 1);
    }

    #[test]
    fn a_queue_pair_that_uses_udp_brings_the_sockets_back_at_once() {
        let (watch, _sockets) = watch();
        let turn = watch.take().unwrap();
        watch.uses_udp(true);
        assert!(is_told_to_leave(&watch) && !watch.is_on(turn));
        assert_eq!(wakes(&watch, false), 1 << SOCKET_PLACE);
        watch.leave(turn);
        assert!(watch.take().is_none());
        watch.uses_udp(true);
        watch.uses_udp(false);
        assert!(watch.take().is_none(), "there is another");
        watch.uses_udp(false);
        assert!(watch.take().is_some() && !is_told_to_leave(&watch));
    }
}
