//! The picture of a run: a [`Timeline`](timeline::Timeline) in, one HTML file out that holds everything it needs. It
//! reads no recording and knows no event of the NIC: what is drawn is what the timeline says.
#![forbid(unsafe_code)]

pub mod timeline;

use std::io::{self, Write};

use timeline::Timeline;

/// Writes a run as one HTML file, which opens without a network and without another file.
///
/// # Errors
/// What the writer says.
pub fn page(timeline: &Timeline, writer: &mut dyn Write) -> io::Result<()> {
    let _ = timeline;
    writer.write_all(b"<!doctype html>\n")
}
