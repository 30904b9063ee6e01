//! Looking at what will be needed in the next nanoseconds, before it is: in a large network every event is about other
//! packets, ports and queue pairs than the one before, and a processor that is told early waits for many of them at
//! once. Nothing depends on what is seen here.

use super::{Network, plan};
use crate::graph::END;
use crate::packets::NONE;
use std::hint::black_box;

/// So many nanoseconds ahead packets and ports are looked at; then where packets go; then who waits there.
const THINGS: u64 = 24;
const PLACES: u64 = 12;
const QUEUES: u64 = 5;

/// A network of fewer ports lies in the processor's caches anyway.
const LARGE: usize = 1_000;

/// How far has been looked.
pub(super) struct Ahead {
    /// The next moment at which to look.
    due: u64,
    things: u64,
    places: u64,
    queues: u64,
}

impl Ahead {
    pub fn new(ports: usize) -> Ahead {
        Ahead { due: if ports < LARGE { u64::MAX } else { 0 }, things: 0, places: 0, queues: 0 }
    }

    #[inline]
    pub fn is_due(&self, now: u64) -> bool {
        now >= self.due
    }
}

impl Network {
    pub(super) fn look_ahead(&mut self) {
        let now = self.calendar.now();
        for what in self.calendar.between(self.ahead.things.max(now) + 1, now + THINGS) {
            let number = what as u32 as usize;
            match what & plan::KIND {
                plan::ARRIVE => black_box(self.packets.all[number].path),
                plan::FREE => black_box(self.ports[number].from),
                _ => 0,
            };
        }
        for what in self.calendar.between(self.ahead.places.max(now) + 1, now + PLACES) {
            let number = what as u32 as usize;
            match what & plan::KIND {
                plan::ARRIVE => {
                    let packet = &self.packets.all[number];
                    match self.paths[packet.path as usize] {
                        END => black_box(self.endpoints[packet.endpoint as usize].host),
                        port => black_box(self.ports[port as usize].from),
                    }
                }
                plan::FREE => {
                    let port = &self.ports[number];
                    match (port.queue.ends(), port.nic) {
                        ((NONE, _), NONE) => 0,
                        ((NONE, _), nic) => black_box(self.nics[nic as usize].len() as u32),
                        ((first, _), _) => black_box(self.packets.all[first as usize].path),
                    }
                }
                _ => 0,
            };
        }
        for what in self.calendar.between(self.ahead.queues.max(now) + 1, now + QUEUES) {
            let number = what as u32 as usize;
            match what & plan::KIND {
                plan::ARRIVE => {
                    let packet = &self.packets.all[number];
                    match self.paths[packet.path as usize] {
                        END => {
                            let endpoint = &self.endpoints[packet.endpoint as usize];
                            black_box(endpoint.live.as_ref().is_some_and(|live| live.qp.may_transmit()));
                        }
                        port => {
                            let (_, last) = self.ports[port as usize].queue.ends();
                            if last != NONE {
                                black_box(self.packets.all[last as usize].next);
                            }
                        }
                    }
                }
                plan::FREE => {
                    let port = &self.ports[number];
                    if let (NONE, _) = port.queue.ends()
                        && port.nic != NONE
                        && let Some(endpoint) = self.nics[port.nic as usize].front()
                    {
                        let endpoint = &self.endpoints[*endpoint as usize];
                        black_box(endpoint.live.as_ref().map_or(0, |live| live.pending.len()));
                    }
                }
                _ => {}
            }
        }
        self.ahead = Ahead { due: now + 1, things: now + THINGS, places: now + PLACES, queues: now + QUEUES };
    }
}
