//! Ways through a topology: the next hop to each member, trees over all of them, and cycles.

use super::{Topology, grid};
use std::collections::VecDeque;

/// Which neighbour a message for a member goes to first.
#[derive(Debug)]
pub(crate) enum Routes {
    /// Everybody is reached at once: in a mesh, or because connections are made on demand.
    Direct,
    /// The neighbour on the way to each member.
    Hops(Vec<u32>),
}

impl Routes {
    /// The ways of member `rank` along the connections of a topology that fits the size.
    pub fn along(topology: &Topology, rank: u32, size: u32) -> Routes {
        let hops = |hop: &dyn Fn(u32) -> u32| Routes::Hops((0..size).map(hop).collect());
        match *topology {
            Topology::FullMesh => Routes::Direct,
            Topology::Ring => hops(&|to| if (to + 1) % size == rank { to } else { (rank + 1) % size }),
            Topology::BidirectionalRing => hops(&|to| {
                let ahead = (to + size - rank) % size;
                if ahead <= size / 2 { (rank + 1) % size } else { (rank + size - 1) % size }
            }),
            Topology::Star => hops(&|to| if rank == 0 { to } else { 0 }),
            // The lowest bit that differs first.
            Topology::Hypercube => hops(&|to| rank ^ ((rank ^ to) & (rank ^ to).wrapping_neg())),
            Topology::BinaryTree => hops(&|to| {
                // The child whose subtree has it, or else the parent.
                let mut below = to;
                while below > 2 * rank + 2 {
                    below = (below - 1) / 2;
                }
                if below > 2 * rank { below } else { rank.saturating_sub(1) / 2 }
            }),
            Topology::Torus { rows } => {
                let (rows, columns) = grid(rows, size).unwrap_or((1, size));
                hops(&|to| {
                    // Along the row first, the shorter way.
                    let (row, column) = (rank / columns, rank % columns);
                    let (down, right) =
                        ((to / columns + rows - row) % rows, (to % columns + columns - column) % columns);
                    match (down, right) {
                        (0, 0) => rank,
                        (_, 1..) if right <= columns / 2 => row * columns + (column + 1) % columns,
                        (_, 1..) => row * columns + (column + columns - 1) % columns,
                        _ if down <= rows / 2 => (row + 1) % rows * columns + column,
                        _ => (row + rows - 1) % rows * columns + column,
                    }
                })
            }
            Topology::Custom(ref custom) => {
                let edges = custom.edges(size);
                let tree = Tree::over(rank, size, |rank| edges[rank as usize].clone());
                Routes::Hops((0..size).map(|to| tree.first_hop(to)).collect())
            }
        }
    }

    /// The first hop to `to`.
    pub fn hop(&self, to: u32) -> u32 {
        match self {
            Routes::Direct => to,
            Routes::Hops(hops) => hops.get(to as usize).copied().unwrap_or(to),
        }
    }
}

/// A tree over all members: of each its parent, and its children in order.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: u32,
    parents: Vec<Option<u32>>,
}

impl Tree {
    /// The nearest first, so no member is farther from the root than it must be.
    pub fn over(root: u32, size: u32, near: impl Fn(u32) -> Vec<u32>) -> Tree {
        let mut parents = vec![None; size as usize];
        let mut queue = VecDeque::from([root]);
        while let Some(rank) = queue.pop_front() {
            for next in near(rank) {
                if next != root && next < size && parents[next as usize].is_none() {
                    parents[next as usize] = Some(rank);
                    queue.push_back(next);
                }
            }
        }
        Tree { root, parents }
    }

    /// A tree of the fewest steps, where everybody reaches everybody: in step `k` each of `2^k` members tells another.
    pub fn binomial(root: u32, size: u32) -> Tree {
        let parent = |rank: u32| {
            let place = (rank + size - root) % size;
            let above = place & place.wrapping_sub(1);
            (place != 0).then(|| (above + root) % size)
        };
        Tree { root, parents: (0..size).map(parent).collect() }
    }

    /// The tree that follows the connections of a topology.
    pub fn along(topology: &Topology, root: u32, size: u32) -> Tree {
        match topology {
            Topology::FullMesh => Tree::binomial(root, size),
            Topology::Custom(custom) => {
                let edges = custom.edges(size);
                Tree::over(root, size, |rank| edges[rank as usize].clone())
            }
            _ => Tree::over(root, size, |rank| topology.known_neighbours(rank, size)),
        }
    }

    pub fn parent(&self, rank: u32) -> Option<u32> {
        self.parents[rank as usize]
    }

    pub fn children(&self, rank: u32) -> Vec<u32> {
        let mut children: Vec<u32> =
            (0..self.parents.len() as u32).filter(|child| self.parents[*child as usize] == Some(rank)).collect();
        // Those with most below them are told first; in a binomial tree these are the farthest.
        children.reverse();
        children
    }

    /// A member that the tree does not have.
    pub fn unreached(&self) -> Option<u32> {
        (0..self.parents.len() as u32).find(|rank| *rank != self.root && self.parents[*rank as usize].is_none())
    }

    fn first_hop(&self, to: u32) -> u32 {
        let mut hop = to;
        while let Some(parent) = self.parents[hop as usize].filter(|parent| *parent != self.root) {
            hop = parent;
        }
        hop
    }
}

/// All members in a cycle in which as many as possible are connected with the next.
pub(crate) fn cycle(topology: &Topology, size: u32) -> Vec<u32> {
    match topology {
        // A Gray code: each differs from the next in one bit.
        Topology::Hypercube => (0..size).map(|place| place ^ (place >> 1)).collect(),
        Topology::Torus { rows } => match grid(*rows, size) {
            // Up the first column, and in between from row to row, there and back.
            Some((rows, columns)) if rows.is_multiple_of(2) && columns > 1 => {
                snake(rows, columns, |row, column| row * columns + column)
            }
            Some((rows, columns)) if columns.is_multiple_of(2) && rows > 1 => {
                snake(columns, rows, |column, row| row * columns + column)
            }
            _ => (0..size).collect(),
        },
        _ => (0..size).collect(),
    }
}

fn snake(rows: u32, columns: u32, rank: impl Fn(u32, u32) -> u32) -> Vec<u32> {
    let mut cycle = Vec::new();
    for row in 0..rows {
        let along = 1..columns;
        let along: Vec<u32> = if row % 2 == 0 { along.collect() } else { along.rev().collect() };
        cycle.extend(along.into_iter().map(|column| rank(row, column)));
    }
    cycle.extend((0..rows).rev().map(|row| rank(row, 0)));
    cycle
}
