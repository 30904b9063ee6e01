//! Our NIC and the kernel's Soft-RoCE as peers: a virtual machine with a kernel from Debian packages on one end of a cable, this machine's programs
//! with our library on the other, each program of a list in both roles and both address families. Needs root and some minutes.
//!
//! Everything happens in namespaces that nobody names: a first process prepares and then starts itself again inside of them. When either of the
//! two ends, however it ends, the kernel kills what is left in there, and the cable goes with it.

mod guest;
mod image;
mod marks;
mod matrix;
mod packages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{dist, prerequisites, process};

/// Our own program among those that are run: it looks at every byte.
const DATA_CHECK: &str = "data_check";

/// A test of the C library, which prints all that a device tells: the kernel's Soft-RoCE and Soft-iWARP are to say what the
/// profiles `rxe` and `siw` say.
pub const CARDS: &str = "cards";

/// A script around `rcopy`, for both sides: it compares the file.
const COPY_CHECK: &str = "copy_check";
const COPY_CHECK_SCRIPT: &str = include_str!("../interop/copy_check");

/// What can be chosen.
#[derive(clap::Args)]
pub struct Options {
    /// Run only the pairs that contain all of these words, such as `ib_read_bw`, `v6` or `kernel-serves`; `cards` compares the
    /// profiles alone.
    #[arg(long, value_name = "WORD", num_args = 1..)]
    only: Vec<String>,
    /// The largest IP packet on the cable; 4200 allows a path MTU of 4096.
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=9000))]
    mtu: u32,
    /// Keep what was on the cable, one file for each pair, in target/interop/captures.
    #[arg(long)]
    capture: bool,
    /// Let these faults happen to what arrives at us, such as `drop=1%`. Pairs that are not reliable are left out: their programs wait for ever.
    #[arg(long, value_name = "PLAN")]
    faults: Option<String>,
    /// Run each pair so many times: what goes wrong now and then shows only so.
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=500))]
    repeat: u32,
    /// Take our library from this directory, and build none.
    #[arg(long, value_name = "DIRECTORY")]
    lib: Option<PathBuf>,
    /// Said by the first process to the second.
    #[arg(long, hide = true)]
    inside: bool,
}

/// Runs the pairs. Fails if one of them did.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    if !prerequisites::is_root() {
        return Err(
            "cargo xtask interop needs root, for a network namespace, a tap device and a virtual machine".into()
        );
    }
    let target = process::target_directory(root)?;
    let place = target.join("interop");
    if options.inside {
        let lib = options.lib.clone().unwrap_or_else(|| target.join("dist/lib"));
        return matrix::run(&place, &lib, options);
    }
    if std::env::consts::ARCH != "x86_64" {
        return Err("cargo xtask interop boots an x86_64 kernel, and runs on such machines only".into());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err("there is no /dev/net/tun, so a virtual machine cannot have a cable".into());
    }
    prerequisites::interop()?;
    fs::create_dir_all(&place).map_err(|e| format!("cannot make {}: {e}", place.display()))?;
    let unpacked = packages::fetch(&place)?;
    let program = place.join(DATA_CHECK);
    let source = root.join("xtask/interop").join(DATA_CHECK).with_extension("c");
    process::run(Command::new("cc").args(["-O2", "-Wall", "-o"]).arg(&program).arg(source).arg("-libverbs"))?;
    let cards = place.join(CARDS);
    let source = root.join("crates/capi/tests/c").join(CARDS).with_extension("c");
    process::run(Command::new("cc").args(["-O2", "-Wall", "-o"]).arg(&cards).arg(source).arg("-libverbs"))?;
    image::build(&unpacked, &[&program, &cards], &place)?;
    let script = place.join(COPY_CHECK);
    fs::write(&script, COPY_CHECK_SCRIPT).map_err(|e| format!("cannot write {}: {e}", script.display()))?;
    process::run(Command::new("chmod").arg("755").arg(&script))?;
    if options.lib.is_none() {
        dist::build(root, dist::Options::LIBRARY)?;
    }
    inside()
}

/// Starts this program again, with the same arguments, in namespaces of its own that end with either of the two.
fn inside() -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| format!("cannot tell which program this is: {e}"))?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"]);
    command.arg(program).args(std::env::args_os().skip(1)).arg("--inside");
    let status = command.status().map_err(|e| format!("setpriv did not start: {e}"))?;
    if status.success() { Ok(()) } else { Err("kernel Soft-RoCE and our NIC do not agree".into()) }
}
