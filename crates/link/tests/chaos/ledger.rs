//! What all processes of the test write into: who lives, and what became of every packet. It is memory that they share,
//! and nothing of what is tested is in it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

pub const LIVES: usize = 4096;
pub const PACKETS: usize = 1 << 20;
pub const SLOTS: usize = 3;

/// What processes do now.
pub const CHAOS: u32 = 0;
pub const QUIET: u32 = 1;
pub const DRAIN: u32 = 2;
pub const END: u32 = 3;

/// How far a life has come. From the first on it may hold packets, from the second on it is sent some.
pub const OPENING: u32 = 1;
pub const ALIVE: u32 = 2;
pub const ENDED: u32 = 3;

/// What a process knows of a packet that did not arrive: its owner is gone, its owner's socket is full, its slot has a
/// new owner.
pub const NOBODY: u32 = 1;
pub const FULL: u32 = 2;
pub const STALE: u32 = 3;

#[repr(C)]
pub struct Ledger {
    pub phase: AtomicU32,
    pub lives_begun: AtomicU32,
    pub packets_begun: AtomicU32,
    /// Things that must not happen.
    pub failures: AtomicU32,
    /// When the test last showed that it is there.
    pub heartbeat: AtomicU64,
    pub forks: AtomicU32,
    pub execs: AtomicU32,
    pub lives: [Life; LIVES],
    pub packets: [Record; PACKETS],
}

/// From the opening of an attachment to its end, however that comes.
#[repr(C)]
pub struct Life {
    pub state: AtomicU32,
    pub pid: AtomicI32,
    pub user: AtomicU32,
    pub slots: [AtomicU32; SLOTS],
    /// Everything that had arrived by then was dealt with.
    pub drained: AtomicU64,
    pub ended: AtomicU64,
    /// When a forked child had let go of what it had inherited. Until then the parent's sockets are open, though the
    /// parent may be dead.
    pub inherited: AtomicU64,
    /// Ended without the time to say goodbye.
    pub abrupt: AtomicU32,
    pub overflowed: AtomicU64,
    pub misdirected: AtomicU64,
    pub forwarded: AtomicU64,
    pub refused: AtomicU64,
    pub tables: AtomicU64,
}

#[repr(C)]
pub struct Record {
    /// The life it is for, plus one; 0 if there is no such packet yet.
    pub to: AtomicU32,
    /// When it had not been sent yet, and when it had: 0 if that never came.
    pub begun: AtomicU64,
    pub sent: AtomicU64,
    pub seen: AtomicU32,
    /// Why it was dropped by one who could say so.
    pub loss: AtomicU32,
}

impl Ledger {
    /// A new one, in a file that children inherit.
    pub fn create() -> (&'static Ledger, OwnedFd) {
        // SAFETY: a new file, ours alone; it is made large enough before it is mapped.
        let file = unsafe {
            let fd = libc::memfd_create(c"chaos".as_ptr(), 0);
            assert!(fd >= 0);
            assert_eq!(libc::ftruncate(fd, size_of::<Ledger>() as libc::off_t), 0);
            OwnedFd::from_raw_fd(fd)
        };
        (Ledger::open(file.as_raw_fd()), file)
    }

    pub fn open(fd: RawFd) -> &'static Ledger {
        let (read_write, length) = (libc::PROT_READ | libc::PROT_WRITE, size_of::<Ledger>());
        // SAFETY: maps the file that `create` made, of this size, for ever; it holds only atomics, for which zero is a
        // value.
        unsafe {
            let memory = libc::mmap(std::ptr::null_mut(), length, read_write, libc::MAP_SHARED, fd, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            &*memory.cast::<Ledger>()
        }
    }

    pub fn lives(&self) -> &[Life] {
        &self.lives[..(self.lives_begun.load(Relaxed) as usize).min(LIVES)]
    }

    pub fn packets(&self) -> &[Record] {
        &self.packets[..(self.packets_begun.load(Relaxed) as usize).min(PACKETS)]
    }

    pub fn alive(&self) -> usize {
        self.lives().iter().filter(|life| life.is_alive()).count()
    }

    /// Writes down that a process has ended, whichever process noticed.
    pub fn note_death(&self, pid: i32) {
        for life in self.lives().iter().filter(|life| life.pid.load(Relaxed) == pid) {
            life.end(true);
        }
    }
}

impl Life {
    pub fn is_alive(&self) -> bool {
        self.state.load(Relaxed) == ALIVE
    }

    pub fn end(&self, abrupt: bool) {
        let ended = |state| matches!(state, OPENING | ALIVE).then_some(ENDED);
        if self.state.fetch_update(Relaxed, Relaxed, ended).is_ok() {
            self.ended.store(now(), Relaxed);
            self.abrupt.store(abrupt.into(), Relaxed);
        }
    }
}

/// Nanoseconds on a clock that all processes share.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// SplitMix64: the same seed, the same decisions.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}
