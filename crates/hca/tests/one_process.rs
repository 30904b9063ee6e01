//! Two queue pairs of one process on `lo`: over the link inside the process and, the same, over UDP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use transport::{
    AddressVector, Capabilities, Completion, Data, Kind, Limits, Modify, Operation, ProtectionDomain, QueuePairConfig,
    ReceiveRequest, Remote, SendFlags, SendRequest, Sge, State, Status,
};
use ubiverbs_hca::{CompletionQueue, Context, Joins, Nic, Options, Qp};
use wire::{Key, Mtu, Pkey, Psn, Qkey, Qpn};

struct End {
    qp: Arc<Qp>,
    cq: Arc<CompletionQueue>,
    memory: Vec<u8>,
    key: Key,
}

impl End {
    fn new(nic: &Arc<Nic>, context: &Arc<Context>, kind: Kind) -> End {
        let domain = context.new_domain();
        let cq = nic.create_cq(256, None).unwrap();
        let config = QueuePairConfig {
            qpn: Qpn::new(0),
            kind,
            pd: domain,
            capabilities: Capabilities {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            srq: None,
            signal_all: false,
            limits: Limits::default(),
            pkey: Pkey::DEFAULT,
            port_mtu: context.device().port().mtu(),
        };
        let joins = Joins {
            context: Arc::clone(context),
            send_cq: Some(Arc::clone(&cq)),
            receive_cq: Some(Arc::clone(&cq)),
            xrc_domain: None,
        };
        let qp = nic.create_qp(config, joins).unwrap();
        let mut memory = vec![0u8; 1 << 20];
        let key = register(nic, domain, &mut memory);
        End { qp, cq, memory, key }
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { address: self.memory.as_ptr() as u64 + offset as u64, length, key: self.key }
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote { address: self.memory.as_ptr() as u64 + offset as u64, key: self.key }
    }
}

fn register(nic: &Nic, domain: ProtectionDomain, memory: &mut [u8]) -> Key {
    let spec = memory::RegionSpec {
        translation: memory::Translation { address: memory.as_mut_ptr(), length: memory.len(), iova: None },
        domain,
        access: memory::Access::LOCAL_WRITE
            | memory::Access::REMOTE_WRITE
            | memory::Access::REMOTE_READ
            | memory::Access::REMOTE_ATOMIC,
    };
    // SAFETY: the memory outlives the NIC's use of it: tests destroy the queue pairs first, and look at it only when
    // nothing is under way.
    unsafe { nic.memory().register(&spec) }.unwrap()
}

fn connect(nic: &Nic, end: &End, peer: Qpn, context: &Context) {
    connect_with(nic, end, peer, context, (18, 7));
}

/// Connects a queue pair with a timeout and a number of retries.
fn connect_with(nic: &Nic, end: &End, peer: Qpn, context: &Context, patience: (u8, u8)) {
    connect_at(nic, end, peer, context, patience, Mtu::B4096);
}

/// Connects a queue pair with a path MTU.
fn connect_at(nic: &Nic, end: &End, peer: Qpn, context: &Context, (timeout, retries): (u8, u8), mtu: Mtu) {
    let (index, gid) = context
        .device()
        .port()
        .gids
        .iter()
        .enumerate()
        .find_map(|(index, gid)| gid.filter(|gid| gid.to_ip().is_ipv4()).map(|gid| (index, gid)))
        .unwrap();
    let av = AddressVector { dgid: gid, sgid_index: index as u8, port: 1, ..AddressVector::default() };
    let access = transport::Access::REMOTE_WRITE | transport::Access::REMOTE_READ | transport::Access::REMOTE_ATOMIC;
    let reliable = end.qp.kind().is_reliable();
    let connected = end.qp.kind().is_connected();
    let steps = [
        Modify {
            state: Some(State::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: connected.then_some(access),
            qkey: (!connected).then_some(Qkey::new(0x1111)),
            ..Modify::default()
        },
        Modify {
            state: Some(State::ReadyToReceive),
            av: connected.then_some(av),
            path_mtu: connected.then_some(mtu),
            dest_qpn: connected.then_some(peer),
            rq_psn: connected.then_some(Psn::new(77)),
            max_dest_rd_atomic: reliable.then_some(16),
            min_rnr_timer: reliable.then_some(1),
            ..Modify::default()
        },
        Modify {
            state: Some(State::ReadyToSend),
            sq_psn: Some(Psn::new(77)),
            timeout: reliable.then_some(timeout),
            retry_cnt: reliable.then_some(retries),
            rnr_retry: reliable.then_some(7),
            max_rd_atomic: reliable.then_some(16),
            ..Modify::default()
        },
    ];
    for step in steps {
        end.qp.modify(nic, &step).unwrap();
    }
}

fn next(nic: &Nic, cq: &CompletionQueue) -> Completion {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut found = None;
        nic.poll(cq, 1, |completion, _| found = Some(*completion));
        if let Some(completion) = found {
            return completion;
        }
        assert!(Instant::now() < deadline, "no completion in a minute");
    }
}

fn send<'a>(wr_id: u64, operation: Operation, sges: &'a [Sge]) -> SendRequest<'a> {
    SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, data: Data::Gather(sges), target: None, xrc_srq: None }
}

fn loopback(nic: &Arc<Nic>) -> Arc<Context> {
    let device = nic.devices().into_iter().find(|device| device.name() == "ubi_lo").expect("a device for lo");
    nic.open_device(&device).unwrap()
}

fn reliable_work(options: Options) {
    let nic = Nic::open_with(options).unwrap();
    let context = loopback(&nic);
    let mut a = End::new(&nic, &context, Kind::ReliableConnected);
    let mut b = End::new(&nic, &context, Kind::ReliableConnected);
    connect(&nic, &a, b.qp.qpn(), &context);
    connect(&nic, &b, a.qp.qpn(), &context);
    for (n, byte) in a.memory.iter_mut().enumerate() {
        *byte = (n * 7 + n / 251) as u8;
    }
    // WRITE and READ of several sizes.
    for (round, length) in [1u32, 8, 4096, 4097, 300_000].into_iter().enumerate() {
        let sge = [a.sge(1000, length)];
        let write = Operation::Write { remote: b.remote(5), immediate: None };
        a.qp.post_send(&nic, &[send(round as u64, write, &sge)]).unwrap();
        let completion = next(&nic, &a.cq);
        assert_eq!((completion.wr_id, completion.status), (round as u64, Status::Success));
        assert_eq!(b.memory[5..5 + length as usize], a.memory[1000..1000 + length as usize]);
        let back = [a.sge(600_000, length)];
        let read = Operation::Read { remote: b.remote(5) };
        a.qp.post_send(&nic, &[send(100, read, &back)]).unwrap();
        assert_eq!(next(&nic, &a.cq).status, Status::Success);
        assert_eq!(a.memory[600_000..600_000 + length as usize], a.memory[1000..1000 + length as usize]);
    }
    // SEND with immediate into a posted receive.
    b.qp.post_receive(&nic, &[ReceiveRequest { wr_id: 9, sges: &[b.sge(700_000, 5000)] }]).unwrap();
    let sge = [a.sge(3, 4500)];
    a.qp.post_send(&nic, &[send(10, Operation::Send { immediate: Some(0xabcd) }, &sge)]).unwrap();
    assert_eq!(next(&nic, &a.cq).status, Status::Success);
    let received = next(&nic, &b.cq);
    assert_eq!((received.wr_id, received.bytes, received.immediate), (9, 4500, Some(0xabcd)));
    assert_eq!(b.memory[700_000..704_500], a.memory[3..4503]);
    // An atomic.
    let at = b.memory.as_ptr().align_offset(8);
    b.memory[at..at + 8].copy_from_slice(&41u64.to_ne_bytes());
    let sge = [a.sge(900_000, 8)];
    a.qp.post_send(&nic, &[send(11, Operation::FetchAdd { remote: b.remote(at), add: 1 }, &sge)]).unwrap();
    assert_eq!(next(&nic, &a.cq).status, Status::Success);
    assert_eq!(a.memory[900_000..900_008], 41u64.to_ne_bytes());
    assert_eq!(b.memory[at..at + 8], 42u64.to_ne_bytes());
    // Beyond the region: both learn of it.
    let sge = [a.sge(0, 100)];
    let write = Operation::Write { remote: b.remote((1 << 20) - 99), immediate: None };
    a.qp.post_send(&nic, &[send(12, write, &sge)]).unwrap();
    assert_eq!(next(&nic, &a.cq).status, Status::RemoteAccess);
    assert_eq!((a.qp.state(), b.qp.state()), (State::Error, State::Error));
    nic.destroy_qp(&a.qp);
    nic.destroy_qp(&b.qp);
}

#[test]
fn reliable_work_inside_the_process() {
    reliable_work(Options::default());
}

#[test]
fn reliable_work_over_udp() {
    let mut options = Options::default();
    options.only_udp = true;
    reliable_work(options);
}

/// Against the rules, but it must not do more harm than to itself: packets whose payload changes while they are sent
/// are sent again.
#[test]
fn a_program_that_writes_to_what_it_sends_gets_it_across() {
    let mut options = Options::default();
    options.only_udp = true;
    let nic = Nic::open_with(options).unwrap();
    let context = loopback(&nic);
    let [a, b] = [(); 2].map(|()| End::new(&nic, &context, Kind::ReliableConnected));
    connect(&nic, &a, b.qp.qpn(), &context);
    connect(&nic, &b, a.qp.qpn(), &context);
    let (length, first) = (a.memory.len(), a.memory.as_ptr() as usize);
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = 0u8;
            while !done.load(Ordering::Relaxed) {
                last = last % 100 + 1;
                for at in (first..first + length).step_by(64) {
                    // SAFETY: bytes of the memory of `a`, which outlives this thread, and which nobody looks at but the
                    // NIC.
                    unsafe { (at as *mut u8).write_volatile(last) };
                }
                begun.store(true, Ordering::Relaxed);
            }
        });
        while !begun.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        for wr_id in 0..20 {
            let write = Operation::Write { remote: b.remote(0), immediate: None };
            a.qp.post_send(&nic, &[send(wr_id, write, &[a.sge(0, length as u32)])]).unwrap();
            let completion = next(&nic, &a.cq);
            assert_eq!((completion.wr_id, completion.status), (wr_id, Status::Success));
        }
        done.store(true, Ordering::Relaxed);
    });
    for (at, byte) in b.memory.iter().enumerate() {
        // SAFETY: bytes of a live vector, into which the NIC has written.
        let byte = unsafe { std::ptr::from_ref(byte).read_volatile() };
        let written = at % 64 == 0;
        assert!(if written { (1..=100).contains(&byte) } else { byte == 0 }, "{byte} at {at}");
    }
    nic.destroy_qp(&a.qp);
    nic.destroy_qp(&b.qp);
}

#[test]
fn one_sided_work_completes_while_nobody_polls() {
    for only_udp in [false, true] {
        let mut options = Options::default();
        options.only_udp = only_udp;
        let nic = Nic::open_with(options).unwrap();
        let context = loopback(&nic);
        let (a, b) =
            (End::new(&nic, &context, Kind::ReliableConnected), End::new(&nic, &context, Kind::ReliableConnected));
        connect(&nic, &a, b.qp.qpn(), &context);
        connect(&nic, &b, a.qp.qpn(), &context);
        let write = Operation::Write { remote: b.remote(0), immediate: None };
        a.qp.post_send(&nic, &[send(1, write, &[a.sge(0, 100_000)])]).unwrap();
        // Only the engine can have moved it: nothing here polls.
        let deadline = Instant::now() + Duration::from_secs(60);
        while a.cq.is_empty() {
            assert!(Instant::now() < deadline, "the engine sleeps");
            std::thread::sleep(Duration::from_millis(1));
        }
        nic.destroy_qp(&a.qp);
        nic.destroy_qp(&b.qp);
    }
}

#[test]
fn a_waiting_thread_is_woken_through_its_channel() {
    let nic = Nic::open().unwrap();
    let context = loopback(&nic);
    let channel = Arc::new(ubiverbs_hca::CompletionChannel::new().unwrap());
    let cq = nic.create_cq(16, Some(Arc::clone(&channel))).unwrap();
    let mut b = End::new(&nic, &context, Kind::UnreliableDatagram);
    let a = End::new(&nic, &context, Kind::UnreliableDatagram);
    connect(&nic, &a, b.qp.qpn(), &context);
    // A receiver whose completions go to the queue with the channel.
    let config = QueuePairConfig {
        qpn: Qpn::new(0),
        kind: Kind::UnreliableDatagram,
        pd: ProtectionDomain(9999),
        capabilities: Capabilities { max_recv_wr: 4, max_recv_sge: 1, ..Capabilities::default() },
        srq: None,
        signal_all: false,
        limits: Limits::default(),
        pkey: Pkey::DEFAULT,
        port_mtu: Mtu::B4096,
    };
    let joins = Joins {
        context: Arc::clone(&context),
        send_cq: Some(Arc::clone(&cq)),
        receive_cq: Some(Arc::clone(&cq)),
        xrc_domain: None,
    };
    nic.destroy_qp(&b.qp);
    b.qp = nic.create_qp(config, joins).unwrap();
    b.key = register(&nic, ProtectionDomain(9999), &mut b.memory);
    connect(&nic, &b, a.qp.qpn(), &context);
    b.qp.post_receive(&nic, &[ReceiveRequest { wr_id: 5, sges: &[b.sge(0, 2000)] }]).unwrap();
    cq.arm(ubiverbs_hca::Notify::Any);
    let waiter = {
        let (nic, channel) = (Arc::clone(&nic), Arc::clone(&channel));
        std::thread::spawn(move || nic.wait(&channel).unwrap())
    };
    let port = context.device().port().clone();
    let index = port.gids.iter().position(|gid| gid.is_some_and(|gid| gid.to_ip().is_ipv4())).unwrap();
    let av =
        AddressVector { dgid: port.gids[index].unwrap(), sgid_index: index as u8, port: 1, ..AddressVector::default() };
    let target = transport::DatagramTarget { av, qpn: b.qp.qpn(), qkey: Qkey::new(0x1111) };
    let sges = [a.sge(0, 1000)];
    let request = SendRequest { target: Some(target), ..send(6, Operation::Send { immediate: None }, &sges) };
    a.qp.post_send(&nic, &[request]).unwrap();
    assert_eq!(waiter.join().unwrap(), cq.id);
    let received = next(&nic, &cq);
    assert_eq!((received.wr_id, received.bytes, received.src_qpn), (5, 1040, Some(a.qp.qpn())));
    nic.destroy_qp(&a.qp);
    nic.destroy_qp(&b.qp);
}

#[test]
fn no_time_to_answer_runs_while_the_answer_is_under_way_inside_the_process() {
    let nic = Nic::open().unwrap();
    let context = loopback(&nic);
    let [a, b] = [(); 2].map(|()| End::new(&nic, &context, Kind::ReliableConnected));
    // One millisecond, and no retry.
    connect_with(&nic, &a, b.qp.qpn(), &context, (8, 0));
    connect_with(&nic, &b, a.qp.qpn(), &context, (8, 0));
    b.qp.post_receive(&nic, &[ReceiveRequest { wr_id: 1, sges: &[b.sge(0, 64)] }]).unwrap();
    // The thread that delivers gets no processor for a while, after the request and before the acknowledgement. The
    // engine sees to deadlines meanwhile.
    let held = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&held);
    b.cq.observe(move || {
        if !flag.swap(true, Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    a.qp.post_send(&nic, &[send(2, Operation::Send { immediate: None }, &[a.sge(0, 64)])]).unwrap();
    assert_eq!((next(&nic, &a.cq).status, held.load(Ordering::SeqCst)), (Status::Success, true));
    assert_eq!(next(&nic, &b.cq).status, Status::Success);
    // A peer that does not answer is still found out.
    nic.destroy_qp(&b.qp);
    a.qp.post_send(&nic, &[send(3, Operation::Send { immediate: None }, &[a.sge(0, 64)])]).unwrap();
    assert_eq!(next(&nic, &a.cq).status, Status::RetryExceeded);
    nic.destroy_qp(&a.qp);
}

/// A thousand WRITEs of 4 KiB at a path MTU of 1024, counted by both sides.
fn counted_writes(options: Options) {
    const WRITES: u64 = 1000;
    // IP, UDP, BTH, payload and ICRC; the first packet has a RETH, too. An acknowledgement has an AETH and no payload.
    const OCTETS: u64 = 4 * (20 + 8 + 12 + 1024 + 4) + 16;
    const ACKNOWLEDGEMENT: u64 = 20 + 8 + 12 + 4 + 4;
    // A busy machine may lose packets over UDP; then the figures are others, as they should be.
    let deadline = Instant::now() + Duration::from_secs(180);
    while Instant::now() < deadline {
        let nic = Nic::open_with(options).unwrap();
        let context = loopback(&nic);
        let ends = [(); 2].map(|()| End::new(&nic, &context, Kind::ReliableConnected));
        let [a, b] = &ends;
        connect_at(&nic, a, b.qp.qpn(), &context, (18, 7), Mtu::B1024);
        connect_at(&nic, b, a.qp.qpn(), &context, (18, 7), Mtu::B1024);
        for round in 0..WRITES {
            let write = Operation::Write { remote: b.remote(0), immediate: None };
            a.qp.post_send(&nic, &[send(round, write, &[a.sge(0, 4096)])]).unwrap();
            assert_eq!(next(&nic, &a.cq).status, Status::Success);
        }
        let (of_a, of_b) = (a.qp.counters(), b.qp.counters());
        if of_a.incidents.retries > 0 {
            continue;
        }
        let (a_traffic, b_traffic) = (of_a.traffic, of_b.traffic);
        assert_eq!((a_traffic.sent_packets, a_traffic.sent_octets), (4 * WRITES, OCTETS * WRITES));
        assert_eq!((b_traffic.received_packets, b_traffic.received_octets), (4 * WRITES, OCTETS * WRITES));
        let answers = b_traffic.sent_packets;
        assert!((1..=4 * WRITES).contains(&answers), "{answers} acknowledgements");
        assert_eq!((a_traffic.received_packets, b_traffic.sent_octets), (answers, answers * ACKNOWLEDGEMENT));
        assert_eq!((a_traffic.sends, b_traffic.receives), (0, 0));
        // The port has the sum, also when the queue pairs are gone.
        let port = |nic: &Nic| {
            let all = nic.counters();
            all.iter().find(|(device, _)| device.name() == "ubi_lo").map(|(_, counters)| counters.traffic).unwrap()
        };
        let before = port(&nic);
        assert_eq!(before.sent_packets, 4 * WRITES + answers);
        for end in &ends {
            nic.destroy_qp(&end.qp);
        }
        assert_eq!(port(&nic), before);
        return;
    }
    panic!("packets were lost in each round");
}

#[test]
fn counters_are_exact_inside_the_process() {
    counted_writes(Options::default());
}

#[test]
fn counters_are_exact_over_udp() {
    let mut options = Options::default();
    options.only_udp = true;
    counted_writes(options);
}

#[test]
fn counters_tell_messages_and_refusals() {
    let nic = Nic::open().unwrap();
    let context = loopback(&nic);
    let ends = [(); 2].map(|()| End::new(&nic, &context, Kind::ReliableConnected));
    let [a, b] = &ends;
    connect(&nic, a, b.qp.qpn(), &context);
    connect(&nic, b, a.qp.qpn(), &context);
    // No receive yet: the receiver is not ready, and the sender comes back.
    a.qp.post_send(&nic, &[send(1, Operation::Send { immediate: None }, &[a.sge(0, 64)])]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while a.qp.counters().incidents.rnr_naks_received == 0 {
        assert!(Instant::now() < deadline, "no refusal in a minute");
        nic.poll(&a.cq, 1, |_, _| panic!("it completed"));
    }
    b.qp.post_receive(&nic, &[ReceiveRequest { wr_id: 9, sges: &[b.sge(0, 64)] }]).unwrap();
    assert_eq!(next(&nic, &a.cq).status, Status::Success);
    assert_eq!(next(&nic, &b.cq).status, Status::Success);
    let (of_a, of_b) = (a.qp.counters(), b.qp.counters());
    assert!(of_b.incidents.rnr_naks_sent >= 1 && of_b.incidents.no_receives >= of_b.incidents.rnr_naks_sent);
    assert_eq!(of_a.incidents.rnr_naks_received, of_b.incidents.rnr_naks_sent);
    assert_eq!((of_a.traffic.sends, of_b.traffic.receives), (1, 1));
    // Memory that may not be touched.
    let beyond = Operation::Write { remote: b.remote((1 << 20) - 9), immediate: None };
    a.qp.post_send(&nic, &[send(2, beyond, &[a.sge(0, 64)])]).unwrap();
    assert_eq!(next(&nic, &a.cq).status, Status::RemoteAccess);
    assert_eq!(b.qp.counters().incidents.access_refused, 1);
    for end in &ends {
        nic.destroy_qp(&end.qp);
    }
}

#[test]
fn a_queue_pair_tells_what_it_waits_for_and_how_long() {
    let nic = Nic::open().unwrap();
    let context = loopback(&nic);
    let ends = [(); 2].map(|()| End::new(&nic, &context, Kind::ReliableConnected));
    let [a, b] = &ends;
    connect(&nic, a, b.qp.qpn(), &context);
    connect(&nic, b, a.qp.qpn(), &context);
    let deadline = Instant::now() + Duration::from_secs(60);
    // While a thread uses it for long, little is told of it.
    let told = || loop {
        let pair = nic.report().queue_pairs.into_iter().find(|pair| pair.number == a.qp.qpn().value()).unwrap();
        if pair.busy == 0 {
            break pair;
        }
        assert!(Instant::now() < deadline, "{pair:?}");
    };
    assert_eq!((told().waiting, told().sends), (None, 0));
    // The peer has no receive.
    a.qp.post_send(&nic, &[send(7, Operation::Send { immediate: None }, &[a.sge(0, 64)])]).unwrap();
    let first = loop {
        if let Some(waiting) = told().waiting.filter(|waiting| waiting.reason == transport::WaitReason::NotReady as u8)
        {
            break waiting;
        }
        assert!(Instant::now() < deadline, "{:?}", told());
    };
    assert_eq!((first.wr_id, first.operation.as_str(), told().sends), (7, "SEND", 1));
    // However often it is sent again meanwhile, it waits longer and longer. While it is on its way again, it waits for
    // an answer, whose tries are others.
    let longer = loop {
        let waiting = told().waiting.unwrap();
        if waiting.reason == first.reason && waiting.nanos > first.nanos + 20_000_000 {
            break waiting;
        }
        assert!(Instant::now() < deadline, "{waiting:?}");
    };
    assert!(longer.tries >= first.tries && longer.psn == first.psn, "{longer:?}");
    b.qp.post_receive(&nic, &[ReceiveRequest { wr_id: 9, sges: &[b.sge(0, 64)] }]).unwrap();
    assert_eq!(next(&nic, &a.cq).status, Status::Success);
    assert_eq!((told().waiting, told().sends), (None, 0));
    for end in &ends {
        nic.destroy_qp(&end.qp);
    }
}

/// Asked over the host's registry, as any other process would ask.
#[test]
fn a_process_tells_what_it_has() {
    let nic = Nic::open().unwrap();
    let context = loopback(&nic);
    let ends = [(); 2].map(|()| End::new(&nic, &context, Kind::ReliableConnected));
    let [a, b] = &ends;
    connect(&nic, a, b.qp.qpn(), &context);
    let pid = std::process::id() as i32;
    // Tests of this file share the process, and the asker asks each process once: another NIC may answer.
    let deadline = Instant::now() + Duration::from_secs(60);
    let report = loop {
        let processes = inventory::gather(inventory::Users::All).unwrap();
        let own = processes.into_iter().find(|process| process.pid == pid).expect("this process is listed");
        assert!(!own.command.is_empty());
        let number = a.qp.qpn().value();
        let found = own.report.ok().filter(|report| report.queue_pairs.iter().any(|pair| pair.number == number));
        match found {
            Some(report) => break report,
            None => assert!(Instant::now() < deadline, "no report in a minute"),
        }
    };
    let pair = report.queue_pairs.iter().find(|pair| pair.number == a.qp.qpn().value()).unwrap();
    assert_eq!((pair.kind, pair.state, pair.peer), (2, State::ReadyToSend as u8, b.qp.qpn().value()));
    assert_eq!((pair.send_psn, pair.receive_psn, pair.send_queue), (77, 77, a.cq.id));
    let other = report.queue_pairs.iter().find(|pair| pair.number == b.qp.qpn().value()).unwrap();
    assert_eq!((other.state, other.peer), (State::Reset as u8, 0));
    let region = report.regions.iter().find(|region| region.key == a.key.value()).unwrap();
    assert_eq!((region.length, region.address, region.domain), (1 << 20, a.memory.as_ptr() as u64, pair.domain));
    let domain = report.domains.iter().find(|domain| domain.number == pair.domain).unwrap();
    assert_eq!((domain.users, domain.interface), (2, context.device().interface_index()));
    let queue = report.completion_queues.iter().find(|queue| queue.number == a.cq.id).unwrap();
    assert_eq!((queue.users, queue.entries), (1, 256));
    assert!(report.ports.iter().any(|port| port.device == "ubi_lo"));
    for end in &ends {
        nic.destroy_qp(&end.qp);
    }
    assert!(nic.report().queue_pairs.is_empty());
}
