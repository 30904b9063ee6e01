//! The NIC of this process: ours, in software. One per process, made when it is first asked for; a forked child makes
//! its own.

use call_faults::strike;
use hca::{CompletionChannel, Joins, Nic, Notify, Options, Qp, SharedQueue, SharedQueueKind, limits, multicast};
use latch::PerProcess;
use latch::lock;
use profiles::{Feature, Limit};
use seam::{
    AsyncEvent, Backend, Channel, CompletionQueue, Congestion, Context, DeviceInfo, DeviceLimits, DeviceMemory, Error,
    Parker, Port, QueuePair, QueuePairSpec, SharedReceiveQueue, Stats, own,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transport::{
    Access, Attributes, Completion, Counters, Limits, Modify, ModifyError, PostError, ProtectionDomain,
    QueuePairConfig, ReceiveRequest, SendRequest, SrqAttributes, SrqError, SrqModify, Stop,
};
use wire::{Gid, Key, Pkey, Qpn, Srqn};

mod call_faults;
mod connections;
mod device_memory;
mod parker;

/// The software NIC of this process.
pub fn software() -> Result<Arc<dyn Backend>, Error> {
    ours(None)
}

/// The software NIC of this process, all of whose packets travel over UDP, also where something shorter exists: for
/// measurements and tests. Must be called before anything else is; the whole program then uses that NIC.
///
/// # Errors
/// [`Error::Create`] if the process has a NIC already that is attached in another way.
pub fn software_over_udp() -> Result<Arc<dyn Backend>, Error> {
    let mut options = Options::default();
    options.only_udp = true;
    ours(Some(options))
}

fn ours(wanted: Option<Options>) -> Result<Arc<dyn Backend>, Error> {
    static OURS: PerProcess<Mutex<Option<Arc<Software>>>> = PerProcess::new();
    let mut ours = lock(OURS.get_or_make(Mutex::default));
    if let (Some(software), None) = (&*ours, wanted) {
        return Ok(Arc::clone(software) as Arc<dyn Backend>);
    }
    // Streams use the same NIC, and may have made it.
    let (nic, options) = Nic::of_process_with(wanted.unwrap_or_default()).map_err(Error::create("the NIC"))?;
    if wanted.is_some_and(|wanted| wanted != options) {
        let source = "this process has one already, attached in another way".into();
        return Err(Error::Create { what: "the NIC", source });
    }
    if let Some(software) = &*ours {
        return Ok(Arc::clone(software) as Arc<dyn Backend>);
    }
    let software = Arc::new(Software { nic });
    *ours = Some(Arc::clone(&software));
    Ok(software)
}

#[derive(Debug)]
struct Software {
    nic: Arc<Nic>,
}

const EINVAL: i32 = 22;

/// What the C library would answer.
fn refusal_errno(error: &hca::Error) -> i32 {
    const ENOMEM: i32 = 12;
    match error {
        hca::Error::System { source, .. } => source.raw_os_error().unwrap_or(EINVAL),
        hca::Error::Memory(error) => error.errno(),
        hca::Error::Profile(refusal) => refusal.errno,
        hca::Error::Exhausted { .. } => ENOMEM,
        _ => EINVAL,
    }
}

impl Backend for Software {
    fn devices(&self) -> Vec<DeviceInfo> {
        let devices = self.nic.devices();
        devices.iter().map(|device| DeviceInfo::new(device.name(), device.guid())).collect()
    }

    fn addresses(&self, device: &str) -> Vec<Gid> {
        let devices = self.nic.devices();
        let found = devices.iter().find(|known| known.name() == device);
        found.map_or(Vec::new(), |device| device.port().gids.iter().flatten().copied().collect())
    }

    fn source_towards(&self, address: IpAddr) -> io::Result<IpAddr> {
        // A socket that is connected, and never used, tells from which address the system would send.
        let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, 1))?;
        Ok(socket.local_addr()?.ip())
    }

    fn open(&self, device: &str) -> Result<Arc<dyn Context>, Error> {
        strike(&self.nic, "ibv_open_device").map_err(Error::create("a context"))?;
        let devices = self.nic.devices();
        let Some(found) = devices.iter().find(|known| known.name() == device) else {
            let available = devices.iter().map(|known| known.name().into()).collect();
            return Err(Error::NoDevice { name: device.into(), available });
        };
        let context = self.nic.open_device(found).map_err(Error::create("a context"))?;
        Ok(Arc::new(Opened { nic: Arc::clone(&self.nic), context }))
    }

    fn create_channel(&self) -> Result<Arc<dyn Channel>, Error> {
        strike(&self.nic, "ibv_create_comp_channel").map_err(Error::create("a channel"))?;
        let made = self.nic.create_channel();
        let channel = made.map_err(|source| Error::System { what: "cannot make a channel", source })?;
        Ok(Arc::new(OurChannel { nic: Arc::clone(&self.nic), channel }))
    }

    fn progress(&self) {
        self.nic.progress();
    }

    fn create_parker(&self) -> Result<Arc<dyn Parker>, Error> {
        parker::create(&self.nic)
    }

    fn wait(&self, channel: &dyn Channel, limit: Option<Duration>) -> io::Result<Option<u32>> {
        match own::<OurChannel>(channel, "channel") {
            Ok(OurChannel { channel, .. }) => {
                let event = self.nic.wait_for(channel, limit)?;
                Ok(event.inspect(|cq| self.nic.took_event(channel, *cq)))
            }
            Err(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

#[derive(Debug)]
struct OurChannel {
    nic: Arc<Nic>,
    channel: Arc<CompletionChannel>,
}

impl Drop for OurChannel {
    fn drop(&mut self) {
        self.nic.destroy_channel(&self.channel);
    }
}

impl Channel for OurChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    fn is_nonblocking(&self) -> io::Result<bool> {
        self.channel.is_nonblocking()
    }

    fn try_take(&self) -> Option<u32> {
        self.channel.try_take().inspect(|cq| self.nic.took_event(&self.channel, *cq))
    }

    fn push(&self, event: u32) {
        self.channel.push(event);
    }
}

#[derive(Debug)]
struct Opened {
    nic: Arc<Nic>,
    context: Arc<hca::Context>,
}

impl Opened {
    /// Whether the card that the device is like has it.
    fn offers(&self, function: &'static str, feature: Feature) -> Result<(), hca::Error> {
        self.told(function, self.context.device().offers(feature).map_err(hca::Error::from))
    }

    /// Tells the trace of a refusal.
    fn told<T>(&self, function: &'static str, made: Result<T, hca::Error>) -> Result<T, hca::Error> {
        made.inspect_err(|error| self.nic.refused(function, refusal_errno(error), error))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // They last as long as anything in them, and so does this.
        self.nic.free_domains(&self.context);
        self.nic.close_device(&self.context);
    }
}

// SAFETY: `memory` looks at the key and at its range, rights and protection domain for every access; it gives each
// registration a key of its own; and `deregister` waits for the accesses that have begun.
#[allow(unsafe_code)]
unsafe impl Context for Opened {
    fn port(&self) -> Port {
        let port = self.context.device().port();
        Port::new(port.active, port.mtu(), port.gids.clone())
    }

    fn limits(&self) -> DeviceLimits {
        let memory = self.nic.memory().limits();
        let transport = transport::Limits::default();
        let mut allowed = DeviceLimits::default();
        let limit =
            |limit: Limit, usual: u32| self.context.device().limit(limit, usual.into()).min(usual.into()) as u32;
        allowed.max_queue_pairs = limit(Limit::MaxQp, limits::MAX_QP);
        allowed.max_work_requests = limit(Limit::MaxSendWr, limits::MAX_WR);
        allowed.max_pieces = limit(Limit::MaxSendSge, limits::MAX_SGE);
        allowed.max_inline = limit(Limit::MaxInline, limits::MAX_INLINE);
        allowed.max_message = transport::MAX_MESSAGE;
        allowed.max_reads = limit(Limit::MaxQpInitRdAtom, transport.max_rd_atomic.into()) as u8;
        allowed.max_reads_of_peer = limit(Limit::MaxQpRdAtom, transport.max_dest_rd_atomic.into()) as u8;
        allowed.max_completions = limit(Limit::MaxCqe, hca::MAX_ENTRIES);
        allowed.max_shared_receive_queues = limit(Limit::MaxSrq, limits::MAX_SRQ);
        allowed.max_regions = limit(Limit::MaxMr, memory.regions);
        allowed.max_region_length = memory.region_length;
        allowed.max_windows = limit(Limit::MaxMw, memory.windows);
        allowed.device_memory = memory.device_memory;
        allowed.max_groups = multicast::max_groups();
        allowed.max_group_members = multicast::MAX_MEMBERS;
        allowed.clock_hertz = 1_000_000_000;
        allowed
    }

    fn counters(&self) -> Counters {
        let mut of_ports = Counters::default();
        let is_ours = |device: &hca::Device| device.name() == self.context.device().name();
        let ours = self.nic.counters().into_iter().filter(|(device, _)| is_ours(device));
        ours.for_each(|(_, counters)| of_ports += counters);
        of_ports
    }

    fn clock(&self) -> u64 {
        self.nic.now().as_nanos()
    }

    fn new_domain(&self) -> ProtectionDomain {
        self.nic.allocate_domain(&self.context)
    }

    unsafe fn register(
        &self,
        address: *mut u8,
        length: usize,
        domain: ProtectionDomain,
        access: Access,
    ) -> Result<Key, Error> {
        strike(&self.nic, "ibv_reg_mr").map_err(Error::register(length))?;
        self.context.device().works().map_err(Error::register(length))?;
        let admitted = self.nic.profile_admits_region(self.context.device(), length, access);
        self.told("ibv_reg_mr", admitted).map_err(Error::register(length))?;
        // SAFETY: the range stays allocated until the key is deregistered, and may change as the rights say.
        unsafe { self.nic.register(address, length, domain, access) }
            .inspect_err(|error| self.nic.refused("ibv_reg_mr", refusal_errno(error), error))
            .map_err(Error::register(length))
    }

    fn deregister(&self, key: Key) -> Result<(), Error> {
        self.nic.deregister(key).map_err(Error::register(0))
    }

    fn allocate_window(&self, domain: ProtectionDomain, type_2: bool) -> Result<Key, Error> {
        strike(&self.nic, "ibv_alloc_mw").map_err(Error::create("a memory window"))?;
        self.context.device().works().map_err(Error::create("a memory window"))?;
        self.offers("ibv_alloc_mw", Feature::AllocMw).map_err(Error::create("a memory window"))?;
        self.nic.allocate_window(domain, type_2).map_err(Error::create("a memory window"))
    }

    fn free_window(&self, key: Key) -> Result<(), Error> {
        self.nic.free_window(key).map_err(Error::register(0))
    }

    fn device_memory_size(&self) -> u64 {
        hca::DeviceMemory::size(&self.nic)
    }

    fn allocate_device_memory(&self, length: usize, alignment: usize) -> Result<Arc<dyn DeviceMemory>, Error> {
        strike(&self.nic, "ibv_alloc_dm").map_err(Error::create("device memory"))?;
        self.context.device().works().map_err(Error::create("device memory"))?;
        self.offers("ibv_alloc_dm", Feature::AllocDm).map_err(Error::create("device memory"))?;
        device_memory::allocate(&self.nic, length, alignment)
    }

    fn create_completion_queue(
        &self,
        capacity: u32,
        channel: Option<&Arc<dyn Channel>>,
    ) -> Result<Arc<dyn CompletionQueue>, Error> {
        strike(&self.nic, "ibv_create_cq").map_err(Error::create("a completion queue"))?;
        self.context.device().works().map_err(Error::create("a completion queue"))?;
        let admitted = self.nic.profile_admits_cq(self.context.device(), capacity);
        self.told("ibv_create_cq", admitted).map_err(Error::create("a completion queue"))?;
        let channel = match channel {
            Some(channel) => Some(Arc::clone(&own::<OurChannel>(&**channel, "completion channel")?.channel)),
            None => None,
        };
        let made = self.nic.create_cq(capacity, channel);
        let made = made.inspect_err(|error| self.nic.refused("ibv_create_cq", refusal_errno(error), error));
        let queue = made.map_err(Error::create("a completion queue"))?;
        queue.belongs_to(self.context.device());
        Ok(Arc::new(OurQueue { nic: Arc::clone(&self.nic), queue }))
    }

    fn create_queue_pair(&self, spec: &QueuePairSpec<'_>) -> Result<Box<dyn QueuePair>, Error> {
        strike(&self.nic, "ibv_create_qp").map_err(Error::create("a queue pair"))?;
        let srq = match spec.shared {
            Some(shared) => Some(own::<OurShared>(&**shared, "shared receive queue")?.queue.number()),
            None => None,
        };
        let queue = |cq: &Arc<dyn CompletionQueue>| {
            own::<OurQueue>(&**cq, "completion queue").map(|ours| Arc::clone(&ours.queue))
        };
        let receives = !spec.kind.is_xrc();
        let joins = Joins {
            context: Arc::clone(&self.context),
            send_cq: spec.kind.has_send_queue().then(|| queue(spec.send_cq)).transpose()?,
            receive_cq: receives.then(|| queue(spec.receive_cq)).transpose()?,
            xrc_domain: spec.xrc_domain,
        };
        let config = QueuePairConfig {
            qpn: Qpn::default(),
            kind: spec.kind,
            pd: spec.domain,
            capabilities: spec.capabilities,
            srq,
            signal_all: false,
            limits: Limits::default(),
            pkey: Pkey::DEFAULT,
            port_mtu: self.context.device().port().mtu(),
        };
        let made = self.nic.create_qp(config, joins);
        let made = made.inspect_err(|error| self.nic.refused("ibv_create_qp", refusal_errno(error), error));
        let qp = made.map_err(Error::create("a queue pair"))?;
        Ok(Box::new(OurPair { nic: Arc::clone(&self.nic), qp }))
    }

    fn new_xrc_domain(&self) -> u32 {
        /// Beyond those that the C library gives out in the same process, if it does.
        static NEXT: AtomicU32 = AtomicU32::new(1 << 31);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    fn create_shared_receive_queue(
        &self,
        domain: ProtectionDomain,
        max_wr: u32,
        max_sge: u32,
        xrc: Option<(u32, &Arc<dyn CompletionQueue>)>,
    ) -> Result<Arc<dyn SharedReceiveQueue>, Error> {
        strike(&self.nic, "ibv_create_srq").map_err(Error::create("a shared receive queue"))?;
        self.context.device().works().map_err(Error::create("a shared receive queue"))?;
        let kind = match xrc {
            None => SharedQueueKind::Basic,
            Some((domain, cq)) => {
                let cq = Arc::clone(&own::<OurQueue>(&**cq, "completion queue")?.queue);
                SharedQueueKind::Xrc(hca::Xrc { domain, cq })
            }
        };
        let queue = self
            .nic
            .create_srq(&self.context, domain, max_wr, max_sge, kind)
            .inspect_err(|error| self.nic.refused("ibv_create_srq", refusal_errno(error), error))
            .map_err(Error::create("a shared receive queue"))?;
        Ok(Arc::new(OurShared { nic: Arc::clone(&self.nic), queue }))
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        loop {
            let event = self.context.events().try_take()?;
            self.nic.took_async_event(event);
            return Some(match event {
                hca::AsyncEvent::Qp(qpn, event) => AsyncEvent::QueuePair(qpn, event),
                hca::AsyncEvent::CqError(id) => AsyncEvent::CompletionQueueError(id),
                hca::AsyncEvent::SrqLimit(srqn) => AsyncEvent::SharedReceiveQueueLimit(srqn),
                hca::AsyncEvent::SrqError(srqn) => AsyncEvent::SharedReceiveQueueError(srqn),
                hca::AsyncEvent::PortActive(_) => AsyncEvent::PortActive,
                hca::AsyncEvent::PortError(_) => AsyncEvent::PortError,
                hca::AsyncEvent::GidChange(_) => AsyncEvent::GidChange,
                hca::AsyncEvent::LidChange(_) => AsyncEvent::LidChange,
                hca::AsyncEvent::PkeyChange(_) => AsyncEvent::PkeyChange,
                hca::AsyncEvent::SmChange(_) => AsyncEvent::SubnetManagerChange,
                hca::AsyncEvent::ClientReregister(_) => AsyncEvent::ClientReregister,
                hca::AsyncEvent::SpeedChange(_) => AsyncEvent::SpeedChange,
                hca::AsyncEvent::DeviceFatal => AsyncEvent::DeviceFatal,
                // One that this version of the API has no name for.
                _ => continue,
            });
        }
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.context.events().fd()
    }
}

#[derive(Debug)]
struct OurQueue {
    nic: Arc<Nic>,
    queue: Arc<hca::CompletionQueue>,
}

impl Drop for OurQueue {
    fn drop(&mut self) {
        self.nic.destroy_cq(&self.queue);
    }
}

// SAFETY: a queue pair adds one completion for each request it took, when the request is done, and none after it is
// destroyed.
#[allow(unsafe_code)]
unsafe impl CompletionQueue for OurQueue {
    fn id(&self) -> u32 {
        self.queue.id
    }

    fn waiting(&self) -> usize {
        self.queue.len()
    }

    fn poll(&self, room: usize, take: &mut dyn FnMut(&Completion, u64)) -> usize {
        self.nic.poll(&self.queue, room, take)
    }

    fn take(&self, room: usize, take: &mut dyn FnMut(&Completion, u64)) -> usize {
        self.nic.take_waiting(&self.queue, room, take)
    }

    fn observe(&self, observer: Box<dyn Fn() + Send + Sync>) {
        self.queue.observe(observer);
    }

    fn arm(&self, solicited_only: bool) {
        self.nic.arm(&self.queue, if solicited_only { Notify::Solicited } else { Notify::Any });
    }

    fn rouse(&self) {
        self.queue.rouse();
    }

    fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    fn resize(&self, capacity: u32) -> Result<(), Error> {
        strike(&self.nic, "ibv_resize_cq").map_err(Error::create("a completion queue"))?;
        self.nic.resize_cq(&self.queue, capacity).map_err(Error::create("a completion queue"))
    }

    fn has_overflowed(&self) -> bool {
        self.queue.has_overflowed()
    }
}

#[derive(Debug)]
struct OurPair {
    nic: Arc<Nic>,
    qp: Arc<Qp>,
}

// SAFETY: buffers are touched under the queue pair's latch only, by requests that are in its queues. `destroy` and a
// reset take the latch and empty the queues, and every access asks `memory`.
#[allow(unsafe_code)]
unsafe impl QueuePair for OurPair {
    fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    fn link(&self) -> &'static str {
        self.qp.link()
    }

    fn attributes(&self) -> Attributes {
        self.qp.attributes()
    }

    fn stats(&self) -> Stats {
        let congestion = self.qp.congestion().map(|hca::Congestion { round_trip_nanos, window, in_flight }| {
            Congestion::new(round_trip_nanos.map(Duration::from_nanos), window, in_flight)
        });
        let Counters { traffic, incidents, .. } = self.qp.counters();
        Stats::new(traffic, incidents, congestion)
    }

    fn modify(&self, modify: &Modify) -> Result<(), ModifyError> {
        strike(&self.nic, "ibv_modify_qp").map_err(|struck| struck.plain())?;
        let modified = self.qp.modify(&self.nic, modify);
        modified.inspect_err(|error| self.nic.refused("ibv_modify_qp", EINVAL, error))
    }

    fn stop(&self) -> Option<Stop> {
        self.qp.stop()
    }

    fn observe_stop(&self, observer: Box<dyn Fn() + Send + Sync>) {
        self.qp.observe_stop(&self.nic, observer);
    }

    fn disconnect(&self) {
        self.qp.disconnect(&self.nic);
    }

    unsafe fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), (usize, PostError)> {
        strike(&self.nic, "ibv_post_send").map_err(|struck| (0, struck.plain().into()))?;
        self.qp.post_send(&self.nic, requests)
    }

    unsafe fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostError)> {
        strike(&self.nic, "ibv_post_recv").map_err(|struck| (0, struck.plain().into()))?;
        self.qp.post_receive(&self.nic, requests)
    }

    fn attach(&self, group: Gid) -> Result<(), Error> {
        strike(&self.nic, "ibv_attach_mcast").map_err(Error::create("a membership"))?;
        self.qp.attach(&self.nic, group).map_err(Error::create("a membership"))
    }

    fn detach(&self, group: Gid) -> Result<(), Error> {
        strike(&self.nic, "ibv_detach_mcast").map_err(Error::create("a membership"))?;
        self.qp.detach(&self.nic, group).map_err(Error::create("a membership"))
    }

    fn destroy(&self) -> Option<u64> {
        self.nic.destroy_qp(&self.qp)
    }
}

#[derive(Debug)]
struct OurShared {
    nic: Arc<Nic>,
    queue: Arc<SharedQueue>,
}

// SAFETY: a receive is with the queue or with the one queue pair that took it, whose promise is above; when the queue
// is destroyed, its queue pairs are gone.
#[allow(unsafe_code)]
unsafe impl SharedReceiveQueue for OurShared {
    fn number(&self) -> Srqn {
        self.queue.number()
    }

    unsafe fn post(&self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        strike(&self.nic, "ibv_post_srq_recv").map_err(|struck| struck.plain())?;
        self.nic.post_shared(&self.queue, request, 0)
    }

    fn modify(&self, modify: &SrqModify) -> Result<(), SrqError> {
        strike(&self.nic, "ibv_modify_srq").map_err(|struck| struck.plain())?;
        self.nic.modify_srq(&self.queue, modify)
    }

    fn attributes(&self) -> SrqAttributes {
        self.queue.query()
    }

    fn destroy(&self) {
        self.nic.destroy_srq(&self.queue);
    }
}
