//! UDP as every other link is used. The NIC sends management datagrams this way, and has a faster way for the rest,
//! whose gain the bandwidths of `ubiverbs bench` over UDP show:
//!
//! - `send`: [`Outgoing`](crate::links::udp::Outgoing) stages trains until they fill a GSO datagram, and lends payload
//!   to the kernel. Here each train is sent by itself, from a copy.
//! - `receive`: `Nic::receive` takes runs of packets for one queue pair under one lock, and sees of each packet what
//!   only UDP has: its bytes for a capture, its interface for a multicast group. Here packets come one by one, without
//!   these; and the questions by which a receiver makes foreign hosts prove how they count identifications are lost,
//!   as the connection manager asks them.

use crate::links::udp::{Teller, Udp};
use link::udp::Route;
use link::{Arrived, Destination, Dropped, Handling, Link, SendError, Train};
use std::cell::Cell;
use std::os::fd::RawFd;
use std::time::Instant;
use wire::Qpn;

/// Remembers that something was not sent.
#[derive(Default)]
struct Unsent(Cell<bool>);

impl Teller for Unsent {
    fn tell(&self, _: Qpn, _: &Dropped) {
        self.0.set(true);
    }
}

impl Link for Udp {
    fn name(&self) -> &'static str {
        "UDP"
    }

    fn is_lossless(&self) -> bool {
        false
    }

    /// A long train becomes several datagrams.
    fn largest_train(&self) -> usize {
        usize::MAX
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.fd())
    }

    fn send(&self, to: &Destination, train: &mut Train<'_>) -> Result<(), SendError> {
        use link::udp::SendError as Failure;
        let unsent = Unsent::default();
        let sent = self.outgoing(&unsent, to.from).send(&Route::from(to), train, || None, false);
        match sent {
            Ok(()) if unsent.0.get() => Err(SendError::NoWay),
            Ok(()) => Ok(()),
            Err(Failure::Payload(gone)) => Err(gone.into()),
            Err(_) => Err(SendError::NoWay),
        }
    }

    fn receive(&self, take: &mut dyn FnMut(&Arrived<'_>)) -> bool {
        let found = self.receive(false, |run| {
            for arrival in run {
                take(&Arrived {
                    headers: &arrival.headers,
                    count: 1,
                    mtu: 0,
                    payload: arrival.payload,
                    source: arrival.source(),
                    destination: arrival.destination(),
                    process: None,
                    ip: Some(arrival.ip),
                    handling: Handling::USUAL,
                    congestion_marked: arrival.congestion_marked,
                });
            }
        });
        found.any
    }

    /// It takes a system call to know.
    fn seems_empty(&self) -> bool {
        false
    }

    fn deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::host::ports::Ports;
    use ::host::slots::Slots;
    use std::time::Duration;
    use wire::{Gid, Headers, Key, Opcode, Psn, Reth};

    #[test]
    fn a_train_goes_through_the_interface_of_all_links() {
        let slots = Slots::open().unwrap();
        let slot = slots.take().unwrap();
        let udp = Udp::open(&slots, &Ports::new(&slots)).unwrap();
        let link: &dyn Link = &udp;
        let here = Gid::from_ipv4([127, 0, 0, 1].into());
        let to = Destination {
            source: here,
            destination: here,
            from: Qpn::new(3),
            scope: 0,
            traffic_class: 0,
            hop_limit: 64,
        };
        let mut headers = Headers::new(Opcode::RcWriteOnly, slot.qpn(1), Psn::new(7));
        headers.reth = Some(Reth { va: 8, rkey: Key::new(9), len: 2500 });
        let mut fill = |from: usize, out: &mut [u8]| {
            out.iter_mut().enumerate().for_each(|(at, byte)| *byte = ((from + at) / 10) as u8);
            Ok(())
        };
        link.send(&to, &mut Train { headers: &headers, count: 3, mtu: 1024, length: 2500, fill: &mut fill }).unwrap();
        let mut packets = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        while packets.len() < 3 {
            assert!(Instant::now() < deadline, "{packets:?} came in a minute");
            link.receive(&mut |arrived| {
                assert!(arrived.ip.is_some() && arrived.source == here && arrived.destination == here);
                let bth = &arrived.headers.bth;
                packets.push((bth.psn.value(), bth.opcode, arrived.payload.to_vec()));
            });
        }
        // A thread that changes its processor between two packets may put them into the kernel's queues in another order.
        packets.sort_by_key(|(number, ..)| *number);
        let opcodes = [Opcode::RcWriteFirst, Opcode::RcWriteMiddle, Opcode::RcWriteLast];
        let came: Vec<_> = packets.iter().map(|(number, opcode, _)| (*number, *opcode)).collect();
        assert_eq!(came, [7, 8, 9].into_iter().zip(opcodes).collect::<Vec<_>>());
        let bytes: Vec<u8> = packets.into_iter().flat_map(|(.., payload)| payload).collect();
        assert!(bytes.len() == 2500 && bytes.iter().enumerate().all(|(at, byte)| *byte == (at / 10) as u8));
    }
}
