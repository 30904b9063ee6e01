//! What the environment asks of the NIC of a program that cannot be asked otherwise: which devices it shows, and where it writes its packets and
//! its events. What is asked for wrongly is told on standard error and left out; the program runs all the same.

use crate::capture::Capture;
use crate::device::Device;
use crate::log;
use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The devices that programs may see: names with commas between them. All, if it is not set or empty.
pub const DEVICE: &str = "UBIVERBS_DEVICE";

/// The file that every packet is written to, as pcapng.
pub const PCAP: &str = "UBIVERBS_PCAP";

/// What is logged, and where to: see [`Log`].
pub const LOG: &str = "UBIVERBS_LOG";

/// How processes of one host reach one another: `udp` for UDP as between hosts (and also inside a process); otherwise through shared memory
/// where they can.
pub const LINK: &str = "UBIVERBS_LINK";

/// The faults that packets meet; see `link::faults`.
pub const FAULTS: &str = "UBIVERBS_FAULTS";

/// The directory with files that programs look for under `/sys` and `/dev`; a library that is preloaded leads them there.
pub const FILES: &str = "UBIVERBS_FILES";

/// Whether a plan of faults can be read; if not, why.
pub fn check_faults(plan: &str) -> Result<(), String> {
    plan.parse::<link::faults::Plan>().map(drop).map_err(|error| error.to_string())
}

/// Whether [`LINK`] asks for UDP.
pub(crate) fn only_udp() -> bool {
    match env::var_os(LINK) {
        Some(link) if link == "udp" => true,
        Some(link) if !link.is_empty() && link != "shared" => {
            say(format_args!("{LINK}: no link {}; there are udp and shared", link.display()));
            false
        }
        _ => false,
    }
}

/// Whether [`FAULTS`] asks for any.
pub(crate) fn has_faults() -> bool {
    env::var_os(FAULTS).is_some_and(|plan| !plan.is_empty())
}

/// What [`LOG`] asks for.
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
}

impl Log {
    /// Reads the text.
    pub fn of(text: &std::ffi::OsStr) -> Log {
        match text.to_str() {
            Some("" | "0") => Log::Off,
            Some("1" | "errors") => Log::Errors,
            Some("events") => Log::Events,
            Some("json") => Log::Json,
            _ => Log::File(text.into()),
        }
    }
}

/// The sink that [`LOG`] asks for.
pub(crate) fn sink() -> Option<Box<dyn trace::Sink + Send>> {
    let sink: Box<dyn trace::Sink + Send> = match Log::of(&env::var_os(LOG)?) {
        Log::Off => return None,
        Log::Errors => Box::new(log::Text { trouble_only: true }),
        Log::Events => Box::new(log::Text { trouble_only: false }),
        Log::Json => Box::new(trace::JsonLines::new(log::WholeLines::new(io::stderr()))),
        Log::File(path) => Box::new(trace::JsonLines::new(log::WholeLines::new(open(LOG, &path)?))),
    };
    Some(sink)
}

/// The capture that [`PCAP`] asks for.
pub(crate) fn capture() -> Option<Capture> {
    let path = PathBuf::from(env::var_os(PCAP).filter(|path| !path.is_empty())?);
    let file = open(PCAP, &path)?;
    Capture::new(file).inspect_err(|error| say(format_args!("cannot write {}: {error}", path.display()))).ok()
}

/// Those of `devices` that [`DEVICE`] names, in the order in which programs see them.
pub(crate) fn shown(mut devices: Vec<Arc<Device>>) -> Vec<Arc<Device>> {
    if let Some(names) = env::var_os(DEVICE).filter(|names| !names.is_empty()) {
        let names = names.to_string_lossy();
        devices.retain(|device| names.split(',').any(|name| name.trim() == device.name()));
    }
    // Programs take the first device if not told otherwise, and the loopback reaches nobody else.
    devices.sort_by_key(|device| device.name() == "ubi_lo");
    devices
}

/// A file of this process's own: several may have been given the same name, and none may destroy what another writes.
fn open(variable: &str, path: &Path) -> Option<File> {
    let result = match OpenOptions::new().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_special(path) => {
            let own = with_process_number(path);
            say(format_args!("{} exists; writing {}", path.display(), own.display()));
            OpenOptions::new().write(true).create(true).truncate(true).open(own)
        }
        // A pipe or a terminal is there to be written to.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => OpenOptions::new().write(true).open(path),
        other => other,
    };
    result.inspect_err(|error| say(format_args!("{variable}: cannot write {}: {error}", path.display()))).ok()
}

fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

/// `a/b.pcapng` becomes `a/b-1234.pcapng`.
fn with_process_number(path: &Path) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{}", std::process::id()));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Says something on standard error, which may be closed.
fn say(text: impl std::fmt::Display) {
    let _ = io::stderr().write_all(format!("ubiverbs: {text}\n").as_bytes());
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
        assert_eq!(Log::of("./events".as_ref()), Log::File("./events".into()));
    }

    #[test]
    fn a_second_process_writes_a_file_of_its_own() {
        let id = std::process::id();
        assert_eq!(with_process_number(Path::new("/a/b.pcapng")), Path::new(&format!("/a/b-{id}.pcapng")));
        assert_eq!(with_process_number(Path::new("b")), Path::new(&format!("b-{id}")));
        let place = std::env::temp_dir().join(format!("ubiverbs-environment-{id}.log"));
        let _ = std::fs::remove_file(&place);
        open(LOG, &place).unwrap().write_all(b"first").unwrap();
        open(LOG, &place).unwrap().write_all(b"second").unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"first");
        assert_eq!(std::fs::read(with_process_number(&place)).unwrap(), b"second");
        std::fs::remove_file(with_process_number(&place)).unwrap();
        std::fs::remove_file(place).unwrap();
    }

    #[test]
    fn a_plan_that_cannot_be_read_is_told() {
        assert_eq!(check_faults("drop=1%"), Ok(()));
        assert!(check_faults("drop=often").is_err());
    }
}
