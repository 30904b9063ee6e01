//! `ubiverbs run`, with libraries that are none: what it does itself, and which files it makes.
#![allow(missing_docs)]

use crate::program::scratch;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program beside empty libraries, in a directory of this test's own.
fn installed(name: &str) -> PathBuf {
    let place = scratch(name);
    let _ = fs::remove_dir_all(&place);
    for directory in ["bin", "lib"] {
        fs::create_dir_all(place.join(directory)).expect("a directory");
    }
    let program = place.join("bin/ubiverbs");
    fs::hard_link(env!("CARGO_BIN_EXE_ubiverbs"), &program).expect("a second name");
    for library in ["libibverbs.so.1", "librdmacm.so.1", "libibumad.so.3", "libubiverbs-paths.so"] {
        fs::write(place.join("lib").join(library), "").expect("written");
    }
    place
}

/// Runs `true` by it, with no more time than it needs, and with this limit of file sizes in KiB.
fn run(place: &Path, limit: &str, options: &[&str]) -> Output {
    let line = "ulimit -f \"$1\"; shift; exec timeout 60 \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", line, "sh", limit]).arg(place.join("bin/ubiverbs")).arg("run").args(options);
    command.args(["--", "true"]).output().expect("it runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_report_follows_no_link_waits_for_no_reader_and_is_its_owners_alone() {
    let place = installed("run-report");
    let (precious, link, pipe, report) =
        (place.join("precious"), place.join("link.json"), place.join("pipe.json"), place.join("report.json"));
    fs::write(&precious, "precious").expect("written");
    symlink(&precious, &link).expect("a link");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
    for (path, reason) in [(&link, "it is a symbolic link"), (&pipe, "it is neither a file nor a terminal")] {
        let output = run(&place, "unlimited", &["--no-files", "--check-report", path.to_str().expect("text")]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(reason), "{}", said(&output));
    }
    assert_eq!(fs::read_to_string(&precious).expect("there"), "precious");
    fs::write(&report, "of another day").expect("written");
    let output = run(&place, "unlimited", &["--no-files", "--check-report", report.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(fs::read_to_string(&report).expect("there").starts_with('{'));
    assert_eq!(fs::metadata(&report).expect("there").mode() & 0o777, 0o600);
}

#[test]
fn a_program_runs_without_files_where_none_may_be_long() {
    let place = installed("run-limit");
    let output = run(&place, "0", &[]);
    assert_eq!(output.status.code(), Some(0), "{:?}: {}", output.status, said(&output));
    assert!(said(&output).contains("no device files: files may have 0 bytes here (ulimit -f)"), "{}", said(&output));
    let report = place.join("report.json");
    let output = run(&place, "0", &["--check-report", report.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(1), "{:?}: {}", output.status, said(&output));
    assert!(said(&output).contains("cannot write"), "{}", said(&output));
}
