//! Counts of completed work, by what it did: for programs that want to know how much is done and not what. A queue pair
//! counts once it is told to. Work that completes without an entry in a completion queue counts too.

use crate::completion::{Completion, CompletionKind, Status};

/// How much of one kind of work has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Work requests, or requests of the peer.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Work requests that failed.
    pub failures: u64,
}

impl Count {
    /// One more is done.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn join(&mut self, other: Count) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.failures += other.failures;
    }
}

/// What has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// SENDs.
    pub sends: Count,
    /// Receives.
    pub receives: Count,
    /// READs.
    pub reads: Count,
    /// WRITEs.
    pub writes: Count,
    /// READs of the peer.
    pub remote_reads: Count,
    /// WRITEs of the peer.
    pub remote_writes: Count,
}

impl Counts {
    /// Work of this queue pair has completed.
    pub(crate) fn completed(&mut self, kind: CompletionKind, status: Status, bytes: u64) {
        let count = match kind {
            CompletionKind::Send => &mut self.sends,
            CompletionKind::Read => &mut self.reads,
            CompletionKind::Write => &mut self.writes,
            CompletionKind::Receive | CompletionKind::ReceiveWriteImmediate => &mut self.receives,
            _ => return,
        };
        match status {
            Status::Success => count.add(bytes),
            _ => count.failures += 1,
        }
    }

    /// Work of this queue pair has completed, as its completion says.
    pub(crate) fn shown(&mut self, completion: &Completion) {
        self.completed(completion.kind, completion.status, completion.bytes.into());
    }

    /// Adds what another part of the queue pair has counted.
    pub(crate) fn join(&mut self, other: &Counts) {
        for (count, more) in [
            (&mut self.sends, other.sends),
            (&mut self.receives, other.receives),
            (&mut self.reads, other.reads),
            (&mut self.writes, other.writes),
            (&mut self.remote_reads, other.remote_reads),
            (&mut self.remote_writes, other.remote_writes),
        ] {
            count.join(more);
        }
    }
}
