use super::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::{Headers, Opcode, Position, Psn, Qpn, Reth, Tail};

/// A message of `length` bytes as a WRITE cut into packets of `mtu`.
struct Message {
    bytes: Vec<u8>,
    mtu: usize,
}

impl Cargo for Message {
    type Error = std::convert::Infallible;

    fn count(&self) -> u32 {
        self.bytes.len().div_ceil(self.mtu).max(1) as u32
    }

    fn packet(&self, index: u32) -> (Headers, usize) {
        let from = index as usize * self.mtu;
        let length = (self.bytes.len() - from).min(self.mtu);
        let position = Position::of(index == 0, index + 1 == self.count());
        let opcode = Opcode::of(wire::Transport::Rc, wire::Operation::Write, position, Tail::Plain).unwrap();
        let mut headers = Headers::new(opcode, Qpn::new(7), Psn::new(index));
        headers.bth.pad = wire::Packet::pad(length);
        if index == 0 {
            headers.reth = Some(Reth { va: 1, rkey: wire::Key::new(2), len: self.bytes.len() as u32 });
        }
        (headers, length)
    }

    fn payload(&mut self, index: u32, out: &mut [u8]) -> Result<(), Self::Error> {
        let from = index as usize * self.mtu;
        out.copy_from_slice(&self.bytes[from..][..out.len()]);
        Ok(())
    }
}

/// A test that receives on the port of RoCE holds this meanwhile: with SO_REUSEPORT a second receiver in this process
/// would get half of the packets.
pub(super) fn port_alone() -> MutexGuard<'static, ()> {
    static PORT: Mutex<()> = Mutex::new(());
    PORT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn carry(address: IpAddr, length: usize, mtu: usize, one_by_one: bool) -> Sent {
    let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
    let mut receiver = Receiver::open(family).unwrap();
    let mut sender = Sender::open(family).unwrap();
    let route = Route { source: address, destination: address, scope: 0, traffic_class: 0, hop_limit: 64 };
    let bytes: Vec<u8> = (0..length).map(|n| (n * 31 + n / 253) as u8).collect();
    let mut message = Message { bytes: bytes.clone(), mtu };
    let sent = sender.send(&route, &mut message, one_by_one).unwrap();
    assert_eq!(sent.packets, message.count());
    let deadline = Instant::now() + Duration::from_secs(5);
    let (mut got, mut next) = (Vec::new(), 0);
    while next < message.count() && Instant::now() < deadline {
        let received = receiver
            .receive(|arrival| {
                // Other processes of this machine may use the port too.
                if arrival.port != sender.port() {
                    return;
                }
                assert_eq!(arrival.headers, message.packet(next).0);
                assert_eq!(arrival.source().to_ip(), address);
                assert_eq!(arrival.destination().to_ip(), address);
                got.extend_from_slice(arrival.payload);
                next += 1;
            })
            .unwrap();
        assert_eq!(received.damaged, 0);
    }
    assert!(got == bytes, "{} of {} bytes arrived", got.len(), bytes.len());
    sent
}

#[test]
fn trains_arrive_as_they_were_sent() {
    let _port = port_alone();
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
        for (length, mtu) in
            [(0, 1024), (1, 1024), (1024, 1024), (1025, 1024), (40_000, 1024), (65_536, 4096), (10_001, 256)]
        {
            carry(address, length, mtu, false);
            carry(address, length, mtu, true);
        }
    }
}

#[test]
fn what_is_sent_inside_the_host_comes_to_the_socket_for_it_and_to_no_other() {
    let _port = port_alone();
    let mut everywhere = Receiver::open(Family::V4).unwrap();
    let mut inside = Receiver::open_scope(Family::V4, wire::ROCE_PORT, Scope::Inside, None).unwrap();
    let mut sender = Sender::open(Family::V4).unwrap();
    let source = IpAddr::from(Ipv4Addr::LOCALHOST);
    for (last, told) in [(1, false), (2, false), (1, true), (2, true)] {
        if told {
            [&everywhere, &inside].into_iter().for_each(|receiver| receiver.tell_all().unwrap());
        }
        let destination = IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
        let route = Route { source, destination, scope: 0, traffic_class: 8, hop_limit: 9 };
        let (receiver, other) = if last == 1 { (&mut inside, &mut everywhere) } else { (&mut everywhere, &mut inside) };
        // Merged and alone.
        let mut message = Message { bytes: vec![7; 3000], mtu: 1024 };
        sender.send(&route, &mut message, false).unwrap();
        let (mut got, deadline) = (0, Instant::now() + Duration::from_secs(5));
        while got < 3000 && Instant::now() < deadline {
            let take = |arrival: &Arrival<'_>| {
                if arrival.port != sender.port() {
                    return;
                }
                got += arrival.payload.len();
                assert_eq!((arrival.source().to_ip(), arrival.destination().to_ip()), (source, destination));
                let wire::IpHeader::V4(ip) = arrival.ip else { panic!("another family") };
                // The class is known everywhere but inside, where no device marks packets: there it is taken for
                // ECT(0).
                assert_eq!(ip.tos, if told || last == 2 { 8 } else { 2 });
                assert_eq!(ip.ttl, if told { 9 } else { 64 });
            };
            assert_eq!(receiver.receive(take).unwrap().damaged, 0);
        }
        assert_eq!(got, 3000);
        other.receive(|arrival| assert_ne!(arrival.port, sender.port())).unwrap();
    }
}

#[test]
fn a_train_takes_few_system_calls() {
    let mut sender = Sender::open(Family::V4).unwrap();
    let address = IpAddr::from(Ipv4Addr::LOCALHOST);
    let route = Route { source: address, destination: address, scope: 0, traffic_class: 0, hop_limit: 64 };
    let mut message = Message { bytes: vec![7; 65_536], mtu: 4096 };
    // FIRST is longer than the others, so it travels alone; MIDDLEs and the LAST together.
    let sent = sender.send(&route, &mut message, false).unwrap();
    assert_eq!(sent, Sent { packets: 16, calls: 2 });
    let sent = sender.send(&route, &mut message, true).unwrap();
    assert_eq!(sent, Sent { packets: 16, calls: 16 });
}

#[test]
fn an_address_that_is_not_ours_is_no_route() {
    let mut sender = Sender::open(Family::V4).unwrap();
    let route = Route {
        source: Ipv4Addr::new(203, 0, 113, 77).into(),
        destination: Ipv4Addr::LOCALHOST.into(),
        scope: 0,
        traffic_class: 0,
        hop_limit: 64,
    };
    let error = sender.send(&route, &mut Message { bytes: vec![1], mtu: 1024 }, false).unwrap_err();
    assert!(matches!(error, SendError::NoRoute { .. }), "{error:?}");
    let route = Route { source: Ipv6Addr::LOCALHOST.into(), ..route };
    let error = sender.send(&route, &mut Message { bytes: vec![1], mtu: 1024 }, false).unwrap_err();
    assert!(matches!(error, SendError::Families(..)), "{error:?}");
}
