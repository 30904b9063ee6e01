//! Words that are nearly right: which known ones are meant.

/// How many are offered.
const MAX_OFFERED: usize = 3;

/// Words that are longer are not compared: a person mistypes a word, not a page.
const MAX_COMPARED: usize = 64;

/// The known words that are nearest to the one asked for, the nearest first; none if all are far.
pub fn nearest(asked: &str, known: impl IntoIterator<Item = String>) -> Vec<String> {
    let wanted = asked.to_ascii_uppercase();
    let length = wanted.chars().count();
    if !(2..=MAX_COMPARED).contains(&length) {
        return Vec::new();
    }
    let limit = (length / 3).clamp(1, 4);
    let mut near: Vec<(usize, String)> = known
        .into_iter()
        .filter(|word| word.chars().count().abs_diff(length) <= limit)
        .map(|word| (distance(&wanted, &word.to_ascii_uppercase()), word))
        .filter(|(steps, _)| *steps <= limit)
        .collect();
    near.sort();
    near.dedup();
    // Those that are much further than the best are not meant.
    let best = near.first().map_or(0, |(steps, _)| *steps);
    near.into_iter().filter(|(steps, _)| *steps <= best + 1).take(MAX_OFFERED).map(|(_, word)| word).collect()
}

/// How many characters must be added, taken away or changed (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, from) in one.chars().enumerate() {
        let mut diagonal = above;
        row[0] = above + 1;
        for (at, to) in other.iter().enumerate() {
            let changed = diagonal + usize::from(from != *to);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted() {
        for (one, other, steps) in [("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2)] {
            assert_eq!(distance(one, other), steps, "{one} {other}");
        }
    }

    #[test]
    fn what_is_far_from_everything_is_near_nothing() {
        let known = || ["ENOMEM", "EINVAL", "EBUSY"].map(str::to_owned);
        assert_eq!(nearest("ENOMEN", known()), ["ENOMEM"]);
        assert_eq!(nearest("einvall", known()), ["EINVAL"]);
        assert!(nearest("xyzzy", known()).is_empty() && nearest("", known()).is_empty());
        assert!(nearest(&"E".repeat(1000), known()).is_empty());
    }
}
