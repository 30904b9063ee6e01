//! RDMA verbs, everywhere: the safe Rust API of a NIC that lives in user space.
//!
//! A program opens a device, registers memory, connects queue pairs and moves bytes, on any Linux machine: no hardware,
//! no kernel module, no root. On the wire it is RoCEv2.
//!
//! ```
//! use ubiverbs::{Access, Reliable};
//!
//! let context = ubiverbs::device("ubi_lo")?.open()?;
//! let pd = context.alloc_pd()?;
//! let cq = context.completion_queue(64).create()?;
//!
//! // Two queue pairs, here of one program; `endpoint` and `connect` do the same between programs and hosts.
//! let [alice, bob] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
//!
//! // Bob posts a receive, Alice sends. Posting moves a buffer to the NIC; the answer gives it back.
//! let receiving = bob.recv(pd.allocate(64)?)?;
//! alice.send(pd.register(b"hello, bob".to_vec())?)?.wait()?;
//! assert_eq!(receiving.wait()?.payload(), b"hello, bob");
//!
//! // Bob shares memory; Alice reaches it without any doing of his.
//! let region = bob_shares(&pd)?;
//! let before = alice.fetch_add(region.remote_slice(), 2)?.wait()?;
//! assert_eq!((before, region.load(0)?), (40, 42));
//!
//! fn bob_shares(pd: &ubiverbs::ProtectionDomain) -> Result<ubiverbs::SharedRegion, ubiverbs::Error> {
//!     let region = pd.share(4096, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
//!     region.store(0, 40)?;
//!     Ok(region)
//! }
//! # Ok::<(), ubiverbs::Error>(())
//! ```
//!
//! # Who may touch the bytes
//!
//! | type | who | for |
//! |---|---|---|
//! | [`RegisteredMut`] | exactly one owner, as `&mut [u8]` | filling; receives and READs |
//! | [`Registered`] | anybody, read-only; peers too, if it was [published](ProtectionDomain::publish) | SENDs and WRITEs; tables that peers READ |
//! | [`Own`], [`SharedOwn`] | as the one or the other, until the program has its `Vec`, `BytesMut` or map back | memory you have |
//! | [`SharedRegion`] | the program and its peers at once, never as a slice | what peers may reach |
//! | [`DeviceMemory`], [`DeviceRegion`] | the program by copies, its peers through a key; it lies in the NIC | counters and locks that peers share |
//! | [`GpuRegion`] | kernels of the GPU, peers through a key; the driver copies | data that is computed on a GPU |
//! | [`RemoteSlice`] | the peer's NIC decides | naming a peer's bytes |
//!
//! A buffer in flight belongs to the NIC. Whatever a program does with the handle of an operation, dropping, forgetting
//! or panicking, the buffer stays where it is until the work is done or the queue pair is destroyed.
//!
//! # Polling and awaiting
//!
//! Posting returns an [`Operation`]. It is a future for any executor, or for [`block_on`]; or it is left to the
//! [`CompletionQueue`] with [`polled`](Operation::polled) and comes out of [`poll`](CompletionQueue::poll). Both at
//! once on one queue is fine. A program that sleeps watches a [`CompletionChannel`]. Work progresses in any case,
//! whether or not anybody polls.
//!
//! Dropping an operation cancels nothing, and a receive that is dropped loses no message: each method says under
//! *Cancel safety* what dropping loses, [`Operation`] has the table.
//!
//! # When it ends
//!
//! A connection says why it ended: [`closed`](cm::Connection::closed) waits for a [`CloseReason`], work that was
//! flushed [carries it](CompletionError::reason), and [`QueuePair::close_reason`] tells it of any queue pair. With
//! `UBIVERBS_LOG=events` the log names who ended it.
//!
//! # Which transport can do what
//!
//! | | [`Reliable`] | [`Unreliable`] | [`Datagram`] |
//! |---|---|---|---|
//! | SEND, receive | yes | yes | one packet, to an [`AddressHandle`] |
//! | WRITE | yes | yes | |
//! | READ, atomic operations, FLUSH, ATOMIC WRITE | yes | | |
//! | memory [`Window`]s | yes | yes | |
//!
//! What a transport cannot do does not compile. Many queues of receives behind one connection (XRC) have types of their
//! own: [`XrcDomain`].
//!
//! # Features
//!
//! | feature | has |
//! |---|---|
//! | `bytes` | `Bytes` and `BytesMut` as buffers, received messages as `Bytes` |
//! | `bytemuck` | vectors and boxed slices of anything that is `Pod`; without it, of numbers |
//! | `checks` | failures explained, and the program checked against the rules of verbs: `UBIVERBS_WHY`, `UBIVERBS_CHECK`, [`checks`] |
//! | `scripts` | NICs that break on purpose: `UBIVERBS_SCRIPT` |
//! | `capture`, `serde` | captures of packets and logs as JSON |
//! | `tokio`, `futures` | the traits of streams, and a `Stream` of completions |
//! | `simulation` | programs under test: their parties on a simulated network with faults and a clock of its own, `ubiverbs::simulation` |
//! | `memmap2` | maps that the program made with that crate; files and huge pages need none: [`share_file`](ProtectionDomain::share_file), [`Mapped`] |
//!
//! # Streams
//!
//! [`stream`] has byte streams in the manner of TCP: for tokio and futures, for threads, with C programs' `rsocket` at
//! the other end.
//!
//! # Builds, variables, runtimes, threads, forks
//!
//! are in [`running`]. In short: build with `--release`, or with `[profile.dev.package."*"] opt-level = 3`;
//! `UBIVERBS_LOG=1` says what failed, `UBIVERBS_WHY=1` (with the feature `checks`) why; any runtime will do; after a
//! bare `fork` the child leaves alone what it has inherited.
#![deny(unsafe_code)]

mod address;
mod allocation;
mod arena;
pub mod backend;
mod block_on;
mod buffer;
#[cfg(feature = "checks")]
pub mod checks;
pub mod cm;
mod completion;
mod completion_queue;
mod device;
mod domain;
mod ending;
mod endpoint;
#[cfg(feature = "futures")]
mod futures_streams;
mod lookup;
mod operation;
mod own;
mod posting;
mod queue_pair;
mod registration;
mod remote;
#[cfg(feature = "serde")]
mod serialize;
#[doc = include_str!("running.md")]
pub mod running {}
mod shared_receive_queue;
mod software;
pub mod stream;
mod table;
mod timer;
mod transports;
mod window;
mod xrc;

pub use address::{AddressHandle, DEFAULT_QKEY};
pub use arena::{Arena, NextBuffer};
pub use block_on::block_on;
pub use buffer::{
    AnyPart, Buffer, Destination, DeviceMemory, DeviceMemoryBuilder, DeviceRegion, GpuRegion, Own, Part, Registered,
    RegisteredMut, SharedOwn, SharedRegion, Source,
};
pub use completion::{Completion, GRH_LENGTH, Received, ReceivedInto};
pub use completion_queue::{CompletionChannel, CompletionQueue, CompletionQueueBuilder, Next, Polled};
pub use device::{Context, Device, device, device_for, devices, devices_of};
pub use domain::ProtectionDomain;
pub use endpoint::Endpoint;
#[cfg(feature = "futures")]
pub use futures_streams::{Completions, IncomingConnections};
pub use lookup::ToAddresses;
#[cfg(feature = "simulation")]
pub use macros::simulated_test;
pub use operation::{Operation, Outcome};
pub use own::{Mapped, OwnMemory, Plain, ReadOnlyMemory};
pub use queue_pair::{Batch, Flush, PreparedQueuePair, QueuePair, QueuePairBuilder, connected_pair};
pub use remote::RemoteSlice;
#[doc(inline)]
pub use seam::{
    Argument, AsyncEvent, Class, CloseReason, CompletionError, Congestion, DeviceLimits, Error, Failed, Port, Stats,
};
pub use shared_receive_queue::SharedReceiveQueue;
#[cfg(feature = "simulation")]
#[doc(inline)]
pub use simulation;
pub use timer::{Elapsed, Sleep, sleep, timeout};
pub use transports::{Connected, Datagram, Reliable, Transport, Unreliable};
pub use window::{BoundWindow, Type1, Type2, Window, WindowType};
pub use xrc::{PreparedXrcSender, PreparedXrcTarget, XrcDomain, XrcReceiveQueue, XrcSender, XrcTarget, XrcTo};

/// What [`AsyncEvent::QueuePair`] tells of a queue pair.
pub use transport::AsyncEvent as QueuePairEvent;
/// The vocabulary of verbs, shared with the layers below: numbers, states, attributes, statuses.
pub use transport::packet_counters::{Counters, Incidents, Traffic};
pub use transport::{
    Access, AddressVector, AttributeMask, Attributes, CompletionKind, Failure, InjectedError, Kind, Modify,
    ModifyError, PostError, State, Status,
};
pub use wire::{Gid, Key, Mtu, Psn, Qkey, Qpn, Srqn};
