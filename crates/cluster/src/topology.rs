//! Who is connected with whom, and which way a message goes: pure arithmetic over ranks. Nothing here opens anything.

mod paths;
mod words;

#[cfg(test)]
mod tests;

pub(crate) use paths::{Routes, Tree, cycle};

use crate::error::Error;
use std::fmt;
use std::sync::Arc;

/// Who is connected with whom in a group of processes.
///
/// ```
/// use cluster::Topology;
///
/// assert_eq!(Topology::Ring.neighbours(0, 5)?, [1, 4]);
/// assert_eq!(Topology::Hypercube.neighbours(5, 8)?, [1, 4, 7]);
/// assert_eq!(Topology::FullMesh.queue_pairs(1024)?, 1_047_552);
/// assert_eq!(Topology::Ring.queue_pairs(1024)?, 2_048);
/// assert!(Topology::Hypercube.check(6).is_err());
/// # Ok::<(), cluster::Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Topology {
    /// Each with the next and the one before. Messages for others than these go onwards.
    Ring,
    /// The connections of a ring; messages go the shorter way, and large sums both ways at once.
    BidirectionalRing,
    /// Each with each.
    FullMesh,
    /// A grid whose rows and columns are rings. Members are numbered row by row.
    Torus {
        /// How many rows; 0 for as square as the size allows.
        rows: u32,
    },
    /// Each with those whose number differs in one bit.
    Hypercube,
    /// Member `r` with its children `2r + 1` and `2r + 2`.
    BinaryTree,
    /// Each with member 0.
    Star,
    /// What the program says.
    Custom(Custom),
}

/// A program's own topology: whom each member is connected with.
#[derive(Clone)]
pub struct Custom {
    name: Arc<str>,
    neighbours: Arc<Neighbours>,
}

type Neighbours = dyn Fn(u32, u32) -> Vec<u32> + Send + Sync;

/// The most members a group may have.
pub const MAX_MEMBERS: u32 = 1 << 16;

/// The most members whose connections are looked at one by one, where no formula says how far it is.
const MAX_SEARCHED_MEMBERS: u32 = 1 << 14;

impl Topology {
    /// A topology of one's own: `neighbours(rank, size)` says whom a member is connected with. Every member must answer
    /// alike; a connection that one end names is one.
    ///
    /// ```
    /// use cluster::Topology;
    ///
    /// // A ring with spokes.
    /// let wheel = Topology::custom("wheel", |rank, size| match rank {
    ///     0 => (1..size).collect(),
    ///     _ => vec![0, rank % (size - 1) + 1],
    /// });
    /// assert_eq!(wheel.neighbours(2, 5)?, [0, 1, 3]);
    /// # Ok::<(), cluster::Error>(())
    /// ```
    pub fn custom(name: &str, neighbours: impl Fn(u32, u32) -> Vec<u32> + Send + Sync + 'static) -> Topology {
        Topology::Custom(Custom { name: name.into(), neighbours: Arc::new(neighbours) })
    }

    /// Whether a group of this size can have it.
    ///
    /// # Errors
    /// [`Error::Topology`], which says what would do.
    pub fn check(&self, size: u32) -> Result<(), Error> {
        let refuse = |why: String| Err(Error::Topology { topology: self.to_string(), size, why });
        if size == 0 {
            return refuse("a group has one member at least".into());
        }
        if size > MAX_MEMBERS {
            return refuse(format!("a group has {MAX_MEMBERS} members at most"));
        }
        match self {
            Topology::Hypercube if !size.is_power_of_two() => {
                let above = size.next_power_of_two();
                refuse(format!("it needs a power of two: {} or {above} would do", above / 2))
            }
            Topology::Torus { rows } => match grid(*rows, size) {
                Some((rows, columns)) if rows >= 2 && columns >= 2 => Ok(()),
                Some(_) => refuse("it needs two rows and two columns at least; a ring would do".into()),
                None => refuse(format!("{size} members do not fill {rows} rows")),
            },
            Topology::Custom(custom) => self.check_custom(custom, size),
            _ => Ok(()),
        }
    }

    fn check_custom(&self, custom: &Custom, size: u32) -> Result<(), Error> {
        let refuse = |why: String| Err(Error::Topology { topology: self.to_string(), size, why });
        if size > MAX_SEARCHED_MEMBERS {
            return refuse(format!("one of a program's own has {MAX_SEARCHED_MEMBERS} members at most"));
        }
        for rank in 0..size {
            for near in (custom.neighbours)(rank, size) {
                if near >= size {
                    return refuse(format!("it connects rank {rank} with rank {near}, which does not exist"));
                }
                if near == rank {
                    return refuse(format!("it connects rank {rank} with itself"));
                }
            }
        }
        let edges = custom.edges(size);
        match Tree::over(0, size, |rank| edges[rank as usize].clone()).unreached() {
            Some(rank) => refuse(format!("nothing leads from rank 0 to rank {rank}")),
            None => Ok(()),
        }
    }

    /// Whom member `rank` is connected with, in order.
    ///
    /// # Errors
    /// [`Error::Topology`] or [`Error::Rank`].
    pub fn neighbours(&self, rank: u32, size: u32) -> Result<Vec<u32>, Error> {
        self.check(size)?;
        if rank >= size {
            return Err(Error::Rank { rank, size });
        }
        Ok(match self {
            Topology::Custom(custom) => custom.edges(size).swap_remove(rank as usize),
            _ => self.known_neighbours(rank, size),
        })
    }

    /// Of a topology whose size was checked, and which has a formula.
    fn known_neighbours(&self, rank: u32, size: u32) -> Vec<u32> {
        let mut near: Vec<u32> = match *self {
            Topology::Ring | Topology::BidirectionalRing => vec![(rank + 1) % size, (rank + size - 1) % size],
            Topology::FullMesh => (0..size).collect(),
            Topology::Torus { rows } => {
                let (rows, columns) = grid(rows, size).unwrap_or((1, size));
                let (row, column) = (rank / columns, rank % columns);
                vec![
                    (row + 1) % rows * columns + column,
                    (row + rows - 1) % rows * columns + column,
                    row * columns + (column + 1) % columns,
                    row * columns + (column + columns - 1) % columns,
                ]
            }
            Topology::Hypercube => (0..size.trailing_zeros()).map(|bit| rank ^ (1 << bit)).collect(),
            Topology::BinaryTree => {
                let mut near = vec![2 * rank + 1, 2 * rank + 2];
                near.extend(rank.checked_sub(1).map(|rank| rank / 2));
                near
            }
            Topology::Star if rank == 0 => (1..size).collect(),
            Topology::Star => vec![0],
            Topology::Custom(_) => Vec::new(),
        };
        near.retain(|near| *near < size && *near != rank);
        near.sort_unstable();
        near.dedup();
        near
    }

    /// How many queue pairs all members have together: two for each connection.
    ///
    /// # Errors
    /// [`Error::Topology`].
    pub fn queue_pairs(&self, size: u32) -> Result<u64, Error> {
        self.check(size)?;
        Ok(match self {
            Topology::FullMesh => u64::from(size) * u64::from(size - 1),
            Topology::Custom(custom) => custom.edges(size).iter().map(|near| near.len() as u64).sum(),
            _ => (0..size).map(|rank| self.known_neighbours(rank, size).len() as u64).sum(),
        })
    }

    /// The most queue pairs that one member has.
    pub(crate) fn most(&self, size: u32) -> u32 {
        let count = |rank: u32| self.known_neighbours(rank, size).len();
        let most = match self {
            Topology::FullMesh | Topology::Star => return size - 1,
            Topology::Custom(custom) => custom.edges(size).iter().map(Vec::len).max(),
            _ => (0..size).map(count).max(),
        };
        most.unwrap_or(0) as u32
    }

    /// The topology as one number: members compare theirs.
    pub(crate) fn digest(&self, size: u32) -> u64 {
        let mut digest = fnv(FNV_OFFSET, self.to_string().as_bytes());
        if let Topology::Custom(custom) = self {
            for near in custom.edges(size) {
                near.iter().for_each(|near| digest = fnv(digest, &near.to_le_bytes()));
                digest = fnv(digest, &[0xff]);
            }
        }
        digest
    }
}

pub(crate) const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a, which is enough to tell settings apart; it guards nothing.
pub(crate) fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |digest, byte| (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Custom {
    /// All connections, seen from both ends: of each member in order. What makes no sense is left out.
    fn edges(&self, size: u32) -> Vec<Vec<u32>> {
        let mut edges = vec![Vec::new(); size as usize];
        for rank in 0..size {
            for near in (self.neighbours)(rank, size) {
                if near < size && near != rank {
                    edges[rank as usize].push(near);
                    edges[near as usize].push(rank);
                }
            }
        }
        for near in &mut edges {
            near.sort_unstable();
            near.dedup();
        }
        edges
    }
}

/// Rows and columns of a torus; none if they cannot be.
pub(crate) fn grid(rows: u32, size: u32) -> Option<(u32, u32)> {
    let rows = match rows {
        0 => (1..=size.isqrt()).rev().find(|rows| size.is_multiple_of(*rows))?,
        rows => rows,
    };
    size.is_multiple_of(rows).then(|| (rows, size / rows))
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
