//! What can go wrong when a sink writes a file. Recording itself never fails.

use std::io;
use std::string::String;

/// A sink could not write.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The header of a capture.
    #[error("the header of the capture could not be written: {0}")]
    Section(#[source] io::Error),
    /// The description of an interface in a capture.
    #[error("the interface {name} could not be described in the capture: {source}")]
    Interface {
        /// Its name.
        name: String,
        /// What the writer said.
        source: io::Error,
    },
    /// A frame of a capture.
    #[error("the frame at {at} ns could not be written to the capture: {source}")]
    Frame {
        /// Its time in nanoseconds.
        at: u64,
        /// What the writer said.
        source: io::Error,
    },
    /// An event.
    #[error("the event at {at} ns could not be written: {source}")]
    Event {
        /// Its time in nanoseconds.
        at: u64,
        /// What the writer said.
        source: io::Error,
    },
    /// The end of a file.
    #[error("the end of the file could not be written: {0}")]
    Flush(#[source] io::Error),
}
