//! The order of all locks of the NIC, and the check of it in debug builds and tests.
//!
//! Two threads that each hold a lock and wait for the other's wait for ever. So all locks stand in one list, [`Rank`],
//! and **a thread that holds a lock waits only for locks further down the list**. Every lock of `link`, `memory` and
//! `hca` is made with its rank; a debug build panics with the names of both locks when a thread breaks the rule,
//! whether or not another thread is there to wait for. A release build has neither ranks nor checks.
//!
//! A lock that is only tried (`try_lock`) may be anywhere in the list, as the thread does not wait for it; from then on
//! it counts like any other.
//!
//! A thread that uses the [right to all latches](crate::alone) in effect holds each of them, so it may wait only for
//! locks behind the last latch.

use std::marker::PhantomData;

/// The place of a lock in the order: first those that a thread may hold while it waits for many others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Rank {
    /// The NIC of the process, while it is being made.
    Process,
    /// The NICs of the process, which may owe something when it ends.
    Nics,
    /// Queue pairs whose peers are asked for.
    PeerQuestions,
    /// What failure scripts hold broken.
    Broken,
    /// Peers whose neighbours are searched for.
    NeighbourSearches,
    /// The receiving UDP sockets.
    Attachment,
    /// A socket for raw packets, while it receives.
    PacketReceiver,
    /// The flows of an interface.
    Flows,
    /// The connection manager.
    ConnectionManager,
    /// Management agents.
    Agents,
    /// Opened devices.
    Contexts,
    /// Completion queues, for those who ask what there is.
    CompletionQueues,
    /// Faults around a link, while it receives.
    Faults,
    /// Rings that other processes write.
    InboundRings,
    /// The reading end of a ring.
    RingReader,
    /// Queue pairs of multicast groups.
    Groups,
    /// Queue pairs by number.
    QueuePairs,
    /// A queue pair.
    QueuePair,
    /// A UDP socket to send from.
    Sender,
    /// Links to other processes.
    Links,
    /// Interfaces that raw queue pairs use.
    PacketPorts,
    /// Where what is sent disappears.
    BlackHoles,
    /// The faults of frames.
    FramePlan,
    /// Links that queue pairs wait for.
    StalledLinks,
    /// What went no further on a link while faults strike.
    LinkDrops,
    /// Work that peers have not read yet.
    Unread,
    /// The writing end of a ring.
    RingWriter,
    /// The memory of a process at the other end of a link.
    PeerMemory,
    /// Queue pairs that wait for a link.
    LinkWaiters,
    /// A window that queue pairs share.
    Window,
    /// The tagged buffers of a shared receive queue.
    TaggedBuffers,
    /// A completion queue.
    CompletionQueue,
    /// Pages that were replaced so that peers may map them.
    ReplacedPages,
    /// Registered memory: regions and windows.
    MemoryBooks,
    /// Windows by peer.
    Windows,
    /// Shared receive queues by number.
    SharedQueues,
    /// A shared receive queue.
    SharedQueue,
    /// Trains inside the process.
    LocalQueue,
    /// Queue pairs that may go on.
    Ready,
    /// Deadlines.
    Timers,
    /// Which thread waits for the sockets.
    SocketWatch,
    /// Links whose peer has gone.
    GonePeers,
    /// Queue pair numbers.
    Numbers,
    /// Devices.
    Devices,
    /// The addresses of a device.
    Port,
    /// What queue pairs of a device counted that are gone.
    PortCounters,
    /// Protection domains.
    Domains,
    /// Ports of the connection manager.
    CmPorts,
    /// Processes that are watched.
    ProcessWatch,
    /// Connections to other processes of the host, for messages of connection management.
    LocalMessages,
    /// Accepting other processes that call.
    Accepting,
    /// Names that this process has bound.
    Listeners,
    /// What other users' connections have to be served.
    CallerJobs,
    /// The sockets that other users hold.
    OtherSockets,
    /// Which users have which UDP ports.
    PortUsers,
    /// What those who called leave to the threads that drive the NIC.
    CallerNews,
    /// Rings that were offered to this process.
    Offers,
    /// What processes of the own user want to happen.
    Injections,
    /// Processes that want to know what this one has.
    Inquiries,
    /// What a thread of its own is to do.
    Background,
    /// Connection records that were handed to this process.
    Records,
    /// Messages of connection management that have arrived. Taken with sockets and all latches held; nothing is taken
    /// under it.
    ArrivedMessages,
    /// Events for a program.
    Events,
    /// The wait for accesses to memory to end.
    MemoryBell,
    /// Atomic operations on GPU memory.
    GpuAtomics,
    /// Regions of GPU memory.
    GpuRanges,
    /// GPU memory that other processes were told of.
    GpuExports,
    /// GPU memory of other processes.
    GpuImports,
    /// Memory of a GPU that another process has passed.
    PassedMemory,
    /// The peers that may reach this process's memory.
    MemoryGrants,
    /// What is published for them.
    PublishedTable,
    /// Memory that peers may map.
    ShareableMemory,
    /// Memory between GPUs and other memory.
    GpuBounces,
    /// The NIC's contexts on GPUs.
    GpuContexts,
    /// Failure scripts that run.
    Scripts,
    /// Work under way, for sanitizers.
    WorkLedger,
    /// The fibers as which ThreadSanitizer sees queue pairs.
    WorkFibers,
    /// The capture of packets.
    Capture,
    /// Where trace events go.
    Trace,
    /// Events that the checker has not seen yet: taken alone, or under the checker's own.
    TraceQueue,
    /// The recording of the process.
    Recording,
}

impl Rank {
    /// The first latch. Locks in front of it are held while latches are taken.
    #[cfg(debug_assertions)]
    const FIRST_LATCH: Rank = Rank::InboundRings;
}

/// How many ranks there are.
#[cfg(debug_assertions)]
const RANK_COUNT: usize = Rank::Recording as usize + 1;

#[cfg(debug_assertions)]
thread_local! {
    /// How many locks of each rank this thread holds. It has no destructor, so that a thread that ends may still take
    /// locks.
    static HELD_RANKS: std::cell::Cell<[u8; RANK_COUNT]> = const { std::cell::Cell::new([0; RANK_COUNT]) };
}

/// The rank of a lock, in debug builds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockRank {
    #[cfg(debug_assertions)]
    rank: Rank,
}

impl LockRank {
    pub(crate) const fn new(_rank: Rank) -> LockRank {
        LockRank {
            #[cfg(debug_assertions)]
            rank: _rank,
        }
    }

    /// This thread is about to wait for the lock.
    #[inline]
    pub(crate) fn wait(self) -> HeldLock {
        #[cfg(debug_assertions)]
        check(self.rank);
        self.tried()
    }

    /// This thread has got the lock without waiting.
    #[inline]
    pub(crate) fn tried(self) -> HeldLock {
        #[cfg(debug_assertions)]
        count(self.rank, 1);
        HeldLock { _place: self, _thread: PhantomData }
    }
}

/// A lock that this thread holds, as far as the order is concerned.
#[derive(Debug)]
#[must_use]
pub struct HeldLock {
    _place: LockRank,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl HeldLock {
    /// This thread is about to wait for something that others hold like a lock of that rank.
    #[inline]
    pub fn wait(rank: Rank) -> HeldLock {
        LockRank::new(rank).wait()
    }
}

#[cfg(debug_assertions)]
impl Drop for HeldLock {
    fn drop(&mut self) {
        count(self._place.rank, -1);
    }
}

#[cfg(debug_assertions)]
fn count(rank: Rank, change: i8) {
    HELD_RANKS.with(|held| {
        let mut counts = held.get();
        counts[rank as usize] = counts[rank as usize].saturating_add_signed(change);
        held.set(counts);
    });
}

/// Panics if a thread that holds what this one holds must not wait for a lock of that rank.
#[cfg(debug_assertions)]
fn check(rank: Rank) {
    let held = HELD_RANKS.with(std::cell::Cell::get);
    if let Some(other) = held.iter().skip(rank as usize).rposition(|count| *count > 0) {
        let other = rank as usize + other;
        panic!("lock order: this thread holds lock {other} of the list and waits for {rank:?}, lock {}", rank as usize);
    }
    let by_right = rank < Rank::FIRST_LATCH && crate::is_alone();
    assert!(!by_right, "lock order: this thread uses the right to all latches and waits for {rank:?}");
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::plain;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Whether a thread that holds the first may wait for the second.
    fn may(first: Rank, second: Rank) -> bool {
        let (first, second) = (plain::Mutex::new(first, ()), crate::Mutex::new(second, ()));
        let _held = first.lock();
        catch_unwind(AssertUnwindSafe(|| drop(second.lock()))).is_ok()
    }

    #[test]
    fn a_thread_waits_only_for_what_is_further_down() {
        assert!(may(Rank::InboundRings, Rank::QueuePair));
        assert!(may(Rank::QueuePair, Rank::Links));
        // The three of which each was once waited for by a thread that held another.
        assert!(!may(Rank::Links, Rank::InboundRings));
        assert!(!may(Rank::QueuePair, Rank::InboundRings));
        assert!(!may(Rank::Links, Rank::QueuePair));
        assert!(!may(Rank::QueuePair, Rank::QueuePair), "nor for another of the same rank");
    }

    #[test]
    fn what_is_tried_is_not_waited_for_but_counts() {
        let (links, rings) = (crate::Mutex::new(Rank::Links, ()), plain::Mutex::new(Rank::InboundRings, ()));
        let pair = crate::RwLock::new(Rank::QueuePair, ());
        let held = links.lock();
        let tried = rings.try_lock().expect("it is free");
        drop(held);
        drop(pair.read());
        drop(tried);
        let _held = pair.write();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(rings.lock()))).is_err());
        assert!(rings.try_lock().is_some());
    }

    #[test]
    fn what_is_let_go_in_any_order_is_forgotten() {
        let ranks = [Rank::InboundRings, Rank::QueuePair, Rank::Links].map(|rank| crate::Mutex::new(rank, ()));
        let [rings, pair, links] = &ranks;
        let (first, second, third) = (rings.lock(), pair.lock(), links.lock());
        drop(first);
        drop(third);
        drop(links.lock());
        drop(second);
        drop(rings.lock());
    }
}
