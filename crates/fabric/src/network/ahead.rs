//! Asking for what a region needs when its turn begins: in a large network that lies far away in memory, and a
//! processor that is asked for all of it at once waits once, not for each. Nothing depends on what is seen here.

use super::{Network, plan};
use crate::endpoint::{Endpoint, Live};
use crate::graph::PATH_END;
use crate::packets::{NO_PACKET, Packet};
use link::prefetch;
use std::collections::VecDeque;
use std::mem::offset_of;
use transport::QueuePair;

impl Network {
    /// Four rounds over the plans of the region; each asks for what those before have led to.
    pub(super) fn look_ahead(&self) {
        for what in self.calendar.entered() {
            let number = *what as u32;
            match what & plan::KIND {
                plan::ARRIVE => whole(&self.paths[self.calendar.arriving(number).path as usize]),
                plan::FREE => self.ask_for_port(number),
                plan::TIMER => whole(&self.endpoints[number as usize]),
                _ => {}
            }
        }
        for what in self.calendar.entered() {
            let number = *what as u32;
            match what & plan::KIND {
                plan::ARRIVE => {
                    let packet = self.calendar.arriving(number);
                    match self.paths[packet.path as usize] {
                        PATH_END => whole(&self.endpoints[packet.endpoint as usize]),
                        port => {
                            self.ask_for_port(port);
                            whole(&self.ingress[packet.port as usize]);
                        }
                    }
                }
                plan::FREE => {
                    ends(&self.queues[number as usize]);
                    if let Some(line) = self.line_at(number) {
                        whole(line);
                    }
                }
                plan::TIMER => ask_for_queue_pair(&self.endpoints[number as usize]),
                _ => {}
            }
        }
        for what in self.calendar.entered() {
            let number = *what as u32;
            match what & plan::KIND {
                plan::ARRIVE => {
                    let packet = self.calendar.arriving(number);
                    match self.paths[packet.path as usize] {
                        PATH_END => ask_for_queue_pair(&self.endpoints[packet.endpoint as usize]),
                        port => ends(&self.queues[port as usize]),
                    }
                }
                plan::FREE => {
                    if let Some(packet) = self.queues[number as usize].front() {
                        whole(&self.ingress[packet.port as usize]);
                    }
                    if let Some(endpoint) = self.line_at(number).and_then(VecDeque::front) {
                        whole(&self.endpoints[*endpoint as usize]);
                    }
                }
                _ => {}
            }
        }
        for what in self.calendar.entered().iter().filter(|what| **what & plan::KIND == plan::FREE) {
            if let Some(endpoint) = self.line_at(*what as u32).and_then(VecDeque::front) {
                ask_for_queue_pair(&self.endpoints[*endpoint as usize]);
            }
        }
    }

    #[inline]
    fn ask_for_port(&self, port: u32) {
        whole(&self.ports[port as usize]);
        whole(&self.queues[port as usize]);
    }

    /// The queue pairs in line at a port of a host.
    #[inline]
    fn line_at(&self, port: u32) -> Option<&VecDeque<u32>> {
        let nic = self.ports[port as usize].nic;
        (nic != NO_PACKET).then(|| &self.nics[nic as usize])
    }
}

#[inline]
fn whole<T>(object: &T) {
    prefetch(object, 0..size_of::<T>());
}

/// What leaves a queue next, and where it grows.
#[inline]
fn ends(queue: &VecDeque<Packet>) {
    for packet in [queue.front(), queue.get(2), queue.back()].into_iter().flatten() {
        whole(packet);
    }
}

/// What packets need of a queue pair.
#[inline]
fn ask_for_queue_pair(endpoint: &Endpoint) {
    let Some(live) = &endpoint.live else { return };
    let qp = offset_of!(Live, qp);
    prefetch(&**live, qp + QueuePair::HOT.start..qp + QueuePair::HOT.end);
    prefetch(&**live, offset_of!(Live, pending)..size_of::<Live>());
}
