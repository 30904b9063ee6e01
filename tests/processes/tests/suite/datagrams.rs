//! Datagrams between processes of a host, more of them than their link holds: a sender waits for a peer that runs, and not
//! for one that does not.

use stage::datagrams::{DATAGRAMS, Here, LAST, LENGTH};
use stage::{Other, turn};
use std::io::Write;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use ubiverbs::{AddressHandle, Datagram, Endpoint};

/// The program that is the other process.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

/// Longer than the receiver waits for the last datagram before it says how many it has.
const COUNTED_WITHIN: Duration = Duration::from_secs(60);

struct Receiver {
    other: Other,
    to: AddressHandle,
}

impl Receiver {
    /// Starts one, and sees to it that the link to it is up: the first datagram waits for that.
    fn start(here: &Here) -> Receiver {
        let mut other = Other::start(Command::new(PEER).arg("datagrams"));
        let endpoint: Endpoint = other.hear_text("at ").parse().unwrap();
        let to = here.pd.address(&endpoint).unwrap();
        here.qp.send_inline_to(b"first", &to).unwrap().wait().unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", other.child.id())).unwrap();
        assert!(maps.contains("memfd:ubiverbs"), "no link through shared memory");
        Receiver { other, to }
    }

    /// Sends the last one, until it comes, and answers how many came before it.
    fn count(mut self, here: &Here) -> u32 {
        writeln!(self.other.stdin).unwrap();
        let (tell, told) = mpsc::channel();
        let Receiver { other, to } = &mut self;
        let counted = std::thread::scope(|scope| {
            scope.spawn(move || tell.send(other.hear_text("counted ")));
            let deadline = Instant::now() + COUNTED_WITHIN;
            loop {
                here.qp.send_inline_to(&[0; LAST], to).unwrap().wait().unwrap();
                match told.recv_timeout(Duration::from_millis(1)) {
                    Err(RecvTimeoutError::Timeout) => assert!(Instant::now() < deadline, "it does not count"),
                    counted => break counted.expect("it ended without a word"),
                }
            }
        });
        let (count, last) = counted.split_once(' ').unwrap();
        assert_eq!(last, "true", "the last one did not come, after {count}");
        count.parse().unwrap()
    }
}

#[test]
fn a_full_link_holds_datagrams_back_and_loses_none() {
    let _turn = turn();
    let here = Here::new();
    let receiver = Receiver::start(&here);
    here.post(&receiver.to);
    here.complete(DATAGRAMS);
    assert_eq!(receiver.count(&here), DATAGRAMS);
}

#[test]
fn several_threads_fill_one_link_and_lose_none() {
    let _turn = turn();
    const THREADS: u32 = 4;
    let here = Here::new();
    let receiver = Receiver::start(&here);
    // What completes in one queue goes through one ring.
    let builder = || here.pd.queue_pair::<Datagram>(&here.cq).max_sends(DATAGRAMS).max_receives(1);
    let pairs: Vec<_> = (0..THREADS).map(|_| builder().prepare().unwrap().activate().unwrap()).collect();
    let datagram = here.pd.allocate(LENGTH).unwrap().freeze();
    std::thread::scope(|scope| {
        for pair in &pairs {
            let (datagram, to) = (&datagram, &receiver.to);
            scope.spawn(move || {
                for _ in 0..DATAGRAMS / THREADS {
                    pair.send_to(datagram.clone(), to).unwrap().polled(1);
                }
            });
        }
        here.complete(DATAGRAMS);
    });
    assert_eq!(receiver.count(&here), DATAGRAMS);
}

#[test]
fn held_datagrams_go_on_while_their_program_sleeps() {
    let _turn = turn();
    let here = Here::new();
    let receiver = Receiver::start(&here);
    here.post(&receiver.to);
    // Waiting sleeps, as polling does not.
    here.qp.send_inline_to(b"behind", &receiver.to).unwrap().wait().unwrap();
    assert_eq!(receiver.count(&here), DATAGRAMS);
}

#[test]
fn a_stopped_receiver_is_waited_for_only_so_long() {
    let _turn = turn();
    let here = Here::new();
    let receiver = Receiver::start(&here);
    receiver.other.stop();
    here.post(&receiver.to);
    here.complete(DATAGRAMS);
    // It is not waited for a second time. The quickest of some, since this process may have to wait for a processor.
    let again = || {
        let start = Instant::now();
        here.post(&receiver.to);
        here.complete(DATAGRAMS);
        start.elapsed()
    };
    let quickest = (0..5).map(|_| again()).min().unwrap();
    assert!(quickest < Duration::from_millis(200), "{quickest:?}");
    receiver.other.go_on();
    let count = receiver.count(&here);
    assert!((1..DATAGRAMS).contains(&count), "{count}");
}

#[test]
fn a_receiver_that_is_killed_is_not_waited_for() {
    let _turn = turn();
    let here = Here::new();
    let mut receiver = Receiver::start(&here);
    receiver.other.stop();
    here.post(&receiver.to);
    receiver.other.child.kill().unwrap();
    receiver.other.child.wait().unwrap();
    here.complete(DATAGRAMS);
}

/// Nanoseconds for which the threads of this process have had a processor that drive its NIC.
fn engine_time() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let engines =
        tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm == "ubiverbs\n"));
    let time = |engine: std::path::PathBuf| {
        let text = std::fs::read_to_string(engine.join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    engines.map(time).sum()
}

/// The way of what was held is another by then, and the time it would have waited comes.
#[test]
fn what_was_held_for_a_killed_receiver_is_not_seen_to_for_ever() {
    let _turn = turn();
    /// As long as datagrams are held, and some more.
    const HELD: Duration = Duration::from_millis(2500);
    let here = Here::new();
    let mut receiver = Receiver::start(&here);
    receiver.other.stop();
    here.post(&receiver.to);
    std::thread::sleep(Duration::from_millis(50));
    receiver.other.child.kill().unwrap();
    receiver.other.child.wait().unwrap();
    here.complete(DATAGRAMS);
    std::thread::sleep(HELD);
    assert!(engine_time() > 0, "there is no thread of that name");
    // Other tests work beside this one, for some seconds.
    let quiet = (0..80).any(|_| {
        let before = engine_time();
        std::thread::sleep(Duration::from_millis(250));
        engine_time() - before < 50_000_000
    });
    assert!(quiet, "it is busy all the time");
}
