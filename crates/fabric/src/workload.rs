//! What hosts do, as machines without a network: messages that arrived go in, messages to post come out.

use crate::Error;
use crate::messages::Post;
use crate::scenario::{Scenario, Workload};
use sim::Rng;
use transport::MAX_MESSAGE;

/// What the hosts of a run do.
#[derive(Debug)]
pub(crate) enum Program {
    /// Everything is posted at the beginning.
    AtOnce {
        posts: Vec<Post>,
        messages: u64,
    },
    /// Messages have a time of their own.
    Timed {
        posts: Vec<(u64, Post)>,
        messages: u64,
    },
    Ring(Ring),
    Tree(Tree),
    Mesh(Mesh),
}

/// A ring all-reduce.
#[derive(Debug)]
pub(crate) struct Ring {
    hosts: u32,
    bytes: u32,
}

/// An all-reduce up and down a binary tree.
#[derive(Debug)]
pub(crate) struct Tree {
    hosts: u32,
    bytes: u32,
    chunk: u32,
    chunks: u32,
    /// Of each host and chunk: how many children have sent theirs.
    gathered: Vec<u8>,
}

/// Each to each.
#[derive(Debug)]
pub(crate) struct Mesh {
    hosts: u32,
    bytes: u32,
    parallel: u32,
    /// How many messages each host has posted.
    posted: Vec<u32>,
}

/// A chunk on its way down.
const DOWNWARD_BIT: u32 = 1 << 31;

impl Program {
    pub fn new(scenario: &Scenario, rng: &mut Rng) -> Result<Program, Error> {
        let hosts = scenario.hosts;
        let sound = |bytes: u32| match bytes {
            0 => refuse("a message of 0 bytes is none".into()),
            _ if u64::from(bytes) > MAX_MESSAGE => refuse(format!("a message of {bytes} bytes is longer than 2^31")),
            _ => Ok(()),
        };
        Ok(match &scenario.workload {
            &Workload::Incast { senders, bytes, messages } => {
                sound(bytes)?;
                let senders = if senders == 0 { hosts - 1 } else { senders };
                if senders >= hosts {
                    return refuse(format!("{hosts} hosts have no {senders} senders beside the receiver"));
                }
                let from = |nth: u32| Post { from: nth % senders + 1, to: 0, bytes, tag: nth / senders };
                Program::at_once((0..product(senders, messages)?).map(from))
            }
            &Workload::Permutation { bytes, messages } => {
                sound(bytes)?;
                let to = cycle(hosts, rng);
                let post =
                    |nth: u32| Post { from: nth % hosts, to: to[(nth % hosts) as usize], bytes, tag: nth / hosts };
                Program::at_once((0..product(hosts, messages)?).map(post))
            }
            &Workload::AllReduceRing { bytes } => {
                sound(bytes)?;
                Program::Ring(Ring { hosts, bytes })
            }
            &Workload::AllReduceTree { bytes, chunk } => {
                sound(bytes)?;
                sound(chunk)?;
                let chunks = bytes.div_ceil(chunk);
                if chunks >= DOWNWARD_BIT {
                    return refuse(format!("{bytes} bytes in chunks of {chunk} are too many chunks"));
                }
                let places = product(hosts, chunks)? as usize;
                Program::Tree(Tree { hosts, bytes, chunk, chunks, gathered: vec![0; places] })
            }
            &Workload::AllToAll { bytes, parallel } => {
                sound(bytes)?;
                let parallel = if parallel == 0 { hosts } else { parallel };
                Program::Mesh(Mesh { hosts, bytes, parallel, posted: vec![0; hosts as usize] })
            }
            Workload::Trace { messages } => {
                let mut posts = Vec::with_capacity(messages.len());
                for (nth, message) in (0..).zip(messages) {
                    sound(message.bytes)?;
                    let (from, to) = (message.from, message.to);
                    if from >= hosts || to >= hosts || from == to {
                        return refuse(format!(
                            "a message from host {from} to host {to} in a network of {hosts} hosts"
                        ));
                    }
                    posts.push((message.at, Post { from, to, bytes: message.bytes, tag: nth }));
                }
                Program::Timed { messages: posts.len() as u64, posts }
            }
        })
    }

    fn at_once(posts: impl Iterator<Item = Post>) -> Program {
        let posts: Vec<Post> = posts.collect();
        Program::AtOnce { messages: posts.len() as u64, posts }
    }

    /// How many queue pairs it connects at most.
    pub fn queue_pairs(&self, hosts: u32) -> u64 {
        let connections = match self {
            Program::AtOnce { messages, .. } | Program::Timed { messages, .. } => {
                let hosts = u64::from(hosts);
                (*messages).min(hosts * (hosts - 1) / 2)
            }
            Program::Ring(ring) => u64::from(ring.hosts),
            Program::Tree(tree) => u64::from(tree.hosts - 1),
            Program::Mesh(mesh) => u64::from(mesh.hosts) * u64::from(mesh.hosts - 1) / 2,
        };
        2 * connections
    }

    /// How many messages there are in all.
    pub fn messages(&self) -> u64 {
        match self {
            Program::AtOnce { messages, .. } | Program::Timed { messages, .. } => *messages,
            Program::Ring(ring) => u64::from(ring.hosts) * 2 * u64::from(ring.hosts - 1),
            Program::Tree(tree) => 2 * u64::from(tree.hosts - 1) * u64::from(tree.chunks),
            Program::Mesh(mesh) => u64::from(mesh.hosts) * u64::from(mesh.hosts - 1),
        }
    }

    /// What is posted at the beginning, and what at a time of its own.
    pub fn begin(&mut self, out: &mut Vec<Post>) -> Vec<(u64, Post)> {
        match self {
            Program::AtOnce { posts, .. } => out.append(posts),
            Program::Timed { posts, .. } => return std::mem::take(posts),
            Program::Ring(ring) => out.extend((0..ring.hosts).map(|host| ring.step(host, 0))),
            Program::Tree(tree) => tree.begin(out),
            Program::Mesh(mesh) => {
                // Everyone's first, everyone's second: hosts begin together.
                for _ in 0..mesh.parallel.min(mesh.hosts - 1) {
                    for host in 0..mesh.hosts {
                        mesh.next(host, out);
                    }
                }
            }
        }
        Vec::new()
    }

    /// A message arrived: its receiver may have something to post.
    pub fn received(&mut self, post: &Post, out: &mut Vec<Post>) {
        match self {
            Program::AtOnce { .. } | Program::Timed { .. } | Program::Mesh(_) => {}
            Program::Ring(ring) => {
                if post.tag + 1 < 2 * (ring.hosts - 1) {
                    out.push(ring.step(post.to, post.tag + 1));
                }
            }
            Program::Tree(tree) => tree.received(post, out),
        }
    }

    /// A message is acknowledged: its sender may have another.
    pub fn sent(&mut self, post: &Post, out: &mut Vec<Post>) {
        if let Program::Mesh(mesh) = self {
            mesh.next(post.from, out);
        }
    }
}

impl Ring {
    /// Step `step` of a host: an n-th of the vector to the next host; the first of them are a byte longer if need be.
    fn step(&self, host: u32, step: u32) -> Post {
        let part = (host + self.hosts - step % self.hosts) % self.hosts;
        let bytes = self.bytes / self.hosts + u32::from(part < self.bytes % self.hosts);
        Post { from: host, to: (host + 1) % self.hosts, bytes: bytes.max(1), tag: step }
    }
}

impl Tree {
    fn children(&self, host: u32) -> impl Iterator<Item = u32> + use<> {
        let hosts = self.hosts;
        [2 * host + 1, 2 * host + 2].into_iter().filter(move |child| *child < hosts)
    }

    fn length(&self, chunk: u32) -> u32 {
        self.chunk.min(self.bytes - chunk * self.chunk)
    }

    /// Leaves send what they have.
    fn begin(&mut self, out: &mut Vec<Post>) {
        for chunk in 0..self.chunks {
            for host in (1..self.hosts).filter(|host| self.children(*host).next().is_none()) {
                out.push(Post { from: host, to: (host - 1) / 2, bytes: self.length(chunk), tag: chunk });
            }
        }
    }

    fn received(&mut self, post: &Post, out: &mut Vec<Post>) {
        let (host, chunk) = (post.to, post.tag & !DOWNWARD_BIT);
        if post.tag & DOWNWARD_BIT == 0 {
            let gathered = &mut self.gathered[(host * self.chunks + chunk) as usize];
            *gathered += 1;
            if usize::from(*gathered) < self.children(host).count() {
                return;
            }
            if host != 0 {
                return out.push(Post { from: host, to: (host - 1) / 2, bytes: post.bytes, tag: chunk });
            }
        }
        let down = |child| Post { from: host, to: child, bytes: post.bytes, tag: chunk | DOWNWARD_BIT };
        out.extend(self.children(host).map(down));
    }
}

impl Mesh {
    /// The next message of a host, if one is left: to the one after it, then to the one after that.
    fn next(&mut self, host: u32, out: &mut Vec<Post>) {
        let posted = &mut self.posted[host as usize];
        if *posted + 1 < self.hosts {
            *posted += 1;
            out.push(Post { from: host, to: (host + *posted) % self.hosts, bytes: self.bytes, tag: *posted });
        }
    }
}

fn refuse<T>(why: String) -> Result<T, Error> {
    Err(Error::Workload(why))
}

/// The most messages that are known from the beginning.
const MAX_KNOWN_MESSAGES: u32 = 1 << 24;

fn product(hosts: u32, messages: u32) -> Result<u32, Error> {
    let too_many = || Error::Workload(format!("{messages} messages of each of {hosts} hosts are too many"));
    hosts.checked_mul(messages).filter(|all| *all <= MAX_KNOWN_MESSAGES).ok_or_else(too_many)
}

/// To whom each host sends: a cycle through all of them, so that none sends to itself (Sattolo).
fn cycle(hosts: u32, rng: &mut Rng) -> Vec<u32> {
    let mut to: Vec<u32> = (0..hosts).collect();
    for last in (1..to.len()).rev() {
        to.swap(last, rng.below(last as u64) as usize);
    }
    to
}

#[cfg(test)]
mod tests;
