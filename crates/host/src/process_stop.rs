//! Stops this process for a while, as SIGSTOP does, with no other process of the program's to let it go on: a process
//! that its parent cannot wait for sends SIGCONT when the time has come.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::time::Duration;

/// What the process needs that lets this one go on: it makes three system calls.
const STACK_BYTES: usize = 16 << 10;

/// What the other process knows. It shares this process's memory, so it may be read there.
struct WakeUp {
    process: OwnedFd,
    after: libc::timespec,
}

/// Stops the process; it goes on after `time`, or when another process sends SIGCONT. Returns when it goes on. The
/// calling thread then waits for the helper: it should have nothing else to do.
///
/// # Errors
/// The system refuses what it takes. Then nothing has stopped.
pub fn stop(time: Duration) -> io::Result<()> {
    // SAFETY: plain call; the descriptor it returns is owned from here on.
    let process = unsafe {
        match libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) {
            fd if fd < 0 => return Err(io::Error::last_os_error()),
            fd => OwnedFd::from_raw_fd(fd as i32),
        }
    };
    let after = libc::timespec { tv_sec: time.as_secs() as libc::time_t, tv_nsec: time.subsec_nanos().into() };
    let wake_up = WakeUp { process, after };
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    // SAFETY: the function runs on the stack given, which is aligned and large enough for what it does, and reads
    // `wake_up`; both live until it has ended, as this thread waits for that below. It calls nothing that takes a lock
    // or allocates, and writes no variable of a thread. No signal is sent when it ends, so the program's own waiting
    // does not see it.
    let child = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast::<c_void>();
        libc::clone(let_go_on, top, libc::CLONE_VM | libc::CLONE_FILES, (&raw const wake_up).cast_mut().cast())
    };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain calls: the signal is for this process, and the child is this thread's own.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGSTOP);
        while libc::waitpid(child, null_mut(), libc::__WCLONE) < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
    drop(stack);
    Ok(())
}

/// Sleeps, and has the process go on. Only system calls that succeed: `errno` would be the calling thread's.
extern "C" fn let_go_on(wake_up: *mut c_void) -> i32 {
    // SAFETY: `stop` keeps it until this process has ended.
    unsafe {
        let WakeUp { process, after } = &*wake_up.cast::<WakeUp>();
        libc::syscall(libc::SYS_nanosleep, std::ptr::from_ref(after), 0);
        libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGCONT, 0, 0);
        libc::syscall(libc::SYS_exit, 0);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    /// In a process of its own: a stopped test runner would be told of to its terminal.
    #[test]
    fn a_process_that_is_stopped_goes_on_by_itself() {
        const ASKED: &str = "UBIVERBS_TEST_STOPS";
        if std::env::var_os(ASKED).is_some() {
            let begun = Instant::now();
            stop(Duration::from_millis(50)).unwrap();
            assert!(begun.elapsed() >= Duration::from_millis(50));
            // SAFETY: asks for children that are left.
            assert_eq!(unsafe { libc::waitpid(-1, null_mut(), libc::__WALL | libc::WNOHANG) }, -1);
            return;
        }
        let own = std::env::current_exe().unwrap();
        let name = "process_stop::tests::a_process_that_is_stopped_goes_on_by_itself";
        let status = Command::new(own).args(["--exact", name]).env(ASKED, "1").status().unwrap();
        assert!(status.success());
    }
}
