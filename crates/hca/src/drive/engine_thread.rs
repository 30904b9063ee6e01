//! The engine: the one thread that makes progress when the program makes none. It sleeps on the sockets and on the next
//! deadline; while the program polls it stays out of its way and looks in now and then; while a thread of the program
//! blocks inside a call, that thread drives and the engine sees only to deadlines. It does what its
//! [`policy`](crate::progress::policy) says.

use crate::interfaces::Changes;
use crate::nic::Nic;
use crate::progress::engine::Engine;
use crate::progress::engine_affinity::EngineAffinity;
use crate::progress::policy::{EnginePolicy, Polls, Scan, Spin, Verdict};
use crate::progress::sleep;
use crate::progress::wake_reason::WakeReason;
use crate::tuning::{INTERFACE_RETRY, nanos};
use link::shared::Sleeper;
use std::io;
use std::iter::repeat;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;
use transport::Time;

/// A deadline that has not been told to a sleeper.
const NO_DEADLINE: u64 = u64::MAX;

/// The bell of other processes in the list of what the engine sleeps on when no other thread looks.
const RUNG_PLACE: usize = 2;
const RUNG_FOR: u32 = 1 << RUNG_PLACE;

/// The sockets in the same list, and the timer by which they come back to it.
const SOCKETS_PLACE: usize = 1;
const SOCKETS_TIMER: u32 = 1 << 4;

/// What the engine sleeps on when no other thread looks, in the order of the list; links follow.
const WAKES_WHEN_ALONE: [WakeReason; 5] =
    [WakeReason::Bell, WakeReason::Socket, WakeReason::Doorbell, WakeReason::Interface, WakeReason::Timeout];

/// Starts the thread. It holds the NIC only while it works, and ends when the NIC is gone.
pub(crate) fn start(nic: &Arc<Nic>) -> io::Result<()> {
    nic.ground.progress.engine.shows(nic.ground.links.exchange.doorbell());
    let (engine, weak) = (Arc::clone(&nic.ground.progress.engine), Arc::downgrade(nic));
    ::host::thread::spawn_and_wait("ubiverbs", move || run(&engine, &weak))
}

/// What the thread keeps from round to round.
struct State {
    policy: EnginePolicy,
    /// Where it does not run.
    affinity: EngineAffinity,
    /// Whether several threads of the program still call alternately.
    crowd: latch::CalmWatch,
    /// How often the threads of each stripe had polled at the last look at a program that polls.
    polls: [u64; latch::STRIPE_COUNT],
    /// When to list the interfaces again: there was no descriptor left for it.
    interface_retry: Option<Instant>,
}

/// How the engine sleeps.
enum Sleep {
    /// The program polls, and had polled so often: look in after a while.
    Leased { before: Polls, interval: u64 },
    /// A blocked thread of the program drives: until it rings or a deadline comes.
    Relieved(Option<u64>),
    /// No other thread looks: until something arrives or is due.
    All(Option<u64>),
}

impl Sleep {
    /// Why it ended: `ready` has a bit for each descriptor that was slept on.
    fn wake_reason(&self, ready: u32) -> WakeReason {
        match self {
            Sleep::Leased { .. } => WakeReason::of(ready, [WakeReason::Bell, WakeReason::Doorbell]),
            Sleep::Relieved(_) => WakeReason::of(ready, [WakeReason::Bell, WakeReason::Interface]),
            Sleep::All(_) => WakeReason::of(ready, WAKES_WHEN_ALONE.into_iter().chain(repeat(WakeReason::Link))),
        }
    }
}

/// The thread: work, look, sleep.
fn run(engine: &Engine, nic: &Weak<Nic>) {
    engine.thread.store(::host::thread::number(), Ordering::Relaxed);
    let mut state = State {
        policy: EnginePolicy::new(engine.processors),
        affinity: EngineAffinity::default(),
        crowd: latch::CalmWatch::default(),
        polls: [0; latch::STRIPE_COUNT],
        interface_retry: None,
    };
    loop {
        let until_tick;
        let (sleep, changes, rung, sockets, set) = {
            let Some(nic) = nic.upgrade() else { return };
            // No descriptor is not waited for.
            let changes = nic.changes.as_ref().map_or(-1, Changes::raw_fd);
            let all = [
                engine.bell_fd(),
                nic.ground.links.udp.fd(),
                nic.ground.links.exchange.doorbell().fd(Sleeper::Engine),
                changes,
                engine.sockets.timer_fd(),
            ];
            let set = engine.sockets.engine_set(|| {
                let all = [&all, nic.ground.links.registry.descriptors()].concat();
                Some((sleep::Set::new(&all, RUNG_PLACE, SOCKETS_PLACE).ok()?, nic.ground.links.udp.fd()))
            });
            let sleep = prepare(engine, &nic, &mut state);
            // The thread that ends the process asks first and then rings, unless the engine is awake: it is seen here.
            if engine.wants_flush() {
                let _ = catch_unwind(AssertUnwindSafe(|| nic.flush_before_exit()));
                engine.flushed();
            }
            if engine.wants_summary() {
                let _ = catch_unwind(AssertUnwindSafe(|| nic.summarize()));
                engine.summarized();
            }
            until_tick = if nic.ground.records.trace.is_checked() {
                nic.ground.records.trace.until_tick(nic.now().as_nanos())
            } else {
                None
            };
            let rung = nic.ground.links.exchange.doorbell().fd(Sleeper::Engine);
            (sleep, changes, rung, nic.ground.links.udp.fd(), set)
        };
        let limited = |limit: Option<u64>| {
            let retry = state.interface_retry.map(|_| nanos(INTERFACE_RETRY));
            limit.into_iter().chain(retry).chain(until_tick).min()
        };
        let ready = match sleep {
            Sleep::Leased { interval, .. } => sleep::until_ready([engine.bell_fd(), rung], Some(interval)),
            Sleep::Relieved(limit) => sleep::until_ready([engine.bell_fd(), changes], limited(limit)),
            Sleep::All(limit) => match set {
                Some(set) => set.until_ready(limited(limit)),
                None => sleep::until_ready([engine.bell_fd(), sockets, rung, changes], limited(limit)),
            },
        };
        engine.asleep_until.store(0, Ordering::Relaxed);
        // A signal is no reason: the engine's thread takes none of the program's.
        if let Ok(ready) = ready {
            engine.wakes.count(sleep.wake_reason(ready));
        }
        if engine.bell.wake() {
            engine.bell.signal().hear();
        }
        let Some(nic) = nic.upgrade() else { return };
        // Of a program that polls it would say every 50 us that the engine has looked at it.
        if let Ok(ready) = ready
            && !(matches!(sleep, Sleep::Leased { .. }) && ready == 0)
        {
            nic.ground.records.engine_woke(sleep.wake_reason(ready).name());
        }
        if until_tick.is_some() {
            nic.ground.records.trace.tick(nic.now().as_nanos());
        }
        let ready = ready.unwrap_or(0);
        if matches!(sleep, Sleep::All(_)) && ready & SOCKETS_TIMER != 0 {
            engine.sockets.engine_looks();
        }
        let only_rung_for = matches!(sleep, Sleep::All(_)) && ready == RUNG_FOR;
        state.policy.woke(only_rung_for);
        match sleep {
            Sleep::Leased { before, interval } => {
                if !check_program(engine, &nic, &mut state, before, interval) {
                    continue;
                }
            }
            Sleep::Relieved(_) => {
                state.affinity.step(&engine.seen, nic.now());
                nic.flush_waiting_acks();
            }
            Sleep::All(_) => {
                state.affinity.step(&engine.seen, nic.now());
                nic.flush_waiting_acks();
                match set {
                    Some(_) => nic.ground.links.exchange.doorbell().wake_engine(),
                    None => nic.ground.links.exchange.doorbell().wake(Sleeper::Engine, ready & RUNG_FOR != 0),
                }
                if only_rung_for {
                    // A program may wait for the processor that the engine has, for just what came. What else there is
                    // ends the next sleep.
                    serve_ring(engine, &nic, &state.policy);
                    continue;
                }
            }
        }
        let changed = nic.changes.as_ref().is_some_and(Changes::any);
        if changed || state.interface_retry.is_some_and(|moment| moment <= Instant::now()) {
            let failed = nic.follow_interfaces().is_err();
            state.interface_retry = failed.then(|| Instant::now() + INTERFACE_RETRY);
        }
    }
}

impl Nic {
    /// Says what was found; or, if the program was not checked, how much failed.
    fn summarize(&self) {
        if self.ground.records.trace.is_checked() {
            self.ground.records.trace.end(self.now().as_nanos());
        } else {
            self.ground.records.failures.say();
        }
    }
}

/// Looks at a program that held the lease. Returns whether there is more to see to: not while the program is busy with
/// everything.
fn check_program(engine: &Engine, nic: &Nic, state: &mut State, before: Polls, interval: u64) -> bool {
    let lease = &engine.policy.lease;
    let insisted = nic.ground.links.exchange.doorbell().was_insisted_on();
    let verdict = state.policy.check(before, engine.polls(), insisted, interval);
    state.crowd.look();
    let polls = lease.polls_of_stripes();
    let before = std::mem::replace(&mut state.polls, polls);
    if let Verdict::Busy { trusted } = verdict {
        let stopped = |(stripe, (before, polls)): (usize, (u64, u64))| (before == polls).then_some(stripe);
        nic.flush_acks_of_stopped(before.into_iter().zip(polls).enumerate().filter_map(stopped));
        if trusted {
            lease.kept();
        }
        return false;
    }
    state.affinity.step(&engine.seen, nic.now());
    nic.flush_waiting_acks();
    match verdict {
        Verdict::Busy { trusted } | Verdict::Polls { trusted } => {
            if trusted {
                lease.kept();
            }
        }
        Verdict::Stopped => {
            let missed = nic.progress();
            if missed {
                state.policy.missed(nic.now());
            }
            lease.lose(missed && EnginePolicy::is_soon(interval));
        }
        Verdict::Insisted => {
            // Its program polls, but not now: it spins on memory, perhaps on what the engine is about to put there.
            while nic.progress() {}
            state.policy.missed(nic.now());
            lease.lose(true);
        }
    }
    true
}

/// Does what there is to do if it is the engine's to do, and decides how to sleep.
fn prepare(engine: &Engine, nic: &Nic, state: &mut State) -> Sleep {
    let lease = &engine.policy.lease;
    if lease.is_held() {
        engine.bell.prepare_sleep_leased();
        if state.policy.drives_before_check() {
            state.affinity.step(&engine.seen, nic.now());
            nic.ground.links.exchange.doorbell().lease();
            // What was written before that was not insisted on, and its writer will not insist later.
            nic.progress();
        }
        // A thread that ends the lease after this look rings.
        if lease.is_held() {
            return Sleep::Leased { before: engine.polls(), interval: state.policy.check_interval(nic.now()) };
        }
    }
    state.policy.unleased();
    // There is no lease, so no acknowledgement begins to wait that is not seen here.
    nic.flush_waiting_acks();
    // Say until when the engine sleeps, then look once more: what was published meanwhile is either seen here or rings
    // the bell.
    engine.asleep_until.store(NO_DEADLINE, Ordering::Relaxed);
    engine.bell.prepare_sleep();
    engine.relieved.store(engine.waiters.load(Ordering::SeqCst) > 0, Ordering::SeqCst);
    // The last blocked thread to leave after this look rings.
    if engine.waiters.load(Ordering::SeqCst) > 0 && engine.relieved.load(Ordering::SeqCst) {
        // The engine may have taken back its word when it woke.
        nic.ground.links.exchange.doorbell().prepare_sleep(Sleeper::Caller);
        nic.progress();
        return Sleep::Relieved(sleep_until_deadline(engine, nic));
    }
    engine.relieved.store(false, Ordering::SeqCst);
    nic.ground.links.exchange.doorbell().prepare_sleep_lazily(|| engine.is_waited_for());
    let now = nic.now();
    match state.policy.before_sleep(now) {
        Scan::Rings => {
            while nic.look_again(true) {}
            nic.fire_due(now);
        }
        Scan::Full => drive_all(engine, nic),
    }
    Sleep::All(sleep_until_deadline(engine, nic))
}

/// Whether a thread of the program drives, or wants to, or ends the process.
fn is_wanted_elsewhere(engine: &Engine) -> bool {
    engine.is_asked_at_exit() || engine.policy.lease.is_held() || engine.waiters.load(Ordering::Relaxed) > 0
}

/// Does what there is to do, and in the middle of a stream spins for what follows: a sleeping engine has to be woken by
/// the peer, which is slower for it.
fn drive_all(engine: &Engine, nic: &Nic) {
    let mut spin = Spin::new(nic.now(), nic.ground.progress.moved());
    loop {
        if !engine.is_asked_at_exit() && nic.progress() {
            spin.found(note_time(nic));
            continue;
        }
        if is_wanted_elsewhere(engine) || !spin.goes_on(nic.now(), nic.ground.progress.moved()) {
            return;
        }
        std::hint::spin_loop();
    }
}

/// The time, of which the checker hears as well. There may be something to do without end, as where a peer that has no
/// receive is asked again every ten microseconds.
fn note_time(nic: &Nic) -> Time {
    let now = nic.now();
    nic.ground.records.trace.tick(now.as_nanos());
    now
}

/// Takes what was rung for, and goes on for a while where that pays.
fn serve_ring(engine: &Engine, nic: &Nic, policy: &EnginePolicy) {
    let moved = nic.ground.progress.moved();
    engine.spins.store(true, Ordering::Relaxed);
    nic.look_again(false);
    let mut spin = policy.spin_after_ring(nic.now(), moved);
    while !is_wanted_elsewhere(engine) {
        if nic.receive_shared(None, None) || nic.ground.links.exchange.has_stalled() && nic.resume_stalled(false) {
            spin.found(note_time(nic));
        } else if spin.found_nothing() {
            let now = nic.now();
            nic.look_again(false);
            let is_due = nic.ground.progress.timers.next().is_some_and(|deadline| deadline <= now);
            if is_due || !spin.goes_on(now, nic.ground.progress.moved()) {
                break;
            }
        }
        std::hint::spin_loop();
    }
    engine.spins.store(false, Ordering::Relaxed);
}

/// How long until something is due. A deadline set from now on that is earlier rings the bell.
fn sleep_until_deadline(engine: &Engine, nic: &Nic) -> Option<u64> {
    if let Some(deadline) =
        nic.ground.progress.timers.next().into_iter().chain(nic.links_deadline()).chain(nic.packets_deadline()).min()
    {
        engine.asleep_until.store(deadline.as_nanos(), Ordering::Relaxed);
        crate::progress::sync::fence(Ordering::SeqCst);
    }
    EnginePolicy::sleep_limit(nic.patience(), nic.ground.links.exchange.has_inbound())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_wake_is_counted_for_the_device_that_was_opened_first() {
        let nic = Nic::open().unwrap();
        let device = nic.devices().into_iter().find(|device| device.name() == "ubi_lo").expect("a device for lo");
        let _context = nic.open_device(&device).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            nic.ground.progress.engine.ring();
            let counted = nic.counters().into_iter().filter(|(_, counters)| counters.engine_wakes.bell > 0);
            if counted.map(|(device, _)| device.name().to_owned()).eq(["ubi_lo"]) {
                break;
            }
            assert!(Instant::now() < deadline, "no wake in a minute: {:?}", nic.counters());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
