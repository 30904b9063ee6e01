//! What a queue pair needs of the world around it: memory behind keys, shared receive queues, the congestion window
//! towards its peer, and a place for trace events. The NIC implements [`Port`] over real memory, the simulator over
//! byte vectors. Every call is synchronous and happens inside a `QueuePair` method; a port never calls back.

use crate::completion::Queue;
use crate::congestion::Window;
use crate::work::ReceiveWork;
use wire::access::{Access, Atomic, Bind, ProtectionDomain, Range, Refusal, Subject};
use wire::{Feth, Key, Qpn, Srqn};

/// The most payload one train carries, unless a wide window lets it be several datagrams
/// ([`Window::burst`](crate::congestion::Window::burst)).
pub const MAX_TRAIN: u32 = 64 * 1024;

/// What came of asking a shared receive queue for a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakenReceive {
    /// The receive was copied out.
    Taken,
    /// The queue is empty.
    Empty,
    /// There is no such queue, or this queue pair may not use it.
    Unknown,
}

/// What came of asking a tag matching shared receive queue for a place for a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaggedTaken {
    /// The message matched a tagged buffer, which was moved out.
    Matched,
    /// It matched nothing, or is not to be matched: a receive was copied out.
    Unmatched {
        /// Software has many such messages to handle, and should say how many it has.
        out_of_step: bool,
    },
    /// There is no receive.
    Empty,
    /// There is no such queue, or it matches no tags.
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

    /// The peer's READ of these bytes is granted; they are read when its answer is made. A device may read some now.
    fn read_requested(&mut self, subject: Subject, range: Range) {
        let _ = (subject, range);
    }

    /// Copies bytes into memory, ascending, the last ones last.
    fn write(&mut self, subject: Subject, range: Range, data: &[u8]) -> Result<(), Refusal>;

    /// The most payload that one train may have whose payload all lies behind this key. Asked about long messages where
    /// no window limits them.
    #[inline]
    fn longest_train(&mut self, key: Key) -> u32 {
        let _ = key;
        MAX_TRAIN
    }

    /// Runs an atomic operation on eight aligned bytes and returns what was there, as a native integer.
    fn atomic(&mut self, subject: Subject, range: Range, operation: Atomic) -> Result<u64, Refusal>;

    /// Makes earlier writes to the range visible or persistent as `feth` asks. Where it asks for the whole region, the
    /// range has no length; key and rights count all the same.
    fn flush(&mut self, subject: Subject, range: Range, feth: Feth) -> Result<(), Refusal>;

    /// Invalidates a key: by a peer's SEND with invalidate (`subject.remote`) or by local work.
    fn invalidate(&mut self, subject: Subject, key: Key) -> Result<(), Refusal>;

    /// Binds a memory window.
    fn bind(&mut self, subject: Subject, bind: &Bind) -> Result<(), Refusal>;

    /// Takes the next receive of a shared receive queue into `into` (reusing its allocation).
    fn take_receive(&mut self, qpn: Qpn, srq: Srqn, into: &mut ReceiveWork) -> TakenReceive;

    /// Takes the tagged buffer that a message with this tag matches, or else the next receive. A message without a tag
    /// matches nothing, and is not counted.
    fn take_tagged(&mut self, qpn: Qpn, srq: Srqn, tag: Option<u64>, into: &mut ReceiveWork) -> TaggedTaken {
        let _ = (qpn, srq, tag, into);
        TaggedTaken::Unknown
    }

    /// The protection domain of a shared receive queue that this queue pair may reach through XRC.
    fn shared_domain(&mut self, qpn: Qpn, srq: Srqn) -> Option<ProtectionDomain>;

    /// Runs `f` on the window that guards the receiver `toward` of queue pair `qpn`.
    fn window<R>(&mut self, qpn: Qpn, toward: Toward, f: impl FnOnce(&mut Window) -> R) -> R;

    /// Whether a window of a queue pair never refuses anything. Asked for every message: where that is known it can be
    /// said without making a window.
    #[inline]
    fn is_unlimited(&mut self, qpn: Qpn, toward: Toward) -> bool {
        self.window(qpn, toward, |window| window.is_unlimited())
    }

    /// The program is about to be told of work of this queue: what was written on its behalf must be there.
    #[inline]
    fn tells(&mut self, queue: Queue) {
        let _ = queue;
    }

    /// Whether anyone listens to events. When false nothing is built and `record` is not called.
    #[inline]
    fn tracing(&self) -> bool {
        false
    }

    /// Whether each packet is to be seen by itself. When false acknowledgements may travel along with requests though
    /// anyone listens; both are told as packets.
    #[inline]
    fn separates_packets(&self) -> bool {
        self.tracing()
    }

    /// Takes one event.
    fn record(&mut self, event: &trace::Event) {
        let _ = event;
    }

    /// A packet or train of the queue pair went no further, for a driver that counts them whether anyone listens or
    /// not. If anyone does, the event is recorded as well.
    #[cold]
    fn dropped(&mut self, reason: trace::DropReason) {
        let _ = reason;
    }
}
