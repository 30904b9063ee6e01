//! A NIC whose drops are counted and listened to, and the other process that is asked about its own.

use hca::{CompletionQueue, Context, Joins, Nic, Options, Qp};
use std::io::BufRead;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use trace::DropReason;
use transport::{
    AddressVector, Capabilities, Data, DatagramTarget, Kind, Limits, Modify, Operation, QueuePairConfig, Remote,
    SendFlags, SendRequest, Sge, State, Status,
};
use wire::{Key, Mtu, Pkey, Psn, Qkey, Qpn};

/// The queue key of all datagrams.
pub const QKEY: u32 = 0x1111;

/// How long something may take that happens at once on a machine that is not busy.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A NIC whose drops are listened to.
#[derive(Debug)]
pub struct Bench {
    /// The NIC.
    pub nic: Arc<Nic>,
    /// Its device on `lo`, opened.
    pub context: Arc<Context>,
    /// Where all work completes.
    pub cq: Arc<CompletionQueue>,
    /// What is sent.
    pub memory: Vec<u8>,
    /// The memory's key.
    pub key: Key,
    /// The protection domain of all.
    pub pd: transport::ProtectionDomain,
    /// How to reach this host.
    pub av: AddressVector,
    /// Reasons of drops that raised an event.
    pub heard: Heard,
}

/// A sink that keeps the reasons of drops.
#[derive(Clone, Debug, Default)]
pub struct Heard(Arc<Mutex<Vec<DropReason>>>);

impl trace::Sink for Heard {
    fn record(&mut self, event: &trace::Event) {
        match event.kind {
            trace::Kind::PacketDropped { reason, .. } | trace::Kind::CmMessageDropped { reason, .. } => {
                self.0.lock().unwrap().push(reason);
            }
            _ => {}
        }
    }
}

impl Default for Bench {
    fn default() -> Bench {
        Bench::new()
    }
}

impl Bench {
    /// A NIC as programs have it.
    pub fn new() -> Bench {
        Bench::with(Options::default())
    }

    /// One that sends everything over UDP.
    pub fn over_udp() -> Bench {
        let mut options = Options::default();
        options.only_udp = true;
        Bench::with(options)
    }

    /// One of a particular kind.
    pub fn with(options: Options) -> Bench {
        let nic = Nic::open_with(options).unwrap();
        let device = nic.devices().into_iter().find(|device| device.name() == "ubi_lo").expect("a device for lo");
        let context = nic.open_device(&device).unwrap();
        let pd = context.new_domain();
        let cq = nic.create_cq(1024, None).unwrap();
        let mut memory = vec![0u8; 8192];
        let spec = memory::RegionSpec {
            translation: memory::Translation { address: memory.as_mut_ptr(), length: memory.len(), iova: None },
            domain: pd,
            access: memory::Access::LOCAL_WRITE,
        };
        // SAFETY: the memory lives as long as the bench, whose queue pairs only read it.
        let key = unsafe { nic.memory().register(&spec) }.unwrap();
        let port = device.port().clone();
        let index = port.gids.iter().position(|gid| gid.is_some_and(|gid| gid.to_ip().is_ipv4())).unwrap();
        let dgid = port.gids[index].unwrap();
        let av = AddressVector { dgid, sgid_index: index as u8, port: 1, ..AddressVector::default() };
        let heard = Heard::default();
        nic.tracing().to(Some(Box::new(heard.clone())));
        Bench { nic, context, cq, memory, key, pd, av, heard }
    }

    /// A queue pair in RESET.
    pub fn qp(&self, kind: Kind) -> Arc<Qp> {
        let config = QueuePairConfig {
            qpn: Qpn::new(0),
            kind,
            pd: self.pd,
            capabilities: Capabilities {
                max_send_wr: 64,
                max_recv_wr: 4,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            srq: None,
            signal_all: true,
            limits: Limits::default(),
            pkey: Pkey::DEFAULT,
            port_mtu: Mtu::B4096,
        };
        let joins = Joins {
            context: Arc::clone(&self.context),
            send_cq: Some(Arc::clone(&self.cq)),
            receive_cq: Some(Arc::clone(&self.cq)),
            xrc_domain: None,
        };
        self.nic.create_qp(config, joins).unwrap()
    }

    /// A queue pair that sends and receives datagrams.
    pub fn datagrams(&self) -> Arc<Qp> {
        let qp = self.qp(Kind::UnreliableDatagram);
        let init = Modify { pkey_index: Some(0), port: Some(1), qkey: Some(Qkey::new(QKEY)), ..Modify::default() };
        let steps = [
            Modify { state: Some(State::Init), ..init },
            Modify { state: Some(State::ReadyToReceive), ..Modify::default() },
            Modify { state: Some(State::ReadyToSend), sq_psn: Some(Psn::new(1)), ..Modify::default() },
        ];
        steps.iter().for_each(|step| qp.modify(&self.nic, step).unwrap());
        qp
    }

    /// A reliable queue pair that is connected, and expects packet 5.
    pub fn connected(&self, peer: Qpn) -> Arc<Qp> {
        let qp = self.qp(Kind::ReliableConnected);
        self.connect(&qp, peer);
        qp
    }

    /// Connects a queue pair, which expects packet 5.
    pub fn connect(&self, qp: &Qp, peer: Qpn) {
        let access = Some(transport::Access::REMOTE_WRITE);
        let is_reliable = qp.kind().is_reliable();
        let steps = [
            Modify { state: Some(State::Init), pkey_index: Some(0), port: Some(1), access, ..Modify::default() },
            Modify {
                state: Some(State::ReadyToReceive),
                av: Some(self.av),
                path_mtu: Some(Mtu::B1024),
                dest_qpn: Some(peer),
                rq_psn: Some(Psn::new(5)),
                max_dest_rd_atomic: is_reliable.then_some(1),
                min_rnr_timer: is_reliable.then_some(1),
                ..Modify::default()
            },
            Modify {
                state: Some(State::ReadyToSend),
                sq_psn: Some(Psn::new(5)),
                timeout: is_reliable.then_some(18),
                retry_cnt: is_reliable.then_some(7),
                rnr_retry: is_reliable.then_some(7),
                max_rd_atomic: is_reliable.then_some(1),
                ..Modify::default()
            },
        ];
        steps.iter().for_each(|step| qp.modify(&self.nic, step).unwrap());
    }

    /// Posts a WRITE of nothing.
    pub fn post_write(&self, qp: &Qp) {
        let operation = Operation::Write { remote: Remote { address: 0, key: Key::new(0) }, immediate: None };
        let (flags, data) = (SendFlags::SIGNALED, Data::Gather(&[]));
        let request = SendRequest { wr_id: 2, operation, flags, data, target: None, xrc_srq: None };
        qp.post_send(&self.nic, &[request]).unwrap();
    }

    /// How the next work ends.
    pub fn next(&self) -> Status {
        let (mut status, deadline) = (None, Instant::now() + LIMIT);
        loop {
            self.nic.poll(&self.cq, 1, |completion, _| status = Some(completion.status));
            if let Some(status) = status {
                return status;
            }
            assert!(Instant::now() < deadline, "no completion");
        }
    }

    /// Posts a SEND; false if the queue is full.
    pub fn post(&self, qp: &Qp, length: u32, target: Option<DatagramTarget>) -> bool {
        let sges = [Sge { address: self.memory.as_ptr() as u64, length, key: self.key }];
        let (operation, data) = (Operation::Send { immediate: None }, Data::Gather(&sges));
        let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, data, target, xrc_srq: None };
        qp.post_send(&self.nic, &[request]).is_ok()
    }

    /// Sends a datagram, and does what there is to do.
    pub fn send(&self, from: &Qp, to: Qpn, qkey: u32) {
        let target = DatagramTarget { av: self.av, qpn: to, qkey: Qkey::new(qkey) };
        self.post(from, 64, Some(target));
        self.turn();
    }

    /// Does what there is to do.
    pub fn turn(&self) {
        self.nic.poll(&self.cq, 64, |_, _| {});
        self.nic.progress();
    }

    /// Does something again and again, until a drop for this reason is counted and heard of: a packet may go to a NIC
    /// of a test before, which is about to end.
    pub fn until(&self, reason: DropReason, mut again: impl FnMut()) {
        let (before, deadline) = (self.nic.drops(reason), Instant::now() + LIMIT);
        self.heard.0.lock().unwrap().clear();
        while self.nic.drops(reason) == before {
            again();
            self.turn();
            assert!(Instant::now() < deadline, "{} is not counted; heard of {:?}", reason.name(), self.last());
        }
        while !self.reasons().contains(&reason) {
            assert!(Instant::now() < deadline, "no event for {}, but for {:?}", reason.name(), self.last());
        }
    }

    /// Does something once and waits until a drop for that reason is counted and told of.
    pub fn after(&self, reason: DropReason, once: impl FnOnce()) {
        let mut once = Some(once);
        self.until(reason, || {
            if let Some(once) = once.take() {
                once();
            }
        });
    }

    /// The last few of them.
    pub fn last(&self) -> Vec<DropReason> {
        self.reasons().into_iter().rev().take(8).collect()
    }

    /// The reasons of all drops that raised an event.
    pub fn reasons(&self) -> Vec<DropReason> {
        self.heard.0.lock().unwrap().clone()
    }

    /// A number of this process that no queue pair has.
    pub fn unused(&self) -> Qpn {
        let qp = self.qp(Kind::UnreliableDatagram);
        self.nic.destroy_qp(&qp);
        qp.qpn()
    }
}

/// The other process: answers what it has dropped, and connects queue pairs.
pub fn peer(_: &str) {
    let bench = Bench::new();
    let [ud, rc] = [bench.datagrams(), bench.qp(Kind::ReliableConnected)];
    let reset = bench.qp(Kind::UnreliableDatagram);
    println!("here {} {} {}", ud.qpn().value(), reset.qpn().value(), bench.unused().value());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some(("drops", name)) => {
                let reason = DropReason::ALL.iter().find(|reason| reason.name() == name).unwrap();
                let events = bench.reasons().iter().filter(|other| *other == reason).count();
                println!("dropped {} {events}", bench.nic.drops(*reason));
            }
            Some(("connect", number)) => {
                let peer = bench.connected(Qpn::new(number.parse().unwrap()));
                println!("connected {}", peer.qpn().value());
            }
            _ => println!("kernel {}", bench.nic.kernel_drops().unwrap().sockets),
        }
    }
    bench.nic.destroy_qp(&rc);
}
