//! What is wrong with the text of a script.

#[cfg(feature = "parse")]
use alloc::format;
use alloc::string::String;
#[cfg(feature = "parse")]
use alloc::string::ToString;
use core::fmt;

#[cfg(feature = "parse")]
use crate::words::nearest;

/// A mistake of a script, or of another text: where it is, what was found, and what would have been right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScriptError {
    /// The line, counted from 1; none where the mistake is in no line.
    pub line: Option<usize>,
    /// What is wrong, and what was expected.
    pub said: String,
}

#[cfg(feature = "parse")]
impl ScriptError {
    /// Something in this line.
    #[must_use]
    pub fn at(line: usize, said: impl fmt::Display) -> ScriptError {
        ScriptError { line: Some(line), said: said.to_string() }
    }

    /// A word in this line that is none of those that are known there.
    #[must_use]
    pub fn unknown<'a>(
        line: usize,
        word: &str,
        what: &str,
        known: impl IntoIterator<Item = &'a str> + Clone,
    ) -> ScriptError {
        let mut list = String::new();
        for (index, known) in known.clone().into_iter().enumerate() {
            list += if index == 0 { "" } else { ", " };
            list += known;
        }
        let meant = nearest(word, known).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        ScriptError::at(line, format_args!("{word:?} is no {what}; expected {list}{meant}"))
    }
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.said),
            None => f.write_str(&self.said),
        }
    }
}

impl core::error::Error for ScriptError {}
