//! The NIC of a party: the [seam] on a simulated network. One device, with the addresses
//! of its host.

use super::pair::{PairRecord, SimulatedPair, SimulatedShared};
use super::queue::{self, Queue, SimulatedChannel, SimulatedQueue};
use super::world::PartyLife;
use hca::{limits, multicast};
use memory::{Memory, RegionSpec, Translation, WindowType};
use seam::{
    AsyncEvent, Backend, Channel, CompletionQueue, Context, DeviceInfo, DeviceLimits, DeviceMemory, Error, Parker,
    Port, QueuePair, QueuePairSpec, SharedReceiveQueue, own,
};
use sim::{HostId, QpSpec, SrqSpec};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transport::{Access, Counters, Kind, ProtectionDomain};
use wire::{Gid, Key, Mtu};

/// The name of a party's one device.
pub(super) const DEVICE_NAME: &str = "ubi_sim0";

/// The path MTU of simulated networks: what fits into the frames of an Ethernet with jumbo frames.
pub(super) const PATH_MTU: Mtu = Mtu::B4096;

/// The globally unique identifier of a party's device: locally administered, with the host's number in it.
pub(super) fn guid(host: HostId) -> u64 {
    0x0200_00ff_fe00_0001 + host.index() as u64
}

/// Events of an opened device.
pub(super) type Events = queue::Events<AsyncEvent>;

/// The NIC of one life of a party.
#[derive(Clone, Debug)]
pub(super) struct Nic {
    pub(super) place: PartyLife,
    host: HostId,
    gids: Vec<Gid>,
    memory: Arc<Memory>,
}

/// What objects of a party answer that is no more.
pub(super) fn gone(what: &'static str) -> Error {
    Error::Create { what, source: "the simulated party it belongs to has ended".into() }
}

/// A number that must not exceed what the device allows.
fn within(what: &str, asked: u32, limit: u32) -> Result<(), Error> {
    if asked <= limit {
        return Ok(());
    }
    Err(Error::Create { what: "a queue", source: format!("{asked} {what}; the device allows {limit}").into() })
}

impl Nic {
    /// The NIC of a party as it lives now.
    pub(super) fn new(world: &Arc<super::world::World>, party: usize) -> Nic {
        world.with(|inner| {
            let it = &inner.parties[party];
            let (host, life, memory) = (it.host, it.life, Arc::clone(&it.memory));
            let gids = super::manager::gids(inner.sim_ref(), host);
            Nic { place: PartyLife { world: Arc::clone(world), party, life }, host, gids, memory }
        })
    }

    fn number(&self) -> Result<u32, Error> {
        let number = self.place.with(|inner, party| {
            let party = &mut inner.parties[party];
            party.numbers += 1;
            party.numbers
        });
        number.ok_or_else(|| gone("an object"))
    }
}

impl Backend for Nic {
    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo::new(DEVICE_NAME, guid(self.host))]
    }

    fn addresses(&self, device: &str) -> Vec<Gid> {
        if device == DEVICE_NAME { self.gids.clone() } else { Vec::new() }
    }

    fn source_towards(&self, address: IpAddr) -> io::Result<IpAddr> {
        let known = self.place.world.with(|inner| {
            inner.parties.iter().any(|party| {
                let gids = super::manager::gids(inner.sim_ref(), party.host);
                gids.contains(&Gid::from_ip(address))
            })
        });
        let own = self.gids.iter().map(|gid| gid.to_ip()).find(|own| own.is_ipv4() == address.is_ipv4());
        let multicast = address.is_multicast() || address.is_loopback();
        let unreachable = || io::Error::new(io::ErrorKind::NetworkUnreachable, "no simulated party has that address");
        own.filter(|_| known || multicast).ok_or_else(unreachable)
    }

    fn open(&self, device: &str) -> Result<Arc<dyn Context>, Error> {
        if device != DEVICE_NAME {
            return Err(Error::NoDevice { name: device.into(), available: vec![DEVICE_NAME.into()] });
        }
        self.place.with(|_, _| ()).ok_or_else(|| gone("a context"))?;
        Ok(Arc::new(Opened { nic: self.clone(), events: Arc::new(Events::new()?) }))
    }

    fn create_channel(&self) -> Result<Arc<dyn Channel>, Error> {
        Ok(Arc::new(SimulatedChannel(Arc::new(queue::Events::new()?))))
    }

    fn progress(&self) {}

    fn create_parker(&self) -> Result<Arc<dyn Parker>, Error> {
        Err(Error::System { what: "cannot wait", source: queue::must_not_wait() })
    }

    fn wait(&self, _: &dyn Channel, _: Option<Duration>) -> io::Result<Option<u32>> {
        Err(queue::must_not_wait())
    }
}

#[derive(Debug)]
struct Opened {
    nic: Nic,
    events: Arc<Events>,
}

// SAFETY: `memory` looks at the key and at its range, rights and protection domain for every access; it gives each
// registration a key of its own; and `deregister` waits for the accesses that have begun.
#[allow(unsafe_code)]
unsafe impl Context for Opened {
    fn port(&self) -> Port {
        let active = self.nic.place.with(|_, _| ()).is_some();
        Port::new(active, PATH_MTU, self.nic.gids.iter().copied().map(Some).collect())
    }

    fn limits(&self) -> DeviceLimits {
        let memory = self.nic.memory.limits();
        let transport = transport::Limits::default();
        let mut allowed = DeviceLimits::default();
        allowed.max_queue_pairs = limits::MAX_QP;
        allowed.max_work_requests = limits::MAX_WR;
        allowed.max_pieces = limits::MAX_SGE;
        allowed.max_inline = limits::MAX_INLINE;
        allowed.max_message = transport::MAX_MESSAGE;
        allowed.max_reads = transport.max_rd_atomic;
        allowed.max_reads_of_peer = transport.max_dest_rd_atomic;
        allowed.max_completions = hca::MAX_ENTRIES;
        allowed.max_shared_receive_queues = limits::MAX_SRQ;
        allowed.max_regions = memory.regions;
        allowed.max_region_length = memory.region_length;
        allowed.max_windows = memory.windows;
        allowed.device_memory = memory.device_memory;
        allowed.max_groups = multicast::max_groups();
        allowed.max_group_members = multicast::MAX_MEMBERS;
        allowed.clock_hertz = 1_000_000_000;
        allowed
    }

    fn counters(&self) -> Counters {
        let counted = self.nic.place.with(|inner, party| {
            let mut all = Counters::default();
            let host = inner.parties[party].host;
            let numbers: Vec<_> = inner.parties[party].pairs.keys().copied().collect();
            for qpn in numbers {
                if let Some(pair) = inner.sim().queue_pair(sim::QpId { host, qpn }) {
                    all += pair.counters();
                }
            }
            all
        });
        counted.unwrap_or_default()
    }

    fn clock(&self) -> u64 {
        self.nic.place.world.now().as_nanos()
    }

    fn new_domain(&self) -> ProtectionDomain {
        // Of a party that is gone nothing is registered anyway.
        ProtectionDomain(self.nic.number().unwrap_or(0))
    }

    unsafe fn register(
        &self,
        address: *mut u8,
        length: usize,
        domain: ProtectionDomain,
        access: Access,
    ) -> Result<Key, Error> {
        let spec = RegionSpec { translation: Translation::new(address, length), domain, access };
        // SAFETY: the range stays allocated until the key is deregistered, and may change as the rights say.
        unsafe { self.nic.memory.register(&spec) }.map_err(Error::register(length))
    }

    fn deregister(&self, key: Key) -> Result<(), Error> {
        self.nic.memory.deregister(key).map_err(Error::register(0))
    }

    fn allocate_window(&self, domain: ProtectionDomain, type_2: bool) -> Result<Key, Error> {
        let kind = if type_2 { WindowType::Type2 } else { WindowType::Type1 };
        self.nic.memory.allocate_window(domain, kind).map_err(Error::create("a memory window"))
    }

    fn free_window(&self, key: Key) -> Result<(), Error> {
        self.nic.memory.free_window(key).map_err(Error::register(0))
    }

    fn device_memory_size(&self) -> u64 {
        self.nic.memory.limits().device_memory
    }

    fn allocate_device_memory(&self, length: usize, alignment: usize) -> Result<Arc<dyn DeviceMemory>, Error> {
        let memory = Arc::clone(&self.nic.memory);
        let device = memory.allocate_device(length, alignment.ilog2()).map_err(Error::create("device memory"))?;
        Ok(Arc::new(Allocated { memory, device }))
    }

    fn create_completion_queue(
        &self,
        capacity: u32,
        channel: Option<&Arc<dyn Channel>>,
    ) -> Result<Arc<dyn CompletionQueue>, Error> {
        if capacity == 0 || capacity > hca::MAX_ENTRIES {
            let source = format!("{capacity} completions; there may be 1 to {}", hca::MAX_ENTRIES).into();
            return Err(Error::Create { what: "a completion queue", source });
        }
        let channel = match channel {
            Some(channel) => Some(Arc::clone(&own::<SimulatedChannel>(&**channel, "completion channel")?.0)),
            None => None,
        };
        let queue = Arc::new(Queue::new(self.nic.number()?, capacity, channel));
        Ok(Arc::new(SimulatedQueue { place: self.nic.place.clone(), queue }))
    }

    fn create_queue_pair(&self, spec: &QueuePairSpec<'_>) -> Result<Box<dyn QueuePair>, Error> {
        let queue = |cq: &Arc<dyn CompletionQueue>| self.queue(cq).map(Some);
        let send = if spec.kind.has_send_queue() { queue(spec.send_cq)? } else { None };
        let receive = if spec.kind.is_xrc() { None } else { queue(spec.receive_cq)? };
        let srq = match spec.shared {
            Some(shared) => Some(own::<SimulatedShared>(&**shared, "shared receive queue")?.srq.srqn),
            None => None,
        };
        if spec.kind == Kind::RawPacket {
            let source = "a simulated network carries no raw packets".into();
            return Err(Error::Create { what: "a queue pair", source });
        }
        let capabilities = spec.capabilities;
        within("work requests", capabilities.max_send_wr.max(capabilities.max_recv_wr), limits::MAX_WR)?;
        within("pieces", capabilities.max_send_sge.max(capabilities.max_recv_sge), limits::MAX_SGE)?;
        within("bytes of inline data", capabilities.max_inline_data, limits::MAX_INLINE)?;
        let spec = QpSpec {
            pd: spec.domain,
            capabilities,
            srq,
            xrc_domain: spec.xrc_domain.unwrap_or(0),
            port_mtu: PATH_MTU,
            ..QpSpec::new(spec.kind)
        };
        let made = self.nic.place.with(|inner, party| {
            let qp = inner.sim().create_qp(self.nic.host, spec);
            let events = Arc::clone(&self.events);
            let record = PairRecord { send, receive, events, stop: None, told_of_stop: false };
            inner.parties[party].pairs.insert(qp.qpn, record);
            let last = Mutex::new(inner.sim().attributes(qp));
            SimulatedPair { place: self.nic.place.clone(), qp, kind: spec.kind, last }
        });
        Ok(Box::new(made.ok_or_else(|| gone("a queue pair"))?))
    }

    fn new_xrc_domain(&self) -> u32 {
        self.nic.number().unwrap_or(0)
    }

    fn create_shared_receive_queue(
        &self,
        domain: ProtectionDomain,
        max_wr: u32,
        max_sge: u32,
        xrc: Option<(u32, &Arc<dyn CompletionQueue>)>,
    ) -> Result<Arc<dyn SharedReceiveQueue>, Error> {
        within("work requests", max_wr, limits::MAX_WR)?;
        within("pieces", max_sge, limits::MAX_SGE)?;
        let queue = xrc.map(|(_, cq)| self.queue(cq)).transpose()?;
        let xrc_domain = xrc.map(|(domain, _)| domain);
        let made = self.nic.place.with(|inner, party| {
            let srq = inner.sim().create_srq(self.nic.host, SrqSpec { pd: domain, max_wr, max_sge, xrc_domain });
            inner.parties[party].shared.insert(srq.srqn, (Arc::downgrade(&self.events), queue));
            let last = inner.sim().srq(srq).query();
            SimulatedShared { place: self.nic.place.clone(), srq, last }
        });
        Ok(Arc::new(made.ok_or_else(|| gone("a shared receive queue"))?))
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.events.take()
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }
}

impl Opened {
    /// Our own completion queue behind the trait: of this party, in this life.
    fn queue(&self, cq: &Arc<dyn CompletionQueue>) -> Result<Arc<Queue>, Error> {
        let ours = own::<SimulatedQueue>(&**cq, "completion queue")?;
        let (here, there) = (&self.nic.place, &ours.place);
        let same = Arc::ptr_eq(&here.world, &there.world) && (here.party, here.life) == (there.party, there.life);
        same.then(|| Arc::clone(&ours.queue)).ok_or(Error::OtherDevice { what: "completion queue" })
    }
}

#[derive(Debug)]
struct Allocated {
    memory: Arc<Memory>,
    device: memory::DeviceMemory,
}

impl Drop for Allocated {
    fn drop(&mut self) {
        let _ = self.memory.free_device(self.device);
    }
}

fn copied(copied: Result<(), memory::Error>) -> Result<(), Error> {
    copied.map_err(|source| Error::DeviceMemory { source: Box::new(source) })
}

// SAFETY: its keys come from the same table as those of other memory.
#[allow(unsafe_code)]
unsafe impl DeviceMemory for Allocated {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        copied(self.memory.write_device(self.device, offset, bytes))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        copied(self.memory.read_device(self.device, offset, out))
    }

    fn register(&self, offset: u64, length: usize, domain: ProtectionDomain, access: Access) -> Result<Key, Error> {
        let access = access | Access::ZERO_BASED;
        self.memory.register_device(self.device, offset, length, domain, access).map_err(Error::register(length))
    }
}
