//! What `readelf` says of programs and libraries: which version of the C library they need, which libraries, and what
//! they export.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;

/// A version, part by part.
type Version = Vec<u32>;

fn version(text: &str) -> Option<Version> {
    text.split('.').map(|part| part.parse().ok()).collect()
}

/// The newest version of the C library that these files need something of.
pub fn newest_libc(files: &[PathBuf]) -> Result<String, String> {
    let text = process::output(Command::new("readelf").args(["--version-info", "--wide"]).args(files))?;
    newest(&text).map(str::to_owned).ok_or_else(|| "the files need no C library at all".into())
}

fn newest(text: &str) -> Option<&str> {
    let versions = text.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_"));
    versions.filter(|text| version(text).is_some()).max_by_key(|text| version(text))
}

/// Fails if one of these files needs a newer C library than `limit`, or another library than it and ours; `limit` is a
/// promise to people who have that one.
pub fn check(files: &[PathBuf], limit: &str) -> Result<(), String> {
    const NEEDED: [&str; 10] = [
        "libc.so.6",
        "libm.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
        "libibverbs.so.1",
        "librdmacm.so.1",
        "libibumad.so.3",
    ];
    for file in files {
        let text = process::output(Command::new("readelf").args(["--version-info", "--wide"]).arg(file))?;
        if let Some(newest) = newest(&text).filter(|newest| version(newest) > version(limit)) {
            return Err(format!("{} needs GLIBC_{newest}, and {limit} is promised", file.display()));
        }
        let text = process::output(Command::new("readelf").args(["--dynamic", "--wide"]).arg(file))?;
        for name in needed(&text) {
            if !NEEDED.contains(&name) {
                return Err(format!("{} needs {name}, which not every system has", file.display()));
            }
        }
    }
    Ok(())
}

fn needed(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.contains("(NEEDED)")).filter_map(|line| line.split(['[', ']']).nth(1))
}

/// What a library exports, with versions.
pub fn exports(library: &Path) -> Result<BTreeSet<String>, String> {
    let text = process::output(Command::new("readelf").args(["--dyn-syms", "--wide"]).arg(library))?;
    Ok(exported(&text).map(str::to_owned).collect())
}

fn exported(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            // Absolute symbols are the versions themselves, which only GNU's linker writes down.
            [_, _, _, _, _, "DEFAULT", section, name] if section != "UND" && section != "ABS" => Some(name),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        let text = "  0x0010: Name: GLIBC_2.9  Flags: none\n  0x0020: Name: GLIBC_2.28\n  Name: GLIBC_PRIVATE\n";
        assert_eq!(newest(text), Some("2.28"));
        assert_eq!(newest("nothing"), None);
        assert!(version("2.28") > version("2.9") && version("2.34") > version("2.28"));
    }

    #[test]
    fn what_is_needed_is_in_brackets() {
        let text =
            " 0x01 (NEEDED)             Shared library: [libc.so.6]\n 0x0e (SONAME) Library soname: [libx.so.1]\n";
        assert_eq!(needed(text).collect::<Vec<_>>(), ["libc.so.6"]);
    }

    #[test]
    fn exports_are_told_from_imports_and_versions() {
        let text = "\
   1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND malloc@GLIBC_2.2.5 (3)
   2: 0000000000017b20  1682 FUNC    GLOBAL DEFAULT   14 ibv_open_device@@IBVERBS_1.1
   3: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS IBVERBS_1.1
";
        assert_eq!(exported(text).collect::<Vec<_>>(), ["ibv_open_device@@IBVERBS_1.1"]);
    }
}
