//! Recordings: what one process did, as a file. A recording has all events of the trace (`trace::Event`: calls, packets,
//! states, completions), and notes: findings of the checker, and spans that other tools tell of. docs/recording.md
//! describes the format.
//!
//! | module | what | needs `std` |
//! |---|---|---|
//! | [`header`] | the beginning of a file: what was recorded, and on which clocks | no |
//! | [`block`] | events and notes in blocks, each of which can be read alone | no |
//! | [`recent`] | the newest events, until they are packed | no |
//! | [`reader`] | a file, as events and notes | yes |
//!
//! This crate opens no file and knows no clock: a writer is given memory and times, a reader something to read from. The
//! NIC maps the file, so that a process that is killed loses nothing that it has recorded.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod block;
pub mod header;
#[cfg(feature = "std")]
pub mod reader;
pub mod recent;

pub use block::{BlockStart, BlockWriter};
pub use header::{FileHeader, HeaderError};
#[cfg(feature = "std")]
pub use reader::{Entry, Reader, RecordingError};
pub use recent::RecentWriter;
