//! What a run under a failure script means. A program may fail: what counts is that it says so in time, that it does not
//! crash, that what it wrote without an error is right, and that it leaves nothing behind.

use super::attempt::{Outcome, Stuck};
use super::processes::End;

/// Signals by which a program dies of a mistake of its own.
const CRASH_SIGNALS: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP, libc::SIGSYS];

/// A shell whose last command died of a signal ends with this and the signal's number.
const SHELL_SIGNAL_CODE: i32 = 128;

/// Descriptors beyond those of the healthy run that are no leak yet: connections that were made again have some.
const SPARE_DESCRIPTORS: usize = 4;

/// The most that one process has at once may be so many times the healthy run's, and so many more.
const PEAK_FACTOR: usize = 2;
const PEAK_SPARE: usize = 64;

/// What the user says of the program.
#[derive(Clone, Copy, Default, Debug)]
pub struct Expectations {
    /// It promises to survive: an error of its own is a failure, too.
    pub must_pass: bool,
    /// SIGABRT is how it gives up.
    pub may_abort: bool,
}

/// The result of a run. From `Hang` on the program has failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CaseResult {
    /// The script struck nothing, so nothing was tested.
    Untouched,
    /// It did its work in spite of all.
    Held,
    /// It ended with an error of its own.
    Error,
    /// The script ended it.
    Killed,
    Hang,
    Crash,
    WrongOutput,
    Leak,
    /// It ended with an error, and promised to survive.
    GaveUp,
}

impl CaseResult {
    pub fn name(self) -> &'static str {
        match self {
            CaseResult::Untouched => "untouched",
            CaseResult::Held => "held",
            CaseResult::Error => "error",
            CaseResult::Killed => "killed",
            CaseResult::Hang => "hang",
            CaseResult::Crash => "crash",
            CaseResult::WrongOutput => "wrong",
            CaseResult::Leak => "leak",
            CaseResult::GaveUp => "gave-up",
        }
    }

    /// What it means, for people who read a report.
    pub fn meaning(self) -> &'static str {
        match self {
            CaseResult::Untouched => "the script struck nothing, so nothing was tested",
            CaseResult::Held => "the command did its work",
            CaseResult::Error => "the command ended with an error of its own, in time",
            CaseResult::Killed => "the script ended the command",
            CaseResult::Hang => "the command had not ended when its time was over",
            CaseResult::Crash => "a process died of a signal that no script sent",
            CaseResult::WrongOutput => "the command ended without an error, and what it wrote is wrong",
            CaseResult::Leak => "something was left behind: processes, files of shared memory, or descriptors",
            CaseResult::GaveUp => "the command ended with an error, and was to survive",
        }
    }

    pub fn is_failure(self) -> bool {
        self >= CaseResult::Hang
    }
}

/// A result, and one line about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    pub result: CaseResult,
    pub text: String,
}

/// Why the command cannot be judged at all: it fails without any script.
pub fn unhealthy(healthy: &Outcome, expectations: Expectations) -> Option<String> {
    let verdict = judge(healthy, healthy, expectations);
    let fails = verdict.result.is_failure() || healthy.end != Some(End::Code(0));
    fails.then_some(verdict.text)
}

/// What a run means, compared with one without a script.
pub fn judge(healthy: &Outcome, outcome: &Outcome, expectations: Expectations) -> Verdict {
    let verdict = |result, text: String| Verdict { result, text };
    let is_ours = |process: u32| {
        let killed = |strike: &super::attempt::Strike| strike.process == process && strike.action == "kill";
        outcome.strikes.iter().any(killed)
    };
    let crashes: Vec<String> = outcome
        .signalled
        .iter()
        .filter(|(process, _, signal)| is_crash(*signal, expectations) && !is_ours(*process))
        .map(|(_, name, signal)| format!("{name}: {}", signal_name(*signal)))
        .collect();
    if !crashes.is_empty() {
        return verdict(CaseResult::Crash, crashes.join(", "));
    }
    let kills = outcome.struck().any(|strike| strike.action == "kill");
    let said = super::attempt::last_line(&outcome.errors).or_else(|| super::attempt::last_line(&outcome.output));
    let said = said.map(|line| format!(": {line}")).unwrap_or_default();
    let signal = match outcome.end {
        None => return verdict(CaseResult::Hang, hang(outcome)),
        Some(End::Signal(signal)) => Some(signal),
        Some(End::Code(code)) => {
            Some(code - SHELL_SIGNAL_CODE).filter(|signal| is_crash(*signal, Expectations::default()))
        }
    };
    match signal {
        // The command, or what its shell waited for last, was killed on purpose.
        Some(_) if kills => return verdict(CaseResult::Killed, "ended by the script".into()),
        // Others are how programs end each other: a side that has gone is a broken pipe.
        Some(signal) if is_crash(signal, expectations) || signal == libc::SIGKILL => {
            return verdict(CaseResult::Crash, format!("{}{said}", signal_name(signal)));
        }
        _ => {}
    }
    if let Some(found) = leak(healthy, outcome, kills) {
        return found;
    }
    if let Some(said) = &outcome.check_failed {
        return verdict(CaseResult::WrongOutput, format!("the check says: {said}"));
    }
    let server = match outcome.server_end {
        Some(End::Code(0)) | None => None,
        Some(End::Code(code)) => Some(format!("the server ended with code {code}")),
        Some(End::Signal(signal)) => Some(format!("the server: {}", signal_name(signal))),
    };
    let error = match outcome.end {
        Some(End::Code(0)) => server.map(|server| format!("{server}{said}")),
        Some(End::Code(code)) => Some(format!("exit code {code}{said}")),
        Some(End::Signal(signal)) => Some(format!("{}{said}", signal_name(signal))),
        None => None,
    };
    match error {
        Some(text) if kills => verdict(CaseResult::Killed, text),
        Some(text) if expectations.must_pass => verdict(CaseResult::GaveUp, text),
        Some(text) => verdict(CaseResult::Error, text),
        None if outcome.struck().next().is_none() => {
            let missed = outcome.strikes.iter().find_map(|strike| strike.missed.clone());
            verdict(CaseResult::Untouched, missed.unwrap_or_else(|| CaseResult::Untouched.meaning().into()))
        }
        None => verdict(CaseResult::Held, "exit code 0".into()),
    }
}

fn is_crash(signal: i32, expectations: Expectations) -> bool {
    CRASH_SIGNALS.contains(&signal) && !(signal == libc::SIGABRT && expectations.may_abort)
}

fn hang(outcome: &Outcome) -> String {
    let stuck: Vec<String> = outcome.stuck.iter().map(|Stuck { name, doing }| format!("{name} {doing}")).collect();
    format!("not ended after {}: {}", seconds(outcome.took), stuck.join(", "))
}

/// What was left behind that the healthy run does not leave.
fn leak(healthy: &Outcome, outcome: &Outcome, kills: bool) -> Option<Verdict> {
    let leak = |text: String| Some(Verdict { result: CaseResult::Leak, text });
    if healthy.left.is_empty() && !outcome.left.is_empty() {
        let names = outcome.left.join(", ");
        // A side that waits for ever for the other has not heard of its end.
        return Some(Verdict {
            result: CaseResult::Hang,
            text: format!("the command ended, and left running: {names}"),
        });
    }
    // A process that was killed could not remove its files.
    if healthy.shared_files.is_empty() && !outcome.shared_files.is_empty() && !kills {
        return leak(format!("left in /dev/shm: {}", outcome.shared_files.join(", ")));
    }
    if let (Some(before), Some(now)) = (healthy.server_descriptors, outcome.server_descriptors)
        && now > before + SPARE_DESCRIPTORS
    {
        return leak(format!("the server has {now} descriptors open after its client, {before} in the healthy run"));
    }
    let bound = PEAK_FACTOR * healthy.peak_descriptors + PEAK_SPARE;
    if outcome.peak_descriptors > bound {
        let (peak, usual) = (outcome.peak_descriptors, healthy.peak_descriptors);
        return leak(format!("a process had {peak} descriptors open at once, {usual} in the healthy run"));
    }
    None
}

/// A time for people.
pub fn seconds(time: std::time::Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

pub fn signal_name(signal: i32) -> String {
    const NAMES: [(i32, &str); 13] = [
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGSYS, "SIGSYS"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
    ];
    let name = NAMES.iter().find(|(number, _)| *number == signal).map(|(_, name)| (*name).to_owned());
    format!("died of {}", name.unwrap_or_else(|| format!("signal {signal}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::attempt::Strike;

    fn healthy() -> Outcome {
        Outcome { end: Some(End::Code(0)), peak_descriptors: 20, ..Outcome::default() }
    }

    fn strike(what: &str, process: u32) -> Strike {
        Strike { action: what.into(), what: what.into(), line: 2, process, wall: Some(7), missed: None }
    }

    fn struck() -> Outcome {
        Outcome { strikes: vec![strike("port-down", 7)], ..healthy() }
    }

    fn result(outcome: Outcome) -> CaseResult {
        judge(&healthy(), &outcome, Expectations::default()).result
    }

    #[test]
    fn an_error_in_time_is_no_failure_unless_the_program_was_to_survive() {
        let error = Outcome { end: Some(End::Code(3)), errors: b"x\nit is broken\n\n".to_vec(), ..struck() };
        let verdict = judge(&healthy(), &error, Expectations::default());
        assert_eq!((verdict.result, verdict.text.as_str()), (CaseResult::Error, "exit code 3: it is broken"));
        assert!(!verdict.result.is_failure());
        let strict = Expectations { must_pass: true, ..Expectations::default() };
        assert_eq!(judge(&healthy(), &error, strict).result, CaseResult::GaveUp);
        assert_eq!(judge(&healthy(), &struck(), strict).result, CaseResult::Held);
        assert_eq!(result(healthy()), CaseResult::Untouched);
    }

    #[test]
    fn hangs_crashes_and_wrong_output_are_failures() {
        assert_eq!(result(Outcome { end: None, ..struck() }), CaseResult::Hang);
        assert_eq!(result(Outcome { left: vec!["server".into()], ..struck() }), CaseResult::Hang);
        assert_eq!(result(Outcome { end: Some(End::Signal(libc::SIGSEGV)), ..struck() }), CaseResult::Crash);
        assert_eq!(result(Outcome { end: Some(End::Code(128 + libc::SIGSEGV)), ..struck() }), CaseResult::Crash);
        let inside = Outcome { signalled: vec![(8, "server".into(), libc::SIGBUS)], ..struck() };
        assert_eq!(judge(&healthy(), &inside, Expectations::default()).text, "server: died of SIGBUS");
        assert_eq!(result(Outcome { check_failed: Some("differs".into()), ..struck() }), CaseResult::WrongOutput);
        let server = Outcome { server_end: Some(End::Code(1)), ..struck() };
        assert_eq!(result(server), CaseResult::Error);
    }

    #[test]
    fn a_program_that_dies_by_design_has_not_crashed() {
        let killed = Outcome {
            end: Some(End::Signal(libc::SIGKILL)),
            signalled: vec![(7, "a".into(), libc::SIGKILL)],
            strikes: vec![strike("kill", 7)],
            shared_files: vec!["left".into()],
            ..healthy()
        };
        assert_eq!(result(killed.clone()), CaseResult::Killed);
        // A segmentation fault on purpose, and one of another process that was none.
        let signal = libc::SIGSEGV;
        let on_purpose = Outcome { signalled: vec![(7, "a".into(), signal)], ..killed.clone() };
        assert_eq!(result(on_purpose), CaseResult::Killed);
        assert_eq!(result(Outcome { signalled: vec![(8, "b".into(), signal)], ..killed }), CaseResult::Crash);
        // The peer of a killed process that goes on without an end hangs all the same.
        let peer = Outcome { end: None, strikes: vec![strike("kill", 7)], ..healthy() };
        assert_eq!(result(peer), CaseResult::Hang);
        // A program may end another by SIGTERM, and may give up by SIGABRT where the user says so.
        assert_eq!(result(Outcome { signalled: vec![(8, "b".into(), libc::SIGTERM)], ..struck() }), CaseResult::Held);
        let abort = libc::SIGABRT;
        let aborted = Outcome { end: Some(End::Signal(abort)), signalled: vec![(7, "a".into(), abort)], ..struck() };
        assert_eq!(result(aborted.clone()), CaseResult::Crash);
        assert_eq!(result(Outcome { end: Some(End::Signal(libc::SIGPIPE)), ..struck() }), CaseResult::Error);
        let may = Expectations { may_abort: true, ..Expectations::default() };
        assert_eq!(judge(&healthy(), &aborted, may).result, CaseResult::Error);
    }

    #[test]
    fn what_is_left_is_compared_with_the_healthy_run() {
        let files = Outcome { shared_files: vec!["x".into()], ..struck() };
        assert_eq!(result(files.clone()), CaseResult::Leak);
        let usual = Outcome { shared_files: vec!["y".into()], left: vec!["daemon".into()], ..healthy() };
        let same = Outcome { left: vec!["daemon".into()], ..files };
        assert_eq!(judge(&usual, &same, Expectations::default()).result, CaseResult::Held);
        assert_eq!(result(Outcome { peak_descriptors: 104, ..struck() }), CaseResult::Held);
        assert_eq!(result(Outcome { peak_descriptors: 105, ..struck() }), CaseResult::Leak);
        let server = |descriptors| Outcome { server_descriptors: Some(descriptors), ..struck() };
        assert_eq!(judge(&server(9), &server(13), Expectations::default()).result, CaseResult::Held);
        assert_eq!(judge(&server(9), &server(14), Expectations::default()).result, CaseResult::Leak);
    }

    #[test]
    fn a_command_that_fails_by_itself_cannot_be_judged() {
        assert_eq!(unhealthy(&healthy(), Expectations::default()), None);
        let broken = Outcome { end: Some(End::Code(1)), ..healthy() };
        assert_eq!(unhealthy(&broken, Expectations::default()).as_deref(), Some("exit code 1"));
        assert!(unhealthy(&Outcome { end: None, ..healthy() }, Expectations::default()).is_some());
        let wrong = Outcome { check_failed: Some("no".into()), ..healthy() };
        assert!(unhealthy(&wrong, Expectations::default()).is_some());
    }
}
