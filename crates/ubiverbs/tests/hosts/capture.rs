//! What is really on the cable: packets as the receiving kernel sees them, judged by tshark and by a reading of our own
//! that shares no code with the NIC. The kernel cuts GSO datagrams before the cable here, so that single packets are
//! seen.

use crate::actor::Actor;
use crate::frames::{self, Frame, Operation};
use crate::network::{DEVICE, Host, Network};
use crate::traffic;
use crate::wait_until;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The payload of a full packet where the interface carries 1500 bytes.
const MTU: usize = 1024;

/// What tshark takes payload for.
const GUESSES: [&str; 8] = ["rpcordma", "smc", "smb_direct", "nvme-rdma", "lnet", "iser", "infiniband_sdp", "fcoib"];

/// A capture under way.
struct Capture {
    dumpcap: Actor,
    file: PathBuf,
}

impl Capture {
    fn start(host: &Host) -> Capture {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("ubiverbs-hosts-{}-{number}.pcap", std::process::id()));
        let mut command = host.command("sh");
        // Its remarks are what we wait for.
        command.args(["-c", &format!("exec dumpcap -q -P -B 64 -s 0 -i {DEVICE} -w {} 2>&1", file.display())]);
        let mut dumpcap = Actor::start("dumpcap", &mut command);
        dumpcap.hear("Capturing on");
        dumpcap.hear("File:");
        Capture { dumpcap, file }
    }

    /// Stops it. Answers the frames that carry IP and UDP, after tshark has looked at all of them.
    fn stop(mut self) -> Vec<Frame> {
        // Datagrams go last. Stopping it before it has seen them would lose the end.
        wait_until("the capture is complete", || {
            let so_far = frames::read(&std::fs::read(&self.file).unwrap_or_default()).unwrap_or_default();
            let datagram = |frame: &&Frame| Operation::of(frame.opcode) == Some(Operation::UnreliableDatagram);
            so_far.iter().filter(datagram).count() as u64 >= 2 * traffic::DATAGRAMS
        });
        self.dumpcap.signal(rustix::process::Signal::INT);
        self.dumpcap.hear("Packets captured:");
        let counts = self.dumpcap.hear("Packets received/dropped");
        assert!(counts.contains("/0 (pcap:0/dumpcap:0"), "the capture has holes: {counts}");
        let bytes = std::fs::read(&self.file).unwrap();
        let frames = frames::read(&bytes).unwrap_or_else(|error| panic!("{}: {error}", self.file.display()));
        judge(&self.file, &frames);
        frames
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// tshark reads in every packet what we read, and finds nothing wrong.
fn judge(file: &Path, frames: &[Frame]) {
    let tshark = |filter: &str, fields: &[&str]| {
        let mut command = Command::new("tshark");
        command.arg("-r").arg(file).args(["-Y", filter, "-T", "fields"]);
        // Our messages are noise; it is not to guess that they are file systems.
        command.args(GUESSES.iter().flat_map(|protocol| ["--disable-protocol", protocol]));
        command.args(fields.iter().flat_map(|field| ["-e", field]));
        let output = command.output().expect("tshark is there");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let wrong = "_ws.malformed || ip.flags.mf == 1 || ip.frag_offset > 0 || ipv6.fraghdr || \
                 (udp && !infiniband.bth && !(udp.dstport == 9))";
    assert_eq!(
        tshark(wrong, &["frame.number", "_ws.col.info"]),
        "",
        "packets that are malformed, fragments, or neither RoCE nor a search for a neighbour"
    );
    let theirs =
        tshark("udp && !(udp.dstport == 9)", &["infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn"]);
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    };
    let theirs: Vec<Vec<u32>> = theirs.lines().map(|line| line.split('\t').map(number).collect()).collect();
    let ours: Vec<Vec<u32>> =
        frames.iter().map(|frame| vec![u32::from(frame.opcode), frame.destination, frame.psn]).collect();
    assert!(theirs == ours, "tshark reads other packets than we do");
}

/// What a capture shows.
#[derive(Debug, Default)]
struct Findings {
    operations: BTreeSet<Operation>,
    /// Packets of the longest train that the kernel cut.
    longest_train: usize,
    /// Packets that were sent again.
    again: usize,
}

/// Every packet is whole, fits, has the right ICRC, and follows the one before it.
fn examine(frames: &[Frame]) -> Findings {
    let mut findings = Findings::default();
    // Per direction, queue pair and side of the connection: the furthest packet sent so far.
    let mut furthest: HashMap<(IpAddr, u32, bool), u32> = HashMap::new();
    let mut train = 0;
    for (number, frame) in frames.iter().enumerate() {
        let context = || format!("packet {number}: {frame:?}");
        assert_eq!(frame.icrc, frame.computed_icrc, "{}", context());
        assert_eq!(frame.port, 4791, "{}", context());
        assert!(frame.dont_fragment, "{}", context());
        let operation = Operation::of(frame.opcode).unwrap_or_else(|| panic!("opcode of {}", context()));
        findings.operations.insert(operation);
        assert!(frame.payload <= MTU, "{}", context());
        let part = operation.part();
        assert!(frame.payload == MTU || !part.goes_on(), "a packet in the middle of a message is full: {}", context());
        let key = (frame.from, frame.destination, operation.is_answer());
        match furthest.get_mut(&key) {
            Some(furthest) => {
                let ahead = frame.psn.wrapping_sub(*furthest) & 0xff_ffff;
                if ahead == 0 || ahead > 0x80_0000 {
                    // Sent again: from anywhere, up to anything that was sent before.
                    findings.again += usize::from(!operation.is_answer());
                } else {
                    // A READ request stands for many numbers, an acknowledgement for many packets. A message has no
                    // gaps.
                    let gap = part.goes_on_from_before() && ahead != 1;
                    assert!(!gap, "PSN {:#x} was the furthest before {}", *furthest, context());
                    *furthest = frame.psn;
                }
            }
            None => {
                assert!(!part.goes_on_from_before(), "nothing to go on from: {}", context());
                furthest.insert(key, frame.psn);
            }
        }
        train = if frame.identification == Some(train as u16) && train > 0 { train + 1 } else { 1 };
        findings.longest_train = findings.longest_train.max(train);
    }
    findings
}

/// Everything over the cable, looked at.
fn captured(v6: bool, pairs: u32, faults: &str) -> Findings {
    let Network { left, right } = &Network::new(1500);
    for host in [left, right] {
        host.run(&format!("ethtool -K {DEVICE} tx-udp-segmentation off gro off"));
    }
    let capture = Capture::start(left);
    let address = |host: &Host| if v6 { host.v6 } else { host.v4 };
    traffic::everything([(left, address(left)), (right, address(right))], pairs, faults);
    let frames = capture.stop();
    let findings = examine(&frames);
    println!("  {} packets, all ICRCs right; {findings:?}", frames.len());
    assert!(frames.len() > 2000 * pairs as usize, "{} packets", frames.len());
    assert!(Operation::ALL.iter().all(|operation| findings.operations.contains(operation)), "{findings:?}");
    findings
}

pub fn packets_on_the_cable_are_roce_over_ipv4() {
    let findings = captured(false, 2, "");
    assert!(findings.longest_train >= 8, "the kernel cuts trains: {findings:?}");
}

pub fn packets_on_the_cable_are_roce_over_ipv6() {
    captured(true, 2, "");
}

pub fn packets_sent_again_are_as_good() {
    let findings = captured(false, 1, "drop=2%");
    assert!(findings.again > 0, "{findings:?}");
}
