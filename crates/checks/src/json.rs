//! A finding as one JSON object on a line of its own, for programs that read them. The names of the fields are a promise:
//! new ones may appear, old ones keep their meaning.

use alloc::string::String;
use core::fmt::{self, Write};

use crate::finding::{Between, Finding, Subject};
use crate::rule::Rule;

/// When and where a finding was told, in the world outside the clock of the events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Nanoseconds since the Unix epoch.
    pub wall: u64,
    /// The process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
}

impl Finding {
    /// The finding as a JSON object, without a newline.
    ///
    /// It has `rule`, `title`, `severity`, `at`, `subject`, `what`, `evidence` (a list) and `advice`; `also`, a list
    /// of other rules that find the same mistake, where there are such; `cause` where one is known, `connection` {`local`, `peer`, `psn`?} where it is about one, and of the stamp `wall`, `pid` and `tid`.
    #[must_use]
    pub fn json(&self, stamp: Option<Stamp>) -> String {
        let mut line = String::with_capacity(256);
        // Writing to a string does not fail.
        let _ = self.write_json(stamp, &mut line);
        line
    }

    fn write_json(&self, stamp: Option<Stamp>, to: &mut String) -> fmt::Result {
        let title = Rule::of(self.rule).map_or("", |rule| rule.title);
        write!(to, "{{\"rule\":\"{}\",\"title\":{},", self.rule, Quoted(title))?;
        if let Some(also) = self.also {
            write!(to, "\"also\":[\"{also}\"],")?;
        }
        write!(to, "\"severity\":\"{}\",\"at\":{},", self.severity, self.at)?;
        if let Some(Stamp { wall, process, thread }) = stamp {
            write!(to, "\"wall\":{wall},\"pid\":{process},\"tid\":{thread},")?;
        }
        write!(to, "\"subject\":{},\"what\":{},", self.subject.json(), Quoted(&self.what))?;
        if let Some(cause) = &self.cause {
            write!(to, "\"cause\":{},", Quoted(cause))?;
        }
        if let Some(Between { local, peer, psn }) = self.connection {
            write!(to, "\"connection\":{{\"local\":{},\"peer\":{}", local.value(), peer.value())?;
            if let Some(psn) = psn {
                write!(to, ",\"psn\":{}", psn.value())?;
            }
            to.push_str("},");
        }
        to.push_str("\"evidence\":[");
        for (index, line) in self.evidence.iter().enumerate() {
            write!(to, "{}{}", if index == 0 { "" } else { "," }, Quoted(line))?;
        }
        write!(to, "],\"advice\":{}}}", Quoted(&self.advice))
    }
}

impl Subject {
    /// As a JSON string: what a person reads.
    pub(crate) fn json(&self) -> String {
        quoted(&alloc::string::ToString::to_string(self))
    }
}

/// Text as a JSON string, with its quotes.
#[must_use]
pub fn quoted(text: &str) -> String {
    alloc::string::ToString::to_string(&Quoted(text))
}

/// A JSON string.
pub(crate) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                '\n' => f.write_str("\\n")?,
                control if u32::from(control) < 0x20 => write!(f, "\\u{:04x}", u32::from(control))?,
                other => f.write_char(other)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Number;

    #[test]
    fn a_finding_is_one_object_on_one_line() {
        let finding = Finding::new(Number(201), Subject::Process, "a \"name\"\n\u{1}", "do \\ that")
            .because("so")
            .shown_by("one")
            .shown_by("two");
        let line = finding.json(Some(Stamp { wall: 3, process: 4, thread: 5 }));
        assert_eq!(
            line,
            "{\"rule\":\"UV-0201\",\"title\":\"a buffer was changed while its work was under way\",\
             \"severity\":\"error\",\"at\":0,\"wall\":3,\"pid\":4,\"tid\":5,\"subject\":\"the process\",\
             \"what\":\"a \\\"name\\\"\\n\\u0001\",\"cause\":\"so\",\"evidence\":[\"one\",\"two\"],\
             \"advice\":\"do \\\\ that\"}"
        );
    }
}
