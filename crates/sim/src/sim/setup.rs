//! Setting the scene: hosts, links, memory, queue pairs and shared receive queues, and changing all of it while the
//! simulation runs.

use std::collections::VecDeque;
use transport::congestion::Window;
use transport::{Access, Attributes, Kind, ProtectionDomain, QueuePair, QueuePairConfig, SharedReceiveQueue, State};
use wire::{Gid, Key, Qpn, Srqn};

use super::Sim;
use crate::host::{Host, HostConfig, HostId, QpId, QpSpec, Slot, SrqId, SrqSpec, World};
use crate::link::LinkConfig;
use crate::memory::{Region, RegionSpec, WindowSpec};

impl Sim {
    /// Adds a host.
    ///
    /// # Panics
    /// If one of its addresses is another's already.
    pub fn add_host(&mut self, config: HostConfig) -> HostId {
        let id = HostId(self.hosts.len() as u32);
        let mut host = Host::new(id, config);
        for gid in &host.gids {
            assert!(self.net.routes.insert(*gid, id).is_none(), "{gid} has a host already");
            host.world.set_own_address(*gid);
        }
        host.world.tracing = self.net.observed();
        if let Some(capture) = &mut self.net.capture {
            capture.add_host(&host.name);
        }
        self.hosts.push(host);
        id
    }

    /// A host's address: entry `index` of its GID table.
    ///
    /// # Panics
    /// If it has none there.
    pub fn gid(&self, host: HostId, index: u8) -> Gid {
        self.hosts[host.index()].gids[usize::from(index)]
    }

    /// A host's name.
    pub fn host_name(&self, host: HostId) -> &str {
        &self.hosts[host.index()].name
    }

    /// Every link that was not set on its own, from now on.
    pub fn set_default_link(&mut self, config: LinkConfig) {
        self.net.default_link = config;
    }

    /// The port of the switch that leads to a host: what all others send to it over links of datagrams waits there for
    /// the same wire. Of
    /// `config` its bandwidth, queue, marks, delay and faults count.
    pub fn set_port(&mut self, to: HostId, config: LinkConfig) {
        self.net.ports.entry(to).or_default().config = config;
    }

    /// The most bytes that have waited for the port to a host since this was last asked.
    pub fn most_waiting(&mut self, to: HostId) -> u64 {
        self.net.ports.get_mut(&to).map_or(0, |port| std::mem::take(&mut port.most_waiting))
    }

    /// One direction between two hosts.
    pub fn set_direction(&mut self, from: HostId, to: HostId, config: LinkConfig) {
        self.net.link(from, to).config = config;
    }

    /// The properties of one direction.
    pub fn link(&mut self, from: HostId, to: HostId) -> LinkConfig {
        self.net.link(from, to).config
    }

    /// Changes one direction.
    pub fn change_link(&mut self, from: HostId, to: HostId, change: impl FnOnce(&mut LinkConfig)) {
        change(&mut self.net.link(from, to).config);
    }

    /// From now on nothing passes between two hosts, in either direction.
    pub fn partition(&mut self, a: HostId, b: HostId) {
        self.partition_direction(a, b);
        self.partition_direction(b, a);
    }

    /// From now on nothing passes from one host to another.
    pub fn partition_direction(&mut self, from: HostId, to: HostId) {
        self.net.partitions.insert((from, to));
    }

    /// Ends a partition.
    pub fn heal(&mut self, a: HostId, b: HostId) {
        self.net.partitions.remove(&(a, b));
        self.net.partitions.remove(&(b, a));
    }

    /// Stops a host from looking at what arrives, as a stopped process does. Its timers run on.
    pub fn pause(&mut self, host: HostId) {
        self.hosts[host.index()].paused = true;
    }

    /// Lets it go on.
    pub fn resume(&mut self, host: HostId) {
        self.hosts[host.index()].paused = false;
        self.serve_or_plan(host);
        self.drive_waiters();
    }

    /// Changes how long a host takes to look at a packet.
    pub fn set_service(&mut self, host: HostId, nanos: u64) {
        self.hosts[host.index()].config.service = nanos;
    }

    /// Registers `length` zero bytes.
    pub fn register(&mut self, host: HostId, pd: ProtectionDomain, length: usize, access: Access) -> Region {
        self.register_bytes(host, pd, vec![0; length], access)
    }

    /// Registers these bytes.
    pub fn register_bytes(&mut self, host: HostId, pd: ProtectionDomain, bytes: Vec<u8>, access: Access) -> Region {
        self.register_spec(host, bytes, &RegionSpec::new(pd, access))
    }

    /// Registers these bytes, with all that can be said about it.
    pub fn register_spec(&mut self, host: HostId, bytes: Vec<u8>, spec: &RegionSpec) -> Region {
        self.hosts[host.index()].world.memory.register(bytes, spec)
    }

    /// Registers bytes that exist only as a rule: reading gives [`pattern`](crate::pattern) of the seed, writing
    /// compares with it. For messages larger than the machine that tests them.
    pub fn register_pattern(&mut self, host: HostId, length: u64, seed: u64, spec: &RegionSpec) -> Region {
        self.hosts[host.index()].world.memory.register_pattern(length, seed, spec)
    }

    /// Bytes written to a pattern so far, and how many of them were wrong.
    pub fn pattern_written(&self, region: &Region) -> (u64, u64) {
        self.hosts[region.host.index()].world.memory.pattern_written(region)
    }

    /// Registers bytes that are registered already once more, in part or with other rights.
    pub fn register_again(&mut self, region: &Region, offset: u64, length: u64, spec: &RegionSpec) -> Region {
        self.hosts[region.host.index()].world.memory.register_again(region, offset, length, spec)
    }

    /// Takes a region's key away. False if windows are bound to it.
    pub fn deregister(&mut self, region: &Region) -> bool {
        self.hosts[region.host.index()].world.memory.deregister(region.key)
    }

    /// Allocates a memory window and answers its first key.
    pub fn allocate_window(&mut self, host: HostId, spec: WindowSpec) -> Key {
        self.hosts[host.index()].world.memory.allocate_window(spec)
    }

    /// Frees a memory window. False if the key is no window's.
    pub fn free_window(&mut self, host: HostId, key: Key) -> bool {
        self.hosts[host.index()].world.memory.free_window(key)
    }

    /// A region's bytes.
    pub fn bytes(&self, region: &Region) -> &[u8] {
        self.hosts[region.host.index()].world.memory.bytes(region)
    }

    /// A region's bytes, to change.
    pub fn bytes_mut(&mut self, region: &Region) -> &mut [u8] {
        self.hosts[region.host.index()].world.memory.bytes_mut(region)
    }

    /// Creates a queue pair.
    ///
    /// # Panics
    /// If the number it asks for is taken.
    pub fn create_qp(&mut self, host: HostId, spec: QpSpec) -> QpId {
        let qpn = spec.qpn.unwrap_or_else(|| {
            self.next_qpn += 1;
            Qpn::new(self.next_qpn - 1)
        });
        let qp = QueuePair::new(QueuePairConfig {
            qpn,
            kind: spec.kind,
            pd: spec.pd,
            capabilities: spec.capabilities,
            srq: spec.srq,
            signal_all: spec.signal_all,
            limits: spec.limits,
            pkey: spec.pkey,
            port_mtu: spec.port_mtu,
        });
        let place = &mut self.hosts[host.index()];
        let index = place.slots.len() as u32;
        assert!(place.by_number.insert(qpn, index).is_none(), "QP {qpn} exists");
        place.slots.push(Some(Slot {
            qp,
            qpn,
            armed: None,
            completions: VecDeque::new(),
            events: VecDeque::new(),
            peer: None,
            windows: (World::UNLIMITED_WINDOW, World::UNLIMITED_WINDOW),
            waits_for_ring: false,
        }));
        if let Some(weakness) = place.config.weakness {
            place.world.weaken(qpn, weakness);
        }
        if spec.kind == Kind::XrcTarget {
            place.world.join_xrc_domain(qpn, spec.xrc_domain);
        }
        QpId { host, qpn }
    }

    /// Destroys a queue pair. What is under way to it finds nobody.
    pub fn destroy_qp(&mut self, qp: QpId) {
        // A reset gives back what it has reserved of its windows.
        let reset = transport::Modify { state: Some(State::Reset), ..Default::default() };
        self.modify(qp, &reset).expect("every state may be left for RESET");
        let host = &mut self.hosts[qp.host.index()];
        let index = host.by_number.remove(&qp.qpn).expect("the queue pair exists");
        if let Some(slot) = host.slots[index as usize].take() {
            host.world.forget(&slot);
            for group in host.groups.values_mut() {
                group.retain(|member| *member != qp.qpn);
            }
        }
    }

    /// A queue pair's state.
    pub fn state(&self, qp: QpId) -> State {
        self.attributes(qp).state
    }

    /// A queue pair's attributes.
    pub fn attributes(&self, qp: QpId) -> Attributes {
        self.hosts[qp.host.index()].slot(qp.qpn).expect("the queue pair exists").qp.attributes()
    }

    /// Creates a shared receive queue.
    pub fn create_srq(&mut self, host: HostId, spec: SrqSpec) -> SrqId {
        let srqn = Srqn::new(self.next_srqn);
        self.next_srqn += 1;
        self.hosts[host.index()].world.add_srq(srqn, &spec);
        SrqId { host, srqn }
    }

    /// A shared receive queue.
    ///
    /// # Panics
    /// If it was destroyed.
    pub fn srq(&mut self, srq: SrqId) -> &mut SharedReceiveQueue {
        self.hosts[srq.host.index()].world.srq_mut(srq.srqn).expect("the shared receive queue exists")
    }

    /// Destroys a shared receive queue.
    pub fn destroy_srq(&mut self, srq: SrqId) -> bool {
        self.hosts[srq.host.index()].world.remove_srq(srq.srqn)
    }

    /// Joins a queue pair to a multicast group.
    pub fn join_group(&mut self, qp: QpId, group: Gid) {
        let hosts = self.net.groups.entry(group).or_default();
        if !hosts.contains(&qp.host) {
            hosts.push(qp.host);
        }
        let members = self.hosts[qp.host.index()].groups.entry(group).or_default();
        if !members.contains(&qp.qpn) {
            members.push(qp.qpn);
        }
    }

    /// The congestion window of a host towards an address, or towards itself if the address is its own. `None` until
    /// something needed it.
    pub fn window(&self, host: HostId, towards: Gid) -> Option<&Window> {
        self.hosts[host.index()].world.window_at(towards)
    }

    /// What congestion leaves a queue pair of the line rate, in bit/s; none if it takes nothing.
    pub fn congested_rate(&mut self, qp: QpId) -> Option<u64> {
        let now = self.now();
        self.slot(qp).qp.congested_rate(now)
    }

    pub(super) fn slot(&mut self, qp: QpId) -> &mut Slot {
        self.hosts[qp.host.index()].slot_mut(qp.qpn).expect("the queue pair exists")
    }

    pub(super) fn with_qp<R>(&mut self, qp: QpId, f: impl FnOnce(&mut QueuePair, &mut World) -> R) -> R {
        let Host { slots, by_number, world, .. } = &mut self.hosts[qp.host.index()];
        let index = by_number.get(&qp.qpn).copied().expect("the queue pair exists");
        let slot = slots[index as usize].as_mut().expect("a number names a slot in use");
        world.enter(slot);
        f(&mut slot.qp, world)
    }
}
