//! What is said when a process ends: how often each rule was broken, and by what.

use checks::{Checker, Number, Rule, Severity, Stamp, Subject};
use std::collections::BTreeMap;
use std::fmt::Write;

/// How many subjects are named for a rule.
const SUBJECTS_NAMED: usize = 4;

/// Sentences; none if there is nothing to say.
pub(super) fn text(checker: &Checker, validates: bool, events: u64) -> Option<String> {
    let mut by_rule: BTreeMap<Number, (u64, Vec<Subject>)> = BTreeMap::new();
    for (rule, subject, _) in checker.counts() {
        by_rule.entry(rule).or_default().1.push(subject);
    }
    for (rule, count) in checker.totals() {
        if let Some((total, _)) = by_rule.get_mut(&rule) {
            *total = count;
        }
    }
    if by_rule.is_empty() {
        let rules = match Rule::all().filter(|rule| checker.wants(rule.number)).count() {
            1 => "1 rule".to_owned(),
            count => format!("{count} rules"),
        };
        let nothing = format!("checked {events} calls and events against {rules}: nothing was found");
        return validates.then_some(nothing);
    }
    let mut told = String::from("summary:");
    let mut rows: Vec<_> = by_rule.into_iter().collect();
    rows.sort_by_key(|(rule, _)| (std::cmp::Reverse(checker.severity(*rule)), *rule));
    for (rule, (count, subjects)) in rows {
        let title = Rule::of(rule).map_or("", |rule| rule.title);
        let named: Vec<String> = subjects.iter().take(SUBJECTS_NAMED).map(Subject::to_string).collect();
        let more = match subjects.len().saturating_sub(SUBJECTS_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
        let severity: Severity = checker.severity(rule);
        // Writing to a string does not fail.
        let _ = write!(told, "\n  {severity} {rule}, {times} ({}{more}): {title}", named.join(", "));
    }
    told.push_str("\n  `ubiverbs explain UV-…` says more about each");
    Some(told)
}

/// The summary as a JSON object: `summary` has one object per rule and subject.
pub(super) fn json(checker: &Checker, stamp: Stamp, events: u64) -> String {
    let counts: Vec<String> = checker
        .counts()
        .map(|(rule, subject, count)| {
            let (severity, subject) = (checker.severity(rule), checks::quoted(&subject.to_string()));
            format!("{{\"rule\":\"{rule}\",\"severity\":\"{severity}\",\"subject\":{subject},\"count\":{count}}}")
        })
        .collect();
    let Stamp { wall, process, .. } = stamp;
    format!("{{\"summary\":[{}],\"events\":{events},\"wall\":{wall},\"pid\":{process}}}", counts.join(","))
}
