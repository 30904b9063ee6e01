//! `torture` with commands that are shell scripts: they read the failure script that they run under, tell of strikes as
//! the library does, and hold, hang, crash, write what is wrong, or leave something behind.
#![allow(missing_docs)]

use crate::program::{code, document, stderr, stdout, ubiverbs};
use crate::run::installed;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// What the library would tell of a strike of the first failure.
const STRUCK: &str = r#"struck() { echo '{"do":"'$1'","line":4,"pid":'$$',"wall":'$(date +%s%N)'}' >> "$UBIVERBS_SCRIPT_REPORT"; }
    has() { [ -n "$UBIVERBS_SCRIPT" ] && grep -q "$1" "$UBIVERBS_SCRIPT"; }
    "#;

/// A directory with the program, and with scripts: each name is what it does.
fn place(name: &str, scripts: &[&str]) -> PathBuf {
    let place = installed(name);
    for script in scripts {
        let text = format!("about = \"A test\"\n\n[[failure]]\ndo = \"{script}\"\n");
        fs::write(place.join(format!("{script}.toml")), text).expect("written");
    }
    place
}

/// Tortures a line of the shell with these scripts.
fn torture(place: &PathBuf, scripts: &[&str], options: &[&str], line: &str) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", "bin/ubiverbs", "torture", "--run=--no-files", "--keep", "kept"]).current_dir(place);
    for script in scripts {
        command.args(["--script", &format!("{script}.toml")]);
    }
    command.args(options).args(["--", "sh", "-c", &format!("{STRUCK}{line}")]).output().expect("it runs")
}

#[test]
fn a_program_that_holds_or_says_so_in_time_passes() {
    let scripts = ["sm-change", "port-down", "device-fatal"];
    let place = place("torture-holds", &scripts);
    let line = "has sm-change && struck sm-change; has device-fatal && { struck device-fatal; echo gone >&2; exit 3; }; echo fine";
    let output = torture(&place, &scripts, &["--check", "grep -q fine"], line);
    let text = stdout(&output);
    assert_eq!(code(&output), 0, "{text}{}", stderr(&output));
    let row =
        |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}")).to_owned();
    assert!(row("sm-change").contains("held"), "{text}");
    assert!(row("port-down").contains("untouched"), "{text}");
    assert!(row("device-fatal").contains("error") && row("device-fatal").contains("exit code 3: gone"), "{text}");
    assert!(text.contains("3 cases: 1 untouched, 1 held, 1 error"), "{text}");
    assert!(!place.join("kept").exists(), "nothing failed");
    let output = torture(&place, &["device-fatal"], &["--must-pass", "--shrink", "0"], line);
    assert_eq!(code(&output), 1, "{}", stdout(&output));
    assert!(stdout(&output).contains("gave-up"), "{}", stdout(&output));
}

#[test]
fn hangs_crashes_wrong_output_and_leaks_are_reported_in_every_form() {
    let scripts = ["port-down", "device-fatal", "qp-error", "client-reregister"];
    let place = place("torture-fails", &scripts);
    let left = format!("/dev/shm/ubiverbs-test-of-torture-{}", std::process::id());
    let line = format!(
        "has port-down && {{ struck port-down; sleep 100; }}; has device-fatal && kill -SEGV $$
        has qp-error && {{ struck qp-error; echo lies; exit 0; }}; has client-reregister && {{ struck client-reregister; touch {left}; }}; echo fine"
    );
    let reports = ["--junit", "junit.xml", "--sarif", "report.sarif"];
    let options = [&reports[..], &["--json", "--timeout", "5s", "--shrink", "0", "--check", "grep fine"]].concat();
    let output = torture(&place, &scripts, &options, &line);
    let _ = fs::remove_file(left);
    assert_eq!(code(&output), 1, "{}{}", stdout(&output), stderr(&output));
    let found = document(&output);
    let cases = found["cases"].as_array().expect("cases");
    let results: Vec<&str> = cases.iter().map(|case| case["result"].as_str().expect("text")).collect();
    assert_eq!(results, ["hang", "crash", "wrong", "leak"], "{found:#}");
    assert!(cases[0]["what"].as_str().expect("text").contains("sleep sleeps"), "{found:#}");
    let repeat = cases[0]["repeat"].as_str().expect("text");
    assert!(
        repeat.starts_with("ubiverbs run --no-files --script port-down.toml --script-seed 1 -- sh -c '"),
        "{repeat}"
    );
    assert!(cases[0]["knew_after_seconds"].as_f64().is_some_and(|time| time > 0.1), "{found:#}");
    let junit = fs::read_to_string(place.join("junit.xml")).expect("a report");
    assert!(junit.contains("tests=\"4\" failures=\"4\"") && junit.contains("<failure type=\"wrong\""), "{junit}");
    let sarif: serde_json::Value =
        serde_json::from_slice(&fs::read(place.join("report.sarif")).expect("a report")).expect("JSON");
    let results = sarif["runs"][0]["results"].as_array().expect("results");
    assert_eq!((results.len(), &results[1]["ruleId"]), (4, &"torture/device-fatal.toml".into()));
    assert_eq!(fs::read_to_string(place.join("kept/qp-error-1.out")).expect("kept"), "lies\n");
}

#[test]
fn a_server_is_waited_for_and_its_end_is_seen() {
    let scripts = ["port-down", "qp-error"];
    let place = place("torture-server", &scripts);
    // The client asks, the server answers once and ends; or it crashes, which its client does not hear of.
    let server = format!(
        "{STRUCK}rm -f asked; sleep 0.1; while [ ! -e asked ]; do sleep 0.01; done; has port-down && {{ struck port-down; kill -ABRT $$; }}
        has qp-error && {{ struck qp-error; sleep 100; }}; exit 0"
    );
    let options = ["--server", &server, "--timeout", "5s", "--shrink", "0"];
    let output = torture(&place, &scripts, &options, "touch asked; echo fine");
    let text = stdout(&output);
    assert_eq!(code(&output), 1, "{text}{}", stderr(&output));
    let row =
        |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}")).to_owned();
    assert!(row("port-down").contains("crash"), "{text}");
    assert!(row("qp-error").contains("hang") && row("qp-error").contains("left running"), "{text}");
    assert!(
        text.contains(
            "again: ubiverbs torture --script qp-error.toml --seed 1 --run=--no-files --timeout 5000ms --server"
        ),
        "{text}"
    );
}

#[test]
fn a_script_shrinks_to_what_is_needed() {
    let place = place("torture-shrink", &[]);
    let script = "about = \"Much\"\n\n[[failure]]\ndo = \"sm-change\"\n\n[[failure]]\nat = \"2s\"\nfor = \"1s\"\ndo = \"port-down\"\n\n[[failure]]\ndo = \"client-reregister\"\n";
    fs::write(place.join("much.toml"), script).expect("written");
    let output =
        torture(&place, &["much"], &["--shrink", "20"], "has port-down && { struck port-down; kill -BUS $$; }; true");
    let text = stdout(&output);
    assert_eq!(code(&output), 1, "{text}{}", stderr(&output));
    let small = fs::read_to_string(place.join("kept/much-1.toml")).expect("kept");
    assert_eq!(small, "[[failure]]\nfor = \"62ms\"\ndo = \"port-down\"\n", "{text}");
    assert!(text.contains("again: ubiverbs run --no-files --script kept/much-1.toml --script-seed 1"), "{text}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let place = place("torture-refused", &["port-down"]);
    let output = torture(&place, &["port-down"], &[], "echo broken; exit 4");
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("without any failure script"), "{}", stderr(&output));
    fs::write(place.join("wrong.toml"), "[[failure]]\ndo = 'port-dwon'\n").expect("written");
    for (arguments, said) in [
        (&["torture", "--only", "flop", "--", "true"][..], "did you mean flap"),
        (&["torture", "--timeout", "soon", "--", "true"], "500ms, 30s or 2min"),
        (&["torture", "--show", "flop"], "no such disaster"),
        (&["torture", "--list", "--json", "--", "true"], "cannot be used with"),
        (&["torture"], "COMMAND"),
        (&["torture", "--script", place.join("wrong.toml").to_str().expect("text"), "--", "true"], "port-down"),
    ] {
        let output = ubiverbs(arguments);
        assert_eq!(code(&output), 2, "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn disasters_are_listed_and_shown_and_documented() {
    let list = stdout(&ubiverbs(&["torture", "--list"]));
    assert!(list.lines().count() > 20, "{list}");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/disasters.md");
    let page = fs::read_to_string(page).expect("the page");
    for line in list.lines() {
        let (name, about) = line.split_once(' ').expect("a name and a sentence");
        let shown = stdout(&ubiverbs(&["torture", "--show", name]));
        assert!(shown.contains(about.trim()) && shown.contains("[[failure]]"), "{shown}");
        assert!(page.contains(&format!("| `{name}` |")), "docs/disasters.md has no row for {name}");
    }
}
