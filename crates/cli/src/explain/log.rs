//! A whole log from standard input: which lines matter, and what they mean.

use super::entry::{ExplainedWord, Kind};
use super::line::{Recognised, recognise};
use crate::style;
use serde_json::{Value, json};
use std::io::{self, BufRead, Write};
use trace::printable;

/// So much of a line is looked at, and kept.
const MAX_LINE_BYTES: usize = 4096;

/// So much of a line is shown.
const MAX_SHOWN: usize = 160;

/// So many lines that say different things are told apart.
const MAX_GROUPS: usize = 200;

/// Lines that say the same.
struct Group {
    first: u64,
    text: String,
    count: u64,
    recognised: Recognised,
}

/// What a log has.
#[derive(Default)]
pub struct Log {
    groups: Vec<Group>,
    lines: u64,
}

impl Log {
    /// Reads a log to its end.
    pub fn read(mut input: impl BufRead) -> io::Result<Log> {
        let mut log = Log::default();
        let mut line = Vec::new();
        while read_line(&mut input, &mut line)? {
            log.lines += 1;
            let text = String::from_utf8_lossy(&line).replace('\t', " ");
            log.add(&printable(text.trim_end()).to_string());
        }
        Ok(log)
    }

    fn add(&mut self, line: &str) {
        let recognised = recognise(line);
        // Of nothing all is a heading.
        if recognised.is_heading() {
            return;
        }
        let has_room = self.groups.len() < MAX_GROUPS;
        let same = |group: &&mut Group| names(&group.recognised).eq(names(&recognised));
        match self.groups.iter_mut().find(same) {
            Some(group) => group.count += 1,
            None if has_room => {
                self.groups.push(Group { first: self.lines, text: line.to_owned(), count: 1, recognised });
            }
            None => {}
        }
    }

    /// Whether nothing was read at all.
    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// Whether nothing in it can be explained.
    pub fn is_silent(&self) -> bool {
        self.groups.is_empty()
    }

    /// Causes before consequences, each in the order of the log.
    fn sorted(&self) -> (Vec<&Group>, Vec<&Group>) {
        self.groups.iter().partition(|group| !group.recognised.is_consequence())
    }

    /// What the lines name, causes first, each once; if there is a cause, without what follows from it.
    fn entries(&self) -> Vec<&ExplainedWord> {
        let (causes, consequences) = self.sorted();
        let shown = if causes.is_empty() { consequences } else { causes };
        let mut entries: Vec<&ExplainedWord> = Vec::new();
        for entry in shown.iter().flat_map(|group| &group.recognised.entries) {
            if !entries.iter().any(|known| (known.kind, &known.name) == (entry.kind, &entry.name)) {
                entries.push(entry);
            }
        }
        entries
    }

    /// Says which lines matter, and then what they mean.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let (causes, consequences) = self.sorted();
        let found: u64 = self.groups.iter().map(|group| group.count).sum();
        let first = causes.first().or(consequences.first()).map_or(0, |group| group.first);
        let title = style::TITLE_STYLE;
        writeln!(out, "{found} of {} lines tell of a failure. Begin with line {first}.\n", self.lines)?;
        for (word, groups) in [("What failed", causes), ("What followed from a failure", consequences)] {
            if groups.is_empty() {
                continue;
            }
            writeln!(out, "{title}{word}{title:#}")?;
            groups.into_iter().try_for_each(|group| group.print(out))?;
            writeln!(out)?;
        }
        super::explain(&self.entries().into_iter().cloned().collect::<Vec<_>>(), out)
    }

    /// The explanations as JSON, for programs.
    pub fn json(&self) -> Value {
        let lines: Vec<Value> = self
            .groups
            .iter()
            .map(|group| {
                json!({
                    "line": group.first,
                    "text": group.text,
                    "count": group.count,
                    "consequence": group.recognised.is_consequence(),
                    "names": names(&group.recognised).map(|(_, name)| name).collect::<Vec<_>>(),
                    "notes": group.recognised.notes,
                })
            })
            .collect();
        let entries: Vec<Value> = self.entries().into_iter().map(ExplainedWord::json).collect();
        json!({ "read": self.lines, "lines": lines, "entries": entries })
    }
}

fn names(recognised: &Recognised) -> impl Iterator<Item = (Kind, &str)> {
    recognised.entries.iter().map(|entry| (entry.kind, entry.name.as_str()))
}

impl Group {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let mut shown: String = self.text.trim().chars().take(MAX_SHOWN).collect();
        if shown.len() < self.text.trim().len() {
            shown.push('…');
        }
        writeln!(out, "{:>6}  {shown}", self.first)?;
        for entry in &self.recognised.entries {
            writeln!(out, "        {}: {}", entry.heading(), entry.short)?;
        }
        for note in &self.recognised.notes {
            writeln!(out, "        {note}")?;
        }
        match self.count {
            1 => Ok(()),
            2 => writeln!(out, "        and 1 line like it"),
            count => writeln!(out, "        and {} lines like it", count - 1),
        }
    }
}

/// Reads a line, or as much of it as is looked at. Answers whether there was one.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let bytes = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes.is_empty() {
            return Ok(any);
        }
        any = true;
        let (length, is_end) = match bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) => (end + 1, true),
            None => (bytes.len(), false),
        };
        let room = MAX_LINE_BYTES.saturating_sub(line.len());
        line.extend(&bytes[..length.min(room)]);
        input.consume(length);
        if is_end {
            return Ok(true);
        }
    }
}
