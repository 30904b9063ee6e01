//! Programs that bring a libibverbs of their own, which `LD_LIBRARY_PATH` does not replace: copies of the system's, renamed as wheels rename them, and found
//! by the program's own search path.

use crate::stage::Stage;
use crate::{Test, expect};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("run: renamed copies of the libraries, found by DT_RPATH", |stage| {
            let text = started(stage, &stage.dist, Names::Renamed)?;
            expect(&text, &["linked: ubi_lo", "connection manager: ubi_lo", "opened: ubi_lo", "module: ubi_lo"])
        }),
        Test::new("run: copies of the libraries with their own names, found by DT_RPATH", |stage| {
            let text = started(stage, &stage.dist, Names::Kept)?;
            expect(&text, &["linked: ubi_lo", "connection manager: ubi_lo", "opened: ubi_lo", "module: ubi_lo"])
        }),
        Test::new("run: renamed copies, from a directory with spaces", |stage| {
            let place = stage.place.join("a dist with spaces");
            let copied = Command::new("cp").arg("-a").arg(&stage.dist).arg(&place).status();
            copied.map_err(|e| e.to_string())?;
            expect(&started(stage, &place, Names::Renamed)?, &["linked: ubi_lo", "module: ubi_lo"])
        }),
    ]
}

/// What the copies are called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Names {
    Kept,
    Renamed,
}

/// The system's libraries, and names of the same length: they are written over the old ones.
const LIBRARIES: [(&str, &str); 2] = [("libibverbs.so.1", "libibv-ab12.so1"), ("librdmacm.so.1", "librdm-cd34.so")];

/// Compiles the program with its copies, runs it, and answers what it printed.
fn started(stage: &Stage, dist: &Path, names: Names) -> Result<String, String> {
    let place = stage.place.join(format!("vendored {names:?}").replace(' ', "-"));
    let lib = place.join("lib");
    fs::create_dir_all(&lib).map_err(|e| e.to_string())?;
    let copies: Vec<PathBuf> =
        LIBRARIES.iter().map(|(old, new)| copy(&lib, old, new, names)).collect::<Result<_, _>>()?;
    let (program, module) = (place.join("program"), place.join("module.so"));
    compile(stage, &module, &copies, &["-DMODULE", "-shared", "-fPIC"])?;
    compile(stage, &program, &copies, &[])?;
    let mut command = stage.alone.command(None, &dist.join("bin/ubiverbs"));
    command.args(["run", "--device", "ubi_lo", "--"]).arg(&program).arg(&module).env_remove("LD_LIBRARY_PATH");
    let ended = stage.end(&mut command)?;
    if ended.status.success() { Ok(ended.text) } else { Err(format!("{}: {}", ended.status, ended.text)) }
}

/// Copies a library of the system, and gives it and what it needs other names.
fn copy(lib: &Path, old: &str, new: &str, names: Names) -> Result<PathBuf, String> {
    let found = Command::new("cc").arg(format!("-print-file-name={old}")).output().map_err(|e| e.to_string())?;
    let found = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
    let mut bytes = fs::read(&found).map_err(|e| format!("{}: {e}", found.display()))?;
    let copy = lib.join(if names == Names::Renamed { new } else { old });
    if names == Names::Renamed {
        for (old, new) in LIBRARIES {
            rename(&mut bytes, old.as_bytes(), new.as_bytes());
        }
    }
    fs::write(&copy, bytes).map_err(|e| e.to_string())?;
    Ok(copy)
}

fn rename(bytes: &mut [u8], old: &[u8], new: &[u8]) {
    let places: Vec<usize> =
        bytes.windows(old.len()).enumerate().filter(|(_, it)| *it == old).map(|(at, _)| at).collect();
    for at in places {
        bytes[at..at + new.len()].copy_from_slice(new);
    }
}

fn compile(stage: &Stage, output: &Path, libraries: &[PathBuf], options: &[&str]) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/vendored.c");
    let mut command = Command::new("cc");
    command.args(options).args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(output).arg(source).args(libraries);
    // Without new tags this is DT_RPATH, which the loader prefers to LD_LIBRARY_PATH.
    command.args(["-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib", "-ldl"]);
    let ended = stage.end(&mut command)?;
    if ended.status.success() { Ok(()) } else { Err(format!("is librdmacm-dev installed?\n{}", ended.last())) }
}
