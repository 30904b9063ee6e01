//! Messages for a tag matching shared receive queue: which buffer each takes, and what its completions say. The data of
//! a rendezvous is read by the queue pair's requester, which gets a [`Rendezvous`] for it.

use super::{Arrival, Fault, Responder};
use crate::completion::{Cause, CompletionKind, Queue, Status, TagHeader};
use crate::connection::Connection;
use crate::port::{Port, TaggedTaken, TakenReceive};
use crate::receive::scatter;
use crate::state::State;
use crate::tag_matching::{FIN_LENGTH, TMH_LENGTH, TaggedMessage, fin};
use crate::train::Inbound;
use crate::work::ReceiveWork;
use crate::work::{MAX_MESSAGE, Remote};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use trace::Failure;
use wire::NakCode;
use wire::access::Subject;

/// What the receive in hand has to do with tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tagged {
    /// Nothing.
    No,
    /// It is an ordinary one, for a message that is not to be matched.
    Untagged,
    /// It is an ordinary one, for a message that matched nothing.
    Unexpected { out_of_step: bool },
    /// It is a tagged buffer, and the data follows. `announced` when its match has been told.
    Eager { header: TagHeader, announced: bool },
    /// It is a tagged buffer, and the data is to be read.
    Rendezvous { header: TagHeader, remote: Remote, length: u32 },
}

impl Tagged {
    pub fn is_rendezvous(&self) -> bool {
        matches!(self, Tagged::Rendezvous { .. })
    }

    /// What completes when the message is there.
    pub fn kind(&self) -> CompletionKind {
        match self {
            Tagged::No => CompletionKind::Receive,
            Tagged::Untagged => CompletionKind::TagUntagged,
            Tagged::Unexpected { .. } => CompletionKind::TagUnexpected,
            Tagged::Eager { announced: true, .. } => CompletionKind::TagData,
            Tagged::Eager { .. } | Tagged::Rendezvous { .. } => CompletionKind::TagMessage,
        }
    }

    /// What completes when it went wrong.
    pub fn failed_kind(&self) -> CompletionKind {
        if self.is_matched() { self.kind() } else { CompletionKind::Receive }
    }

    fn is_matched(&self) -> bool {
        matches!(self, Tagged::Eager { .. } | Tagged::Rendezvous { .. })
    }
}

/// Data that is to be read from the sender of a message into the buffer that the message matched.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    pub work: ReceiveWork,
    pub remote: Remote,
    pub length: u32,
    /// What tells the sender that it was read.
    pub fin: [u8; FIN_LENGTH],
}

/// What a responder keeps where tags are matched.
#[derive(Debug, Default)]
pub(super) struct Tags {
    /// Matched, and not yet begun to be read.
    matched: VecDeque<Rendezvous>,
}

impl Tags {
    pub fn clear(&mut self) {
        self.matched.clear();
    }
}

impl Responder {
    /// Its shared receive queue matches tags.
    pub fn match_tags(&mut self) {
        self.tags = Some(Box::default());
    }

    #[inline]
    pub fn matches_tags(&self) -> bool {
        self.tags.is_some()
    }

    /// The next rendezvous that was matched.
    pub fn take_rendezvous(&mut self) -> Option<Rendezvous> {
        self.tags.as_mut()?.matched.pop_front()
    }

    /// How many tagged buffers it has taken and not completed, as far as anybody was told.
    pub fn tagged_in_hand(&self) -> u32 {
        let held = self.hand.held && self.hand.tagged.is_matched();
        let untold = self.completions.iter().filter(|completion| completion.kind.ends_tagged_buffer()).count();
        let matched = self.tags.as_ref().map_or(0, |tags| tags.matched.len());
        u32::from(held) + untold as u32 + matched as u32
    }

    /// Takes a buffer for the message that begins: the one that it matches, or an ordinary receive.
    pub(super) fn take_for_tag<P: Port>(
        &mut self,
        arrival: &Arrival<'_>,
        ends: bool,
        connection: &Connection,
        port: &mut P,
    ) -> TakenReceive {
        let Some(srq) = self.srq else { return TakenReceive::Unknown };
        let whole = ends && arrival.count == 1;
        let first = arrival.payload.get(..connection.mtu() as usize).unwrap_or(arrival.payload);
        let message = TaggedMessage::of(first, whole);
        let tag = message.header().map(|header| header.tag);
        let hand = &mut self.hand;
        hand.queue = Queue::Shared(srq);
        hand.subject = Some(Subject { pd: connection.tag_domain, ..connection.local() });
        hand.tagged = match port.take_tagged(connection.qpn, srq, tag, &mut hand.work) {
            TaggedTaken::Unmatched { .. } if tag.is_none() => Tagged::Untagged,
            TaggedTaken::Unmatched { out_of_step } => Tagged::Unexpected { out_of_step },
            TaggedTaken::Matched => match message {
                TaggedMessage::Untagged => Tagged::Untagged,
                TaggedMessage::Eager(header) => Tagged::Eager { header, announced: false },
                TaggedMessage::Rendezvous { header, remote, length } => Tagged::Rendezvous { header, remote, length },
            },
            TaggedTaken::Empty => return TakenReceive::Empty,
            TaggedTaken::Unknown => return TakenReceive::Unknown,
        };
        hand.held = true;
        hand.space = hand.work.space();
        TakenReceive::Taken
    }

    /// What is left of the beginning of a matched message when its header is taken off: the program gets the data
    /// alone.
    pub(super) fn after_tag<'a>(&self, arrival: &Arrival<'a>) -> Option<Arrival<'a>> {
        let matched = arrival.starts && self.hand.held && self.hand.tagged.is_matched();
        let payload = if matched { arrival.payload.get(TMH_LENGTH..) } else { None }?;
        Some(Arrival { payload, ..*arrival })
    }

    /// A message matched whose data is to be read. Where that cannot be, its headers are put into the buffer, and
    /// software goes on with it.
    pub(super) fn begin_rendezvous<P: Port>(
        &mut self,
        inbound: &Inbound<'_>,
        connection: &Connection,
        port: &mut P,
    ) -> Result<(), Fault> {
        let Tagged::Rendezvous { header, remote, length } = self.hand.tagged else { return Ok(()) };
        let (space, longest) = (self.hand.space, MAX_MESSAGE);
        let attributes = &connection.attributes;
        let sends = matches!(attributes.state, State::ReadyToSend | State::SendQueueDrained);
        let readable = sends && attributes.max_rd_atomic > 0 && u64::from(length) <= space.min(longest);
        if let (true, Some(fin), Some(tags)) = (readable, fin(inbound.payload), &mut self.tags) {
            let wr_id = self.hand.work.wr_id;
            let work = core::mem::take(&mut self.hand.work);
            tags.matched.push_back(Rendezvous { work, remote, length, fin });
            self.received(wr_id, CompletionKind::TagMatch, 0, inbound, None, connection);
        } else {
            let headers = inbound.payload.get(..FIN_LENGTH).unwrap_or(inbound.payload);
            if headers.len() as u64 > space {
                return Err(Fault {
                    code: NakCode::InvalidRequest,
                    receive: Status::LocalLength,
                    cause: Failure::TooLong { length: length.into(), space },
                    event: None,
                });
            }
            let local = self.hand.subject.unwrap_or(connection.local());
            scatter(&self.hand.work.sges, 0, headers, local, port).map_err(|refusal| Fault {
                code: NakCode::RemoteOperational,
                receive: Status::LocalProtection,
                cause: Failure::Refused(refusal),
                event: None,
            })?;
            let (wr_id, bytes) = (self.hand.work.wr_id, headers.len() as u64);
            self.received(wr_id, CompletionKind::TagMessage, bytes, inbound, None, connection);
            if let Some(completion) = self.completions.back_mut() {
                (completion.status, completion.solicited) = (Status::RendezvousIncomplete, true);
            }
        }
        if let Some(completion) = self.completions.back_mut() {
            completion.cause = Some(Cause::Matched(header));
        }
        self.hand.held = false;
        self.hand.tagged = Tagged::No;
        Ok(())
    }

    /// The first packet of a message of several matched: the program hears of the match now, and of the data when it is
    /// there.
    pub(super) fn announce_match(&mut self, inbound: &Inbound<'_>, connection: &Connection) {
        let single = inbound.headers.bth.opcode.ends() && inbound.count == 1;
        if let Tagged::Eager { header, announced } = &mut self.hand.tagged
            && !single
        {
            *announced = true;
            let cause = Cause::Matched(*header);
            self.received(self.hand.work.wr_id, CompletionKind::TagMatch, 0, inbound, None, connection);
            if let Some(completion) = self.completions.back_mut() {
                (completion.cause, completion.solicited, completion.immediate) = (Some(cause), false, None);
            }
        }
    }

    /// Adds to the completion of the message in hand what its tag has to say. What was said with the match is not said
    /// again.
    pub(super) fn name_tag(&mut self) {
        let cause = match self.hand.tagged {
            Tagged::Eager { header, announced: false } => Some(Cause::Matched(header)),
            Tagged::Unexpected { out_of_step: true } => Some(Cause::OutOfStep),
            _ => None,
        };
        if let Some(completion) = self.completions.back_mut() {
            completion.cause = cause;
        }
        self.hand.tagged = Tagged::No;
    }
}
