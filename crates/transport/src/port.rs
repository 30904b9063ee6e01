//! What a queue pair needs of the world around it: memory behind keys, shared receive queues, the congestion window towards its peer, and
//! a place for trace events. The NIC implements [`Port`] over real memory, the simulator over byte vectors. Every call is synchronous and
//! happens inside a `QueuePair` method; a port never calls back.

use crate::congestion::Window;
use crate::receive::ReceiveWork;
use trace::RefusalCause;
use wire::{Feth, Key, Qpn, Srqn};

bitflags::bitflags! {
    /// Rights over memory and over a queue pair, with the bit values of `ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u32 {
        /// The NIC may write on behalf of the owner (receives, read results).
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may run atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from the start of the region, not from a virtual address.
        const ZERO_BASED = 1 << 5;
        /// Pages may be absent until used.
        const ON_DEMAND = 1 << 6;
        /// Backed by huge pages.
        const HUGETLB = 1 << 7;
        /// Peers may flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may become visible out of order.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// A protection domain, by the number its owner gave it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProtectionDomain(pub u32);

/// On whose behalf memory is touched: decides which keys count and which protection domain must match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subject {
    /// The queue pair, since a type 2 memory window belongs to one.
    pub qpn: Qpn,
    /// The protection domain of the queue pair (or of the shared receive queue, for XRC).
    pub pd: ProtectionDomain,
    /// True when a peer asked (the key is an R_Key), false when the queue pair's own work did (an L_Key).
    pub remote: bool,
}

/// A run of bytes behind a memory key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The memory key.
    pub key: Key,
    /// The address inside the key's address space.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
}

/// Why memory may not be touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What was asked for.
    pub range: Range,
    /// With which rights.
    pub access: Access,
    /// What is wrong with it.
    pub cause: RefusalCause,
}

/// An atomic operation on the eight bytes of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atomic {
    /// Replace with `swap` if equal to `compare`.
    CompareSwap {
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd {
        /// The addend.
        add: u64,
    },
    /// Store eight bytes as one (ATOMIC WRITE); the bytes are stored in the order they travelled.
    Write {
        /// The bytes.
        bytes: [u8; 8],
    },
}

/// A memory window bind, the local half of `IBV_WR_BIND_MW`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// The window's present R_Key.
    pub window: Key,
    /// The R_Key the window answers to afterwards.
    pub new_key: Key,
    /// The L_Key of the region behind it.
    pub region: Key,
    /// First byte of the window.
    pub address: u64,
    /// Length; zero unbinds.
    pub length: u64,
    /// Rights of the window.
    pub access: Access,
}

/// What came of asking a shared receive queue for a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The receive was copied out.
    Taken,
    /// The queue is empty.
    Empty,
    /// There is no such queue, or this queue pair may not use it.
    Unknown,
}

/// Which receiver's buffer a congestion window guards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Toward {
    /// The process at the other end of this queue pair: requests go there.
    Peer,
    /// Our own process: the answers to our READs come here, unacknowledged.
    Here,
}

/// The world around a queue pair.
pub trait Port {
    /// Would this access succeed now? Zero-length ranges always do.
    fn check(&mut self, subject: Subject, range: Range, access: Access) -> Result<(), Refusal>;

    /// Copies bytes out of memory. Links call it to gather payload.
    fn read(&mut self, subject: Subject, range: Range, out: &mut [u8]) -> Result<(), Refusal>;

    /// Copies bytes into memory, ascending, the last ones last.
    fn write(&mut self, subject: Subject, range: Range, data: &[u8]) -> Result<(), Refusal>;

    /// Runs an atomic operation on eight aligned bytes and returns what was there, as a native integer.
    fn atomic(&mut self, subject: Subject, range: Range, operation: Atomic) -> Result<u64, Refusal>;

    /// Makes earlier writes to the range visible or persistent as `feth` asks. Where it asks for the whole region, the range has no length; key
    /// and rights count all the same.
    fn flush(&mut self, subject: Subject, range: Range, feth: Feth) -> Result<(), Refusal>;

    /// Invalidates a key: by a peer's SEND with invalidate (`subject.remote`) or by local work.
    fn invalidate(&mut self, subject: Subject, key: Key) -> Result<(), Refusal>;

    /// Binds a memory window.
    fn bind(&mut self, subject: Subject, bind: &Bind) -> Result<(), Refusal>;

    /// Takes the next receive of a shared receive queue into `into` (reusing its allocation).
    fn take_receive(&mut self, qpn: Qpn, srq: Srqn, into: &mut ReceiveWork) -> Taken;

    /// The protection domain of a shared receive queue that this queue pair may reach through XRC.
    fn shared_domain(&mut self, qpn: Qpn, srq: Srqn) -> Option<ProtectionDomain>;

    /// Runs `f` on the window that guards the receiver `toward` of queue pair `qpn`.
    fn window<R>(&mut self, qpn: Qpn, toward: Toward, f: impl FnOnce(&mut Window) -> R) -> R;

    /// Whether a window of a queue pair never refuses anything. Asked for every message: where that is known it can be said without making a window.
    #[inline]
    fn is_unlimited(&mut self, qpn: Qpn, toward: Toward) -> bool {
        self.window(qpn, toward, |window| window.is_unlimited())
    }

    /// Whether anyone listens to events. When false nothing is built and `record` is not called.
    #[inline]
    fn tracing(&self) -> bool {
        false
    }

    /// Takes one event.
    fn record(&mut self, event: &trace::Event) {
        let _ = event;
    }
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Range { key, address, length } = self.range;
        write!(f, "{length} bytes at {address:#x} behind key {key}: {}", self.cause)
    }
}
