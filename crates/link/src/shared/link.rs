//! A link in one direction, as each of its ends sees it: where trains are written, and where they are read. Both are
//! handed out behind an `Arc`: queue pairs keep using them while the [`Exchange`](super::Exchange) sees to the
//! connection.

use super::direct::{Grant, PeerMemory, PeerTable, Published};
use super::doorbell::PeerDoorbell;
use super::ring::{Reader, Writer};
use super::word::{Needs, Sleeper};
use crate::prefetch;
use host::descriptor::Descriptor;
use host::slots::Slot;
use host::{greeting, passing};
use latch::{Apart, Guard, Mutex, Rank};
use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use wire::{Headers, Qpn};

/// Where a link is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The other process has not answered yet. It may be stopped.
    Connecting,
    /// Trains can be written.
    Up,
    /// The other process wants none: it is to be reached otherwise.
    Refused,
    /// The other process has gone, or does not keep to the rules.
    Dead,
}

/// To another process.
#[derive(Debug)]
pub struct Outbound {
    /// The slot it leads to, and by which lane.
    place: (Slot, u32),
    state: AtomicU32,
    pub(super) socket: Descriptor,
    /// Readable when the other process has ended, even if another process holds its connections.
    pub(super) process: Option<Descriptor>,
    /// The other process, as the kernel says; 0 if it cannot be seen from here.
    peer: i32,
    writer: Mutex<Writer>,
    pub(super) doorbell: OnceLock<PeerDoorbell>,
    /// What the other process publishes, until it grants us its memory.
    pub(super) peer_table: Mutex<Option<PeerTable>>,
    /// Its memory, once it has.
    pub(super) peer_memory: OnceLock<PeerMemory>,
    /// The queue pairs that go on when there is room, or when the link is up.
    waiting: Mutex<VecDeque<Qpn>>,
    /// The other process has ended, and all it had written was read.
    given_up: AtomicBool,
    /// The other process does not keep to the rules.
    condemned: AtomicBool,
}

impl Outbound {
    pub(super) fn new(
        place: (Slot, u32),
        socket: Descriptor,
        (peer, process): (i32, Option<Descriptor>),
        writer: Writer,
    ) -> Outbound {
        Outbound {
            place,
            peer,
            state: AtomicU32::new(State::Connecting as u32),
            socket,
            process,
            writer: Mutex::new(Rank::RingWriter, writer),
            doorbell: OnceLock::new(),
            peer_table: Mutex::new(Rank::PeerMemory, None),
            peer_memory: OnceLock::new(),
            waiting: Mutex::new(Rank::LinkWaiters, VecDeque::new()),
            given_up: AtomicBool::new(false),
            condemned: AtomicBool::new(false),
        }
    }

    /// The slot it leads to, and by which lane.
    pub(super) fn place(&self) -> (Slot, u32) {
        self.place
    }

    /// The process it leads to; 0 if it cannot be seen from here.
    pub fn peer(&self) -> i32 {
        self.peer
    }

    /// Where it is in its life.
    #[inline]
    pub fn state(&self) -> State {
        // A forked child has no part in it: its parent's ring is not even mapped there.
        if self.socket.raw() < 0 {
            return State::Dead;
        }
        const STATES: [State; 4] = [State::Connecting, State::Up, State::Refused, State::Dead];
        STATES[self.state.load(Ordering::SeqCst) as usize % 4]
    }

    pub(super) fn enter(&self, state: State) {
        self.state.store(state as u32, Ordering::SeqCst);
    }

    /// Whether the process at the other end has ended or closed the connection, as the kernel knows it now.
    pub(super) fn peer_has_ended(&self) -> bool {
        // The end of a connection is always reported.
        let connection = libc::pollfd { fd: self.socket.raw(), events: 0, revents: 0 };
        let process = self.process.as_ref().map_or(-1, Descriptor::raw);
        let mut ends = [connection, libc::pollfd { fd: process, events: libc::POLLIN, revents: 0 }];
        // SAFETY: a live array of two; the kernel passes over negative descriptors.
        unsafe { libc::poll(ends.as_mut_ptr(), 2, 0) > 0 }
    }

    /// The other process's memory, where it lets us in.
    #[inline]
    pub fn peer_memory(&self) -> Option<&PeerMemory> {
        self.peer_memory.get().filter(|memory| memory.is_open() && self.state() == State::Up)
    }

    /// Looks at what the other process publishes by this descriptor of its own, and shows that we could.
    pub(super) fn ask_for_memory(&self, descriptor: u64) -> io::Result<()> {
        let table = PeerTable::open(self.peer, descriptor)?;
        let secret = table.secret();
        *self.peer_table.lock() = Some(table);
        passing::send(&self.socket, &greeting::numbered(greeting::DIRECT_PROOF, secret), &[])
    }

    /// The other process lets us in, and takes our claims.
    pub(super) fn take_memory(&self, memory: OwnedFd, claims: Option<OwnedFd>, grant: u64) -> io::Result<()> {
        let Some(table) = self.peer_table.lock().take() else { return Err(io::ErrorKind::InvalidData.into()) };
        let _ = self.peer_memory.set(PeerMemory::accept(table, memory, claims, grant)?);
        Ok(())
    }

    /// The ring, if the link is up.
    #[inline]
    pub fn writer(&self) -> Option<Guard<'_, Writer>> {
        (self.state() == State::Up).then(|| self.writer.lock())
    }

    /// The link is dead: the datagrams in it that were not read, each once. A thread that had found the link up and gets
    /// the ring after this has to ask again whether it is.
    #[cold]
    pub fn take_unread_datagrams(&self) -> Vec<Headers> {
        match self.state() {
            State::Dead if self.socket.raw() >= 0 => self.writer.lock().take_unread_datagrams(),
            _ => Vec::new(),
        }
    }

    /// Passes memory to the process that reads the ring, by a descriptor and a number. Never waits.
    pub fn pass(&self, number: u64, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        passing::send(&self.socket, &greeting::numbered(greeting::MEMORY_DESCRIPTOR, number), &[descriptor.as_raw_fd()])
    }

    /// Something was written, `urgent` if it is more than an acknowledgement: rings, if the other process sleeps.
    #[inline]
    pub fn ring(&self, urgent: bool) {
        if let Needs::Ring(sleeper) = self.needs(urgent) {
            self.strike(sleeper);
        }
    }

    /// [`ring`](Outbound::ring) in two steps, because a system call may take long: the caller must
    /// [`strike`](Outbound::strike) for the sleeper that this answers, if it answers one.
    #[inline]
    #[must_use]
    pub fn needs(&self, urgent: bool) -> Needs {
        self.doorbell.get().map_or(Needs::Nothing, |doorbell| doorbell.needs(urgent))
    }

    /// Rings.
    pub fn strike(&self, sleeper: Sleeper) {
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.strike(sleeper);
        }
    }

    /// Whether the other process says that its program polls, and so is not rung for.
    #[inline]
    pub fn is_leased(&self) -> bool {
        self.doorbell.get().is_some_and(PeerDoorbell::is_leased)
    }

    /// Rings for its engine all the same, since no thread there looks. False if it does not say so any more.
    pub fn insist(&self) -> bool {
        self.doorbell.get().is_some_and(PeerDoorbell::insist)
    }

    /// Whether the other process has read everything up to `position`. One that is gone reads nothing more, and one
    /// that was never reached never will: then there is nothing to wait for.
    pub fn was_read(&self, position: u64) -> bool {
        match self.state() {
            State::Connecting => false,
            State::Up => self.writer.lock().was_read(position),
            State::Refused | State::Dead => true,
        }
    }

    /// The other process does not keep to the rules: the link ends as if that process had. True the first time.
    #[cold]
    pub fn condemn(&self) -> bool {
        // SAFETY: numbers.
        unsafe { libc::shutdown(self.socket.raw(), libc::SHUT_RDWR) };
        !self.condemned.swap(true, Ordering::Relaxed)
    }

    /// The other process has ended, and all it had written was read: from now on nothing more is expected of it.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
    }

    /// Whether that was said.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }

    pub(super) fn add_waiting(&self, qpn: Qpn) {
        self.waiting.lock().push_back(qpn);
    }

    /// The queue pair that has waited longest, if it can go on: there is room, or the link is no longer what it waited
    /// for. `asleep` asks to be woken when there is.
    pub(super) fn next_waiting(&self, asleep: bool) -> Option<Qpn> {
        match self.state() {
            State::Connecting => return None,
            State::Up => {
                let mut writer = match self.writer.try_lock() {
                    Some(writer) => writer,
                    // Another thread writes. The queue pair stays in the list.
                    None if !asleep => return None,
                    None => self.writer.lock(),
                };
                if !writer.has_room() {
                    if !asleep {
                        return None;
                    }
                    writer.want_room();
                    if !writer.has_room() {
                        return None;
                    }
                }
            }
            State::Refused | State::Dead => {}
        }
        self.waiting.lock().pop_front()
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.lock().is_empty()
    }
}

/// From another process. All threads that poll look at all links, but only at what is seldom written: what the reading
/// thread writes with every train lies apart.
#[derive(Debug)]
pub struct Inbound {
    pub(super) socket: Descriptor,
    /// The process that writes, as the kernel says; 0 if it cannot be seen from here.
    writer: i32,
    /// The other process has gone: what it wrote is still to be read.
    ended: AtomicBool,
    /// The thread that polls for what comes here, as far as is known.
    reader_thread: AtomicUsize,
    flags: Flags,
    /// Memory that the writer has passed, by number, and that no train has spoken of yet.
    passed: Mutex<VecDeque<(u64, OwnedFd)>>,
    /// What the writer may reach of our memory, and the grant if it does.
    published: Option<Arc<Published>>,
    grant: Mutex<Option<Arc<Grant>>>,
    hot: Apart<ReadingSide>,
}

/// What the reading thread writes.
#[derive(Debug)]
struct ReadingSide {
    /// Where the reader is, to see without its lock whether there is something.
    at: AtomicUsize,
    /// The writer has not been told of everything that was read.
    untold: AtomicBool,
    reader: Mutex<ReaderState>,
}

/// The reader, and what the reading thread remembers from one look to the next.
#[derive(Debug)]
struct ReaderState {
    reader: Reader,
    notes: Option<Notes>,
}

/// For what the last train was, so that the next one need not be looked up: trains come in runs.
#[derive(Clone, Debug)]
pub struct Notes {
    /// The version of the reader's table when that was so.
    pub version: u32,
    /// The number that stood in the train.
    pub number: u32,
    /// What has that number.
    pub object: Arc<dyn Any + Send + Sync>,
}

/// The mapping's words, for threads that do not hold the reader's lock. It lives as long as the reader, which is never
/// replaced.
#[derive(Debug)]
struct Flags {
    first: *const AtomicU32,
    length: usize,
}

// SAFETY: a pointer to atomics of a mapping that belongs to the process.
unsafe impl Send for Flags {}
// SAFETY: as above.
unsafe impl Sync for Flags {}

/// How much passed memory waits to be used.
const MOST_PASSED: usize = 64;

/// What came on the connection of a ring that we read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    Nothing,
    Message,
    End,
}

impl Inbound {
    pub(super) fn new(socket: Descriptor, writer: i32, reader: Reader, published: Option<Arc<Published>>) -> Inbound {
        let flags = Flags { first: reader.flags(), length: reader.lap() / 4 };
        Inbound {
            socket,
            writer,
            ended: AtomicBool::new(false),
            reader_thread: AtomicUsize::new(0),
            flags,
            passed: Mutex::new(Rank::PassedMemory, VecDeque::new()),
            published,
            grant: Mutex::new(Rank::PassedMemory, None),
            hot: Apart(ReadingSide {
                at: AtomicUsize::new(0),
                untold: AtomicBool::new(false),
                reader: Mutex::new(Rank::RingReader, ReaderState { reader, notes: None }),
            }),
        }
    }

    /// Takes a message that the writer sent beside the ring: it passes memory, or asks for ours.
    pub(super) fn hear(&self) -> Heard {
        let (mut bytes, mut descriptors) = ([0; 16], Vec::new());
        match passing::receive(&self.socket, &mut bytes, &mut descriptors) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Heard::Nothing,
            Ok(length) if length > 0 => {
                let said = greeting::number(&bytes).filter(|_| length == bytes.len());
                if let (Some((greeting::MEMORY_DESCRIPTOR, number)), Some(descriptor)) = (said, descriptors.pop()) {
                    let mut passed = self.passed.lock();
                    if passed.len() == MOST_PASSED {
                        passed.pop_front();
                    }
                    passed.push_back((number, descriptor));
                } else if let (Some((kind, number)), Some(published)) = (said, &self.published) {
                    let granted = published.answer((&self.socket, self.writer), kind, number);
                    if granted.is_some() && !self.has_ended() {
                        *self.grant.lock() = granted;
                    }
                }
                Heard::Message
            }
            _ => Heard::End,
        }
    }

    /// Whether there is something to read; one load of a line that is ours until the writer writes.
    #[inline]
    pub fn has_something(&self) -> bool {
        let index = self.hot.0.at.load(Ordering::Relaxed) / 4;
        if index >= self.flags.length || self.socket.raw() < 0 {
            return false;
        }
        // SAFETY: within the mapping, which the reader holds as long as `self` lives.
        let any = unsafe { (*self.flags.first.add(index)).load(Ordering::Relaxed) != 0 };
        if any {
            // Most records go on there.
            prefetch::line(self.flags.first.wrapping_add(index + 16).cast());
        }
        any
    }

    /// Whether a thread should read it: there is something, or the writer is to be told that there is not.
    #[inline]
    pub fn wants_reading(&self) -> bool {
        self.hot.0.untold.load(Ordering::Relaxed) || self.has_something()
    }

    /// Whether another thread is known to poll for what comes here.
    #[inline]
    pub fn is_anothers(&self) -> bool {
        let thread = self.reader_thread.load(Ordering::Relaxed);
        thread != 0 && thread != latch::this_thread()
    }

    /// What came was for a thread that polls for it.
    #[inline]
    pub fn is_for(&self, thread: usize) {
        if self.reader_thread.load(Ordering::Relaxed) != thread {
            self.reader_thread.store(thread, Ordering::Relaxed);
        }
    }

    pub(super) fn forget_notes(&self) {
        if self.socket.raw() >= 0 {
            self.hot.0.reader.lock().notes = None;
        }
    }

    /// The ring, unless another thread reads it.
    #[inline]
    pub fn reader(&self) -> Option<Reading<'_>> {
        if self.socket.raw() < 0 {
            return None;
        }
        let mut place = self.hot.0.reader.try_lock()?;
        let notes = place.notes.take();
        Some(Reading { inbound: self, place, notes })
    }

    /// Whether the other process has gone.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        drop(self.grant.lock().take());
    }
}

/// The right to read a ring.
#[derive(Debug)]
pub struct Reading<'a> {
    inbound: &'a Inbound,
    place: Guard<'a, ReaderState>,
    /// What was remembered, and will be.
    pub notes: Option<Notes>,
}

impl Reading<'_> {
    /// The process that wrote it; 0 if it cannot be seen from here.
    #[inline]
    pub fn writer(&self) -> i32 {
        self.inbound.writer
    }

    /// Memory of this number, if the writer has passed it: it was sent before the train that speaks of it.
    pub fn take_passed(&self, number: u64) -> Option<OwnedFd> {
        loop {
            let mut passed = self.inbound.passed.lock();
            if let Some(at) = passed.iter().position(|(known, _)| *known == number) {
                return passed.remove(at).map(|(_, descriptor)| descriptor);
            }
            drop(passed);
            // The end is for the thread that serves connections to see.
            if self.inbound.hear() != Heard::Message {
                return None;
            }
        }
    }

    /// What came was for a thread that polls for it.
    #[inline]
    pub fn is_for(&self, thread: usize) {
        self.inbound.is_for(thread);
    }

    /// Tells the writer how far we are, and wakes it if it waits for room; `done` if there is nothing more to read for
    /// now.
    #[inline]
    pub fn tell(&mut self, done: bool) {
        if self.place.reader.tell(done) {
            // If its socket is full of these already it will see one.
            let _ = passing::send(&self.inbound.socket, &greeting::of(greeting::ROOM_NOTICE), &[]);
        }
    }
}

impl Deref for Reading<'_> {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.place.reader
    }
}

impl DerefMut for Reading<'_> {
    fn deref_mut(&mut self) -> &mut Reader {
        &mut self.place.reader
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.place.notes = self.notes.take();
        self.inbound.hot.0.at.store(self.place.reader.offset(), Ordering::Relaxed);
        self.inbound.hot.0.untold.store(self.place.reader.has_to_tell(), Ordering::Relaxed);
    }
}
