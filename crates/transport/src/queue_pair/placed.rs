//! WRITEs and READs that the driver carries out by itself, where it reaches the peer's memory: they take no packets and
//! no sequence numbers, and are done before the next request is looked at. So nothing may be under way before them, and
//! everything that follows comes after them.

use super::QueuePair;
use crate::port::Port;
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
    /// What is asked of the peer: to write, or to read.
    pub access: Access,
    /// How many bytes.
    pub length: u32,
}

impl QueuePair {
    /// Whether the driver may carry out a request: a WRITE without immediate data or a READ, no longer than that,
    /// nothing wrong with it, and all that was posted before is done. Whether the peer allows it is for the driver to
    /// know. If it has done so, [`placed`](QueuePair::placed) must follow before anything else; if not, nothing has
    /// happened.
    pub fn may_place(&mut self, request: &SendRequest<'_>, longest: u32) -> Option<Placement> {
        let (remote, access) = match request.operation {
            Operation::Write { remote, immediate: None } => (remote, Access::REMOTE_WRITE),
            Operation::Read { remote } => (remote, Access::REMOTE_READ),
            _ => return None,
        };
        let reads = access == Access::REMOTE_READ;
        if !self.sends_freely() || reads && self.connection.attributes.max_rd_atomic == 0 {
            return None;
        }
        let length = u32::try_from(request.data.length()).ok().filter(|length| (1..=longest).contains(length))?;
        let una = self.completer.una();
        let is_alone = self.requester.is_at_the_end(una, &self.queue) == Some(una);
        if !is_alone || request.target.is_some() || request.xrc_srq.is_some() || !self.queue.may_post(request) {
            return None;
        }
        let to = self.connection.attributes.dest_qpn;
        Some(Placement { subject: self.connection.local(), to, remote, access, length })
    }

    /// The driver has carried it out: it is done. Counted are the packets that it would have taken, but for the
    /// acknowledgement.
    pub fn placed<P: Port>(&mut self, now: Time, request: &SendRequest<'_>, placement: &Placement, port: &mut P) {
        let length = placement.length;
        let Ok(seq) = self.queue.post_done(request, length) else { return };
        self.trace_posted(now, request, port);
        self.requester.handed_out(seq);
        self.completer.catch_up(&self.queue);
        let packets = length.div_ceil(self.connection.mtu());
        if placement.access == Access::REMOTE_WRITE {
            self.traffic.sent(Opcode::RcWriteOnly, packets, length, self.ip_header);
        } else {
            self.traffic.sent(Opcode::RcReadRequest, 1, 0, self.ip_header);
            self.traffic.received(Opcode::RcReadResponseOnly, packets, length, self.ip_header);
        }
    }
}
