//! `ubiverbs torture`: runs a command once for each failure script and seed, and tells how it took it: whether it held,
//! said that something is wrong, hung, crashed, wrote what is wrong, or left something behind.

pub mod attempt;
pub mod processes;
mod report;
mod shrink;
pub mod verdict;

use crate::exit::{Exit, Failure};
use crate::nics::NicsOption;
use attempt::{Injected, Limits, Outcome, Plan, Runner, Strike};
use clap::{Args, ValueHint};
use failures::Script;
use failures::library::{DISASTERS, Disaster};
use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use verdict::{Expectations, Verdict, judge, seconds, unhealthy};

/// Run a command under one disaster after the other, and see whether it hangs, crashes, lies or leaks
///
/// The command runs on ubiverbs once without failures, and then once for each failure script and seed. An error of its
/// own is a good answer if it comes in time; `--must-pass` wants more. A failing case is shown with the command that
/// repeats it, and with as small a script as was found.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Options {
    /// Only these disasters, separated by commas; --list names them
    #[arg(long, value_name = "NAMES", value_delimiter = ',', add = crate::candidates::words(failures::library::NAMES))]
    only: Vec<String>,
    /// A failure script of your own, in place of those that come with ubiverbs; as often as needed
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    script: Vec<PathBuf>,
    /// Run each so many times, each time with another seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What is a hang; the default is half a minute more than four times the healthy run
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// A command that fails if the output, on its standard input, is wrong; asked when the exit code is 0
    #[arg(long, value_name = "CMD")]
    check: Option<OsString>,
    /// A command that is started first, and the other one when this waits; it may end by itself or stay
    #[arg(long, value_name = "CMD")]
    server: Option<OsString>,
    /// Count an error of the program as a failure, too
    #[arg(long)]
    must_pass: bool,
    /// Do not count SIGABRT as a crash: the program gives up by it
    #[arg(long)]
    may_abort: bool,
    #[command(flatten)]
    nics: NicsOption,
    /// More options of `ubiverbs run`, in one word: --run='--sockets --link udp'
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    run: Option<String>,
    /// Try so many smaller scripts at most for a case that fails; 0 is none
    #[arg(long, value_name = "N", default_value_t = 12)]
    shrink: u32,
    /// Where output and scripts of cases that fail are kept; the default is a new directory in $TMPDIR or /tmp
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    keep: Option<PathBuf>,
    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,
    /// Write a report as JUnit, one test case for each disaster and seed
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    junit: Option<PathBuf>,
    /// Write a report as SARIF 2.1.0
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    sarif: Option<PathBuf>,
    /// List the disasters that come with ubiverbs
    #[arg(long, exclusive = true)]
    list: bool,
    /// Print the script of one of them
    #[arg(long, value_name = "NAME", exclusive = true, add = crate::candidates::words(failures::library::NAMES))]
    show: Option<String>,
    /// The command and its arguments; a server and its client in one is a shell script of yours, or see --server
    #[arg(required_unless_present_any = ["list", "show"], trailing_var_arg = true, allow_hyphen_values = true,
        value_name = "COMMAND", add = crate::candidates::programs())]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
Examples:
  ubiverbs torture --list
  ubiverbs torture -- ./test.sh
  ubiverbs torture --only flap,nic-gone --seeds 5 -- ./test.sh
  ubiverbs torture --server 'rping -s -C 20 -V' -- rping -c -a 127.0.0.1 -C 20 -V
  ubiverbs torture --check 'grep -q \"all 20 verified\"' --junit torture.xml -- ./test.sh

Exit codes: 0 all held, or ended with an error of their own in time; 1 something failed; 2 the command line was wrong.";

/// What the deadline is unless the user says it: so many times the healthy run, and so much more.
const DEADLINE_FACTOR: u32 = 4;
const DEADLINE_SPARE: Duration = Duration::from_secs(30);

/// A healthy run that takes longer has hung.
const HEALTHY_MAX: Duration = Duration::from_secs(600);

/// So long other processes may outlive the command in the healthy run; longer, and they count as those that stay.
const HEALTHY_OUTLIVE: Duration = Duration::from_secs(2);

/// Processes that stay anyway are not waited for.
const STAYING_OUTLIVE: Duration = Duration::from_millis(500);

/// A case is made smaller for so long, or for three deadlines.
const SHRINK_TIME: Duration = Duration::from_secs(60);

/// A time on the command line, with the units of scripts: `500ms`, `30s`, `2min`; or seconds.
pub fn time(text: &str) -> Result<Duration, String> {
    let (digits, unit) = match text.find(|letter: char| letter.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let scale = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "min" => 60.0,
        _ => return Err("a time like 500ms, 30s or 2min is expected".into()),
    };
    let number: f64 = digits.parse().map_err(|_| "a time like 500ms, 30s or 2min is expected".to_owned())?;
    let time =
        Duration::try_from_secs_f64(number * scale).ok().filter(|time| (1..=86_400_000).contains(&time.as_millis()));
    time.ok_or_else(|| "1ms to a day is possible".into())
}

/// A script that is to strike.
#[derive(Clone, Debug)]
struct Struck {
    /// What `ubiverbs run --script` is told: a name, or a file.
    name: String,
    text: String,
    about: String,
}

/// A run under a script, and what was made of it.
#[derive(Clone, Debug)]
struct Case {
    struck: Struck,
    seed: u64,
    verdict: Verdict,
    outcome: Outcome,
    /// How to see it again.
    repeat: String,
    /// A smaller script that does the same.
    shrunk: Option<String>,
}

/// All of it.
#[derive(Debug)]
struct Torture {
    /// The command, as it was given.
    line: Vec<String>,
    healthy: Outcome,
    deadline: Duration,
    cases: Vec<Case>,
    /// Where the files of failing cases are.
    kept: Option<PathBuf>,
}

/// Runs the command.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    if options.list {
        return list(out);
    }
    if let Some(name) = &options.show {
        let disaster = find(name)?;
        return write!(out, "{}", disaster.text).map(|()| Exit::Ok).map_err(Failure::Output);
    }
    let scripts = scripts(options)?;
    options.nics.apply()?;
    for (option, path) in [("--junit", &options.junit), ("--sarif", &options.sarif)] {
        if let Some(path) = path {
            crate::run::path_of_file(option, path)?;
        }
    }
    let torture = torture(options, scripts, out)?;
    if let Some(path) = &options.junit {
        attempt::write(path, report::junit(&torture).as_bytes())?;
    }
    if let Some(path) = &options.sarif {
        attempt::write(path, report::sarif(&torture).as_bytes())?;
    }
    match options.json {
        true => write!(out, "{}", report::json(&torture)),
        false => report::end(&torture, out),
    }
    .map_err(Failure::Output)?;
    Ok(if torture.cases.iter().any(|case| case.verdict.result.is_failure()) { Exit::Job } else { Exit::Ok })
}

fn list(out: &mut impl Write) -> Result<Exit, Failure> {
    let width = DISASTERS.iter().map(|disaster| disaster.name.len()).max().unwrap_or(0);
    for disaster in DISASTERS {
        writeln!(out, "{:width$}  {}", disaster.name, about(disaster.text)).map_err(Failure::Output)?;
    }
    Ok(Exit::Ok)
}

fn about(text: &str) -> String {
    Script::parse(text).ok().and_then(|script| script.about).unwrap_or_default()
}

fn find(name: &str) -> Result<Disaster, Failure> {
    Disaster::find(name).ok_or_else(|| {
        let near =
            crate::explain::nearest::nearest(name, failures::library::NAMES.iter().map(|name| (*name).to_owned()));
        let meant = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) };
        let reason = format!("no such disaster{meant} `ubiverbs torture --list` names them");
        Failure::Argument { option: "the disaster", text: name.to_owned(), reason }
    })
}

/// The scripts that are to strike.
fn scripts(options: &Options) -> Result<Vec<Struck>, Failure> {
    let of = |disaster: &Disaster| {
        let (name, text) = (disaster.name.to_owned(), disaster.text.to_owned());
        Struck { name, about: about(&text), text }
    };
    let mut scripts = match (options.only.is_empty(), options.script.is_empty()) {
        (true, true) => DISASTERS.iter().map(of).collect(),
        _ => Vec::new(),
    };
    for name in &options.only {
        scripts.push(of(&find(name)?));
    }
    for path in &options.script {
        let shown = trace::printable(&path.display().to_string()).to_string();
        let wrong = |reason: String| Failure::Argument { option: "--script", text: shown.clone(), reason };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let script = Script::parse(&text).map_err(|error| wrong(error.to_string()))?;
        let about = script.about.unwrap_or_default();
        scripts.push(Struck { name: path.display().to_string(), text, about });
    }
    Ok(scripts)
}

/// The directory of this command, which is removed with what is in it.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn torture(options: &Options, scripts: Vec<Struck>, out: &mut impl Write) -> Result<Torture, Failure> {
    let place = Place(crate::run::files::fresh_directory(&std::env::temp_dir())?);
    let words = options.run.iter().flat_map(|words| words.split_whitespace()).map(OsString::from).collect();
    let plan = Plan {
        command: options.command.clone(),
        server: options.server.clone(),
        options: words,
        check: options.check.clone(),
        environment: Vec::new(),
    };
    let runner = Runner { plan: &plan, place: &place.0 };
    let expectations = Expectations { must_pass: options.must_pass, may_abort: options.may_abort };
    let limit = options.timeout.unwrap_or(HEALTHY_MAX);
    let healthy = runner.run(None, &Limits { deadline: limit, outlive: Some(HEALTHY_OUTLIVE) })?;
    if let Some(why) = unhealthy(&healthy, expectations) {
        return Err(Failure::Unhealthy(why));
    }
    let deadline = options.timeout.unwrap_or(healthy.took * DEADLINE_FACTOR + DEADLINE_SPARE);
    let limits = Limits { deadline, outlive: (!healthy.left.is_empty()).then_some(STAYING_OUTLIVE) };
    let line = options.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut torture = Torture { line, healthy, deadline, cases: Vec::new(), kept: None };
    let quiet = options.json;
    if !quiet {
        report::begin(&torture, &scripts, out).map_err(Failure::Output)?;
    }
    let count = scripts.len() * options.seeds as usize;
    for struck in scripts {
        for seed in (0..u64::from(options.seeds)).map(|more| options.seed.wrapping_add(more)) {
            progress(torture.cases.len(), count, &struck.name, seed);
            let outcome = runner.run(Some(Injected { script: &struck.text, seed }), &limits)?;
            let verdict = judge(&torture.healthy, &outcome, expectations);
            let repeat = repeat(options, &struck.name, seed);
            let mut case = Case { struck: struck.clone(), seed, verdict, outcome, repeat, shrunk: None };
            progress_gone();
            if !quiet {
                report::row(&case, out).map_err(Failure::Output)?;
            }
            if case.verdict.result.is_failure() {
                let smaller = Smaller { runner: &runner, limits: &limits, healthy: &torture.healthy, expectations };
                case.shrunk = smaller.of(&case, options.shrink)?;
                let kept = match (&torture.kept, &options.keep) {
                    (Some(kept), _) => kept.clone(),
                    (None, Some(path)) => {
                        let made = std::fs::create_dir_all(path);
                        made.map_err(|source| Failure::Open { path: path.clone(), source })?;
                        path.clone()
                    }
                    (None, None) => crate::run::files::fresh_directory(&std::env::temp_dir())?,
                };
                keep(&mut case, &kept, options)?;
                torture.kept = Some(kept);
            }
            torture.cases.push(case);
        }
    }
    Ok(torture)
}

/// Says on a terminal what is under way.
fn progress(done: usize, count: usize, name: &str, seed: u64) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{} of {count}: {}, seed {seed} ...", done + 1, trace::printable(name));
    }
}

fn progress_gone() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

/// Makes a script smaller.
struct Smaller<'a> {
    runner: &'a Runner<'a>,
    limits: &'a Limits,
    healthy: &'a Outcome,
    expectations: Expectations,
}

impl Smaller<'_> {
    /// A smaller script by which the command fails in the same way, if there is one.
    fn of(&self, case: &Case, tries: u32) -> Result<Option<String>, Failure> {
        let (begun, mut broken) = (Instant::now(), None);
        let time = SHRINK_TIME.max(3 * self.limits.deadline);
        let fails = |text: &str| {
            if begun.elapsed() > time || broken.is_some() {
                return false;
            }
            match self.runner.run(Some(Injected { script: text, seed: case.seed }), self.limits) {
                Ok(outcome) => judge(self.healthy, &outcome, self.expectations).result == case.verdict.result,
                Err(failure) => {
                    broken = Some(failure);
                    false
                }
            }
        };
        let small = shrink::shrink(&case.struck.text, tries, |text| Script::parse(text).is_ok(), fails);
        match broken {
            Some(failure) => Err(failure),
            None => Ok(Some(small).filter(|small| !shrink::is_same(small, &case.struck.text))),
        }
    }
}

/// Keeps what a failing case has written, and its script if that became smaller.
fn keep(case: &mut Case, place: &Path, options: &Options) -> Result<(), Failure> {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' };
    let stem: String = Path::new(&case.struck.name)
        .file_stem()
        .unwrap_or(OsStr::new("script"))
        .to_string_lossy()
        .chars()
        .map(plain)
        .collect();
    let path = |end: &str| place.join(format!("{stem}-{}.{end}", case.seed));
    attempt::write(&path("out"), &case.outcome.output)?;
    attempt::write(&path("err"), &case.outcome.errors)?;
    if let Some(small) = &case.shrunk {
        let path = path("toml");
        attempt::write(&path, small.as_bytes())?;
        case.repeat = repeat(options, &path.display().to_string(), case.seed);
    }
    Ok(())
}

/// The command that repeats a case.
fn repeat(options: &Options, script: &str, seed: u64) -> String {
    let mut words: Vec<OsString> = vec!["ubiverbs".into()];
    let mut add = |more: &[&OsStr]| words.extend(more.iter().map(|word| (*word).to_owned()));
    let seed = OsString::from(seed.to_string());
    let nics = options.nics.word().map(OsString::from);
    match &options.server {
        None => {
            add(&["run".as_ref()]);
            if let Some(nics) = &nics {
                add(&["--nics".as_ref(), nics]);
            }
            options.run.iter().flat_map(|words| words.split_whitespace()).for_each(|word| add(&[word.as_ref()]));
            add(&["--script".as_ref(), script.as_ref(), "--script-seed".as_ref(), &seed]);
        }
        // Two processes have to be started, and to be watched.
        Some(server) => {
            let which = if Disaster::find(script).is_some() { "--only" } else { "--script" };
            add(&["torture".as_ref(), which.as_ref(), script.as_ref(), "--seed".as_ref(), &seed]);
            if let Some(nics) = &nics {
                add(&["--nics".as_ref(), nics]);
            }
            if let Some(run) = &options.run {
                add(&[format!("--run={run}").as_ref()]);
            }
            if let Some(check) = &options.check {
                add(&["--check".as_ref(), check]);
            }
            if let Some(time) = &options.timeout {
                add(&["--timeout".as_ref(), format!("{}ms", time.as_millis()).as_ref()]);
            }
            for (is_said, flag) in [(options.must_pass, "--must-pass"), (options.may_abort, "--may-abort")] {
                if is_said {
                    add(&[flag.as_ref()]);
                }
            }
            add(&["--server".as_ref(), server]);
        }
    }
    add(&["--".as_ref()]);
    words.extend(options.command.iter().cloned());
    words.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,+@%#".contains(letter);
    match !word.is_empty() && word.chars().all(plain) && !word.starts_with('#') {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &[&str]) -> Options {
        Line::try_parse_from([&["torture"], words].concat())
            .map(|line| line.options)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_case_is_repeated_by_one_command() {
        let one = options(&["--nics", "2", "--run=--sockets --link udp", "--", "./a b", "-x", "it's"]);
        assert_eq!(
            repeat(&one, "flap", 3),
            r"ubiverbs run --nics 2 --sockets --link udp --script flap --script-seed 3 -- './a b' -x 'it'\''s'"
        );
        let two = options(&["--server", "rping -s", "--check", "true", "--", "rping", "-c"]);
        assert_eq!(
            repeat(&two, "flap", 3),
            "ubiverbs torture --only flap --seed 3 --check true --server 'rping -s' -- rping -c"
        );
        assert!(repeat(&two, "own.toml", 3).contains(" --script own.toml "));
        // What decides how a case is judged is said again.
        let judged = options(&["--timeout", "15", "--may-abort", "--must-pass", "--server", "s", "--", "c"]);
        assert_eq!(
            repeat(&judged, "flap", 3),
            "ubiverbs torture --only flap --seed 3 --timeout 15000ms --must-pass --may-abort --server s -- c"
        );
    }

    #[test]
    fn times_have_units() {
        for (text, millis) in [("500ms", 500), ("2s", 2000), ("1.5", 1500), ("2min", 120_000)] {
            assert_eq!(time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "0", "-1s", "1h", "nan", "1e30s", "2 days"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_to_strike_is_chosen_by_names_and_files() {
        let all = scripts(&options(&["--", "true"])).unwrap();
        assert_eq!(all.len(), DISASTERS.len());
        let two = scripts(&options(&["--only", "flap,nic-gone", "--", "true"])).unwrap();
        assert_eq!(two.iter().map(|struck| struck.name.as_str()).collect::<Vec<_>>(), ["flap", "nic-gone"]);
        let error = scripts(&options(&["--only", "flop", "--", "true"])).unwrap_err();
        assert!(error.told().contains("did you mean flap?"), "{error}");
        assert!(scripts(&options(&["--script", "/nowhere", "--", "true"])).is_err());
    }
}
