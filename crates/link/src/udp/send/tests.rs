use super::*;
use crate::udp::Receiver;
use crate::udp::tests::port_alone;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use wire::{Opcode, Psn};

/// Three packets without payload, of which the last is shorter.
struct Three;

impl Cargo for Three {
    type Error = std::convert::Infallible;

    fn count(&self) -> u32 {
        3
    }

    fn packet(&self, index: u32) -> (Headers, usize) {
        (Headers::new(Opcode::RcSendOnly, Qpn::new(7), Psn::new(index)), if index < 2 { 8 } else { 0 })
    }

    fn payload(&mut self, _: u32, out: &mut [u8]) -> Result<(), Self::Error> {
        out.fill(9);
        Ok(())
    }
}

#[test]
fn packets_that_were_put_together_can_still_be_sent_one_by_one() {
    let _port = port_alone();
    let mut receiver = Receiver::open(Family::V4).unwrap();
    let mut sender = Sender::open(Family::V4).unwrap();
    let here = Ipv4Addr::LOCALHOST.into();
    let route = Route { source: here, destination: here, scope: 0, traffic_class: 0, hop_limit: 64 };
    sender.stage(&route, &mut Three, NOTHING_LENT, false).unwrap();
    let staged = sender.staged.take().unwrap();
    assert_eq!(staged.segments, 3);
    // As if the kernel had refused to cut them.
    assert_eq!(sender.send_singly::<std::convert::Infallible>(&staged, NOTHING_LENT).unwrap(), 3);
    let deadline = Instant::now() + Duration::from_secs(5);
    let (mut found, mut damaged) = (Vec::new(), 0);
    while found.len() < 3 && Instant::now() < deadline {
        let received = receiver.receive(|arrival| {
            // Other processes of this machine may use the port too.
            if arrival.port == sender.port() {
                found.push((arrival.headers.bth.psn.value(), arrival.payload.len()));
            }
        });
        damaged += received.unwrap().damaged;
    }
    assert_eq!((found, damaged), (vec![(0, 8), (1, 8), (2, 0)], 0));
}

#[test]
fn every_packet_that_the_system_does_not_take_is_told() {
    let mut sender = Sender::open(Family::V4).unwrap();
    let (here, there) = (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(198, 51, 100, 1).into());
    let nowhere = Route { source: here, destination: there, scope: 0, traffic_class: 0, hop_limit: 64 };
    let told = |sender: &mut Sender| -> Vec<_> {
        let dropped = sender.take_drops().into_iter();
        dropped.map(|dropped| (dropped.headers.map(|headers| headers.bth.psn.value()), dropped.reason)).collect()
    };
    let [zero, one, two] = [0, 1, 2].map(|psn| (Some(psn), DropReason::NoRoute));
    // Put together, and one by one.
    sender.send(&nowhere, &mut Three, false).unwrap_err();
    assert_eq!(told(&mut sender), [zero, one, two]);
    sender.send(&nowhere, &mut Three, true).unwrap_err();
    assert_eq!(told(&mut sender).len(), 3);
    // Lent: the headers lie between what is not in the buffer.
    let mut long = Long(vec![5; 5 * LONG], false);
    let lent: Vec<AtomicU8> = long.0.iter().map(|byte| AtomicU8::new(*byte)).collect();
    let _ = sender.stage(&nowhere, &mut long, &lent, false);
    let _ = sender.flush::<()>();
    let psns: Vec<_> = told(&mut sender).into_iter().map(|(psn, _)| psn).collect();
    assert_eq!(psns, [0, 1, 2, 3, 4].map(Some));
    // Of another family than the socket.
    let other = Route { destination: std::net::Ipv6Addr::LOCALHOST.into(), ..nowhere };
    sender.send(&other, &mut Three, false).unwrap_err();
    assert_eq!(told(&mut sender), [zero, one, two]);
    assert!(sender.segmentation && told(&mut sender).is_empty());
}

/// Packets of 2 KiB whose payload is lent, and whether others follow.
struct Long(Vec<u8>, bool);

const LONG: usize = 2048;

impl Cargo for Long {
    type Error = std::convert::Infallible;

    fn count(&self) -> u32 {
        (self.0.len() / LONG) as u32
    }

    fn packet(&self, index: u32) -> (Headers, usize) {
        (Headers::new(Opcode::RcSendMiddle, Qpn::new(7), Psn::new(index)), LONG)
    }

    fn follows(&self, index: u32) -> bool {
        index > 0
    }

    fn goes_on(&self) -> bool {
        self.1
    }

    fn payload(&mut self, index: u32, out: &mut [u8]) -> Result<(), Self::Error> {
        out.copy_from_slice(&self.0[index as usize * LONG..][..LONG]);
        Ok(())
    }
}

fn cells(bytes: &[u8]) -> Vec<AtomicU8> {
    bytes.iter().map(|byte| AtomicU8::new(*byte)).collect()
}

/// The sequence numbers and payloads of what arrives, until there are so many, and how many were damaged.
fn collect(receiver: &mut Receiver, port: u16, expected: usize) -> (Vec<(u32, Vec<u8>)>, u32) {
    let deadline = Instant::now() + Duration::from_secs(5);
    let (mut found, mut damaged) = (Vec::new(), 0);
    while found.len() + (damaged as usize) < expected && Instant::now() < deadline {
        let received = receiver.receive(|arrival| {
            // Other processes of this machine may use the port too.
            if arrival.port == port {
                found.push((arrival.headers.bth.psn.value(), arrival.payload.to_vec()));
            }
        });
        damaged += received.unwrap().damaged;
    }
    (found, damaged)
}

#[test]
fn lent_payload_arrives_like_any_other_and_what_was_changed_is_damaged() {
    let _port = port_alone();
    let mut receiver = Receiver::open(Family::V4).unwrap();
    let mut sender = Sender::open(Family::V4).unwrap();
    let here = Ipv4Addr::LOCALHOST.into();
    let route = Route { source: here, destination: here, scope: 0, traffic_class: 0, hop_limit: 64 };
    let bytes: Vec<u8> = (0..40 * LONG).map(|at| (at * 31 + at / 253) as u8).collect();
    let whole: Vec<_> = (0u32..).zip(bytes.chunks(LONG).map(<[u8]>::to_vec)).collect();
    let lent = cells(&bytes);
    // Behind a packet that was copied, and more than one datagram holds: they go by one call.
    sender.stage(&route, &mut Long(bytes[..LONG].to_vec(), false), NOTHING_LENT, false).unwrap();
    let sent = sender.stage(&route, &mut Long(bytes.clone(), false), &lent, false).unwrap();
    assert_eq!((sent.packets, sent.calls, sender.loans.len()), (40, 1, 0));
    assert!(sender.staged.is_none() && sender.full.is_empty(), "nothing is sent from there later");
    let (found, damaged) = collect(&mut receiver, sender.port(), 41);
    assert_eq!(damaged, 0);
    assert!(found[0] == whole[0] && found[1..] == whole[..]);
    // The last of those that go on is lent, too: nothing of them is asked for again.
    struct Gone(Long);
    impl Cargo for Gone {
        type Error = std::convert::Infallible;

        fn count(&self) -> u32 {
            self.0.count()
        }

        fn packet(&self, index: u32) -> (Headers, usize) {
            self.0.packet(index)
        }

        fn goes_on(&self) -> bool {
            self.0.goes_on()
        }

        fn payload(&mut self, index: u32, _: &mut [u8]) -> Result<(), Self::Error> {
            panic!("the payload of packet {index} is asked for")
        }
    }
    sender.stage(&route, &mut Gone(Long(bytes.clone(), true)), &lent, false).unwrap();
    let (found, damaged) = collect(&mut receiver, sender.port(), 40);
    assert!(found[..] == whole[..] && damaged == 0);
    // A hash of other bytes than are sent.
    let mut other = bytes.clone();
    other[5 * LONG + 7] ^= 1;
    let (five, lent) = (Long(bytes[..8 * LONG].to_vec(), false), cells(&other[..8 * LONG]));
    let mut cargo = five;
    sender.stage_all(&route, &mut cargo, &cells(&bytes[..8 * LONG]), false, &mut Sent::default()).unwrap();
    sender.dispatch::<std::convert::Infallible>(&lent).unwrap();
    let (found, damaged) = collect(&mut receiver, sender.port(), 8);
    assert_eq!((found.len(), damaged), (7, 1));
    // As if the kernel had refused to cut them, and there are several datagrams of them.
    let lent = cells(&other);
    sender.stage_all(&route, &mut Long(bytes.clone(), true), &lent, false, &mut Sent::default()).unwrap();
    let (full, staged) = (std::mem::take(&mut sender.full), sender.staged.take().unwrap());
    assert_eq!((full.len(), full[0].segments, staged.segments), (1, 31, 9));
    for (datagram, packets) in [(full[0], 31), (staged, 9)] {
        assert_eq!(sender.send_singly::<std::convert::Infallible>(&datagram, &lent).unwrap(), packets);
    }
    sender.loans.clear();
    let (found, damaged) = collect(&mut receiver, sender.port(), 40);
    assert_eq!((found.len(), damaged), (40, 0));
    assert_eq!(found[5].1[7], other[5 * LONG + 7], "what is there by then");
    refuse(&mut receiver, &mut sender, &route);
}

/// A long train whose memory has gone when the last packet is to be copied.
struct Refused(Long);

impl Cargo for Refused {
    type Error = ();

    fn count(&self) -> u32 {
        self.0.count()
    }

    fn packet(&self, index: u32) -> (Headers, usize) {
        self.0.packet(index)
    }

    fn payload(&mut self, _: u32, _: &mut [u8]) -> Result<(), ()> {
        Err(())
    }
}

/// What is in front of a payload that is gone is sent, and nothing is left.
fn refuse(receiver: &mut Receiver, sender: &mut Sender, route: &Route) {
    // A datagram holds 31: the last is in the middle of one, or begins one.
    for packets in [20, 32, 63] {
        let bytes: Vec<u8> = (0..packets * LONG).map(|at| (at * 31 + at / 253) as u8).collect();
        let staged = sender.stage(route, &mut Refused(Long(bytes.clone(), false)), &cells(&bytes), false);
        assert!(matches!(staged, Err(SendError::Payload(()))));
        assert!(sender.staged.is_none() && sender.full.is_empty() && sender.loans.is_empty(), "{packets} packets");
        let (found, damaged) = collect(receiver, sender.port(), packets - 1);
        assert_eq!((found.len(), damaged), (packets - 1, 0));
        assert!(found.iter().map(|(_, payload)| &payload[..]).eq(bytes.chunks(LONG).take(packets - 1)));
    }
}
