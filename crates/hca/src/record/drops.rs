//! What goes no further in this NIC: packets, trains, messages of connection management, records of shared memory. Each
//! is counted by its reason and raises a trace event. What the kernel drops before the NIC sees it, the kernel counts.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use trace::DropReason;

/// How often something was dropped for each reason, in the order of [`DropReason::ALL`].
#[derive(Debug)]
pub(crate) struct Drops([AtomicU64; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Drops {
        Drops([const { AtomicU64::new(0) }; DropReason::ALL.len()])
    }
}

impl Drops {
    #[cold]
    pub fn count(&self, reason: DropReason, more: u64) {
        if let Some(count) = self.0.get(reason as usize) {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }

    pub fn of(&self, reason: DropReason) -> u64 {
        self.0.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// UDP datagrams that the kernel has dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct KernelDrops {
    /// Because the receive buffer of a socket of this NIC was full, since that socket was opened.
    pub sockets: u64,
    /// Because the receive buffer of any socket of the network namespace was full, since it was made: `RcvbufErrors`.
    pub host_full: u64,
    /// For any reason, among them wrong checksums and full buffers, in the whole network namespace: `InErrors`.
    pub host_errors: u64,
}

impl KernelDrops {
    /// What the kernel says now, with the figure of our own sockets.
    pub(crate) fn read(sockets: u64) -> io::Result<KernelDrops> {
        let _shield = ::host::thread::Shield::up();
        let v4 = std::fs::read_to_string("/proc/net/snmp")?;
        // Missing where IPv6 is switched off.
        let v6 = std::fs::read_to_string("/proc/net/snmp6").unwrap_or_default();
        Ok(KernelDrops::of(sockets, &v4, &v6))
    }

    /// What the texts of `/proc/net/snmp` and `/proc/net/snmp6` say.
    #[doc(hidden)] // for fuzzing
    pub fn of(sockets: u64, v4: &str, v6: &str) -> KernelDrops {
        let host = |name: &str| figure_v4(v4, name).saturating_add(figure_v6(v6, name));
        KernelDrops { sockets, host_full: host("RcvbufErrors"), host_errors: host("InErrors") }
    }
}

/// A figure of UDP over IPv4: a line of names that begins with `Udp:`, and one of figures.
fn figure_v4(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (Some(names), Some(figures)) = (lines.next(), lines.next()) else { return 0 };
    let mut pairs = names.split_whitespace().zip(figures.split_whitespace());
    pairs.find(|(other, _)| *other == name).and_then(|(_, figure)| figure.parse().ok()).unwrap_or(0)
}

/// A figure of UDP over IPv6: lines of a name and a figure.
fn figure_v6(text: &str, name: &str) -> u64 {
    let figure = |line: &str| line.strip_prefix("Udp6")?.strip_prefix(name)?.trim().parse().ok();
    text.lines().find_map(figure).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figures_are_found_by_name() {
        let v4 = "Tcp: InErrs\nTcp: 9\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\nUdp: 1 2 3 4 5\n\
                  UdpLite: InErrors RcvbufErrors\nUdpLite: 7 8\n";
        assert_eq!((figure_v4(v4, "InErrors"), figure_v4(v4, "RcvbufErrors")), (3, 5));
        assert_eq!((figure_v4(v4, "Missing"), figure_v4("", "InErrors")), (0, 0));
        let v6 = "Udp6InDatagrams                 \t1\nUdp6InErrors  \t11\nUdp6RcvbufErrors\t12\nUdpLite6InErrors 13\n";
        assert_eq!((figure_v6(v6, "InErrors"), figure_v6(v6, "RcvbufErrors"), figure_v6(v6, "Missing")), (11, 12, 0));
    }
}
