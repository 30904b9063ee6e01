//! Words of a statement, and the quantities they may be.

use crate::units;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// The words that are left of a line.
pub(super) struct Words<'a> {
    rest: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    pub fn new(line: &'a str) -> Words<'a> {
        Words { rest: line.split_whitespace().peekable() }
    }

    pub fn is_empty(&mut self) -> bool {
        self.rest.peek().is_none()
    }

    pub fn take(&mut self) -> Option<&'a str> {
        self.rest.next()
    }

    /// The next word, which must be there.
    pub fn next(&mut self, expected: &str) -> Result<&'a str, String> {
        self.rest.next().ok_or_else(|| format!("the line ends; expected {expected}"))
    }

    /// The next word, which must be one of these, if there is one.
    pub fn key(&mut self, keys: &[&'a str]) -> Result<Option<&'a str>, String> {
        match self.rest.next() {
            None => Ok(None),
            Some(word) if keys.contains(&word) => Ok(Some(word)),
            Some(word) if keys.is_empty() => Err(format!("{word:?} is too much; expected the end of the line")),
            Some(word) => Err(one_of(word, "an option", keys)),
        }
    }

    pub fn on_or_off(&mut self) -> Result<bool, String> {
        match self.next("on or off")? {
            "on" => Ok(true),
            "off" => Ok(false),
            word => Err(one_of(word, "a switch", &["on", "off"])),
        }
    }

    /// Nothing more may follow.
    pub fn end(&mut self) -> Result<(), String> {
        match self.rest.next() {
            None => Ok(()),
            Some(word) => Err(format!("{word:?} is too much; expected the end of the line")),
        }
    }
}

/// A word that is none of those it may be.
pub(super) fn one_of(word: &str, what: &str, known: &[&str]) -> String {
    let no = what.strip_prefix("a ").or(what.strip_prefix("an ")).unwrap_or(what);
    format!("{word:?} is no {no}; expected one of {}", known.join(", "))
}

pub(super) fn number(word: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    within(word, "number", word.parse().ok(), &range, |n| n.to_string())
}

pub(super) fn bytes(word: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let show = |n: u64| units::show_bytes(n).replace(' ', "");
    within(word, "number of bytes", units::bytes(word), &range, show)
}

pub(super) fn rate(word: &str) -> Result<u64, String> {
    let range = 1_000..=10_000_000_000_000;
    let found = units::rate(word).filter(|rate| range.contains(rate));
    found.ok_or_else(|| format!("{word:?} is no rate; expected one of 1K to 10T, like 100G"))
}

pub(super) fn span(word: &str, most: u64) -> Result<u64, String> {
    // A quarter of an hour of a network is more than anybody will wait for.
    let most = most.min(1_000_000_000_000);
    let found = units::span(word).filter(|span| *span <= most);
    let limit = || units::show_span(most).replace(' ', "");
    found.ok_or_else(|| format!("{word:?} is no time; expected one of 0ns to {}, like 1.5us", limit()))
}

pub(super) fn part(word: &str) -> Result<f64, String> {
    units::probability(word).ok_or_else(|| format!("{word:?} is no probability; expected one of 0 to 1, or like 1%"))
}

fn within<D: Display>(
    word: &str,
    what: &str,
    found: Option<u64>,
    range: &RangeInclusive<u64>,
    show: impl Fn(u64) -> D,
) -> Result<u64, String> {
    found.filter(|value| range.contains(value)).ok_or_else(|| {
        format!("{word:?} is no {what} for this; expected one of {} to {}", show(*range.start()), show(*range.end()))
    })
}
