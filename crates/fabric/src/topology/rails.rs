//! Rail-optimised networks: NIC r of every server is at a switch of rail r, so that equal ranks of servers meet without
//! a spine. Inside a server the NICs have a switch of their own, eight times as fast. A NIC that wants another rail of
//! another server goes through the spines.

use super::{Cables, HOST_LINKS, SWITCH_LINKS, affordable, choose};
use crate::graph::{Graph, LinkClass, Node, PortId, reverse};

/// How much faster the inside of a server is than a cable.
const SERVER_SPEED: u64 = 8;

/// Cables: of each host one to its rail switch and one inside the server; of each rail switch to all spines.
pub(super) struct Rails {
    hosts: u32,
    rails: u32,
    per_leaf: u32,
    groups: u32,
    spines: u32,
}

impl Rails {
    pub fn new(graph: &mut Graph, rails: u32, per_leaf: u32, cables: Cables) -> Result<Rails, String> {
        let hosts = graph.hosts;
        if rails == 0 || !hosts.is_multiple_of(rails) {
            return Err(format!("{hosts} hosts are not whole servers of {rails} rails"));
        }
        let servers = hosts / rails;
        let per_leaf = if per_leaf == 0 { servers } else { per_leaf };
        let groups = servers.div_ceil(per_leaf);
        let spines = per_leaf;
        affordable(2 * u64::from(hosts) + u64::from(groups) * u64::from(rails) * u64::from(spines))?;
        let first_leaf = graph.add_switches(groups * rails);
        let first_server = graph.add_switches(servers);
        let first_spine = graph.add_switches(spines);
        for host in 0..hosts {
            let (server, rail) = (host / rails, host % rails);
            let leaf = first_leaf + server / per_leaf * rails + rail;
            graph.cable(host, leaf, HOST_LINKS, cables.host_rate, cables.delay);
            let inside = (LinkClass::Server, LinkClass::Server);
            graph.cable(host, first_server + server, inside, cables.host_rate * SERVER_SPEED, cables.delay / 4);
        }
        for leaf in 0..groups * rails {
            for spine in 0..spines {
                graph.cable(first_leaf + leaf, first_spine + spine, SWITCH_LINKS, cables.switch_rate, cables.delay);
            }
        }
        Ok(Rails { hosts, rails, per_leaf, groups, spines })
    }

    pub fn path(&self, from: Node, to: Node, hash: u64, out: &mut Vec<PortId>) {
        let (rail, inside) = (|host: u32| 4 * host, |host: u32| 4 * host + 2);
        if from / self.rails == to / self.rails {
            return out.extend([inside(from), reverse(inside(to))]);
        }
        let leaf =
            |host: u32| (host / self.rails / self.per_leaf).min(self.groups - 1) * self.rails + host % self.rails;
        out.push(rail(from));
        if leaf(from) != leaf(to) {
            let spine = choose(hash, 1, self.spines);
            let cable = |leaf: u32| 4 * self.hosts + 2 * (leaf * self.spines + spine);
            out.extend([cable(leaf(from)), reverse(cable(leaf(to)))]);
        }
        out.push(reverse(rail(to)));
    }
}
