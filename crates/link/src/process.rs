//! The link inside a process: the [queue](crate::local) of whole trains, as every other link is used.

use crate::carrier::{Arrived, Destination, Handling, Link, SendError, Train};
use crate::local::Queue;
use std::os::fd::RawFd;
use wire::Gid;

/// The link inside a process. It has no bound: what lies in it was sent by the threads that empty it.
#[derive(Debug, Default)]
pub struct Process {
    queue: Queue<Address>,
}

/// What the queue keeps of a train beside what it knows itself.
#[derive(Clone, Copy, Debug)]
struct Address {
    source: Gid,
    destination: Gid,
    handling: Handling,
    mtu: u32,
}

impl Link for Process {
    fn name(&self) -> &'static str {
        "inside the process"
    }

    fn is_lossless(&self) -> bool {
        true
    }

    fn largest_train(&self) -> usize {
        usize::MAX
    }

    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    #[inline]
    fn send(&self, to: &Destination, train: &mut Train<'_>) -> Result<(), SendError> {
        let (source, destination, handling) = (to.source, to.destination, to.handling());
        let address = Address { source, destination, handling, mtu: train.mtu };
        let fill = |out: &mut [u8]| if out.is_empty() { Ok(()) } else { (train.fill)(0, out) };
        Ok(self.queue.push(address, *train.headers, train.count, train.length, fill)?)
    }

    fn receive(&self, take: &mut dyn FnMut(&Arrived<'_>)) -> bool {
        self.queue.drain(|Address { source, destination, handling, mtu }, headers, count, payload| {
            let (process, ip, congestion_marked) = (None, None, false);
            take(&Arrived {
                headers,
                count,
                mtu,
                payload,
                source,
                destination,
                process,
                ip,
                handling,
                congestion_marked,
            });
        })
    }

    #[inline]
    fn seems_empty(&self) -> bool {
        self.queue.seems_empty()
    }

    fn traffic(&self) -> Option<(u64, u64)> {
        Some(self.queue.traffic())
    }
}
