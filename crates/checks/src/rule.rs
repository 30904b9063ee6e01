//! Rules: a number that never changes meaning, how bad it is to break one, and its page.

pub(crate) mod catalogue;

pub use catalogue::RULES;

use core::fmt;
use core::num::ParseIntError;
use core::str::FromStr;

wire::named! {
    /// How bad it is.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum Severity {
        /// Worth knowing.
        Note: "note",
        /// Correct, and slower than it could be.
        Performance: "performance",
        /// May go wrong on other hardware, or at another time.
        Warning: "warning",
        /// Wrong.
        Error: "error",
    }
}

wire::named! {
    /// What a rule is about. The hundreds of its number say the same.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum Family {
        /// Work that failed: 1xx. Explanations.
        Work: "work",
        /// Memory: 2xx.
        Memory: "memory",
        /// Posting: 3xx.
        Posting: "posting",
        /// Completions: 4xx.
        Completions: "completions",
        /// Queue pairs and how they are connected: 5xx.
        Connections: "connections",
        /// Processes, threads, lives of objects: 6xx.
        Processes: "processes",
        /// The connection manager: 7xx.
        Manager: "manager",
        /// Calls that were refused: 8xx. Explanations.
        Calls: "calls",
        /// What happens without a call, and what does not happen: stalls, asynchronous events, packets dropped: 9xx.
        /// Explanations.
        Events: "events",
        /// Accesses of memory that nothing orders, of all processes of a run: 10xx.
        Races: "races",
    }
}

impl Family {
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
        if 0 < hundreds && hundreds <= Family::ALL.len() { Family::ALL[hundreds - 1] } else { Family::Events }
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
