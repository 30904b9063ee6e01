//! What the sources of all crates must do wherever they do a thing at all.
#![allow(missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};

/// Where text of others comes in.
const FOREIGN: [&str; 3] = ["/comm\"", "/cmdline\"", "from_utf8_lossy("];

/// Where it goes no further, or is shown in another way: the file, and why.
const SHOWN_OTHERWISE: &[(&str, &str)] = &[
    ("capi/src/nccl_profiler.rs", "NCCL's own words, data of a recording"),
    ("capi/src/preload/config.rs", "a file of root's, which is obeyed and not shown"),
    ("cli/src/demo/alice.rs", "shown with {:?}"),
    ("cli/src/second_side/bob.rs", "shown with {:?}"),
    ("cli/src/greeting.rs", "compared; shown with {:?}"),
    ("cli/src/run/findings.rs", "the program's own findings, written as JSON or XML"),
    ("cli/src/torture/processes.rs", "names are escaped where they are read; the rest is compared"),
    ("cli/src/torture/report.rs", "shown by trace::printable, line by line"),
    ("cluster/src/verdict.rs", "leaves control characters out"),
    ("hca/src/environment/scripts.rs", "compared with names in scripts"),
    ("cli/src/matrix.rs", "escaped line by line"),
    ("hca/src/record/recording.rs", "of this process itself, into its own file"),
    ("host/src/memory_faults.rs", "a test's"),
    ("host/src/names.rs", "searched for names of ours"),
    ("netlink/src/requests.rs", "compared with names of devices"),
    ("recording/src/header.rs", "data of a page, where it is text and never markup"),
    ("web/src/page.rs", "base64"),
];

/// Ways to make a file that others may read.
const MAKES_FILES: [&str; 3] = ["File::create(", "fs::write(", ".create(true)"];

/// Where files are made that hold nothing that programs say to each other.
const NO_PAYLOAD: &[(&str, &str)] = &[
    ("cli/src/bench.rs", "figures"),
    ("cli/src/manual.rs", "manual pages"),
    ("cli/src/run/files/tree.rs", "what a device is, in a directory of this user's alone"),
    ("cli/src/run/reach.rs", "a test's"),
    ("hca/src/nic/port_files.rs", "what a port is like, in a directory of this user's alone"),
    ("hca/src/record/appended_file.rs", "for its owner alone"),
    ("hca/src/record/file.rs", "a test's; the one function that makes files is here"),
    ("inventory/src/ended.rs", "for its owner alone"),
    ("inventory/src/seeds.rs", "a test's: seeds of a fuzz target"),
    ("ubiverbs/src/buffer/shared.rs", "an example in its text"),
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// Lines with one of these, whose neighbourhood has no `must`, in files that are no exception. Exceptions that are none
/// are told, too.
fn faults(marks: &[&str], must: &str, exceptions: &[(&str, &str)]) -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a directory");
    let mut files = Vec::new();
    for entry in fs::read_dir(crates).expect("readable").flatten() {
        if entry.path().join("src").is_dir() {
            sources(&entry.path().join("src"), &mut files);
        }
    }
    let mut unused: Vec<&str> = exceptions.iter().map(|(file, _)| *file).collect();
    let mut faults = Vec::new();
    for path in &files {
        let name = path.strip_prefix(crates).expect("below it").to_str().expect("text");
        let text = fs::read_to_string(path).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)))
        {
            let near = &lines[number.saturating_sub(1)..lines.len().min(number + 3)];
            if exceptions.iter().any(|(file, _)| *file == name) {
                unused.retain(|file| *file != name);
            } else if !near.iter().any(|line| line.contains(must)) {
                faults.push(format!("crates/{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    faults.extend(unused.into_iter().map(|file| format!("crates/{file} is no exception any more")));
    faults
}

#[test]
fn what_others_have_named_is_escaped() {
    let faults = faults(&FOREIGN, "printable(", SHOWN_OTHERWISE);
    assert!(faults.is_empty(), "shown as it is, not by trace::printable:\n{}", faults.join("\n"));
}

#[test]
fn files_with_payload_are_made_by_one_function() {
    let faults = faults(&MAKES_FILES, "create_private(", NO_PAYLOAD);
    assert!(faults.is_empty(), "others may read it; hca::create_private makes such files:\n{}", faults.join("\n"));
}
