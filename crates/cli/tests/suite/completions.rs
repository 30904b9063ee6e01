//! Completions as shells ask for them: bash itself, zsh and fish by what their scripts say to the program.
#![allow(missing_docs)]

use crate::program::{self, code, stderr, stdout, ubiverbs, ubiverbs_with};
use std::fs;
use std::process::Command;

/// What bash would offer for this line, whose last word is being typed. Bash itself cuts words at `=`; so does the
/// line.
fn bash(words: &[&str]) -> Vec<String> {
    let script = stdout(&ubiverbs(&["completions", "bash"]));
    let asked = r#"
        # `compopt` works only where a user types.
        compopt() { :; }
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        last=${COMP_WORDS[COMP_CWORD]}; [[ $last == '=' ]] && last=
        _ubiverbs ubiverbs "$last" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
        complete -p ubiverbs >&2"#;
    let output = Command::new("bash")
        .args(["--norc", "-c", &format!("{script}\n{asked}"), "bash", "ubiverbs"])
        .args(words)
        .output()
        .expect("bash runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && errors.contains("-F _ubiverbs ubiverbs"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    String::from_utf8(output.stdout).expect("text").lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_devices_and_statuses() {
    let commands = bash(&[""]);
    for command in [
        "demo",
        "bench",
        "run",
        "inject",
        "devices",
        "doctor",
        "ps",
        "metrics",
        "cluster",
        "simulate",
        "torture",
        "litmus",
        "explain",
        "why",
        "completions",
    ] {
        assert!(commands.iter().any(|offered| offered == command), "{commands:?}");
    }
    assert!(!commands.iter().any(|offered| offered == "peer" || offered == "tidy"), "{commands:?}");
    assert!(!commands.iter().any(|offered| offered.starts_with('-')), "options are offered after a dash: {commands:?}");
    assert!(bash(&["doctor", ""]).contains(&"--json".to_owned()), "or where nothing else is");
    assert_eq!(bash(&["dem"]), ["demo"]);
    assert_eq!(bash(&["run", "--faul"]), ["--faults"]);
    let devices: Vec<String> = {
        let output = ubiverbs(&["devices", "--json"]);
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let devices = document["devices"].as_array().expect("a list").iter();
        devices.map(|device| device["name"].as_str().expect("text").to_owned()).collect()
    };
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    for command in ["run", "demo", "bench"] {
        assert_eq!(sorted(bash(&[command, "--device", ""])), sorted(devices.clone()), "{command}");
    }
    assert_eq!(bash(&["run", "--device", "ubi_l"]), ["ubi_lo"]);
    assert_eq!(bash(&["run", "--device", "=", "ubi_l"]), ["ubi_lo"]);
    assert_eq!(bash(&["run", "--device", "ubi_lo,ubi_l"]), ["ubi_lo,ubi_lo"]);
    assert_eq!(bash(&["run", "--link", "="]), ["auto", "udp"]);
    assert_eq!(bash(&["explain", ""]).len(), 24 + 7);
    assert_eq!(bash(&["explain", "IBV_WC_RETRY"]), ["IBV_WC_RETRY_EXC_ERR"]);
    assert_eq!(bash(&["explain", "retr"]), ["retry_exc_err"]);
    assert_eq!(bash(&["explain", "12"]), ["12"]);
    assert_eq!(bash(&["explain", "UV-0201"]), ["UV-0201"]);
    assert_eq!(bash(&["explain", "ibv_modify_q"]), ["ibv_modify_qp"]);
    assert_eq!(bash(&["bench", "--only", "latency,thr"]), ["latency,threads"]);
    assert_eq!(bash(&["run", "--faults", "drop", "=", "1%,co"]), ["1%,corrupt="]);
    assert_eq!(bash(&["run", "--log", "ev"]), ["events"]);
    assert_eq!(bash(&["completions", "z"]), ["zsh"]);
}

#[test]
fn bash_completes_programs_and_files() {
    assert!(bash(&["run", "--", "bas"]).contains(&"bash".to_owned()));
    let file = program::scratch("a file to complete");
    fs::write(&file, "").expect("written");
    let path = file.to_str().expect("text").replace(' ', "\\ ");
    for words in [&["run", "--", "cat"][..], &["run", "--pcap"], &["bench", "--html"]] {
        let begun = &path[..path.len() - 4];
        assert_eq!(bash(&[words, &[begun]].concat()), [path.as_str()], "{words:?}");
    }
}

#[test]
fn whatever_is_explained_can_be_completed_and_the_other_way_round() {
    for typed in ["", "I", "ibv_wc_w", "wr_", "W", "1", "RDMA_CM", "rdma_", "UV-02"] {
        for status in bash(&["explain", typed]) {
            assert_eq!(code(&ubiverbs(&["explain", &status])), 0, "{status}");
        }
    }
}

#[test]
fn zsh_and_fish_are_answered_with_what_each_means() {
    for (shell, separator) in [("zsh", ":"), ("fish", "\t")] {
        let ask = |words: &[&str]| {
            let index = words.len().to_string();
            let variables = [("UBIVERBS_COMPLETE", shell), ("_CLAP_COMPLETE_INDEX", &index), ("_CLAP_IFS", "\n")];
            let output = ubiverbs_with(&variables, &[&["--", "ubiverbs"][..], words].concat());
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            stdout(&output)
        };
        let offered = ask(&["run", "--device", "ubi_l"]);
        assert!(offered.starts_with(&format!("ubi_lo{separator}")) && offered.contains("127.0.0.1"), "{offered}");
        let offered = ask(&["explain", "IBV_WC_RETRY"]);
        assert_eq!(offered.trim_end(), format!("IBV_WC_RETRY_EXC_ERR{separator}the peer did not answer"));
        let script = stdout(&ubiverbs(&["completions", shell]));
        assert!(script.contains(&format!("UBIVERBS_COMPLETE={shell}")) || script.contains("UBIVERBS_COMPLETE=\"zsh\""));
        // By its path, as the test calls it.
        assert!(script.contains(env!("CARGO_BIN_EXE_ubiverbs")), "{script}");
    }
}
