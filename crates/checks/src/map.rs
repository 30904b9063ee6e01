//! [`Map`] and [`Set`]: what `BTreeMap` and `BTreeSet` are, but cheap to compile.
//!
//! The rules keep some fifty maps, nearly each with a type of value of its own. As `BTreeMap`s they were half of what
//! the compiler had to translate here, and took 16 of its 38 s (21 of 39 for a release), while other crates wait for
//! this one. So there are trees for two types of keys only, `u64` and [`Wide`], to which others are turned in a way
//! that keeps their order. A tree says in which slot of a vector a value lies, and the vector alone knows its type.
//!
//! Slots of what was removed are used again before new ones are made: a map takes as much memory as it needed at its
//! largest.

use alloc::collections::{BTreeMap, btree_map};
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Bound, RangeBounds};

use wire::{Qkey, Qpn};

use crate::rule::Number;

/// What keys that do not fit into a `u64` are turned to. Most have no name, and are compared without a look at one.
pub(crate) type Wide = (u64, u64, Option<&'static str>, u64);

/// A key of a map. Two keys are equal if they are turned to the same.
pub(crate) trait Key: Copy {
    /// What has a tree: `u64` or [`Wide`], and nothing else.
    type Order: Ord;

    /// The key as something that sorts as the key does.
    fn order(self) -> Self::Order;
}

/// Keys that are turned to a number.
macro_rules! narrow {
    ($($key:ty: $name:pat => $order:expr;)*) => {
        $(impl Key for $key {
            type Order = u64;

            fn order(self) -> u64 {
                let $name = self;
                $order
            }
        })*
    };
}

narrow! {
    u32: number => number.into();
    u64: number => number;
    Qpn: qpn => qpn.value().into();
    Qkey: qkey => qkey.value().into();
    Number: Number(number) => number.into();
}

/// Keys that are turned to several numbers and a name.
macro_rules! wide {
    ($($key:ty: $name:pat => $order:expr;)*) => {
        $(impl Key for $key {
            type Order = Wide;

            fn order(self) -> Wide {
                let $name = self;
                $order
            }
        })*
    };
}

wide! {
    &'static str: name => (0, 0, Some(name), 0);
    (u64, &'static str): (number, name) => (number, 0, Some(name), 0);
    (u64, u64): (first, second) => (first, second, None, 0);
    (u64, Qpn): (number, qpn) => (number, qpn.order(), None, 0);
    (u32, u64, u32): (first, second, third) => (first.into(), second, None, third.into());
    (u64, u64, u32, u32): (first, second, third, fourth) => (first, second, None, tagged(third.into(), fourth));
    [u8; 16]: bytes => {
        let number = u128::from_be_bytes(bytes);
        ((number >> 64) as u64, number as u64, None, 0)
    };
}

/// A number below another that has at most 32 bits.
pub(crate) fn tagged(tag: u64, number: u32) -> u64 {
    tag << 32 | u64::from(number)
}

/// Where values lie: what of a map does not depend on their type.
struct Index<Order> {
    slots: BTreeMap<Order, usize>,
    /// Slots that nothing lies in.
    free: Vec<usize>,
}

impl<Order: Ord> Index<Order> {
    const fn new() -> Index<Order> {
        Index { slots: BTreeMap::new(), free: Vec::new() }
    }

    fn find(&self, order: &Order) -> Option<usize> {
        self.slots.get(order).copied()
    }

    /// The slot of a key, which may be a new one: one that is free, or else this one.
    fn find_or_add(&mut self, order: Order, unused: usize) -> usize {
        *self.slots.entry(order).or_insert_with(|| self.free.pop().unwrap_or(unused))
    }

    fn remove(&mut self, order: &Order) -> Option<usize> {
        let slot = self.slots.remove(order)?;
        self.free.push(slot);
        Some(slot)
    }

    fn first(&self) -> Option<usize> {
        self.slots.values().next().copied()
    }

    fn range(&self, from: Bound<Order>, to: Bound<Order>) -> btree_map::Range<'_, Order, usize> {
        self.slots.range((from, to))
    }
}

/// A map, sorted by its keys.
pub(crate) struct Map<K: Key, V> {
    index: Index<K::Order>,
    values: Vec<Option<(K, V)>>,
}

impl<K: Key, V> Map<K, V> {
    pub const fn new() -> Map<K, V> {
        Map { index: Index::new(), values: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.index.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.index.slots.is_empty()
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.index.find(&key.order()).is_some()
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        let slot = self.index.find(&key.order())?;
        self.values.get(slot)?.as_ref().map(|(_, value)| value)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let slot = self.index.find(&key.order())?;
        self.values.get_mut(slot)?.as_mut().map(|(_, value)| value)
    }

    /// Puts a value in, and returns the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.slot_of(key).replace((key, value)).map(|(_, old)| old)
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let slot = self.index.remove(&key.order())?;
        self.values.get_mut(slot)?.take().map(|(_, value)| value)
    }

    /// The place of a key, whether something is there or not.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        Entry { map: self, key }
    }

    /// Removes what is not wanted any more. It is asked of each, in order.
    pub fn retain(&mut self, mut is_wanted: impl FnMut(&K, &mut V) -> bool) {
        let mut unwanted = Vec::new();
        for slot in self.index.slots.values() {
            if let Some(Some((key, value))) = self.values.get_mut(*slot)
                && !is_wanted(key, value)
            {
                unwanted.push(*key);
            }
        }
        for key in unwanted {
            self.remove(&key);
        }
    }

    /// The first key, and its value.
    pub fn first(&self) -> Option<(&K, &V)> {
        self.values.get(self.index.first()?)?.as_ref().map(|(key, value)| (key, value))
    }

    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { slots: self.index.slots.values(), values: &self.values }
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Shows each value, in order, to be changed.
    pub fn for_each_mut(&mut self, mut change: impl FnMut(&K, &mut V)) {
        for slot in self.index.slots.values() {
            if let Some(Some((key, value))) = self.values.get_mut(*slot) {
                change(key, value);
            }
        }
    }

    /// What lies between two keys.
    pub fn range(&self, keys: impl RangeBounds<K>) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        let from = keys.start_bound().map(|key| key.order());
        let to = keys.end_bound().map(|key| key.order());
        let slots = self.index.range(from, to);
        slots.filter_map(|(_, slot)| self.values.get(*slot)?.as_ref()).map(|(key, value)| (key, value))
    }

    fn slot_of(&mut self, key: K) -> &mut Option<(K, V)> {
        let slot = self.index.find_or_add(key.order(), self.values.len());
        if slot == self.values.len() {
            self.values.push(None);
        }
        &mut self.values[slot]
    }
}

/// The place of a key in a map.
pub(crate) struct Entry<'a, K: Key, V> {
    map: &'a mut Map<K, V>,
    key: K,
}

impl<'a, K: Key, V> Entry<'a, K, V> {
    pub fn or_insert(self, value: V) -> &'a mut V {
        self.or_insert_with(|| value)
    }

    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> &'a mut V {
        let key = self.key;
        &mut self.map.slot_of(key).get_or_insert_with(|| (key, make())).1
    }

    pub fn or_default(self) -> &'a mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }
}

/// Goes through a map in the order of its keys.
pub(crate) struct Iter<'a, K: Key, V> {
    slots: btree_map::Values<'a, K::Order, usize>,
    values: &'a [Option<(K, V)>],
}

impl<'a, K: Key, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<(&'a K, &'a V)> {
        let slot = self.slots.next()?;
        self.values.get(*slot)?.as_ref().map(|(key, value)| (key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.slots.size_hint()
    }
}

impl<'a, K: Key, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

// By hand, as `derive` would want it of the key as well.
impl<K: Key, V> Default for Map<K, V> {
    fn default() -> Map<K, V> {
        Map::new()
    }
}

impl<K: Key + fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

/// A set of keys, sorted.
pub(crate) struct Set<K: Key>(Map<K, ()>);

impl<K: Key> Set<K> {
    pub const fn new() -> Set<K> {
        Set(Map::new())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    /// Whether the key is new.
    pub fn insert(&mut self, key: K) -> bool {
        self.0.insert(key, ()).is_none()
    }

    /// Whether the key was there.
    pub fn remove(&mut self, key: &K) -> bool {
        self.0.remove(key).is_some()
    }

    pub fn pop_first(&mut self) -> Option<K> {
        let (&key, ()) = self.0.first()?;
        self.remove(&key);
        Some(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }
}

impl<K: Key> Default for Set<K> {
    fn default() -> Set<K> {
        Set::new()
    }
}

impl<K: Key> FromIterator<K> for Set<K> {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Set<K> {
        let mut set = Set::new();
        keys.into_iter().for_each(|key| _ = set.insert(key));
        set
    }
}

impl<K: Key + fmt::Debug> fmt::Debug for Set<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests;
