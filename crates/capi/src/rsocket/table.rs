//! The sockets of the process by descriptor. A descriptor is a Unix socket that is connected to nothing, so that its
//! number is the process's and `close`, `dup` and `fork` know it. Sockets of programs that know nothing of rsockets
//! (`preload`) have descriptors of their own, and here a number beyond all descriptors.

use crate::errno::Errno;
use crate::registry::lock;
use latch::{PerProcess, generation};
use sockets::{Datagram, ShortWaits, Socket, Waitable};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// What is behind a descriptor.
#[derive(Debug)]
pub(crate) enum Kind {
    Stream(Arc<Socket>),
    Datagram(Arc<Datagram>),
}

/// A socket that a program has.
#[derive(Debug)]
pub(crate) struct SocketEntry {
    /// The program's descriptor, or a number beyond.
    pub fd: RawFd,
    pub kind: Kind,
    /// `AF_INET` or `AF_INET6`.
    pub family: i32,
    pub nonblocking: AtomicBool,
    /// What `F_SETFL` has set.
    pub status_flags: AtomicI32,
    pub options: Mutex<super::options::Options>,
    /// The last sleep of a call was short: the next looks for longer before it sleeps.
    pub sleeps_shortly: AtomicBool,
    /// Waits of calls that have got on and are not done.
    pub flow_waits: ShortWaits,
}

impl SocketEntry {
    /// A socket with a number, in the table.
    pub fn open(kind: Kind, family: i32, flags: i32, numbered: Numbered) -> Result<Arc<SocketEntry>, Errno> {
        let number = match numbered {
            Numbered::Descriptor => {
                let flavour = libc::SOCK_DGRAM | (flags & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK));
                // SAFETY: plain numbers.
                match unsafe { libc::socket(libc::AF_UNIX, flavour, 0) } {
                    ..0 => return Err(std::io::Error::last_os_error().into()),
                    fd => fd,
                }
            }
            Numbered::Beyond => beyond().take().ok_or(Errno::of(libc::EMFILE))?,
        };
        if numbered == Numbered::Descriptor && number >= FIRST_BEYOND {
            // SAFETY: just made.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
            return Err(Errno::of(libc::EMFILE));
        }
        let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
        let entry = Arc::new(SocketEntry {
            fd: number,
            kind,
            family,
            nonblocking: AtomicBool::new(nonblocking),
            status_flags: AtomicI32::new(libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 }),
            options: Mutex::default(),
            sleeps_shortly: AtomicBool::new(false),
            flow_waits: ShortWaits::default(),
        });
        if !insert(&entry) {
            entry.give_back_number();
            return Err(Errno::of(libc::EMFILE));
        }
        Ok(entry)
    }

    /// Its number, and nothing else, is free again. It is not in the table.
    pub fn give_back_number(&self) {
        match self.is_descriptor() {
            // SAFETY: the program's, or just made; no socket is known by it any more.
            true => drop(unsafe { OwnedFd::from_raw_fd(self.fd) }),
            false => beyond().give_back(self.fd),
        }
    }

    /// Whether its number is a descriptor.
    pub fn is_descriptor(&self) -> bool {
        self.fd < FIRST_BEYOND
    }

    /// The stream; `EOPNOTSUPP` for a socket of datagrams.
    pub fn stream(&self) -> Result<&Arc<Socket>, Errno> {
        match &self.kind {
            Kind::Stream(socket) => Ok(socket),
            Kind::Datagram(_) => Err(Errno::UNSUPPORTED),
        }
    }

    /// What calls wait for.
    pub fn waitable(&self) -> &dyn Waitable {
        match &self.kind {
            Kind::Stream(socket) => &**socket,
            Kind::Datagram(socket) => &**socket,
        }
    }

    /// Whether a call with these flags waits.
    pub fn waits(&self, flags: i32) -> bool {
        flags & libc::MSG_DONTWAIT == 0 && !self.nonblocking.load(Ordering::Relaxed)
    }
}

const CHUNK_ENTRIES: usize = 1024;
const CHUNK_COUNT: usize = 2048;

/// From here on numbers are no descriptors.
const FIRST_BEYOND: RawFd = (CHUNK_ENTRIES * CHUNK_COUNT / 2) as RawFd;

/// What a socket is known by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numbered {
    /// A descriptor of the process.
    Descriptor,
    /// A number beyond.
    Beyond,
}

/// Numbers beyond descriptors: how many were used, and those that are free again.
#[derive(Default)]
struct Beyond(Mutex<(RawFd, Vec<RawFd>)>);

fn beyond() -> &'static Beyond {
    static NUMBERS: PerProcess<Beyond> = PerProcess::new();
    NUMBERS.get_or_make(Beyond::default)
}

impl Beyond {
    fn take(&self) -> Option<RawFd> {
        let mut numbers = lock(&self.0);
        let (used, free) = &mut *numbers;
        free.pop().or_else(|| {
            *used += 1;
            (*used <= FIRST_BEYOND).then(|| FIRST_BEYOND + *used - 1)
        })
    }

    fn give_back(&self, number: RawFd) {
        lock(&self.0).1.push(number);
    }
}

type Slots = Box<[Mutex<Option<Arc<SocketEntry>>>]>;

/// Sockets by descriptor: chunks that are made when they are needed, and stay.
struct Table {
    chunks: [OnceLock<Slots>; CHUNK_COUNT],
}

static SOCKET_TABLE: PerProcess<Table> = PerProcess::new();

fn table() -> &'static Table {
    SOCKET_TABLE.get_or_make(|| Table { chunks: [const { OnceLock::new() }; CHUNK_COUNT] })
}

impl Table {
    fn slot(&self, fd: RawFd) -> Option<&Mutex<Option<Arc<SocketEntry>>>> {
        let fd = usize::try_from(fd).ok()?;
        self.chunks.get(fd / CHUNK_ENTRIES)?.get()?.get(fd % CHUNK_ENTRIES)
    }

    fn make_slot(&self, fd: RawFd) -> Option<&Mutex<Option<Arc<SocketEntry>>>> {
        let fd = usize::try_from(fd).ok()?;
        let chunk = self.chunks.get(fd / CHUNK_ENTRIES)?;
        chunk.get_or_init(|| (0..CHUNK_ENTRIES).map(|_| Mutex::default()).collect()).get(fd % CHUNK_ENTRIES)
    }
}

fn insert(entry: &Arc<SocketEntry>) -> bool {
    let Some(slot) = table().make_slot(entry.fd) else { return false };
    let before = lock(slot).replace(Arc::clone(entry));
    mark(entry.fd, generation().wrapping_add(1));
    // The program has closed its descriptor without a word to us, and the number is in use again.
    drop(before);
    true
}

/// The socket behind a descriptor, if there is one.
#[inline]
pub(crate) fn find(fd: RawFd) -> Option<Arc<SocketEntry>> {
    lock(SOCKET_TABLE.get()?.slot(fd)?).clone()
}

/// The socket behind a descriptor, or why there is none: `EBADF`, or `EIO` for one that a forked child has inherited.
#[inline]
pub(crate) fn entry(fd: RawFd) -> Result<Arc<SocketEntry>, Errno> {
    find(fd).ok_or_else(|| missing(fd))
}

#[cold]
fn missing(fd: RawFd) -> Errno {
    match marked(fd) {
        0 => Errno::of(libc::EBADF),
        mark if mark == generation().wrapping_add(1) => Errno::of(libc::EBADF),
        _ => Errno::inherited(),
    }
}

/// Takes a socket out of the table.
pub(crate) fn remove(fd: RawFd) -> Result<Arc<SocketEntry>, Errno> {
    let found = SOCKET_TABLE.get().and_then(|table| table.slot(fd)).and_then(|slot| lock(slot).take());
    let entry = found.ok_or_else(|| missing(fd))?;
    mark(fd, 0);
    Ok(entry)
}

type Marks = [AtomicU32; CHUNK_ENTRIES];

/// Which process had a socket of that number, as its generation plus one: what a forked child has inherited it must not
/// take for a descriptor that never was. No lock: its holder may be missing in a child.
static SOCKET_MARKS: [AtomicPtr<Marks>; CHUNK_COUNT] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNK_COUNT];

fn marked(fd: RawFd) -> u32 {
    let Ok(fd) = usize::try_from(fd) else { return 0 };
    let Some(chunk) = SOCKET_MARKS.get(fd / CHUNK_ENTRIES) else { return 0 };
    // SAFETY: null, or from a leaked box.
    unsafe { chunk.load(Ordering::Acquire).as_ref() }
        .map_or(0, |marks| marks[fd % CHUNK_ENTRIES].load(Ordering::Relaxed))
}

fn mark(fd: RawFd, value: u32) {
    let Ok(fd) = usize::try_from(fd) else { return };
    let Some(chunk) = SOCKET_MARKS.get(fd / CHUNK_ENTRIES) else { return };
    let mut marks = chunk.load(Ordering::Acquire);
    if marks.is_null() {
        let made = Box::into_raw(Box::new([const { AtomicU32::new(0) }; CHUNK_ENTRIES]));
        match chunk.compare_exchange(marks, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => marks = made,
            Err(other) => {
                // SAFETY: no other thread has seen ours.
                drop(unsafe { Box::from_raw(made) });
                marks = other;
            }
        }
    }
    // SAFETY: from a leaked box, not null.
    let marks = unsafe { &*marks };
    marks[fd % CHUNK_ENTRIES].store(value, Ordering::Relaxed);
}
