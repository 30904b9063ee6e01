//! Faults around any link: what the inner link receives is cut into its packets, and each packet meets the plan before
//! the receiver sees it. A packet that is damaged is lost, as a link without a checksum of its own would not notice.
//! (UDP has one: its faults strike below it, inside its receiver.)

use super::{Faults, Injected, Passed, Plan};
use crate::carrier::{Arrived, Destination, Handling, Link, SendError, Train};
use crate::dropped::{Dropped, Drops};
use latch::Rank;
use latch::plain::Mutex;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trace::DropReason;
use wire::{Ecn, Gid, Headers, IpHeader};

/// No packet is held back.
const NO_PACKET_HELD: u64 = u64::MAX;

/// A link whose packets meet faults where they arrive.
#[derive(Debug)]
pub struct Faulty<L> {
    inner: L,
    faults: Mutex<Layer>,
    /// A thread wanted to receive since the thread that receives began its last look.
    asked: AtomicBool,
    /// When the next packet that is held back is due, in nanoseconds since `start`.
    due: AtomicU64,
    start: Instant,
}

/// The faults, and what they have taken since the NIC last asked.
#[derive(Debug)]
struct Layer {
    faults: Faults<Meta>,
    drops: Drops,
}

/// What is kept of a packet beside its payload.
#[derive(Clone, Copy, Debug)]
struct Meta {
    headers: Headers,
    source: Gid,
    destination: Gid,
    process: Option<i32>,
    ip: Option<IpHeader>,
    handling: Handling,
    congestion_marked: bool,
}

impl<L: Link> Faulty<L> {
    /// Faults of this plan around a link.
    pub fn new(inner: L, plan: Plan) -> Faulty<L> {
        Faulty {
            inner,
            faults: Mutex::new(Rank::Faults, Layer { faults: Faults::new(plan), drops: Drops::default() }),
            asked: AtomicBool::new(false),
            due: AtomicU64::new(NO_PACKET_HELD),
            start: Instant::now(),
        }
    }

    /// Changes the plan. Where nothing is to go wrong any more, what is late passes with the next look.
    pub fn change(&self, plan: Plan) {
        let mut layer = self.faults.lock();
        let (ends, now) = (plan.is_empty(), Instant::now());
        layer.faults.change(plan);
        if ends {
            layer.faults.hasten(now);
            self.due.store(layer.faults.due().map_or(NO_PACKET_HELD, |due| self.nanos(due)), Ordering::SeqCst);
        }
    }

    /// Whether nothing goes wrong, and no packet is held back.
    pub fn is_spent(&self) -> bool {
        self.faults.lock().faults.is_spent()
    }

    /// The link inside.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// What was done so far.
    pub fn injected(&self) -> Injected {
        self.faults.lock().faults.injected()
    }

    /// What [`receive`](Link::receive) does, at the moment that `now` answers.
    pub fn receive_at(&self, now: impl Fn() -> Instant, take: &mut dyn FnMut(&Arrived<'_>)) -> bool {
        let mut any = false;
        loop {
            // First say it, then try: the thread that receives looks for it after it has let go of the lock. So what
            // arrived before this call is found by one of the two.
            self.asked.store(true, Ordering::SeqCst);
            let Some(mut layer) = self.faults.try_lock() else { return any };
            self.asked.store(false, Ordering::SeqCst);
            any |= self.inner.receive(&mut |arrived| layer.meet(now(), arrived, take));
            let Layer { faults, drops } = &mut *layer;
            faults.release(now(), |passed| {
                any = true;
                give(&passed, drops, take);
            });
            self.due.store(faults.due().map_or(NO_PACKET_HELD, |due| self.nanos(due)), Ordering::SeqCst);
            drop(layer);
            if !self.asked.load(Ordering::SeqCst) || self.inner.seems_empty() {
                return any;
            }
        }
    }

    /// Nanoseconds from the start to a moment.
    fn nanos(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.start).as_nanos() as u64
    }
}

impl Layer {
    /// A train meets the faults, packet by packet.
    fn meet(&mut self, now: Instant, arrived: &Arrived<'_>, take: &mut dyn FnMut(&Arrived<'_>)) {
        let Layer { faults, drops } = self;
        let Arrived { source, destination, process, ip, handling, congestion_marked, .. } = *arrived;
        let addresses = (source.to_ip(), destination.to_ip());
        for index in 0..arrived.packets() {
            let (headers, payload) = arrived.packet(index);
            let meta = Meta { headers, source, destination, process, ip, handling, congestion_marked };
            let lost = faults.arrive(now, addresses, meta, payload, |passed| give(&passed, drops, take));
            if let Some(reason) = lost {
                drops.add(Some(headers), reason);
            }
        }
    }
}

/// Gives a packet that has passed to the receiver, unless it is damaged.
fn give(passed: &Passed<'_, Meta>, drops: &mut Drops, take: &mut dyn FnMut(&Arrived<'_>)) {
    if passed.corrupted {
        return drops.add(Some(passed.meta.headers), DropReason::BadIcrc);
    }
    let Meta { headers, source, destination, process, mut ip, mut handling, mut congestion_marked } = *passed.meta;
    if passed.marked && Ecn::of_sent(headers.bth.opcode) != Ecn::NotCapable {
        congestion_marked = true;
        handling.traffic_class = Ecn::Experienced.in_class(handling.traffic_class);
        if let Some(ip) = &mut ip {
            ip.set_traffic_class(Ecn::Experienced.in_class(ip.traffic_class()));
        }
    }
    take(&Arrived {
        headers: &headers,
        count: 1,
        mtu: 0,
        payload: passed.bytes,
        source,
        destination,
        process,
        ip,
        handling,
        congestion_marked,
    });
}

impl<L: Link> Link for Faulty<L> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn is_lossless(&self) -> bool {
        false
    }

    fn largest_train(&self) -> usize {
        self.inner.largest_train()
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.inner.descriptor()
    }

    fn send(&self, to: &Destination, train: &mut Train<'_>) -> Result<(), SendError> {
        self.inner.send(to, train)
    }

    fn receive(&self, take: &mut dyn FnMut(&Arrived<'_>)) -> bool {
        self.receive_at(Instant::now, take)
    }

    fn seems_empty(&self) -> bool {
        let is_due = || self.deadline().is_some_and(|due| due <= Instant::now());
        self.inner.seems_empty() && !is_due()
    }

    fn deadline(&self) -> Option<Instant> {
        let held = match self.due.load(Ordering::SeqCst) {
            NO_PACKET_HELD => None,
            nanos => Some(self.start + Duration::from_nanos(nanos)),
        };
        held.into_iter().chain(self.inner.deadline()).min()
    }

    fn take_drops(&self) -> Vec<Dropped> {
        let mut drops = self.inner.take_drops();
        // If another thread receives, that one asks, too.
        if let Some(mut layer) = self.faults.try_lock() {
            drops.append(&mut layer.drops.take());
        }
        drops
    }
}

#[cfg(test)]
mod tests;
