//! A process that is connected through shared memory, or a member of a mesh of such processes.

use crate::{End, LENGTH, numbers, poll};
use std::io::BufRead;
use std::time::{Duration, Instant};
use transport::{Operation, ReceiveRequest, Remote, Sge, Status};
use wire::{Key, Qpn};

/// The other process: a member of the mesh, or one that waits, polls or floods.
pub fn peer(occupation: &str) {
    match occupation {
        "mesh" => mesh_member(),
        occupation => partner(occupation),
    }
}

/// Connects to the test, then waits to be killed, or floods.
fn partner(occupation: &str) {
    let mut end = End::new();
    let mut lines = std::io::stdin().lock().lines();
    let mut line = || lines.next().and_then(Result::ok).unwrap_or_default();
    end.connect(Qpn::new(line().parse().unwrap()));
    println!("here {} {} {}", end.qp.qpn().value(), end.address(), end.key.value());
    match occupation {
        "flood" => {
            let [address, key]: [u64; 2] = numbers(&line()).try_into().unwrap();
            let seen = flood(&mut end, Remote { address, key: Key::new(key as u32) });
            println!("flooded {seen}");
            line();
        }
        "poll" => loop {
            end.nic.poll(&end.cq, 1, |_, _| {});
        },
        _ => {
            line();
        }
    }
}

/// Writes and reads a lot, eight requests at a time; answers how many came to a good end.
pub fn flood(end: &mut End, remote: Remote) -> u32 {
    const REQUESTS: u32 = 200;
    let (mut posted, mut good) = (0, 0);
    let deadline = Instant::now() + Duration::from_secs(120);
    while good < REQUESTS && Instant::now() < deadline {
        while posted < REQUESTS && posted - good < 8 {
            let operation = match posted % 3 {
                0 => Operation::Read { remote },
                _ => Operation::Write { remote, immediate: None },
            };
            assert!(end.post(operation, LENGTH as u32));
            posted += 1;
        }
        if let Some(completion) = poll(end) {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            good += 1;
        }
    }
    good
}

/// A member of the mesh: a queue pair to every other one, a message to each, and one from each.
fn mesh_member() {
    let first = End::new();
    let mut lines = std::io::stdin().lock().lines();
    let mut line = || lines.next().and_then(Result::ok).unwrap_or_default();
    let [me, all] = numbers(&line())[..] else { return };
    let ends: Vec<End> = (0..all - 1).map(|_| first.another()).collect();
    let qpns: Vec<String> = ends.iter().map(|end| end.qp.qpn().value().to_string()).collect();
    println!("numbers {}", qpns.join(" "));
    for (end, peer) in ends.iter().zip(numbers(&line())) {
        end.connect(Qpn::new(peer as u32));
        let sges = [Sge { address: end.address() + 4096, length: 8, key: end.key }];
        end.qp.post_receive(&end.nic, &[ReceiveRequest { wr_id: 7, sges: &sges }]).unwrap();
    }
    println!("connected {me}");
    line();
    for end in &ends {
        assert!(end.post(Operation::Send { immediate: None }, 8));
    }
    let mut good = 0;
    let deadline = Instant::now() + Duration::from_secs(100);
    while good < 2 * ends.len() && Instant::now() < deadline {
        let before = good;
        for end in &ends {
            while let Some(completion) = poll(end) {
                assert_eq!(completion.status, Status::Success, "{completion:?}");
                good += 1;
            }
        }
        if good == before {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let shared = ends.iter().filter(|end| end.qp.link() == "shared memory").count();
    println!("done {good} {shared}");
    line();
}
