//! What struck, as one JSON object on a line of its own. The names of the fields are a promise: new ones may appear, old
//! ones keep their meaning.

use alloc::string::String;
use core::fmt::{self, Write};

use crate::machine::{Phase, Strike};
use crate::script::Nanos;

/// A strike that was carried out, or could not be.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The name of the script.
    pub script: &'a str,
    /// What was to be done.
    pub strike: &'a Strike,
    /// When: nanoseconds since the process opened its first device.
    pub at: Nanos,
    /// When: nanoseconds since the Unix epoch.
    pub wall: u64,
    /// The process.
    pub process: u32,
    /// The name of its executable.
    pub program: &'a str,
    /// What was struck; or why nothing was.
    pub struck: Result<&'a str, &'a str>,
}

impl Report<'_> {
    /// The JSON object, without a newline.
    ///
    /// It has `script`, `line`, `do`, `what` (the word with its values), `phase` (`begin`, `end`), `count`, `at`, `wall`,
    /// `pid`, `program`, and either `struck` or `missed`, which says why nothing was struck.
    #[must_use]
    pub fn json(&self) -> String {
        let mut line = String::with_capacity(256);
        // Writing to a string does not fail.
        let _ = self.write_json(&mut line);
        line
    }

    fn write_json(&self, to: &mut String) -> fmt::Result {
        let Report { script, strike, at, wall, process, program, struck } = *self;
        write!(to, "{{\"script\":{},\"line\":{}", Quoted(script), strike.line())?;
        let what = alloc::format!("{}", strike.action);
        write!(to, ",\"do\":\"{}\",\"what\":{}", strike.failure.action.name(), Quoted(&what))?;
        let phase = if strike.phase == Phase::Begin { "begin" } else { "end" };
        write!(to, ",\"phase\":\"{phase}\",\"count\":{}", strike.count)?;
        write!(to, ",\"at\":{at},\"wall\":{wall},\"pid\":{process},\"program\":{}", Quoted(program))?;
        match struck {
            Ok(struck) => write!(to, ",\"struck\":{}}}", Quoted(struck)),
            Err(why) => write!(to, ",\"missed\":{}}}", Quoted(why)),
        }
    }
}

/// A text as JSON has it.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for letter in self.0.chars() {
            match letter {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                letter if letter.is_control() => write!(f, "\\u{:04x}", u32::from(letter))?,
                letter => f.write_char(letter)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(all(test, feature = "parse"))]
mod tests {
    use super::*;
    use crate::script::Script;
    use alloc::sync::Arc;

    #[test]
    fn a_strike_is_a_line_of_json() {
        let script = Script::parse("[[failure]]\ndo = 'flap'\nperiod = '1s'").unwrap();
        let failure = Arc::clone(&script.failures[0]);
        let strike =
            Strike { action: crate::Action::PortDown, phase: Phase::Begin, failure, count: 2, is_of_moment: false };
        let report = Report {
            script: "a \"b\"\n",
            strike: &strike,
            at: 1,
            wall: 2,
            process: 3,
            program: "rping",
            struck: Ok("ubi0"),
        };
        assert_eq!(
            report.json(),
            "{\"script\":\"a \\\"b\\\"\\u000a\",\"line\":2,\"do\":\"flap\",\"what\":\"port-down\",\"phase\":\"begin\",\
             \"count\":2,\"at\":1,\"wall\":2,\"pid\":3,\"program\":\"rping\",\"struck\":\"ubi0\"}"
        );
        let missed = Report { struck: Err("there is no such port"), ..report }.json();
        assert!(missed.ends_with(",\"missed\":\"there is no such port\"}"), "{missed}");
    }
}
