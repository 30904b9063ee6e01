//! Our libraries, what could come before them, and the device files that programs look for.

use super::Finding;
use crate::run::{self, linker};
use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub fn check() -> Vec<Finding> {
    let variable = |name| env::var_os(name).unwrap_or_default();
    let directory = run::library();
    let shadow = directory.as_ref().ok().map(|ours| shadow(ours, &variable(linker::SEARCH_PATH)));
    let found = match directory {
        Ok(directory) => Finding::ok("libraries", format!("in {}", directory.display())),
        Err(failure) => {
            Finding::failure("libraries", failure.to_string(), "copy bin and lib together, or run: cargo xtask dist")
        }
    };
    let mut findings = vec![found];
    findings.extend(shadow);
    findings.extend([preloaded(&variable(linker::PRELOAD_VARIABLE)), files()]);
    findings
}

/// `ubiverbs run` puts ours first. Who sets the variable by hand may have others before them.
fn shadow(ours: &Path, list: &OsStr) -> Finding {
    let entries: Vec<PathBuf> =
        list.as_bytes().split(|byte| b":;".contains(byte)).map(|entry| OsStr::from_bytes(entry).into()).collect();
    let is_ours = |entry: &PathBuf| match (entry.canonicalize(), ours.canonicalize()) {
        (Ok(entry), Ok(ours)) => entry == ours,
        _ => entry == ours,
    };
    let before = entries.iter().position(is_ours).map(|place| entries.get(..place).unwrap_or_default());
    // An empty entry is the directory that a program is started in.
    let copy = before.unwrap_or_default().iter().find_map(|entry| {
        linker::LIBRARIES.iter().map(|library| entry.join(library)).find(|library| library.is_file())
    });
    match copy {
        Some(copy) => {
            let what =
                format!("has {} before ours: programs that are started without ubiverbs run get that", copy.display());
            let fix = format!("export LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH", ours.display());
            Finding::failure("search path", what, fix)
        }
        None => Finding::ok("search path", "LD_LIBRARY_PATH has no other libibverbs before ours"),
    }
}

/// What the user preloads comes before ours.
fn preloaded(list: &OsStr) -> Finding {
    let list = list.to_string_lossy();
    let ours = |name: &str| linker::LIBRARIES.contains(&name);
    let other = list.split([' ', ':']).find(|entry| {
        let name = Path::new(entry).file_name().unwrap_or_default().to_string_lossy();
        // A copy with our name is left out by `ubiverbs run`.
        ["libibverbs", "librdmacm", "libibumad"].iter().any(|known| name.starts_with(known)) && !ours(&name)
    });
    match other {
        Some(entry) => {
            let what = format!("LD_PRELOAD has {entry}, which programs would get instead of ours");
            Finding::failure("preloaded", what, "unset LD_PRELOAD")
        }
        None => Finding::ok("preloaded", "no other libibverbs"),
    }
}

/// Without them UCX and others find no device.
fn files() -> Finding {
    match run::files_can_be_written() {
        Ok(directory) => Finding::ok("device files", format!("can be written to {}", directory.display())),
        Err(reason) => {
            let what = format!("cannot be shown, and UCX, MPI and NCCL look for them: {reason}");
            Finding::warning("device files", what, "set TMPDIR to a directory that can be written to")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_preloaded_copy_of_another_name_fails() {
        for (list, level) in [
            ("", Level::Ok),
            ("libasan.so.8:/x/libjemalloc.so", Level::Ok),
            ("/x/libibverbs.so.1", Level::Ok),
            ("/x/libibverbs-ab12cd34.so.1.14.44", Level::Failure),
            ("a.so /x/librdmacm.so.1.3.44.0", Level::Failure),
        ] {
            assert_eq!(preloaded(OsStr::new(list)).level, level, "{list}");
        }
    }
}
