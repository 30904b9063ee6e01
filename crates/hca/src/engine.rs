//! The engine: the one thread that makes progress when the program makes none. It sleeps on the sockets and on the next deadline; while the
//! program polls it stays out of its way and only looks in once a millisecond (see [`lease`](crate::lease)); while a thread of the program
//! waits for a completion inside a call, that thread drives and the engine sees only to deadlines.

use crate::aside::{Aside, Seen};
use crate::bell::{Bell, Clapper};
use crate::interfaces::Changes;
use crate::lease::Lease;
use crate::nic::Nic;
use crate::{sleep, slice};
use link::descriptor::Descriptor;
use link::shared::{Face, Sleeper};
use std::io;
use std::num::NonZero;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};
use transport::Time;

/// How often the engine looks in on a program that polls, in nanoseconds: from the shortest time, on one that has just let something wait, to the longest.
const TICK: std::ops::RangeInclusive<u64> = 50_000..=1_000_000;

/// Which part of the time since then it is: one who polls and stops, again and again, shall not wait for the engine most of the time.
const PART: u64 = 20;

/// Polls between two looks of the engine's, of a program that needs no help: it has looked at everything, and sent what it owed, meanwhile.
const BUSY: u64 = 64;

/// So many are enough if they looked at the sockets: one that finds much there takes its time.
const THOROUGH: u64 = 4;

/// How often the engine makes its round, in nanoseconds, where trains come through memory that others write: time to answer does not run for one who
/// has not looked, so nobody else would notice a bell that was not heard.
const ROUND: u64 = 50_000_000;

/// A deadline that has not been told to a sleeper.
const NEVER: u64 = u64::MAX;

/// How long, in nanoseconds, until interfaces that could not be looked at are looked at again.
const LOOK_AGAIN: u64 = 200_000_000;

/// How long, in nanoseconds, one who was rung for looks on, where there are cores to spare: the next train mostly follows soon, and a wake-up costs
/// as much as many trains.
const LINGER: u64 = 100_000;

/// Whoever has moved so many bytes since it was rung for is in the middle of a stream: then it looks on for so many nanoseconds wherever it runs, about as
/// long as the other side needs for the next train.
const STREAM: u64 = 192 * 1024;
const BREATH: u64 = 15_000;

/// Of so many looks that find nothing one goes beyond what was rung for.
const LOOKS: u32 = 16;

/// From this many cores on there are some to spare: the programs at both ends of a link may spin, and so may their engines.
const SPARE: usize = 4;

/// How often at least, in nanoseconds, one who is rung for again and again looks at everything else, too.
const SOON: u64 = 1_000_000;

/// The bell of other processes in the list of what the engine sleeps on when nobody else looks.
const RUNG_PLACE: usize = 2;
const RUNG_FOR: u32 = 1 << RUNG_PLACE;

#[derive(Debug)]
pub(crate) struct Engine {
    bell: Bell<EventFd>,
    lease: Lease,
    /// How often the program has looked at the sockets.
    looks: AtomicU64,
    /// There are cores to spare.
    may_linger: bool,
    /// Where the program is.
    seen: Seen,
    /// Until when the engine sleeps, zero while it is awake.
    asleep_until: AtomicU64,
    /// Threads of the program that wait inside a call, and so drive.
    waiters: AtomicU32,
    /// They do, and the engine leaves the sockets to them.
    relieved: AtomicBool,
    /// Completion queues that are observed: somebody wants to hear of what comes there, and does not call.
    observed: AtomicU32,
    /// It looks on, for trains and for room.
    lingers: AtomicBool,
    /// What other processes see of us.
    face: OnceLock<Arc<Face>>,
}

/// What strikes the bell.
#[derive(Debug)]
struct EventFd(Descriptor);

impl Clapper for EventFd {
    fn strike(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight live bytes, as an eventfd wants.
        unsafe { libc::write(self.0.raw(), one.as_ptr().cast(), one.len()) };
    }
}

impl EventFd {
    /// Takes the count, so that it can be struck again.
    fn quiet(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight live bytes, as an eventfd wants; the descriptor does not block.
        unsafe { libc::read(self.0.raw(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl Engine {
    pub fn new() -> io::Result<Engine> {
        // SAFETY: a plain call; the descriptor it returns is owned from here on.
        let bell = unsafe {
            let bell = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if bell < 0 {
                return Err(io::Error::last_os_error());
            }
            Descriptor::keep(OwnedFd::from_raw_fd(bell))
        };
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Ok(Engine {
            bell: Bell::new(EventFd(bell)),
            lease: Lease::new(cores >= SPARE),
            looks: AtomicU64::new(0),
            may_linger: cores >= SPARE,
            seen: Seen::new(cores),
            asleep_until: AtomicU64::new(0),
            waiters: AtomicU32::new(0),
            relieved: AtomicBool::new(false),
            observed: AtomicU32::new(0),
            lingers: AtomicBool::new(false),
            face: OnceLock::new(),
        })
    }

    /// Starts the thread. It holds the NIC only while it works, and ends when the NIC is gone.
    pub fn start(self: &Arc<Engine>, nic: &Arc<Nic>) -> io::Result<()> {
        let _ = self.face.set(Arc::clone(nic.exchange.face()));
        let (engine, weak) = (Arc::clone(self), Arc::downgrade(nic));
        thread::Builder::new().name("ubiverbs".into()).spawn(move || run(&engine, &weak)).map(|_| ())
    }

    fn bell_fd(&self) -> RawFd {
        self.bell.clapper().0.raw()
    }

    /// The program sends something, and does not poll, or not only.
    #[inline]
    pub fn sends(&self) {
        if !self.lease.is_held() {
            self.seen.here();
        }
    }

    /// Whether one who waits may keep a processor from those it waits for.
    pub fn has_few_processors(&self) -> bool {
        self.seen.are_few()
    }

    /// The program has polled, and there was nothing.
    #[inline]
    pub fn polled(&self) {
        if self.lease.polled() {
            self.seen.here();
            // The engine sleeps on the sockets: from now on it is to look at the program instead.
            self.bell.ring();
        }
    }

    /// A poll has looked at the sockets. Of threads that do at the same time only one may count.
    #[inline]
    pub fn looked(&self) {
        self.looks.store(self.looks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How often polls have, about.
    #[inline]
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// How often this thread of the program has polled, about.
    #[inline]
    pub fn polls_here(&self) -> u64 {
        self.lease.polls_here()
    }

    /// Whether somebody looks for room again and again, so that nobody need be asked to tell.
    #[inline]
    pub fn looks_for_room(&self) -> bool {
        self.is_leased() || self.lingers.load(Ordering::Relaxed)
    }

    /// Whether the engine looks on, and will soon see to those who are ready.
    #[inline]
    pub fn lingers(&self) -> bool {
        self.lingers.load(Ordering::Relaxed)
    }

    /// Whether the program polls, and so drives.
    #[inline]
    pub fn is_leased(&self) -> bool {
        self.lease.is_held()
    }

    /// A completion queue was armed: the program may go to sleep without a word.
    pub fn armed(&self) {
        self.lease.forbid();
        self.expect();
        self.bell.ring_if_leased();
    }

    /// Somebody begins to wait for what this process has asked for.
    fn expect(&self) {
        if let Some(face) = self.face.get() {
            face.expect();
        }
    }

    /// Whether anybody does who does not look for it.
    fn is_waited_for(&self) -> bool {
        self.lease.is_forbidden() || self.observed.load(Ordering::SeqCst) > 0
    }

    /// A completion queue is observed from now on, until [`unobserved`](Engine::unobserved).
    pub fn observed(&self) {
        self.observed.fetch_add(1, Ordering::SeqCst);
        self.expect();
        // What came before that, and was not rung for, is looked for now.
        self.bell.ring_even_if_leased();
    }

    /// It is no longer.
    pub fn unobserved(&self) {
        self.observed.fetch_sub(1, Ordering::SeqCst);
    }

    /// It is no longer armed.
    pub fn disarmed(&self) {
        self.lease.allow();
    }

    /// A deadline earlier than all others was set.
    pub fn deadline_moved(&self, deadline: Time) {
        // The fence that pairs with the sleeper's is in `ring`; this look only spares the ring. It cannot see a sleeper that says until when
        // after our deadline was published: that one sees the deadline.
        crate::sync::fence(Ordering::SeqCst);
        if self.asleep_until.load(Ordering::Relaxed) > deadline.as_nanos() {
            self.bell.ring();
        }
    }

    /// Wakes the engine whatever it does.
    pub fn ring(&self) {
        self.bell.ring_even_if_leased();
    }

    /// A thread of the program begins to wait inside a call.
    pub fn enter_wait(&self) {
        self.lease.forbid();
        self.waiters.fetch_add(1, Ordering::SeqCst);
    }

    /// It has what it waited for. The last to leave hands the driving back.
    pub fn leave_wait(&self) {
        self.lease.allow();
        // An engine that sleeps for everything has nothing to take over.
        if self.waiters.fetch_sub(1, Ordering::SeqCst) == 1 && self.relieved.load(Ordering::SeqCst) {
            self.bell.ring_even_if_leased();
        }
    }
}

/// The thread: work, look, sleep.
fn run(engine: &Engine, nic: &Weak<Nic>) {
    slice::shorten();
    // When to look at the interfaces again: there was no descriptor left for it.
    let mut look_again: Option<Instant> = None;
    let mut rounds = Rounds::default();
    let mut set = None;
    loop {
        let (sleep, changes, rung, sockets) = {
            let Some(nic) = nic.upgrade() else { return };
            // No descriptor is not waited for.
            let changes = nic.changes.as_ref().map_or(-1, Changes::raw_fd);
            let all = [engine.bell_fd(), nic.udp.fd(), nic.exchange.face().fd(Sleeper::Engine), changes];
            set = set.or_else(|| sleep::Set::new(&all, RUNG_PLACE).ok());
            let sleep = nic.engine().prepare(&nic, &mut rounds);
            (sleep, changes, nic.exchange.face().fd(Sleeper::Engine), nic.udp.fd())
        };
        let soon = |limit: Option<u64>| match look_again {
            Some(_) => Some(limit.map_or(LOOK_AGAIN, |limit| limit.min(LOOK_AGAIN))),
            None => limit,
        };
        let ready = match sleep {
            Sleep::Leased { tick, .. } => sleep::until_ready([engine.bell_fd(), rung], Some(tick)),
            Sleep::Bell(limit) => sleep::until_ready([engine.bell_fd(), changes], soon(limit)),
            Sleep::All(limit) => match &set {
                Some(set) => set.until_ready(soon(limit)),
                None => sleep::until_ready([engine.bell_fd(), sockets, rung, changes], soon(limit)),
            },
        };
        engine.asleep_until.store(0, Ordering::Relaxed);
        if engine.bell.wake() {
            engine.bell.clapper().quiet();
        }
        let Some(nic) = nic.upgrade() else { return };
        rounds.only_rung_for = false;
        let insisted = matches!(sleep, Sleep::Leased { .. }) && nic.exchange.face().was_insisted_on();
        rounds.busy = match sleep {
            Sleep::Leased { polls, looks, .. } => {
                let looked = engine.looks.load(Ordering::Relaxed).wrapping_sub(looks);
                !insisted && (looked >= THOROUGH || engine.lease.polls().saturating_sub(polls) >= BUSY)
            }
            _ => false,
        };
        if let (true, Sleep::Leased { tick, .. }) = (rounds.busy, &sleep) {
            rounds.kept(&engine.lease, *tick);
            continue;
        }
        rounds.aside.step(&engine.seen, nic.now());
        nic.see_to_debt();
        if let Sleep::All(_) = sleep {
            match set {
                Some(_) => nic.exchange.face().wake_engine(),
                None => nic.exchange.face().wake(Sleeper::Engine),
            }
            if ready.is_ok_and(|ready| ready == RUNG_FOR) {
                // A program may wait for the core that we have, for just what came. What else there is wakes us again.
                rounds.only_rung_for = true;
                engine.serve_ring(&nic, &mut rounds);
                continue;
            }
        }
        if let Sleep::Leased { polls, tick, .. } = sleep {
            if insisted {
                // Its program polls, but not now: it spins on memory, perhaps on what we are about to put there.
                while nic.progress() {}
                rounds.lost(&engine.lease, Some(nic.now()));
            } else if engine.lease.polls() == polls {
                let missed = nic.progress();
                rounds.lost(&engine.lease, missed.then(|| nic.now()));
            } else {
                rounds.kept(&engine.lease, tick);
            }
        }
        let changed = nic.changes.as_ref().is_some_and(Changes::any);
        if changed || look_again.is_some_and(|moment| moment <= Instant::now()) {
            let failed = nic.follow_interfaces().is_err();
            look_again = failed.then(|| Instant::now() + Duration::from_nanos(LOOK_AGAIN));
        }
    }
}

/// What the engine remembers from round to round.
#[derive(Default)]
struct Rounds {
    /// The program polls all the time, and sees to everything.
    busy: bool,
    /// When the program last let something wait.
    missed: Time,
    /// It has polled between the last two looks.
    kept: bool,
    /// It woke because trains came through memory, and for nothing else.
    only_rung_for: bool,
    /// When it last looked at everything.
    looked: Time,
    /// When it last went to sleep.
    slept: Time,
    /// Where it does not run.
    aside: Aside,
}

impl Rounds {
    /// How long until the next look at a program that polls.
    fn tick(&self, now: Time) -> u64 {
        (now.since(self.missed) / PART).clamp(*TICK.start(), *TICK.end())
    }

    /// The program was at it, for so long. Once is not enough to trust it more: it may have polled at the beginning, and then no more.
    fn kept(&mut self, lease: &Lease, tick: u64) {
        if self.kept && tick == *TICK.end() {
            lease.kept();
        }
        self.kept = true;
    }

    /// The program does not poll any more.
    fn lost(&mut self, lease: &Lease, missed: Option<Time>) {
        self.missed = missed.unwrap_or(self.missed);
        lease.lose(missed.is_some());
    }
}

/// How the engine sleeps.
enum Sleep {
    /// The program polls, so often until now: look in after a while.
    Leased { polls: u64, looks: u64, tick: u64 },
    /// A thread of the program waits and drives: until it rings or a deadline comes.
    Bell(Option<u64>),
    /// Nobody else looks: until something arrives or is due.
    All(Option<u64>),
}

impl Engine {
    /// Does what there is to do if it is ours to do, and decides how to sleep.
    fn prepare(&self, nic: &Nic, rounds: &mut Rounds) -> Sleep {
        if self.lease.is_held() {
            self.bell.settle_down_leased();
            if !rounds.busy {
                rounds.aside.step(&self.seen, nic.now());
                nic.exchange.face().lease();
                // What was written before that was not insisted on, and its writer will not insist later.
                nic.progress();
            }
            // Whoever ends the lease after this look rings.
            if self.lease.is_held() {
                return Sleep::Leased {
                    polls: self.lease.polls(),
                    looks: self.looks.load(Ordering::Relaxed),
                    tick: rounds.tick(nic.now()),
                };
            }
        }
        rounds.kept = false;
        // There is no lease, so there will be no debt that we do not see here.
        nic.see_to_debt();
        // Say until when we sleep, then look once more: what was published meanwhile is either seen here or rings the bell.
        self.asleep_until.store(NEVER, Ordering::Relaxed);
        self.bell.settle_down();
        self.relieved.store(self.waiters.load(Ordering::SeqCst) > 0, Ordering::SeqCst);
        // Whoever is the last to leave after this look rings.
        if self.waiters.load(Ordering::SeqCst) > 0 && self.relieved.load(Ordering::SeqCst) {
            // We may have taken back its word when we woke.
            nic.exchange.face().settle_down(Sleeper::Caller);
            nic.progress();
            return Sleep::Bell(self.sleep_until_deadline(nic));
        }
        self.relieved.store(false, Ordering::SeqCst);
        nic.exchange.face().settle_down_lazily(|| self.is_waited_for());
        let now = nic.now();
        if rounds.only_rung_for && now.since(rounds.looked) < SOON {
            // The sockets end the sleep by themselves.
            while nic.look_again(true) {}
            nic.fire_due(now);
        } else {
            rounds.looked = now;
            self.take_all(nic);
        }
        rounds.slept = now;
        Sleep::All(self.sleep_until_deadline(nic))
    }

    /// Does what there is to do. In the middle of a stream it looks on for a breath: who sleeps has to be woken by the other side, which is slower for it.
    fn take_all(&self, nic: &Nic) {
        let moved = nic.moved();
        let mut last = nic.now();
        loop {
            if nic.progress() {
                last = nic.now();
                continue;
            }
            let streams = nic.moved().wrapping_sub(moved) >= STREAM;
            let wanted = self.lease.is_held() || self.waiters.load(Ordering::Relaxed) > 0;
            if !streams || wanted || nic.now().since(last) > BREATH {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Takes what was rung for. Goes on for a while where that pays: whoever is rung for again within a moment need not have slept.
    fn serve_ring(&self, nic: &Nic, rounds: &mut Rounds) {
        let moved = nic.moved();
        self.lingers.store(true, Ordering::Relaxed);
        nic.look_again(false);
        let mut last = nic.now();
        let soon = self.may_linger && last.since(rounds.slept) <= LINGER;
        let mut looks = 0u32;
        while !self.lease.is_held() && self.waiters.load(Ordering::Relaxed) == 0 {
            looks += 1;
            if nic.receive_shared(None, None) || nic.exchange.has_stalled() && nic.resume_stalled(false) {
                last = nic.now();
            } else if looks % LOOKS == 1 {
                let now = nic.now();
                nic.look_again(false);
                let patience = match nic.moved().wrapping_sub(moved) >= STREAM {
                    _ if soon => LINGER,
                    true => BREATH,
                    false => break,
                };
                if now.since(last) > patience || nic.timers.next().is_some_and(|deadline| deadline <= now) {
                    break;
                }
            }
            std::hint::spin_loop();
        }
        self.lingers.store(false, Ordering::Relaxed);
    }

    /// How long until something is due. A deadline set from now on that is earlier rings the bell.
    fn sleep_until_deadline(&self, nic: &Nic) -> Option<u64> {
        if let Some(deadline) = nic.timers.next() {
            self.asleep_until.store(deadline.as_nanos(), Ordering::Relaxed);
            crate::sync::fence(Ordering::SeqCst);
        }
        let patience = nic.patience();
        match nic.exchange.has_inbound() {
            true => Some(patience.map_or(ROUND, |patience| patience.min(ROUND))),
            false => patience,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion_queue::{CompletionQueue, Notify};

    #[test]
    fn who_let_something_wait_is_looked_at_sooner() {
        let (mut rounds, lease) = (Rounds::default(), Lease::new(false));
        let (long, short) = (*TICK.end(), *TICK.start());
        let late = Time::from_nanos(1_000_000_000);
        assert_eq!(rounds.tick(late), long);
        rounds.lost(&lease, None);
        assert_eq!(rounds.tick(late), long, "nothing waited");
        rounds.lost(&lease, Some(late));
        assert_eq!(rounds.tick(late), short);
        assert_eq!(rounds.tick(late + Duration::from_millis(4)), 4_000_000 / PART);
        assert_eq!(rounds.tick(late + Duration::from_secs(1)), long);
    }

    #[test]
    fn trust_grows_only_with_the_second_long_look_in_a_row() {
        let polls = |lease: &Lease, times| (0..times).any(|_| lease.polled());
        let (long, short) = (*TICK.end(), *TICK.start());
        let after = |looks: &[u64]| {
            let (mut rounds, lease) = (Rounds::default(), Lease::new(false));
            lease.lose(true);
            looks.iter().for_each(|&tick| rounds.kept(&lease, tick));
            polls(&lease, 64)
        };
        assert!(!after(&[long]));
        assert!(!after(&[short, short, short]));
        assert!(after(&[long, long]));
    }

    #[test]
    fn armed_and_observed_queues_are_waited_for_as_long_as_they_are_there() {
        let engine = Arc::new(Engine::new().unwrap());
        let queue = |id| CompletionQueue::new(id, 8, None).unwrap().served_by(&engine);
        let (armed, observed) = (queue(1), queue(2));
        assert!(!engine.is_waited_for());
        armed.arm(Notify::Any);
        assert!(engine.is_waited_for());
        assert!(observed.observe(|| ()) && !observed.observe(|| ()), "there can be one");
        drop(armed);
        assert!(engine.is_waited_for());
        drop(observed);
        assert!(!engine.is_waited_for());
    }
}
