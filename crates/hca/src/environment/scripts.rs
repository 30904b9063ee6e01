//! Failure scripts that the environment asks for. What is asked for wrongly is told on standard error and left out; the
//! program runs all the same.

use super::{SCRIPT_REPORT, SCRIPT_RUN, SCRIPT_SEED, SCRIPT_VARIABLE, say, variable};
use crate::scripts::ReportFile;
use ::host::descriptor::{Descriptor, Opening};
use failures::Script;
#[cfg(feature = "scripts")]
use failures::library::Disaster;
use latch::PerProcess;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;

/// Between the scripts of the variable.
const SEPARATOR: char = ':';

/// How many processes of a run have a number of their own.
const MAX_NUMBERED_PROCESSES: u32 = 4096;

/// What the environment asks for.
#[derive(Debug)]
pub(crate) struct AskedScripts {
    /// Each with its name.
    pub scripts: Vec<(String, Script)>,
    pub seed: Option<u64>,
    pub report: Option<ReportFile>,
}

/// What the environment asks for, if it does.
pub(crate) fn scripts() -> Option<AskedScripts> {
    let text = variable(SCRIPT_VARIABLE).filter(|text| !text.is_empty())?;
    let text = text.to_string_lossy();
    let scripts: Vec<(String, Script)> = text.split(SEPARATOR).filter(|one| !one.is_empty()).filter_map(load).collect();
    if scripts.is_empty() {
        return None;
    }
    let program = process_names().into_iter().next().unwrap_or_default();
    let report = variable(SCRIPT_REPORT).filter(|path| !path.is_empty());
    let report = report.and_then(|path| ReportFile::open(&PathBuf::from(path), &program));
    Some(AskedScripts { scripts, seed: seed(), report })
}

fn seed() -> Option<u64> {
    let text = variable(SCRIPT_SEED).filter(|text| !text.is_empty())?;
    let seed = text.to_str().and_then(|text| text.trim().parse().ok());
    if seed.is_none() {
        say(format_args!("{SCRIPT_SEED}: {} is no number", text.display()));
    }
    seed
}

/// The script of a file, with its name; none, and it is told why, if it cannot be read.
#[cfg(feature = "scripts")]
fn load(path: &str) -> Option<(String, Script)> {
    let told = |error: &String| say(format_args!("{SCRIPT_VARIABLE}: {error}"));
    read_script(path).inspect_err(told).ok()
}

#[cfg(not(feature = "scripts"))]
fn load(_path: &str) -> Option<(String, Script)> {
    static TOLD: std::sync::Once = std::sync::Once::new();
    TOLD.call_once(|| super::without(SCRIPT_VARIABLE, "scripts"));
    None
}

/// Reads a script, with the name that it goes by: that of its file, or that of a disaster of the library. What is wrong is
/// said with the name and the line.
/// Nothing is waited for, and no more is read than a script may be long.
#[cfg(feature = "scripts")]
pub fn read_script(path: &str) -> Result<(String, Script), String> {
    if let Some(Disaster { name, text }) = Disaster::find(path) {
        return Script::parse(text).map(|script| (name.to_owned(), script)).map_err(|error| format!("{name}: {error}"));
    }
    let name = path.rsplit('/').next().unwrap_or(path).to_owned();
    let text = super::read_bounded(path.as_ref(), failures::MAX_SCRIPT_BYTES);
    let text = text.map_err(|error| format!("cannot read the script {path}: {error}"))?;
    let script = Script::parse(text).map_err(|error| format!("{name}: {error}"))?;
    Ok((name, script))
}

/// The name of this host.
pub(crate) fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The names of this process: of its executable's file, and as the system shows it.
pub(crate) fn process_names() -> Vec<String> {
    let file = std::env::current_exe().ok();
    let file = file.as_deref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned());
    let shown = std::fs::read_to_string("/proc/self/comm").ok().map(|name| name.trim().to_owned());
    file.into_iter().chain(shown).collect()
}

/// How many processes of this run have opened a device before this one, and have not ended: a process keeps a name of
/// the host as long as it lives.
pub(crate) fn process_index() -> u32 {
    static HELD: PerProcess<(u32, Option<Descriptor>)> = PerProcess::new();
    let held = HELD.get_or_make(|| {
        let Some(run) = variable(SCRIPT_RUN).filter(|run| !run.is_empty()) else { return (0, None) };
        for index in 0..MAX_NUMBERED_PROCESSES {
            let name = format!("ubiverbs-run-{}-{index}", run.display());
            let _opening = Opening::begin();
            let bound = SocketAddr::from_abstract_name(name).and_then(|name| UnixDatagram::bind_addr(&name));
            match bound {
                Ok(socket) => return (index, Some(Descriptor::keep(OwnedFd::from(socket)))),
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(_) => break,
            }
        }
        (0, None)
    });
    held.0
}
