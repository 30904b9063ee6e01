//! What happens to packets between hosts: cables, queues, marks, pauses, drops.

use super::{Network, picos, plan};
use crate::graph::{PATH_END, reverse};
use crate::packets::{ECN_CAPABLE, FLAG_MARKED, FLAG_OWN, FLAG_URGENT, NO_PACKET, Packet};
use crate::port::PICOS_PER_NANO;
use trace::DropReason;

/// How far below the mark at which a pause was asked for it is taken back: two of the longest packets.
const PAUSE_SPAN: u64 = 2 * 4300;

impl Network {
    /// A packet reaches the end of the cable it is on.
    #[inline]
    pub(super) fn arrive(&mut self, packet: &Packet) {
        if self.has_faults && !self.survives(packet) {
            return;
        }
        let next = self.paths[packet.path as usize];
        if next != PATH_END {
            return self.enqueue(next, packet);
        }
        if self.has_slow_hosts {
            // A slow host has one more queue, to itself.
            let by = packet.port as usize;
            let (from, to) = (self.ports[by].from, self.cables[by].to);
            let service = self.buffers[to as usize].service;
            if service != NO_PACKET && from != to {
                return self.enqueue(service, packet);
            }
        }
        self.deliver(packet);
    }

    /// Whether the cable brings it.
    #[cold]
    fn survives(&mut self, packet: &Packet) -> bool {
        let by = packet.port as usize;
        let lost = self.rng.chance(self.cables[by].loss);
        match self.ports[by].down {
            true => self.lose(packet, DropReason::PortDown),
            false if lost => self.lose(packet, DropReason::RandomLoss),
            false => return true,
        }
        false
    }

    /// A packet goes no further.
    #[cold]
    fn lose(&mut self, packet: &Packet, reason: DropReason) {
        match reason {
            DropReason::PortDown => self.counts.dropped_down += 1,
            DropReason::RandomLoss => self.counts.dropped_lost += 1,
            _ => self.counts.dropped_full += 1,
        }
        self.under_way -= 1;
        if let Some(recorder) = &mut self.world.recorder {
            recorder.lost(self.calendar.now(), packet, reason);
        }
    }

    /// A packet wants to leave by a port.
    pub(super) fn enqueue(&mut self, at: u32, packet: &Packet) {
        let now = self.calendar.now();
        let port = &mut self.ports[at as usize];
        let urgent = packet.flags & FLAG_URGENT != 0;
        if port.down && port.nic == NO_PACKET {
            return self.lose(packet, DropReason::PortDown);
        }
        let idle = !port.awaited && port.queued == 0 && port.urgent == 0 && port.busy_until <= picos(now);
        if idle && (!port.paused || urgent) {
            self.depths.add(0);
            return self.transmit(at, packet);
        }
        if urgent {
            port.urgent += 1;
            self.urgent[at as usize].push_back(*packet);
        } else if let Some(marks) = self.admit(at, packet) {
            self.ports[at as usize].queued += 1;
            let queue = &mut self.queues[at as usize];
            queue.push_back(*packet);
            if marks && let Some(packet) = queue.back_mut() {
                packet.flags |= FLAG_MARKED;
            }
        } else {
            return self.lose(packet, DropReason::Overflow);
        }
        self.kick(at);
    }

    /// The first packet that nothing delays, if there is one.
    #[inline]
    fn take_urgent(&mut self, at: u32) -> Option<Packet> {
        let port = &mut self.ports[at as usize];
        if port.urgent == 0 {
            return None;
        }
        port.urgent -= 1;
        self.urgent[at as usize].pop_front()
    }

    /// The first packet that waits at a port.
    #[inline]
    fn take_queued(&mut self, at: u32) -> Option<Packet> {
        let port = &mut self.ports[at as usize];
        if port.queued == 0 {
            return None;
        }
        port.queued -= 1;
        let queue = &mut self.queues[at as usize];
        let packet = queue.pop_front()?;
        if queue.is_empty() {
            // It begins at its beginning again, in memory that was used before.
            queue.clear();
        }
        self.release(at, &packet);
        Some(packet)
    }

    /// Finds room for a packet, and asks for a pause where that is due. Returns whether to mark it.
    fn admit(&mut self, at: u32, packet: &Packet) -> Option<bool> {
        let switch = &self.scenario.switch;
        let port = &mut self.ports[at as usize];
        let bytes = u64::from(packet.wire());
        let own = packet.flags & FLAG_OWN != 0;
        let buffer = &mut self.buffers[port.from as usize];
        let free = switch.buffer.saturating_sub(buffer.used);
        if !own {
            let fits = match switch.pfc {
                true => buffer.used + bytes <= switch.buffer + buffer.headroom,
                false => u64::from(port.waiting) + bytes <= (free as f64 * switch.alpha) as u64 && bytes <= free,
            };
            if !fits {
                return None;
            }
        }
        self.depths.add(u64::from(port.waiting));
        let marks = packet.flags & ECN_CAPABLE != 0
            && !own
            && switch.ecn.is_some_and(|red| red.marks(u64::from(port.waiting), &mut self.rng));
        self.counts.marked += u64::from(marks && packet.flags & FLAG_MARKED == 0);
        port.waiting += packet.wire();
        port.longest_queue = port.longest_queue.max(port.waiting);
        self.longest_since = self.longest_since.max(u64::from(port.waiting));
        self.queued += bytes;
        if own {
            return Some(marks);
        }
        buffer.used += bytes;
        let (pfc, by) = (switch.pfc, packet.port);
        let mark = (switch.buffer.saturating_sub(buffer.used) as f64 * switch.alpha) as u64;
        let ingress = &mut self.ingress[by as usize];
        ingress.held += bytes;
        if pfc && !ingress.pause_asked && ingress.held > mark {
            ingress.pause_asked = true;
            self.counts.pauses += 1;
            self.plan_back(by, plan::PAUSE);
        }
        Some(marks)
    }

    /// A packet leaves its queue.
    fn release(&mut self, at: u32, packet: &Packet) {
        let (bytes, by) = (u64::from(packet.wire()), packet.port);
        let port = &mut self.ports[at as usize];
        port.waiting -= packet.wire();
        self.queued -= bytes;
        if packet.flags & FLAG_OWN != 0 {
            return;
        }
        let buffer = &mut self.buffers[port.from as usize];
        buffer.used -= bytes;
        let used = buffer.used;
        let ingress = &mut self.ingress[by as usize];
        ingress.held -= bytes;
        if ingress.pause_asked {
            let switch = &self.scenario.switch;
            let mark = (switch.buffer.saturating_sub(used) as f64 * switch.alpha) as u64;
            if ingress.held <= mark.saturating_sub(PAUSE_SPAN) {
                ingress.pause_asked = false;
                self.plan_back(by, plan::RESUME);
            }
        }
    }

    /// The node that a port leads to asks it for something.
    #[cold]
    fn plan_back(&mut self, port: u32, what: u64) {
        let back = reverse(port);
        let at = self.calendar.now() + u64::from(self.ports[back as usize].delay);
        self.calendar.plan_in(self.regions.beyond(back), at, what | u64::from(port));
    }

    /// A port is told to pause, or to go on.
    pub(super) fn pause(&mut self, at: u32, pause: bool) {
        let now = self.calendar.now();
        let port = &mut self.ports[at as usize];
        if port.paused == pause {
            return;
        }
        port.paused = pause;
        if pause {
            self.cables[at as usize].paused_since = now;
            self.paused += 1;
        } else {
            self.counts.paused_nanos += now - self.cables[at as usize].paused_since;
            self.paused -= 1;
            self.kick(at);
        }
    }

    /// There may be something to send at a port.
    pub(super) fn kick(&mut self, at: u32) {
        let port = &mut self.ports[at as usize];
        if port.awaited {
            return;
        }
        if port.busy_until <= picos(self.calendar.now()) {
            return self.pump(at);
        }
        port.awaited = true;
        self.calendar.plan(port.busy_until.div_ceil(PICOS_PER_NANO), plan::FREE | u64::from(at));
    }

    /// A port is free: the next packet, if there is one.
    pub(super) fn pump(&mut self, at: u32) {
        let port = &mut self.ports[at as usize];
        // Whatever happens meanwhile finds the port taken.
        port.awaited = true;
        let paused = port.paused;
        let next = match self.take_urgent(at) {
            None if paused => None,
            None => self.take_queued(at).or_else(|| self.next_of_host(at)),
            urgent => urgent,
        };
        if let Some(packet) = &next {
            self.transmit(at, packet);
        }
        let port = &mut self.ports[at as usize];
        port.awaited = port.urgent > 0
            || !port.paused && (port.queued > 0 || port.nic != NO_PACKET && !self.nics[port.nic as usize].is_empty());
        if port.awaited {
            self.calendar.plan(port.busy_until.div_ceil(PICOS_PER_NANO), plan::FREE | u64::from(at));
        }
    }

    /// Puts a packet onto the cable.
    #[inline]
    fn transmit(&mut self, at: u32, packet: &Packet) {
        let port = &mut self.ports[at as usize];
        let now = picos(self.calendar.now());
        // Wake-ups are rounded up to nanoseconds; the cable knows better.
        let start = if port.busy_until + PICOS_PER_NANO > now { port.busy_until } else { now };
        port.busy_until = start + ((u64::from(packet.wire()) * port.pace) >> 10);
        port.sent_bytes += u64::from(packet.wire());
        let arrives = port.busy_until.div_ceil(PICOS_PER_NANO) + u64::from(port.delay);
        // The queue of a slow host is no port of any way.
        let on = u32::from((at as usize) < self.topology.graph.edges.len());
        self.calendar.send(self.regions.beyond(at), arrives, packet, |packet| {
            packet.port = at;
            packet.path += on;
            packet.flags &= !FLAG_OWN;
        });
    }

    /// Loses everything that waits at a port.
    pub(super) fn flush(&mut self, at: u32) {
        while let Some(packet) = self.take_urgent(at).or_else(|| self.take_queued(at)) {
            self.lose(&packet, DropReason::PortDown);
        }
    }
}
