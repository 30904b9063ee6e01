//! A member whose process is killed: the others, processes too, learn its rank in time.

use crate::members;
use cluster::{Error, Group, Topology};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const VARIABLE: &str = "CLUSTER_TEST_MEMBER";

/// Not a test: what the processes of the other tests do. The variable has the rank, the size, the rendezvous and the
/// topology.
#[test]
#[ignore = "a process of another test"]
fn member() {
    let words = std::env::var(VARIABLE).expect("started by another test");
    let words: Vec<&str> = words.split(' ').collect();
    let [rank, size, at, topology] = words[..] else { panic!("{words:?}") };
    let topology: Topology = topology.parse().unwrap();
    let builder = Group::builder(size.parse().unwrap()).secret(members::SECRET).topology(topology);
    let builder = builder.rendezvous(at.parse().unwrap(), rank.parse::<u32>().unwrap());
    let mut group =
        builder.meeting_limit(members::TEST_TIMEOUT).deadline(Duration::from_secs(600)).join().wait().unwrap();
    println!("\nready");
    let error = loop {
        if let Err(error) = group.barrier().wait() {
            break error;
        }
    };
    let Error::Died { rank, .. } = error else { panic!("{error}") };
    println!("\ndied {rank}");
}

fn start(rank: u32, size: u32, at: &str, topology: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "killing::member", "--ignored", "--nocapture"]);
    command.env(VARIABLE, format!("{rank} {size} {at} {topology}"));
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// The next line that is a member's own.
fn line(output: &mut impl BufRead, wanted: &str) -> String {
    let mut line = String::new();
    while !line.starts_with(wanted) {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "it ended without the word {wanted:?}");
    }
    line
}

#[test]
fn the_others_learn_the_rank_of_one_that_is_killed() {
    // The second is not a neighbour of all; the last is the one in the middle.
    for (topology, size, victim) in [("mesh", 3, 1), ("ring", 5, 2), ("star", 4, 0)] {
        let at = members::free_address().to_string();
        let mut all: Vec<Child> = (0..size).map(|rank| start(rank, size, &at, topology)).collect();
        let mut outputs: Vec<_> = all.iter_mut().map(|child| BufReader::new(child.stdout.take().unwrap())).collect();
        for output in &mut outputs {
            line(output, "ready");
        }
        all[victim].kill().unwrap();
        let killed = Instant::now();
        for (rank, output) in outputs.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
            assert_eq!(line(output, "died").trim(), format!("died {victim}"), "rank {rank} of {topology}");
        }
        let took = killed.elapsed();
        assert!(took < members::TEST_TIMEOUT, "it took {took:?}");
        all.iter_mut().for_each(|child| drop(child.wait()));
    }
}
