//! The text format of OpenMetrics: families of samples, one after the other, and an end mark.

use std::fmt::Write;

/// What kind of figure a family has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FamilyType {
    /// It only grows; the names of its samples end in `_total`.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It is always 1, and its labels say something; the names of its samples end in `_info`.
    Info,
}

/// A text that grows family by family.
#[derive(Default)]
pub struct Exposition {
    text: String,
    suffix: &'static str,
    name: String,
}

impl Exposition {
    /// Begins a family. Its name has no suffix of its type.
    pub fn family(&mut self, name: &str, kind: FamilyType, help: &str) {
        let (word, suffix) = match kind {
            FamilyType::Counter => ("counter", "_total"),
            FamilyType::Gauge => ("gauge", ""),
            FamilyType::Info => ("info", "_info"),
        };
        (self.suffix, self.name) = (suffix, name.to_owned());
        let _ = writeln!(self.text, "# TYPE {name} {word}");
        if let Some(unit) = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit)) {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.text, "# HELP {name} {help}");
    }

    /// A sample of the family that was begun last.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let _ = write!(self.text, "{}{}", self.name, self.suffix);
        for (place, (name, value)) in labels.iter().enumerate() {
            let before = if place == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{name}=\"{}\"", escaped(value));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    /// All of it.
    pub fn finish(self) -> String {
        self.text + "# EOF\n"
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Reads such a text by the rules of the format (OpenMetrics 1.0), and returns each sample with its value.
    pub fn parse(text: &str) -> Result<BTreeMap<String, f64>, String> {
        let body = text.strip_suffix("# EOF\n").ok_or("no end mark")?;
        let (mut families, mut samples) = (BTreeSet::new(), BTreeMap::new());
        let mut family: Option<(String, &str)> = None;
        for line in body.lines() {
            let wrong = |what: &str| format!("{what}: {line}");
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or_else(|| wrong("no type"))?;
                if !families.insert(name.to_owned()) {
                    return Err(wrong("a family comes twice"));
                }
                family = Some((name.to_owned(), kind));
            } else if let Some(rest) = line.strip_prefix("# UNIT ") {
                let (name, unit) = rest.split_once(' ').ok_or_else(|| wrong("no unit"))?;
                if !name.ends_with(&format!("_{unit}")) {
                    return Err(wrong("the unit is not in the name"));
                }
            } else if !line.starts_with("# HELP ") {
                let (name, kind) = family.as_ref().ok_or_else(|| wrong("no family"))?;
                let suffix = if *kind == "counter" {
                    "_total"
                } else if *kind == "info" {
                    "_info"
                } else {
                    ""
                };
                let rest = line.strip_prefix(&format!("{name}{suffix}")).ok_or_else(|| wrong("of another family"))?;
                let (labels, value) = rest.rsplit_once(' ').ok_or_else(|| wrong("no value"))?;
                check_labels(labels).map_err(|error| wrong(&error))?;
                let value: f64 = value.parse().map_err(|_| wrong("no number"))?;
                if samples.insert(format!("{name}{suffix}{labels}"), value).is_some() {
                    return Err(wrong("a sample comes twice"));
                }
            }
        }
        Ok(samples)
    }

    fn check_labels(labels: &str) -> Result<(), String> {
        let Some(mut rest) = labels.strip_prefix('{') else {
            return if labels.is_empty() { Ok(()) } else { Err("no labels".into()) };
        };
        let mut names = BTreeSet::new();
        loop {
            let (name, value) = rest.split_once("=\"").ok_or("no value of a label")?;
            let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if !is_name || name.is_empty() || !names.insert(name) {
                return Err(format!("label {name:?}"));
            }
            let mut escape = false;
            let end = value.find(|letter| {
                let ends = letter == '"' && !escape;
                escape = letter == '\\' && !escape;
                ends
            });
            let end = end.ok_or("a label does not end")?;
            match value.get(end + 1..) {
                Some("}") => return Ok(()),
                Some(more) => rest = more.strip_prefix(',').ok_or("no comma")?,
                None => return Err("no end".into()),
            }
        }
    }

    #[test]
    fn labels_are_escaped_and_families_have_their_suffix() {
        let mut out = Exposition::default();
        out.family("a_bytes", FamilyType::Counter, "Bytes.");
        out.sample(&[("name", "a\"b\\c\nd"), ("pid", "1")], 5);
        out.family("b", FamilyType::Info, "Labels.");
        out.sample(&[], 1);
        let text = out.finish();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..3], ["# TYPE a_bytes counter", "# UNIT a_bytes bytes", "# HELP a_bytes Bytes."]);
        assert_eq!(lines[3], r#"a_bytes_total{name="a\"b\\c\nd",pid="1"} 5"#);
        assert_eq!(parse(&text).unwrap()["b_info"], 1.0);
        assert!(parse("# TYPE a counter\na{x=\"1\"} 1\n# EOF\n").is_err(), "no suffix");
        assert!(parse("# TYPE a gauge\na{x=\"1\",x=\"2\"} 1\n# EOF\n").is_err(), "a label twice");
        assert!(parse("# TYPE a gauge\na 1\n").is_err(), "no end");
    }
}
