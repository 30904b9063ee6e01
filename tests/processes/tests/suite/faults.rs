//! Faults inside a process, and through shared memory between two. What they do: `stage/faults.rs`.

use stage::faults::FAULTS;
use stage::{Other, turn};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// The program that is the other process.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

fn start_with(occupation: &str, environment: &[(&str, &str)]) -> Other {
    Other::start(Command::new(PEER).args(["faults", occupation]).envs(environment.iter().copied()))
}

/// A process with faults that tells nothing of what happens: then its threads take locks in the quickest way.
fn start_quietly(occupation: &str, plan: &str) -> Other {
    start_with(occupation, &[("UBIVERBS_FAULTS", plan)])
}

/// A process with faults, and where it writes its events.
fn start(occupation: &str, seed: u32) -> (Other, PathBuf) {
    let log = std::env::temp_dir().join(format!("ubiverbs-faults-{}-{occupation}-{seed}.json", std::process::id()));
    let _ = std::fs::remove_file(&log);
    let plan = format!("{FAULTS},seed={seed}");
    let environment = [("UBIVERBS_FAULTS", plan.as_str()), ("UBIVERBS_LOG", log.to_str().unwrap())];
    (start_with(occupation, &environment), log)
}

/// How many trains were sent again.
fn sent_again(log: PathBuf) -> usize {
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(log).unwrap();
    text.lines().filter(|line| line.contains("\"retransmit\":true")).count()
}

#[test]
fn work_inside_a_process_survives_faults() {
    let _turn = turn();
    let (mut process, log) = start("inside", 3);
    assert_eq!(process.hear("done "), [1]);
    drop(process);
    let again = sent_again(log);
    assert!(again > 10, "{again} trains were sent again");
    assert_eq!(start_quietly("inside", FAULTS).hear("done "), [1]);
}

#[test]
fn a_packet_that_is_held_back_is_delivered_though_the_program_calls_nothing() {
    let _turn = turn();
    let [millis] = start_quietly("asleep", "delay=5ms").hear("took ")[..] else { panic!("a number") };
    // A WRITE and its acknowledgement. If the engine slept on, the queue pair's timer would wake it after a second.
    assert!((10..1000).contains(&millis), "{millis} ms");
}

#[test]
fn work_through_shared_memory_survives_faults() {
    let _turn = turn();
    let ((mut requester, log), (mut responder, other_log)) = (start("requester", 5), start("responder", 6));
    play(&mut requester, &mut responder);
    drop((requester, responder));
    let again = sent_again(log);
    assert!(again > 10, "{again} trains were sent again");
    // The answers to READs are the responder's to send again, when they are asked for again.
    sent_again(other_log);
    play(&mut start_quietly("requester", FAULTS), &mut start_quietly("responder", FAULTS));
}

/// Lets two processes know each other and do their work.
pub fn play(requester: &mut Other, responder: &mut Other) {
    let introduce = |to: &mut Other, numbers: Vec<u64>| {
        writeln!(to.stdin, "{} {} {}", numbers[0], numbers[1], numbers[2]).unwrap();
    };
    let (first, second) = (requester.hear("here "), responder.hear("here "));
    introduce(requester, second);
    introduce(responder, first);
    assert_eq!([requester.hear("connected "), responder.hear("connected ")], [[1], [1]]);
    writeln!(requester.stdin).unwrap();
    writeln!(responder.stdin).unwrap();
    assert_eq!([requester.hear("done "), responder.hear("done ")], [[1], [1]]);
}
