//! What goes wrong in a group, and which member it is.

use crate::call::Call;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// Why a group does not come together, or a call in it failed. Where a member is the cause, its rank is named, and
/// every member is told the same.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The size does not fit the topology.
    #[error("a {topology} of {size} members cannot be: {why}")]
    Topology {
        /// Which.
        topology: String,
        /// How many members.
        size: u32,
        /// What is wrong, and what would do.
        why: String,
    },
    /// A rank that the group does not have.
    #[error("there is no rank {rank} in a group of {size}")]
    Rank {
        /// Which.
        rank: u32,
        /// How many members there are.
        size: u32,
    },
    /// An address is in the list twice.
    #[error("ranks {first} and {second} have the same address, {address}")]
    AddressTwice {
        /// One of them.
        first: u32,
        /// The other.
        second: u32,
        /// The address.
        address: SocketAddr,
    },
    /// A setting that makes no sense.
    #[error("{what}")]
    Setting {
        /// What is wrong with it.
        what: String,
    },
    /// Members did not come.
    #[error("{} within {limit:?}", missing(ranks))]
    Missing {
        /// Who.
        ranks: Vec<u32>,
        /// How long the others waited.
        limit: Duration,
    },
    /// Two processes say that they are the same member.
    #[error("rank {rank} came twice: from {first} and from {second}")]
    RankTwice {
        /// Which.
        rank: u32,
        /// Where the first is.
        first: SocketAddr,
        /// Where the second is.
        second: SocketAddr,
    },
    /// A member has other settings than member 0.
    #[error("rank {rank} does not agree with rank 0: {what}")]
    Disagrees {
        /// Who.
        rank: u32,
        /// About what.
        what: String,
    },
    /// A member's process ended, or its host went away.
    #[error("rank {rank} died: {why}")]
    Died {
        /// Who.
        rank: u32,
        /// How that is known.
        why: String,
    },
    /// A member left the group, or dropped it, while others needed it.
    #[error("rank {rank} left the group while others waited for it")]
    Left {
        /// Who.
        rank: u32,
    },
    /// A member lives and sends nothing: it does not make the call that the others make.
    #[error("{} in {call} for {limit:?}", silent(ranks))]
    Silent {
        /// Who.
        ranks: Vec<u32>,
        /// What the others do.
        call: Call,
        /// How long nothing came.
        limit: Duration,
    },
    /// Two members make different calls.
    #[error("rank {rank} called {theirs} where rank {other} called {ours}")]
    Calls {
        /// One of them.
        rank: u32,
        /// What it called.
        theirs: Call,
        /// The other.
        other: u32,
        /// What that one called.
        ours: Call,
    },
    /// A call was dropped before it was done, so that the members are out of step.
    #[error("rank {rank} gave {call} up before it was done")]
    Abandoned {
        /// Who.
        rank: u32,
        /// What was dropped.
        call: Call,
    },
    /// A member failed for a reason of its own.
    #[error("rank {rank} failed: {why}")]
    Failed {
        /// Who.
        rank: u32,
        /// In its words.
        why: String,
    },
    /// A member sent something that has no meaning.
    #[error("rank {rank} sent nonsense: {what}")]
    Nonsense {
        /// Who.
        rank: u32,
        /// What was wrong with it.
        what: String,
    },
    /// Arguments of a call that do not fit each other. Nothing was sent, and the group is as before.
    #[error("{call}: {why}")]
    Argument {
        /// Which call.
        call: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The NIC refused something.
    #[error("{0}")]
    Verbs(String),
}

fn list(ranks: &[u32]) -> String {
    const MAX_SHOWN_MEMBERS: usize = 8;
    let mut text: Vec<String> = ranks.iter().take(MAX_SHOWN_MEMBERS).map(u32::to_string).collect();
    if ranks.len() > MAX_SHOWN_MEMBERS {
        text.push(format!("{} more", ranks.len() - MAX_SHOWN_MEMBERS));
    }
    let last = text.pop().unwrap_or_default();
    if text.is_empty() { last } else { format!("{} and {last}", text.join(", ")) }
}

fn missing(ranks: &[u32]) -> String {
    match ranks {
        [rank] => format!("rank {rank} did not come"),
        _ => format!("ranks {} did not come", list(ranks)),
    }
}

fn silent(ranks: &[u32]) -> String {
    match ranks {
        [rank] => format!("rank {rank} took no part"),
        _ => format!("ranks {} took no part", list(ranks)),
    }
}

impl Error {
    /// The ranks that it names.
    pub fn ranks(&self) -> Vec<u32> {
        match self {
            Error::Missing { ranks, .. } | Error::Silent { ranks, .. } => ranks.clone(),
            Error::AddressTwice { first, second, .. } => vec![*first, *second],
            Error::Calls { rank, other, .. } => vec![*rank, *other],
            Error::Rank { rank, .. }
            | Error::RankTwice { rank, .. }
            | Error::Disagrees { rank, .. }
            | Error::Died { rank, .. }
            | Error::Left { rank }
            | Error::Abandoned { rank, .. }
            | Error::Failed { rank, .. }
            | Error::Nonsense { rank, .. } => vec![*rank],
            Error::Topology { .. } | Error::Setting { .. } | Error::Argument { .. } | Error::Verbs(_) => Vec::new(),
        }
    }

    pub(crate) fn nonsense(rank: u32, what: impl fmt::Display) -> Error {
        Error::Nonsense { rank, what: what.to_string() }
    }
}

impl From<ubiverbs::Error> for Error {
    fn from(error: ubiverbs::Error) -> Error {
        Error::Verbs(error.to_string())
    }
}

impl<B> From<ubiverbs::Failed<B>> for Error {
    fn from(failed: ubiverbs::Failed<B>) -> Error {
        failed.error.into()
    }
}
