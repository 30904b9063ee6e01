//! What the processes of a host have, asked for by one of them: over a connection to a name of each, which the kernel
//! says whose it is. A process answers its own user and root with one message, whose descriptor is memory that is
//! sealed and so stays as it is while it is read. One that does not answer, because it is stopped, or has another mind,
//! is not waited for beyond a deadline; and neither its memory nor the number of names is believed to be of a sensible
//! size.

use crate::descriptor::{Descriptor, check, check_length};
use crate::holders::{self, own_uid};
use crate::names::{self, Name, Peer};
use crate::{greeting, passing};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// The longest report that is read: that of a process with all its queue pairs.
pub const LONGEST: usize = 128 << 20;

/// So many processes are asked.
const MOST_PROCESSES: usize = 4096;

/// What seals a report must have.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;

/// A process of the host, and what came of asking it.
#[derive(Debug)]
pub struct Answer {
    /// The process, as the kernel says.
    pub process: Peer,
    /// Its report; none if it did not answer in time, or not like one of ours.
    pub report: Option<Vec<u8>>,
}

/// A number of this thread's network namespace: its cookie, which no other has until the machine starts again, or with
/// older kernels its inode.
pub fn namespace() -> u64 {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    if let Ok(socket) = names::socket() {
        // SAFETY: the kernel writes at most `length` bytes to a live number.
        let answer = unsafe {
            let place = (&raw mut cookie).cast();
            libc::getsockopt(socket.raw(), libc::SOL_SOCKET, SO_NETNS_COOKIE, place, &raw mut length)
        };
        if answer == 0 && cookie != 0 {
            return cookie;
        }
    }
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| std::os::unix::fs::MetadataExt::ino(&file))
}

/// Whether a user may know what this process has.
pub fn may_ask(uid: u32) -> bool {
    uid == 0 || holders::is_our_user(uid)
}

/// Asks all processes of this network namespace that this user may ask, and waits for so long at most.
pub fn ask(patience: Duration) -> io::Result<Vec<Answer>> {
    let deadline = Instant::now() + patience;
    let mut known = BTreeSet::new();
    let (mut answers, mut waiting) = (Vec::new(), Vec::new());
    for name in Name::of_this_host()? {
        if name.slot().is_none() || known.len() >= MOST_PROCESSES {
            continue;
        }
        let Ok((socket, process)) = names::connect_to(name) else { continue };
        if !(own_uid() == 0 || holders::is_our_user(process.uid)) || !known.insert(process.pid) {
            continue;
        }
        match passing::send(&socket, &greeting::of(greeting::INQUIRY), &[]) {
            Ok(()) => waiting.push((socket, process)),
            Err(_) => answers.push(Answer { process, report: None }),
        }
    }
    while !waiting.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled: Vec<_> = waiting
            .iter()
            .map(|(socket, _)| libc::pollfd { fd: socket.raw(), events: libc::POLLIN, revents: 0 })
            .collect();
        let millis = left.as_millis().min(i32::MAX as u128) as i32;
        // SAFETY: the structures are live, and as many as said.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis.max(0)) };
        if ready < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            break;
        }
        let before = std::mem::take(&mut waiting);
        for ((socket, process), polled) in before.into_iter().zip(&polled) {
            match polled.revents {
                0 => waiting.push((socket, process)),
                _ => answers.push(Answer { process, report: receive(&socket) }),
            }
        }
        if left.is_zero() {
            break;
        }
    }
    answers.extend(waiting.into_iter().map(|(_, process)| Answer { process, report: None }));
    answers.sort_by_key(|answer| answer.process.pid);
    Ok(answers)
}

/// Answers one that asked. Never waits.
pub fn answer(socket: &Descriptor, report: &[u8]) -> io::Result<()> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a name that ends with a zero, and a number.
    let fd = unsafe { check(libc::memfd_create(c"ubiverbs-report".as_ptr(), flags))? };
    // SAFETY: just opened, and not shared.
    let memory = Descriptor::keep(unsafe { OwnedFd::from_raw_fd(fd) });
    let mut written = 0;
    while let Some(rest) = report.get(written..).filter(|rest| !rest.is_empty()) {
        // SAFETY: the bytes are live, and as many as said.
        written += check_length(unsafe { libc::write(memory.raw(), rest.as_ptr().cast(), rest.len()) })?;
    }
    // SAFETY: numbers.
    check(unsafe { libc::fcntl(memory.raw(), libc::F_ADD_SEALS, SEALS) })?;
    passing::send(socket, &greeting::of(greeting::REPORT), &[memory.raw()])
}

/// The report that has come.
fn receive(socket: &Descriptor) -> Option<Vec<u8>> {
    let mut descriptors = Vec::new();
    let mut bytes = [0; 8];
    let length = passing::receive(socket, &mut bytes, &mut descriptors).ok()?;
    if length != bytes.len() || greeting::kind(&bytes) != Some(greeting::REPORT) {
        return None;
    }
    match descriptors.as_slice() {
        [memory] => read(memory),
        _ => None,
    }
}

/// What is in sealed memory. Nothing else is read: a file may be one that never answers.
fn read(memory: &OwnedFd) -> Option<Vec<u8>> {
    let fd = memory.as_raw_fd();
    // SAFETY: numbers; all zeros are a `stat`, which is live while the call fills it.
    let length = unsafe {
        let seals = libc::fcntl(fd, libc::F_GET_SEALS);
        if seals < 0 || seals & SEALS != SEALS {
            return None;
        }
        let mut stat: libc::stat = std::mem::zeroed();
        check(libc::fstat(fd, &raw mut stat)).ok()?;
        usize::try_from(stat.st_size).ok().filter(|length| *length <= LONGEST)?
    };
    let mut bytes = vec![0; length];
    let mut at = 0;
    while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
        // SAFETY: the bytes are live, and as many as said.
        let read = check_length(unsafe { libc::pread(fd, rest.as_mut_ptr().cast(), rest.len(), at as libc::off_t) });
        match read {
            Ok(0) | Err(_) => return None,
            Ok(read) => at += read,
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn pair() -> [Descriptor; 2] {
        let mut fds = [0; 2];
        let flags = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: two numbers are written to a live array, and are ours.
        unsafe {
            check(libc::socketpair(libc::AF_UNIX, flags, 0, fds.as_mut_ptr())).unwrap();
            fds.map(|fd| Descriptor::keep(OwnedFd::from_raw_fd(fd)))
        }
    }

    #[test]
    fn a_report_comes_as_it_was_sent() {
        let [ours, theirs] = pair();
        for report in [Vec::new(), vec![7; 100_000]] {
            answer(&theirs, &report).unwrap();
            assert_eq!(receive(&ours), Some(report));
        }
    }

    #[test]
    fn only_sealed_memory_is_read() {
        let [ours, theirs] = pair();
        let file = File::open("/proc/self/exe").unwrap();
        let greeting = greeting::of(greeting::REPORT);
        passing::send(&theirs, &greeting, &[file.as_raw_fd()]).unwrap();
        assert_eq!(receive(&ours), None, "a file");
        // SAFETY: a name that ends with a zero, and a number; the descriptor is ours.
        let open = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING)) };
        passing::send(&theirs, &greeting, &[open.as_raw_fd()]).unwrap();
        assert_eq!(receive(&ours), None, "memory that may change");
        // SAFETY: numbers.
        unsafe {
            libc::ftruncate(open.as_raw_fd(), LONGEST as libc::off_t + 1);
            libc::fcntl(open.as_raw_fd(), libc::F_ADD_SEALS, SEALS);
        }
        passing::send(&theirs, &greeting, &[open.as_raw_fd()]).unwrap();
        assert_eq!(receive(&ours), None, "too much of it");
        passing::send(&theirs, &greeting, &[]).unwrap();
        assert_eq!(receive(&ours), None, "nothing");
        passing::send(&theirs, &greeting::of(greeting::WELCOME), &[file.as_raw_fd()]).unwrap();
        assert_eq!(receive(&ours), None, "another message");
        drop(theirs);
        assert_eq!(receive(&ours), None, "the end");
    }

    #[test]
    fn our_user_and_root_may_ask() {
        assert!(may_ask(0) && may_ask(own_uid()));
        assert!(!may_ask(own_uid() + 12_345));
    }

    /// It owns a slot and answers nothing.
    #[test]
    fn a_silent_process_costs_no_more_than_the_deadline() {
        let slots = crate::slots::Slots::open().unwrap();
        slots.take().unwrap();
        let begun = Instant::now();
        let answers = ask(Duration::from_millis(50)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        let own = answers.iter().find(|answer| answer.process.pid == std::process::id() as i32).unwrap();
        assert!(own.report.is_none());
    }
}
