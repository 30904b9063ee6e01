//! All-reduce of four processes and of Open MPI over the same NIC, alternating: `cargo bench -p ubiverbs-cluster`.
//!
//! `UBIVERBS_DIST` is where `cargo xtask dist` put the program `ubiverbs`, if not in `target/dist`; without Open MPI
//! only our own figures are printed. `UBIVERBS_SIZES="8 2000 65536 500"` measures other sizes: bytes and times.
//! `UBIVERBS_MESSAGES="16 65536"` sets how many messages may be under way to a member, and how long they are.

use cluster::{Algorithm, Group, Op, Topology};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const MEMBERS: u32 = 4;
const ROUNDS: usize = 5;
const SIZES: &str = "8 4000 65536 400 16777216 8";

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let [_, flag, rank, at, topology, algorithm, sizes @ ..] = &words[..]
        && flag == "--member"
    {
        return member(rank.parse().unwrap(), at, topology, algorithm, sizes);
    }
    if !words.iter().any(|word| word == "--bench") {
        return;
    }
    let sizes: Vec<String> =
        std::env::var("UBIVERBS_SIZES").unwrap_or(SIZES.into()).split_whitespace().map(str::to_owned).collect();
    let mpi = compile();
    // Ours as it chooses, then in each way.
    let ways = ["mesh auto", "mesh ring", "mesh recursive-doubling", "mesh tree", "ring auto", "hypercube auto"];
    let mut figures: Vec<Vec<Vec<f64>>> = vec![Vec::new(); ways.len() + 1];
    for _ in 0..ROUNDS {
        for (figures, way) in figures.iter_mut().zip(ways) {
            figures.push(ours(way, &sizes));
        }
        if let Some(program) = &mpi {
            figures[ways.len()].push(open_mpi(program, &sizes));
        }
    }
    let median = |way: usize, size: usize| {
        let mut times: Vec<f64> = figures[way].iter().filter_map(|round| round.get(size).copied()).collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    };
    println!("{MEMBERS} processes, microseconds for one all-reduce, median of {ROUNDS} rounds\n");
    print!("{:>10} {:>12}", "bytes", "Open MPI");
    ways.iter().for_each(|way| print!(" {way:>24}"));
    println!();
    for (at, size) in sizes.iter().step_by(2).enumerate() {
        let theirs = median(ways.len(), at);
        print!("{size:>10} {:>12}", theirs.map_or("-".into(), |time| format!("{time:.1}")));
        for way in 0..ways.len() {
            let time = median(way, at).unwrap_or(f64::NAN);
            let ratio = theirs.map_or(String::new(), |theirs| format!("({:.2})", time / theirs));
            print!(" {:>24}", format!("{time:.1} {ratio}"));
        }
        println!();
    }
    println!("\nIn brackets: our time / that of Open MPI.");
}

fn member(rank: u32, at: &str, topology: &str, algorithm: &str, sizes: &[String]) {
    let topology: Topology = topology.parse().expect("a topology");
    let builder =
        Group::builder(MEMBERS).secret("measured").topology(topology).rendezvous(at.parse().expect("an address"), rank);
    let builder = builder.meeting_limit(std::time::Duration::from_secs(10));
    let messages = std::env::var("UBIVERBS_MESSAGES").unwrap_or_default();
    let builder = match messages.split_once(' ') {
        Some((count, bytes)) => builder.messages(count.parse().expect("a number"), bytes.parse().expect("bytes")),
        None => builder,
    };
    let mut group = builder.join().wait().expect("all come");
    let algorithm = Algorithm::ALL.into_iter().find(|way| way.to_string() == algorithm);
    for pair in sizes.chunks(2) {
        let (bytes, times): (usize, i64) = (pair[0].parse().expect("bytes"), pair[1].parse().expect("times"));
        let mut data = vec![u64::from(rank); bytes / 8];
        let mut begun = Instant::now();
        for turn in -(times / 10 + 1)..times {
            if turn == 0 {
                group.barrier().wait().expect("all live");
                begun = Instant::now();
            }
            let call = match algorithm {
                Some(algorithm) => group.all_reduce_by(algorithm, &mut data, Op::Sum),
                None => group.all_reduce(&mut data, Op::Sum),
            };
            call.wait().expect("all live");
        }
        if rank == 0 {
            println!("{bytes} {:.3}", begun.elapsed().as_secs_f64() * 1e6 / times as f64);
        }
    }
    group.leave().wait().expect("all live");
}

fn ours(way: &str, sizes: &[String]) -> Vec<f64> {
    // Ports that are handed out to any process belong to the process that got them.
    let at = format!("127.0.0.1:{}", 10_000 + std::process::id() % 20_000);
    let program = std::env::current_exe().expect("we are a program");
    let member = |rank: u32| -> Child {
        let mut command = Command::new(&program);
        command.args(["--member", &rank.to_string(), &at]).args(way.split(' ')).args(sizes);
        command.stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() }).spawn().expect("it starts")
    };
    let mut members: Vec<Child> = (0..MEMBERS).map(member).collect();
    let first = members.remove(0).wait_with_output().expect("it ends");
    members.iter_mut().for_each(|member| drop(member.wait()));
    figures(&first.stdout)
}

/// The second number of each line.
fn figures(output: &[u8]) -> Vec<f64> {
    let text = String::from_utf8_lossy(output);
    text.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse().ok()).collect()
}

fn distribution() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/dist");
    std::env::var_os("UBIVERBS_DIST").map_or(here, PathBuf::from).join("bin/ubiverbs")
}

/// The program in C, if there is a compiler for it and something to run it on.
fn compile() -> Option<PathBuf> {
    let program = std::env::temp_dir().join(format!("all_reduce-{}", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/all_reduce.c");
    let built = Command::new("mpicc.openmpi").args(["-O3", source, "-o"]).arg(&program).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("no Open MPI: apt-get install openmpi-bin libopenmpi-dev");
        return None;
    }
    if !distribution().exists() {
        eprintln!("no {}: cargo xtask dist", distribution().display());
        return None;
    }
    Some(program)
}

fn open_mpi(program: &PathBuf, sizes: &[String]) -> Vec<f64> {
    let launcher = "mpirun.openmpi --allow-run-as-root --oversubscribe --mca pml ucx --mca osc ucx --mca btl self \
        --mca coll ^sm -n 4";
    let mut command = Command::new(distribution());
    command.args(["run", "--"]).args(launcher.split_whitespace()).arg(program).args(sizes);
    command.envs([("UCX_TLS", "rc_verbs,ud_verbs,self"), ("UCX_NET_DEVICES", "ubi_lo:1")]);
    let output = command.stderr(Stdio::inherit()).output().expect("it starts");
    figures(&output.stdout)
}
