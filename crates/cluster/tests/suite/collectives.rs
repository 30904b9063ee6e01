//! Every collective on every topology, compared with what one process computes.

use crate::members::{self, builder, members};
use cluster::{Algorithm, Element, Error, Group, Op, Topology};

/// Something else for each member and place.
fn value(rank: u32, at: usize) -> u64 {
    (u64::from(rank) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32 % 64) ^ at as u64
}

fn data(rank: u32, count: usize) -> Vec<u64> {
    (0..count).map(|at| value(rank, at)).collect()
}

fn sum(size: u32, count: usize) -> Vec<u64> {
    (0..count).map(|at| (0..size).fold(0u64, |sum, rank| sum.wrapping_add(value(rank, at)))).collect()
}

/// All calls, with few elements and with some that need several messages.
fn everything(mut group: Group) -> Result<(), Error> {
    let (rank, size) = (group.rank(), group.size());
    let n = size as usize;
    for count in [0, 1, 7, 1000] {
        group.barrier().wait()?;
        for algorithm in Algorithm::ALL {
            let mut ours = data(rank, count);
            group.all_reduce_by(algorithm, &mut ours, Op::Sum).wait()?;
            assert_eq!(ours, sum(size, count), "{algorithm} of {count} at rank {rank}");
        }
        for root in [0, size - 1] {
            let mut ours = if rank == root { data(rank, count) } else { vec![0; count] };
            group.broadcast(&mut ours, root).wait()?;
            assert_eq!(ours, data(root, count), "broadcast");
        }
        let mut all = vec![0; count * n];
        group.all_gather(&data(rank, count), &mut all).wait()?;
        assert_eq!(all, (0..size).flat_map(|rank| data(rank, count)).collect::<Vec<_>>(), "all_gather");

        let mut block = vec![0; count];
        group.reduce_scatter(&data(rank, count * n), &mut block, Op::Sum).wait()?;
        let mine = rank as usize * count;
        assert_eq!(block, sum(size, count * n)[mine..mine + count], "reduce_scatter");

        let mut from = vec![0; count * n];
        group.all_to_all(&data(rank, count * n), &mut from).wait()?;
        let block_of = |other: u32| data(other, count * n)[mine..mine + count].to_vec();
        assert_eq!(from, (0..size).flat_map(block_of).collect::<Vec<_>>(), "all_to_all");
    }
    // Once around, from each to the next.
    if size > 1 {
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        group.send(next, &data(rank, 300)).wait()?;
        let mut letter = vec![0u64; 300];
        group.receive(previous, &mut letter).wait()?;
        assert_eq!(letter, data(previous, 300));
    }
    group.leave().wait()
}

fn succeed(topology: &Topology, size: u32, change: impl Fn(cluster::Builder) -> cluster::Builder) {
    let builder = change(builder(size, topology).messages(4, 1024));
    for outcome in members(size, builder, everything) {
        outcome.unwrap_or_else(|error| panic!("{topology} of {size}: {error}"));
    }
}

#[test]
fn on_every_topology() {
    for name in Topology::NAMES {
        let topology: Topology = name.parse().unwrap();
        for size in [4, 6, 8].into_iter().filter(|size| topology.check(*size).is_ok()).take(2) {
            succeed(&topology, size, |builder| builder);
        }
    }
}

#[test]
fn in_groups_of_any_size() {
    for size in [1, 2, 3, 5, 7] {
        succeed(&Topology::Ring, size, |builder| builder);
        succeed(&Topology::BidirectionalRing, size, |builder| builder);
    }
}

/// Pieces of many messages, of which few are under way at once; and some pieces have one more than others.
#[test]
fn around_a_ring_with_more_messages_than_are_under_way() {
    let act = |mut group: Group| {
        let (rank, size) = (group.rank(), group.size());
        let a_message = 8;
        for count in [a_message * 7 + 1, a_message * 40 * size as usize + 1, 3001] {
            let mut ours = data(rank, count);
            group.all_reduce_by(Algorithm::Ring, &mut ours, Op::Sum).wait()?;
            assert_eq!(ours, sum(size, count), "{count} at rank {rank} of {size}");
        }
        group.leave().wait()
    };
    for size in [2, 3, 5] {
        for topology in [Topology::Ring, Topology::BidirectionalRing, Topology::FullMesh] {
            let outcomes = members(size, builder(size, &topology).messages(2, 64), act);
            outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        }
    }
}

/// Messages as long as they are if nothing is said: one, one and a little more, several.
#[test]
fn in_long_messages() {
    let act = |mut group: Group| {
        let (rank, size) = (group.rank(), group.size());
        for count in [8191, 8192, 8193, 8192 * 3, 50_001] {
            for algorithm in Algorithm::ALL {
                let mut ours = data(rank, count);
                group.all_reduce_by(algorithm, &mut ours, Op::Sum).wait()?;
                assert!(ours == sum(size, count), "{algorithm} of {count} at rank {rank}");
            }
            let mut from = vec![0; count * size as usize];
            group.all_gather(&data(rank, count), &mut from).wait()?;
            assert!(from == (0..size).flat_map(|rank| data(rank, count)).collect::<Vec<_>>(), "all_gather of {count}");
        }
        group.leave().wait()
    };
    members(3, builder(3, &Topology::FullMesh), act).into_iter().for_each(|outcome| outcome.unwrap());
}

#[test]
fn on_a_topology_of_ones_own() {
    let wheel = Topology::custom("wheel", |rank, size| match rank {
        0 => (1..size).collect(),
        _ => vec![0, rank % (size - 1) + 1],
    });
    succeed(&wheel, 6, |builder| builder);
}

#[test]
fn with_connections_on_demand() {
    for topology in [Topology::Ring, Topology::BinaryTree] {
        succeed(&topology, 5, |builder| builder.on_demand());
    }
}

#[test]
fn with_shared_receives() {
    succeed(&Topology::FullMesh, 5, |builder| builder.receives(cluster::Sharing::Shared(8)));
}

fn of_type<T: Element + PartialEq>(group: &mut Group, ours: T, op: Op, expected: T) -> Result<(), Error> {
    for algorithm in Algorithm::ALL {
        let mut all = [ours; 3];
        group.all_reduce_by(algorithm, &mut all, op).wait()?;
        assert_eq!(all, [expected; 3], "{op} by {algorithm}");
    }
    Ok(())
}

#[test]
fn of_all_types_and_operators() {
    let act = |mut group: Group| {
        let rank = group.rank();
        let group_ref = &mut group;
        of_type(group_ref, rank as u8, Op::Sum, 3)?;
        of_type(group_ref, rank as i8 - 1, Op::Min, -1)?;
        of_type(group_ref, rank as u16 + 1, Op::Product, 6)?;
        of_type(group_ref, rank as i16, Op::Max, 2)?;
        of_type(group_ref, 1u32 << rank, Op::Or, 7)?;
        of_type(group_ref, 5 ^ (1i32 << rank), Op::And, 0)?;
        of_type(group_ref, 1u64 << rank, Op::Xor, 7)?;
        of_type(group_ref, -i64::from(rank), Op::Sum, -3)?;
        of_type(group_ref, rank as f32 + 0.5, Op::Sum, 4.5)?;
        of_type(group_ref, f64::from(rank) - 0.5, Op::Min, -0.5)?;
        let refused = group.all_reduce(&mut [1.0f32], Op::Xor).wait().unwrap_err();
        assert_eq!(refused.to_string(), "all_reduce: floats have no xor");
        group.leave().wait()
    };
    for outcome in members(3, builder(3, &Topology::FullMesh), act) {
        outcome.unwrap();
    }
}

#[test]
fn floats_are_the_same_everywhere() {
    let act = |mut group: Group| {
        let mut results = Vec::new();
        for algorithm in Algorithm::ALL {
            let mut ours: Vec<f64> = (0..500).map(|at| 1.0 / f64::from(3 + at * (group.rank() + 1))).collect();
            group.all_reduce_by(algorithm, &mut ours, Op::Sum).wait()?;
            results.push(ours.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
        }
        group.leave().wait()?;
        Ok(results)
    };
    let results: Vec<_> = members(5, builder(5, &Topology::Ring), act).into_iter().map(Result::unwrap).collect();
    assert!(results.iter().all(|result| *result == results[0]));
}

#[test]
fn awaited_by_one_thread_for_all_members() {
    let at = members::free_address();
    let member = |rank: u32| async move {
        let mut group = builder(4, &Topology::Hypercube).rendezvous(at, rank).join().await?;
        let mut ours = [rank];
        group.all_reduce(&mut ours, Op::Sum).await?;
        group.leave().await?;
        Ok::<_, Error>(ours[0])
    };
    let mut tasks: Vec<_> = (0..4).map(|rank| Some(Box::pin(member(rank)))).collect();
    let mut sums = Vec::new();
    ubiverbs::block_on(std::future::poll_fn(|context| {
        for task in &mut tasks {
            if let Some(running) = task
                && let std::task::Poll::Ready(sum) = running.as_mut().poll(context)
            {
                sums.push(sum.unwrap());
                *task = None;
            }
        }
        if sums.len() == 4 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    }));
    assert_eq!(sums, [6; 4]);
}
