//! Percentiles of what was measured.

use serde::{Deserialize, Serialize};

/// A distribution, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub mean: f64,
    pub max: u64,
}

impl Summary {
    /// Of these samples, which it sorts. None of none.
    pub fn of(samples: &mut [u64]) -> Option<Summary> {
        samples.sort_unstable();
        let max = *samples.last()?;
        let sum: u128 = samples.iter().map(|sample| u128::from(*sample)).sum();
        // The smallest sample that at least so many of a thousand are not above.
        let at = |per_mille: usize| samples[(samples.len() * per_mille).div_ceil(1000).max(1) - 1];
        let mean = sum as f64 / samples.len() as f64;
        Some(Summary { p50: at(500), p90: at(900), p99: at(990), p99_9: at(999), mean, max })
    }

    /// The middle of several, each figure for itself; and the worst of all.
    pub fn middle(several: &[Summary]) -> Option<Summary> {
        let whole = |of: fn(&Summary) -> u64| {
            let mut numbers: Vec<u64> = several.iter().map(of).collect();
            numbers.sort_unstable();
            numbers.get(numbers.len() / 2).copied()
        };
        let mean = median(&mut several.iter().map(|summary| summary.mean).collect::<Vec<f64>>())?;
        let max = several.iter().map(|summary| summary.max).max()?;
        let (p50, p90) = (whole(|of| of.p50)?, whole(|of| of.p90)?);
        Some(Summary { p50, p90, p99: whole(|of| of.p99)?, p99_9: whole(|of| of.p99_9)?, mean, max })
    }
}

/// The middle of these numbers.
pub fn median(numbers: &mut [f64]) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

/// The least and the greatest.
pub fn spread(numbers: &[f64]) -> Option<[f64; 2]> {
    let least = numbers.iter().copied().min_by(f64::total_cmp)?;
    Some([least, numbers.iter().copied().max_by(f64::total_cmp)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_that_so_many_are_not_above() {
        assert_eq!(Summary::of(&mut []), None);
        let one = Summary::of(&mut [7]).unwrap();
        assert_eq!((one.p50, one.p99_9, one.mean, one.max), (7, 7, 7.0, 7));
        let mut thousand: Vec<u64> = (1..=1000).rev().collect();
        let summary = Summary::of(&mut thousand).unwrap();
        assert_eq!((summary.p50, summary.p90, summary.p99, summary.p99_9, summary.max), (500, 900, 990, 999, 1000));
        assert_eq!(summary.mean, 500.5);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut []), None);
        assert_eq!(spread(&[2.0, 1.0, 3.0]), Some([1.0, 3.0]));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn a_round_that_was_disturbed_does_not_count_but_for_its_worst() {
        let round = |p50| Summary { p50, p90: p50 + 1, p99: p50 + 2, p99_9: p50 + 3, mean: p50 as f64, max: p50 + 4 };
        let middle = Summary::middle(&[round(10), round(900), round(11)]).unwrap();
        assert_eq!((middle.p50, middle.p99_9, middle.mean, middle.max), (11, 14, 11.0, 904));
        assert_eq!(Summary::middle(&[]), None);
    }
}
