//! JUnit, as the test pages of CI systems read it: one suite with its cases.

use std::fmt::Write;

/// A suite of test cases.
#[derive(Clone, Debug, Default)]
pub struct Suite {
    pub name: String,
    pub cases: Vec<Case>,
}

/// A test case. It has passed unless it has a failure or an error.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// Behind `ubiverbs.`
    pub class: String,
    pub name: String,
    pub seconds: Option<f64>,
    /// It was not tried; why.
    pub skipped: Option<String>,
    /// What was tested is not so.
    pub failure: Option<Complaint>,
    /// It could not be tested.
    pub error: Option<Complaint>,
    /// Lines that the case has to say anyway.
    pub output: Vec<String>,
}

/// Why a case has not passed.
#[derive(Clone, Debug, Default)]
pub struct Complaint {
    pub kind: String,
    pub message: String,
    pub lines: Vec<String>,
}

pub fn write(suite: &Suite) -> String {
    let count = |is: fn(&&Case) -> bool| suite.cases.iter().filter(is).count();
    let (tests, failures, errors, skipped) = (
        suite.cases.len(),
        count(|case| case.failure.is_some()),
        count(|case| case.error.is_some()),
        count(|case| case.skipped.is_some()),
    );
    let name = Escaped(&suite.name).to_string();
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string does not fail.
    let _ =
        writeln!(text, "<testsuites name=\"ubiverbs\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\">");
    let _ = writeln!(
        text,
        "  <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\">"
    );
    suite.cases.iter().for_each(|case| write_case(case, &mut text));
    text.push_str("  </testsuite>\n</testsuites>\n");
    text
}

fn write_case(case: &Case, text: &mut String) {
    let time = case.seconds.map(|seconds| format!(" time=\"{seconds:.3}\"")).unwrap_or_default();
    let (class, name) = (Escaped(&case.class), Escaped(&case.name));
    let _ = write!(text, "    <testcase classname=\"ubiverbs.{class}\" name=\"{name}\"{time}");
    if case.skipped.is_none() && case.failure.is_none() && case.error.is_none() && case.output.is_empty() {
        text.push_str("/>\n");
        return;
    }
    text.push_str(">\n");
    if let Some(reason) = &case.skipped {
        let _ = writeln!(text, "      <skipped message=\"{}\"/>", Escaped(reason));
    }
    for (element, complaint) in [("failure", &case.failure), ("error", &case.error)] {
        let Some(Complaint { kind, message, lines }) = complaint else { continue };
        let _ = write!(text, "      <{element} type=\"{}\" message=\"{}\"", Escaped(kind), Escaped(message));
        if lines.is_empty() {
            text.push_str("/>\n");
            continue;
        }
        text.push_str(">\n");
        write_lines(lines, text);
        let _ = writeln!(text, "      </{element}>");
    }
    if !case.output.is_empty() {
        text.push_str("      <system-out>\n");
        write_lines(&case.output, text);
        text.push_str("      </system-out>\n");
    }
    text.push_str("    </testcase>\n");
}

fn write_lines(lines: &[String], text: &mut String) {
    for line in lines {
        let _ = writeln!(text, "{}", Escaped(line));
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

    #[test]
    fn what_xml_cannot_say_is_replaced() {
        assert_eq!(Escaped("a\u{1}&\"b").to_string(), "a\u{fffd}&amp;&quot;b");
    }

    #[test]
    fn a_suite_counts_its_cases() {
        let complaint = Complaint { kind: "hang".into(), message: "<1>".into(), lines: vec![] };
        let case = |name: &str| Case { class: "torture".into(), name: name.into(), ..Case::default() };
        let cases = vec![
            Case { seconds: Some(1.5), ..case("a") },
            Case { failure: Some(complaint), output: vec!["o & p".into()], ..case("b") },
            Case { skipped: Some("no".into()), ..case("c") },
        ];
        let text = write(&Suite { name: "x \"y\"".into(), cases });
        assert!(
            text.contains("name=\"x &quot;y&quot;\" tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\""),
            "{text}"
        );
        assert!(text.contains("<testcase classname=\"ubiverbs.torture\" name=\"a\" time=\"1.500\"/>"), "{text}");
        assert!(text.contains("<failure type=\"hang\" message=\"&lt;1&gt;\"/>"), "{text}");
        assert!(text.contains("<system-out>\no &amp; p\n") && text.contains("<skipped message=\"no\"/>"), "{text}");
    }
}
