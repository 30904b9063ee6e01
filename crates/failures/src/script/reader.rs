//! The text of a script, as tables and values with their lines.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use toml::de::{DeTable, DeValue};

use super::{Chance, MAX_FAILURES, MAX_SCRIPT_BYTES, Nanos, Script, failure, values};
use crate::error::ScriptError;
use crate::words;

/// The keys of a script, outside of its failures.
const SCRIPT_KEYS: &[&str] = &["about", "seed", "end", "restore", "failure"];

pub fn parse(bytes: &[u8]) -> Result<Script, ScriptError> {
    if bytes.len() > MAX_SCRIPT_BYTES {
        let said = format!("the script has {} bytes; at most {MAX_SCRIPT_BYTES} are read", bytes.len());
        return Err(ScriptError { line: None, said });
    }
    let lines = Lines::of(bytes);
    let text = core::str::from_utf8(bytes)
        .map_err(|error| ScriptError::at(lines.at(error.valid_up_to()), "the text is not UTF-8"))?;
    let document = DeTable::parse(text).map_err(|error| {
        let line = lines.at(error.span().map_or(bytes.len(), |span| span.start));
        let example = "a failure is like [[failure]], then lines like at = \"2s\" and do = \"port-down\"";
        ScriptError::at(line, format_args!("{}; {example}", error.message().trim_end()))
    })?;
    let mut top = Table::new(document.get_ref(), 1, &lines);
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
    let DeValue::Array(tables) = item.value else {
        return Err(item.wrong("a table for each failure: [[failure]]"));
    };
    if tables.len() > MAX_FAILURES {
        return Err(item.wrong(format_args!("at most {MAX_FAILURES} failures, and there are {}", tables.len())));
    }
    for table in tables.iter() {
        let line = lines.at(table.span().start);
        let DeValue::Table(table) = table.get_ref() else {
            return Err(ScriptError::at(line, "a failure is a table; expected [[failure]]"));
        };
        script.failures.push(Arc::new(failure::read(Table::new(table, line, &lines))?));
    }
    if script.failures.is_empty() {
        return Err(item.wrong("a failure at least"));
    }
    script.failures.sort_by_key(|failure| failure.line);
    Ok(script)
}

/// Where the lines of a text begin.
pub struct Lines(Vec<usize>);

impl Lines {
    fn of(bytes: &[u8]) -> Lines {
        Lines(bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect())
    }

    /// The line of a byte, from 1.
    fn at(&self, offset: usize) -> usize {
        self.0.partition_point(|end| *end < offset) + 1
    }
}

/// A table, whose keys are taken one by one; what is left then is a mistake.
pub struct Table<'a> {
    table: &'a DeTable<'a>,
    taken: Vec<&'static str>,
    /// The line where it begins.
    pub line: usize,
    lines: &'a Lines,
}

impl<'a> Table<'a> {
    pub fn new(table: &'a DeTable<'a>, line: usize, lines: &'a Lines) -> Table<'a> {
        Table { table, taken: Vec::new(), line, lines }
    }

    /// The value of a key, if it is there.
    pub fn take(&mut self, key: &'static str) -> Option<Item<'a>> {
        self.taken.push(key);
        let (spanned, value) = self.table.get_key_value(key)?;
        Some(Item { key, value: value.get_ref(), line: self.lines.at(spanned.span().start), lines: self.lines })
    }

    /// The value of a key that must be there: `example` is how it could be.
    pub fn need(&mut self, key: &'static str, example: &str) -> Result<Item<'a>, ScriptError> {
        let line = self.line;
        self.take(key).ok_or_else(|| ScriptError::at(line, format_args!("{key} is missing; expected {example}")))
    }

    /// Whether the key is there.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Ends the table: the first key that was not taken is a mistake, and `known` are those that could be there.
    pub fn finish(self, what: &str, known: &[&str]) -> Result<(), ScriptError> {
        let left = self.table.keys().filter(|key| !self.taken.contains(&&**key.get_ref()));
        match left.min_by_key(|key| key.span().start) {
            None => Ok(()),
            Some(key) => {
                Err(ScriptError::unknown(self.lines.at(key.span().start), key.get_ref(), what, known.iter().copied()))
            }
        }
    }
}

/// A value, with its key and line.
pub struct Item<'a> {
    pub key: &'static str,
    pub value: &'a DeValue<'a>,
    pub line: usize,
    lines: &'a Lines,
}

impl<'a> Item<'a> {
    /// It is something else than what was expected.
    pub fn wrong(&self, expected: impl fmt::Display) -> ScriptError {
        let key = self.key;
        let found = match self.value {
            DeValue::String(text) => format!("{key} = {text:?}"),
            DeValue::Integer(number) => format!("{key} = {number}"),
            DeValue::Float(number) => format!("{key} = {number}"),
            DeValue::Boolean(flag) => format!("{key} = {flag}"),
            other => format!("{key} is of the type {}", other.type_str()),
        };
        ScriptError::at(self.line, format_args!("{found}; expected {expected}"))
    }

    pub fn text(&self) -> Result<&'a str, ScriptError> {
        match self.value {
            DeValue::String(text) if !text.trim().is_empty() => Ok(text.trim()),
            _ => Err(self.wrong("a text in quotes")),
        }
    }

    pub fn flag(&self) -> Result<bool, ScriptError> {
        match self.value {
            DeValue::Boolean(flag) => Ok(*flag),
            _ => Err(self.wrong("true or false")),
        }
    }

    fn integer(&self) -> Option<u64> {
        match self.value {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        }
    }

    pub fn whole(&self, least: u64, most: u64) -> Result<u64, ScriptError> {
        self.integer().filter(|number| (least..=most).contains(number)).ok_or_else(|| match most {
            u64::MAX => self.wrong(format_args!("a number from {least}")),
            _ => self.wrong(format_args!("a number from {least} to {most}")),
        })
    }

    /// A time of at least `least` nanoseconds.
    pub fn time(&self, least: Nanos) -> Result<Nanos, ScriptError> {
        let time = match self.value {
            DeValue::String(text) => values::time(text),
            _ => None,
        };
        time.filter(|time| *time >= least).ok_or_else(|| {
            let least = values::shown(least);
            self.wrong(format_args!("a time from {least} to a day, such as \"2s\" or \"1.5ms\""))
        })
    }

    pub fn size(&self) -> Result<u64, ScriptError> {
        let size = match self.value {
            DeValue::String(text) => values::size(text),
            _ => self.integer(),
        };
        size.filter(|size| *size > 0).ok_or_else(|| self.wrong("a number of bytes, such as 4096, \"64K\" or \"1M\""))
    }

    pub fn speed(&self) -> Result<u64, ScriptError> {
        let speed = match self.value {
            DeValue::String(text) => values::speed(text),
            _ => None,
        };
        speed.ok_or_else(|| self.wrong("bits per second, such as \"25G\" or \"100M\""))
    }

    pub fn chance(&self) -> Result<Chance, ScriptError> {
        let chance = match self.value {
            DeValue::String(text) => values::chance(text.trim()),
            DeValue::Float(number) => values::chance(number.as_str()),
            DeValue::Integer(number) => values::chance(number.as_str()),
            _ => None,
        };
        chance.ok_or_else(|| self.wrong("a chance such as \"1%\" or 0.01, from 0 to 1"))
    }

    /// A name of this table, or its number; other numbers up to `most` are taken too.
    pub fn named(&self, table: words::Table, what: &str, most: u32) -> Result<u32, ScriptError> {
        match self.value {
            DeValue::Integer(_) => self.whole(0, most.into()).map(|number| number as u32),
            DeValue::String(text) => words::number(table, text)
                .ok_or_else(|| ScriptError::unknown(self.line, text, what, table.iter().map(|(name, _)| *name))),
            _ => Err(self.wrong(format_args!("the name of a {what}, or its number"))),
        }
    }

    /// One of these words.
    pub fn one_of(&self, known: &'static [&'static str], what: &str) -> Result<&'static str, ScriptError> {
        let text = self.text()?;
        let found = known.iter().copied().find(|word| *word == text);
        found.ok_or_else(|| ScriptError::unknown(self.line, text, what, known.iter().copied()))
    }

    pub fn table(&self, example: &str) -> Result<Table<'a>, ScriptError> {
        match self.value {
            DeValue::Table(table) => Ok(Table::new(table, self.line, self.lines)),
            _ => Err(self.wrong(format_args!("a table such as {example}"))),
        }
    }
}
