//! What the processes of a host have, asked for by one of them: over a connection to a name of each, which the kernel
//! says whose it is. A process answers its own user and root with one message, whose descriptor is memory that is
//! sealed and so stays as it is while it is read.
//!
//! What comes back is not believed. Other users' processes are asked only for a tool that root started
//! ([`Users::All`]); a server asks its own user's, whichever client makes it ask.
//!
//! | what an answer may cost | bound |
//! |---|---|
//! | time, for all processes together | the caller's deadline |
//! | descriptors at a time | `MAX_WAITING_OWN`, `MAX_WAITING_OTHERS` |
//! | processes of another user | `MAX_PROCESSES_PER_USER` |
//! | memory | nothing here: a report is read as a stream, and its reader stops where it has enough |
//! | a descriptor whose `close` waits (a socket that lingers, a file of FUSE) | a thread that nothing waits for |

use crate::descriptor::{Descriptor, check, check_length};
use crate::holders::{self, own_uid};
use crate::names::{self, Name, Peer};
use crate::{greeting, passing, shares, thread};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The longest report that is read: that of a process with all its queue pairs.
pub const MAX_REPORT_BYTES: u64 = 128 << 20;

/// Connections to processes of the own user that have not answered yet.
const MAX_WAITING_OWN: usize = 64;

/// Connections to processes of other users that have not answered yet.
const MAX_WAITING_OTHERS: usize = 2048;

/// Processes of another user. Its share of the slots is 512.
const MAX_PROCESSES_PER_USER: usize = 512;

/// Descriptors that were not wanted and are not closed yet: with so many, nobody is asked.
const MAX_UNCLOSED: usize = 256;

/// Descriptors that threads are closing.
static UNCLOSED_DESCRIPTORS: AtomicUsize = AtomicUsize::new(0);

/// What seals a report must have.
const REPORT_SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;

/// Whose processes are asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Users {
    /// The other processes of the asking process's user. What a server asks, as a stranger may be behind it.
    Own,
    /// Those of all users if the asking process is root's, else those of its own; itself, too. For tools.
    All,
}

impl Users {
    fn include(self, uid: u32) -> bool {
        holders::is_our_user(uid) || self == Users::All && own_uid() == 0
    }
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

/// Why a process that was asked has no report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoAnswer {
    /// It did not answer in time.
    Silent,
    /// Its answer is none that a process of ours gives.
    Nonsense,
}

/// Asks all processes of these users in this network namespace, and waits for so long at most, for all of them
/// together. `hear` is told each process that was asked, and its report.
pub fn ask(
    users: Users,
    patience: Duration,
    mut hear: impl FnMut(Peer, Result<SealedReport, NoAnswer>),
) -> io::Result<()> {
    if UNCLOSED_DESCRIPTORS.load(Ordering::Relaxed) >= MAX_UNCLOSED {
        return Err(io::Error::other("descriptors that processes sent are not closed yet"));
    }
    let deadline = Instant::now() + patience;
    // Other users are not even connected to for a server: their names are not within its user's share, but for a few.
    let may_be_asked =
        |name: &Name| name.slot().is_some_and(|slot| users == Users::All || shares::may_have_slot(own_uid(), slot));
    let mut names: VecDeque<Name> = Name::of_this_host()?.into_iter().filter(may_be_asked).collect();
    let (mut known, mut of_user) = (BTreeSet::new(), BTreeMap::<u32, usize>::new());
    if users == Users::Own {
        known.insert(std::process::id() as i32);
    }
    let (mut waiting, mut unwanted) = (Vec::new(), Unwanted::default());
    loop {
        while (users == Users::All || waiting.len() < MAX_WAITING_OWN) && Instant::now() < deadline {
            let Some(name) = names.pop_front() else { break };
            let (socket, process) = match reach(name) {
                Ok(reached) => reached,
                // Those that answer make room.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    names.push_front(name);
                    break;
                }
                Err(_) => continue,
            };
            let asked = of_user.entry(process.uid).or_default();
            let room = waiting.len() < MAX_WAITING_OTHERS && *asked < MAX_PROCESSES_PER_USER;
            let rightful = name.slot().is_some_and(|slot| shares::may_have_slot(process.uid, slot));
            let wanted = rightful && users.include(process.uid) && (room || holders::is_our_user(process.uid));
            if !wanted || !known.insert(process.pid) {
                unwanted.hang_up(socket);
                continue;
            }
            *asked += 1;
            pass_rights(&socket, true);
            match passing::send(&socket, &greeting::of(greeting::REPORT_INQUIRY), &[]) {
                Ok(()) => waiting.push((socket, process)),
                Err(_) => {
                    unwanted.hang_up(socket);
                    hear(process, Err(NoAnswer::Silent));
                }
            }
        }
        if waiting.is_empty() {
            break;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled: Vec<_> = waiting
            .iter()
            .map(|(socket, _)| libc::pollfd { fd: socket.raw(), events: libc::POLLIN, revents: 0 })
            .collect();
        let millis = left.as_millis().min(i32::MAX as u128) as i32;
        // SAFETY: the structures are live, and as many as said.
        let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis) };
        if ready < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            break;
        }
        let before = std::mem::take(&mut waiting);
        for ((socket, process), polled) in before.into_iter().zip(&polled) {
            if polled.revents == 0 {
                waiting.push((socket, process));
                continue;
            }
            hear(process, receive(&socket, &mut unwanted).ok_or(NoAnswer::Nonsense));
            unwanted.hang_up(socket);
        }
        if left.is_zero() {
            break;
        }
    }
    for (socket, process) in waiting {
        unwanted.hang_up(socket);
        hear(process, Err(NoAnswer::Silent));
    }
    Ok(())
}

/// A connection to the process that has a name. It cannot send descriptors yet, where the kernel knows how to refuse
/// them.
fn reach(name: Name) -> io::Result<(Descriptor, Peer)> {
    let socket = names::socket()?;
    pass_rights(&socket, false);
    names::connect(&socket, name)?;
    let peer = names::peer(&socket)?;
    Ok((socket, peer))
}

/// Whether the other end may send descriptors (Linux 6.16; before, it always may).
fn pass_rights(socket: &Descriptor, pass: bool) {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let value = libc::c_int::from(pass);
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: a live number, and its length.
    unsafe { libc::setsockopt(socket.raw(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const value).cast(), length) };
}

/// What other processes sent and nobody wants. Closing it may take as long as its sender likes, so a thread does it.
#[derive(Default)]
struct Unwanted {
    files: Vec<OwnedFd>,
    /// With messages that were not read, which may hold descriptors.
    sockets: Vec<Descriptor>,
}

impl Unwanted {
    /// Closes a connection, at once if nothing unread is in it.
    fn hang_up(&mut self, socket: Descriptor) {
        let mut byte = 0_u8;
        // SAFETY: a number, and one live byte.
        let unread = unsafe {
            libc::shutdown(socket.raw(), libc::SHUT_RD);
            libc::recv(socket.raw(), (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT)
        };
        if unread > 0 {
            self.sockets.push(socket);
        }
    }
}

impl Drop for Unwanted {
    fn drop(&mut self) {
        /// Counts until it is dropped, wherever that is.
        struct Counted(usize);
        impl Drop for Counted {
            fn drop(&mut self) {
                UNCLOSED_DESCRIPTORS.fetch_sub(self.0, Ordering::Relaxed);
            }
        }
        let (files, sockets) = (std::mem::take(&mut self.files), std::mem::take(&mut self.sockets));
        let counted = Counted(files.len() + sockets.len());
        UNCLOSED_DESCRIPTORS.fetch_add(counted.0, Ordering::Relaxed);
        if counted.0 > 0 {
            // Without a thread they are closed here.
            let _ = thread::spawn("ubiverbs-closes", move || drop((files, sockets, counted)));
        }
    }
}

/// Answers one that asked. Never waits.
pub fn answer(socket: &Descriptor, report: &[u8]) -> io::Result<()> {
    let memory = sealed(report)?;
    passing::send(socket, &greeting::of(greeting::REPORT_ANSWER), &[memory.raw()])
}

/// What a process of the own user wants to happen to this one.
#[derive(Debug)]
pub struct Injection {
    pub(crate) socket: Descriptor,
    /// Memory that says what, if it came along.
    pub(crate) text: Option<OwnedFd>,
}

impl Injection {
    /// What is to happen, if it is no longer than `longest` bytes.
    pub fn text(&self, longest: u64) -> Option<String> {
        let memory = self.text.as_ref().filter(|memory| is_sealed(memory, longest))?;
        let mut text = String::new();
        io::Read::read_to_string(&mut SealedReport { memory: memory.try_clone().ok()?, at: 0 }, &mut text).ok()?;
        Some(text)
    }

    /// Says what came of it: why it does not happen, or nothing. Never waits.
    pub fn answer(&self, why_not: &str) -> io::Result<()> {
        answer(&self.socket, why_not.as_bytes())
    }
}

/// Why something does not happen to another process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InjectError {
    /// It has no name here.
    #[error("process {0} has no device of ubiverbs open, or runs in another network namespace")]
    NoDevice(i32),
    /// It is another user's.
    #[error("process {pid} is user {uid}'s: only its own user may break its devices (EPERM)")]
    OtherUser {
        /// The process.
        pid: i32,
        /// Its user.
        uid: u32,
    },
    /// It did not say what came of it.
    #[error("process {0} does not answer; it is stopped, perhaps, or of another version")]
    Silent(i32),
    /// It does not do it.
    #[error("{0}")]
    Refused(String),
    /// The system refused something.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Has something happen to a process of the own user, and waits so long for what it says.
pub fn inject(pid: i32, text: &str, patience: Duration) -> Result<(), InjectError> {
    let deadline = Instant::now() + patience;
    let mut names = Name::of_this_host()?.into_iter().filter(|name| name.slot().is_some());
    let found = names.find_map(|name| reach(name).ok().filter(|(_, process)| process.pid == pid));
    let Some((socket, process)) = found else { return Err(InjectError::NoDevice(pid)) };
    if !holders::is_our_user(process.uid) {
        return Err(InjectError::OtherUser { pid, uid: process.uid });
    }
    pass_rights(&socket, true);
    let memory = sealed(text.as_bytes())?;
    passing::send(&socket, &greeting::of(greeting::INJECTION), &[memory.raw()])?;
    let mut polled = libc::pollfd { fd: socket.raw(), events: libc::POLLIN, revents: 0 };
    while polled.revents == 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(InjectError::Silent(pid));
        }
        let millis = left.as_millis().clamp(1, i32::MAX as u128) as i32;
        // SAFETY: one live structure.
        unsafe { libc::poll(&raw mut polled, 1, millis) };
    }
    let mut unwanted = Unwanted::default();
    let mut why_not = String::new();
    let mut report = receive(&socket, &mut unwanted).ok_or(InjectError::Silent(pid))?;
    io::Read::read_to_string(&mut report, &mut why_not)?;
    if why_not.is_empty() { Ok(()) } else { Err(InjectError::Refused(why_not)) }
}

/// Memory with these bytes that stays as it is.
fn sealed(report: &[u8]) -> io::Result<Descriptor> {
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
    check(unsafe { libc::fcntl(memory.raw(), libc::F_ADD_SEALS, REPORT_SEALS) })?;
    Ok(memory)
}

/// The report that has come.
fn receive(socket: &Descriptor, unwanted: &mut Unwanted) -> Option<SealedReport> {
    let mut descriptors = Vec::new();
    let mut bytes = [0; 8];
    let length = passing::receive(socket, &mut bytes, &mut descriptors);
    let is_report =
        length.is_ok_and(|length| length == bytes.len()) && greeting::kind(&bytes) == Some(greeting::REPORT_ANSWER);
    if is_report
        && let [memory] = descriptors.as_slice()
        && is_sealed(memory, MAX_REPORT_BYTES)
    {
        return descriptors.pop().map(|memory| SealedReport { memory, at: 0 });
    }
    unwanted.files.append(&mut descriptors);
    None
}

/// Whether this is memory that stays as it is, and no more of it than a report may be. Nothing else is read: a file may
/// be one that never answers.
fn is_sealed(memory: &OwnedFd, longest: u64) -> bool {
    let fd = memory.as_raw_fd();
    // SAFETY: numbers; all zeros are a `stat`, which is live while the call fills it.
    unsafe {
        let seals = libc::fcntl(fd, libc::F_GET_SEALS);
        let mut stat: libc::stat = std::mem::zeroed();
        seals >= 0
            && seals & REPORT_SEALS == REPORT_SEALS
            && libc::fstat(fd, &raw mut stat) == 0
            && u64::try_from(stat.st_size).is_ok_and(|length| length <= longest)
    }
}

/// A report that came, read from its beginning to its end.
#[derive(Debug)]
pub struct SealedReport {
    memory: OwnedFd,
    /// The file's own offset is its sender's, too.
    at: libc::off_t,
}

impl io::Read for SealedReport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let fd = self.memory.as_raw_fd();
        // SAFETY: the bytes are live, and as many as said.
        let read = check_length(unsafe { libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), self.at) })?;
        self.at += read as libc::off_t;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> [Descriptor; 2] {
        let mut fds = [0; 2];
        let flags = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: two numbers are written to a live array, and are ours.
        unsafe {
            check(libc::socketpair(libc::AF_UNIX, flags, 0, fds.as_mut_ptr())).unwrap();
            fds.map(|fd| Descriptor::keep(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// Sealed memory, or memory that may change, of which nothing was written.
    fn memory(length: u64, sealed: bool) -> OwnedFd {
        // SAFETY: a name that ends with a zero, and numbers; the descriptor is ours.
        unsafe {
            let memory = libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING);
            libc::ftruncate(memory, length as libc::off_t);
            libc::fcntl(memory, libc::F_ADD_SEALS, if sealed { REPORT_SEALS } else { 0 });
            OwnedFd::from_raw_fd(memory)
        }
    }

    fn received(socket: &Descriptor) -> Option<SealedReport> {
        receive(socket, &mut Unwanted::default())
    }

    #[test]
    fn a_report_comes_as_it_was_sent() {
        let [ours, theirs] = pair();
        for report in [Vec::new(), vec![7; 100_000]] {
            answer(&theirs, &report).unwrap();
            let mut came = Vec::new();
            received(&ours).unwrap().read_to_end(&mut came).unwrap();
            assert_eq!(came, report);
        }
    }

    #[test]
    fn only_sealed_memory_is_read() {
        let [ours, theirs] = pair();
        let file = File::open("/proc/self/exe").unwrap();
        let greeting = greeting::of(greeting::REPORT_ANSWER);
        let (open, too_long) = (memory(8, false), memory(MAX_REPORT_BYTES + 1, true));
        for (passed, what) in [
            (vec![file.as_raw_fd()], "a file"),
            (vec![open.as_raw_fd()], "memory that may change"),
            (vec![too_long.as_raw_fd()], "too much of it"),
            (vec![], "nothing"),
        ] {
            passing::send(&theirs, &greeting, &passed).unwrap();
            assert!(received(&ours).is_none(), "{what}");
        }
        passing::send(&theirs, &greeting::of(greeting::RING_WELCOME), &[file.as_raw_fd()]).unwrap();
        assert!(received(&ours).is_none(), "another message");
        drop(theirs);
        assert!(received(&ours).is_none(), "the end");
    }

    /// A TCP socket with unsent data that lingers for minutes when it is closed, whose peer does not read.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // So small that it cannot take what the sender's buffer has, however late the kernel delivers it.
        socket2::SockRef::from(&listener).set_recv_buffer_size(4096).unwrap();
        let sends = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (silent, _) = listener.accept().unwrap();
        sends.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &sends, &[0; 1 << 16]).is_ok() {}
        let linger = libc::linger { l_onoff: 1, l_linger: 600 };
        let length = size_of_val(&linger) as libc::socklen_t;
        let (fd, option) = (sends.as_raw_fd(), libc::SO_LINGER);
        // SAFETY: a live structure, and its length.
        check(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const linger).cast(), length) }).unwrap();
        sends.set_nonblocking(false).unwrap();
        (sends.into(), silent)
    }

    /// Ours would be the last `close`, and wait: unless another test forks in that moment, and its child has a copy.
    #[test]
    fn what_lingers_is_closed_by_a_thread() {
        assert!((0..100).any(|_| lingers_in_a_thread()), "both are being closed");
    }

    /// Whether it was the last `close` of two sockets, and a thread waited for it.
    fn lingers_in_a_thread() -> bool {
        let [ours, theirs] = pair();
        let (read, unread) = (lingering(), lingering());
        let begun = Instant::now();
        for (socket, _) in [&read, &unread] {
            passing::send(&theirs, &greeting::of(greeting::REPORT_ANSWER), &[socket.as_raw_fd()]).unwrap();
        }
        // Only the messages have them now. Ours are copies still: no last one is closed here.
        drop((read.0, unread.0));
        let mut unwanted = Unwanted::default();
        assert!(receive(&ours, &mut unwanted).is_none());
        unwanted.hang_up(ours);
        assert_eq!((unwanted.files.len(), unwanted.sockets.len()), (1, 1));
        drop(unwanted);
        assert!(begun.elapsed() < Duration::from_secs(300), "{:?}", begun.elapsed());
        let waits = UNCLOSED_DESCRIPTORS.load(Ordering::Relaxed) >= 2;
        // What nobody sends to any more has an end.
        drop((read.1, unread.1));
        let deadline = Instant::now() + Duration::from_secs(60);
        while UNCLOSED_DESCRIPTORS.load(Ordering::Relaxed) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(UNCLOSED_DESCRIPTORS.load(Ordering::Relaxed), 0);
        waits
    }

    #[test]
    fn our_user_and_root_may_ask() {
        assert!(may_ask(0) && may_ask(own_uid()));
        assert!(!may_ask(own_uid() + 12_345));
        assert!(Users::Own.include(own_uid()) && !Users::Own.include(own_uid() + 12_345));
    }

    /// It owns slots and answers nothing.
    #[test]
    fn silent_processes_cost_no_more_than_the_deadline() {
        let slots = crate::slots::Slots::open().unwrap();
        slots.take().unwrap();
        for (users, asked) in [(Users::Own, None), (Users::All, Some(false))] {
            let begun = Instant::now();
            let mut answered = None;
            ask(users, Duration::from_millis(50), |process, report| {
                if process.pid == std::process::id() as i32 {
                    answered = Some(report.is_ok());
                }
            })
            .unwrap();
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
            assert_eq!(answered, asked);
        }
    }
}
