//! Which rules are on, and how bad it is to break them: as a program says it, as words that people write on command lines
//! and in variables, and as a file.
//!
//! | word | what it does |
//! |---|---|
//! | `-UV-0201`, `UV-0201=off` | the rule is off |
//! | `+UV-0201`, `UV-0201=on` | the rule is on, also if its family is not |
//! | `UV-0201=warning` | the rule is on, and to break it is a warning (`error`, `warning`, `performance`, `note`) |
//!
//! Instead of a number there may be a family (`memory`, `posting`, …) or `all`. Words count in their order: `-all,+UV-0201`
//! leaves one rule on.

mod file;

pub use file::MAX_RULES_FILE_BYTES;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;

use crate::rule::{Family, Number, Rule, Severity};

/// Which rules are on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Explain what failed.
    pub explain: bool,
    /// Check against the rules.
    pub validate: bool,
    /// Look for races.
    pub races: bool,
    /// Rules that are off.
    pub off: BTreeSet<Number>,
    /// Rules that are on though their kind is not: explanations of a program that is only checked, or the other way
    /// round.
    pub on: BTreeSet<Number>,
    /// Rules that are as bad as this.
    pub severities: BTreeMap<Number, Severity>,
}

impl Settings {
    /// Explanations alone: `--why`.
    #[must_use]
    pub fn why() -> Settings {
        Settings { explain: true, ..Settings::default() }
    }

    /// Rules alone: `--check`.
    #[must_use]
    pub fn check() -> Settings {
        Settings { validate: true, ..Settings::default() }
    }

    /// Both.
    #[must_use]
    pub fn all() -> Settings {
        Settings { explain: true, validate: true, ..Settings::default() }
    }

    /// Whether this rule is on.
    #[must_use]
    pub fn wants(&self, number: Number) -> bool {
        let by_kind = Rule::of(number).is_some_and(|rule| self.wants_kind(rule.family()));
        self.on.contains(&number) || by_kind && !self.off.contains(&number)
    }

    /// Whether rules of this kind are on: those of races, those that explain, or the others.
    fn wants_kind(&self, family: Family) -> bool {
        match family {
            Family::Races => self.races,
            family if family.explains() => self.explain,
            _ => self.validate,
        }
    }

    /// Whether a rule of this kind may be on.
    pub(crate) fn wants_some(&self, family: Family) -> bool {
        let kind = |family: Family| (family == Family::Races, family.explains());
        let of_kind = |number: &Number| Rule::of(*number).is_some_and(|rule| kind(rule.family()) == kind(family));
        self.wants_kind(family) || self.on.iter().any(of_kind)
    }

    /// How bad it is to break a rule.
    #[must_use]
    pub fn severity(&self, rule: Number) -> Severity {
        let own = || Rule::of(rule).map_or(Severity::Error, |rule| rule.severity);
        self.severities.get(&rule).copied().unwrap_or_else(own)
    }

    /// Obeys a word, or says what is wrong with it.
    ///
    /// ```
    /// use checks::{Number, Settings};
    ///
    /// let mut settings = Settings::check();
    /// settings.obey("-UV-0201").unwrap();
    /// assert!(!settings.wants(Number(201)));
    /// assert!(settings.obey("UV-9999=off").is_err());
    /// ```
    pub fn obey(&mut self, word: &str) -> Result<(), String> {
        let word = word.trim();
        let (name, value) = if let Some(name) = word.strip_prefix('-') {
            (name, "off")
        } else if let Some(name) = word.strip_prefix('+') {
            (name, "on")
        } else if let Some((name, value)) = word.split_once('=') {
            (name.trim(), value.trim())
        } else {
            return Err(format!("{word:?} says nothing of a rule; expected -UV-0201, +UV-0201 or UV-0201=warning"));
        };
        self.set(name, value)
    }

    /// Says what the rules of a name are to be.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let change: fn(&mut Settings, Number, Option<Severity>) = match value {
            "off" => |settings, rule, _| {
                settings.on.remove(&rule);
                settings.off.insert(rule);
            },
            _ => |settings, rule, severity| {
                settings.off.remove(&rule);
                if !settings.wants(rule) {
                    settings.on.insert(rule);
                }
                if let Some(severity) = severity {
                    settings.severities.insert(rule, severity);
                }
            },
        };
        let severity = Severity::ALL.into_iter().find(|severity| severity.name() == value);
        if severity.is_none() && !["on", "off"].contains(&value) {
            let expected = "expected on, off, error, warning, performance or note";
            return Err(format!("{value:?} is nothing that a rule can be; {expected}"));
        }
        for rule in rules_of(name)? {
            // A rule of the other kind stays as it was if only all of them are meant.
            let is_named = name.parse::<Number>().is_ok();
            if value == "off" || is_named || self.wants_some(rule.family()) {
                change(self, rule.number, severity);
            }
        }
        Ok(())
    }

    /// Obeys words with commas or spaces between them.
    pub fn obey_all(&mut self, words: &str) -> Result<(), String> {
        let mut words = words.split([',', ' ', ';']).filter(|word| !word.is_empty());
        words.try_for_each(|word| self.obey(word))
    }
}

/// The rules that a name means: a number, a family, or `all`.
fn rules_of(name: &str) -> Result<impl Iterator<Item = &'static Rule>, String> {
    let family = Family::ALL.into_iter().find(|family| family.name() == name);
    let number = name.parse::<Number>().ok();
    if let Some(number) = number
        && Rule::of(number).is_none()
    {
        return Err(format!("there is no rule {number}"));
    }
    if family.is_none() && number.is_none() && name != "all" {
        let families: alloc::vec::Vec<&str> = Family::ALL.iter().map(|family| family.name()).collect();
        return Err(format!(
            "{name:?} is no rule; expected a number such as UV-0201, a family ({}) or all",
            families.join(", ")
        ));
    }
    Ok(Rule::all().filter(move |rule| match (number, family) {
        (Some(number), _) => rule.number == number,
        (None, Some(family)) => rule.family() == family,
        (None, None) => true,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Number = Number(201);
    const WORK: Number = Number(101);

    fn obeying(mut settings: Settings, words: &[&str]) -> Settings {
        words.iter().for_each(|word| settings.obey(word).unwrap());
        settings
    }

    #[test]
    fn words_count_in_their_order() {
        let one = obeying(Settings::all(), &["-all", "+UV-0201"]);
        assert!(one.wants(MEMORY) && !one.wants(WORK));
        let none = obeying(Settings::all(), &["+UV-0201", "-all"]);
        assert!(!none.wants(MEMORY) && !none.wants(WORK));
        let family = obeying(Settings::check(), &["memory=off"]);
        assert!(!family.wants(MEMORY));
    }

    #[test]
    fn a_rule_that_is_named_is_on_whatever_its_kind() {
        let settings = obeying(Settings::check(), &["+UV-0101"]);
        assert!(
            settings.wants(WORK) && settings.wants_some(Family::Work) && !Settings::check().wants_some(Family::Work)
        );
        assert!(!obeying(Settings::check(), &["+all"]).wants(WORK));
    }

    #[test]
    fn severities_change() {
        let settings = obeying(Settings::all(), &["UV-0201 = note", "work=performance"]);
        assert_eq!((settings.severity(MEMORY), settings.severity(WORK)), (Severity::Note, Severity::Performance));
        assert_eq!(Settings::all().severity(MEMORY), Severity::Error);
    }

    #[test]
    fn what_is_not_understood_is_named_with_what_was_expected() {
        for (word, said) in [
            ("UV-0201", "expected -UV-0201"),
            ("-UV-9999", "there is no rule UV-9999"),
            ("-memori", "memory, posting"),
            ("UV-0201=loud", "expected on, off, error"),
        ] {
            let error = Settings::all().obey(word).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
