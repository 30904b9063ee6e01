//! How fast one process writes to another: as fast as it may, when its program sets a limit, and when the network says
//! that it is congested. Over UDP and through shared memory. The other process: `stage/rates.rs`.

use hca::Notify;
use stage::{End, Other, poll, turn};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use transport::{Modify, Operation, RateLimit, Remote, Status};
use wire::{Key, Qpn};

/// The program that is the other process.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

const MIB: u32 = 1 << 20;

const LINKS: [&str; 2] = ["udp", "shared memory"];

/// Two processes that are connected.
struct Pair {
    end: End,
    other: Other,
    remote: Remote,
}

impl Pair {
    fn new(link: &str, environment: &[(&str, &str)]) -> Pair {
        Pair::with(if link == "udp" { End::over_udp() } else { End::new() }, link, environment)
    }

    fn with(end: End, link: &str, environment: &[(&str, &str)]) -> Pair {
        let mut other = Other::start(Command::new(PEER).args(["rates", link]).envs(environment.iter().copied()));
        let [qpn, address, key] = other.hear("here ")[..] else { panic!("three numbers") };
        writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
        end.connect(Qpn::new(qpn as u32));
        other.hear("connected ");
        Pair { end, other, remote: Remote { address, key: Key::new(key as u32) } }
    }

    /// Writes until every packet comes to the other process itself. Faults strike what a process gets from the network:
    /// the first packets over UDP may come to this process, which passes them on unmarked.
    fn settle(&mut self) {
        let begun = Instant::now();
        let (mut clean, mut before) = (0, 0);
        while clean < 3 {
            assert!(begun.elapsed() < Duration::from_secs(60), "packets are still passed on");
            self.write(1, true);
            let (marked, _) = self.counts();
            clean = if marked - before >= 256 { clean + 1 } else { 0 };
            before = marked;
        }
    }

    fn limit(&self, limit: RateLimit) {
        self.end.qp.modify(&self.end.nic, &Modify { rate_limit: Some(limit), ..Modify::default() }).unwrap();
    }

    /// WRITEs so many mebibytes. A program that does not poll wants to be told of completions, and the engine drives.
    fn write(&self, count: usize, polls: bool) -> Duration {
        let begun = Instant::now();
        if !polls {
            self.end.cq.arm(Notify::Any);
        }
        for _ in 0..count {
            assert!(self.end.post(Operation::Write { remote: self.remote, immediate: None }, MIB));
        }
        let mut left = count;
        while left > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{left} of {count} did not complete");
            if !polls && self.end.cq.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            } else if let Some(completion) = poll(&self.end) {
                assert_eq!(completion.status, Status::Success);
                left -= 1;
                if !polls {
                    self.end.cq.arm(Notify::Any);
                }
            }
        }
        begun.elapsed()
    }

    /// Packets that came marked to the other process, and the notifications it has sent.
    fn counts(&mut self) -> (u64, u64) {
        writeln!(self.other.stdin).unwrap();
        let [marked, notified, _] = self.other.hear("counts ")[..] else { panic!("three numbers") };
        (marked, notified)
    }
}

#[test]
fn a_limit_holds_over_both_links_whoever_drives() {
    let _turn = turn();
    for link in LINKS {
        for polls in [true, false] {
            let pair = Pair::new(link, &[]);
            // Once to get to know each other.
            pair.write(1, true);
            // So slow a rate that a busy machine, where threads wait for a processor, is quicker without it.
            let rate = RateLimit::kbps(50_000);
            let expected = Duration::from_nanos(4 * 256 * (4096 + 58) * 8 * 20);
            // Nor is every round on time there: one is.
            let mut rounds = Vec::new();
            while rounds.len() < 20 && rounds.last().is_none_or(|took| *took > expected * 2) {
                pair.limit(rate);
                let took = pair.write(4, polls);
                assert!(took + Duration::from_millis(3) > expected, "{took:?} over {link}, polls: {polls}");
                rounds.push(took);
            }
            assert!(rounds.len() < 20, "{rounds:?}, not {expected:?}, over {link}, polls: {polls}");
            pair.limit(RateLimit::default());
            let free: Vec<_> = (0..20).map(|_| pair.write(4, polls)).take_while(|took| *took > expected / 2).collect();
            assert!(free.len() < 20, "{free:?} without a limit over {link}, polls: {polls}");
            pair.end.nic.destroy_qp(&pair.end.qp);
        }
    }
}

#[test]
fn marked_packets_are_answered_and_slow_their_sender_down() {
    let _turn = turn();
    for link in LINKS {
        let capture = std::env::temp_dir().join(format!("ubiverbs-rates-{}-{}.pcapng", std::process::id(), link.len()));
        let _ = std::fs::remove_file(&capture);
        let environment = [("UBIVERBS_FAULTS", "mark=100%"), ("UBIVERBS_PCAP", capture.to_str().unwrap())];
        let mut pair = Pair::new(link, &environment);
        pair.settle();
        let (marked_before, notified_before) = pair.counts();
        let took = pair.write(8, true);
        let believed = pair.end.qp.counters().incidents.cnps_handled;
        let (marked, notified) = pair.counts();
        let (marked, answered) = (marked - marked_before, notified - notified_before);
        assert!(marked >= 8 * 256, "{marked} packets were marked");
        let possible = took.as_micros() as u64 / 50 + 2;
        assert!((5..=possible).contains(&answered), "{answered} notifications in {took:?}");
        assert!(believed > 0 && believed <= notified, "{believed} of {notified}");
        // How slow it becomes is the simulator's to say: a process that waits for a processor notifies too seldom. If
        // this one waits for one just now, the last notification is forgotten.
        let slowed = |rate: Option<u64>| rate.is_some_and(|rate| rate < 100_000_000_000);
        let mut rounds = 0..20;
        while !slowed(pair.end.qp.congested_rate(pair.end.nic.now())) {
            assert!(rounds.next().is_some(), "not slowed down over {link}");
            pair.write(8, true);
        }
        let (_, notified) = pair.counts();
        pair.end.nic.destroy_qp(&pair.end.qp);
        // It writes the rest of its capture when it ends in peace.
        let Pair { mut other, .. } = pair;
        drop(std::mem::replace(&mut other.stdin, idle()));
        assert!(other.child.wait().unwrap().success());
        look_at(&capture, notified);
        std::fs::remove_file(capture).unwrap();
    }
}

#[test]
fn a_sender_with_the_switch_off_hears_of_congestion_and_does_not_slow_down() {
    let _turn = turn();
    for link in LINKS {
        let end = End::ignoring_congestion(link == "udp");
        let mut pair = Pair::with(end, link, &[("UBIVERBS_FAULTS", "mark=100%")]);
        pair.write(8, true);
        let incidents = pair.end.qp.counters().incidents;
        let (marked, notified) = pair.counts();
        assert!(marked > 0 && notified > 0, "{marked} marked, {notified} notifications");
        assert_eq!(incidents.cnps_handled, 0);
        assert!(incidents.cnps_ignored > 0 && incidents.cnps_ignored <= notified, "{incidents:?}");
        assert!(pair.end.nic.drops(trace::DropReason::CnpUnwanted) >= incidents.cnps_ignored);
        pair.end.nic.destroy_qp(&pair.end.qp);
    }
}

/// The input of a process that has ended.
fn idle() -> std::process::ChildStdin {
    let mut child = Command::new("true").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take().unwrap();
    child.wait().unwrap();
    stdin
}

/// What an independent reader says of the packets: the measured WRITEs came with CE, what was answered said
/// ECT(0), and notifications are CNPs with BECN that take no marks themselves.
fn look_at(capture: &Path, notified: u64) {
    let fields = ["infiniband.bth.opcode", "ip.dsfield.ecn", "udp.payload"];
    let mut tshark = Command::new("tshark");
    tshark.args(["-T", "fields", "-E", "occurrence=f", "-r"]).arg(capture);
    tshark.args(fields.iter().flat_map(|field| ["-e", field]));
    let output = tshark.output().unwrap_or_else(|error| panic!("tshark: {error}; apt-get install tshark"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut notifications, mut writes) = (0, Vec::new());
    for row in text.lines().map(|line| line.split('\t').collect::<Vec<_>>()) {
        match row[0] {
            // RC RDMA WRITE First, Middle, Last and Only.
            "6" | "7" | "8" | "10" => writes.push(row[1].to_owned()),
            "129" => {
                let bytes = row[2].replace(':', "");
                assert!(
                    row[1] == "0" && bytes.len() == 64 && bytes.starts_with("8100ffff40"),
                    "{} {bytes:.64}",
                    row[1]
                );
                notifications += 1;
            }
            // Management's datagrams, by which the processes of a host get to know each other, ask for no marks.
            "100" => {}
            opcode => assert_eq!(row[1], "2", "{opcode}"),
        }
    }
    // One may be owed when it is asked how many there were.
    assert!((notified..=notified + 2).contains(&notifications), "{notifications} in the capture, not {notified}");
    // Those of the measured WRITEs are the last.
    assert!(writes.len() > 8 * 256 && writes.iter().rev().take(8 * 256).all(|ecn| ecn == "3"), "{writes:?}");
}
