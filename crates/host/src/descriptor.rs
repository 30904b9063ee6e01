//! Descriptors that a forked child must not keep. A child that inherits a slot's socket keeps its name taken, and one
//! that inherits the UDP socket takes a share of the packets, long after the parent has ended. So every descriptor of
//! the NIC is entered in one table, and [`close_in_child`] closes what the table holds: it takes no lock and allocates
//! nothing, because whatever lock there is may be held by a thread that the child does not have. This is not a general
//! owner of files: what programs are handed stays theirs, also in a child.

use crate::thread::Shield;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

const CHUNK_ENTRIES: usize = 256;

/// The table: chunks that are added and never removed. An entry is a generation in the high half and the descriptor
/// plus one in the low half; 0 there means free. The generation tells a new use of an entry from an old one.
struct Chunk {
    entries: [AtomicU64; CHUNK_ENTRIES],
    next: AtomicPtr<Chunk>,
}

impl Chunk {
    const fn new() -> Chunk {
        Chunk { entries: [const { AtomicU64::new(0) }; CHUNK_ENTRIES], next: AtomicPtr::new(null_mut()) }
    }

    fn following(&'static self) -> Option<&'static Chunk> {
        // SAFETY: the pointer is null or came from a leaked box, which lives as long as the process.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    fn grow(&'static self) -> &'static Chunk {
        let chunk = Box::into_raw(Box::new(Chunk::new()));
        match self.next.compare_exchange(null_mut(), chunk, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just leaked, and from now on reachable by every thread for ever.
            Ok(_) => unsafe { &*chunk },
            Err(other) => {
                // SAFETY: no other thread has seen our chunk; the other one is leaked like ours would have been.
                unsafe {
                    drop(Box::from_raw(chunk));
                    &*other
                }
            }
        }
    }
}

static DESCRIPTOR_TABLE: Chunk = Chunk::new();

/// What is told of every descriptor of ours that is opened, and of every one that is closed.
static DESCRIPTOR_OBSERVER: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Has `observer` told of every descriptor that is opened from now on, in the table or as a
/// [`ReadyPipe`](crate::ready_pipe::ReadyPipe), and of every one before it is closed. Not of what a forked child
/// closes.
pub fn observe(observer: fn(RawFd, bool)) {
    DESCRIPTOR_OBSERVER.store(observer as *mut (), Ordering::Release);
}

pub(crate) fn tell(fd: RawFd, kept: bool) {
    let observer = DESCRIPTOR_OBSERVER.load(Ordering::Acquire);
    if !observer.is_null() {
        // SAFETY: `observe` stores nothing else.
        let observer: fn(RawFd, bool) = unsafe { std::mem::transmute(observer) };
        observer(fd, kept);
    }
}

/// A descriptor that is closed when dropped, and in every forked child.
///
/// What was opened before a fork is harmless in the child: it no longer has a descriptor, so using it fails with
/// `EBADF` and dropping it closes nothing. For the same reason it lends no `BorrowedFd`.
#[derive(Debug)]
pub struct Descriptor {
    entry: &'static AtomicU64,
    value: u64,
}

impl Descriptor {
    /// Enters a descriptor into the table. Do it before the descriptor gets a name, a port or a peer: a fork before
    /// that copies nothing that matters.
    pub fn keep(owned: OwnedFd) -> Descriptor {
        // Where there is no other number left it keeps the one that it has.
        let fd = match owned.as_raw_fd() {
            0..=libc::STDERR_FILENO => owned.try_clone().unwrap_or(owned).into_raw_fd(),
            _ => owned.into_raw_fd(),
        };
        let low = fd as u32 as u64 + 1;
        let mut chunk = &DESCRIPTOR_TABLE;
        loop {
            for entry in &chunk.entries {
                let free = entry.load(Ordering::Relaxed);
                if free as u32 != 0 {
                    continue;
                }
                let value = free | low;
                if entry.compare_exchange(free, value, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    tell(fd, true);
                    return Descriptor { entry, value };
                }
            }
            chunk = chunk.following().unwrap_or_else(|| chunk.grow());
        }
    }

    /// A process that is there: readable once it has ended.
    pub fn of_process(pid: i32) -> io::Result<Descriptor> {
        let _opening = Opening::begin();
        // SAFETY: two numbers; the descriptor that comes back is ours.
        let process = unsafe {
            let fd = check(libc::syscall(libc::SYS_pidfd_open, pid, 0) as libc::c_int)?;
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Descriptor::keep(process))
    }

    /// The descriptor, to wait for it or to give it to a system call; -1 in a forked child.
    #[inline]
    pub fn raw(&self) -> RawFd {
        if self.entry.load(Ordering::Relaxed) == self.value { (self.value as u32 - 1) as RawFd } else { -1 }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // A child that is forked between the two would keep it.
        let (_shield, _opening) = (Shield::up(), Opening::begin());
        if self.entry.compare_exchange(self.value, freed(self.value), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            tell((self.value as u32 - 1) as RawFd, false);
            // SAFETY: the table held it for us alone, and no longer does.
            drop(unsafe { OwnedFd::from_raw_fd((self.value as u32 - 1) as RawFd) });
        }
    }
}

/// The entry when its descriptor has gone: the next generation, free.
fn freed(value: u64) -> u64 {
    (value >> 32).wrapping_add(1) << 32
}

/// Threads that are between opening a descriptor and entering it in the table, and whether a thread is about to fork.
static OPENING_THREADS: AtomicU32 = AtomicU32::new(0);
static FORKING_THREADS: AtomicU32 = AtomicU32::new(0);

/// How often the one looks for the other, and how long it sleeps in between: neither waits for ever.
const MAX_FORK_LOOKS: u32 = 10_000;
const LOOK_INTERVAL: Duration = Duration::from_micros(50);

/// A thread has a descriptor open that is not in the table, until this is dropped: others fork after that.
#[derive(Debug)]
#[must_use]
pub struct Opening {
    counted: bool,
}

impl Opening {
    /// From now on.
    pub fn begin() -> Opening {
        let counted = (0..MAX_FORK_LOOKS).any(|_| {
            OPENING_THREADS.fetch_add(1, Ordering::SeqCst);
            let counted = FORKING_THREADS.load(Ordering::SeqCst) == 0;
            if !counted {
                OPENING_THREADS.fetch_sub(1, Ordering::SeqCst);
                std::thread::sleep(LOOK_INTERVAL);
            }
            counted
        });
        Opening { counted }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if self.counted {
            OPENING_THREADS.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The calling thread is about to fork. Meant for `pthread_atfork`, as the next.
pub extern "C" fn before_fork() {
    FORKING_THREADS.fetch_add(1, Ordering::SeqCst);
    for _ in 0..MAX_FORK_LOOKS {
        if OPENING_THREADS.load(Ordering::SeqCst) == 0 {
            break;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// It has forked, and is the parent.
pub fn after_fork() {
    FORKING_THREADS.fetch_sub(1, Ordering::SeqCst);
}

/// Closes, in a process that has just been forked, every descriptor that its parent's NIC had. Meant for
/// `pthread_atfork`: async-signal-safe, takes no lock. Objects of the parent that the child sees in its memory do
/// nothing afterwards, and are harmless.
pub fn close_in_child() {
    FORKING_THREADS.store(0, Ordering::SeqCst);
    OPENING_THREADS.store(0, Ordering::SeqCst);
    let mut chunk = Some(&DESCRIPTOR_TABLE);
    while let Some(here) = chunk {
        for entry in &here.entries {
            let value = entry.load(Ordering::Relaxed);
            if value as u32 != 0 {
                entry.store(freed(value), Ordering::Relaxed);
                // SAFETY: the table owned the descriptor, and no other code closes it: the entry was the only right to
                // do so.
                unsafe { libc::close((value as u32 - 1) as RawFd) };
            }
        }
        chunk = here.following();
    }
}

/// How many descriptors the table holds.
pub fn kept() -> usize {
    let mut chunk = Some(&DESCRIPTOR_TABLE);
    let mut count = 0;
    while let Some(here) = chunk {
        count += here.entries.iter().filter(|entry| entry.load(Ordering::Relaxed) as u32 != 0).count();
        chunk = here.following();
    }
    count
}

/// A descriptor that is none of the first three: a program that was started without standard output must not write into
/// what is ours.
pub fn above_standard(owned: OwnedFd) -> io::Result<OwnedFd> {
    // A copy of the standard library's is above them.
    if owned.as_raw_fd() > libc::STDERR_FILENO { Ok(owned) } else { owned.try_clone() }
}

/// A UDP socket to ask the kernel by, which is none of the first three descriptors.
pub fn udp_socket(address: SocketAddr) -> io::Result<UdpSocket> {
    Ok(above_standard(UdpSocket::bind(address)?.into())?.into())
}

/// The answer of a system call as a result.
pub fn check(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer >= 0 { Ok(answer) } else { Err(io::Error::last_os_error()) }
}

/// The result of a system call that returns a length.
pub fn check_length(answer: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn open() -> Descriptor {
        Descriptor::keep(File::open("/dev/null").unwrap().into())
    }

    fn is_open(fd: RawFd) -> bool {
        // SAFETY: asks about a number; touches no memory.
        unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
    }

    #[test]
    fn a_descriptor_closes_when_dropped() {
        let descriptor = open();
        let entry = descriptor.entry;
        assert!(is_open(descriptor.raw()));
        let before = entry.load(Ordering::Relaxed);
        drop(descriptor);
        assert_ne!(entry.load(Ordering::Relaxed), before);
    }

    #[test]
    fn the_table_grows() {
        let many: Vec<_> = (0..2 * CHUNK_ENTRIES + 3).map(|_| open()).collect();
        assert!(kept() >= many.len());
        let mut numbers: Vec<_> = many.iter().map(Descriptor::raw).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), many.len());
    }

    #[test]
    fn a_child_has_nothing_and_drops_harmlessly() {
        let descriptor = open();
        let number = descriptor.raw();
        // SAFETY: the child calls only what is async-signal-safe, and leaves with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            close_in_child();
            let gone = !is_open(number) && descriptor.raw() == -1;
            // Its number may belong to another file by now: here it does.
            // SAFETY: a string constant, and a number.
            let reused = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) };
            drop(descriptor);
            let fine = gone && is_open(reused);
            // SAFETY: leaves without running anything of the parent's.
            unsafe { libc::_exit(if fine { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child; `status` is live.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert!(is_open(number) && descriptor.raw() == number, "the parent keeps its own");
    }
}
