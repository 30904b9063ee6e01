//! Dragonflies, balanced: `p` hosts at a router, `2p` routers in a group, `p` global cables at a router, and up to
//! `2p * p + 1` groups. The shortest way has one global cable: to the router that has one to the other group, over, and
//! to the router of the host.

use super::{Cables, HOST_LINKS, affordable, choose};
use crate::graph::{Graph, LinkClass, Node, PortId, reverse};

pub(super) struct Dragonfly {
    per_router: u32,
    routers: u32,
    groups: u32,
    /// The ports from router to router inside a group: `local[a * routers + b]`, for all groups in turn.
    local: Vec<PortId>,
    /// Cables between groups, as ports from the lower group to the higher, with the routers they join: `global[low *
    /// groups + high]`.
    global: Vec<Vec<(PortId, u32, u32)>>,
}

impl Dragonfly {
    pub fn new(graph: &mut Graph, per_router: u32, cables: Cables) -> Result<Dragonfly, String> {
        let hosts = graph.hosts;
        let room = |p: u64| 2 * p * p * (2 * p * p + 1);
        let p = if per_router == 0 {
            (1..).find(|p| room(u64::from(*p)) >= u64::from(hosts)).unwrap_or(u32::MAX)
        } else {
            per_router
        };
        if room(u64::from(p)) < u64::from(hosts) {
            return Err(format!("a dragonfly with {p} hosts at a router has {} at most, not {hosts}", room(p.into())));
        }
        let routers = 2 * p;
        let groups = hosts.div_ceil(p * routers);
        affordable(u64::from(hosts) + u64::from(groups) * u64::from(routers).pow(2) + u64::from(groups).pow(2))?;
        let first = graph.add_switches(groups * routers);
        for host in 0..hosts {
            graph.cable(host, first + host / p, HOST_LINKS, cables.host_rate, cables.delay);
        }
        let mut local = vec![0; (groups * routers * routers) as usize];
        for group in 0..groups {
            for a in 0..routers {
                for b in a + 1..routers {
                    let base = first + group * routers;
                    let classes = (LinkClass::Local, LinkClass::Local);
                    let port = graph.cable(base + a, base + b, classes, cables.switch_rate, cables.delay);
                    let place = |a: u32, b: u32| ((group * routers + a) * routers + b) as usize;
                    (local[place(a, b)], local[place(b, a)]) = (port, reverse(port));
                }
            }
        }
        let mut global = vec![Vec::new(); (groups * groups) as usize];
        let mut used = vec![0u32; groups as usize];
        // Every pair of groups gets a cable in turn, as long as all have a port left: `p` at each router.
        let ports = routers * p;
        let rounds = if groups > 1 { ports / (groups - 1) } else { 0 };
        for _ in 0..rounds {
            for low in 0..groups {
                for high in low + 1..groups {
                    let (a, b) = (used[low as usize] % routers, used[high as usize] % routers);
                    used[low as usize] += 1;
                    used[high as usize] += 1;
                    let classes = (LinkClass::Global, LinkClass::Global);
                    let (from, to) = (first + low * routers + a, first + high * routers + b);
                    let port = graph.cable(from, to, classes, cables.switch_rate, 2 * cables.delay);
                    global[(low * groups + high) as usize].push((port, a, b));
                }
            }
        }
        Ok(Dragonfly { per_router: p, routers, groups, local, global })
    }

    pub fn path(&self, from: Node, to: Node, hash: u64, out: &mut Vec<PortId>) {
        let place = |host: u32| (host / self.per_router / self.routers, host / self.per_router % self.routers);
        let ((here, mut at), (there, last)) = (place(from), place(to));
        out.push(2 * from);
        if here != there {
            let (low, high) = (here.min(there), here.max(there));
            let cables = &self.global[(low * self.groups + high) as usize];
            let (port, a, b) = cables[choose(hash, 1, cables.len() as u32) as usize];
            let (leave, arrive, port) = if here == low { (a, b, port) } else { (b, a, reverse(port)) };
            self.inside(here, at, leave, out);
            out.push(port);
            at = arrive;
        }
        self.inside(there, at, last, out);
        out.push(reverse(2 * to));
    }

    fn inside(&self, group: u32, from: u32, to: u32, out: &mut Vec<PortId>) {
        if from != to {
            out.push(self.local[((group * self.routers + from) * self.routers + to) as usize]);
        }
    }
}
