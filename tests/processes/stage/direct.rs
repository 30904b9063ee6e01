//! A process that reaches the memory of another without it, until it is stopped, killed or kept out.

use crate::{End, numbers, poll};
use std::io::BufRead;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use transport::{Operation, Remote};
use wire::{Key, Qpn};

/// The byte that the other process writes all the time.
pub const WRITTEN: u64 = 0x5757_5757_5757_5757;

/// A queue pair that is gone does not answer packets.
const GIVES_UP_AFTER: Duration = Duration::from_millis(20);

/// The other process: for every line with a queue pair's number, an address and a key it connects a queue pair and
/// writes and reads there, eight bytes at a time, until that fails. With a fourth number it executes itself anew so many
/// microseconds after it has begun.
pub fn peer(_occupation: &str) {
    println!("begins");
    let first = End::new();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let mut end = first.another();
        println!("number {}", end.qp.qpn().value());
        let numbers = numbers(&line);
        let [peer, address, key] = numbers[..3] else { panic!("three numbers") };
        end.connect(Qpn::new(peer as u32));
        let remote = |n: u64| Remote { address: address + n % 64 * 8, key: Key::new(key as u32) };
        wait_until_direct(&end, remote(0));
        println!("writes");
        if let Some(after) = numbers.get(3).copied() {
            std::thread::spawn(move || execute_anew(Duration::from_micros(after)));
        }
        end.memory.fill(WRITTEN);
        let mut done = 0;
        for n in 0.. {
            let operation = match n % 4 {
                0 => Operation::Read { remote: remote(n) },
                _ => Operation::Write { remote: remote(n), immediate: None },
            };
            let ended = !end.post(operation, 8);
            // What is read is what was written, or was there before.
            end.memory[0] = WRITTEN;
            let posted = Instant::now();
            let completion = loop {
                match poll(&end) {
                    None if posted.elapsed() < GIVES_UP_AFTER => {}
                    found => break found,
                }
            };
            if ended || completion.is_none_or(|completion| completion.failure().is_some()) {
                break;
            }
            done = n;
        }
        println!("failed {done}");
        first.nic.destroy_qp(&end.qp);
    }
}

fn execute_anew(after: Duration) {
    std::thread::sleep(after);
    let program = std::env::current_exe().expect("the program is there");
    panic!("{}", Command::new(program).args(std::env::args_os().skip(1)).exec());
}

/// Reads until the peer lets it in.
pub fn wait_until_direct(end: &End, remote: Remote) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !end.qp.places_directly() {
        assert!(end.run(Operation::Read { remote }, 8).failure().is_none());
        assert!(Instant::now() < deadline, "the other process does not let this one in");
    }
}
