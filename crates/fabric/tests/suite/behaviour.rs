//! Whole runs: every topology and workload ends, the same seed gives the same bytes, failures are survived or told.

use fabric::{
    Congestion, Failure, FailureKind, FailurePlace, Network, Report, Scenario, Shape, SwitchConfig, TraceMessage,
    Workload,
};

fn run(scenario: &Scenario) -> Report {
    let mut network = Network::new(scenario).unwrap();
    network.run();
    network.report()
}

fn failure(kind: FailureKind, place: FailurePlace, at: u64, lasts: Option<u64>) -> Vec<Failure> {
    vec![Failure { kind, place, at, within: 0, lasts }]
}

const LOSSY_SWITCH: SwitchConfig = SwitchConfig { buffer: 256 << 10, pfc: false, alpha: 1.0, ecn: None };

#[test]
fn every_workload_ends_on_every_topology() {
    let shapes = [
        Shape::Star,
        Shape::Ring,
        Shape::FatTree2 { per_leaf: 4, spines: 2 },
        Shape::FatTree3 { radix: 4 },
        Shape::Rails { rails: 4, per_leaf: 2 },
        Shape::Dragonfly { per_router: 2 },
    ];
    let workloads = [
        Workload::Incast { senders: 0, bytes: 50_000, messages: 2 },
        Workload::Permutation { bytes: 50_000, messages: 2 },
        Workload::AllReduceRing { bytes: 50_000 },
        Workload::AllReduceTree { bytes: 50_000, chunk: 9_000 },
        Workload::AllToAll { bytes: 5_000, parallel: 3 },
        Workload::Trace {
            messages: (0..8).map(|n| TraceMessage { at: n * 900, from: n as u32, to: 15, bytes: 9_000 }).collect(),
        },
    ];
    for shape in shapes {
        for workload in &workloads {
            for congestion in [Congestion::Dcqcn, Congestion::Window] {
                let scenario = Scenario { shape, workload: workload.clone(), congestion, ..Scenario::default() };
                let report = run(&scenario);
                assert!(report.complete, "{report}");
                assert_eq!(report.dropped(), 0, "{report}");
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_another_run() {
    let scenario = |seed| Scenario {
        seed,
        shape: Shape::FatTree3 { radix: 4 },
        workload: Workload::Permutation { bytes: 200_000, messages: 2 },
        failures: failure(FailureKind::Lossy { probability: 0.01 }, FailurePlace::RandomLinks(4), 1_000, None),
        capture: vec![3],
        ..Scenario::default()
    };
    let whole = |seed| {
        let mut network = Network::new(&scenario(seed)).unwrap();
        network.run();
        let report = network.report();
        (report.to_string(), report.html(), network.take_captures().unwrap())
    };
    assert_eq!(whole(7), whole(7));
    assert_ne!(whole(7).0, whole(8).0);
}

/// The same seed gives the same bytes in a network of several regions, with all that is about the whole of it: cables
/// that fail and come back, slow hosts, samples, an end.
#[test]
fn a_large_network_gives_the_same_bytes_again() {
    let failures = [
        failure(FailureKind::Flapping { period: 20_000 }, FailurePlace::RandomLinks(3), 5_000, Some(60_000)),
        failure(FailureKind::Lossy { probability: 0.01 }, FailurePlace::RandomLinks(9), 0, None),
        failure(FailureKind::SlowHost { rate: 10_000_000_000 }, FailurePlace::RandomHosts(5), 3_333, None),
    ];
    for workload in [
        Workload::Permutation { bytes: 100_000, messages: 2 },
        Workload::AllReduceTree { bytes: 50_000, chunk: 9_000 },
        Workload::AllToAll { bytes: 64, parallel: 2 },
    ] {
        let all_to_all = matches!(workload, Workload::AllToAll { .. });
        let scenario = Scenario {
            hosts: if all_to_all { 180 } else { 432 },
            shape: Shape::FatTree3 { radix: 0 },
            workload,
            failures: failures.concat(),
            timeout: 8,
            capture: vec![3, 100],
            ..Scenario::default()
        };
        let whole = || {
            let mut network = Network::new(&scenario).unwrap();
            while network.run_until(network.now() + 50_000) && network.now() < 100_000_000 {}
            let report = network.report();
            assert!(report.complete, "{report}");
            (report.to_string(), report.html(), network.take_captures().unwrap())
        };
        assert_eq!(whole(), whole());
    }
}

/// Too little buffer for an incast: packets are dropped, and all arrive in the end.
#[test]
fn drops_are_sent_again() {
    for congestion in [Congestion::None, Congestion::Window, Congestion::Both] {
        let scenario = Scenario {
            congestion,
            switch: LOSSY_SWITCH,
            workload: Workload::Incast { senders: 8, bytes: 1 << 20, messages: 1 },
            timeout: 8,
            ..Scenario::default()
        };
        let report = run(&scenario);
        assert!(report.complete, "{report}");
        assert!(report.counts.dropped_full > 0 && report.counts.retransmitted > 0, "{report}");
        assert!(report.queues.longest <= LOSSY_SWITCH.buffer, "{report}");
    }
}

/// A cable between switches is cut while a permutation runs: flows take other ways.
#[test]
fn flows_go_around_a_cut_cable() {
    let scenario = Scenario {
        shape: Shape::FatTree2 { per_leaf: 4, spines: 4 },
        workload: Workload::Permutation { bytes: 8 << 20, messages: 1 },
        failures: failure(FailureKind::LinkDown, FailurePlace::RandomLinks(4), 100_000, None),
        timeout: 8,
        ..Scenario::default()
    };
    let report = run(&scenario);
    assert!(report.complete && report.counts.dropped_down > 0, "{report}");
}

/// The only cable of a host is cut: its messages fail, after all retries, and the others arrive.
#[test]
fn a_host_that_is_cut_off_fails_its_messages_and_no_others() {
    let scenario = Scenario {
        workload: Workload::Permutation { bytes: 8 << 20, messages: 1 },
        failures: failure(FailureKind::LinkDown, FailurePlace::Link("host3".into(), "switch0".into()), 100_000, None),
        timeout: 8,
        ..Scenario::default()
    };
    let report = run(&scenario);
    assert!(!report.complete);
    assert_eq!((report.counts.messages_failed, report.counts.messages_received), (2, 14), "{report}");
    assert!(report.to_string().contains("NOT all arrived"));
}

#[test]
fn a_flapping_port_costs_time_and_nothing_else() {
    let with = |failures| {
        run(&Scenario {
            workload: Workload::Permutation { bytes: 8 << 20, messages: 1 },
            failures,
            timeout: 8,
            ..Scenario::default()
        })
    };
    let flapping = FailureKind::Flapping { period: 100_000 };
    let (well, ill) = (with(Vec::new()), with(failure(flapping, FailurePlace::Host(3), 50_000, Some(500_000))));
    assert!(well.complete && ill.complete, "{ill}");
    assert!(ill.finished_at > well.finished_at + 200_000, "{ill}");
}

/// A slow host takes 10 Gbit/s: its messages take as long as that means, and switches pause the others.
#[test]
fn a_slow_host_holds_its_senders_back() {
    let scenario = Scenario {
        congestion: Congestion::None,
        switch: SwitchConfig { buffer: 1 << 20, pfc: true, alpha: 0.125, ecn: None },
        workload: Workload::Incast { senders: 1, bytes: 4 << 20, messages: 1 },
        failures: failure(FailureKind::SlowHost { rate: 10_000_000_000 }, FailurePlace::Host(0), 0, None),
        ..Scenario::default()
    };
    let report = run(&scenario);
    assert!(report.complete && report.counts.pauses > 0 && report.dropped() == 0, "{report}");
    let nanos = (4u64 << 20) as f64 * 0.8;
    assert!((1.0..1.05).contains(&(report.finished_at as f64 / nanos)), "{report}");
}

#[test]
fn a_capture_has_what_the_host_sent_and_received() {
    let scenario = Scenario {
        hosts: 3,
        workload: Workload::Incast { senders: 2, bytes: 8192, messages: 1 },
        capture: vec![1],
        ..Scenario::default()
    };
    let mut network = Network::new(&scenario).unwrap();
    network.run();
    let captures = network.take_captures().unwrap();
    let [(1, file)] = captures.as_slice() else { panic!("{}", captures.len()) };
    assert_eq!(file[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    // Two packets and an acknowledgement.
    let packets = file.windows(8).filter(|word| word[..4] == 6u32.to_be_bytes() && word[4..6] == [0, 0]).count();
    assert_eq!(packets, 3);
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let refused = |scenario: Scenario| Network::new(&scenario).err().unwrap().to_string();
    let base = Scenario::default;
    assert!(refused(Scenario { hosts: 1, ..base() }).contains("at least 2"));
    assert!(refused(Scenario { capture: vec![16], ..base() }).contains("no host 16"));
    let cut = |place| Scenario { failures: failure(FailureKind::LinkDown, place, 0, None), ..base() };
    assert!(refused(cut(FailurePlace::Host(16))).contains("no host"));
    assert!(
        refused(cut(FailurePlace::Link("host1".into(), "host2".into()))).contains("no cable between host1 and host2")
    );
    assert!(refused(cut(FailurePlace::Link("host1".into(), "router2".into()))).contains("no router2"));
    assert!(refused(cut(FailurePlace::RandomLinks(99))).contains("99 cables are to fail where there are 16"));
    let mesh = Workload::AllToAll { bytes: 1, parallel: 1 };
    assert!(refused(Scenario { hosts: 10_000, workload: mesh, ..base() }).contains("99990000 queue pairs"));
}
