//! The link through shared memory between processes: peers that are stopped, flooded or many; and the same over UDP where
//! a process asks for it. (Those that are killed: `killed.rs`.)

use stage::shared_memory::flood;
use stage::{End, LENGTH, Other, numbers, poll, turn};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};
use transport::{Completion, Operation, Remote, Status};
use wire::{Key, Qpn};

/// The program that is the other process.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

fn start(occupation: &str, environment: &[(&str, &str)]) -> Other {
    Other::start(Command::new(PEER).args(["shared_memory", occupation]).envs(environment.iter().copied()))
}

/// Another process that is connected to ours.
fn connected(end: &End, occupation: &str, environment: &[(&str, &str)]) -> (Other, Remote) {
    let mut other = start(occupation, environment);
    writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
    let [qpn, address, key] = other.hear("here ")[..] else { panic!("three numbers") };
    end.connect(Qpn::new(qpn as u32));
    (other, Remote { address, key: Key::new(key as u32) })
}

fn wait(end: &End, limit: Duration) -> Option<Completion> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if let Some(completion) = poll(end) {
            return Some(completion);
        }
    }
    None
}

#[test]
fn processes_of_a_user_share_memory_unless_one_of_them_asks_for_udp() {
    let _turn = turn();
    for (environment, link) in [
        (&[][..], "shared memory"),
        (&[("UBIVERBS_LINK", "shared")][..], "shared memory"),
        (&[("UBIVERBS_LINK", "udp")][..], "UDP"),
        (&[("UBIVERBS_FAULTS", "drop=0%")][..], "shared memory"),
    ] {
        let mut end = End::new();
        let (_other, remote) = connected(&end, "wait", environment);
        for length in [8, 4096, 100_000, LENGTH as u32] {
            end.memory.iter_mut().enumerate().for_each(|(n, word)| *word = n as u64 ^ u64::from(length));
            let write = end.run(Operation::Write { remote, immediate: None }, length);
            assert_eq!(write.status, Status::Success, "{environment:?}: {write:?}");
            end.memory.fill(0);
            assert_eq!(end.run(Operation::Read { remote }, length).status, Status::Success);
            let words = length as usize / 8;
            assert!(end.memory[..words].iter().enumerate().all(|(n, word)| *word == n as u64 ^ u64::from(length)));
        }
        assert_eq!(end.qp.link(), link, "{environment:?}");
        end.nic.destroy_qp(&end.qp);
    }
}

fn signal(other: &Other, signal: i32) {
    // SAFETY: a signal to our own child.
    assert_eq!(unsafe { libc::kill(other.child.id() as i32, signal) }, 0);
}

/// Stops it, and waits until it is: its threads stop when they next enter the kernel, each in its own time.
fn stop(other: &Other) {
    signal(other, libc::SIGSTOP);
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_dir(format!("/proc/{}/task", other.child.id())).unwrap().flatten().all(is_stopped) {
        assert!(Instant::now() < deadline, "it does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_peer_that_is_stopped_is_not_a_dead_one() {
    let _turn = turn();
    let end = End::new();
    let mut other = start("wait", &[]);
    writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
    let [qpn, address, key] = other.hear("here ")[..] else { panic!("three numbers") };
    // It waits 67 ms for an answer.
    end.connect_with(Qpn::new(qpn as u32), 14);
    let write = Operation::Write { remote: Remote { address, key: Key::new(key as u32) }, immediate: None };
    assert_eq!(end.run(write, 8).status, Status::Success);
    stop(&other);
    // Much more than a ring holds, and for much longer than seven times 67 ms.
    for _ in 0..8 {
        assert!(end.post(write, LENGTH as u32));
    }
    assert_eq!(wait(&end, Duration::from_millis(1500)), None);
    signal(&other, libc::SIGCONT);
    for _ in 0..8 {
        let completion = wait(&end, Duration::from_secs(60)).expect("it goes on");
        assert_eq!(completion.status, Status::Success, "{completion:?}");
    }
    end.nic.destroy_qp(&end.qp);
}

#[test]
fn a_peer_that_is_stopped_before_it_answers_keeps_nobody_waiting_in_a_call() {
    let _turn = turn();
    let end = End::new();
    let mut other = start("wait", &[]);
    writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
    let [qpn, address, key] = other.hear("here ")[..] else { panic!("three numbers") };
    stop(&other);
    let start = Instant::now();
    end.connect(Qpn::new(qpn as u32));
    let remote = Remote { address, key: Key::new(key as u32) };
    assert!(end.post(Operation::Write { remote, immediate: None }, 4096));
    // It goes on only when we say so: who waits for it waits for ever.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(wait(&end, Duration::from_millis(700)), None);
    signal(&other, libc::SIGCONT);
    assert_eq!(wait(&end, Duration::from_secs(60)).unwrap().status, Status::Success);
    // Killed while it is stopped, it is dead. A WRITE might not need it.
    stop(&other);
    assert!(end.post(Operation::FetchAdd { remote, add: 1 }, 8));
    assert_eq!(wait(&end, Duration::from_millis(300)), None);
    other.child.kill().unwrap();
    assert_eq!(wait(&end, Duration::from_secs(60)).unwrap().status, Status::RetryExceeded);
    end.nic.destroy_qp(&end.qp);
}

#[test]
fn both_fill_their_rings_at_once_and_nobody_gets_stuck() {
    let _turn = turn();
    let mut end = End::new();
    let (mut other, remote) = connected(&end, "flood", &[]);
    writeln!(other.stdin, "{} {}", end.address(), end.key.value()).unwrap();
    assert_eq!(flood(&mut end, remote), 200);
    assert_eq!(other.hear("flooded "), [200]);
    writeln!(other.stdin).unwrap();
    end.nic.destroy_qp(&end.qp);
}

/// Shared memory of this host, in bytes.
fn shared_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with("Shmem:")).unwrap();
    numbers(line)[0] * 1024
}

#[test]
fn sixty_four_processes_all_talk_to_one_another_within_a_gigabyte() {
    const ALL: usize = 64;
    let _turn = turn();
    let before = shared_memory();
    let mut others: Vec<Other> = (0..ALL).map(|_| start("mesh", &[])).collect();
    for (n, other) in others.iter_mut().enumerate() {
        writeln!(other.stdin, "{n} {ALL}").unwrap();
    }
    let qpns: Vec<Vec<u64>> = others.iter_mut().map(|other| other.hear("numbers ")).collect();
    for (n, other) in others.iter_mut().enumerate() {
        // The queue pair for the peer with number p is the one with index p, or p - 1 behind oneself.
        let peers = (0..ALL).filter(|peer| *peer != n).map(|peer| qpns[peer][if n < peer { n } else { n - 1 }]);
        writeln!(other.stdin, "{}", peers.map(|qpn| qpn.to_string()).collect::<Vec<_>>().join(" ")).unwrap();
    }
    for (n, other) in others.iter_mut().enumerate() {
        assert_eq!(other.hear("connected "), [n as u64]);
    }
    for other in &mut others {
        writeln!(other.stdin).unwrap();
    }
    for other in &mut others {
        let all = ALL as u64 - 1;
        assert_eq!(other.hear("done "), [2 * all, all]);
    }
    let used = shared_memory().saturating_sub(before);
    assert!(used < 1 << 30, "{used} bytes");
    println!("{} MiB of shared memory", used >> 20);
}
