//! A report as JUnit writes it, for the test pages of CI systems: one test case per rule that was on. A rule whose
//! severity is error fails if it is broken; what others have to say is the output of a test that passed.

use crate::run::findings::{Run, WrittenFinding};
use crate::run::staying::Ended;
use checks::{Rule, Severity};
use std::fmt::Write;

pub fn write(run: &Run) -> String {
    let by_rule = run.by_rule();
    let is_on =
        |rule: &&Rule| run.settings.wants(rule.number) || by_rule.contains_key(rule.number.to_string().as_str());
    let rules: Vec<&Rule> = Rule::all().filter(is_on).collect();
    let of = |rule: &Rule| by_rule.get(rule.number.to_string().as_str()).map_or(&[][..], Vec::as_slice);
    let failed = rules.iter().filter(|rule| of(rule).iter().any(|told| told.severity() == Severity::Error)).count();
    let died = if let Ended::Signal(signal) = run.ended { Some(signal) } else { None };
    let errors = usize::from(died.is_some());
    let (tests, name) = (rules.len() + errors, Escaped(&run.line.join(" ")).to_string());
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string does not fail.
    let _ =
        writeln!(text, "<testsuites name=\"ubiverbs\" tests=\"{tests}\" failures=\"{failed}\" errors=\"{errors}\">");
    let _ = writeln!(
        text,
        "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failed}\" errors=\"{errors}\" skipped=\"0\">"
    );
    if let Some(signal) = died {
        let _ = writeln!(
            text,
            "    <testcase classname=\"ubiverbs.program\" name=\"the program ends by itself\">\n      <error \
             type=\"signal\" message=\"the program died by signal {signal}\"/>\n    </testcase>"
        );
    }
    for rule in rules {
        let _ = write!(
            text,
            "    <testcase classname=\"ubiverbs.{}\" name=\"{}: {}\"",
            rule.family().name(),
            rule.number,
            Escaped(rule.title)
        );
        let findings = of(rule);
        if findings.is_empty() {
            text.push_str("/>\n");
            continue;
        }
        text.push_str(">\n");
        let (errors, others): (Vec<&WrittenFinding>, Vec<&WrittenFinding>) =
            findings.iter().copied().partition(|told| told.severity() == Severity::Error);
        if let Some(first) = errors.first() {
            let message = Escaped(&first.what).to_string();
            let _ = writeln!(text, "      <failure type=\"{}\" message=\"{message}\">", rule.number);
            errors.iter().for_each(|told| describe(run, told, &mut text));
            text.push_str("      </failure>\n");
        }
        if !others.is_empty() {
            text.push_str("      <system-out>\n");
            others.iter().for_each(|told| describe(run, told, &mut text));
            text.push_str("      </system-out>\n");
        }
        text.push_str("    </testcase>\n");
    }
    text.push_str("  </testsuite>\n</testsuites>\n");
    text
}

fn describe(run: &Run, told: &WrittenFinding, text: &mut String) {
    let times = if told.count == 1 { String::new() } else { format!(" ({} times)", told.count) };
    let mut lines =
        vec![format!("{} {}/{}: {}: {}{times}", run.program(told.pid), told.pid, told.tid, told.severity, told.what)];
    lines.extend(told.cause.iter().map(|cause| format!("  cause: {cause}")));
    lines.extend(told.evidence.iter().map(|seen| format!("  seen: {seen}")));
    lines.push(format!("  do: {}", told.advice));
    for line in lines {
        let _ = writeln!(text, "{}", Escaped(&line));
    }
}

/// Text in XML. Characters that XML has no place for are replaced.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for character in self.0.chars() {
            match character {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\t' | '\n' => f.write_char(character)?,
                '\0'..'\u{20}' | '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::findings::tests::run;

    #[test]
    fn a_broken_rule_fails_and_the_others_pass() {
        let text = write(&run());
        let tests = format!("tests=\"{}\" failures=\"1\"", Rule::all().count());
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
        let tests = format!("tests=\"{}\" failures=\"1\" errors=\"1\"", Rule::all().count() + 1);
        assert_eq!(text.matches(&tests).count(), 2, "{text}");
        assert!(text.contains("<error type=\"signal\" message=\"the program died by signal 11\"/>"), "{text}");
    }

    #[test]
    fn what_xml_cannot_say_is_replaced() {
        assert_eq!(Escaped("a\u{1}&\"b").to_string(), "a\u{fffd}&amp;&quot;b");
    }
}
