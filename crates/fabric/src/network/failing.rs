//! What goes wrong: cables that are cut, flap or lose packets, hosts that are slow; at a time, or where chance has it.

use super::{Network, plan as plans};
use crate::graph::{Edge, Graph, LinkClass, PortId, reverse};
use crate::packets::NO_PACKET;
use crate::port::{Cable, Ingress, Port, pace};
use crate::scenario::{Failure, FailureKind, FailurePlace};
use sim::Rng;
use std::collections::VecDeque;

/// A change at a moment.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Trouble {
    pub at: u64,
    what: Change,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Change {
    Down(PortId),
    Up(PortId),
    /// Goes down and comes back in turns, each half of the period, until the end.
    Flap {
        cable: PortId,
        half: u64,
        end: u64,
        down: bool,
    },
    Loss(PortId, f64),
    Slow(u32, u64),
    Healthy(u32),
}

/// What happens when, for all failures.
pub(super) fn plan(failures: &[Failure], graph: &Graph, rng: &mut Rng) -> Result<Vec<Trouble>, String> {
    let mut troubles = Vec::new();
    for failure in failures {
        let at = failure.at.saturating_add(rng.below(failure.within));
        let end = failure.lasts.map(|lasts| at.saturating_add(lasts));
        if let FailureKind::SlowHost { rate } = failure.kind {
            for host in hosts_at(&failure.place, graph, rng)? {
                troubles.push(Trouble { at, what: Change::Slow(host, rate) });
                troubles.extend(end.map(|at| Trouble { at, what: Change::Healthy(host) }));
            }
            continue;
        }
        for cable in cables_at(&failure.place, graph, rng)? {
            match failure.kind {
                FailureKind::LinkDown => {
                    troubles.push(Trouble { at, what: Change::Down(cable) });
                    troubles.extend(end.map(|at| Trouble { at, what: Change::Up(cable) }));
                }
                FailureKind::Lossy { probability } => {
                    troubles.push(Trouble { at, what: Change::Loss(cable, probability) });
                    troubles.extend(end.map(|at| Trouble { at, what: Change::Loss(cable, 0.0) }));
                }
                FailureKind::Flapping { period } => {
                    let (half, end) = ((period / 2).max(1), end.unwrap_or(u64::MAX));
                    troubles.push(Trouble { at, what: Change::Flap { cable, half, end, down: false } });
                }
                FailureKind::SlowHost { .. } => {}
            }
        }
    }
    Ok(troubles)
}

/// The cables meant, each as one of its ports.
fn cables_at(place: &FailurePlace, graph: &Graph, rng: &mut Rng) -> Result<Vec<PortId>, String> {
    let cables: Vec<PortId> = match place {
        FailurePlace::Link(one, other) => {
            let node = |name: &String| graph.node(name).ok_or_else(|| format!("there is no {name} in this network"));
            let (a, b) = (node(one)?, node(other)?);
            graph.between(a, b).collect()
        }
        FailurePlace::RandomLinks(count) => {
            let all = (0..).step_by(2).zip(graph.edges.iter().step_by(2));
            let is_inner = |edge: &Edge| !graph.is_host(edge.from) && !graph.is_host(edge.to);
            let inner: Vec<PortId> = all.clone().filter(|(_, edge)| is_inner(edge)).map(|(port, _)| port).collect();
            let among = if inner.is_empty() { all.map(|(port, _)| port).collect() } else { inner };
            draw(among, *count, "cables", rng)?
        }
        FailurePlace::Host(_) | FailurePlace::RandomHosts(_) => {
            let hosts = hosts_at(place, graph, rng)?;
            (0..).zip(&graph.edges).filter(|(_, edge)| hosts.contains(&edge.from)).map(|(port, _)| port).collect()
        }
    };
    if let (FailurePlace::Link(one, other), true) = (place, cables.is_empty()) {
        return Err(format!("there is no cable between {one} and {other}"));
    }
    Ok(cables)
}

fn hosts_at(place: &FailurePlace, graph: &Graph, rng: &mut Rng) -> Result<Vec<u32>, String> {
    match place {
        FailurePlace::Host(host) if *host < graph.hosts => Ok(vec![*host]),
        FailurePlace::Host(host) => Err(format!("there is no host {host} among {}", graph.hosts)),
        FailurePlace::RandomHosts(count) => draw((0..graph.hosts).collect(), *count, "hosts", rng),
        _ => Err("only hosts are slow, not cables".into()),
    }
}

/// Some of them, by chance.
fn draw(mut among: Vec<u32>, count: u32, of: &str, rng: &mut Rng) -> Result<Vec<u32>, String> {
    if count as usize > among.len() {
        return Err(format!("{count} {of} are to fail where there are {}", among.len()));
    }
    let taken = |_| {
        let nth = rng.below(among.len() as u64) as usize;
        among.swap_remove(nth)
    };
    Ok((0..count).map(taken).collect())
}

impl Network {
    /// Something goes wrong, or is over.
    pub(super) fn trouble(&mut self, number: u32) {
        let now = self.calendar.now();
        let what = self.troubles[number as usize].what;
        self.has_slow_hosts |= matches!(what, Change::Slow(..));
        self.has_faults |= !matches!(what, Change::Slow(..) | Change::Healthy(_));
        match what {
            Change::Down(cable) => self.set_down(cable, true),
            Change::Up(cable) => self.set_down(cable, false),
            Change::Flap { cable, half, end, down } => {
                self.set_down(cable, !down);
                if !down || now < end {
                    self.troubles[number as usize].what = Change::Flap { cable, half, end, down: !down };
                    self.calendar.plan_for_all(now.saturating_add(half), plans::TROUBLE | u64::from(number));
                }
            }
            Change::Loss(cable, loss) => {
                for port in [cable, reverse(cable)] {
                    self.cables[port as usize].loss = loss;
                }
            }
            Change::Slow(host, rate) => {
                let service = self.buffers[host as usize].service;
                if service == NO_PACKET {
                    let edge = Edge { from: host, to: host, class: LinkClass::Server, rate, delay: 0 };
                    self.buffers[host as usize].service = self.ports.len() as u32;
                    // Ports come in pairs.
                    self.regions.add_port(host);
                    self.regions.add_port(host);
                    self.ports.extend([Port::new(&edge, NO_PACKET), Port::new(&edge, NO_PACKET)]);
                    self.cables.extend([Cable::new(&edge), Cable::new(&edge)]);
                    self.ingress.extend([Ingress::default(); 2]);
                    self.queues.resize(self.ports.len(), VecDeque::new());
                    self.urgent.resize(self.ports.len(), VecDeque::new());
                } else {
                    self.ports[service as usize].pace = pace(rate);
                }
            }
            Change::Healthy(host) => {
                let service = self.buffers[host as usize].service;
                if service != NO_PACKET {
                    // As fast as makes no difference, so that nothing overtakes what waits.
                    self.ports[service as usize].pace = 1;
                }
            }
        }
    }

    /// Both directions of a cable go or come back. What waits in front of it is lost, and so is what hosts go on to
    /// send.
    fn set_down(&mut self, cable: PortId, down: bool) {
        for port in [cable, reverse(cable)] {
            self.ports[port as usize].down = down;
            if down {
                self.flush(port);
            }
        }
        if !self.reroute_is_planned {
            self.reroute_is_planned = true;
            self.calendar.plan_for_all(self.calendar.now().saturating_add(self.scenario.reroute), plans::REROUTE);
        }
    }
}
