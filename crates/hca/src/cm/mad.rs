//! Messages on the wire: management datagrams between queue pairs 1. A packet for queue pair 1 must be one that a queue
//! pair 1 of the default partition has sent (specification 9.6 and 13.5.3); then its payload is looked at.

use crate::ground::Ground;
use ::cm::Transmit;
use link::Destination;
use link::udp::PortProbe;
use trace::DropReason;
use wire::cm::CmDatagram;
use wire::mad::{MAD_LEN, MadHeader};
use wire::{Deth, Headers, Opcode, Pkey, Psn, Qkey, Qpn};

/// The message in a packet that was sent to queue pair 1, or what is wrong with the packet. None for a datagram of
/// another class, which is for agents.
pub(super) fn read(headers: &Headers, payload: &[u8]) -> Result<Option<CmDatagram>, DropReason> {
    if headers.bth.opcode != Opcode::UdSendOnly {
        return Err(DropReason::BadOpcodeForTransport);
    }
    if !Pkey::DEFAULT.matches(headers.bth.pkey) {
        return Err(DropReason::PkeyMismatch);
    }
    let Some(deth) = headers.deth else { return Err(DropReason::Malformed) };
    if deth.qkey != Qkey::GSI {
        return Err(DropReason::QkeyMismatch);
    }
    if deth.src_qpn != Qpn::GSI {
        return Err(DropReason::NotFromGsi);
    }
    match MadHeader::parse(payload) {
        Ok((header, _))
            if header.management_class == MadHeader::CLASS_CM && header.method == MadHeader::METHOD_SEND =>
        {
            CmDatagram::parse(payload).map(Some).map_err(|_| DropReason::NotManagement)
        }
        Ok(_) if payload.len() == MAD_LEN => Ok(None),
        _ => Err(DropReason::NotManagement),
    }
}

/// Sends a message. If it gets lost, its sender's timer will tell; then it goes from another socket, for one flow may not
/// get through. All messages that were not sent before come from one socket, so that networks keep them in order.
pub(super) fn send(nic: &Ground, transmit: &Transmit, psn: u32) {
    if let Some((to, headers, bytes)) = packet(nic, transmit, psn) {
        nic.send_mad(&to, &headers, &bytes);
    }
}

/// Sends a message from the socket of a probe.
pub(super) fn probe(nic: &Ground, probe: &mut PortProbe, transmit: &Transmit, psn: u32) {
    if let Some((to, headers, bytes)) = packet(nic, transmit, psn) {
        nic.probe_port(probe, &to, &headers, &bytes);
    }
}

/// The packet of a message, and where it goes.
fn packet(nic: &Ground, transmit: &Transmit, psn: u32) -> Option<(Destination, Headers, [u8; MAD_LEN])> {
    let Transmit { route, datagram, again } = transmit;
    let mut bytes = [0; MAD_LEN];
    if datagram.encode(&mut bytes).is_err() {
        nic.dropped(nic.now(), Some(Qpn::GSI), None, DropReason::Malformed);
        return None;
    }
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(psn));
    headers.bth.ack_req = true;
    headers.bth.pkey = Pkey::DEFAULT;
    headers.deth = Some(Deth { qkey: Qkey::GSI, src_qpn: Qpn::GSI });
    let scope = match ::cm::id::address::is_link_local(route.destination.to_ip()) {
        true => nic.host.interface_of(route.source),
        false => 0,
    };
    let ::cm::Route { source, destination } = *route;
    let from = if *again { Qpn::new(psn) } else { Qpn::GSI };
    let to = Destination { source, destination, from, scope, traffic_class: 0, hop_limit: 64 };
    Some((to, headers, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::cm::{CommId, Data, Rtu};

    #[test]
    fn queue_pair_1_hears_only_queue_pairs_1_of_the_default_partition() {
        let rtu = Rtu { local_comm_id: CommId::new(1), remote_comm_id: CommId::new(2), private_data: Data::default() };
        let message = CmDatagram::new(3, rtu.into());
        let mut payload = [0; MAD_LEN];
        message.encode(&mut payload).unwrap();
        let mut good = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(9));
        good.deth = Some(Deth { qkey: Qkey::GSI, src_qpn: Qpn::GSI });
        let with = |change: fn(&mut Headers)| {
            let mut headers = good;
            change(&mut headers);
            read(&headers, &payload)
        };
        assert_eq!(with(|_| ()), Ok(Some(message)));
        assert_eq!(with(|headers| headers.bth.pkey = Pkey::new(0x7fff)), Ok(Some(message)), "a limited member");
        for (reason, change) in [
            (
                DropReason::BadOpcodeForTransport,
                (|headers| headers.bth.opcode = Opcode::UdSendOnlyImmediate) as fn(&mut Headers),
            ),
            (DropReason::BadOpcodeForTransport, |headers| headers.bth.opcode = Opcode::RcSendOnly),
            (DropReason::PkeyMismatch, |headers| headers.bth.pkey = Pkey::new(0x8001)),
            (DropReason::PkeyMismatch, |headers| headers.bth.pkey = Pkey::new(0)),
            (DropReason::Malformed, |headers| headers.deth = None),
            (DropReason::QkeyMismatch, |headers| headers.deth = Some(Deth { qkey: Qkey::new(1), src_qpn: Qpn::GSI })),
            (DropReason::NotFromGsi, |headers| headers.deth = Some(Deth { qkey: Qkey::GSI, src_qpn: Qpn::new(7) })),
        ] {
            assert_eq!(with(change), Err(reason));
        }
        assert_eq!(read(&good, &[7; 16]), Err(DropReason::NotManagement));
        // Other classes are none of its business; what is short is nobody's.
        payload[1] = MadHeader::CLASS_PERFORMANCE;
        assert_eq!(read(&good, &payload), Ok(None));
        assert_eq!(read(&good, &payload[..255]), Err(DropReason::NotManagement));
    }
}
