//! One queue pair, three links: a WRITE and a READ travel over the simulator, over a pair of UDP sockets, packet by packet with their ICRC, and
//! through a ring of bytes, as whole trains. The interface between transport and link is right when all three show the same sequence numbers,
//! acknowledgements and memory, and no byte of payload is copied but once out of its memory and once into the other.
#![allow(missing_docs)]

use scenery::{ALL_ACCESS, Setting};
use sim::{HostConfig, QpSpec, ReceiveBuffer, RegionSpec, Sim, Work, pattern};
use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::Duration;
use transport::congestion::{Window, WindowConfig};
use transport::{
    Access, AddressVector, Atomic, Bind, Capabilities, Completion, CompletionKind, Data, Inbound, Kind, Limits, Modify,
    Operation, Port, ProtectionDomain, QueuePair, QueuePairConfig, Range, ReceiveWork, Refusal, Remote, SendFlags,
    SendRequest, Sge, State, Status, Subject, TakenReceive, Time, Toward, Train,
};
use wire::{Feth, Gid, Headers, Icrc, IpHeader, Key, Msn, Mtu, Opcode, Packet, Pkey, Psn, Qpn, Srqn, UdpHeader};

const MTU: Mtu = Mtu::B1024;
/// Two trains and a part of one, the last packet of 1 byte and 3 of pad.
const WRITTEN: u32 = 2 * 65536 + 17 * 1024 + 1;
/// One train and a part, the last packet of 1022 bytes.
const READ: u32 = 65536 + 9 * 1024 - 2;
/// The first numbers of both sides; the first side's wrap on the way.
const FIRST: (Psn, Psn) = (Psn::new(0xff_ff80), Psn::new(0xff_fff0));
/// Seeds of the bytes on both sides.
const SEEDS: (u64, u64) = (0xa, 0xb);

/// What a packet looks like to a reader who does not know the link.
type Seen = (Opcode, Psn, Option<Msn>);

fn seen(headers: &Headers) -> Seen {
    (headers.bth.opcode, headers.bth.psn, headers.aeth.map(|aeth| aeth.msn))
}

/// Everything that must not depend on the link.
#[derive(PartialEq, Eq, Debug)]
struct Account {
    /// Packets each side sent, in order.
    packets: [Vec<Seen>; 2],
    completions: Vec<(u64, Status, CompletionKind, u32)>,
    /// The next number to send, and the next expected, of each side.
    numbers: [(Psn, Psn); 2],
}

fn told(completion: &Completion) -> (u64, Status, CompletionKind, u32) {
    (completion.wr_id, completion.status, completion.kind, completion.bytes)
}

/// Memory of one process that counts what is copied out of it and into it.
struct Counting {
    bytes: Vec<u8>,
    read: u64,
    written: u64,
    window: Window,
}

impl Counting {
    fn slice(&mut self, range: Range) -> &mut [u8] {
        &mut self.bytes[range.address as usize..][..range.length as usize]
    }
}

impl Port for Counting {
    fn check(&mut self, _: Subject, _: Range, _: Access) -> Result<(), Refusal> {
        Ok(())
    }
    fn read(&mut self, _: Subject, range: Range, out: &mut [u8]) -> Result<(), Refusal> {
        self.read += range.length;
        out.copy_from_slice(self.slice(range));
        Ok(())
    }
    fn write(&mut self, _: Subject, range: Range, data: &[u8]) -> Result<(), Refusal> {
        self.written += range.length;
        self.slice(range).copy_from_slice(data);
        Ok(())
    }
    fn atomic(&mut self, _: Subject, _: Range, _: Atomic) -> Result<u64, Refusal> {
        unreachable!("nobody asks for an atomic operation")
    }
    fn flush(&mut self, _: Subject, _: Range, _: Feth) -> Result<(), Refusal> {
        unreachable!("nobody flushes")
    }
    fn invalidate(&mut self, _: Subject, _: Key) -> Result<(), Refusal> {
        unreachable!("nobody invalidates")
    }
    fn bind(&mut self, _: Subject, _: &Bind) -> Result<(), Refusal> {
        unreachable!("nobody binds")
    }
    fn take_receive(&mut self, _: Qpn, _: Srqn, _: &mut ReceiveWork) -> TakenReceive {
        TakenReceive::Unknown
    }
    fn shared_domain(&mut self, _: Qpn, _: Srqn) -> Option<ProtectionDomain> {
        None
    }
    fn window<R>(&mut self, _: Qpn, _: Toward, f: impl FnOnce(&mut Window) -> R) -> R {
        f(&mut self.window)
    }
}

/// A queue pair and its process.
struct End {
    qp: QueuePair,
    memory: Counting,
    gid: Gid,
}

/// Carries trains from one side to the other.
trait Link {
    /// Sends what `train` describes; answers the headers of its packets.
    fn send(&mut self, from: usize, train: &Train<'_>, memory: &mut Counting) -> Vec<Seen>;
    /// Hands what was sent from `from` to the other side.
    fn deliver(&mut self, from: usize, to: &mut End, source: Gid);
}

/// Sends everything there is to send, one train at a time, until nobody has more to say.
fn run(ends: &mut [End; 2], link: &mut dyn Link, account: &mut Account) {
    loop {
        let mut moved = false;
        for from in [0, 1] {
            let End { qp, memory, gid } = &mut ends[from];
            let source = *gid;
            // The train borrows the queue pair and not its memory: the link gathers while it holds the train.
            let train = qp.poll_transmit(Time::ZERO, memory);
            if let Some(packets) = train.map(|train| link.send(from, &train, memory)) {
                account.packets[from].extend(packets);
                link.deliver(from, &mut ends[1 - from], source);
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let [end, other] = ends;
    while let Some(completion) = end.qp.poll_completion(Time::ZERO, &mut end.memory) {
        account.completions.push(told(&completion));
    }
    assert_eq!(other.qp.poll_completion(Time::ZERO, &mut other.memory), None);
}

fn end(number: u8, seed: u64, gid: Gid) -> End {
    let capabilities =
        Capabilities { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 0 };
    let qp = QueuePair::new(QueuePairConfig {
        qpn: Qpn::new(u32::from(number)),
        kind: Kind::ReliableConnected,
        pd: ProtectionDomain(1),
        capabilities,
        srq: None,
        signal_all: false,
        limits: Limits::default(),
        pkey: Pkey::DEFAULT,
        port_mtu: Mtu::B4096,
    });
    let bytes = (0..1 << 20).map(|offset| pattern(seed, offset)).collect();
    End { qp, memory: Counting { bytes, read: 0, written: 0, window: Window::unlimited() }, gid }
}

fn connect(end: &mut End, peer: u32, gid: Gid, own: Psn, other: Psn) {
    let steps = [
        Modify {
            state: Some(State::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(ALL_ACCESS),
            ..Modify::default()
        },
        Modify {
            state: Some(State::ReadyToReceive),
            av: Some(AddressVector { dgid: gid, ..AddressVector::default() }),
            path_mtu: Some(MTU),
            dest_qpn: Some(Qpn::new(peer)),
            rq_psn: Some(other),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(1),
            ..Modify::default()
        },
        Modify {
            state: Some(State::ReadyToSend),
            timeout: Some(8),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            sq_psn: Some(own),
            max_rd_atomic: Some(16),
            ..Modify::default()
        },
    ];
    for step in steps {
        end.qp.modify(Time::ZERO, &step, &mut end.memory).unwrap();
    }
}

/// Where things lie: the WRITE takes two pieces from the first half here to the start there; the READ brings the second half there to two pieces
/// behind the others here.
const PIECES: [[(u64, u32); 2]; 2] = [[(3, 70_001), (100_000, WRITTEN - 70_001)], [(400_001, 5), (500_000, READ - 5)]];
const THERE: [u64; 2] = [7, 600_000];

/// A WRITE, then a READ, over a link of our own.
fn over(link: &mut dyn Link, gids: [Gid; 2]) -> Account {
    let mut ends = [end(1, SEEDS.0, gids[0]), end(2, SEEDS.1, gids[1])];
    connect(&mut ends[0], 2, gids[1], FIRST.0, FIRST.1);
    connect(&mut ends[1], 1, gids[0], FIRST.1, FIRST.0);
    let mut account =
        Account { packets: [Vec::new(), Vec::new()], completions: Vec::new(), numbers: Default::default() };
    let key = Key::new(1);
    let remote = THERE.map(|address| Remote { address, key });
    let work = [Operation::Write { remote: remote[0], immediate: None }, Operation::Read { remote: remote[1] }];
    for (index, operation) in work.into_iter().enumerate() {
        let sges = PIECES[index].map(|(address, length)| Sge { address, length, key });
        let request = SendRequest {
            wr_id: index as u64,
            operation,
            flags: SendFlags::SIGNALED,
            data: Data::Gather(&sges),
            target: None,
            xrc_srq: None,
        };
        let End { qp, memory, .. } = &mut ends[0];
        qp.post_send(Time::ZERO, &request, memory).unwrap();
        run(&mut ends, link, &mut account);
        // Every byte once out of one memory, once into the other, and nothing else.
        let moved = ends.each_ref().map(|end| (end.memory.read, end.memory.written));
        let length = u64::from([WRITTEN, READ][index]);
        assert_eq!(moved, [[(length, 0), (0, length)], [(0, length), (length, 0)]][index]);
        for end in &mut ends {
            (end.memory.read, end.memory.written) = (0, 0);
        }
    }
    let [here, there] = &ends;
    check(
        |at, length| here.memory.bytes[at..at + length].to_vec(),
        |at, length| there.memory.bytes[at..at + length].to_vec(),
    );
    account.numbers = ends.each_ref().map(|end| (end.qp.attributes().sq_psn, end.qp.attributes().rq_psn));
    account
}

/// Whether everything lies where it should.
fn check(here: impl Fn(usize, usize) -> Vec<u8>, there: impl Fn(usize, usize) -> Vec<u8>) {
    let original = |seed, at: u64, length: u32| {
        (at..at + u64::from(length)).map(|offset| pattern(seed, offset)).collect::<Vec<_>>()
    };
    let mut at = THERE[0];
    assert_eq!(there(0, 7), original(SEEDS.1, 0, 7), "nothing before");
    for (from, length) in PIECES[0] {
        assert!(there(at as usize, length as usize) == original(SEEDS.0, from, length));
        at += u64::from(length);
    }
    assert_eq!(there(at as usize, 100), original(SEEDS.1, at, 100), "nothing after");
    let mut at = THERE[1];
    for (to, length) in PIECES[1] {
        assert!(here(to as usize, length as usize) == original(SEEDS.1, at, length));
        assert_eq!(here((to + u64::from(length)) as usize, 100), original(SEEDS.0, to + u64::from(length), 100));
        at += u64::from(length);
    }
}

/// Two sockets, and packets as RoCEv2 has them.
struct Udp {
    sockets: [UdpSocket; 2],
    buffer: Vec<u8>,
    /// Datagrams sent and not yet received.
    flying: u32,
}

impl Udp {
    fn new() -> Udp {
        let socket = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            socket
        };
        Udp { sockets: [socket(), socket()], buffer: vec![0; 65536], flying: 0 }
    }

    fn address(&self, side: usize) -> SocketAddr {
        self.sockets[side].local_addr().unwrap()
    }

    fn gids(&self) -> [Gid; 2] {
        [0, 1].map(|side| self.address(side).ip().into())
    }
}

/// The outer headers as the ICRC covers them, of a datagram between these sockets.
fn outer(from: SocketAddr, to: SocketAddr, length: usize) -> (IpHeader, UdpHeader) {
    let ip = IpHeader::udp(from.ip().into(), to.ip().into(), length).unwrap();
    let mut udp = UdpHeader::roce(from.port(), length).unwrap();
    udp.destination_port = to.port();
    (ip, udp)
}

impl Link for Udp {
    fn send(&mut self, from: usize, train: &Train<'_>, memory: &mut Counting) -> Vec<Seen> {
        let (source, destination) = (self.address(from), self.address(1 - from));
        let packets = (0..train.count).map(|index| {
            let headers = train.packet(index);
            let (offset, length) = train.slice(index);
            let (length, pad) = (length as usize, usize::from(headers.bth.pad));
            // Headers, payload straight from memory, pad, ICRC.
            let at = headers.encode(&mut self.buffer).unwrap();
            train.payload.copy(offset, &mut self.buffer[at..at + length], memory).unwrap();
            self.buffer[at + length..at + length + pad].fill(0);
            let covered = at + length + pad;
            let (ip, udp) = outer(source, destination, covered + Icrc::LEN);
            let icrc = Icrc::new(&ip, &udp).headers(&self.buffer[..covered]).finish();
            self.buffer[covered..covered + Icrc::LEN].copy_from_slice(&icrc);
            self.sockets[from].send_to(&self.buffer[..covered + Icrc::LEN], destination).unwrap();
            seen(&headers)
        });
        let packets = packets.collect();
        self.flying = train.count;
        packets
    }

    fn deliver(&mut self, from: usize, to: &mut End, source: Gid) {
        let own = self.address(1 - from);
        for _ in 0..std::mem::take(&mut self.flying) {
            let (length, sender) = self.sockets[1 - from].recv_from(&mut self.buffer).expect("loopback loses nothing");
            assert_eq!(sender, self.address(from));
            let (ip, udp) = outer(sender, own, length);
            let packet = Packet::parse_checked(&ip, &udp, &self.buffer[..length]).expect("form and ICRC are right");
            let inbound = Inbound {
                headers: &packet.headers,
                count: 1,
                payload: packet.payload,
                from: source,
                grh: &wire::grh_bytes(&ip),
                congestion_marked: false,
            };
            to.qp.handle(Time::ZERO, &inbound, &mut to.memory);
        }
    }
}

/// Two rings of bytes, one per direction, that carry trains whole. A record is its length, the number of packets, headers and payload; one that does not
/// fit before the end begins at the start.
struct Rings {
    rings: [Ring; 2],
}

struct Ring {
    bytes: Vec<u8>,
    head: usize,
    tail: usize,
    wrapped: u32,
}

impl Ring {
    const SKIP: u32 = u32::MAX;

    fn new() -> Ring {
        // Room for one of the longest trains, and little more.
        Ring { bytes: vec![0; 70_000], head: 0, tail: 0, wrapped: 0 }
    }

    /// The place for a record of `length` bytes. Nothing is in the ring but what was not taken yet, which the run keeps to one train.
    fn place(&mut self, length: usize) -> &mut [u8] {
        assert_eq!(self.head, self.tail, "the last train was taken");
        if self.tail + length + 4 > self.bytes.len() {
            self.bytes[self.tail..self.tail + 4].copy_from_slice(&Ring::SKIP.to_le_bytes());
            self.tail = 0;
            self.wrapped += 1;
        }
        let start = self.tail;
        self.tail += length;
        &mut self.bytes[start..start + length]
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap())
    }
}

impl Link for Rings {
    fn send(&mut self, from: usize, train: &Train<'_>, memory: &mut Counting) -> Vec<Seen> {
        let (headers, payload) = (train.headers.len(), train.payload.len() as usize);
        let length = 8 + headers + payload;
        let record = self.rings[from].place(length);
        record[..4].copy_from_slice(&(length as u32).to_le_bytes());
        record[4..8].copy_from_slice(&train.count.to_le_bytes());
        train.headers.encode(&mut record[8..]).unwrap();
        train.payload.copy(0, &mut record[8 + headers..], memory).unwrap();
        (0..train.count).map(|index| seen(&train.packet(index))).collect()
    }

    fn deliver(&mut self, from: usize, to: &mut End, source: Gid) {
        let ring = &mut self.rings[from];
        if ring.word(ring.head) == Ring::SKIP {
            ring.head = 0;
        }
        let start = ring.head;
        let (length, count) = (ring.word(start) as usize, ring.word(start + 4));
        let (headers, payload) = Headers::parse(&ring.bytes[start + 8..start + length]).unwrap();
        let inbound =
            Inbound { headers: &headers, count, payload, from: source, grh: &[0; 40], congestion_marked: false };
        to.qp.handle(Time::ZERO, &inbound, &mut to.memory);
        ring.head += length;
    }
}

/// The account of that script in the simulator.
fn simulated(setting: &Setting) -> Account {
    let mut sim = Sim::new(setting.seed);
    sim.set_default_link(setting.link);
    let window = WindowConfig { limit: u64::MAX, initial: u64::MAX, ..WindowConfig::default() };
    let host = |name: &str| HostConfig { window, receive_buffer: ReceiveBuffer::Unlimited, ..HostConfig::named(name) };
    let (alice, bob) = (sim.add_host(host("alice")), sim.add_host(host("bob")));
    let (a, b) = (sim.create_qp(alice, QpSpec::rc()), sim.create_qp(bob, QpSpec::rc()));
    let mut options = setting.options;
    (options.mtu, options.psn) = (MTU, Some(FIRST));
    sim.connect(a, b, &options);
    let bytes = |seed| (0..1 << 20).map(|offset| pattern(seed, offset)).collect::<Vec<_>>();
    let here = sim.register_bytes(alice, QpSpec::PD, bytes(SEEDS.0), ALL_ACCESS);
    let there = sim.register_bytes(bob, QpSpec::PD, bytes(SEEDS.1), ALL_ACCESS);
    let packets: Rc<RefCell<[Vec<Seen>; 2]>> = Rc::default();
    let notes = Rc::clone(&packets);
    sim.watch(move |passing| {
        let sighting = &passing.sighting;
        notes.borrow_mut()[sighting.from.index()].push(seen(sighting.headers));
    });
    let mut completions = Vec::new();
    for (index, work) in
        [Work::write(there.remote(THERE[0])), Work::read(there.remote(THERE[1]))].into_iter().enumerate()
    {
        let work = work.sges(&PIECES[index].map(|(at, length)| here.sge(at, length))).id(index as u64);
        sim.post(a, &work).unwrap();
        sim.run_until_idle();
        completions.extend(sim.completions(a).iter().map(told));
    }
    check(
        |at, length| sim.bytes(&here)[at..at + length].to_vec(),
        |at, length| sim.bytes(&there)[at..at + length].to_vec(),
    );
    let numbers = [a, b].map(|qp| (sim.attributes(qp).sq_psn, sim.attributes(qp).rq_psn));
    Account { packets: packets.take(), completions, numbers }
}

#[test]
fn three_links_show_the_same_packets_completions_and_memory() {
    let mut udp = Udp::new();
    let gids = udp.gids();
    let sockets = over(&mut udp, gids);

    // What it has to be, by hand: 146 packets of WRITE in three trains, one acknowledgement for each; 73 of READ response.
    let packets = WRITTEN.div_ceil(MTU.bytes());
    assert_eq!((packets, READ.div_ceil(MTU.bytes())), (146, 73));
    let [requests, responses] = &sockets.packets;
    let mut expected: Vec<Seen> = (0..packets).map(|n| (Opcode::RcWriteMiddle, FIRST.0.add(n), None)).collect();
    expected[0].0 = Opcode::RcWriteFirst;
    expected[145].0 = Opcode::RcWriteLast;
    expected.push((Opcode::RcReadRequest, FIRST.0.add(packets), None));
    assert_eq!(*requests, expected);
    let ack = |psn: u32, msn: u32| (Opcode::RcAcknowledge, FIRST.0.add(psn), Some(Msn::new(msn)));
    let mut expected = vec![ack(63, 0), ack(127, 0), ack(145, 1)];
    expected.extend((146..219).map(|n| match n {
        146 => (Opcode::RcReadResponseFirst, FIRST.0.add(n), Some(Msn::new(2))),
        218 => (Opcode::RcReadResponseLast, FIRST.0.add(n), Some(Msn::new(2))),
        _ => (Opcode::RcReadResponseMiddle, FIRST.0.add(n), None),
    }));
    assert_eq!(*responses, expected);
    assert_eq!(
        sockets.completions,
        [(0, Status::Success, CompletionKind::Write, WRITTEN), (1, Status::Success, CompletionKind::Read, READ)]
    );
    assert_eq!(sockets.numbers, [(FIRST.0.add(219), FIRST.1), (FIRST.1, FIRST.0.add(219))]);

    let mut rings = Rings { rings: [Ring::new(), Ring::new()] };
    assert_eq!(over(&mut rings, gids), sockets);
    assert!(rings.rings.iter().all(|ring| ring.wrapped > 0), "both rings were too short for it all");

    assert_eq!(simulated(&Setting::default()), sockets);
}

#[test]
fn the_simulator_writes_each_byte_once() {
    for setting in Setting::each_link() {
        let mut sim = Sim::new(setting.seed);
        sim.set_default_link(setting.link);
        let (alice, bob) = (sim.add_host(HostConfig::named("alice")), sim.add_host(HostConfig::named("bob")));
        let (a, b) = (sim.create_qp(alice, QpSpec::rc()), sim.create_qp(bob, QpSpec::rc()));
        sim.connect(a, b, &setting.options);
        let spec = RegionSpec::new(QpSpec::PD, ALL_ACCESS);
        let length = u64::from(WRITTEN);
        let here = sim.register_pattern(alice, length, 3, &spec);
        let there = sim.register_pattern(bob, length, 3, &spec);
        sim.post(a, &Work::write(there.remote(0)).sge(here.whole())).unwrap();
        sim.run_until_idle();
        assert_eq!((sim.pattern_written(&here), sim.pattern_written(&there)), ((0, 0), (length, 0)));
        sim.post(a, &Work::read(there.remote(0)).sge(here.whole())).unwrap();
        sim.run_until_idle();
        assert_eq!((sim.pattern_written(&here), sim.pattern_written(&there)), ((length, 0), (length, 0)));
        assert_eq!(sim.completions(a).len(), 2);
    }
}
