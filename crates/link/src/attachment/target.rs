//! Whose packet it is, as far as the packet itself tells.

use crate::slots::Slot;
use crate::udp::Arrival;
use wire::Qpn;
use wire::cm::{CmDatagram, Message, PortSpace, ServiceId};

/// Whom a packet is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Whoever has this slot: the packet is for a queue pair.
    Queue(Slot),
    /// Whoever has this slot: the packet is of connection management, and about one of its communications.
    Communication(Slot),
    /// Whoever has this port: the packet asks for a connection.
    Service(PortSpace, u16),
    /// Whoever got it: multicast, which everybody gets, and what nobody can be named for.
    Here,
    /// Nobody: sent to all, but for a queue pair of one. Were it passed on, its owner would get as many as there are processes in the group.
    Nobody,
}

impl Target {
    /// Whom this packet is for.
    #[inline]
    pub fn of(arrival: &Arrival<'_>) -> Target {
        let destination = arrival.headers.bth.dest_qpn;
        if destination != Qpn::MULTICAST && arrival.is_multicast() {
            return Target::Nobody;
        }
        match Slot::of(destination) {
            Some(slot) => Target::Queue(slot),
            None if destination == Qpn::GSI => Target::of_management(arrival.payload),
            None => Target::Here,
        }
    }

    fn of_management(payload: &[u8]) -> Target {
        let Ok(datagram) = CmDatagram::parse(payload) else { return Target::Here };
        let service = |id: ServiceId| match (id.port_space(), id.port()) {
            (Some(space), Some(port)) => Target::Service(space, port),
            _ => Target::Here,
        };
        // An answer names the communication in the words of the one who asked. The answer to a resolution has only that.
        let ours = match datagram.message {
            Message::Req(message) => return service(message.service_id),
            Message::SidrReq(message) => return service(message.service_id),
            Message::SidrRep(message) => message.request_id,
            Message::Mra(message) => message.remote_comm_id,
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
}
