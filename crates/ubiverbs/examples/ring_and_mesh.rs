//! # 13. Ring against mesh: how many queue pairs a cluster needs
//!
//! A connected queue pair has one peer. So a cluster of `n` machines must choose who is connected with whom:
//!
//! | | queue pairs of one machine | of all | hops of a message | good for |
//! |---|---|---|---|---|
//! | full **mesh** | n - 1 | n(n - 1) | 1 | few machines, short messages |
//! | **ring** | 2 | 2n | up to n/2, handed on by programs | many machines, collective work on much data |
//!
//! Latency is the mesh's strength. A sum over all machines (*all-reduce*) is the ring's: each machine sends pieces of
//! the data around twice, so it sends less than twice the data whatever `n` is; in a mesh that sends everything to
//! everybody, it is `n - 1` times the data.
//!
//! Here the machines are eight nodes in one program, and one thread acts for all of them.
//!
//! ```text
//! cargo run --example ring_and_mesh
//! cargo run --example ring_and_mesh -- 16
//! ```

use std::collections::BTreeMap;
use std::time::Instant;
use ubiverbs::{CompletionQueue, Context, Error, ProtectionDomain, QueuePair, Reliable};

/// Words that each node has for the sum.
const WORDS: usize = 4096;

/// A machine: its queue pairs, by the number of the machine at the other end.
struct Node {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    neighbours: BTreeMap<usize, QueuePair<Reliable>>,
    sent: usize,
}

struct Cluster {
    nodes: Vec<Node>,
    is_ring: bool,
}

impl Cluster {
    fn new(context: &Context, size: usize, is_ring: bool) -> Result<Cluster, Error> {
        let node = |_| {
            let (pd, cq) = (context.alloc_pd()?, context.completion_queue(4 * size as u32).create()?);
            Ok(Node { pd, cq, neighbours: BTreeMap::new(), sent: 0 })
        };
        let nodes = (0..size).map(node).collect::<Result<Vec<Node>, Error>>()?;
        let mut cluster = Cluster { nodes, is_ring };
        for left in 0..size {
            for right in left + 1..size {
                if !is_ring || right == left + 1 || (left, right) == (0, size - 1) {
                    cluster.join(left, right)?;
                }
            }
        }
        Ok(cluster)
    }

    fn join(&mut self, left: usize, right: usize) -> Result<(), Error> {
        let prepare = |node: &Node| node.pd.queue_pair::<Reliable>(&node.cq).max_sends(4).max_receives(4).prepare();
        let (a, b) = (prepare(&self.nodes[left])?, prepare(&self.nodes[right])?);
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        self.nodes[left].neighbours.insert(right, a.connect(&at_b)?);
        self.nodes[right].neighbours.insert(left, b.connect(&at_a)?);
        Ok(())
    }

    fn queue_pairs(&self) -> usize {
        self.nodes.iter().map(|node| node.neighbours.len()).sum()
    }

    /// The way of a message: direct where there is a queue pair, else around the ring, the shorter way.
    fn way(&self, from: usize, to: usize) -> Vec<usize> {
        let size = self.nodes.len();
        if !self.is_ring {
            return vec![from, to];
        }
        let right = (to + size - from) % size;
        let steps = if right <= size / 2 { (0..=right).collect::<Vec<_>>() } else { (right..=size).rev().collect() };
        steps.into_iter().map(|step| (from + step) % size).collect()
    }

    /// Carries a message from node to node; each one receives it and sends it on. Answers the number of hops.
    fn carry(&self, from: usize, to: usize, message: &[u8]) -> Result<usize, Error> {
        let way = self.way(from, to);
        let mut carried = message.to_vec();
        for hop in way.windows(2) {
            let (sender, receiver) = (&self.nodes[hop[0]], &self.nodes[hop[1]]);
            let receiving = receiver.neighbours[&hop[0]].recv(receiver.pd.allocate(64)?)?;
            sender.neighbours[&hop[1]].send_inline(&carried)?.wait()?;
            carried = receiving.wait()?.payload().to_vec();
        }
        assert_eq!(carried, message);
        Ok(way.len() - 1)
    }

    /// Every node sends words to one other, all at once. Answers what each received.
    fn exchange(&mut self, to: impl Fn(usize) -> usize, words: Vec<Vec<u64>>) -> Result<Vec<Vec<u64>>, Error> {
        let mut receiving: Vec<_> = self.nodes.iter().map(|_| None).collect();
        for (from, words) in words.iter().enumerate() {
            let node = &self.nodes[to(from)];
            receiving[to(from)] = Some(node.neighbours[&from].recv(node.pd.allocate(words.len() * 8)?)?);
        }
        let mut sending = Vec::new();
        for (from, words) in words.iter().enumerate() {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let target = to(from);
            let node = &mut self.nodes[from];
            node.sent += bytes.len();
            sending.push(node.neighbours[&target].send(node.pd.register(bytes)?)?);
        }
        sending.into_iter().try_for_each(|sending| sending.wait().map(drop))?;
        let words = |bytes: &[u8]| bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        receiving.into_iter().map(|receiving| Ok(words(receiving.expect("one each").wait()?.payload()))).collect()
    }

    /// All nodes have words; afterwards all have the sums.
    fn all_reduce(&mut self, data: &mut [Vec<u64>]) -> Result<(), Error> {
        let size = self.nodes.len();
        if !self.is_ring {
            let own = data.to_vec();
            for distance in 1..size {
                let received = self.exchange(|from| (from + distance) % size, own.clone())?;
                data.iter_mut().zip(received).for_each(|(sum, words)| add(sum, &words));
            }
            return Ok(());
        }
        // Pieces go around once to be summed up, and once more to be told.
        let piece = |number: usize| number % size * WORDS / size..(number % size + 1) * WORDS / size;
        for step in 0..2 * (size - 1) {
            let leaving = |node: usize| piece(node + 2 * size - step);
            let words = data.iter().enumerate().map(|(node, words)| words[leaving(node)].to_vec()).collect();
            let received = self.exchange(|from| (from + 1) % size, words)?;
            for (node, words) in received.into_iter().enumerate() {
                let place = &mut data[node][leaving((node + size - 1) % size)];
                if step < size - 1 { add(place, &words) } else { place.copy_from_slice(&words) }
            }
        }
        Ok(())
    }
}

fn add(sum: &mut [u64], words: &[u64]) {
    sum.iter_mut().zip(words).for_each(|(sum, word)| *sum += word);
}

fn main() -> Result<(), Error> {
    let size = std::env::args().nth(1).map_or(8, |text| text.parse().expect("a number of nodes")).clamp(3, 64);
    let context = ubiverbs::device("ubi_lo")?.open()?;
    for (name, is_ring) in [("mesh", false), ("ring", true)] {
        let mut cluster = Cluster::new(&context, size, is_ring)?;
        println!(
            "{name}: {size} nodes, {} queue pairs, {} each",
            cluster.queue_pairs(),
            cluster.nodes[0].neighbours.len()
        );

        let (begin, mut messages, mut hops) = (Instant::now(), 0, 0);
        for from in 0..size {
            for to in (0..size).filter(|to| *to != from) {
                (messages, hops) = (messages + 1, hops + cluster.carry(from, to, b"from one to another")?);
            }
        }
        let each = begin.elapsed().as_secs_f64() * 1e6 / f64::from(messages);
        println!("{name}: every node to every other: {messages} messages, {hops} hops, {each:.1} us each");

        let mut data: Vec<Vec<u64>> = (0..size).map(|node| vec![1 << (node % 60); WORDS]).collect();
        let sum: u64 = data.iter().map(|words| words[0]).sum();
        cluster.all_reduce(&mut data)?;
        assert!(data.iter().flatten().all(|word| *word == sum), "every node has the sum of all");
        let sent = cluster.nodes[0].sent as f64 / (WORDS * 8) as f64;
        println!("{name}: the sum of {} KiB of each: a node sent {sent:.2} times its data", WORDS * 8 / 1024);
    }
    Ok(())
}
