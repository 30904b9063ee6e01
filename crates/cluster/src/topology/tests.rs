//! What every topology promises, for all sizes up to some dozens.

use super::paths::cycle;
use super::*;

fn all() -> Vec<Topology> {
    let wheel = Topology::custom("wheel", |rank, size| match rank {
        0 => (1..size).collect(),
        _ => vec![0, rank % (size - 1) + 1].into_iter().filter(|near| *near != rank).collect(),
    });
    let mut all: Vec<Topology> = Topology::NAMES.iter().map(|name| name.parse().unwrap()).collect();
    all.push(wheel);
    all
}

#[test]
fn connections_have_two_ends_and_lead_everywhere() {
    for topology in all() {
        for size in (1..40).filter(|size| topology.check(*size).is_ok()) {
            let near: Vec<Vec<u32>> = (0..size).map(|rank| topology.neighbours(rank, size).unwrap()).collect();
            for rank in 0..size {
                assert!(!near[rank as usize].contains(&rank), "{topology} of {size}: {rank} with itself");
                for other in &near[rank as usize] {
                    assert!(near[*other as usize].contains(&rank), "{topology} of {size}: {rank} and {other}");
                }
            }
            let count: usize = near.iter().map(Vec::len).sum();
            assert_eq!(topology.queue_pairs(size).unwrap(), count as u64);
            assert_eq!(topology.most(size) as usize, near.iter().map(Vec::len).max().unwrap());
            assert_eq!(Tree::along(&topology, size / 2, size).unreached(), None);
        }
    }
}

#[test]
fn every_message_arrives_over_connections_that_exist() {
    for topology in all() {
        for size in (2..33).filter(|size| topology.check(*size).is_ok()) {
            let routes: Vec<Routes> = (0..size).map(|rank| Routes::along(&topology, rank, size)).collect();
            for from in 0..size {
                for to in (0..size).filter(|to| *to != from) {
                    let (mut at, mut hops) = (from, 0);
                    while at != to {
                        let next = routes[at as usize].hop(to);
                        let near = topology.neighbours(at, size).unwrap();
                        assert!(near.contains(&next), "{topology} of {size}: {from} to {to}: {at} has no {next}");
                        (at, hops) = (next, hops + 1);
                        assert!(hops < size, "{topology} of {size}: {from} to {to} goes around");
                    }
                }
            }
        }
    }
}

#[test]
fn cycles_have_everybody_once_and_follow_connections_where_they_can() {
    for topology in all() {
        for size in (1..40).filter(|size| topology.check(*size).is_ok()) {
            let cycle = cycle(&topology, size);
            let mut sorted = cycle.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..size).collect::<Vec<_>>(), "{topology} of {size}");
            let even = size.is_multiple_of(2);
            let follows = match topology {
                Topology::Ring | Topology::BidirectionalRing | Topology::FullMesh | Topology::Hypercube => true,
                Topology::Torus { .. } => even,
                _ => false,
            };
            for place in 0..if follows && size > 2 { size as usize } else { 0 } {
                let (one, next) = (cycle[place], cycle[(place + 1) % size as usize]);
                assert!(topology.neighbours(one, size).unwrap().contains(&next), "{topology} of {size}: {one}, {next}");
            }
        }
    }
}

#[test]
fn sizes_that_do_not_fit_say_what_would() {
    let refused = |topology: Topology, size| topology.check(size).unwrap_err().to_string();
    assert!(refused(Topology::Hypercube, 6).contains("4 or 8 would do"));
    assert!(refused(Topology::Torus { rows: 3 }, 7).contains("do not fill 3 rows"));
    assert!(refused(Topology::Torus { rows: 0 }, 7).contains("a ring would do"));
    assert!(refused(Topology::Ring, 0).contains("one member at least"));
    assert!(refused(Topology::FullMesh, MAX_MEMBERS + 1).contains("at most"));
    let apart = Topology::custom("apart", |rank, _| vec![rank ^ 1]);
    assert!(refused(apart, 4).contains("nothing leads from rank 0 to rank 2"));
    let beyond = Topology::custom("beyond", |_, size| vec![size]);
    assert!(refused(beyond, 4).contains("rank 4, which does not exist"));
    assert!(refused(Topology::custom("self", |rank, _| vec![rank]), 4).contains("itself"));
    assert!(Topology::Ring.neighbours(3, 3).is_err());
}

#[test]
fn names_lead_back_to_topologies() {
    for name in Topology::NAMES {
        assert_eq!(name.parse::<Topology>().unwrap().to_string(), name);
    }
    assert_eq!("torus:3".parse::<Topology>().unwrap().to_string(), "torus:3");
    for wrong in ["", "rings", "torus:", "torus:0", "torus:-1", "torus:x"] {
        wrong.parse::<Topology>().unwrap_err();
    }
}

#[test]
fn binomial_trees_take_the_fewest_steps() {
    for size in 1..40u32 {
        let tree = Tree::binomial(size / 3, size);
        assert_eq!(tree.unreached(), None);
        let depth = |mut rank: u32| {
            let mut depth = 0;
            while let Some(parent) = tree.parent(rank) {
                (rank, depth) = (parent, depth + 1);
            }
            depth
        };
        assert!((0..size).all(|rank| depth(rank) <= 32 - (size - 1).leading_zeros()));
    }
}
