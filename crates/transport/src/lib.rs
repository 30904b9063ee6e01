//! The protocol of a queue pair, sans-IO: RC, UC, UD and XRC as the InfiniBand specification describes them, without
//! sockets, clocks, threads, globals or `unsafe`. Bytes, time and work requests go in; trains of packets, deadlines,
//! completions and events come out.
//!
//! A [`QueuePair`] is three pipelines that pass each other values: the *requester* cuts work into packets, the *responder*
//! carries out the peer's requests, the *completer* matches answers to work and decides what is sent again. Everything
//! they need of the world they reach through a [`Port`]: memory behind keys, shared receive queues, congestion windows,
//! a place for trace events.
//!
//! # Driving it
//!
//! **After everything that goes in, send what comes out, and only then show completions to the program**: the
//! acknowledgement of a message must be under way before its receiver can act on it. This is the whole loop:
//!
//! ```
//! use ubiverbs_transport as transport;
//! use transport::{Completion, Inbound, Port, QueuePair, Time, Train};
//!
//! /// What a driver needs beside the queue pair: somewhere to put trains and completions.
//! trait Outside: Port {
//!     fn send(&mut self, train: &Train<'_>) -> Result<(), transport::Refusal>;
//!     fn complete(&mut self, completion: Completion);
//!     fn wake_at(&mut self, deadline: Option<Time>);
//! }
//!
//! fn drive<P: Outside>(qp: &mut QueuePair, now: Time, outside: &mut P) {
//!     // 1. Everything that may be sent is sent. A train borrows the queue pair, so its payload is gathered before
//!     //    anything changes.
//!     while let Some(train) = qp.poll_transmit(now, outside) {
//!         if let Err(refusal) = outside.send(&train) {
//!             qp.transmit_refused(now, refusal, outside);
//!         }
//!     }
//!     // 2. Then the program may know.
//!     while let Some(completion) = qp.poll_completion(now, outside) {
//!         outside.complete(completion);
//!     }
//!     while let Some(event) = qp.poll_event() {
//!         println!("{}", event.name());
//!     }
//!     // 3. Then we sleep, until the deadline or the next packet.
//!     outside.wake_at(qp.poll_timeout());
//! }
//!
//! fn arrived<P: Outside>(qp: &mut QueuePair, now: Time, packet: &Inbound<'_>, outside: &mut P) {
//!     qp.handle(now, packet, outside);
//!     drive(qp, now, outside);
//! }
//!
//! fn woke_up<P: Outside>(qp: &mut QueuePair, now: Time, outside: &mut P) {
//!     qp.handle_timeout(now, outside);
//!     drive(qp, now, outside);
//! }
//! ```
//!
//! Where a congestion window is shared, room that one queue pair frees may be another's: after driving, ask each window
//! that may have gained room for its [`next_waiter`](congestion::Window::next_waiter) until there is none, and drive
//! the queue pairs it names.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod attributes;
mod completed_work;
mod completer;
mod completion;
pub mod congestion;
mod connection;
mod injected_error;
mod kept;
mod kind;
pub mod packet_counters;
mod port;
mod queue_pair;
pub mod rate;
mod receive;
mod requester;
mod responder;
mod ring;
mod send_queue;
mod srq;
pub mod state;
mod stop;
mod tag_matching;
mod time;
mod train;
pub mod weak;
mod work;

pub use attributes::{
    AddressVector, AlternatePath, AttributeMask, Attributes, Capabilities, DeviceRefusal, FailingWork, Limits,
    MigrationState, Modify, RefusedWork,
};
pub use completed_work::{Count, Counts};
pub use completion::{AsyncEvent, Cause, Completion, CompletionKind, FrameNotes, Queue, Status, TagHeader};
pub use injected_error::InjectedError;
pub use packet_counters::Counters;
pub use port::{MAX_TRAIN, Port, TaggedTaken, TakenReceive, Toward};
pub use queue_pair::{AtOnce, FrameOut, MayPlace, Placement, QueuePair, QueuePairConfig, WaitReason, Waiting};
pub use rate::RateLimit;
pub use srq::{SharedReceiveQueue, SrqAttributes, SrqError, SrqEvent, SrqModify};
pub use state::{Kind, ModifyError, State};
pub use stop::Stop;
pub use tag_matching::{MAX_RENDEZVOUS_HEADER, TagList, TagOperation, TagOutcome, TagRequest, TaggedMessage};
pub use time::{Granularity, Timers, ack_timeout_nanos};
pub use trace::{Failure, Time};
pub use train::{Inbound, Payload, Piece, Pieces, Train};
pub use wire::access::{Access, Atomic, Bind, ProtectionDomain, Range, Refusal, Subject};
pub use work::{
    Data, DatagramTarget, MAX_MESSAGE, Operation, PostError, ReceiveRequest, ReceiveWork, Remote, SendFlags,
    SendRequest, Sge,
};
