//! Queue pairs on the ground alone: no NIC with its table, no engine and no connection manager. The test hands them
//! what the link inside the process brings.

use super::*;
use crate::ground::Options;
use crate::interfaces::Interface;
use crate::links::registry::ReceivedLink;
use crate::objects::device::Device;
use ::host::ports::Ports;
use ::host::slots::{Slot, Slots};
use link::shared::Exchange;
use link::udp::attachment::Attachment;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;
use transport::{Capabilities, Data, Limits, Operation, QueuePairConfig, Remote, SendFlags};
use wire::access::Access;
use wire::{Gid, Mtu, Pkey, Psn};

struct End {
    qp: Qp,
    cq: Arc<CompletionQueue>,
    memory: Vec<u8>,
    key: Key,
}

impl End {
    fn new(ground: &Ground, number: u32) -> End {
        let interface = Interface {
            name: "test0".into(),
            index: 1,
            mac: [2, 0, 0, 0, 0, 1],
            running: true,
            mtu: 65536,
            addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            ..Interface::default()
        };
        let context = Arc::new(Context::new(Arc::new(Device::of(&interface))).unwrap());
        let domain = context.new_domain();
        let capabilities =
            Capabilities { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let config = QueuePairConfig {
            qpn: ground.host.numbers.take().unwrap(),
            kind: Kind::ReliableConnected,
            pd: domain,
            capabilities,
            srq: None,
            signal_all: true,
            limits: Limits::default(),
            pkey: Pkey::DEFAULT,
            port_mtu: Mtu::B4096,
        };
        let cq = Arc::new(CompletionQueue::new(number, 8, None).unwrap());
        let (send_cq, receive_cq) = (Some(Arc::clone(&cq)), Some(Arc::clone(&cq)));
        let qp = Qp::new(config, Joins { context, send_cq, receive_cq, xrc_domain: None }, None, None, None);
        let mut memory = vec![number as u8; 10_000];
        let translation = memory::Translation { address: memory.as_mut_ptr(), length: memory.len(), iova: None };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let spec = memory::RegionSpec { translation, domain, access };
        // SAFETY: the memory is looked at only when nothing is under way, and lives as long as the queue pair.
        let key = unsafe { ground.memory.register(&spec) }.unwrap();
        End { qp, cq, memory, key }
    }

    fn connect(&self, ground: &Ground, peer: Qpn) {
        let av = AddressVector { dgid: Gid::from_ipv4(Ipv4Addr::LOCALHOST), port: 1, ..AddressVector::default() };
        let modify = |state| Modify { state: Some(state), ..Modify::default() };
        let steps = [
            Modify { pkey_index: Some(0), port: Some(1), access: Some(Access::REMOTE_WRITE), ..modify(State::Init) },
            Modify {
                av: Some(av),
                path_mtu: Some(Mtu::B1024),
                dest_qpn: Some(peer),
                rq_psn: Some(Psn::new(7)),
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: Some(1),
                ..modify(State::ReadyToReceive)
            },
            Modify {
                sq_psn: Some(Psn::new(7)),
                timeout: Some(14),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(1),
                ..modify(State::ReadyToSend)
            },
        ];
        steps.iter().for_each(|step| self.qp.change(ground, step, Neighbour::Unasked).unwrap());
    }

    fn completed(&self) -> Vec<(u64, Status)> {
        let mut all = Vec::new();
        self.cq.poll(8, |completion, _| all.push((completion.wr_id, completion.status)));
        all
    }
}

/// Hands on what has arrived until nothing does.
fn carry(ground: &Ground, ends: [&End; 2]) {
    let links = ground.links.registry.received();
    let mut any = true;
    while std::mem::take(&mut any) {
        for ReceivedLink { link, .. } in links {
            any |= link.receive(&mut |arrived| {
                let end = ends.iter().find(|end| end.qp.qpn() == arrived.headers.bth.dest_qpn).expect("one of the two");
                let link::Arrived { headers, count, payload, source, congestion_marked, .. } = *arrived;
                let inbound = Inbound { headers, count, payload, from: source, grh: &[0; 40], congestion_marked };
                end.qp.take(ground, ground.now(), ArrivalWay::General(&**link), &inbound);
                end.qp.advance(ground, ground.now());
            });
        }
    }
}

#[test]
fn queue_pairs_need_the_ground_alone() {
    let ground = Ground::attach(Options::default(), Vec::new()).unwrap();
    let [a, b] = [1, 2].map(|number| End::new(&ground, number));
    a.connect(&ground, b.qp.qpn());
    b.connect(&ground, a.qp.qpn());
    let sge = |end: &End| Sge { address: end.memory.as_ptr() as u64, length: 9000, key: end.key };
    b.qp.receive(&ground, &[ReceiveRequest { wr_id: 3, sges: &[sge(&b)] }], 0).unwrap();
    let request = |wr_id, operation, data| SendRequest {
        wr_id,
        operation,
        flags: SendFlags::SIGNALED,
        data: Data::Gather(data),
        target: None,
        xrc_srq: None,
    };
    let (gathered, remote) = ([sge(&a)], Remote { address: b.memory.as_ptr() as u64, key: b.key });
    a.qp.send(&ground, &[request(1, Operation::Send { immediate: None }, &gathered)], 0).unwrap();
    a.qp.send(&ground, &[request(2, Operation::Write { remote, immediate: None }, &gathered)], 0).unwrap();
    carry(&ground, [&a, &b]);
    assert_eq!(a.completed(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(b.completed(), [(3, Status::Success)]);
    assert_eq!((b.memory[..9000].to_vec(), b.memory[9000]), (a.memory[..9000].to_vec(), 2));
    // What has no permission is refused, and the refusal needs no more than the ground, too.
    let beyond = Remote { address: remote.address + 9000, ..remote };
    a.qp.send(&ground, &[request(4, Operation::Write { remote: beyond, immediate: None }, &gathered)], 0).unwrap();
    carry(&ground, [&a, &b]);
    assert_eq!(a.completed(), [(4, Status::RemoteAccess)]);
    assert_eq!((a.qp.state(), b.qp.state()), (State::Error, State::Error));
}

/// Looks until it is so, for at most a minute.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::yield_now();
    }
}

/// Sees to the links of this process, as a thread that drives the NIC does.
fn serve(ground: &Ground, end: &End) {
    ground.links.udp.receive(false, |_| {});
    if ground.links.exchange.is_called() {
        ground.links.exchange.serve(|_, _| {});
        ground.links.exchange.resume(true, |_| end.qp.resume(ground, ground.now()));
    }
}

#[test]
fn a_message_completes_when_its_acknowledgement_has_a_link() {
    let ground = Ground::attach(Options::default(), Vec::new()).unwrap();
    let end = End::new(&ground, 1);
    let slots = Slots::open().unwrap();
    let slot = slots.take().unwrap();
    let mut attachment = Attachment::open_port(&slots, &Ports::new(&slots), 0).unwrap();
    let peer = Exchange::new(&slots, true).unwrap();
    end.connect(&ground, slot.qpn(1));
    let sge = Sge { address: end.memory.as_ptr() as u64, length: 9000, key: end.key };
    end.qp.receive(&ground, &[ReceiveRequest { wr_id: 3, sges: &[sge] }], 0).unwrap();

    // The peer's link leads here, and it has not answered about ours.
    let link = peer.reach(Slot::of(end.qp.qpn()).unwrap(), 0).unwrap();
    until("the peer's link is up", || {
        serve(&ground, &end);
        peer.serve(|_, _| {});
        link.state() == link::shared::State::Up
    });
    let mut headers = wire::Headers::new(Opcode::RcSendOnly, end.qp.qpn(), Psn::new(7));
    (headers.bth.pkey, headers.bth.ack_req) = (Pkey::DEFAULT, true);
    let fill = |out: &mut [u8]| -> Result<(), ()> {
        out.fill(9);
        Ok(())
    };
    let here = Gid::from_ipv4(Ipv4Addr::LOCALHOST);
    link.writer().unwrap().push((here, here), &headers, (1, 1024), 100, fill).unwrap();
    ground.links.exchange.each_with_something(None, false, |inbound| {
        let mut reading = inbound.reader().unwrap();
        assert!(reading.front().unwrap().is_some());
        end.qp.take_run(&ground, ground.now(), None, &mut reading).unwrap();
    });
    assert_eq!(end.memory[..101], [[9; 100].as_slice(), &[1]].concat());
    assert_eq!(end.completed(), [], "a program that ends now would not have acknowledged it");

    until("the link is up", || {
        attachment.receive(|_| {}, |_, _| {});
        peer.serve(|_, _| {});
        serve(&ground, &end);
        peer.has_inbound() && !ground.links.exchange.has_stalled()
    });
    assert_eq!(end.completed(), [(3, Status::Success)]);
    let mut acknowledged = 0;
    peer.each_with_something(None, false, |inbound| {
        let front = inbound.reader().unwrap().front().unwrap().map(|front| front.headers.bth);
        assert_eq!(front.map(|bth| (bth.opcode, bth.psn)), Some((Opcode::RcAcknowledge, Psn::new(7))));
        acknowledged += 1;
    });
    assert_eq!(acknowledged, 1);
}
