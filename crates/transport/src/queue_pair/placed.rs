//! WRITEs and READs that the driver carries out by itself, where it reaches the peer's memory: they take no packets and
//! no sequence numbers, and are done before the next request is looked at. So nothing may be under way before them, and
//! everything that follows comes after them.
//!
//! A program that always has requests under way never comes to that point. So a driver may hold requests back until what
//! is under way is done ([`QueuePair::hold_back`]), and then carries them out of the queue, one after the other.

use super::QueuePair;
use crate::port::Port;
use crate::send_queue::Outcome;
use crate::state::State;
use crate::work::{Operation, Remote, SendRequest};
use trace::Time;
use wire::access::{Access, Subject};
use wire::{Opcode, Qpn};

/// A request that the driver may carry out.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// On whose behalf local memory is touched.
    pub subject: Subject,
    /// The peer's queue pair.
    pub to: Qpn,
    /// Where in the peer's memory.
    pub remote: Remote,
    /// What is asked of the peer: to write, to read, or an atomic operation.
    pub access: Access,
    /// How many bytes.
    pub length: u32,
}

/// Whether a request may be carried out by the driver.
#[derive(Clone, Copy, Debug)]
pub enum MayPlace {
    /// It may.
    Now(Placement),
    /// It may, once what is under way is done.
    AfterOthers(Placement),
    /// It may not.
    Never,
}

impl QueuePair {
    /// Whether its peer's requests are taken, and the first of them has been noticed: in RTR the program is told of it.
    #[inline]
    pub fn takes_requests(&self) -> bool {
        match self.state() {
            State::ReadyToSend => true,
            State::ReadyToReceive => self.established,
            _ => false,
        }
    }

    /// Whether the driver may carry out a request: a WRITE without immediate data, a READ or an atomic, no longer
    /// than that, nothing wrong with it, and all that was posted before is done. Whether the peer allows it is for the
    /// driver to know. If it has done so, [`placed`](QueuePair::placed) must follow before anything else; if not, nothing has
    /// happened.
    #[inline]
    pub fn may_place(&mut self, request: &SendRequest<'_>, longest: u32) -> MayPlace {
        let Some(placement) = self.placement_of(request, longest) else { return MayPlace::Never };
        let una = self.completer.una();
        if !self.queue.may_post(request) {
            return MayPlace::Never;
        }
        match self.requester.is_at_the_end(una, &self.queue) == Some(una) {
            true => MayPlace::Now(placement),
            false => MayPlace::AfterOthers(placement),
        }
    }

    #[inline]
    fn placement_of(&self, request: &SendRequest<'_>, longest: u32) -> Option<Placement> {
        let (remote, access) = match request.operation {
            Operation::Write { remote, immediate: None } => (remote, Access::REMOTE_WRITE),
            Operation::Read { remote } => (remote, Access::REMOTE_READ),
            Operation::FetchAdd { remote, .. } | Operation::CompareSwap { remote, .. } => {
                (remote, Access::REMOTE_ATOMIC)
            }
            _ => return None,
        };
        let is_answered = access != Access::REMOTE_WRITE;
        if !self.sends_freely() || is_answered && self.connection.attributes.max_rd_atomic == 0 {
            return None;
        }
        let mut length = u32::try_from(request.data.length()).ok().filter(|length| (1..=longest).contains(length))?;
        if access == Access::REMOTE_ATOMIC {
            // Too short, and the requester says so.
            length = if length < 8 { return None } else { 8 };
        }
        if request.target.is_some() || request.xrc_srq.is_some() {
            return None;
        }
        let to = self.connection.attributes.dest_qpn;
        Some(Placement { subject: self.connection.local(), to, remote, access, length })
    }

    /// The driver has carried it out: it is done. Counted are the packets that it would have taken, but for the
    /// acknowledgement.
    #[inline]
    pub fn placed<P: Port>(&mut self, now: Time, request: &SendRequest<'_>, placement: &Placement, port: &mut P) {
        // One of which the program hears nothing leaves no trace in the queue.
        if self.queue.hears_of(request) {
            let Ok(seq) = self.queue.post_done(request, placement.length) else { return };
            self.requester.handed_out(seq);
            self.completer.catch_up(&self.queue);
        }
        self.trace_posted(now, request, port);
        self.count_placed(placement);
    }

    #[inline]
    fn count_placed(&mut self, placement: &Placement) {
        let (length, mtu) = (placement.length, self.connection.mtu());
        // Dividing takes as long as the rest of it.
        let packets = if length <= mtu { 1 } else { length.div_ceil(mtu) };
        if placement.access == Access::REMOTE_WRITE {
            self.traffic.sent(Opcode::RcWriteOnly, packets, length, self.ip_header);
        } else if placement.access == Access::REMOTE_READ {
            self.traffic.sent(Opcode::RcReadRequest, 1, 0, self.ip_header);
            self.traffic.received(Opcode::RcReadResponseOnly, packets, length, self.ip_header);
        } else {
            // A CMP_SWAP is counted as one, too: both are as long.
            self.traffic.sent(Opcode::RcFetchAdd, 1, 0, self.ip_header);
            self.traffic.received(Opcode::RcAtomicAcknowledge, 1, 0, self.ip_header);
        }
    }

    /// From now on work that has not begun stays in the queue, or does no more.
    pub fn hold_back(&mut self, holds: bool) {
        self.holds_back = holds;
    }

    /// Whether it does.
    #[inline]
    pub fn holds_back(&self) -> bool {
        self.holds_back
    }

    /// The first request that is held back, and whether the driver may carry it out; none if there is none.
    pub fn next_held(&self, longest: u32) -> Option<(SendRequest<'_>, MayPlace)> {
        let work = self.requester.next_work(&self.queue).filter(|work| !work.started && work.outcome().is_none())?;
        let request = work.as_request();
        let is_first = self.requester.is_going_on() && self.requester.psn() == self.completer.una();
        let may = match self.placement_of(&request, longest).filter(|_| !work.is_own()) {
            None => MayPlace::Never,
            Some(placement) if is_first => MayPlace::Now(placement),
            Some(placement) => MayPlace::AfterOthers(placement),
        };
        Some((request, may))
    }

    /// The driver has carried out the first request that is held back.
    pub fn placed_held(&mut self, placement: &Placement) {
        let seq = self.requester.next_seq(&self.queue);
        self.queue.start(seq, self.requester.psn(), 0);
        self.queue.settle(seq, Outcome::Done);
        self.requester.handed_out(seq);
        self.completer.catch_up(&self.queue);
        self.count_placed(placement);
    }
}
