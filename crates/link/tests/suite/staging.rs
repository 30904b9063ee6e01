//! Packets of several trains that are put together: what goes with what, and that everything arrives as it was staged.

use link::udp::{Cargo, Family, Receiver, Route, SendError, Sender};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use wire::{Headers, Opcode, Psn, Qpn};

const HERE: Route = Route {
    source: IpAddr::V4(Ipv4Addr::LOCALHOST),
    destination: IpAddr::V4(Ipv4Addr::LOCALHOST),
    scope: 0,
    traffic_class: 0,
    hop_limit: 64,
};

/// Packets of one length from a sequence number on; the payload of one of them may be gone.
struct Packets {
    first: u32,
    count: u32,
    length: usize,
    to: Qpn,
    gone: Option<u32>,
}

impl Packets {
    fn new(first: u32, count: u32, length: usize) -> Packets {
        Packets { first, count, length, to: Qpn::new(7), gone: None }
    }
}

#[derive(Debug, PartialEq)]
struct Gone;

impl Cargo for Packets {
    type Error = Gone;

    fn count(&self) -> u32 {
        self.count
    }

    fn packet(&self, index: u32) -> (Headers, usize) {
        let mut headers = Headers::new(Opcode::RcSendOnly, self.to, Psn::new(self.first + index));
        headers.bth.pad = wire::Packet::pad(self.length);
        (headers, self.length)
    }

    fn payload(&mut self, index: u32, out: &mut [u8]) -> Result<(), Gone> {
        if self.gone == Some(index) {
            return Err(Gone);
        }
        out.fill((self.first + index) as u8);
        Ok(())
    }
}

/// Sends what `stage` stages, and answers the sequence numbers and lengths of what has arrived.
fn arrivals(expected: usize, stage: impl FnOnce(&mut Sender) -> u32, calls: u32) -> Vec<(u32, usize)> {
    let mut receiver = Receiver::open(Family::V4).unwrap();
    let mut sender = Sender::open(Family::V4).unwrap();
    let staged = stage(&mut sender);
    let flushed = sender.flush::<Gone>().unwrap();
    assert_eq!(staged + flushed, calls, "system calls");
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut found = Vec::new();
    while found.len() < expected && Instant::now() < deadline {
        let received = receiver
            .receive(|arrival| {
                // Other processes of this machine may use the port too.
                if arrival.port == sender.port() {
                    let psn = arrival.headers.bth.psn.value();
                    assert!(arrival.payload.iter().all(|byte| *byte == psn as u8), "packet {psn}");
                    found.push((psn, arrival.payload.len()));
                }
            })
            .unwrap();
        assert_eq!(received.damaged, 0);
    }
    found
}

/// One after the other: with SO_REUSEPORT a second receiver in this process would get half of the packets.
#[test]
fn trains_go_together_as_their_lengths_allow() {
    let calls = |sender: &mut Sender, packets: Packets| {
        let mut packets = packets;
        sender.stage(&HERE, &mut packets, &[], false).unwrap().calls
    };
    // Of one length, and a shorter one behind them: one datagram.
    let found = arrivals(
        4,
        |sender| {
            calls(sender, Packets::new(1, 1, 64))
                + calls(sender, Packets::new(2, 2, 64))
                + calls(sender, Packets::new(4, 1, 8))
        },
        1,
    );
    assert_eq!(found, [(1, 64), (2, 64), (3, 64), (4, 8)]);
    // Nothing follows a shorter one, and a longer one begins anew.
    let found = arrivals(
        3,
        |sender| {
            calls(sender, Packets::new(1, 1, 64))
                + calls(sender, Packets::new(2, 1, 8))
                + calls(sender, Packets::new(3, 1, 64))
        },
        2,
    );
    assert_eq!(found, [(1, 64), (2, 8), (3, 64)]);
    // Sixteen of 4 KiB are more than a datagram holds: the last goes with the next train.
    let found =
        arrivals(30, |sender| calls(sender, Packets::new(0, 16, 4096)) + calls(sender, Packets::new(16, 14, 4096)), 2);
    assert_eq!(found, (0..30).map(|psn| (psn, 4096)).collect::<Vec<_>>());
    // No more than the kernel cuts a datagram into.
    assert_eq!(arrivals(65, |sender| calls(sender, Packets::new(0, 65, 8)), 2).len(), 65);
    // To another place, or with other marks: not together.
    let found = arrivals(
        2,
        |sender| {
            let marked = Route { traffic_class: 8, ..HERE };
            calls(sender, Packets::new(1, 1, 64))
                + sender.stage(&marked, &mut Packets::new(2, 1, 64), &[], false).unwrap().calls
        },
        2,
    );
    assert_eq!(found, [(1, 64), (2, 64)]);
    // For another queue pair, which may be another process's: not together.
    let other = Packets { to: Qpn::new(8), ..Packets::new(2, 1, 64) };
    let found = arrivals(2, |sender| calls(sender, Packets::new(1, 1, 64)) + calls(sender, other), 2);
    assert_eq!(found, [(1, 64), (2, 64)]);
    // One whose payload is gone: what was before it goes, what is behind it does not.
    let found = arrivals(
        3,
        |sender| {
            let staged = calls(sender, Packets::new(1, 1, 64));
            let mut broken = Packets { gone: Some(1), ..Packets::new(2, 3, 64) };
            let error = sender.stage(&HERE, &mut broken, &[], false).unwrap_err();
            assert!(matches!(error, SendError::Payload(Gone)), "{error:?}");
            staged + calls(sender, Packets::new(9, 1, 64))
        },
        1,
    );
    assert_eq!(found, [(1, 64), (2, 64), (9, 64)]);
}
