//! Every event as one JSON object on a line of its own, for programs that read traces. The names of the fields are a
//! promise: new ones may appear, old ones keep their meaning.
//!
//! Every line has `at` (nanoseconds) and `event` (the kind's name); `source` and `qpn` where they are known. Lines of
//! programs (not of simulations) also have `wall` (nanoseconds since the Unix epoch, as in a capture), `pid` and `tid`,
//! so that those of several processes can be laid side by side. Numbers are JSON integers, up to 64 bits. The other
//! fields by kind, `?` marking those that may be absent:
//!
//! | event | fields |
//! |---|---|
//! | `work_posted` | `wr_id`, `queue`, `opcode`, `bytes` |
//! | `post_refused` | `wr_id`, `queue`, `reason` |
//! | `packet_sent` | `packet`, `payload_len`, `packets`, `wr_id`?, `retransmit` |
//! | `packet_received` | `packet`, `payload_len`, `packets` |
//! | `packet_dropped` | `packet`?, `reason`, `text` |
//! | `cm_message_dropped` | `message`, `local_comm_id`, `reason`, `text` |
//! | `state_changed` | `from`, `to`, `cause`, `wr_id`? and `status`? of what failed, `what`?, `text` |
//! | `completed` | `wr_id`, `queue`, `status`, `opcode`, `bytes`, `failure`? {`name`, what it has, `text`} |
//! | `called` | `thread`, `call`, and the fields of [`Call`](crate::Call); its `event` is `event_name` |
//! | `flushed` | `sends`, `receives` |
//! | `timer_set`, `timer_fired` | `timer`, `deadline` |
//! | `timer_cleared` | `timer` |
//! | `retry` | `cause`, `from` (a PSN), `left`? (absent: without limit) |
//! | `access_refused` | `key`, `address`, `length`, `access`, `cause`, `region_start`? and `region_length`?, `text` |
//! | `nak_sent`, `nak_received` | `psn`, `code` |
//! | `window_changed` | `from`, `to`, `cause` |
//! | `rate_changed` | `from`, `to` (bit/s) |
//! | `async_event` | `name` |
//! | `cm_transition` | `local_comm_id`, `from`, `to`, `message`? |
//! | `capture_ended` | `errno` |
//! | `moved_directly` | `wr_id`, `opcode`, `dest_qpn`, `key`, `address`, `bytes`, `by` |
//! | `engine_woke` | `reason` |
//! | `cq_overflowed` | `cq`, `capacity` |
//! | `injected` | `script`, `line`, `what`, `ends`, `missed` |
//!
//! `packet` is an object: `opcode`, `dest_qpn`, `psn`, `pkey`, the flags `ack_req`, `solicited`, `fecn`, `becn` where
//! they are set, and one field per further header the packet has: `xrc_srqn`, `deth` {`qkey`, `src_qpn`}, `reth` {`va`,
//! `rkey`, `len`}, `feth` {`placement`, `selectivity`}, `atomic` {`va`, `rkey`, `swap_add`, `compare`}, `aeth`
//! {`syndrome` (the byte), `text`, `msn`}, `atomic_ack` {`original`}, `immediate`, `invalidate`.

use std::io::Write;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::error::Error;
use crate::event::Event;
use crate::json_fields::Fields;
use crate::sink::Sink;

/// Writes events as JSON lines.
///
/// The first write that fails stops it; [`finish`](Self::finish) says so.
#[derive(Debug)]
pub struct JsonLines<W> {
    writer: W,
    failed: Option<Error>,
    stamp: Option<fn() -> Stamp>,
}

/// When and where a line was written, in the world outside the event's own clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// Nanoseconds since the Unix epoch.
    pub wall: u64,
    /// The process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
}

impl<W: Write> JsonLines<W> {
    /// Writes to `writer`. Wrap a file in a [`std::io::BufWriter`].
    #[must_use]
    pub const fn new(writer: W) -> Self {
        Self { writer, failed: None, stamp: None }
    }

    /// Writes to `writer`, and puts what `stamp` returns on every line.
    #[must_use]
    pub const fn stamped(writer: W, stamp: fn() -> Stamp) -> Self {
        Self { writer, failed: None, stamp: Some(stamp) }
    }

    /// Takes one event of `source`: a host, a process. Use this where several of them share one file.
    pub fn record_from(&mut self, source: &str, event: &Event) {
        self.write(Some(source), event);
    }

    /// Gives the writer back, flushed, or the first error there was.
    pub fn finish(mut self) -> Result<W, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.writer.flush().map_err(Error::Flush)?;
        Ok(self.writer)
    }

    fn write(&mut self, source: Option<&str>, event: &Event) {
        if self.failed.is_some() {
            return;
        }
        let written =
            serde_json::to_writer(&mut self.writer, &Line { source, stamp: self.stamp.map(|stamp| stamp()), event })
                .map_err(std::io::Error::from)
                .and_then(|()| self.writer.write_all(b"\n"));
        if let Err(source) = written {
            self.failed = Some(Error::Event { at: event.at, source });
        }
    }
}

impl<W: Write> Sink for JsonLines<W> {
    fn record(&mut self, event: &Event) {
        self.write(None, event);
    }
}

struct Line<'a> {
    source: Option<&'a str>,
    stamp: Option<Stamp>,
    event: &'a Event,
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Event { at, qpn, kind } = self.event;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("at", at)?;
        if let Some(Stamp { wall, process, thread }) = self.stamp {
            map.serialize_entry("wall", &wall)?;
            map.serialize_entry("pid", &process)?;
            map.serialize_entry("tid", &thread)?;
        }
        if let Some(source) = self.source {
            map.serialize_entry("source", source)?;
        }
        if let Some(qpn) = qpn {
            map.serialize_entry("qpn", &qpn.value())?;
        }
        kind.write_fields(&mut map)?;
        map.end()
    }
}
