//! `ubiverbs demo`: two processes move data in every way RDMA knows, over the NIC in user space, and each says what it
//! sees. With `--simulated` the same protocol runs between two simulated hosts on a lossy wire instead, and every
//! packet is shown.

mod alice;
mod report;
mod simulated;

use crate::acts::Act;
use crate::exit::{Exit, Failure};
use crate::meeting::{Ends, Meeting};
use alice::Alice;
use clap::Args;
use report::Report;
use std::io::Write;

/// Watch two processes move data by SEND, WRITE, READ, atomics and datagrams
///
/// The program starts itself a second time. Alice (the first process) and bob (the second) open a device, connect queue
/// pairs and move data by SEND, WRITE, WRITE with immediate, READ, FETCH_ADD, COMPARE_SWAP and by datagrams. Both check
/// every byte. One request is wrong on purpose, to show how a failure explains itself. At the end latency and bandwidth
/// are compared with TCP's.
///
/// It needs no root, no RDMA hardware, no kernel module, and no network beyond `lo`.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Options {
    #[command(flatten)]
    ends: Ends,
    /// Do not measure at the end
    #[arg(long, conflicts_with = "simulated")]
    quick: bool,
    /// Two simulated hosts and a lossy wire instead, with every packet shown
    #[arg(long, conflicts_with_all = ["device", "server", "connect"])]
    simulated: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    simulation: simulated::Wire,
}

const HELP_EXAMPLES: &str = "\
Examples:
  ubiverbs demo                             on this machine
  ubiverbs demo --device ubi_eth0           another device
  ubiverbs demo --server 10.0.0.1           one half here, which says
  ubiverbs demo --connect 10.0.0.1          how to start the other elsewhere
  ubiverbs demo --connect '[fd00::1]:5000'  IPv6, a port
  ubiverbs demo --json                      for programs
  ubiverbs demo --simulated --loss 20       a lossy wire
  ubiverbs demo --simulated --pcap a.pcapng for Wireshark

Between hosts packets are RoCEv2, on UDP port 4791; processes of one host and user share memory instead, unless you \
say --link udp. The halves agree over TCP on what to do, on port 18515 unless you say another. Each proves to the other \
that it knows a secret, from the variable UBIVERBS_SECRET; if there is none, the server draws one and says it.";

/// Runs the demo.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    if options.simulated {
        return simulated::run(&options.simulation, options.json, out);
    }
    if let Some(address) = &options.ends.server {
        return crate::second_side::serve(&options.ends, "demo", address, out);
    }
    let mut meeting = options.ends.meet()?;
    let mut report = Report::new(&meeting, options.json);
    let played = play(&mut meeting, &mut report, options.quick, out);
    if let Err(failure) = &played {
        report.failed(failure);
    }
    meeting.end();
    report.close(out).map_err(Failure::Output)?;
    played?;
    Ok(if report.good() { Exit::Ok } else { Exit::Job })
}

fn play(meeting: &mut Meeting, report: &mut Report, quick: bool, out: &mut impl Write) -> Result<(), Failure> {
    let alice = Alice::introduce(meeting)?;
    report.open(meeting, &alice, out).map_err(Failure::Output)?;
    for act in Act::ALL {
        report.heading(act, out).map_err(Failure::Output)?;
        let step = alice.play(act, meeting)?;
        report.step(step, out).map_err(Failure::Output)?;
    }
    if !quick {
        report.measuring(out).map_err(Failure::Output)?;
        match crate::measure::small_table(meeting) {
            // A firewall that lets RDMA through and TCP not is no failure of the demo.
            Err(failure @ Failure::Connect { .. }) => report.unmeasured(&failure, out).map_err(Failure::Output)?,
            figures => report.figures(figures?, out).map_err(Failure::Output)?,
        }
    }
    Ok(())
}
