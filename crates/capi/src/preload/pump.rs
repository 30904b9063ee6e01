//! A thread that moves the bytes of a stream between its rsocket and a pair of the kernel's sockets, whose other end
//! the program has, and its children, and each process it is given to. The order of bytes, the end of each direction
//! and errors pass through; what was written before a process closed its end arrives.

use super::lifecycle::close_rsocket;
use super::status::Status;
use super::table::{self, Socket};
use super::{errno, real, rsocket};
use libc::{EAGAIN, EINTR, MSG_DONTWAIT, MSG_NOSIGNAL, POLLHUP, POLLIN, POLLOUT, pollfd};
use std::ffi::{c_int, c_short};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes on their way in one direction.
const BUFFER: usize = 256 << 10;

/// How often the thread looks whether a call that was under way has ended.
const CALLS_INTERVAL_MS: c_int = 2;

/// The pumps of this process that are at work. A child has none.
static AT_WORK: latch::PerProcess<AtomicUsize> = latch::PerProcess::new();

/// How many are at work.
pub(super) fn at_work() -> usize {
    AT_WORK.get().map_or(0, |count| count.load(Ordering::Acquire))
}

/// What a thread is to move.
pub(super) struct Pump {
    /// The rsocket, which only this pump uses from now on.
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
    /// Starts the thread. Where none can be had, the rsocket stays as it is.
    pub(super) fn start(self) -> Result<(), c_int> {
        let count = AT_WORK.get_or_make(AtomicUsize::default);
        count.fetch_add(1, Ordering::AcqRel);
        table::set_internal(self.rsocket, true);
        table::set_internal(self.kernel, true);
        let kernel = self.kernel;
        start_thread("ubiverbs-stream", move || {
            self.run();
            count.fetch_sub(1, Ordering::AcqRel);
        })
        .inspect_err(|_| {
            table::set_internal(kernel, false);
            count.fetch_sub(1, Ordering::AcqRel);
        })
    }

    fn run(self) {
        let ended = match self.connecting {
            Some(filled) => self.finish_connecting(filled),
            None => Ok(()),
        };
        let ended = ended.and_then(|()| Flow::new(&self).run());
        if let Err(code) = ended {
            self.status.set(code);
        }
        table::set_internal(self.kernel, false);
        // SAFETY: our end. What it has not read tells the other end that something went wrong.
        unsafe { real::close(self.kernel) };
        close_rsocket(self.rsocket);
    }

    /// Waits for the connection, and lets the program write then.
    fn finish_connecting(&self, filled: usize) -> Result<(), c_int> {
        let mut wanted = [entry(self.rsocket, POLLOUT), entry(self.kernel, 0)];
        // SAFETY: two descriptors; a number and its length; our end of the pair, and a buffer of ours.
        unsafe {
            while rsocket::rpoll(wanted.as_mut_ptr(), 2, -1) <= 0 || wanted[0].revents == 0 {
                if wanted[1].revents & POLLHUP != 0 {
                    return Ok(());
                }
            }
            let (mut code, mut size) = (0, size_of::<c_int>() as libc::socklen_t);
            rsocket::rgetsockopt(self.rsocket, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut code).cast(), &raw mut size);
            if code != 0 {
                return Err(code);
            }
            let (mut left, mut buffer) = (filled, [0_u8; 4096]);
            while left > 0 {
                let length = left.min(buffer.len());
                let read = real::read(self.kernel, buffer.as_mut_ptr().cast(), length);
                left -= usize::try_from(read).map_err(|_| errno())?;
            }
        }
        Ok(())
    }
}

/// Starts a thread that takes no signal of the program's.
pub(super) fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), c_int> {
    let held = crate::signals::hold_back();
    let started = std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(work);
    crate::signals::let_through(&held);
    started.map(|_| ()).map_err(|error| error.raw_os_error().unwrap_or(EAGAIN))
}

fn entry(fd: c_int, events: c_short) -> pollfd {
    pollfd { fd, events, revents: 0 }
}

/// Bytes that were read and not yet written.
struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    fn new() -> Buffer {
        Buffer { bytes: vec![0; BUFFER].into_boxed_slice(), start: 0, end: 0 }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Fills it when it is empty. Answers whether something came; none at the end.
    fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> isize) -> Result<Option<bool>, c_int> {
        match read(&mut self.bytes) {
            0 => Ok(None),
            length @ 1.. => {
                (self.start, self.end) = (0, length as usize);
                Ok(Some(true))
            }
            _ if matches!(errno(), EAGAIN | EINTR) => Ok(Some(false)),
            _ => Err(errno()),
        }
    }

    /// Writes what it has. Answers whether something went.
    fn drain(&mut self, write: impl FnOnce(&[u8]) -> isize) -> Result<bool, c_int> {
        match write(&self.bytes[self.start..self.end]) {
            length @ 0.. => {
                self.start += length as usize;
                Ok(length > 0)
            }
            _ if matches!(errno(), EAGAIN | EINTR) => Ok(false),
            _ => Err(errno()),
        }
    }
}

/// Both directions.
struct Flow<'a> {
    pump: &'a Pump,
    /// The socket's, when it was handed over.
    era: u32,
    inward: Buffer,
    outward: Buffer,
    /// The peer sends no more; the program was told.
    peer_ended: bool,
    told_program: bool,
    /// The program sends no more; the peer was told.
    program_ended: bool,
    told_peer: bool,
    /// The program reads no more.
    deaf: bool,
    /// Every process has closed its end.
    closed: bool,
}

impl Flow<'_> {
    fn new(pump: &Pump) -> Flow<'_> {
        let era = pump.socket.map_or(0, |socket| socket.era.load(Ordering::Acquire));
        let (inward, outward) = (Buffer::new(), Buffer::new());
        let [peer_ended, told_program, program_ended, told_peer, deaf, closed] = [false; 6];
        Flow { pump, era, inward, outward, peer_ended, told_program, program_ended, told_peer, deaf, closed }
    }

    /// Whether calls of threads that were in the middle of it when the stream was handed over are still under way:
    /// those that read, and those that write.
    fn calls_under_way(&self) -> (bool, bool) {
        let Some(socket) = self.pump.socket.filter(|it| it.era.load(Ordering::Acquire) == self.era) else {
            return (false, false);
        };
        (socket.readers.load(Ordering::SeqCst) > 0, socket.writers.load(Ordering::SeqCst) > 0)
    }

    fn run(&mut self) -> Result<(), c_int> {
        let (mut may_read, mut may_write) = (false, false);
        loop {
            let (reading, writing) = if may_read && may_write { (false, false) } else { self.calls_under_way() };
            (may_read, may_write) = (may_read || !reading, may_write || !writing);
            let mut moved = may_read && self.move_inward()?;
            moved |= may_write && self.move_outward()?;
            let both_ended = self.told_program && self.told_peer;
            if both_ended || self.closed && self.told_peer {
                return Ok(());
            }
            if !moved {
                self.wait(may_read, may_write)?;
            }
        }
    }

    /// From the peer to the program.
    fn move_inward(&mut self) -> Result<bool, c_int> {
        let (rsocket, kernel) = (self.pump.rsocket, self.pump.kernel);
        let mut moved = false;
        if self.inward.is_empty() && !self.peer_ended && !self.deaf {
            // SAFETY: a buffer and its length.
            let read = |buffer: &mut [u8]| unsafe {
                let (start, length) = (buffer.as_mut_ptr().cast(), buffer.len());
                rsocket::rrecvfrom(rsocket, start, length, MSG_DONTWAIT, null_mut(), null_mut())
            };
            match self.inward.fill(read)? {
                Some(some) => moved |= some,
                None => self.peer_ended = true,
            }
        }
        if !self.inward.is_empty() {
            // SAFETY: bytes and their length.
            let write = |bytes: &[u8]| unsafe {
                let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
                real::sendto(kernel, bytes.as_ptr().cast(), bytes.len(), flags, null(), 0)
            };
            match self.inward.drain(write) {
                Ok(some) => moved |= some,
                // The program does not read it any more.
                Err(_) => (self.deaf, self.inward.start) = (true, self.inward.end),
            }
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
    fn move_outward(&mut self) -> Result<bool, c_int> {
        let (rsocket, kernel) = (self.pump.rsocket, self.pump.kernel);
        let mut moved = false;
        if self.outward.is_empty() && !self.program_ended {
            // SAFETY: a buffer and its length.
            let read = |buffer: &mut [u8]| unsafe {
                let (start, length) = (buffer.as_mut_ptr().cast(), buffer.len());
                real::recvfrom(kernel, start, length, MSG_DONTWAIT, null_mut(), null_mut())
            };
            match self.outward.fill(read) {
                Ok(Some(some)) => moved |= some,
                Ok(None) => self.program_ended = true,
                // It was closed with bytes that it had not read.
                Err(libc::ECONNRESET) => self.program_ended = true,
                Err(code) => return Err(code),
            }
        }
        if !self.outward.is_empty() {
            // SAFETY: bytes and their length.
            let write = |bytes: &[u8]| unsafe {
                rsocket::rsendto(rsocket, bytes.as_ptr().cast(), bytes.len(), MSG_DONTWAIT, null(), 0)
            };
            moved |= self.outward.drain(write)?;
        }
        if self.program_ended && self.outward.is_empty() && !self.told_peer {
            self.told_peer = true;
            // SAFETY: an rsocket.
            unsafe { rsocket::rshutdown(rsocket, libc::SHUT_WR) };
        }
        Ok(moved)
    }

    /// Until something can be moved.
    fn wait(&mut self, may_read: bool, may_write: bool) -> Result<(), c_int> {
        let event = |wanted, event| if wanted { event } else { 0 };
        let from_peer = may_read && self.inward.is_empty() && !self.peer_ended && !self.deaf;
        let from_program = may_write && self.outward.is_empty() && !self.program_ended;
        let to_peer = event(!self.outward.is_empty(), POLLOUT);
        let to_program = event(!self.inward.is_empty(), POLLOUT);
        let mut wanted = [
            entry(self.pump.rsocket, event(from_peer, POLLIN) | to_peer),
            entry(self.pump.kernel, event(from_program, POLLIN) | to_program),
        ];
        // What is asked nothing would answer all the same that its peer has gone, again and again.
        if wanted[0].events == 0 {
            wanted[0].fd = -1;
        }
        if self.closed {
            wanted[1].fd = -1;
        }
        let timeout = if may_read && may_write { -1 } else { CALLS_INTERVAL_MS };
        // SAFETY: two descriptors.
        let result = unsafe { rsocket::rpoll(wanted.as_mut_ptr(), 2, timeout) };
        if result < 0 && !matches!(errno(), EINTR | EAGAIN) {
            return Err(errno());
        }
        if wanted[1].revents & POLLHUP != 0 {
            self.closed = true;
        }
        Ok(())
    }
}
