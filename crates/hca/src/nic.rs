//! The NIC of this process: the phone book of its objects, its links, and the rules by which work gets done. There is
//! one per process; after a fork the child has none and makes its own.

pub(crate) mod background;
mod breakage;
pub(crate) mod buffer;
mod calls;
mod counters;
pub(crate) mod device_memory;
pub mod inject;
mod judged;
pub(crate) mod management;
mod moving_gids;
pub mod multicast;
mod network_faults;
pub(crate) mod packets;
pub(crate) mod peers;
pub mod port_files;
mod probes;
pub(crate) mod process;
mod profile;
pub(crate) mod queue_strikes;
mod registration;
mod report;
pub(crate) mod reserved;
pub(crate) mod scripts;
pub(crate) mod strikes;
#[cfg(feature = "checks")]
pub(crate) mod witness;

use crate::call_trace as told;
use crate::cm::Cm;
use crate::environment;
use crate::error::{Error, system};
use crate::ground::Ground;
use crate::gsi::{CounterRequest, Gsi};
use crate::interfaces::{self, Changes};
use crate::links::udp::Reach;
use crate::nic::reserved::ReservedNumber;
use crate::objects::completion_queue::{CompletionChannel, CompletionQueue, CqError, Notify};
use crate::objects::context::{AsyncEvent, Context};
use crate::objects::device::{Change, Device};
use crate::objects::shared_queue::{SharedQueue, SharedQueueKind};
use crate::objects::table::Table;
use crate::progress::watch::Watch;
use crate::queue_pair::frames::RawPart;
use crate::queue_pair::{Joins, Qp};
use crate::record::drops::KernelDrops;
#[cfg(feature = "capture")]
use crate::record::recording::Span;
use crate::record::tracing::Tracing;
use ::host::descriptor::Descriptor;
use ::host::inquiry::Injection;
use background::Background;
use latch::Rank;
use latch::plain::Mutex;
use link::shared::Outbound;
use std::fmt::Display;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use trace::{Call, DropReason, Text};
use transport::{Kind, PostError, ProtectionDomain, QueuePairConfig, ReceiveRequest, SrqError, SrqModify, Time};
use wire::Qpn;

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
    /// Shared receive queues of a process.
    pub const MAX_SRQ: u32 = 1 << 16;
    /// Tagged buffers of a shared receive queue. Each message is compared with them one by one.
    pub const MAX_TAGS: u32 = 1023;
}

/// The NIC of this process: what its rooms stand on, its objects, and the connection manager.
#[derive(Debug)]
pub struct Nic {
    pub(crate) ground: Ground,
    pub(crate) objects: NicObjects,
    pub(crate) cm: Cm,
    /// Management agents.
    pub(crate) gsi: Gsi,
    pub(crate) background: BackgroundWork,
    pub(crate) changes: Option<Changes>,
    pub(crate) watch: Watch,
    /// Links to processes that have gone, and when what they have not acknowledged fails.
    pub(crate) gone_peers: Mutex<Vec<(Time, Arc<Outbound>)>>,
    /// What was counted here has been added to what the host remembers of processes that ended.
    pub(crate) counted_as_ended: AtomicBool,
}

/// The objects of a NIC that queue pairs do not need to know of.
#[derive(Debug)]
pub(crate) struct NicObjects {
    pub qps: Table<Qp>,
    /// How many numbers are reserved for queue pairs that do not exist yet.
    pub reserved_numbers: AtomicU32,
    pub contexts: Mutex<Vec<Weak<Context>>>,
    /// For reports of what there is.
    pub cqs: Mutex<Vec<Weak<CompletionQueue>>>,
    pub next_cq: AtomicU32,
    /// The number of the device that was opened first.
    pub first_opened: OnceLock<u32>,
}

impl Default for NicObjects {
    fn default() -> NicObjects {
        NicObjects {
            qps: Table::default(),
            reserved_numbers: AtomicU32::new(0),
            contexts: Mutex::new(Rank::Contexts, Vec::new()),
            cqs: Mutex::new(Rank::CompletionQueues, Vec::new()),
            next_cq: AtomicU32::new(1),
            first_opened: OnceLock::new(),
        }
    }
}

/// What is answered, or asked, by threads that exist only while there is something to do.
#[derive(Debug, Default)]
pub(crate) struct BackgroundWork {
    /// Queue pairs whose peers are asked for, while the program is checked.
    pub peer_questions: peers::Questions,
    /// What failure scripts hold broken.
    pub broken: strikes::Broken,
    /// Other processes that are told what this one has.
    pub inquiries: Background<Descriptor>,
    /// Failures that other processes inject.
    pub injections: Background<Injection>,
    /// Requests for the counters of ports.
    pub port_counting: Background<CounterRequest>,
}

/// What the ground knows, for programs.
impl Nic {
    /// The NIC's end of the trace, to listen to it.
    pub fn tracing(&self) -> &Tracing {
        &self.ground.records.trace
    }

    /// The NIC's clock.
    pub fn now(&self) -> Time {
        self.ground.now()
    }

    /// The devices of this host, as they are now.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.ground.host.devices()
    }

    /// All ports of the devices of this host, each as a device of its own.
    pub fn port_devices(&self) -> Vec<Arc<Device>> {
        self.ground.host.port_devices()
    }

    /// Those of the devices that a program may see, if the environment names some.
    pub fn shown_devices(&self) -> Vec<Arc<Device>> {
        environment::shown(self.devices())
    }

    /// The registered memory of this process.
    pub fn memory(&self) -> &memory::Memory {
        &self.ground.memory
    }

    /// How packets of other hosts reach this process: over IPv4, and over IPv6.
    pub fn reach(&self) -> [Reach; 2] {
        self.ground.links.reach()
    }

    /// Why packets of other hosts do not reach this process, if they do not: one reason per address family that is out.
    pub fn unreachable(&self) -> Vec<String> {
        self.ground.links.unreachable()
    }

    /// A socket did not believe a datagram that came for its queue pair: what it says of its sender is not true.
    pub fn refuse_datagram(&self, qpn: Qpn) {
        self.ground.dropped(self.now(), Some(qpn), None, DropReason::ForgedSender);
    }

    /// How many packets, trains, messages and records this NIC has dropped for a reason: a train counts once.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.ground.records.drops.of(reason)
    }

    /// What the kernel dropped before this NIC could see it. The figures of the host are of all programs in the network
    /// namespace, not of this NIC.
    pub fn kernel_drops(&self) -> io::Result<KernelDrops> {
        KernelDrops::read(self.ground.links.udp.overflowed())
    }

    /// Tells the trace what the program called, if a sink listens; `call` is asked only then.
    #[inline]
    pub fn called(&self, qpn: Option<Qpn>, call: impl FnOnce() -> Call) {
        self.ground.records.called(qpn, call);
    }

    /// Tells the trace that a call was refused.
    pub fn refused(&self, function: &'static str, errno: i32, reason: impl Display) {
        self.ground.records.refused(function, errno, reason);
    }

    /// Whether everything is recorded.
    #[cfg(feature = "capture")]
    pub fn is_recorded(&self) -> bool {
        self.tracing().is_recorded()
    }

    /// Records what another tool tells of; false if there is no recording.
    #[cfg(feature = "capture")]
    pub fn record_span(&self, span: &Span<'_>) -> bool {
        let recorder = self.tracing().recorder();
        recorder.is_some_and(|recorder| {
            recorder.span(|| self.now().as_nanos(), span);
            true
        })
    }

    /// The program takes an event of a completion channel: this completion queue has something.
    pub fn took_event(&self, channel: &CompletionChannel, cq: u32) {
        self.ground.records.took_event(channel, cq);
    }

    /// The program takes an asynchronous event.
    pub fn took_async_event(&self, event: AsyncEvent) {
        self.ground.records.took_async_event(event);
    }
}

impl Nic {
    /// Opens a device.
    pub fn open_device(&self, device: &Arc<Device>) -> Result<Arc<Context>, Error> {
        device.works()?;
        let context =
            Arc::new(Context::new(Arc::clone(device)).map_err(system("cannot make a descriptor for events"))?);
        self.objects.first_opened.get_or_init(|| device.number());
        let mut contexts = self.objects.contexts.lock();
        contexts.retain(|context| context.strong_count() > 0);
        contexts.push(Arc::downgrade(&context));
        drop(contexts);
        self.called(None, || Call::OpenDevice { context: context.number(), device: Text::of(device.name()) });
        self.device_opened(device);
        Ok(context)
    }

    /// The program closes an opened device.
    pub fn close_device(&self, context: &Context) {
        self.called(None, || Call::CloseDevice { context: context.number() });
    }

    /// A new protection domain of an opened device.
    pub fn allocate_domain(&self, context: &Context) -> ProtectionDomain {
        let domain = context.new_domain();
        self.called(None, || Call::AllocPd { pd: domain.0, context: context.number() });
        domain
    }

    /// A protection domain is no longer.
    pub fn free_domain(&self, context: &Context, domain: ProtectionDomain) {
        context.free_domain(domain);
        self.called(None, || Call::DeallocPd { pd: domain.0 });
    }

    /// Protection domains of an opened device that are left are no longer.
    pub fn free_domains(&self, context: &Context) {
        for domain in context.domains() {
            self.free_domain(context, ProtectionDomain(domain));
        }
    }

    /// A completion queue.
    pub fn create_cq(
        &self,
        capacity: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> Result<Arc<CompletionQueue>, Error> {
        self.create_larger_cq(capacity, capacity, channel)
    }

    /// A completion queue of a program that asked for fewer completions.
    pub fn create_larger_cq(
        &self,
        wanted: u32,
        capacity: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> Result<Arc<CompletionQueue>, Error> {
        let id = self.objects.next_cq.fetch_add(1, Ordering::Relaxed);
        let queue = Arc::new(CompletionQueue::new(id, capacity, channel)?.served_by(&self.ground.progress.engine));
        let mut queues = self.objects.cqs.lock();
        if queues.len() == queues.capacity() {
            queues.retain(|queue| queue.strong_count() > 0);
        }
        queues.push(Arc::downgrade(&queue));
        drop(queues);
        let channel = queue.channel().map(|channel| channel.number());
        self.called(None, || Call::CreateCq { cq: id, capacity, wanted, channel });
        Ok(queue)
    }

    /// Changes how many completions a queue holds.
    pub fn resize_cq(&self, queue: &CompletionQueue, capacity: u32) -> Result<(), CqError> {
        queue.resize(capacity)?;
        queue.tells_next_poll();
        self.called(None, || Call::ResizeCq { cq: queue.id, capacity });
        Ok(())
    }

    /// The program asks to be woken by the next completion.
    pub fn arm(&self, queue: &CompletionQueue, notify: Notify) {
        queue.tells_next_poll();
        self.called(None, || Call::ArmCq { cq: queue.id, solicited_only: notify == Notify::Solicited });
        queue.arm(notify);
    }

    /// The program destroys a completion queue. It goes with its last owner.
    pub fn destroy_cq(&self, queue: &CompletionQueue) {
        self.called(None, || Call::DestroyCq { cq: queue.id });
    }

    /// A channel on which a program is told which of its completion queues have something.
    pub fn create_channel(&self) -> io::Result<Arc<CompletionChannel>> {
        let channel = Arc::new(CompletionChannel::new()?);
        self.called(None, || Call::CreateChannel { channel: channel.number() });
        Ok(channel)
    }

    /// The program destroys a channel. It goes with its last owner.
    pub fn destroy_channel(&self, channel: &CompletionChannel) {
        self.called(None, || Call::DestroyChannel { channel: channel.number() });
    }

    /// A queue pair in RESET. Its number is given by the NIC, whatever `config` says.
    pub fn create_qp(&self, config: QueuePairConfig, joins: Joins) -> Result<Arc<Qp>, Error> {
        self.add_qp(config, joins, None, None)
    }

    /// A queue pair in RESET with a number that was reserved.
    pub fn create_reserved_qp(
        &self,
        number: ReservedNumber,
        config: QueuePairConfig,
        joins: Joins,
    ) -> Result<Arc<Qp>, Error> {
        self.add_qp(config, joins, None, Some(number))
    }

    fn add_qp(
        &self,
        mut config: QueuePairConfig,
        joins: Joins,
        raw: Option<Box<RawPart>>,
        number: Option<ReservedNumber>,
    ) -> Result<Arc<Qp>, Error> {
        joins.context.device().works()?;
        self.obey_profile(&mut config, &joins)?;
        let capabilities = config.capabilities;
        within("max_send_wr", capabilities.max_send_wr, limits::MAX_WR)?;
        within("max_recv_wr", capabilities.max_recv_wr, limits::MAX_WR)?;
        within("max_send_sge", capabilities.max_send_sge, limits::MAX_SGE)?;
        within("max_recv_sge", capabilities.max_recv_sge, limits::MAX_SGE)?;
        within("max_inline_data", capabilities.max_inline_data, limits::MAX_INLINE)?;
        config.qpn = match number {
            Some(number) => number.use_up(),
            None => self.new_number()?,
        };
        config.limits.ports = joins.context.device().port_count();
        config.limits.obeys_congestion &= !self.ground.options.ignores_congestion;
        let tags =
            config.srq.and_then(|srq| self.ground.shared_queues.usable_by(srq, None)).filter(|srq| srq.matches_tags());
        let created = self
            .ground
            .records
            .trace
            .is_on()
            .then(|| told::create_qp(&config, &joins.context, [joins.send_cq.as_ref(), joins.receive_cq.as_ref()]));
        let weakness = self.ground.options.weakness.or_else(|| joins.context.device().weakness());
        self.ground.ledger.opened(config.qpn, config.signal_all);
        let qp = Arc::new(Qp::new(config, joins, tags, raw, weakness));
        if qp.kind() == Kind::UnreliableDatagram {
            // The header in front of what it receives says how that came.
            self.ground.links.udp.tell_all();
        }
        if let Some(created) = created {
            // Before anything can arrive for it.
            self.called(Some(config.qpn), || created);
        }
        if self.ground.scripts.run() {
            self.ground.scripts.pair_made(config.qpn);
        }
        self.objects.qps.insert(config.qpn, Arc::clone(&qp));
        Ok(qp)
    }

    fn new_number(&self) -> Result<Qpn, Error> {
        self.ground.host.numbers.take().ok_or(Error::Exhausted { what: "queue pairs", limit: limits::MAX_QP })
    }

    /// Destroys a queue pair: nothing arrives for it any more when this returns. Returns the number of a work request
    /// that it had taken from a shared receive queue and that will not complete.
    pub fn destroy_qp(&self, qp: &Qp) -> Option<u64> {
        self.objects.qps.remove(qp.qpn())?;
        self.ground.links.exchange.forget_notes();
        self.detach_all(qp);
        self.remove_flows(qp);
        let outstanding = self.ground.records.trace.is_on().then(|| qp.outstanding());
        let taken = qp.shut(&self.ground);
        qp.port_device().count(qp.counters());
        self.ground.memory.release_queue_pair(qp.qpn());
        self.ground.ledger.forget(qp.qpn(), true);
        if self.ground.scripts.run() {
            self.ground.scripts.pair_gone(qp.qpn());
        }
        if let Some([sends, receives]) = outstanding {
            // Before its number may be another's.
            self.called(Some(qp.qpn()), || Call::DestroyQp { sends, receives });
        }
        self.ground.host.numbers.give_back(qp.qpn());
        self.advance_ready(&self.ground.progress.ready, self.now());
        taken
    }

    /// A shared receive queue.
    pub fn create_srq(
        &self,
        context: &Arc<Context>,
        domain: ProtectionDomain,
        max_wr: u32,
        max_sge: u32,
        kind: SharedQueueKind,
    ) -> Result<Arc<SharedQueue>, Error> {
        self.profile_admits_srq(context, max_wr, max_sge, &kind)?;
        within("max_wr", max_wr, limits::MAX_WR)?;
        within("max_sge", max_sge, limits::MAX_SGE)?;
        if let SharedQueueKind::Tags(tags) = &kind {
            within("max_num_tags", tags.max_tags, limits::MAX_TAGS)?;
        }
        let make = |number| SharedQueue::new(number, domain, max_wr, max_sge, kind, Arc::clone(context));
        let exhausted = Error::Exhausted { what: "shared receive queues", limit: limits::MAX_SRQ };
        let queue = self.ground.shared_queues.add(limits::MAX_SRQ as usize, make).ok_or(exhausted)?;
        let number = queue.number();
        self.called(None, || Call::CreateSrq { srq: number, pd: domain.0, max_wr, max_sge });
        Ok(queue)
    }

    /// Destroys a shared receive queue.
    pub fn destroy_srq(&self, queue: &SharedQueue) {
        self.ground.shared_queues.remove(queue.number());
        self.ground.ledger.forget_shared(queue.number());
        self.called(None, || Call::DestroySrq { srq: queue.number() });
    }

    /// Posts a receive to a shared receive queue; the program's list has `index` before it.
    pub fn post_shared(
        &self,
        queue: &SharedQueue,
        request: &ReceiveRequest<'_>,
        index: usize,
    ) -> Result<(), PostError> {
        if !self.ground.records.trace.is_on() {
            return queue.post(request);
        }
        queue.post_and(request, || {
            self.ground.records.tell_receive(self.now(), None, Some(queue.number()), index, request)
        })
    }

    /// Changes the size or the limit of a shared receive queue.
    pub fn modify_srq(&self, queue: &SharedQueue, modify: &SrqModify) -> Result<(), SrqError> {
        queue.modify(modify)?;
        let &SrqModify { max_wr, limit } = modify;
        self.called(None, || Call::ModifySrq { srq: queue.number(), limit, max_wr });
        Ok(())
    }

    pub(crate) fn qp(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        self.objects.qps.get(qpn)
    }

    /// Begins to bring the queue pair of that number, if there is one.
    #[inline]
    pub(crate) fn prefetch_qp(&self, qpn: Qpn) {
        self.objects.qps.look(qpn, Qp::prefetch);
    }

    pub(crate) fn each_qp(&self, f: impl FnMut(&Qp)) {
        self.objects.qps.for_each(f);
    }

    /// Takes note of what the interfaces are now: devices come, ports and addresses change. What cannot be seen now is
    /// seen with the next change.
    pub(crate) fn follow_interfaces(&self) -> io::Result<()> {
        let interfaces = interfaces::of_devices(self.ground.options.nics, environment::profile_of)?;
        let mut devices = self.ground.host.devices.write();
        let mut changed = Vec::new();
        for device in devices.iter() {
            let interface = interfaces.iter().find(|interface| interface.number == device.number());
            changed.extend(device.ports().map(|port| (Arc::clone(port), interface.is_none(), port.follow(interface))));
        }
        for interface in &interfaces {
            let known = devices.iter().any(|device| device.number() == interface.number);
            if !known && interface.running && !interface.addresses.is_empty() {
                devices.push(Arc::new(Device::of(interface)));
            }
        }
        drop(devices);
        self.drop_loopback();
        self.ground.links.ways_changed();
        for (device, gone, change) in changed {
            if gone && change != Change::default() {
                self.cm.device_gone(self, &device);
            }
            self.tell_change(&device, change);
        }
        Ok(())
    }

    /// What devices send to themselves disappears where the cards that they are like have no loopback.
    fn drop_loopback(&self) {
        let own = self.ground.host.without_loopback();
        if own.is_empty() {
            return;
        }
        let mut holes = self.ground.links.black_holes.write();
        for hole in own {
            if !holes.contains(&hole) {
                holes.push(hole);
            }
        }
    }

    /// Tells programs what has changed about a port.
    pub(crate) fn tell_change(&self, device: &Arc<Device>, change: Change) {
        let port = device.port_number();
        for (changed, event) in [
            (change.state == Some(true), AsyncEvent::PortActive(port)),
            (change.state == Some(false), AsyncEvent::PortError(port)),
            (change.gids, AsyncEvent::GidChange(port)),
            (change.rate, AsyncEvent::SpeedChange(port)),
            (change.lid, AsyncEvent::LidChange(port)),
            (change.pkey, AsyncEvent::PkeyChange(port)),
        ] {
            if changed {
                self.raise(device, event);
            }
        }
    }

    /// Tells all that have opened a device, or the device of a port.
    pub(crate) fn raise(&self, device: &Arc<Device>, event: AsyncEvent) {
        let contexts: Vec<Arc<Context>> = self.objects.contexts.lock().iter().filter_map(Weak::upgrade).collect();
        for context in contexts.iter().filter(|context| context.device().has_port(device)) {
            context.raise(event);
        }
    }
}

/// The engine's thread is asleep, perhaps: it must learn that there is nothing left to drive.
impl Drop for Nic {
    fn drop(&mut self) {
        self.count_as_ended();
        self.ground.progress.engine.ring();
    }
}

impl Device {
    /// An error if it has failed.
    pub fn works(&self) -> Result<(), Error> {
        let failed = || system("the device has failed")(io::Error::from_raw_os_error(libc::EIO));
        if self.has_failed() { Err(failed()) } else { Ok(()) }
    }
}

fn within(what: &'static str, asked: u32, max: u32) -> Result<(), Error> {
    if asked > max { Err(Error::TooMany { what, asked, max }) } else { Ok(()) }
}
