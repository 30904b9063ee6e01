//! What the environment asks of the NIC of a program that cannot be asked otherwise: which devices it shows, and where
//! it writes its packets and its events. What is asked for wrongly is told on standard error and left out; the program
//! runs all the same.

#[cfg(feature = "checks")]
mod checker;

mod profiles;
mod scripts;

#[cfg(feature = "checks")]
pub(crate) use checker::asked;
#[cfg(feature = "checks")]
pub use checker::read_rules;
pub use profiles::profile_of;
pub(crate) use profiles::profiles as all_profiles;
#[cfg(feature = "scripts")]
pub use profiles::read_profiles;
#[cfg(feature = "scripts")]
pub use scripts::read_script;
pub(crate) use scripts::{host_name, process_index, process_names, scripts};

use crate::interfaces::Nics;
use crate::objects::device::Device;
use crate::record::capture::Capture;
use crate::record::file::RecordFile;
use crate::record::log;
#[cfg(feature = "capture")]
use crate::record::recording::Recorder;
#[cfg(feature = "capture")]
pub use crate::record::recording::RecordingPlan;
pub use ::host::environment::variable;
#[cfg(feature = "capture")]
use ::host::standard_error::StandardError;
pub use ::host::standard_error::{say, say_stamped};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The devices that programs may see: names with commas between them. All, if it is not set or empty.
pub const DEVICE_VARIABLE: &str = "UBIVERBS_DEVICE";

/// How many NICs there are in place of the host's interfaces: see [`Nics`].
pub const NICS_VARIABLE: &str = "UBIVERBS_NICS";

/// Which cards the NICs are like: names of profiles, or files, with commas between them, in the order of the NICs. The
/// last holds for all that follow.
pub const NIC_VARIABLE: &str = "UBIVERBS_NIC";

/// The file that every packet is written to, as pcapng.
pub const PCAP_VARIABLE: &str = "UBIVERBS_PCAP";

/// The directory in which every process records what it does, and how much of it is kept: `DIR` or `DIR,ring=64M`.
pub const RECORD_VARIABLE: &str = "UBIVERBS_RECORD";

/// Whether a recording has the stacks of the calls that post work, too.
pub const RECORD_STACKS: &str = "UBIVERBS_RECORD_STACKS";

/// What is logged, and where to: see [`Log`].
pub const LOG_VARIABLE: &str = "UBIVERBS_LOG";

/// How processes of one host reach one another: `udp` for UDP as between hosts (and also inside a process); otherwise
/// through shared memory where they can.
pub const LINK_VARIABLE: &str = "UBIVERBS_LINK";

/// Whether processes of one user move the bytes of WRITEs and READs into and out of each other's memory by themselves,
/// where the kernel lets them: `off` if all goes by packets; `replace-pages` if registered private memory is to be
/// made such that peers can map it.
pub const DIRECT_VARIABLE: &str = "UBIVERBS_DIRECT";

/// Whether congestion notifications slow senders down: `off` if not; otherwise they do.
pub const DCQCN_VARIABLE: &str = "UBIVERBS_DCQCN";

/// What becomes of reliable queue pairs whose peer's process has ended: `fatal` stops them all, with
/// `IBV_EVENT_QP_FATAL`; otherwise only those stop that have work under way, as with hardware.
pub const PEER_GONE: &str = "UBIVERBS_PEER_GONE";

/// How many milliseconds the driver of a GPU may take for a copy before the work that needs it fails: 30000 if nothing is
/// said.
pub const GPU_PATIENCE: &str = "UBIVERBS_GPU_PATIENCE";

/// The faults that packets meet; see `link::faults`.
pub const FAULTS_VARIABLE: &str = "UBIVERBS_FAULTS";

/// The directory with files that programs look for under `/sys` and `/dev`; a library that is preloaded leads them
/// there.
pub const FILES_VARIABLE: &str = "UBIVERBS_FILES";

/// Explains what fails, on standard error: `text` (or `1`), `json`; also words about rules.
pub const WHY_VARIABLE: &str = "UBIVERBS_WHY";

/// Checks the program against the rules of verbs, with the same words.
pub const CHECK_VARIABLE: &str = "UBIVERBS_CHECK";

/// The file that says which rules are on; otherwise [`CONFIG_NAME`] in the current directory, if it is there.
pub const CHECK_CONFIG: &str = "UBIVERBS_CHECK_CONFIG";

/// The file of a project that says which rules are on.
pub const CONFIG_NAME: &str = "ubiverbs-checks.toml";

/// The file to which every process appends its findings, as JSON lines.
pub const FINDINGS_VARIABLE: &str = "UBIVERBS_FINDINGS";

/// Failure scripts: files, with colons between them.
pub const SCRIPT_VARIABLE: &str = "UBIVERBS_SCRIPT";

/// Where chance begins in failure scripts: a number, in place of the one that they say.
pub const SCRIPT_SEED: &str = "UBIVERBS_SCRIPT_SEED";

/// The file to which every process appends what failure scripts struck, as JSON lines.
pub const SCRIPT_REPORT: &str = "UBIVERBS_SCRIPT_REPORT";

/// A name of the run, by which its processes number themselves for failure scripts: set by `ubiverbs run`.
pub const SCRIPT_RUN: &str = "UBIVERBS_SCRIPT_RUN";

/// Whether a program that ends says in one line that work of its queue pairs failed: set by `ubiverbs run`.
pub const NOTE_FAILURES: &str = "UBIVERBS_NOTE_FAILURES";

/// Whether [`NOTE_FAILURES`] asks for it.
pub(crate) fn notes_failures() -> bool {
    variable(NOTE_FAILURES).is_some_and(|text| is_off(&text) == Some(false))
}

/// Whether a plan of faults can be read; if not, why.
pub fn check_faults(plan: &str) -> Result<(), String> {
    plan.parse::<link::faults::Plan>().map(drop).map_err(|error| error.to_string())
}

/// What [`NICS_VARIABLE`] asks for.
pub fn nics() -> Option<Nics> {
    let text = variable(NICS_VARIABLE).filter(|text| !text.is_empty())?;
    let told = |reason: &String| say(format_args!("{NICS_VARIABLE}: no {}; {reason}", text.display()));
    text.to_string_lossy().parse().inspect_err(told).ok()
}

/// Whether [`LINK_VARIABLE`] asks for UDP.
pub(crate) fn only_udp() -> bool {
    match variable(LINK_VARIABLE) {
        Some(link) if link == "udp" => true,
        Some(link) if !link.is_empty() && link != "shared" => {
            say(format_args!("{LINK_VARIABLE}: no link {}; there are udp and shared", link.display()));
            false
        }
        _ => false,
    }
}

/// Whether [`PEER_GONE`] is fatal.
pub(crate) fn stops_without_peer() -> bool {
    match variable(PEER_GONE) {
        Some(text) if text == "fatal" => true,
        Some(text) if !text.is_empty() => {
            say(format_args!("{PEER_GONE}: no {}; there is fatal", text.display()));
            false
        }
        _ => false,
    }
}

/// What [`GPU_PATIENCE`] says.
pub(crate) fn gpu_patience() -> Option<Duration> {
    let text = variable(GPU_PATIENCE).filter(|text| !text.is_empty())?;
    let millis = text.to_str().and_then(|text| text.parse().ok()).filter(|millis| *millis > 0);
    if millis.is_none() {
        say(format_args!("{GPU_PATIENCE}: no {}; milliseconds, more than 0", text.display()));
    }
    millis.map(Duration::from_millis)
}

/// Whether [`DCQCN_VARIABLE`] is off.
pub(crate) fn ignores_congestion() -> bool {
    is_switched_off(DCQCN_VARIABLE)
}

/// Whether [`DIRECT_VARIABLE`] is off.
pub(crate) fn sends_packets_only() -> bool {
    !replaces_pages() && is_switched_off(DIRECT_VARIABLE)
}

/// Whether [`DIRECT_VARIABLE`] asks for pages of private memory to be replaced.
pub(crate) fn replaces_pages() -> bool {
    variable(DIRECT_VARIABLE).is_some_and(|text| text == "replace-pages")
}

/// Whether a switch is off that is on if nothing is said.
fn is_switched_off(name: &str) -> bool {
    let Some(text) = variable(name) else { return false };
    let off = is_off(&text);
    if off.is_none() {
        say(format_args!("{name}: no {}; there are on and off", text.display()));
    }
    off.unwrap_or(false)
}

/// Reads the text of a switch that is on if nothing is said; none if it is neither.
fn is_off(text: &std::ffi::OsStr) -> Option<bool> {
    match text.to_str() {
        Some("" | "on" | "1") => Some(false),
        Some("off" | "0") => Some(true),
        _ => None,
    }
}

/// What [`LOG_VARIABLE`] asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Log {
    /// Nothing: not set, empty, or `0`.
    Off,
    /// What goes wrong, as text on standard error: `errors` or `1`.
    Errors,
    /// Everything, as text on standard error: `events`.
    Events,
    /// Everything, as JSON lines on standard error: `json`.
    Json,
    /// Everything, as JSON lines in a file: any other text.
    File(PathBuf),
    /// Nothing: a word that people use for a level, and that is none of ours.
    NoLevel(String),
}

impl Log {
    /// Reads the text.
    pub fn of(text: &std::ffi::OsStr) -> Log {
        match text.to_str() {
            Some("" | "0") => Log::Off,
            Some("1" | "errors") => Log::Errors,
            Some("events") => Log::Events,
            Some("json") => Log::Json,
            Some(word) if is_level_elsewhere(word) => Log::NoLevel(word.to_owned()),
            _ => Log::File(text.into()),
        }
    }

    /// What is wrong with a word that is no level.
    pub fn no_level(word: &str) -> String {
        format!("there is no level {word}; there are errors, events and json. A file of that name is ./{word}")
    }
}

/// Words for levels in other programs, and ours in capitals: a user who asks for one does not want a file named so.
const LEVELS_ELSEWHERE: &str = "all critical debug err error errors event events fatal full info json none notice off on \
                                trace true verbose warn warning warnings yes";

fn is_level_elsewhere(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    LEVELS_ELSEWHERE.split_ascii_whitespace().any(|level| level == word) || word.bytes().all(|b| b.is_ascii_digit())
}

/// The sink that [`LOG_VARIABLE`] asks for.
pub(crate) fn sink() -> Option<Box<dyn trace::Sink + Send>> {
    let sink: Box<dyn trace::Sink + Send> = match Log::of(&variable(LOG_VARIABLE)?) {
        Log::Off => return None,
        Log::Errors => Box::new(log::Text { trouble_only: true }),
        Log::Events => Box::new(log::Text { trouble_only: false }),
        #[cfg(feature = "capture")]
        Log::Json => Box::new(trace::JsonLines::stamped(log::WholeLines::new(StandardError), log::stamp)),
        #[cfg(feature = "capture")]
        Log::File(path) => {
            Box::new(trace::JsonLines::stamped(log::WholeLines::new(open(LOG_VARIABLE, &path)?), log::stamp))
        }
        #[cfg(not(feature = "capture"))]
        Log::Json | Log::File(_) => {
            without_capture(LOG_VARIABLE);
            return None;
        }
        Log::NoLevel(word) => {
            say(format_args!("{LOG_VARIABLE}: {}", Log::no_level(&word)));
            return None;
        }
    };
    Some(sink)
}

/// What a program is told that was built without what the variable asks for.
fn without_capture(variable: &str) {
    without(variable, "capture");
}

fn without(variable: &str, feature: &str) {
    say(format_args!("{variable}: this program was built without the feature `{feature}` of the crate ubiverbs"));
}

/// Says that a program without a checker cannot do what is asked for.
#[cfg(not(feature = "checks"))]
pub(crate) fn no_checks() {
    for name in [WHY_VARIABLE, CHECK_VARIABLE] {
        if variable(name).is_some_and(|text| !text.is_empty() && is_off(&text) != Some(true)) {
            without(name, "checks");
        }
    }
}

/// The capture that [`PCAP_VARIABLE`] asks for.
pub(crate) fn capture() -> Option<Capture> {
    let path = PathBuf::from(variable(PCAP_VARIABLE).filter(|path| !path.is_empty())?);
    if !cfg!(feature = "capture") {
        without_capture(PCAP_VARIABLE);
        return None;
    }
    let file = open(PCAP_VARIABLE, &path)?;
    Capture::new(file).inspect_err(|error| say(format_args!("cannot write {}: {error}", path.display()))).ok()
}

/// The recording that [`RECORD_VARIABLE`] asks for.
#[cfg(feature = "capture")]
pub(crate) fn recorder() -> Option<Recorder> {
    let text = variable(RECORD_VARIABLE).filter(|text| !text.is_empty())?;
    let told = |reason: String| say(format_args!("{RECORD_VARIABLE}: {reason}"));
    let plan = RecordingPlan::read(&text).map_err(told).ok()?;
    let stacks = variable(RECORD_STACKS).is_some_and(|text| !text.is_empty());
    let plan = RecordingPlan { stacks, ..plan };
    let told = |error: &io::Error| {
        say(format_args!("{RECORD_VARIABLE}: cannot record in {}: {error}", plan.directory.display()));
    };
    Recorder::open(&plan).inspect_err(told).ok()
}

/// Says that a program without recordings cannot make one.
#[cfg(not(feature = "capture"))]
pub(crate) fn no_recorder() {
    if variable(RECORD_VARIABLE).is_some_and(|text| !text.is_empty()) {
        without_capture(RECORD_VARIABLE);
    }
}

/// Those of `devices` that [`DEVICE_VARIABLE`] names, in the order in which programs see them.
pub(crate) fn shown(mut devices: Vec<Arc<Device>>) -> Vec<Arc<Device>> {
    if let Some(names) = variable(DEVICE_VARIABLE).filter(|names| !names.is_empty()) {
        let names = names.to_string_lossy();
        devices.retain(|device| names.split(',').any(|name| name.trim() == device.name()));
    }
    // Programs take the first device if not told otherwise, and the loopback reaches no other host.
    devices.sort_by_key(|device| device.is_loopback());
    devices
}

/// Reads a file, at most one byte more than `most`. Nothing is waited for.
#[cfg(any(feature = "checks", feature = "scripts"))]
fn read_bounded(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let mut text = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut text)?;
    Ok(text)
}

/// The file that a variable names.
fn open(variable: &str, path: &Path) -> Option<RecordFile> {
    let told = |error: &io::Error| say(format_args!("{variable}: cannot write {}: {error}", path.display()));
    RecordFile::open(path).inspect_err(told).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_a_level_or_a_file() {
        for (text, log) in [("", Log::Off), ("0", Log::Off), ("1", Log::Errors), ("errors", Log::Errors)] {
            assert_eq!(Log::of(text.as_ref()), log);
        }
        assert_eq!(Log::of("events".as_ref()), Log::Events);
        assert_eq!(Log::of("json".as_ref()), Log::Json);
        for file in ["./events", "./debug", "debug.json", "log", "/tmp/trace"] {
            assert_eq!(Log::of(file.as_ref()), Log::File(file.into()));
        }
        for word in ["debug", "Errors", "WARN", "info", "trace", "2", "on"] {
            assert_eq!(Log::of(word.as_ref()), Log::NoLevel(word.into()));
        }
        assert!(Log::no_level("debug").contains("./debug"));
    }

    #[test]
    fn a_switch_is_on_or_off_and_nothing_else() {
        for (text, off) in
            [("", Some(false)), ("on", Some(false)), ("off", Some(true)), ("0", Some(true)), ("no", None)]
        {
            assert_eq!(is_off(text.as_ref()), off);
        }
    }

    #[test]
    fn a_plan_that_cannot_be_read_is_told() {
        assert_eq!(check_faults("drop=1%"), Ok(()));
        assert!(check_faults("drop=often").is_err());
    }
}
