//! `ubiverbs run`, with libraries that are none: what it does itself, and which files it makes.
#![allow(missing_docs)]

use crate::program::scratch;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program beside empty libraries, in a directory of this test's own.
pub fn installed(name: &str) -> PathBuf {
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
    run_program(place, limit, options, &["true"])
}

fn run_program(place: &Path, limit: &str, options: &[&str], program: &[&str]) -> Output {
    let line = "ulimit -f \"$1\"; shift; exec timeout 60 \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", line, "sh", limit]).arg(place.join("bin/ubiverbs")).arg("run").args(options);
    command.arg("--").args(program).output().expect("it runs")
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

/// Each NIC is at a place of PCI of its own: programs take functions of one device, or devices of one bus, for one NIC.
#[test]
fn the_nics_of_a_server_have_places_and_switches_of_their_own() {
    let place = installed("run-nics");
    let script = "echo $UBIVERBS_NICS; cd $UBIVERBS_FILES/sys/class/infiniband && for nic in *; do \
        realpath --relative-to ../../devices $nic/device; cat $nic/device/numa_node $nic/ports/1/gids/0; done";
    let server = ["--nics", "hgx", "--device", "ubi_0,ubi_7"];
    for (options, nics, last) in [
        (&server[..], "hgx", "pci7562:70/7562:70:00.0/7562:71:00.0/7562:72:00.0"),
        (&["--nics", "8", "--device", "ubi_0,ubi_7"], "8", "pci7562:00/7562:00:00.0/7562:01:00.0/7562:09:00.0"),
    ] {
        let output = run_program(&place, "unlimited", options, &["sh", "-c", script]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let first = "pci7562:00/7562:00:00.0/7562:01:00.0/7562:02:00.0";
        assert_eq!([lines[0], lines[1], lines[4]], [nics, first, last], "{text}");
        let gids = ["01", "08"].map(|last| format!("0000:0000:0000:0000:0000:ffff:7f00:00{last}"));
        assert_eq!([lines[3], lines[6]], gids, "{text}");
        assert!(lines[2].parse::<i32>().is_ok() && lines.len() == 7, "{text}");
    }
}

#[test]
fn a_script_is_read_before_the_program_begins_and_a_mistake_is_told_with_its_line() {
    let place = installed("run-script");
    let write = |name: &str, text: &str| {
        let path = place.join(name);
        fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    };
    let good = write("good.toml", "[[failure]]\nat = '1s'\ndo = 'port-down'\n");
    let long = format!("[[failure]]\ndo = 'stop'\n#{}", "x".repeat(256 << 10));
    for (script, reason) in [
        (
            write("word.toml", "[[failure]]\nat = '1s'\ndo = 'port-dwon'\n"),
            "word.toml: line 3: \"port-dwon\" is no failure",
        ),
        (
            write("time.toml", "[[failure]]\nat = '1 day'\ndo = 'stop'\n"),
            "time.toml: line 2: at = \"1 day\"; expected a time",
        ),
        (write("long.toml", &long), "at most 262144 are read"),
        (write("none.toml", ""), "none.toml: the script has no failure"),
        (write("a:b.toml", "[[failure]]\ndo = 'stop'\n"), "its path has a colon"),
        (place.join("missing.toml").display().to_string(), "missing.toml"),
        (place.display().to_string(), "directory"),
    ] {
        let output = run_program(&place, "unlimited", &["--no-files", "--script", &script], &["echo", "started"]);
        assert_eq!(output.status.code(), Some(2), "{script}: {}", said(&output));
        assert!(said(&output).contains(reason) && output.stdout.is_empty(), "{script}: {}", said(&output));
    }
    let report = write("report.json", "of another day");
    let options =
        ["--no-files", "--script", &good, "--script", &good, "--script-seed", "7", "--script-report", &report];
    let show = "echo $UBIVERBS_SCRIPT $UBIVERBS_SCRIPT_SEED $UBIVERBS_SCRIPT_REPORT ${UBIVERBS_SCRIPT_RUN:+numbered}";
    let output = run_program(&place, "unlimited", &options, &["sh", "-c", show]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(told, format!("{good}:{good} 7 {report} numbered\n"), "{}", said(&output));
    assert_eq!(fs::read_to_string(&report).expect("there"), "");
    assert_eq!(fs::metadata(&report).expect("there").mode() & 0o777, 0o600);
    // Without a script there is nothing to seed or to report.
    let output = run(&place, "unlimited", &["--no-files", "--script-seed", "7"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}
