//! Other processes that connect to the names of this one. Any user of the host may, and may send what it likes, with
//! any descriptor: one whose last copy is closed here may keep the closing thread asleep for as long as its sender
//! chose (`SO_LINGER`). So nothing of another user is accepted, received or closed on the data path.
//!
//! | thread | does |
//! |---|---|
//! | `ubiverbs-door` | accepts, and asks the kernel whose each connection is, and whose UDP ports are; it receives and closes nothing |
//! | `ubiverbs-guest`, a few, started when first needed | receive from other users, check what they say, and close |
//! | those that drive the NIC | take connections of our own user, and checked packets of others: `take_news` |
//!
//! A user's connections are all served by one thread, and few users share one: who keeps it busy or asleep is in its
//! own way. What waits to be taken is bounded for each thread.

use crate::arrival::{Arrival, Origin};
use crate::descriptor::{Descriptor, Opening, check};
use crate::event_fd::Bell;
use crate::event_set::EventSet;
use crate::family::{Family, Scope};
use crate::forward::connections::{ConnectionService, Connections};
use crate::forward::{Collected, message};
use crate::holders::{self, PortUsers};
use crate::names::{self, Name};
use crate::slots::{Listener, Registry};
use crate::thread;
use latch::Rank;
use latch::plain::Mutex;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Connections accepted before a thread that gives the name back gets a turn.
const ACCEPTS_PER_TURN: usize = 64;

/// Threads for other users.
const MAX_GUEST_THREADS: usize = 8;

/// So many bytes of packets wait from one of these threads, and it receives no more: then its senders wait, and drop.
const MOST_WAITING: usize = 1 << 20;
const FULL_LANE_WAIT: Duration = Duration::from_millis(1);

/// How long the end of a thread is waited for.
const THREAD_END_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a process without descriptors waits for one.
const NO_DESCRIPTORS: Duration = Duration::from_millis(2);

/// A connection that was accepted.
#[derive(Debug)]
pub(crate) struct Caller {
    pub socket: Descriptor,
    pub name: Name,
    /// The user at its other end, as the kernel says.
    pub uid: u32,
    /// It is of this process itself.
    pub own: bool,
}

/// What the threads that drive the NIC have to do.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Connections of our own user.
    pub callers: Vec<Caller>,
    /// Packets of other users that may say what they say, as [`message`]s.
    pub messages: Vec<Vec<u8>>,
    /// What came of the rest.
    pub collected: Collected,
    /// A process of another user that forwarded to us has gone.
    pub gone: bool,
    /// The process has no descriptors left: an old connection should make room.
    pub room: bool,
    waiting: [usize; MAX_GUEST_THREADS],
}

/// Those who call.
#[derive(Debug)]
pub struct Callers {
    /// The names that are listened on.
    listening: EventSet,
    /// Strikes when they are no longer, or when ports are to be looked at.
    door: Bell,
    pub(crate) port_users: Mutex<PortUsers>,
    ended: AtomicBool,
    /// Threads that have not.
    running: AtomicU32,
    /// One at a time accepts: who gives a name back does so himself.
    accepting: Mutex<()>,
    /// Strikes for [`take_news`](Callers::take_news).
    bell: Bell,
    news: Mutex<News>,
    lanes: [OnceLock<Option<Arc<Lane>>>; MAX_GUEST_THREADS],
    /// The sockets that this process could not bind, and how often that changed.
    others: Mutex<Vec<(Family, Scope)>>,
    others_changed: AtomicU64,
}

/// A thread for other users.
#[derive(Debug)]
struct Lane {
    set: EventSet,
    bell: Bell,
    jobs: Mutex<Vec<Job>>,
}

#[derive(Debug)]
enum Job {
    Serve(Caller),
    Close(#[expect(dead_code, reason = "closed by being dropped")] Descriptor),
}

/// The key of a bell in a set where the others are [`Registry::new_key`]'s.
const BELL_KEY: u64 = 0;

fn set_with(bell: &Bell) -> io::Result<EventSet> {
    let set = EventSet::new()?;
    set.add(bell.raw(), BELL_KEY)?;
    Ok(set)
}

impl Callers {
    pub(crate) fn new() -> io::Result<Callers> {
        let door = Bell::new()?;
        Ok(Callers {
            listening: set_with(&door)?,
            door,
            port_users: Mutex::new(Rank::PortUsers, PortUsers::default()),
            ended: AtomicBool::new(false),
            running: AtomicU32::new(0),
            accepting: Mutex::new(Rank::Accepting, ()),
            bell: Bell::new()?,
            news: Mutex::new(Rank::CallerNews, News::default()),
            lanes: [const { OnceLock::new() }; MAX_GUEST_THREADS],
            others: Mutex::new(Rank::OtherSockets, Vec::new()),
            others_changed: AtomicU64::new(0),
        })
    }

    /// Readable when there is news.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.bell.raw()
    }

    /// Starts the thread that accepts.
    pub(crate) fn start(&self, registry: &Arc<Registry>) -> io::Result<()> {
        self.spawn("ubiverbs-door", registry, |registry| {
            let (callers, mut reserve) = (registry.callers(), names::socket().ok());
            while !callers.ended.load(Ordering::Acquire) {
                for key in latch::sanitizer::asleep(|| callers.listening.wait()).unwrap_or_default().iter() {
                    if let Some(listener) = registry.listener(key) {
                        callers.accept(&listener, registry, &mut reserve);
                    } else if key == BELL_KEY && callers.door.hear() {
                        callers.look_at_ports();
                    }
                }
            }
        })
    }

    fn spawn(
        &self,
        name: &str,
        registry: &Arc<Registry>,
        run: impl FnOnce(&Arc<Registry>) + Send + 'static,
    ) -> io::Result<()> {
        self.running.fetch_add(1, Ordering::AcqRel);
        let own = Arc::clone(registry);
        let started = thread::spawn_and_wait(name, move || {
            run(&own);
            own.callers().running.fetch_sub(1, Ordering::AcqRel);
        });
        started.inspect_err(|_| {
            self.running.fetch_sub(1, Ordering::AcqRel);
        })
    }

    /// Has the port of a peer looked at, or all ports, by the thread that accepts.
    pub(crate) fn want_ports(&self, port: Option<u16>, now: Instant) {
        if self.port_users.lock().want(port, now) {
            self.door.strike();
        }
    }

    fn look_at_ports(&self) {
        loop {
            let now = Instant::now();
            let Some(port) = self.port_users.lock().next_wanted(now) else { return };
            let found = holders::survey(port);
            self.port_users.lock().learn(port, found, now);
        }
    }

    /// Connections to this name are accepted from now on.
    pub(crate) fn attend(&self, listener: &Listener) -> io::Result<()> {
        self.listening.add(listener.socket.raw(), listener.key)
    }

    /// Connections to this name are accepted no longer. What waits there is accepted: closing it with the name might
    /// take a stranger's time.
    pub(crate) fn leave(&self, listener: &Listener, registry: &Arc<Registry>) {
        let _accepting = self.accepting.lock();
        self.listening.remove(listener.socket.raw());
        // SAFETY: two numbers. Nobody can connect any more.
        unsafe { libc::shutdown(listener.socket.raw(), libc::SHUT_RD) };
        while let Ok(socket) = accept(listener) {
            self.sort(socket, listener.name, registry);
        }
        // Our own user's have come in vain, and should know.
        let mut news = self.news.lock();
        news.callers.retain(|caller| caller.name != listener.name);
    }

    fn accept(&self, listener: &Listener, registry: &Arc<Registry>, reserve: &mut Option<Descriptor>) {
        let _accepting = self.accepting.lock();
        for _ in 0..ACCEPTS_PER_TURN {
            match accept(listener).map_err(|error| error.raw_os_error()) {
                Ok(socket) => self.sort(socket, listener.name, registry),
                Err(Some(libc::EINTR | libc::ECONNABORTED)) => {}
                // An old connection makes room, or else this one is sent away: the set would stay ready for ever.
                Err(Some(libc::EMFILE | libc::ENFILE)) => {
                    self.tell(|news| news.room = true);
                    std::thread::sleep(NO_DESCRIPTORS);
                    let spare = reserve.take();
                    let had_one = spare.is_some();
                    drop(spare);
                    match accept(listener) {
                        Ok(socket) if had_one => {
                            self.tell(|news| news.collected.turned_away += 1);
                            self.give(0, Job::Close(socket), registry);
                            std::thread::sleep(NO_DESCRIPTORS);
                        }
                        Ok(socket) => self.sort(socket, listener.name, registry),
                        Err(_) => {}
                    }
                    *reserve = names::socket().ok();
                }
                Err(_) => return,
            }
        }
    }

    /// Hands a connection to those who serve its user.
    fn sort(&self, socket: Descriptor, name: Name, registry: &Arc<Registry>) {
        match names::peer(&socket) {
            Ok(peer) if holders::is_our_user(peer.uid) => {
                let own = peer.is_this_process();
                self.tell(|news| news.callers.push(Caller { socket, name, uid: peer.uid, own }));
            }
            Ok(peer) => {
                let caller = Caller { socket, name, uid: peer.uid, own: false };
                self.give(peer.uid as usize % MAX_GUEST_THREADS, Job::Serve(caller), registry);
            }
            Err(_) => self.give(0, Job::Close(socket), registry),
        }
    }

    fn give(&self, lane: usize, job: Job, registry: &Arc<Registry>) {
        let Some(place) = self.lanes.get(lane) else { return };
        let started = place.get_or_init(|| {
            let bell = Bell::new().ok()?;
            let (set, jobs) = (set_with(&bell).ok()?, Mutex::new(Rank::CallerJobs, Vec::new()));
            let started = Arc::new(Lane { set, bell, jobs });
            let own = Arc::clone(&started);
            self.spawn("ubiverbs-guest", registry, move |registry| own.run(lane, registry)).ok()?;
            Some(started)
        });
        // Without the thread it has to be closed here.
        if let Some(lane) = started {
            lane.jobs.lock().push(job);
            lane.bell.strike();
        }
    }

    /// Notes something for the threads that drive the NIC, and wakes one.
    fn tell(&self, note: impl FnOnce(&mut News)) {
        note(&mut self.news.lock());
        self.bell.strike();
    }

    fn has_much_from(&self, lane: usize) -> bool {
        self.news.lock().waiting.get(lane).is_some_and(|waiting| *waiting >= MOST_WAITING)
    }

    /// What there is to do.
    pub(crate) fn take_news(&self) -> News {
        self.bell.hear();
        std::mem::take(&mut *self.news.lock())
    }

    /// The sockets that this process could not bind, because another user has them: for those that user forwards.
    pub(crate) fn rely_on_others_for(&self, sides: Vec<(Family, Scope)>) {
        *self.others.lock() = sides;
        self.others_changed.fetch_add(1, Ordering::Release);
    }

    /// Ends the threads, and waits for them, but not for one that a stranger keeps.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.door.strike();
        self.lanes.iter().filter_map(|lane| lane.get()?.as_ref()).for_each(|lane| lane.bell.strike());
        let deadline = Instant::now() + THREAD_END_TIMEOUT;
        while self.running.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

fn accept(listener: &Listener) -> io::Result<Descriptor> {
    let (flags, null) = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, std::ptr::null_mut());
    let _opening = Opening::begin();
    // SAFETY: no address is asked for; what is opened is ours.
    let socket =
        unsafe { OwnedFd::from_raw_fd(check(libc::accept4(listener.socket.raw(), null, null.cast(), flags))?) };
    Ok(Descriptor::keep(socket))
}

impl Lane {
    /// Serves users until the registry is no more.
    fn run(&self, number: usize, registry: &Registry) {
        let (callers, place) = (registry.callers(), ConnectionService { registry, set: &self.set });
        let mut connections = Connections::new();
        let mut relied = None;
        loop {
            let ready = self.set.wait().unwrap_or_default();
            if callers.ended.load(Ordering::Acquire) {
                // Closed here, and not by the thread that closes the NIC.
                drop(std::mem::take(&mut *self.jobs.lock()));
                return;
            }
            if callers.has_much_from(number) {
                std::thread::sleep(FULL_LANE_WAIT);
                continue;
            }
            let changed = callers.others_changed.load(Ordering::Acquire);
            if relied.replace(changed) != Some(changed) {
                connections.rely_on_others_for(callers.others.lock().clone());
            }
            let before = connections.collected();
            let (mut gone, mut messages) =
                (false, Messages { lane: number, callers, message: Vec::new(), origin: None });
            for key in ready.iter() {
                if key != BELL_KEY {
                    gone |= connections.serve(place, key, &mut |arrival| messages.push(arrival));
                    continue;
                }
                self.bell.hear();
                for job in std::mem::take(&mut *self.jobs.lock()) {
                    if let Job::Serve(caller) = job {
                        connections.admit(place, caller, &mut |arrival| messages.push(arrival));
                    }
                }
            }
            messages.send();
            let since = connections.collected().since(&before);
            if gone || since != Collected::default() {
                callers.tell(|news| {
                    news.collected.add(&since);
                    news.gone |= gone;
                });
            }
        }
    }
}

/// Checked packets on their way to the threads that drive the NIC.
struct Messages<'a> {
    lane: usize,
    callers: &'a Callers,
    message: Vec<u8>,
    origin: Option<Origin>,
}

impl Messages<'_> {
    fn push(&mut self, arrival: &Arrival<'_>) {
        if self.origin != Some(arrival.origin) || !message::append(&mut self.message, arrival) {
            self.send();
            self.origin = Some(arrival.origin);
            message::append(&mut self.message, arrival);
        }
    }

    fn send(&mut self) {
        let message = std::mem::take(&mut self.message);
        if message.is_empty() {
            return;
        }
        self.callers.tell(|news| {
            if let Some(waiting) = news.waiting.get_mut(self.lane) {
                *waiting += message.len();
            }
            news.messages.push(message);
        });
    }
}
