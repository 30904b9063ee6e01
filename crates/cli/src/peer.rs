//! What the two sides of a demo or a benchmark say to each other: an order of the first side, and how it went.

use crate::acts::Act;
use crate::exit::Failure;
use crate::measure;
use crate::meeting::Meeting;
use serde::{Deserialize, Serialize};

/// What the first side asks for. Endpoints and remote slices travel as text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Prepare for the demo; these are my queue pairs.
    Introduce(Introduction),
    /// Play your part in this act. Answered with ready, and at the end with a verdict.
    Play(Act),
    /// The act is over; look at your memory.
    Look,
    /// Something to be measured.
    Measure(measure::Order),
}

/// What the second side answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerAnswer {
    /// My queue pairs, and the memory I share.
    Introduced(Introduction),
    /// My part is prepared.
    Ready,
    /// What I have seen, and whether it is right.
    Verdict {
        right: bool,
        #[serde(deserialize_with = "crate::control::printable")]
        said: String,
    },
    /// About a measurement.
    Measure(measure::MeasureAnswer),
    /// It cannot be done.
    Failed(#[serde(deserialize_with = "crate::control::printable")] String),
}

/// The queue pairs of one side: the one that all acts use, one to be broken, one for datagrams; and the memory it
/// shares.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Introduction {
    pub connected: String,
    pub spare: String,
    pub datagram: String,
    pub region: Option<String>,
}

/// Gives an order and hears the answer.
pub fn ask(meeting: &mut Meeting, order: &Order) -> Result<PeerAnswer, Failure> {
    meeting.control.tell(order)?;
    answer(meeting)
}

/// Hears an answer.
pub fn answer(meeting: &Meeting) -> Result<PeerAnswer, Failure> {
    match meeting.control.hear()? {
        PeerAnswer::Failed(why) => Err(Failure::Peer(why)),
        answer => Ok(answer),
    }
}

/// Hears that the peer is prepared.
pub fn ready(meeting: &Meeting) -> Result<(), Failure> {
    match answer(meeting)? {
        PeerAnswer::Ready => Ok(()),
        other => Err(unexpected(&other)),
    }
}

pub fn unexpected(answer: &PeerAnswer) -> Failure {
    Failure::Nonsense(format!("{answer:?}"))
}
