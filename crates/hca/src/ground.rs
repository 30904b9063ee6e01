//! What the rooms of the NIC stand on: registered memory, the records of what happens, the addresses of the host, this
//! process's share of the host, its links, and what threads tell each other about progress. Queue pairs, links and the
//! connection manager use it; it knows none of them.

use crate::environment;
use crate::links::packets::Packets;
use crate::links::registry::Registry;
use crate::links::udp::{Reach, Teller, Udp};
use crate::links::unread_watch::UnreadWatch;
use crate::links::windows::SharedWindow;
use crate::objects::completion_queue::CompletionQueue;
use crate::objects::device::Device;
use crate::objects::groups::Groups;
use crate::objects::numbers::Numbers;
use crate::objects::shared_queue::SharedQueue;
use crate::progress::delayed_ack::DelayedAckOwner;
use crate::progress::engine::Engine;
use crate::progress::piggybacked_ack::PiggybackOwner;
use crate::progress::ready::ReadyQueue;
use crate::progress::timers::Timers;
use crate::record::capture::Capture;
use crate::record::clock::Clock;
use crate::record::drops::{Drops, KernelDrops};
use crate::record::failures::Failures;
use crate::record::tracing::Tracing;
use crate::tuning::LONG_TRAIN_BYTES;
use ::host::ports::Ports;
use ::host::process_watch::ProcessWatch;
use ::host::slots::{Slot, Slots};
use latch::plain::{Mutex, RwLock};
use link::Dropped;
use link::shared::{Exchange, Outbound};
use link::udp::Family;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use trace::{DropReason, Event, Kind};
use transport::Time;
use transport::congestion::WindowConfig;
use wire::{Gid, Headers, Qpn, ROCE_PORT, Srqn};

/// How a NIC attaches to its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Sends everything over UDP, also what stays inside the process. For tests and measurements.
    pub only_udp: bool,
    /// Does not slow down when peers tell of congestion (DCQCN is off).
    pub ignores_congestion: bool,
    /// Reliable queue pairs stop when the peer's process has ended, also those that only wait to receive.
    pub stops_without_peer: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Ground {
    pub(crate) memory: memory::Memory,
    pub(crate) options: Options,

    // What is known from outside.
    pub(crate) clock: Clock,
    pub(crate) trace: Tracing,
    pub(crate) drops: Drops,
    pub(crate) failures: Failures,
    pub(crate) capture: Option<Mutex<Capture>>,

    // The host, and this process's share of it.
    pub(crate) devices: RwLock<Vec<Arc<Device>>>,
    pub(crate) slots: Slots,
    pub(crate) numbers: Numbers,
    /// Ports of the connection manager.
    pub(crate) ports: Ports,
    pub(crate) process_watch: ProcessWatch,

    // Links.
    pub(crate) udp: Arc<Udp>,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) links: Registry,
    /// Interfaces of raw queue pairs.
    pub(crate) packets: Packets,
    pub(crate) unread_watch: UnreadWatch,
    pub(crate) groups: Groups,
    pub(crate) windows: Mutex<HashMap<(Gid, u16), Arc<SharedWindow>>>,
    /// How windows towards peers behave.
    pub(crate) peer_window: WindowConfig,
    pub(crate) local_receive_window: Arc<SharedWindow>,
    /// Counts what may have changed the ways of datagrams.
    pub(crate) epoch: AtomicU32,

    // Progress.
    pub(crate) engine: Arc<Engine>,
    pub(crate) timers: Timers,
    pub(crate) ready: ReadyQueue,
    /// The queue pair whose acknowledgement waits for an answer over UDP, and through shared memory.
    pub(crate) delayed_ack_owner: DelayedAckOwner,
    pub(crate) piggyback_owner: PiggybackOwner,
    /// Bytes that went through shared memory in long trains.
    pub(crate) moved: AtomicU64,

    // Shared receive queues: any queue pair may use them.
    pub(crate) srqs: RwLock<HashMap<Srqn, Arc<SharedQueue>>>,
    pub(crate) next_srq: AtomicU32,
    pub(crate) next_cq: AtomicU32,
}

impl Teller for Ground {
    fn tell(&self, from: Qpn, dropped: &Dropped) {
        self.dropped(self.now(), Some(from), dropped.headers.as_ref(), dropped.reason);
    }
}

impl Ground {
    /// The NIC's end of the trace, to listen to it.
    pub fn tracing(&self) -> &Tracing {
        &self.trace
    }

    /// The devices of this host, as they are now.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.devices.read().clone()
    }

    /// Those of them that a program may see, if the environment names some.
    pub fn shown_devices(&self) -> Vec<Arc<Device>> {
        environment::shown(self.devices())
    }

    /// The registered memory of this process.
    pub fn memory(&self) -> &memory::Memory {
        &self.memory
    }

    /// How packets of other hosts reach this process: over IPv4, and over IPv6.
    pub fn reach(&self) -> [Reach; 2] {
        [Family::V4, Family::V6].map(|family| self.udp.reach(family))
    }

    /// Why packets of other hosts do not reach this process, if they do not: one reason per address family that is out.
    pub fn unreachable(&self) -> Vec<String> {
        let reason = |(family, reach)| match reach {
            Reach::Direct | Reach::Forwarded { .. } => None,
            Reach::Taken => Some(format!(
                "UDP port {ROCE_PORT} ({family}) is held by something that does not share it (kernel Soft-RoCE, or \
                 another program)"
            )),
            Reach::NoFamily => Some(format!("the system has no {family}")),
            Reach::Refused(error) => Some(error),
        };
        ["IPv4", "IPv6"].into_iter().zip(self.reach()).filter_map(reason).collect()
    }

    /// The NIC's clock.
    pub fn now(&self) -> Time {
        Time::from_nanos(self.clock.nanos())
    }

    /// Tells the observers of the completion queues that shared receive queues have of their own.
    #[cold]
    pub(crate) fn announce_shared(&self) {
        let queues: Vec<_> = self.srqs.read().values().filter_map(|queue| queue.completion_queue().cloned()).collect();
        queues.iter().for_each(|queue| queue.announce());
    }

    /// The shared receive queue of that number, if a queue pair of this XRC domain (or none) may use it.
    pub(crate) fn shared_queue(&self, number: Srqn, xrc_domain: Option<u32>) -> Option<Arc<SharedQueue>> {
        let queues = self.srqs.read();
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

    pub(crate) fn device_with(&self, gid: Gid) -> Option<Arc<Device>> {
        self.devices().into_iter().find(|device| device.port().gids.contains(&Some(gid)))
    }

    /// The engine, for callers that wait.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn wake_at(&self, deadline: Time, qpn: Qpn) {
        if self.timers.set(deadline, qpn) {
            self.engine.deadline_moved(deadline);
        }
    }

    pub(crate) fn make_ready(&self, qpn: Qpn) {
        self.ready.add(qpn);
    }

    /// Uses the calling thread's right to all locks, if it has one, until what this answers is dropped. Not while the
    /// engine works, too, and not where code outside the NIC is called meanwhile, which may wait for other threads.
    #[inline]
    pub(crate) fn alone(&self) -> Option<latch::Alone> {
        let may = self.engine.is_leased() && !self.trace.is_logged() && self.capture.is_none();
        may.then(latch::alone)
    }

    /// A queue pair begins, or ceases, to be one that other hosts may send to.
    pub(crate) fn uses_udp(&self, uses: bool) {
        self.engine.policy.sockets.uses_udp(uses);
    }

    /// How many bytes went through shared memory in long trains, in either direction.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Counts them, roughly: threads may count at the same time.
    #[inline]
    pub(crate) fn note_moved(&self, bytes: usize) {
        if bytes >= LONG_TRAIN_BYTES {
            self.moved.store(self.moved() + bytes as u64, Ordering::Relaxed);
        }
    }

    /// A packet or train of, or for, this queue pair goes no further; none where no queue pair of ours has to do with
    /// it.
    #[cold]
    pub(crate) fn dropped(&self, now: Time, qpn: Option<Qpn>, headers: Option<&Headers>, reason: DropReason) {
        self.drops.count(reason, 1);
        if self.trace.is_on() {
            let kind = Kind::PacketDropped { headers: headers.copied(), reason };
            self.trace.record(&Event { at: now.as_nanos(), qpn, kind });
        }
    }

    /// A socket did not believe a datagram that came for its queue pair: what it says of its sender is not true.
    pub fn refuse_datagram(&self, qpn: Qpn) {
        self.dropped(self.now(), Some(qpn), None, DropReason::ForgedSender);
    }

    /// A completion of this queue pair was lost.
    #[cold]
    pub(crate) fn cq_overflowed(&self, now: Time, qpn: Qpn, cq: &CompletionQueue) {
        if self.trace.is_on() {
            let kind = Kind::CqOverflowed { cq: cq.id, capacity: cq.capacity() };
            self.trace.record(&Event { at: now.as_nanos(), qpn: Some(qpn), kind });
        }
    }

    /// How many packets, trains, messages and records this NIC has dropped for a reason: a train counts once.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.of(reason)
    }

    /// What the kernel dropped before this NIC could see it. The figures of the host are of all programs in the network
    /// namespace, not of this NIC.
    pub fn kernel_drops(&self) -> io::Result<KernelDrops> {
        KernelDrops::read(self.udp.overflowed())
    }

    /// The reader of a ring wrote what it must not: its link ends.
    #[cold]
    pub(crate) fn condemn(&self, link: &Outbound) {
        if link.condemn() {
            self.dropped(self.now(), None, None, DropReason::BrokenRing);
        }
    }
}
