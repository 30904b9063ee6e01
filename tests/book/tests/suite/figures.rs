//! What the documents say about the code, compared with the code: figures with constants, the table of threads with the
//! threads that are started, where `unsafe` is, and which pages there are. When a test fails, change both: the page and
//! what it is about.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A page, the words on it that have the figure, and a file with a line that has it too; `*` stands for any text.
const FIGURES: &[[&str; 4]] = &[
    ["ARCHITECTURE.md", "Datagrams wait 2 s at most", "hca/src/tuning.rs", "const *: Duration = millis(2000);"],
    ["ARCHITECTURE.md", "at most 2^18 queue pairs", "hca/src/nic.rs", "MAX_QP: u32 = 1 << 18;"],
    ["ARCHITECTURE.md", "2^15 work requests in a queue", "hca/src/nic.rs", "MAX_WR: u32 = 1 << 15;"],
    ["ARCHITECTURE.md", "32 pieces in a request", "hca/src/nic.rs", "MAX_SGE: u32 = 32;"],
    ["ARCHITECTURE.md", "1 KiB inline data", "hca/src/nic.rs", "MAX_INLINE: u32 = 1024;"],
    ["ARCHITECTURE.md", "first 4 rings", "link/src/shared/exchange.rs", "const *RINGS: usize = 4;"],
    ["ARCHITECTURE.md", "up to 8 rings (lanes)", "link/src/shared/exchange.rs", "const *LANES*: u32 = 8;"],
    ["ARCHITECTURE.md", "hold 8 trains", "link/src/shared/ring.rs", "const *: usize = (8 * MAX_RECORD_BYTES"],
    ["ARCHITECTURE.md", "further ones 3", "link/src/shared/ring.rs", "const *: usize = (3 * MAX_RECORD_BYTES"],
    ["ARCHITECTURE.md", "After 64 empty polls", "hca/src/tuning.rs", "LEASE_POLLS_MIN: u64 = 64;"],
    ["ARCHITECTURE.md", "50 us", "hca/src/tuning.rs", "POLLER_CHECK_MIN: Duration = micros(50);"],
    ["ARCHITECTURE.md", "to 1 ms", "hca/src/tuning.rs", "POLLER_CHECK_MAX: Duration = millis(1);"],
    ["ARCHITECTURE.md", "the last 256 calls", "latch/src/lib.rs", "const *: u32 = 256;"],
    ["ARCHITECTURE.md", "one latch for up to 16 trains", "hca/src/tuning.rs", "TRAINS_PER_RUN: u32 = 16;"],
    ["ARCHITECTURE.md", "or 2 ms later", "hca/src/tuning.rs", "DISCONNECT_GRACE: Duration = millis(2);"],
    ["ARCHITECTURE.md", "forgotten 50 ms after", "transport/src/rate/dcqcn.rs", "const *: u64 = 50_000_000;"],
    ["ARCHITECTURE.md", "up to 100,000 hosts", "fabric/src/script.rs", "const *HOSTS*: u64 = 100_000;"],
    ["ARCHITECTURE.md", "up to 8, each from the first connection", "host/src/callers.rs", "const *: usize = 8;"],
    ["ARCHITECTURE.md", "up to 8, from the first GPU memory", "memory/src/gpu/copier.rs", "const *: usize = 8;"],
    ["ARCHITECTURE.md", "one per processor, at most 4", "capi/src/preload/pump.rs", "const *THREADS: usize = 4;"],
    ["ARCHITECTURE.md", "for 100 ms after such an end", "ubiverbs/src/cm/deferred.rs", "Duration::from_millis(100);"],
    ["README.md", "up to 100,000 hosts", "fabric/src/script.rs", "const *HOSTS*: u64 = 100_000;"],
    ["README.zh.md", "100,000 台主机", "fabric/src/script.rs", "const *HOSTS*: u64 = 100_000;"],
    ["docs/commands.md", "up to 100,000 hosts", "fabric/src/script.rs", "const *HOSTS*: u64 = 100_000;"],
    ["docs/simulate.md", "2 to 100,000", "fabric/src/script.rs", "const *HOSTS*: u64 = 100_000;"],
    ["docs/topologies.md", "up to 100,000 simulated hosts", "fabric/src/script.rs", "const *HOSTS*: u64 = 100_000;"],
    ["docs/c-library.md", "reads nothing for two seconds", "hca/src/tuning.rs", "const *: Duration = millis(2000);"],
    ["docs/c-library.md", "for a tenth of a second", "hca/src/tuning.rs", "FRAME_WAIT_MAX: Duration = millis(100);"],
    ["docs/c-library.md", "with 4 MiB of others", "hca/src/tuning.rs", "UNRECEIVED_MAX_BYTES: usize = 4 << 20;"],
    ["docs/c-library.md", "64 KiB of stack", "capi/src/stack.rs", "const *: usize = 64;"],
    ["docs/gpu.md", "30000 if it is not set", "memory/src/gpu/copier.rs", "30_000_000_000"],
    ["docs/running.md", "within a quarter of a second", "inventory/src/lib.rs", "Duration::from_millis(250);"],
    ["docs/security.md", "quarter of a second", "inventory/src/lib.rs", "Duration::from_millis(250);"],
    ["docs/security.md", "32,768 objects", "inventory/src/lib.rs", "const *: usize = 1 << 15;"],
    ["docs/security.md", "131,072", "inventory/src/lib.rs", "const *: usize = 1 << 17;"],
    ["docs/security.md", "2,048 such records", "sockets/src/accept.rs", "const *: usize = 2048;"],
    ["docs/security.md", "8 for an address", "sockets/src/accept.rs", "const *: u32 = 8;"],
    [
        "docs/security.md",
        "for 5 seconds, from 8 callers",
        "cli/src/greeting.rs",
        "const *: Duration = Duration::from_secs(5);",
    ],
    ["docs/security.md", "for 5 seconds, from 8 callers", "cli/src/greeting.rs", "const *CALLERS*: usize = 8;"],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether a line has the parts between `*`, in their order.
fn fits(line: &str, pattern: &str) -> bool {
    let rest = pattern.split('*').try_fold(line, |rest, part| rest.split_once(part).map(|(_, after)| after));
    rest.is_some()
}

#[test]
fn what_a_stranger_searches_for_is_in_the_first_file_that_answers() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = page.split("## Where is …").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().filter(|line| line.contains(".rs`")).map(in_backticks).collect();
    assert!(rows.len() >= 10, "{rows:?}");
    for row in rows {
        let files: Vec<&str> = row.iter().copied().filter(|word| word.ends_with(".rs")).collect();
        let word = row[row.len() - files.len() - 1].to_lowercase();
        assert!(files.len() <= 3, "{files:?}");
        for (place, file) in files.iter().enumerate() {
            let text = fs::read_to_string(root().join("crates").join(file)).expect(file).to_lowercase();
            assert!(place > 0 || text.contains(&word), "{file} does not say {word}");
        }
    }
}

/// What stands between backticks.
fn in_backticks(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

#[test]
fn figures_are_those_of_the_code() {
    for [page, words, file, code] in FIGURES {
        let text = read(page).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words), "{page} does not say \"{words}\" any more");
        let file = format!("crates/{file}");
        assert!(read(&file).lines().any(|line| fits(line, code)), "{page} says \"{words}\": {file} has no {code}");
    }
}

#[test]
fn counts_are_those_of_the_files() {
    let status = read("docs/status.md");
    let rules = entries("crates/checks/pages").len();
    assert!(status.contains(&format!("| `checks`: {rules} rules |")), "there are {rules} rules");
    let refused = entries("crates/ubiverbs/tests/promises").iter().filter(|name| name.ends_with(".rs")).count();
    assert!(status.contains(&format!("{refused} programs that must not compile")), "there are {refused} programs");
}

#[test]
fn tables_of_the_status_have_short_cells() {
    for cell in read("docs/status.md").lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('|')) {
        let words = cell.split_whitespace().count();
        assert!(words <= 32, "a cell of {words} words:{cell}");
    }
}

#[test]
fn the_list_of_pages_has_every_page() {
    let list = read("docs/README.md");
    for page in entries("docs").iter().filter(|name| name.ends_with(".md") && *name != "README.md") {
        assert!(list.contains(&format!("]({page})")), "docs/README.md does not list {page}");
    }
}

#[test]
fn the_table_of_threads_has_every_thread() {
    let page = read("ARCHITECTURE.md");
    let table: BTreeSet<&str> = page
        .lines()
        .skip_while(|line| !line.starts_with("| thread | what it does |"))
        .skip(2)
        .map_while(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name))
        .collect();
    let mut started = BTreeSet::new();
    for (file, text) in sources() {
        // The program's own threads end with its command.
        if file.starts_with(root().join("crates/cli")) {
            continue;
        }
        for how in ["spawn(\"", "spawn_and_wait(\"", "start_thread(\"", ".add(\"", ".name(\""] {
            let names =
                text.split(how).skip(1).filter_map(|rest| rest.split_once('"')).map(|(name, _)| name.to_owned());
            started.extend(names.filter(|name| name.starts_with("ubiverbs") || name.starts_with("rsocket")));
        }
    }
    let started: BTreeSet<&str> = started.iter().map(String::as_str).collect();
    assert_eq!(table, started, "the table of ARCHITECTURE.md, and the threads that are started");
}

#[test]
fn unsafe_is_where_contributors_are_told() {
    let page = read("CONTRIBUTING.md");
    let (_, rest) = page.split_once("- `unsafe` lives in ").expect("the rule is there");
    let (list, _) = rest.split_once(": where").expect("the list ends");
    let listed: BTreeSet<String> = list.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let is_unsafe = |text: &str| text.contains("unsafe {") || text.contains("unsafe trait");
    let has = sources().into_iter().filter(|(_, text)| is_unsafe(text)).map(|(file, _)| {
        let inside = file.strip_prefix(root().join("crates")).expect("a crate").to_owned();
        inside.iter().next().expect("a folder").to_string_lossy().into_owned()
    });
    assert_eq!(listed, has.collect::<BTreeSet<_>>());
}

/// The names in a folder.
fn entries(folder: &str) -> Vec<String> {
    let entries = root().join(folder).read_dir().unwrap_or_else(|error| panic!("{folder}: {error}"));
    entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect()
}

/// Every file of Rust in `crates/*/src`, as far as it is no test.
fn sources() -> Vec<(PathBuf, String)> {
    let mut folders: Vec<PathBuf> =
        entries("crates").iter().map(|name| root().join("crates").join(name).join("src")).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().into_iter().flatten() {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).expect("readable");
                found.push((path, text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned()));
            }
        }
    }
    found
}
