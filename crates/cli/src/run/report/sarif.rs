//! A report as SARIF 2.1.0 (OASIS). Every rule is in it with its page; a result's place is the program, and inside it
//! the object that the finding is about: there are no lines of source code.

use crate::report::sarif::{document, invocation, uri};
use crate::run::findings::{Run, WrittenFinding};
use crate::run::staying::Ended;
use checks::{Rule, Severity};
use serde_json::{Value, json};

pub fn write(run: &Run) -> Value {
    let rules: Vec<Value> = Rule::all().map(rule).collect();
    let results: Vec<Value> = run.findings.iter().map(|told| result(run, told)).collect();
    let mut invocation = invocation(&run.line, run.ended == Ended::Code(0));
    match run.ended {
        Ended::Code(code) => invocation["exitCode"] = json!(code),
        Ended::Signal(signal) => invocation["exitSignalNumber"] = json!(signal),
    }
    document(rules, invocation, results)
}

fn rule(rule: &Rule) -> Value {
    json!({
        "id": rule.number.to_string(),
        "shortDescription": { "text": rule.title },
        "fullDescription": { "text": rule.title },
        "help": { "text": rule.page, "markdown": rule.page },
        "defaultConfiguration": { "level": level(rule.severity) },
        "properties": { "tags": [rule.family().name(), rule.severity.name()] },
    })
}

/// SARIF has no word for what is slow.
fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Performance | Severity::Note => "note",
    }
}

fn result(run: &Run, told: &WrittenFinding) -> Value {
    let program = Some(run.program(told.pid)).filter(|program| !program.is_empty()).unwrap_or("program");
    let mut text = told.what.clone();
    if let Some(cause) = &told.cause {
        text = format!("{text}. Cause: {cause}");
    }
    text = format!("{text}. To do: {}", told.advice);
    let name = format!("{program}[{}]/{}", told.pid, told.subject);
    let mut result = json!({
        "ruleId": told.rule,
        "level": level(told.severity()),
        "message": { "text": text },
        "locations": [{
            "physicalLocation": { "artifactLocation": { "uri": uri(program) } },
            "logicalLocations": [{ "name": told.subject, "fullyQualifiedName": name, "kind": "object" }],
        }],
        "occurrenceCount": told.count.clamp(1, u64::from(u32::MAX >> 1)),
        "partialFingerprints": { "ruleAndSubject/v1": format!("{}:{program}", told.rule) },
        "properties": {
            "severity": told.severity, "pid": told.pid, "tid": told.tid, "what": told.what, "cause": told.cause,
            "evidence": told.evidence, "advice": told.advice, "also": told.also,
        },
    });
    if let Some(index) = Rule::all().position(|rule| rule.number.to_string() == told.rule) {
        result["ruleIndex"] = json!(index);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::findings::tests::run;

    #[test]
    fn results_name_rules_that_are_there() {
        let document = write(&run());
        let run = &document["runs"][0];
        let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
        assert_eq!(rules.len(), Rule::all().count());
        for result in run["results"].as_array().unwrap() {
            let index = result["ruleIndex"].as_u64().unwrap() as usize;
            assert_eq!(rules[index]["id"], result["ruleId"]);
        }
        let result = &run["results"][1];
        assert_eq!((&result["level"], &result["occurrenceCount"]), (&json!("error"), &json!(16774)));
        assert_eq!(result["message"]["text"], "w <1>. Cause: c. To do: a");
        assert_eq!(run["invocations"][0]["executionSuccessful"], true);
    }
}
