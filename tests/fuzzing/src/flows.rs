//! Flow specifications of a program, and a frame of anybody's: the first byte says how many specifications follow, each
//! after a byte with its length; the rest is the frame.

use std::collections::BTreeSet;
use wire::flow::{
    ETHERNET_HEADER, FlowPart, HashFields, Layers, Loopback, Match, Offload, OffloadKind, Origin, Rss, Rule, RuleKind,
    Table, Verdict, checksums, each_segment, fill_checksums, insert_tag, mark_congestion, remove_tag,
};

/// The conditions, and what is left.
fn conditions(bytes: &[u8]) -> (Vec<Match>, &[u8]) {
    let Some((count, mut rest)) = bytes.split_first() else { return (Vec::new(), &[]) };
    let mut found = Vec::new();
    for _ in 0..count % 11 {
        let Some((length, after)) = rest.split_first() else { break };
        let (spec, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        match FlowPart::parse(spec) {
            Ok(FlowPart::Match(condition)) => found.push(condition),
            Ok(FlowPart::Action(_)) => {}
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    (found, rest)
}

/// Takes bytes for specifications and a frame.
///
/// # Panics
/// If a frame is read beyond its end, taken by a rule that does not hold, or given checksums that are wrong.
pub fn flows(bytes: &[u8]) {
    let (matches, frame) = conditions(bytes);
    let Some(layers) = Layers::parse(frame) else {
        return assert!(frame.len() < ETHERNET_HEADER);
    };
    for stack in [Some(layers.outer), layers.inner].into_iter().flatten() {
        assert!(stack.end <= frame.len() && stack.internet_at <= stack.upper_at);
        assert!(!stack.fragment || stack.upper.is_none());
    }
    route(&matches, &layers);
    let rss = Rss { key: [0x5a; 40], fields: HashFields::all() };
    assert_eq!(rss.hash(&layers), rss.hash(&layers));
    checked(frame, &layers);
    marked(frame, &layers);
    segments(frame, &layers);
    let mut tagged = frame.to_vec();
    insert_tag(&mut tagged, 0x8100, 0x2345);
    assert_eq!(remove_tag(&tagged), Some((frame.to_vec(), 0x2345)));
}

/// One rule for each condition, one for all of them, and one for the rest.
fn route(matches: &[Match], layers: &Layers) {
    let rule = |id: u32, kind, matches: Vec<Match>| Rule {
        id,
        kind,
        priority: id as u16,
        passes: id.is_multiple_of(2),
        matches,
        tag: id,
        drops: false,
        target: id,
    };
    let mut table = Table::default();
    for (id, condition) in matches.iter().enumerate() {
        table.insert(rule(id as u32, RuleKind::Normal, vec![*condition]));
    }
    table.insert(rule(100, RuleKind::Normal, matches.to_vec()));
    table.insert(rule(101, RuleKind::AllDefault, Vec::new()));
    let mut given = BTreeSet::new();
    let verdict = table.route(layers, Origin::Wire, |rule, _| {
        assert!(rule.holds(layers), "{rule:?}");
        assert!(given.insert(rule.id), "twice");
    });
    assert_eq!(verdict, Verdict::Taken, "one is for the rest");
    assert_eq!(given.iter().filter(|id| **id % 2 == 1).count(), 1, "one takes it, and then no other is asked");
    let destination = layers.outer.ethernet.map(|header| header.destination);
    table.route(layers, Origin::Host(Loopback::Named), |rule, _| {
        assert!(rule.holds(layers) && rule.destinations().any(|named| Some(named) == destination), "{rule:?}");
    });
    let nobody = |rule: &Rule<u32>, _| panic!("{rule:?} hears what goes elsewhere");
    assert_eq!(table.route(layers, Origin::Host(Loopback::None), nobody), Verdict::Unmatched);
}

/// A mark changes two bits, and no checksum becomes wrong or right by it.
fn marked(frame: &[u8], layers: &Layers) {
    let mut marked = frame.to_vec();
    if !mark_congestion(&mut marked, layers) {
        return assert_eq!(marked, frame);
    }
    let again = Layers::parse(&marked).expect("it has its length still");
    assert!(mark_congestion(&mut marked.clone(), &again), "it is marked");
    assert_eq!(checksums(&marked, &again, false).internet, checksums(frame, layers, false).internet);
}

fn checked(frame: &[u8], layers: &Layers) {
    let mut filled = frame.to_vec();
    fill_checksums(&mut filled, layers);
    let again = Layers::parse(&filled).expect("it has its length still");
    // What lies inside another header may be what was filled in.
    if again.outer == layers.outer {
        let found = checksums(&filled, &again, false);
        assert!(found.upper != Some(false));
        assert!(found.internet != Some(false) || filled.len() < again.outer.upper_at);
    }
}

fn segments(frame: &[u8], layers: &Layers) {
    for (kind, size) in [(OffloadKind::Tcp, 7), (OffloadKind::Udp, 100), (OffloadKind::Tcp, 0)] {
        let (mut scratch, mut together, mut count) = (Vec::new(), 0, 0);
        each_segment(frame, Offload { kind, size }, &mut scratch, |segment| {
            assert!(segment.len() <= frame.len());
            together += segment.len();
            count += 1;
        });
        // Each has the headers once more.
        assert!(together <= frame.len() + count * layers.outer.end);
    }
}
