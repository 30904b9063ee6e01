//! A network at rest: nodes, and the ports by which they send to each other. Hosts come first, switches after them.

use serde::Serialize;

/// A host or a switch: hosts are 0 to `hosts - 1`.
pub(crate) type Node = u32;

/// A port: one direction of a cable. The port at its other end is [`reverse`].
pub(crate) type PortId = u32;

/// Where a path ends.
pub(crate) const PATH_END: u32 = u32::MAX;

/// The other direction of a cable.
#[inline]
pub(crate) fn reverse(port: PortId) -> PortId {
    port ^ 1
}

wire::named! {
    /// What a cable joins, for figures by kind.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum LinkClass {
        /// From a host.
        HostUp: "from hosts",
        /// To a host.
        HostDown: "to hosts",
        /// Between hosts that have no switch between them.
        HostToHost: "host to host",
        /// From a lower level of switches to a higher.
        SwitchUp: "switches, upwards",
        /// From a higher level to a lower.
        SwitchDown: "switches, downwards",
        /// Between switches of one group.
        Local: "inside groups",
        /// Between groups of switches.
        Global: "between groups",
        /// Inside a server.
        Server: "inside servers",
    }
}

/// One direction of a cable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub from: Node,
    pub to: Node,
    pub class: LinkClass,
    /// In bit/s.
    pub rate: u64,
    /// In nanoseconds.
    pub delay: u64,
}

/// Nodes and cables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub hosts: u32,
    pub switches: u32,
    pub edges: Vec<Edge>,
}

impl Graph {
    pub fn new(hosts: u32) -> Graph {
        Graph { hosts, ..Graph::default() }
    }

    /// Adds `count` switches; returns the first.
    pub fn add_switches(&mut self, count: u32) -> Node {
        let first = self.nodes();
        self.switches += count;
        first
    }

    pub fn nodes(&self) -> u32 {
        self.hosts + self.switches
    }

    /// Lays a cable; returns the port from `a` to `b`.
    pub fn cable(&mut self, a: Node, b: Node, classes: (LinkClass, LinkClass), rate: u64, delay: u64) -> PortId {
        let port = self.edges.len() as PortId;
        self.edges.push(Edge { from: a, to: b, class: classes.0, rate, delay });
        self.edges.push(Edge { from: b, to: a, class: classes.1, rate, delay });
        port
    }

    /// Whether a node is a host.
    pub fn is_host(&self, node: Node) -> bool {
        node < self.hosts
    }

    /// What a node is called: `host3`, `switch0`.
    pub fn name(&self, node: Node) -> String {
        if self.is_host(node) { format!("host{node}") } else { format!("switch{}", node - self.hosts) }
    }

    /// The node of that name.
    pub fn node(&self, name: &str) -> Option<Node> {
        let number = |digits: &str, below: u32| digits.parse().ok().filter(|number| *number < below);
        match (name.strip_prefix("host"), name.strip_prefix("switch")) {
            (Some(digits), _) => number(digits, self.hosts),
            (_, Some(digits)) => number(digits, self.switches).map(|number: u32| self.hosts + number),
            _ => None,
        }
    }

    /// The ports from `a` to `b`.
    pub fn between(&self, a: Node, b: Node) -> impl Iterator<Item = PortId> {
        (0u32..).zip(&self.edges).filter(move |(_, edge)| edge.from == a && edge.to == b).map(|(port, _)| port)
    }
}
