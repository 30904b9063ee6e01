//! The NIC of this process: the phone book of its objects, its links, and the rules by which work gets done. There is one per process; after a
//! fork the child has none and makes its own.

mod progress;
mod ways;

use crate::answering::Owing;
use crate::capture::Capture;
use crate::clock::Clock;
use crate::cm::Cm;
use crate::completion_queue::{CompletionChannel, CompletionQueue, CqError};
use crate::context::{AsyncEvent, Context};
use crate::debt::Debtor;
use crate::device::{Change, Device};
use crate::engine::Engine;
use crate::environment;
use crate::host::SharedWindow;
use crate::interfaces::{self, Changes};
use crate::manners::Manners;
use crate::multicast::Groups;
use crate::numbers::Numbers;
use crate::process;
use crate::queue_pair::{Joins, Qp};
use crate::shared::Impatience;
use crate::shared_queue::{SharedQueue, Xrc};
use crate::table::Table;
use crate::timers::Timers;
use crate::tracing::Tracing;
use crate::udp::Udp;
use crate::watch::Watch;
use link::lives::Lives;
use link::ports::Ports;
use link::shared::{Exchange, Outbound};
use link::slots::{Slot, Slots};
use link::udp::Family;
use progress::Waiting;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use transport::congestion::WindowConfig;
use transport::{ProtectionDomain, QueuePairConfig, Time};
use wire::{Gid, IpHeader, Ipv4Header, Ipv6Header, Qpn, Srqn, grh_bytes};

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

/// The most that is under way to one peer, in what it costs its buffer, which is twice its payload in packets of 4 KiB: more would only leave the cache.
const MOST_UNDER_WAY: u64 = 4 << 20;

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
    /// What the engine took last was a datagram full of packets: more follow on the same socket.
    flows: AtomicBool,
    /// When more than the socket that brings packets was looked at.
    looked_at_all: AtomicU64,
    /// How long to look at that one only.
    look_pause: AtomicU64,
    /// Queue pairs that may hear from other hosts at any time.
    udp_users: AtomicU32,
    /// The queue pair whose acknowledgement waits for an answer.
    debtor: Debtor,
    pub(crate) owing: Owing,
    manners: Manners,
    /// Bytes that went through shared memory in long trains.
    pub(crate) moved: AtomicU64,
    /// Links to processes that have gone, and when what they owe fails.
    pub(crate) dying: Mutex<Vec<(Time, Arc<Outbound>)>>,
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
        let capture = environment::capture().map(Mutex::new);
        if capture.is_some() {
            udp.tell_all();
        }
        // A capture says which port a packet was sent from, and who expects faults keeps to what damage cannot be mistaken for.
        if capture.is_some() || environment::has_faults() {
            udp.keep_ports();
        }
        let nic = Arc::new(Nic {
            memory: memory::Memory::new(),
            trace: Tracing::default(),
            capture,
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
            flows: AtomicBool::new(false),
            looked_at_all: AtomicU64::new(0),
            look_pause: AtomicU64::new(0),
            udp_users: AtomicU32::new(0),
            debtor: Debtor::default(),
            owing: Owing::default(),
            manners: Manners::default(),
            moved: AtomicU64::new(0),
            dying: Mutex::default(),
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
        if !qp.kind().is_connected() {
            // The header in front of what it receives says how that came.
            self.udp.tell_all();
        }
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

    /// Begins to bring the queue pair of that number, if there is one.
    #[inline]
    pub(crate) fn prefetch_qp(&self, qpn: Qpn) {
        self.qps.look(qpn, Qp::prefetch);
    }

    /// The shared receive queue of that number, if a queue pair of this XRC domain (or none) may use it.
    pub(crate) fn shared_queue(&self, number: Srqn, xrc_domain: Option<u32>) -> Option<Arc<SharedQueue>> {
        let queues = self.srqs.read().unwrap_or_else(PoisonError::into_inner);
        queues.get(&number).filter(|queue| queue.xrc().map(|xrc| xrc.domain) == xrc_domain).cloned()
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

    /// The interface of the device that has an address, 0 if none has it.
    pub(crate) fn interface_of(&self, gid: Gid) -> u32 {
        self.device_with(gid).map_or(0, |device| device.interface_index())
    }

    fn device_with(&self, gid: Gid) -> Option<Arc<Device>> {
        self.devices().into_iter().find(|device| device.port().gids.contains(&Some(gid)))
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
