use super::*;

const CABLES: Cables = Cables { host_rate: 100_000_000_000, switch_rate: 100_000_000_000, delay: 600 };

/// Each port begins where the one before it ended.
fn check_paths(topology: &Topology, longest: usize) {
    let hosts = topology.graph.hosts;
    for from in 0..hosts {
        for to in (0..hosts).filter(|to| *to != from) {
            for hash in [0, 1, u64::MAX / 3, u64::MAX] {
                let mut path = Vec::new();
                topology.path(from, to, hash, &mut path);
                assert!(path.len() <= longest, "{from} to {to}: {path:?}");
                let mut at = from;
                for port in path {
                    let edge = topology.graph.edges[port as usize];
                    assert_eq!(edge.from, at, "{from} to {to}");
                    at = edge.to;
                }
                assert_eq!(at, to, "{from} to {to}");
            }
        }
    }
}

#[test]
fn every_path_leads_from_its_beginning_to_its_end() {
    let shapes = [
        (Shape::Star, 9, 2),
        (Shape::Ring, 2, 1),
        (Shape::Ring, 9, 4),
        (Shape::Ring, 10, 5),
        (Shape::FatTree2 { per_leaf: 0, spines: 0 }, 30, 4),
        (Shape::FatTree2 { per_leaf: 8, spines: 2 }, 30, 4),
        (Shape::FatTree3 { radix: 0 }, 54, 6),
        (Shape::FatTree3 { radix: 4 }, 13, 6),
        (Shape::Rails { rails: 4, per_leaf: 0 }, 24, 2),
        (Shape::Rails { rails: 4, per_leaf: 3 }, 28, 4),
        (Shape::Dragonfly { per_router: 0 }, 72, 5),
        (Shape::Dragonfly { per_router: 2 }, 50, 5),
        (Shape::Dragonfly { per_router: 3 }, 60, 5),
    ];
    for (shape, hosts, longest) in shapes {
        let topology = Topology::new(shape, hosts, CABLES).unwrap();
        check_paths(&topology, if hosts % 4 == 0 && shape.name() == "rails" { 4 } else { longest });
    }
}

#[test]
fn a_tree_of_ten_thousand_hosts_has_switches_of_36_ports() {
    let topology = Topology::new(Shape::FatTree3 { radix: 0 }, 10_000, CABLES).unwrap();
    assert_eq!(topology.graph.switches, 31 * 36 + 18 * 18);
    let mut ports = vec![0; topology.graph.nodes() as usize];
    for edge in &topology.graph.edges {
        ports[edge.from as usize] += 1;
    }
    assert_eq!(ports.into_iter().max(), Some(36));
}

#[test]
fn flows_spread_over_all_ways() {
    let topology = Topology::new(Shape::FatTree2 { per_leaf: 4, spines: 4 }, 8, CABLES).unwrap();
    let mut taken = std::collections::BTreeMap::new();
    for hash in 0..4000u64 {
        let mut path = Vec::new();
        topology.path(0, 5, salted(hash, 9), &mut path);
        *taken.entry(path).or_insert(0) += 1;
    }
    assert_eq!(taken.len(), 4);
    assert!(taken.values().all(|count| (850..1150).contains(count)), "{taken:?}");
}

#[test]
fn sizes_that_do_not_fit_are_refused_with_a_reason() {
    let refused = |shape, hosts| Topology::new(shape, hosts, CABLES).err().unwrap();
    assert!(refused(Shape::Star, 1).contains("at least 2 hosts"));
    assert!(refused(Shape::FatTree3 { radix: 4 }, 17).contains("radix 4 does not do for 17"));
    assert!(refused(Shape::FatTree3 { radix: 5 }, 17).contains("even"));
    let huge = [
        Shape::FatTree2 { per_leaf: 1, spines: 10_000 },
        Shape::FatTree3 { radix: 10_000 },
        Shape::Rails { rails: 1_000, per_leaf: 10_000 },
        Shape::Dragonfly { per_router: 10_000 },
    ];
    for shape in huge {
        assert!(refused(shape, 100_000).contains("are the most there may be"), "{shape:?}");
    }
    assert!(refused(Shape::Rails { rails: 8, per_leaf: 0 }, 12).contains("not whole servers"));
    assert!(refused(Shape::Dragonfly { per_router: 1 }, 7).contains("has 6 at most"));
}

#[test]
fn nodes_have_names() {
    let topology = Topology::new(Shape::Star, 3, CABLES).unwrap();
    let graph = &topology.graph;
    for node in 0..graph.nodes() {
        assert_eq!(graph.node(&graph.name(node)), Some(node));
    }
    assert_eq!([graph.node("host3"), graph.node("switch1"), graph.node("router0"), graph.node("host")], [None; 4]);
    assert_eq!(graph.between(1, 3).collect::<Vec<_>>(), [2]);
}
