//! The library as people get it, for programs to run on: built once by `cargo xtask dist`. Programs that talk to
//! each other run one pair at a time, since they poll and there may be only two processors.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Seconds until a program is stuck.
const PROGRAM_TIMEOUT_SECONDS: u64 = 300;

/// A directory with the libraries, and one with the newest rdma-core as `cargo xtask newest` makes it. A caller that
/// has them already says so with these variables.
const LIBRARY_VARIABLE: &str = "UBIVERBS_TEST_LIBRARY";
const NEWEST_VARIABLE: &str = "UBIVERBS_TEST_NEWEST";

/// How processes reach one another, and a process itself: the values of `UBIVERBS_LINK`.
#[derive(Clone, Copy, Debug)]
pub enum Link {
    SharedMemory,
    Udp,
}

/// The directory with `libibverbs.so.1`, `librdmacm.so.1` and `libibumad.so.3`.
pub fn directory() -> &'static Path {
    static LIBRARY_FOLDER: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY_FOLDER.get_or_init(|| {
        if let Some(directory) = std::env::var_os(LIBRARY_VARIABLE) {
            return directory.into();
        }
        let mut build = Command::new(env!("CARGO"));
        build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        build.args(["run", "--quiet", "--package", "xtask", "--", "dist", "--library"]);
        let output = build.stderr(Stdio::inherit()).output().expect("cargo runs");
        assert!(output.status.success(), "cargo xtask dist failed");
        let said = String::from_utf8(output.stdout).expect("a path");
        let library = PathBuf::from(said.lines().last().expect("the path of the library").trim());
        library.parent().expect("a directory").to_path_buf()
    })
}

/// Where the newest release of rdma-core is unpacked.
pub fn newest() -> &'static Path {
    static UNPACKED: OnceLock<PathBuf> = OnceLock::new();
    UNPACKED.get_or_init(|| {
        if let Some(place) = std::env::var_os(NEWEST_VARIABLE) {
            return place.into();
        }
        let mut get = Command::new(env!("CARGO"));
        get.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        get.args(["run", "--quiet", "--package", "xtask", "--", "newest"]);
        let output = get.stderr(Stdio::inherit()).output().expect("cargo runs");
        assert!(output.status.success(), "cargo xtask newest failed");
        PathBuf::from(String::from_utf8_lossy(&output.stdout).lines().last().expect("a path").trim())
    })
}

/// A program that runs on the library, and is stopped when it takes too long.
pub fn on_library(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.arg("--kill-after=5").arg(PROGRAM_TIMEOUT_SECONDS.to_string()).arg(program);
    command.env("LD_LIBRARY_PATH", directory()).env_remove("UBIVERBS_LOG").env_remove("UBIVERBS_LINK");
    command
}

/// A program that runs on the library over a link.
pub fn on_link(link: Link, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = on_library(program);
    let name = match link {
        Link::SharedMemory => "shared",
        Link::Udp => "udp",
    };
    command.env("UBIVERBS_LINK", name);
    command
}

/// A program on the library and a host of its own, where every user may have raw packets: a network namespace, and a
/// /dev/shm, where the counters of ended processes are.
pub fn in_namespace(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = on_library("unshare");
    if rustix::process::geteuid().is_root() {
        command.args(["--net", "--mount"]);
    } else {
        command.args(["--user", "--map-root-user", "--net", "--mount"]);
    }
    let own = "mount -t tmpfs -o mode=1777 ubiverbs /dev/shm && ip link set lo up && exec \"$@\"";
    command.args(["sh", "-c", own, "sh"]).arg(program);
    command
}

/// Only one test at a time drives programs that poll.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a program wrote, with its name, for messages.
pub fn show(what: &str, output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{what}: {}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// Runs a program to its end; it must succeed, and no thread of the library may have given up.
pub fn succeed(command: &mut Command) -> String {
    let what = format!("{command:?}");
    let output = command.output().unwrap_or_else(|e| panic!("{what} did not start: {e}"));
    let panicked = String::from_utf8_lossy(&output.stderr).contains("panicked at");
    assert!(output.status.success() && !panicked, "{}", show(&what, &output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Compiles a program of `tests/c` against the installed headers: once, because another test may be about to run it.
pub fn compile(compiler: &str, source: &str) -> PathBuf {
    static COMPILED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let first = compiled.get_or_insert_default().insert(source.to_owned());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(source.file_stem().expect("a name"));
    if !first {
        return binary;
    }
    let mut command = Command::new(compiler);
    command
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-g", "-O1", "-o"])
        .arg(&binary)
        .arg(&source);
    command.arg("-L").arg(directory()).args(["-lrdmacm", "-Wl,--push-state,--as-needed"]);
    command.args(["-libmad", "-libumad", "-Wl,--pop-state", "-libverbs", "-lpthread"]);
    let output = command.output().unwrap_or_else(|e| panic!("{compiler} is missing ({e}): apt-get install gcc g++"));
    assert!(
        output.status.success(),
        "{}",
        show("are libibverbs-dev, librdmacm-dev, libibumad-dev and libibmad-dev installed?", &output)
    );
    binary
}
