//! Twenty processes that share the port, and everything that can happen to processes: they fork, become other programs,
//! are stopped, continued and killed, as two users where the test may do that. All the while they send numbered packets
//! to each other's slots over UDP. In the end every packet has reached its owner, or a process has counted it, or it
//! was lost with a process: its owner, or one whose socket the kernel had chosen and who died before it could pass it
//! on. Nothing is left behind.
//!
//! The seed of the decisions is printed, and taken from `UBIVERBS_CHAOS_SEED` if that is set; the timing is the
//! machine's.

mod ledger;
#[path = "../network/mod.rs"]
mod network;
mod worker;

use host::names::Name;
use host::slots::Slot;
use ledger::{CHAOS, DRAIN, Dice, END, FULL, Ledger, Life, NOBODY, QUIET, now};
use link::udp::Family;
use network::{Rights, wait_for};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const PROCESSES: usize = 20;
const CHAOS_LASTS: Duration = Duration::from_secs(8);
/// On a machine that is so busy that little happens in that time, it lasts until this much has: kills, stops, forks,
/// execs.
const ENOUGH: [u32; 4] = [20, 20, 20, 5];
/// But not longer than this.
const CHAOS_ENDS: Duration = Duration::from_secs(90);
const QUIET_LASTS: Duration = Duration::from_millis(2000);
const OTHER_USER: u32 = 4711;
const MILLISECOND: u64 = 1_000_000;

fn main() -> ExitCode {
    if std::env::var_os(worker::LEDGER).is_some() {
        worker::run();
    }
    network::run(&[("every_packet_reaches_its_owner_or_is_counted", chaos)])
}

struct Keeper {
    ledger: &'static Ledger,
    file: RawFd,
    dice: Dice,
    users: bool,
    group: i32,
    spawned: u64,
    /// Who is stopped: its number, since when, until when.
    stopped: Vec<(usize, u64, u64)>,
    kills: u32,
    stops: u32,
}

fn chaos(rights: Rights) {
    let seed = std::env::var("UBIVERBS_CHAOS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(now);
    println!("  UBIVERBS_CHAOS_SEED={seed}, {}", if rights.users { "two users" } else { "one user: not root" });
    // Children of those who are killed become ours.
    // SAFETY: numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    let (ledger, file) = Ledger::create();
    ledger.heartbeat.store(now(), Relaxed);
    let mut keeper = Keeper {
        ledger,
        file: file.as_raw_fd(),
        dice: Dice(seed),
        users: rights.users,
        group: 0,
        spawned: 0,
        stopped: Vec::new(),
        kills: 0,
        stops: 0,
    };
    keeper.spawn(true);
    keeper.run(CHAOS, CHAOS_LASTS);
    keeper.continue_all();
    let quiet = now();
    keeper.run(QUIET, QUIET_LASTS);
    let drain = now();
    keeper.run(DRAIN, Duration::from_millis(500));
    // A process that has much left has drained when this is so.
    wait_for("everybody to catch up", || {
        keeper.tend();
        ledger.lives().iter().all(|life| !life.is_alive() || life.drained.load(Relaxed) > drain + 400 * MILLISECOND)
    });
    ledger.phase.store(END, Relaxed);
    keeper.await_the_end();
    wait_for("names and sockets to vanish", || {
        let names = Name::of_this_host().unwrap();
        let holders = [Family::V4, Family::V6].map(|family| host::holders::holders(family, 4791).unwrap());
        names.is_empty() && holders.iter().all(Vec::is_empty)
    });
    judge(&keeper, quiet, drain);
}

impl Keeper {
    fn spawn(&mut self, steady: bool) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(worker::LEDGER, self.file.to_string()).env(worker::SEED, self.dice.roll(u64::MAX).to_string());
        command.process_group(self.group);
        if steady {
            command.env(worker::STEADY, "1");
        } else if self.users && self.spawned % 2 == 1 {
            command.env(worker::USER, OTHER_USER.to_string());
        }
        // A process that has ended is found by `tend`, whichever process started it.
        #[allow(clippy::zombie_processes)]
        let child = command.spawn().expect("a process");
        if self.group == 0 {
            self.group = child.id() as i32;
        }
        self.spawned += 1;
    }

    /// Lets time pass in a phase; in the first one things happen.
    fn run(&mut self, phase: u32, lasts: Duration) {
        self.ledger.phase.store(phase, Relaxed);
        let start = Instant::now();
        let mut young = start;
        while start.elapsed() < lasts || phase == CHAOS && !self.is_enough() && start.elapsed() < CHAOS_ENDS {
            self.tend();
            if phase == CHAOS {
                if self.ledger.alive() < PROCESSES && young <= Instant::now() {
                    self.spawn(false);
                    // It counts when it lives; meanwhile it is not replaced.
                    young = Instant::now() + Duration::from_millis(15);
                }
                self.strike();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_enough(&self) -> bool {
        let Ledger { forks, execs, .. } = self.ledger;
        [self.kills, self.stops, forks.load(Relaxed), execs.load(Relaxed)]
            .iter()
            .zip(ENOUGH)
            .all(|(is, enough)| *is >= enough)
    }

    /// Shows that the test is there, and buries the dead.
    fn tend(&mut self) {
        self.ledger.heartbeat.store(now(), Relaxed);
        loop {
            // SAFETY: no status is asked for.
            let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
            if pid <= 0 {
                break;
            }
            self.ledger.note_death(pid);
        }
        // Who waits for another may be killed before it has written that down.
        for life in self.ledger.lives().iter().filter(|life| life.is_alive()) {
            let pid = life.pid.load(Relaxed);
            // SAFETY: asks about a number.
            if unsafe { libc::kill(pid, 0) } < 0 {
                self.ledger.note_death(pid);
            }
        }
        let due: Vec<_> = self.stopped.extract_if(.., |(_, _, until)| *until <= now()).collect();
        for (victim, ..) in due {
            self.signal(victim, libc::SIGCONT);
        }
    }

    fn strike(&mut self) {
        let is_victim = |number: &usize| {
            self.ledger.lives()[*number].is_alive() && !self.stopped.iter().any(|(stopped, ..)| stopped == number)
        };
        // The first life is the steady one's.
        let victims: Vec<_> = (1..self.ledger.lives().len()).filter(is_victim).collect();
        if victims.is_empty() {
            return;
        }
        let victim = victims[self.dice.roll(victims.len() as u64) as usize];
        match self.dice.roll(16) {
            0 => {
                self.kills += u32::from(self.signal(victim, libc::SIGKILL));
            }
            1 if self.signal(victim, libc::SIGSTOP) => {
                self.stops += 1;
                let lasts = 20 + self.dice.roll(400);
                self.stopped.push((victim, now(), now() + lasts * MILLISECOND));
                // Some never wake again.
                if self.dice.roll(4) == 0 {
                    self.kills += u32::from(self.signal(victim, libc::SIGKILL));
                }
            }
            _ => {}
        }
    }

    fn continue_all(&mut self) {
        for (victim, ..) in std::mem::take(&mut self.stopped) {
            self.signal(victim, libc::SIGCONT);
        }
    }

    /// Sends a signal to a process of ours, and to no other that has got its number.
    fn signal(&self, victim: usize, signal: i32) -> bool {
        let pid = self.ledger.lives()[victim].pid.load(Relaxed);
        // SAFETY: numbers. The descriptor pins the process, so that what is found out about it stays true.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32;
            if fd < 0 {
                return false;
            }
            let fd = OwnedFd::from_raw_fd(fd);
            libc::getpgid(pid) == self.group
                && libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal, std::ptr::null::<u8>(), 0) == 0
        }
    }

    /// Every process ends when it is told to. One that does not is named, and ended.
    fn await_the_end(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            self.tend();
            // SAFETY: a signal that does nothing but look whether we have children left.
            let childless = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } == -1;
            if childless {
                return;
            }
            if Instant::now() > deadline {
                let is_left = |life: &&Life| life.is_alive();
                let left: Vec<_> =
                    self.ledger.lives().iter().filter(is_left).map(|life| life.pid.load(Relaxed)).collect();
                for victim in 0..self.ledger.lives().len() {
                    self.signal(victim, libc::SIGKILL);
                }
                panic!("processes that do not end: {left:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Goes through the ledger.
fn judge(keeper: &Keeper, quiet: u64, drain: u64) {
    let ledger = keeper.ledger;
    let (lives, packets) = (ledger.lives(), ledger.packets());
    // When packets that a process held were lost with it: from when it last had nothing left, until its sockets were
    // certainly closed.
    let death = |life: &Life| {
        let closed = life.ended.load(Relaxed).max(life.inherited.load(Relaxed));
        (life.drained.load(Relaxed).saturating_sub(MILLISECOND), closed + MILLISECOND)
    };
    let deaths: Vec<_> = lives.iter().filter(|life| life.ended.load(Relaxed) < drain).map(death).collect();
    // A process that has a slot which another user had waits for what comes through processes that knew the former
    // owner.
    let waits_for_its_slot = |life: &Life, begun: u64| {
        let slots = |life: &Life| life.slots.each_ref().map(|slot| slot.load(Relaxed)).map(|slot| slot as u16);
        let has_one_of = |other: &Life| {
            let own = slots(life);
            slots(other).iter().filter_map(|slot| Slot::new(*slot)).any(|slot| own.contains(&slot.number()))
        };
        let is_other_user = |other: &Life| other.user.load(Relaxed) != life.user.load(Relaxed);
        let ended = |other: &Life| other.ended.load(Relaxed);
        let former = lives.iter().filter(|other| is_other_user(other) && ended(other) > 0 && has_one_of(other));
        former.map(ended).any(|ended| begun > ended)
    };
    let (mut seen, mut twice, mut nobody, mut full, mut stale) = (0, 0, 0, 0, 0);
    let (mut owner_gone, mut holder_gone, mut unsent, mut missing, mut quiet_packets, mut quiet_missing, mut waiting) =
        (0, 0, 0, 0, 0, 0, 0);
    let mut refused_by_owner: Vec<u64> = lives.iter().map(|life| life.refused.load(Relaxed)).collect();
    let mut owner_refused = 0;
    for record in packets {
        let Some(life) = record.to.load(Relaxed).checked_sub(1).and_then(|to| lives.get(to as usize)) else {
            unsent += 1;
            continue;
        };
        let (begun, sent) = (record.begun.load(Relaxed), record.sent.load(Relaxed));
        let in_quiet = begun > quiet + 500 * MILLISECOND;
        quiet_packets += u32::from(in_quiet);
        match (record.seen.load(Relaxed), record.loss.load(Relaxed)) {
            (0, 0) => {}
            (0, NOBODY) => nobody += 1,
            (0, FULL) => full += 1,
            (0, _) => {
                stale += 1;
                assert!(life.ended.load(Relaxed) < drain, "a packet for one who lived to the end went to another");
            }
            (1, _) => seen += 1,
            _ => twice += 1,
        }
        if record.seen.load(Relaxed) == 0 {
            let waits = record.loss.load(Relaxed) == NOBODY && waits_for_its_slot(life, begun);
            waiting += u32::from(in_quiet && waits);
            quiet_missing += u32::from(in_quiet && !waits);
            if record.loss.load(Relaxed) != 0 {
                continue;
            }
            if life.ended.load(Relaxed) < drain {
                owner_gone += 1;
            } else if sent == 0 {
                unsent += 1;
            } else if deaths.iter().any(|(from, to)| *from <= sent && begun <= *to) {
                holder_gone += 1;
            } else if let Some(refused) = refused_by_owner.get_mut(record.to.load(Relaxed) as usize - 1)
                && *refused > 0
            {
                // The owner did not believe the other user's process that passed it on: what it knows of who has which
                // port is up to a second old.
                *refused -= 1;
                owner_refused += 1;
                quiet_missing -= u32::from(in_quiet);
            } else {
                if missing < 8 {
                    let (to, user) = (record.to.load(Relaxed) - 1, life.user.load(Relaxed));
                    let milliseconds = |from: u64| (sent as i64 - from as i64) / MILLISECOND as i64;
                    println!(
                        "  missing: for life {to} of user {user}, sent {} ms after the quiet began and {} ms after it ended",
                        milliseconds(quiet),
                        milliseconds(drain)
                    );
                }
                missing += 1;
            }
        }
    }
    let sum = |count: fn(&Life) -> u64| lives.iter().map(count).sum::<u64>();
    let overflowed = sum(|life| life.overflowed.load(Relaxed));
    let forwarded = sum(|life| life.forwarded.load(Relaxed));
    let (forks, execs) = (ledger.forks.load(Relaxed), ledger.execs.load(Relaxed));
    println!("  {} lives, {} kills, {} stops, {forks} forks, {execs} execs", lives.len(), keeper.kills, keeper.stops);
    println!(
        "  {} packets: {seen} arrived, {forwarded} of them or others forwarded; dropped and counted: {nobody} without owner, \
        {full} at a full socket, {overflowed} by the kernel, {stale} for a former owner",
        packets.len()
    );
    println!(
        "  lost with their owner {owner_gone}, with a process that held them {holder_gone}, with their sender {unsent}; \
        refused by their owner {owner_refused}; unexplained {missing}; {quiet_packets} in the quiet phase, {quiet_missing} of them missing, \
        {waiting} kept from a new owner"
    );
    let (refused, tables) = (sum(|life| life.refused.load(Relaxed)), sum(|life| life.tables.load(Relaxed)));
    println!(
        "  {refused} connections refused, {tables} tables attached, {} packets misdirected",
        sum(|life| life.misdirected.load(Relaxed))
    );
    assert_eq!(ledger.failures.load(Relaxed), 0, "a process saw what must not happen");
    assert_eq!(twice, 0, "packets that arrived twice");
    assert!(missing <= overflowed, "packets vanished: {missing}, though the kernel dropped only {overflowed}");
    assert!(u64::from(quiet_missing) <= overflowed, "packets vanished though nothing happened");
    // It was not peaceful, and yet most got through.
    assert!(keeper.is_enough() && forwarded > 0);
    assert!(seen * 2 > packets.len() && quiet_packets > 100);
    assert!(packets.len() < ledger::PACKETS && lives.len() < ledger::LIVES, "the ledger is full");
}
