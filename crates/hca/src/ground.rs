//! What the rooms of the NIC stand on, in groups: registered memory, the records of what happens, this process's share
//! of the host, its links and the windows towards peers, what threads tell each other about progress, and shared
//! receive queues. Queue pairs, links and the connection manager use it; it knows none of them.
//!
//! A function that needs one group takes that group, so a test can give it no more than this.

pub(crate) mod host_share;
pub(crate) mod ledger;
mod ledger_books;
mod ledger_fibers;
pub(crate) mod nic_links;
pub(crate) mod progress_state;
pub(crate) mod records;
pub(crate) mod script_moments;

use crate::ground::host_share::HostShare;
use crate::ground::ledger::Ledger;
use crate::ground::nic_links::NicLinks;
use crate::ground::progress_state::ProgressState;
use crate::ground::records::Records;
use crate::interfaces::Nics;
use crate::links::udp::Teller;
use crate::links::windows::ProcessWindows;
use crate::objects::completion_queue::CompletionQueue;
use crate::objects::shared_queue::SharedQueueTable;
use crate::scripts::Scripts;
use link::Dropped;
use link::shared::Outbound;
use trace::DropReason;
use transport::Time;
use transport::weak::Weakness;
use wire::{Headers, Qpn};

/// How a NIC attaches to its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Sends everything over UDP, also what stays inside the process. For tests and measurements.
    pub only_udp: bool,
    /// Does not slow down when peers tell of congestion (DCQCN is off).
    pub ignores_congestion: bool,
    /// Reliable queue pairs stop when the peer's process has ended, also those that only wait to receive.
    pub stops_without_peer: bool,
    /// So many NICs in place of the host's interfaces.
    pub nics: Option<Nics>,
    /// How weak the order is in which queue pairs do things; if nothing is said, as the profile of their device has it.
    pub weakness: Option<Weakness>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Ground {
    pub memory: memory::Memory,
    pub options: Options,
    pub records: Records,
    /// What sanitizers are told of.
    pub ledger: Ledger,
    pub scripts: Scripts,
    pub host: HostShare,
    pub links: NicLinks,
    pub windows: ProcessWindows,
    pub progress: ProgressState,
    /// Any queue pair may use them.
    pub shared_queues: SharedQueueTable,
}

impl Teller for Ground {
    fn tell(&self, from: Qpn, dropped: &Dropped) {
        self.dropped(self.now(), Some(from), dropped.headers.as_ref(), dropped.reason);
    }
}

impl Ground {
    /// The NIC's clock.
    pub fn now(&self) -> Time {
        self.records.now()
    }

    /// Uses the calling thread's right to all locks, if it has one, until the returned value is dropped. Not while the
    /// engine works, too, and not where code outside the NIC is called meanwhile, which may wait for other threads.
    #[inline]
    pub fn alone(&self) -> Option<latch::Alone> {
        let may = self.progress.engine.is_leased() && !self.records.trace.is_logged() && self.records.capture.is_none();
        may.then(latch::alone)
    }

    /// See [`Records::dropped`].
    #[cold]
    pub fn dropped(&self, now: Time, qpn: Option<Qpn>, headers: Option<&Headers>, reason: DropReason) {
        self.records.dropped(now, qpn, headers, reason);
    }

    /// See [`Records::cq_overflowed`].
    #[cold]
    pub fn cq_overflowed(&self, now: Time, qpn: Qpn, cq: &CompletionQueue) {
        self.records.cq_overflowed(now, qpn, cq);
    }

    /// Lets peers reach the memory of this process as long as nothing wants to see their packets.
    pub fn open_memory(&self) {
        if let Some(published) = &self.links.published {
            let wants_packets = self.records.trace.is_watched() || self.links.registry.rings_meet_faults();
            published.set_open(self.records.capture.is_none() && !wants_packets);
        }
    }

    /// The reader of a ring wrote what it must not: its link ends.
    #[cold]
    pub fn condemn(&self, link: &Outbound) {
        if link.condemn() {
            self.dropped(self.now(), None, None, DropReason::BrokenRing);
        }
    }
}
