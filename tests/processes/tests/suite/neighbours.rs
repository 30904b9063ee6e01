//! Processes of the same user that start and end beside two that send datagrams over UDP: all share its port, and no
//! datagram is lost with a process that it was not for.

use stage::neighbours::NUMBERED;
use stage::{Other, turn};
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The program that is all other processes.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

/// So long after it has opened the NIC a process has told the kernel what it knows, though others do not answer.
const STEERED_AFTER: Duration = Duration::from_millis(500);

fn start(arguments: &[&str]) -> Other {
    Other::start(Command::new(PEER).args(arguments).env("UBIVERBS_LINK", "udp"))
}

/// One that sends, and one that receives.
struct Two {
    sender: Other,
    receiver: Other,
}

impl Two {
    fn start() -> Two {
        let mut receiver = start(&["neighbours_receiver"]);
        let mut sender = start(&["neighbours_sender", &receiver.hear_text("at ")]);
        sender.hear_text("open");
        Two { sender, receiver }
    }

    /// Sends so many.
    fn send(&mut self, count: u32) {
        writeln!(self.sender.stdin, "{count}").unwrap();
        self.sender.hear_text("sent");
    }

    /// How many the kernel dropped because the receiver's socket was full, and which did not come.
    fn missing(mut self) -> (u64, Vec<u64>) {
        let missing = self.receiver.hear("missing ");
        let (full, missing) = missing.split_first().unwrap();
        (*full, missing.to_vec())
    }
}

/// The receiver is late with its answer to the neighbour that asks what it has. What the neighbour's socket has when the
/// neighbour is killed is lost.
#[test]
fn a_neighbour_that_starts_takes_nothing_from_a_process_that_is_late() {
    const COUNT: u32 = 100;
    let _turn = turn();
    let mut two = Two::start();
    two.receiver.stop();
    let mut neighbour = start(&["neighbour", "stays"]);
    neighbour.hear_text("open");
    std::thread::sleep(STEERED_AFTER);
    neighbour.stop();
    two.send(COUNT);
    neighbour.child.kill().unwrap();
    neighbour.child.wait().unwrap();
    two.receiver.go_on();
    assert_eq!(two.missing(), (0, (COUNT..NUMBERED).map(u64::from).collect()));
}

#[test]
fn neighbours_that_start_and_end_lose_no_datagrams() {
    let _turn = turn();
    let mut two = Two::start();
    let done = AtomicBool::new(false);
    let neighbours = std::thread::scope(|scope| {
        let neighbours = scope.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                assert!(start(&["neighbour", "leaves"]).child.wait().unwrap().success());
                count += 1;
            }
            count
        });
        two.send(NUMBERED);
        done.store(true, Ordering::Relaxed);
        neighbours.join().unwrap()
    });
    let (full, missing) = two.missing();
    // The receiver may have been without a processor for so long that its socket was full: the kernel has counted that.
    assert_eq!(missing.len() as u64, full, "after {neighbours} neighbours: {missing:?}");
}
