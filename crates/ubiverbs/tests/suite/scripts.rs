//! Failure scripts under a program that uses this API: its calls fail or take their time, and it hears of what happens to
//! ports and devices. A script is for a process, so the test runs itself again as the program.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use ubiverbs::cm;
use ubiverbs::{Access, AsyncEvent, Error, Reliable, connected_pair};

const PROGRAM_VARIABLE: &str = "UBIVERBS_TEST_PROGRAM";

/// Whether this process is the program of this test.
fn is_program() -> bool {
    std::env::var_os(PROGRAM_VARIABLE).is_some()
}

/// Runs the test again, as the program, under scripts. Returns what it said and what was reported.
fn under(test: &str, scripts: &[&str]) -> (Vec<String>, Vec<String>) {
    let file = |kind: &str| -> PathBuf {
        std::env::temp_dir().join(format!("ubiverbs-rust-script-{}-{test}.{kind}", std::process::id()))
    };
    let paths: Vec<PathBuf> = (0..scripts.len()).map(|number| file(&format!("{number}.toml"))).collect();
    paths.iter().zip(scripts).for_each(|(path, script)| std::fs::write(path, script).unwrap());
    let all = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":");
    let report = file("json");
    let _ = std::fs::remove_file(&report);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([&format!("scripts::{test}"), "--exact", "--nocapture", "--test-threads=1"])
        .env(PROGRAM_VARIABLE, "1");
    command.env("UBIVERBS_SCRIPT", &all).env("UBIVERBS_SCRIPT_REPORT", &report);
    let output = command.output().unwrap();
    let (said, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{stderr}");
    let reported = std::fs::read_to_string(&report).unwrap_or_default();
    paths.iter().chain([&report]).for_each(|file| drop(std::fs::remove_file(file)));
    let said = said.lines().filter_map(|line| line.split_once("> ")).map(|(_, line)| line.to_owned());
    (said.collect(), reported.lines().map(str::to_owned).collect())
}

/// Says how a call ended, and whether it took its time.
fn say<T, E: Display>(call: &str, made: impl FnOnce() -> Result<T, E>) -> Option<T> {
    const LATE_AFTER: Duration = Duration::from_millis(1500);
    let begun = Instant::now();
    let made = made();
    let late = if begun.elapsed() > LATE_AFTER { ", late" } else { "" };
    match made {
        Ok(made) => {
            println!("> {call}: fine{late}");
            Some(made)
        }
        Err(error) => {
            println!("> {call}: {error}{late}");
            None
        }
    }
}

fn calls() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    for _ in 0..3 {
        say("share", || pd.share(8, Access::REMOTE_READ));
    }
    let cq = say("completion queue", || context.completion_queue(16).create()).unwrap();
    for _ in 0..2 {
        say("queue pair", || pd.queue_pair::<Reliable>(&cq).prepare());
    }
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let received = b.recv(pd.allocate(8)?)?;
    // A call that fails has posted nothing.
    say("send", || a.send_inline(b"lost"));
    say("send", || a.send_inline(b"comes")).unwrap().wait()?;
    assert_eq!(received.wait()?.payload(), b"comes");
    let buffer = pd.allocate(8)?;
    say("receive", || b.recv(buffer));
    say("connect", || cm::connect("127.0.0.1:1").wait());
    Ok(())
}

#[test]
fn calls_of_a_program_fail_and_take_their_time() {
    if is_program() {
        return calls().unwrap();
    }
    let (said, report) = under(
        "calls_of_a_program_fail_and_take_their_time",
        &["[[failure]]\ncall = 'ibv_reg_mr'\nnth = 2\ndo = 'fail'\nerrno = 'ENOMEM'\n\
         [[failure]]\ncall = 'ibv_create_cq'\ndo = 'delay'\nby = '2s'\n\
         [[failure]]\ncall = 'ibv_create_qp'\ndo = 'fail'\nerrno = 'ENOSPC'\n\
         [[failure]]\ncall = 'ibv_modify_qp'\ndo = 'delay'\nby = '1ms'\n\
         [[failure]]\ncall = 'ibv_post_send'\ndo = 'fail'\nerrno = 'EAGAIN'\n\
         [[failure]]\ncall = 'ibv_post_recv'\nnth = 2\ndo = 'fail'\nerrno = 'ENOMEM'\n\
         [[failure]]\ncall = 'rdma_resolve_addr'\ndo = 'fail'\nerrno = 'ENODEV'\n"],
    );
    let expected = [
        ("share: fine", ""),
        ("share: cannot register 8 bytes: ibv_reg_mr fails: Cannot allocate memory", "fail (ENOMEM)"),
        ("share: fine", ""),
        ("completion queue: fine, late", ""),
        ("queue pair: cannot create a queue pair: ibv_create_qp fails: No space left on device", "fail (ENOSPC)"),
        ("queue pair: fine", ""),
        ("send: the call fails with errno 11: injected by line 20 of a failure script", ""),
        ("send: fine", ""),
        ("receive: the call fails with errno 12: injected by line 25 of a failure script", ""),
        ("connect: ", "rdma_resolve_addr fails: No such device"),
    ];
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    for (said, (begins, has)) in said.iter().zip(expected) {
        assert!(said.starts_with(begins) && said.contains(has), "{said}\nexpected {begins} … {has}");
    }
    let struck = |call: &str| report.iter().any(|line| line.contains(&format!("\"struck\":\"{call}\"")));
    assert_eq!(report.len(), 7, "{report:#?}");
    for call in ["ibv_reg_mr", "ibv_create_cq", "ibv_create_qp", "ibv_modify_qp", "ibv_post_send", "rdma_resolve_addr"]
    {
        assert!(struck(call), "{call}: {report:#?}");
    }
}

fn events() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let _shared = pd.shared_receive_queue(4)?;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match context.poll_event() {
            Some(AsyncEvent::SharedReceiveQueueError(_)) => println!("> SharedReceiveQueueError"),
            Some(event) => println!("> {event:?}"),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        // A device that has failed makes nothing any more.
        if let Err(error) = pd.share(8, Access::REMOTE_READ) {
            println!("> {error}");
            break;
        }
        assert!(Instant::now() < deadline, "the device never failed");
    }
    while let Some(event) = context.poll_event() {
        println!("> {event:?}");
    }
    Ok(())
}

#[test]
fn what_happens_to_ports_and_devices_is_heard_of() {
    if is_program() {
        return events().unwrap();
    }
    let mut script = String::new();
    let failures = [
        ("lid-change", "lid = 7"),
        ("pkey-change", "pkey = 0x8001"),
        ("sm-change", ""),
        ("client-reregister", ""),
        ("link-speed", "speed = '25G'"),
        ("gid-remove", "index = 0"),
        ("srq-error", ""),
        ("device-fatal", ""),
    ];
    for (at, (what, keys)) in (1..).zip(failures) {
        script += &format!("[[failure]]\nat = '{}ms'\ndo = '{what}'\n{keys}\n", 100 * at);
    }
    let (said, report) = under("what_happens_to_ports_and_devices_is_heard_of", &[&script]);
    let expected = [
        "LidChange",
        "PkeyChange",
        "SubnetManagerChange",
        "ClientReregister",
        "SpeedChange",
        "GidChange",
        "SharedReceiveQueueError",
    ];
    assert_eq!(said[..7.min(said.len())], expected, "{said:#?}\n{report:#?}");
    let rest: Vec<&str> = said[7..].iter().map(String::as_str).collect();
    assert!(rest.contains(&"DeviceFatal"), "{said:#?}");
    assert!(rest.iter().any(|line| line.contains("the device has failed")), "{said:#?}");
    assert_eq!(report.len(), failures.len(), "{report:#?}");
}

/// Says what becomes of the port until it is up again, or has been down for a second and a half.
fn port() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let mut deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        match context.poll_event() {
            Some(AsyncEvent::PortError) => {
                println!("> down");
                deadline = Instant::now() + Duration::from_millis(1500);
            }
            Some(event) => {
                println!("> {event:?}");
                break;
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    println!("> active: {}", context.port().active);
    Ok(())
}

#[test]
fn a_port_is_up_when_the_last_script_has_ended_unless_it_says_otherwise() {
    if is_program() {
        return port().unwrap();
    }
    let test = "a_port_is_up_when_the_last_script_has_ended_unless_it_says_otherwise";
    let script =
        |end: &str, more: &str| format!("end = '{end}'\n{more}\n[[failure]]\nat = '100ms'\ndo = 'port-down'\n");
    let (one, other, left) = (script("200ms", ""), script("500ms", ""), script("200ms", "restore = false"));
    let (said, report) = under(test, &[&one, &other]);
    assert_eq!(said, ["down", "PortActive", "active: true"]);
    assert_eq!(report.iter().filter(|line| line.contains("\"phase\":\"end\"")).count(), 2, "{report:#?}");
    let (said, report) = under(test, &[&one, &left]);
    assert_eq!(said, ["down", "active: false"]);
    assert_eq!(report.iter().filter(|line| line.contains("\"phase\":\"end\"")).count(), 1, "{report:#?}");
}
