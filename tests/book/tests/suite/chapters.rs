//! The chapters of `docs/book` that are examples: each is its file in `crates/ubiverbs/examples`, text and program, so
//! neither can change alone. `UBIVERBS_WRITE_BOOK=1 cargo test -p ubiverbs-book --test suite` writes them anew. Also:
//! the index names every page, and links of all pages of `docs` lead somewhere.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the list of examples begins and ends in the index.
const MARKS: [&str; 2] = ["<!-- examples: made by tests/book -->\n", "<!-- end of examples -->"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn book() -> PathBuf {
    root().join("docs/book")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// An example: its file's name, and what its chapter says.
struct Chapter {
    name: String,
    title: String,
    text: String,
}

impl Chapter {
    fn of(path: &Path) -> Chapter {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let source = read(path);
        let is_text = |line: &&str| line.starts_with("//!");
        let words =
            source.lines().take_while(is_text).map(|line| line.trim_start_matches("//!").trim_start_matches(' '));
        let words: Vec<&str> = words.collect();
        let title = words.first().and_then(|line| line.strip_prefix("# ")).unwrap_or_else(|| {
            panic!("{}: an example begins with `//! # 3. Its title`", path.display());
        });
        let program: Vec<&str> = source.lines().skip_while(is_text).collect();
        let program = program.join("\n");
        let text = format!(
            "<!-- Made from crates/ubiverbs/examples/{name}.rs by tests/book; change that file. -->\n{}\n\n\
             ## The program\n\n[crates/ubiverbs/examples/{name}.rs](../../crates/ubiverbs/examples/{name}.rs), \
             run by the tests of the crate.\n\n```rust\n{}\n```\n\n[Index](README.md)\n",
            words.join("\n").trim_end(),
            program.trim(),
        );
        Chapter { title: title.to_owned(), text, name }
    }

    /// Examples are numbered in their titles.
    fn number(&self) -> u32 {
        self.title.split_once('.').and_then(|(number, _)| number.parse().ok()).unwrap_or(u32::MAX)
    }

    fn path(&self) -> PathBuf {
        book().join(format!("example-{}.md", self.name))
    }
}

fn chapters() -> Vec<Chapter> {
    let folder = root().join("crates/ubiverbs/examples");
    let files = folder.read_dir().expect("the examples are there").map(|entry| entry.expect("readable").path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
    let mut chapters: Vec<Chapter> = files.map(|path| Chapter::of(&path)).collect();
    chapters.sort_by_key(|chapter| (chapter.number(), chapter.name.clone()));
    chapters
}

/// The index with the list of examples that there are.
fn index(old: &str, chapters: &[Chapter]) -> String {
    let [begin, end] = MARKS;
    let (before, rest) = old.split_once(begin).expect("the index has a list of examples");
    let (_, after) = rest.split_once(end).expect("the list of examples ends");
    let line = |chapter: &Chapter| format!("- [{}](example-{}.md)\n", chapter.title, chapter.name);
    let lines: String = chapters.iter().map(line).collect();
    format!("{before}{begin}{lines}{end}{after}")
}

#[test]
fn every_example_is_a_chapter_word_for_word() {
    let (chapters, at) = (chapters(), book().join("README.md"));
    assert!(chapters.len() >= 12, "only {} examples were found", chapters.len());
    let wanted = index(&read(&at), &chapters);
    if std::env::var_os("UBIVERBS_WRITE_BOOK").is_some() {
        fs::write(&at, wanted).expect("the index can be written");
        for chapter in &chapters {
            fs::write(chapter.path(), &chapter.text).expect("a chapter can be written");
        }
        return;
    }
    let hint = "UBIVERBS_WRITE_BOOK=1 cargo test -p ubiverbs-book --test suite writes it anew";
    assert!(read(&at) == wanted, "the index's list of examples is out of date: {hint}");
    for chapter in &chapters {
        assert!(
            chapter.path().is_file() && read(&chapter.path()) == chapter.text,
            "{} is out of date: {hint}",
            chapter.name
        );
    }
}

#[test]
fn the_index_names_every_page() {
    let index = read(&book().join("README.md"));
    for entry in book().read_dir().expect("the book is there") {
        let name = entry.expect("readable").file_name().to_string_lossy().into_owned();
        assert!(name == "README.md" || index.contains(&format!("]({name})")), "the index does not name {name}");
    }
}

#[test]
fn links_lead_somewhere() {
    let folders = [root(), root().join("docs"), book(), root().join("examples"), root().join("examples/c")];
    let mut count = 0;
    for folder in folders {
        for entry in folder.read_dir().expect("the folder is there") {
            let path = entry.expect("readable").path();
            if path.extension().is_none_or(|ending| ending != "md") {
                continue;
            }
            for link in links(&read(&path)) {
                let target = link.split('#').next().unwrap_or_default();
                count += 1;
                let there = target.is_empty() || target.contains("://") || folder.join(target).exists();
                assert!(there, "{}: {link} leads nowhere", path.display());
            }
        }
    }
    assert!(count > 100, "only {count} links were found");
}

/// Every function of the C libraries is on the page for people who come from them, and what it names here exists.
#[test]
fn the_table_from_libibverbs_has_every_call() {
    let page = read(&book().join("from-libibverbs.md"));
    let spans: Vec<&str> = page.split('`').skip(1).step_by(2).collect();
    let mut calls = Vec::new();
    for (table, column) in [("symbols.txt", 2), ("rdmacm.txt", 1)] {
        let text = read(&root().join("crates/capi/link").join(table));
        let rows = text.lines().filter(|line| line.starts_with("IBVERBS_1") || line.starts_with("RDMACM_1"));
        calls.extend(rows.filter_map(|line| line.split_whitespace().nth(column)).map(str::to_owned));
    }
    assert!(calls.len() > 150, "only {} calls were found", calls.len());
    let missing: Vec<&String> = calls.iter().filter(|call| !spans.contains(&call.as_str())).collect();
    assert!(missing.is_empty(), "the page does not name {missing:?}");

    let interface = read(&root().join("crates/ubiverbs/public-api.txt"));
    for name in spans.iter().filter_map(|span| span.split_once("::")) {
        let (of, method) = (name.0, name.1.split('(').next().unwrap_or_default());
        let is_ours = of.starts_with(|c: char| c.is_ascii_uppercase()) || of == "cm" || of == "ubiverbs";
        let named = format!("{of}::{method}");
        assert!(!is_ours || has_name(&interface, &named), "the crate has no {named}");
    }
}

/// Whether a line of the interface has this name, whole.
fn has_name(interface: &str, name: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    interface.match_indices(name).any(|(at, _)| ends(&interface[at + name.len()..]))
}

/// Where the links of a page lead. Programs have none.
fn links(page: &str) -> Vec<String> {
    let (mut found, mut in_program) = (Vec::new(), false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_program = !in_program;
        } else if !in_program {
            let ends = line.match_indices("](").map(|(at, mark)| &line[at + mark.len()..]);
            found.extend(ends.filter_map(|rest| rest.split_once(')')).map(|(link, _)| link.to_owned()));
        }
    }
    found
}
