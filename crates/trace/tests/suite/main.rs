//! Events, and where they go.
//!
//! - `vocabulary`: the words
//! - `memory_sinks`: sinks that keep events in memory
//! - `json_lines`: JSON lines, as text
//! - `json_reader`: logs that are read back
//! - `pcapng`: captures, as Wireshark reads them
//! - `samples`: an event of every kind

#[cfg(feature = "json")]
mod json_lines;
#[cfg(feature = "json")]
mod json_reader;
mod memory_sinks;
mod pcapng;
mod samples;
mod vocabulary;
