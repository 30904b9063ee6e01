//! Work at the moment at which a queue takes it, and how a sentence names it.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;

use trace::{Call, Event, Kind, Queue};
use wire::Qpn;

use crate::finding::{Finding, Subject};
use crate::map;
use crate::model::{Model, Work};
use crate::rule::Number;
use crate::witness::Absent;

/// The queue that work was posted to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Owner {
    Send(Qpn),
    Receive(Qpn),
    Shared(u32),
}

impl map::Key for Owner {
    type Order = u64;

    fn order(self) -> u64 {
        match self {
            Owner::Send(qpn) => map::tagged(0, qpn.value()),
            Owner::Receive(qpn) => map::tagged(1, qpn.value()),
            Owner::Shared(srq) => map::tagged(2, srq),
        }
    }
}

impl Owner {
    pub(crate) fn subject(self) -> Subject {
        match self {
            Owner::Send(qpn) | Owner::Receive(qpn) => Subject::QueuePair(qpn),
            Owner::Shared(srq) => Subject::SharedQueue(srq),
        }
    }

    /// The queue of a completion.
    pub(crate) fn of(model: &Model, event: &Event, queue: Queue) -> Option<Owner> {
        let pair = model.pair_of(event)?;
        Some(match queue {
            Queue::Send => Owner::Send(pair.qpn),
            Queue::Receive => Owner::Receive(pair.qpn),
            _ => Owner::Shared(pair.srq?),
        })
    }
}

/// Work that a queue takes at this moment.
#[derive(Clone, Debug)]
pub(crate) struct Posting<'a> {
    pub owner: Owner,
    /// The protection domain of the queue, if its making was seen.
    pub pd: Option<u32>,
    pub work: Cow<'a, Work>,
}

impl<'a> Posting<'a> {
    /// What the event posts, if it does and its call was told.
    pub(crate) fn of(event: &Event, model: &'a Model) -> Option<Posting<'a>> {
        match &event.kind {
            Kind::WorkPosted { wr_id, queue, .. } => {
                let pair = model.pair_of(event)?;
                let pd = (!pair.kind.is_empty()).then_some(pair.pd);
                let (owner, works) = match queue {
                    Queue::Send => (Owner::Send(pair.qpn), &pair.sends),
                    Queue::Receive => (Owner::Receive(pair.qpn), &pair.receives),
                    _ => return None,
                };
                let work = works.about_to_post().filter(|work| work.wr_id == *wr_id)?;
                Some(Posting { owner, pd, work: Cow::Borrowed(work) })
            }
            Kind::Called { thread, call: call @ Call::PostReceive { srq: Some(srq), .. } } => {
                let queue = model.srqs.get(&srq.value())?;
                let mut work = Work::of_receive(event.at, *thread, call, &mut Absent)?;
                work.serial = queue.receives.posted;
                Some(Posting { owner: Owner::Shared(srq.value()), pd: Some(queue.pd), work: Cow::Owned(work) })
            }
            _ => None,
        }
    }

    pub(crate) fn is_receive(&self) -> bool {
        !matches!(self.owner, Owner::Send(_))
    }

    /// A finding about it.
    pub(crate) fn finding(&self, rule: Number, what: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { thread: self.work.thread, ..Finding::new(rule, self.owner.subject(), what, advice) }
    }

    /// What it is, for a sentence.
    pub(crate) fn name(&self) -> String {
        name(self.owner, self.work.opcode, self.work.wr_id)
    }
}

/// Work, for a sentence.
pub(crate) fn name(owner: Owner, opcode: &str, wr_id: u64) -> String {
    // Small ones are numbers, others are addresses.
    let wr_id = if wr_id < 1 << 24 { format!("{wr_id}") } else { format!("{wr_id:#x}") };
    match owner {
        Owner::Send(qpn) => format!("the {opcode} with wr_id {wr_id} on QP {qpn}"),
        Owner::Receive(qpn) => format!("the receive with wr_id {wr_id} on QP {qpn}"),
        Owner::Shared(srq) => format!("the receive with wr_id {wr_id} on SRQ {srq:#x}"),
    }
}
