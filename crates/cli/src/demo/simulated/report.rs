//! What the demo says around its packet log: who is on stage, how each act ended, and a closing summary in plain words.

use serde_json::json;
use std::io::{self, Write};
use trace::{DropReason, RetryCause};
use transport::{Completion, Status};

use super::{Act, Stage, Wire};
use crate::style;
use sim::Shared;

/// Keeps count of how it goes.
pub struct Report {
    options: Wire,
    acts: Vec<(Act, Option<Completion>, bool)>,
    hosts: [String; 2],
    counters: Shared<trace::Counters>,
}

impl Report {
    pub fn new(options: &Wire, stage: &Stage) -> Report {
        let line = |host, qp: sim::QpId| {
            let address = stage.sim.gid(host, 0).to_ip();
            format!("{} {address} QP {}", stage.sim.host_name(host), qp.qpn)
        };
        Report {
            options: options.clone(),
            acts: Vec::new(),
            hosts: [line(stage.alice, stage.a), line(stage.bob, stage.b)],
            counters: stage.log.counters(),
        }
    }

    /// Whether everything so far, and all of it, went well.
    pub fn good(&self) -> bool {
        self.acts.len() == Act::ALL.len() && self.acts.iter().all(|(_, _, verified)| *verified)
    }

    /// Takes down how an act ended; says whether well.
    pub fn note(&mut self, act: Act, completion: Option<Completion>, verified: bool) -> bool {
        self.acts.push((act, completion, verified));
        verified
    }

    pub fn opening(&self, out: &mut impl Write) -> io::Result<()> {
        let Wire { loss, mtu, seed, .. } = &self.options;
        let [alice, bob] = &self.hosts;
        writeln!(out, "ubiverbs demo: RDMA between two simulated hosts")?;
        writeln!(out)?;
        writeln!(out, "  {alice}  <--- 5 us, {loss} % loss --->  {bob}")?;
        writeln!(out)?;
        writeln!(
            out,
            "Hosts, wire and clock are simulated inside this program; no packet leaves it. The protocol is the"
        )?;
        writeln!(out, "real one, and every packet a complete RoCEv2 frame. Path MTU {mtu}, seed {seed}.")?;
        writeln!(out)?;
        writeln!(out, "0. Both programs exchange addresses and walk their queue pairs to RTS, ready to send.")
    }

    /// One line on the act that has just ended.
    pub fn verdict(&self, out: &mut impl Write) -> io::Result<()> {
        let Some((act, completion, verified)) = self.acts.last() else { return Ok(()) };
        let (good, bad) = (style::GOOD_STYLE, style::BAD_STYLE);
        match (completion, verified) {
            (Some(_), true) => writeln!(out, "   {good}{}{good:#}", praise(*act, self.options.size)),
            (Some(Completion { status: Status::Success, .. }), false) => {
                writeln!(
                    out,
                    "   {bad}WRONG:{bad:#} it completed with success, and the bytes are not what they should be."
                )
            }
            (Some(completion), _) => {
                let cause = completion.cause.map(|cause| format!(": {cause}")).unwrap_or_default();
                writeln!(out, "   {bad}FAILED{bad:#} with {}{cause}.", completion.status)
            }
            (None, _) => writeln!(out, "   {bad}FAILED:{bad:#} it did not complete."),
        }
    }

    pub fn closing(&self, stage: &Stage, out: &mut impl Write) -> io::Result<()> {
        let numbers = self.numbers(stage);
        let (good, bad) = (style::GOOD_STYLE, style::BAD_STYLE);
        writeln!(out)?;
        if self.good() {
            writeln!(out, "{good}All four operations completed, and every byte was verified.{good:#}")?;
        } else if let Some((act, ..)) = self.acts.last() {
            writeln!(out, "{bad}The demo failed at its {}.{bad:#}", act.name().to_uppercase())?;
        }
        let Numbers { sent, lost, again, timeouts, naks, nanos } = numbers;
        write!(out, "{sent} packets in {}.{:03} us of simulated time; ", nanos / 1000, nanos % 1000)?;
        match lost {
            0 => writeln!(out, "none was lost.")?,
            1 => write!(out, "the wire lost 1. ")?,
            _ => write!(out, "the wire lost {lost}. ")?,
        }
        if lost > 0 {
            let noticed = match (naks, timeouts) {
                (0, 0) => "a later acknowledgement covered for what was lost".to_string(),
                (0, timeouts) => format!("silence gave it away {}", often(timeouts)),
                (naks, 0) => format!("a later packet gave it away {}", often(naks)),
                (naks, timeouts) => {
                    format!("a later packet gave it away {} and silence {}", often(naks), often(timeouts))
                }
            };
            writeln!(
                out,
                "{}; {again} {} sent again.",
                sentence(&noticed),
                plural(again, "packet was", "packets were")
            )?;
        }
        if let Some(path) = &self.options.pcap {
            writeln!(out, "The frames are in {}: open it with Wireshark.", path.display())?;
        }
        writeln!(out, "The same run again: ubiverbs demo --simulated {}", self.again())
    }

    pub fn json(&self, stage: &Stage, out: &mut impl Write) -> io::Result<()> {
        let numbers = self.numbers(stage);
        let acts: Vec<_> = self
            .acts
            .iter()
            .map(|(act, completion, verified)| {
                json!({
                    "operation": act.name(),
                    "wr_id": act.wr_id(),
                    "status": completion.map(|completion| completion.status.name()),
                    "cause": completion.and_then(|completion| completion.cause).map(|cause| cause.to_string()),
                    "bytes": completion.map(|completion| completion.bytes),
                    "verified": verified,
                })
            })
            .collect();
        let document = json!({
            "simulated": true,
            "ok": self.good(),
            "seed": self.options.seed,
            "loss_percent": self.options.loss,
            "mtu": self.options.mtu.bytes(),
            "size": self.options.size,
            "operations": acts,
            "packets_sent": numbers.sent,
            "packets_lost": numbers.lost,
            "packets_retransmitted": numbers.again,
            "retries": { "timeout": numbers.timeouts, "nak": numbers.naks },
            "simulated_ns": numbers.nanos,
            "log": stage.log.json(),
        });
        serde_json::to_writer_pretty(&mut *out, &document)?;
        writeln!(out)
    }

    fn numbers(&self, stage: &Stage) -> Numbers {
        let network = stage.sim.counters();
        let counters = self.counters.borrow();
        Numbers {
            sent: network.sent,
            lost: network.dropped_for(DropReason::RandomLoss),
            again: stage.log.retransmitted(),
            timeouts: counters.retries(RetryCause::Timeout),
            naks: counters.retries(RetryCause::SequenceNak) + counters.retries(RetryCause::ImpliedNak),
            nanos: stage.sim.now().as_nanos(),
        }
    }

    /// The arguments of this run.
    fn again(&self) -> String {
        let Wire { loss, seed, mtu, size, .. } = &self.options;
        format!("--loss {loss} --seed {seed} --mtu {mtu} --size {size}")
    }
}

struct Numbers {
    sent: u64,
    lost: u64,
    again: u64,
    timeouts: u64,
    naks: u64,
    nanos: u64,
}

fn praise(act: Act, size: u32) -> String {
    match act {
        Act::Write => format!("Done: bob's memory holds all {size} bytes."),
        Act::Read => format!("Done: alice has all {size} bytes again, and each is right."),
        Act::FetchAdd => "Done: alice got 37, the counter stands at 42, and it was added once.".into(),
        Act::Send => "Done: bob's receive completed with the message in it.".into(),
    }
}

fn often(count: u64) -> String {
    match count {
        1 => "once".into(),
        2 => "twice".into(),
        count => format!("{count} times"),
    }
}

fn plural(count: u64, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
