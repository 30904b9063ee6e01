//! What agents send: checks as the kernel makes them, and what is kept until the answer is there.

use crate::class;
use crate::rmpp::Sending;
use crate::route::{Peer, Route};
use alloc::vec::Vec;
use trace::Time;
use wire::mad::{MAD_LEN, MadHeader};
use wire::refuse_if;

/// A datagram, or a segmented message, of an agent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// From the common header on. A datagram that is shorter than 256 bytes is filled up with zeros.
    pub bytes: &'a [u8],
    /// Where it goes.
    pub to: Peer,
    /// The index of the partition key: there is one key.
    pub pkey_index: u16,
    /// How long to wait for an answer, in milliseconds; 0 if none is expected.
    pub timeout_ms: u32,
    /// How often it is sent again after that.
    pub retries: u32,
}

/// Why a datagram was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is no such port or agent.
    #[error("no such agent is registered on the port")]
    NoAgent,
    /// Shorter than headers, or longer than a datagram.
    #[error(
        "a datagram has 36 to {MAD_LEN} bytes, and only segmented messages (RMPP) of an agent that has them have more"
    )]
    Length,
    /// An agent with segmented messages sends in a class without.
    #[error("the agent was registered for segmented messages, and the class has none")]
    Class,
    /// A LID, where there are none.
    #[error("a RoCE port is reached by its GID: the global route header is missing")]
    NoRoute,
    /// The partition key table has one entry.
    #[error("the port has one partition key, at index 0")]
    Partition,
    /// This question, or this answer to this port, is under way already.
    #[error("a datagram with this transaction is under way")]
    Duplicate,
    /// As many as may be under way.
    #[error("too many datagrams wait for their answers")]
    TooMany,
}

/// How long segments wait for their acknowledgement at most, as in the kernel.
const ACKNOWLEDGEMENT_MS: u32 = 2000;

/// A datagram that waits for its answer, or a message whose segments are under way.
#[derive(Debug)]
pub(crate) struct Send {
    /// The agent, by the upper half of its transactions.
    pub agent: u32,
    pub class: u8,
    pub is_response: bool,
    pub bytes: Vec<u8>,
    pub to: Route,
    /// As the program said it.
    pub peer: Peer,
    pub timeout_ms: u32,
    pub retries_left: u32,
    pub deadline: Option<Time>,
    pub segments: Option<Sending>,
}

impl Send {
    pub fn deadline_from(&self, now: Time) -> Time {
        let waits_for_segments = self.segments.is_some_and(|segments| !segments.is_complete());
        let milliseconds = match self.timeout_ms {
            0 => ACKNOWLEDGEMENT_MS,
            timeout if waits_for_segments => timeout.min(ACKNOWLEDGEMENT_MS),
            timeout => timeout,
        };
        now.plus_nanos(u64::from(milliseconds) * 1_000_000)
    }
}

/// Checks the length of what is sent. Returns whether it is a segmented message.
pub(crate) fn check(bytes: &[u8], header: &MadHeader, segments: bool) -> Result<bool, SendError> {
    refuse_if!(bytes.len() < class::RMPP_HEADER_END, SendError::Length);
    let has_rmpp = class::has_rmpp(header.management_class);
    refuse_if!(segments && !has_rmpp, SendError::Class);
    let active = segments && crate::rmpp::is_active(bytes);
    refuse_if!(!active && bytes.len() > MAD_LEN || bytes.len() > crate::rmpp::MAX_MESSAGE_BYTES, SendError::Length);
    Ok(active)
}
