//! The clocks of processes, aligned by the messages that they exchanged: none arrives before it was sent. That bounds how
//! far two clocks are apart, from below by what went one way, from above by what went the other. A sender notes the time
//! after it has sent, and may be interrupted in between: so a few of the messages may say otherwise.

use std::collections::{BTreeMap, VecDeque};

/// Of so many messages one may be an exception.
const MESSAGES_PER_EXCEPTION: usize = 50;

/// So many messages one way between two processes are looked at.
const MAX_MESSAGES_PER_WAY: usize = 1 << 20;

/// What is known of two processes, the first being the one with the lower number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Pair {
    /// The second's clock must be set forward by as much, at least: a message of the first arrived so much too early.
    at_least: Vec<i64>,
    /// And at most.
    at_most: Vec<i64>,
}

/// Messages between processes, and when.
#[derive(Debug, Default)]
pub struct Crossings {
    pairs: BTreeMap<(usize, usize), Pair>,
    count: u64,
}

/// How clocks were aligned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alignment {
    /// What is added to each process's times.
    pub offsets: Vec<i64>,
    /// How far apart two clocks may be, where messages went both ways between all.
    pub error: Option<u64>,
    /// How many messages arrive before they were sent, all the same, and by how much at most.
    pub early: (u64, u64),
    /// How many messages went between processes.
    pub messages: u64,
}

impl Crossings {
    /// A message: of which process and when, and where to and when.
    pub fn add(&mut self, (from, sent): (usize, i64), (to, arrived): (usize, i64)) {
        if from == to {
            return;
        }
        self.count += 1;
        let pair = self.pairs.entry((from.min(to), from.max(to))).or_default();
        let (bounds, bound) = match from < to {
            true => (&mut pair.at_least, sent.saturating_sub(arrived)),
            false => (&mut pair.at_most, arrived.saturating_sub(sent)),
        };
        if bounds.len() < MAX_MESSAGES_PER_WAY {
            bounds.push(bound);
        }
    }

    /// Aligns the clocks of so many processes, each by the messages with one that is aligned already. Clocks that agree
    /// with their messages stay as they are.
    pub fn align(&self, processes: usize) -> Alignment {
        let mut offsets: Vec<Option<i64>> = vec![None; processes];
        let mut error = Some(0_u64);
        let bounds: BTreeMap<_, _> = self.pairs.iter().map(|(pair, known)| (*pair, known.bounds())).collect();
        let mut neighbours: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (one, other) in self.pairs.keys() {
            neighbours.entry(*one).or_default().push(*other);
            neighbours.entry(*other).or_default().push(*one);
        }
        for root in 0..processes {
            if offsets[root].is_some() {
                continue;
            }
            offsets[root] = Some(0);
            let mut waiting = VecDeque::from([root]);
            while let Some(known) = waiting.pop_front() {
                let base = offsets[known].unwrap_or(0);
                for next in neighbours.get(&known).into_iter().flatten() {
                    let Some(place) = offsets.get_mut(*next).filter(|place| place.is_none()) else { continue };
                    let (at_least, at_most) = bounds[&(known.min(*next), known.max(*next))];
                    // As bounds of the next process's clock, seen from the known one.
                    let (low, high) = match known < *next {
                        true => (at_least, at_most),
                        false => (at_most.map(i64::saturating_neg), at_least.map(i64::saturating_neg)),
                    };
                    let (low, high) =
                        (low.map(|low| low.saturating_add(base)), high.map(|high| high.saturating_add(base)));
                    *place = Some(match (low, high) {
                        (Some(low), Some(high)) if low > high => low / 2 + high / 2,
                        (low, high) => 0.max(low.unwrap_or(i64::MIN)).min(high.unwrap_or(i64::MAX)),
                    });
                    error = match (low, high, error) {
                        (Some(low), Some(high), Some(error)) => Some(error.max(low.abs_diff(high).div_ceil(2))),
                        _ => None,
                    };
                    waiting.push_back(*next);
                }
            }
        }
        let error = error.filter(|_| self.count > 0);
        let offsets: Vec<i64> = offsets.into_iter().map(Option::unwrap_or_default).collect();
        let mut early = (0, 0);
        for ((one, other), known) in &self.pairs {
            let (Some(one), Some(other)) = (offsets.get(*one), offsets.get(*other)) else { continue };
            let apart = other.saturating_sub(*one);
            let forward = known.at_least.iter().map(|bound| bound.saturating_sub(apart));
            let backward = known.at_most.iter().map(|bound| apart.saturating_sub(*bound));
            for by in forward.chain(backward).filter(|by| *by > 0) {
                early = (early.0 + 1, early.1.max(by.unsigned_abs()));
            }
        }
        Alignment { offsets, error, early, messages: self.count }
    }
}

impl Pair {
    /// From where to where, but for exceptions.
    fn bounds(&self) -> (Option<i64>, Option<i64>) {
        let nth = |bounds: &[i64], order: fn(&i64, &i64) -> std::cmp::Ordering| {
            let mut bounds = bounds.to_vec();
            let place = bounds.len() / MESSAGES_PER_EXCEPTION;
            (!bounds.is_empty()).then(|| *bounds.select_nth_unstable_by(place, order).1)
        };
        (nth(&self.at_least, |a, b| b.cmp(a)), nth(&self.at_most, i64::cmp))
    }
}

impl Alignment {
    /// How well, in a sentence.
    pub fn told(&self, same_host: bool) -> String {
        let micros = |nanos: u64| format!("{}.{:03} us", nanos / 1000, nanos % 1000);
        let base = if same_host { "the host's monotonic clock" } else { "the hosts' wall clocks" };
        match (self.messages, self.error) {
            (0, _) => format!("Times are those of {base}: no message went between two of the processes."),
            (count, Some(error)) => {
                let against = match self.early {
                    (0, _) => "no packet arrives before it was sent".to_owned(),
                    (1, by) => format!("1 packet seems to arrive before it was sent, by {}", micros(by)),
                    (early, by) => format!("{early} seem to arrive before they were sent, by {} at most", micros(by)),
                };
                format!(
                    "Clocks were aligned by {base} and {count} packets: they are within {} of each other; {against}.",
                    micros(error)
                )
            }
            (count, None) => {
                format!(
                    "Clocks were aligned by {base} and {count} packets, which went one way only between some processes."
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_both_ways_bound_a_clock() {
        let mut crossings = Crossings::default();
        // The second clock is 1000 behind; messages take 100.
        for sent in [5_000, 6_000, 7_000] {
            crossings.add((0, sent), (1, sent - 1_000 + 100));
            crossings.add((1, sent - 1_000), (0, sent + 120));
        }
        let aligned = crossings.align(2);
        assert_eq!(aligned.offsets[0], 0);
        assert!((900..=1_120).contains(&aligned.offsets[1]), "{aligned:?}");
        assert_eq!((aligned.error, aligned.early, aligned.messages), (Some(110), (0, 0), 6));
    }

    #[test]
    fn clocks_that_agree_with_their_messages_stay() {
        let mut crossings = Crossings::default();
        crossings.add((1, 10), (0, 500));
        crossings.add((0, 600), (1, 900));
        assert_eq!(crossings.align(3).offsets, [0, 0, 0]);
    }

    #[test]
    fn a_chain_is_followed_and_exceptions_are_told() {
        let mut crossings = Crossings::default();
        crossings.add((2, 1_000_000), (1, 0));
        crossings.add((1, 0), (0, 50));
        let aligned = crossings.align(3);
        assert!(aligned.offsets[1] - aligned.offsets[2] >= 1_000_000 && aligned.offsets[1] <= 50, "{aligned:?}");
        assert_eq!(aligned.error, None);
        for time in 0..100 {
            crossings.add((0, 100 * time), (1, 100 * time + 10));
        }
        // A sender was interrupted before it noted the time.
        crossings.add((0, 9_000), (1, 4_000));
        let aligned = crossings.align(2);
        assert_eq!((aligned.offsets, aligned.early), (vec![0, 0], (1, 5_000)));
    }

    #[test]
    fn times_of_a_liar_overflow_nothing() {
        let mut crossings = Crossings::default();
        crossings.add((0, i64::MIN), (1, i64::MAX));
        crossings.add((1, i64::MIN), (0, i64::MAX));
        crossings.add((2, i64::MAX), (1, i64::MIN));
        crossings.align(3);
    }
}
