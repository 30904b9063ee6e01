//! One failure, from its table.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use toml::de::DeValue;

use super::{CallTrigger, ConnectionPlace, Failure, Named, Nanos, Of, PairPlace, Place, Since, Start, When};
use crate::action::{Action, Direction, Hook};
use crate::error::ScriptError;
use crate::text::{Item, Table};
use crate::words;

/// Keys that say when and where.
const COMMON_KEYS: &[&str] = &[
    "at",
    "since",
    "after",
    "of",
    "call",
    "nth",
    "rate",
    "times",
    "every",
    "for",
    "host",
    "process",
    "device",
    "port",
    "queue-pair",
    "completion-queue",
    "connection",
    "do",
];

/// Those that say where in a process.
const PLACES_IN_NICS: &[&str] = &["device", "port", "queue-pair", "completion-queue", "connection"];

/// What failures do, each with its own keys.
pub(crate) const ACTIONS: &[(&str, &[&str])] = &[
    ("port-down", &[]),
    ("port-up", &[]),
    ("flap", &["period"]),
    ("link-speed", &["speed"]),
    ("gid-remove", &["index"]),
    ("gid-change", &["index", "gid"]),
    ("lid-change", &["lid"]),
    ("sm-change", &[]),
    ("client-reregister", &[]),
    ("pkey-change", &["index", "pkey"]),
    ("device-fatal", &[]),
    ("device-remove", &[]),
    ("qp-error", &[]),
    ("qp-sqe", &[]),
    ("complete", &["status", "vendor"]),
    ("lose-completion", &[]),
    ("delay-completion", &["by"]),
    ("cq-overrun", &[]),
    ("srq-error", &[]),
    ("path-migrated", &[]),
    ("path-migration-failed", &[]),
    ("fail", &["errno"]),
    ("delay", &["by"]),
    ("cm-event", &["event", "status"]),
    ("reject", &["reason"]),
    ("lose-message", &["message"]),
    ("loss", &["chance", "to"]),
    ("latency", &["by", "jitter", "to"]),
    ("rate-limit", &["speed", "to"]),
    ("reorder", &["chance", "to"]),
    ("duplicate", &["chance", "to"]),
    ("damage", &["chance", "to"]),
    ("black-hole", &["direction", "to"]),
    ("stop", &[]),
    ("continue", &[]),
    ("kill", &["signal"]),
    ("slow", &["share"]),
    ("gpu-copy-fails", &[]),
];

/// The shortest distance at which something strikes again by itself.
const MIN_PERIOD: Nanos = 1_000_000;

pub fn read(mut table: Table<'_>) -> Result<Failure, ScriptError> {
    let said = table.need("do", "what happens, such as do = \"port-down\"")?;
    let word = said.text()?;
    let known = || ACTIONS.iter().map(|(name, _)| *name);
    let Some((_, own_keys)) = ACTIONS.iter().find(|(name, _)| *name == word) else {
        return Err(ScriptError::unknown(said.line, word, "failure", known().collect::<Vec<_>>()));
    };
    table.line = said.line;
    let action = action(word, &mut table)?;
    if action.hook() == Some(Hook::Call)
        && let Some((key, item)) = PLACES_IN_NICS.iter().copied().find_map(|key| Some((key, table.take(key)?)))
    {
        return Err(item.wrong(format_args!("no {key}: of a call only the host and the process are known")));
    }
    let mut place = place(&mut table, action)?;
    if action.is_of_network() {
        place.to = table.take("to").map(|item| item.text().map(String::from)).transpose()?;
    }
    let when = when(&mut table, action, said.line)?;
    let keys: Vec<&str> = COMMON_KEYS.iter().chain(*own_keys).copied().collect();
    table.finish("key of this failure", &keys)?;
    Ok(Failure { line: said.line, when, place, action })
}

fn action(word: &str, table: &mut Table<'_>) -> Result<Action, ScriptError> {
    const STEP: Nanos = 1;
    let chance = |table: &mut Table<'_>| table.need("chance", "chance = \"1%\"")?.chance();
    let by = |table: &mut Table<'_>| table.need("by", "by = \"10ms\"")?.time(STEP);
    let speed = |table: &mut Table<'_>| table.need("speed", "speed = \"25G\"")?.speed();
    let index = |table: &mut Table<'_>, most: u64| {
        table.take("index").map_or(Ok(0), |item| item.whole(0, most)).map(|index| index as u16)
    };
    const MAX_GID_INDEX: u64 = 255;
    Ok(match word {
        "port-down" => Action::PortDown,
        "port-up" => Action::PortUp,
        "flap" => Action::Flap { period: table.need("period", "period = \"1s\"")?.time(MIN_PERIOD)? },
        "link-speed" => Action::LinkSpeed { speed: speed(table)? },
        "gid-remove" => Action::GidRemove { index: index(table, MAX_GID_INDEX)? },
        "gid-change" => Action::GidChange {
            index: index(table, MAX_GID_INDEX)?,
            gid: gid(&table.need("gid", "gid = \"fe80::1\" or \"10.0.0.9\"")?)?,
        },
        "lid-change" => Action::LidChange { lid: table.need("lid", "lid = 7")?.whole(1, 0xbfff)? as u16 },
        "sm-change" => Action::SmChange,
        "client-reregister" => Action::ClientReregister,
        "pkey-change" => Action::PkeyChange {
            index: index(table, 127)?,
            pkey: table.need("pkey", "pkey = 0x8001")?.whole(1, 0xffff)? as u16,
        },
        "device-fatal" => Action::DeviceFatal,
        "device-remove" => Action::DeviceRemove,
        "qp-error" => Action::QpError,
        "qp-sqe" => Action::QpSqe,
        "complete" => {
            let status = table.need("status", "status = 12 or \"RETRY_EXC_ERR\"")?;
            let number = status.named(words::STATUSES, "status", 23)?;
            if words::name(words::STATUSES, number).is_none() {
                return Err(status.wrong("the number of an error in ibv_wc_status, such as 12"));
            }
            let usual =
                words::VENDOR_ERRORS.iter().find(|(known, _)| *known == number).map_or(0, |(_, vendor)| *vendor);
            let vendor = table.take("vendor").map_or(Ok(u64::from(usual)), |item| item.whole(0, u32::MAX.into()))?;
            Action::Complete { status: number, vendor: vendor as u32 }
        }
        "lose-completion" => Action::LoseCompletion,
        "delay-completion" => Action::DelayCompletion { by: by(table)? },
        "cq-overrun" => Action::CqOverrun,
        "srq-error" => Action::SrqError,
        "path-migrated" => Action::PathMigrated,
        "path-migration-failed" => Action::PathMigrationFailed,
        "fail" => {
            let errno = table.need("errno", "errno = \"ENOMEM\"")?;
            let number = errno.named(words::ERRNOS, "errno", 133)?;
            if words::name(words::ERRNOS, number).is_none() {
                return Err(errno.wrong("the name of an errno that calls give, such as \"ENOMEM\""));
            }
            Action::Fail { errno: number.cast_signed() }
        }
        "delay" => Action::Delay { by: by(table)? },
        "cm-event" => {
            let event = table.need("event", "event = \"UNREACHABLE\"")?;
            let number = event.named(words::CM_EVENTS, "event", 15)?;
            if words::name(words::CM_EVENTS, number).is_none() {
                return Err(event.wrong("the name of an event that tells of a failure, such as \"UNREACHABLE\""));
            }
            let usual = match number {
                8 => 28,
                1 | 3 | 6 | 7 | 13 => words::number(words::ERRNOS, "ETIMEDOUT").map_or(0, |errno| -errno.cast_signed()),
                _ => 0,
            };
            Action::CmEvent { event: number, status: table.take("status").map_or(Ok(usual), |item| status(&item))? }
        }
        "reject" => {
            let reason =
                table.take("reason").map_or(Ok(28), |item| item.named(words::REJECT_REASONS, "reason", 0xffff))?;
            Action::Reject { reason: reason as u16 }
        }
        "lose-message" => {
            let message = table.need("message", "message = \"RTU\"")?;
            let known: Vec<&str> = words::CM_MESSAGES.iter().map(|(name, _)| *name).collect();
            let name = message.text()?;
            let number = words::number(words::CM_MESSAGES, name)
                .ok_or_else(|| ScriptError::unknown(message.line, name, "message of the connection manager", known))?;
            Action::LoseMessage { message: number }
        }
        "loss" => Action::Loss { chance: chance(table)? },
        "latency" => {
            Action::Latency { by: by(table)?, jitter: table.take("jitter").map_or(Ok(0), |item| item.time(0))? }
        }
        "rate-limit" => Action::RateLimit { speed: speed(table)? },
        "reorder" => Action::Reorder { chance: chance(table)? },
        "duplicate" => Action::Duplicate { chance: chance(table)? },
        "damage" => Action::Damage { chance: chance(table)? },
        "black-hole" => {
            let word =
                table.take("direction").map_or(Ok("both"), |item| item.one_of(&["in", "out", "both"], "direction"))?;
            Action::BlackHole {
                direction: match word {
                    "in" => Direction::In,
                    "out" => Direction::Out,
                    _ => Direction::Both,
                },
            }
        }
        "stop" => Action::Stop,
        "continue" => Action::Continue,
        "kill" => {
            let signal = table.take("signal").map_or(Ok(9), |item| item.named(words::SIGNALS, "signal", 31))?;
            Action::Kill { signal: signal.cast_signed() }
        }
        "slow" => {
            let item = table.need("share", "share = \"10%\"")?;
            let share = item.chance()?;
            if share.0 <= 0.0 || share.0 >= 1.0 {
                return Err(item.wrong("a share between 0% and 100%, such as \"10%\""));
            }
            Action::Slow { share }
        }
        // The last of the table: a word that is not in it was refused before.
        _ => Action::GpuCopyFails,
    })
}

/// The status of an event: a number, negative for an errno, or the name of an errno, which counts as negative.
fn status(item: &Item<'_>) -> Result<i32, ScriptError> {
    match item.value {
        DeValue::Integer(number) => i32::from_str_radix(number.as_str(), number.radix())
            .map_err(|_| item.wrong("a status such as -110, or the name of an errno")),
        _ => item.named(words::ERRNOS, "errno", 133).map(|errno| -errno.cast_signed()),
    }
}

fn gid(item: &Item<'_>) -> Result<[u8; 16], ScriptError> {
    match item.text()?.parse() {
        Ok(IpAddr::V6(address)) => Ok(address.octets()),
        Ok(IpAddr::V4(address)) => Ok(address.to_ipv6_mapped().octets()),
        Err(_) => Err(item.wrong("a GID such as \"fe80::1\", or an IPv4 address")),
    }
}

fn address(item: &Item<'_>) -> Result<IpAddr, ScriptError> {
    let address: IpAddr = item.text()?.parse().map_err(|_| item.wrong("an IP address such as \"10.0.0.2\""))?;
    Ok(match address {
        IpAddr::V6(address) => canonical(address),
        IpAddr::V4(_) => address,
    })
}

fn canonical(address: Ipv6Addr) -> IpAddr {
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

fn named(item: &Item<'_>) -> Result<Named, ScriptError> {
    let text = item.text()?;
    match text.strip_prefix('#') {
        None => Ok(Named::Name(text.into())),
        Some(digits) => digits
            .parse()
            .map(Named::Index)
            .map_err(|_| item.wrong("a name, or \"#0\" for the first, \"#1\" for the second")),
    }
}

fn order(table: &mut Table<'_>) -> Result<Option<u32>, ScriptError> {
    table.take("order").map(|item| item.whole(1, u32::MAX.into()).map(|order| order as u32)).transpose()
}

fn place(table: &mut Table<'_>, action: Action) -> Result<Place, ScriptError> {
    let mut place = Place {
        host: table.take("host").map(|item| item.text().map(String::from)).transpose()?,
        process: table.take("process").map(|item| named(&item)).transpose()?,
        device: table.take("device").map(|item| named(&item)).transpose()?,
        port: table.take("port").map(|item| item.whole(1, 254).map(|port| port as u8)).transpose()?,
        ..Place::default()
    };
    if let Some(item) = table.take("queue-pair") {
        let mut pair = item.table("{ type = \"RC\", order = 1 }")?;
        place.pair = Some(PairPlace {
            number: pair.take("number").map(|item| item.whole(0, 0xff_ffff).map(|qpn| qpn as u32)).transpose()?,
            kind: pair.take("type").map(|item| pair_kind(&item, action)).transpose()?,
            peer: pair.take("peer").map(|item| address(&item)).transpose()?,
            order: order(&mut pair)?,
        });
        pair.finish("key of a queue pair", &["number", "type", "peer", "order"])?;
    }
    if let Some(item) = table.take("completion-queue") {
        let mut queue = item.table("{ order = 1 }")?;
        place.queue = order(&mut queue)?;
        if place.queue.is_none() {
            return Err(item.wrong("which: { order = 1 }"));
        }
        queue.finish("key of a completion queue", &["order"])?;
    }
    if let Some(item) = table.take("connection") {
        let mut connection = item.table("{ order = 1 }")?;
        place.connection = Some(ConnectionPlace {
            order: order(&mut connection)?,
            peer: connection.take("peer").map(|item| address(&item)).transpose()?,
            port: connection.take("port").map(|item| item.whole(1, 65535).map(|port| port as u16)).transpose()?,
        });
        connection.finish("key of a connection", &["order", "peer", "port"])?;
    }
    Ok(place)
}

/// A type of queue pair, whose work can have the status that the failure gives it.
fn pair_kind(item: &Item<'_>, action: Action) -> Result<&'static str, ScriptError> {
    let kind = item.one_of(words::PAIR_KINDS, "type of queue pair")?;
    let Action::Complete { status, .. } = action else { return Ok(kind) };
    let takes = |kind: &str| [false, true].map(|is_receive| words::completes_with(status, is_receive, kind));
    if takes(kind) != [false, false] {
        return Ok(kind);
    }
    let can: Vec<&str> = words::PAIR_KINDS.iter().copied().filter(|kind| takes(kind) != [false, false]).collect();
    let work = if words::completes_with(status, false, "RC") { "sends" } else { "receives" };
    let name = words::name(words::STATUSES, status).unwrap_or("?");
    Err(item.wrong(format_args!("{}: only {work} of these complete with {name}", can.join(", "))))
}

fn when(table: &mut Table<'_>, action: Action, line: usize) -> Result<When, ScriptError> {
    if table.has("at") && table.has("after") {
        return Err(ScriptError::at(line, "at and after are two triggers; expected one of them"));
    }
    let rate = table.take("rate").map(|item| item.chance()).transpose()?;
    let call = call(table)?;
    if call.is_none() && action.hook() == Some(Hook::Call) {
        let said = "call is missing; expected the call that fails or takes longer, such as call = \"ibv_reg_mr\"";
        return Err(ScriptError::at(line, said));
    }
    let (every, each) = match table.take("every") {
        None => (None, false),
        Some(Item { value: DeValue::Boolean(true), .. }) if call.is_some() => (None, true),
        Some(item) if call.is_some() => {
            return Err(item.wrong("true, with call: that call and each later one"));
        }
        Some(item) => (Some(item.time(MIN_PERIOD)?), false),
    };
    let lasts = match table.take("for") {
        Some(item) if action.lasts() || action.hook().is_some() => Some(item.time(1)?),
        Some(item) => return Err(item.wrong(format_args!("no for: {} has no end", action.name()))),
        None => None,
    };
    if let (Some(every), Some(lasts)) = (every, lasts)
        && lasts >= every
    {
        return Err(ScriptError::at(
            line,
            "for is as long as every, or longer: it would never end; expected a shorter one",
        ));
    }
    let times = times(table)?.unwrap_or((every.is_none() && !each && rate.is_none()).then_some(1));
    let start = start(table, call.is_some())?;
    let call = call.map(|call| CallTrigger { and_later: each, ..call });
    Ok(When { start, call, rate, times, every, lasts })
}

fn times(table: &mut Table<'_>) -> Result<Option<Option<u64>>, ScriptError> {
    let Some(item) = table.take("times") else { return Ok(None) };
    match item.value {
        DeValue::String(text) if text == "always" => Ok(Some(None)),
        DeValue::Integer(_) => item.whole(1, u64::MAX).map(|times| Some(Some(times))),
        _ => Err(item.wrong("a number, or \"always\"")),
    }
}

fn call(table: &mut Table<'_>) -> Result<Option<CallTrigger>, ScriptError> {
    let nth = table.take("nth");
    let Some(item) = table.take("call") else {
        return match nth {
            Some(nth) => Err(nth.wrong("no nth without a call")),
            None => Ok(None),
        };
    };
    let name = item.text()?;
    let is_known = match name.strip_suffix('*') {
        Some(prefix) => words::CALLS.iter().any(|known| known.starts_with(prefix)),
        None => words::CALLS.contains(&name),
    };
    if !is_known {
        let near = words::nearest(name, words::CALLS.iter().copied());
        let meant = near.map(|near| alloc::format!("; did you mean {near}?")).unwrap_or_default();
        return Err(item.wrong(format_args!(
            "a call of verbs.h, rdma_cma.h or umad.h, such as \"ibv_reg_mr\", or \"ibv_reg_*\" for all that begin so{meant}"
        )));
    }
    let nth = nth.map_or(Ok(1), |nth| nth.whole(1, u64::MAX))?;
    Ok(Some(CallTrigger { name: name.into(), nth, and_later: false }))
}

fn start(table: &mut Table<'_>, has_call: bool) -> Result<Start, ScriptError> {
    let since = match table.take("since") {
        Some(item) if !table.has("at") => return Err(item.wrong("at = \"2s\" with since")),
        Some(item) => match item.one_of(&["start", "message"], "moment that times count from")? {
            "start" => Since::Start,
            _ => Since::FirstMessage,
        },
        None => Since::Start,
    };
    if let Some(item) = table.take("at") {
        return Ok(Start::Time { at: item.time(0)?, since });
    }
    let of = table.take("of");
    let Some(item) = table.take("after") else {
        return match of {
            Some(of) => Err(of.wrong("no of without after")),
            None if has_call => Ok(Start::Call),
            None => Ok(Start::Messages(1, Of::Process)),
        };
    };
    let of = match of {
        None => Of::Process,
        Some(of) => match of.one_of(&["device", "queue-pair", "process"], "thing that counts for itself")? {
            "device" => Of::Device,
            "queue-pair" => Of::QueuePair,
            _ => Of::Process,
        },
    };
    let mut after = item.table("{ messages = 1000 }")?;
    let messages = after.take("messages").map(|item| item.whole(1, u64::MAX)).transpose()?;
    let bytes = after.take("bytes").map(|item| item.size()).transpose()?;
    after.finish("key of after", &["messages", "bytes"])?;
    match (messages, bytes) {
        (Some(messages), None) => Ok(Start::Messages(messages, of)),
        (None, Some(bytes)) => Ok(Start::Bytes(bytes, of)),
        _ => Err(item.wrong("one of messages and bytes: { messages = 1000 }")),
    }
}
