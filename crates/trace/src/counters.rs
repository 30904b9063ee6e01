//! How often each thing happened, by kind and by the word that says why. Not a metrics exporter: the numbers are
//! plain; code that wants them in another format reads them out.

use alloc::collections::BTreeMap;
use core::fmt;

use crate::event::{Event, Kind};
use crate::reason::{DropReason, RetryCause};
use crate::sink::Sink;

/// Counts events per kind, and per kind and detail ([`Kind::detail`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    kinds: BTreeMap<&'static str, u64>,
    details: BTreeMap<(&'static str, &'static str), u64>,
    packets_sent: u64,
    packets_received: u64,
    payload_sent: u64,
    payload_received: u64,
}

impl Counters {
    /// All zero.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            kinds: BTreeMap::new(),
            details: BTreeMap::new(),
            packets_sent: 0,
            packets_received: 0,
            payload_sent: 0,
            payload_received: 0,
        }
    }

    /// Events of the kind with this name ([`Kind::name`]).
    #[must_use]
    pub fn kind(&self, name: &str) -> u64 {
        self.kinds.get(name).copied().unwrap_or(0)
    }

    /// Events of the kind with this name and this detail.
    #[must_use]
    pub fn detail(&self, name: &'static str, detail: &'static str) -> u64 {
        self.details.get(&(name, detail)).copied().unwrap_or(0)
    }

    /// Packets dropped for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.detail("packet_dropped", reason.name())
    }

    /// Retries for this cause.
    #[must_use]
    pub fn retries(&self, cause: RetryCause) -> u64 {
        self.detail("retry", cause.name())
    }

    /// Packets sent; a train counts as many as it holds.
    #[must_use]
    pub const fn packets_sent(&self) -> u64 {
        self.packets_sent
    }

    /// Packets received; a train counts as many as it holds.
    #[must_use]
    pub const fn packets_received(&self) -> u64 {
        self.packets_received
    }

    /// Payload bytes sent, retransmissions included.
    #[must_use]
    pub const fn payload_sent(&self) -> u64 {
        self.payload_sent
    }

    /// Payload bytes received, duplicates included.
    #[must_use]
    pub const fn payload_received(&self) -> u64 {
        self.payload_received
    }

    /// Every kind that happened, by name.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.kinds.iter().map(|(name, count)| (*name, *count))
    }

    /// Every kind and detail that happened, by name.
    pub fn details(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        self.details.iter().map(|((name, detail), count)| (*name, *detail, *count))
    }
}

impl Sink for Counters {
    fn record(&mut self, event: &Event) {
        let name = event.kind.name();
        *self.kinds.entry(name).or_default() += 1;
        if let Some(detail) = event.kind.detail() {
            *self.details.entry((name, detail)).or_default() += 1;
        }
        match event.kind {
            Kind::PacketSent { payload_len, packets, .. } => {
                self.packets_sent += u64::from(packets);
                self.payload_sent += u64::from(payload_len);
            }
            Kind::PacketReceived { payload_len, packets, .. } => {
                self.packets_received += u64::from(packets);
                self.payload_received += u64::from(payload_len);
            }
            _ => {}
        }
    }
}

/// One line per kind, and one indented line per detail below it.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.kinds() {
            writeln!(f, "{name:<18} {count:>12}")?;
            for (_, detail, count) in self.details().filter(|(kind, ..)| *kind == name) {
                writeln!(f, "  {detail:<30} {count:>12}")?;
            }
        }
        Ok(())
    }
}
