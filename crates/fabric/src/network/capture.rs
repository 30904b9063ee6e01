//! Captures of hosts for Wireshark: what a host sends, when its NIC hands it to the port, and what arrives. Here, and
//! only here, packets become bytes; payload is zeroes.

use super::Network;
use crate::endpoint::{gid_of, qpn_of};
use crate::packets::{FLAG_MARKED, Packet as SentPacket};
use trace::{Direction, Error, Interface, PcapNg};
use wire::{Ecn, EncodeError, Ethernet, IpHeader, Packet, UdpHeader, source_port};

/// One file for each host that is captured.
pub(super) struct Captures {
    files: Vec<(u32, Option<(PcapNg<Vec<u8>>, Interface)>)>,
    failed: Option<Error>,
}

impl Captures {
    pub fn new(hosts: &[u32]) -> Captures {
        let mut captures = Captures { files: Vec::new(), failed: None };
        for host in hosts {
            let begun = PcapNg::new(Vec::new()).and_then(|mut file| {
                let interface = file.interface(&format!("host{host}"))?;
                Ok((file, interface))
            });
            match begun {
                Ok(file) => captures.files.push((*host, Some(file))),
                Err(error) => captures.failed = Some(error),
            }
        }
        captures
    }

    pub fn finish(self) -> Result<Vec<(u32, Vec<u8>)>, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let files = self.files.into_iter().filter_map(|(host, file)| file.map(|(file, _)| (host, file)));
        files.map(|(host, file)| Ok((host, file.finish()?))).collect()
    }
}

impl Network {
    /// A packet leaves or reaches a host.
    pub(super) fn capture(&mut self, host: u32, sent: &SentPacket, inbound: bool) {
        let Some(captures) = &mut self.captures else { return };
        let Some((_, Some((file, interface)))) = captures.files.iter_mut().find(|(other, _)| *other == host) else {
            return;
        };
        let destination = sent.endpoint;
        let there = &self.endpoints[destination as usize];
        let port = source_port(qpn_of(there.peer), qpn_of(destination));
        let marked = sent.flags & FLAG_MARKED != 0;
        let packet = Packet { headers: sent.headers(), payload: &vec![0; sent.payload() as usize] };
        let Ok(frame) = encode(&packet, there.peer_host, there.host, port, marked) else { return };
        let direction = if inbound { Direction::Inbound } else { Direction::Outbound };
        if let Err(error) = file.directed(*interface, self.calendar.now(), &frame, direction) {
            captures.failed.get_or_insert(error);
        }
    }
}

fn encode(packet: &Packet<'_>, from: u32, to: u32, port: u16, marked: bool) -> Result<Vec<u8>, EncodeError> {
    let length = packet.encoded_length();
    let mut ip = IpHeader::udp(gid_of(from), gid_of(to), length)?;
    let ecn = if marked { Ecn::Experienced } else { Ecn::of_sent(packet.headers.bth.opcode) };
    ip.set_traffic_class(ecn.in_class(0));
    let udp = UdpHeader::roce(port, length)?;
    let mut out = vec![0; Ethernet::LEN + ip.header_length() + UdpHeader::LEN + length];
    let ethernet = Ethernet { destination: mac(to), source: mac(from), ethertype: ip.ethertype() };
    let mut at = ethernet.encode(&mut out)?;
    at += ip.encode(&mut out[at..])?;
    at += udp.encode(&mut out[at..])?;
    packet.encode(&ip, &udp, &mut out[at..])?;
    Ok(out)
}

/// Locally administered, with the host's number in it.
fn mac(host: u32) -> [u8; 6] {
    let [a, b, c, d] = (host + 1).to_be_bytes();
    [2, 0, a, b, c, d]
}
