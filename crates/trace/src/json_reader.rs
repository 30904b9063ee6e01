//! Reads what [`JsonLines`](crate::JsonLines) wrote: the log of an earlier run becomes events again. A log is a file
//! that anybody may have written: lines and words are bounded, events that are not known are skipped and counted, and
//! so are lines that are no JSON: a log on standard error has those of the program in between.

use std::io::{self, BufRead, Read};
use std::string::String;
use std::vec::Vec;

use serde_json::{Map, Value};

use crate::event::{Event, Kind};
use crate::json_fields::{Fields, Object};
use crate::words::MAX_WORD;

/// The longest line that is read.
const MAX_LINE: u64 = 1 << 16;

/// An event of a log, and where and when it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Logged {
    /// The event.
    pub event: Event,
    /// The line, from 1.
    pub line: u64,
    /// The host, where the log names one.
    pub source: Option<String>,
    /// Nanoseconds since the Unix epoch, where the log says so.
    pub wall: Option<u64>,
    /// The process, where the log names it.
    pub process: Option<u32>,
}

/// Why a log cannot be read on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system refused.
    #[error("line {line}: {source}")]
    Io {
        /// The line, from 1.
        line: u64,
        /// What it said.
        source: io::Error,
    },
    /// No line of a log is that long.
    #[error("line {line}: longer than {MAX_LINE} bytes; is this a log of events?")]
    TooLong {
        /// The line, from 1.
        line: u64,
    },
}

/// Reads events from JSON lines.
#[derive(Debug)]
pub struct JsonReader<R> {
    reader: R,
    line: u64,
    skipped: u64,
    foreign: u64,
    cut_in: Option<u64>,
    buffer: Vec<u8>,
}

impl<R: BufRead> JsonReader<R> {
    /// Reads from `reader`.
    #[must_use]
    pub const fn new(reader: R) -> Self {
        Self { reader, line: 0, skipped: 0, foreign: 0, cut_in: None, buffer: Vec::new() }
    }

    /// Lines that are objects and no events that are known here.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Lines that are no JSON objects: those of another program.
    #[must_use]
    pub const fn foreign(&self) -> u64 {
        self.foreign
    }

    /// The last line, if its writer did not finish it: what came then is not known.
    #[must_use]
    pub const fn cut_in(&self) -> Option<u64> {
        self.cut_in
    }

    /// The next event; `None` at the end. A line that the writer did not finish is the end, too.
    ///
    /// # Errors
    /// What is no log, and what the system cannot read.
    pub fn next_event(&mut self) -> Result<Option<Logged>, ReadError> {
        loop {
            self.buffer.clear();
            self.line += 1;
            let line = self.line;
            let mut limited = (&mut self.reader).take(MAX_LINE + 1);
            let read = limited.read_until(b'\n', &mut self.buffer).map_err(|source| ReadError::Io { line, source })?;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 > MAX_LINE {
                return Err(ReadError::TooLong { line });
            }
            let is_whole = self.buffer.last() == Some(&b'\n');
            if self.buffer.trim_ascii().is_empty() {
                continue;
            }
            let Ok(fields) = serde_json::from_slice::<Map<String, Value>>(&self.buffer) else {
                if is_whole || !self.buffer.trim_ascii_start().starts_with(b"{") {
                    self.foreign += 1;
                    continue;
                }
                self.cut_in = Some(line);
                return Ok(None);
            };
            let object = Object(&fields);
            match event(&object) {
                Some(event) => {
                    let source = object.word("source");
                    return Ok(Some(Logged {
                        event,
                        line,
                        source: source.map(|source| source.chars().take(MAX_WORD).collect()),
                        wall: object.get("wall"),
                        process: object.get("pid"),
                    }));
                }
                None => self.skipped += 1,
            }
        }
    }
}

fn event(object: &Object<'_>) -> Option<Event> {
    Some(Event { at: object.get("at")?, qpn: object.get("qpn")?, kind: Kind::read_fields(object)? })
}
