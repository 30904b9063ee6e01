//! Small networks against what is computed by hand. Each test says its formula and its tolerance.

use fabric::{
    Cables, Congestion, Failure, FailureKind, FailurePlace, Network, Report, Scenario, Shape, SwitchConfig,
    TraceMessage, Workload,
};

const G: u64 = 1_000_000_000;

/// What a packet of a message has beside its payload on the wire: preamble and gap 20, Ethernet 14, IPv4 20, UDP 8, BTH
/// 12, ICRC 4, FCS 4. The first has a RETH of 16 more, the last immediate data of 4.
const HEADERS: u64 = 82;

fn run(scenario: &Scenario) -> Report {
    let mut network = Network::new(scenario).unwrap();
    network.run();
    network.report()
}

/// Cables of one rate everywhere.
fn cables(rate: u64, delay: u64) -> Cables {
    Cables { host_rate: rate, switch_rate: rate, delay }
}

fn assert_close(what: &str, measured: f64, computed: f64, tolerance: f64) {
    let off = (measured - computed).abs() / computed;
    assert!(off <= tolerance, "{what}: measured {measured}, computed {computed}: off by {off:.4}, not {tolerance}");
}

/// One packet over h cables: h (length / rate + delay), to the nanosecond a cable.
#[test]
fn a_packet_is_stored_and_forwarded_at_every_hop() {
    for (shape, hosts, hops) in [(Shape::Star, 2, 2), (Shape::FatTree2 { per_leaf: 1, spines: 1 }, 2, 4)] {
        let scenario = Scenario {
            hosts,
            shape,
            cables: cables(100 * G, 700),
            workload: Workload::Incast { senders: 1, bytes: 1000, messages: 1 },
            ..Scenario::default()
        };
        let wire = HEADERS + 16 + 4 + 1000;
        let nanos = hops * (wire * 8 * 1000 / 100 + 700_000) / 1000;
        let took = run(&scenario).completion.most;
        assert!(took.abs_diff(nanos) <= hops, "{took} instead of {nanos}");
    }
}

/// One packet over h cables takes as long in a network so large that it is simulated region by region: half around a
/// ring, by hosts that forward.
#[test]
fn a_packet_takes_as_long_where_it_crosses_regions() {
    let (hosts, hops) = (600, 300);
    let message = |nth: u32| TraceMessage { at: u64::from(nth) * 777, from: nth * 7, to: nth * 7 + hops, bytes: 1000 };
    let scenario = Scenario {
        hosts,
        shape: Shape::Ring,
        cables: cables(100 * G, 700),
        workload: Workload::Trace { messages: (0..20).map(message).collect() },
        ..Scenario::default()
    };
    let report = run(&scenario);
    let nanos = u64::from(hops) * ((HEADERS + 16 + 4 + 1000) * 8 * 1000 / 100 + 700_000) / 1000;
    for took in [report.completion.least, report.completion.most] {
        assert!(took.abs_diff(nanos) <= u64::from(hops), "{took} instead of {nanos}");
    }
}

/// A long message: the last packet follows the first at the rate of the cable. (n - 1) length / rate more; 0.01 %.
#[test]
fn a_long_message_is_pipelined() {
    let scenario = Scenario {
        hosts: 2,
        cables: cables(100 * G, 700),
        workload: Workload::Incast { senders: 1, bytes: 16 << 20, messages: 1 },
        ..Scenario::default()
    };
    let packets = (16 << 20) / 4096;
    let wire = packets * (HEADERS + 4096) + 20 + (HEADERS + 4096);
    let nanos = wire as f64 * 0.08 + 1400.0;
    assert_close("completion", run(&scenario).completion.most as f64, nanos, 0.0001);
}

/// n senders to one: the last cable carries all of it. n bytes / rate, and the way of the first packet; 0.1 %.
#[test]
fn an_incast_ends_when_the_last_cable_has_carried_it_all() {
    for (senders, pfc) in [(2, true), (8, true), (8, false), (15, true)] {
        let scenario = Scenario {
            cables: cables(100 * G, 600),
            congestion: Congestion::None,
            switch: SwitchConfig { ecn: None, pfc, buffer: 64 << 20, alpha: 1.0 },
            workload: Workload::Incast { senders, bytes: 1 << 20, messages: 1 },
            ..Scenario::default()
        };
        let report = run(&scenario);
        let wire = u64::from(senders) * (256 * (HEADERS + 4096) + 20) + (HEADERS + 16 + 4096);
        assert_eq!((report.dropped(), report.counts.retransmitted), (0, 0));
        assert_close("incast", report.finished_at as f64, wire as f64 * 0.08 + 1200.0, 0.001);
    }
}

/// Pauses instead of drops: with a buffer of half a megabyte nothing is lost, and the last cable is never idle; 0.5 %.
#[test]
fn pauses_lose_nothing_and_keep_the_bottleneck_busy() {
    let scenario = Scenario {
        cables: cables(100 * G, 600),
        congestion: Congestion::None,
        switch: SwitchConfig { ecn: None, pfc: true, buffer: 512 << 10, alpha: 0.125 },
        workload: Workload::Incast { senders: 8, bytes: 1 << 20, messages: 1 },
        ..Scenario::default()
    };
    let report = run(&scenario);
    assert_eq!((report.dropped(), report.counts.retransmitted), (0, 0));
    assert!(report.counts.pauses > 8, "{}", report.counts.pauses);
    let wire = 8 * (256 * (HEADERS + 4096) + 20) + (HEADERS + 16 + 4096);
    assert_close("incast", report.finished_at as f64, wire as f64 * 0.08 + 1200.0, 0.005);
}

/// Ring all-reduce of V bytes over n hosts: 2 (n - 1) steps of V / n at the rate of the cable, each with the way of its
/// last packet; so 2 (n - 1) / n V / rate for long vectors. 0.5 % of the first, 3 % of the second.
#[test]
fn a_ring_all_reduce_takes_twice_the_vector() {
    for (shape, hops) in [(Shape::Ring, 1), (Shape::Star, 2)] {
        let (hosts, bytes) = (8u64, 8u64 << 20);
        let scenario = Scenario {
            hosts: 8,
            shape,
            cables: cables(100 * G, 600),
            workload: Workload::AllReduceRing { bytes: bytes as u32 },
            ..Scenario::default()
        };
        let part = bytes / hosts;
        let wire = part / 4096 * (HEADERS + 4096) + 20;
        let last = HEADERS + 4 + 4096;
        let step = wire as f64 * 0.08 + hops as f64 * 600.0 + (hops - 1) as f64 * last as f64 * 0.08;
        let took = run(&scenario).finished_at as f64;
        assert_close("all steps", took, 14.0 * step, 0.005);
        assert_close("2(n-1)/n", took, 2.0 * 7.0 / 8.0 * bytes as f64 * 0.08, 0.05);
    }
}

/// Go-back-N: a lost packet costs itself and what was sent until its sender hears of it, w packets of a round trip. The
/// goodput is (1 - p) / (1 - p + p w) of the line rate.
#[test]
fn go_back_n_loses_what_the_formula_says() {
    for probability in [0.001, 0.003, 0.01] {
        let delay = 2_000u64;
        let scenario = Scenario {
            hosts: 2,
            cables: cables(10 * G, delay),
            congestion: Congestion::None,
            switch: SwitchConfig { ecn: None, ..Scenario::default().switch },
            workload: Workload::Incast { senders: 1, bytes: 1 << 20, messages: 100 },
            // One of the cables, and only in the direction of the data would be the formula; acknowledgements are few.
            failures: vec![Failure {
                kind: FailureKind::Lossy { probability },
                place: FailurePlace::Host(1),
                at: 0,
                within: 0,
                lasts: None,
            }],
            timeout: 8,
            ..Scenario::default()
        };
        let report = run(&scenario);
        assert!(report.complete);
        let packet = (HEADERS + 4096) as f64 * 0.8;
        // Two cables there, the acknowledgement back; the packet behind the lost one shows the loss.
        let round_trip = 4.0 * delay as f64 + 2.0 * packet + 2.0 * 86.0 * 0.8 + packet;
        let window = round_trip / packet;
        let computed = (1.0 - probability) / (1.0 - probability + probability * window);
        let ideal = 100.0 * 256.0 * packet;
        let measured = ideal / report.finished_at as f64;
        eprintln!("{probability}: {measured} {computed}, {:?}", report.counts);
        assert_close("goodput", measured, computed, 0.05);
    }
}
