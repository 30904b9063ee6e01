//! How a command ends: the exit codes that scripts rely on, and the failures that are not the job's.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// How the program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// It worked.
    Ok = 0,
    /// The job was done and its outcome is a failure.
    Job = 1,
    /// The job could not be done.
    System = 2,
    /// The command line was wrong; `EX_USAGE` of sysexits.h.
    Usage = 64,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why the job could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file could not be opened.
    #[error("cannot write {}: {source}", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A capture could not be written.
    #[error("cannot write the capture {}: {source}", path.display())]
    Capture {
        /// Where.
        path: PathBuf,
        /// Why.
        source: trace::Error,
    },
    /// The NIC could not be attached to this host.
    #[error("cannot attach to this host: {0}")]
    Nic(hca::Error),
    /// Standard output could not be written.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
}

impl Failure {
    /// Whether somebody has simply read enough.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
