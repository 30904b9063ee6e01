//! What needs a GPU: the tests of GPU memory on the driver itself, how fast it is beside the driver's own copies, and
//! NCCL between processes that believe to be on different hosts. Where there is no GPU it says so and fails; the same
//! tests run on a stand-in for the driver in `cargo xtask test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::dist;
use crate::process::{self, run};

/// What can be chosen.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// The Python that has torch with NCCL.
    #[arg(long, default_value = "python3")]
    pub python: PathBuf,
    /// Only programs in C, no NCCL.
    #[arg(long)]
    pub no_nccl: bool,
    /// The longest message of a collective, in bytes.
    #[arg(long, default_value_t = 256 << 20)]
    pub largest: u64,
}

/// The file that the driver shows where there is a GPU.
const CONTROL: &str = "/dev/nvidiactl";

/// Seconds until a group of ranks is stuck.
const RANKS_TIMEOUT_SECONDS: u32 = 240;

pub fn check(root: &Path, options: &Options) -> Result<(), String> {
    if !Path::new(CONTROL).exists() {
        return Err(format!(
            "cargo xtask gpu needs an NVIDIA GPU, and there is none here ({CONTROL} is missing). What can be tested \
             without one, `cargo xtask test` tests on a stand-in for its driver."
        ));
    }
    let target = process::target_directory(root)?;
    dist::unpacked(root)?;
    let (place, work) = (target.join("dist"), target.join("gpu"));
    fs::create_dir_all(&work).map_err(|e| format!("cannot make {}: {e}", work.display()))?;
    let programs = ["gpu", "gpu_pair"].map(|name| compile(root, &place, &work, name));
    let [gpu, pair] = programs;
    let (gpu, pair) = (gpu?, pair?);
    for link in ["shared", "udp"] {
        println!("GPU memory, UBIVERBS_LINK={link}");
        run(&mut on_library(&place, &gpu, link))?;
        run(&mut on_library(&place, &pair, link))?;
    }
    run(on_library(&place, &pair, "shared").args(["libcuda.so.1", "bench"]))?;
    if options.no_nccl {
        return Ok(());
    }
    for ranks in [2, 4] {
        println!("NCCL, {ranks} ranks");
        let logs = collectives(root, &place, &work, options, ranks, Trouble::None)?;
        let first = fs::read_to_string(logs.join("0")).unwrap_or_default();
        first.lines().filter(|line| !line.contains("NCCL INFO")).for_each(|line| println!("{line}"));
        if !first.lines().any(|line| line.ends_with("GDR 1")) {
            return Err(format!("NCCL did not use GPU memory directly: {}", logs.display()));
        }
    }
    for call in ["free", "load"] {
        println!("NCCL, a rank calls CUDA meanwhile: {call}");
        collectives(root, &place, &work, options, 2, Trouble::Calls(call))?;
    }
    println!("NCCL, a rank is killed");
    let logs = collectives(root, &place, &work, options, 2, Trouble::Killed)?;
    let first = fs::read_to_string(logs.join("0")).unwrap_or_default();
    let heard = ["ncclRemoteError", "ncclSystemError"].iter().any(|error| first.contains(error));
    if !heard || first.contains("Watchdog caught collective operation timeout") {
        return Err(format!("the other rank heard nothing, {}", logs.display()));
    }
    Ok(())
}

/// What goes wrong in a group of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    None,
    /// The second is killed.
    Killed,
    /// The first makes a call that waits in the driver for its kernel, which waits for the second.
    Calls(&'static str),
}

fn compile(root: &Path, place: &Path, work: &Path, name: &str) -> Result<PathBuf, String> {
    let program = work.join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).arg(&program).arg(root.join("crates/capi/tests/c").join(format!("{name}.c")));
    run(compiler.arg("-L").arg(place.join("lib")).args(["-libverbs", "-lpthread", "-ldl"]))?;
    Ok(program)
}

fn on_library(place: &Path, program: &Path, link: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "120"]).arg(program);
    command.env("LD_LIBRARY_PATH", place.join("lib")).env("UBIVERBS_LINK", link);
    command
}

/// Runs the collectives in so many processes, each of a host of its own as far as NCCL knows. Answers where each rank's
/// words are.
fn collectives(
    root: &Path,
    place: &Path,
    work: &Path,
    options: &Options,
    ranks: u32,
    trouble: Trouble,
) -> Result<PathBuf, String> {
    let logs = work.join(match trouble {
        Trouble::None => format!("nccl-{ranks}"),
        Trouble::Killed => "nccl-killed".to_owned(),
        Trouble::Calls(call) => format!("nccl-{call}"),
    });
    fs::create_dir_all(&logs).map_err(|e| format!("cannot make {}: {e}", logs.display()))?;
    let port = free_port()?;
    let start = |rank: u32| -> Result<Child, String> {
        let log = fs::File::create(logs.join(rank.to_string())).map_err(|e| format!("cannot write: {e}"))?;
        let errors = log.try_clone().map_err(|e| format!("cannot write: {e}"))?;
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &RANKS_TIMEOUT_SECONDS.to_string()]).arg(place.join("bin/ubiverbs"));
        command.args(["run", "--files", "--device", "ubi_lo", "--"]).arg(&options.python);
        command.arg(root.join("tests/gpu/collectives.py"));
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("NCCL_HOSTID", format!("host{rank}")).env("LARGEST", options.largest.to_string());
        // NCCL 2.28 calls a plugin that is not there when GPU-initiated networking finds no mlx5 device.
        command.env("NCCL_GIN_TYPE", "2").env("NCCL_DEBUG", "INFO").env("PYTHONUNBUFFERED", "1");
        match trouble {
            Trouble::None => {}
            Trouble::Killed => _ = command.env("VICTIM", "1").env("PATIENCE", "60"),
            Trouble::Calls(call) => {
                command.env("MEANWHILE", call).env("PATIENCE", "60").env("UBIVERBS_GPU_PATIENCE", "5000");
            }
        }
        command.stdout(Stdio::from(log)).stderr(Stdio::from(errors));
        command.spawn().map_err(|e| format!("cannot start {command:?}: {e}"))
    };
    let started: Vec<Result<Child, String>> = (0..ranks).map(start).collect();
    let mut failed = None;
    for (rank, child) in (0..ranks).zip(started) {
        let status = child?.wait().map_err(|e| format!("rank {rank}: {e}"))?;
        // Where one is killed the others fail, by NCCL's own error and before the time is over.
        let stuck = status.code() == Some(124);
        if stuck || trouble != Trouble::Killed && !status.success() {
            failed = Some(format!("rank {rank}: {status}, see {}", logs.join(rank.to_string()).display()));
        }
    }
    failed.map_or(Ok(logs), Err)
}

fn free_port() -> Result<u16, String> {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    free.map(|address| address.port()).map_err(|e| format!("no port: {e}"))
}
