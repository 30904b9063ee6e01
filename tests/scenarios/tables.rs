//! What the transport gets out of a network, as tables: goodput against loss and MTU, and many queue pairs into a receiver with a stock socket
//! buffer. Every run is decided by its seed, so a table changes only when behaviour does, and then the change is for a person to judge. What must
//! hold whatever the numbers are is asserted beside them, and every run ends with the right bytes in the right place.
#![allow(missing_docs)]

use scenery::ALL_ACCESS;
use sim::{ConnectOptions, HostConfig, HostId, LinkConfig, QpId, QpSpec, Region, Sim, Work};
use std::fmt::Write;
use trace::DropReason;
use transport::{Status, Time};
use wire::Mtu;

const KIB: usize = 1024;

/// 10 Gbit/s.
const BANDWIDTH: u64 = 10_000_000_000;

/// Ten microseconds each way.
const WIRE: LinkConfig = LinkConfig { delay: 10_000, bandwidth: Some(BANDWIDTH), ..LinkConfig::PERFECT };

/// Nanoseconds a host takes to look at a packet: for a full one of 4 KiB a little more than the wire does, so that packets wait in its buffer.
const SERVICE: u64 = 3_500;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Job {
    Write,
    Send,
    Read,
}

impl Job {
    const fn name(self) -> &'static str {
        match self {
            Job::Write => "WRITE",
            Job::Send => "SEND",
            Job::Read => "READ",
        }
    }
}

/// One queue pair with something to move.
struct Mover {
    job: Job,
    qp: QpId,
    peer: QpId,
    near: Region,
    far: Region,
    finished: Option<Time>,
}

/// Hosts, and queue pairs between them.
struct Stage {
    sim: Sim,
    movers: Vec<Mover>,
    /// Whether peers drop what comes behind a lost packet.
    peers_go_back: bool,
}

impl Stage {
    fn new(link: LinkConfig) -> Stage {
        // Not the seed from the environment: the tables are those of this seed.
        let mut sim = Sim::with_seed(7);
        sim.set_default_link(link);
        Stage { sim, movers: Vec::new(), peers_go_back: false }
    }

    /// A queue pair at `from`, its peer at `to`, and `bytes` to move between them.
    fn connect(&mut self, job: Job, from: HostId, to: HostId, bytes: usize, mtu: Mtu) {
        let sim = &mut self.sim;
        let mut far_end = QpSpec::rc();
        far_end.limits.keeps_early = !self.peers_go_back;
        let (qp, peer) = (sim.create_qp(from, QpSpec::rc()), sim.create_qp(to, far_end));
        // The ACK timeout of perftest and UCX.
        sim.connect(qp, peer, &ConnectOptions { mtu, timeout: 14, ..ConnectOptions::default() });
        let mut data = vec![0; bytes];
        sim.rng().fill(&mut data);
        let near = sim.register_bytes(from, QpSpec::PD, data.clone(), ALL_ACCESS);
        data.reverse();
        let far = sim.register_bytes(to, QpSpec::PD, data, ALL_ACCESS);
        self.movers.push(Mover { job, qp, peer, near, far, finished: None });
    }

    /// Lets every queue pair move its bytes in messages of up to `message` bytes. Answers when the last of them was done, counted from the moment
    /// when all of them had heard from their peers, as programs do before they begin.
    fn run(&mut self, message: usize) -> Time {
        let Stage { sim, movers, .. } = self;
        for Mover { qp, far, .. } in movers.iter() {
            sim.post(*qp, &Work::write(far.remote(0)).unsignaled()).unwrap();
            sim.run_until_idle();
        }
        let start = sim.now();
        for Mover { job, qp, peer, near, far, .. } in movers.iter() {
            for offset in (0..near.length).step_by(message) {
                let length = (near.length - offset).min(message as u64) as u32;
                let work = match job {
                    Job::Write => Work::write(far.remote(offset)),
                    Job::Read => Work::read(far.remote(offset)),
                    Job::Send => {
                        sim.receive(*peer, 1, &[far.sge(offset, length)]).unwrap();
                        Work::send()
                    }
                };
                let work = work.sge(near.sge(offset, length)).id(offset + u64::from(length));
                sim.post(*qp, &work).unwrap();
            }
        }
        while sim.run_one() {
            for mover in movers.iter_mut().filter(|mover| mover.finished.is_none()) {
                while let Some(completion) = sim.next_completion(mover.qp) {
                    assert_eq!(completion.status, Status::Success, "{completion:?}");
                    if completion.wr_id == mover.near.length {
                        mover.finished = Some(Time::from_nanos(sim.now().since(start)));
                    }
                }
            }
        }
        for Mover { near, far, .. } in movers.iter() {
            assert!(sim.bytes(near) == sim.bytes(far), "every byte arrived where it belongs");
        }
        movers.iter().map(|mover| mover.finished.expect("all work was done")).max().unwrap_or(Time::ZERO)
    }

    fn bytes(&self) -> u64 {
        self.movers.iter().map(|mover| mover.near.length).sum()
    }

    /// Payload that had to be moved, in percent of what one wire carries until `end`.
    fn goodput(&self, end: Time) -> f64 {
        self.bytes() as f64 * 8.0 * 1e11 / (BANDWIDTH as f64 * end.as_nanos() as f64)
    }

    /// Payload that was sent more than once, in percent of what had to be moved.
    fn sent_again(&self) -> f64 {
        (self.sim.counters().payload_sent as f64 / self.bytes() as f64 - 1.0) * 100.0
    }

    /// Of queue pairs with equal work: how many times as long the last took as the first.
    fn spread(&self) -> f64 {
        let times = || self.movers.iter().filter_map(|mover| mover.finished).map(Time::as_nanos);
        times().max().unwrap_or(1) as f64 / times().min().unwrap_or(1) as f64
    }
}

const LOSSES: [f64; 5] = [0.0, 0.001, 0.01, 0.05, 0.1];

#[test]
fn goodput_falls_with_loss_and_never_to_nothing() {
    let mut table = String::from(
        "4 MiB in messages of 1 MiB over 10 Gbit/s, 10 us each way, ACK timeout 67 ms, packets lost both ways.\n\
         Goodput in percent of the wire, and payload sent again in percent.\n",
    );
    // The last is a peer like kernel Soft-RoCE.
    for (job, goes_back) in [(Job::Write, false), (Job::Send, false), (Job::Read, false), (Job::Write, true)] {
        let name = if goes_back { "go-back-N" } else { job.name() };
        write!(table, "\n{name:>5}  MTU").unwrap();
        for loss in LOSSES {
            write!(table, " | {:>10} %", loss * 100.0).unwrap();
        }
        writeln!(table).unwrap();
        for mtu in Mtu::ALL {
            write!(table, "{:>10}", mtu.bytes()).unwrap();
            for loss in LOSSES {
                let mut stage = Stage::new(LinkConfig { loss, ..WIRE });
                stage.peers_go_back = goes_back;
                let a = stage.sim.add_host(HostConfig::named("a"));
                let b = stage.sim.add_host(HostConfig::named("b"));
                stage.connect(job, a, b, 4096 * KIB, mtu);
                let end = stage.run(1024 * KIB);
                let (goodput, again) = (stage.goodput(end), stage.sent_again());
                write!(table, " | {goodput:>4.1} {again:>+7.1}").unwrap();
                if loss == 0.0 {
                    // What Ethernet, IP, UDP, BTH and ICRC leave of the wire, and little less.
                    let most = 100.0 * f64::from(mtu.bytes()) / f64::from(mtu.bytes() + 58);
                    assert!(goodput < most && goodput > most - 2.0, "{job:?}, {mtu:?}: {goodput} of {most}");
                    assert_eq!(again, 0.0);
                }
            }
            writeln!(table).unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

/// What flows into the receiver.
const FLOWS: [(&str, [Job; 2]); 3] =
    [("WRITE", [Job::Write; 2]), ("READ", [Job::Read; 2]), ("both", [Job::Write, Job::Read])];

#[test]
fn a_receiver_of_25_packets_serves_a_hundred_queue_pairs_fairly() {
    let mut table = String::from(
        "32 MiB of 4 KiB packets into one host with a receive buffer of 212,992 bytes (25 packets) that takes 3.5 us to look at each (93.6 %\n\
         of the wire), from one host or several. READs are its own, of all that a queue pair has to move; ACK timeout 67 ms.\n\
         Goodput in percent of a wire, packets dropped by the full buffer, payload sent again in percent, how many times as long the slowest\n\
         queue pair took as the fastest, and milliseconds in all.\n\n  flow  hosts    QPs | goodput   drops    again  spread      ms\n",
    );
    for (name, jobs) in FLOWS {
        for (hosts, qps) in [(1, 1), (1, 10), (1, 100), (4, 4), (4, 20), (4, 100), (16, 16), (16, 160)] {
            let mut stage = Stage::new(WIRE);
            let busy = |name: &str| HostConfig { service: SERVICE, ..HostConfig::named(name) };
            let receiver = stage.sim.add_host(busy("receiver"));
            let others: Vec<_> = (0..hosts).map(|n| stage.sim.add_host(busy(&format!("host{n}")))).collect();
            let each = (32 * KIB / qps) * KIB;
            for n in 0..qps {
                let other = others[n % hosts];
                match jobs[(n % hosts + n / hosts) % 2] {
                    Job::Read => stage.connect(Job::Read, receiver, other, each, Mtu::B4096),
                    job => stage.connect(job, other, receiver, each, Mtu::B4096),
                }
            }
            let end = stage.run(each);
            let (goodput, again, spread) = (stage.goodput(end), stage.sent_again(), stage.spread());
            let drops = stage.sim.counters().dropped_for(DropReason::Overflow);
            writeln!(
                table,
                "{name:>6} {hosts:>6} {qps:>6} | {goodput:>7.1} {drops:>7} {again:>+8.1} {spread:>7.2} {:>7.1}",
                end.as_nanos() as f64 / 1e6,
            )
            .unwrap();
            let found =
                format!("{name}, {hosts} hosts, {qps} queue pairs: {goodput} %, {drops} drops, spread {spread}");
            // One window guards the buffer: nothing is lost, and who shares it shares it fairly.
            if hosts == 1 && name != "both" || name == "READ" {
                assert_eq!(drops, 0, "{found}");
                assert!(goodput > 92.0 && spread < 2.0, "{found}");
            }
            // Several windows have to find out about each other.
            assert!(goodput > 75.0, "{found}");
        }
    }
    insta::assert_snapshot!(table);
}
