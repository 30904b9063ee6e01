//! Recordings of processes: what was recorded before a process was killed is there, both sides agree, and a disk that is
//! full ends the recording and nothing else.

use crate::faults::play;
use recording::block::BLOCK_BYTES;
use recording::{Entry, FileHeader, Reader};
use stage::faults::FAULTS;
use stage::{Other, turn};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use trace::{Call, Event, Kind};

/// The program that is the other process.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

/// A directory of this test, which is removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let place = std::env::temp_dir().join(format!("ubiverbs-recordings-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir(&place).unwrap();
        Scratch(place)
    }

    /// The recordings in it, by the number of their process.
    fn files(&self) -> Vec<(u32, PathBuf)> {
        let files = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let number = |path: &Path| path.to_str()?.split('.').rev().nth(1)?.split('-').next()?.parse().ok();
        files.filter_map(|path| Some((number(&path)?, path))).collect()
    }

    fn of(&self, process: u32) -> PathBuf {
        let files = self.files();
        let mine: Vec<_> = files.iter().filter(|(number, _)| *number == process).collect();
        assert_eq!(mine.len(), 1, "one recording of {process}: {files:?}");
        mine[0].1.clone()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(occupation: &str, plan: &str) -> Other {
    Other::start(Command::new(PEER).args(["faults", occupation]).env("UBIVERBS_RECORD", plan))
}

/// All events of a recording, which has nothing that makes no sense.
fn events(path: &Path) -> Vec<Event> {
    let mut reader = Reader::new(File::open(path).unwrap()).unwrap();
    assert_eq!(reader.header().fact(FileHeader::PROGRAM), "peer");
    let mut events = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        if let Entry::Event(event) = entry {
            events.push(event);
        }
    }
    assert_eq!((reader.damaged_blocks(), reader.skipped_records(), reader.missing_blocks()), (0, 0, 0));
    events
}

fn is_exit(event: &Event) -> bool {
    matches!(event.kind, Kind::Called { call: Call::Exit {}, .. })
}

/// Sequence numbers of requests.
fn requests(events: &[Event], wanted: impl Fn(&Kind) -> Option<(wire::Headers, u32)>) -> BTreeSet<u32> {
    let packets = events.iter().filter_map(|event| wanted(&event.kind));
    let packets = packets.filter(|(headers, _)| headers.bth.opcode.operation().is_request());
    packets.flat_map(|(headers, count)| (0..count).map(move |number| headers.bth.psn.add(number).value())).collect()
}

#[test]
fn what_killed_processes_did_is_there_and_both_sides_agree() {
    let _turn = turn();
    let scratch = Scratch::new("killed");
    let plan = scratch.0.to_str().unwrap();
    let (mut requester, mut responder) = (start("requester", plan), start("responder", plan));
    let processes = [requester.child.id(), responder.child.id()];
    play(&mut requester, &mut responder);
    // They wait for a line, and are killed.
    drop((requester, responder));
    let [sent, received] = processes.map(|process| events(&scratch.of(process)));
    assert!(!sent.iter().chain(&received).any(is_exit), "they were killed");
    let completed = sent.iter().filter(|event| matches!(event.kind, Kind::Completed { .. })).count();
    let is_polled = |event: &&Event| matches!(event.kind, Kind::Called { call: Call::Polled { .. }, .. });
    let polled = sent.iter().filter(is_polled).count();
    assert!(completed > 50 && completed == polled, "{completed} completed, {polled} polled");
    let left = requests(&sent, |kind| match kind {
        Kind::PacketSent { headers, packets, .. } => Some((*headers, *packets)),
        _ => None,
    });
    let came = requests(&received, |kind| match kind {
        Kind::PacketReceived { headers, packets, .. } => Some((*headers, *packets)),
        _ => None,
    });
    // READs take more numbers than they have packets.
    assert!(came.len() > 50 && came == left, "{} sent, {} came", left.len(), came.len());
    let times: Vec<u64> = sent.iter().map(|event| event.at).collect();
    assert!(times.windows(2).all(|pair| pair[1] + 1_000_000_000 > pair[0]), "times go on");
}

#[test]
fn a_ring_keeps_the_newest_and_a_process_that_ends_says_so() {
    let _turn = turn();
    let scratch = Scratch::new("ring");
    let mut process = start("inside", &format!("{},ring=128K", scratch.0.display()));
    let number = process.child.id();
    assert_eq!(process.hear("done "), [1]);
    assert!(process.child.wait().unwrap().success());
    let path = scratch.of(number);
    assert!(std::fs::metadata(&path).unwrap().len() <= 3 * BLOCK_BYTES as u64);
    let events = events(&path);
    assert!(events.iter().any(is_exit), "{} events", events.len());
}

#[test]
fn a_disk_that_is_full_ends_the_recording_and_is_told_once() {
    let _turn = turn();
    let scratch = Scratch::new("full");
    let copy = Scratch::new("full-copy");
    // A file system of its own, which is gone with the process: what is in it is copied. There is room for the header
    // and one block.
    let script = "mount -t tmpfs -o size=160k tmpfs \"$0\" && \"$1\" faults inside && cp \"$0\"/* \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script]).args([&scratch.0, Path::new(PEER), &copy.0]);
    command.env("UBIVERBS_RECORD", &scratch.0).env("UBIVERBS_FAULTS", FAULTS);
    let output = command.stdin(Stdio::null()).output();
    let output = output.expect("unshare is missing: apt-get install util-linux");
    let [told, said] = [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success() && said.contains("done 1"), "{said}{told}");
    assert_eq!(told.matches("nothing more is recorded in").count(), 1, "{told}");
    let files = copy.files();
    assert_eq!(files.len(), 1);
    // What fitted can be read.
    assert!(events(&files[0].1).len() > 1000);
}

#[test]
fn a_directory_that_cannot_be_made_is_told_and_the_program_runs() {
    let _turn = turn();
    let output =
        Command::new(PEER).args(["faults", "inside"]).env("UBIVERBS_RECORD", "/proc/none/rec").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("UBIVERBS_RECORD: cannot record in /proc/none/rec"), "{told}");
}
