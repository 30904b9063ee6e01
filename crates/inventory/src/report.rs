//! A process's objects and counters. Objects are numbered as the process numbers them; kinds and states are the numbers
//! that `verbs.h` gives them, as everybody who looks at objects from outside knows those.

use crate::encoding::{Field, Reader, records};
use std::io::Read;
use std::net::SocketAddr;
use transport::Counters;
use wire::Key;

/// How every report begins: a word, and the version of what follows.
pub const REPORT_MAGIC: [u8; 8] = *b"UbiRep\x06\0";

/// Where the version stands in it.
pub(crate) const VERSION_PLACE: usize = 6;

records! {
    /// What a process has counted on a port.
    Port {
        /// The device's name, and the number behind it if it is not port 1: `ubi_0/2`.
        device: String,
        /// The device's number, which is that of its interface unless several devices share one.
        interface: u32,
        /// What it counted.
        counters: Counters,
    }

    /// An opened device.
    Context {
        /// Its number.
        number: u32,
        /// The device, by its number; so in all of these.
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

    /// What the oldest work of a queue pair waits for.
    Waiting {
        /// `transport::WaitReason`, as a number.
        reason: u8,
        /// How long nothing has happened, in nanoseconds, as far as the process knows.
        nanos: u64,
        /// The oldest sequence number that was not acknowledged.
        psn: u32,
        /// How often it was sent again, or the receiver was not ready.
        tries: u32,
        /// How often that may happen; none if there is no limit.
        tries_allowed: Option<u8>,
        /// The identifier of the work.
        wr_id: u64,
        /// What it is.
        operation: String,
    }

    /// How congested the way of a queue pair is.
    Congestion {
        /// How much may be on its way.
        window: u64,
        /// How much is.
        in_flight: u64,
        /// The smoothed round trip, once one was measured.
        round_trip_nanos: Option<u64>,
        /// What congestion leaves of the line rate, in bit/s.
        rate: Option<u64>,
    }

    /// A queue pair.
    QueuePair {
        /// Its number.
        number: u32,
        /// Its device.
        interface: u32,
        /// The port of the device that it is on.
        port: u8,
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
        /// The completion queue of its receives; 0 for none.
        receive_queue: u32,
        /// The shared receive queue; 0 for none.
        shared_queue: u32,
        /// How its packets travel, in words.
        link: String,
        /// What it has counted.
        counters: Counters,
        /// 1 if a thread used it for as long as it was asked for: then only its number, kind and queues are known.
        busy: u8,
        /// Sends that are not done.
        sends: u32,
        /// How many its send queue holds.
        max_sends: u32,
        /// Receives of its own that wait.
        receives: u32,
        /// How many its receive queue holds.
        max_receives: u32,
        /// What its oldest work waits for.
        waiting: Option<Waiting>,
        /// Where packets may get lost.
        congestion: Option<Congestion>,
        /// What stopped it, in a sentence; nothing while it works.
        stop: String,
    }

    /// A completion queue.
    CompletionQueue {
        /// Its number.
        number: u32,
        /// Its device; 0 if no queue pair uses it yet.
        interface: u32,
        /// How many completions it holds.
        entries: u32,
        /// How many wait for the program to poll them.
        waiting: u32,
        /// 1 if one was lost because it was full.
        overflowed: u8,
        /// Queue pairs that complete in it.
        users: u32,
    }

    /// A memory region.
    Region {
        /// Its number.
        number: u32,
        /// Its device.
        interface: u32,
        /// Its R_Key.
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
        /// The port of the device that it is on.
        port: u8,
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

    /// A stream socket over RDMA.
    Socket {
        /// Its number among those of the process, which is none of a descriptor.
        number: u64,
        /// Its queue pair's number; 0 for none.
        queue_pair: u32,
        /// What it is doing, in words: `busy` if a thread used it for as long as it was asked for, and then it is not
        /// known what waits.
        state: String,
        /// Bytes that came and that the program has not read.
        unread: u64,
        /// Bytes that the program has sent and that the peer's NIC has not acknowledged.
        unacknowledged: u64,
        /// Completions that the socket has not looked at: what they bring counts for neither.
        completions: u32,
        /// Its own address.
        source: Option<SocketAddr>,
        /// The peer's.
        destination: Option<SocketAddr>,
    }

    /// Packets and messages that went no further for one reason.
    Drops {
        /// The reason's name.
        reason: String,
        /// How many.
        count: u64,
    }

    /// What the process does, beside its objects.
    Activity {
        /// The version of ubiverbs.
        version: String,
        /// How long its NIC has been there, in nanoseconds.
        age_nanos: u64,
        /// The system's number of the engine's thread.
        engine_thread: u32,
        /// Polls that found nothing and drove the NIC, about; now and then it begins anew.
        empty_polls: u64,
        /// 1 while the program drives the NIC itself, by polling.
        driven_by_program: u8,
        /// Threads of the program that block in a call, and so drive.
        blocked_callers: u32,
        /// Why packets and messages were dropped.
        drops: Vec<Drops>,
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
        /// What the process does.
        activity: Activity,
        /// Sockets over RDMA.
        sockets: Vec<Socket>,
    }
}

/// Why what a process answered cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoReport {
    /// It did not answer in time.
    #[error("it did not answer in time; it is stopped, perhaps, or very busy")]
    Silent,
    /// It is no report.
    #[error("its answer is no report")]
    Nonsense,
    /// It was written by another version of ubiverbs.
    #[error("its report has version {0}, and version {ours} is read here: it runs another ubiverbs", ours = REPORT_MAGIC[VERSION_PLACE])]
    OtherVersion(u8),
    /// The processes of its user tell of more than is read.
    #[error("the processes of its user tell of more objects than are read")]
    TooMuch,
}

impl Report {
    /// The report as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = REPORT_MAGIC.to_vec();
        self.put(&mut out);
        out
    }

    /// The report that comes from there, if it is one of this version and of no more records than `allowance`. What was
    /// read is taken from the allowance in any case.
    pub fn decode(mut source: impl Read, allowance: &mut usize) -> Result<Report, NoReport> {
        reading(&mut source, allowance, |from| Report::take(from).filter(|_| from.is_at_end()))
    }

    /// The ports of such a report, which come first: no more of it is read.
    pub fn decode_ports(mut source: impl Read, allowance: &mut usize) -> Result<Vec<Port>, NoReport> {
        reading(&mut source, allowance, Field::take)
    }
}

impl Region {
    /// Its L_Key.
    pub fn local_key(&self) -> u32 {
        Key::new(self.key).local().value()
    }
}

fn reading<T>(
    source: &mut dyn Read,
    allowance: &mut usize,
    take: impl FnOnce(&mut Reader<'_>) -> Option<T>,
) -> Result<T, NoReport> {
    let mut from = Reader::new(source, *allowance);
    let taken = match from.chunk() {
        Some(REPORT_MAGIC) => take(&mut from).ok_or(NoReport::Nonsense),
        Some(mut other) => {
            let version = std::mem::replace(&mut other[VERSION_PLACE], REPORT_MAGIC[VERSION_PLACE]);
            Err(if other == REPORT_MAGIC { NoReport::OtherVersion(version) } else { NoReport::Nonsense })
        }
        None => Err(NoReport::Nonsense),
    };
    *allowance = from.allowance;
    if taken.is_err() && from.allowance == 0 { Err(NoReport::TooMuch) } else { taken }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut counters = Counters::default();
        counters.traffic.sent_octets = u64::MAX;
        counters.incidents.atomic_requests = 7;
        let waiting = Some(Waiting { tries_allowed: Some(7), operation: "SEND".into(), ..Waiting::default() });
        let congestion = Some(Congestion { round_trip_nanos: Some(9), ..Congestion::default() });
        let queue_pair =
            QueuePair { number: 0x12_3456, link: "UDP".into(), counters, waiting, congestion, ..QueuePair::default() };
        counters.engine_wakes.timeout = 8;
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

    fn decoded(bytes: &[u8]) -> Result<Report, NoReport> {
        Report::decode(bytes, &mut 1000)
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        for report in [report(), Report::default()] {
            let bytes = report.encode();
            assert_eq!(Report::decode_ports(bytes.as_slice(), &mut 1000).as_ref(), Ok(&report.ports));
            assert_eq!(decoded(&bytes), Ok(report));
        }
    }

    #[test]
    fn a_part_of_a_report_is_none() {
        let bytes = report().encode();
        assert!((0..bytes.len()).all(|length| decoded(&bytes[..length]) == Err(NoReport::Nonsense)));
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(decoded(&longer), Err(NoReport::Nonsense));
    }

    #[test]
    fn lengths_cost_what_is_there() {
        let mut bytes = REPORT_MAGIC.to_vec();
        bytes.extend([0xff; 64]);
        assert_eq!(decoded(&bytes), Err(NoReport::Nonsense));
    }

    #[test]
    fn a_report_of_another_version_is_told_from_nonsense() {
        let mut bytes = report().encode();
        bytes[VERSION_PLACE] = 200;
        assert_eq!(decoded(&bytes), Err(NoReport::OtherVersion(200)));
        bytes[0] = b'X';
        assert_eq!(decoded(&bytes), Err(NoReport::Nonsense));
    }

    /// A report of zeros without end has as many ports as it says, each of 14 bytes and 300 in memory.
    #[test]
    fn no_more_is_read_than_is_allowed() {
        struct Endless(Vec<u8>, u64);
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let first = self.0.len().min(buffer.len());
                buffer.fill(0);
                buffer[..first].copy_from_slice(&self.0.drain(..first).collect::<Vec<_>>());
                self.1 += buffer.len() as u64;
                Ok(buffer.len())
            }
        }
        let mut endless = Endless([REPORT_MAGIC.as_slice(), &[0xff; 4]].concat(), 0);
        let mut allowance = 10_000;
        assert_eq!(Report::decode(&mut endless, &mut allowance), Err(NoReport::TooMuch));
        assert!(allowance == 0 && endless.1 < 1 << 20, "{allowance} {}", endless.1);
        // The next of the same user gets nothing.
        assert_eq!(Report::decode(report().encode().as_slice(), &mut allowance), Err(NoReport::TooMuch));
    }
}
