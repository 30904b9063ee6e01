//! Packets that are held back until the counter of their sender's identifications is proven: see
//! [`identification`](super::identification). Few, and not for long: a sender that is not understood by then will send
//! again what matters.

use super::envelope::Envelope;
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// So many are held back, of all senders.
const MAX_HELD_PACKETS: usize = 64;

/// A packet is held back no longer than this.
const HOLD_TIMEOUT: Duration = Duration::from_secs(2);

/// Packets that are held back, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Unproven(VecDeque<HeldBack>);

/// A packet that fits an identification which was not predicted.
#[derive(Debug)]
pub(super) struct HeldBack {
    pub envelope: Envelope,
    pub identification: u16,
    /// From the BTH to the end of the ICRC.
    pub bytes: Box<[u8]>,
    source: Ipv4Addr,
    since: Instant,
}

impl Unproven {
    /// When the oldest is given up.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.front().map(|held| held.since + HOLD_TIMEOUT)
    }

    /// Takes out those that are given up because their time is over.
    #[cold]
    pub fn give_up(&mut self, now: Instant) -> Vec<HeldBack> {
        let late = self.0.iter().take_while(|held| held.since + HOLD_TIMEOUT <= now).count();
        self.0.drain(..late).collect()
    }

    /// Holds a packet back. Returns those that are given up for it.
    pub fn hold(&mut self, envelope: &Envelope, source: Ipv4Addr, identification: u16, bytes: &[u8]) -> Vec<HeldBack> {
        let now = Instant::now();
        let mut given_up = self.give_up(now);
        if self.0.len() == MAX_HELD_PACKETS {
            given_up.extend(self.0.pop_front());
        }
        self.0.push_back(HeldBack { envelope: *envelope, identification, bytes: bytes.into(), source, since: now });
        given_up
    }

    /// Takes out those of a sender from one identification to another: they are proven.
    pub fn release(&mut self, source: Ipv4Addr, first: u16, last: u16) -> Vec<HeldBack> {
        let length = last.wrapping_sub(first);
        let (proven, kept) = std::mem::take(&mut self.0).into_iter().partition::<VecDeque<_>, _>(|held| {
            held.source == source && held.identification.wrapping_sub(first) <= length
        });
        self.0 = kept;
        proven.into()
    }
}
