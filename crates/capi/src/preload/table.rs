//! The descriptors that are rsockets to the program. A byte for each says whether there is anything to know, which
//! librspreload.so reads before every call; a pointer says what. A socket is never freed, only used again: a thread may
//! still look at it when another closes its descriptor.

use super::notes::Notes;
use super::{fail, real, rsocket};
use std::collections::HashMap;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Descriptors beyond are never ours. `xtask/src/preload.rs` knows the number.
pub const DESCRIPTOR_LIMIT: usize = 1 << 20;

/// A descriptor that the program has nothing to do with: an rsocket's own.
const KIND_INTERNAL: u8 = 2;

/// A descriptor of the NIC's, which closes it in a child itself.
const KIND_NIC: u8 = 3;

/// A descriptor that leads to a [`Socket`].
const KIND_SOCKET: u8 = 1;

/// What librspreload.so looks at: 0 for what is not ours.
#[unsafe(export_name = "ubiverbs_rspreload_kinds")]
pub static DESCRIPTOR_KINDS: [AtomicU8; DESCRIPTOR_LIMIT] = [const { AtomicU8::new(0) }; DESCRIPTOR_LIMIT];

/// Sockets by descriptor: as many places, made when the first is needed. A program without sockets has none.
static SOCKET_TABLE: AtomicPtr<AtomicPtr<Socket>> = AtomicPtr::new(null_mut());

/// The place of a descriptor below the limit, if there are places.
#[inline]
fn place(at: usize) -> Option<&'static AtomicPtr<Socket>> {
    let places = SOCKET_TABLE.load(Ordering::Acquire);
    // SAFETY: there are as many as the limit says, and they stay.
    (!places.is_null() && at < DESCRIPTOR_LIMIT).then(|| unsafe { &*places.add(at) })
}

/// Makes the places, unless they are there. False if there is no memory for them.
fn make_places() -> bool {
    if !SOCKET_TABLE.load(Ordering::Acquire).is_null() {
        return true;
    }
    let Ok(layout) = std::alloc::Layout::array::<AtomicPtr<Socket>>(DESCRIPTOR_LIMIT) else { return false };
    // SAFETY: of a size that is not zero; all zeros are null pointers.
    let made = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<AtomicPtr<Socket>>();
    if made.is_null() {
        return false;
    }
    if SOCKET_TABLE.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: just made, and no other thread has seen it.
        unsafe { std::alloc::dealloc(made.cast(), layout) };
    }
    true
}

/// No descriptor of ours is higher.
static HIGHEST_DESCRIPTOR: AtomicUsize = AtomicUsize::new(0);

/// The kernel has it.
const HANDED_OVER: c_int = -1;

/// This process has inherited it before it was bound or connected, and makes an rsocket when it needs one.
const UNMADE_SOCKET: c_int = -2;

/// What an rsocket is to the program, by whichever descriptors.
#[derive(Debug, Default)]
pub struct Socket {
    /// The rsocket; [`HANDED_OVER`] or [`UNMADE_SOCKET`] where there is none.
    rsocket: AtomicI32,
    /// Another socket has another number, though it may have the same place.
    pub era: AtomicU32,
    /// How many descriptors lead here.
    references: AtomicU32,
    /// `AF_INET` or `AF_INET6`.
    pub domain: AtomicI32,
    /// `SOCK_STREAM` or `SOCK_DGRAM`.
    pub kind: AtomicI32,
    /// It listens.
    pub listens: AtomicBool,
    /// A connection was made, or is being made.
    pub connects: AtomicBool,
    /// The connection was not there yet when it was asked for.
    pub connecting: AtomicBool,
    /// Calls do not wait.
    pub nonblocking: AtomicBool,
    /// Calls that are reading from the rsocket now: a thread that takes over waits for them.
    pub readers: AtomicU32,
    /// Calls that are writing to it.
    pub writers: AtomicU32,
    /// How long a call may wait for bytes, in milliseconds; 0 is for ever.
    pub receive_timeout: AtomicU32,
    /// How long a call may wait for room to write, in milliseconds; 0 is for ever.
    pub send_timeout: AtomicU32,
}

impl Socket {
    /// The rsocket, unless it has been handed over.
    #[inline]
    pub fn direct(&self) -> Option<c_int> {
        match self.rsocket.load(Ordering::SeqCst) {
            rsocket @ 0.. => Some(rsocket),
            UNMADE_SOCKET => self.remake(),
            _ => None,
        }
    }

    /// A child makes an rsocket in place of one that it inherited before it was of any use. Its options are new.
    #[cold]
    fn remake(&self) -> Option<c_int> {
        let (domain, kind) = (self.domain.load(Ordering::Relaxed), self.kind.load(Ordering::Relaxed));
        let made = rsocket::rsocket(domain, kind, 0);
        if made < 0 {
            return None;
        }
        if self.nonblocking.load(Ordering::Relaxed) {
            rsocket::rfcntl(made, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK).into());
        }
        self.set_direct(made);
        Some(made)
    }

    /// The rsocket is another's from now on: it is answered once.
    pub fn let_go(&self) -> Option<c_int> {
        let rsocket = self.rsocket.swap(HANDED_OVER, Ordering::SeqCst);
        (rsocket >= 0).then_some(rsocket)
    }

    /// Its rsocket is that of a parent process.
    pub(super) fn forget_parents(&self) {
        if self.rsocket.load(Ordering::Relaxed) >= 0 {
            self.rsocket.store(UNMADE_SOCKET, Ordering::Relaxed);
        }
    }

    /// Another rsocket, or one again.
    pub fn set_direct(&self, rsocket: c_int) {
        set_internal(rsocket, true);
        self.rsocket.store(rsocket, Ordering::SeqCst);
    }

    /// Whether it is no datagram socket.
    pub fn is_stream(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == libc::SOCK_STREAM
    }
}

/// What is asked for rarely, under one lock, which a fork waits for: so no child finds it locked.
#[derive(Debug, Default)]
pub struct SocketBook {
    free: Vec<&'static Socket>,
    /// What is known of sockets that were handed over, and of options that rsockets do not know.
    pub(super) notes: HashMap<usize, Notes>,
}

static PROCESS_BOOK: Mutex<Option<SocketBook>> = Mutex::new(None);

/// One socket is handed over at a time.
static HANDOVER_TURN: Mutex<()> = Mutex::new(());

/// The locks, while a fork is under way.
static FORK_LOCKS: Mutex<ForkLocks> = Mutex::new(ForkLocks(None));

type Locks = (MutexGuard<'static, ()>, MutexGuard<'static, Option<SocketBook>>);

struct ForkLocks(Option<ManuallyDrop<Locks>>);

// SAFETY: the guards are dropped by the thread that locked, or by the only thread of its child.
unsafe impl Send for ForkLocks {}

/// Runs with the book, alone.
pub fn with_book<T>(f: impl FnOnce(&mut SocketBook) -> T) -> T {
    let mut book = PROCESS_BOOK.lock().unwrap_or_else(PoisonError::into_inner);
    f(book.get_or_insert_default())
}

/// Whether the book can be had soon: a thread that is interrupted may have it.
pub(super) fn book_is_free() -> bool {
    (0..1000).any(|_| {
        let free = PROCESS_BOOK.try_lock().is_ok();
        if !free {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        free
    })
}

/// The right to hand a socket over.
pub(super) fn turn() -> MutexGuard<'static, ()> {
    HANDOVER_TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps all locks until [`unlock_all`].
pub(super) fn lock_all() {
    let locks = (turn(), PROCESS_BOOK.lock().unwrap_or_else(PoisonError::into_inner));
    FORK_LOCKS.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(ManuallyDrop::new(locks));
}

/// In the parent, and in the child.
pub(super) fn unlock_all() {
    let locks = FORK_LOCKS.lock().unwrap_or_else(PoisonError::into_inner).0.take();
    drop(locks.map(ManuallyDrop::into_inner));
}

/// What a descriptor leads to.
#[inline]
pub fn socket(fd: c_int) -> Option<&'static Socket> {
    let at = usize::try_from(fd).ok().filter(|at| *at < DESCRIPTOR_LIMIT)?;
    if DESCRIPTOR_KINDS[at].load(Ordering::Acquire) != KIND_SOCKET {
        return None;
    }
    // SAFETY: null, or a socket, which is never freed.
    unsafe { place(at)?.load(Ordering::Acquire).as_ref() }
}

/// The rsocket of a descriptor, if there is one and it has not been handed over.
#[inline]
pub fn direct(fd: c_int) -> Option<c_int> {
    socket(fd)?.direct()
}

/// Whether a descriptor is an rsocket's own, or the NIC's, which the program does not know.
pub fn is_internal(fd: c_int) -> bool {
    matches!(kind(fd), KIND_INTERNAL | KIND_NIC)
}

fn kind(fd: c_int) -> u8 {
    let kind = usize::try_from(fd).ok().and_then(|at| DESCRIPTOR_KINDS.get(at));
    kind.map_or(0, |kind| kind.load(Ordering::Relaxed))
}

/// Keeps the program from the NIC's descriptors.
pub(super) fn observe_nic() {
    hca::observe_descriptors(|fd, kept| set_kind(fd, if kept { KIND_NIC } else { 0 }));
}

/// Says whether a descriptor is ours alone. A forked child closes those that are.
pub(super) fn set_internal(fd: c_int, internal: bool) {
    set_kind(fd, if internal { KIND_INTERNAL } else { 0 });
}

fn set_kind(fd: c_int, value: u8) {
    if let Some(kind) = usize::try_from(fd).ok().and_then(|at| DESCRIPTOR_KINDS.get(at)) {
        kind.store(value, Ordering::Release);
        HIGHEST_DESCRIPTOR.fetch_max(fd as usize, Ordering::Relaxed);
    }
}

/// A socket for an rsocket, which no descriptor leads to yet.
pub fn new_socket(rsocket: c_int, domain: c_int, kind: c_int) -> &'static Socket {
    let socket = with_book(|book| book.free.pop()).unwrap_or_else(|| Box::leak(Box::default()));
    socket.era.fetch_add(1, Ordering::AcqRel);
    socket.domain.store(domain, Ordering::Relaxed);
    socket.kind.store(kind, Ordering::Relaxed);
    for flag in [&socket.listens, &socket.connects, &socket.connecting, &socket.nonblocking] {
        flag.store(false, Ordering::Relaxed);
    }
    for count in [&socket.references, &socket.readers, &socket.writers, &socket.receive_timeout, &socket.send_timeout] {
        count.store(0, Ordering::Relaxed);
    }
    if rsocket >= 0 {
        socket.set_direct(rsocket);
    } else {
        socket.rsocket.store(HANDED_OVER, Ordering::Release);
    }
    socket
}

/// Whether a descriptor has a place in the table.
pub fn has_room(fd: c_int) -> bool {
    usize::try_from(fd).is_ok_and(|at| at < DESCRIPTOR_LIMIT) && make_places()
}

/// From now on, a descriptor leads to a socket.
pub fn insert(fd: c_int, socket: &'static Socket) {
    let Some(at) = usize::try_from(fd).ok().filter(|at| *at < DESCRIPTOR_LIMIT) else { return };
    let Some(place) = place(at) else { return };
    socket.references.fetch_add(1, Ordering::AcqRel);
    place.store(std::ptr::from_ref(socket).cast_mut(), Ordering::Release);
    HIGHEST_DESCRIPTOR.fetch_max(at, Ordering::Relaxed);
    DESCRIPTOR_KINDS[at].store(KIND_SOCKET, Ordering::Release);
}

/// From now on it leads nowhere. Returns where it did, and whether no other descriptor does.
pub fn remove(fd: c_int) -> Option<(&'static Socket, bool)> {
    let found = socket(fd)?;
    let at = fd as usize;
    DESCRIPTOR_KINDS[at].store(0, Ordering::Release);
    if place(at)?.swap(null_mut(), Ordering::AcqRel).is_null() {
        return None;
    }
    let last = found.references.fetch_sub(1, Ordering::AcqRel) == 1;
    Some((found, last))
}

/// No descriptor leads there any more: it may be used again.
pub fn recycle(socket: &'static Socket) {
    with_book(|book| {
        book.notes.remove(&key(socket));
        book.free.push(socket);
    });
}

/// Closes a descriptor of the program's; the socket goes with the last that leads to it.
pub(super) fn close(fd: c_int) -> c_int {
    if is_internal(fd) {
        return fail(libc::EBADF);
    }
    let found = remove(fd);
    // SAFETY: the program's descriptor. Nothing is lost with it: the rsocket has another.
    let result = unsafe { real::close(fd) };
    match found {
        Some((socket, true)) => end(socket),
        _ => result,
    }
}

/// No descriptor leads to this socket any more.
pub(super) fn end(socket: &'static Socket) -> c_int {
    let rsocket = socket.let_go();
    recycle(socket);
    match rsocket {
        Some(rsocket) => close_rsocket(rsocket),
        None => 0,
    }
}

/// Closes an rsocket; its number is the program's again, or anybody's.
pub(super) fn close_rsocket(rsocket: c_int) -> c_int {
    set_internal(rsocket, false);
    rsocket::rclose(rsocket)
}

/// What a socket's notes are found by.
pub fn key(socket: &'static Socket) -> usize {
    std::ptr::from_ref(socket).addr()
}

/// In a child: what is an rsocket's own belongs to the parent, and is closed; so is what is the NIC's, by the NIC.
pub(super) fn close_internal(close: impl Fn(c_int)) {
    for fd in (0..=highest()).filter(|fd| is_internal(*fd)) {
        if kind(fd) == KIND_INTERNAL {
            close(fd);
        }
        set_kind(fd, 0);
    }
}

/// All descriptors that lead somewhere.
pub fn all() -> impl Iterator<Item = (c_int, &'static Socket)> {
    let end = HIGHEST_DESCRIPTOR.load(Ordering::Relaxed) as c_int;
    (0..=end).filter_map(|fd| socket(fd).map(|socket| (fd, socket)))
}

/// The highest descriptor that may be ours.
pub fn highest() -> c_int {
    HIGHEST_DESCRIPTOR.load(Ordering::Relaxed) as c_int
}
