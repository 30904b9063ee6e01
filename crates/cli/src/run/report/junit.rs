//! A report as JUnit writes it, for the test pages of CI systems: one test case per rule that was on. A rule whose
//! severity is error fails if it is broken; what others have to say is the output of a test that passed.

use crate::report::junit::{Case, Complaint, Suite};
use crate::run::findings::{Run, WrittenFinding};
use crate::run::staying::Ended;
use checks::{Rule, Severity};

pub fn write(run: &Run) -> String {
    let by_rule = run.by_rule();
    let of = |rule: &Rule| by_rule.get(rule.number.to_string().as_str()).map_or(&[][..], Vec::as_slice);
    let mut cases = Vec::new();
    if let Ended::Signal(signal) = run.ended {
        let message = format!("the program died by signal {signal}");
        cases.push(Case {
            class: "program".into(),
            name: "the program ends by itself".into(),
            error: Some(Complaint { kind: "signal".into(), message, ..Complaint::default() }),
            ..Case::default()
        });
    }
    let is_on = |rule: &&Rule| run.settings.wants(rule.number) || !of(rule).is_empty();
    cases.extend(Rule::all().filter(is_on).map(|rule| case(run, rule, of(rule))));
    crate::report::junit::write(&Suite { name: run.line.join(" "), cases })
}

fn case(run: &Run, rule: &Rule, findings: &[&WrittenFinding]) -> Case {
    let (errors, others): (Vec<&WrittenFinding>, Vec<&WrittenFinding>) =
        findings.iter().copied().partition(|told| told.severity() == Severity::Error);
    let described = |told: Vec<&WrittenFinding>| told.into_iter().flat_map(|told| describe(run, told)).collect();
    let failure = errors.first().map(|first| Complaint {
        kind: rule.number.to_string(),
        message: first.what.clone(),
        lines: described(errors.clone()),
    });
    Case {
        class: rule.family().name().into(),
        name: format!("{}: {}", rule.number, rule.title),
        failure,
        output: described(others),
        ..Case::default()
    }
}

fn describe(run: &Run, told: &WrittenFinding) -> Vec<String> {
    let times = if told.count == 1 { String::new() } else { format!(" ({} times)", told.count) };
    let mut lines =
        vec![format!("{} {}/{}: {}: {}{times}", run.program(told.pid), told.pid, told.tid, told.severity, told.what)];
    lines.extend(told.cause.iter().map(|cause| format!("  cause: {cause}")));
    lines.extend(told.evidence.iter().map(|seen| format!("  seen: {seen}")));
    lines.push(format!("  do: {}", told.advice));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::findings::tests::run;

    /// How many rules that run looked for: races are looked for when they are asked for.
    fn rules_on() -> usize {
        Rule::all().filter(|rule| run().settings.wants(rule.number)).count()
    }

    #[test]
    fn a_broken_rule_fails_and_the_others_pass() {
        let text = write(&run());
        let tests = format!("tests=\"{}\" failures=\"1\"", rules_on());
        assert!(text.contains(&tests), "{text}");
        assert!(text.contains("<failure type=\"UV-0201\" message=\"w &lt;1&gt;\">"), "{text}");
        assert!(
            text.contains("client 7/8: error: w &lt;1&gt; (16774 times)\n  cause: c\n  seen: e\n  do: a\n"),
            "{text}"
        );
        // A note fails nothing.
        assert!(text.contains("<system-out>\nserver 9/9: note: v\n"), "{text}");
        assert_eq!(text.matches("<failure").count(), 1);
    }

    #[test]
    fn a_program_that_a_signal_ended_is_an_error() {
        assert!(!write(&run()).contains("<error"));
        let text = write(&Run { ended: Ended::Signal(11), ..run() });
        let tests = format!("tests=\"{}\" failures=\"1\" errors=\"1\"", rules_on() + 1);
        assert_eq!(text.matches(&tests).count(), 2, "{text}");
        assert!(text.contains("<error type=\"signal\" message=\"the program died by signal 11\"/>"), "{text}");
    }
}
