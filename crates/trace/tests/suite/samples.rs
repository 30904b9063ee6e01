//! One event of every kind, and one real frame, for the tests of the sinks.
#![allow(dead_code, reason = "each test file uses its part")]

use std::net::Ipv4Addr;

use trace::{
    Access, ConnectionEnd, DropReason, Event, Kind, Queue, RefusalCause, RetryCause, StateCause, Text, Timer,
    WindowCause,
};
use wire::{
    Aeth, Ethernet, Frame, Gid, Headers, IpHeader, Key, Msn, Opcode, Packet, Psn, Qpn, Reth, Syndrome, UdpHeader,
};

/// A WRITE of 64 bytes.
pub fn write_headers(psn: u32) -> Headers {
    let mut headers = Headers::new(Opcode::RcWriteOnly, Qpn::new(0x12), Psn::new(psn));
    headers.bth.ack_req = true;
    headers.reth = Some(Reth { va: 0x1000, rkey: Key::new(0x77), len: 64 });
    headers
}

/// Its acknowledgement.
pub fn ack_headers(psn: u32) -> Headers {
    let mut headers = Headers::new(Opcode::RcAcknowledge, Qpn::new(0x11), Psn::new(psn));
    headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) });
    headers
}

/// A whole frame from its Ethernet header to its ICRC.
pub fn frame(headers: Headers, payload: &[u8]) -> Vec<u8> {
    let [alice, bob] = [1, 2].map(|host| Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, host)));
    let packet = Packet { headers, payload };
    let length = packet.encoded_length();
    let ip = IpHeader::udp(alice, bob, length).unwrap();
    let udp = UdpHeader::roce(0xc000, length).unwrap();
    let mut datagram = vec![0; length];
    packet.encode(&ip, &udp, &mut datagram).unwrap();
    let ethernet = Ethernet { destination: [2, 0, 0, 0, 0, 2], source: [2, 0, 0, 0, 0, 1], ethertype: ip.ethertype() };
    let frame = Frame { ethernet, ip, udp, payload: &datagram };
    let mut bytes = vec![0; frame.encoded_length()];
    frame.encode(&mut bytes).unwrap();
    bytes
}

/// One event of every kind, one nanosecond apart, all of queue pair 0x11.
pub fn every_kind() -> Vec<Event> {
    let kinds = [
        Kind::WorkPosted { wr_id: 7, queue: Queue::Send, opcode: "RDMA_WRITE", bytes: 64 },
        Kind::PostRefused { wr_id: 8, queue: Queue::Receive, reason: "the queue is full" },
        Kind::PacketSent {
            headers: write_headers(100),
            payload_len: 64,
            packets: 1,
            wr_id: Some(7),
            retransmit: false,
        },
        Kind::PacketReceived { headers: ack_headers(100), payload_len: 0, packets: 1 },
        Kind::PacketDropped { headers: Some(ack_headers(99)), reason: DropReason::StaleAck },
        Kind::StateChanged {
            from: "RTS",
            to: "ERR",
            cause: StateCause::SendFailed { wr_id: 7, status: "RETRY_EXC_ERR" },
        },
        Kind::Completed {
            wr_id: 7,
            queue: Queue::Send,
            status: "SUCCESS",
            opcode: "RDMA_WRITE",
            bytes: 64,
            failure: None,
        },
        Kind::TimerSet { timer: Timer::Ack, deadline: 500 },
        Kind::TimerFired { timer: Timer::Ack, deadline: 500 },
        Kind::TimerCleared { timer: Timer::Rnr },
        Kind::Retry { cause: RetryCause::Timeout, from: Psn::new(100), left: Some(6) },
        Kind::AccessRefused {
            key: Key::new(0x77),
            address: 0x1000,
            length: 64,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            cause: RefusalCause::OutOfBounds { start: 0x1000, length: 32 },
        },
        Kind::NakSent { psn: Psn::new(5), code: "remote access error" },
        Kind::NakReceived { psn: Psn::new(5), code: "remote access error" },
        Kind::WindowChanged { from: 16, to: 8, cause: WindowCause::Loss },
        Kind::RateChanged { from: 40_000_000_000, to: 20_000_000_000 },
        Kind::AsyncEvent { name: "QP_LAST_WQE_REACHED" },
        Kind::CmTransition { local_comm_id: 0x1234, from: "REQ_SENT", to: "ESTABLISHED", message: Some("REP") },
        Kind::CmMessageDropped { message: "RTU", local_comm_id: 0x1234, reason: DropReason::CmUnknown },
        Kind::CaptureEnded { errno: 28 },
        Kind::Flushed { sends: 3, receives: 500 },
        Kind::ConnectionEnded { local_comm_id: 0x1234, by: ConnectionEnd::PeerDied },
        Kind::CqOverflowed { cq: 3, capacity: 16 },
        Kind::Injected {
            script: Text::of("flap.toml"),
            line: 12,
            what: Text::of("port-down"),
            ends: false,
            missed: false,
        },
        Kind::MovedDirectly {
            wr_id: 7,
            opcode: "RDMA_WRITE",
            dest_qpn: Qpn::new(18),
            key: Key::new(119),
            address: 0x1000,
            bytes: 64,
            by: "mapping",
        },
        Kind::EngineWoke { reason: "doorbell" },
    ];
    kinds.into_iter().zip(1000..).map(|(kind, at)| Event { at, qpn: Some(Qpn::new(0x11)), kind }).collect()
}
