//! Threads that move the bytes of streams between their rsockets and pairs of the kernel's sockets, whose other ends the
//! program has, and its children, and each process they are given to. The order of bytes, the end of each direction and
//! errors pass through; what was written before a process closed its end arrives, if the peer takes it.
//!
//! A few threads move all streams. A stream has memory of its own only while bytes wait in it, and one descriptor, our
//! end of the pair.

use super::status::Status;
use super::table::{self, Socket};
use super::{errno, real, rsocket};
use crate::rsocket::waitable;
use libc::{EAGAIN, EINTR, MSG_DONTWAIT, MSG_NOSIGNAL, POLLOUT, epoll_event, pollfd};
use sockets::Gathering;
use std::collections::HashMap;
use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most that is moved at a time, and that waits in a stream in one direction.
const PUMP_BUFFER_BYTES: usize = 64 << 10;

/// How often a stream is moved on before it is another's turn.
const MOVES_PER_TURN: u32 = 16;

/// Threads that move streams, at most.
const MAX_THREADS: usize = 4;

/// How often a thread looks whether a call that was under way has ended.
const CALLS_INTERVAL: Duration = Duration::from_millis(2);

/// How long bytes are kept for a peer that takes nothing, after the program has closed its stream; the kernel keeps
/// those of TCP for about as long.
const ORPHAN_LIFE: Duration = Duration::from_secs(60);

/// Streams that are closed and have bytes for their peers. Of more, the newest is ended at once.
const MAX_ORPHANS: usize = 64;

/// A closed stream whose peer takes nothing is ended.
const GIVEN_UP: c_int = libc::ETIMEDOUT;

/// What wakes a thread because there are new streams. Streams have other numbers.
const NEW_STREAMS: u32 = 0;

/// The streams of this process. A child has none.
static PROCESS_PUMPS: latch::PerProcess<Pumps> = latch::PerProcess::new();

#[derive(Default)]
struct Pumps {
    /// Streams that are moved.
    at_work: AtomicUsize,
    /// Those whose program has gone.
    orphans: AtomicUsize,
    /// How often those have moved something.
    moved: AtomicUsize,
    /// Streams there were.
    count: AtomicUsize,
    threads: Mutex<Vec<&'static Mover>>,
}

/// How many streams are moved.
pub(super) fn at_work() -> usize {
    PROCESS_PUMPS.get().map_or(0, |pumps| pumps.at_work.load(Ordering::Acquire))
}

/// How many of them no process has a descriptor of.
pub(super) fn orphans() -> usize {
    PROCESS_PUMPS.get().map_or(0, |pumps| pumps.orphans.load(Ordering::Acquire))
}

/// A number that changes when one of those gets on.
pub(super) fn moved() -> usize {
    PROCESS_PUMPS.get().map_or(0, |pumps| pumps.moved.load(Ordering::Acquire))
}

/// A stream that is to be moved.
pub(super) struct Pump {
    /// The rsocket, which nobody else uses from now on.
    pub(super) rsocket: c_int,
    /// Our end of the pair.
    pub(super) kernel: c_int,
    pub(super) status: Status,
    /// The socket that the stream had: calls that were under way are waited for.
    pub(super) socket: Option<&'static Socket>,
    /// The connection is being made; so many bytes keep the program from writing meanwhile.
    pub(super) connecting: Option<usize>,
}

impl Pump {
    /// Gives it to a thread. Where none can be had, the rsocket stays as it is.
    pub(super) fn start(self) -> Result<(), c_int> {
        let pumps = PROCESS_PUMPS.get_or_make(Pumps::default);
        let mover = mover(pumps)?;
        pumps.at_work.fetch_add(1, Ordering::AcqRel);
        table::set_internal(self.kernel, true);
        mover.new.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        mover.gathering.tell(NEW_STREAMS);
        Ok(())
    }
}

/// The thread for the next stream. There are as many as streams, up to a limit.
fn mover(pumps: &'static Pumps) -> Result<&'static Mover, c_int> {
    let number = pumps.count.fetch_add(1, Ordering::Relaxed);
    let mut threads = pumps.threads.lock().unwrap_or_else(PoisonError::into_inner);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if threads.len() < MAX_THREADS.min(processors) {
        match Mover::start(pumps) {
            Ok(mover) => threads.push(mover),
            Err(code) if threads.is_empty() => return Err(code),
            Err(_) => {}
        }
    }
    Ok(threads[number % threads.len()])
}

/// Starts a thread that takes no signal of the program's.
pub(super) fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), c_int> {
    let held = crate::signals::hold_back();
    let work = move || {
        let _unjudged = latch::sanitizer::begin_thread();
        work();
    };
    let started = std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(work);
    crate::signals::let_through(&held);
    started.map(|_| ()).map_err(|error| error.raw_os_error().unwrap_or(EAGAIN))
}

/// What a thread that moves streams has.
struct Mover {
    pumps: &'static Pumps,
    /// What rsockets tell.
    gathering: Gathering,
    /// What the kernel tells of our ends.
    epoll: c_int,
    new: Mutex<Vec<Pump>>,
}

impl Mover {
    fn start(pumps: &'static Pumps) -> Result<&'static Mover, c_int> {
        let gathering = Gathering::new().map_err(|error| error.0)?;
        // SAFETY: a plain number.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(errno());
        }
        table::set_internal(epoll, true);
        // It stays as long as the process.
        let mover: &'static Mover = Box::leak(Box::new(Mover { pumps, gathering, epoll, new: Mutex::default() }));
        start_thread("ubiverbs-stream", move || mover.run())?;
        Ok(mover)
    }

    fn run(&self) {
        let mut streams: HashMap<u32, Stream> = HashMap::new();
        let (mut next, mut scratch) = (NEW_STREAMS + 1, vec![0; PUMP_BUFFER_BYTES]);
        // Streams that are to be looked at again soon, whatever happens.
        let mut soon: Vec<u32> = Vec::new();
        loop {
            let mut ready = std::mem::take(&mut soon);
            let limit = streams.values().filter_map(Stream::limit).min();
            if ready.is_empty() {
                ready.extend(self.gathering.wait(self.epoll, limit));
            }
            while let Some(token) = self.gathering.next() {
                ready.push(token);
            }
            self.take_kernel_events(&mut streams, &mut ready);
            let now = Instant::now();
            ready.extend(streams.iter().filter(|(_, stream)| stream.is_due(now)).map(|(token, _)| *token));
            if ready.contains(&NEW_STREAMS) {
                let new = std::mem::take(&mut *self.new.lock().unwrap_or_else(PoisonError::into_inner));
                for pump in new {
                    let token = next;
                    next = next.checked_add(1).unwrap_or(NEW_STREAMS + 1);
                    streams.insert(token, Stream::new(self, pump, token));
                    ready.push(token);
                }
            }
            ready.sort_unstable();
            ready.dedup();
            for token in ready {
                let Some(stream) = streams.get_mut(&token) else { continue };
                match stream.go_on(&mut scratch) {
                    Ok(State::Waits) => {}
                    Ok(State::Moves) => soon.push(token),
                    Ok(State::Over) => self.end(streams.remove(&token), Ok(())),
                    Err(code) => self.end(streams.remove(&token), Err(code)),
                }
            }
        }
    }

    /// What has happened to our ends of pairs.
    fn take_kernel_events(&self, streams: &mut HashMap<u32, Stream>, ready: &mut Vec<u32>) {
        let mut events = [epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: room for as many events.
        let count = unsafe { libc::epoll_wait(self.epoll, events.as_mut_ptr(), events.len() as c_int, 0) };
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            let token = event.u64 as u32;
            if let Some(stream) = streams.get_mut(&token) {
                stream.closed |= event.events & libc::EPOLLHUP as u32 != 0;
                ready.push(token);
            }
        }
    }

    fn end(&self, stream: Option<Stream>, ended: Result<(), c_int>) {
        let Some(stream) = stream else { return };
        let Pump { rsocket, kernel, status, .. } = stream.pump;
        if let Err(code) = ended {
            status.set(code);
        }
        if let Some(entry) = waitable(rsocket) {
            entry.waitable().waiters().leave(stream.waiter);
        }
        table::set_internal(kernel, false);
        // SAFETY: our end. What it has not read tells the other end that something went wrong.
        unsafe { real::close(kernel) };
        match ended {
            Err(GIVEN_UP) => rsocket::abort(rsocket),
            _ => drop(table::close_rsocket(rsocket)),
        }
        if stream.until.is_some() {
            self.pumps.orphans.fetch_sub(1, Ordering::AcqRel);
        }
        self.pumps.at_work.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What is to be done with a stream next.
enum State {
    /// Something must happen first.
    Waits,
    /// It could go on at once.
    Moves,
    /// Both directions have ended.
    Over,
}

/// Bytes that were read and could not be written.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    start: usize,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn clear(&mut self) {
        *self = Pending::default();
    }

    /// Writes what waits. Returns whether something went.
    fn drain(&mut self, write: impl FnOnce(&[u8]) -> isize) -> Result<bool, c_int> {
        let written = written(write(&self.bytes[self.start..]))?;
        self.start += written;
        if self.start == self.bytes.len() {
            self.clear();
        }
        Ok(written > 0)
    }

    /// Writes bytes; what is left of them waits.
    fn pass(&mut self, bytes: &[u8], write: impl FnOnce(&[u8]) -> isize) -> Result<(), c_int> {
        let written = written(write(bytes))?;
        self.bytes = bytes[written..].to_vec();
        self.start = 0;
        Ok(())
    }
}

/// How many bytes a call has written; it may have to wait.
fn written(result: isize) -> Result<usize, c_int> {
    match usize::try_from(result) {
        Ok(length) => Ok(length),
        Err(_) if matches!(errno(), EAGAIN | EINTR) => Ok(0),
        Err(_) => Err(errno()),
    }
}

/// How many bytes a call has read: none at the end.
fn read(result: isize) -> Result<Option<usize>, c_int> {
    match result {
        0 => Ok(None),
        _ => written(result).map(Some),
    }
}

/// A stream that is moved, both directions.
struct Stream {
    pump: Pump,
    /// What the rsocket knows the thread by.
    waiter: u64,
    /// The socket's, when it was handed over.
    era: u32,
    /// No call is under way that reads, or writes, and was when the stream was handed over.
    may_read: bool,
    may_write: bool,
    inward: Pending,
    outward: Pending,
    /// The peer sends no more; the program was told.
    peer_ended: bool,
    told_program: bool,
    /// The program sends no more; the peer was told.
    program_ended: bool,
    told_peer: bool,
    /// The program reads no more.
    deaf: bool,
    /// Every process has closed its end, and until when its peer may take what there is.
    closed: bool,
    until: Option<Instant>,
}

impl Stream {
    fn new(mover: &Mover, pump: Pump, token: u32) -> Stream {
        let wanted = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = epoll_event { events: wanted as u32, u64: token.into() };
        // SAFETY: our end, and an event.
        unsafe { libc::epoll_ctl(mover.epoll, libc::EPOLL_CTL_ADD, pump.kernel, &raw mut event) };
        let waiter = waitable(pump.rsocket).map_or(0, |entry| mover.gathering.join(entry.waitable(), token));
        let era = pump.socket.map_or(0, |socket| socket.era.load(Ordering::Acquire));
        Stream {
            pump,
            waiter,
            era,
            may_read: false,
            may_write: false,
            inward: Pending::default(),
            outward: Pending::default(),
            peer_ended: false,
            told_program: false,
            program_ended: false,
            told_peer: false,
            deaf: false,
            closed: false,
            until: None,
        }
    }

    /// How long its thread may sleep.
    fn limit(&self) -> Option<Duration> {
        match self.until {
            _ if !self.may_read || !self.may_write => Some(CALLS_INTERVAL),
            Some(until) => Some(until.saturating_duration_since(Instant::now())),
            None => None,
        }
    }

    /// Whether it is to be looked at although nothing has happened.
    fn is_due(&self, now: Instant) -> bool {
        !self.may_read || !self.may_write || self.until.is_some_and(|until| until <= now)
    }

    /// Moves what can be moved.
    fn go_on(&mut self, scratch: &mut [u8]) -> Result<State, c_int> {
        let mut armed = false;
        for _ in 0..MOVES_PER_TURN {
            if !self.is_connected()? {
                match (self.closed, armed) {
                    (true, _) => return Ok(State::Over),
                    (false, true) => return Ok(State::Waits),
                    (false, false) => armed = self.arm(),
                }
                continue;
            }
            self.look_at_calls();
            let mut moved = self.may_read && self.move_inward(scratch)?;
            moved |= self.may_write && self.move_outward(scratch)?;
            let both_ended = self.told_program && self.told_peer;
            if both_ended || self.closed && self.told_peer {
                return Ok(State::Over);
            }
            if self.closed {
                self.orphaned(moved)?;
            }
            match (moved, armed) {
                (true, _) => armed = false,
                (false, true) => return Ok(State::Waits),
                // What came before this is seen in the next turn; what comes later is told.
                (false, false) => armed = self.arm(),
            }
        }
        Ok(State::Moves)
    }

    /// Has the next completion told.
    fn arm(&self) -> bool {
        if let Some(entry) = waitable(self.pump.rsocket) {
            entry.waitable().arm();
        }
        true
    }

    /// Whether calls of threads that were in the middle of it when the stream was handed over are still under way.
    fn look_at_calls(&mut self) {
        if self.may_read && self.may_write {
            return;
        }
        let socket = self.pump.socket.filter(|it| it.era.load(Ordering::Acquire) == self.era);
        self.may_read |= socket.is_none_or(|it| it.readers.load(Ordering::SeqCst) == 0);
        self.may_write |= socket.is_none_or(|it| it.writers.load(Ordering::SeqCst) == 0);
    }

    /// Whether there is a connection. When it comes, the program may write.
    fn is_connected(&mut self) -> Result<bool, c_int> {
        let Some(filled) = self.pump.connecting else { return Ok(true) };
        let (rsocket, kernel) = (self.pump.rsocket, self.pump.kernel);
        let mut wanted = pollfd { fd: rsocket, events: POLLOUT, revents: 0 };
        // SAFETY: a descriptor; a number and its length; our end of the pair, and a buffer of ours.
        unsafe {
            if rsocket::rpoll(&raw mut wanted, 1, 0) <= 0 {
                return Ok(false);
            }
            let (mut code, mut size) = (0, size_of::<c_int>() as libc::socklen_t);
            rsocket::rgetsockopt(rsocket, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut code).cast(), &raw mut size);
            if code != 0 {
                return Err(code);
            }
            let (mut left, mut buffer) = (filled, [0_u8; 4096]);
            while left > 0 {
                let length = left.min(buffer.len());
                let read = real::read(kernel, buffer.as_mut_ptr().cast(), length);
                left -= usize::try_from(read).map_err(|_| errno())?;
            }
        }
        self.pump.connecting = None;
        Ok(true)
    }

    /// The program has gone. What it sent is kept for its peer, for a while, if there are not too many such streams.
    fn orphaned(&mut self, moved: bool) -> Result<(), c_int> {
        let Some(pumps) = PROCESS_PUMPS.get() else { return Err(GIVEN_UP) };
        let until = match self.until {
            Some(_) if moved => *self.until.insert(Instant::now() + ORPHAN_LIFE),
            Some(until) => until,
            None => {
                let before = pumps.orphans.fetch_add(1, Ordering::AcqRel);
                let life = if before < MAX_ORPHANS { ORPHAN_LIFE } else { Duration::ZERO };
                *self.until.insert(Instant::now() + life)
            }
        };
        pumps.moved.fetch_add(usize::from(moved), Ordering::AcqRel);
        if Instant::now() < until { Ok(()) } else { Err(GIVEN_UP) }
    }

    /// From the peer to the program.
    fn move_inward(&mut self, scratch: &mut [u8]) -> Result<bool, c_int> {
        let (rsocket, kernel) = (self.pump.rsocket, self.pump.kernel);
        let mut moved = false;
        // SAFETY: bytes and their length.
        let write = |bytes: &[u8]| unsafe {
            let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
            real::sendto(kernel, bytes.as_ptr().cast(), bytes.len(), flags, null(), 0)
        };
        let passed = if !self.inward.is_empty() {
            self.inward.drain(write).map(|some| moved = some)
        } else if !self.peer_ended && !self.deaf {
            let (start, length) = (scratch.as_mut_ptr().cast(), scratch.len());
            // SAFETY: a buffer and its length.
            let got = unsafe { rsocket::rrecvfrom(rsocket, start, length, MSG_DONTWAIT, null_mut(), null_mut()) };
            match read(got)? {
                Some(0) => Ok(()),
                Some(length) => {
                    moved = true;
                    self.inward.pass(&scratch[..length], write)
                }
                None => {
                    self.peer_ended = true;
                    Ok(())
                }
            }
        } else {
            Ok(())
        };
        if passed.is_err() {
            // The program does not read it any more.
            self.deaf = true;
            self.inward.clear();
        }
        if (self.peer_ended || self.deaf) && self.inward.is_empty() && !self.told_program {
            self.told_program = true;
            self.pump.status.set_ended();
            // SAFETY: our end.
            unsafe { real::shutdown(kernel, libc::SHUT_WR) };
        }
        Ok(moved)
    }

    /// From the program to the peer.
    fn move_outward(&mut self, scratch: &mut [u8]) -> Result<bool, c_int> {
        let (rsocket, kernel) = (self.pump.rsocket, self.pump.kernel);
        let mut moved = false;
        // SAFETY: bytes and their length.
        let write = |bytes: &[u8]| unsafe {
            rsocket::rsendto(rsocket, bytes.as_ptr().cast(), bytes.len(), MSG_DONTWAIT, null(), 0)
        };
        if !self.outward.is_empty() {
            moved = self.outward.drain(write)?;
        } else if !self.program_ended {
            let (start, length) = (scratch.as_mut_ptr().cast(), scratch.len());
            // SAFETY: a buffer and its length.
            let got = unsafe { real::recvfrom(kernel, start, length, MSG_DONTWAIT, null_mut(), null_mut()) };
            match read(got) {
                Ok(Some(0)) => {}
                Ok(Some(length)) => {
                    moved = true;
                    self.outward.pass(&scratch[..length], write)?;
                }
                // It may have been closed with bytes that it had not read.
                Ok(None) | Err(libc::ECONNRESET) => self.program_ended = true,
                Err(code) => return Err(code),
            }
        }
        if self.program_ended && self.outward.is_empty() && !self.told_peer {
            self.told_peer = true;
            rsocket::rshutdown(rsocket, libc::SHUT_WR);
        }
        Ok(moved)
    }
}
