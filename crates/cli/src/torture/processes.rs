//! The processes that a command has started, as `/proc` shows them, and how each of them ended: also those that a shell
//! of the user's has waited for.
#![allow(unsafe_code, reason = "the end of a process that is not our child has no safe form")]

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use std::collections::BTreeMap;
use std::fs;

/// The end of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Code(i32),
    Signal(i32),
}

impl End {
    /// What `wait` says.
    fn of_status(status: i32) -> End {
        match libc::WIFSIGNALED(status) {
            true => End::Signal(libc::WTERMSIG(status)),
            false => End::Code(libc::WEXITSTATUS(status)),
        }
    }
}

impl From<std::process::ExitStatus> for End {
    fn from(status: std::process::ExitStatus) -> End {
        End::of_status(std::os::unix::process::ExitStatusExt::into_raw(status))
    }
}

/// A process at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    pub number: u32,
    parent: u32,
    /// The kernel's letter.
    state: char,
    /// What the kernel calls it, with nothing in it that a terminal would obey.
    pub name: String,
    /// The processor time that it has used, in ticks of the kernel.
    pub ticks: u64,
    /// When it began, in ticks: numbers are used again.
    began: u64,
}

impl Process {
    /// A line of `/proc/PID/stat`.
    fn read(line: &str) -> Option<Process> {
        let (before, rest) = line.rsplit_once(") ")?;
        let (number, name) = before.split_once(" (")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let field = |at: usize| fields.get(at)?.trim().parse::<u64>().ok();
        Some(Process {
            number: number.parse().ok()?,
            parent: u32::try_from(field(1)?).ok()?,
            state: fields.first()?.chars().next()?,
            name: trace::printable(name).to_string(),
            ticks: field(11)? + field(12)?,
            began: field(19)?,
        })
    }

    pub fn parent(&self) -> u32 {
        self.parent
    }

    /// Whether it is more than an entry that has not been collected.
    pub fn lives(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }

    /// Our own helper (`ubiverbs tidy`): it ends with the program that it cleans up after.
    fn is_attendant(&self) -> bool {
        let line = || fs::read(format!("/proc/{}/cmdline", self.number)).unwrap_or_default();
        self.name == "ubiverbs" && line().split(|byte| *byte == 0).nth(1) == Some(b"tidy")
    }

    pub fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    /// How many descriptors it has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.number)).map_or(0, Iterator::count)
    }
}

/// All processes that descend from one, without that one.
fn descendants(ancestor: u32) -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let stat = |number: u32| {
        let bytes = fs::read(format!("/proc/{number}/stat")).ok()?;
        Process::read(&String::from_utf8_lossy(&bytes))
    };
    below(ancestor, numbers.filter_map(stat).collect())
}

fn below(ancestor: u32, mut others: Vec<Process>) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut known = vec![ancestor];
    loop {
        let (next, rest): (Vec<Process>, _) = others.into_iter().partition(|process| known.contains(&process.parent));
        if next.is_empty() {
            return found;
        }
        known.extend(next.iter().map(|process| process.number));
        found.extend(next);
        others = rest;
    }
}

/// The processes of one run. Orphans among them become our children, so none gets lost.
#[derive(Debug, Default)]
pub struct Family {
    /// By number and beginning.
    seen: BTreeMap<(u32, u64), Member>,
    /// Children of ours that `std` waits for.
    children: Vec<u32>,
    /// Whether all other children of ours are orphans that nobody else waits for.
    adopts: bool,
}

#[derive(Debug)]
struct Member {
    name: String,
    /// Its end can be asked for by this, after its parent has collected it.
    descriptor: Option<OwnedFd>,
    end: Option<End>,
}

impl Family {
    /// One whose orphans become children of this process, which waits for no child but by this.
    pub fn adopting() -> Family {
        // Where this is refused, leftovers are not seen.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        Family { adopts: true, ..Family::default() }
    }

    /// A child that its owner waits for.
    pub fn expect(&mut self, child: u32) {
        self.children.push(child);
    }

    /// Looks at all of them, and collects orphans. Returns those that live, but for our helpers.
    pub fn look(&mut self) -> Vec<Process> {
        let us = std::process::id();
        let all = descendants(us);
        for process in &all {
            let member = self.seen.entry((process.number, process.began)).or_insert_with(|| Member {
                name: String::new(),
                descriptor: Pid::from_raw(process.number as i32)
                    .and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok()),
                end: None,
            });
            // It may have become another program since.
            member.name.clone_from(&process.name);
            let is_orphan = self.adopts && process.parent == us && !self.children.contains(&process.number);
            if is_orphan && !process.lives() {
                let waited = waitpid(Pid::from_raw(process.number as i32), WaitOptions::NOHANG);
                if let Ok(Some((_, status))) = waited {
                    member.end = Some(End::of_status(status.as_raw()));
                }
            }
        }
        all.into_iter().filter(|process| process.lives() && !process.is_attendant()).collect()
    }

    /// Those that a signal has ended, as far as it is known: number, name, signal.
    pub fn ended_by_signal(&self) -> Vec<(u32, String, i32)> {
        let of = |((number, _), member): (&(u32, u64), &Member)| match member
            .end
            .or_else(|| member.descriptor.as_ref().and_then(end_of))
        {
            Some(End::Signal(signal)) => Some((*number, member.name.clone(), signal)),
            _ => None,
        };
        self.seen.iter().filter_map(of).collect()
    }

    /// Sends a signal to all that live.
    pub fn signal(&mut self, signal: Signal) {
        for process in self.look() {
            if let Some(number) = Pid::from_raw(process.number as i32) {
                let _ = kill_process(number, signal);
            }
        }
    }
}

/// How a process ended that has been collected: Linux 6.15 and later tell this.
fn end_of(process: &OwnedFd) -> Option<End> {
    /// `struct pidfd_info` in its first version.
    #[repr(C)]
    #[derive(Default)]
    struct Information {
        mask: u64,
        control_group: u64,
        numbers_and_users: [u32; 11],
        exit_status: i32,
    }
    const EXIT_MASK: u64 = 1 << 3;
    /// `PIDFD_GET_INFO`: both ways, the structure's size, 0xff, 11.
    const GET_INFORMATION: libc::Ioctl = 0xc040_ff0b_u32 as libc::Ioctl;
    let mut information = Information { mask: EXIT_MASK, ..Information::default() };
    // SAFETY: a live descriptor, and a structure of the size that the request names.
    let answer = unsafe { libc::ioctl(process.as_raw_fd(), GET_INFORMATION, &raw mut information) };
    (answer == 0 && information.mask & EXIT_MASK != 0).then(|| End::of_status(information.exit_status))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(number: u32, parent: u32, name: &str) -> Process {
        let fields: Vec<String> = (3..=22).map(|field| field.to_string()).collect();
        let line = format!("{number} ({name}) S {parent} {}", fields[2..].join(" "));
        Process::read(&line).expect("a line")
    }

    #[test]
    fn a_line_is_read_whatever_a_process_calls_itself() {
        let read = process(7, 1, "a) S 9 (\u{1b}");
        assert_eq!((read.number, read.parent, read.state, read.ticks, read.began), (7, 1, 'S', 14 + 15, 22));
        assert_eq!(read.name, r"a) S 9 (\u{1b}");
        assert_eq!(Process::read("7 (a"), None);
        assert_eq!(Process::read(""), None);
    }

    #[test]
    fn descendants_are_found_in_any_order() {
        let all = vec![process(30, 20, "c"), process(20, 10, "b"), process(10, 1, "a"), process(11, 1, "x")];
        let found: Vec<u32> = below(10, all).iter().map(|process| process.number).collect();
        assert_eq!(found, [20, 30]);
    }

    #[test]
    fn the_end_of_a_grandchild_is_known() {
        let mut family = Family::default();
        // The shell waits for the shell below it, so nothing but the kernel can say how that one ended.
        let script = "sh -c 'sleep 0.3; kill -SEGV $$'; true";
        let mut child = std::process::Command::new("sh").args(["-c", script]).spawn().expect("a shell");
        family.expect(child.id());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while child.try_wait().expect("a child").is_none() {
            assert!(std::time::Instant::now() < deadline);
            let ours = family.look();
            assert!(ours.iter().all(|process| process.lives()));
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let ended = family.ended_by_signal();
        // Earlier kernels do not tell.
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
        let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        if (numbers.next(), numbers.next()) >= (Some(6), Some(15)) {
            assert!(ended.iter().any(|(_, _, signal)| *signal == libc::SIGSEGV), "{ended:?}");
        }
    }
}
