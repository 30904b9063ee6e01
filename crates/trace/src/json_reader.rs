//! Reads what [`JsonLines`](crate::JsonLines) wrote: the log of an earlier run becomes events again. A log is a file
//! that anybody may have written: lines and words are bounded, events that are not known are skipped and counted, and
//! so are lines that are no JSON: a log on standard error has those of the program in between.

use std::boxed::Box;
use std::collections::BTreeSet;
use std::io::{self, BufRead, Read};
use std::string::String;
use std::sync::Mutex;
use std::vec::Vec;

use serde_json::{Map, Value};
use wire::access::{Access, Range, Refusal, RefusalCause};
use wire::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Headers, Key, Msn, NakCode, Opcode, Pkey, Placement, Psn, Qkey, Qpn,
    Reth, Selectivity, Srqn, Syndrome,
};

use crate::call::{Call, Piece, Pieces};
use crate::event::{Event, Kind};
use crate::failure::Failure;
use crate::peer_reason::PeerReason;
use crate::reason::{ConnectionEnd, DropReason, Queue, RequestFault, RetryCause, StateCause, Timer, WindowCause};
use crate::text::Text;

/// The longest line that is read.
const MAX_LINE: u64 = 1 << 16;
/// How many different words logs may bring.
const MAX_WORDS: usize = 4096;
/// The longest of them.
const MAX_WORD: usize = 120;

/// An event of a log, and where and when it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Logged {
    /// The event.
    pub event: Event,
    /// The line, from 1.
    pub line: u64,
    /// The host, where the log names one.
    pub source: Option<String>,
    /// Nanoseconds since the Unix epoch, where the log says so.
    pub wall: Option<u64>,
    /// The process, where the log names it.
    pub process: Option<u32>,
}

/// Why a log cannot be read on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system refused.
    #[error("line {line}: {source}")]
    Io {
        /// The line, from 1.
        line: u64,
        /// What it said.
        source: io::Error,
    },
    /// No line of a log is that long.
    #[error("line {line}: longer than {MAX_LINE} bytes; is this a log of events?")]
    TooLong {
        /// The line, from 1.
        line: u64,
    },
}

/// Reads events from JSON lines.
#[derive(Debug)]
pub struct JsonReader<R> {
    reader: R,
    line: u64,
    skipped: u64,
    foreign: u64,
    cut_in: Option<u64>,
    buffer: Vec<u8>,
}

impl<R: BufRead> JsonReader<R> {
    /// Reads from `reader`.
    #[must_use]
    pub const fn new(reader: R) -> Self {
        Self { reader, line: 0, skipped: 0, foreign: 0, cut_in: None, buffer: Vec::new() }
    }

    /// Lines that are objects and no events that are known here.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Lines that are no JSON objects: those of another program.
    #[must_use]
    pub const fn foreign(&self) -> u64 {
        self.foreign
    }

    /// The last line, if its writer did not finish it: what came then is not known.
    #[must_use]
    pub const fn cut_in(&self) -> Option<u64> {
        self.cut_in
    }

    /// The next event; `None` at the end. A line that the writer did not finish is the end, too.
    ///
    /// # Errors
    /// What is no log, and what the system cannot read.
    pub fn next_event(&mut self) -> Result<Option<Logged>, ReadError> {
        loop {
            self.buffer.clear();
            self.line += 1;
            let line = self.line;
            let mut limited = (&mut self.reader).take(MAX_LINE + 1);
            let read = limited.read_until(b'\n', &mut self.buffer).map_err(|source| ReadError::Io { line, source })?;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 > MAX_LINE {
                return Err(ReadError::TooLong { line });
            }
            let is_whole = self.buffer.last() == Some(&b'\n');
            if self.buffer.trim_ascii().is_empty() {
                continue;
            }
            let Ok(fields) = serde_json::from_slice::<Map<String, Value>>(&self.buffer) else {
                if is_whole || !self.buffer.trim_ascii_start().starts_with(b"{") {
                    self.foreign += 1;
                    continue;
                }
                self.cut_in = Some(line);
                return Ok(None);
            };
            let fields = Fields(&fields);
            match event(&fields) {
                Some(event) => {
                    let source = fields.value("source").and_then(Value::as_str);
                    return Ok(Some(Logged {
                        event,
                        line,
                        source: source.map(|source| source.chars().take(MAX_WORD).collect()),
                        wall: fields.get("wall"),
                        process: fields.get("pid"),
                    }));
                }
                None => self.skipped += 1,
            }
        }
    }
}

/// A word that events carry as `&'static str`: kept once for the life of the process, unless there are too many.
fn intern(word: &str) -> Option<&'static str> {
    static WORDS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if word.len() > MAX_WORD {
        return None;
    }
    let mut words = WORDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(known) = words.get(word) {
        return Some(known);
    }
    if words.len() >= MAX_WORDS {
        return None;
    }
    let kept: &'static str = Box::leak(Box::from(word));
    words.insert(kept);
    Some(kept)
}

/// The fields of an object.
pub(crate) struct Fields<'a>(&'a Map<String, Value>);

impl<'a> Fields<'a> {
    fn value(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name)
    }

    /// A field that must be there.
    pub fn get<T: FromJson>(&self, name: &str) -> Option<T> {
        T::from_json(self.value(name))
    }

    fn object(&self, name: &str) -> Option<Fields<'a>> {
        self.value(name)?.as_object().map(Fields)
    }

    /// A word of a list.
    fn word<T>(&self, name: &str, named: fn(&str) -> Option<T>) -> Option<T> {
        named(self.value(name)?.as_str()?)
    }
}

/// A type that a field may have.
pub(crate) trait FromJson: Sized {
    /// `None` where the value is none of this type.
    fn from_json(value: Option<&Value>) -> Option<Self>;
}

macro_rules! numbers {
    ($($Type:ty => $make:expr),+ $(,)?) => {
        $(impl FromJson for $Type {
            fn from_json(value: Option<&Value>) -> Option<Self> {
                let make: fn(u64) -> Option<$Type> = $make;
                make(value?.as_u64()?)
            }
        })+
    };
}

numbers! {
    u8 => |number| number.try_into().ok(),
    u16 => |number| number.try_into().ok(),
    u32 => |number| number.try_into().ok(),
    u64 => Some,
    Key => |number| Some(Key::new(number.try_into().ok()?)),
    Qkey => |number| Some(Qkey::new(number.try_into().ok()?)),
    Pkey => |number| Some(Pkey::new(number.try_into().ok()?)),
    Qpn => |number| Some(Qpn::new(number.try_into().ok()?)),
    Srqn => |number| Some(Srqn::new(number.try_into().ok()?)),
    Psn => |number| Some(Psn::new(number.try_into().ok()?)),
    Msn => |number| Some(Msn::new(number.try_into().ok()?)),
}

impl FromJson for i32 {
    fn from_json(value: Option<&Value>) -> Option<Self> {
        value?.as_i64()?.try_into().ok()
    }
}

impl FromJson for bool {
    fn from_json(value: Option<&Value>) -> Option<Self> {
        value?.as_bool()
    }
}

impl FromJson for &'static str {
    fn from_json(value: Option<&Value>) -> Option<Self> {
        intern(value?.as_str()?)
    }
}

impl<const N: usize> FromJson for Text<N> {
    fn from_json(value: Option<&Value>) -> Option<Self> {
        Some(Text::of(value?.as_str()?))
    }
}

impl FromJson for Access {
    fn from_json(value: Option<&Value>) -> Option<Self> {
        let mut rights = Access::empty();
        for name in value?.as_str()?.split('|').take(32) {
            rights |= match name.strip_prefix("0x") {
                Some(bits) => Access::from_bits_retain(u32::from_str_radix(bits, 16).ok()?),
                None if name == "LOCAL_READ" => Access::empty(),
                None => Access::from_name(name)?,
            };
        }
        Some(rights)
    }
}

impl FromJson for Pieces {
    fn from_json(value: Option<&Value>) -> Option<Self> {
        let fields = Fields(value?.as_object()?);
        let list = fields.value("list")?.as_array()?;
        let (count, bytes): (u32, u64) = (fields.get("count")?, fields.get("bytes")?);
        let mut pieces: Pieces = list
            .iter()
            .take(count.min(Pieces::KEPT_PIECES) as usize)
            .map(|piece| {
                let [address, length, key] = piece.as_array()?.as_slice() else { return None };
                let (length, key) = (u32::from_json(Some(length))?, Key::from_json(Some(key))?);
                Some(Piece { address: address.as_u64()?, length, key })
            })
            .collect::<Option<Pieces>>()?;
        (pieces.count, pieces.bytes) = (count, bytes);
        Some(pieces)
    }
}

impl FromJson for [u8; 16] {
    fn from_json(value: Option<&Value>) -> Option<Self> {
        let text = value?.as_str()?;
        let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32)?;
        Some(number.to_be_bytes())
    }
}

impl<T: FromJson> FromJson for Option<T> {
    fn from_json(value: Option<&Value>) -> Option<Self> {
        match value {
            None => Some(None),
            Some(_) => T::from_json(value).map(Some),
        }
    }
}

fn event(fields: &Fields<'_>) -> Option<Event> {
    let name = fields.value("event")?.as_str()?;
    Some(Event { at: fields.get("at")?, qpn: fields.get("qpn")?, kind: kind(name, fields)? })
}

fn kind(name: &str, fields: &Fields<'_>) -> Option<Kind> {
    let queue = || fields.word("queue", Queue::named);
    let timer = || fields.word("timer", Timer::named);
    Some(match name {
        "work_posted" => Kind::WorkPosted {
            wr_id: fields.get("wr_id")?,
            queue: queue()?,
            opcode: fields.get("opcode")?,
            bytes: fields.get("bytes")?,
        },
        "post_refused" => {
            Kind::PostRefused { wr_id: fields.get("wr_id")?, queue: queue()?, reason: fields.get("reason")? }
        }
        "packet_sent" => Kind::PacketSent {
            headers: headers(&fields.object("packet")?)?,
            payload_len: fields.get("payload_len")?,
            packets: fields.get("packets")?,
            wr_id: fields.get("wr_id")?,
            retransmit: fields.get("retransmit")?,
        },
        "packet_received" => Kind::PacketReceived {
            headers: headers(&fields.object("packet")?)?,
            payload_len: fields.get("payload_len")?,
            packets: fields.get("packets")?,
        },
        "packet_dropped" => Kind::PacketDropped {
            headers: match fields.object("packet") {
                Some(packet) => Some(headers(&packet)?),
                None => None,
            },
            reason: fields.word("reason", DropReason::named)?,
        },
        "cm_message_dropped" => Kind::CmMessageDropped {
            message: fields.get("message")?,
            local_comm_id: fields.get("local_comm_id")?,
            reason: fields.word("reason", DropReason::named)?,
        },
        "state_changed" => {
            Kind::StateChanged { from: fields.get("from")?, to: fields.get("to")?, cause: state_cause(fields)? }
        }
        "completed" => Kind::Completed {
            wr_id: fields.get("wr_id")?,
            queue: queue()?,
            status: fields.get("status")?,
            opcode: fields.get("opcode")?,
            bytes: fields.get("bytes")?,
            failure: match fields.object("failure") {
                Some(failed) => Some(failure(&failed)?),
                None => None,
            },
        },
        "called" => {
            let call = Call::read(fields.value("call")?.as_str()?, fields)?;
            Kind::Called { thread: fields.get("thread")?, call }
        }
        "flushed" => Kind::Flushed { sends: fields.get("sends")?, receives: fields.get("receives")? },
        "cq_overflowed" => Kind::CqOverflowed { cq: fields.get("cq")?, capacity: fields.get("capacity")? },
        "timer_set" => Kind::TimerSet { timer: timer()?, deadline: fields.get("deadline")? },
        "timer_fired" => Kind::TimerFired { timer: timer()?, deadline: fields.get("deadline")? },
        "timer_cleared" => Kind::TimerCleared { timer: timer()? },
        "retry" => Kind::Retry {
            cause: fields.word("cause", RetryCause::named)?,
            from: fields.get("from")?,
            left: fields.get("left")?,
        },
        "access_refused" => {
            let Refusal { range, access, cause } = refusal(fields)?;
            Kind::AccessRefused { key: range.key, address: range.address, length: range.length, access, cause }
        }
        "nak_sent" => Kind::NakSent { psn: fields.get("psn")?, code: fields.get("code")? },
        "nak_received" => Kind::NakReceived { psn: fields.get("psn")?, code: fields.get("code")? },
        "window_changed" => Kind::WindowChanged {
            from: fields.get("from")?,
            to: fields.get("to")?,
            cause: fields.word("cause", WindowCause::named)?,
        },
        "rate_changed" => Kind::RateChanged { from: fields.get("from")?, to: fields.get("to")? },
        "async_event" => Kind::AsyncEvent { name: fields.get("name")? },
        "cm_transition" => Kind::CmTransition {
            local_comm_id: fields.get("local_comm_id")?,
            from: fields.get("from")?,
            to: fields.get("to")?,
            message: fields.get("message")?,
        },
        "connection_ended" => Kind::ConnectionEnded {
            local_comm_id: fields.get("local_comm_id")?,
            by: fields.word("by", ConnectionEnd::named)?,
        },
        "capture_ended" => Kind::CaptureEnded { errno: fields.get("errno")? },
        _ => return None,
    })
}

fn state_cause(fields: &Fields<'_>) -> Option<StateCause> {
    Some(match fields.value("cause")?.as_str()? {
        "modify" => StateCause::Modify,
        "send_failed" => StateCause::SendFailed { wr_id: fields.get("wr_id")?, status: fields.get("status")? },
        "receive_failed" => StateCause::ReceiveFailed { wr_id: fields.get("wr_id")?, status: fields.get("status")? },
        "peer_request" => StateCause::PeerRequest(fields.get("what")?),
        "disconnected" => StateCause::Disconnected,
        "drained" => StateCause::Drained,
        "local" => StateCause::Local(fields.get("what")?),
        _ => return None,
    })
}

fn refusal(fields: &Fields<'_>) -> Option<Refusal> {
    let range = Range { key: fields.get("key")?, address: fields.get("address")?, length: fields.get("length")? };
    Some(Refusal { range, access: fields.get("access")?, cause: refusal_cause(fields)? })
}

fn refusal_cause(fields: &Fields<'_>) -> Option<RefusalCause> {
    let name = fields.value("cause")?.as_str()?;
    Some(match RefusalCause::ALL.iter().find(|cause| cause.name() == name)? {
        RefusalCause::OutOfBounds { .. } => {
            RefusalCause::OutOfBounds { start: fields.get("region_start")?, length: fields.get("region_length")? }
        }
        RefusalCause::GpuFailed { .. } => RefusalCause::GpuFailed { error: fields.get("gpu_error")? },
        cause => *cause,
    })
}

fn failure(fields: &Fields<'_>) -> Option<Failure> {
    let psn = || fields.get("psn");
    Some(match fields.value("name")?.as_str()? {
        "refused" => Failure::Refused(refusal(&fields.object("refusal")?)?),
        "nak" => Failure::Nak {
            code: NakCode::from_code(fields.get("code")?),
            psn: psn()?,
            peer: match fields.object("peer") {
                Some(reason) => Some(peer_reason(&reason)?),
                None => None,
            },
        },
        "no_answer" => Failure::NoAnswer { psn: psn()?, tries: fields.get("tries")? },
        "peer_gone" => Failure::PeerGone { psn: psn()? },
        "not_ready" => Failure::NotReady { psn: psn()?, tries: fields.get("tries")? },
        "too_long" => Failure::TooLong { length: fields.get("length")?, space: fields.get("space")? },
        "over_mtu" => Failure::OverMtu { length: fields.get("length")?, mtu: fields.get("mtu")? },
        "atomic_too_short" => Failure::AtomicTooShort { length: fields.get("length")? },
        "bad_answer" => Failure::BadAnswer { what: fields.get("what")?, psn: psn()? },
        "not_carried" => Failure::NotCarried { transport: fields.get("transport")? },
        "unsuitable" => Failure::Unsuitable { what: fields.get("what")? },
        "peer_fault" => Failure::PeerFault { what: fields.get("what")?, psn: psn()? },
        "flushed" => Failure::Flushed,
        _ => return None,
    })
}

fn peer_reason(fields: &Fields<'_>) -> Option<PeerReason> {
    Some(match fields.value("name")?.as_str()? {
        "refused" => PeerReason::Refused {
            key: fields.get("key")?,
            access: fields.get("access")?,
            cause: refusal_cause(fields)?,
        },
        "region_forbids" => PeerReason::RegionForbids {
            key: fields.get("key")?,
            access: fields.get("access")?,
            granted: fields.get("granted")?,
        },
        "other_domain" => PeerReason::OtherDomain {
            key: fields.get("key")?,
            region: fields.get("region")?,
            pair: fields.get("pair")?,
        },
        "pair_forbids" => PeerReason::PairForbids { access: fields.get("access")?, granted: fields.get("granted")? },
        "too_long" => PeerReason::TooLong { length: fields.get("length")?, space: fields.get("space")? },
        "too_many_reads" => PeerReason::TooManyReads { max: fields.get("max")? },
        "fault" => PeerReason::Fault(fields.word("fault", RequestFault::named)?),
        _ => return None,
    })
}

fn headers(fields: &Fields<'_>) -> Option<Headers> {
    let name = fields.value("opcode")?.as_str()?;
    let opcode = *Opcode::ALL.iter().find(|opcode| opcode.name() == name)?;
    let mut headers = Headers::new(opcode, fields.get("dest_qpn")?, fields.get("psn")?);
    let flag = |name| fields.get::<Option<bool>>(name).map(Option::unwrap_or_default);
    headers.bth.pkey = fields.get("pkey")?;
    headers.bth.ack_req = flag("ack_req")?;
    headers.bth.solicited = flag("solicited")?;
    headers.bth.fecn = flag("fecn")?;
    headers.bth.becn = flag("becn")?;
    headers.xrc = fields.get("xrc_srqn")?;
    headers.immediate = fields.get("immediate")?;
    headers.invalidate = fields.get("invalidate")?;
    if let Some(deth) = fields.object("deth") {
        headers.deth = Some(Deth { qkey: deth.get("qkey")?, src_qpn: deth.get("src_qpn")? });
    }
    if let Some(feth) = fields.object("feth") {
        let (placement, selectivity) = (feth.get("placement")?, feth.get::<u8>("selectivity")?);
        let placement = Placement::from_bits_retain(placement);
        headers.feth = Some(Feth { placement, selectivity: Selectivity::from_bits(selectivity & 3) });
    }
    if let Some(reth) = fields.object("reth") {
        headers.reth = Some(Reth { va: reth.get("va")?, rkey: reth.get("rkey")?, len: reth.get("len")? });
    }
    if let Some(atomic) = fields.object("atomic") {
        headers.atomic = Some(AtomicEth {
            va: atomic.get("va")?,
            rkey: atomic.get("rkey")?,
            swap_add: atomic.get("swap_add")?,
            compare: atomic.get("compare")?,
        });
    }
    if let Some(aeth) = fields.object("aeth") {
        headers.aeth = Some(Aeth { syndrome: Syndrome::from_byte(aeth.get("syndrome")?), msn: aeth.get("msn")? });
    }
    if let Some(ack) = fields.object("atomic_ack") {
        headers.atomic_ack = Some(AtomicAckEth { original: ack.get("original")? });
    }
    Some(headers)
}
