//! The engine: the one thread that makes progress when the program makes none. It sleeps on the sockets and on the next deadline; while the
//! program polls it stays out of its way and only looks in once a millisecond; while a thread of the program waits for a completion inside
//! a call, that thread drives.

use crate::interfaces::Changes;
use crate::nic::Nic;
use crate::sleep;
use link::descriptor::Descriptor;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::thread;
use transport::Time;

/// How long a poll of the program's keeps the engine away.
const LEASE: u64 = 1_000_000;

/// A deadline that has not been told to a sleeper.
const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Engine {
    /// Rung to wake the engine out of its sleep.
    bell: Descriptor,
    epoll: Descriptor,
    /// When the program last drove, by the NIC's clock.
    polled: AtomicU64,
    /// Until when the engine sleeps, zero while it is awake.
    asleep_until: AtomicU64,
    /// Threads of the program that wait inside a call, and so drive.
    waiters: AtomicU32,
}

impl Engine {
    pub fn new() -> io::Result<Engine> {
        // SAFETY: plain calls; the descriptors they return are owned from here on.
        let (bell, epoll) = unsafe {
            let bell = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if bell < 0 {
                return Err(io::Error::last_os_error());
            }
            let bell = Descriptor::keep(OwnedFd::from_raw_fd(bell));
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if epoll < 0 {
                return Err(io::Error::last_os_error());
            }
            (bell, Descriptor::keep(OwnedFd::from_raw_fd(epoll)))
        };
        let engine = Engine {
            bell,
            epoll,
            polled: AtomicU64::new(0),
            asleep_until: AtomicU64::new(0),
            waiters: AtomicU32::new(0),
        };
        engine.watch(engine.bell.raw())?;
        Ok(engine)
    }

    /// Starts the thread. It holds the NIC only while it works, and ends when the NIC is gone.
    pub fn start(self: &Arc<Engine>, nic: &Arc<Nic>) -> io::Result<()> {
        self.watch(nic.udp.fd())?;
        if let Some(changes) = &nic.changes {
            self.watch(changes.raw_fd())?;
        }
        let (engine, weak) = (Arc::clone(self), Arc::downgrade(nic));
        thread::Builder::new().name("ubiverbs".into()).spawn(move || run(&engine, &weak)).map(|_| ())
    }

    fn watch(&self, fd: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: both descriptors are open, and the event is live.
        let answer = unsafe { libc::epoll_ctl(self.epoll.raw(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The program has polled: no need for the engine for a while.
    pub fn polled(&self, now: Time) {
        self.polled.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// A deadline earlier than all others was set.
    pub fn deadline_moved(&self, deadline: Time) {
        // Pairs with the fence of the sleeper: either it sees the new deadline, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.asleep_until.load(Ordering::Relaxed) > deadline.as_nanos() {
            self.ring();
        }
    }

    pub fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight live bytes, as an eventfd wants.
        unsafe { libc::write(self.bell.raw(), one.as_ptr().cast(), one.len()) };
    }

    /// A thread of the program begins to wait inside a call.
    pub fn enter_wait(&self) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
    }

    /// It has what it waited for. The last to leave hands the driving back.
    pub fn leave_wait(&self) {
        if self.waiters.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.ring();
        }
    }

    fn is_leased(&self, now: Time) -> bool {
        let polled = self.polled.load(Ordering::Relaxed);
        polled != 0 && now.as_nanos().saturating_sub(polled) < LEASE
    }
}

/// The thread: work, look, sleep.
fn run(engine: &Engine, nic: &Weak<Nic>) {
    loop {
        let (sleep, nanos) = {
            let Some(nic) = nic.upgrade() else { return };
            prepare(&nic)
        };
        match sleep {
            Sleep::Leased => thread::sleep(std::time::Duration::from_nanos(LEASE)),
            Sleep::Bell(bell) => {
                let _ = sleep::until_ready([bell], None);
            }
            Sleep::All => {
                let _ = sleep::until_ready([engine.epoll.raw()], nanos);
            }
        }
        let Some(nic) = nic.upgrade() else { return };
        nic.engine().asleep_until.store(0, Ordering::Relaxed);
        nic.engine().quiet();
        if nic.changes.as_ref().is_some_and(Changes::any) {
            nic.follow_interfaces();
        }
    }
}

/// How the engine sleeps.
enum Sleep {
    /// The program polls: look in after a while.
    Leased,
    /// A thread of the program waits and drives: until it rings.
    Bell(RawFd),
    /// Nobody else looks: until something arrives or is due.
    All,
}

/// Does what there is to do if it is ours to do, and decides how to sleep.
fn prepare(nic: &Nic) -> (Sleep, Option<u64>) {
    let engine = nic.engine();
    if engine.waiters.load(Ordering::SeqCst) > 0 {
        return (Sleep::Bell(engine.bell.raw()), None);
    }
    if engine.is_leased(nic.now()) {
        return (Sleep::Leased, None);
    }
    while nic.progress() {}
    // Say until when we sleep, then look once more: a deadline set meanwhile is either seen here or rings the bell.
    let until = |nic: &Nic| nic.timers.next().map_or(NEVER, Time::as_nanos);
    engine.asleep_until.store(until(nic), Ordering::Relaxed);
    fence(Ordering::SeqCst);
    (Sleep::All, nic.patience())
}

impl Engine {
    /// Takes the bell's count, so that it can ring again.
    fn quiet(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight live bytes, as an eventfd wants; the descriptor does not block.
        unsafe { libc::read(self.bell.raw(), count.as_mut_ptr().cast(), count.len()) };
    }
}
