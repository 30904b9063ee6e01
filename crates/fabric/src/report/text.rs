//! A report for a terminal.

use super::Report;
use crate::units::{show_bytes, show_rate, show_span};
use std::fmt;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { counts, completion, queues, .. } = self;
        writeln!(f, "{}", self.network)?;
        writeln!(f, "{}, congestion control: {}, seed {}", self.workload, self.congestion, self.seed)?;
        let ended = if self.complete { "all arrived after" } else { "NOT all arrived; the last after" };
        writeln!(
            f,
            "{} messages on {} queue pairs, {ended} {}: {} of payload in all\n",
            counts.messages,
            self.queue_pairs,
            show_span(self.finished_at),
            show_rate(self.goodput),
        )?;
        writeln!(f, "completion      least        p50        p90        p99      p99.9       most")?;
        write!(f, "         ")?;
        for time in [completion.least, completion.p50, completion.p90, completion.p99, completion.p999, completion.most]
        {
            write!(f, " {:>10}", show_span(time))?;
        }
        writeln!(f, "\n\n{:<22}{:>8}{:>10}{:>10}  busiest", "links", "count", "mean", "most")?;
        for links in &self.links {
            writeln!(
                f,
                "{:<22}{:>8}{:>9.1}%{:>9.1}%  {}",
                links.class.name(),
                links.count,
                100.0 * links.mean_utilisation,
                100.0 * links.most_utilisation,
                links.busiest,
            )?;
        }
        writeln!(
            f,
            "\nqueues        found by half of the packets {}, by 1 % more than {}; longest {} ({})",
            show_bytes(queues.p50),
            show_bytes(queues.p99),
            show_bytes(queues.longest),
            queues.longest_at,
        )?;
        writeln!(
            f,
            "packets       {} sent ({} again, {} acknowledgements, {} notifications), {} delivered",
            counts.packets_sent,
            counts.retransmitted,
            counts.acknowledgements,
            counts.notifications,
            counts.packets_delivered,
        )?;
        writeln!(
            f,
            "dropped       {} (no room {}, link down {}, lossy cable {})",
            self.dropped(),
            counts.dropped_full,
            counts.dropped_down,
            counts.dropped_lost,
        )?;
        writeln!(
            f,
            "congestion    {} packets marked, {} pauses, {} paused in all",
            counts.marked,
            counts.pauses,
            show_span(counts.paused_nanos),
        )?;
        writeln!(
            f,
            "transport     {} times sent again, {} of them after a timeout; {} messages failed",
            counts.retries, counts.timeouts, counts.messages_failed,
        )?;
        writeln!(f, "simulator     {} events", counts.events)
    }
}
