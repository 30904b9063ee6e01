//! Colours: on a terminal, and nowhere else unless they are asked for.
#![allow(missing_docs)]

use crate::program::{scratch, stderr, stdout, ubiverbs, ubiverbs_with};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::ptr;

const ESCAPE: char = '\x1b';

/// Commands that speak on standard output or standard error, quickly.
const COMMANDS: [&[&str]; 8] = [
    &["--help"],
    &["bench", "--help"],
    &["doctor"],
    &["devices"],
    &["explain", "retry"],
    &["demo", "--quick"],
    &["demo", "--wrong"],
    &["run", "--device", "none", "--", "true"],
];

/// Both ends of a terminal: what reads what it is shown, and what a program writes to.
fn pair() -> (File, OwnedFd) {
    let (mut master, mut terminal) = (-1, -1);
    // SAFETY: writes to two live integers; the other arguments may be absent.
    let made = unsafe { libc::openpty(&raw mut master, &raw mut terminal, ptr::null_mut(), ptr::null(), ptr::null()) };
    assert_eq!(made, 0, "a terminal: {}", std::io::Error::last_os_error());
    // SAFETY: both are new, and owned by nothing else.
    unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(terminal)) }
}

/// What a terminal would be shown.
fn on_terminal(variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let (master, terminal) = pair();
    let mut child = Command::new(env!("CARGO_BIN_EXE_ubiverbs"))
        .args(arguments)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .env_remove("CI")
        .env_remove("CLICOLOR_FORCE")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(terminal.try_clone().expect("a descriptor"))
        .stderr(terminal)
        .spawn()
        .expect("the program starts");
    let (mut master, mut shown, mut part) = (master, Vec::new(), [0; 4096]);
    // A terminal that no process holds any longer is an error to read.
    while let Ok(length @ 1..) = master.read(&mut part) {
        shown.extend_from_slice(&part[..length]);
    }
    child.wait().expect("a child");
    String::from_utf8(shown).expect("text")
}

#[test]
fn terminals_are_shown_colours_and_pipes_are_not() {
    for command in COMMANDS {
        let shown = on_terminal(&[], command);
        assert!(shown.contains(ESCAPE), "{command:?}: {shown}");
        let output = ubiverbs(command);
        let text = stdout(&output) + &stderr(&output);
        assert!(!text.is_empty() && !text.contains(ESCAPE), "{command:?}: {text}");
    }
}

#[test]
fn whoever_wants_no_colours_sees_none() {
    for command in COMMANDS {
        let dumb = [("TERM", "dumb"), ("CI", "true")];
        for variables in [&[("NO_COLOR", "1")][..], &dumb[..1], &dumb, &[("CLICOLOR", "0")]] {
            let shown = on_terminal(variables, command);
            assert!(!shown.is_empty() && !shown.contains(ESCAPE), "{variables:?} {command:?}: {shown}");
        }
        let shown = on_terminal(&[], &[&["--color", "never"], command].concat());
        assert!(!shown.is_empty() && !shown.contains(ESCAPE), "{command:?}: {shown}");
    }
}

#[test]
fn whoever_forces_colours_gets_them_through_a_pipe() {
    for command in COMMANDS {
        for output in
            [ubiverbs_with(&[("CLICOLOR_FORCE", "1")], command), ubiverbs(&[&["--color=always"], command].concat())]
        {
            assert!((stdout(&output) + &stderr(&output)).contains(ESCAPE), "{command:?}");
        }
    }
}

#[test]
fn files_and_documents_have_no_colours_even_if_they_are_forced() {
    let force = &[("CLICOLOR_FORCE", "1")];
    let [json, html, svg] = ["coloured.json", "coloured.html", "coloured.svg"].map(scratch);
    let paths = [&json, &html, &svg].map(|path| path.to_str().expect("text"));
    let bench = ["bench", "--only", "latency,send", "--sizes", "8", "--time", "0.003"];
    let files = ["--json", paths[0], "--html", paths[1], "--svg", paths[2]];
    ubiverbs_with(force, &[&bench[..], &files].concat());
    for path in paths {
        let text = fs::read_to_string(path).expect("written");
        assert!(!text.is_empty() && !text.contains(ESCAPE), "{path}");
    }
    for command in [&["devices", "--json"][..], &["doctor", "--json"], &["completions", "bash"]] {
        assert!(!stdout(&ubiverbs_with(force, command)).contains(ESCAPE), "{command:?}");
    }
}

#[test]
fn a_program_that_is_run_keeps_its_own_colours() {
    // The option stands behind the program's name: it is the program's.
    let output = ubiverbs(&["run", "--force", "--no-files", "--", "printf", "%s", "--color=always"]);
    // Without libraries beside this program it is not run; then the error must not be coloured either.
    let text = stdout(&output) + &stderr(&output);
    assert!(text == "--color=always" || (text.contains("libibverbs") && !text.contains(ESCAPE)), "{text}");
}
