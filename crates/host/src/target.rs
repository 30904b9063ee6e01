//! The process that a packet is for, as far as the packet itself tells.

use crate::arrival::Arrival;
use crate::slot::Slot;
use wire::Qpn;
use wire::cm::{CmDatagram, CommId, Message, PortSpace, RejectReason, ServiceId};
use wire::mad::MadHeader;

/// The process that a packet is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The owner of this slot: the packet is for a queue pair.
    Queue(Slot),
    /// The owner of this slot: the packet is of connection management, and about one of its communications.
    Communication(Slot),
    /// The owner of this port: the packet asks for a connection.
    Service(PortSpace, u16),
    /// One process of this host, and it does not say which: a peer gives up a request before it has learnt our id for
    /// it. Every process gets it, and the one that has the request takes it.
    AllProcesses,
    /// The process that received it: multicast, which every process of the group gets, and packets that name no owner.
    Here,
    /// No process: sent to all, but for a queue pair of one. Were it passed on, its owner would get as many as there
    /// are processes in the group.
    NoProcess,
}

impl Target {
    /// The process that this packet is for.
    #[inline]
    pub fn of(arrival: &Arrival<'_>) -> Target {
        let destination = arrival.headers.bth.dest_qpn;
        if destination != Qpn::MULTICAST && arrival.is_multicast() {
            return Target::NoProcess;
        }
        match Slot::of(destination) {
            Some(slot) => Target::Queue(slot),
            None if destination == Qpn::GSI => Target::of_management(arrival.payload),
            None => Target::Here,
        }
    }

    fn of_management(payload: &[u8]) -> Target {
        let Ok(datagram) = CmDatagram::parse(payload) else { return Target::of_other_management(payload) };
        let service = |id: ServiceId| match (id.port_space(), id.port()) {
            (Some(space), Some(port)) => Target::Service(space, port),
            _ => Target::Here,
        };
        // An answer names the communication by the asking process's id. The answer to a resolution has only that.
        let ours = match datagram.message {
            Message::Req(message) => return service(message.service_id),
            Message::SidrReq(message) => return service(message.service_id),
            Message::SidrRep(message) => message.request_id,
            Message::Mra(message) => message.remote_comm_id,
            Message::Rej(message)
                if message.remote_comm_id == CommId::new(0) && message.reason == RejectReason::Timeout =>
            {
                return Target::AllProcesses;
            }
            Message::Rej(message) => message.remote_comm_id,
            Message::Rep(message) => message.remote_comm_id,
            Message::Rtu(message) => message.remote_comm_id,
            Message::Dreq(message) => message.remote_comm_id,
            Message::Drep(message) => message.remote_comm_id,
            Message::Lap(message) => message.remote_comm_id,
            Message::Apr(message) => message.remote_comm_id,
        };
        Slot::of_communication(ours).map_or(Target::Here, Target::Communication)
    }

    /// A datagram of another class: an answer names the agent that asked by a number of its slot. A request names none:
    /// the process that gets it finds out who has the class.
    fn of_other_management(payload: &[u8]) -> Target {
        match MadHeader::parse(payload) {
            Ok((header, _)) if header.is_response() => {
                Slot::of_communication(CommId::new(header.agent())).map_or(Target::Here, Target::Communication)
            }
            _ => Target::Here,
        }
    }
}
