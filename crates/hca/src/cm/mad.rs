//! Messages on the wire: management datagrams between queue pairs 1.

use crate::nic::Nic;
use link::udp::{Cargo, Route};
use std::convert::Infallible;
use wire::cm::CmDatagram;
use wire::mad::MAD_LEN;
use wire::{Deth, Headers, Opcode, Pkey, Psn, Qkey, Qpn};

struct Mad {
    headers: Headers,
    bytes: [u8; MAD_LEN],
}

impl Cargo for Mad {
    type Error = Infallible;

    fn count(&self) -> u32 {
        1
    }

    fn packet(&self, _: u32) -> (Headers, usize) {
        (self.headers, self.bytes.len())
    }

    fn payload(&mut self, _: u32, out: &mut [u8]) -> Result<(), Infallible> {
        out.copy_from_slice(&self.bytes);
        Ok(())
    }
}

/// Sends a message. If it gets lost, who sent it will find out.
pub(super) fn send(nic: &Nic, route: &::cm::Route, datagram: &CmDatagram, psn: u32) {
    let mut bytes = [0; MAD_LEN];
    if datagram.encode(&mut bytes).is_err() {
        return;
    }
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(psn));
    headers.bth.ack_req = true;
    headers.bth.pkey = Pkey::DEFAULT;
    headers.deth = Some(Deth { qkey: Qkey::GSI, src_qpn: Qpn::GSI });
    let (source, destination) = (route.source.to_ip(), route.destination.to_ip());
    let scope = match super::route::is_link_local(destination) {
        true => nic.interface_of(route.source),
        false => 0,
    };
    let route = Route { source, destination, scope, traffic_class: 0, hop_limit: 64 };
    nic.send_mad(&route, &mut Mad { headers, bytes }, &headers);
}
