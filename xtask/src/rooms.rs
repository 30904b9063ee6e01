//! Which room of the NIC (`crates/hca/src`) may use which. A room is a file or a folder there; the table has its arrows, and a
//! `use crate::…` that is not in it is an error, so that no circle comes back between rooms. Tests may use everything.

use std::fs;
use std::path::{Path, PathBuf};

/// A room and the rooms it may use. Each uses only rooms above it, with one exception: an id of the connection manager keeps
/// its NIC alive, so `cm` and `nic` know each other.
const ROOMS: &[(&str, &[&str])] = &[
    ("lib", &[]),
    ("tuning", &[]),
    ("interfaces", &[]),
    ("record", &["tuning"]),
    ("progress", &["tuning"]),
    ("objects", &["tuning", "interfaces", "progress"]),
    ("error", &["objects"]),
    ("environment", &["record", "objects"]),
    ("orphan", &["record", "environment"]),
    ("links", &["tuning", "objects"]),
    ("ground", &["tuning", "record", "progress", "objects", "environment", "links"]),
    ("told_calls", &["objects", "ground"]),
    ("queue_pair", &["tuning", "record", "progress", "objects", "links", "ground"]),
    ("gsi", &["tuning", "progress", "objects", "ground"]),
    ("cm", &["tuning", "progress", "objects", "ground", "nic"]),
    (
        "nic",
        &[
            "tuning",
            "interfaces",
            "record",
            "progress",
            "objects",
            "error",
            "links",
            "ground",
            "told_calls",
            "queue_pair",
            "gsi",
            "cm",
        ],
    ),
    ("drive", &["tuning", "interfaces", "progress", "objects", "links", "queue_pair", "gsi", "nic"]),
    (
        "open",
        &[
            "tuning",
            "interfaces",
            "record",
            "progress",
            "objects",
            "error",
            "environment",
            "links",
            "ground",
            "gsi",
            "cm",
            "nic",
            "drive",
        ],
    ),
];

/// Reads the sources and returns what it found, or every arrow between rooms that is not in the table.
pub fn check(root: &Path) -> Result<String, String> {
    let source = root.join("crates/hca/src");
    let mut files = Vec::new();
    list(&source, &mut files)?;
    let mut wrong = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let inside = file.strip_prefix(&source).unwrap_or(file);
        wrong.extend(forbidden(inside, &text));
    }
    if wrong.is_empty() {
        Ok(format!("{} rooms of the NIC in {} files", ROOMS.len(), files.len()))
    } else {
        Err(wrong.join("\n"))
    }
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The arrows of one file, named as below the sources, that are not in the table.
fn forbidden(file: &Path, text: &str) -> Vec<String> {
    let room = file.iter().next().and_then(|first| first.to_str()).unwrap_or_default().trim_end_matches(".rs");
    let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
        return vec![format!(
            "{}: {room} is no room of the table (xtask/src/rooms.rs); say what it may use",
            file.display()
        )];
    };
    // Tests come last in a file.
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let used = lines.flat_map(|line| line.split("crate::").skip(1)).map(|rest| {
        rest.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_').next().unwrap_or_default()
    });
    let mut wrong: Vec<String> = used
        .filter(|name| !name.is_empty() && *name != room && !allowed.contains(name) && room != "lib")
        .map(|name| format!("{}: {room} may not use {name} (xtask/src/rooms.rs)", file.display()))
        .collect();
    wrong.dedup();
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_uses_what_the_table_says_and_nothing_else() {
        let file = Path::new("links/udp.rs");
        assert!(forbidden(file, "use crate::tuning::SEND_SOCKETS;\nuse crate::links::path::Path;").is_empty());
        assert_eq!(forbidden(file, "use crate::nic::Nic;").len(), 1);
        assert_eq!(forbidden(file, "let now = crate::ground::now();").len(), 1);
        assert!(forbidden(file, "// crate::nic is told\n#[cfg(test)]\nmod tests { use crate::nic::Nic; }").is_empty());
        assert_eq!(forbidden(Path::new("attic.rs"), "").len(), 1, "not in the table");
    }

    #[test]
    fn the_table_has_no_circle_but_the_one_it_names() {
        let order: Vec<_> = ROOMS.iter().map(|(name, _)| *name).collect();
        let place = |room: &str| order.iter().position(|name| *name == room).unwrap();
        let back = |(room, allowed): &(&str, &[&str])| {
            allowed
                .iter()
                .filter(|other| place(other) >= place(room))
                .map(|other| format!("{room} {other}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(ROOMS.iter().flat_map(back).collect::<Vec<_>>(), ["cm nic"]);
    }
}
