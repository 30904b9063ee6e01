//! The owner's side: what other processes pass on to this one, as the threads that drive the NIC take it.

use super::connections::{Collected, ConnectionService, Connections};
use super::message;
use crate::arrival::Arrival;
use crate::family::{Family, Scope};
use crate::slots::{Registry, Slots};
use crate::thread::Shield;
use std::io;
use std::sync::Arc;

/// What other processes forward to this one. Connections of our own user are served here; those of others are by a
/// thread that nothing waits for ([`callers`](crate::callers)), and here only their packets are taken.
#[derive(Debug)]
pub struct Inbox {
    registry: Arc<Registry>,
    connections: Connections,
}

impl Inbox {
    /// The inbox of the process that has these slots; there should be one.
    pub fn new(slots: &Slots) -> Inbox {
        Inbox { registry: slots.registry().clone(), connections: Connections::new() }
    }

    /// What came in so far.
    pub fn collected(&self) -> Collected {
        self.connections.collected()
    }

    /// The sockets that this process could not bind, because another user has them: for those that user forwards.
    pub fn rely_on_others_for(&mut self, sides: Vec<(Family, Scope)>) {
        self.registry.callers().rely_on_others_for(sides);
    }

    /// Takes what has come in, without waiting, and gives it on; for callers that have no
    /// `link::udp::attachment::Attachment`. True if there may be more.
    pub fn receive(&mut self, mut take: impl FnMut(&Arrival<'_>)) -> io::Result<bool> {
        let mut keys = [0; 32];
        let registry = self.registry.clone();
        let ready = registry.ready(&mut keys)?;
        for key in ready {
            self.serve(*key, &mut take);
        }
        Ok(!ready.is_empty())
    }

    /// Serves a descriptor of the set that is ready, if it is the inbox's. True if another user's process that
    /// forwarded to us has gone.
    pub fn serve(&mut self, key: u64, take: &mut impl FnMut(&Arrival<'_>)) -> bool {
        let _shield = Shield::up();
        let Inbox { registry, connections } = self;
        let place = ConnectionService { registry, set: registry.set() };
        if key != Registry::CALLERS_KEY {
            return connections.serve(place, key, take);
        }
        let news = registry.callers().take_news();
        if news.room {
            connections.make_room(place, None, take);
        }
        for caller in news.callers {
            connections.admit(place, caller, take);
        }
        for bytes in news.messages {
            message::read(&bytes, &mut *take);
        }
        connections.add(&news.collected);
        news.gone
    }
}
