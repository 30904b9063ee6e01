//! Regions of a network: switches with the hosts at them, some to a region. What happens in one reaches another only
//! over a cable, so that each can go on for as long as the shortest cable takes (see `calendar`).

use crate::graph::{Graph, Node};

/// A network with fewer ports lies in the processor's caches as a whole.
const LARGE_NETWORK_PORTS: usize = 1_000;
/// Ports of a region: few enough for the caches, and enough to do in one turn.
const PORTS_PER_REGION: u32 = 128;
/// Shorter turns than this, in nanoseconds, are not worth it.
const MIN_TURN_NANOS: u64 = 100;

/// Which region is where.
#[derive(Debug)]
pub(crate) struct Regions {
    pub count: usize,
    /// The shortest delay of a cable, in nanoseconds.
    pub delay: u64,
    /// Of each node.
    of_node: Vec<u16>,
    /// Of the node that each port leads to.
    beyond: Vec<u16>,
}

impl Regions {
    pub fn new(graph: &Graph) -> Regions {
        let nodes = graph.nodes() as usize;
        let delay = graph.edges.iter().map(|edge| edge.delay).min().unwrap_or(0);
        let mut regions = Regions { count: 1, delay, of_node: vec![0; nodes], beyond: vec![0; graph.edges.len()] };
        if graph.edges.len() < LARGE_NETWORK_PORTS || delay < MIN_TURN_NANOS {
            return regions;
        }
        let mut ports = vec![0u32; nodes];
        // A host is in the region of its first switch. A switch, and a host without one, stands for itself.
        let mut head: Vec<Node> = (0..graph.nodes()).collect();
        for edge in &graph.edges {
            ports[edge.from as usize] += 1;
            if graph.is_host(edge.from) && !graph.is_host(edge.to) && head[edge.from as usize] == edge.from {
                head[edge.from as usize] = edge.to;
            }
        }
        let mut of_head = vec![0u32; nodes];
        for (node, head) in head.iter().enumerate() {
            of_head[*head as usize] += ports[node];
        }
        let (mut region, mut filled) = (0u16, 0);
        for node in (0..nodes).filter(|node| head[*node] as usize == *node) {
            if filled >= PORTS_PER_REGION && region < u16::MAX {
                (region, filled) = (region + 1, 0);
            }
            filled += of_head[node];
            regions.of_node[node] = region;
        }
        for (node, head) in head.iter().enumerate() {
            regions.of_node[node] = regions.of_node[*head as usize];
        }
        for (beyond, edge) in regions.beyond.iter_mut().zip(&graph.edges) {
            *beyond = regions.of_node[edge.to as usize];
        }
        regions.count = usize::from(region) + 1;
        regions
    }

    /// The region of a host.
    pub fn of(&self, node: Node) -> usize {
        usize::from(self.of_node[node as usize])
    }

    /// The region that a port leads to.
    #[inline]
    pub fn beyond(&self, port: u32) -> usize {
        usize::from(self.beyond[port as usize])
    }

    /// One more port of a node, to itself.
    pub fn add_port(&mut self, node: Node) {
        self.beyond.push(self.of_node[node as usize]);
    }
}
