//! System calls that we use and that a filter may forbid, as in containers and sandboxes, or an old kernel lacks.
//! Each is tried. Some have a substitute, and then it is only slower; those that have one as good (`epoll_pwait2`,
//! `process_vm_readv`) are not looked at.

use super::Finding;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// What is tried.
struct Attempt {
    call: &'static str,
    /// The first kernel that has it.
    since: &'static str,
    result: io::Result<()>,
    /// What follows if it is refused.
    so: &'static str,
    /// There is no substitute.
    needed: bool,
}

pub fn check() -> Vec<Finding> {
    let attempts = attempts();
    let refused: Vec<Finding> = attempts.iter().filter_map(Attempt::finding).collect();
    if !refused.is_empty() {
        return refused;
    }
    let calls: Vec<&str> = attempts.iter().map(|attempt| attempt.call).collect();
    vec![Finding::ok("system calls", format!("{} work", calls.join(", ")))]
}

fn attempts() -> [Attempt; 7] {
    let attempt = |call, since, result, so| Attempt { call, since, result, so, needed: false };
    let needed = |attempt| Attempt { needed: true, ..attempt };
    let bell = eventfd(0, EventfdFlags::CLOEXEC).map(drop).map_err(io::Error::from);
    let memory = memfd_create(c"ubiverbs-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let watch = pidfd_open(getpid(), PidfdFlags::empty());
    let socket = UdpSocket::bind("127.0.0.1:0");
    let on_socket = |probe: fn(i32) -> io::Result<()>| match &socket {
        Ok(socket) => probe(socket.as_raw_fd()),
        // There is no loopback: another check says so.
        Err(_) => Ok(()),
    };
    [
        needed(attempt("eventfd", "2.6.27", bell, "no program can open a device")),
        attempt("recvmmsg", "2.6.33", on_socket(probe::receive_many), "over UDP a call receives one packet"),
        attempt(
            "memfd_create",
            "3.17",
            memory.map(drop).map_err(io::Error::from),
            "processes of one host share no memory and use UDP, which is slower",
        ),
        attempt(
            "pidfd_open",
            "5.3",
            watch.map(drop).map_err(io::Error::from),
            "the end of another process is noticed late",
        ),
        attempt("membarrier", "4.14", probe::fences(), "a call takes longer"),
        attempt("UDP_SEGMENT", "4.18", on_socket(probe::segments), "over UDP each packet is a call of its own"),
        attempt("UDP_GRO", "5.0", on_socket(probe::merges), "over UDP each packet arrives on its own"),
    ]
}

impl Attempt {
    fn finding(&self) -> Option<Finding> {
        let Attempt { call, since, result, so, needed } = self;
        let error = result.as_ref().err()?;
        let what = format!("{call} is refused ({error}): {so}");
        let missing = matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::ENOPROTOOPT));
        let fix = if missing {
            format!("Linux {since} has it; a sandbox or container that hides it must allow it")
        } else {
            "allow it in the sandbox or the container (docker run --security-opt seccomp=unconfined)".to_owned()
        };
        let tell = if *needed { Finding::failure } else { Finding::warning };
        Some(tell("system calls", what, fix))
    }
}

#[allow(unsafe_code, reason = "system calls that have no safe form here")]
mod probe {
    use std::io;

    fn checked(answer: impl Into<i64>) -> io::Result<()> {
        if answer.into() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives no message into no place.
    pub fn receive_many(socket: i32) -> io::Result<()> {
        // SAFETY: no message, so nothing is written.
        checked(unsafe { libc::recvmmsg(socket, std::ptr::null_mut(), 0, libc::MSG_DONTWAIT, std::ptr::null_mut()) })
    }

    pub fn fences() -> io::Result<()> {
        // SAFETY: numbers.
        checked(unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_QUERY, 0, 0) })
    }

    pub fn segments(socket: i32) -> io::Result<()> {
        option(socket, libc::UDP_SEGMENT)
    }

    pub fn merges(socket: i32) -> io::Result<()> {
        option(socket, libc::UDP_GRO)
    }

    /// Sets an option of UDP to what it is without being set.
    fn option(socket: i32, name: i32) -> io::Result<()> {
        let none = 0i32;
        // SAFETY: a live number and its size.
        checked(unsafe { libc::setsockopt(socket, libc::IPPROTO_UDP, name, (&raw const none).cast(), 4) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn what_has_a_substitute_is_a_warning() {
        let finding = |needed, errno| {
            let result = Err(io::Error::from_raw_os_error(errno));
            Attempt { call: "a_call", since: "9.9", result, so: "it is slow", needed }.finding().unwrap()
        };
        assert_eq!(finding(false, libc::EPERM).level, Level::Warning);
        assert_eq!(finding(true, libc::EPERM).level, Level::Failure);
        assert!(finding(true, libc::EPERM).fix.unwrap().contains("docker"));
        assert!(finding(true, libc::ENOSYS).fix.unwrap().starts_with("Linux 9.9 has it"));
    }
}
