//! Why a queue pair stopped: what all work has in common that was flushed after it.

use crate::completion::{CompletionKind, Status};
use core::fmt;
use trace::Failure;

/// What stopped a queue pair, or its send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Stop {
    /// The program moved it to ERR.
    Program,
    /// Its connection has ended.
    Disconnected,
    /// Work of its own failed: this is the completion that comes before those that are flushed.
    Work {
        /// What kind of work.
        kind: CompletionKind,
        /// How it ended.
        status: Status,
        /// Why.
        cause: Failure,
    },
    /// The peer asked for what it may not have, or for what makes no sense. No completion tells of that.
    PeerRequest {
        /// What was wrong.
        cause: Failure,
    },
    /// The device failed, on purpose: a failure script says so.
    Injected,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Program => f.write_str("the program stopped the queue pair"),
            Stop::Disconnected => f.write_str("the connection ended"),
            Stop::Work { kind, status, cause } => write!(f, "{} ended with {status}: {cause}", kind.name()),
            Stop::PeerRequest { cause } => write!(f, "a request of the peer was refused: {cause}"),
            Stop::Injected => f.write_str("a failure script stopped the queue pair"),
        }
    }
}
