//! What members of a group agree on before they meet.

use crate::topology::{FNV_OFFSET, fnv};
use std::time::Duration;

/// Receives beyond the credits, for what needs none.
pub(crate) const SPARE_RECEIVES: u32 = 4;

/// How messages are buffered, and how long members wait. Members must agree on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// Payload of a message.
    pub slot: usize,
    /// How many messages a neighbour may have sent that were not looked at.
    pub receives: u32,
    pub sharing: Sharing,
    pub on_demand: bool,
    pub deadline: Duration,
}

/// Where receives come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Sharing {
    /// Each connection has its own while there are few, and all share one queue where there are more than sixteen.
    #[default]
    Auto,
    /// Each connection has its own.
    Own,
    /// All connections of a member take from one shared receive queue of so many messages.
    Shared(u32),
}

/// Connections that a member has before it shares receives.
const CONNECTIONS_WITH_OWN: u32 = 16;

impl Settings {
    /// How many receives connections share, if they do.
    pub fn shares(&self, connections: u32) -> Option<u32> {
        // As many as sixteen connections have, however many there are: that is what sharing is for.
        let enough = || self.receives * CONNECTIONS_WITH_OWN;
        match self.sharing {
            Sharing::Shared(receives) => Some(receives),
            Sharing::Auto if connections > CONNECTIONS_WITH_OWN || self.on_demand => Some(enough()),
            _ => None,
        }
    }

    pub fn digest(&self) -> u64 {
        let mut digest = fnv(FNV_OFFSET, &(self.slot as u64).to_le_bytes());
        digest = fnv(digest, &self.receives.to_le_bytes());
        fnv(digest, &[u8::from(self.on_demand)])
    }
}
