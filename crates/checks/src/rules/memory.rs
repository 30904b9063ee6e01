//! Memory: UV-02xx. What the program registers, names in work requests, and lends to the NIC.

mod claims;
mod contents;
mod pieces;
mod registration;
mod sharing;
mod windows;

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;

use trace::{Call, Event, Kind, Queue};
use wire::Qpn;

use crate::checker::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::model::{Model, Work};
use crate::rule::{Number, rules};
use crate::witness::{Absent, Witness};

rules! {
    CHANGED_UNDER_WAY = 201 Error "a buffer was changed while its work was under way";
    RECEIVES_OVERLAP = 202 Warning "posted receives share part of their memory";
    RECEIVES_EQUAL = 203 Warning "a receive buffer is posted twice";
    RESULT_SHARED = 204 Warning "a READ or atomic puts its result where other work has its buffer";
    SOURCE_SHARED = 205 Warning "a buffer is sent while a receive is posted into it";
    RECEIVE_CHANGED = 206 Warning "a receive buffer was changed while it was posted";
    GONE_UNDER_WAY = 207 Error "memory was deregistered while work on it was under way";
    GONE_WHILE_POSTED = 208 Warning "memory was deregistered while receives in it were posted";
    UNMAPPED = 209 Warning "memory was unmapped while it was registered";
    UNMAPPED_UNDER_WAY = 210 Error "work is posted on memory that is not mapped";
    WRONG_DOMAIN = 211 Error "a work request uses a key of another protection domain";
    OUTSIDE_REGION = 212 Error "a piece of a work request reaches outside its region";
    KEY_IS_GONE = 213 Error "a work request uses the key of memory that was deregistered";
    NOT_WRITABLE = 214 Error "the NIC is to write into memory without LOCAL_WRITE";
    STACK_IS_OPEN = 215 Warning "peers may reach memory of a stack";
    REGISTERED_AGAIN = 216 Performance "the same memory is registered many times";
    RIGHTS_UNUSED = 217 Note "rights of peers were granted and never used";
    BINDING_UNUSED = 218 Note "a region allows windows and never had one";
    CHANGED_REGISTRATION = 219 Error "a registration was changed while work on it was under way";
    ATOMIC_MISALIGNED = 220 Error "the target of an atomic is not aligned to 8 bytes";
    ATOMIC_RESULT_SHORT = 221 Error "the result of an atomic has less than 8 bytes of room";
    MANY_SMALL_REGIONS = 222 Performance "many small regions lie close together";
    WINDOW_KEY_UNCHANGED = 223 Warning "a window is bound again under the key it had before";
    WINDOW_NEVER_BOUND = 224 Note "a window was never bound";
    PIECES_ADJACENT = 225 Performance "pieces of a list follow each other in memory";
    PIECE_EMPTY = 226 Note "a list has a piece of zero bytes beside others";
    PIECES_OVERLAP = 227 Error "pieces of one work request overlap where the NIC writes";
    EVERYTHING_IS_OPEN = 228 Warning "peers may reach the whole address space";
    KEY_NEVER_SET = 229 Error "a piece of a work request has key 0";
}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Memory {
    claims: claims::Claims,
    contents: contents::Contents,
    pieces: pieces::Pieces,
    registration: registration::Registration,
    sharing: sharing::Sharing,
}

impl Examine for Memory {
    fn sees(&self) -> Sort {
        Sort::POST | Sort::POSTED | Sort::COMPLETED | Sort::POLL | Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        match moment.event.kind {
            Kind::Called { call: Call::Poll { .. }, .. } => return,
            Kind::Called { call: Call::Polled { wr_id, .. }, .. } => {
                return self.contents.polled(wr_id, moment, &self.claims, out);
            }
            _ => {}
        }
        if let Some(posting) = moment.posting {
            let usable = self.pieces.posted(posting, moment.model, out);
            self.registration.posted(posting, moment, out);
            if usable {
                self.sharing.posted(posting, moment.model, &self.claims, out);
                self.claims.add(posting, moment.model);
            }
        }
        self.contents.observe(moment, &self.claims, out);
        self.sharing.observe(moment, &self.claims, out);
        self.claims.observe(moment);
        if let Kind::Called { call, .. } = &moment.event.kind {
            self.registration.called(call, moment, out);
            windows::called(call, moment.model, out);
        }
    }

    fn tick(&mut self, now: u64, model: &Model, witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.contents.tick(now, model, out);
        self.registration.tick(now, model, witness, out);
    }

    fn finish(&mut self, _now: u64, model: &Model, witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.contents.finish(model, out);
        registration::finish(model, witness, out);
        windows::finish(model, out);
    }
}

/// The queue that work was posted to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Owner {
    Send(Qpn),
    Receive(Qpn),
    Shared(u32),
}

impl Owner {
    pub(super) fn subject(self) -> Subject {
        match self {
            Owner::Send(qpn) | Owner::Receive(qpn) => Subject::QueuePair(qpn),
            Owner::Shared(srq) => Subject::SharedQueue(srq),
        }
    }

    /// The queue of a completion.
    fn of(moment: &Moment<'_>, queue: Queue) -> Option<Owner> {
        let pair = moment.model.pair_of(moment.event)?;
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

    pub(super) fn is_receive(&self) -> bool {
        !matches!(self.owner, Owner::Send(_))
    }

    /// A finding about it.
    pub(super) fn finding(&self, rule: Number, what: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { thread: self.work.thread, ..Finding::new(rule, self.owner.subject(), what, advice) }
    }

    /// What it is, for a sentence.
    pub(super) fn name(&self) -> String {
        name(self.owner, self.work.opcode, self.work.wr_id)
    }
}

/// Work, for a sentence.
pub(super) fn name(owner: Owner, opcode: &str, wr_id: u64) -> String {
    // Small ones are numbers, others are addresses.
    let wr_id = if wr_id < 1 << 24 { format!("{wr_id}") } else { format!("{wr_id:#x}") };
    match owner {
        Owner::Send(qpn) => format!("the {opcode} with wr_id {wr_id} on QP {qpn}"),
        Owner::Receive(qpn) => format!("the receive with wr_id {wr_id} on QP {qpn}"),
        Owner::Shared(srq) => format!("the receive with wr_id {wr_id} on SRQ {srq:#x}"),
    }
}

/// Memory, for a sentence.
fn range(start: u64, length: u64) -> String {
    format!("[{start:#x}, +{length})")
}
