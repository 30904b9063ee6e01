//! What will happen, and when. A network is divided into regions, and what happens in one reaches another only after
//! the delay of a cable. So the calendar goes through time in windows no longer than the shortest delay, and in each
//! window through the regions one after the other: what a region needs stays in the processor's caches while it has its
//! turn, however many regions there are.
//!
//! In the window at hand a region has a wheel of one nanosecond a slot; what comes later waits in lists by epoch (a
//! span of a window's length) and region, and in a heap if it is far away. Packets on cables are in such lists as a
//! whole, so that they are read as they were written, one after the other. Within a region plans come in order of time;
//! those for one moment as they were planned, except that plans from the lists come before those made in the window,
//! and plans before packets. Plans about the whole network come when all regions have come so far, before anything of
//! that moment.

use crate::packets::{Packet, Packets};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The longest window, in nanoseconds: where there is one region no delay bounds it.
const MAX_WINDOW_NANOS: u64 = 4096;
/// Epochs that have lists.
const EPOCH_COUNT: u64 = 8;
/// In lists the place in the epoch stands above the plan.
const PLACE_SHIFT: u32 = 48;
const PLAN_MASK: u64 = (1 << PLACE_SHIFT) - 1;
/// What is far away is a packet.
const PARCEL_BIT: u64 = 1 << 63;

/// Plans of up to 48 bits.
#[derive(Debug)]
pub(crate) struct Calendar {
    now: u64,
    /// The latest moment of any region.
    latest: u64,
    /// Where the next window begins: everything before it is over, or in the window at hand.
    end: u64,
    /// The end of the window at hand; 0 between windows.
    open_until: u64,
    windows: u64,
    turns: u64,
    regions: usize,
    /// The region whose events the simulator plays now.
    region: usize,
    /// A nanosecond each, of the epoch at hand.
    slots: Vec<Vec<u64>>,
    /// A bit for each slot that has something.
    occupied: [u64; MAX_WINDOW_NANOS as usize / 64],
    /// The slot at hand, how far it has been taken, and how many plans all slots have.
    slot: usize,
    taken: usize,
    left: usize,
    /// Epochs have two to the power of so many nanoseconds.
    shift: u32,
    /// Lists by epoch and region, and how many plans each epoch has in them.
    lists: Vec<Vec<u64>>,
    listed: [usize; EPOCH_COUNT as usize],
    /// Packets by epoch and region: `place` is the one in the epoch.
    parcels: Vec<Vec<Packet>>,
    /// What is far away: moment, order, region, and plan or packet.
    far: BinaryHeap<Reverse<(u64, u64, u32, u64)>>,
    far_packets: Packets,
    /// Which list is the one of the region and the epoch at hand.
    at_hand: usize,
    /// What the region at hand began its turn with.
    entered: Vec<u64>,
    common: BinaryHeap<Reverse<(u64, u64, u64)>>,
    order: u64,
}

impl Calendar {
    /// For so many regions, of which none learns from another in less than `delay` nanoseconds.
    pub fn new(regions: usize, delay: u64) -> Calendar {
        let regions = regions.max(1);
        let longest = if regions == 1 { MAX_WINDOW_NANOS } else { delay.clamp(1, MAX_WINDOW_NANOS) };
        let shift = longest.ilog2();
        Calendar {
            now: 0,
            latest: 0,
            end: 0,
            open_until: 0,
            windows: 0,
            turns: 0,
            entered: Vec::new(),
            regions,
            region: 0,
            slots: (0..1 << shift).map(|_| Vec::new()).collect(),
            occupied: [0; _],
            slot: 0,
            taken: 0,
            left: 0,
            shift,
            lists: (0..EPOCH_COUNT as usize * regions).map(|_| Vec::new()).collect(),
            listed: [0; _],
            parcels: (0..EPOCH_COUNT as usize * regions).map(|_| Vec::new()).collect(),
            far_packets: Packets::default(),
            at_hand: 0,
            far: BinaryHeap::new(),
            common: BinaryHeap::new(),
            order: 0,
        }
    }

    /// The moment of the last plan taken, in nanoseconds.
    #[inline]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// How many windows there have been: when this changes, all regions have come equally far.
    #[inline]
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// How often a region has begun its turn.
    #[inline]
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// The plans with which the region began its turn.
    pub fn entered(&self) -> &[u64] {
        &self.entered
    }

    /// A packet that will arrive in this turn.
    pub fn arriving(&self, number: u32) -> &Packet {
        &self.parcels[self.at_hand][number as usize]
    }

    /// The last moment to which all regions must go on until they have come equally far; one region alone need not.
    pub fn even_at(&self) -> Option<u64> {
        (self.regions > 1 && self.end > 0).then(|| self.end - 1)
    }

    /// Whether nothing is planned.
    pub fn is_empty(&self) -> bool {
        self.left == 0 && self.listed == [0; _] && self.far.is_empty() && self.common.is_empty()
    }

    /// Plans something in the region that has its turn; what is past happens now.
    #[inline]
    pub fn plan(&mut self, at: u64, what: u64) {
        let at = at.max(self.now);
        if at < self.open_until {
            let slot = self.slot_of(at);
            self.slots[slot].push(what);
            self.occupied[slot / 64] |= 1 << (slot % 64);
            self.left += 1;
        } else {
            self.list(self.region, at, what);
        }
    }

    /// Plans something in any region. In one that the simulator does not play now, it is not before the window is over.
    #[inline]
    pub fn plan_in(&mut self, region: usize, at: u64, what: u64) {
        if region == self.region {
            return self.plan(at, what);
        }
        debug_assert!(at >= self.end, "{at} ns in another region is before the end of the window, {} ns", self.end);
        self.list(region, at, what);
    }

    /// A packet reaches a region at that moment. One that the simulator does not play now is reached no sooner than the
    /// window is over.
    /// Its plan is its number for [`arriving`](Calendar::arriving).
    #[inline]
    pub fn send(&mut self, region: usize, at: u64, packet: &Packet, change: impl FnOnce(&mut Packet)) {
        let at = if self.open_until == 0 { at.max(self.end) } else { at };
        let epoch = at >> self.shift;
        if at < self.open_until {
            debug_assert!(region == self.region, "{at} ns in another region, before {} ns", self.open_until);
            let parcels = &mut self.parcels[self.at_hand];
            parcels.push(*packet);
            let number = parcels.len() - 1;
            change(&mut parcels[number]);
            parcels[number].place = (at & ((1 << self.shift) - 1)) as u32;
            self.plan(at, number as u64);
        } else if epoch - (self.end >> self.shift) < EPOCH_COUNT - 1 {
            self.send_near(region, epoch, at, packet, change);
        } else {
            let mut packet = *packet;
            change(&mut packet);
            self.order += 1;
            let number = self.far_packets.add(packet);
            self.far.push(Reverse((at, self.order, region as u32, PARCEL_BIT | u64::from(number))));
        }
    }

    /// Copies first and changes then: a processor forwards what was stored whole, not what was stored in parts.
    #[inline]
    fn send_near(&mut self, region: usize, epoch: u64, at: u64, packet: &Packet, change: impl FnOnce(&mut Packet)) {
        let ring = (epoch % EPOCH_COUNT) as usize;
        let place = self.slot_of(at) as u32;
        let parcels = &mut self.parcels[ring * self.regions + region];
        parcels.push(*packet);
        if let Some(packet) = parcels.last_mut() {
            packet.place = place;
            change(packet);
        }
        self.listed[ring] += 1;
    }

    /// Between windows: the region has its turn, and what is planned is planned there.
    pub fn turn_to(&mut self, region: usize) {
        debug_assert!(self.open_until == 0);
        self.region = region;
    }

    /// Plans something about all regions. Only what is about all of them may do so.
    pub fn plan_for_all(&mut self, at: u64, what: u64) {
        self.order += 1;
        self.common.push(Reverse((at.max(self.end), self.order, what)));
    }

    /// Writes down what is after the window.
    #[inline]
    fn list(&mut self, region: usize, at: u64, what: u64) {
        let at = at.max(self.end);
        let epoch = at >> self.shift;
        if epoch - (self.end >> self.shift) < EPOCH_COUNT - 1 {
            self.list_near(region, epoch, at, what);
        } else {
            self.order += 1;
            self.far.push(Reverse((at, self.order, region as u32, what)));
        }
    }

    #[inline]
    fn list_near(&mut self, region: usize, epoch: u64, at: u64, what: u64) {
        debug_assert!(what <= PLAN_MASK);
        let ring = (epoch % EPOCH_COUNT) as usize;
        let entry = (self.slot_of(at) as u64) << PLACE_SHIFT | what;
        self.lists[ring * self.regions + region].push(entry);
        self.listed[ring] += 1;
    }

    /// The place of a moment in its epoch.
    #[inline]
    fn slot_of(&self, at: u64) -> usize {
        (at & ((1 << self.shift) - 1)) as usize
    }

    /// Takes the next plan, if its moment is not after `until`.
    #[inline]
    pub fn next(&mut self, until: u64) -> Option<u64> {
        loop {
            if self.left > 0 {
                if let Some(&what) = self.slots[self.slot].get(self.taken) {
                    self.taken += 1;
                    self.left -= 1;
                    return Some(what);
                }
                self.leave_slot();
                self.slot = self.next_slot();
                self.now = (self.open_until - 1) >> self.shift << self.shift | self.slot as u64;
                continue;
            }
            if self.open_until > 0 {
                self.leave_slot();
                self.leave_region();
                self.latest = self.latest.max(self.now);
                if self.enter_next_region() {
                    continue;
                }
                self.open_until = 0;
                self.now = self.latest;
            }
            if let Some(what) = self.open(until)? {
                return Some(what);
            }
        }
    }

    fn leave_slot(&mut self) {
        if self.taken > 0 {
            self.slots[self.slot].clear();
            self.occupied[self.slot / 64] &= !(1 << (self.slot % 64));
            self.taken = 0;
        }
    }

    /// The first slot in use, from the one at hand on.
    #[inline]
    fn next_slot(&self) -> usize {
        let (mut word, bit) = (self.slot / 64, self.slot % 64);
        let mut bits = self.occupied[word] & (u64::MAX << bit);
        while bits == 0 && word + 1 < self.occupied.len() {
            word += 1;
            bits = self.occupied[word];
        }
        word * 64 + bits.trailing_zeros() as usize % 64
    }

    /// The turn of the region is over: packets that have arrived go.
    fn leave_region(&mut self) {
        let last = (self.open_until - 1) as usize & (self.slots.len() - 1);
        let parcels = &mut self.parcels[self.at_hand];
        if last == self.slots.len() - 1 {
            parcels.clear();
        } else {
            parcels.retain(|packet| packet.place as usize > last);
        }
    }

    /// The next region of this window that has something to do has its turn.
    fn enter_next_region(&mut self) -> bool {
        while self.region + 1 < self.regions {
            self.region += 1;
            if self.enter() {
                return true;
            }
        }
        false
    }

    /// Puts what the region has for this window into slots. Returns whether there is anything.
    fn enter(&mut self) -> bool {
        let epoch = (self.open_until - 1) >> self.shift;
        let ring = (epoch % EPOCH_COUNT) as usize;
        self.at_hand = ring * self.regions + self.region;
        let (list, parcels) = (&mut self.lists[self.at_hand], &self.parcels[self.at_hand]);
        if list.is_empty() && parcels.is_empty() {
            return false;
        }
        let last = (self.open_until - 1) as usize & (self.slots.len() - 1);
        self.entered.clear();
        self.turns += 1;
        let (mut least, mut taken) = (self.slots.len(), 0);
        let mut put = |slot: usize, what: u64| {
            self.slots[slot].push(what);
            self.occupied[slot / 64] |= 1 << (slot % 64);
            self.entered.push(what);
            least = least.min(slot);
            taken += 1;
        };
        list.retain(|entry| {
            let slot = (entry >> PLACE_SHIFT) as usize;
            if slot <= last {
                put(slot, entry & PLAN_MASK);
            }
            slot > last
        });
        for (number, packet) in (0..).zip(parcels) {
            if packet.place as usize <= last {
                put(packet.place as usize, number);
            }
        }
        self.left = taken;
        self.listed[ring] -= taken;
        self.slot = least;
        self.now = epoch << self.shift | least as u64;
        taken > 0
    }

    /// Opens the next window, and returns nothing; or returns what comes before it, about all regions. Outside, nothing
    /// means that nothing is left up to that moment.
    #[inline(never)]
    fn open(&mut self, until: u64) -> Option<Option<u64>> {
        loop {
            let epoch = self.end >> self.shift;
            while let Some(&Reverse((at, _, region, what))) = self.far.peek()
                && at >> self.shift <= epoch
            {
                self.far.pop();
                if what & PARCEL_BIT == 0 {
                    self.list_near(region as usize, epoch, at, what);
                } else {
                    let packet = self.far_packets.take(what as u32);
                    self.send_near(region as usize, epoch, at, &packet, |_| {});
                }
            }
            let common = self.common.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            let begin = if self.listed[(epoch % EPOCH_COUNT) as usize] > 0 {
                self.end
            } else {
                let near = (1..EPOCH_COUNT).find(|ahead| self.listed[((epoch + ahead) % EPOCH_COUNT) as usize] > 0);
                let far = self.far.peek().map(|Reverse((at, ..))| at >> self.shift);
                let next = near.map_or(u64::MAX, |ahead| epoch + ahead).min(far.unwrap_or(u64::MAX));
                if next == u64::MAX { u64::MAX } else { next << self.shift }
            };
            if common <= begin {
                if common > until || common == u64::MAX {
                    return None;
                }
                self.end = common;
                (self.now, self.latest) = (common, common);
                return self.common.pop().map(|Reverse((.., what))| Some(what));
            }
            if begin > until {
                return None;
            }
            if begin > self.end {
                self.end = begin;
                continue;
            }
            let epoch_ends = (epoch + 1) << self.shift;
            self.end = epoch_ends.min(common).min(until.saturating_add(1));
            self.open_until = self.end;
            self.windows += 1;
            self.region = 0;
            if self.enter() || self.enter_next_region() {
                return Some(None);
            }
            // It was cut short, and what the epoch has comes later.
            self.open_until = 0;
        }
    }
}

#[cfg(test)]
mod tests;
