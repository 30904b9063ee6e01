//! Topologies: how hosts and switches are cabled, and which way a packet takes. Routing is by the hash of its flow
//! where there are several shortest ways, as switches do it; a way with a dead link is hashed again.

mod dragonfly;
mod rails;
mod tree;

use crate::graph::{Graph, LinkClass, Node, PortId, reverse};
use crate::units::show_rate;
use dragonfly::Dragonfly;
use rails::Rails;
use tree::{ThreeLevels, TwoLevels};

/// What a network looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// All hosts at one switch.
    Star,
    /// Each host has a cable to the next; hosts forward what is not theirs.
    Ring,
    /// Leaves with hosts, each with a cable to every spine.
    FatTree2 {
        /// Hosts at a leaf; 0: chosen so that there are about as many leaves.
        per_leaf: u32,
        /// Spines; 0: as many as `per_leaf`, so that nothing is oversubscribed.
        spines: u32,
    },
    /// Pods of edge and aggregation switches below cores (Al-Fares et al., SIGCOMM 2008).
    FatTree3 {
        /// Ports of a switch; 0: the smallest even number that has room for the hosts.
        radix: u32,
    },
    /// Servers with several NICs, each NIC at the switch of its rail; servers have a switch inside.
    Rails {
        /// NICs of a server; each is a host here.
        rails: u32,
        /// Servers at one rail switch; 0: all.
        per_leaf: u32,
    },
    /// Groups of routers, all joined inside, and with cables from group to group (Kim et al., ISCA 2008).
    Dragonfly {
        /// Hosts at a router; 0: chosen. A balanced one has twice as many routers in a group, and as many global cables
        /// at a router.
        per_router: u32,
    },
}

impl Shape {
    /// Names, as scripts have them.
    pub const NAMES: [&str; 6] = ["star", "ring", "fat-tree-2", "fat-tree-3", "rails", "dragonfly"];

    /// Its name.
    pub fn name(&self) -> &'static str {
        let place = match self {
            Shape::Star => 0,
            Shape::Ring => 1,
            Shape::FatTree2 { .. } => 2,
            Shape::FatTree3 { .. } => 3,
            Shape::Rails { .. } => 4,
            Shape::Dragonfly { .. } => 5,
        };
        Shape::NAMES[place]
    }

    /// The shape of that name, with sizes left open.
    pub fn of_name(name: &str) -> Option<Shape> {
        let shapes = [
            Shape::Star,
            Shape::Ring,
            Shape::FatTree2 { per_leaf: 0, spines: 0 },
            Shape::FatTree3 { radix: 0 },
            Shape::Rails { rails: 8, per_leaf: 0 },
            Shape::Dragonfly { per_router: 0 },
        ];
        shapes.into_iter().find(|shape| shape.name() == name)
    }
}

/// Rates and delays of cables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cables {
    /// To and from hosts, in bit/s.
    pub host_rate: u64,
    /// Between switches, in bit/s.
    pub switch_rate: u64,
    /// Of a cable with the switch behind it, in nanoseconds.
    pub delay: u64,
}

const SWITCH_LINKS: (LinkClass, LinkClass) = (LinkClass::SwitchUp, LinkClass::SwitchDown);
const HOST_LINKS: (LinkClass, LinkClass) = (LinkClass::HostUp, LinkClass::HostDown);

enum Plan {
    Star,
    Ring,
    TwoLevels(TwoLevels),
    ThreeLevels(ThreeLevels),
    Rails(Rails),
    Dragonfly(Dragonfly),
}

/// A network that was laid out.
pub(crate) struct Topology {
    pub graph: Graph,
    plan: Plan,
    pub summary: String,
}

impl Topology {
    /// Lays it out, or says why it cannot be.
    pub fn new(shape: Shape, hosts: u32, cables: Cables) -> Result<Topology, String> {
        if hosts < 2 {
            return Err(format!("a network has at least 2 hosts, not {hosts}"));
        }
        let mut graph = Graph::new(hosts);
        let plan = match shape {
            Shape::Star => {
                let switch = graph.add_switches(1);
                for host in 0..hosts {
                    graph.cable(host, switch, HOST_LINKS, cables.host_rate, cables.delay);
                }
                Plan::Star
            }
            Shape::Ring => {
                // Two hosts have two cables, as a ring does.
                for host in 0..hosts {
                    let classes = (LinkClass::HostToHost, LinkClass::HostToHost);
                    graph.cable(host, (host + 1) % hosts, classes, cables.host_rate, cables.delay);
                }
                Plan::Ring
            }
            Shape::FatTree2 { per_leaf, spines } => {
                Plan::TwoLevels(TwoLevels::new(&mut graph, per_leaf, spines, cables)?)
            }
            Shape::FatTree3 { radix } => Plan::ThreeLevels(ThreeLevels::new(&mut graph, radix, cables)?),
            Shape::Rails { rails, per_leaf } => Plan::Rails(Rails::new(&mut graph, rails, per_leaf, cables)?),
            Shape::Dragonfly { per_router } => Plan::Dragonfly(Dragonfly::new(&mut graph, per_router, cables)?),
        };
        let summary = format!(
            "{}: {hosts} hosts, {} switch{}, {} cables, {} to a host",
            shape.name(),
            graph.switches,
            if graph.switches == 1 { "" } else { "es" },
            graph.edges.len() / 2,
            show_rate(cables.host_rate as f64),
        );
        Ok(Topology { graph, plan, summary })
    }

    /// The ports a packet of this flow passes from `from` to `to`, which are different hosts.
    pub fn path(&self, from: Node, to: Node, hash: u64, out: &mut Vec<PortId>) {
        match &self.plan {
            // Cable n is host n's.
            Plan::Star => out.extend([2 * from, reverse(2 * to)]),
            Plan::Ring => self.around(from, to, hash, out),
            Plan::TwoLevels(tree) => tree.path(from, to, hash, out),
            Plan::ThreeLevels(tree) => tree.path(from, to, hash, out),
            Plan::Rails(rails) => rails.path(from, to, hash, out),
            Plan::Dragonfly(dragonfly) => dragonfly.path(from, to, hash, out),
        }
    }

    /// The shorter way around the ring. Cable n leads from host n to the next.
    fn around(&self, from: Node, to: Node, hash: u64, out: &mut Vec<PortId>) {
        let hosts = self.graph.hosts;
        let ahead = (to + hosts - from) % hosts;
        let behind = hosts - ahead;
        if ahead < behind || ahead == behind && hash.is_multiple_of(2) {
            out.extend((0..ahead).map(|step| 2 * ((from + step) % hosts)));
        } else {
            out.extend((1..=behind).map(|step| reverse(2 * ((from + hosts - step) % hosts))));
        }
    }
}

/// The most cables there may be: ten times what ten thousand hosts need.
const MAX_CABLES: u64 = 1 << 22;

/// Refuses what would not fit into memory.
fn affordable(cables: u64) -> Result<(), String> {
    if cables > MAX_CABLES {
        Err(format!("it would have {cables} cables, and {MAX_CABLES} are the most there may be"))
    } else {
        Ok(())
    }
}

/// Another hash for another choice, so that switches do not all choose alike.
fn salted(hash: u64, salt: u64) -> u64 {
    let mut z = hash ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One of `count`, by the flow's hash.
fn choose(hash: u64, salt: u64, count: u32) -> u32 {
    ((u128::from(salted(hash, salt)) * u128::from(count)) >> 64) as u32
}

#[cfg(test)]
mod tests;
