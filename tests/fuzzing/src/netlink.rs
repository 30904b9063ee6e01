//! What a program writes to a socket of `NETLINK_RDMA`, and what another process writes as its report.

use inventory::{Counters, Process, QueuePair, Region, Report};
use netlink::message::{Attributes, Header, MESSAGE_HEADER_BYTES};
use netlink::{Device, Host};
use std::rc::Rc;

/// A host with a device and a process whose report is the bytes' own, if they are one.
struct Small(Report);

impl Host for Small {
    fn devices(&mut self) -> Vec<Device> {
        vec![Device { name: "ubi_lo".into(), interface: 1, ..Device::default() }]
    }

    fn processes(&mut self) -> Rc<Vec<Process>> {
        Rc::new(vec![Process { pid: 1, uid: 0, command: "x".into(), report: Ok(self.0.clone()) }])
    }

    fn counters(&mut self, _: &str, _: u32) -> Counters {
        Counters::default()
    }

    fn is_administrator(&self) -> bool {
        self.0.ports.is_empty()
    }
}

/// Takes bytes for a datagram of requests.
///
/// # Panics
/// If an answer is none: no message, or one whose attributes do not fill it.
pub fn netlink(bytes: &[u8]) {
    let pair = QueuePair { number: 7, interface: 1, ..QueuePair::default() };
    let region = Region { number: 1, interface: 1, ..Region::default() };
    let usual = Report { queue_pairs: vec![pair; 70], regions: vec![region], ..Report::default() };
    for answer in netlink::answer(bytes, 9, &mut Small(usual)) {
        let header = Header::parse(&answer).expect("a message");
        assert_eq!((header.length as usize, header.port), (answer.len(), 9));
        assert!(answer.len() <= 4096.max(MESSAGE_HEADER_BYTES + 4 + bytes.len() + 3), "more than programs read");
        if header.kind >= netlink::numbers::MIN_TYPE {
            fills(&answer[MESSAGE_HEADER_BYTES..]);
        }
    }
}

/// Checks that attributes fill their place to the end.
fn fills(bytes: &[u8]) {
    let used: usize = Attributes(bytes).map(|(_, value)| netlink::message::aligned(4 + value.len())).sum();
    assert_eq!(used, bytes.len(), "attributes end where their place does");
}

/// Takes bytes for a report, and for the file of those that have ended.
///
/// # Panics
/// If one is read that is not read the same when it is written again.
pub fn reports(bytes: &[u8]) {
    let read = |bytes: &[u8]| Report::decode(bytes, &mut (1 << 20));
    if let Ok(report) = read(bytes) {
        assert_eq!(read(&report.encode()).as_ref(), Ok(&report));
        // Whatever it says, it can be told.
        let mut host = Small(report);
        for command in [9, 10, 11, 12, 13, 14, 22, 23] {
            let mut request = netlink::message::Message::new(netlink::numbers::message_type(5, command), 0x301, 1, 0);
            request.u32(1, 0);
            for answer in netlink::answer(&request.finish(), 9, &mut host) {
                assert_eq!(Header::parse(&answer).map(|header| header.length as usize), Some(answer.len()));
            }
        }
    }
    let _ = inventory::ended::parse(bytes);
}
