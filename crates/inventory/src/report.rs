//! A process's objects and counters. Objects are numbered as the process numbers them; kinds and states are the numbers
//! that `verbs.h` gives them, as everybody who looks at objects from outside knows those.

use crate::encoding::{Field, records};
use std::net::SocketAddr;
use transport::Counters;

/// How every report begins: a word, and the version of what follows.
const BEGINNING: [u8; 8] = *b"UbiRep\x02\0";

records! {
    /// What a process has counted on the port of a device.
    Port {
        /// The device's name.
        device: String,
        /// The number of its interface.
        interface: u32,
        /// What it counted.
        counters: Counters,
    }

    /// An opened device.
    Context {
        /// Its number.
        number: u32,
        /// The device, by the number of its interface; so in all of these.
        interface: u32,
    }

    /// A protection domain.
    Domain {
        /// Its number.
        number: u32,
        /// Its device.
        interface: u32,
        /// Queue pairs, regions and shared receive queues in it.
        users: u32,
    }

    /// A queue pair.
    QueuePair {
        /// Its number.
        number: u32,
        /// Its device.
        interface: u32,
        /// `enum ibv_qp_type`.
        kind: u8,
        /// `enum ibv_qp_state`.
        state: u8,
        /// The peer's number; 0 if it has none.
        peer: u32,
        /// The next sequence number to send.
        send_psn: u32,
        /// The next sequence number expected.
        receive_psn: u32,
        /// The sequence number that it sent first.
        first_send_psn: u32,
        /// The sequence number that it expected first.
        first_receive_psn: u32,
        /// The most payload of its packets, in bytes.
        path_mtu: u32,
        /// The key that datagrams to it must show.
        qkey: u32,
        /// What its peer may do: `enum ibv_access_flags`.
        access: u32,
        /// READs and atomics of its own at a time.
        max_rd_atomic: u8,
        /// READs and atomics of its peer at a time.
        max_dest_rd_atomic: u8,
        /// The GID that it sends to.
        destination: [u8; 16],
        /// Its protection domain.
        domain: u32,
        /// Its completion queues; 0 for none.
        send_queue: u32,
        /// The same for receives.
        receive_queue: u32,
        /// The shared receive queue; 0 for none.
        shared_queue: u32,
        /// How its packets travel, in words.
        link: String,
        /// What it has counted.
        counters: Counters,
    }

    /// A completion queue.
    CompletionQueue {
        /// Its number.
        number: u32,
        /// Its device; 0 if no queue pair uses it yet.
        interface: u32,
        /// How many completions it holds.
        entries: u32,
        /// Queue pairs that complete in it.
        users: u32,
    }

    /// A memory region.
    Region {
        /// Its number.
        number: u32,
        /// Its device.
        interface: u32,
        /// L_Key and R_Key in one.
        key: u32,
        /// The address by which keys reach it.
        address: u64,
        /// Its length in bytes.
        length: u64,
        /// Its protection domain.
        domain: u32,
    }

    /// A shared receive queue.
    SharedReceiveQueue {
        /// Its number.
        number: u32,
        /// Its device.
        interface: u32,
        /// Its protection domain.
        domain: u32,
        /// `enum ibv_srq_type`.
        kind: u8,
        /// The completion queue of an XRC one; 0 for none.
        completion_queue: u32,
    }

    /// An id of the connection manager.
    ConnectionId {
        /// Its number.
        number: u32,
        /// Its device; 0 while it has none.
        interface: u32,
        /// Its queue pair's number; 0 for none.
        queue_pair: u32,
        /// `enum ibv_qp_type` of its queue pair.
        kind: u8,
        /// `enum rdma_port_space`.
        space: u16,
        /// The kernel's `enum rdma_cm_state`.
        state: u8,
        /// Its own address.
        source: Option<SocketAddr>,
        /// The peer's.
        destination: Option<SocketAddr>,
    }

    /// All of a process.
    Report {
        /// What it counted.
        ports: Vec<Port>,
        /// Opened devices.
        contexts: Vec<Context>,
        /// Protection domains.
        domains: Vec<Domain>,
        /// Queue pairs.
        queue_pairs: Vec<QueuePair>,
        /// Completion queues.
        completion_queues: Vec<CompletionQueue>,
        /// Memory regions.
        regions: Vec<Region>,
        /// Shared receive queues.
        shared_queues: Vec<SharedReceiveQueue>,
        /// Ids of the connection manager.
        ids: Vec<ConnectionId>,
    }
}

impl Report {
    /// The report as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = BEGINNING.to_vec();
        self.put(&mut out);
        out
    }

    /// The report that these bytes are; none if they are none, or of another version.
    pub fn decode(bytes: &[u8]) -> Option<Report> {
        let mut rest = bytes.strip_prefix(&BEGINNING)?;
        Report::take(&mut rest).filter(|_| rest.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut counters = Counters::default();
        counters.traffic.sent_octets = u64::MAX;
        counters.incidents.atomic_requests = 7;
        let queue_pair = QueuePair { number: 0x12_3456, link: "UDP".into(), counters, ..QueuePair::default() };
        let id = ConnectionId {
            source: Some("127.0.0.1:7".parse().unwrap()),
            destination: Some("[fe80::1]:9".parse().unwrap()),
            ..ConnectionId::default()
        };
        Report {
            ports: vec![Port { device: "ubi_lo".into(), interface: 1, counters }],
            queue_pairs: vec![queue_pair; 3],
            ids: vec![id, ConnectionId::default()],
            regions: vec![Region { key: 5, length: 4096, ..Region::default() }],
            ..Report::default()
        }
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        for report in [report(), Report::default()] {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
    }

    #[test]
    fn a_part_of_a_report_is_none() {
        let bytes = report().encode();
        assert!((0..bytes.len()).all(|length| Report::decode(&bytes[..length]).is_none()));
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(Report::decode(&longer), None);
    }

    #[test]
    fn lengths_cost_what_is_there() {
        let mut bytes = BEGINNING.to_vec();
        bytes.extend([0xff; 64]);
        assert_eq!(Report::decode(&bytes), None);
    }
}
