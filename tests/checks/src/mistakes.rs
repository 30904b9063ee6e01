//! Programs of beginners, `examples/mistakes`, and what they are told: the page `docs/mistakes.md` is made of their
//! output, and is compared with it. `UBIVERBS_WRITE_MISTAKES=1` writes the page anew.

use crate::parallel;
use crate::programs::TIME_LIMIT_SECONDS;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The programs, in the order of the page.
const PROGRAMS: [&str; 16] = [
    "wrong_rkey",
    "no_remote_write",
    "no_receive",
    "left_in_init",
    "wrong_qkey",
    "past_the_region",
    "small_cq",
    "wrong_qpn",
    "wrong_psn",
    "wrong_mtu",
    "freed_mr",
    "nothing_signaled",
    "long_inline",
    "no_rd_atomic",
    "other_pd",
    "wrong_cq",
];

const BEGINNING: &str = "\
# Beginners' mistakes

Sixteen programs with one mistake each, and what `ubiverbs run --why --check` says. The programs are in
[examples/mistakes](../examples/mistakes); this page is made of their output, and a test keeps it true. First comes what
the program itself prints, then what ubiverbs adds on standard error, without time, process and thread. Addresses, keys and
numbers of queue pairs differ from run to run; here they are replaced, equal ones by equal ones; the summary is without
them.
";

/// How often a program is run before it counts as told something else: a packet more or less may be dropped on the way.
const TRIES_MAX: usize = 20;

/// How often it is run to find out what it is told in most runs.
const RUNS: usize = 6;

/// Runs all of them and compares; answers what differs.
pub fn check(libraries: &Path) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("docs/mistakes.md");
    if std::env::var_os("UBIVERBS_WRITE_MISTAKES").is_some() {
        let sections: Result<String, String> =
            parallel::each(&PROGRAMS, |name| usual_section(libraries, &root, name)).into_iter().collect();
        return fs::write(&path, BEGINNING.to_owned() + &sections?)
            .map_err(|e| format!("cannot write {}: {e}", path.display()));
    }
    let page = fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let sections = parallel::each(&PROGRAMS, |name| section_of_page(libraries, &root, name, &page));
    let lengths: Result<Vec<usize>, String> = sections.into_iter().map(|said| said.map(|said| said.len())).collect();
    if page.starts_with(BEGINNING) && page.len() == BEGINNING.len() + lengths?.iter().sum::<usize>() {
        return Ok(());
    }
    Err(format!("docs/mistakes.md has more than what programs are told\n{HOW}"))
}

/// What the page says of one program, if it is told that.
fn section_of_page(libraries: &Path, root: &Path, name: &str, page: &str) -> Result<String, String> {
    let program = compile(libraries, root, name)?;
    let mut last = String::new();
    for tries in 1..=TRIES_MAX {
        let said = section(libraries, root, name, &program)?;
        if page.contains(&said) {
            if tries > 1 {
                println!("  {name} was told what the page says in run {tries}");
            }
            return Ok(said);
        }
        last = said;
    }
    Err(format!("docs/mistakes.md does not have what {name} is told:\n{last}\n{HOW}"))
}

const HOW: &str = "UBIVERBS_WRITE_MISTAKES=1 cargo xtask checks mistakes: writes the page anew";

/// What a program is told in most runs.
fn usual_section(libraries: &Path, root: &Path, name: &str) -> Result<String, String> {
    let program = compile(libraries, root, name)?;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..RUNS {
        *counts.entry(section(libraries, root, name, &program)?).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(said, _)| said).ok_or_else(|| "nothing was run".to_owned())
}

/// What the page says of one program.
fn section(libraries: &Path, root: &Path, name: &str, program: &Path) -> Result<String, String> {
    let source = source(root, name);
    let text = fs::read_to_string(&source).map_err(|e| format!("cannot read {}: {e}", source.display()))?;
    let about = text.lines().next().unwrap_or("").trim_start_matches("/* ").trim_end_matches(" */");
    let mistake: Vec<&str> = text.lines().filter(|line| line.contains("MISTAKE")).map(str::trim).collect();
    let output = Command::new("timeout")
        .args(["--kill-after=2", &TIME_LIMIT_SECONDS.to_string()])
        .arg(program)
        .env("LD_LIBRARY_PATH", libraries)
        .env("UBIVERBS_DEVICE", "ubi_lo")
        .env("UBIVERBS_WHY", "text")
        .env("UBIVERBS_CHECK", "text")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("timeout: {e}"))?;
    if !output.status.success() {
        return Err(format!("{name} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let said = Plain::new(&text).all(&said);
    let title = name.replace('_', " ");
    Ok(format!(
        "\n## {}{}\n\n{about}\n\n```c\n{}\n```\n\n```text\n{}\n```\n",
        title[..1].to_uppercase(),
        &title[1..],
        mistake.join("\n"),
        said.trim_end()
    ))
}

fn source(root: &Path, name: &str) -> PathBuf {
    root.join("examples/mistakes").join(format!("{name}.c"))
}

fn compile(libraries: &Path, root: &Path, name: &str) -> Result<PathBuf, String> {
    let source = source(root, name);
    let place = libraries.with_file_name("check-programs");
    fs::create_dir_all(&place).map_err(|e| format!("cannot make {}: {e}", place.display()))?;
    let program = place.join(format!("mistake-{name}"));
    let status = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-O1", "-o"])
        .arg(&program)
        .arg(&source)
        .arg("-L")
        .arg(libraries)
        .arg("-libverbs")
        .status()
        .map_err(|e| format!("cc is missing ({e}): apt-get install gcc"))?;
    if status.success() { Ok(program) } else { Err(format!("{} does not compile", source.display())) }
}

/// Replaces what differs from run to run.
struct Plain<'a> {
    source: &'a str,
    replaced: BTreeMap<String, String>,
    addresses: usize,
    pairs: usize,
    keys: usize,
}

impl Plain<'_> {
    fn new(source: &str) -> Plain<'_> {
        Plain { source, replaced: BTreeMap::new(), addresses: 0, pairs: 0, keys: 0 }
    }

    fn all(&mut self, text: &str) -> String {
        by_rule(text).iter().map(|line| self.line(line) + "\n").collect()
    }

    /// Without the stamp; with other numbers.
    fn line(&mut self, line: &str) -> String {
        let line = match line.strip_prefix("ubiverbs: 2") {
            Some(rest) => format!("ubiverbs: {}", rest.splitn(3, ' ').nth(2).unwrap_or("")),
            None => line.to_owned(),
        };
        let mut plain = String::new();
        let mut rest = line.as_str();
        while let Some(at) = rest.find("0x") {
            let (before, number) = rest.split_at(at);
            let digits = number[2..].find(|c: char| !c.is_ascii_hexdigit()).map_or(number.len(), |end| end + 2);
            plain.push_str(before);
            plain.push_str(&self.number(&number[..digits], before.ends_with("QP ")));
            rest = &number[digits..];
        }
        plain.push_str(rest);
        without_subjects(&without_times(&plain))
    }

    fn number(&mut self, number: &str, is_pair: bool) -> String {
        if self.source.contains(number) || number == "0x11111111" {
            return number.to_owned();
        }
        if let Some(known) = self.replaced.get(number) {
            return known.clone();
        }
        let short = match number.len() - 2 {
            _ if is_pair => {
                self.pairs += 1;
                format!("{:#x}", 0x10 + self.pairs)
            }
            9.. => {
                self.addresses += 1;
                format!("{:#x}", 0x7f00_0000_0000 + 0x1_0000 * self.addresses)
            }
            _ => {
                self.keys += 1;
                format!("{:#x}", 0x1000 + self.keys)
            }
        };
        self.replaced.insert(number.to_owned(), short.clone());
        short
    }
}

/// The lines, findings in the order of their rules: which of two threads is heard first differs from run to run.
fn by_rule(text: &str) -> Vec<&str> {
    let mut findings: Vec<Vec<&str>> = vec![Vec::new()];
    for line in text.lines() {
        match findings.last_mut() {
            Some(finding) if !line.starts_with("ubiverbs: ") => finding.push(line),
            _ => findings.push(vec![line]),
        }
    }
    // What the program says comes first, the summary, which has no rule in its first line, last.
    let rule = |finding: &Vec<&str>| {
        let first = finding.first().copied().unwrap_or("");
        let is_ours = first.starts_with("ubiverbs: ");
        (is_ours, first.rsplit_once("[UV-").map_or("~", |(_, rule)| rule).to_owned())
    };
    findings.sort_by_key(rule);
    findings.concat()
}

/// How long something took depends on the machine.
fn without_times(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let is_unit = |word: Option<&&str>| {
        word.is_some_and(|word| ["ns", "us", "ms", "s"].contains(&word.trim_end_matches([',', '.', ';', ':'])))
    };
    let plain = words.iter().enumerate().map(|(index, word)| {
        let is_number = !word.is_empty() && word.chars().all(|c| c.is_ascii_digit() || c == '.');
        if is_number && is_unit(words.get(index + 1)) { "…" } else { word }
    });
    plain.collect::<Vec<_>>().join(" ")
}

/// A line of the summary names subjects by their numbers, and of two ends the one with the smaller number, which may be
/// either. How often a rule of speed is met depends on the machine.
fn without_subjects(line: &str) -> String {
    let found = [" times (", ", once ("].iter().find_map(|words| line.split_once(words).map(|parts| (words, parts)));
    match found.and_then(|(words, (before, rest))| Some((words, before, rest.split_once("): ")?.1))) {
        Some((_, before, behind)) if before.starts_with("  performance ") => {
            format!("{}, … times: {behind}", before.split(',').next().unwrap_or(before))
        }
        Some((words, before, behind)) if line.starts_with("  ") => format!("{before}{words}…): {behind}"),
        _ => line.to_owned(),
    }
}
