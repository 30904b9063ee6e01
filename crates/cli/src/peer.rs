//! The second side of a demo or a benchmark: it does what the first side asks for, one order at a time, and says how it
//! went. Hidden from the list of commands; the program starts itself with it.

use crate::demo::{Act, bob::Bob};
use crate::exit::{Exit, Failure};
use crate::measure::{self, bob::Partner};
use crate::meeting::{Link, Meeting};
use clap::Args;
use serde::{Deserialize, Serialize};

/// The second process of a demo or a benchmark
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The device to use
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// How packets travel
    #[arg(long, value_enum, default_value_t = Link::Auto)]
    link: Link,
}

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
pub enum Answer {
    /// My queue pairs, and the memory I share.
    Introduced(Introduction),
    /// My part is prepared.
    Ready,
    /// What I have seen, and whether it is right.
    Verdict { right: bool, said: String },
    /// About a measurement.
    Measure(measure::Answer),
    /// It cannot be done.
    Failed(String),
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

/// Runs as the second process.
pub fn run(options: &Options) -> Result<Exit, Failure> {
    let mut meeting = Meeting::as_child(options.device.as_deref(), options.link)?;
    match serve(&mut meeting, &mut |_| Ok(())) {
        // Whoever started us has given up, and has said why.
        Ok(()) | Err(Failure::PeerGone) => Ok(Exit::Ok),
        Err(failure) => Err(failure),
    }
}

/// Does what is asked for, until the first side says farewell. `say` is told of each thing done.
pub fn serve(meeting: &mut Meeting, say: &mut dyn FnMut(&str) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut bob = None;
    let mut partner = Partner::default();
    while let Some(order) = meeting.control.next::<Order>()? {
        let done = match order {
            Order::Introduce(theirs) => Bob::introduce(meeting, &theirs).map(|made| {
                bob = Some(made);
                String::new()
            }),
            Order::Play(act) => match &mut bob {
                Some(bob) => bob.play(act, meeting),
                None => Err(Failure::Nonsense(format!("to play {act:?} without an introduction"))),
            },
            Order::Look => Ok(String::new()),
            Order::Measure(order) => partner.measure(order, meeting).map(|()| String::new()),
        };
        match done {
            Ok(said) if said.is_empty() => {}
            Ok(said) => say(&said)?,
            Err(failure) => {
                meeting.control.tell(&Answer::Failed(failure.told()))?;
                return Err(failure);
            }
        }
    }
    Ok(())
}

/// Gives an order and hears the answer.
pub fn ask(meeting: &mut Meeting, order: &Order) -> Result<Answer, Failure> {
    meeting.control.tell(order)?;
    answer(meeting)
}

/// Hears an answer.
pub fn answer(meeting: &Meeting) -> Result<Answer, Failure> {
    match meeting.control.hear()? {
        Answer::Failed(why) => Err(Failure::Peer(why)),
        answer => Ok(answer),
    }
}

/// Hears that the peer is prepared.
pub fn ready(meeting: &Meeting) -> Result<(), Failure> {
    match answer(meeting)? {
        Answer::Ready => Ok(()),
        other => Err(unexpected(&other)),
    }
}

pub fn unexpected(answer: &Answer) -> Failure {
    Failure::Nonsense(format!("{answer:?}"))
}
