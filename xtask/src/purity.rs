//! What the source of the core crates may not say: sockets, clocks, threads, files, `unsafe`. A plain search, beside
//! the build without the standard library: it also sees what hides behind the `std` feature.

use std::fs;
use std::path::{Path, PathBuf};

/// The crates that compute and do nothing else.
const CORE: &[&str] = &["wire", "trace", "transport", "cm", "mad", "rsocket", "checks", "failures", "profiles"];

const FORBIDDEN: &[(&str, &str)] = &[
    ("std::net", "sockets belong to link"),
    ("std::os", "system calls belong to link and hca"),
    ("std::fs", "files belong to the caller; take a writer"),
    ("std::env", "configuration is an argument"),
    ("std::process", "processes belong to the shell"),
    ("std::thread", "threads belong to hca"),
    ("thread_local!", "state is a value, never a global"),
    ("static mut", "state is a value, never a global"),
    ("Instant", "time is an argument"),
    ("SystemTime", "time is an argument"),
    ("unsafe", "unsafe lives in memory, link, abi and capi"),
];

const REQUIRED: &[&str] = &["#![no_std]", "#![forbid(unsafe_code)]"];

/// Reads the sources of the core and returns what it looked at, or every line that breaks the rule.
pub fn check(root: &Path) -> Result<String, String> {
    let mut wrong = Vec::new();
    let (mut crates, mut files) = (0, 0);
    for name in CORE {
        let source = root.join("crates").join(name).join("src");
        if !source.exists() {
            continue; // Not written yet; the arrows check knows the crates there are.
        }
        crates += 1;
        for path in sources(&source)? {
            files += 1;
            let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            wrong.extend(offences(&shown, &text));
            if path == source.join("lib.rs") {
                let missing = REQUIRED.iter().filter(|line| !text.lines().any(|have| have.trim() == **line));
                wrong.extend(missing.map(|line| format!("{shown}: must say {line}")));
            }
        }
    }
    if wrong.is_empty() {
        return Ok(format!("{files} files of {crates} core crates: no sockets, clocks, threads or unsafe"));
    }
    Err(wrong.join("\n"))
}

fn offences(shown: &str, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let code = line.split_once("//").map_or(line, |(code, _)| code);
        for (word, why) in FORBIDDEN {
            if says(code, word) {
                wrong.push(format!("{shown}:{}: {word}: {why}", index + 1));
            }
        }
    }
    wrong
}

/// Whether `code` has `word` with no letter, digit or underscore on either side.
fn says(code: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code.get(..at).and_then(|s| s.chars().next_back());
        let after = code.get(at + word.len()..).and_then(|s| s.chars().next());
        !before.is_some_and(part_of_name) && !after.is_some_and(part_of_name)
    })
}

fn sources(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", directory.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_words_are_found_with_file_and_line() {
        let text = "use core::fmt;\nlet now = std::time::Instant::now();\n";
        assert_eq!(offences("a.rs", text), ["a.rs:2: Instant: time is an argument"]);
        assert_eq!(offences("a.rs", "unsafe { *p }").len(), 1);
        assert_eq!(offences("a.rs", "use std::net::UdpSocket;").len(), 1);
        assert_eq!(offences("a.rs", "std::thread::spawn(f);").len(), 1);
    }

    #[test]
    fn comments_and_longer_names_are_no_offence() {
        assert!(offences("a.rs", "// unsafe, Instant, std::net").is_empty());
        assert!(offences("a.rs", "#![forbid(unsafe_code)]").is_empty());
        assert!(offences("a.rs", "struct InstantReplay;").is_empty());
        assert!(offences("a.rs", "use std::time::Duration;").is_empty());
    }
}
