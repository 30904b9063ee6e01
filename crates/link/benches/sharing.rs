//! What it costs that packets come to the wrong process: the same traffic to a process that has the port alone, that
//! shares it and is steered to, and that gets everything from another process that forwards. One window of packets
//! under way, so that nothing is dropped; nobody spins; processor time of all processes per packet, which a busy
//! machine blurs least, and packets per second; medians of rounds that alternate; only the ratios mean something.

#[path = "../tests/network/mod.rs"]
mod network;

use host::ports::Ports;
use host::slots::{Slot, Slots};
use link::udp::attachment::Attachment;
use link::udp::{Family, Sender};
use network::{Parcel, send};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::Opcode;

/// What sender and processes see of each other.
#[repr(C)]
struct Shared {
    stop: AtomicU32,
    slot: AtomicU32,
    ready: AtomicU32,
    received: AtomicU64,
    misdirected: AtomicU64,
}

/// Another port, for a process that should receive nothing by itself.
const ELSEWHERE: u16 = 24_791;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Alone,
    Steered,
    Forwarded,
}

fn main() {
    network::enter();
    println!("{:24} {:>22} {:>22} {:>22}", "us a packet: cpu, wall", "alone", "steered", "forwarded");
    for (what, payload, train, window) in [
        ("64 B, one", 64, 1, 1),
        ("64 B, many", 64, 1, 64),
        ("1 KiB x 16", 1024, 16, 128),
        ("4 KiB x 15", 4096, 15, 60),
    ] {
        let mut results = [const { Vec::new() }; 3];
        for _ in 0..5 {
            for (place, way) in results.iter_mut().zip([Way::Alone, Way::Steered, Way::Forwarded]) {
                place.push(measure(way, payload, train, window));
            }
        }
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let results = results.map(|rounds| {
            let (cpu, wall) = rounds.into_iter().unzip();
            (median(cpu), median(wall))
        });
        print!("{what:24}");
        for (cpu, wall) in results {
            print!(" {cpu:9.2} ({:4.2}) {wall:6.1}", cpu / results[0].0);
        }
        println!();
    }
}

/// Microseconds of processor time and of time per packet.
fn measure(way: Way, payload: usize, train: u32, window: u64) -> (f64, f64) {
    let shared = share();
    let owner = process(shared, true, if way == Way::Forwarded { ELSEWHERE } else { wire::ROCE_PORT });
    let other = (way != Way::Alone).then(|| process(shared, false, wire::ROCE_PORT));
    let processes = 1 + u32::from(other.is_some());
    network::wait_for("the processes", || shared.ready.load(Ordering::Acquire) == processes);
    let slot = Slot::new(shared.slot.load(Ordering::Acquire) as u16).unwrap();
    let (mut sender, payload) = (Sender::open(Family::V4).unwrap(), vec![1; payload]);
    let mut sent = 0;
    let mut go = |until: &mut dyn FnMut(u64) -> bool| {
        while !until(sent) {
            let mut parcel =
                Parcel { opcode: Opcode::UcSendMiddle, to: slot.qpn(1), psn: 0, payload: &payload, count: train };
            send(&mut sender, &mut parcel, false);
            sent += u64::from(train);
            let deadline = Instant::now() + Duration::from_secs(10);
            while sent - shared.received.load(Ordering::Acquire) >= window {
                assert!(Instant::now() < deadline, "packets were lost");
                std::thread::yield_now();
            }
        }
    };
    // Warm up until the way is the one that is to be measured.
    let start = Instant::now();
    let mut astray = (0, 0);
    go(&mut |sent| {
        if way == Way::Steered && sent >= astray.0 + 2000 {
            let misdirected = shared.misdirected.load(Ordering::Acquire);
            let settled = misdirected == astray.1 && start.elapsed() > Duration::from_millis(100);
            astray = (sent, misdirected);
            return settled;
        }
        way != Way::Steered && start.elapsed() > Duration::from_millis(50)
    });
    let (start, before) = (Instant::now(), [owner, other.unwrap_or(0)].map(processor_time));
    let (mut first, mut last) = (None, 0);
    go(&mut |sent| {
        first.get_or_insert(sent);
        last = sent;
        start.elapsed() > Duration::from_millis(200)
    });
    let wall = start.elapsed().as_secs_f64();
    let after = [owner, other.unwrap_or(0)].map(processor_time);
    let packets = (last - first.unwrap_or(0)) as f64;
    // Our own time is in all three alike, and mostly waiting: what counts is what the receiving processes need.
    let cpu: f64 =
        after.iter().zip(&before).take(if other.is_some() { 2 } else { 1 }).map(|(after, before)| after - before).sum();
    shared.stop.store(1, Ordering::Release);
    for child in [Some(owner), other].into_iter().flatten() {
        // SAFETY: our own child; no status is asked for.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
    (cpu * 1e6 / packets, wall * 1e6 / packets)
}

/// Seconds that a process has used.
fn processor_time(pid: i32) -> f64 {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both are live; a process that is gone has no clock, and the time stays 0.
    unsafe {
        if libc::clock_getcpuclockid(pid, &raw mut clock) == 0 {
            libc::clock_gettime(clock, &raw mut time);
        }
    }
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A process on the port; `owner` is the one that packets are for.
fn process(shared: &'static Shared, owner: bool, port: u16) -> i32 {
    // SAFETY: this program has one thread.
    let child = unsafe { libc::fork() };
    if child != 0 {
        return child;
    }
    // SAFETY: numbers. If the measurement fails, nobody is left behind.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    host::descriptor::close_in_child();
    let slots = Slots::open().unwrap();
    let slot = slots.take().unwrap();
    let mut attachment = Attachment::open_port(&slots, &Ports::new(&slots), port).unwrap();
    if owner {
        shared.slot.store(slot.number().into(), Ordering::Release);
    }
    shared.ready.fetch_add(1, Ordering::AcqRel);
    while shared.stop.load(Ordering::Acquire) == 0 {
        let mut count = 0;
        attachment.poll(|_| count += 1, |_, loss| panic!("{loss:?}"));
        if count > 0 {
            shared.received.fetch_add(count, Ordering::AcqRel);
        } else {
            if !owner {
                shared.misdirected.store(attachment.traffic().misdirected, Ordering::Release);
            }
            wait(&attachment);
        }
    }
    // SAFETY: ends without the parent's destructors.
    unsafe { libc::_exit(0) }
}

fn wait(attachment: &Attachment) {
    let mut poll = libc::pollfd { fd: attachment.fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live entry.
    unsafe { libc::poll(&raw mut poll, 1, 5) };
}

fn share() -> &'static Shared {
    let (read_write, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: new memory of the right size, for ever; it holds only atomics, for which zero is a value.
    unsafe { &*libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), read_write, how, -1, 0).cast::<Shared>() }
}
