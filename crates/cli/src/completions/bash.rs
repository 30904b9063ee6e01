//! Bash's part: it cuts words at `=`, which other shells do not, and replaces only what stands behind.

use clap_complete::engine::CompletionCandidate;
use clap_complete::env::EnvCompleter;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

/// The adapter of bash.
pub struct Bash;

/// The variable with the number of the word to complete.
const WORD_VARIABLE: &str = "UBIVERBS_COMPLETE_WORD";

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        "bash"
    }

    fn is(&self, name: &str) -> bool {
        name == "bash"
    }

    fn write_registration(
        &self,
        variable: &str,
        name: &str,
        program: &str,
        completer: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let completer = format!("'{}'", completer.replace('\'', r"'\''"));
        write!(
            out,
            r#"_{name}() {{
    local words=("${{COMP_WORDS[@]}}")
    words[COMP_CWORD]=$2
    local IFS=$'\n'
    COMPREPLY=($({variable}=bash {WORD_VARIABLE}=$COMP_CWORD {completer} -- "${{words[@]}}" 2>/dev/null))
    [[ ${{#COMPREPLY[@]}} -eq 1 && $COMPREPLY == *[=/] ]] && compopt -o nospace
    return 0
}}
complete -o bashdefault -o nosort -F _{name} {program} 2>/dev/null || complete -o bashdefault -F _{name} {program}
"#
        )
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        words: Vec<OsString>,
        directory: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let index = std::env::var(WORD_VARIABLE)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(words.len().saturating_sub(1));
        let mut line = Line::of(words, index);
        if let Some(word) = line.words.get_mut(line.index) {
            *word = plain(&word.to_string_lossy()).into();
        }
        let begun = line.words.get(line.index).is_some_and(|word| !word.is_empty());
        let mut candidates = clap_complete::engine::complete(command, line.words, line.index, directory)?;
        let is_option = |candidate: &CompletionCandidate| candidate.get_value().as_encoded_bytes().starts_with(b"-");
        // Options would hide what is asked for.
        if !begun && candidates.iter().any(|candidate| !is_option(candidate)) {
            candidates.retain(|candidate| !is_option(candidate));
        }
        for candidate in candidates {
            let value = candidate.get_value().to_string_lossy();
            writeln!(out, "{}", quoted(value.strip_prefix(&line.before).unwrap_or(&value)))?;
        }
        Ok(())
    }
}

/// A word without the backslashes that its special characters have on a command line.
fn plain(word: &str) -> String {
    let mut characters = word.chars();
    let next = || match characters.next()? {
        '\\' => characters.next(),
        character => Some(character),
    };
    std::iter::from_fn(next).collect()
}

/// A word as bash writes it, with a backslash before each special character.
fn quoted(word: &str) -> String {
    let special = |character: char| " \t'\"\\$&;()<>|*?[]#`!".contains(character);
    word.chars().flat_map(|character| special(character).then_some('\\').into_iter().chain([character])).collect()
}

/// A command line as others cut it.
#[derive(PartialEq, Eq, Debug)]
struct Line {
    words: Vec<OsString>,
    /// The word to complete.
    index: usize,
    /// The part of that word that bash does not replace.
    before: String,
}

impl Line {
    /// Puts `--device = ubi_lo` and `drop = 1%` together again.
    fn of(words: Vec<OsString>, index: usize) -> Line {
        let mut line = Line { words: Vec::new(), index, before: String::new() };
        let mut joins = false;
        for (number, word) in words.into_iter().enumerate() {
            let is_sign = word == "=" && number > 0;
            match line.words.last_mut() {
                Some(last) if is_sign || joins => {
                    if number == index {
                        line.before = if is_sign { String::new() } else { last.to_string_lossy().into_owned() };
                    }
                    last.push(&word);
                    line.index -= usize::from(number <= index);
                }
                _ => line.words.push(word),
            }
            joins = is_sign;
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_quoted_and_read_back() {
        for (word, on_the_line) in
            [("a file", "a\\ file"), ("$x'y", "\\$x\\'y"), ("drop=1%,", "drop=1%,"), ("\\", "\\\\")]
        {
            assert_eq!(quoted(word), on_the_line);
            assert_eq!(plain(on_the_line), word);
        }
        assert_eq!(plain("a\\"), "a");
    }

    #[test]
    fn words_that_bash_cut_are_put_together() {
        let line = |words: &[&str], index| Line::of(words.iter().map(OsString::from).collect(), index);
        let of = |words: &[&str], index, before: &str| Line { before: before.into(), ..plain(words, index) };
        fn plain(words: &[&str], index: usize) -> Line {
            Line { words: words.iter().map(OsString::from).collect(), index, before: String::new() }
        }
        assert_eq!(line(&["u", "run", "--de"], 2), plain(&["u", "run", "--de"], 2));
        assert_eq!(line(&["u", "run", "--device", "=", "ubi"], 4), of(&["u", "run", "--device=ubi"], 2, "--device="));
        assert_eq!(line(&["u", "run", "--link", "=", "udp", "x"], 5), plain(&["u", "run", "--link=udp", "x"], 3));
        assert_eq!(line(&["u", "--faults", "drop", "=", "1%,du"], 4), of(&["u", "--faults", "drop=1%,du"], 2, "drop="));
    }
}
