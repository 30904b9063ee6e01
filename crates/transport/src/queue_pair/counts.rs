//! What a queue pair counts of itself, but for what lies on the shortest way.

use super::QueuePair;
use crate::completion::{Completion, Status};
use crate::packet_counters::{Counters, Incidents, ip_header};
use crate::state::Kind;
use crate::train::Inbound;
use wire::access::ProtectionDomain;
use wire::{Gid, NakCode, Opcode, Operation, Srqn, Syndrome};

impl QueuePair {
    /// What it has counted since it was made; a reset changes nothing.
    pub fn counters(&self) -> Counters {
        Counters { traffic: self.traffic, incidents: self.incidents, ..Counters::default() }
    }

    /// Its protection domain.
    pub fn domain(&self) -> ProtectionDomain {
        self.connection.pd
    }

    /// The shared receive queue that it takes its receives from.
    pub fn shared_queue(&self) -> Option<Srqn> {
        self.responder.srq()
    }

    /// What its driver saw and this queue pair could not: links that are full or refuse, acknowledgements that wait.
    pub fn incidents(&mut self) -> &mut Incidents {
        &mut self.incidents
    }

    /// A packet without payload was sent that [`poll_transmit`](QueuePair::poll_transmit) did not hand out: an
    /// acknowledgement that had waited, or a question.
    #[inline]
    pub fn sent_alone(&mut self, opcode: Opcode) {
        self.traffic.sent(opcode, 1, 0, self.ip_header);
    }

    pub(super) fn count_sent(&mut self, opcode: Opcode, count: u32, length: u32, again: bool, target: Option<Gid>) {
        let ip_header = target.map_or(self.ip_header, ip_header);
        self.traffic.sent(opcode, count, length, ip_header);
        self.traffic.sends += u64::from(opcode.operation() == Operation::Send && opcode.ends() && !again);
        if target.is_some_and(Gid::is_multicast) {
            self.incidents.multicast_sent_packets += u64::from(count);
        }
    }

    pub(super) fn count_received(&mut self, inbound: &Inbound<'_>) {
        let ip_header = match self.connection.kind {
            Kind::UnreliableDatagram => ip_header(inbound.from),
            _ => self.ip_header,
        };
        let opcode = inbound.headers.bth.opcode;
        self.traffic.received(opcode, inbound.count, inbound.payload.len() as u32, ip_header);
        if inbound.congestion_marked {
            self.incidents.marked_packets += u64::from(inbound.count);
        }
        match opcode.operation() {
            Operation::ReadRequest => self.incidents.read_requests += 1,
            Operation::CompareSwap | Operation::FetchAdd => self.incidents.atomic_requests += 1,
            _ => {}
        }
    }

    pub(super) fn count_receive(&mut self, completion: &Completion) {
        self.traffic.receives += u64::from(completion.status == Status::Success);
    }
}

impl Incidents {
    pub(super) fn nak_received(&mut self, syndrome: Syndrome) {
        match syndrome {
            Syndrome::RnrNak { .. } => self.rnr_naks_received += 1,
            Syndrome::Nak(NakCode::SequenceError) => self.sequence_naks_received += 1,
            _ => {}
        }
    }
}
