//! `ubiverbs demo --simulated`: two simulated hosts and a lossy wire do the four things RDMA is about, and every packet
//! is shown. The protocol is the real one, down to the bytes of each frame; hosts, wire and clock are simulated, and
//! the output says so.

mod log;
mod report;

use clap::Args;
use sim::{ConnectOptions, HostConfig, HostId, LinkConfig, QpId, QpSpec, Region, Rng, Sim, Work};
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use transport::{Access, Completion, Status};
use wire::Mtu;

use crate::exit::{Exit, Failure};
use crate::style;
use log::Log;
use report::Report;

/// How the wire is to be, with `--simulated`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "With --simulated")]
pub struct Wire {
    /// Packets the wire loses, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent, requires = "simulated")]
    loss: f64,
    /// Decides which packets are lost; the same seed gives the same run
    #[arg(long, value_name = "N", default_value_t = 1, requires = "simulated")]
    seed: u64,
    /// Write all frames to this file, in pcapng
    #[arg(long, value_name = "FILE", requires = "simulated")]
    pcap: Option<PathBuf>,
    /// Path MTU, the most payload of a packet: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value = "1024", value_parser = mtu, requires = "simulated")]
    mtu: Mtu,
    /// How many bytes to write and read back: 1 to 16777216
    #[arg(long, value_name = "BYTES", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=16_777_216), requires = "simulated")]
    size: u32,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(value),
        _ => Err("a number from 0 to 100 is needed".into()),
    }
}

fn mtu(text: &str) -> Result<Mtu, String> {
    let known = text.parse().ok().and_then(Mtu::from_bytes);
    known.ok_or_else(|| "one of 256, 512, 1024, 2048 and 4096 is needed".into())
}

/// Runs the demo.
pub fn run(options: &Wire, json: bool, out: &mut impl Write) -> Result<Exit, Failure> {
    let mut stage = Stage::new(options);
    if let Some(path) = &options.pcap {
        let file = hca::create_private(path).map_err(|source| Failure::Open { path: path.clone(), source })?;
        stage.sim.capture(BufWriter::new(file)).map_err(|source| Failure::Capture { path: path.clone(), source })?;
    }
    let mut report = Report::new(options, &stage);
    if !json {
        report.opening(out).map_err(Failure::Output)?;
        stage.log.print(out).map_err(Failure::Output)?;
    }
    for act in Act::ALL {
        if !json {
            let title = style::TITLE_STYLE;
            writeln!(out, "\n{title}{}{title:#}", act.heading(options)).map_err(Failure::Output)?;
        }
        let (completion, verified) = stage.play(act, options);
        if !json {
            stage.log.print(out).map_err(Failure::Output)?;
        }
        let good = report.note(act, completion, verified);
        if !json {
            report.verdict(out).map_err(Failure::Output)?;
        }
        if !good {
            // A queue pair in error does nothing more.
            break;
        }
    }
    if let Some(path) = &options.pcap {
        stage.sim.finish_capture().map_err(|source| Failure::Capture { path: path.clone(), source })?;
    }
    let closed = if json { report.json(&stage, out) } else { report.closing(&stage, out) };
    closed.map_err(Failure::Output)?;
    Ok(if report.good() { Exit::Ok } else { Exit::Job })
}

/// The four things alice does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Write,
    Read,
    FetchAdd,
    Send,
}

impl Act {
    const ALL: [Act; 4] = [Act::Write, Act::Read, Act::FetchAdd, Act::Send];

    fn wr_id(self) -> u64 {
        self as u64 + 1
    }

    fn name(self) -> &'static str {
        match self {
            Act::Write => "write",
            Act::Read => "read",
            Act::FetchAdd => "fetch_add",
            Act::Send => "send",
        }
    }

    fn heading(self, options: &Wire) -> String {
        let size = options.size;
        match self {
            Act::Write => {
                format!("1. WRITE: alice puts {size} bytes into bob's memory. Bob's program is not involved.")
            }
            Act::Read => format!("2. READ: alice fetches the {size} bytes back. Bob's program is not involved."),
            Act::FetchAdd => "3. FETCH_ADD: alice adds 5 to a counter in bob's memory that stands at 37.".into(),
            Act::Send => "4. SEND: alice sends a message; bob has posted a receive for it.".into(),
        }
    }
}

const GREETING_MESSAGE: &[u8] = b"hello, bob";
const COUNTER_START: u64 = 37;

/// Two hosts, their memory, and the log of what happens between them.
struct Stage {
    sim: Sim,
    alice: HostId,
    bob: HostId,
    a: QpId,
    b: QpId,
    source: Region,
    back: Region,
    target: Region,
    counter: Region,
    before: Region,
    inbox: Region,
    log: Log,
}

impl Stage {
    fn new(options: &Wire) -> Stage {
        let mut sim = Sim::with_seed(options.seed);
        sim.set_default_link(LinkConfig { loss: options.loss / 100.0, ..LinkConfig::PERFECT });
        let alice = sim.add_host(HostConfig::named("alice"));
        let bob = sim.add_host(HostConfig::named("bob"));
        let a = sim.create_qp(alice, QpSpec::rc());
        let b = sim.create_qp(bob, QpSpec::rc());
        let log = Log::attach(&mut sim, [a, b]);
        sim.connect(a, b, &ConnectOptions { mtu: options.mtu, ..ConnectOptions::default() });
        let size = options.size as usize;
        let mut bytes = vec![0; size];
        Rng::new(options.seed).fill(&mut bytes);
        let own = Access::LOCAL_WRITE;
        let open = own | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        Stage {
            source: sim.register_bytes(alice, QpSpec::PD, bytes, Access::empty()),
            back: sim.register(alice, QpSpec::PD, size, own),
            before: sim.register(alice, QpSpec::PD, 8, own),
            target: sim.register(bob, QpSpec::PD, size, open),
            counter: sim.register_bytes(bob, QpSpec::PD, COUNTER_START.to_ne_bytes().to_vec(), open),
            inbox: sim.register(bob, QpSpec::PD, 64, own),
            sim,
            alice,
            bob,
            a,
            b,
            log,
        }
    }

    /// Plays one act to its end. Answers alice's completion, if there was one, and whether every byte is where it
    /// should be.
    fn play(&mut self, act: Act, options: &Wire) -> (Option<Completion>, bool) {
        let work = match act {
            Act::Write => Work::write(self.target.remote(0)).sge(self.source.sge(0, options.size)),
            Act::Read => Work::read(self.target.remote(0)).sge(self.back.sge(0, options.size)),
            Act::FetchAdd => Work::fetch_add(self.counter.remote(0), 5).sge(self.before.whole()),
            Act::Send => Work::send().inline(GREETING_MESSAGE),
        };
        let mut posted = Ok(());
        if act == Act::Send {
            posted = self.sim.receive(self.b, 100, &[self.inbox.whole()]);
        }
        let posted = posted.and_then(|()| self.sim.post(self.a, &work.id(act.wr_id())));
        self.sim.run_until_idle();
        let completion = self.sim.next_completion(self.a).filter(|_| posted.is_ok());
        let succeeded = completion.is_some_and(|completion| completion.status == Status::Success);
        (completion, succeeded && self.verify(act))
    }

    fn verify(&mut self, act: Act) -> bool {
        let bytes = |region| self.sim.bytes(region);
        match act {
            Act::Write => bytes(&self.target) == bytes(&self.source),
            Act::Read => bytes(&self.back) == bytes(&self.source),
            Act::FetchAdd => {
                bytes(&self.before) == COUNTER_START.to_ne_bytes()
                    && bytes(&self.counter) == (COUNTER_START + 5).to_ne_bytes()
            }
            Act::Send => {
                let received = self.sim.next_completion(self.b);
                received.is_some_and(|received| {
                    received.status == Status::Success && received.bytes as usize == GREETING_MESSAGE.len()
                }) && self.sim.bytes(&self.inbox).starts_with(GREETING_MESSAGE)
            }
        }
    }
}
