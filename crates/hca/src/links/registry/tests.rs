//! A third link, written here: two NICs that share queues in memory. It takes one implementation of the trait, and one
//! line that says where it leads.

use super::*;
use crate::{CompletionQueue, Joins, Nic, Options, Qp};
use link::{Arrived, Destination, Handling, SendError, Train};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use transport::{
    AddressVector, Capabilities, Completion, Data, Kind, Limits, Modify, Operation, QueuePairConfig, ReceiveRequest,
    Remote, SendFlags, SendRequest, Sge, State, Status,
};
use wire::{Gid, Headers, Key, Mtu, Pkey, Psn};

/// Shorter than the trains of a queue pair: some have to be sent packet by packet.
const LARGEST: usize = 10_000;

/// One end of two queues.
#[derive(Debug)]
struct Pipe {
    out: Arc<Mutex<VecDeque<Parcel>>>,
    into: Arc<Mutex<VecDeque<Parcel>>>,
    /// What is written here makes the other end's readable.
    bell: UnixStream,
    /// Held by the thread that receives.
    receiving: Mutex<()>,
    sent: AtomicU32,
}

#[derive(Debug)]
struct Parcel {
    headers: Headers,
    count: u32,
    mtu: u32,
    payload: Vec<u8>,
    addresses: (Gid, Gid),
}

impl Pipe {
    fn pair() -> [Arc<Pipe>; 2] {
        let queues: [Arc<Mutex<VecDeque<Parcel>>>; 2] = Default::default();
        let (left, right) = UnixStream::pair().unwrap();
        let [a, b] = [(0, left), (1, right)].map(|(side, bell): (usize, UnixStream)| {
            bell.set_nonblocking(true).unwrap();
            let (out, into) = (Arc::clone(&queues[side]), Arc::clone(&queues[1 - side]));
            Arc::new(Pipe { out, into, bell, receiving: Mutex::new(()), sent: AtomicU32::new(0) })
        });
        [a, b]
    }
}

impl Link for Pipe {
    fn name(&self) -> &'static str {
        "a pipe"
    }

    fn is_lossless(&self) -> bool {
        true
    }

    fn largest_train(&self) -> usize {
        LARGEST
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.bell.as_raw_fd())
    }

    fn send(&self, to: &Destination, train: &mut Train<'_>) -> Result<(), SendError> {
        assert!(train.length <= LARGEST, "{train:?}");
        let mut payload = vec![0; train.length];
        (train.fill)(0, &mut payload)?;
        let addresses = (to.source, to.destination);
        let Train { headers, count, mtu, .. } = *train;
        self.out.lock().unwrap().push_back(Parcel { headers: *headers, count, mtu, payload, addresses });
        self.sent.fetch_add(1, Ordering::Relaxed);
        // Full of bytes, it is readable as well.
        let _ = (&self.bell).write(&[1]);
        Ok(())
    }

    fn receive(&self, take: &mut dyn FnMut(&Arrived<'_>)) -> bool {
        // A thread that finds it locked leaves the bell as it is: the engine will look again.
        let Ok(_receiving) = self.receiving.try_lock() else { return false };
        while (&self.bell).read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        let mut any = false;
        loop {
            let Some(parcel) = self.into.lock().unwrap().pop_front() else { return any };
            any = true;
            let Parcel { headers, count, mtu, payload, addresses: (source, destination) } = &parcel;
            take(&Arrived {
                headers,
                count: *count,
                mtu: *mtu,
                payload,
                source: *source,
                destination: *destination,
                process: None,
                ip: None,
                handling: Handling::USUAL,
                congestion_marked: false,
            });
        }
    }

    fn seems_empty(&self) -> bool {
        self.into.lock().unwrap().is_empty()
    }
}

/// The line: it leads to queue pairs of this host that are not this NIC's.
fn through_the_pipe(host: &Host<'_>, peer: &Peer, entry: &Arc<LinkEntry>) -> Option<path::Link> {
    (peer.is_here && !host.numbers.owns(peer.qpn)).then(|| path::Link::General(Arc::clone(entry)))
}

struct End {
    nic: Arc<Nic>,
    qp: Arc<Qp>,
    cq: Arc<CompletionQueue>,
    memory: Vec<u8>,
    key: Key,
    av: AddressVector,
}

impl End {
    fn new(pipe: &Arc<Pipe>) -> End {
        let entry = LinkEntry::general(Arc::<Pipe>::clone(pipe), through_the_pipe);
        let nic = Nic::open_with_links(Options::default(), vec![entry]).unwrap();
        let device = nic.devices().into_iter().find(|device| device.name() == "ubi_lo").expect("a device for lo");
        let context = nic.open_device(&device).unwrap();
        let domain = context.new_domain();
        let cq = nic.create_cq(64, None).unwrap();
        let capabilities =
            Capabilities { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let config = QueuePairConfig {
            qpn: Qpn::new(0),
            kind: Kind::ReliableConnected,
            pd: domain,
            capabilities,
            srq: None,
            signal_all: true,
            limits: Limits::default(),
            pkey: Pkey::DEFAULT,
            port_mtu: Mtu::B4096,
        };
        let joins =
            Joins { context, send_cq: Some(Arc::clone(&cq)), receive_cq: Some(Arc::clone(&cq)), xrc_domain: None };
        let qp = nic.create_qp(config, joins).unwrap();
        let mut memory = vec![0; 1 << 20];
        let access = memory::Access::LOCAL_WRITE | memory::Access::REMOTE_WRITE | memory::Access::REMOTE_READ;
        let translation = memory::Translation { address: memory.as_mut_ptr(), length: memory.len(), iova: None };
        let spec = memory::RegionSpec { translation, domain, access };
        // SAFETY: the memory is looked at only when nothing is under way, and goes after the queue pair.
        let key = unsafe { nic.memory().register(&spec) }.unwrap();
        let port = device.port().clone();
        let index = port.gids.iter().position(|gid| gid.is_some_and(|gid| gid.to_ip().is_ipv4())).unwrap();
        let dgid = port.gids[index].unwrap();
        let av = AddressVector { dgid, sgid_index: index as u8, port: 1, ..AddressVector::default() };
        End { nic, qp, cq, memory, key, av }
    }

    fn connect(&self, peer: Qpn) {
        let access = transport::Access::REMOTE_WRITE | transport::Access::REMOTE_READ;
        let modify = |state| Modify { state: Some(state), ..Modify::default() };
        let steps = [
            Modify { pkey_index: Some(0), port: Some(1), access: Some(access), ..modify(State::Init) },
            Modify {
                av: Some(self.av),
                path_mtu: Some(Mtu::B4096),
                dest_qpn: Some(peer),
                rq_psn: Some(Psn::new(5)),
                max_dest_rd_atomic: Some(16),
                min_rnr_timer: Some(1),
                ..modify(State::ReadyToReceive)
            },
            Modify {
                sq_psn: Some(Psn::new(5)),
                timeout: Some(18),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(16),
                ..modify(State::ReadyToSend)
            },
        ];
        steps.iter().for_each(|step| self.qp.modify(&self.nic, step).unwrap());
    }

    fn sge(&self, at: usize, length: usize) -> Sge {
        Sge { address: self.memory[at..].as_ptr() as u64, length: length as u32, key: self.key }
    }

    fn run(&self, operation: Operation, sge: Sge) -> Completion {
        let (flags, data) = (SendFlags::SIGNALED, Data::Gather(&[sge]));
        let request = SendRequest { wr_id: 1, operation, flags, data, target: None, xrc_srq: None };
        self.qp.post_send(&self.nic, &[request]).unwrap();
        self.next()
    }

    fn next(&self) -> Completion {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut found = None;
            self.nic.poll(&self.cq, 1, |completion, _| found = Some(*completion));
            match found {
                Some(completion) => return completion,
                None => assert!(Instant::now() < deadline, "no completion in a minute"),
            }
        }
    }
}

#[test]
fn another_link_takes_an_implementation_and_a_line() {
    let pipes = Pipe::pair();
    let [mut a, b] = pipes.each_ref().map(End::new);
    a.connect(b.qp.qpn());
    b.connect(a.qp.qpn());
    assert_eq!((a.qp.link(), b.qp.link()), ("a pipe", "a pipe"));
    a.memory.iter_mut().enumerate().for_each(|(n, byte)| *byte = (n * 7 + n / 251) as u8);
    // Nothing polls at the other end: its engine sleeps on the pipe's descriptor.
    for length in [1, 4096, 9000, 300_000] {
        let remote = Remote { address: b.memory.as_ptr() as u64, key: b.key };
        let write = a.run(Operation::Write { remote, immediate: None }, a.sge(0, length));
        assert_eq!(write.status, Status::Success);
        assert_eq!(b.memory[..length], a.memory[..length]);
        assert_eq!(a.run(Operation::Read { remote }, a.sge(500_000, length)).status, Status::Success);
        assert_eq!(a.memory[500_000..500_000 + length], b.memory[..length]);
    }
    b.qp.post_receive(&b.nic, &[ReceiveRequest { wr_id: 2, sges: &[b.sge(600_000, 50_000)] }]).unwrap();
    assert_eq!(a.run(Operation::Send { immediate: None }, a.sge(100, 50_000)).status, Status::Success);
    assert_eq!((b.next().bytes, &b.memory[600_000..650_000]), (50_000, &a.memory[100..50_100]));
    let [sent, answered] = pipes.each_ref().map(|pipe| pipe.sent.load(Ordering::Relaxed));
    assert!(sent > 80 && answered > 80, "{sent} and {answered}: long trains go packet by packet");
    a.nic.destroy_qp(&a.qp);
    b.nic.destroy_qp(&b.qp);
}
