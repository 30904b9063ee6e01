//! Reads litmus tests. The format is line by line, one statement each; docs/litmus.md has the table of statements. What
//! is wrong is told with its line and what was expected.

use crate::outcome::{Condition, Left, Outcome, Verdict};
use crate::test::{Cells, Operand, Pair, Posted, Process, Step, Test, What};

/// The longest file that is read, in bytes.
const MAX_FILE_BYTES: usize = 1 << 20;
/// The most processes of a test.
const MAX_PROCESSES: usize = 8;
/// The most cells of a process.
const MAX_CELLS: usize = 512;
/// The most steps of a process.
const MAX_STEPS: usize = 64;

/// What is wrong with a file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    /// A sentence.
    pub what: String,
}

type Parsed<T> = Result<T, String>;

/// Reads the tests of a file.
pub fn parse(text: &str) -> Result<Vec<Test>, ParseError> {
    if text.len() > MAX_FILE_BYTES {
        return Err(ParseError { line: 1, what: format!("the file has over {MAX_FILE_BYTES} bytes") });
    }
    let mut tests: Vec<Test> = Vec::new();
    let mut reader: Option<Reader> = None;
    let mut last = 0;
    for (index, line) in text.lines().enumerate() {
        last = index + 1;
        let at = |what| ParseError { line: index + 1, what };
        let line = line.split('#').next().unwrap_or_default().trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match word {
            "" => {}
            "test" => {
                if let Some(reader) = reader.take() {
                    tests.push(reader.finish()?);
                }
                let name = one_name(rest, "the name of a test").map_err(at)?;
                if tests.iter().any(|test| test.name == name) {
                    return Err(at(format!("there is a test {name} already")));
                }
                reader = Some(Reader::new(name, index + 1));
            }
            word => {
                let Some(reader) = &mut reader else {
                    return Err(at(format!("{word} stands before the first `test NAME`")));
                };
                reader.statement(word, rest, index + 1).map_err(at)?;
            }
        }
    }
    match reader {
        Some(reader) => tests.push(reader.finish()?),
        None => return Err(ParseError { line: last.max(1), what: "there is no `test NAME` in it".into() }),
    }
    Ok(tests)
}

/// A step whose names are not resolved yet: processes that come later may be named.
struct Later {
    process: usize,
    line: usize,
    words: Vec<String>,
}

struct Reader {
    test: Test,
    steps: Vec<Later>,
    outcomes: Vec<(usize, Verdict, String, String)>,
    unreliable: Vec<String>,
}

impl Reader {
    fn new(name: String, line: usize) -> Reader {
        let test = Test {
            name,
            about: String::new(),
            line,
            processes: Vec::new(),
            pairs: Vec::new(),
            registers: Vec::new(),
            signals: Vec::new(),
            outcomes: Vec::new(),
        };
        Reader { test, steps: Vec::new(), outcomes: Vec::new(), unreliable: Vec::new() }
    }

    fn statement(&mut self, word: &str, rest: &str, line: usize) -> Parsed<()> {
        let verdict = match word {
            "allowed" => Some(Verdict::Allowed),
            "weaker" => Some(Verdict::Weaker),
            "forbidden" => Some(Verdict::Forbidden),
            _ => None,
        };
        if let Some(verdict) = verdict {
            let (conditions, why) = rest.split_once("--").ok_or("expected `CONDITIONS -- WHY`")?;
            if why.trim().is_empty() {
                return Err("expected a reason behind `--`".into());
            }
            self.outcomes.push((line, verdict, conditions.trim().to_owned(), why.trim().to_owned()));
            return Ok(());
        }
        if !self.outcomes.is_empty() {
            return Err(format!("{word} stands behind the outcomes; expected `test`, or another outcome"));
        }
        match word {
            "about" => self.test.about = rest.to_owned(),
            "pair" => {
                let [label, kind] = words(rest)[..] else { return Err("expected `pair LABEL uc`".into()) };
                match kind {
                    "uc" => self.unreliable.push(label.to_owned()),
                    "rc" => {}
                    kind => return Err(format!("{kind} is no kind of queue pair; there are rc and uc")),
                }
            }
            "process" => {
                let name = one_name(rest, "the name of a process")?;
                if self.test.processes.iter().any(|process| process.name == name) {
                    return Err(format!("there is a process {name} already"));
                }
                if self.test.processes.len() == MAX_PROCESSES {
                    return Err(format!("a test has {MAX_PROCESSES} processes at most"));
                }
                self.test.processes.push(Process { name, ..Process::default() });
            }
            "memory" => self.memory(rest)?,
            word => {
                let process = self.test.processes.len().checked_sub(1);
                let process = process.ok_or_else(|| format!("{word} stands before the first `process NAME`"))?;
                let words = [word].into_iter().chain(words(rest)).map(str::to_owned).collect();
                self.steps.push(Later { process, line, words });
            }
        }
        Ok(())
    }

    fn memory(&mut self, rest: &str) -> Parsed<()> {
        let process = self.test.processes.last_mut().ok_or("memory stands before the first `process NAME`")?;
        for cell in rest.split(',') {
            let (name, value) = match cell.split_once('=') {
                Some((name, value)) => (name.trim(), number(value.trim())?),
                None => (cell.trim(), 0),
            };
            let name = one_name(name, "the name of a cell, as in `memory x = 1, y`")?;
            if process.cells.iter().any(|(other, _)| *other == name) {
                return Err(format!("{} has a cell {name} already", process.name));
            }
            if process.cells.len() == MAX_CELLS {
                return Err(format!("a process has {MAX_CELLS} cells at most"));
            }
            process.cells.push((name, value));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Test, ParseError> {
        for later in std::mem::take(&mut self.steps) {
            let at = |what| ParseError { line: later.line, what };
            let step = self.step(later.process, &later.words).map_err(at)?;
            let steps = &mut self.test.processes[later.process].steps;
            if steps.len() == MAX_STEPS {
                return Err(at(format!("a process has {MAX_STEPS} steps at most")));
            }
            steps.push(step);
        }
        for (line, verdict, conditions, why) in std::mem::take(&mut self.outcomes) {
            let conditions = words(&conditions).into_iter().map(|condition| self.condition(condition));
            let conditions = conditions.collect::<Parsed<Vec<_>>>().map_err(|what| ParseError { line, what })?;
            if conditions.is_empty() {
                let what = "expected conditions, as in `r0=1 B.x=0`".to_owned();
                return Err(ParseError { line, what });
            }
            self.test.outcomes.push(Outcome { line, verdict, conditions, why });
        }
        let line = self.test.line;
        let bad = |what: &str| Err(ParseError { line, what: format!("test {} {what}", self.test.name) });
        if self.test.processes.is_empty() {
            return bad("has no process");
        }
        if !self.test.outcomes.iter().any(|outcome| outcome.verdict != Verdict::Forbidden) {
            return bad("allows nothing");
        }
        Ok(self.test)
    }

    fn step(&mut self, process: usize, words: &[String]) -> Parsed<Step> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Ok(match words[..] {
            ["store", cell, value] => Step::Store(self.cell(process, cell)?, self.operand(value)?),
            ["load", cell, "->", register] => {
                let cell = self.cell(process, cell)?;
                Step::Load(cell, self.new_register(register)?)
            }
            ["fence"] => Step::Fence,
            ["wait", handle] => Step::Wait(self.known_handle(process, handle)?),
            ["poll", handle, "->", register] => {
                let handle = self.known_handle(process, handle)?;
                Step::Poll(handle, self.new_register(register)?)
            }
            ["spin", cell, value] => Step::Spin(self.cell(process, cell)?, number(value)?),
            ["signal", name] => Step::Signal(named(&mut self.test.signals, name)?),
            ["await", name] => Step::Await(named(&mut self.test.signals, name)?),
            ["receive", cells, "from", peer, ref rest @ ..] => {
                let cells = self.cells(process, cells)?;
                let peer = self.process(peer)?;
                let rest = self.details(process, rest)?;
                if rest.fenced || rest.inline || rest.unsignaled || rest.immediate.is_some() {
                    return Err("a receive has `on LABEL` and `as NAME` only".into());
                }
                Step::Receive { pair: self.pair(process, peer, &rest.label)?, cells, handle: rest.handle }
            }
            ["send", cells, "->", peer, ref rest @ ..] => {
                let local = self.cells(process, cells)?;
                let peer = self.process(peer)?;
                self.post(process, peer, What::Send, Some(local), None, rest)?
            }
            ["write", cells, "->", remote, ref rest @ ..] => {
                let local = self.cells(process, cells)?;
                let (peer, remote) = self.remote(remote, local.count)?;
                self.post(process, peer, What::Write, Some(local), Some(remote), rest)?
            }
            ["read", remote, "->", cells, ref rest @ ..] => {
                let local = self.cells(process, cells)?;
                let (peer, remote) = self.remote(remote, local.count)?;
                self.post(process, peer, What::Read, Some(local), Some(remote), rest)?
            }
            ["fetch-add", remote, value, "->", cell, ref rest @ ..] => {
                let local = self.cells(process, cell)?;
                let (peer, remote) = self.remote(remote, 1)?;
                self.post(process, peer, What::FetchAdd(number(value)?), Some(local), Some(remote), rest)?
            }
            ["compare-swap", remote, compare, swap, "->", cell, ref rest @ ..] => {
                let local = self.cells(process, cell)?;
                let (peer, remote) = self.remote(remote, 1)?;
                let what = What::CompareSwap(number(compare)?, number(swap)?);
                self.post(process, peer, what, Some(local), Some(remote), rest)?
            }
            ["atomic-write", cell, "->", remote, ref rest @ ..] => {
                let local = self.cells(process, cell)?;
                let (peer, remote) = self.remote(remote, 1)?;
                self.post(process, peer, What::AtomicWrite, Some(local), Some(remote), rest)?
            }
            ["flush", remote, ref rest @ ..] => {
                let (peer, remote) = self.remote(remote, 1)?;
                self.post(process, peer, What::Flush, None, Some(remote), rest)?
            }
            [word, ..] => return Err(format!("{}; expected {}", not_understood(&words), forms(word))),
            [] => return Err("expected a statement".into()),
        })
    }

    fn post(
        &mut self,
        process: usize,
        peer: usize,
        what: What,
        local: Option<Cells>,
        remote: Option<usize>,
        rest: &[&str],
    ) -> Parsed<Step> {
        let details = self.details(process, rest)?;
        let pair = self.pair(process, peer, &details.label)?;
        let what = match (what, details.immediate) {
            (What::Write, Some(value)) => What::WriteImmediate(value),
            (what, None) => what,
            _ => return Err("only a write has immediate data here".into()),
        };
        if self.test.pairs[pair].unreliable && !matches!(what, What::Send | What::Write | What::WriteImmediate(_)) {
            return Err("an unreliable connection has send and write only".into());
        }
        if matches!(what, What::FetchAdd(_) | What::CompareSwap(..) | What::AtomicWrite)
            && local.is_some_and(|cells| cells.count != 1)
        {
            return Err("an atomic operation has one cell".into());
        }
        let sends = matches!(what, What::Send | What::Write | What::WriteImmediate(_));
        if details.inline && !sends {
            return Err("only send and write may be inline".into());
        }
        let Details { handle, fenced, inline, unsignaled, .. } = details;
        Ok(Step::Post(Posted { pair, what, local, remote, handle, fenced, inline, unsignaled }))
    }

    fn details(&mut self, process: usize, words: &[&str]) -> Parsed<Details> {
        let mut details = Details { label: "1".into(), ..Details::default() };
        let mut name = None;
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            let mut next = |what: &str| words.next().ok_or_else(|| format!("expected {what} behind `{word}`"));
            match word {
                "on" => details.label = next("the label of a connection")?.to_owned(),
                "as" => name = Some(one_name(next("a name")?, "a name")?),
                "imm" => {
                    let value = number(next("a number")?)?;
                    let value = u32::try_from(value).map_err(|_| "immediate data has 32 bits".to_owned())?;
                    details.immediate = Some(value);
                }
                "fenced" => details.fenced = true,
                "inline" => details.inline = true,
                "unsignaled" => details.unsignaled = true,
                word => {
                    return Err(format!(
                        "{word} is not understood; expected on, as, imm, fenced, inline or unsignaled"
                    ));
                }
            }
        }
        let handles = &mut self.test.processes[process].handles;
        let name = name.unwrap_or_else(|| format!("({})", handles.len() + 1));
        if handles.contains(&name) {
            return Err(format!("{name} is the name of earlier work already"));
        }
        handles.push(name);
        details.handle = handles.len() - 1;
        Ok(details)
    }

    fn pair(&mut self, process: usize, peer: usize, label: &str) -> Parsed<usize> {
        if process == peer {
            return Err("a process has no connection with itself here; expected another process".into());
        }
        let ends = [process.min(peer), process.max(peer)];
        let pairs = &mut self.test.pairs;
        if let Some(index) = pairs.iter().position(|pair| pair.ends == ends && pair.label == label) {
            return Ok(index);
        }
        let unreliable = self.unreliable.iter().any(|other| other == label);
        pairs.push(Pair { ends, label: label.to_owned(), unreliable });
        Ok(pairs.len() - 1)
    }

    fn process(&self, name: &str) -> Parsed<usize> {
        let found = self.test.processes.iter().position(|process| process.name == name);
        found.ok_or_else(|| {
            let names: Vec<_> = self.test.processes.iter().map(|process| process.name.as_str()).collect();
            format!("there is no process {name}; there are {}", names.join(", "))
        })
    }

    fn cell(&self, process: usize, name: &str) -> Parsed<usize> {
        let process = &self.test.processes[process];
        let found = process.cells.iter().position(|(cell, _)| cell == name);
        found.ok_or_else(|| {
            let names: Vec<_> = process.cells.iter().map(|(name, _)| name.as_str()).collect();
            match names.is_empty() {
                true => format!("{} has no memory; expected `memory {name}` in it", process.name),
                false => format!("{} has no cell {name}; it has {}", process.name, names.join(", ")),
            }
        })
    }

    /// `x`, or `x..z`.
    fn cells(&self, process: usize, text: &str) -> Parsed<Cells> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let (first, last) = (self.cell(process, first)?, self.cell(process, last)?);
        match last.checked_sub(first) {
            Some(more) => Ok(Cells { first, count: more + 1 }),
            None => Err(format!("{text} ends before it begins")),
        }
    }

    /// `B.x`, with room for so many cells.
    fn remote(&self, text: &str, count: usize) -> Parsed<(usize, usize)> {
        let (process, cell) =
            text.split_once('.').ok_or_else(|| format!("{text} is no cell of another process, as in `B.x`"))?;
        let process = self.process(process)?;
        let cell = self.cell(process, cell)?;
        match cell + count <= self.test.processes[process].cells.len() {
            true => Ok((process, cell)),
            false => Err(format!("{text} and what follows it are fewer than {count} cells")),
        }
    }

    fn known_handle(&self, process: usize, name: &str) -> Parsed<usize> {
        let process = &self.test.processes[process];
        let found = process.handles.iter().position(|handle| handle == name);
        found.ok_or_else(|| format!("{} has posted nothing before that is named {name} (`as {name}`)", process.name))
    }

    fn new_register(&mut self, name: &str) -> Parsed<usize> {
        named(&mut self.test.registers, name)
    }

    fn register(&self, name: &str) -> Parsed<usize> {
        let found = self.test.registers.iter().position(|register| register == name);
        found.ok_or_else(|| match self.test.registers.is_empty() {
            true => format!("there is no register {name}; a load or a poll makes one"),
            false => format!("there is no register {name}; there are {}", self.test.registers.join(", ")),
        })
    }

    fn operand(&self, text: &str) -> Parsed<Operand> {
        match number(text) {
            Ok(value) => Ok(Operand::Value(value)),
            Err(_) => self.register(text).map(Operand::Register),
        }
    }

    fn condition(&self, text: &str) -> Parsed<Condition> {
        let (left, value) = text.split_once('=').ok_or_else(|| format!("{text} is no condition, as in r0=1"))?;
        let (left, equal) = match left.strip_suffix('!') {
            Some(left) => (left, false),
            None => (left, true),
        };
        let left = match left.split_once('.') {
            Some(_) => {
                let (process, cell) = self.remote(left, 1)?;
                Left::Memory(process, cell)
            }
            None => Left::Register(self.register(left)?),
        };
        Ok(Condition { left, value: number(value)?, equal })
    }
}

#[derive(Default)]
struct Details {
    label: String,
    handle: usize,
    immediate: Option<u32>,
    fenced: bool,
    inline: bool,
    unsignaled: bool,
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn named(names: &mut Vec<String>, name: &str) -> Parsed<usize> {
    let name = one_name(name, "a name")?;
    Ok(names.iter().position(|other| *other == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    }))
}

/// A word of letters, digits and a few signs that begins with a letter.
fn one_name(text: &str, what: &str) -> Parsed<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-+".contains(c);
    match text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(fits) {
        true => Ok(text.to_owned()),
        false if text.is_empty() => Err(format!("expected {what}")),
        false => Err(format!("{text} is no name; expected {what}: a letter, then letters, digits, - + or _")),
    }
}

fn number(text: &str) -> Parsed<u64> {
    let parsed = match (text.strip_prefix("0x"), text.strip_prefix('-')) {
        (Some(digits), _) => u64::from_str_radix(digits, 16).ok(),
        (None, Some(_)) => text.parse::<i64>().ok().map(|value| value as u64),
        (None, None) => text.parse().ok(),
    };
    parsed.ok_or_else(|| format!("{text} is no number of 64 bits"))
}

fn not_understood(words: &[&str]) -> String {
    format!("`{}` is not understood", words.join(" "))
}

/// How the statement of this word is written.
fn forms(word: &str) -> &'static str {
    match word {
        "store" => "`store CELL VALUE`",
        "load" => "`load CELL -> REGISTER`",
        "wait" => "`wait NAME`",
        "poll" => "`poll NAME -> REGISTER`",
        "spin" => "`spin CELL VALUE`",
        "signal" => "`signal NAME`",
        "await" => "`await NAME`",
        "receive" => "`receive CELLS from PROCESS`",
        "send" => "`send CELLS -> PROCESS`",
        "write" => "`write CELLS -> PROCESS.CELL`",
        "read" => "`read PROCESS.CELL -> CELLS`",
        "fetch-add" => "`fetch-add PROCESS.CELL VALUE -> CELL`",
        "compare-swap" => "`compare-swap PROCESS.CELL COMPARE SWAP -> CELL`",
        "atomic-write" => "`atomic-write CELL -> PROCESS.CELL`",
        "flush" => "`flush PROCESS.CELL`",
        _ => {
            "store, load, fence, write, read, send, receive, fetch-add, compare-swap, atomic-write, flush, wait, poll, \
             spin, signal or await"
        }
    }
}
