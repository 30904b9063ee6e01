//! A descriptor that a program is handed and waits for: readable while something waits for it, as the descriptors of
//! the kernel's RDMA stack are. It is the read end of a pipe that holds a byte for each thing that waits.
//!
//! | what | why not |
//! |---|---|
//! | eventfd | can be written to, so `poll` says `POLLOUT` for ever, and a program that waits for both spins |
//! | socket pair | says `POLLOUT`, and a message costs an allocation |
//! | epoll with an eventfd | cannot be waited for with `EPOLLEXCLUSIVE`, and counts against the depth of nested sets |
//! | timerfd | becomes readable by an interrupt only |
//!
//! Writing a byte costs as much as adding to an eventfd. Each byte is an edge for `EPOLLET`. A full pipe takes no more
//! bytes, and is readable: nothing is lost by that. The program's end has the program's flags, such as `O_NONBLOCK`;
//! the bytes go through an end of our own, for reading and writing, that never blocks. As that one reads too, a program
//! that closes its end gets no `SIGPIPE`. This is no queue, and has no lock: the owner counts, under a lock of its own.

use crate::descriptor::{above_standard, check, tell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The least that a pipe is given, in bytes. Users have a limited number of pages for all their pipes.
const PIPE_BYTES: libc::c_int = 4096;

/// See the module.
#[derive(Debug)]
pub struct ReadyPipe {
    /// The program's.
    shown: OwnedFd,
    /// Ours, to write; and to read, if there is no other.
    own: OwnedFd,
    own_to_read: Option<OwnedFd>,
}

impl ReadyPipe {
    /// An empty one.
    pub fn new() -> io::Result<ReadyPipe> {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, which are owned from here on.
        let [shown, write] = unsafe {
            check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
            ends.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        let shown = above_standard(shown)?;
        let (own, own_to_read) = match reopen(&shown) {
            Ok(both) => (both, None),
            // Without /proc it takes one descriptor more.
            Err(_) => two_ends(&shown, write)?,
        };
        // SAFETY: a number; a pipe that cannot be made smaller stays as it is.
        unsafe { libc::fcntl(own.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) };
        let pipe = ReadyPipe { shown, own, own_to_read };
        pipe.tell(true);
        Ok(pipe)
    }

    fn tell(&self, open: bool) {
        let ends = [&self.shown, &self.own].into_iter().chain(&self.own_to_read);
        ends.for_each(|end| tell(end.as_raw_fd(), open));
    }

    /// One thing more waits. Returns whether there is a byte for it: not if the pipe is full.
    pub fn add(&self) -> bool {
        let byte = 1u8;
        // Not a point at which a thread can be cancelled, as `write` is: the caller has a lock.
        // SAFETY: one live byte.
        unsafe { libc::syscall(libc::SYS_write, self.own.as_raw_fd(), &raw const byte, 1usize) == 1 }
    }

    /// Takes out so many bytes, which the caller knows to be there. If the program has read them itself there is
    /// nothing to do.
    pub fn remove(&self, mut bytes: usize) {
        let fd = self.own_to_read.as_ref().unwrap_or(&self.own).as_raw_fd();
        let mut buffer = [0u8; 64];
        while bytes > 0 {
            let length = bytes.min(buffer.len());
            // SAFETY: as many live bytes as are asked for. As for `add`, no thread is cancelled here.
            match unsafe { libc::syscall(libc::SYS_read, fd, buffer.as_mut_ptr(), length) } {
                taken @ 1.. => bytes = bytes.saturating_sub(taken as usize),
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }

    /// Whether the program has made its end non-blocking.
    pub fn is_nonblocking(&self) -> io::Result<bool> {
        // SAFETY: plain call on an open descriptor.
        Ok(check(unsafe { libc::fcntl(self.shown.as_raw_fd(), libc::F_GETFL) })? & libc::O_NONBLOCK != 0)
    }

    /// The program's end: readable while there are bytes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shown.as_fd()
    }

    /// Its number.
    pub fn raw_fd(&self) -> RawFd {
        self.shown.as_raw_fd()
    }
}

impl Drop for ReadyPipe {
    fn drop(&mut self) {
        self.tell(false);
    }
}

/// Opens the pipe once more, for both directions and with flags of its own.
fn reopen(end: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}\0", end.as_raw_fd());
    let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: a text that ends with zero; the descriptor that comes back is owned from here on.
    above_standard(unsafe { OwnedFd::from_raw_fd(check(libc::open(path.as_ptr().cast(), flags))?) })
}

/// The write end, and the read end under a number of our own: it has the program's flags, but what is read from it is
/// there.
fn two_ends(shown: &OwnedFd, write: OwnedFd) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let write = above_standard(write)?;
    // SAFETY: a number and an open descriptor.
    check(unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
    Ok((write, Some(shown.try_clone()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pipe: &ReadyPipe) -> i16 {
        let mut poll = libc::pollfd { fd: pipe.raw_fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        // SAFETY: one live entry.
        assert!(unsafe { libc::poll(&raw mut poll, 1, 0) } >= 0);
        poll.revents
    }

    /// One as it is made, and one as it is made without /proc.
    fn both_kinds() -> [ReadyPipe; 2] {
        let mut ends = [0; 2];
        // SAFETY: as in `ReadyPipe::new`.
        let [shown, write] = unsafe {
            check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC)).unwrap();
            ends.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        let (own, own_to_read) = two_ends(&shown, write).unwrap();
        [ReadyPipe::new().unwrap(), ReadyPipe { shown, own, own_to_read }]
    }

    #[test]
    fn it_is_readable_while_something_waits_and_never_writable() {
        for pipe in both_kinds() {
            assert_eq!(events(&pipe), 0);
            assert!(pipe.add() && pipe.add() && pipe.add());
            assert_eq!(events(&pipe), libc::POLLIN);
            pipe.remove(2);
            assert_eq!(events(&pipe), libc::POLLIN);
            pipe.remove(1);
            assert_eq!(events(&pipe), 0);
        }
    }

    #[test]
    fn a_full_pipe_is_readable_and_holds_nobody_up() {
        for pipe in both_kinds() {
            let bytes = (0..1 << 20).take_while(|_| pipe.add()).count();
            assert!((1000..1 << 20).contains(&bytes), "{bytes}");
            pipe.remove(bytes - 1);
            assert_eq!(events(&pipe), libc::POLLIN);
            pipe.remove(1);
            assert_eq!(events(&pipe), 0);
        }
    }

    #[test]
    fn the_programs_end_is_the_programs() {
        let pipe = ReadyPipe::new().unwrap();
        assert!(!pipe.is_nonblocking().unwrap());
        // The program reads what it has no business to read, and then closes its end.
        assert!(pipe.add());
        let mut byte = 0u8;
        // SAFETY: one live byte; then the descriptor is replaced by another file under the same number.
        unsafe {
            assert_eq!(libc::read(pipe.raw_fd(), (&raw mut byte).cast(), 1), 1);
            pipe.remove(1);
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC);
            assert_eq!(libc::dup3(null, pipe.raw_fd(), libc::O_CLOEXEC), pipe.raw_fd());
            libc::close(null);
        }
        assert!(pipe.add() && pipe.is_nonblocking().unwrap());
        pipe.remove(1);
    }

    #[test]
    fn every_byte_is_an_edge() {
        let pipe = ReadyPipe::new().unwrap();
        // SAFETY: numbers, and events that live as long as the calls.
        unsafe {
            let epoll = OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC)).unwrap());
            let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
            let added = libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, pipe.raw_fd(), &raw mut event);
            check(added).unwrap();
            for _ in 0..3 {
                assert!(pipe.add());
                assert_eq!(libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, 0), 1);
                assert_eq!(libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, 0), 0);
            }
            pipe.remove(3);
            assert!(pipe.add());
            assert_eq!(libc::epoll_wait(epoll.as_raw_fd(), &raw mut event, 1, 0), 1);
        }
    }
}
