//! Groups on simulated NICs, with loss, reordering and a member that is killed. Nobody hangs, no sum is wrong; when
//! nobody is killed, everybody succeeds, and when a member is, the others that fail say who. A thousand seeds:
//!
//! ```text
//! UBIVERBS_SEEDS=1000 cargo test -p ubiverbs-cluster --release --test suite simulated
//! ```

use cluster::{Algorithm, Error, Group, Op, Topology};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use ubiverbs::simulation::Simulation;

const PORT: u16 = 7471;

/// What members do and who they are, as the seed has it.
#[derive(Clone)]
struct Plan {
    size: u32,
    topology: Topology,
    algorithm: Algorithm,
    count: usize,
    on_demand: bool,
    /// Where member 0 is, as soon as there is one.
    meeting: Rc<Cell<Option<IpAddr>>>,
}

impl Plan {
    fn by_chance(simulation: &mut Simulation) -> Plan {
        let topologies = [
            (Topology::Ring, 3 + simulation.below(3)),
            (Topology::BidirectionalRing, 3 + simulation.below(3)),
            (Topology::FullMesh, 2 + simulation.below(4)),
            (Topology::Torus { rows: 0 }, 4),
            (Topology::Hypercube, 4),
            (Topology::BinaryTree, 2 + simulation.below(4)),
            (Topology::Star, 2 + simulation.below(4)),
        ];
        let (topology, size) = topologies[simulation.below(topologies.len() as u64) as usize].clone();
        let algorithm = Algorithm::ALL[simulation.below(Algorithm::ALL.len() as u64) as usize];
        let count = [1, 9, 3000][simulation.below(3) as usize];
        let on_demand = simulation.below(4) == 0;
        Plan { size: size as u32, topology, algorithm, count, on_demand, meeting: Rc::default() }
    }

    async fn member(self, rank: u32) -> Result<(), Error> {
        let at = SocketAddr::new(self.meeting.get().expect("member 0 was added first"), PORT);
        let limit = Duration::from_secs(30);
        let mut builder = Group::builder(self.size).secret("simulated").topology(self.topology.clone());
        if self.on_demand {
            builder = builder.on_demand();
        }
        let builder = builder.meeting_limit(limit).deadline(limit);
        let mut group = builder.rendezvous(at, rank).join().await?;

        let mut sum: Vec<u64> = (0..self.count as u64).map(|at| at * u64::from(rank + 1)).collect();
        group.all_reduce_by(self.algorithm, &mut sum, Op::Sum).await?;
        let all = u64::from(self.size * (self.size + 1) / 2);
        assert!(sum.iter().enumerate().all(|(at, sum)| *sum == at as u64 * all), "a wrong sum at rank {rank}");

        let root = self.size - 1;
        let mut word = [if rank == root { 0xfeed_u32 } else { 0 }; 5];
        group.broadcast(&mut word, root).await?;
        assert_eq!(word, [0xfeed; 5], "a wrong word at rank {rank}");

        let mut ranks = vec![0_i32; self.size as usize];
        group.all_gather(&[rank as i32], &mut ranks).await?;
        assert!(ranks.iter().zip(0..).all(|(rank, at)| *rank == at), "{ranks:?}");
        group.barrier().await?;
        group.leave().await
    }
}

#[ubiverbs::simulated_test(loss = 0.01, reordering = 0.02, seeds = 60, time_limit = Duration::from_secs(240))]
fn groups_compute_the_right_thing_or_say_who_died(simulation: &mut Simulation) {
    run(simulation);
}

/// Member 0 dies when it has told some that all are connected, and others not yet.
#[ubiverbs::simulated_test(loss = 0.05, reordering = 0.02, seed = 640, seeds = 10, time_limit = Duration::from_secs(240))]
fn groups_say_who_died_while_they_met_on_a_lossy_network(simulation: &mut Simulation) {
    run(simulation);
}

/// Around a ring, in many more messages than are under way at once.
#[ubiverbs::simulated_test(loss = 0.01, reordering = 0.02, seeds = 20, time_limit = Duration::from_secs(240))]
fn long_sums_go_around_a_lossy_ring(simulation: &mut Simulation) {
    let size = 2 + simulation.below(3) as u32;
    let count = 400 + simulation.below(200);
    let meeting: Rc<Cell<Option<IpAddr>>> = Rc::default();
    for rank in 0..size {
        let meeting_place = Rc::clone(&meeting);
        simulation.party(&name(rank), async move {
            let at = SocketAddr::new(meeting_place.get().expect("member 0 was added first"), PORT);
            let limit = Duration::from_secs(30);
            let builder = Group::builder(size).secret("simulated").messages(2, 64).meeting_limit(limit).deadline(limit);
            let mut group = builder.rendezvous(at, rank).join().await?;
            let mut sum: Vec<u64> = (0..count).map(|at| at * u64::from(rank + 1)).collect();
            group.all_reduce_by(Algorithm::Ring, &mut sum, Op::Sum).await?;
            let all = u64::from(size * (size + 1) / 2);
            assert!(sum.iter().zip(0..).all(|(sum, at)| *sum == at * all), "a wrong sum at rank {rank}");
            group.leave().await
        });
        if rank == 0 {
            meeting.set(simulation.address(&name(0)));
        }
    }
}

fn run(simulation: &mut Simulation) {
    let plan = Plan::by_chance(simulation);
    // A third of all runs has no victim.
    let victim = simulation.below(3).checked_sub(1).map(|_| simulation.below(plan.size.into()) as u32);
    for rank in 0..plan.size {
        let member = plan.clone().member(rank);
        simulation.party(&name(rank), async move {
            match member.await {
                // What a member that dies takes with it may be noticed by one before the others name it.
                Err(Error::Died { rank, .. } | Error::Left { rank }) if Some(rank) == victim => Ok(()),
                Err(Error::Missing { ranks, .. }) if victim.is_some_and(|victim| ranks.contains(&victim)) => Ok(()),
                other => other,
            }
        });
        if rank == 0 {
            plan.meeting.set(simulation.address(&name(0)));
        }
    }
    if let Some(victim) = victim {
        simulation.kill_within(&name(victim), Duration::ZERO..Duration::from_millis(3));
    }
}

fn name(rank: u32) -> String {
    format!("member{rank}")
}
