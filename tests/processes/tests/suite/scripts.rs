//! Failure scripts under one of two processes: what its network, its connection manager or the process itself loses, holds
//! back or doubles. Checked by what both programs see, and by the report.

use stage::{Other, turn};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The program that is each of the two.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

const LINKS: [(&str, &str); 2] = [("shared", "shared memory"), ("udp", "UDP")];

/// Which process meets the script.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Struck {
    Client,
    Server,
}
use Struck::{Client, Server};

/// Messages: how many, how long, how many at a time.
type Messages = (usize, usize, usize);

/// What both processes said, in milliseconds where it is a time.
#[derive(Debug)]
struct Seen {
    connected: u64,
    all_sent: u64,
    longest: u64,
    retries: u64,
    duplicates: u64,
    out_of_sequence: u64,
    ended: u64,
    report: Vec<String>,
}

impl Seen {
    /// How often the report says this of the first failure.
    fn told(&self, phase: &str) -> usize {
        self.report.iter().filter(|line| line.contains(&format!("\"phase\":\"{phase}\""))).count()
    }
}

/// A file of this test's own.
fn own_file(kind: &str) -> PathBuf {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("ubiverbs-two-and-a-script-{}-{number}.{kind}", std::process::id()))
}

/// Sends messages from the client to the server, of which one meets the script.
fn play(link: (&str, &str), struck: Struck, script: &str, (count, length, window): Messages) -> Seen {
    let (file, report) = (own_file("toml"), own_file("json"));
    std::fs::write(&file, script).unwrap();
    let start = |who: Struck, arguments: String| {
        let mut command = Command::new(PEER);
        command.args(["scripts", &arguments]).env("UBIVERBS_LINK", link.0);
        if who == struck {
            command.env("UBIVERBS_SCRIPT", &file).env("UBIVERBS_SCRIPT_REPORT", &report);
        }
        Other::start(&mut command)
    };
    let mut server = start(Server, format!("server {count} {length}"));
    let [port] = server.hear("listening ")[..] else { panic!("a port") };
    let mut client = start(Client, format!("client 127.0.0.1:{port} {count} {length} {window}"));
    assert_eq!(server.hear_text("link "), link.1);
    server.hear("ready ");
    let [connected] = client.hear("connected ")[..] else { panic!("a time") };
    writeln!(client.stdin).unwrap();
    let [all_sent, longest, retries] = client.hear("sent ")[..] else { panic!("three numbers") };
    let [received, duplicates, out_of_sequence] = server.hear("received ")[..] else { panic!("three numbers") };
    assert_eq!(received as usize, count);
    let [ended] = client.hear("ended ")[..] else { panic!("a time") };
    server.hear("closed ");
    assert!(client.child.wait().unwrap().success() && server.child.wait().unwrap().success());
    let lines = std::fs::read_to_string(&report).unwrap_or_default();
    for file in [file, report] {
        let _ = std::fs::remove_file(file);
    }
    let report: Vec<String> = lines.lines().map(str::to_owned).collect();
    assert!(!report.is_empty(), "nothing struck");
    Seen { connected, all_sent, longest, retries, duplicates, out_of_sequence, ended, report }
}

/// On both links.
fn each_link(struck: Struck, script: &str, messages: Messages, check: impl Fn(&Seen) -> bool) {
    let _turn = turn();
    for link in LINKS {
        let seen = play(link, struck, script, messages);
        assert!(check(&seen), "{}: {script}\n{seen:#?}", link.1);
    }
}

#[test]
fn messages_come_later() {
    let script = "[[failure]]\ndo = 'latency'\nby = '20ms'\njitter = '1ms'\n";
    each_link(Server, script, (12, 4096, 1), |seen| seen.all_sent >= 200 && seen.told("begin") == 1);
}

#[test]
fn no_more_than_the_limit_arrives() {
    // 1 MiB at a MB in a second.
    let script = "[[failure]]\ndo = 'rate-limit'\nspeed = '8M'\n";
    each_link(Server, script, (64, 16384, 1), |seen| seen.all_sent >= 700 && seen.told("begin") == 1);
}

#[test]
fn what_is_lost_or_damaged_is_sent_again() {
    for what in ["loss", "damage"] {
        let script = format!("[[failure]]\nafter = {{ messages = 4 }}\nfor = '300ms'\ndo = '{what}'\nchance = '40%'\n");
        each_link(Server, &script, (60, 8192, 4), |seen| seen.retries > 0 && seen.told("begin") == 1);
    }
}

#[test]
fn what_comes_twice_is_done_once() {
    let script = "[[failure]]\ndo = 'duplicate'\nchance = '50%'\n";
    each_link(Server, script, (60, 8192, 4), |seen| seen.duplicates > 0 && seen.told("begin") == 1);
}

#[test]
fn what_is_overtaken_comes_in_order() {
    let script = "[[failure]]\nfor = '300ms'\ndo = 'reorder'\nchance = '30%'\n";
    each_link(Server, script, (100, 4096, 8), |seen| seen.out_of_sequence > 0 && seen.told("begin") == 1);
}

#[test]
fn a_black_hole_swallows_one_way() {
    let hole = |direction: &str| {
        format!(
            "[[failure]]\nafter = {{ messages = 5 }}\nfor = '200ms'\ndo = 'black-hole'\ndirection = '{direction}'\n"
        )
    };
    let is_late = |seen: &Seen| seen.longest >= 150 && seen.retries > 0 && seen.told("end") == 1;
    // What is lost on the way there never came.
    each_link(Server, &hole("in"), (10, 4096, 1), |seen| is_late(seen) && seen.duplicates == 0);
    // What was answered in vain comes again.
    each_link(Server, &hole("out"), (10, 4096, 1), |seen| is_late(seen) && seen.duplicates > 0);
    each_link(Client, &hole("out"), (10, 4096, 1), |seen| is_late(seen) && seen.duplicates == 0);
}

#[test]
fn a_process_stops_and_goes_on() {
    let script = "[[failure]]\nafter = { messages = 5 }\nfor = '200ms'\ndo = 'stop'\n";
    each_link(Server, script, (10, 4096, 1), |seen| {
        seen.longest >= 150 && (seen.told("begin"), seen.told("end")) == (1, 1)
    });
    let script = "[[failure]]\nafter = { messages = 5 }\ndo = 'continue'\n";
    each_link(Server, script, (10, 4096, 1), |seen| seen.report[0].contains("\"struck\":\"the process\""));
}

#[test]
fn what_is_written_into_a_process_counts_there() {
    // Nothing is sent or received by the target's program.
    let script = "[[failure]]\nafter = { messages = 6 }\ndo = 'latency'\nby = '20ms'\n";
    let _turn = turn();
    for link in LINKS {
        let (file, report) = (own_file("toml"), own_file("json"));
        std::fs::write(&file, script).unwrap();
        let mut command = Command::new(PEER);
        command.env("UBIVERBS_SCRIPT", &file).env("UBIVERBS_SCRIPT_REPORT", &report);
        let mut target = Other::start(command.args(["scripts", "target"]).env("UBIVERBS_LINK", link.0));
        let [port] = target.hear("listening ")[..] else { panic!("a port") };
        let writer = format!("writer 127.0.0.1:{port} 20");
        let mut writer = Other::start(Command::new(PEER).args(["scripts", &writer]).env("UBIVERBS_LINK", link.0));
        writeln!(writer.stdin, "{}", target.hear_text("slice ")).unwrap();
        let [all_sent] = writer.hear("sent ")[..] else { panic!("a time") };
        target.hear("closed ");
        let told = std::fs::read_to_string(&report).unwrap_or_default();
        [file, report].iter().for_each(|file| drop(std::fs::remove_file(file)));
        assert!(told.lines().count() == 1 && all_sent >= 200, "{}: {all_sent} ms\n{told}", link.1);
    }
}

#[test]
fn messages_of_the_connection_manager_that_are_lost_are_sent_again() {
    for (struck, message) in [(Client, "REQ"), (Server, "REP"), (Client, "RTU"), (Client, "DREQ")] {
        let script = format!("[[failure]]\ndo = 'lose-message'\nmessage = '{message}'\n");
        each_link(struck, &script, (4, 64, 1), |seen| {
            let waited = match message {
                "REQ" | "REP" => seen.connected >= 100,
                "DREQ" => seen.ended >= 100,
                // The first message says that the connection stands.
                _ => true,
            };
            waited && seen.told("begin") == 1 && seen.report[0].contains("\"struck\":\"connection 1\"")
        });
    }
}
