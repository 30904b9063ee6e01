//! The cost of a packet must not depend on how many queue pairs there are. Work and packets are the same in every row; only the number of queue
//! pairs they are spread over grows.
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
    // Ten thousand queue pairs share one window: the last of them waits long for its turn and must not take that for a loss.
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
    run(10, 10_000); // The first run pays for cold caches and growing heaps.
    let mut first = None;
    println!("queue pairs  packets  ns per packet");
    for pairs in [10, 100, 1_000, 10_000] {
        // The better of two: a shared machine only ever adds time.
        let best = (0..2).map(|_| run(pairs, TOTAL)).min_by_key(|(_, elapsed)| *elapsed);
        let (packets, elapsed) = best.expect("there were two");
        let each = elapsed.as_nanos() as f64 / packets as f64;
        println!("{pairs:>11}  {packets:>7}  {each:>13.0}");
        let first = *first.get_or_insert(each);
        // Ten thousand queue pairs do not fit the cache that ten do; a walk over all of them would cost a thousand times as much.
        assert!(each < 4.0 * first, "{pairs} queue pairs: {each:.0} ns per packet, {first:.0} with 10");
    }
}
