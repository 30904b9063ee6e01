//! Who may say what. A message of connection management that a process of this host wrote for another says who speaks:
//! a communication id and perhaps a queue pair, both with a slot in them. The kernel says which user sits at the other
//! end of the connection. The message is believed if no other user owns the slots: then it can end, change or begin
//! nothing that is another's. A request of another management class names the slot that its answer goes to.

use crate::arrival::Arrival;
use crate::names::{self, Name};
use crate::slot::Slot;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use wire::cm::{CmDatagram, CommId, Message};
use wire::mad::MadHeader;
use wire::{IpHeader, Opcode, Qpn, UdpHeader};

/// How long the owner of a slot is believed to be the same.
const OWNER_CACHE_TIME: Duration = Duration::from_millis(500);

/// Owners that are remembered.
const MAX_REMEMBERED_OWNERS: usize = 1024;

/// The users that own slots, as found out lately.
#[derive(Debug, Default)]
pub(super) struct Claims {
    owners: HashMap<Slot, (u32, Instant)>,
}

impl Claims {
    /// Whether that user may say this of itself.
    pub(super) fn are_true(&mut self, uid: u32, arrival: &Arrival<'_>, now: Instant) -> bool {
        let bth = &arrival.headers.bth;
        if bth.dest_qpn != Qpn::GSI || bth.opcode != Opcode::UdSendOnly {
            return false;
        }
        let Ok(datagram) = CmDatagram::parse(arrival.payload) else {
            let Ok((header, _)) = MadHeader::parse(arrival.payload) else { return false };
            // An answer claims nothing: the agent that asked compares it with its question.
            let asks = (!header.is_response()).then(|| Slot::of_communication(CommId::new(header.agent()))).flatten();
            return asks.is_none_or(|slot| self.is_free_for(uid, slot, now));
        };
        let (communication, queue_pair) = match datagram.message {
            Message::Req(message) => (Some(message.local_comm_id), Some(message.local_qpn)),
            Message::Rep(message) => (Some(message.local_comm_id), Some(message.local_qpn)),
            Message::SidrReq(message) => (Some(message.request_id), None),
            Message::SidrRep(message) => (None, Some(message.qpn)),
            Message::Mra(message) => (Some(message.local_comm_id), None),
            Message::Rej(message) => (Some(message.local_comm_id), None),
            Message::Rtu(message) => (Some(message.local_comm_id), None),
            Message::Dreq(message) => (Some(message.local_comm_id), None),
            Message::Drep(message) => (Some(message.local_comm_id), None),
            Message::Lap(message) => (Some(message.local_comm_id), None),
            Message::Apr(message) => (Some(message.local_comm_id), None),
        };
        // A refusal of what was never begun has no id, or no queue pair: it names nothing that could be another's.
        let slots = [communication.and_then(Slot::of_communication), queue_pair.and_then(Slot::of)];
        slots.into_iter().flatten().all(|slot| self.is_free_for(uid, slot, now))
    }

    /// Whether that user owns the slot, or no process does.
    fn is_free_for(&mut self, uid: u32, slot: Slot, now: Instant) -> bool {
        if let Some((owner, since)) = self.owners.get(&slot)
            && now.saturating_duration_since(*since) <= OWNER_CACHE_TIME
        {
            return *owner == uid;
        }
        match names::owner(Name::Slot(slot)) {
            Ok(Some(owner)) => {
                if self.owners.len() >= MAX_REMEMBERED_OWNERS {
                    self.owners.clear();
                }
                self.owners.insert(slot, (owner.uid, now));
                owner.uid == uid
            }
            Ok(None) => true,
            // A process has it that takes no more connections, so its user cannot be told.
            Err(_) => false,
        }
    }
}

/// Whether a packet that another process passed on ends with the right ICRC, given the headers it is said to have had.
pub(super) fn is_intact(arrival: &Arrival<'_>) -> bool {
    let Some((covered, icrc)) = arrival.bytes.split_last_chunk::<{ wire::Icrc::LEN }>() else { return false };
    let ip: &IpHeader = &arrival.ip;
    let Ok(udp) = UdpHeader::roce(arrival.port, arrival.bytes.len()) else { return false };
    wire::icrc(ip, &udp, covered) == *icrc
}
