//! What a group costs, before anything is opened.

use crate::call::Header;
use crate::error::Error;
use crate::settings::{SPARE_RECEIVES, Settings};
use crate::topology::Topology;
use std::fmt;

/// Bytes of a queue pair of a group, beside its buffers: 5,806 by `cargo test -p ubiverbs-cluster --test memory` on
/// x86-64, with send queues of 64.
pub(crate) const QUEUE_PAIR: u64 = 6 << 10;

/// How many queue pairs and how much memory a group takes. Made by [`Builder::plan`](crate::Builder::plan).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    size: u32,
    queue_pairs: u64,
    most: u32,
    bytes: u64,
    most_bytes: u64,
    name: Name,
}

/// A topology's name, shortened where it must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Name([u8; 24], usize);

pub(crate) fn plan(topology: &Topology, size: u32, settings: &Settings) -> Result<Plan, Error> {
    let queue_pairs = topology.queue_pairs(size)?;
    let most = topology.most(size);
    let message = (settings.slot + Header::LENGTH) as u64;
    let of = |connections: u64, members: u64| {
        let receives = match settings.shares(most) {
            Some(shared) => u64::from(shared) * members,
            None => u64::from(settings.receives + SPARE_RECEIVES) * connections,
        };
        QUEUE_PAIR * connections + message * receives
    };
    let text = topology.to_string();
    let length = text.floor_char_boundary(24);
    let mut name = [0; 24];
    name[..length].copy_from_slice(&text.as_bytes()[..length]);
    Ok(Plan {
        size,
        queue_pairs,
        most,
        bytes: of(queue_pairs, size.into()),
        most_bytes: of(most.into(), 1),
        name: Name(name, length),
    })
}

impl Plan {
    /// Of all members together.
    pub fn queue_pairs(&self) -> u64 {
        self.queue_pairs
    }

    /// Of the member that has most.
    pub fn most_queue_pairs(&self) -> u32 {
        self.most
    }

    /// Memory of all members together, in bytes: of queue pairs and of receives. What a shared receive queue holds is
    /// counted once for each member.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of the member that has most.
    pub fn most_bytes(&self) -> u64 {
        self.most_bytes
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = str::from_utf8(&self.name.0[..self.name.1]).unwrap_or("group");
        let pairs = |count: u64| if count == 1 { "queue pair" } else { "queue pairs" };
        write!(
            f,
            "{name} of {}: {} {}, {} in all; at most {} {} and {} of one member",
            grouped(self.size.into()),
            grouped(self.queue_pairs),
            pairs(self.queue_pairs),
            size(self.bytes),
            grouped(self.most.into()),
            pairs(self.most.into()),
            size(self.most_bytes),
        )
    }
}

/// A number with commas.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in a unit in which they have few digits.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    if unit == 0 || value >= 10.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Group;

    #[test]
    fn plans_count_before_anything_is_opened() {
        let plan = |topology, size| Group::builder(size).topology(topology).plan().unwrap();
        let mesh = plan(Topology::FullMesh, 1024);
        assert_eq!((mesh.queue_pairs(), mesh.most_queue_pairs()), (1_047_552, 1023));
        assert!(mesh.to_string().starts_with("mesh of 1,024: 1,047,552 queue pairs, "), "{mesh}");
        let ring = plan(Topology::Ring, 1024);
        assert_eq!((ring.queue_pairs(), ring.most_queue_pairs()), (2048, 2));
        assert!(ring.bytes() < mesh.bytes());
        assert_eq!(plan(Topology::Star, 1).queue_pairs(), 0);
        assert!(Group::builder(6).topology(Topology::Hypercube).plan().is_err());
    }

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([grouped(0), grouped(999), grouped(1000), grouped(1047552)], ["0", "999", "1,000", "1,047,552"]);
        assert_eq!([size(17), size(2048), size(38_000_000_000)], ["17 bytes", "2.0 kB", "38 GB"]);
    }
}
