use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use core::fmt::Debug;

use super::*;
use crate::finding::Subject;
use crate::posted_work::Owner;

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const OPERATIONS: u64 = 20_000;

/// Few keys, so that most operations find something.
const KEYS: u64 = 64;

/// Numbers that are the same in each run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Does the same to a map and to a `BTreeMap`, and compares what they answer.
fn compare<K: Key + Ord + Debug>(key_of: impl Fn(u64) -> K) {
    let (mut map, mut expected, mut random) = (Map::new(), BTreeMap::new(), Random(SEED));
    for value in 0..OPERATIONS {
        let key = key_of(random.below(KEYS));
        match random.below(12) {
            0..3 => assert_eq!(map.insert(key, value), expected.insert(key, value)),
            3..6 => assert_eq!(map.remove(&key), expected.remove(&key)),
            6 => assert_eq!(map.entry(key).or_insert(value), expected.entry(key).or_insert(value)),
            7 => {
                *map.entry(key).or_default() += value;
                *expected.entry(key).or_default() += value;
            }
            8 => {
                map.for_each_mut(|_, one| *one ^= value);
                expected.values_mut().for_each(|one| *one ^= value);
            }
            9 => {
                let (mut seen, mut expected_seen) = (Vec::new(), Vec::new());
                map.retain(|key, one| {
                    seen.push(*key);
                    *one += 1;
                    !one.is_multiple_of(5)
                });
                expected.retain(|key, one| {
                    expected_seen.push(*key);
                    *one += 1;
                    !one.is_multiple_of(5)
                });
                assert_eq!(seen, expected_seen);
            }
            10 => {
                map.get_mut(&key).into_iter().for_each(|one| *one += 1);
                expected.get_mut(&key).into_iter().for_each(|one| *one += 1);
            }
            _ => {
                let other = key_of(random.below(KEYS));
                let (from, to) = (key.min(other), key.max(other));
                assert!(map.range(from..to).eq(expected.range(from..to)));
                assert!(map.range(from..=to).rev().eq(expected.range(from..=to).rev()));
                assert!(map.range(from..).eq(expected.range(from..)) && map.range(..to).eq(expected.range(..to)));
            }
        }
        assert!(map.iter().eq(expected.iter()));
        assert_eq!((map.len(), map.is_empty()), (expected.len(), expected.is_empty()));
        assert_eq!((map.contains_key(&key), map.get(&key)), (expected.contains_key(&key), expected.get(&key)));
        assert_eq!(map.first(), expected.first_key_value());
        assert!(map.values.len() <= KEYS as usize, "slots are used again");
    }
    assert_eq!(format!("{map:?}"), format!("{expected:?}"));
}

#[test]
fn a_map_does_what_a_btree_map_does() {
    compare(|number| number);
    compare(|number| number as u32);
}

#[test]
fn a_map_with_wide_keys_does_what_a_btree_map_does() {
    compare(|number| (number / 8, number % 8));
    compare(|number| NAMES[number as usize % NAMES.len()]);
}

#[test]
fn a_set_does_what_a_btree_set_does() {
    let (mut set, mut expected, mut random) = (Set::new(), BTreeSet::new(), Random(SEED));
    for _ in 0..OPERATIONS {
        let key = random.below(KEYS) as u32;
        match random.below(5) {
            0 | 1 => assert_eq!(set.insert(key), expected.insert(key)),
            2 | 3 => assert_eq!(set.remove(&key), expected.remove(&key)),
            _ => assert_eq!(set.pop_first(), expected.pop_first()),
        }
        assert!(set.iter().eq(expected.iter()));
        assert_eq!((set.len(), set.is_empty()), (expected.len(), expected.is_empty()));
        assert_eq!(set.contains(&key), expected.contains(&key));
    }
    assert_eq!(format!("{set:?}"), format!("{expected:?}"));
    assert!(expected.iter().copied().collect::<Set<u32>>().iter().eq(expected.iter()));
}

const NAMES: [&str; 4] = ["", "ibv_poll_cq", "ibv_post_recv", "ibv_post_send"];

/// Numbers at which an order may go wrong: small ones, those around 32 bits, and the largest.
const NUMBERS: [u64; 6] = [0, 1, 2, u32::MAX as u64, u32::MAX as u64 + 1, u64::MAX];

/// Each key against each.
fn order_is_kept<K: Key + Ord + Debug>(keys: impl IntoIterator<Item = K>) {
    let keys: Vec<K> = keys.into_iter().collect();
    for one in &keys {
        for other in &keys {
            assert_eq!(one.order().cmp(&other.order()), one.cmp(other), "{one:?} and {other:?}");
        }
    }
}

/// Whatever can be made of two numbers and a name.
fn all<K>(make: impl Fn(u64, u64, &'static str) -> K) -> Vec<K> {
    let pairs = NUMBERS.iter().flat_map(|first| NUMBERS.iter().map(move |second| (*first, *second)));
    pairs
        .flat_map(|(first, second)| NAMES.iter().map(move |name| (first, second, *name)))
        .map(|(first, second, name)| make(first, second, name))
        .collect()
}

#[test]
fn keys_are_sorted_as_they_were() {
    order_is_kept(all(|first, _, _| first));
    order_is_kept(all(|first, _, _| first as u32));
    order_is_kept(all(|first, _, _| Qpn::new(first as u32)));
    order_is_kept(all(|first, _, _| Qkey::new(first as u32)));
    order_is_kept(all(|first, _, _| Number(first as u16)));
    order_is_kept(all(|_, _, name| name));
    order_is_kept(all(|first, _, name| (first, name)));
    order_is_kept(all(|first, second, _| (first, second)));
    order_is_kept(all(|first, second, _| (first, Qpn::new(second as u32))));
    order_is_kept(all(|first, second, _| (second as u32, first, first as u32)));
    order_is_kept(all(|first, second, _| (0, first, second as u32, first as u32)));
    order_is_kept(all(|first, second, _| (u128::from(first) << 64 | u128::from(second)).to_be_bytes()));
    let owners = |first: u64, second: u64| {
        [Owner::Send(Qpn::new(first as u32)), Owner::Receive(Qpn::new(first as u32)), Owner::Shared(first as u32)]
            [second as usize % 3]
    };
    order_is_kept(all(|first, second, _| owners(first, second)));
    order_is_kept(all(|first, second, _| (second % 2, owners(first, second), first)));
}

#[test]
fn findings_are_sorted_by_rule_subject_and_variant() {
    let subjects = |first: u64, name| {
        let number = first as u32;
        [
            Subject::Process,
            Subject::QueuePair(Qpn::new(number)),
            Subject::CompletionQueue(number),
            Subject::SharedQueue(number),
            Subject::Memory(number),
            Subject::Domain(number),
            Subject::Id(first),
            Subject::Function(name),
        ]
    };
    let keys = all(|first, second, name| subjects(first, name).map(|subject| (Number(second as u16), subject, second)));
    order_is_kept(keys.into_iter().flatten());
}
