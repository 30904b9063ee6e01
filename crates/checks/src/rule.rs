//! Rules: a number that never changes meaning, how bad it is to break one, and its page.

pub(crate) mod catalogue;

pub use catalogue::RULES;

use core::fmt;
use core::num::ParseIntError;
use core::str::FromStr;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Correct, and slower than it could be.
    Performance,
    /// May go wrong on other hardware, or at another time.
    Warning,
    /// Wrong.
    Error,
}

impl Severity {
    /// Every one, from the least.
    pub const ALL: [Severity; 4] = [Severity::Note, Severity::Performance, Severity::Warning, Severity::Error];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Performance => "performance",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a rule is about. The hundreds of its number say the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Family {
    /// Work that failed: 1xx. Explanations.
    Work,
    /// Memory: 2xx.
    Memory,
    /// Posting: 3xx.
    Posting,
    /// Completions: 4xx.
    Completions,
    /// Queue pairs and how they are connected: 5xx.
    Connections,
    /// Processes, threads, lives of objects: 6xx.
    Processes,
    /// The connection manager: 7xx.
    Manager,
    /// Calls that were refused: 8xx. Explanations.
    Calls,
    /// What happens without a call, and what does not happen: stalls, asynchronous events, packets dropped: 9xx.
    /// Explanations.
    Events,
}

impl Family {
    /// Every one, by number.
    pub const ALL: [Family; 9] = [
        Family::Work,
        Family::Memory,
        Family::Posting,
        Family::Completions,
        Family::Connections,
        Family::Processes,
        Family::Manager,
        Family::Calls,
        Family::Events,
    ];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Family::Work => "work",
            Family::Memory => "memory",
            Family::Posting => "posting",
            Family::Completions => "completions",
            Family::Connections => "connections",
            Family::Processes => "processes",
            Family::Manager => "manager",
            Family::Calls => "calls",
            Family::Events => "events",
        }
    }

    /// Whether its rules explain what failed by itself. The others find what goes unnoticed.
    #[must_use]
    pub const fn explains(self) -> bool {
        matches!(self, Family::Work | Family::Calls | Family::Events)
    }
}

/// The number of a rule, shown as `UV-0201`. It is what `ibv_wc.vendor_err` has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Number(pub u16);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UV-{:04}", self.0)
    }
}

/// Reads `UV-0201`, in capitals or not, with or without the prefix and the zeros.
impl FromStr for Number {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Number, ParseIntError> {
        let digits = text.strip_prefix("UV-").or_else(|| text.strip_prefix("uv-")).unwrap_or(text);
        digits.parse().map(Number)
    }
}

/// A rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Its number.
    pub number: Number,
    /// How bad it is to break it.
    pub severity: Severity,
    /// What is wrong, in a few words.
    pub title: &'static str,
    /// What to know about it, as Markdown: the mistake, how it is fixed in C and in Rust, the test that shows it.
    pub page: &'static str,
}

impl Rule {
    /// What it is about.
    #[must_use]
    pub const fn family(&self) -> Family {
        let hundreds = self.number.0 as usize / 100;
        if 0 < hundreds && hundreds < Family::ALL.len() { Family::ALL[hundreds - 1] } else { Family::Events }
    }

    /// The rule of that number.
    #[must_use]
    pub fn of(number: Number) -> Option<&'static Rule> {
        let family = RULES.get(usize::from(number.0 / 100).checked_sub(1)?)?;
        family.get(family.binary_search_by_key(&number, |rule| rule.number).ok()?)
    }

    /// Every rule, by number.
    pub fn all() -> impl Iterator<Item = &'static Rule> {
        RULES.iter().flat_map(|family| family.iter())
    }
}
