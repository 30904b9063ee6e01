//! Interfaces as raw queue pairs use them: a socket that sends, one that receives while there are flows, and the flows.
//! A port lives as long as a queue pair has it. Faults strike frames where they arrive, as on the links.

use crate::tuning::FRAME_SEND_WAITS;
use ::host::slots::{Registry, Slots};
use ::host::thread::Shield;
use latch::Rank;
use latch::plain::{Mutex, RwLock};
use link::faults::{Faults, Passed, Plan};
use link::packet::{FrameIn, Membership, Receiver, Sender};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use trace::DropReason;
use wire::Qpn;
use wire::flow::{Internet, Layers, Loopback, Origin, Rule, RuleKind, Table, mark_congestion};

/// The most flows of an interface.
pub(crate) const MAX_FLOWS: u32 = 1 << 16;

/// All ports of this process.
#[derive(Debug)]
pub(crate) struct Packets {
    /// There are flows: a look at the sockets may find something.
    any: AtomicBool,
    ports: RwLock<Vec<Weak<PacketPort>>>,
    slots: Slots,
    next_flow: AtomicU32,
    plan: Mutex<Option<Plan>>,
    /// There was a plan once.
    had_plan: AtomicBool,
}

/// An interface.
#[derive(Debug)]
pub(crate) struct PacketPort {
    interface: u32,
    sender: Sender,
    inbound: Mutex<Inbound>,
    flows: RwLock<Table<Target>>,
    /// When the next frame that a fault holds back is due, in nanoseconds since `start`.
    due: AtomicU64,
    start: Instant,
}

/// What receives, and what frames meet before they are taken.
#[derive(Debug)]
struct Inbound {
    receiver: Option<Receiver>,
    faults: Option<Faults<Meta>>,
}

/// What is kept of a frame beside its bytes.
#[derive(Clone, Copy, Debug)]
struct Meta {
    origin: Origin,
    checksums_known: bool,
}

/// No frame is held back.
const NO_FRAME_HELD: u64 = u64::MAX;

/// What a flow leads to. Two lead to the same if they lead to one queue pair.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub qpn: Qpn,
    pub counters: Option<Arc<FlowCounters>>,
}

impl PartialEq for Target {
    fn eq(&self, other: &Target) -> bool {
        self.qpn == other.qpn
    }
}

/// What flows have matched: `ibv_counters`.
#[derive(Debug, Default)]
pub struct FlowCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl FlowCounters {
    pub(crate) fn count(&self, bytes: usize) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Frames.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Packets {
    pub fn new(slots: &Slots, plan: Option<Plan>) -> Packets {
        Packets {
            any: AtomicBool::new(false),
            ports: RwLock::new(Rank::PacketPorts, Vec::new()),
            slots: slots.clone(),
            next_flow: AtomicU32::new(1),
            had_plan: AtomicBool::new(plan.is_some()),
            plan: Mutex::new(Rank::FramePlan, plan),
        }
    }

    /// Changes what goes wrong with frames that arrive.
    pub fn change_faults(&self, plan: &Plan) {
        *self.plan.lock() = Some(plan.clone()).filter(|plan| !plan.is_empty());
        self.had_plan.store(true, Ordering::Relaxed);
        for port in self.ports() {
            let mut inbound = port.inbound.lock();
            let faults = inbound.faults.get_or_insert_with(|| Faults::new(Plan::default()));
            faults.change(plan.clone());
            if plan.is_empty() {
                faults.hasten(Instant::now());
            }
            port.note_due(faults.due());
        }
    }

    /// Whether there are flows.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// The port of an interface.
    pub fn port(&self, interface: u32) -> io::Result<Arc<PacketPort>> {
        let mut ports = self.ports.write();
        ports.retain(|port| port.strong_count() > 0);
        if let Some(port) = ports.iter().filter_map(Weak::upgrade).find(|port| port.interface == interface) {
            return Ok(port);
        }
        let port = Arc::new(PacketPort {
            interface,
            sender: Sender::open(interface)?,
            inbound: Mutex::new(
                Rank::PacketReceiver,
                Inbound { receiver: None, faults: self.plan.lock().clone().map(Faults::new) },
            ),
            flows: RwLock::new(Rank::Flows, Table::default()),
            due: AtomicU64::new(NO_FRAME_HELD),
            start: Instant::now(),
        });
        ports.push(Arc::downgrade(&port));
        Ok(port)
    }

    pub fn ports(&self) -> Vec<Arc<PacketPort>> {
        self.ports.read().iter().filter_map(Weak::upgrade).collect()
    }

    /// When a frame that a fault holds back is due.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.had_plan.load(Ordering::Relaxed) || !self.any() {
            return None;
        }
        self.ports().iter().filter_map(|port| port.deadline()).min()
    }

    /// Adds a flow to a port, and answers its number. None if there are too many. Waits for the thread that receives.
    pub fn add(&self, port: &PacketPort, mut rule: Rule<Target>) -> io::Result<Option<u32>> {
        let mut inbound = port.inbound.lock();
        let opened = match inbound.receiver.take() {
            Some(opened) => opened,
            None => {
                let opened = Receiver::open(port.interface)?;
                self.slots.registry().watch(opened.raw_fd(), Registry::PACKET_SOCKETS_KEY)?;
                opened
            }
        };
        let opened = inbound.receiver.insert(opened);
        rule.id = self.next_flow.fetch_add(1, Ordering::Relaxed);
        let id = rule.id;
        let joined: Vec<Membership> = memberships(&rule).collect();
        let named: Vec<[u8; 6]> = rule.destinations().collect();
        let added = {
            let mut flows = port.flows.write();
            let has_room = flows.iter().count() < MAX_FLOWS as usize;
            if has_room {
                flows.insert(rule);
            }
            opened.hear_outgoing(flows.wants_outgoing()).map(|()| has_room)
        };
        let started = added.and_then(|has_room| {
            named.iter().try_for_each(|address| opened.loop_back(*address))?;
            joined.iter().try_for_each(|membership| opened.member(*membership, has_room))?;
            opened.start().map(|()| has_room)
        });
        drop(inbound);
        self.any.store(true, Ordering::Release);
        match started {
            Ok(has_room) => Ok(has_room.then_some(id)),
            Err(error) => {
                self.remove(port, |rule| rule.id == id);
                Err(error)
            }
        }
    }

    /// Removes the flows of a port that `which` names: nothing arrives by them any more when this returns. Answers how
    /// many there were.
    pub fn remove(&self, port: &PacketPort, which: impl FnMut(&Rule<Target>) -> bool) -> usize {
        let mut inbound = port.inbound.lock();
        let mut flows = port.flows.write();
        let removed = flows.remove(which);
        if let Some(opened) = inbound.receiver.as_mut() {
            for membership in removed.iter().flat_map(memberships) {
                // The kernel forgets it with the socket at the latest.
                let _ = opened.member(membership, false);
            }
            let _ = opened.hear_outgoing(flows.wants_outgoing());
            if flows.is_empty() {
                self.slots.registry().unwatch(opened.raw_fd());
                inbound.receiver = None;
            }
        }
        drop(flows);
        drop(inbound);
        let any = self.ports().iter().any(|port| !port.flows.read().is_empty());
        self.any.store(any, Ordering::Release);
        removed.len()
    }
}

impl PacketPort {
    /// Takes what has come, a batch at most, with the flows as they are; what a fault takes away is shown to `lost`.
    /// None if another thread is about it.
    pub fn receive(
        &self,
        mut take: impl FnMut(&Table<Target>, &FrameIn<'_>),
        mut lost: impl FnMut(DropReason),
    ) -> Option<Received> {
        let mut inbound = self.inbound.try_lock()?;
        let Inbound { receiver, faults } = &mut *inbound;
        let receiver = receiver.as_mut()?;
        let flows = self.flows.read();
        let mut any = false;
        let count = match faults {
            None => receiver.receive(|frame| take(&flows, frame)),
            Some(faults) => {
                let count = receiver.receive(|frame| meet(faults, frame, |frame| take(&flows, frame), &mut lost));
                faults.release(Instant::now(), |passed| {
                    any = true;
                    give(passed, |frame| take(&flows, frame), &mut lost);
                });
                self.note_due(faults.due());
                count
            }
        };
        let full = count == link::packet::MAX_BATCH;
        // Only where there is much may there be too much.
        Some(Received { any: any || count > 0, full, overflowed: if full { receiver.overflowed() } else { 0 } })
    }

    fn note_due(&self, due: Option<Instant>) {
        let nanos = |due: Instant| due.saturating_duration_since(self.start).as_nanos() as u64;
        self.due.store(due.map_or(NO_FRAME_HELD, nanos), Ordering::SeqCst);
    }

    fn deadline(&self) -> Option<Instant> {
        match self.due.load(Ordering::SeqCst) {
            NO_FRAME_HELD => None,
            nanos => Some(self.start + Duration::from_nanos(nanos)),
        }
    }

    /// Whether a queue pair has flows here.
    pub fn has_flows_of(&self, qpn: Qpn) -> bool {
        self.flows.read().iter().any(|rule| rule.target.qpn == qpn)
    }

    /// Sends frames. One that the kernel does not take is shown to `lost`.
    pub fn send(&self, frames: &[Vec<u8>], mut lost: impl FnMut()) {
        let (mut rest, mut waits) = (frames, 0);
        while !rest.is_empty() {
            let sent = match self.sender.send(rest) {
                Ok(sent) => sent,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => 0,
                    // Its buffer, or the interface's queue, is full.
                    Some(libc::EAGAIN | libc::ENOBUFS) if waits < FRAME_SEND_WAITS => {
                        let _shield = Shield::up();
                        self.sender.wait(1);
                        if error.raw_os_error() == Some(libc::ENOBUFS) {
                            std::thread::sleep(std::time::Duration::from_micros(100));
                        }
                        waits += 1;
                        0
                    }
                    _ => {
                        lost();
                        1
                    }
                },
            };
            rest = rest.get(sent..).unwrap_or_default();
        }
    }
}

/// A frame meets the faults. What the host sends elsewhere does not arrive here, so nothing happens to it.
fn meet(
    faults: &mut Faults<Meta>,
    frame: &FrameIn<'_>,
    mut take: impl FnMut(&FrameIn<'_>),
    mut lost: impl FnMut(DropReason),
) {
    let FrameIn { bytes, origin, checksums_known } = *frame;
    if origin == Origin::Host(Loopback::None) {
        return take(frame);
    }
    let meta = Meta { origin, checksums_known };
    let reason =
        faults.arrive(Instant::now(), addresses(bytes), meta, bytes, |passed| give(passed, &mut take, &mut lost));
    reason.into_iter().for_each(lost);
}

/// Gives a frame that has passed to `take`, unless it is damaged: Ethernet's checksum tells every interface so.
fn give(passed: Passed<'_, Meta>, take: impl FnOnce(&FrameIn<'_>), mut lost: impl FnMut(DropReason)) {
    if passed.corrupted {
        return lost(DropReason::BadFcs);
    }
    let Meta { origin, checksums_known } = *passed.meta;
    if passed.marked
        && let Some(layers) = Layers::parse(passed.bytes)
    {
        mark_congestion(passed.bytes, &layers);
    }
    take(&FrameIn { bytes: passed.bytes, origin, checksums_known });
}

/// From where to where; no address for a frame without IP, which rules for addresses then do not fit.
fn addresses(frame: &[u8]) -> (IpAddr, IpAddr) {
    match Layers::parse(frame).and_then(|layers| layers.outer.internet) {
        Some(Internet::V4 { source, destination, .. }) => (source.into(), destination.into()),
        Some(Internet::V6 { source, destination, .. }) => (source.into(), destination.into()),
        None => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()),
    }
}

/// What a look at a port found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub any: bool,
    /// There may be more.
    pub full: bool,
    /// Frames that the kernel dropped.
    pub overflowed: u64,
}

/// What an interface must let through for a rule.
fn memberships(rule: &Rule<Target>) -> impl Iterator<Item = Membership> {
    let of_kind = match rule.kind {
        RuleKind::Normal => None,
        RuleKind::AllDefault | RuleKind::Sniffer => Some(Membership::Promiscuous),
        RuleKind::MulticastDefault => Some(Membership::AllMulticast),
    };
    of_kind.into_iter().chain(rule.destinations().map(Membership::Address))
}
