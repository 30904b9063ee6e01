//! Two processes of one host. The other one registers memory, says where, and then its only thread does something that is
//! no call of ours.

use stage::{End, LENGTH, Other, turn};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};
use transport::{Operation, Remote, State, Status};
use wire::{Key, Qpn};

/// The program that is the other process.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

fn start(occupation: &str) -> Other {
    Other::start(Command::new(PEER).args(["two_processes", occupation]))
}

/// What the other process does while it is written to.
const OCCUPATIONS: [&str; 3] = ["sleep", "spin", "compute"];

#[test]
fn one_sided_work_completes_whatever_the_target_does() {
    let _turn = turn();
    for occupation in OCCUPATIONS {
        let mut end = End::new();
        let mut other = start(occupation);
        writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
        let [qpn, address, key] = other.hear("here ")[..] else { panic!("three numbers") };
        end.connect(Qpn::new(qpn as u32));
        let remote = |offset: u64| Remote { address: address + offset, key: Key::new(key as u32) };
        end.memory.iter_mut().enumerate().for_each(|(n, word)| *word = n as u64 * 3 + 1);
        let half = LENGTH as u32 / 2;
        let write = end.run(Operation::Write { remote: remote(0), immediate: None }, half);
        assert_eq!(write.status, Status::Success, "{occupation}: {write:?}");
        end.memory.fill(0);
        let read = end.run(Operation::Read { remote: remote(0) }, half);
        assert_eq!(read.status, Status::Success, "{occupation}: {read:?}");
        assert!(end.memory[..LENGTH / 16].iter().enumerate().all(|(n, word)| *word == n as u64 * 3 + 1));
        let add = end.run(Operation::FetchAdd { remote: remote(0), add: 41 }, 8);
        assert_eq!((add.status, end.memory[0]), (Status::Success, 1));
        // The last word tells it that we are done.
        end.memory[0] = u64::MAX;
        let last = end.run(Operation::Write { remote: remote(LENGTH as u64 - 8), immediate: None }, 8);
        assert_eq!(last.status, Status::Success);
        assert_eq!(other.hear("seen "), [42], "{occupation}");
        assert!(other.child.wait().unwrap().success());
        end.nic.destroy_qp(&end.qp);
    }
}

#[test]
fn a_killed_peer_is_an_error_in_bounded_time() {
    let _turn = turn();
    let end = End::new();
    let mut other = start("sleep");
    writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
    let [qpn, address, key] = other.hear("here ")[..] else { panic!("three numbers") };
    end.connect(Qpn::new(qpn as u32));
    let operation = Operation::Write { remote: Remote { address, key: Key::new(key as u32) }, immediate: None };
    assert_eq!(end.run(operation, 4096).status, Status::Success);
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    let completion = end.run(operation, 4096);
    assert_eq!(completion.status, Status::RetryExceeded, "{completion:?}");
    assert_eq!(end.qp.state(), State::Error);
    end.nic.destroy_qp(&end.qp);
}

#[test]
fn a_message_that_was_received_is_acknowledged_though_its_receiver_ends_at_once() {
    let _turn = turn();
    // Several times: the engine may look in at the right moment.
    for _ in 0..5 {
        let end = End::new();
        let mut other = start("leave");
        writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
        let [qpn, ..] = other.hear("here ")[..] else { panic!("three numbers") };
        end.connect(Qpn::new(qpn as u32));
        other.hear("drives");
        let completion = end.run(Operation::Send { immediate: None }, 8);
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        assert!(other.child.wait().unwrap().success());
        end.nic.destroy_qp(&end.qp);
    }
}

/// Who polls all the time is left alone by its engine: then it must see to its own timers.
#[test]
fn one_who_polls_sends_again_what_the_peer_was_not_ready_for() {
    const SEND: Operation = Operation::Send { immediate: None };
    let _turn = turn();
    // The engine looks in all the same, much later. One time of several is not disturbed by anybody.
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let end = End::new();
        let mut other = start("late");
        writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
        let [qpn, ..] = other.hear("here ")[..] else { panic!("three numbers") };
        end.connect(Qpn::new(qpn as u32));
        assert_eq!(end.run(SEND, 8).status, Status::Success);
        // Long enough to have all locks for nothing.
        for _ in 0..10_000 {
            assert_eq!(end.nic.poll(&end.cq, 1, |_, _| {}), 0);
        }
        let begun = Instant::now();
        assert_eq!(end.run(SEND, 8).status, Status::Success);
        quickest = quickest.min(begun.elapsed());
        assert!(other.child.wait().unwrap().success());
        end.nic.destroy_qp(&end.qp);
    }
    assert!(quickest < Duration::from_millis(400), "{quickest:?}");
}
