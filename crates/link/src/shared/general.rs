//! Shared memory as every other link is used: trains to whichever process has the queue pair, trains from all of them.
//! The NIC receives this way where faults are to strike, and otherwise has a faster way beside each half:
//!
//! - `send`: the NIC writes to the ring of its peer, which it keeps, and looks for room before it takes a train from
//!   the queue pair: so a full ring loses nothing.
//! - `receive`: the NIC takes a run for one queue pair under one lock, and shows the polling thread what completed.
//!
//! What that gains: `ubiverbs bench`, round trip of SEND beside TCP (2 processors, build with checks), the fast ways
//! against this one with a plan of faults that never strikes: 8 B 0.52 to 0.89, 64 KiB 0.75 to 1.72. Part of the
//! difference is the copy that the faults make.
//!
//! [`Exchange::serve`] must be called now and then: it brings links up. Nothing rings [`descriptor`](Link::descriptor)
//! before [`Doorbell::prepare_sleep`](super::Doorbell::prepare_sleep) was called for the engine.

use super::exchange::Exchange;
use super::link::{Inbound, Reading, State};
use super::ring::{Broken, Front, MAX_PAYLOAD_BYTES, Unwritten};
use super::word::Sleeper;
use crate::carrier::{Arrived, Destination, Link, SendError, Train};
use crate::dropped::Dropped;
use host::slots::Slot;
use std::os::fd::RawFd;
use std::sync::Arc;
use trace::DropReason;
use wire::refuse_if;

/// Trains taken from one ring before the others are looked at.
const TRAINS_PER_TURN: u32 = 64;

impl Link for Exchange {
    fn name(&self) -> &'static str {
        "shared memory"
    }

    /// A writer that finds a ring full is told so; what is in a ring is read.
    fn is_lossless(&self) -> bool {
        true
    }

    fn largest_train(&self) -> usize {
        MAX_PAYLOAD_BYTES
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.doorbell().fd(Sleeper::Engine))
    }

    fn send(&self, to: &Destination, train: &mut Train<'_>) -> Result<(), SendError> {
        if train.length > MAX_PAYLOAD_BYTES {
            return Err(SendError::TooLong { length: train.length, largest: MAX_PAYLOAD_BYTES });
        }
        let slot = Slot::of(train.headers.bth.dest_qpn).ok_or(SendError::NoWay)?;
        let outbound = self.reach(slot, to.from.value()).ok_or(SendError::NoWay)?;
        let Some(mut writer) = outbound.writer() else {
            return Err(if outbound.state() == State::Connecting { SendError::Full } else { SendError::NoWay });
        };
        refuse_if!(!writer.has_room(), SendError::Full);
        let fill = |out: &mut [u8]| (train.fill)(0, out);
        let addresses = (to.source, to.destination);
        writer.handle_as(to.handling());
        writer.push(addresses, train.headers, (train.count, train.mtu), train.length, fill).map_err(|unwritten| {
            match unwritten {
                Unwritten::Payload(gone) => SendError::Payload(gone),
                Unwritten::NoRecord => SendError::TooLong { length: train.length, largest: MAX_PAYLOAD_BYTES },
            }
        })?;
        drop(writer);
        outbound.ring(true);
        Ok(())
    }

    fn receive(&self, take: &mut dyn FnMut(&Arrived<'_>)) -> bool {
        let mut any = false;
        let mut broken: Option<Arc<Inbound>> = None;
        self.each_with_something(None, false, |inbound| {
            let Some(mut reading) = inbound.reader() else { return };
            match self.take_turn(&mut reading, take) {
                Ok(taken) => any |= taken > 0,
                Err(Broken) => broken = Some(Arc::clone(inbound)),
            }
        });
        if let Some(inbound) = broken {
            self.drop_inbound(&inbound);
        }
        any
    }

    fn seems_empty(&self) -> bool {
        !self.has_something()
    }

    fn take_drops(&self) -> Vec<Dropped> {
        self.drops.lock().take()
    }
}

impl Exchange {
    fn take_turn(&self, reading: &mut Reading<'_>, take: &mut dyn FnMut(&Arrived<'_>)) -> Result<u32, Broken> {
        let mut taken = 0;
        while taken < TRAINS_PER_TURN && reading.front()?.is_some() {
            match reading.train_and_payload() {
                // Was written before faults began: they strike packets, and this is none. The next ones have bytes.
                Some((front, _)) if front.is_named => {
                    self.drops.lock().add(Some(front.headers), DropReason::NamedPayload);
                    reading.pause_names();
                }
                Some((front, payload)) => {
                    if let Some(acknowledgement) = front.acknowledgement() {
                        take(&arrived(reading.writer(), &acknowledgement, &[]));
                    }
                    take(&arrived(reading.writer(), front, payload));
                }
                None => {}
            }
            reading.consume();
            taken += 1;
            if reading.should_tell() {
                reading.tell(false);
            }
        }
        // The writer need not know yet, unless much was read. A look that finds nothing tells it.
        if taken == 0 || reading.has_much_to_tell() {
            reading.tell(taken < TRAINS_PER_TURN);
        }
        Ok(taken)
    }
}

fn arrived<'a>(writer: i32, front: &'a Front, payload: &'a [u8]) -> Arrived<'a> {
    let (source, destination) = front.addresses;
    let Front { headers, count, mtu, .. } = front;
    Arrived {
        headers,
        count: *count,
        mtu: *mtu,
        payload,
        source,
        destination,
        process: Some(writer),
        ip: None,
        handling: front.handling,
        congestion_marked: false,
    }
}
