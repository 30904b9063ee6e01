//! One of the processes: it has slots, sends numbered packets to the slots of others, and now and then forks, becomes
//! another program, or starts a new life. Being killed and stopped is done to it.

use crate::ledger::{ALIVE, CHAOS, DRAIN, Dice, END, FULL, Ledger, Life, NOBODY, OPENING, PACKETS, SLOTS, STALE, now};
use crate::network::{Parcel, loopback, send_to};
use host::forward::Loss;
use host::ports::Ports;
use host::slots::{Slot, Slots};
use link::udp::attachment::Attachment;
use link::udp::{Arrival, Family, Sender};
use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use wire::Opcode;

/// How a worker learns what it is.
pub const LEDGER: &str = "UBIVERBS_CHAOS_LEDGER";
pub const SEED: &str = "UBIVERBS_CHAOS_WORKER_SEED";
pub const USER: &str = "UBIVERBS_CHAOS_USER";
/// The life that the process had as another program, plus one.
pub const FORMER: &str = "UBIVERBS_CHAOS_FORMER";
/// One that does nothing unusual: there is always a process on the port.
pub const STEADY: &str = "UBIVERBS_CHAOS_STEADY";

const SECOND: u64 = 1_000_000_000;

/// More processes than this are not made by forking.
const CROWD: usize = 26;

fn number(name: &str) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// How a life ends.
enum End {
    /// The test is over.
    Over,
    /// Another life begins in the same process.
    Again,
    /// The process becomes a new program.
    Exec { life: usize },
}

pub fn run() -> ! {
    let fd = number(LEDGER) as RawFd;
    let ledger = Ledger::open(fd);
    let user = number(USER) as u32;
    // SAFETY: this process has one thread.
    if user != 0 && unsafe { libc::getuid() } == 0 {
        // SAFETY: as above.
        unsafe { assert!(libc::setgid(user) == 0 && libc::setuid(user) == 0) };
    }
    // Only now are the sockets of the former program closed.
    if let Some(former) = (number(FORMER) as usize).checked_sub(1).and_then(|life| ledger.lives.get(life)) {
        former.end(true);
    }
    let mut dice = Dice(number(SEED));
    let descriptors = descriptors();
    loop {
        let end = live(ledger, &mut dice, number(STEADY) != 0, descriptors);
        let left = self::descriptors();
        if left != descriptors && !matches!(end, End::Exec { .. }) {
            fail(ledger, &format!("{left} descriptors are open at the end of a life, {descriptors} at its beginning"));
        }
        match end {
            End::Over => std::process::exit(0),
            End::Again => {}
            End::Exec { life } => {
                ledger.execs.fetch_add(1, Relaxed);
                let (seed, former) = (dice.roll(u64::MAX).to_string(), (life + 1).to_string());
                let error = Command::new("/proc/self/exe").env(SEED, seed).env(FORMER, former).exec();
                fail(ledger, &format!("cannot exec: {error}"));
                std::process::exit(1);
            }
        }
    }
}

fn fail(ledger: &Ledger, what: &str) {
    ledger.failures.fetch_add(1, Relaxed);
    eprintln!("process {}: {what}", std::process::id());
}

fn descriptors() -> usize {
    // One of them is the directory that is being read.
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() - 1)
}

fn live(ledger: &'static Ledger, dice: &mut Dice, steady: bool, descriptors: usize) -> End {
    let number = ledger.lives_begun.fetch_add(1, Relaxed) as usize;
    let Some(life) = ledger.lives.get(number) else { return End::Over };
    // Before there is a socket: packets come to it from the first moment on, and a process that dies a little later has
    // not dealt with them.
    life.drained.store(now(), Relaxed);
    life.pid.store(std::process::id() as i32, Relaxed);
    life.state.store(OPENING, Relaxed);
    let slots = Slots::open().expect("an epoll set");
    let owned: Vec<_> = (0..1 + dice.roll(SLOTS as u64)).map(|_| slots.take().expect("a slot")).collect();
    let mut attachment = Attachment::open(&slots, &Ports::new(&slots)).expect("an attachment");
    let mut senders = [Family::V4, Family::V6].map(|family| Sender::open(family).expect("a socket"));
    for (place, slot) in life.slots.iter().zip(&owned) {
        place.store(slot.number().into(), Relaxed);
    }
    // SAFETY: asks a number.
    life.user.store(unsafe { libc::getuid() }, Relaxed);
    life.state.store(ALIVE, std::sync::atomic::Ordering::Release);
    loop {
        let phase = ledger.phase.load(Relaxed);
        drive(ledger, number as u32, life, &slots, &mut attachment);
        reap(ledger);
        if phase == END || now().saturating_sub(ledger.heartbeat.load(Relaxed)) > 60 * SECOND {
            drop(attachment);
            life.end(false);
            return End::Over;
        }
        if phase < DRAIN {
            for _ in 0..1 + dice.roll(4) {
                throw(ledger, dice, &mut senders);
            }
        }
        if phase == CHAOS && !steady {
            match dice.roll(400) {
                0 | 1 => fork(ledger, life, dice, descriptors),
                2 => {
                    // The kernel closes everything that is ours.
                    std::mem::forget((attachment, slots, senders));
                    return End::Exec { life: number };
                }
                3 => {
                    drop(attachment);
                    life.end(false);
                    return End::Again;
                }
                _ => {}
            }
        }
        sleep(&attachment, 1 + dice.roll(4) as i32);
    }
}

/// Deals with everything that has arrived.
fn drive(ledger: &Ledger, number: u32, life: &Life, slots: &Slots, attachment: &mut Attachment) {
    let (began, mut empty) = (now(), false);
    for _ in 0..1000 {
        let take = |arrival: &Arrival<'_>| {
            let Some((packet, to)) = read(arrival) else { return fail(ledger, "a packet without a number") };
            let Some(record) = ledger.packets.get(packet as usize) else { return fail(ledger, "an unknown packet") };
            if !Slot::of(arrival.headers.bth.dest_qpn).is_some_and(|slot| slots.owns(slot)) {
                return fail(ledger, "a packet for a slot of another");
            }
            if to == number {
                record.seen.fetch_add(1, Relaxed);
            } else {
                // The slot of the dead is ours now. That it is dead may not be written down yet; in the end it is.
                record.loss.store(STALE, Relaxed);
            }
        };
        let lost = |arrival: &Arrival<'_>, loss| {
            let record = read(arrival).and_then(|(packet, _)| ledger.packets.get(packet as usize));
            let Some(record) = record else { return fail(ledger, "a lost packet without a number") };
            record.loss.store(if loss == Loss::NoOwner { NOBODY } else { FULL }, Relaxed);
        };
        if !attachment.receive(take, lost) {
            empty = true;
            break;
        }
    }
    let traffic = attachment.traffic();
    life.overflowed.store(traffic.overflowed, Relaxed);
    life.misdirected.store(traffic.misdirected, Relaxed);
    life.forwarded.store(traffic.forwarded.packets, Relaxed);
    life.refused.store(traffic.collected.refused, Relaxed);
    life.tables.store(traffic.steered.iter().map(|steered| steered.tables).sum(), Relaxed);
    if traffic.damaged + traffic.malformed + traffic.collected.malformed + traffic.forwarded.system > 0 {
        fail(ledger, &format!("{traffic:?}"));
    }
    if empty {
        life.drained.store(began, Relaxed);
    }
}

fn read(arrival: &Arrival<'_>) -> Option<(u32, u32)> {
    let (packet, rest) = arrival.payload.split_first_chunk()?;
    Some((u32::from_be_bytes(*packet), u32::from_be_bytes(*rest.first_chunk()?)))
}

/// Sends a packet to some process.
fn throw(ledger: &Ledger, dice: &mut Dice, senders: &mut [Sender; 2]) {
    let lives = ledger.lives();
    let Some(to) = (0..20).map(|_| dice.roll(lives.len() as u64) as usize).find(|to| lives[*to].is_alive()) else {
        return;
    };
    let slots = lives[to].slots.each_ref().map(|slot| slot.load(Relaxed) as u16);
    let slots: Vec<_> = slots.into_iter().filter_map(Slot::new).collect();
    let slot = slots[dice.roll(slots.len() as u64) as usize];
    let number = ledger.packets_begun.fetch_add(1, Relaxed) as usize;
    if number >= PACKETS {
        return;
    }
    let record = &ledger.packets[number];
    record.begun.store(now(), Relaxed);
    record.to.store(to as u32 + 1, Relaxed);
    let mut payload = [0x77; 64];
    payload[..4].copy_from_slice(&(number as u32).to_be_bytes());
    payload[4..8].copy_from_slice(&(to as u32).to_be_bytes());
    // Each comes to another socket.
    let destinations = [loopback(false), Ipv4Addr::new(127, 0, 0, 2).into(), loopback(true)];
    let destination = destinations[dice.roll(3) as usize];
    let mut parcel =
        Parcel { opcode: Opcode::UcSendOnly, to: slot.qpn(to as u16), psn: 0, payload: &payload, count: 1 };
    send_to(&mut senders[usize::from(destination.is_ipv6())], &mut parcel, destination);
    record.sent.store(now(), Relaxed);
}

/// Makes a child that keeps nothing. Some then only sleep, outliving their parent perhaps; some become one of us.
fn fork(ledger: &'static Ledger, parent: &Life, dice: &mut Dice, expected: usize) {
    let (joins, seed, rest) = (dice.roll(2) == 0 && ledger.alive() < CROWD, dice.roll(u64::MAX), dice.roll(300));
    ledger.forks.fetch_add(1, Relaxed);
    host::descriptor::before_fork();
    // SAFETY: the only other threads are those that serve callers, and the child waits for nothing of theirs.
    if unsafe { libc::fork() } != 0 {
        host::descriptor::after_fork();
        return;
    }
    host::descriptor::close_in_child();
    parent.inherited.fetch_max(now(), Relaxed);
    let left = descriptors();
    if left != expected {
        fail(ledger, &format!("{left} descriptors are open in a child, {expected} should be"));
    }
    if !joins {
        std::thread::sleep(std::time::Duration::from_millis(rest));
        // SAFETY: ends without the parent's destructors.
        unsafe { libc::_exit(0) };
    }
    let mut dice = Dice(seed);
    while let End::Again = live(ledger, &mut dice, false, expected) {}
    // What asked for a new program ends here; there are enough others.
    // SAFETY: as above.
    unsafe { libc::_exit(0) };
}

/// Waits for children that have ended, so that it is known when.
fn reap(ledger: &Ledger) {
    loop {
        // SAFETY: no status is asked for.
        let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        if pid <= 0 {
            return;
        }
        ledger.note_death(pid);
    }
}

fn sleep(attachment: &Attachment, milliseconds: i32) {
    let mut poll = libc::pollfd { fd: attachment.fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live entry.
    unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
}
