//! Texts of TOML as tables and values that know their lines, so that a mistake can name its own. Scripts and profiles are
//! read through it.

use alloc::format;
use alloc::vec::Vec;
use core::fmt;

use toml::de::{DeTable, DeValue};

use crate::error::ScriptError;
use crate::script::{Chance, Nanos, values};
use crate::words;

/// Reads the tables of a text of at most `most` bytes, and gives them to `read`. `what` it is called in mistakes; `example`
/// shows what was expected where the text is not TOML.
pub fn read_document<T>(
    what: &str,
    bytes: &[u8],
    most: usize,
    example: &str,
    read: impl FnOnce(Table<'_>) -> Result<T, ScriptError>,
) -> Result<T, ScriptError> {
    if bytes.len() > most {
        let said = format!("the {what} has {} bytes; at most {most} are read", bytes.len());
        return Err(ScriptError { line: None, said });
    }
    let lines = Lines::of(bytes);
    let text = core::str::from_utf8(bytes)
        .map_err(|error| ScriptError::at(lines.at(error.valid_up_to()), "the text is not UTF-8"))?;
    let document = DeTable::parse(text).map_err(|error| {
        let line = lines.at(error.span().map_or(bytes.len(), |span| span.start));
        ScriptError::at(line, format_args!("{}; {example}", error.message().trim_end()))
    })?;
    read(Table::new(document.get_ref(), 1, &lines))
}

/// Where the lines of a text begin.
#[derive(Debug)]
pub(crate) struct Lines(Vec<usize>);

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
#[derive(Debug)]
pub struct Table<'a> {
    table: &'a DeTable<'a>,
    taken: Vec<&'static str>,
    /// The line where it begins.
    pub line: usize,
    lines: &'a Lines,
}

impl<'a> Table<'a> {
    pub(crate) fn new(table: &'a DeTable<'a>, line: usize, lines: &'a Lines) -> Table<'a> {
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
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// Its key.
    pub key: &'static str,
    /// What it is.
    pub value: &'a DeValue<'a>,
    /// The line of the key.
    pub line: usize,
    lines: &'a Lines,
}

impl<'a> Item<'a> {
    /// The same value under another key, by which mistakes call it.
    #[must_use]
    pub fn called(self, key: &'static str) -> Item<'a> {
        Item { key, ..self }
    }

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

    /// Characters.
    pub fn text(&self) -> Result<&'a str, ScriptError> {
        match self.value {
            DeValue::String(text) if !text.trim().is_empty() => Ok(text.trim()),
            _ => Err(self.wrong("a text in quotes")),
        }
    }

    /// True or false.
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

    /// A number between these.
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

    /// A number of bytes.
    pub fn size(&self) -> Result<u64, ScriptError> {
        let size = match self.value {
            DeValue::String(text) => values::size(text),
            _ => self.integer(),
        };
        size.filter(|size| *size > 0).ok_or_else(|| self.wrong("a number of bytes, such as 4096, \"64K\" or \"1M\""))
    }

    /// Bits per second.
    pub fn speed(&self) -> Result<u64, ScriptError> {
        let speed = match self.value {
            DeValue::String(text) => values::speed(text),
            _ => None,
        };
        speed.ok_or_else(|| self.wrong("bits per second, such as \"25G\" or \"100M\""))
    }

    /// A probability.
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

    /// The values of a list, or the tables of one. Each knows the line where it begins.
    pub fn entries(&self, expected: &str) -> Result<Vec<Item<'a>>, ScriptError> {
        let DeValue::Array(entries) = self.value else { return Err(self.wrong(expected)) };
        let entry = |entry: &'a toml::Spanned<DeValue<'a>>| Item {
            value: entry.get_ref(),
            line: self.lines.at(entry.span().start),
            ..*self
        };
        Ok(entries.iter().map(entry).collect())
    }

    /// The table that it is.
    pub fn table(&self, example: &str) -> Result<Table<'a>, ScriptError> {
        match self.value {
            DeValue::Table(table) => Ok(Table::new(table, self.line, self.lines)),
            _ => Err(self.wrong(format_args!("a table such as {example}"))),
        }
    }
}
