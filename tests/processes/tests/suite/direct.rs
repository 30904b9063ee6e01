//! WRITEs and READs that need nothing of the target's process: they are done though it is stopped, and they end when
//! the target takes its memory back, though the requester is stopped or killed. `UBIVERBS_TEST_DIRECT` says how often
//! memory is taken back.

use stage::direct::{WRITTEN, wait_until_direct};
use stage::{End, LOOSE_FILE, Other, PASSIVE_VARIABLE, PRIVATE_PAGES, SEALED_FILE, SHAREABLE_VARIABLE, turn};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};
use transport::{Modify, Operation, Remote, State, Status};
use wire::{Key, Qpn};

/// The program that is the other process.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

fn partner(end: &End, command: &mut Command) -> (Other, Remote) {
    let mut other = Other::start(command.args(["two_processes", "sleep"]));
    writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
    let [qpn, address, key] = other.hear("here ")[..] else { panic!("three numbers") };
    end.connect(Qpn::new(qpn as u32));
    (other, Remote { address, key: Key::new(key as u32) })
}

#[test]
fn a_stopped_process_serves_reads_and_writes() {
    let _turn = turn();
    serve_while_stopped(&mut Command::new(PEER), false);
    let maps = cfg!(all(target_arch = "x86_64", target_env = "gnu"));
    serve_while_stopped(Command::new(PEER).env(SHAREABLE_VARIABLE, "1"), maps);
    let replaces = [(SHAREABLE_VARIABLE, PRIVATE_PAGES), ("UBIVERBS_DIRECT", "replace-pages")];
    serve_while_stopped(Command::new(PEER).envs(replaces), maps);
}

#[test]
fn a_queue_pair_that_only_receives_is_open_once_the_first_packet_has_come() {
    let _turn = turn();
    let maps = cfg!(all(target_arch = "x86_64", target_env = "gnu"));
    serve_while_stopped(Command::new(PEER).envs([(SHAREABLE_VARIABLE, "1"), (PASSIVE_VARIABLE, "1")]), maps);
}

/// The kernel says of a mapping which file it is of from Linux 6.11 on.
#[test]
fn files_of_the_program_are_mapped_if_they_cannot_become_shorter() {
    let _turn = turn();
    let maps = cfg!(all(target_arch = "x86_64", target_env = "gnu")) && has_map_query();
    serve_while_stopped(Command::new(PEER).env(SHAREABLE_VARIABLE, SEALED_FILE), maps);
    serve_while_stopped(Command::new(PEER).env(SHAREABLE_VARIABLE, LOOSE_FILE), false);
}

fn has_map_query() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(11))
}

#[test]
fn a_program_that_always_has_requests_under_way_comes_to_store_them_itself() {
    if cfg!(not(all(target_arch = "x86_64", target_env = "gnu"))) {
        return;
    }
    let _turn = turn();
    let mut end = End::new();
    let (_other, remote) = partner(&end, Command::new(PEER).env(SHAREABLE_VARIABLE, "1"));
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut posted, mut completed) = (0, 0);
    while completed < 1000 || !end.qp.stores_directly() {
        assert!(Instant::now() < deadline, "{completed} of {posted} have completed, all by packets");
        while posted < completed + 16 {
            let remote = Remote { address: remote.address + posted % 64 * 8, ..remote };
            assert!(end.post(Operation::Write { remote, immediate: None }, 8));
            posted += 1;
        }
        while let Some(completion) = stage::poll(&end) {
            assert!(completion.failure().is_none());
            completed += 1;
        }
    }
    while completed < posted {
        assert!(Instant::now() < deadline);
        completed += u64::from(stage::poll(&end).is_some());
    }
    // What is written next lies over all of it.
    for word in 0..64 {
        end.memory[0] = round_word(word);
        let remote = Remote { address: remote.address + word * 8, ..remote };
        assert_eq!(end.run(Operation::Write { remote, immediate: None }, 8).status, Status::Success);
    }
    assert_eq!(end.run(Operation::Read { remote }, 512).status, Status::Success);
    assert!((0..64).all(|word| end.memory[word as usize] == round_word(word)));
    end.nic.destroy_qp(&end.qp);
}

/// A word with eight different bytes.
const fn round_word(round: u64) -> u64 {
    0x0102_0304_0506_0708 * round
}

fn serve_while_stopped(target: &mut Command, is_mapped: bool) {
    let mut end = End::new();
    let (other, remote) = partner(&end, target);
    wait_until_direct(&end, remote);
    other.stop();
    for _ in 0..8 {
        assert_eq!(end.run(Operation::Read { remote }, 8).status, Status::Success);
    }
    assert_eq!(end.qp.stores_directly(), is_mapped);
    for (round, length) in [1u64, 8, 9, 64, 4096, 16384].into_iter().cycle().take(60).enumerate() {
        let remote = Remote { address: remote.address + round as u64 * 3, ..remote };
        let words: Vec<u64> = (0..length.div_ceil(8)).map(|word| word * 0x0101_0203_0405 + round as u64).collect();
        end.memory[..words.len()].copy_from_slice(&words);
        let write = end.run(Operation::Write { remote, immediate: None }, length as u32);
        assert_eq!((write.status, u64::from(write.bytes)), (Status::Success, length));
        end.memory.fill(0);
        let read = end.run(Operation::Read { remote }, length as u32);
        assert_eq!((read.status, u64::from(read.bytes)), (Status::Success, length));
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).take(length as usize).collect();
        let (written, read): (Vec<u8>, Vec<u8>) = (bytes(&words), bytes(&end.memory));
        assert_eq!(written, read, "{length} bytes");
    }
    if is_mapped {
        end.memory.fill(round_word(7));
        let whole = stage::LENGTH as u32;
        assert_eq!(end.run(Operation::Write { remote, immediate: None }, whole).status, Status::Success);
        end.memory.fill(0);
        assert_eq!(end.run(Operation::Read { remote }, whole).status, Status::Success);
        assert!(end.memory.iter().all(|word| *word == round_word(7)) && end.qp.stores_directly());
        let swap = Operation::CompareSwap { remote, compare: round_word(7), swap: 40 };
        for (operation, before) in [(swap, round_word(7)), (Operation::FetchAdd { remote, add: 2 }, 40)] {
            assert_eq!(end.run(operation, 8).status, Status::Success);
            assert_eq!(end.memory[0], before);
        }
        assert_eq!(end.run(Operation::Read { remote }, 8).status, Status::Success);
        assert_eq!(end.memory[0], 42);
    }
    other.go_on();
    // Packets go on where they were.
    assert_eq!(end.run(Operation::FetchAdd { remote, add: 1 }, 8).status, Status::Success);
    end.nic.destroy_qp(&end.qp);
}

#[test]
fn what_the_peer_does_not_allow_is_refused_as_ever() {
    let _turn = turn();
    for wrong in 0..3 {
        let end = End::new();
        let (_other, remote) = partner(&end, &mut Command::new(PEER));
        wait_until_direct(&end, remote);
        let remote = match wrong {
            0 => Remote { key: Key::new(remote.key.value() ^ 0x100), ..remote },
            1 => Remote { address: remote.address - 1, ..remote },
            _ => Remote { address: remote.address + stage::LENGTH as u64 - 7, ..remote },
        };
        let write = end.run(Operation::Write { remote, immediate: None }, 8);
        assert_eq!((write.status, end.qp.state()), (Status::RemoteAccess, State::Error), "{wrong}");
        end.nic.destroy_qp(&end.qp);
    }
}

#[test]
fn a_process_that_is_not_to_be_reached_is_not() {
    let _turn = turn();
    for (name, value) in [("UBIVERBS_DIRECT", "off"), ("UBIVERBS_LOG", "events")] {
        let end = End::new();
        let (_other, remote) = partner(&end, Command::new(PEER).env(name, value).stderr(std::process::Stdio::null()));
        for _ in 0..200 {
            assert_eq!(end.run(Operation::Read { remote }, 8).status, Status::Success);
            assert!(!end.qp.places_directly(), "{name}");
        }
        end.nic.destroy_qp(&end.qp);
    }
}

/// How the target ends what its peer may do.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Deregister,
    Reset,
    Destroy,
}

#[test]
fn memory_that_was_taken_back_is_not_written() {
    let _turn = turn();
    let rounds = std::env::var("UBIVERBS_TEST_DIRECT").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(24);
    let mut random = std::process::id();
    let mut below = |limit: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) % limit
    };
    let ends = [false, true].map(End::with_memory);
    let mut other = Other::start(Command::new(PEER).args(["direct", ""]));
    for round in 0..2 * rounds {
        let mut end = ends[round as usize % 2].another();
        let (kills, executes) = (round % 16 >= 14, round % 16 == 13);
        let execution = if executes { below(2000).to_string() } else { String::new() };
        let line = format!("{} {} {} {execution}", end.qp.qpn().value(), end.address(), end.key.value());
        writeln!(other.stdin, "{line}").unwrap();
        let [qpn] = other.hear("number ")[..] else { panic!("a number") };
        end.connect(Qpn::new(qpn as u32));
        other.hear("writes");
        // At any point of what it does.
        let until = Instant::now() + Duration::from_micros(below(2000).into());
        while Instant::now() < until {}
        let stops = below(2) == 0 && !executes;
        if stops {
            other.stop();
        }
        let ending = [Ending::Deregister, Ending::Reset, Ending::Destroy][below(3) as usize];
        let begun = Instant::now();
        match ending {
            Ending::Deregister => end.nic.memory().deregister(end.key).unwrap(),
            Ending::Reset => {
                end.qp.modify(&end.nic, &Modify { state: Some(State::Reset), ..Modify::default() }).unwrap()
            }
            Ending::Destroy => {
                end.nic.destroy_qp(&end.qp);
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{ending:?} waits for a peer");
        end.memory.fill(round);
        if kills {
            other.child.kill().unwrap();
            other.child.wait().unwrap();
            other = Other::start(Command::new(PEER).args(["direct", ""]));
        } else if executes {
            other.hear("begins");
        } else {
            if stops {
                other.go_on();
            }
            other.hear("failed ");
        }
        // SAFETY: live memory of our own; nothing writes there any more, which is what the test is about.
        let is_untouched =
            (0..end.memory.len()).all(|word| unsafe { (&raw const end.memory[word]).read_volatile() } == round);
        assert!(is_untouched && round != WRITTEN, "round {round}: written after {ending:?}");
        end.nic.destroy_qp(&end.qp);
    }
}
