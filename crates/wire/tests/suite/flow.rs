//! Flows of raw packets: which frames match, and what is done to those that do.

use wire::flow::*;

const KEY: [u8; HASH_KEY_LENGTH] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

const DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn ethernet(tags: &[(u16, u16)], ether_type: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = [DESTINATION, SOURCE].concat();
    for (kind, tag) in tags {
        frame.extend(kind.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(ether_type.to_be_bytes());
    frame.extend(rest);
    frame
}

fn ipv4(source: [u8; 4], destination: [u8; 4], protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0x10];
    packet.extend((20 + rest.len() as u16).to_be_bytes());
    packet.extend([0, 7]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(source);
    packet.extend(destination);
    packet.extend(rest);
    packet
}

fn ipv6(source: [u8; 16], destination: [u8; 16], next: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x61, 0x2a, 0xbc, 0xde];
    packet.extend((rest.len() as u16).to_be_bytes());
    packet.extend([next, 9]);
    packet.extend(source);
    packet.extend(destination);
    packet.extend(rest);
    packet
}

fn udp(source: u16, destination: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [source, destination, 8 + data.len() as u16, 0] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(data);
    bytes
}

fn tcp(source: u16, destination: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(source.to_be_bytes());
    bytes.extend(destination.to_be_bytes());
    bytes.extend(100u32.to_be_bytes());
    bytes.extend([0, 0, 0, 0, 0x50, 0x99, 1, 0, 0, 0, 0, 0]);
    bytes.extend(data);
    bytes
}

fn layers(frame: &[u8]) -> Layers {
    Layers::parse(frame).expect("a frame")
}

/// The vectors that Microsoft published to verify the hash.
#[test]
fn the_hash_is_that_of_the_published_vectors() {
    let (ip4, ip6) = (HashFields::SRC_IPV4 | HashFields::DST_IPV4, HashFields::SRC_IPV6 | HashFields::DST_IPV6);
    let ports = HashFields::SRC_PORT_TCP | HashFields::DST_PORT_TCP;
    let check = |frame: &[u8], ip: HashFields, addresses: u32, all: u32| {
        let hash = |fields| Rss { key: KEY, fields }.hash(&layers(frame));
        assert_eq!((hash(ip), hash(ip | ports)), (addresses, all));
        assert_eq!(hash(ip | HashFields::SRC_PORT_UDP), addresses, "UDP's ports are not TCP's");
    };
    let v4: [([u8; 4], u16, [u8; 4], u16, u32, u32); 5] = [
        ([66, 9, 149, 187], 2794, [161, 142, 100, 80], 1766, 0x323e_8fc2, 0x51cc_c178),
        ([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739, 0xd718_262a, 0xc626_b0ea),
        ([24, 19, 198, 95], 12898, [12, 22, 207, 184], 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ([38, 27, 205, 30], 48228, [209, 142, 163, 6], 2217, 0x8298_9176, 0xafc7_327f),
        ([153, 39, 163, 191], 44251, [202, 188, 127, 2], 1303, 0x5d18_09c5, 0x10e8_28a2),
    ];
    for (source, from, destination, to, addresses, all) in v4 {
        check(&ethernet(&[], 0x0800, &ipv4(source, destination, 6, 0, &tcp(from, to, b""))), ip4, addresses, all);
    }
    let v6 = [
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
        ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, "fe80::200:f8ff:fe21:67cf", 38024, 0x4b61_e985, 0x02d1_feef),
    ];
    for (source, from, destination, to, addresses, all) in v6 {
        let octets = |text: &str| text.parse::<core::net::Ipv6Addr>().unwrap().octets();
        let packet = ipv6(octets(source), octets(destination), 6, &tcp(from, to, b""));
        check(&ethernet(&[], 0x86dd, &packet), ip6, addresses, all);
    }
    let arp = ethernet(&[], 0x0806, &[0; 28]);
    assert_eq!(Rss { key: KEY, fields: ip4 }.hash(&layers(&arp)), 0);
    assert!(ip4.is_consistent() && (ip6 | ports).is_consistent() && !(ip4 | ip6).is_consistent());
    assert!(!(ip4 | ports | HashFields::SRC_PORT_UDP).is_consistent());
}

#[test]
fn headers_are_found_behind_tags_options_extensions_and_in_tunnels() {
    let inside = ipv4([10, 0, 0, 1], [10, 0, 0, 2], 17, 0, &udp(5, 6, b"x"));
    let tagged = layers(&ethernet(&[(0x88a8, 0x0003), (0x8100, 0x2007)], 0x0800, &inside)).outer;
    let header = tagged.ethernet.unwrap();
    assert_eq!((header.ether_type, header.vlan), (0x0800, Some(3)));
    assert_eq!(tagged.upper, Some(Upper::Udp(Ports { source: 5, destination: 6 })));
    assert_eq!((tagged.internet_at, tagged.upper_at), (22, 42));

    let hop_by_hop = [&[44, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 1][..], &udp(5, 6, b"")].concat();
    let six = layers(&ethernet(&[], 0x86dd, &ipv6([1; 16], [2; 16], 0, &hop_by_hop))).outer;
    assert_eq!((six.protocol, six.fragment), (17, false), "a fragment that is whole");
    assert!(matches!(six.upper, Some(Upper::Udp(_))));
    let Some(Internet::V6 { flow_label, traffic_class, hop_limit, .. }) = six.internet else { panic!("{six:?}") };
    assert_eq!((flow_label, traffic_class, hop_limit), (0xa_bcde, 0x12, 9));

    let part = layers(&ethernet(&[], 0x0800, &ipv4([1; 4], [2; 4], 17, 0x2000, &udp(5, 6, b"")))).outer;
    assert!(part.fragment && part.upper.is_none() && part.protocol == 17);

    let inner = ethernet(&[], 0x0800, &inside);
    let vxlan = [&[8, 0, 0, 0, 0, 0x12, 0x34, 0][..], &inner].concat();
    let tunnel = layers(&ethernet(&[], 0x0800, &ipv4([1; 4], [2; 4], 17, 0, &udp(9, 4789, &vxlan))));
    assert_eq!(tunnel.vxlan, Some(0x1234));
    assert!(matches!(tunnel.inner.unwrap().upper, Some(Upper::Udp(Ports { source: 5, destination: 6 }))));

    let gre = [&[0x20, 0, 8, 0, 0, 0, 0, 77][..], &inside].concat();
    let gre = layers(&ethernet(&[], 0x0800, &ipv4([1; 4], [2; 4], 47, 0, &gre)));
    assert_eq!(gre.outer.upper, Some(Upper::Gre(Gre { flags: 0x2000, protocol: 0x0800, key: 77 })));
    assert!(matches!(gre.inner.unwrap().upper, Some(Upper::Udp(_))));

    let labels = [&[0, 1, 0x20, 64, 0, 2, 0x21, 64][..], &inside].concat();
    let mpls = layers(&ethernet(&[], 0x8847, &labels)).outer;
    assert_eq!(mpls.mpls, Some(0x0001_2040));
    assert!(matches!(mpls.upper, Some(Upper::Udp(_))));

    assert_eq!(Layers::parse(&[0; 13]), None);
    let whole = ethernet(&[], 0x0800, &ipv4([1; 4], [2; 4], 17, 0, &udp(9, 4789, &vxlan)));
    for length in ETHERNET_HEADER..whole.len() {
        assert!(Layers::parse(&whole[..length]).is_some());
    }
}

/// A specification as C has it.
fn spec(kind: u32, size: u16, at: usize, value: &[u8], mask: &[u8], apart: usize) -> Vec<u8> {
    let mut bytes = vec![0; size.into()];
    bytes[..4].copy_from_slice(&kind.to_ne_bytes());
    bytes[4..6].copy_from_slice(&size.to_ne_bytes());
    bytes[at..at + value.len()].copy_from_slice(value);
    bytes[at + apart..at + apart + mask.len()].copy_from_slice(mask);
    bytes
}

fn condition(bytes: &[u8]) -> Match {
    match FlowPart::parse(bytes) {
        Ok(FlowPart::Match(condition)) => condition,
        other => panic!("{other:?}"),
    }
}

#[test]
fn conditions_ask_for_the_bits_of_their_mask() {
    let frame =
        layers(&ethernet(&[(0x8100, 0x6005)], 0x0800, &ipv4([10, 1, 2, 3], [10, 9, 9, 9], 17, 0, &udp(5, 6, b""))));
    let eth = |tag: u16, mask: u16| {
        let value = [&DESTINATION[..], &[0; 8], &tag.to_be_bytes()].concat();
        condition(&spec(0x20, 40, 6, &value, &[&[0xff; 6][..], &[0; 8], &mask.to_be_bytes()].concat(), 16))
    };
    assert!(eth(5, 0x0fff).holds(&frame) && !eth(6, 0x0fff).holds(&frame) && eth(6, 0).holds(&frame));
    let untagged = layers(&ethernet(&[], 0x0800, &ipv4([1; 4], [2; 4], 6, 0, &tcp(1, 2, b""))));
    assert!(!eth(0, 0x0fff).holds(&untagged), "a tag is wanted");
    let net = condition(&spec(0x30, 24, 8, &[10, 1, 0, 0], &[255, 255, 0, 0], 8));
    assert!(net.holds(&frame) && !net.holds(&untagged));
    let protocol = condition(&spec(0x32, 32, 16, &[17], &[255], 12));
    assert!(protocol.holds(&frame) && !protocol.holds(&untagged));
    let port = |kind| condition(&spec(kind, 16, 6, &[0, 6], &[255, 255], 4));
    assert!(port(0x41).holds(&frame) && !port(0x40).holds(&frame));
    let inner = condition(&spec(0x141, 16, 6, &[0, 6], &[255, 255], 4));
    assert!(!inner.holds(&frame), "there is no tunnel");
    let all = condition(&spec(0x31, 88, 8, &[], &[], 40));
    assert!(!all.holds(&frame), "IPv6 is asked for");
}

#[test]
fn specifications_that_cannot_be_are_refused() {
    let kind_of = |bytes: &[u8]| FlowPart::parse(bytes).unwrap_err();
    assert_eq!(kind_of(&spec(0x33, 24, 8, &[], &[], 0)), SpecError::UnknownType(0x33));
    assert_eq!(kind_of(&[]), SpecError::UnknownType(0));
    assert!(matches!(kind_of(&spec(0x20, 38, 6, &[], &[], 0)), SpecError::Size { given: 38, needed: 40, .. }));
    assert_eq!(kind_of(&spec(0x1100, 12, 8, &[], &[], 0)), SpecError::NotInner(SpecType::ActionTag));
    assert_eq!(kind_of(&spec(0x1002, 16, 8, &[], &[], 0)), SpecError::NotOffered(SpecType::ActionHandle));
    assert_eq!(kind_of(&spec(0x31, 88, 40, &[0, 0x10, 0, 0], &[], 0)), SpecError::TooLarge { field: "flow label" });
    let tag = spec(0x1000, 12, 8, &0x12_3456u32.to_ne_bytes(), &[], 0);
    assert_eq!(FlowPart::parse(&tag), Ok(FlowPart::Action(Action::Tag(0x12_3456))));
    assert!(matches!(kind_of(&spec(0x1000, 12, 8, &u32::MAX.to_ne_bytes(), &[], 0)), SpecError::TooLarge { .. }));
    assert_eq!(FlowPart::parse(&spec(0x1001, 8, 6, &[], &[], 0)), Ok(FlowPart::Action(Action::Drop)));
}

fn rule(id: u32, kind: RuleKind, priority: u16, matches: Vec<Match>) -> Rule<u32> {
    Rule { id, kind, priority, passes: false, matches, tag: id, drops: false, target: id }
}

fn takers(table: &Table<u32>, frame: &[u8]) -> (Vec<u32>, Verdict) {
    let mut ids = Vec::new();
    let verdict = table.route(&layers(frame), Origin::Wire, |rule, copy| ids.extend(copy.then_some(rule.id)));
    (ids, verdict)
}

#[test]
fn the_first_rule_by_priority_takes_a_frame_and_equals_share_it() {
    let frame = ethernet(&[], 0x0800, &ipv4([10, 1, 2, 3], [10, 9, 9, 9], 17, 0, &udp(5, 6, b"")));
    let other = ethernet(&[], 0x0806, &[0; 28]);
    let net = condition(&spec(0x30, 24, 8, &[10, 1, 0, 0], &[255, 255, 0, 0], 8));
    let port = condition(&spec(0x41, 16, 6, &[0, 6], &[255, 255], 4));
    let mut table = Table::default();
    table.insert(rule(1, RuleKind::Normal, 5, vec![net]));
    table.insert(rule(2, RuleKind::Normal, 3, vec![port]));
    table.insert(rule(3, RuleKind::Normal, 3, vec![net]));
    table.insert(rule(4, RuleKind::AllDefault, 0, vec![]));
    table.insert(rule(5, RuleKind::MulticastDefault, 0, vec![]));
    assert_eq!(takers(&table, &frame), (vec![2], Verdict::Taken));
    assert_eq!(takers(&table, &other), (vec![4], Verdict::Taken));
    let mut group = other.clone();
    group[0] |= 1;
    assert_eq!(takers(&table, &group), (vec![4, 5], Verdict::Taken));
    table.insert(rule(6, RuleKind::Normal, 3, vec![port]));
    assert_eq!(takers(&table, &frame).0, [2, 6], "the same conditions: both");
    table.insert(Rule { target: 6, ..rule(7, RuleKind::Normal, 3, vec![port]) });
    assert_eq!(takers(&table, &frame).0, [2, 6], "one copy for each target");
    table.insert(Rule { passes: true, ..rule(8, RuleKind::Normal, 3, vec![net]) });
    assert_eq!(takers(&table, &frame).0, [8, 2, 6], "one that lets pass comes first");
    table.insert(Rule { drops: true, ..rule(9, RuleKind::Normal, 0, vec![net]) });
    assert_eq!(takers(&table, &frame), (vec![], Verdict::Dropped));
    table.insert(rule(10, RuleKind::Sniffer, 0, vec![]));
    assert_eq!(takers(&table, &frame).0, [10]);
    assert!(table.wants_outgoing());
    let mut seen = Vec::new();
    table.route(&layers(&frame), Origin::Host(Loopback::None), |rule, _| seen.push(rule.id));
    assert_eq!(seen, [10], "only sniffers see what the host sends");
    assert_eq!(table.remove(|rule| rule.id >= 4).len(), 7);
    assert_eq!(takers(&table, &other), (vec![], Verdict::Unmatched));
}

#[test]
fn what_the_host_sends_comes_back_to_rules_that_it_is_for() {
    let frame = ethernet(&[], 0x0800, &ipv4([10, 1, 2, 3], [10, 9, 9, 9], 17, 0, &udp(5, 6, b"")));
    let named = condition(&spec(0x20, 40, 6, &frame[..6], &[255; 6], 16));
    let half = condition(&spec(0x20, 40, 6, &frame[..6], &[255; 3], 16));
    let port = condition(&spec(0x41, 16, 6, &[0, 6], &[255, 255], 4));
    let mut table = Table::default();
    table.insert(rule(1, RuleKind::Normal, 0, vec![port]));
    table.insert(rule(2, RuleKind::Normal, 1, vec![half]));
    table.insert(rule(3, RuleKind::Normal, 2, vec![named, port]));
    table.insert(rule(4, RuleKind::AllDefault, 0, vec![]));
    let looped = |table: &Table<u32>, loopback| {
        let mut ids = Vec::new();
        let verdict = table.route(&layers(&frame), Origin::Host(loopback), |rule, _| ids.push(rule.id));
        (ids, verdict)
    };
    assert_eq!(looped(&table, Loopback::None), (vec![], Verdict::Unmatched));
    assert_eq!(looped(&table, Loopback::Named), (vec![3], Verdict::Taken), "the rule that names the address");
    assert_eq!(looped(&table, Loopback::All), (vec![1], Verdict::Taken), "as from the wire");
    table.remove(|rule| rule.id <= 3);
    assert_eq!(looped(&table, Loopback::Named), (vec![], Verdict::Unmatched), "the rest of other hosts is not ours");
    assert_eq!(looped(&table, Loopback::All), (vec![4], Verdict::Taken));
}

#[test]
fn a_frame_whose_sender_takes_marks_is_marked_and_its_checksum_stays_right() {
    for (tos, marked) in [(0xb8, None), (0xb9, Some(0xbb)), (2, Some(3)), (3, Some(3)), (0, None)] {
        let mut frame =
            ethernet(&[(0x8100, 7)], 0x0800, &ipv4([10, 1, 2, 3], [10, 9, 9, 9], 17, 0, &udp(5, 6, b"data")));
        let at = layers(&frame).outer.internet_at;
        frame[at + 1] = tos;
        let all = layers(&frame);
        fill_checksums(&mut frame, &all);
        assert_eq!(mark_congestion(&mut frame, &all), marked.is_some());
        assert_eq!(frame[at + 1], marked.unwrap_or(tos));
        assert_eq!(checksums(&frame, &layers(&frame), false).internet, Some(true));
    }
    for (class, marked) in [(0x00, 0x00), (0x01, 0x03), (0xfe, 0xff), (0xff, 0xff)] {
        let mut frame = ethernet(&[], 0x86dd, &ipv6([1; 16], [2; 16], 17, &udp(5, 6, b"data")));
        frame[14] = 0x60 | class >> 4;
        frame[15] = class << 4 | frame[15] & 15;
        let all = layers(&frame);
        assert_eq!(mark_congestion(&mut frame, &all), class & 3 != 0);
        let Some(Internet::V6 { traffic_class, .. }) = layers(&frame).outer.internet else { panic!() };
        assert_eq!(traffic_class, marked);
    }
    let mut other = ethernet(&[], 0x0806, &[0xff; 28]);
    let all = layers(&other);
    assert!(!mark_congestion(&mut other, &all));
}

#[test]
fn conditions_of_different_types_contradict() {
    let ipv4 = condition(&spec(0x30, 24, 8, &[], &[], 8));
    let ipv6 = condition(&spec(0x31, 88, 8, &[], &[], 40));
    let arp = condition(&spec(0x20, 40, 18, &[8, 6], &[255, 255], 16));
    let inner = condition(&spec(0x131, 88, 8, &[], &[], 40));
    assert!(rule(1, RuleKind::Normal, 0, vec![ipv4, ipv6]).contradicts_itself());
    assert!(rule(1, RuleKind::Normal, 0, vec![arp, ipv4]).contradicts_itself());
    assert!(!rule(1, RuleKind::Normal, 0, vec![ipv4, inner]).contradicts_itself());
}

#[test]
fn checksums_are_filled_completed_and_checked() {
    for packet in [
        ethernet(&[], 0x0800, &ipv4([10, 0, 0, 1], [10, 0, 0, 2], 17, 0, &udp(5, 6, b"odd"))),
        ethernet(&[(0x8100, 7)], 0x0800, &ipv4([10, 0, 0, 1], [10, 0, 0, 2], 6, 0, &tcp(5, 6, b"even"))),
        ethernet(&[], 0x86dd, &ipv6([1; 16], [2; 16], 6, &tcp(5, 6, b"six"))),
    ] {
        let mut frame = packet.clone();
        frame.extend([0xaa; 5]); // what Ethernet fills up with is not covered
        let found = layers(&frame);
        assert!(!checksums(&frame, &found, false).are_right());
        fill_checksums(&mut frame, &found);
        let v4 = matches!(found.outer.internet, Some(Internet::V4 { .. }));
        let right = Checksums { internet: v4.then_some(true), upper: Some(true) };
        assert_eq!(checksums(&frame, &found, false), right);
        let last = found.outer.end - 1;
        frame[last] ^= 1;
        assert_eq!(checksums(&frame, &found, false).upper, Some(false));
    }
    // What a kernel leaves to the device: the sum of the pseudo header is there already.
    let mut frame = ethernet(&[], 0x0800, &ipv4([10, 0, 0, 1], [10, 0, 0, 2], 17, 0, &udp(5, 6, b"data")));
    let sum: u32 = 0x0a00 + 1 + 0x0a00 + 2 + 17 + 12;
    frame[40..42].copy_from_slice(&(sum as u16).to_be_bytes());
    complete_checksum(&mut frame, 34, 6);
    assert_eq!(checksums(&frame, &layers(&frame), false).upper, Some(true));
    complete_checksum(&mut frame, 400, 6);
    let none = ethernet(&[], 0x0800, &ipv4([1; 4], [2; 4], 17, 0, &udp(5, 6, b"x")));
    assert_eq!(checksums(&none, &layers(&none), false).upper, Some(true), "UDP over IPv4 may go without");
}

#[test]
fn long_frames_are_cut_as_a_device_would() {
    let data: Vec<u8> = (0..250).collect();
    let frame = ethernet(&[], 0x0800, &ipv4([10, 0, 0, 1], [10, 0, 0, 2], 6, 0, &tcp(5, 6, &data)));
    let (mut scratch, mut seen, mut together) = (Vec::new(), Vec::new(), Vec::new());
    let offload = Offload { kind: OffloadKind::Tcp, size: 100 };
    assert!(each_segment(&frame, offload, &mut scratch, |segment| {
        let found = layers(segment);
        assert!(checksums(segment, &found, false).are_right());
        seen.push((u32_at(segment, 38), segment[47], u16_at(segment, 18)));
        together.extend_from_slice(&segment[54..]);
    }));
    // Sequence numbers; FIN and PSH in the last, CWR in the first; identifications.
    assert_eq!(seen, [(100, 0x90, 7), (200, 0x10, 8), (300, 0x19, 9)]);
    assert_eq!(together, data);
    let datagrams = ethernet(&[], 0x86dd, &ipv6([1; 16], [2; 16], 17, &udp(5, 6, &data)));
    let mut lengths = Vec::new();
    assert!(each_segment(&datagrams, Offload { kind: OffloadKind::Udp, size: 100 }, &mut scratch, |segment| {
        assert_eq!(checksums(segment, &layers(segment), false).upper, Some(true));
        lengths.push((u16_at(segment, 18), u16_at(segment, 58)));
    }));
    assert_eq!(lengths, [(108, 108), (108, 108), (58, 58)]);
    assert!(!each_segment(&datagrams, offload, &mut scratch, |_| panic!("not TCP")));
}

#[test]
fn tags_go_in_and_out() {
    let mut frame = ethernet(&[], 0x0806, &[1; 28]);
    let plain = frame.clone();
    insert_tag(&mut frame, 0x8100, 0x6005);
    assert_eq!(layers(&frame).outer.ethernet.unwrap().vlan, Some(0x6005));
    assert_eq!(remove_tag(&frame), Some((plain.clone(), 0x6005)));
    assert_eq!(remove_tag(&plain), None);
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}
