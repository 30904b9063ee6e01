//! What a torture has found, for people and for tools: the table, JSON, JUnit and SARIF.

use super::verdict::CaseResult;
use super::{Case, Strike, Struck, Torture, seconds};
use crate::report::junit::{self, Complaint, Suite};
use crate::report::sarif;
use crate::style;
use serde_json::{Value, json};
use std::io::{self, Write};

/// Of the output of a failing case so many lines are in reports.
const MAX_LINES: usize = 40;

/// The width of names in the table: longer ones push the rest to the right.
const NAME_WIDTH: usize = 24;

/// The healthy run, and the head of the table.
pub fn begin(torture: &Torture, scripts: &[Struck], out: &mut impl Write) -> io::Result<()> {
    let stays = if torture.healthy.left.is_empty() { "" } else { "; what it leaves running is ended" };
    writeln!(out, "healthy: {}, so {} is a hang{stays}", seconds(torture.healthy.took), seconds(torture.deadline))?;
    writeln!(out, "{} scripts\n", scripts.len())?;
    let title = style::TITLE_STYLE;
    writeln!(
        out,
        "{title}{:NAME_WIDTH$} {:>4}  {:10} {:>8} {:>8}  what{title:#}",
        "script", "seed", "result", "time", "knew"
    )?;
    out.flush()
}

/// A row of the table, when the case has ended.
pub fn row(case: &Case, out: &mut impl Write) -> io::Result<()> {
    let colour = match case.verdict.result {
        result if result.is_failure() => style::BAD_STYLE,
        CaseResult::Held => style::GOOD_STYLE,
        _ => style::WARNING_STYLE,
    };
    let knew = case.outcome.knew_after.map(seconds).unwrap_or_default();
    writeln!(
        out,
        "{:NAME_WIDTH$} {:>4}  {colour}{:10}{colour:#} {:>8} {knew:>8}  {}",
        trace::printable(&case.struck.name).to_string(),
        case.seed,
        case.verdict.result.name(),
        seconds(case.outcome.took),
        case.verdict.text,
    )?;
    out.flush()
}

/// What is behind the table: failing cases, and the sum.
pub fn end(torture: &Torture, out: &mut impl Write) -> io::Result<()> {
    let failed: Vec<&Case> = torture.cases.iter().filter(|case| case.verdict.result.is_failure()).collect();
    let (bad, command) = (style::BAD_STYLE, style::COMMAND_STYLE);
    for case in &failed {
        let name = trace::printable(&case.struck.name).to_string();
        writeln!(
            out,
            "\n{bad}{name}, seed {}: {}{bad:#}: {}",
            case.seed,
            case.verdict.result.name(),
            case.verdict.text
        )?;
        for line in struck(&case.outcome.strikes) {
            writeln!(out, "  {line}")?;
        }
        if let Some(small) = &case.shrunk {
            writeln!(out, "  this much of the script is enough:")?;
            small.lines().try_for_each(|line| writeln!(out, "    {}", trace::printable(line)))?;
        }
        writeln!(out, "  again: {command}{}{command:#}", trace::printable(&case.repeat))?;
    }
    if let Some(kept) = &torture.kept {
        writeln!(out, "\ntheir output: {}", trace::printable(&kept.display().to_string()))?;
    }
    let sum: Vec<String> = counts(torture).into_iter().map(|(name, count)| format!("{count} {name}")).collect();
    writeln!(out, "\n{} cases: {}", torture.cases.len(), sum.join(", "))
}

/// Results and how many cases have them.
fn counts(torture: &Torture) -> Vec<(&'static str, usize)> {
    let mut results: Vec<CaseResult> = torture.cases.iter().map(|case| case.verdict.result).collect();
    results.sort_unstable();
    let chunks = results.chunk_by(|one, other| one == other);
    chunks.filter_map(|same| same.first().map(|result| (result.name(), same.len()))).collect()
}

/// What a script did, with what is alike counted.
fn struck(strikes: &[Strike]) -> Vec<String> {
    let mut lines: Vec<(String, usize)> = Vec::new();
    for strike in strikes {
        let line = match &strike.missed {
            None => format!("struck by line {}: {}", strike.line, strike.what),
            Some(why) => format!("line {} missed: {}: {why}", strike.line, strike.what),
        };
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, count)) => *count += 1,
            None => lines.push((line, 1)),
        }
    }
    let told = |(line, count)| if count == 1 { line } else { format!("{line} ({count} times)") };
    lines.into_iter().map(told).collect()
}

pub fn json(torture: &Torture) -> String {
    let cases: Vec<Value> = torture.cases.iter().map(as_json).collect();
    let failed = torture.cases.iter().filter(|case| case.verdict.result.is_failure()).count();
    let document = json!({
        "version": 1,
        "tool": format!("ubiverbs {}", env!("CARGO_PKG_VERSION")),
        "command": torture.line,
        "healthy_seconds": torture.healthy.took.as_secs_f64(),
        "deadline_seconds": torture.deadline.as_secs_f64(),
        "failed": failed,
        "summary": counts(torture).into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "kept": torture.kept,
        "cases": cases,
    });
    format!("{document:#}\n")
}

fn as_json(case: &Case) -> Value {
    let strikes: Vec<Value> = case
        .outcome
        .strikes
        .iter()
        .map(|strike| {
            json!({
                "do": strike.action, "what": strike.what, "missed": strike.missed, "line": strike.line,
                "pid": strike.process, "wall": strike.wall,
            })
        })
        .collect();
    json!({
        "script": case.struck.name,
        "about": case.struck.about,
        "seed": case.seed,
        "result": case.verdict.result.name(),
        "failed": case.verdict.result.is_failure(),
        "what": case.verdict.text,
        "seconds": case.outcome.took.as_secs_f64(),
        "knew_after_seconds": case.outcome.knew_after.map(|time| time.as_secs_f64()),
        "strikes": strikes,
        "shrunk": case.shrunk,
        "repeat": case.repeat,
    })
}

pub fn junit(torture: &Torture) -> String {
    let cases = torture.cases.iter().map(|case| {
        let result = case.verdict.result;
        let complaint =
            Complaint { kind: result.name().into(), message: case.verdict.text.clone(), lines: details(case) };
        junit::Case {
            class: "torture".into(),
            name: format!("{}, seed {}", case.struck.name, case.seed),
            seconds: Some(case.outcome.took.as_secs_f64()),
            skipped: (result == CaseResult::Untouched).then(|| case.verdict.text.clone()),
            failure: result.is_failure().then_some(complaint),
            error: None,
            output: if result.is_failure() {
                Vec::new()
            } else {
                vec![format!("{}: {}", result.name(), case.verdict.text)]
            },
        }
    });
    junit::write(&Suite { name: torture.line.join(" "), cases: cases.collect() })
}

/// What there is to say of a failing case.
fn details(case: &Case) -> Vec<String> {
    let mut lines = vec![case.struck.about.clone(), format!("again: {}", case.repeat)];
    lines.extend(struck(&case.outcome.strikes));
    lines.extend(case.shrunk.iter().flat_map(|small| small.lines().map(str::to_owned)));
    for output in [&case.outcome.output, &case.outcome.errors] {
        let text = String::from_utf8_lossy(output);
        let all: Vec<&str> = text.lines().collect();
        let last = all.iter().skip(all.len().saturating_sub(MAX_LINES));
        lines.extend(last.map(|line| trace::printable(line).to_string()));
    }
    lines
}

pub fn sarif(torture: &Torture) -> String {
    let mut names: Vec<&str> = Vec::new();
    for case in &torture.cases {
        if !names.contains(&case.struck.name.as_str()) {
            names.push(&case.struck.name);
        }
    }
    let of = |name: &&str| torture.cases.iter().find(|case| case.struck.name == *name);
    let rules = names.iter().filter_map(of).map(|case| {
        let Struck { name, text, about } = &case.struck;
        let markdown = format!("{about}\n\n```toml\n{text}```\n");
        json!({
            "id": format!("torture/{}", sarif::uri(name)),
            "shortDescription": { "text": about },
            "fullDescription": { "text": about },
            "help": { "text": text, "markdown": markdown },
            "defaultConfiguration": { "level": "error" },
        })
    });
    let rules: Vec<Value> = rules.collect();
    let program = torture.line.first().map_or("program", String::as_str);
    let results = torture.cases.iter().filter(|case| case.verdict.result.is_failure()).map(|case| {
        let index = names.iter().position(|name| *name == case.struck.name);
        let Struck { name, about, .. } = &case.struck;
        let result = case.verdict.result.name();
        let text =
            format!("{result}: {} ({name}, seed {}: {about}). To do: {}", case.verdict.text, case.seed, case.repeat);
        json!({
            "ruleId": format!("torture/{}", sarif::uri(name)),
            "ruleIndex": index,
            "level": "error",
            "message": { "text": text },
            "locations": [{ "physicalLocation": { "artifactLocation": { "uri": sarif::uri(program) } } }],
            "partialFingerprints": { "scriptAndResult/v1": format!("{name}:{result}") },
            "properties": as_json(case),
        })
    });
    let results: Vec<Value> = results.collect();
    let invocation = sarif::invocation(&torture.line, true);
    format!("{:#}\n", sarif::document(rules, invocation, results))
}
