//! What a peer says of the accesses it makes by its own mapping, and whether the thread that says so may still store.
//! Nothing that stands here is believed: a peer that lies is waited for a little, and could write this process's memory
//! in any case.

use super::Mapping;
use super::protocol::wait_until_over;
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

const CLAIMS_BYTES: usize = 4096;
/// An access that is under way is over so soon.
const SPINS_BEFORE_LOOKING: u32 = 2000;
/// Between two looks at a thread that has not come to the end.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);
/// No thread is on its processor for so long in the middle of a copy: the claim is not of one.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(5);

/// The page in which a peer makes its claims.
#[derive(Debug)]
pub(super) struct Claims {
    page: Mapping,
    /// The peer, as it is seen from here.
    process: i32,
}

impl Claims {
    /// A page, and its descriptor for the peer.
    pub fn new(process: i32) -> io::Result<(Claims, OwnedFd)> {
        let (page, descriptor) = Mapping::create(CLAIMS_BYTES)?;
        Ok((Claims { page, process }, descriptor))
    }

    /// The page that the peer has made.
    pub fn accept(descriptor: BorrowedFd<'_>) -> io::Result<Claims> {
        let page = Mapping::accept(descriptor, |length| length == CLAIMS_BYTES as u64)?;
        Ok(Claims { page, process: 0 })
    }

    /// The word: 0, or a thread in its lower half and a number that is another each time.
    #[inline]
    pub fn word(&self) -> &AtomicU64 {
        self.page.double_word(0)
    }

    /// Waits until an access that was begun before is over, or will not be finished.
    pub fn wait_until_over(&self) {
        let (mut spins, mut begun, mut seen) = (0, None, None);
        wait_until_over(self.word(), |claim| {
            if spins < SPINS_BEFORE_LOOKING {
                spins += 1;
                std::hint::spin_loop();
                return false;
            }
            let begun = *begun.get_or_insert_with(Instant::now);
            let look = Look::at(self.process, claim as u32);
            if look == Look::NotOnProcessor || begun.elapsed() > CLAIM_TIMEOUT {
                return true;
            }
            if let Look::Unknown { switches, is_stopped } = look {
                match seen {
                    // Stopped twice without having run in between, or taken from its processor since the first look.
                    Some((before, was_stopped)) if before != switches || was_stopped && is_stopped => return true,
                    Some(_) => {}
                    None => seen = Some((switches, is_stopped)),
                }
            }
            std::thread::sleep(LOOK_INTERVAL);
            false
        });
    }
}

/// What the kernel says of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    /// It is on a processor, or waits for one: it will come to the end.
    Runs,
    /// It is none, or it was not on a processor at this moment.
    NotOnProcessor,
    /// It may not be asked (Yama); how often it left a processor, and whether it is stopped.
    Unknown { switches: u64, is_stopped: bool },
}

impl Look {
    /// Looks at a thread of another process.
    fn at(process: i32, thread: u32) -> Look {
        // The kernel makes sure that the thread is off its processor before it says where it is.
        match fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall")) {
            Ok(text) if text.starts_with("running") => Look::Runs,
            Ok(text) if !text.is_empty() => Look::NotOnProcessor,
            _ => match fs::read_to_string(format!("/proc/{process}/task/{thread}/status")) {
                Ok(status) => Look::from_status(&status),
                Err(error) if is_gone(&error) => Look::NotOnProcessor,
                Err(_) => Look::Runs,
            },
        }
    }

    fn from_status(status: &str) -> Look {
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.strip_prefix(':')).map_or("", str::trim)
        };
        let count = |name| value(name).parse::<u64>().unwrap_or(0);
        let switches = count("voluntary_ctxt_switches") + count("nonvoluntary_ctxt_switches");
        match value("State").chars().next() {
            Some('Z' | 'X' | 'x') => Look::NotOnProcessor,
            state => Look::Unknown { switches, is_stopped: matches!(state, Some('T' | 't')) },
        }
    }
}

/// Whether there is no such thread. Where there is no /proc any more that says nothing.
fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
        || error.kind() == io::ErrorKind::NotFound && fs::exists("/proc/self/task").unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    /// A process that does nothing for ever, or spins.
    fn child(program: &str) -> std::process::Child {
        std::process::Command::new("sh").args(["-c", program]).spawn().expect("there is a shell")
    }

    fn wait_for(look: impl Fn(Look) -> bool, process: u32) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !look(Look::at(process as i32, process)) {
            assert!(Instant::now() < deadline, "{:?}", Look::at(process as i32, process));
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    #[test]
    fn a_claim_of_a_thread_that_is_stopped_or_gone_is_not_waited_for() {
        let mut spinning = child("while :; do :; done");
        wait_for(|look| look == Look::Runs, spinning.id());
        let (claims, _descriptor) = Claims::new(spinning.id() as i32).unwrap();
        claims.wait_until_over();
        claims.word().store(1 << 32 | u64::from(spinning.id()), Ordering::Relaxed);
        // SAFETY: numbers.
        unsafe { libc::kill(spinning.id() as i32, libc::SIGSTOP) };
        let begun = Instant::now();
        claims.wait_until_over();
        assert!(begun.elapsed() < CLAIM_TIMEOUT);
        spinning.kill().unwrap();
        spinning.wait().unwrap();
        claims.wait_until_over();
        assert_eq!(Look::at(spinning.id() as i32, spinning.id()), Look::NotOnProcessor);
    }

    #[test]
    fn a_claim_that_ends_was_waited_for() {
        let mut spinning = child("while :; do :; done");
        wait_for(|look| look == Look::Runs, spinning.id());
        let (claims, descriptor) = Claims::new(spinning.id() as i32).unwrap();
        let others = Claims::accept(std::os::fd::AsFd::as_fd(&descriptor)).unwrap();
        others.word().store(1 << 32 | u64::from(spinning.id()), Ordering::Relaxed);
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                ended.store(true, Ordering::Relaxed);
                others.word().store(0, Ordering::Release);
            });
            claims.wait_until_over();
            assert!(ended.load(Ordering::Relaxed), "the thread was running");
        });
        spinning.kill().unwrap();
        spinning.wait().unwrap();
    }

    #[test]
    fn a_thread_that_may_not_be_asked_is_judged_by_what_it_did() {
        let status = |state, count| {
            format!("Name:\tx\nState:\t{state}\nvoluntary_ctxt_switches:\t{count}\nnonvoluntary_ctxt_switches:\t2\n")
        };
        assert_eq!(Look::from_status(&status("R (running)", 5)), Look::Unknown { switches: 7, is_stopped: false });
        assert_eq!(Look::from_status(&status("T (stopped)", 5)), Look::Unknown { switches: 7, is_stopped: true });
        assert_eq!(Look::from_status(&status("Z (zombie)", 5)), Look::NotOnProcessor);
    }
}
