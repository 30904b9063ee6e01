//! The vocabulary of events of the ubiverbs NIC, and where they can go.
//!
//! Everything the NIC does is one stream of [`Event`]s: logs, captures, metrics, the viewer and the oracles of the
//! tests all read the same words. This crate holds the words and the first sinks; it decides nothing and knows no
//! clock: the code that emits an event says what time it is, in nanoseconds since an origin of its choice. [`Time`] is
//! such a moment.
//!
//! | sink | keeps | needs `std` |
//! |---|---|---|
//! | [`Ring`] | the newest events, in memory | no |
//! | [`Counters`] | how many of each kind and reason | no |
//! | [`JsonLines`] | every event, one JSON object per line | yes, and `json` |
//! | [`PcapNg`] | frames for Wireshark, with comments that name the work request | yes |
//! | [`Tee`] | nothing; feeds two sinks | no |
//!
//! # Emitting
//! Code that emits takes a [`Tracer`], which is either off or points to a sink. The event is built inside a closure,
//! so a site that is off costs one predictable branch (`benches/off.rs` measures it).
//!
//! ```
//! use trace::{Kind, Queue, Ring, Tracer};
//!
//! fn post(wr_id: u64, mut tracer: Tracer<'_>) {
//!     tracer.emit(1_000, None, || Kind::WorkPosted { wr_id, queue: Queue::Send, opcode: "RDMA_WRITE", bytes: 64 });
//! }
//!
//! post(1, Tracer::off());
//!
//! let mut ring = Ring::new(16);
//! post(2, Tracer::to(&mut ring));
//! assert_eq!(ring.iter().next().unwrap().to_string(), "0.000001000 work request 2 posted to the send queue: RDMA_WRITE, 64 bytes");
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod call;
mod counters;
#[cfg(feature = "std")]
mod error;
mod event;
mod failure;
#[cfg(feature = "json")]
mod json_fields;
#[cfg(feature = "json")]
mod json_lines;
#[cfg(feature = "json")]
mod json_reader;
pub mod packed;
#[cfg(feature = "std")]
mod pcapng;
mod peer_reason;
mod printable;
mod reason;
mod ring;
mod sink;
mod tables;
mod text;
mod time;
mod vocabulary;
#[cfg(feature = "std")]
mod words;

pub use call::{Call, POISON_BYTE, Piece, Pieces, Value};
pub use counters::Counters;
#[cfg(feature = "std")]
pub use error::Error;
pub use event::{Event, Kind};
pub use failure::Failure;
#[cfg(feature = "json")]
pub use json_lines::{JsonLines, Stamp};
#[cfg(feature = "json")]
pub use json_reader::{JsonReader, Logged, ReadError};
#[cfg(feature = "std")]
pub use pcapng::{Direction, Interface, PcapNg};
pub use peer_reason::PeerReason;
pub use printable::printable;
pub use reason::{ConnectionEnd, DropReason, Queue, RequestFault, RetryCause, StateCause, Timer, WindowCause};
pub use ring::Ring;
pub use sink::{Sink, Tee, Tracer};
pub use text::Text;
pub use time::Time;
pub use wire::access::{Access, RefusalCause};
