//! `cargo xtask sanitizers`: perftest and rdma-core's examples, built from their sources with each sanitizer, run on the
//! NIC. What the tools report is printed; docs/sanitizers.md says what of it is known.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::Duration;

use crate::process;

/// What can be chosen.
#[derive(clap::Args)]
pub struct Options {
    /// Take the libraries from this directory, which has `bin` and `lib`
    #[arg(long, value_name = "DIRECTORY")]
    dist: Option<PathBuf>,
    /// Run only programs whose name contains this word
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// Sources of perftest and rdma-core, in folders of these names; without, they are cloned
    #[arg(long, value_name = "DIRECTORY")]
    sources: Option<PathBuf>,
}

/// Where sources come from, and which state of them.
const SOURCES: [(&str, &str, &str); 2] = [
    ("perftest", "https://github.com/linux-rdma/perftest", "26.04.17"),
    ("rdma-core", "https://github.com/linux-rdma/rdma-core", "v44.0"),
];

/// Compilers, and what each one's runtime is tried of.
const BUILDS: [(&str, &str); 3] = [("gcc", "address"), ("gcc", "thread"), ("clang", "memory")];

/// rdma-core's examples: the folder, the program, what else it is made of.
const EXAMPLES: [(&str, &str, &str); 6] = [
    ("libibverbs", "ud_pingpong", "pingpong.c"),
    ("libibverbs", "uc_pingpong", "pingpong.c"),
    ("libibverbs", "srq_pingpong", "pingpong.c"),
    ("librdmacm", "rping", "common.c"),
    ("librdmacm", "rdma_server", "common.c"),
    ("librdmacm", "rdma_client", "common.c"),
];

/// What is run: the program of the server, its arguments, the client's program and arguments. A connection's address is
/// added by the words themselves.
const RUNS: [(&str, &str, &str, &str); 8] = [
    ("ud_pingpong", "-g 1 -n 100", "ud_pingpong", "-g 1 -n 100 127.0.0.1"),
    ("uc_pingpong", "-g 1 -n 100", "uc_pingpong", "-g 1 -n 100 127.0.0.1"),
    ("srq_pingpong", "-g 1 -n 100", "srq_pingpong", "-g 1 -n 100 127.0.0.1"),
    ("rping", "-s -a 127.0.0.1 -C 10 -v", "rping", "-c -a 127.0.0.1 -C 10 -v"),
    ("rdma_server", "-s 127.0.0.1", "rdma_client", "-s 127.0.0.1"),
    ("ib_send_bw", "-x 0 -F -n 200 -s 4096", "ib_send_bw", "-x 0 -F -n 200 -s 4096 127.0.0.1"),
    ("ib_write_lat", "-x 0 -F -n 200", "ib_write_lat", "-x 0 -F -n 200 127.0.0.1"),
    ("ib_read_bw", "-x 0 -F -n 200 -s 4096", "ib_read_bw", "-x 0 -F -n 200 -s 4096 127.0.0.1"),
];

/// How long a server has to listen before its client calls.
const SERVER_START: Duration = Duration::from_secs(3);

/// Seconds until a program is stuck.
const RUN_SECONDS: &str = "120";

/// Builds and runs them.
pub fn run(root: &Path, options: &Options) -> Result<String, String> {
    let target = process::target_directory(root)?;
    let dist = options.dist.clone().unwrap_or_else(|| target.join("dist"));
    let place = target.join("sanitizers");
    fs::create_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    let sources = match &options.sources {
        Some(sources) => sources.clone(),
        None => clone(&place)?,
    };
    let mut failed = 0;
    for (compiler, sanitizer) in BUILDS {
        let built = place.join(sanitizer);
        build(compiler, sanitizer, &sources, &dist, &built)?;
        for run in RUNS.iter().filter(|run| options.only.as_ref().is_none_or(|word| run.2.contains(word.as_str()))) {
            failed += usize::from(!play(sanitizer, &built, &dist, run)?);
        }
    }
    Ok(format!("{failed} runs were reported or failed; docs/sanitizers.md has what is known"))
}

/// The sources, as their projects publish them.
fn clone(place: &Path) -> Result<PathBuf, String> {
    let sources = place.join("sources");
    for (name, address, state) in SOURCES {
        let to = sources.join(name);
        if !to.exists() {
            process::run(Command::new("git").args(["clone", "--depth", "1", "--branch", state, address]).arg(&to))?;
        }
    }
    Ok(sources)
}

fn build(compiler: &str, sanitizer: &str, sources: &Path, dist: &Path, built: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", built.display());
    fs::create_dir_all(built.join("perftest")).map_err(failed)?;
    // What rdma-core's build would have found out about the system; the examples use none of it.
    fs::write(built.join("config.h"), "").map_err(failed)?;
    let flag = format!("-fsanitize={sanitizer}");
    let lib = dist.join("lib");
    for (folder, program, other) in EXAMPLES {
        let folder = sources.join("rdma-core").join(folder);
        let examples = folder.join("examples");
        let mut command = Command::new(compiler);
        command.args(["-std=gnu11", "-g", "-O1", "-w", "-D_GNU_SOURCE", "-DHAVE_STATEMENT_EXPR=1", "-DHAVE_TYPEOF=1"]);
        command.arg(&flag).arg("-I").arg(built).arg("-I").arg(sources.join("rdma-core")).arg("-I").arg(&folder);
        command.arg(examples.join(format!("{program}.c"))).arg(examples.join(other)).arg("-o").arg(built.join(program));
        process::run(command.arg("-L").arg(&lib).args(["-lrdmacm", "-libverbs", "-lpthread"]))?;
    }
    let perftest = sources.join("perftest");
    if !perftest.join("configure").exists() {
        process::run(Command::new("./autogen.sh").current_dir(&perftest))?;
    }
    let work = built.join("perftest");
    if !work.join("Makefile").exists() {
        let mut configure = Command::new(perftest.join("configure"));
        configure.arg("--quiet").arg(format!("CC={compiler}")).arg(format!("CFLAGS=-g -O1 -w {flag}"));
        process::run(configure.arg(format!("LDFLAGS={flag}")).current_dir(&work))?;
    }
    process::run(Command::new("make").args(["--silent", "-j2"]).current_dir(&work))
}

/// Runs a server and its client, and prints what the tools report. Returns whether nothing was.
fn play(
    sanitizer: &str,
    built: &Path,
    dist: &Path,
    (server, server_words, client, client_words): &(&str, &str, &str, &str),
) -> Result<bool, String> {
    let start = |program: &str, words: &str| {
        let own = built.join(program);
        let path = if own.exists() { own } else { built.join("perftest").join(program) };
        let mut command = Command::new("timeout");
        command.arg(RUN_SECONDS).arg(dist.join("bin/ubiverbs")).args(["run", "--"]).arg(path);
        command.args(words.split(' ')).env("ASAN_OPTIONS", "detect_leaks=0");
        command
    };
    let failed = |e: std::io::Error| format!("{server}: {e}");
    let mut listening = start(server, server_words);
    listening.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut listening = listening.spawn().map_err(failed)?;
    sleep(SERVER_START);
    let called = start(client, client_words).output().map_err(failed)?;
    if !called.status.success() {
        // It waits for a client that has ended.
        let _ = listening.kill();
    }
    let listened = listening.wait_with_output().map_err(failed)?;
    let fine = called.status.success() && listened.status.success();
    println!("{sanitizer}: {client} {client_words}: {}", if fine { "nothing" } else { "reported" });
    for output in [&called, &listened] {
        reports(output).iter().for_each(|line| println!("    {line}"));
    }
    Ok(fine)
}

/// The lines that say what was found.
fn reports(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    let told = |line: &&str| ["SUMMARY:", "ubiverbs: "].iter().any(|mark| line.contains(mark));
    text.lines().filter(told).map(str::to_owned).collect()
}
