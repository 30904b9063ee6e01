//! Packets as no honest peer would send them. Every number is the attacker's to choose; the ICRC is always right,
//! unless an attack is about that.

use std::net::Ipv4Addr;

use wire::cm::{
    CmDatagram, CommId, Data, Dreq, IpCm, Message, Path, PortSpace, Rej, RejectReason, RejectedMessage, Req, ServiceId,
    TransportService,
};
use wire::mad::MAD_LEN;
use wire::{
    Aeth, Deth, Gid, Headers, IpHeader, Ipv4Header, Key, Mtu, NakCode, Opcode, Packet, Pkey, Psn, Qkey, Qpn, Reth,
    Syndrome, Timeout, UdpHeader,
};

/// What forged messages are full of.
pub const FORGED: [u8; 32] = *b"forged forged forged forged!!!!!";

/// Where a packet seems to come from, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The source address.
    pub from: Ipv4Addr,
    /// The UDP source port.
    pub port: u16,
    /// The destination address.
    pub to: Ipv4Addr,
}

impl Way {
    /// The headers around so many bytes, with the identification that sockets give to packets that are not fragmented.
    pub fn outside(&self, length: usize) -> Result<(IpHeader, UdpHeader), wire::EncodeError> {
        Ok((IpHeader::V4(Ipv4Header::udp(self.from, self.to, length)?), UdpHeader::roce(self.port, length)?))
    }

    /// A packet from the BTH to the ICRC.
    pub fn packet(&self, headers: &Headers, payload: &[u8]) -> Vec<u8> {
        let packet = Packet { headers: *headers, payload };
        let mut bytes = vec![0; packet.encoded_length()];
        let written = self.outside(bytes.len()).and_then(|(ip, udp)| packet.encode(&ip, &udp, &mut bytes));
        written.map_or_else(|_| Vec::new(), |_| bytes)
    }

    /// A datagram for the management queue pair, as it should be or not.
    pub fn management(&self, envelope: &Envelope, message: impl Into<Message>) -> Vec<u8> {
        let mut bytes = [0; MAD_LEN];
        if CmDatagram::new(envelope.transaction, message.into()).encode(&mut bytes).is_err() {
            return Vec::new();
        }
        let mut headers = Headers::new(envelope.opcode, Qpn::GSI, Psn::new(envelope.transaction as u32));
        headers.bth.pkey = envelope.pkey;
        if envelope.opcode == Opcode::UdSendOnly {
            headers.deth = Some(Deth { qkey: envelope.qkey, src_qpn: envelope.source });
        }
        self.packet(&headers, &bytes)
    }
}

/// How a management datagram is sent.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// The transaction of the datagram.
    pub transaction: u64,
    /// The opcode of its packet.
    pub opcode: Opcode,
    /// Its Q_Key.
    pub qkey: Qkey,
    /// The queue pair that it says it comes from.
    pub source: Qpn,
    /// Its partition.
    pub pkey: Pkey,
}

impl Envelope {
    /// As the specification has it.
    pub fn right(transaction: u64) -> Envelope {
        Envelope { transaction, opcode: Opcode::UdSendOnly, qkey: Qkey::GSI, source: Qpn::GSI, pkey: Pkey::DEFAULT }
    }
}

/// A SEND of one packet.
pub fn send(reliable: bool, to: u32, psn: u32) -> Headers {
    let opcode = if reliable { Opcode::RcSendOnly } else { Opcode::UcSendOnly };
    Headers::new(opcode, Qpn::new(to), Psn::new(psn))
}

/// A WRITE of one packet.
pub fn write(reliable: bool, to: u32, psn: u32, va: u64, rkey: Key, length: usize) -> Headers {
    let opcode = if reliable { Opcode::RcWriteOnly } else { Opcode::UcWriteOnly };
    let mut headers = Headers::new(opcode, Qpn::new(to), Psn::new(psn));
    headers.reth = Some(Reth { va, rkey, len: length as u32 });
    headers
}

/// "That request was not allowed": it ends the requester's queue pair.
pub fn nak(to: u32, psn: u32) -> Headers {
    let mut headers = Headers::new(Opcode::RcAcknowledge, Qpn::new(to), Psn::new(psn));
    headers.aeth = Some(Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: wire::Msn::new(1) });
    headers
}

/// A datagram.
pub fn datagram(to: u32, qkey: u32, from: u32) -> Headers {
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::new(to), Psn::new(9));
    headers.deth = Some(Deth { qkey: Qkey::new(qkey), src_qpn: Qpn::new(from) });
    headers
}

/// A request for a connection to a port of the connection manager.
pub fn req(way: Way, port: u16, id: u32, qpn: u32) -> Req {
    let (from, to) = (Gid::from_ipv4(way.from), Gid::from_ipv4(way.to));
    let mut private = [0; 92];
    let _ = IpCm::new(5000, way.from.into(), way.to.into()).encode(&mut private);
    let path = Path {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: from,
        remote_gid: to,
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 64,
        service_level: 0,
        subnet_local: false,
        local_ack_timeout: Timeout::new(14),
    };
    Req {
        local_comm_id: CommId::new(id),
        vendor_id: 0,
        service_id: ServiceId::ip(PortSpace::Tcp, port),
        local_ca_guid: 0x0bad,
        local_qkey: Qkey::new(0),
        local_qpn: Qpn::new(qpn),
        responder_resources: 1,
        local_eecn: 0,
        initiator_depth: 1,
        remote_eecn: 0,
        remote_cm_response_timeout: Timeout::new(8),
        service: TransportService::ReliableConnection,
        flow_control: true,
        starting_psn: Psn::new(1),
        // The answers are to come again soon: 1 ms.
        local_cm_response_timeout: Timeout::new(8),
        retry_count: 7,
        pkey: Pkey::DEFAULT,
        path_mtu: Mtu::B1024.code(),
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: false,
        extended_transport: 0,
        primary: path,
        alternate: Path::default(),
        sap_supported: false,
        private_data: Data::new(private),
    }
}

/// A request for a socket, with a queue pair and a communication id of its own for each number; it waits as long as a
/// request can.
pub fn socket_req(way: Way, port: u16, number: u32) -> Req {
    let place = rsocket::Span { address: 0x1000, key: Key::new(0x100) };
    let local = rsocket::Local { receive: place, targets: place };
    let data = rsocket::Stream::connection_data_of(&rsocket::Sizes::default(), &local).to_bytes();
    let mut req = req(way, port, number, number);
    let mut private = *req.private_data.bytes();
    private[IpCm::LEN..IpCm::LEN + data.len()].copy_from_slice(&data);
    req.private_data = Data::new(private);
    req.local_cm_response_timeout = Timeout::new(23);
    req
}

/// "Let us disconnect."
pub fn dreq(ours: u32, theirs: u32, qpn: u32) -> Dreq {
    Dreq {
        local_comm_id: CommId::new(ours),
        remote_comm_id: CommId::new(theirs),
        remote_qpn: Qpn::new(qpn),
        private_data: Data::default(),
    }
}

/// "I do not want this connection (any more)."
pub fn rej(ours: u32, theirs: u32) -> Rej {
    Rej {
        local_comm_id: CommId::new(ours),
        remote_comm_id: CommId::new(theirs),
        rejected: RejectedMessage::NoMessage,
        info_length: 0,
        reason: RejectReason::Timeout,
        info: Data::default(),
        private_data: Data::default(),
    }
}

/// Bytes as text.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that [`hex`] wrote.
pub fn bytes(hex: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    hex.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
