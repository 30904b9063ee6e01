//! The benchmark as a user runs it, with too little time to mean anything.
#![allow(missing_docs)]

use crate::program::{Running, await_death, code, document, scratch, stderr, stdout, ubiverbs, ubiverbs_with};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

/// What was measured: kind, carrier, waiting, link, size.
type Row = (String, String, String, String, u64);

fn rows(document: &Value) -> BTreeSet<Row> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let rows = document["rows"].as_array().expect("a list");
    let of = |row: &Value| {
        let trip = row["measured"] == "round_trip";
        let calls = row["measured"] == "connect";
        let figures = if calls {
            &row["connections_per_second"]
        } else if trip {
            &row["round_trip_ns"]["p50"]
        } else {
            &row["bytes_per_second"]
        };
        assert!(figures.as_f64() > Some(0.0) && row["ratio_to_tcp"].as_f64() > Some(0.0), "{row:#}");
        let spread = if trip {
            &row["p50_spread_ns"]
        } else if calls {
            &row["connections_per_second_spread"]
        } else {
            &row["messages_per_second_spread"]
        };
        let middle = if trip || calls { figures.as_f64() } else { row["messages_per_second"].as_f64() };
        assert!(spread[0].as_f64() <= middle && middle <= spread[1].as_f64(), "{row:#}");
        if trip {
            let percentile = |name: &str| row["round_trip_ns"][name].as_u64().expect("a number");
            let ascending = ["p50", "p90", "p99", "p99_9", "max"].map(percentile);
            assert!(ascending.is_sorted(), "{row:#}");
        }
        let link = row["link"].as_str().unwrap_or("-").to_owned();
        let size = row["size"].as_u64().expect("a number");
        (text(&row["measured"]), text(&row["carrier"]), text(&row["waiting"]), link, size)
    };
    let set: BTreeSet<_> = rows.iter().map(of).collect();
    assert_eq!(set.len(), rows.len(), "nothing twice");
    set
}

/// Everything, where `process_vm_writev` may be forbidden.
fn expected(sizes: &[u64], waiting: &str, got: &BTreeSet<Row>) -> BTreeSet<Row> {
    let mut all = BTreeSet::new();
    let mut add = |kind: &str, carrier: &str, waiting: &str, link: &str, size| {
        all.insert((kind.to_owned(), carrier.to_owned(), waiting.to_owned(), link.to_owned(), size));
    };
    let may_write = got.iter().any(|row| row.1 == "process_vm");
    for &size in sizes {
        for link in ["shared", "udp"] {
            for carrier in ["send", "write", "read"] {
                add("round_trip", carrier, waiting, link, size);
                add("stream", carrier, waiting, link, size);
            }
            if size <= 64 {
                add("batch", "write", "spin", link, size);
            }
        }
        for carrier in ["send", "write"] {
            add("round_trip", carrier, "sleep", "shared", size);
            add("round_trip", carrier, "epoll", "shared", size);
        }
        for carrier in ["tcp", "unix"] {
            add("round_trip", carrier, waiting, "-", size);
            add("round_trip", carrier, "sleep", "-", size);
            add("stream", carrier, "sleep", "-", size);
        }
        for carrier in ["ring", "memcpy", "process_vm"] {
            if carrier != "process_vm" || may_write {
                add("stream", carrier, "sleep", "-", size);
            }
        }
        if waiting == "spin" {
            add("round_trip", "ring", waiting, "-", size);
            add("round_trip", "write", "memory", "shared", size);
        }
    }
    for link in ["shared", "udp"] {
        add("round_trip", "atomic", waiting, link, 8);
    }
    add("connect", "manager", "sleep", "-", 0);
    add("connect", "tcp", "sleep", "-", 0);
    all
}

#[test]
fn everything_is_measured_and_written_down() {
    let [json, html, svg] = ["bench.json", "bench.html", "bench.svg"].map(scratch);
    let paths = [&json, &html, &svg].map(|path| path.to_str().expect("a plain path"));
    // An odd size, one of a single packet, one of many.
    let arguments =
        ["--json", paths[0], "--html", paths[1], "--svg", paths[2], "--sizes", "13,4K,1M", "--time", "0.003"];
    let output = ubiverbs(&[&["bench"][..], &arguments].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    for part in [
        "Round trip, microseconds",
        "Bandwidth",
        "Message rate",
        "4 KiB",
        "TCP, blocking",
        "p99.9",
        "ATOMIC",
        "SEND, epoll",
        "WRITE, UDP",
        "bare ring",
        "by how many queue pairs",
        "by how many threads",
        "Goals",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    let document = serde_json::from_slice(&fs::read(&json).expect("written")).expect("JSON");
    let got = rows(&document);
    let crowds = document["queue_pairs"].as_array().expect("a list");
    let counts: Vec<_> = crowds.iter().filter_map(|crowd| crowd["queue_pairs"].as_u64()).collect();
    assert_eq!(counts, [10, 100, 1_000, 10_000]);
    assert!(crowds.iter().all(|crowd| crowd["nanoseconds_per_write"].as_f64() > Some(0.0)), "{crowds:#?}");
    let threads = document["threads"].as_array().expect("a list");
    let counts: Vec<_> = threads.iter().filter_map(|threads| threads["threads"].as_u64()).collect();
    assert_eq!(counts[..2], [1, 2]);
    assert!(threads.iter().all(|threads| threads["round_trips_per_second"].as_f64() > Some(0.0)), "{threads:#?}");
    assert_eq!(got, expected(&[13, 4096, 1 << 20], "spin", &got));
    let picture = fs::read_to_string(&svg).expect("written");
    assert_eq!(well_formed(&picture), Ok(()), "{picture}");
    let may_write = got.iter().any(|row| row.1 == "process_vm");
    let page = fs::read_to_string(&html).expect("written");
    assert_eq!(well_formed(page.trim_start_matches("<!DOCTYPE html>")), Ok(()), "{page}");
    for drawn in [&picture, &page] {
        assert_eq!(plots(drawn), expected_plots(may_write));
        assert!(
            drawn.contains("prefers-color-scheme:dark") && drawn.contains(" UTC") && !drawn.contains("NaN"),
            "{drawn}"
        );
        assert!(drawn.contains(&format!("ubiverbs {}", env!("CARGO_PKG_VERSION"))), "{drawn}");
        assert!(!["src=", "href=", "url(", "@import"].iter().any(|loads| drawn.contains(loads)), "{drawn}");
    }
    assert!(page.contains("<h1>A 13 B message and its answer take ") && page.contains("@media print"), "{page}");
    assert!(page.contains("Message rate, thousands per second"), "the tables are there, too: {page}");
}

/// The questions of a page or picture, each with the names at its lines.
fn plots(drawn: &str) -> Vec<(String, BTreeSet<String>)> {
    let text = |part: &str| part.split_once('>').and_then(|(_, rest)| rest.split('<').next()).unwrap_or("").to_owned();
    let plots = drawn.split("class=\"asks\"").skip(1).map(|plot| {
        let names: Vec<String> = plot.split("class=\"name\"").skip(1).map(text).collect();
        assert_eq!(plot.matches("<polyline").count(), names.len(), "{plot}");
        (text(plot), names.into_iter().collect())
    });
    plots.collect()
}

fn expected_plots(may_write: bool) -> Vec<(String, BTreeSet<String>)> {
    let process_vm: &[&str] = if may_write { &["process_vm_writev"] } else { &[] };
    let streams = [&["SEND", "WRITE", "READ", "TCP", "Unix", "bare ring", "memcpy"], process_vm].concat();
    let asleep =
        ["SEND, blocking", "SEND, epoll", "WRITE, blocking", "WRITE, epoll", "TCP, blocking", "Unix, blocking"];
    let spinning = ["SEND", "WRITE", "WRITE, memory", "READ", "ATOMIC", "TCP", "Unix", "bare ring"];
    let batches = ["WRITE, batches"];
    let plots: [(&str, Vec<&str>); 9] = [
        ("How long do a message and its answer take?", spinning.to_vec()),
        ("How many bytes per second?", streams.clone()),
        ("How many messages per second?", [&streams[..6], &batches].concat()),
        ("And if the programs sleep until it comes?", asleep.to_vec()),
        ("How long over UDP, as between hosts?", vec!["SEND", "WRITE", "READ", "ATOMIC", "TCP"]),
        ("How many bytes per second over UDP?", vec!["SEND", "WRITE", "READ", "TCP"]),
        ("How many messages per second over UDP?", vec!["SEND", "WRITE", "READ", "TCP", "WRITE, batches"]),
        ("What does a WRITE cost with many queue pairs?", vec!["WRITE"]),
        ("How many round trips by several threads?", vec!["SEND"]),
    ];
    plots.map(|(asks, names)| (asks.to_owned(), names.into_iter().map(str::to_owned).collect())).to_vec()
}

#[test]
fn programs_that_sleep_are_measured_too() {
    let output = ubiverbs(&["bench", "--events", "--json", "-", "--sizes", "64,64K", "--time", "0.003"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let got = rows(&document(&output));
    assert_eq!(got, expected(&[64, 65536], "sleep", &got));
}

#[test]
fn only_what_is_asked_for_and_tcp_is_measured() {
    let asked = ["bench", "--only", "bandwidth,write", "--json", "-", "--sizes", "8", "--time", "0.003", "--device"];
    // The address of another NIC is not where the kernel calls from.
    for (nics, device) in [("", "ubi_lo"), ("2", "ubi_1")] {
        let output = ubiverbs_with(&[("UBIVERBS_NICS", nics)], &[&asked[..], &[device]].concat());
        let got = rows(&document(&output));
        let carriers: Vec<&str> = got.iter().map(|row| row.1.as_str()).collect();
        assert_eq!(carriers, ["tcp", "write"]);
        assert!(got.iter().all(|row| row.0 == "stream"));
    }
}

#[test]
fn a_quick_run_measures_every_goal() {
    let output = ubiverbs(&["bench", "--quick", "--json", "-"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let document = document(&output);
    let goals = document["goals"].as_array().expect("a list");
    assert_eq!(goals.len(), 12);
    for goal in goals {
        let measured = goal["measured"].as_f64().expect("a number");
        let met = match (goal["at_most"].as_f64(), goal["at_least"].as_f64()) {
            (Some(bound), None) => measured <= bound,
            (None, Some(bound)) => measured >= bound,
            _ => panic!("one bound is needed: {goal:#}"),
        };
        assert_eq!(goal["met"].as_bool(), Some(met), "{goal:#}");
    }
}

#[test]
fn where_all_is_udp_only_goals_of_udp_are_judged() {
    let output = ubiverbs(&["bench", "--quick", "--link", "udp", "--only", "latency,send", "--json", "-"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let document = document(&output);
    assert!(rows(&document).iter().all(|row| row.1 == "tcp" || row.3 == "udp"));
    let goals = document["goals"].as_array().expect("a list");
    let measured: Vec<_> = goals.iter().filter(|goal| !goal["met"].is_null()).map(|goal| &goal["name"]).collect();
    assert_eq!(measured, ["udp_latency"]);
}

#[test]
fn a_file_that_cannot_be_written_is_known_before_anything_is_measured() {
    let directory = scratch("");
    for option in ["--json", "--html", "--svg"] {
        for path in ["/nonexistent/bench", directory.to_str().expect("text")] {
            let began = std::time::Instant::now();
            let output = ubiverbs(&["bench", option, path, "--time", "60"]);
            assert_eq!(code(&output), 1);
            assert!(stderr(&output).contains(&format!("cannot write {path}")), "{}", stderr(&output));
            assert!(began.elapsed().as_secs() < 30, "it measured");
        }
    }
}

#[test]
fn a_page_of_another_day_is_kept_if_nothing_can_be_measured() {
    let page = scratch("kept.html");
    fs::write(&page, "of another day").expect("written");
    let output = ubiverbs(&["bench", "--html", page.to_str().expect("text"), "--connect", "127.0.0.1:1"]);
    assert_eq!(code(&output), 1);
    assert_eq!(fs::read_to_string(&page).expect("there"), "of another day");
}

#[test]
fn standard_output_takes_a_page_or_a_picture_but_not_both() {
    let little = ["bench", "--only", "latency,send", "--sizes", "8", "--time", "0.003"];
    let page = stdout(&ubiverbs(&[&little[..], &["--html", "-"]].concat()));
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "{page}");
    let picture = stdout(&ubiverbs(&[&little[..], &["--svg", "-"]].concat()));
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"), "{picture}");
    let both = ubiverbs(&[&little[..], &["--html", "-", "--svg", "-"]].concat());
    assert_eq!((code(&both), stdout(&both)), (2, String::new()));
}

#[test]
fn nobody_is_left_behind_by_a_benchmark_that_is_killed() {
    let mut server = Running::start(&["bench", "--server", "127.0.0.1:0"]);
    let place = server.line_with("Waiting on").split_whitespace().nth(2).expect("an address").to_owned();
    let caller = Running::start(&["bench", "--connect", &place]);
    let line = server.line_with("alice is process");
    let caller_process: u32 =
        line.split("alice is process ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).expect("a number");
    caller.kill();
    await_death(caller_process);
    let (code, errors) = server.end_within(std::time::Duration::from_secs(30));
    assert_eq!(code, Some(1), "{errors}");
}

/// Whether every element that is opened is closed, in order, and every attribute quoted.
fn well_formed(text: &str) -> Result<(), String> {
    let mut open = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let end = rest[at..].find('>').ok_or("a tag does not end")? + at;
        let tag = &rest[at + 1..end];
        if !tag.matches('"').count().is_multiple_of(2) || tag.contains('<') {
            return Err(format!("quotes in <{tag}>"));
        }
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> closes something else"));
            }
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap_or_default());
        }
        rest = &rest[end + 1..];
    }
    if open.is_empty() { Ok(()) } else { Err(format!("{open:?} are never closed")) }
}
