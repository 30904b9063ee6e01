//! What the path to a destination holds without a queue: how much arrives there in the shortest round trip. It is
//! counted round by round, and the best of the last few rounds counts, as a loss makes a round look worse than the path
//! is.

use trace::Time;

/// How many rounds are remembered: some of them saw no loss, also where one packet of twenty is lost.
const REMEMBERED_ROUNDS: usize = 8;

/// See the module. All amounts are costs, as [`packet_cost`](super::packet_cost) has them.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// What arrived in this round, and since when it is counted.
    arrived: u64,
    since: Option<Time>,
    /// What arrived in a shortest round trip, in each of the last rounds.
    rounds: [u64; REMEMBERED_ROUNDS],
    next: usize,
}

impl Delivery {
    /// So much has arrived. A round trip takes so long lately, and the shortest took so long.
    #[inline]
    pub(super) fn arrived(&mut self, now: Time, cost: u64, round_trip: u64, shortest: u64) {
        let since = *self.since.get_or_insert(now);
        self.arrived += cost;
        let took = now.since(since);
        if took == 0 || took < round_trip {
            return;
        }
        if let Some(round) = self.rounds.get_mut(self.next) {
            *round = self.arrived.saturating_mul(shortest.min(took)) / took;
        }
        self.next = (self.next + 1) % REMEMBERED_ROUNDS;
        (self.arrived, self.since) = (0, Some(now));
    }

    /// What the path holds without a queue.
    pub(super) fn held_by_path(&self) -> u64 {
        self.rounds.iter().copied().max().unwrap_or(0)
    }
}
