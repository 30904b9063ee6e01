//! The text of a script.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{MAX_FAILURES, MAX_SCRIPT_BYTES, Script, failure};
use crate::error::ScriptError;
use crate::text::{self, Table};

/// The keys of a script, outside of its failures.
const SCRIPT_KEYS: &[&str] = &["about", "seed", "end", "restore", "failure"];

pub fn parse(bytes: &[u8]) -> Result<Script, ScriptError> {
    let example = "a failure is like [[failure]], then lines like at = \"2s\" and do = \"port-down\"";
    text::read_document("script", bytes, MAX_SCRIPT_BYTES, example, read)
}

fn read(mut top: Table<'_>) -> Result<Script, ScriptError> {
    let mut script = Script {
        about: top.take("about").map(|item| item.text().map(String::from)).transpose()?,
        seed: top.take("seed").map(|item| item.whole(0, u64::MAX)).transpose()?,
        end: top.take("end").map(|item| item.time(1)).transpose()?,
        leaves_broken: !top.take("restore").map(|item| item.flag()).transpose()?.unwrap_or(true),
        failures: Vec::new(),
    };
    let failures = top.take("failure");
    top.finish("key of a script", SCRIPT_KEYS)?;
    let Some(item) = failures else {
        let said = "the script has no failure; expected [[failure]] and what it does, such as do = \"port-down\"";
        return Err(ScriptError { line: None, said: said.into() });
    };
    let tables = item.entries("a table for each failure: [[failure]]")?;
    if tables.len() > MAX_FAILURES {
        return Err(item.wrong(format_args!("at most {MAX_FAILURES} failures, and there are {}", tables.len())));
    }
    for table in tables {
        script.failures.push(Arc::new(failure::read(table.table("[[failure]]")?)?));
    }
    if script.failures.is_empty() {
        return Err(item.wrong("a failure at least"));
    }
    script.failures.sort_by_key(|failure| failure.line);
    Ok(script)
}
