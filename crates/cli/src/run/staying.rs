//! Staying while a program runs: it is our child, gets the signals that we get, stops when it stops, and we end as it
//! does. Signals of the terminal come to both of us, so they are not passed on.
#![allow(unsafe_code, reason = "signals have no safe form here")]

use crate::exit::{Exit, Failure};
use std::io;
use std::mem::zeroed;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// How the program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// With an exit code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// Signals that cannot be waited for, or that are our own mistakes.
const NOT_PASSED: [i32; 8] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
];

/// Runs the program to its end.
pub fn run(command: &mut Command) -> io::Result<Ended> {
    let waited_for = signals();
    // SAFETY: live sets of signals. No other thread of ours runs.
    let before = unsafe {
        let mut before: libc::sigset_t = zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const waited_for, &raw mut before);
        before
    };
    // SAFETY: between fork and exec only calls that may be made there: the mask as it was, and a signal if we are killed.
    unsafe {
        command.pre_exec(move || {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let child = command.spawn().inspect_err(|_| {
        // SAFETY: a live set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    })?;
    let child = child.id() as libc::pid_t;
    loop {
        // SAFETY: live structures.
        let (signal, info) = unsafe {
            let mut info: libc::siginfo_t = zeroed();
            (libc::sigwaitinfo(&raw const waited_for, &raw mut info), info)
        };
        match signal {
            libc::SIGCHLD => {
                if let Some(ended) = look_at(child) {
                    return Ok(ended);
                }
            }
            // An interrupted wait.
            -1 => {}
            // The kernel sends what is typed at a terminal to everybody in the foreground.
            _ if info.si_code == libc::SI_KERNEL => {}
            signal => {
                // SAFETY: numbers; the child is not waited for yet, so the number is its own.
                unsafe { libc::kill(child, signal) };
            }
        }
    }
}

/// What is waited for instead of being obeyed.
fn signals() -> libc::sigset_t {
    // SAFETY: a live set.
    unsafe {
        let mut all: libc::sigset_t = zeroed();
        libc::sigfillset(&raw mut all);
        for signal in NOT_PASSED {
            libc::sigdelset(&raw mut all, signal);
        }
        all
    }
}

/// Whether the child has ended. If it has stopped, so do we, until both go on.
fn look_at(child: libc::pid_t) -> Option<Ended> {
    loop {
        let mut status = 0;
        // SAFETY: a live number.
        let waited =
            unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED) };
        if waited != child {
            return None;
        }
        if libc::WIFEXITED(status) {
            return Some(Ended::Code(libc::WEXITSTATUS(status)));
        }
        if libc::WIFSIGNALED(status) {
            return Some(Ended::Signal(libc::WTERMSIG(status)));
        }
        if libc::WIFSTOPPED(status) {
            // SAFETY: numbers.
            unsafe {
                libc::raise(libc::SIGSTOP);
                libc::kill(child, libc::SIGCONT);
            }
        }
    }
}

/// Ends as the program did. Returns only for a signal that does not end us.
pub fn end_as(ended: Ended) -> Result<Exit, Failure> {
    let signal = match ended {
        Ended::Code(code) => std::process::exit(code),
        Ended::Signal(signal) => signal,
    };
    // SAFETY: live structures and numbers. The program has dumped its core, if that is wanted.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
        let mut only: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const only, std::ptr::null_mut());
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}
