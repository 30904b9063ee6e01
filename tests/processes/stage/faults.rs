//! Faults on links that lose nothing by themselves: inside a process, and through shared memory between two. All work
//! must come to a good end with every byte in its place, because what is lost is sent again.

use crate::{End, LENGTH};
use std::io::BufRead;
use std::time::{Duration, Instant};
use transport::{Operation, Queue, ReceiveRequest, Remote, Sge, Status};
use wire::{Key, Qpn};

/// The faults of both processes.
pub const FAULTS: &str = "drop=2%,dup=2%,reorder=2%,corrupt=1%,hold=300us";

/// Rounds of work, each with these lengths.
const ROUNDS: u64 = 12;
const LENGTHS: [usize; 4] = [8, 4096, 20_000, 262_144];

/// Where messages are received, and where the word lies that atomics change.
const MAILBOX: usize = LENGTH / 2;
const WORD: usize = LENGTH - 8;

/// The timeout of the specification's table: 67 ms.
const TIMEOUT: u8 = 14;

/// The word at a place of what was sent in a round.
fn pattern(round: u64, at: usize) -> u64 {
    (round << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn fill(end: &mut End, round: u64, length: usize) {
    end.memory[..length / 8].iter_mut().enumerate().for_each(|(at, word)| *word = pattern(round, at));
}

fn holds(words: &[u64], round: u64) -> bool {
    words.iter().enumerate().all(|(at, word)| *word == pattern(round, at))
}

/// Every kind of work, each byte of which is looked at. Messages are received by `receive`.
fn work(end: &mut End, remote: Remote, mut receive: impl FnMut(u64, usize)) {
    let at = |offset: usize| Remote { address: remote.address + offset as u64, key: remote.key };
    let mut added = 0;
    for (round, length) in (0..ROUNDS).flat_map(|round| LENGTHS.map(|length| (round, length))) {
        fill(end, round, length);
        let write = end.run(Operation::Write { remote: at(0), immediate: None }, length as u32);
        assert_eq!(write.status, Status::Success, "{write:?}");
        end.memory.fill(0);
        let read = end.run(Operation::Read { remote: at(0) }, length as u32);
        assert_eq!(read.status, Status::Success, "{read:?}");
        assert!(holds(&end.memory[..length / 8], round), "round {round}: what was read is what was written");
        let add = end.run(Operation::FetchAdd { remote: at(WORD), add: 3 }, 8);
        assert_eq!((add.status, end.memory[0]), (Status::Success, added), "it is done once");
        added += 3;
        fill(end, round, length);
        let send = end.run(Operation::Send { immediate: None }, length as u32);
        assert_eq!(send.status, Status::Success, "{send:?}");
        receive(round, length);
    }
}

fn post_receive(end: &End) {
    let sges = [Sge { address: end.address() + MAILBOX as u64, length: 262_144, key: end.key }];
    end.qp.post_receive(&end.nic, &[ReceiveRequest { wr_id: 7, sges: &sges }]).unwrap();
}

/// Waits for a message and looks at it; then there is room for the next.
fn receive(end: &End, round: u64, length: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut came = None;
    while came.is_none() {
        assert!(Instant::now() < deadline, "no message in a minute");
        end.nic.poll(&end.cq, 1, |completion, _| came = Some(*completion));
    }
    let completion = came.unwrap();
    assert_eq!((completion.queue, completion.status), (Queue::Receive, Status::Success));
    assert_eq!(completion.bytes as usize, length);
    assert!(holds(&end.memory[MAILBOX / 8..MAILBOX / 8 + length / 8], round), "round {round}: what was sent has come");
    post_receive(end);
}

/// A process with faults in its environment.
pub fn peer(occupation: &str) {
    let mut lines = std::io::stdin().lock().lines();
    let mut line = || lines.next().and_then(Result::ok).unwrap_or_default();
    let mut numbers = || line().split_whitespace().map(|word| word.parse::<u64>().unwrap()).collect::<Vec<_>>();
    let mut end = End::new();
    let remote = |address, key: u64| Remote { address, key: Key::new(key as u32) };
    match occupation {
        "inside" => {
            let other = end.another();
            end.connect_with(other.qp.qpn(), TIMEOUT);
            other.connect_with(end.qp.qpn(), TIMEOUT);
            assert_eq!(end.qp.link(), "inside the process");
            post_receive(&other);
            let target = remote(other.address(), other.key.value().into());
            work(&mut end, target, |round, length| receive(&other, round, length));
            println!("done 1");
            other.nic.destroy_qp(&other.qp);
        }
        "asleep" => {
            let other = end.another();
            end.connect(other.qp.qpn());
            other.connect(end.qp.qpn());
            let begun = Instant::now();
            let write = Operation::Write { remote: remote(other.address(), other.key.value().into()), immediate: None };
            assert!(end.post(write, 8));
            while end.cq.is_empty() {
                assert!(begun.elapsed() < Duration::from_secs(60), "the engine sleeps");
                std::thread::sleep(Duration::from_millis(1));
            }
            println!("took {}", begun.elapsed().as_millis());
            other.nic.destroy_qp(&other.qp);
        }
        role => {
            println!("here {} {} {}", end.qp.qpn().value(), end.address(), end.key.value());
            let [qpn, address, key] = numbers()[..] else { panic!("three numbers") };
            end.connect_with(Qpn::new(qpn as u32), TIMEOUT);
            post_receive(&end);
            println!("connected 1");
            numbers();
            match role {
                "requester" => work(&mut end, remote(address, key), |_, _| {}),
                _ => {
                    for (round, length) in (0..ROUNDS).flat_map(|round| LENGTHS.map(|length| (round, length))) {
                        receive(&end, round, length);
                    }
                }
            }
            assert_eq!(end.qp.link(), "shared memory");
            println!("done 1");
            // The last acknowledgement may have been lost: it is said again until both are done.
            numbers();
        }
    }
    end.nic.destroy_qp(&end.qp);
}
