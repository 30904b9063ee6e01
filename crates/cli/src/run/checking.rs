//! `--why` and `--check`: what the program's library is told, and whether we stay to collect what it finds.

use crate::exit::{Exit, Failure};
use crate::races;
use crate::run::findings::{Run, Spool};
use crate::run::report::{self, Kind};
use crate::run::staying;
use crate::view::source;
use checks::{Settings, Severity};
use clap::{Args, ValueEnum};
use hca::environment;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How findings look on standard error.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Sentences
    Text,
    /// One JSON object per line
    Json,
    /// Nothing: for reports alone
    Silent,
}

/// What `--check` may say.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckWord {
    /// Rules that a process breaks by itself; findings as sentences
    Text,
    /// The same; one JSON object per line
    Json,
    /// The same; nothing on standard error: for reports alone
    Silent,
    /// Races between accesses of the NIC, of all processes of the run; alone: nothing else
    Races,
}

impl CheckWord {
    fn format(self) -> Option<Format> {
        match self {
            CheckWord::Text => Some(Format::Text),
            CheckWord::Json => Some(Format::Json),
            CheckWord::Silent => Some(Format::Silent),
            CheckWord::Races => None,
        }
    }
}

impl Format {
    fn word(self) -> &'static str {
        match self {
            Format::Text => "text",
            Format::Json => "json",
            Format::Silent => "silent",
        }
    }
}

/// Options about findings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Why, and checks")]
pub struct Checking {
    /// Explain on standard error why work, calls and connections fail, each thing once, with a summary at the end
    #[arg(long, value_enum, value_name = "FORMAT", num_args = 0..=1, require_equals = true,
        default_missing_value = "text")]
    why: Option<Format>,
    /// Check the program against the rules of verbs, and tell what it breaks, though it may seem to work
    ///
    /// --check=races looks for accesses of the same memory that nothing orders, by any processes of the run: it records
    /// them, and reads the recordings when the program has ended. --check=text,races does both.
    #[arg(long, value_enum, value_name = "WORDS", num_args = 0..=4, require_equals = true, value_delimiter = ',',
        default_missing_value = "text")]
    check: Vec<CheckWord>,
    /// Write the findings of all processes to a file: .json, .sarif or .xml (JUnit); implies --check
    ///
    /// `-` is standard output, behind what the program writes there; say with --check-format what it is to be.
    #[arg(long, value_name = "FILE")]
    check_report: Option<PathBuf>,
    /// The format of the report, whatever its name is
    #[arg(long, value_enum, value_name = "FORMAT", requires = "check_report")]
    check_format: Option<Kind>,
    /// End with exit code 99 if a process of the run broke a rule whose severity is error; implies --check
    ///
    /// Work that failed counts, too, as --why explains it. Calls that failed count with --why alone: many programs try.
    #[arg(long)]
    check_exit: bool,
    /// Rules that are off, on, or more or less severe: -UV-0201,+memory,UV-0305=error
    ///
    /// Words count in their order, after those of the file. Instead of a number there may be a family (memory, posting,
    /// completions, connections, processes, manager, work, calls, events, races) or `all`: -all,+UV-0201 leaves one rule on.
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true, add = crate::candidates::rules())]
    check_rules: Option<String>,
    /// The file that says which rules are on; ubiverbs-checks.toml of the current directory if none is named
    #[arg(long, value_name = "FILE")]
    check_config: Option<PathBuf>,
}

/// The exit code of `--check-exit`.
const CHECK_EXIT_CODE: i32 = 99;

/// What leaves work alone of all that `--why` explains.
const WORK_ALONE: &str = "-calls,-events";

impl Checking {
    /// Whether there are findings to collect, so that we stay until the program ends.
    pub fn stays(&self) -> bool {
        self.check_report.is_some() || self.check_exit || self.finds_races()
    }

    /// Whether the processes of the run are to be recorded, and looked at together.
    pub fn finds_races(&self) -> bool {
        self.check.contains(&CheckWord::Races)
    }

    /// What the processes are to check by themselves.
    fn check(&self) -> Option<Format> {
        let said = self.check.iter().rev().find_map(|word| word.format());
        let is_meant = || (self.check_report.is_some() || self.check_exit) && !self.finds_races();
        said.or_else(|| is_meant().then_some(self.why.unwrap_or(Format::Text)))
    }

    /// Tells the program's library what is wanted. Returns which rules are on.
    pub fn prepare(&self, command: &mut Command) -> Result<Settings, Failure> {
        let check = self.check();
        // A test that does not look at its completions has failed all the same.
        let counts_work =
            self.check_exit && self.why.is_none() && std::env::var_os(environment::WHY_VARIABLE).is_none();
        let why = if counts_work { check } else { self.why };
        let wanted = [(environment::WHY_VARIABLE, why), (environment::CHECK_VARIABLE, check)];
        if self.check_rules.is_some() && wanted.iter().all(|(_, format)| format.is_none()) && !self.finds_races() {
            let reason = "nothing is checked; add --check or --why".to_owned();
            let text = self.check_rules.clone().unwrap_or_default();
            return Err(Failure::Argument { option: "--check-rules", text, reason });
        }
        let mut settings = Settings {
            explain: why.is_some(),
            validate: check.is_some(),
            races: self.finds_races(),
            ..Settings::default()
        };
        if let Some(path) = self.config(self.finds_races() || wanted.iter().any(|(_, format)| format.is_some())) {
            let path = read(&path, self.check_config.is_some(), &mut settings)?;
            command.env(environment::CHECK_CONFIG, path);
        }
        let narrowed = counts_work.then_some(WORK_ALONE);
        let words = || narrowed.into_iter().chain(self.check_rules.as_deref());
        for words in words() {
            settings.obey_all(words).map_err(|reason| Failure::Argument {
                option: "--check-rules",
                text: words.to_owned(),
                reason,
            })?;
        }
        let words: String = words().map(|words| format!(",{words}")).collect();
        for (name, format) in wanted {
            if let Some(format) = format {
                command.env(name, format!("{}{words}", format.word()));
            }
        }
        // The user may have said no.
        if std::env::var_os(environment::NOTE_FAILURES).is_none() {
            command.env(environment::NOTE_FAILURES, "1");
        }
        if let Some(path) = &self.check_report {
            self.kind(path)?;
            if !is_standard_output(path) {
                super::path_of_file("--check-report", path)?;
            }
        }
        Ok(settings)
    }

    /// The file that says which rules are on, if there is one.
    fn config(&self, is_checked: bool) -> Option<PathBuf> {
        let usual = || Some(PathBuf::from(environment::CONFIG_NAME)).filter(|path| is_checked && path.is_file());
        self.check_config.clone().or_else(usual)
    }

    /// The format of the report.
    fn kind(&self, path: &Path) -> Result<Kind, Failure> {
        self.check_format.or_else(|| Kind::of(path)).ok_or_else(|| Failure::Argument {
            option: "--check-report",
            text: path.display().to_string(),
            reason: match is_standard_output(path) {
                true => "what standard output is to have is not known; add --check-format".into(),
                false => {
                    "its name does not say what it is; end it with .json, .sarif or .xml, or add --check-format".into()
                }
            },
        })
    }

    /// Runs the program, stays until it has ended, writes the report, and ends as the program did. Returns only if that
    /// is not possible.
    ///
    /// `recordings` is where the user wants those of the run.
    pub fn stay(
        &self,
        mut command: Command,
        line: &[OsString],
        settings: Settings,
        recordings: Option<PathBuf>,
    ) -> Result<Exit, Failure> {
        let spool = Spool::make()?;
        command.env(environment::FINDINGS_VARIABLE, spool.path());
        let directory = recordings.clone().unwrap_or_else(|| spool.recordings());
        if self.finds_races() {
            command.env(environment::RECORD_STACKS, "1");
            if recordings.is_none() {
                command.env(environment::RECORD_VARIABLE, &directory);
            }
        }
        let ended = staying::run(&mut command).map_err(|error| super::not_started(command.get_program(), error))?;
        let words: Vec<String> = line.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let mut run = Run::read(&spool, &words, ended, settings.clone());
        if self.finds_races() {
            self.add_races(&directory, &settings, &mut run)?;
        }
        if let Some(path) = &self.check_report {
            let text = report::write(self.kind(path)?, &run);
            if is_standard_output(path) {
                std::io::stdout().write_all(text.as_bytes()).map_err(Failure::Output)?;
            } else {
                let written = hca::create_private(path).and_then(|mut file| file.write_all(text.as_bytes()));
                written.map_err(|source| Failure::Open { path: path.clone(), source })?;
            }
        }
        if let Some(said) = run.summary() {
            anstream::eprintln!("ubiverbs: {said}");
        }
        drop(spool);
        if self.check_exit && run.worst() == Some(Severity::Error) && matches!(ended, staying::Ended::Code(_)) {
            std::process::exit(CHECK_EXIT_CODE);
        }
        staying::end_as(ended)
    }
}

/// Races.
impl Checking {
    /// Finds and tells the races between the processes of the run.
    fn add_races(&self, directory: &Path, settings: &Settings, run: &mut Run) -> Result<(), Failure> {
        // A run in which no process opened a device has no recording.
        let Ok(files) = source::files(&[directory.to_owned()]) else { return Ok(()) };
        let outcome = races::look(&files, settings)?;
        for process in &outcome.processes {
            run.add_process(process.pid, &process.program);
        }
        let format = self.check.iter().rev().find_map(|word| word.format()).unwrap_or(Format::Text);
        for race in &outcome.races {
            match format {
                Format::Text => anstream::eprintln!("ubiverbs: {} {}", race.stamp, race.text()),
                Format::Json => eprintln!("{}", race.json()),
                Format::Silent => {}
            }
            run.add(&race.json());
        }
        if format == Format::Text {
            let notes = outcome.notes.iter().cloned().chain([outcome.summary()]);
            notes.for_each(|note| anstream::eprintln!("ubiverbs: {}", trace::printable(&note)));
        }
        Ok(())
    }
}

/// Whether a report goes to standard output.
fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads the file, and says where it is for the program, which may change its directory.
fn read(path: &Path, is_named: bool, settings: &mut Settings) -> Result<PathBuf, Failure> {
    let option = if is_named { "--check-config" } else { "the file" };
    let wrong = |reason: String| Failure::Argument { option, text: path.display().to_string(), reason };
    let text = environment::read_rules(path).map_err(|error| wrong(error.to_string()))?;
    settings.obey_file(&text).map_err(&wrong)?;
    std::path::absolute(path).map_err(|error| wrong(error.to_string()))
}
