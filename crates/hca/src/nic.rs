//! The NIC of this process: the phone book of its objects, its links, and the rules by which work gets done. There is one per process; after a
//! fork the child has none and makes its own.

use crate::capture::Capture;
use crate::clock::Clock;
use crate::cm::Cm;
use crate::completion_queue::{CompletionChannel, CompletionQueue, CqError, Entry};
use crate::context::{AsyncEvent, Context};
use crate::debt::{Alone, Debtor};
use crate::device::{Change, Device};
use crate::engine::Engine;
use crate::environment;
use crate::host::{Host, SharedWindow, WindowOf, Windows};
use crate::interfaces::{self, Changes};
use crate::multicast::{self, Groups};
use crate::numbers::Numbers;
use crate::path::{Link, Path};
use crate::process;
use crate::queue_pair::{Joins, Qp, TrainCargo};
use crate::shared;
use crate::shared::Impatience;
use crate::shared_queue::{SharedQueue, Xrc};
use crate::sleep;
use crate::table::Table;
use crate::timers::Timers;
use crate::tracing::Tracing;
use crate::udp::{Outgoing, Udp};
use crate::watch::{OnWatch, Watch};
use link::lives::Lives;
use link::ports::Ports;
use link::shared::{Exchange, Front, Sleeper, State};
use link::slots::{Slot, Slots};
use link::udp::{Arrival, Cargo, Family, Route};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;
use trace::Direction;
use transport::congestion::WindowConfig;
use transport::{AddressVector, Inbound, ProtectionDomain, QueuePairConfig, Refusal, Time, Train};
use wire::cm::CmDatagram;
use wire::{Gid, Headers, IpHeader, Ipv4Header, Ipv6Header, Qpn, ROCE_PORT, Srqn, grh_bytes};

/// Takes a lock whose holder may have panicked: what it guards is valid at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why the NIC could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused something.
    #[error("{what}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
    /// No share of the host's numbers.
    #[error(transparent)]
    Slot(#[from] link::slots::SlotError),
    /// No share of the host's UDP port.
    #[error(transparent)]
    Attach(#[from] link::attachment::AttachError),
    /// A completion queue cannot be made so.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// No more numbers.
    #[error("no more {what}: the NIC has numbers for {limit}")]
    Exhausted {
        /// Of what.
        what: &'static str,
        /// How many there are.
        limit: u32,
    },
    /// Memory cannot be registered so, or not be deregistered.
    #[error(transparent)]
    Memory(#[from] memory::Error),
    /// Not a multicast group, or not a queue pair that can be in one.
    #[error("only datagram queue pairs can be in a group, and {address} must be one")]
    NoGroup {
        /// The address.
        address: IpAddr,
    },
    /// A queue pair that leaves a group it is not in.
    #[error("the queue pair is not attached to {group}")]
    NotAttached {
        /// The group.
        group: IpAddr,
    },
    /// A limit of the device.
    #[error("{what} {asked} is more than the device's {max}")]
    TooMany {
        /// What was asked for.
        what: &'static str,
        /// How much.
        asked: u32,
        /// The most.
        max: u32,
    },
}

/// The most that is under way to one peer, in what it costs its buffer: more would only leave the cache.
const MOST_UNDER_WAY: u64 = 1 << 20;

/// Packets of one queue pair after which it is driven, though more are at hand: as many as two datagrams bring.
const OFTEN: u32 = 32;

/// A datagram of so many packets is one of many, mostly.
const FULL: u32 = 8;

/// How often a process that ends looks for packets.
const LAST_LOOKS: u32 = 64;

/// Of so many polls one looks at the clock, where trains come through shared memory.
const SELDOM: u64 = 32;

/// How long, in nanoseconds, sockets are left alone by one who polls, where trains come through shared memory: with and without queue pairs that
/// other hosts may send to. And how long they are looked at every time after something has come.
const LOOK_OFTEN: u64 = 20_000;
const LOOK_SELDOM: u64 = 1_000_000;
const HOT: u64 = 1_000_000;

/// How long, in nanoseconds, a timer waits for a socket to be empty.
const PATIENCE: u64 = 2_000_000;

/// How a NIC attaches to its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Sends everything over UDP, also what stays inside the process. For tests and measurements.
    pub only_udp: bool,
}

/// What a device allows.
pub mod limits {
    /// Work requests in a queue.
    pub const MAX_WR: u32 = 1 << 15;
    /// Scatter/gather entries of a work request.
    pub const MAX_SGE: u32 = 32;
    /// Bytes of inline data.
    pub const MAX_INLINE: u32 = 1024;
    /// Queue pairs of a process.
    pub const MAX_QP: u32 = 1 << 18;
}

/// The NIC of this process.
#[derive(Debug)]
pub struct Nic {
    pub(crate) memory: memory::Memory,
    pub(crate) trace: Tracing,
    capture: Option<Mutex<Capture>>,
    pub(crate) timers: Timers,
    pub(crate) udp: Udp,
    pub(crate) exchange: Exchange,
    pub(crate) impatience: Impatience,
    pub(crate) cm: Cm,
    pub(crate) lives: Lives,
    pub(crate) slots: Slots,
    /// Ports of the connection manager.
    pub(crate) ports: Ports,
    pub(crate) groups: Groups,
    pub(crate) changes: Option<Changes>,
    options: Options,
    clock: Clock,
    devices: RwLock<Vec<Arc<Device>>>,
    contexts: Mutex<Vec<Weak<Context>>>,
    numbers: Numbers,
    qps: Table<Qp>,
    srqs: RwLock<HashMap<Srqn, Arc<SharedQueue>>>,
    next_srq: AtomicU32,
    next_cq: AtomicU32,
    local: link::local::Queue<LocalAddress>,
    /// Queue pairs that may go on: a shared window has room for them.
    ready: Waiting,
    windows: Mutex<HashMap<(Gid, u16), Arc<SharedWindow>>>,
    /// How windows towards peers behave.
    peer_window: WindowConfig,
    here: Arc<SharedWindow>,
    engine: Arc<Engine>,
    watch: Watch,
    /// Counts what may have changed the ways of datagrams.
    epoch: AtomicU32,
    /// When the sockets were last looked at, and until when they are looked at whenever the program polls.
    looked: AtomicU64,
    hot_until: AtomicU64,
    /// When more than the socket that brings packets was looked at.
    looked_at_all: AtomicU64,
    /// Queue pairs that may hear from other hosts at any time.
    udp_users: AtomicU32,
    /// The queue pair whose acknowledgement waits for an answer.
    debtor: Debtor,
}

/// Where a train inside the process comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalAddress {
    source: Gid,
    destination: Gid,
}

impl Nic {
    /// Attaches to this host.
    pub fn open() -> Result<Arc<Nic>, Error> {
        Nic::open_with(Options::default())
    }

    /// The NIC of this process, made when it is first asked for. A forked child gets its own.
    pub fn of_process() -> Result<Arc<Nic>, Error> {
        process::nic()
    }

    /// Attaches to this host in a particular way.
    pub fn open_with(options: Options) -> Result<Arc<Nic>, Error> {
        process::guard_forks();
        let slots = Slots::open().map_err(system("cannot reach the registry of this host"))?;
        let numbers = Numbers::new(&slots)?;
        let options = Options { only_udp: options.only_udp || environment::only_udp(), ..options };
        let ports = Ports::new(&slots);
        let udp = Udp::open(&slots, &ports)?;
        // Faults live where packets arrive over UDP.
        let willing = !options.only_udp && !environment::has_faults();
        let exchange =
            Exchange::new(&slots, willing).map_err(system("cannot make shared memory for other processes"))?;
        let limit = udp.buffer_size().unwrap_or(transport::congestion::STOCK_BUFFER);
        // Peers ask for as large a buffer as we do, and mostly get as much. Who has less tells by losing packets.
        let peer_window = WindowConfig { limit: limit.min(MOST_UNDER_WAY), ..WindowConfig::default() };
        let nic = Arc::new(Nic {
            memory: memory::Memory::new(),
            trace: Tracing::default(),
            capture: environment::capture().map(Mutex::new),
            timers: Timers::new(),
            udp,
            exchange,
            impatience: Impatience::default(),
            cm: Cm::new(numbers.slot()),
            lives: Lives::new(&slots).map_err(system("cannot watch other processes"))?,
            slots: slots.clone(),
            ports,
            groups: Groups::default(),
            changes: changes()?,
            options,
            clock: Clock::start(),
            devices: RwLock::new(Vec::new()),
            contexts: Mutex::new(Vec::new()),
            numbers,
            qps: Table::default(),
            srqs: RwLock::new(HashMap::new()),
            next_srq: AtomicU32::new(1),
            next_cq: AtomicU32::new(1),
            local: link::local::Queue::default(),
            ready: Waiting::default(),
            windows: Mutex::new(HashMap::new()),
            here: Arc::new(SharedWindow::new(WindowConfig { limit, ..WindowConfig::default() })),
            peer_window,
            engine: Arc::new(Engine::new().map_err(system("cannot make the engine's descriptors"))?),
            watch: Watch::new().map_err(system("cannot make a descriptor for waiting threads"))?,
            epoch: AtomicU32::new(0),
            looked: AtomicU64::new(0),
            hot_until: AtomicU64::new(0),
            looked_at_all: AtomicU64::new(0),
            udp_users: AtomicU32::new(0),
            debtor: Debtor::default(),
        });
        nic.trace.to(environment::sink());
        nic.follow_interfaces().map_err(system("cannot list the network interfaces"))?;
        nic.engine.start(&nic).map_err(system("cannot start the engine thread"))?;
        process::settle_at_exit(&nic);
        Ok(nic)
    }

    /// The devices of this host, as they are now.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.devices.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Those of them that a program may see, if the environment names some.
    pub fn shown_devices(&self) -> Vec<Arc<Device>> {
        environment::shown(self.devices())
    }

    /// Opens a device.
    pub fn open_device(&self, device: &Arc<Device>) -> Result<Arc<Context>, Error> {
        let context =
            Arc::new(Context::new(Arc::clone(device)).map_err(system("cannot make a descriptor for events"))?);
        let mut contexts = lock(&self.contexts);
        contexts.retain(|context| context.strong_count() > 0);
        contexts.push(Arc::downgrade(&context));
        Ok(context)
    }

    /// The registered memory of this process.
    pub fn memory(&self) -> &memory::Memory {
        &self.memory
    }

    /// Why packets of other hosts do not reach this process, if they do not: one reason per address family that is out.
    pub fn unreachable(&self) -> Vec<String> {
        [Family::V4, Family::V6].into_iter().filter_map(|family| self.udp.error(family)).collect()
    }

    /// The NIC's clock.
    pub fn now(&self) -> Time {
        Time::from_nanos(self.clock.nanos())
    }

    /// A completion queue.
    pub fn create_cq(
        &self,
        capacity: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> Result<Arc<CompletionQueue>, Error> {
        let id = self.next_cq.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(CompletionQueue::new(id, capacity, channel)?.served_by(&self.engine)))
    }

    /// A queue pair in RESET. Its number is given by the NIC, whatever `config` says.
    pub fn create_qp(&self, mut config: QueuePairConfig, joins: Joins) -> Result<Arc<Qp>, Error> {
        let capabilities = config.capabilities;
        within("max_send_wr", capabilities.max_send_wr, limits::MAX_WR)?;
        within("max_recv_wr", capabilities.max_recv_wr, limits::MAX_WR)?;
        within("max_send_sge", capabilities.max_send_sge, limits::MAX_SGE)?;
        within("max_recv_sge", capabilities.max_recv_sge, limits::MAX_SGE)?;
        within("max_inline_data", capabilities.max_inline_data, limits::MAX_INLINE)?;
        let exhausted = Error::Exhausted { what: "queue pair numbers", limit: limits::MAX_QP };
        config.qpn = self.numbers.take().ok_or(exhausted)?;
        let qp = Arc::new(Qp::new(config, joins));
        self.qps.insert(config.qpn, Arc::clone(&qp));
        Ok(qp)
    }

    /// Destroys a queue pair: nothing arrives for it any more when this returns. Answers the number of a work request that it had taken from
    /// a shared receive queue and that will not complete.
    pub fn destroy_qp(&self, qp: &Qp) -> Option<u64> {
        self.qps.remove(qp.qpn())?;
        self.exchange.forget_notes();
        self.detach_all(qp);
        let taken = qp.shut(self);
        self.memory.release_queue_pair(memory::Qpn(qp.qpn().value()));
        self.numbers.give_back(qp.qpn());
        self.settle(&self.ready, self.now());
        taken
    }

    /// A shared receive queue.
    pub fn create_srq(
        &self,
        context: &Arc<Context>,
        domain: ProtectionDomain,
        max_wr: u32,
        max_sge: u32,
        xrc: Option<Xrc>,
    ) -> Result<Arc<SharedQueue>, Error> {
        within("max_wr", max_wr, limits::MAX_WR)?;
        within("max_sge", max_sge, limits::MAX_SGE)?;
        let number = Srqn::new(self.next_srq.fetch_add(1, Ordering::Relaxed));
        let queue = Arc::new(SharedQueue::new(number, domain, max_wr, max_sge, xrc, Arc::clone(context)));
        self.srqs.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::clone(&queue));
        Ok(queue)
    }

    /// Destroys a shared receive queue.
    pub fn destroy_srq(&self, queue: &SharedQueue) {
        self.srqs.write().unwrap_or_else(PoisonError::into_inner).remove(&queue.number());
    }

    /// A number that is another after a queue pair was destroyed.
    #[inline]
    pub(crate) fn qp_version(&self) -> u32 {
        self.qps.version()
    }

    pub(crate) fn qp(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        self.qps.get(qpn)
    }

    /// The shared receive queue of that number, if a queue pair of this XRC domain (or none) may use it.
    pub(crate) fn shared_queue(&self, number: Srqn, xrc_domain: Option<u32>) -> Option<Arc<SharedQueue>> {
        let queues = self.srqs.read().unwrap_or_else(PoisonError::into_inner);
        queues.get(&number).filter(|queue| queue.xrc().map(|xrc| xrc.domain) == xrc_domain).cloned()
    }

    /// The way from a device to a peer.
    pub(crate) fn path(&self, device: &Device, av: &AddressVector, peer: Qpn) -> Path {
        let Some(source) = device.port().gid(av.sgid_index) else { return Path::default() };
        let destination = av.dgid;
        let here = self.is_own_address(destination);
        let link = match Slot::of(peer) {
            _ if !here || self.options.only_udp => Link::Udp,
            Some(_) if self.numbers.owns(peer) => Link::Process,
            Some(slot) => self.exchange.reach(slot).map_or(Link::Udp, Link::Shared),
            None => Link::Udp,
        };
        let scope = multicast::scope(destination.to_ip(), device.interface_index());
        let route = link::udp::Route {
            source: source.to_ip(),
            destination: destination.to_ip(),
            scope,
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
        };
        Path { link, source, destination, route: Some(route) }
    }

    /// The windows under which packets of a path are sent.
    pub(crate) fn windows(&self, path: &Path, av: &AddressVector, peer: Qpn) -> Windows {
        if path.is_lossless() {
            return Windows::unlimited();
        }
        let process = (av.dgid, Slot::of(peer).map_or(0, Slot::number));
        let mut windows = lock(&self.windows);
        if windows.len() == windows.capacity() {
            // Before it grows: processes come and go, and nobody sends to those that went.
            windows.retain(|_, window| Arc::strong_count(window) > 1);
        }
        let window = windows.entry(process).or_insert_with(|| Arc::new(SharedWindow::new(self.peer_window)));
        let window = Arc::clone(window);
        Windows { peer: WindowOf::Shared(window), here: WindowOf::Shared(Arc::clone(&self.here)) }
    }

    /// A number that is another when the ways of datagrams may have changed.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn ways_changed(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn capture(&self) -> Option<&Mutex<Capture>> {
        self.capture.as_ref()
    }

    pub(crate) fn each_qp(&self, f: impl FnMut(&Qp)) {
        self.qps.for_each(f);
    }

    /// Whether a slot is of this process.
    pub(crate) fn has_slot(&self, slot: Slot) -> bool {
        self.numbers.owns(slot.qpn(0))
    }

    pub(crate) fn is_own_address(&self, gid: Gid) -> bool {
        self.devices().iter().any(|device| device.port().gids.contains(&Some(gid)))
            || matches!(gid.to_ip(), IpAddr::V4(address) if address.is_loopback())
    }

    /// Puts a train on its way, or into what goes out over UDP soon. A packet without a way is lost, as in any network; a payload that is gone is
    /// an error.
    pub(crate) fn send(
        &self,
        qp: &Qp,
        path: &Path,
        train: &Train<'_>,
        outgoing: &mut Outgoing<'_>,
        host: &mut Host<'_>,
    ) -> Result<(), Refusal> {
        if let Some(capture) = &self.capture {
            self.capture_sent(&mut lock(capture), qp, path, &mut TrainCargo { train, host });
        }
        match &path.link {
            Link::None => Ok(()),
            Link::Process => {
                let address = LocalAddress { source: path.source, destination: path.destination };
                let length = train.payload.len() as usize;
                let fill = |out: &mut [u8]| train.payload.copy(0, out, host);
                self.local.push(address, *train.headers, train.count, length, fill)
            }
            Link::Shared(link) if link.state() == State::Up => {
                shared::datagrams::send_datagram(link, path, train, host)
            }
            Link::Shared(_) | Link::Udp => {
                let Some(route) = &path.route else { return Ok(()) };
                match outgoing.send(route, &mut TrainCargo { train, host }, train.retransmission) {
                    Err(link::udp::SendError::Payload(refusal)) => Err(refusal),
                    // Counted there; the packet is lost, and its sender will find out.
                    _ => Ok(()),
                }
            }
        }
    }

    /// Sends nothing but an acknowledgement. One that is lost is as if the message had been lost: it will be sent again.
    pub(crate) fn acknowledge(&self, route: &Route, headers: &Headers, outgoing: &mut Outgoing<'_>) {
        let _ = outgoing.send(route, &mut Alone(headers), false);
    }

    /// Begins to send what a queue pair has to send.
    pub(crate) fn outgoing(&self, from: Qpn) -> Outgoing<'_> {
        self.udp.outgoing(from)
    }

    #[inline]
    pub(crate) fn debtor(&self) -> &Debtor {
        &self.debtor
    }

    /// Sends the acknowledgement that waits for an answer, as the program does not answer.
    #[inline]
    fn pay_debt(&self) {
        if let Some(qp) = self.debtor.get().and_then(|debtor| self.qps.get(debtor)) {
            qp.pay_debt(self, true);
        }
    }

    /// The same by the engine: it cannot know whether the program is about to answer.
    pub(crate) fn see_to_debt(&self) {
        if let Some(qp) = self.debtor.get_last().and_then(|debtor| self.qps.get(debtor)) {
            qp.pay_debt(self, false);
        }
    }

    pub(crate) fn capture_sent(&self, capture: &mut Capture, qp: &Qp, path: &Path, cargo: &mut TrainCargo<'_, '_, '_>) {
        use link::udp::Cargo;
        let Some(route) = &path.route else { return };
        let port = self.udp.port(route, qp.qpn());
        let device = qp.context().device().name();
        let mut payload = Vec::new();
        for index in 0..cargo.count() {
            let (headers, length) = cargo.packet(index);
            payload.resize(length, 0);
            // A payload that is gone: the packet is not sent either.
            if cargo.payload(index, &mut payload).is_ok() {
                capture.frame(device, route, port, &headers, &payload, Direction::Outbound);
            }
        }
    }

    /// A train that came through shared memory, as the packets it stands for.
    pub(crate) fn capture_train(&self, capture: &mut Capture, front: &Front, payload: &[u8]) {
        let (source, destination) = front.addresses;
        let devices = self.devices();
        let device = devices.iter().find(|device| device.port().gids.contains(&Some(destination)));
        let (source, destination) = (source.to_ip(), destination.to_ip());
        let route = link::udp::Route { source, destination, scope: 0, traffic_class: 0, hop_limit: 64 };
        let to = AddressVector::default();
        let train = Train {
            headers: &front.headers,
            count: if front.mtu == 0 { 1 } else { front.count },
            mtu: front.mtu,
            payload: transport::Payload::Bytes(payload),
            to: &to,
            wr_id: None,
            retransmission: false,
        };
        let name = device.map_or("other", |device| device.name());
        for index in 0..train.count {
            let (from, length) = train.slice(index);
            let bytes = payload.get(from as usize..from as usize + length as usize).unwrap_or(&[]);
            capture.frame(name, &route, ROCE_PORT, &train.packet(index), bytes, Direction::Inbound);
        }
    }

    /// Sends a management datagram.
    pub(crate) fn send_mad<C: Cargo>(&self, route: &Route, cargo: &mut C, headers: &Headers) {
        if let Some(capture) = &self.capture {
            let source = Gid::from_ip(route.source);
            let device = self.device_with(source).map_or_else(|| "other".into(), |device| device.name().to_owned());
            let mut payload = vec![0; cargo.packet(0).1];
            if cargo.payload(0, &mut payload).is_ok() {
                let port = self.udp.port(route, Qpn::GSI);
                lock(capture).frame(&device, route, port, headers, &payload, Direction::Outbound);
            }
        }
        // Counted there; the message is lost, and its sender will find out.
        let _ = self.udp.outgoing(Qpn::GSI).send(route, cargo, false);
    }

    /// The interface of the device that has an address, 0 if none has it.
    pub(crate) fn interface_of(&self, gid: Gid) -> u32 {
        self.device_with(gid).map_or(0, |device| device.interface_index())
    }

    fn device_with(&self, gid: Gid) -> Option<Arc<Device>> {
        self.devices().into_iter().find(|device| device.port().gids.contains(&Some(gid)))
    }

    /// The name of the device that has the address a packet was sent to, or that a packet to all came in by. What is for none of them goes by another
    /// name.
    fn device_of(&self, arrival: &link::udp::Arrival<'_>) -> String {
        let (devices, gid) = (self.devices(), arrival.destination());
        let device = devices.iter().find(|device| match arrival.is_multicast() {
            true => device.interface_index() == arrival.interface,
            false => device.port().gids.contains(&Some(gid)),
        });
        device.map_or("other", |device| device.name()).to_owned()
    }

    pub(crate) fn wake_at(&self, deadline: Time, qpn: Qpn) {
        if self.timers.set(deadline, qpn) {
            self.engine.deadline_moved(deadline);
        }
    }

    pub(crate) fn make_ready(&self, qpn: Qpn) {
        self.ready.add(qpn);
    }

    /// Does what there is to do, without waiting. Answers whether there was anything.
    pub fn progress(&self) -> bool {
        if self.debtor.get().is_some() {
            self.see_to_debt();
        }
        self.advance(false)
    }

    /// The same; `polling` for one who will call again at once if there was nothing.
    fn advance(&self, polling: bool) -> bool {
        let mut any = self.receive_shared();
        self.impatience.check(self);
        if self.exchange.has_stalled() {
            any |= self.resume_stalled(!polling);
        }
        // Where trains come through shared memory, sockets and clocks are looked at now and then only: a system call costs more than a message.
        if polling && self.exchange.has_inbound() && !self.engine.polls().is_multiple_of(SELDOM) && !self.is_hot() {
            any |= !self.local.seems_empty() && self.settle_local();
            any |= !self.ready.is_empty() && self.settle(&self.ready, self.now());
            return any;
        }
        let now = self.now();
        let received = (!polling || self.should_look(now)) && self.receive(polling, now);
        if self.exchange.is_called() {
            self.serve_exchange();
            any = true;
        }
        if self.lives.has_news() {
            self.cm.bury(self);
            any = true;
        }
        any |= received;
        any |= !(polling && self.local.seems_empty()) && self.settle_local();
        any |= self.settle(&self.ready, now);
        // What a timer waits for may be among what has not been taken yet: first everything is. But not for ever.
        let latest = now.as_nanos().saturating_sub(if received { PATIENCE } else { 0 });
        any |= self.fire_timers(Time::from_nanos(latest), now);
        any
    }

    /// Whether packets came over the sockets lately.
    #[inline]
    fn is_hot(&self) -> bool {
        self.hot_until.load(Ordering::Relaxed) > self.looked.load(Ordering::Relaxed)
    }

    /// Whether one who polls should look at the sockets.
    fn should_look(&self, now: Time) -> bool {
        let since = now.as_nanos().saturating_sub(self.looked.load(Ordering::Relaxed));
        let pause = match self.udp_users.load(Ordering::Relaxed) {
            0 => LOOK_SELDOM,
            _ => LOOK_OFTEN,
        };
        if self.exchange.has_inbound() && !self.is_hot() && since < pause {
            return false;
        }
        self.looked.store(now.as_nanos(), Ordering::Relaxed);
        true
    }

    /// A queue pair begins, or ceases, to be one that other hosts may send to.
    pub(crate) fn uses_udp(&self, uses: bool) {
        match uses {
            true => self.udp_users.fetch_add(1, Ordering::Relaxed),
            false => self.udp_users.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Takes up to `room` completions. An empty queue drives: what has arrived is looked at before the answer is "nothing".
    pub fn poll(&self, cq: &CompletionQueue, room: usize, mut take: impl FnMut(Entry)) -> usize {
        let taken = cq.poll(room, &mut take);
        if taken > 0 {
            return taken;
        }
        self.pay_debt();
        self.advance(true);
        self.engine.polled();
        cq.poll(room, take)
    }

    /// Waits for the next event of a channel: the number of a completion queue. The waiting thread drives, so that one wake-up is enough. A
    /// channel whose descriptor does not block answers `WouldBlock` instead, and a signal that arrives meanwhile is `Interrupted`.
    pub fn wait(&self, channel: &CompletionChannel) -> io::Result<u32> {
        self.pay_debt();
        if channel.is_nonblocking()? {
            self.progress();
            return channel.try_take().ok_or_else(|| io::ErrorKind::WouldBlock.into());
        }
        loop {
            self.engine.enter_wait();
            let answer = self.drive_until(channel, None);
            self.engine.leave_wait();
            if let Some(event) = answer? {
                return Ok(event);
            }
        }
    }

    /// Waits like [`wait`](Nic::wait), but not longer than `limit`, and whatever the mode of the descriptor.
    pub fn wait_for(&self, channel: &CompletionChannel, limit: Option<Duration>) -> io::Result<Option<u32>> {
        self.pay_debt();
        let deadline = limit.map(|limit| self.now() + limit);
        self.engine.enter_wait();
        let answer = loop {
            match self.drive_until(channel, deadline) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                answer => break answer,
            }
        };
        self.engine.leave_wait();
        answer
    }

    /// Waits, and hands back to the engine what was taken from it meanwhile.
    fn drive_until(&self, channel: &CompletionChannel, deadline: Option<Time>) -> io::Result<Option<u32>> {
        let mut on_watch = None;
        let answer = self.drive_on_watch(channel, deadline, &mut on_watch);
        if on_watch.is_some() {
            self.exchange.face().settle_down(Sleeper::Engine);
            self.receive_shared();
        }
        answer
    }

    /// What there is to do besides the sockets. Deadlines are the engine's.
    pub(crate) fn look_again(&self) -> bool {
        let mut any = self.receive_shared();
        if self.exchange.has_stalled() {
            any |= self.resume_stalled(true);
        }
        let now = self.now();
        any | self.settle_local() | self.settle(&self.ready, now)
    }

    fn drive_on_watch<'a>(
        &'a self,
        channel: &CompletionChannel,
        deadline: Option<Time>,
        on_watch: &mut Option<OnWatch<'a>>,
    ) -> io::Result<Option<u32>> {
        // One waiting thread drives for all.
        loop {
            if let Some(event) = channel.try_take() {
                return Ok(Some(event));
            }
            if deadline.is_some_and(|deadline| deadline <= self.now()) {
                return Ok(None);
            }
            *on_watch = on_watch.take().or_else(|| self.watch.take());
            if on_watch.is_some() {
                if self.receive_shared() {
                    continue;
                }
                // Say that we sleep, then look once more: what was written meanwhile is either seen here or rings. What has come to the
                // sockets ends the sleep before it begins.
                self.exchange.face().settle_down(Sleeper::Caller);
                if self.look_again() {
                    continue;
                }
            }
            // The engine sees to deadlines: it can be told of new ones.
            let left = deadline.map(|deadline| deadline.since(self.now()));
            match on_watch {
                Some(_) => {
                    let bell = self.exchange.face().fd(Sleeper::Caller);
                    let slept = sleep::until_ready([bell, self.udp.fd(), channel.raw_fd()], left);
                    self.exchange.face().wake(Sleeper::Caller);
                    if slept? & 2 != 0 {
                        self.progress();
                    }
                }
                None => self.watch.relieve(|free| sleep::until_ready([free, channel.raw_fd()], left).map(drop))?,
            }
        }
    }

    /// How long one may sleep though nothing arrives.
    pub(crate) fn patience(&self) -> Option<u64> {
        let timers = self.timers.next().map(|deadline| deadline.since(self.now()));
        timers.into_iter().chain(self.udp.patience()).min()
    }

    /// Does what follows from a call of the program's: trains inside the process, and queue pairs that got room to send.
    pub(crate) fn after_call(&self, now: Time) {
        // What this thread has sent to the process itself it sees.
        if self.local.seems_empty() && self.ready.is_empty() {
            return;
        }
        while self.settle_local() || self.settle(&self.ready, now) {}
    }

    /// The same after receives were posted, which mostly is nothing.
    pub(crate) fn after_receive(&self) {
        if !self.local.seems_empty() || !self.ready.is_empty() {
            self.after_call(self.now());
        }
    }

    /// Does what others still need of this process, because it ends: acknowledges messages that the engine has placed and not acknowledged yet, for the
    /// program has seen them and wants no more; and passes on what the kernel gave us for other processes, or it would end with us.
    pub(crate) fn settle_debts(&self) {
        self.cm.leave(self);
        self.qps.for_each(|qp| qp.settle_debts(self));
        // Bounded: packets may come as fast as they are taken.
        for _ in 0..LAST_LOOKS {
            if !self.progress() && !self.udp.is_tended() {
                return;
            }
        }
    }

    /// Takes what has arrived over UDP.
    fn receive(&self, polling: bool, now: Time) -> bool {
        let mut touched = Touched::default();
        let mut messages: Vec<(::cm::Route, CmDatagram)> = Vec::new();
        // Packets come in runs: mostly this one is for the same as the last.
        let mut last: Option<Arc<Qp>> = None;
        let packets = Cell::new(0);
        let mut take = |arrival: &Arrival<'_>| {
            packets.set(packets.get() + 1);
            let qpn = arrival.headers.bth.dest_qpn;
            if last.as_ref().is_none_or(|last| last.qpn() != qpn) {
                last = self.qps.get(qpn);
            }
            if let Some(capture) = &self.capture {
                let device = self.device_of(arrival);
                lock(capture).received(&device, arrival.ip, arrival.port, arrival.bytes);
            }
            if qpn == Qpn::GSI
                && let Ok(message) = CmDatagram::parse(arrival.payload)
            {
                let came = ::cm::Route { source: arrival.source(), destination: arrival.destination() };
                messages.push((came, message));
                return;
            }
            // Only a receiver of datagrams is shown it.
            let grh = match &last {
                Some(qp) if qp.kind().is_connected() => [0; 40],
                _ => grh_bytes(arrival.ip),
            };
            let inbound = Inbound {
                headers: &arrival.headers,
                count: 1,
                payload: arrival.payload,
                from: arrival.source(),
                grh: &grh,
                congestion_marked: arrival.congestion_marked,
            };
            let mut give = |qp: &Arc<Qp>| match qp.take(self, now, &inbound) {
                1 => touched.add(qp),
                // The peer's window is open for as much as it may be short of: it should hear while we still have something to do.
                OFTEN => qp.settle(self, now),
                _ => {}
            };
            match &last {
                Some(qp) => give(qp),
                None if qpn == Qpn::MULTICAST => self.members(arrival, give),
                None => {}
            }
        };
        let since = now.as_nanos().saturating_sub(self.looked_at_all.load(Ordering::Relaxed));
        let hot_only = polling && since < LOOK_OFTEN;
        if !hot_only {
            self.looked_at_all.store(now.as_nanos(), Ordering::Relaxed);
        }
        let mut any = self.udp.receive(hot_only, &mut take);
        if packets.get() >= FULL {
            // One acknowledgement is enough for two datagrams full of packets.
            any |= self.udp.receive(true, &mut take);
        }
        if let Some(first) = touched.first {
            self.hot_until.store(now.as_nanos() + HOT, Ordering::Relaxed);
            first.settle(self, now);
        }
        for qp in touched.others {
            qp.settle(self, now);
        }
        self.cm.receive(self, &messages);
        any
    }

    /// Takes trains inside the process until there are none.
    fn settle_local(&self) -> bool {
        self.local.drain(|address, headers, count, payload| {
            let Some(qp) = self.qps.get(headers.bth.dest_qpn) else { return };
            let now = self.now();
            let grh = match qp.kind().is_connected() {
                true => [0; 40],
                false => local_grh((address.source, address.destination), headers.len() + payload.len()),
            };
            let inbound =
                Inbound { headers, count, payload, from: address.source, grh: &grh, congestion_marked: false };
            qp.take(self, now, &inbound);
            qp.settle(self, now);
        })
    }

    /// Drives the queue pairs that wait there.
    fn settle(&self, waiting: &Waiting, now: Time) -> bool {
        let mut any = false;
        while let Some(qpn) = waiting.next() {
            any = true;
            if let Some(qp) = self.qps.get(qpn) {
                qp.settle(self, now);
            }
        }
        any
    }

    /// Wakes those whose deadline has come.
    pub(crate) fn fire_due(&self, now: Time) -> bool {
        self.fire_timers(now, now)
    }

    /// Wakes the queue pairs whose deadline was `latest` or before.
    fn fire_timers(&self, latest: Time, now: Time) -> bool {
        let mut any = false;
        while let Some((entry, qpn)) = self.timers.due(latest) {
            any = true;
            if qpn == Qpn::GSI {
                self.cm.wake(self, entry);
            }
            if let Some(qp) = self.qps.get(qpn) {
                qp.time_has_come(self, now, entry);
            }
        }
        any
    }

    /// Takes note of what the interfaces are now: devices come, ports and addresses change. What cannot be seen now is seen with the next
    /// change.
    pub(crate) fn follow_interfaces(&self) -> io::Result<()> {
        let interfaces = interfaces::interfaces()?;
        let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = Vec::new();
        for device in devices.iter() {
            let interface = interfaces.iter().find(|interface| interface.index == device.interface_index());
            changed.push((Arc::clone(device), interface.is_none(), device.follow(interface)));
        }
        for interface in &interfaces {
            let known = devices.iter().any(|device| device.interface_index() == interface.index);
            if !known && interface.running && !interface.addresses.is_empty() {
                devices.push(Arc::new(Device::of(interface)));
            }
        }
        drop(devices);
        self.ways_changed();
        let contexts: Vec<Arc<Context>> = lock(&self.contexts).iter().filter_map(Weak::upgrade).collect();
        for (device, gone, change) in changed {
            if gone && change != Change::default() {
                self.cm.device_gone(self, &device);
            }
            for context in contexts.iter().filter(|context| Arc::ptr_eq(context.device(), &device)) {
                match change.state {
                    Some(true) => context.raise(AsyncEvent::PortActive),
                    Some(false) => context.raise(AsyncEvent::PortError),
                    None => {}
                }
                if change.gids {
                    context.raise(AsyncEvent::GidChange);
                }
            }
        }
        Ok(())
    }

    /// The engine, for those who wait.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// The engine's thread is asleep, perhaps: it must learn that there is nothing left to drive.
impl Drop for Nic {
    fn drop(&mut self) {
        self.engine.ring();
    }
}

/// Queue pairs that somebody must drive.
#[derive(Debug, Default)]
struct Waiting {
    queue: Mutex<VecDeque<Qpn>>,
    /// How many, to see without the lock that there are none.
    count: AtomicU32,
}

impl Waiting {
    fn add(&self, qpn: Qpn) {
        let mut queue = lock(&self.queue);
        queue.push_back(qpn);
        self.count.store(queue.len() as u32, Ordering::Release);
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn next(&self) -> Option<Qpn> {
        if self.is_empty() {
            return None;
        }
        let mut queue = lock(&self.queue);
        let next = queue.pop_front();
        self.count.store(queue.len() as u32, Ordering::Release);
        next
    }
}

/// Queue pairs that packets came for: mostly one, which takes no memory to remember.
#[derive(Debug, Default)]
struct Touched {
    first: Option<Arc<Qp>>,
    others: Vec<Arc<Qp>>,
}

impl Touched {
    fn add(&mut self, qp: &Arc<Qp>) {
        match self.first {
            None => self.first = Some(Arc::clone(qp)),
            Some(_) => self.others.push(Arc::clone(qp)),
        }
    }
}

/// What a receiver of datagrams sees before the data, where no packet was.
pub(crate) fn local_grh((source, destination): (Gid, Gid), length: usize) -> [u8; 40] {
    let ip = match (source.to_ip(), destination.to_ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Ipv4Header::udp(source, destination, length).map(IpHeader::V4),
        (IpAddr::V6(source), IpAddr::V6(destination)) => Ipv6Header::udp(source, destination, length).map(IpHeader::V6),
        _ => return [0; 40],
    };
    ip.map_or([0; 40], |ip| grh_bytes(&ip))
}

/// Who tells of changes; none where the system forbids to ask. A NIC that was short of a descriptor for it would never hear of any.
fn changes() -> Result<Option<Changes>, Error> {
    match Changes::listen() {
        Err(source)
            if matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)) =>
        {
            Err(Error::System { what: "cannot listen to changes of the network interfaces", source })
        }
        heard => Ok(heard.ok()),
    }
}

fn within(what: &'static str, asked: u32, max: u32) -> Result<(), Error> {
    if asked > max { Err(Error::TooMany { what, asked, max }) } else { Ok(()) }
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::System { what, source }
}
