//! The cost of a packet must not depend on how many queue pairs there are. Work and packets are the same in every row;
//! only the number of queue pairs they are spread over grows.
#![allow(missing_docs)]

use sim::{ConnectOptions, HostConfig, LinkConfig, QpId, QpSpec, Sim, Work};
use std::time::{Duration, Instant};
use transport::{Access, Capabilities, Status};

/// WRITEs posted to a queue pair at once.
const BATCH: usize = 5;

/// Runs `total` WRITEs of 64 bytes spread over `pairs` queue pairs; answers packets carried and the time it took.
fn run(pairs: usize, total: usize) -> (u64, Duration) {
    let mut sim = Sim::with_seed(1);
    sim.set_default_link(LinkConfig { loss: 0.001, bandwidth: Some(100_000_000_000), ..LinkConfig::PERFECT });
    let alice = sim.add_host(HostConfig::named("alice"));
    let bob = sim.add_host(HostConfig::named("bob"));
    let near = sim.register(alice, QpSpec::PD, 4096, Access::LOCAL_WRITE);
    let far = sim.register(bob, QpSpec::PD, 4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let each = total / pairs;
    let capabilities = Capabilities { max_send_wr: 16, max_recv_wr: 1, ..QpSpec::rc().capabilities };
    let spec = QpSpec { capabilities, ..QpSpec::rc() };
    // Ten thousand queue pairs share one window: the last of them waits long for its turn and must not take that for a
    // loss.
    let options = ConnectOptions { timeout: 16, ..ConnectOptions::default() };
    let qps: Vec<QpId> = (0..pairs)
        .map(|_| {
            let (a, b) = (sim.create_qp(alice, spec), sim.create_qp(bob, spec));
            sim.connect(a, b, &options);
            a
        })
        .collect();
    let work = Work::write(far.remote(0)).sge(near.sge(0, 64));
    let before = sim.counters().sent;
    let start = Instant::now();
    let mut done = 0;
    for _ in 0..each.div_ceil(BATCH) {
        for qp in &qps {
            for _ in 0..BATCH {
                sim.post(*qp, &work).expect("there is room");
            }
        }
        sim.run_until_idle();
        for qp in &qps {
            let completions = sim.completions(*qp);
            assert!(completions.iter().all(|completion| completion.status == Status::Success));
            done += completions.len();
        }
    }
    assert_eq!(done, total);
    (sim.counters().sent - before, start.elapsed())
}

#[test]
fn the_cost_of_a_packet_is_flat_from_10_to_10_000_queue_pairs() {
    const TOTAL: usize = 50_000;
    const PAIRS: [usize; 4] = [10, 100, 1_000, 10_000];
    run(10, 10_000); // The first run pays for cold caches and growing heaps.
    let mut best = [f64::MAX; PAIRS.len()];
    // A shared machine only ever adds time: the best counts, of two rounds at least, of more where something else took
    // the time.
    for round in 1.. {
        for (pairs, best) in PAIRS.into_iter().zip(&mut best) {
            let (packets, elapsed) = run(pairs, TOTAL);
            *best = best.min(elapsed.as_nanos() as f64 / packets as f64);
        }
        println!("ns per packet with {PAIRS:?} queue pairs: {best:.0?}");
        // Ten thousand queue pairs do not fit the cache that ten do; a walk over all of them would cost a thousand
        // times as much.
        let flat = best.iter().all(|each| *each < 4.0 * best[0]);
        if flat && round >= 2 {
            break;
        }
        assert!(round < 20, "it costs more per packet where there are more queue pairs");
    }
}
