//! Packets that no queue pair of ours would send, from a socket of our own: with the right ICRC, or with another.

use host::arrival::{Arrival, Origin};
use host::forward::Forwarder;
use host::names::Name;
use host::slots::Slots;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use wire::cm::CmDatagram;
use wire::mad::MAD_LEN;
use wire::{
    Aeth, Deth, Headers, IpHeader, Ipv4Header, Msn, Opcode, Packet, Psn, Qkey, Qpn, ROCE_PORT, Syndrome, UdpHeader,
};

/// A multicast group.
pub const GROUP: Ipv4Addr = Ipv4Addr::new(239, 77, 3, 9);

/// A socket, and where its packets go.
pub struct Crafted {
    socket: UdpSocket,
    source: Ipv4Addr,
    destination: Ipv4Addr,
}

impl Crafted {
    /// From and to this host.
    pub fn new() -> Crafted {
        Crafted::from(Ipv4Addr::LOCALHOST)
    }

    /// From that address of this host.
    pub fn from(source: Ipv4Addr) -> Crafted {
        Crafted::between(source, Ipv4Addr::LOCALHOST)
    }

    /// To that group.
    pub fn to(group: Ipv4Addr) -> Crafted {
        let crafted = Crafted::between(Ipv4Addr::LOCALHOST, group);
        let local = libc::ip_mreqn {
            imr_multiaddr: libc::in_addr { s_addr: 0 },
            imr_address: libc::in_addr { s_addr: u32::from_ne_bytes(Ipv4Addr::LOCALHOST.octets()) },
            imr_ifindex: 1,
        };
        crafted.set(libc::IP_MULTICAST_IF, &local);
        crafted
    }

    fn between(source: Ipv4Addr, destination: Ipv4Addr) -> Crafted {
        let crafted = Crafted { socket: UdpSocket::bind((source, 0)).unwrap(), source, destination };
        // Identification 0 and "don't fragment": what the ICRC is made of.
        crafted.set(libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_DO);
        crafted
    }

    fn set<T>(&self, option: libc::c_int, value: &T) {
        let (value, size) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
        // SAFETY: a live value of the size given.
        assert_eq!(unsafe { libc::setsockopt(self.socket.as_raw_fd(), libc::IPPROTO_IP, option, value, size) }, 0);
    }

    /// The port its packets come from.
    pub fn port(&self) -> u16 {
        self.socket.local_addr().unwrap().port()
    }

    /// The headers outside a packet of so many bytes.
    fn outside(&self, length: usize, identification: u16) -> (IpHeader, UdpHeader) {
        let ip = Ipv4Header::udp(self.source, self.destination, length).unwrap();
        (IpHeader::V4(Ipv4Header { identification, ..ip }), UdpHeader::roce(self.port(), length).unwrap())
    }

    /// A packet, with the ICRC that it has if this is its identification. The system sends it with 0.
    pub fn packet(&self, headers: &Headers, payload: &[u8], identification: u16) -> Vec<u8> {
        let packet = Packet { headers: *headers, payload };
        let mut bytes = vec![0; packet.encoded_length()];
        let (ip, udp) = self.outside(bytes.len(), identification);
        packet.encode(&ip, &udp, &mut bytes).unwrap();
        bytes
    }

    /// Bytes with an ICRC behind them.
    pub fn sealed(&self, bytes: &[u8]) -> Vec<u8> {
        let (ip, udp) = self.outside(bytes.len() + 4, 0);
        [bytes, &wire::icrc(&ip, &udp, bytes)].concat()
    }

    /// Sends it. A system whose buffers are full takes nothing for a moment.
    pub fn send(&self, bytes: &[u8]) {
        let _ = self.socket.send_to(bytes, (self.destination, ROCE_PORT));
    }

    /// Gives it to the process that has a slot, as a process of this host does what it says itself.
    pub fn tell(&self, bytes: &[u8]) {
        let Packet { headers, payload } = Packet::parse(bytes).unwrap();
        let (ip, udp) = self.outside(bytes.len(), 0);
        let (port, origin) = (udp.source_port, Origin::Local);
        let arrival = Arrival { headers, payload, ip, bytes, port, origin, ..Arrival::NONE };
        for slot in Slots::of_this_host().unwrap() {
            let _ = Forwarder::new().tell(Name::Slot(slot), &arrival);
        }
    }
}

/// Headers of a datagram.
pub fn datagram(to: Qpn, qkey: u32) -> Headers {
    let mut headers = Headers::new(Opcode::UdSendOnly, to, Psn::new(9));
    headers.deth = Some(Deth { qkey: Qkey::new(qkey), src_qpn: Qpn::new(0x654_321) });
    headers
}

/// Headers for a reliable queue pair.
pub fn reliable(opcode: Opcode, to: Qpn, psn: u32) -> Headers {
    let mut headers = Headers::new(opcode, to, Psn::new(psn));
    if opcode == Opcode::RcAcknowledge {
        headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) });
    }
    headers
}

/// Headers of what one queue pair 1 sends to another.
pub fn general_services() -> Headers {
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(9));
    headers.deth = Some(Deth { qkey: Qkey::GSI, src_qpn: Qpn::GSI });
    headers
}

/// A message of connection management.
pub fn management(raw: &Crafted, headers: &Headers, datagram: &CmDatagram) -> Vec<u8> {
    let mut bytes = [0; MAD_LEN];
    datagram.encode(&mut bytes).unwrap();
    raw.packet(headers, &bytes, 0)
}
