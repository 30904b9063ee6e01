//! `simulate` as a user runs it.
#![allow(missing_docs)]

use crate::program::ubiverbs;
use std::fs;
use std::process::{Command, Stdio};

fn directory(name: &str) -> std::path::PathBuf {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("simulate-{name}"));
    fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn a_run_is_told_as_text_as_json_and_as_a_page() {
    let page = directory("page").join("run.html");
    let arguments = ["simulate", "--hosts", "9", "--workload", "incast bytes 256K", "--html", page.to_str().unwrap()];
    let output = ubiverbs(&arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains("star: 9 hosts, 1 switch, 9 cables") && text.contains("8 messages on 16 queue pairs"),
        "{text}"
    );
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("<svg") && !html.contains("http"), "{html}");
    let json = ubiverbs(&["simulate", "--hosts", "9", "--workload", "incast bytes 256K", "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&json.stdout).expect("a JSON document");
    assert_eq!(document["counts"]["messages_received"], 8);
    assert_eq!((&document["complete"], &document["counts"]["dropped_full"]), (&true.into(), &0.into()));
}

#[test]
fn the_same_scenario_prints_the_same_bytes() {
    let run = |seed| {
        let seeded = ["simulate", "--topology", "fat-tree-3", "--workload", "permutation", "--json", "--seed", seed];
        ubiverbs(&seeded).stdout
    };
    assert_eq!(run("5"), run("5"));
    assert_ne!(run("5"), run("6"));
}

#[test]
fn a_script_names_its_trace_and_its_captures() {
    let directory = directory("script");
    fs::write(directory.join("messages"), "0us 0 1 64K\n5us 2 1 64K\n").unwrap();
    let script = directory.join("cluster");
    fs::write(&script, "hosts 4 # small\nworkload trace messages\ncapture 1\ncapture 2\n").unwrap();
    let capture = directory.join("a.pcapng");
    let output = ubiverbs(&["simulate", script.to_str().unwrap(), "--pcap", capture.to_str().unwrap(), "--figures"]);
    let (text, told) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(text.contains("2 messages on 4 queue pairs"), "{text}");
    assert!(told.contains("million a second") && told.contains("queue pairs   4"), "{told}");
    for host in [1, 2] {
        let bytes = fs::read(directory.join(format!("a.host{host}.pcapng"))).unwrap();
        assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    }
}

/// Large networks take huge pages where there are some, by beginning again.
#[test]
fn a_large_network_prints_the_same_with_huge_pages_and_from_standard_input() {
    let script = directory("large").join("cluster");
    fs::write(&script, "hosts 2000\ntopology fat-tree-3\nworkload all-reduce-tree bytes 64\n").unwrap();
    let run = |script: &str, stdin: Stdio, tunables: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubiverbs"));
        command.args(["simulate", script]).stdin(stdin).env_remove("GLIBC_TUNABLES");
        let output = command.envs(tunables.map(|value| ("GLIBC_TUNABLES", value))).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let path = script.to_str().unwrap();
    let text = run(path, Stdio::null(), None);
    assert!(text.contains("2000 hosts"), "{text}");
    assert_eq!(text, run(path, Stdio::null(), Some("glibc.malloc.hugetlb=0")));
    assert_eq!(text, run("-", Stdio::from(fs::File::open(&script).unwrap()), None));
}

#[test]
fn what_is_wrong_is_told_with_the_line_or_the_option() {
    let script = directory("wrong").join("cluster");
    fs::write(&script, "hosts 4\n\nrate fast\n").unwrap();
    for (arguments, told) in [
        (vec![script.to_str().unwrap()], "cluster: line 3: \"fast\" is no rate; expected one of 1K to 10T"),
        (vec!["--hosts", "1"], "--hosts: \"1\" is no number for this; expected one of 2 to 100000"),
        (vec!["--set", "storm"], "--set: \"storm\" is no statement; expected one of seed"),
        (vec!["--hosts", "4", "--workload", "incast senders 9"], "--workload: 4 hosts have no 9 senders"),
        (vec!["nowhere"], "cannot read nowhere"),
    ] {
        let output = ubiverbs(&[vec!["simulate"], arguments.clone()].concat());
        let found = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {found}");
        assert!(found.contains(told), "{arguments:?}: {found}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn failure_scripts_break_hosts_and_cables_and_say_what_they_cannot() {
    let directory = directory("failures");
    let script = directory.join("broken.toml");
    let run = |text: &str| {
        fs::write(&script, text).unwrap();
        let output = ubiverbs(&["simulate", "--hosts", "9", "--json", "--script", script.to_str().unwrap()]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let lost = |text: &str| {
        let (code, json, told) = run(text);
        assert_eq!(code, Some(0), "{text}: {told}");
        let document: serde_json::Value = serde_json::from_str(&json).expect("a JSON document");
        let count = |name| document["counts"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {json}"));
        count("dropped_down") + count("dropped_lost")
    };
    assert_eq!(lost("[[failure]]\nat = '900s'\nhost = 'host3'\ndo = 'port-down'\n"), 0, "too late");
    assert!(lost("[[failure]]\nat = '10us'\nfor = '100us'\nhost = 'host3'\ndo = 'port-down'\n") > 0);
    assert!(lost("[[failure]]\nat = '0s'\nhost = '0'\nto = 'switch0'\ndo = 'loss'\nchance = '5%'\n") > 0);
    assert!(lost("[[failure]]\nat = '100us'\nfor = '5ms'\ndo = 'flap'\nperiod = '1ms'\n") > 0, "all hosts");
    assert_eq!(lost("[[failure]]\nat = '5us'\nhost = 'host2'\ndo = 'slow'\nshare = '50%'\n"), 0);
    for (text, said) in [
        ("[[failure]]\nat = '1s'\ndo = 'qp-error'\n", "line 3: qp-error means nothing to simulated hosts and cables"),
        ("[[failure]]\ncall = 'ibv_reg_mr'\ndo = 'port-down'\n", "line 3: the simulator strikes at times"),
        (
            "[[failure]]\nat = '1s'\ndevice = 'ubi_0'\ndo = 'port-down'\n",
            "line 4: device means nothing to the simulator",
        ),
        ("[[failure]]\nat = '1s'\nhost = 'host9'\ndo = 'port-down'\n", "line 4: there is no host 9 among 9"),
        ("[[failure]]\nat = '1s'\nevery = '2s'\ndo = 'port-down'\n", "line 4: it strikes without end"),
        ("[[failure]]\nat = '1s'\ndo = 'black-hole'\ndirection = 'in'\n", "line 3: direction = \"in\""),
        ("[[failure]]\nat = '1s'\ndo = 'port-dwn'\n", "line 3: \"port-dwn\" is no failure"),
    ] {
        let (code, _, told) = run(text);
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains(&format!("broken.toml: {said}")), "{told}");
    }
}

/// What `view --json` says of a directory's recordings.
fn viewed(directory: &std::path::Path) -> Vec<serde_json::Value> {
    let output = ubiverbs(&["view", "--json", directory.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

#[test]
fn a_recording_has_both_sides_of_each_packet_and_which_the_network_lost() {
    let directory = directory("record").join("rec");
    let _ = fs::remove_dir_all(&directory);
    let scenario = ["simulate", "--hosts", "3", "--workload", "incast bytes 256K", "--set", "lossy links 3 loss 3%"];
    let [plain, recorded] = [&["--json"][..], &["--json", "--record", directory.to_str().unwrap()]]
        .map(|more| ubiverbs(&[&scenario[..], more].concat()));
    assert_eq!(recorded.status.code(), Some(0), "{}", String::from_utf8_lossy(&recorded.stderr));
    assert!(plain.stdout == recorded.stdout, "recording changes the run");
    let report: serde_json::Value = serde_json::from_slice(&recorded.stdout).unwrap();
    let counted = |name: &str| report["counts"][name].as_u64().unwrap() as usize;

    let lines = viewed(&directory);
    let of = |kind: &str| lines.iter().filter(|line| line["type"] == kind).collect::<Vec<_>>();
    assert_eq!((&of("run")[0]["clock_error"], of("process").len()), (&0.into(), 3));
    let pairs = of("queue_pair");
    assert!(pairs.len() == 4 && pairs.iter().all(|pair| pair["peer"].is_u64() && pair["kind"] == "RC"), "{pairs:?}");
    let events = of("event");
    let by_id = |id: &serde_json::Value| *events.iter().find(|event| event["id"] == *id).expect("a partner");
    let sent: Vec<_> = events.iter().filter(|event| event["kind"] == "PacketSent").collect();
    let count = |flag: &str| sent.iter().filter(|event| event[flag] == true).count();
    assert_eq!([sent.len(), count("again")], [counted("packets_sent"), counted("retransmitted")]);
    assert_eq!(count("lost"), counted("dropped_lost"));
    assert!(count("lost") > 3 && count("again") > 3, "{} lost, {} again", count("lost"), count("again"));
    for event in sent {
        let arrival = by_id(&event["partner"]);
        let kind = if event["lost"] == true { "PacketDropped" } else { "PacketReceived" };
        assert!(arrival["kind"] == kind && arrival["process"] != event["process"], "{event} {arrival}");
        assert!(arrival["time"].as_i64() > event["time"].as_i64(), "{event} {arrival}");
    }
    let works = of("work_request");
    assert_eq!(works.len(), 2, "{works:?}");
    for work in works {
        let times = ["posted", "sent", "arrived", "placed", "completed"].map(|name| work[name].as_i64());
        assert!(times.is_sorted() && times[0].is_some() && work["bytes"] == 256 << 10, "{work}");
    }

    let again = ubiverbs(&[&scenario[..], &["--record", directory.to_str().unwrap()]].concat());
    let told = String::from_utf8(again.stderr).unwrap();
    assert!(again.status.code() == Some(1) && told.contains("name another directory"), "{told}");
}

#[test]
fn large_runs_are_not_recorded() {
    let nowhere = directory("large-record").join("rec");
    let output = ubiverbs(&["simulate", "--hosts", "65", "--record", nowhere.to_str().unwrap()]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && told.contains("64 hosts at most, and there are 65"), "{told}");
    assert!(!nowhere.exists());
}
