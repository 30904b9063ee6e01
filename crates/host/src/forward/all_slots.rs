//! All processes of this host, for the few packets that do not name theirs. Anybody may send such packets, and each
//! costs a message to every process: so there are only so many messages in a second.

use crate::names::Name;
use crate::slot::Slot;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Messages in a row, and in a second.
const MAX_MESSAGES_PER_SECOND: u32 = 8192;

/// How long the list of slots is believed. A process that came later and was asked something already misses what its
/// peer takes back within this time.
const SLOT_LIST_CACHE_TIME: Duration = Duration::from_millis(20);

/// The slots of this host, as found out lately.
#[derive(Debug, Default)]
pub(super) struct AllSlots {
    slots: BTreeSet<Slot>,
    read: Option<Instant>,
    /// Messages that the time since then has not made up for, and until when that was counted.
    spent: u32,
    counted: Option<Instant>,
}

impl AllSlots {
    /// The slots that a packet goes to; none if there were too many packets lately.
    pub fn slots(&mut self, now: Instant) -> Option<BTreeSet<Slot>> {
        let earned = self.counted.map_or(0, |counted| {
            let since = now.saturating_duration_since(counted).as_nanos();
            u32::try_from(since * u128::from(MAX_MESSAGES_PER_SECOND) / 1_000_000_000)
                .unwrap_or(MAX_MESSAGES_PER_SECOND)
        });
        if earned > 0 || self.counted.is_none() {
            self.spent = self.spent.saturating_sub(earned);
            self.counted = Some(now);
        }
        if self.spent >= MAX_MESSAGES_PER_SECOND {
            return None;
        }
        if self.read.is_none_or(|read| now.saturating_duration_since(read) > SLOT_LIST_CACHE_TIME) {
            self.read = Some(now);
            // Where the table cannot be read, the last one has to do.
            if let Ok(names) = Name::of_this_host() {
                self.slots = names.into_iter().filter_map(Name::slot).collect();
            }
        }
        self.spent += self.slots.len() as u32;
        Some(self.slots.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Slots;

    #[test]
    fn all_slots_are_told_so_often_and_no_more() {
        let slots = Slots::open().unwrap();
        let slot = slots.take().unwrap();
        let (mut all_slots, start) = (AllSlots::default(), Instant::now());
        assert!(all_slots.slots(start).is_some_and(|all| all.contains(&slot)));
        let later = slots.take().unwrap();
        assert!(
            all_slots
                .slots(start + 2 * SLOT_LIST_CACHE_TIME)
                .is_some_and(|all| all.contains(&slot) && all.contains(&later))
        );
        // Other tests have slots, too, so a packet is at least two messages.
        let mut messages = |at| -> u32 {
            (0..MAX_MESSAGES_PER_SECOND).filter_map(|_| all_slots.slots(at)).map(|all| all.len() as u32).sum()
        };
        let (at, half) = (start + Duration::from_secs(5), Duration::from_millis(500));
        // The last packet of a row may go beyond the limit, by as many as there are slots.
        let slack = u32::from(Slot::COUNT);
        assert!((MAX_MESSAGES_PER_SECOND..MAX_MESSAGES_PER_SECOND + slack).contains(&messages(at)));
        assert_eq!(messages(at), 0);
        assert!(
            (MAX_MESSAGES_PER_SECOND / 2 - slack..MAX_MESSAGES_PER_SECOND / 2 + slack).contains(&messages(at + half))
        );
    }
}
