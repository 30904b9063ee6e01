//! The second side of a demo or a benchmark: it does what the first side asks for, one order at a time, and says how it
//! went. Hidden from the list of commands; the program starts itself with it.

mod bob;

use crate::exit::{Exit, Failure};
use crate::measure::bob::Partner;
use crate::meeting::{Ends, Link, Meeting};
use crate::peer::{Order, PeerAnswer};
use bob::Bob;
use clap::Args;
use std::io::Write;

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

/// Runs as the second process.
pub fn run(options: &Options) -> Result<Exit, Failure> {
    let mut meeting = Meeting::as_child(options.device.as_deref(), options.link)?;
    match obey(&mut meeting, &mut |_| Ok(())) {
        // The process that started us has given up, and has said why.
        Ok(()) | Err(Failure::PeerGone) => Ok(Exit::Ok),
        Err(failure) => Err(failure),
    }
}

/// Does what is asked for, until the first side says farewell. `say` is told of each thing done.
fn obey(meeting: &mut Meeting, say: &mut dyn FnMut(&str) -> Result<(), Failure>) -> Result<(), Failure> {
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
                meeting.control.tell(&PeerAnswer::Failed(failure.told()))?;
                return Err(failure);
            }
        }
    }
    Ok(())
}

/// The second side, in the foreground.
pub fn serve(ends: &Ends, command: &str, address: &str, out: &mut impl Write) -> Result<Exit, Failure> {
    let mut meeting = ends.await_caller(command, address, out)?;
    let (device, from, peer) = (meeting.station.context.name(), meeting.station.address, &meeting.peer);
    writeln!(out, "bob: on {device} at {from}; alice is process {} at {}", peer.process, peer.address)
        .map_err(Failure::Output)?;
    obey(&mut meeting, &mut |said| writeln!(out, "bob: {said}").and_then(|()| out.flush()).map_err(Failure::Output))?;
    writeln!(out, "bob: alice said farewell").map_err(Failure::Output)?;
    Ok(Exit::Ok)
}
