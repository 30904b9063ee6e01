//! The interface of all links: a train goes in at one end and comes out at the other.

use crate::dropped::Dropped;
use std::fmt::Debug;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;
use wire::{Ecn, Gid, Headers, IpHeader, Qpn};

/// How trains move between queue pairs. What a train is, the sender says with [`Train`]; what has come, the receiver
/// sees as [`Arrived`].
///
/// # Contract
///
/// - **Order.** Trains that one queue pair sends to another arrive in the order in which they were sent, or not at all.
///   [`Faulty`](crate::faults::Faulty) breaks this on purpose. Between different queue pairs there is no order.
/// - **No waiting.** Neither `send` nor `receive` waits for a peer, for room or for a descriptor.
/// - **Threads.** Every method may be called by any thread. Of several threads that call `receive` at the same time one
///   receives; the others return at once, and what they would have found is found by the one that receives.
/// - **No recursion.** `take` may call `send`, and `receive`, which then does nothing. So a link holds no lock during
///   `take` that `send` waits for.
/// - **A failed send** is a train that is lost: nothing of it arrives, or, over a link that sends packets one by one,
///   the packets before the one that could not be sent. The queue pair believes that it was sent. So a link that is
///   lossless fails only with [`SendError::Payload`], or is asked for room before its queue pair is asked for a train,
///   as shared memory is.
/// - **Belief.** What arrives was written by the peer. Headers have been parsed; nothing else has been checked, and
///   payload may change while it is looked at: copy it, do not judge by it.
pub trait Link: Send + Sync + Debug {
    /// In words, for people: "shared memory".
    fn name(&self) -> &'static str;

    /// Whether everything that was sent arrives while the peer lives. Then no congestion window is needed.
    fn is_lossless(&self) -> bool;

    /// The most payload of one train, in bytes. A longer one is sent packet by packet.
    fn largest_train(&self) -> usize;

    /// Readable when there is something to receive, to sleep on. None where only this process sends: the thread that
    /// sends then receives, too, before it sleeps.
    fn descriptor(&self) -> Option<RawFd>;

    /// Puts a train on its way.
    fn send(&self, to: &Destination, train: &mut Train<'_>) -> Result<(), SendError>;

    /// Gives what has arrived to `take`. Returns whether there was anything: then there may be more.
    fn receive(&self, take: &mut dyn FnMut(&Arrived<'_>)) -> bool;

    /// Whether there is nothing to receive, at a glance: a thread that polls asks this each time. What other threads
    /// have sent at this moment may be missed, as those receive themselves.
    fn seems_empty(&self) -> bool;

    /// When `receive` has to be called though nothing arrives: something is held back until then.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// How many trains were sent over it, ever, and how many of these were received and dealt with, on a link that is
    /// lossless and knows: no queue pair's time to answer runs while its train, or the answer, is still under way.
    fn traffic(&self) -> Option<(u64, u64)> {
        None
    }

    /// What went no further on the link since this was last asked. The NIC asks after `receive`.
    fn take_drops(&self) -> Vec<Dropped> {
        Vec::new()
    }
}

/// Where a train goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// Our address.
    pub source: Gid,
    /// The peer's.
    pub destination: Gid,
    /// The queue pair that sends: what it sends keeps its order. The one that receives is in the headers.
    pub from: Qpn,
    /// The interface, for multicast and for link-local IPv6 addresses; 0 leaves it to the routes.
    pub scope: u32,
    /// Type of service or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit.
    pub hop_limit: u8,
}

impl Destination {
    /// How the network is to handle what is sent there.
    pub fn handling(&self) -> Handling {
        Handling { traffic_class: self.traffic_class, hop_limit: self.hop_limit }
    }
}

/// How the network is to handle packets, as an address handle says it. A link without packets carries it along: the
/// receiver of a datagram sees it in the header before the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handling {
    /// Type of service or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit; 0 means the usual, as it does over UDP.
    pub hop_limit: u8,
}

impl Handling {
    /// What packets have whose program asks for nothing.
    pub const USUAL: Handling = Handling { traffic_class: Ecn::Capable0.in_class(0), hop_limit: 64 };

    /// The hop limit that packets really have.
    pub fn hops(&self) -> u8 {
        if self.hop_limit == 0 { Handling::USUAL.hop_limit } else { self.hop_limit }
    }
}

/// A train to send: consecutive packets of one message.
pub struct Train<'a> {
    /// Headers of the whole train as one packet; [`wire::packet_of`] has those of each.
    pub headers: &'a Headers,
    /// How many packets it is.
    pub count: u32,
    /// Payload bytes of every packet but the last.
    pub mtu: u32,
    /// Payload bytes of all of them.
    pub length: usize,
    /// Copies payload, from an offset on, into a slice that it fills. A link asks for each byte at least once, and may
    /// ask again.
    pub fill: &'a mut dyn FnMut(usize, &mut [u8]) -> Result<(), NoPayload>,
}

impl Debug for Train<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Train({} packets, {} bytes, {:?})", self.count, self.length, self.headers)
    }
}

/// The payload of a train cannot be had: its memory is no longer registered, for example. The caller knows why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the payload could not be gathered")]
pub struct NoPayload;

/// Why a train was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The payload could not be had.
    #[error(transparent)]
    Payload(#[from] NoPayload),
    /// The link has no room now, or is not up yet.
    #[error("the link has no room for the train now")]
    Full,
    /// The link does not lead there.
    #[error("the link does not lead there")]
    NoWay,
    /// The train is longer than the link takes.
    #[error("a train of {length} bytes is longer than the {largest} bytes that the link takes")]
    TooLong {
        /// Its payload.
        length: usize,
        /// The most.
        largest: usize,
    },
}

/// A train, or a packet, that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// Its headers, as in [`Train::headers`].
    pub headers: &'a Headers,
    /// How many packets it stands for.
    pub count: u32,
    /// Payload bytes of every packet but the last; 0 if that is not known, and then it is one packet.
    pub mtu: u32,
    /// Its payload, without pad bytes.
    pub payload: &'a [u8],
    /// The sender's address.
    pub source: Gid,
    /// The address it was sent to.
    pub destination: Gid,
    /// The other process of this host that sent it, where the link knows; 0 if that process cannot be seen from here.
    pub process: Option<i32>,
    /// The IP header it came with, where there was one.
    pub ip: Option<IpHeader>,
    /// How its sender wanted it to be handled, where there was no IP header that says it.
    pub handling: Handling,
    /// The network marked it "congestion experienced".
    pub congestion_marked: bool,
}

impl<'a> Arrived<'a> {
    /// How many packets it can be cut into.
    pub fn packets(&self) -> u32 {
        if self.mtu == 0 { 1 } else { self.count.max(1) }
    }

    /// The headers and the payload of packet `index`.
    pub fn packet(&self, index: u32) -> (Headers, &'a [u8]) {
        let (count, length) = (self.packets(), self.payload.len() as u32);
        let (from, bytes) = wire::slice_of(count, index, length, self.mtu);
        let payload = self.payload.get(from as usize..(from + bytes) as usize).unwrap_or(&[]);
        (wire::packet_of(self.headers, count, index, length, self.mtu), payload)
    }
}

impl<L: Link + ?Sized> Link for Arc<L> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn is_lossless(&self) -> bool {
        (**self).is_lossless()
    }

    fn largest_train(&self) -> usize {
        (**self).largest_train()
    }

    fn descriptor(&self) -> Option<RawFd> {
        (**self).descriptor()
    }

    fn send(&self, to: &Destination, train: &mut Train<'_>) -> Result<(), SendError> {
        (**self).send(to, train)
    }

    fn receive(&self, take: &mut dyn FnMut(&Arrived<'_>)) -> bool {
        (**self).receive(take)
    }

    fn seems_empty(&self) -> bool {
        (**self).seems_empty()
    }

    fn deadline(&self) -> Option<Instant> {
        (**self).deadline()
    }

    fn traffic(&self) -> Option<(u64, u64)> {
        (**self).traffic()
    }

    fn take_drops(&self) -> Vec<Dropped> {
        (**self).take_drops()
    }
}
