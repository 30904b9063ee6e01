//! Raw packets: queue pairs that send and receive Ethernet frames, work queues, and the flows that say which frames a
//! queue pair gets. Other processes have sockets of their own on the same interface: each is given a copy of what its
//! own flows match, and so is the host's own network stack.

use crate::error::Error;
use crate::links::packets::{FlowCounters, MAX_FLOWS, Target};
use crate::nic::Nic;
use crate::queue_pair::frames::{RawPart, Spread};
use crate::queue_pair::{Joins, Qp};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use transport::QueuePairConfig;
use wire::flow::{Match, Rule, RuleKind};

/// What kind of raw queue pair is wanted.
#[derive(Clone, Debug, Default)]
pub struct RawOptions {
    /// It gives what it receives to work queues.
    pub spread: Option<Spread>,
    /// It takes VLAN tags out.
    pub strips_tags: bool,
    /// It is a work queue: it has no interface, and gets what a queue pair gives it.
    pub is_work_queue: bool,
}

/// A flow that is wanted.
#[derive(Clone, Debug)]
pub struct Flow {
    /// What it is for.
    pub kind: RuleKind,
    /// Lower comes first.
    pub priority: u16,
    /// Flows after it are asked, too.
    pub passes: bool,
    /// What a frame must have.
    pub matches: Vec<Match>,
    /// The tag of the completion.
    pub tag: u32,
    /// The frame goes no further.
    pub drops: bool,
    /// Counts what it matches.
    pub counters: Option<Arc<FlowCounters>>,
}

impl Nic {
    /// A raw queue pair, or a work queue. The system wants `CAP_NET_RAW` for the former.
    pub fn create_raw_qp(&self, config: QueuePairConfig, joins: Joins, options: RawOptions) -> Result<Arc<Qp>, Error> {
        let RawOptions { spread, strips_tags, is_work_queue } = options;
        let interface = joins.context.device().interface_index();
        let refused = |source| Error::System { what: NO_SOCKET, source };
        let port = if is_work_queue { None } else { Some(self.ground.links.packets.port(interface).map_err(refused)?) };
        let raw = RawPart { port, spread, strips_tags: AtomicBool::new(strips_tags) };
        self.add_qp(config, joins, Some(Box::new(raw)), None)
    }

    /// Removes the flows of a queue pair that goes.
    pub(crate) fn remove_flows(&self, qp: &Qp) {
        if let Some(port) = qp.packet_port() {
            self.ground.links.packets.remove(port, |rule| rule.target.qpn == qp.qpn());
        }
    }
}

const NO_SOCKET: &str = "raw packets need CAP_NET_RAW in the network namespace, for a packet socket";

impl Qp {
    /// Has frames given to a raw queue pair. Returns the number of the flow. Waits for the thread that receives, so it
    /// must not be called while frames are taken.
    pub fn add_flow(&self, nic: &Nic, flow: Flow) -> Result<u32, Error> {
        let port = self.packet_port().ok_or(Error::NotRaw)?;
        let Flow { kind, priority, passes, matches, tag, drops, counters } = flow;
        let target = Target { qpn: self.qpn(), counters };
        let rule = Rule { id: 0, kind, priority, passes, matches, tag, drops, target };
        if rule.contradicts_itself() {
            return Err(Error::NoFlow { why: "its conditions contradict one another" });
        }
        let added = nic.ground.links.packets.add(port, rule);
        let added = added.map_err(|source| Error::System { what: NO_SOCKET, source })?;
        added.ok_or(Error::Exhausted { what: "flows on an interface", limit: MAX_FLOWS })
    }

    /// Removes a flow: no frame comes by it any more when this returns.
    pub fn remove_flow(&self, nic: &Nic, id: u32) {
        if let Some(port) = self.packet_port() {
            nic.ground.links.packets.remove(port, |rule| rule.id == id);
        }
    }

    /// Whether it has flows.
    pub fn has_flows(&self) -> bool {
        self.packet_port().is_some_and(|port| port.has_flows_of(self.qpn()))
    }
}
