//! What a queue pair counts: packets and octets of both directions, and what went wrong. Plain numbers of the queue
//! pair's own, which its lock guards; the NIC adds them up when a process asks. Every message changes [`Traffic`],
//! which therefore lies where messages look anyway; [`Incidents`] lies elsewhere.

use core::net::IpAddr;
use core::ops::AddAssign;
use trace::{DropReason, RetryCause};
use wire::{Gid, HeaderSet, Opcode};

/// The UDP header in front of a packet, and the ICRC behind it.
const UDP_AND_ICRC: u64 = 8 + 4;

/// Numbers that are added up name by name.
macro_rules! sums {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $name {
            /// The names of its numbers, in order.
            pub const NAMES: &[&str] = &[$(stringify!($field),)*];

            /// Its numbers, in the order of their names.
            pub fn values(&self) -> impl Iterator<Item = u64> {
                [$(self.$field,)*].into_iter()
            }

            /// The numbers in that order; those that are not there are 0.
            pub fn from_values(values: &mut impl Iterator<Item = u64>) -> $name {
                $name { $($field: values.next().unwrap_or(0),)* }
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: $name) {
                $(self.$field = self.$field.wrapping_add(other.$field);)*
            }
        }
    };
}

sums! {
    /// What was sent and received: packets as they are on the wire at the path MTU, whatever link carried them, and
    /// their octets from the IP header to the ICRC. Retransmissions, duplicates and acknowledgements count, too.
    Traffic {
        /// Packets sent.
        sent_packets,
        /// Their octets.
        sent_octets,
        /// Packets received.
        received_packets,
        /// Their octets.
        received_octets,
        /// SENDs whose last packet was sent; not again if it was sent again.
        sends,
        /// Messages that used up a receive, also WRITEs with immediate data.
        receives,
    }
}

sums! {
    /// What does not happen to every message.
    Incidents {
        /// Of the packets sent, those to a multicast group.
        multicast_sent_packets,
        /// Of the packets received, those from one.
        multicast_received_packets,
        /// Requests that had been executed before.
        duplicate_requests,
        /// Requests that came though one before them was missing.
        out_of_sequence_requests,
        /// Requests for which there was no receive, refused or lost.
        no_receives,
        /// Refusals because of that: "receiver not ready" sent.
        rnr_naks_sent,
        /// "Receiver not ready" received.
        rnr_naks_received,
        /// "Sequence error" received.
        sequence_naks_received,
        /// Answers that showed by their number that one before them was lost.
        implied_naks,
        /// How often the requester went back to send again, but for "receiver not ready".
        retries,
        /// Of these, because nothing came in time.
        timeouts,
        /// Work that failed because it was sent again too often.
        retries_exceeded,
        /// Work that failed because the receiver was too often not ready.
        rnr_retries_exceeded,
        /// Requests refused because memory must not be touched so.
        access_refused,
        /// Packets received that make no sense: lengths, opcodes, sequences of opcodes.
        receive_errors,
        /// Packets received that nobody wanted in the state in which the queue pair was.
        receive_discards,
        /// Packets of our own that did not get onto their link.
        send_errors,
        /// Acknowledgements that waited for others, or for a message to go along with.
        acknowledgements_deferred,
        /// Nanoseconds in which there was something to send, and the link had no room for it.
        wait_nanos,
        /// Packets received with the mark "congestion experienced".
        marked_packets,
        /// Congestion notifications sent.
        cnps_sent,
        /// Congestion notifications that were believed.
        cnps_handled,
        /// READs that peers have asked for.
        read_requests,
        /// Atomics that peers have asked for.
        atomic_requests,
        /// Congestion notifications that were not believed: too soon after another, or from a stranger.
        cnps_ignored,
    }
}

sums! {
    /// How often the NIC's engine woke, and why. It belongs to no queue pair.
    EngineWakes {
        /// Another process wrote into a ring of shared memory.
        doorbell,
        /// Packets came over UDP.
        socket,
        /// A thread of the program asked for it.
        bell,
        /// A network interface changed.
        interface,
        /// Something came over another link.
        link,
        /// A deadline came, or the time to look at a program that polls.
        timeout,
    }
}

/// All of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// What was sent and received.
    pub traffic: Traffic,
    /// What does not happen to every message.
    pub incidents: Incidents,
    /// Why the engine woke.
    pub engine_wakes: EngineWakes,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.traffic += other.traffic;
        self.incidents += other.incidents;
        self.engine_wakes += other.engine_wakes;
    }
}

impl Traffic {
    /// A packet or train was sent.
    #[inline]
    pub fn sent(&mut self, opcode: Opcode, count: u32, payload: u32, ip_header: u64) {
        self.sent_packets += u64::from(count);
        self.sent_octets += octets(opcode, count, payload, ip_header);
    }

    /// A packet or train has come.
    #[inline]
    pub fn received(&mut self, opcode: Opcode, count: u32, payload: u32, ip_header: u64) {
        self.received_packets += u64::from(count);
        self.received_octets += octets(opcode, count, payload, ip_header);
    }
}

impl Incidents {
    /// So many packets went no further.
    pub fn dropped(&mut self, reason: DropReason, more: u64) {
        let count = match reason {
            DropReason::Duplicate | DropReason::NoReplaySlot => &mut self.duplicate_requests,
            DropReason::OutOfOrder | DropReason::AfterNak | DropReason::OutOfWindow => {
                &mut self.out_of_sequence_requests
            }
            DropReason::NoReceive => &mut self.no_receives,
            DropReason::AccessRefused => &mut self.access_refused,
            DropReason::Malformed
            | DropReason::BadLength
            | DropReason::BadSequence
            | DropReason::BadOpcodeForTransport
            | DropReason::UnexpectedResponse
            | DropReason::BadIcrc
            | DropReason::BadFcs
            | DropReason::BrokenRing
            | DropReason::TooLong => &mut self.receive_errors,
            DropReason::Overflow
            | DropReason::NoRoute
            | DropReason::SystemRefused
            | DropReason::PeerGone
            | DropReason::NoMemory => &mut self.send_errors,
            _ => &mut self.receive_discards,
        };
        *count += more;
    }

    /// The requester goes back to send again.
    pub(crate) fn retried(&mut self, cause: RetryCause) {
        match cause {
            RetryCause::RnrNak => return,
            RetryCause::Timeout | RetryCause::TailLoss => self.timeouts += 1,
            RetryCause::ImpliedNak => self.implied_naks += 1,
            _ => {}
        }
        self.retries += 1;
    }
}

/// How long the IP header of packets from or to this address is.
#[inline]
pub fn ip_header(address: Gid) -> u64 {
    match address.to_ip() {
        IpAddr::V4(_) => 20,
        IpAddr::V6(_) => 40,
    }
}

/// Octets of the packets of a train, from the IP header to the ICRC.
#[inline]
pub fn octets(opcode: Opcode, count: u32, payload: u32, ip_header: u64) -> u64 {
    let headers = opcode.header_length() as u64;
    // Packets but the last have a whole path MTU, so only the last is padded.
    let padded = u64::from(payload) + u64::from(payload.wrapping_neg() & 3);
    let one = ip_header + UDP_AND_ICRC;
    if count <= 1 {
        return one + headers + padded;
    }
    headers + padded + one * u64::from(count) + further_headers(opcode, count)
}

/// What the packets of a train have of headers beyond those that it has as one packet.
fn further_headers(opcode: Opcode, count: u32) -> u64 {
    const BTH: u64 = 12;
    let set = opcode.headers();
    let xrc = if set.contains(HeaderSet::XRCETH) { 4 } else { 0 };
    // Both the first and the last packet of an answer say how far the peer is.
    let both = set.contains(HeaderSet::AETH) && opcode.starts() && opcode.ends();
    u64::from(count - 1) * (BTH + xrc) + if both { 4 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Headers, Psn, Qpn};

    #[test]
    fn a_trains_octets_are_those_of_its_packets() {
        let mtu = 1024;
        for byte in 0..=u8::MAX {
            let Some(opcode) = Opcode::from_byte(byte) else { continue };
            let train = Headers::new(opcode, Qpn::new(7), Psn::new(9));
            let several = matches!(
                opcode.operation(),
                wire::Operation::Send | wire::Operation::Write | wire::Operation::ReadResponse
            ) && opcode.transport() != wire::Transport::Ud;
            for count in 1..if several { 5 } else { 2 } {
                for last in [1, 2, 4, 1023, 1024] {
                    let payload = (count - 1) * mtu + if opcode.ends() { last } else { mtu };
                    let of_packet = |index| {
                        let headers = wire::packet_of(&train, count, index, payload, mtu);
                        let (_, length) = wire::slice_of(count, index, payload, mtu);
                        40 + 8 + headers.len() as u64 + u64::from(length) + u64::from(headers.bth.pad) + 4
                    };
                    let expected: u64 = (0..count).map(of_packet).sum();
                    assert_eq!(octets(opcode, count, payload, 40), expected, "{} of {count}", opcode.name());
                }
            }
        }
    }

    #[test]
    fn addresses_tell_the_length_of_the_ip_header() {
        assert_eq!(ip_header(Gid::from_ip([127, 0, 0, 1].into())), 20);
        assert_eq!(ip_header(Gid::from_ip(IpAddr::V6(core::net::Ipv6Addr::LOCALHOST))), 40);
    }

    #[test]
    fn sums_are_by_name() {
        let mut sum = Counters::default();
        let one = Counters {
            traffic: Traffic { sent_packets: 3, ..Traffic::default() },
            incidents: Incidents { timeouts: u64::MAX, ..Incidents::default() },
            engine_wakes: EngineWakes { bell: 2, ..EngineWakes::default() },
        };
        sum += one;
        sum += one;
        assert_eq!((sum.traffic.sent_packets, sum.incidents.timeouts), (6, u64::MAX - 1));
        assert_eq!(sum.engine_wakes, EngineWakes { bell: 4, ..EngineWakes::default() });
    }
}
