//! Fat trees of two and three levels.

use super::{Cables, HOST_LINKS, SWITCH_LINKS, affordable, choose};
use crate::graph::{Graph, Node, PortId, reverse};

/// Leaves and spines. Cables: first those of the hosts, in order; then of each leaf to all spines.
pub(super) struct TwoLevels {
    hosts: u32,
    per_leaf: u32,
    spines: u32,
}

impl TwoLevels {
    pub fn new(graph: &mut Graph, per_leaf: u32, spines: u32, cables: Cables) -> Result<TwoLevels, String> {
        let hosts = graph.hosts;
        let per_leaf = if per_leaf == 0 { hosts.isqrt().max(1) } else { per_leaf };
        let spines = if spines == 0 { per_leaf } else { spines };
        let leaves = hosts.div_ceil(per_leaf);
        affordable(u64::from(hosts) + u64::from(leaves) * u64::from(spines))?;
        let (first_leaf, first_spine) = (graph.add_switches(leaves), graph.add_switches(spines));
        for host in 0..hosts {
            graph.cable(host, first_leaf + host / per_leaf, HOST_LINKS, cables.host_rate, cables.delay);
        }
        for leaf in 0..leaves {
            for spine in 0..spines {
                graph.cable(first_leaf + leaf, first_spine + spine, SWITCH_LINKS, cables.switch_rate, cables.delay);
            }
        }
        Ok(TwoLevels { hosts, per_leaf, spines })
    }

    pub fn path(&self, from: Node, to: Node, hash: u64, out: &mut Vec<PortId>) {
        let (here, there) = (from / self.per_leaf, to / self.per_leaf);
        out.push(2 * from);
        if here != there {
            let spine = choose(hash, 1, self.spines);
            let cable = |leaf: u32| 2 * (self.hosts + leaf * self.spines + spine);
            out.extend([cable(here), reverse(cable(there))]);
        }
        out.push(reverse(2 * to));
    }
}

/// A fat tree of switches with `radix` ports: pods of `radix / 2` edge and as many aggregation switches, and cores, of
/// which each aggregation switch has `radix / 2`. Pods without hosts are not built. Cables: of hosts; of each edge
/// switch to the aggregation switches of its pod; of each aggregation switch to its cores.
pub(super) struct ThreeLevels {
    hosts: u32,
    half: u32,
    edges: u32,
}

impl ThreeLevels {
    pub fn new(graph: &mut Graph, radix: u32, cables: Cables) -> Result<ThreeLevels, String> {
        let hosts = graph.hosts;
        let room = |radix: u32| u64::from(radix).pow(3) / 4;
        let radix = if radix == 0 {
            (2..).step_by(2).find(|radix| room(*radix) >= u64::from(hosts)).unwrap_or(u32::MAX)
        } else {
            radix
        };
        if radix % 2 != 0 || room(radix) < u64::from(hosts) {
            return Err(format!(
                "a fat tree of 3 levels has an even radix, and radix^3 / 4 hosts: radix {radix} does not do for {hosts}"
            ));
        }
        let half = radix / 2;
        let pods = hosts.div_ceil(half * half);
        affordable(u64::from(hosts) + 2 * u64::from(pods) * u64::from(half).pow(2))?;
        let first_edge = graph.add_switches(pods * half);
        let first_aggregation = graph.add_switches(pods * half);
        let first_core = graph.add_switches(half * half);
        for host in 0..hosts {
            graph.cable(host, first_edge + host / half, HOST_LINKS, cables.host_rate, cables.delay);
        }
        for edge in 0..pods * half {
            for nth in 0..half {
                let above = first_aggregation + edge / half * half + nth;
                graph.cable(first_edge + edge, above, SWITCH_LINKS, cables.switch_rate, cables.delay);
            }
        }
        for aggregation in 0..pods * half {
            for nth in 0..half {
                let core = first_core + aggregation % half * half + nth;
                graph.cable(first_aggregation + aggregation, core, SWITCH_LINKS, cables.switch_rate, cables.delay);
            }
        }
        Ok(ThreeLevels { hosts, half, edges: pods * half })
    }

    pub fn path(&self, from: Node, to: Node, hash: u64, out: &mut Vec<PortId>) {
        let half = self.half;
        let (here, there) = (from / half, to / half);
        out.push(2 * from);
        if here != there {
            let aggregation = choose(hash, 1, half);
            let up = |edge: u32| 2 * (self.hosts + edge * half + aggregation);
            out.push(up(here));
            if here / half != there / half {
                let core = choose(hash, 2, half);
                let upper = |pod: u32| 2 * (self.hosts + self.edges * half + (pod * half + aggregation) * half + core);
                out.extend([upper(here / half), reverse(upper(there / half))]);
            }
            out.push(reverse(up(there)));
        }
        out.push(reverse(2 * to));
    }
}
