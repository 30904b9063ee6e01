//! Reports of what was found in a run, for tools: JSON, SARIF 2.1.0 and JUnit.

mod junit;
mod sarif;

use crate::run::findings::{Run, WrittenFinding};
use crate::run::staying::Ended;
use checks::Severity;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::path::Path;

/// The format of a report.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Everything, as one JSON object
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// One test case per rule
    Junit,
}

impl Kind {
    /// What the name of a file says.
    pub fn of(path: &Path) -> Option<Kind> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let kinds =
            [(".sarif", Kind::Sarif), (".sarif.json", Kind::Sarif), (".json", Kind::Json), (".xml", Kind::Junit)];
        kinds.into_iter().find(|(end, _)| name.ends_with(end)).map(|(_, kind)| kind)
    }
}

/// The report.
pub fn write(kind: Kind, run: &Run) -> String {
    match kind {
        Kind::Json => pretty(&as_json(run)),
        Kind::Sarif => pretty(&sarif::write(run)),
        Kind::Junit => junit::write(run),
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn as_json(run: &Run) -> Value {
    let processes: Vec<Value> = run
        .processes
        .iter()
        .map(|process| json!({ "pid": process.pid, "program": process.program, "events": process.events }))
        .collect();
    let findings: Vec<Value> = run
        .findings
        .iter()
        .map(|told| {
            let WrittenFinding { rule, also, title, severity, at, wall, pid, tid, subject, .. } = told;
            let WrittenFinding { what, connection, cause, evidence, advice, count, .. } = told;
            json!({
                "rule": rule, "also": also, "title": title, "severity": severity, "at": at, "wall": wall, "pid": pid, "tid": tid,
                "program": run.program(*pid), "subject": subject, "what": what, "connection": connection, "cause": cause,
                "evidence": evidence, "advice": advice, "count": count,
            })
        })
        .collect();
    let count = |severity: Severity| run.findings.iter().filter(|told| told.severity() == severity).count();
    json!({
        "version": 1,
        "tool": format!("ubiverbs {}", env!("CARGO_PKG_VERSION")),
        "command": run.line,
        "ended": match run.ended {
            Ended::Code(code) => json!({ "code": code }),
            Ended::Signal(signal) => json!({ "signal": signal }),
        },
        "summary": Severity::ALL.map(|severity| (severity.name(), count(severity)))
            .into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "processes": processes,
        "findings": findings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::findings::tests::run;

    #[test]
    fn a_name_says_the_format() {
        for (name, kind) in [
            ("a.json", Some(Kind::Json)),
            ("a/b.SARIF", Some(Kind::Sarif)),
            ("b.sarif.json", Some(Kind::Sarif)),
            ("j.xml", Some(Kind::Junit)),
            ("report", None),
        ] {
            assert_eq!(Kind::of(Path::new(name)), kind, "{name}");
        }
    }

    #[test]
    fn json_has_everything() {
        let document: Value = serde_json::from_str(&write(Kind::Json, &run())).unwrap();
        assert_eq!(document["summary"]["error"], 1);
        assert_eq!(document["findings"][1]["count"], 16774);
        assert_eq!(document["findings"][1]["program"], "client");
        assert_eq!(document["processes"][1]["events"], Value::Null);
        assert_eq!(document["ended"]["code"], 0);
    }
}
