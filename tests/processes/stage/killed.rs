//! A process that is killed at some point of what it does.

use crate::{End, LENGTH, numbers, poll};
use std::io::BufRead;
use transport::{Operation, Remote};
use wire::{Key, Qpn};

/// An eighth of a second for an answer, eight times.
pub const TIMEOUT: u8 = 15;

/// The other process, the victim. `occupation` says what it does until it is killed.
pub fn peer(occupation: &str) {
    let end = End::new();
    let mut lines = std::io::stdin().lock().lines();
    let mut line = || lines.next().and_then(Result::ok).unwrap_or_default();
    let [peer, address, key] = numbers(&line())[..] else { panic!("three numbers") };
    end.connect_with(Qpn::new(peer as u32), TIMEOUT);
    println!("here {} {} {}", end.qp.qpn().value(), end.address(), end.key.value());
    match occupation {
        "poll" => while poll(&end).is_none() {},
        "move" => {
            let remote = Remote { address, key: Key::new(key as u32) };
            for n in 0.. {
                end.post(work(n, remote), length(n));
                poll(&end);
            }
        }
        _ => {}
    }
    // Until it is killed, or the test has ended.
    line();
}

/// Work of every kind.
pub fn work(n: u32, remote: Remote) -> Operation {
    match n % 3 {
        0 => Operation::Write { remote, immediate: None },
        1 => Operation::Read { remote },
        _ => Operation::FetchAdd { remote, add: 1 },
    }
}

/// The length of such work: many different ones.
pub fn length(n: u32) -> u32 {
    if n % 3 == 2 { 8 } else { LENGTH as u32 >> (n % 7) }
}
