//! DCQCN against its paper (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015), with its
//! parameters: incasts of 2 and of 8 at 40 Gbit/s. The paper promises fair shares, a busy link and short queues; how
//! short, and how many notifications that takes, is computed here as the fixed point of its fluid model.

use fabric::{Cables, Network, Scenario, SwitchConfig, Workload};
use wire::Mtu;

const LINE: f64 = 40e9;
/// A packet of 1024 bytes with its headers on the wire, in bits.
const PACKET: f64 = (1024.0 + 82.0) * 8.0;

/// Where the fluid model rests, for so many flows.
#[derive(Debug)]
struct FixedPoint {
    /// The part of packets that is marked.
    marking: f64,
    /// Bytes.
    queue: f64,
    /// Of all flows together, a second.
    notifications: f64,
}

/// Solves the model for rates that do not change. A flow of r packets a second at marking probability p:
/// - alpha: 1 - (1-p)^(r 55us), the part of periods in which something is marked;
/// - notifications: (1 - (1-p)^(r 50us)) / 50us, each cuts the rate by alpha / 2, to which the target falls;
/// - increases: r p / ((1-p)^-n - 1), with n the packets of 10 MB, and of the timer's 55 us: those in a row without a
///   mark. Each goes half of the way to the target; beyond the fifth, (1-p)^(5n) of them, each raises it by 40 Mbit/s.
fn fixed_point(flows: f64) -> FixedPoint {
    let (cnp_interval, alpha_interval, timer, additive) = (50e-6, 55e-6, 55e-6, 40e6 / PACKET);
    let rate = LINE / flows / PACKET;
    let unmarked = |p: f64, packets: f64| (packets * (-p).ln_1p()).exp();
    let cuts = |p: f64| (1.0 - unmarked(p, rate * cnp_interval)) / cnp_interval;
    let growth = |p: f64| {
        let alpha = 1.0 - unmarked(p, rate * alpha_interval);
        let rounds = [10e6 * 8.0 / PACKET, rate * timer].map(|n| (n, rate * p / (1.0 / unmarked(p, n) - 1.0)));
        let raised: f64 = rounds.iter().map(|(n, often)| additive * often * unmarked(p, 5.0 * n)).sum();
        // The target rests where what raises it is what the cuts take: so far it is above the rate.
        let above = raised / cuts(p);
        let recovered: f64 = rounds.iter().map(|(_, often)| often * above / 2.0).sum();
        recovered - rate * alpha / 2.0 * cuts(p)
    };
    let (mut low, mut high) = (1e-9, 0.5);
    for _ in 0..100 {
        let middle: f64 = f64::sqrt(low * high);
        if growth(middle) > 0.0 { low = middle } else { high = middle }
    }
    // Marks begin at 5 KB and are 1 % at 200 KB.
    FixedPoint { marking: low, queue: 5e3 + low / 0.01 * 195e3, notifications: flows * cuts(low) }
}

/// What a run shows, between 30 and 90 ms.
#[derive(Debug)]
struct Steady {
    shares: Vec<f64>,
    link: f64,
    marking: f64,
    queue: f64,
    notifications: f64,
}

fn steady(senders: u32) -> Steady {
    let rate = LINE as u64;
    let scenario = Scenario {
        hosts: senders + 1,
        cables: Cables { host_rate: rate, switch_rate: rate, delay: 1_000 },
        mtu: Mtu::B1024,
        switch: SwitchConfig { ecn: Some(fabric::red_for_rate(rate)), ..Scenario::default().switch },
        workload: Workload::Incast { senders, bytes: 1 << 30, messages: 1 },
        ..Scenario::default()
    };
    let mut network = Network::new(&scenario).unwrap();
    network.run_until(30_000_000);
    let before = network.report().counts;
    let (steps, step) = (600, 100_000);
    let mut shares = vec![0.0; senders as usize];
    for nth in 1..=steps {
        network.run_until(30_000_000 + nth * step);
        for (sender, share) in (1..).zip(&mut shares) {
            *share += network.rate_of(sender, 0).unwrap() as f64 / steps as f64;
        }
    }
    let report = network.report();
    // Nothing but marks slows them.
    assert_eq!((report.dropped(), report.counts.pauses), (0, 0));
    let seconds = (steps * step) as f64 / 1e9;
    let since = |count: fn(&fabric::Counts) -> u64| (count(&report.counts) - count(&before)) as f64;
    let packets = since(|counts| counts.packets_delivered - counts.acknowledgements - counts.notifications);
    let queues: Vec<f64> =
        report.samples.iter().filter(|sample| sample.at > 30_000_000).map(|sample| sample.queued as f64).collect();
    Steady {
        shares,
        link: packets * PACKET / seconds / LINE,
        marking: since(|counts| counts.marked) / packets,
        queue: queues.iter().sum::<f64>() / queues.len() as f64,
        notifications: since(|counts| counts.notifications) / seconds,
    }
}

fn assert_close(what: &str, measured: f64, computed: f64, tolerance: f64) {
    let off = (measured - computed).abs() / computed;
    assert!(off <= tolerance, "{what}: measured {measured}, computed {computed}: off by {off:.4}, not {tolerance}");
}

/// 2 to 1: 20 Gbit/s each (10 %), the link busy (1 %), a queue of 22 KB and 0.09 % of packets marked (40 %), 3,700
/// notifications a second (15 %).
#[test]
fn two_flows_share_a_link_as_the_paper_says() {
    let (model, run) = (fixed_point(2.0), steady(2));
    for share in &run.shares {
        assert_close("share", *share, LINE / 2.0, 0.1);
    }
    assert_close("link", run.link, 1.0, 0.01);
    assert_close("queue", run.queue, model.queue, 0.4);
    assert_close("marking", run.marking, model.marking, 0.4);
    assert_close("notifications", run.notifications, model.notifications, 0.15);
}

/// 8 to 1: 5 Gbit/s each (15 %), the link busy (3 %), a queue of 103 KB (45 %), 21,000 notifications a second (10 %).
/// The queue swings, and where it passes 200 KB all packets are marked: more than the model's 0.5 %, of which a flow is
/// told once in 50 us all the same.
#[test]
fn eight_flows_share_a_link_as_the_paper_says() {
    let (model, run) = (fixed_point(8.0), steady(8));
    for share in &run.shares {
        assert_close("share", *share, LINE / 8.0, 0.15);
    }
    assert_close("link", run.link, 1.0, 0.03);
    assert_close("queue", run.queue, model.queue, 0.45);
    assert_close("notifications", run.notifications, model.notifications, 0.1);
}

/// The model by itself: it rests where a second program that solves its equations found it, and the more flows share a
/// link the more packets are marked.
#[test]
fn the_model_rests_where_it_should() {
    assert_close("two", fixed_point(2.0).marking, 0.000_859, 0.01);
    assert_close("eight", fixed_point(8.0).marking, 0.005_03, 0.01);
    let markings: Vec<f64> = (1..=16).map(|flows| fixed_point(f64::from(flows)).marking).collect();
    assert!(markings.is_sorted(), "{markings:?}");
}
