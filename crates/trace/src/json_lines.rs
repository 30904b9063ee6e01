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
//! | `cq_overflowed` | `cq`, `capacity` |
//!
//! `packet` is an object: `opcode`, `dest_qpn`, `psn`, `pkey`, the flags `ack_req`, `solicited`, `fecn`, `becn` where
//! they are set, and one field per further header the packet has: `xrc_srqn`, `deth` {`qkey`, `src_qpn`}, `reth` {`va`,
//! `rkey`, `len`}, `feth` {`placement`, `selectivity`}, `atomic` {`va`, `rkey`, `swap_add`, `compare`}, `aeth`
//! {`syndrome` (the byte), `text`, `msn`}, `atomic_ack` {`original`}, `immediate`, `invalidate`.

use std::fmt::Display;
use std::io::Write;
use std::vec::Vec;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use wire::Headers;
use wire::access::{Refusal, RefusalCause};

use crate::call::{Value, json_name};
use crate::error::Error;
use crate::event::{Event, Kind};
use crate::failure::Failure;
use crate::peer_reason::PeerReason;
use crate::reason::StateCause;
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
        map.serialize_entry("event", kind.name())?;
        fields(kind, &mut map)?;
        map.end()
    }
}

fn fields<M: SerializeMap>(kind: &Kind, map: &mut M) -> Result<(), M::Error> {
    match kind {
        Kind::WorkPosted { wr_id, queue, opcode, bytes } => {
            map.serialize_entry("wr_id", wr_id)?;
            map.serialize_entry("queue", queue.name())?;
            map.serialize_entry("opcode", opcode)?;
            map.serialize_entry("bytes", bytes)
        }
        Kind::PostRefused { wr_id, queue, reason } => {
            map.serialize_entry("wr_id", wr_id)?;
            map.serialize_entry("queue", queue.name())?;
            map.serialize_entry("reason", reason)
        }
        Kind::PacketSent { headers, payload_len, packets, wr_id, retransmit } => {
            map.serialize_entry("packet", &Packet(headers))?;
            map.serialize_entry("payload_len", payload_len)?;
            map.serialize_entry("packets", packets)?;
            if let Some(wr_id) = wr_id {
                map.serialize_entry("wr_id", wr_id)?;
            }
            map.serialize_entry("retransmit", retransmit)
        }
        Kind::PacketReceived { headers, payload_len, packets } => {
            map.serialize_entry("packet", &Packet(headers))?;
            map.serialize_entry("payload_len", payload_len)?;
            map.serialize_entry("packets", packets)
        }
        Kind::PacketDropped { headers, reason } => {
            if let Some(headers) = headers {
                map.serialize_entry("packet", &Packet(headers))?;
            }
            map.serialize_entry("reason", reason.name())?;
            map.serialize_entry("text", &Shown(reason))
        }
        Kind::CmMessageDropped { message, local_comm_id, reason } => {
            map.serialize_entry("message", message)?;
            map.serialize_entry("local_comm_id", local_comm_id)?;
            map.serialize_entry("reason", reason.name())?;
            map.serialize_entry("text", &Shown(reason))
        }
        Kind::StateChanged { from, to, cause } => {
            map.serialize_entry("from", from)?;
            map.serialize_entry("to", to)?;
            map.serialize_entry("cause", cause.name())?;
            match cause {
                StateCause::SendFailed { wr_id, status } | StateCause::ReceiveFailed { wr_id, status } => {
                    map.serialize_entry("wr_id", wr_id)?;
                    map.serialize_entry("status", status)?;
                }
                StateCause::PeerRequest(what) | StateCause::Local(what) => map.serialize_entry("what", what)?,
                _ => {}
            }
            map.serialize_entry("text", &Shown(cause))
        }
        Kind::Completed { wr_id, queue, status, opcode, bytes, failure } => {
            map.serialize_entry("wr_id", wr_id)?;
            map.serialize_entry("queue", queue.name())?;
            map.serialize_entry("status", status)?;
            map.serialize_entry("opcode", opcode)?;
            map.serialize_entry("bytes", bytes)?;
            match failure {
                Some(failure) => map.serialize_entry("failure", &Failed(failure)),
                None => Ok(()),
            }
        }
        Kind::Called { thread, call } => {
            map.serialize_entry("thread", thread)?;
            map.serialize_entry("call", call.name())?;
            let mut written = Ok(());
            call.each_field(|name, value| {
                if written.is_ok() {
                    written = map.serialize_entry(json_name(name), &Field(value));
                }
            });
            written
        }
        Kind::Flushed { sends, receives } => {
            map.serialize_entry("sends", sends)?;
            map.serialize_entry("receives", receives)
        }
        Kind::TimerSet { timer, deadline } | Kind::TimerFired { timer, deadline } => {
            map.serialize_entry("timer", timer.name())?;
            map.serialize_entry("deadline", deadline)
        }
        Kind::TimerCleared { timer } => map.serialize_entry("timer", timer.name()),
        Kind::Retry { cause, from, left } => {
            map.serialize_entry("cause", cause.name())?;
            map.serialize_entry("from", &from.value())?;
            match left {
                Some(left) => map.serialize_entry("left", left),
                None => Ok(()),
            }
        }
        Kind::AccessRefused { key, address, length, access, cause } => {
            map.serialize_entry("key", &key.value())?;
            map.serialize_entry("address", address)?;
            map.serialize_entry("length", length)?;
            map.serialize_entry("access", &Shown(access))?;
            refusal_cause(*cause, map)?;
            map.serialize_entry("text", &Shown(cause))
        }
        Kind::NakSent { psn, code } | Kind::NakReceived { psn, code } => {
            map.serialize_entry("psn", &psn.value())?;
            map.serialize_entry("code", code)
        }
        Kind::WindowChanged { from, to, cause } => {
            map.serialize_entry("from", from)?;
            map.serialize_entry("to", to)?;
            map.serialize_entry("cause", cause.name())
        }
        Kind::RateChanged { from, to } => {
            map.serialize_entry("from", from)?;
            map.serialize_entry("to", to)
        }
        Kind::CqOverflowed { cq, capacity } => {
            map.serialize_entry("cq", cq)?;
            map.serialize_entry("capacity", capacity)
        }
        Kind::CaptureEnded { errno } => map.serialize_entry("errno", errno),
        Kind::AsyncEvent { name } => map.serialize_entry("name", name),
        Kind::ConnectionEnded { local_comm_id, by } => {
            map.serialize_entry("local_comm_id", local_comm_id)?;
            map.serialize_entry("by", by.name())?;
            map.serialize_entry("text", &Shown(by))
        }
        Kind::CmTransition { local_comm_id, from, to, message } => {
            map.serialize_entry("local_comm_id", local_comm_id)?;
            map.serialize_entry("from", from)?;
            map.serialize_entry("to", to)?;
            match message {
                Some(message) => map.serialize_entry("message", message),
                None => Ok(()),
            }
        }
    }
}

/// Serializes as the text a person would see.
struct Shown<T>(T);

impl<T: Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// The headers of a packet; only what is there.
struct Packet<'a>(&'a Headers);

impl Serialize for Packet<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Headers { bth, xrc, deth, feth, reth, atomic, aeth, atomic_ack, immediate, invalidate } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("opcode", bth.opcode.name())?;
        map.serialize_entry("dest_qpn", &bth.dest_qpn.value())?;
        map.serialize_entry("psn", &bth.psn.value())?;
        map.serialize_entry("pkey", &bth.pkey.value())?;
        let flags = [("ack_req", bth.ack_req), ("solicited", bth.solicited), ("fecn", bth.fecn), ("becn", bth.becn)];
        for (name, _) in flags.into_iter().filter(|(_, set)| *set) {
            map.serialize_entry(name, &true)?;
        }
        if let Some(srqn) = xrc {
            map.serialize_entry("xrc_srqn", &srqn.value())?;
        }
        if let Some(deth) = deth {
            let fields = [("qkey", deth.qkey.value()), ("src_qpn", deth.src_qpn.value())];
            map.serialize_entry("deth", &Object(&fields))?;
        }
        if let Some(feth) = feth {
            let fields = [("placement", feth.placement.bits()), ("selectivity", feth.selectivity.bits())];
            map.serialize_entry("feth", &Object(&fields))?;
        }
        if let Some(reth) = reth {
            let fields = [("va", reth.va), ("rkey", reth.rkey.value().into()), ("len", reth.len.into())];
            map.serialize_entry("reth", &Object(&fields))?;
        }
        if let Some(atomic) = atomic {
            let fields = [
                ("va", atomic.va),
                ("rkey", atomic.rkey.value().into()),
                ("swap_add", atomic.swap_add),
                ("compare", atomic.compare),
            ];
            map.serialize_entry("atomic", &Object(&fields))?;
        }
        if let Some(aeth) = aeth {
            map.serialize_entry("aeth", &Acknowledgement(aeth))?;
        }
        if let Some(ack) = atomic_ack {
            map.serialize_entry("atomic_ack", &Object(&[("original", ack.original)]))?;
        }
        if let Some(immediate) = immediate {
            map.serialize_entry("immediate", immediate)?;
        }
        if let Some(key) = invalidate {
            map.serialize_entry("invalidate", &key.value())?;
        }
        map.end()
    }
}

struct Acknowledgement<'a>(&'a wire::Aeth);

impl Serialize for Acknowledgement<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("syndrome", &self.0.syndrome.byte())?;
        map.serialize_entry("text", &Shown(&self.0.syndrome))?;
        map.serialize_entry("msn", &self.0.msn.value())?;
        map.end()
    }
}

/// An object of fields of one type.
struct Object<'a, T>(&'a [(&'static str, T)]);

impl<T: Serialize> Serialize for Object<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// A field of a call.
struct Field<'a>(Value<'a>);

impl Serialize for Field<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Number(number) => serializer.serialize_u64(number),
            Value::Signed(number) => serializer.serialize_i64(number),
            Value::Flag(flag) => serializer.serialize_bool(flag),
            Value::Text(text) => serializer.serialize_str(text),
            Value::Access(_) | Value::Bytes(_) => serializer.collect_str(&self.0),
            Value::Pieces(pieces) => {
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("count", &pieces.count)?;
                map.serialize_entry("bytes", &pieces.bytes)?;
                let list: Vec<_> =
                    pieces.kept().iter().map(|piece| (piece.address, piece.length, piece.key.value())).collect();
                map.serialize_entry("list", &list)?;
                map.end()
            }
        }
    }
}

/// Why work failed: a name, the values, and the sentence.
struct Failed<'a>(&'a Failure);

impl Serialize for Failed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", self.0.name())?;
        match self.0 {
            Failure::Refused(refusal) => map.serialize_entry("refusal", &Refused(refusal))?,
            Failure::Nak { code, psn, peer } => {
                map.serialize_entry("code", &code.code())?;
                map.serialize_entry("psn", &psn.value())?;
                if let Some(peer) = peer {
                    map.serialize_entry("peer", &Peer(peer))?;
                }
            }
            Failure::NoAnswer { psn, tries } | Failure::NotReady { psn, tries } => {
                map.serialize_entry("psn", &psn.value())?;
                map.serialize_entry("tries", tries)?;
            }
            Failure::PeerGone { psn } => map.serialize_entry("psn", &psn.value())?,
            Failure::TooLong { length, space } => {
                map.serialize_entry("length", length)?;
                map.serialize_entry("space", space)?;
            }
            Failure::OverMtu { length, mtu } => {
                map.serialize_entry("length", length)?;
                map.serialize_entry("mtu", mtu)?;
            }
            Failure::AtomicTooShort { length } => map.serialize_entry("length", length)?,
            Failure::BadAnswer { what, psn } | Failure::PeerFault { what, psn } => {
                map.serialize_entry("what", what)?;
                map.serialize_entry("psn", &psn.value())?;
            }
            Failure::NotCarried { transport } => map.serialize_entry("transport", transport)?,
            Failure::Unsuitable { what } => map.serialize_entry("what", what)?,
            Failure::Flushed => {}
        }
        map.serialize_entry("text", &Shown(self.0))?;
        map.end()
    }
}

/// What the peer said beside a NAK.
struct Peer<'a>(&'a PeerReason);

impl Serialize for Peer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", self.0.name())?;
        match self.0 {
            PeerReason::Refused { key, access, cause } => {
                map.serialize_entry("key", &key.value())?;
                map.serialize_entry("access", &Shown(access))?;
                refusal_cause(*cause, &mut map)?;
            }
            PeerReason::RegionForbids { key, access, granted } => {
                map.serialize_entry("key", &key.value())?;
                map.serialize_entry("access", &Shown(access))?;
                map.serialize_entry("granted", &Shown(granted))?;
            }
            PeerReason::OtherDomain { key, region, pair } => {
                map.serialize_entry("key", &key.value())?;
                map.serialize_entry("region", region)?;
                map.serialize_entry("pair", pair)?;
            }
            PeerReason::PairForbids { access, granted } => {
                map.serialize_entry("access", &Shown(access))?;
                map.serialize_entry("granted", &Shown(granted))?;
            }
            PeerReason::TooLong { length, space } => {
                map.serialize_entry("length", length)?;
                map.serialize_entry("space", space)?;
            }
            PeerReason::TooManyReads { max } => map.serialize_entry("max", max)?,
            PeerReason::Fault(fault) => map.serialize_entry("fault", fault.name())?,
        }
        map.end()
    }
}

/// An access that was refused.
struct Refused<'a>(&'a Refusal);

impl Serialize for Refused<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Refusal { range, access, cause } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("key", &range.key.value())?;
        map.serialize_entry("address", &range.address)?;
        map.serialize_entry("length", &range.length)?;
        map.serialize_entry("access", &Shown(access))?;
        refusal_cause(*cause, &mut map)?;
        map.end()
    }
}

fn refusal_cause<M: SerializeMap>(cause: RefusalCause, map: &mut M) -> Result<(), M::Error> {
    map.serialize_entry("cause", cause.name())?;
    if let RefusalCause::OutOfBounds { start, length } = cause {
        map.serialize_entry("region_start", &start)?;
        map.serialize_entry("region_length", &length)?;
    }
    if let RefusalCause::GpuFailed { error } = cause {
        map.serialize_entry("gpu_error", &error)?;
    }
    Ok(())
}
