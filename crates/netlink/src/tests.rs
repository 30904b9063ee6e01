//! Requests as `rdma` of iproute2 makes them, and worse ones, against a host that is made up.

use crate::message::{Attributes, Header, MAX_MESSAGE_BYTES, MESSAGE_HEADER_BYTES, Message};
use crate::numbers::errno::{EINVAL, ENOENT, EOPNOTSUPP, EPERM};
use crate::numbers::{ACK, DONE, DUMP, ERROR, MULTI, NLDEV, REQUEST, attribute, command, message_type};
use crate::{Device, Host, answer};
use inventory::{ConnectionId, Context, Domain, NoReport, Process, QueuePair, Region, Report, SharedReceiveQueue};
use std::rc::Rc;
use transport::Counters;

struct Fake {
    pairs: u32,
    administrator: bool,
}

impl Host for Fake {
    fn devices(&mut self) -> Vec<Device> {
        let device = |name: &str, number| Device {
            name: format!("ubi_{name}"),
            guid: 0x0200_0000_0000_0001,
            firmware: "1".into(),
            number,
            // Several devices may be of one interface.
            interface: 7,
            interface_name: name.into(),
            ports: vec![true, false],
            ..Device::default()
        };
        vec![device("eth0", 2), device("lo", 1)]
    }

    fn processes(&mut self) -> Rc<Vec<Process>> {
        let pair =
            |number| QueuePair { number, interface: 1, port: 1, kind: 2, state: 3, peer: 7, ..QueuePair::default() };
        let id = ConnectionId {
            number: 5,
            interface: 1,
            port: 2,
            state: 8,
            space: 0x106,
            source: Some("127.0.0.1:7".parse().unwrap()),
            ..ConnectionId::default()
        };
        let report = Report {
            contexts: vec![Context { number: 1, interface: 1 }],
            domains: vec![Domain { number: 3, interface: 1, users: 2 }],
            queue_pairs: (100..100 + self.pairs).map(pair).collect(),
            regions: vec![Region { number: 1, interface: 1, key: 0xabc, length: 4096, domain: 3, ..Region::default() }],
            shared_queues: vec![SharedReceiveQueue { number: 9, interface: 1, ..SharedReceiveQueue::default() }],
            ids: vec![id],
            ..Report::default()
        };
        let silent = Process { pid: 2, uid: 0, command: "stopped".into(), report: Err(NoReport::Silent) };
        Rc::new(vec![Process { pid: 1234, uid: 0, command: "x".into(), report: Ok(report) }, silent])
    }

    fn counters(&mut self, device: &str, port: u32) -> Counters {
        let mut counters = Counters::default();
        counters.traffic.sent_packets = if (device, port) == ("ubi_lo", 1) { 77 } else { 0 };
        counters
    }

    fn is_administrator(&self) -> bool {
        self.administrator
    }
}

fn request(number: u16, flags: u16, attributes: &[(u16, u32)]) -> Vec<u8> {
    let mut message = Message::new(message_type(NLDEV, number), REQUEST | ACK | flags, 9, 0);
    for (kind, value) in attributes {
        message.u32(*kind, *value);
    }
    message.finish()
}

fn ask(number: u16, flags: u16, attributes: &[(u16, u32)]) -> Vec<Vec<u8>> {
    answer(&request(number, flags, attributes), 42, &mut Fake { pairs: 2, administrator: false })
}

/// The errors at the end of answers; 0 for none.
fn error(answers: &[Vec<u8>]) -> i32 {
    let last = answers.last().expect("an answer");
    let header = Header::parse(last).expect("a message");
    assert!(matches!(header.kind, ERROR | DONE), "no end: {header:?}");
    -i32::from_ne_bytes(*last[MESSAGE_HEADER_BYTES..].first_chunk().unwrap())
}

/// An attribute of a message, or of an attribute.
fn find(bytes: &[u8], kind: u16) -> Vec<&[u8]> {
    Attributes(bytes).filter(|(other, _)| *other == kind).map(|(_, value)| value).collect()
}

fn number(value: &[u8]) -> u32 {
    u32::from_ne_bytes(*value.first_chunk().unwrap())
}

#[test]
fn a_list_of_devices_ends_with_done() {
    let answers = ask(command::GET, DUMP, &[]);
    assert_eq!((answers.len(), error(&answers)), (3, 0));
    for (bytes, (index, name)) in answers.iter().zip([(2, &b"ubi_eth0\0"[..]), (1, b"ubi_lo\0")]) {
        let header = Header::parse(bytes).unwrap();
        assert_eq!((header.flags, header.sequence, header.port), (MULTI, 9, 42));
        let attributes = &bytes[MESSAGE_HEADER_BYTES..];
        assert_eq!(number(find(attributes, attribute::DEV_INDEX)[0]), index);
        assert_eq!(find(attributes, attribute::DEV_NAME), [name]);
        assert_eq!(find(attributes, attribute::DEV_PROTOCOL), [b"roce\0"]);
    }
}

#[test]
fn a_port_is_told_and_acknowledged() {
    let answers = ask(command::PORT_GET, 0, &[(attribute::DEV_INDEX, 1), (attribute::PORT_INDEX, 1)]);
    assert_eq!((answers.len(), error(&answers)), (2, 0));
    let attributes = &answers[0][MESSAGE_HEADER_BYTES..];
    assert_eq!(find(attributes, attribute::PORT_STATE), [[4]]);
    assert_eq!(find(attributes, attribute::NDEV_NAME), [b"lo\0"]);
    assert_eq!(number(find(attributes, attribute::NDEV_INDEX)[0]), 7);
}

#[test]
fn each_port_is_told_and_what_is_on_it() {
    let answers = ask(command::PORT_GET, DUMP, &[(attribute::DEV_INDEX, 1)]);
    let told = |bytes: &Vec<u8>| {
        let attributes = &bytes[MESSAGE_HEADER_BYTES..];
        (number(find(attributes, attribute::PORT_INDEX)[0]), find(attributes, attribute::PORT_STATE)[0][0])
    };
    assert_eq!(answers[..2].iter().map(told).collect::<Vec<_>>(), [(1, 4), (2, 1)], "active, and down");
    assert_eq!((answers.len(), error(&answers)), (3, 0));
    let second = ask(command::PORT_GET, 0, &[(attribute::DEV_INDEX, 1), (attribute::PORT_INDEX, 2)]);
    assert_eq!((second.len(), told(&second[0])), (2, (2, 1)));
    let of_port = |what, port| ask(what, DUMP, &[(attribute::DEV_INDEX, 1), (attribute::PORT_INDEX, port)]).len();
    assert_eq!([1, 2].map(|port| of_port(command::RES_QP_GET, port)), [2, 1], "a list, and the end");
    assert_eq!([1, 2].map(|port| of_port(command::RES_CM_ID_GET, port)), [1, 2]);
    let counted = |port| {
        let of_pairs = (attribute::STAT_RES, attribute::RES_QP.into());
        ask(command::STAT_GET, DUMP, &[(attribute::DEV_INDEX, 1), (attribute::PORT_INDEX, port), of_pairs]).len()
    };
    assert_eq!([1, 2].map(counted), [2, 1]);
}

#[test]
fn errors_are_the_kernels() {
    let one = attribute::DEV_INDEX;
    for (wanted, number, flags, attributes) in [
        (EINVAL, command::GET, 0, vec![]),
        (EINVAL, command::GET, 0, vec![(one, 3)]),
        (EINVAL, command::PORT_GET, 0, vec![(one, 2)]),
        (EINVAL, command::PORT_GET, 0, vec![(one, 2), (attribute::PORT_INDEX, 0)]),
        (EINVAL, command::PORT_GET, 0, vec![(one, 2), (attribute::PORT_INDEX, 3)]),
        (EINVAL, command::PORT_GET, DUMP, vec![]),
        (EINVAL, command::RES_GET, 0, vec![]),
        (EINVAL, command::RES_QP_GET, DUMP, vec![]),
        (EINVAL, command::RES_QP_GET, DUMP, vec![(one, 2), (attribute::PORT_INDEX, 9)]),
        (EINVAL, command::RES_QP_GET, 0, vec![(one, 1)]),
        (ENOENT, command::RES_QP_GET, 0, vec![(one, 1), (attribute::RES_LQPN, 99)]),
        (ENOENT, command::RES_QP_GET, 0, vec![(one, 2), (attribute::RES_LQPN, 100)]),
        (EINVAL, command::STAT_GET, 0, vec![(one, 1)]),
        (EINVAL, command::STAT_GET, DUMP, vec![(one, 1)]),
        (EINVAL, command::GET_CHARDEV, 0, vec![(one, 1)]),
        (EPERM, command::SET, 0, vec![(one, 1)]),
        (EPERM, command::NEWLINK, 0, vec![]),
        (EPERM, command::STAT_SET, 0, vec![]),
        (EPERM, command::RES_QP_GET_RAW, DUMP, vec![]),
        (EINVAL, 8, 0, vec![]),
        (EINVAL, 999, DUMP, vec![]),
    ] {
        assert_eq!(error(&ask(number, flags, &attributes)), wanted, "{number} {flags} {attributes:?}");
    }
    let mut root = Fake { pairs: 0, administrator: true };
    assert_eq!(error(&answer(&request(command::SET, 0, &[(one, 1)]), 1, &mut root)), EOPNOTSUPP);
    // Another client: the name service, which no module of ours is.
    let other = Message::new(message_type(4, 0), REQUEST, 1, 0).finish();
    assert_eq!(error(&answer(&other, 1, &mut root)), EINVAL);
    // An attribute that is too short for its type.
    let mut short = Message::new(message_type(NLDEV, command::GET), REQUEST, 1, 0);
    short.bytes(attribute::DEV_INDEX, &[1]);
    assert_eq!(error(&answer(&short.finish(), 1, &mut root)), EINVAL);
}

#[test]
fn what_is_no_request_gets_no_answer_unless_it_asks_for_one() {
    let mut host = Fake { pairs: 0, administrator: true };
    let mut silent = |bytes: &[u8]| answer(bytes, 1, &mut host).is_empty();
    assert!(silent(&[]) && silent(&[0; 15]) && silent(&[0xff; 64]));
    assert!(silent(&Message::new(message_type(NLDEV, command::GET), 0, 1, 0).finish()));
    assert!(silent(&Message::new(1, REQUEST, 1, 0).finish()), "netlink's own");
    let mut long = request(command::GET, DUMP, &[]);
    long[0] = 200;
    assert!(silent(&long), "longer than it is");
    let acknowledged = answer(&Message::new(1, REQUEST | ACK, 1, 0).finish(), 1, &mut host);
    assert_eq!((acknowledged.len(), error(&acknowledged)), (1, 0));
    let two = [request(command::GET, DUMP, &[]), request(command::SYS_GET, 0, &[])].concat();
    assert_eq!(answer(&two, 1, &mut host).len(), 3 + 2, "one after the other");
}

#[test]
fn a_long_list_comes_in_messages_that_fit_a_page() {
    let mut host = Fake { pairs: 1000, administrator: false };
    for (number, list, attributes) in [
        (command::RES_QP_GET, attribute::RES_QP, vec![(attribute::DEV_INDEX, 1)]),
        (
            command::STAT_GET,
            attribute::STAT_COUNTER,
            vec![(attribute::DEV_INDEX, 1), (attribute::STAT_RES, attribute::RES_QP.into())],
        ),
    ] {
        let answers = answer(&request(number, DUMP, &attributes), 1, &mut host);
        assert!(answers.len() > 10 && answers.iter().all(|bytes| bytes.len() <= MAX_MESSAGE_BYTES));
        let entries = |bytes: &Vec<u8>| {
            find(&bytes[MESSAGE_HEADER_BYTES..], list).into_iter().map(|list| Attributes(list).count()).sum::<usize>()
        };
        assert_eq!(answers[..answers.len() - 1].iter().map(entries).sum::<usize>(), 1000);
    }
}

#[test]
fn objects_are_told_with_their_process() {
    let of_lo = [(attribute::DEV_INDEX, 1)];
    for (number, list, entry, id, expected) in [
        (command::RES_PD_GET, attribute::RES_PD, attribute::RES_PD_ENTRY, attribute::RES_PDN, 3),
        (command::RES_MR_GET, attribute::RES_MR, attribute::RES_MR_ENTRY, attribute::RES_MRN, 1),
        (command::RES_CTX_GET, attribute::RES_CTX, attribute::RES_CTX_ENTRY, attribute::RES_CTXN, 1),
        (command::RES_SRQ_GET, attribute::RES_SRQ, attribute::RES_SRQ_ENTRY, attribute::RES_SRQN, 9),
        (command::RES_CM_ID_GET, attribute::RES_CM_ID, attribute::RES_CM_ID_ENTRY, attribute::RES_CM_IDN, 5),
        (command::RES_QP_GET, attribute::RES_QP, attribute::RES_QP_ENTRY, attribute::RES_LQPN, 100),
    ] {
        let answers = ask(number, DUMP, &of_lo);
        let entry = find(find(&answers[0][MESSAGE_HEADER_BYTES..], list)[0], entry)[0];
        assert_eq!(super::tests::number(find(entry, id)[0]), expected);
        assert_eq!(super::tests::number(find(entry, attribute::RES_PID)[0]), 1234);
        // The same one by its number, without a list around it.
        let one = ask(number, 0, &[(attribute::DEV_INDEX, 1), (id, expected)]);
        assert_eq!((one.len(), error(&one)), (2, 0));
        assert_eq!(super::tests::number(find(&one[0][MESSAGE_HEADER_BYTES..], id)[0]), expected);
        // None of it is on the other device.
        assert_eq!(ask(number, DUMP, &[(attribute::DEV_INDEX, 0)]).len(), 1);
    }
    // Keys are for administrators.
    let keys = |administrator| {
        let answers = answer(&request(command::RES_MR_GET, DUMP, &of_lo), 1, &mut Fake { pairs: 0, administrator });
        let entry =
            find(find(&answers[0][MESSAGE_HEADER_BYTES..], attribute::RES_MR)[0], attribute::RES_MR_ENTRY)[0].to_vec();
        find(&entry, attribute::RES_RKEY).len()
    };
    assert_eq!((keys(false), keys(true)), (0, 1));
}

#[test]
fn a_ports_counters_come_by_name() {
    let answers = ask(command::STAT_GET, 0, &[(attribute::DEV_INDEX, 1), (attribute::PORT_INDEX, 1)]);
    assert_eq!((answers.len(), error(&answers)), (2, 0));
    assert!(answers[0].len() <= MAX_MESSAGE_BYTES);
    let table = find(&answers[0][MESSAGE_HEADER_BYTES..], attribute::STAT_HWCOUNTERS)[0];
    let first = find(table, attribute::STAT_HWCOUNTER_ENTRY)[0];
    assert_eq!(find(first, attribute::STAT_HWCOUNTER_ENTRY_NAME), [b"sent_pkts\0"]);
    assert_eq!(find(first, attribute::STAT_HWCOUNTER_ENTRY_VALUE), [77_u64.to_ne_bytes()]);
}
