//! Failure scripts under an ordinary C program: what it hears is what hardware that broke would tell it, the report says
//! what struck, and the same seed strikes the same.

use crate::library::{self, Link, alone, compile, on_link};
use crate::programs::gpu_driver;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a run said.
struct Run {
    stdout: String,
    stderr: String,
    report: Vec<String>,
}

/// A file of this test's own.
fn own_file(name: &str) -> PathBuf {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("ubiverbs-script-{}-{number}-{name}", std::process::id()))
}

/// Runs the program under a script, which must end well.
fn run_with(link: Link, script: &str, what: &str, environment: &[(&str, &str)]) -> Run {
    run_program(link, "scripts.c", script, what, environment)
}

fn run_program(link: Link, source: &str, script: &str, what: &str, environment: &[(&str, &str)]) -> Run {
    let program = compile("cc", source);
    let (file, report) = (own_file("script.toml"), own_file("report.json"));
    std::fs::write(&file, script).unwrap();
    let output = {
        let _turn = alone();
        let mut command = on_link(link, program);
        command.args(what.split(' ')).env("UBIVERBS_SCRIPT", &file).env("UBIVERBS_SCRIPT_REPORT", &report);
        command.envs(environment.iter().copied()).output().unwrap()
    };
    assert!(output.status.success(), "{script}\n{}", library::show(what, &output));
    let lines = std::fs::read_to_string(&report).unwrap_or_default();
    std::fs::remove_file(file).unwrap();
    let _ = std::fs::remove_file(report);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Run {
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
        report: lines.lines().map(str::to_owned).collect(),
    }
}

fn run(script: &str, what: &str) -> Run {
    run_with(Link::SharedMemory, script, what, &[])
}

/// The lines about one thing, without its name.
fn lines<'a>(run: &'a Run, about: &str) -> Vec<&'a str> {
    run.stdout.lines().filter_map(|line| line.strip_prefix(about)).collect()
}

#[test]
fn memory_is_refused_the_third_time() {
    let script = "[[failure]]\ncall = 'ibv_reg_mr'\nnth = 3\ndo = 'fail'\nerrno = 'ENOMEM'\n";
    let run = run_with(Link::SharedMemory, script, "registers", &[("UBIVERBS_LOG", "errors")]);
    assert_eq!(lines(&run, "ibv_reg_mr "), ["1: fine", "2: fine", "3: Cannot allocate memory", "4: fine", "5: fine"]);
    let [strike] = &run.report[..] else { panic!("{:?}", run.report) };
    for part in ["\"line\":4", "\"do\":\"fail\"", "\"what\":\"fail (ENOMEM)\"", "\"struck\":\"ibv_reg_mr\"", "\"pid\":"]
    {
        assert!(strike.contains(part), "{strike}");
    }
    let (injected, refused) =
        ("injected by line 4 of ", "ibv_reg_mr fails: Cannot allocate memory (os error 12): injected by");
    assert!(run.stderr.contains(injected) && run.stderr.contains(refused), "{}", run.stderr);
}

#[test]
fn a_call_takes_its_time() {
    let run = run("[[failure]]\ncall = 'ibv_reg_mr'\nnth = 2\ndo = 'delay'\nby = '2s'\n", "registers");
    assert_eq!(lines(&run, "ibv_reg_mr "), ["1: fine", "2: fine, late", "3: fine", "4: fine", "5: fine"]);
}

#[test]
fn a_completion_fails_as_on_hardware_and_the_rest_is_flushed() {
    let script = "[[failure]]\nafter = { messages = 3 }\nqueue-pair = { order = 1 }\ndo = 'complete'\nstatus = 12\nvendor = 129\n";
    for link in [Link::SharedMemory, Link::Udp] {
        let run = run_with(link, script, "sends 8 3", &[]);
        let sends = lines(&run, "send ");
        assert_eq!(sends[..3], ["1: status 0 vendor 0", "2: status 0 vendor 0", "3: status 12 vendor 129"]);
        assert_eq!(sends.len(), 8, "{}", run.stdout);
        assert!(sends[3..].iter().all(|line| line.contains("status 5 ")), "{}", run.stdout);
        // Its peer knows nothing of it.
        assert!(lines(&run, "receive ").iter().all(|line| line.ends_with("status 0 vendor 0")), "{}", run.stdout);
        assert_eq!((lines(&run, "a state "), lines(&run, "b state ")), (vec!["6"], vec!["3"]));
        assert_eq!(run.report.len(), 1);
    }
}

#[test]
fn a_status_strikes_work_that_can_have_it() {
    let complete =
        |status: &str| format!("[[failure]]\nafter = {{ messages = 3 }}\ndo = 'complete'\nstatus = '{status}'\n");
    for link in [Link::SharedMemory, Link::Udp] {
        // A requester's: receives pass, and do not count.
        let run = run_with(link, &complete("REM_ACCESS_ERR"), "sends 8 3", &[]);
        assert_eq!(lines(&run, "send ")[2], "3: status 10 vendor 136", "{}", run.stdout);
        assert!(lines(&run, "receive ").iter().all(|line| line.contains("status 0 ")), "{}", run.stdout);
        // A responder's.
        let run = run_with(link, &complete("LOC_ACCESS_ERR"), "sends 2 8", &[]);
        assert_eq!(lines(&run, "receive ")[1..3], ["2: status 0 vendor 0", "3: status 8 vendor 0"], "{}", run.stdout);
        assert!(lines(&run, "receive ")[3..].iter().all(|line| line.contains("status 5 ")), "{}", run.stdout);
        assert_eq!(lines(&run, "b state "), ["6"]);
    }
}

#[test]
fn a_copy_of_gpu_memory_fails() {
    let driver = gpu_driver().display().to_string();
    for link in [Link::SharedMemory, Link::Udp] {
        let run = run_program(link, "gpu.c", "[[failure]]\ndo = 'gpu-copy-fails'\n", &format!("{driver} struck"), &[]);
        let [strike] = &run.report[..] else { panic!("{:?}", run.report) };
        assert!(strike.contains("\"do\":\"gpu-copy-fails\"") && strike.contains("\"phase\":\"begin\""), "{strike}");
    }
}

#[test]
fn an_unreliable_send_that_fails_stops_the_send_queue_only() {
    let script = "[[failure]]\nqueue-pair = { order = 1 }\ndo = 'complete'\nstatus = 'LOC_PROT_ERR'\n";
    let run = run(script, "unreliable 8 0");
    assert_eq!(lines(&run, "send ")[0], "1: status 4 vendor 81");
    assert_eq!((lines(&run, "a state "), lines(&run, "b state ")), (vec!["5"], vec!["3"]));
}

#[test]
fn a_lost_completion_is_only_lost() {
    let run =
        run("[[failure]]\nafter = { messages = 2 }\nqueue-pair = { order = 1 }\ndo = 'lose-completion'\n", "sends 7 8");
    let sends: Vec<String> = [1, 3, 4, 5, 6, 7, 8].map(|id| format!("{id}: status 0 vendor 0")).to_vec();
    assert_eq!(lines(&run, "send "), sends);
    assert_eq!(lines(&run, "receive ").len(), 8);
    assert_eq!((lines(&run, "a state "), lines(&run, "event ")), (vec!["3"], vec![]));
}

#[test]
fn a_late_completion_holds_back_those_behind_it() {
    let script =
        "[[failure]]\nafter = { messages = 7 }\nqueue-pair = { order = 1 }\ndo = 'delay-completion'\nby = '2s'\n";
    let run = run(script, "sends");
    let sends = lines(&run, "send ");
    assert_eq!(sends[6..], ["7: status 0 vendor 0, late", "8: status 0 vendor 0, late"], "{}", run.stdout);
    assert!(sends[..6].iter().all(|line| !line.ends_with("late")), "{}", run.stdout);
}

#[test]
fn a_queue_pair_breaks_with_its_event() {
    let run =
        run("[[failure]]\nafter = { messages = 4 }\nqueue-pair = { order = 1 }\ndo = 'qp-error'\n", "sends 8 0 1");
    // IBV_EVENT_QP_FATAL, and IBV_QPS_ERR.
    assert_eq!((lines(&run, "event "), lines(&run, "a state ")), (vec!["1"], vec!["6"]), "{}", run.stdout);
    assert!(lines(&run, "send ").iter().any(|line| line.contains("status 5 ")), "{}", run.stdout);
    assert!(run.report[0].contains("\"struck\":\"queue pair "), "{}", run.report[0]);
}

#[test]
fn events_come_without_a_cause() {
    // A completion queue that dies takes its queue pairs along: IBV_EVENT_QP_FATAL of both.
    let dies = ["0", "1", "1"];
    for (what, events) in [("path-migrated", &["6"][..]), ("path-migration-failed", &["7"]), ("cq-overrun", &dies)] {
        let script = format!("[[failure]]\nafter = {{ messages = 8 }}\ndo = '{what}'\n");
        let run = run(&script, "sends 0 0 1");
        assert_eq!(lines(&run, "event "), events, "{what}: {}", run.stdout);
    }
}

#[test]
fn what_cannot_be_struck_is_reported() {
    let run = run("[[failure]]\ndo = 'srq-error'\n[[failure]]\ndo = 'qp-sqe'\n", "sends");
    assert_eq!(run.report.len(), 2);
    assert!(run.report[0].contains("\"missed\":\"no shared receive queue fits here\""), "{:?}", run.report);
    assert!(run.report[1].contains("\"missed\":\"no queue pair is unreliable and may send here\""), "{:?}", run.report);
}

#[test]
fn the_same_seed_strikes_the_same() {
    let script = "[[failure]]\ncall = 'ibv_reg_mr'\nrate = '30%'\ndo = 'fail'\nerrno = 'ENOMEM'\n";
    let refused = |seed: &str| {
        let run = run_with(Link::SharedMemory, script, "registers 20", &[("UBIVERBS_SCRIPT_SEED", seed)]);
        let refused = run.stdout.matches("Cannot allocate").count();
        assert!((1..20).contains(&refused) && run.report.len() == refused, "{}", run.stdout);
        run.stdout
    };
    assert_eq!(refused("7"), refused("7"));
    assert_ne!(refused("7"), refused("8"));
}

#[test]
fn a_child_and_a_program_that_it_becomes_meet_the_script_anew() {
    let script = "[[failure]]\ncall = 'ibv_reg_mr'\nnth = 3\ndo = 'fail'\nerrno = 'ENOMEM'\n";
    let run = run(script, "forks");
    let refused = "3: Cannot allocate memory";
    let expected = [
        &["1: fine", "2: fine", refused][..],
        &["1: fine", "2: fine", refused],
        &["1: fine", "2: fine", refused, "4: fine", "5: fine"],
        &["1: fine", "2: fine"],
    ];
    assert_eq!(lines(&run, "ibv_reg_mr "), expected.concat());
    assert_eq!(run.report.len(), 3);
}

#[test]
fn a_device_that_is_closed_and_opened_again_leaves_nothing_behind() {
    let script =
        "[[failure]]\nafter = { messages = 3 }\nqueue-pair = { order = 1 }\ndo = 'delay-completion'\nby = '30s'\n";
    let run = run(script, "closes 2 8");
    assert_eq!(lines(&run, "send ").len(), 2 + 8, "{}", run.stdout);
}

#[test]
fn two_scripts_run_side_by_side_and_a_bad_one_is_named() {
    let program = compile("cc", "scripts.c");
    let (one, other, bad) = (own_file("one.toml"), own_file("other.toml"), own_file("bad.toml"));
    std::fs::write(&one, "[[failure]]\ncall = 'ibv_reg_mr'\ndo = 'fail'\nerrno = 'ENOMEM'\n").unwrap();
    std::fs::write(&other, "[[failure]]\ncall = 'ibv_reg_mr'\nnth = 2\ndo = 'fail'\nerrno = 'EFAULT'\n").unwrap();
    std::fs::write(&bad, "[[failure]]\ndo = 'port-dwon'\n").unwrap();
    let all = [&one, &other, &bad].map(|path| path.display().to_string()).join(":");
    let output = {
        let _turn = alone();
        on_link(Link::SharedMemory, program).arg("registers").env("UBIVERBS_SCRIPT", &all).output().unwrap()
    };
    let said = library::show("two scripts", &output);
    assert!(
        said.contains("ibv_reg_mr 1: Cannot allocate memory") && said.contains("ibv_reg_mr 2: Bad address"),
        "{said}"
    );
    assert!(said.contains("bad.toml: line 2: \"port-dwon\" is no failure"), "{said}");
    assert!(said.contains("did you mean port-down?"), "{said}");
    [one, other, bad].iter().for_each(|file| std::fs::remove_file(file).unwrap());
}
