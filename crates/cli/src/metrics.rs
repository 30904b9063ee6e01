//! `ubiverbs metrics`: what `ps` shows, for Prometheus: as OpenMetrics text on standard output, or over HTTP.

mod exposition;
mod families;
mod server;

use crate::exit::{Exit, Failure};
use crate::snapshot::{ANSWER_TIMEOUT, Snapshot};
use clap::Args;
use families::PortTotals;
use std::io::Write;
use std::time::{Duration, Instant};

/// Print what the processes of this host do on the NIC as OpenMetrics text, or serve it to Prometheus
///
/// Ports are counted under the names of node_exporter's infiniband collector (node_infiniband_…) where they mean the same,
/// processes and queue pairs as ubiverbs_…. `--dashboard` prints a dashboard for Grafana.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Options {
    /// Serve http://ADDRESS/metrics until it is ended, instead of printing once
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "dashboard")]
    listen: Option<String>,
    /// Series for each queue pair, too: many, where programs make many queue pairs
    #[arg(long)]
    queue_pairs: bool,
    /// Print the dashboard for Grafana, and nothing else
    #[arg(long)]
    dashboard: bool,
    /// How many milliseconds the processes have to answer
    #[arg(long, value_name = "MS", default_value_t = ANSWER_TIMEOUT.as_millis() as u64)]
    timeout: u64,
}

const HELP_EXAMPLES: &str = "\
Examples:
  ubiverbs metrics
  ubiverbs metrics --listen 127.0.0.1:9750
  ubiverbs metrics --dashboard > ubiverbs.json      (Grafana: Dashboards, Import)";

/// The dashboard.
const DASHBOARD: &str = include_str!("metrics/dashboard.json");

/// Prints, or serves.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    if options.dashboard {
        out.write_all(DASHBOARD.as_bytes()).map_err(Failure::Output)?;
        return Ok(Exit::Ok);
    }
    let mut source = Source { options: options.clone(), totals: PortTotals::default() };
    match &options.listen {
        Some(address) => server::serve(address, out, move || source.text()),
        None => {
            out.write_all(source.text()?.as_bytes()).map_err(Failure::Output)?;
            Ok(Exit::Ok)
        }
    }
}

/// Where the figures come from.
struct Source {
    options: Options,
    totals: PortTotals,
}

impl Source {
    fn text(&mut self) -> Result<String, Failure> {
        let begun = Instant::now();
        let snapshot = Snapshot::take(Duration::from_millis(self.options.timeout))?;
        let ended = inventory::ended::read(inventory::Users::All);
        let ports = self.totals.add_up(&snapshot, ended);
        Ok(families::text(&snapshot, &ports, self.options.queue_pairs, begun.elapsed()))
    }
}
