//! What happens to packets between hosts: cables, queues, marks, pauses, drops.

use super::{Network, picos, plan};
use crate::graph::{END, reverse};
use crate::packets::{ECN_CAPABLE, MARKED, NONE, OWN, URGENT};
use crate::port::PICOS;

/// How far below the mark at which a pause was asked for it is taken back: two of the longest packets.
const PAUSE_SPAN: u64 = 2 * 4300;

impl Network {
    /// A packet reaches the end of the cable it is on.
    #[inline]
    pub(super) fn arrive(&mut self, number: u32) {
        if self.has_faults && !self.survives(number) {
            return;
        }
        let packet = &mut self.packets.all[number as usize];
        let next = self.paths[packet.path as usize];
        if next != END {
            packet.path += 1;
            return self.enqueue(next, number);
        }
        if self.has_slow_hosts {
            // A slow host has one more queue, to itself.
            let by = packet.port as usize;
            let (from, to) = (self.ports[by].from, self.cables[by].to);
            let service = self.buffers[to as usize].service;
            if service != NONE && from != to {
                return self.enqueue(service, number);
            }
        }
        self.deliver(number);
    }

    /// Whether the cable brings it.
    #[cold]
    fn survives(&mut self, number: u32) -> bool {
        let by = self.packets.all[number as usize].port as usize;
        let lost = self.rng.chance(self.cables[by].loss);
        match self.ports[by].down {
            true => self.counts.dropped_down += 1,
            false if lost => self.counts.dropped_lost += 1,
            false => return true,
        }
        self.packets.remove(number);
        false
    }

    /// A packet wants to leave by a port.
    pub(super) fn enqueue(&mut self, at: u32, number: u32) {
        let now = self.calendar.now();
        let port = &mut self.ports[at as usize];
        let packet = &self.packets.all[number as usize];
        let urgent = packet.flags & URGENT != 0;
        if port.down && port.nic == NONE {
            self.counts.dropped_down += 1;
            return self.packets.remove(number);
        }
        let idle = !port.awaited && port.queue.is_empty() && port.urgent.is_empty() && port.busy_until <= picos(now);
        if idle && (!port.paused || urgent) {
            self.depths.add(0);
            return self.transmit(at, number);
        }
        if urgent {
            port.urgent.push(number, &mut self.packets.all);
        } else if self.admit(at, number) {
            self.ports[at as usize].queue.push(number, &mut self.packets.all);
        } else {
            self.counts.dropped_full += 1;
            return self.packets.remove(number);
        }
        self.kick(at);
    }

    /// Finds room for a packet, marks it, and asks for a pause where that is due.
    fn admit(&mut self, at: u32, number: u32) -> bool {
        let switch = &self.scenario.switch;
        let port = &mut self.ports[at as usize];
        let packet = &mut self.packets.all[number as usize];
        let bytes = u64::from(packet.wire());
        let own = packet.flags & OWN != 0;
        let buffer = &mut self.buffers[port.from as usize];
        let free = switch.buffer.saturating_sub(buffer.used);
        if !own {
            let fits = match switch.pfc {
                true => buffer.used + bytes <= switch.buffer + buffer.headroom,
                false => u64::from(port.waiting) + bytes <= (free as f64 * switch.alpha) as u64 && bytes <= free,
            };
            if !fits {
                return false;
            }
        }
        self.depths.add(u64::from(port.waiting));
        if let Some(red) = &switch.ecn
            && packet.flags & ECN_CAPABLE != 0
            && !own
            && red.marks(u64::from(port.waiting), &mut self.rng)
        {
            self.counts.marked += u64::from(packet.flags & MARKED == 0);
            packet.flags |= MARKED;
        }
        port.waiting += packet.wire();
        port.longest_queue = port.longest_queue.max(port.waiting);
        self.longest_since = self.longest_since.max(u64::from(port.waiting));
        self.queued += bytes;
        if own {
            return true;
        }
        buffer.used += bytes;
        let (pfc, by) = (switch.pfc, packet.port);
        let mark = (switch.buffer.saturating_sub(buffer.used) as f64 * switch.alpha) as u64;
        let ingress = &mut self.ingress[by as usize];
        ingress.held += bytes;
        if pfc && !ingress.pause_asked && ingress.held > mark {
            ingress.pause_asked = true;
            self.counts.pauses += 1;
            let back = &self.ports[reverse(by) as usize];
            self.calendar.plan(self.calendar.now() + u64::from(back.delay), plan::PAUSE | u64::from(by));
        }
        true
    }

    /// A packet leaves its queue.
    fn release(&mut self, at: u32, number: u32) {
        let packet = &self.packets.all[number as usize];
        let (bytes, by) = (u64::from(packet.wire()), packet.port);
        let port = &mut self.ports[at as usize];
        port.waiting -= packet.wire();
        self.queued -= bytes;
        if packet.flags & OWN != 0 {
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
                let back = &self.ports[reverse(by) as usize];
                self.calendar.plan(self.calendar.now() + u64::from(back.delay), plan::RESUME | u64::from(by));
            }
        }
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
        self.calendar.plan(port.busy_until.div_ceil(PICOS), plan::FREE | u64::from(at));
    }

    /// A port is free: the next packet, if there is one.
    pub(super) fn pump(&mut self, at: u32) {
        let port = &mut self.ports[at as usize];
        // Whatever happens meanwhile finds the port taken.
        port.awaited = true;
        let next = if let Some(number) = port.urgent.pop(&self.packets.all) {
            Some(number)
        } else if port.paused {
            None
        } else if let Some(number) = port.queue.pop(&self.packets.all) {
            self.release(at, number);
            Some(number)
        } else {
            self.next_of_host(at)
        };
        if let Some(number) = next {
            self.transmit(at, number);
        }
        let port = &mut self.ports[at as usize];
        port.awaited = !port.urgent.is_empty()
            || !port.paused && (!port.queue.is_empty() || port.nic != NONE && !self.nics[port.nic as usize].is_empty());
        if port.awaited {
            self.calendar.plan(port.busy_until.div_ceil(PICOS), plan::FREE | u64::from(at));
        }
    }

    /// Puts a packet onto the cable.
    #[inline]
    fn transmit(&mut self, at: u32, number: u32) {
        let port = &mut self.ports[at as usize];
        let packet = &mut self.packets.all[number as usize];
        let now = picos(self.calendar.now());
        // Wake-ups are rounded up to nanoseconds; the cable knows better.
        let start = if port.busy_until + PICOS > now { port.busy_until } else { now };
        port.busy_until = start + ((u64::from(packet.wire()) * port.pace) >> 10);
        port.sent_bytes += u64::from(packet.wire());
        packet.port = at;
        packet.flags &= !OWN;
        let at = port.busy_until.div_ceil(PICOS) + u64::from(port.delay);
        self.calendar.plan(at, plan::ARRIVE | u64::from(number));
    }

    /// Loses everything that waits at a port.
    pub(super) fn flush(&mut self, at: u32) {
        while let Some(number) = self.ports[at as usize].urgent.pop(&self.packets.all) {
            self.counts.dropped_down += 1;
            self.packets.remove(number);
        }
        while let Some(number) = self.ports[at as usize].queue.pop(&self.packets.all) {
            self.release(at, number);
            self.counts.dropped_down += 1;
            self.packets.remove(number);
        }
    }
}
