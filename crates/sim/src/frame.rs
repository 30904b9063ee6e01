//! Packets as bytes: the frame a host puts on a datagram link, and what its receiver makes of it. The layout is
//! `wire`'s; here a path becomes outer headers.

use trace::DropReason;
use transport::AddressVector;
use wire::ip::source_port_of_flow_label;
use wire::{
    Ecn, EncodeError, Ethernet, Frame, Gid, Headers, IpHeader, Opcode, Packet, ParseError, Qpn, ROCE_PORT, UdpHeader,
    grh_bytes, refuse_if, source_port,
};

use crate::host::HostId;

/// What the outer headers of a packet follow from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Path {
    pub(crate) from: HostId,
    pub(crate) to: HostId,
    pub(crate) source: Gid,
    pub(crate) destination: Gid,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) flow_label: u32,
    pub(crate) source_port: u16,
}

impl Path {
    pub(crate) fn new(from: HostId, to: HostId, source: Gid, av: &AddressVector, local: Qpn, remote: Qpn) -> Path {
        Path {
            from,
            to,
            source,
            destination: av.dgid,
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
            flow_label: av.flow_label,
            source_port: match av.flow_label {
                0 => source_port(local, remote),
                label => source_port_of_flow_label(label),
            },
        }
    }

    /// The IP header for `length` bytes of UDP payload, which begins with this opcode.
    pub(crate) fn ip(&self, opcode: Opcode, length: usize, marked: bool) -> Result<IpHeader, EncodeError> {
        let mut ip = IpHeader::udp(self.source, self.destination, length)?;
        let ecn = if marked { Ecn::Experienced } else { Ecn::of_sent(opcode) };
        let class = ecn.in_class(self.traffic_class);
        match &mut ip {
            IpHeader::V4(header) => {
                header.tos = class;
                header.ttl = self.hop_limit;
            }
            IpHeader::V6(header) => {
                header.traffic_class = class;
                header.hop_limit = self.hop_limit;
                header.flow_label = self.flow_label;
            }
        }
        Ok(ip)
    }

    fn ethernet(&self, ip: &IpHeader) -> Ethernet {
        let destination = if self.destination.is_multicast() { multicast_mac(self.destination) } else { mac(self.to) };
        Ethernet { destination, source: mac(self.from), ethertype: ip.ethertype() }
    }
}

/// The length of the frame that carries this packet.
pub(crate) fn length(path: &Path, headers: &Headers, payload: &[u8]) -> usize {
    let ip = if path.source.to_ip().is_ipv4() && path.destination.to_ip().is_ipv4() { 20 } else { 40 };
    Ethernet::LEN + ip + UdpHeader::LEN + Packet { headers: *headers, payload }.encoded_length()
}

/// Writes a packet as a frame over whatever `out` held.
pub(crate) fn encode(
    path: &Path,
    headers: &Headers,
    payload: &[u8],
    marked: bool,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let packet = Packet { headers: *headers, payload };
    let length = packet.encoded_length();
    let ip = path.ip(headers.bth.opcode, length, marked)?;
    let udp = UdpHeader::roce(path.source_port, length)?;
    out.clear();
    out.resize(Ethernet::LEN + ip.header_length() + UdpHeader::LEN + length, 0);
    let mut at = path.ethernet(&ip).encode(out)?;
    at += ip.encode(&mut out[at..])?;
    at += udp.encode(&mut out[at..])?;
    packet.encode(&ip, &udp, &mut out[at..])?;
    Ok(())
}

/// A frame that was understood.
pub(crate) struct Understood<'a> {
    pub(crate) packet: Packet<'a>,
    pub(crate) source: Gid,
    pub(crate) destination: Gid,
    pub(crate) grh: [u8; 40],
    pub(crate) marked: bool,
}

/// Reads a frame and checks its ICRC.
pub(crate) fn decode(bytes: &[u8]) -> Result<Understood<'_>, DropReason> {
    let frame = Frame::parse(bytes).map_err(|_| DropReason::Malformed)?;
    refuse_if!(frame.udp.destination_port != ROCE_PORT, DropReason::Malformed);
    let packet = Packet::parse_checked(&frame.ip, &frame.udp, frame.payload).map_err(|error| match error {
        ParseError::BadIcrc { .. } => DropReason::BadIcrc,
        _ => DropReason::Malformed,
    })?;
    Ok(Understood {
        packet,
        source: frame.ip.source(),
        destination: frame.ip.destination(),
        grh: grh_bytes(&frame.ip),
        marked: Ecn::of(frame.ip.traffic_class()) == Ecn::Experienced,
    })
}

/// Marks a frame, if its sender takes marks. Returns whether it is marked now.
pub(crate) fn mark(bytes: &mut [u8]) -> bool {
    let Ok(Frame { mut ip, .. }) = Frame::parse(bytes) else { return false };
    if Ecn::of(ip.traffic_class()) == Ecn::NotCapable {
        return false;
    }
    ip.set_traffic_class(Ecn::Experienced.in_class(ip.traffic_class()));
    bytes.get_mut(Ethernet::LEN..).is_some_and(|out| ip.encode(out).is_ok())
}

/// Locally administered, with the host's number in it.
fn mac(host: HostId) -> [u8; 6] {
    let [a, b, c, d] = host.0.wrapping_add(1).to_be_bytes();
    [2, 0, a, b, c, d]
}

/// RFC 1112 and RFC 2464.
fn multicast_mac(group: Gid) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    if group.to_ip().is_ipv4() { [1, 0, 0x5e, b & 0x7f, c, d] } else { [0x33, 0x33, a, b, c, d] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use wire::Psn;

    fn path(source: Gid, destination: Gid) -> Path {
        let av = AddressVector { dgid: destination, traffic_class: 0x68, hop_limit: 3, ..AddressVector::default() };
        Path::new(HostId(0), HostId(1), source, &av, Qpn::new(0x11), Qpn::new(0x12))
    }

    #[test]
    fn a_frame_is_understood_by_its_receiver_in_both_families() {
        let v4 = |last| Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, last));
        let v6 = |last| Gid::from_ipv6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
        for path in [path(v4(1), v4(2)), path(v6(1), v6(2))] {
            for marked in [false, true] {
                let headers = Headers::new(Opcode::RcSendOnly, Qpn::new(0x12), Psn::new(7));
                let mut bytes = Vec::new();
                encode(&path, &headers, b"hello", marked, &mut bytes).unwrap();
                assert_eq!(bytes.len(), length(&path, &headers, b"hello"));
                let understood = decode(&bytes).ok().unwrap();
                assert_eq!(understood.packet.payload, b"hello");
                assert_eq!(understood.packet.headers.bth.psn, Psn::new(7));
                assert_eq!((understood.source, understood.destination), (path.source, path.destination));
                assert_eq!(understood.marked, marked);
                // A switch marks it without touching anything else that counts.
                assert!(mark(&mut bytes) && decode(&bytes).is_ok_and(|understood| understood.marked));
                *bytes.last_mut().unwrap() ^= 1;
                assert_eq!(decode(&bytes).err(), Some(DropReason::BadIcrc));
                bytes.truncate(40);
                assert_eq!(decode(&bytes).err(), Some(DropReason::Malformed));
            }
            let mut bytes = Vec::new();
            encode(&path, &Headers::cnp(Qpn::new(0x12)), &Headers::CNP_PAYLOAD, false, &mut bytes).unwrap();
            assert!(!mark(&mut bytes) && decode(&bytes).is_ok_and(|understood| !understood.marked));
        }
    }
}
