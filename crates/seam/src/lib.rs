//! The seam between the safe Rust API and the NIC under it: the traits that a NIC implements, the errors, statistics and
//! reasons that both sides speak of, and what an environment other than the process says of itself. It stands on core
//! crates alone: a NIC knows nothing of the API, and the API of no NIC but through it. Work, attributes and completions
//! are the transport's values; objects are trait objects.
//!
//! Two things are expected of every NIC. Work given to it progresses whether or not anybody polls. And the observer of
//! a completion queue is called after something was added, with no lock held that a call into the NIC would want.
//!
//! # Safety
//!
//! The API hands out `&mut [u8]` to a buffer as soon as the NIC says that the buffer's work has ended. So the memory
//! safety of a program rests on what the NIC says, and the traits through which it speaks are unsafe to implement:
//! [`Context`], [`DeviceMemory`], [`CompletionQueue`], [`QueuePair`] and [`SharedReceiveQueue`]. A crate that
//! implements them promises:
//!
//! 1. **Memory.** The NIC touches the memory of [`Context::register`] only within the range and the rights of a key
//!    that is registered: for peers where the rights say so, else to carry out work posted for it.
//! 2. **Keys.** No two registrations that exist at one time have the same key, whether of memory or of device memory.
//! 3. **Deregistration.** When [`Context::deregister`] returns, answered with an error or not, nothing touches the
//!    memory through that key.
//! 4. **Completions.** A completion bears the number (`wr_id`) and the queue pair of work that was posted, comes at
//!    most once for it, and comes after the NIC has touched its buffers for the last time. Of work that was refused
//!    there is none.
//! 5. **Ends.** When [`QueuePair::destroy`], [`SharedReceiveQueue::destroy`] or a [`QueuePair::modify`] to RESET
//!    returns, the NIC touches no buffer of that queue's work any more. A receive of a shared queue that a destroyed
//!    queue pair had taken is the one that `destroy` names.
//!
//! [`Backend`], [`Channel`] and the traits of [`connections`] are safe to implement: they make such objects or tell of
//! events, and whatever they answer, no buffer comes back by it.
//!
//! Without that promise nothing compiles:
//!
//! ```compile_fail,E0200
//! # use transport::{Access, ProtectionDomain};
//! # use seam::{DeviceMemory, Error};
//! # use wire::Key;
//! #[derive(Debug)]
//! struct Careless;
//!
//! impl DeviceMemory for Careless {
//! #   fn write(&self, _: u64, _: &[u8]) -> Result<(), Error> { Ok(()) }
//! #   fn read(&self, _: u64, _: &mut [u8]) -> Result<(), Error> { Ok(()) }
//!     fn register(&self, _: u64, _: usize, _: ProtectionDomain, _: Access) -> Result<Key, Error> {
//!         Ok(Key::new(1)) // perhaps the key of a buffer that the program is reading
//!     }
//! }
//! ```
//!
//! The other way round the NIC believes what is posted: it writes where work says. So posting is unsafe to call, as
//! registering is.
//!
//! ```compile_fail,E0133
//! # use transport::ReceiveRequest;
//! # use seam::QueuePair;
//! fn post(pair: &dyn QueuePair, into_whose_buffer: ReceiveRequest<'_>) {
//!     let _ = pair.post_receive(&[into_whose_buffer]);
//! }
//! ```
#![deny(unsafe_code)]

mod close_reason;
mod connect_error;
pub mod connections;
pub mod environment;
mod error;
mod limits;
mod stats;

pub use close_reason::CloseReason;
pub use connect_error::{ConnectError, refused_by_id};
pub use error::{Argument, Class, CompletionError, Error, Failed};
pub use limits::DeviceLimits;
pub use stats::{Congestion, Stats};

use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use transport::{
    Access, Attributes, Capabilities, Completion, Counters, Kind, Modify, ModifyError, PostError, ProtectionDomain,
    ReceiveRequest, SendRequest, SrqAttributes, SrqError, SrqModify, Stop,
};
use wire::{Gid, Key, Mtu, Qpn, Srqn};

/// A NIC.
pub trait Backend: connections::Connections + Debug + Send + Sync {
    /// The names and numbers of its devices, as they are now.
    fn devices(&self) -> Vec<DeviceInfo>;

    /// The addresses of a device as they are now; none if there is no such device.
    fn addresses(&self, device: &str) -> Vec<Gid>;

    /// From which of this host's addresses packets to `address` leave; an error if no way leads there. Nothing is sent.
    fn source_towards(&self, address: IpAddr) -> io::Result<IpAddr>;

    /// Opens a device.
    fn open(&self, device: &str) -> Result<Arc<dyn Context>, Error>;

    /// Makes a channel.
    fn create_channel(&self) -> Result<Arc<dyn Channel>, Error>;

    /// Does what there is to do, without waiting.
    fn progress(&self);

    /// Makes what a thread waits in until a future can go on.
    fn create_parker(&self) -> Result<Arc<dyn Parker>, Error>;

    /// Waits for the next event of a channel, driving meanwhile, but not longer than `limit`.
    fn wait(&self, channel: &dyn Channel, limit: Option<Duration>) -> io::Result<Option<u32>>;
}

/// What a thread waits in until a future can go on.
pub trait Parker: Debug + Send + Sync {
    /// Returns when [`unpark`](Parker::unpark) was called since it last returned, when `limit` has passed, or by
    /// mistake. Drives meanwhile.
    fn park(&self, limit: Option<Duration>);

    /// Ends the wait, or the next one. Called in any thread, also by the one that made the progress.
    fn unpark(&self);
}

/// A device, by name and number.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Its globally unique identifier.
    pub guid: u64,
}

impl DeviceInfo {
    /// A device.
    pub fn new(name: &str, guid: u64) -> DeviceInfo {
        DeviceInfo { name: name.into(), guid }
    }
}

/// The port of a device as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_port_attr")]
#[non_exhaustive]
pub struct Port {
    /// It is up.
    pub active: bool,
    /// The largest path MTU.
    pub mtu: Mtu,
    /// The table of its addresses; entries may be empty.
    pub gids: Vec<Option<Gid>>,
}

impl Port {
    /// A port.
    #[doc(hidden)] // for NICs
    pub fn new(active: bool, mtu: Mtu, gids: Vec<Option<Gid>>) -> Port {
        Port { active, mtu, gids }
    }
}

/// An opened device.
///
/// # Safety
/// It keeps the promises [about memory](crate#safety): memory, keys, deregistration.
#[allow(unsafe_code)]
pub unsafe trait Context: Debug + Send + Sync {
    /// Its port as it is now.
    fn port(&self) -> Port;

    /// What it allows.
    fn limits(&self) -> DeviceLimits;

    /// What this process has counted on its port.
    fn counters(&self) -> Counters;

    /// The device's clock in nanoseconds, by which completions are stamped.
    fn clock(&self) -> u64;

    /// The number of a new protection domain.
    fn new_domain(&self) -> ProtectionDomain;

    /// Registers memory at its own address; the key is L_Key and R_Key in one.
    ///
    /// # Safety
    /// Until the key is deregistered the range must stay allocated, and whatever the rights let the NIC do with it must
    /// be allowed to happen at any time, or at the times work is posted for it.
    unsafe fn register(
        &self,
        address: *mut u8,
        length: usize,
        domain: ProtectionDomain,
        access: Access,
    ) -> Result<Key, Error>;

    /// Takes a key away: afterwards nothing touches the memory through it.
    fn deregister(&self, key: Key) -> Result<(), Error>;

    /// Makes a memory window of type 2, or else 1, that is bound to nothing: its key.
    fn allocate_window(&self, domain: ProtectionDomain, type_2: bool) -> Result<Key, Error>;

    /// Frees a window, by any key that it ever had: afterwards nothing touches memory through it.
    fn free_window(&self, key: Key) -> Result<(), Error>;

    /// How many bytes of memory the device has of its own; none if zero.
    fn device_memory_size(&self) -> u64;

    /// Allocates zeroed memory of the device, aligned to a power of two.
    fn allocate_device_memory(&self, length: usize, alignment: usize) -> Result<Arc<dyn DeviceMemory>, Error>;

    /// Makes a completion queue.
    fn create_completion_queue(
        &self,
        capacity: u32,
        channel: Option<&Arc<dyn Channel>>,
    ) -> Result<Arc<dyn CompletionQueue>, Error>;

    /// Makes a queue pair in RESET.
    fn create_queue_pair(&self, spec: &QueuePairSpec<'_>) -> Result<Box<dyn QueuePair>, Error>;

    /// The number of a new XRC domain.
    fn new_xrc_domain(&self) -> u32;

    /// Makes a shared receive queue: one of an XRC domain, if that is given, whose receives complete in a queue of its
    /// own.
    fn create_shared_receive_queue(
        &self,
        domain: ProtectionDomain,
        max_wr: u32,
        max_sge: u32,
        xrc: Option<(u32, &Arc<dyn CompletionQueue>)>,
    ) -> Result<Arc<dyn SharedReceiveQueue>, Error>;

    /// The oldest event that has not been taken.
    fn poll_event(&self) -> Option<AsyncEvent>;

    /// Readable while events wait.
    fn event_fd(&self) -> BorrowedFd<'_>;
}

/// Memory of a device. Freed when it is dropped; the owner of a registration of a part keeps it until that is
/// deregistered.
///
/// # Safety
/// It keeps the promise [about keys](crate#safety).
#[allow(unsafe_code)]
pub unsafe trait DeviceMemory: Debug + Send + Sync {
    /// Copies bytes in. The range is known to lie within.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Copies bytes out. The range is known to lie within.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error>;

    /// Registers a part of it, as memory whose addresses count from zero. [`Context::deregister`] takes the key away.
    fn register(&self, offset: u64, length: usize, domain: ProtectionDomain, access: Access) -> Result<Key, Error>;
}

/// What happens to objects beside completions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_async_event")]
#[non_exhaustive]
pub enum AsyncEvent {
    /// Something happened to a queue pair.
    QueuePair(Qpn, transport::AsyncEvent),
    /// A completion queue overflowed.
    CompletionQueueError(u32),
    /// A shared receive queue ran low.
    SharedReceiveQueueLimit(Srqn),
    /// A shared receive queue failed: the queue pairs that take receives from it go to ERR.
    SharedReceiveQueueError(Srqn),
    /// The port came up.
    PortActive,
    /// The port went down.
    PortError,
    /// An address came or went.
    GidChange,
    /// The local identifier of the port changed.
    LidChange,
    /// The table of partition keys changed.
    PkeyChange,
    /// The subnet manager moved.
    SubnetManagerChange,
    /// The subnet manager wants clients to register again.
    ClientReregister,
    /// The port carries more or less than before.
    SpeedChange,
    /// The device has failed or was removed: its queue pairs are in ERR, and nothing can be made on it any more.
    DeviceFatal,
}

/// What a queue pair is made of.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairSpec<'a> {
    /// Its kind of service.
    pub kind: Kind,
    /// Its protection domain.
    pub domain: ProtectionDomain,
    /// The sizes of its queues; of those that its kind does not have, zero.
    pub capabilities: Capabilities,
    /// Of an XRC target: its domain.
    pub xrc_domain: Option<u32>,
    /// Where its receives come from, if not from its own queue.
    pub shared: Option<&'a Arc<dyn SharedReceiveQueue>>,
    /// Where sends complete.
    pub send_cq: &'a Arc<dyn CompletionQueue>,
    /// Where receives complete.
    pub receive_cq: &'a Arc<dyn CompletionQueue>,
}

/// A completion queue.
///
/// # Safety
/// It keeps the promise [about completions](crate#safety).
#[allow(unsafe_code)]
pub unsafe trait CompletionQueue: Any + Debug + Send + Sync {
    /// What its channel reports it as.
    fn id(&self) -> u32;

    /// How many completions there are to take. Asked at every poll: without a lock, if that can be.
    fn waiting(&self) -> usize;

    /// Moves up to `room` completions out, oldest first; if there are none, does what there is to do, in the caller's
    /// thread, before it answers. `take` gets each with its moment on the device's clock; it calls nothing of the NIC,
    /// which may be locked.
    fn poll(&self, room: usize, take: &mut dyn FnMut(&Completion, u64)) -> usize;

    /// Moves up to `room` completions out, oldest first, and drives nothing. `take` calls nothing of this queue, which
    /// may be locked.
    fn take(&self, room: usize, take: &mut dyn FnMut(&Completion, u64)) -> usize;

    /// From now on calls `observer` whenever something was added, or lost. Who looks at the queue after that misses
    /// nothing. Set once.
    fn observe(&self, observer: Box<dyn Fn() + Send + Sync>);

    /// Asks for one event on the channel, at the next completion; at once if there is one that no event has told of.
    fn arm(&self, solicited_only: bool);

    /// Sends the event that was asked for, as a completion would.
    fn rouse(&self);

    /// How many completions it holds.
    fn capacity(&self) -> u32;

    /// Changes how many it holds.
    fn resize(&self, capacity: u32) -> Result<(), Error>;

    /// Whether completions were lost.
    fn has_overflowed(&self) -> bool;
}

/// A queue pair.
///
/// # Safety
/// It keeps the promises [about memory, completions and ends](crate#safety).
#[allow(unsafe_code)]
pub unsafe trait QueuePair: Debug + Send + Sync {
    /// Its number.
    fn qpn(&self) -> Qpn;

    /// How it reaches its peer, in words.
    fn link(&self) -> &'static str;

    /// Its attributes as they are now.
    fn attributes(&self) -> Attributes;

    /// What it has counted, and how congested the way to its peer is.
    fn stats(&self) -> Stats;

    /// Changes state and attributes, or neither.
    fn modify(&self, modify: &Modify) -> Result<(), ModifyError>;

    /// What stopped it, while it is in an error state; known before the completions of what was flushed can be taken.
    fn stop(&self) -> Option<Stop>;

    /// Calls `observer` once when it goes to ERR, with no lock held that a call into the NIC would want. Set once.
    fn observe_stop(&self, observer: Box<dyn Fn() + Send + Sync>);

    /// Its connection has ended: everything outstanding is flushed, as in ERR.
    fn disconnect(&self);

    /// Posts sends until one is refused: then its index and why.
    ///
    /// # Safety
    /// Until a request's work ends (its completion was taken, it was refused, the queue pair was destroyed or reset),
    /// the NIC may read the memory that its pieces name and, if it brings an answer back, write it; a window that it
    /// binds lets peers do so until it is unbound. The caller has the right to let that happen: the memory is the
    /// request's alone, or is used by atomics only.
    unsafe fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), (usize, PostError)>;

    /// Posts receives until one is refused: then its index and why.
    ///
    /// # Safety
    /// As for [`post_send`](QueuePair::post_send), where the NIC writes all that the pieces name.
    unsafe fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostError)>;

    /// Lets a queue pair of datagrams get what is sent to a multicast group.
    fn attach(&self, group: Gid) -> Result<(), Error>;

    /// Ends that.
    fn detach(&self, group: Gid) -> Result<(), Error>;

    /// Ends it. Afterwards the NIC touches no buffer of its work, and no completion of it is added any more. Answers
    /// the work request it had taken from a shared receive queue and not finished.
    fn destroy(&self) -> Option<u64>;
}

/// A shared receive queue.
///
/// # Safety
/// It keeps the promises [about memory, completions and ends](crate#safety).
#[allow(unsafe_code)]
pub unsafe trait SharedReceiveQueue: Any + Debug + Send + Sync {
    /// Its number.
    fn number(&self) -> Srqn;

    /// Posts a receive.
    ///
    /// # Safety
    /// As for [`QueuePair::post_receive`].
    unsafe fn post(&self, request: &ReceiveRequest<'_>) -> Result<(), PostError>;

    /// Changes its size or its limit.
    fn modify(&self, modify: &SrqModify) -> Result<(), SrqError>;

    /// What it is now.
    fn attributes(&self) -> SrqAttributes;

    /// Ends it. Its queue pairs are gone by then.
    fn destroy(&self);
}

/// Events behind a descriptor: numbers of completion queues.
pub trait Channel: Any + Debug + Send + Sync {
    /// The descriptor, readable while events wait.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether the program has made the descriptor non-blocking: then nobody waits for it.
    fn is_nonblocking(&self) -> io::Result<bool>;

    /// The oldest event.
    fn try_take(&self) -> Option<u32>;

    /// Adds an event.
    fn push(&self, event: u32);
}

/// Finds a NIC's own type behind a trait; another NIC's is refused.
pub fn own<'a, T: Any>(object: &'a dyn Any, what: &'static str) -> Result<&'a T, Error> {
    object.downcast_ref::<T>().ok_or(Error::OtherDevice { what })
}

/// Wakes a task. It runs in whichever thread made the progress, perhaps the NIC's own: a waker that panics must not
/// take it along.
pub fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}
