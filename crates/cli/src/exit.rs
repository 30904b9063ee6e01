//! How a command ends: the exit codes that scripts rely on, and the failures that are not the job's.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How the program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// It worked.
    Ok = 0,
    /// The job failed, or could not be done.
    Job = 1,
    /// The command line was wrong, as shells say it.
    Usage = 2,
    /// The program that was to be run cannot be started, as shells say it.
    NotStarted = 126,
    /// The program that was to be run does not exist, as shells say it.
    NotFound = 127,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why the job could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file could not be opened or written.
    #[error("cannot write {}: {source}", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be opened to be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that should be a log of events has none.
    #[error("{} is no log of events: {what}; `ubiverbs run --log FILE` (UBIVERBS_LOG=FILE) writes one", path.display())]
    NoLog {
        /// Which.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A recording could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Recording {
        /// Which.
        path: PathBuf,
        /// Why.
        source: recording::RecordingError,
    },
    /// A directory has no recording.
    #[error("there is no recording in {}; `ubiverbs run --record DIR -- PROGRAM` (UBIVERBS_RECORD=DIR) makes one", path.display())]
    NoRecording {
        /// Which.
        path: PathBuf,
    },
    /// A capture could not be written.
    #[error("cannot write the capture {}: {source}", path.display())]
    Capture {
        /// Where.
        path: PathBuf,
        /// Why.
        source: trace::Error,
    },
    /// A log of events could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Log {
        /// Which.
        path: PathBuf,
        /// Why.
        source: trace::ReadError,
    },
    /// The NIC could not be attached to this host.
    #[error("cannot attach to this host: {0}")]
    Nic(#[source] hca::Error),
    /// Standard output could not be written.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// The NIC refused or failed at something.
    #[error("{0}")]
    Verbs(#[from] ubiverbs::Error),
    /// No device at all.
    #[error("no device: no network interface is up and has an address; try: ip link set lo up")]
    NoDevice,
    /// No device has the address that the two sides talk over.
    #[error("no device has the address {0}; name one with --device (`ubiverbs devices` lists them)")]
    NoDeviceFor(std::net::IpAddr),
    /// The address given is none, or has no meaning here.
    #[error("cannot find {text:?}: {source}")]
    Address {
        /// As it was given.
        text: String,
        /// Why.
        source: io::Error,
    },
    /// The other side could not be reached.
    #[error("cannot reach {address}: {source}{}", hint(source))]
    Connect {
        /// Where it should be.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The port cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", hint(source))]
    Listen {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Nobody said the secret that the other side wants to have proved.
    #[error("no secret: set {0} to the one that the --server has")]
    NoSecret(&'static str),
    /// The other side has another secret, or has gone.
    #[error("the other side has another secret than {0} here")]
    OtherSecret(&'static str),
    /// The peer's process ended, or its host went away.
    #[error("the peer is gone: its process ended before the work was done")]
    PeerGone,
    /// The peer does not answer.
    #[error("the peer lives but has not answered for {} seconds", .0.as_secs())]
    PeerSilent(Duration),
    /// The peer failed, in its own words.
    #[error("the peer failed: {0}")]
    Peer(String),
    /// There is nothing to run.
    #[error("no program to run; it comes last: ubiverbs run --nic irdma -- ./my_program")]
    NoProgram,
    /// An argument has no meaning here.
    #[error("{option} {text}: {reason}")]
    Argument {
        /// Which.
        option: &'static str,
        /// As it was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no terminal to draw on.
    #[error("top needs a terminal on standard input and output; `ubiverbs ps` prints once")]
    NoTerminal,
    /// A process that was asked for is not among those that can be seen.
    #[error("process {pid} cannot be shown: {reason}")]
    NoProcess {
        /// Which.
        pid: i32,
        /// Why.
        reason: &'static str,
    },
    /// A program that runs was not to be broken.
    #[error("{source}")]
    Inject {
        /// Why not.
        source: hca::inject::InjectError,
    },
    /// A scenario that makes no sense: which line or option, and what was expected.
    #[error("{0}")]
    Script(String),
    /// The library that programs are to be run on is not next to this program.
    #[error("there is no libibverbs.so.1 in {}, where it belongs; `cargo xtask dist` builds both into target/dist", directory.display())]
    NoLibrary {
        /// Where it should be.
        directory: PathBuf,
    },
    /// The library is where the dynamic linker cannot be sent.
    #[error("cannot use {}: the dynamic linker does not understand ':', ';' and '$' in names", path.display())]
    Unloadable {
        /// Where it is.
        path: PathBuf,
    },
    /// The program to run does not exist.
    #[error("{}: not found", program.display())]
    NotFound {
        /// As it was given.
        program: OsString,
    },
    /// The program to run cannot be started.
    #[error("cannot run {}: {source}", program.display())]
    NotStarted {
        /// As it was given.
        program: OsString,
        /// Why.
        source: io::Error,
    },
    /// The program to run would not use our libraries.
    #[error("{} {obstacle}; --force runs it as it is", program.display())]
    OutOfReach {
        /// Its file, or that of its interpreter.
        program: PathBuf,
        /// Why.
        obstacle: String,
    },
    /// A command that is to be tortured fails anyway.
    #[error("the command fails without any failure script, so there is nothing to test: {0}")]
    Unhealthy(String),
    /// A command that is to be run on cards fails without one.
    #[error("the command fails on the NIC as it is, so no card can be blamed: {0}")]
    PlainFails(String),
    /// The peer said something that has no meaning.
    #[error("the other side does not speak our protocol; it said {0:?}")]
    Nonsense(String),
}

impl Failure {
    /// Whether the reader has simply read enough.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// It and what is behind it, in one line.
    pub fn told(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let why = error.to_string();
            // Many messages end with their cause already.
            if !text.contains(&why) {
                text = format!("{text}: {why}");
            }
            cause = error.source();
        }
        text
    }

    /// The exit code: one for a mistake, whichever command it was made with.
    pub fn exit(&self) -> Exit {
        match self {
            Failure::Argument { .. } | Failure::Script(_) | Failure::OutOfReach { .. } => Exit::Usage,
            // Named with --device.
            Failure::Verbs(ubiverbs::Error::NoDevice { .. }) => Exit::Usage,
            Failure::NotFound { .. } => Exit::NotFound,
            Failure::NotStarted { .. } => Exit::NotStarted,
            _ => Exit::Job,
        }
    }
}

impl<B> From<ubiverbs::Failed<B>> for Failure {
    fn from(failed: ubiverbs::Failed<B>) -> Failure {
        Failure::Verbs(failed.error)
    }
}

/// What to do about it.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "; start the other side there first, with --server",
        io::ErrorKind::AddrInUse => "; another program holds the port: choose another with --server ADDRESS:PORT",
        io::ErrorKind::AddrNotAvailable => "; no interface of this host has that address",
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => "; there is no route to it",
        io::ErrorKind::TimedOut => "; the host does not answer",
        _ => "",
    }
}
