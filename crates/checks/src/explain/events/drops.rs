//! Packets that went no further.

use alloc::format;
use alloc::string::String;

use trace::DropReason;
use wire::{Headers, Qpn};

use super::{Watched, between};
use crate::finding::{Finding, Subject};
use crate::model::{Model, Pair, Work};
use crate::naming;
use crate::rule::Number;
use crate::rule::catalogue::events::*;

/// From how many packets of a queue pair on it is worth a word that they were dropped for nothing.
const MIN_ROUTINE_DROPS: u64 = 16;

/// Requests that arrive before the first one is accepted, and of which none is: more than a network loses.
const ALL_DROPPED: u64 = 3;

/// How many packets a sender may have under way when its first one is lost.
const MAX_PACKETS_IN_FLIGHT: u32 = 1 << 14;

/// The rule of a reason. Some depend on more.
const fn rule_of(reason: DropReason) -> Number {
    match reason {
        DropReason::Malformed
        | DropReason::BadIcrc
        | DropReason::BadFcs
        | DropReason::BadOpcodeForTransport
        | DropReason::NotFromGsi
        | DropReason::NotManagement => UNREADABLE,
        DropReason::BadLength | DropReason::TooLong => LENGTH,
        DropReason::UnknownQp | DropReason::UnknownXrcSrq => UNKNOWN_PAIR,
        DropReason::WrongState => WRONG_STATE,
        DropReason::WrongDestination
        | DropReason::WrongSource
        | DropReason::WrongLink
        | DropReason::WrongSocket
        | DropReason::Untrusted => FOREIGN_ADDRESS,
        DropReason::PkeyMismatch | DropReason::QkeyMismatch => KEY_MISMATCH,
        DropReason::OutOfOrder | DropReason::OutOfWindow | DropReason::Duplicate | DropReason::AfterNak => PSN_MISMATCH,
        DropReason::NoReceive => NO_RECEIVE,
        DropReason::AccessRefused => WRITE_FORBIDDEN,
        DropReason::Overflow
        | DropReason::NoMemory
        | DropReason::RandomLoss
        | DropReason::Partitioned
        | DropReason::NoRoute
        | DropReason::PortDown
        | DropReason::SystemRefused
        | DropReason::Unproven
        | DropReason::BrokenRing
        | DropReason::BadRecord => LOST,
        _ => ROUTINE_DROPS,
    }
}

/// Explains a dropped packet; none if it is not worth a word, or if another family tells of it.
pub(super) fn explain(
    model: &Model,
    qpn: Option<Qpn>,
    headers: Option<&Headers>,
    reason: DropReason,
    watched: Option<Watched>,
) -> Option<Finding> {
    let pair = qpn.and_then(|qpn| model.pairs.get(&qpn));
    let rule = rule_here(model, pair, headers, reason, watched)?;
    if rule == ROUTINE_DROPS && watched.is_none_or(|watched| watched.all_dropped < MIN_ROUTINE_DROPS) {
        return None;
    }
    let place = match (qpn, headers) {
        (Some(qpn), _) => naming::pair(model, qpn),
        (None, Some(headers)) => format!("QP {}", headers.bth.dest_qpn),
        (None, None) => "this process".into(),
    };
    let packet = headers.map_or_else(
        || "a packet".into(),
        |headers| format!("a packet ({}, PSN {})", headers.bth.opcode.name(), headers.bth.psn),
    );
    let subject = match (qpn, headers) {
        (Some(qpn), _) => Subject::QueuePair(qpn),
        (None, Some(headers)) => Subject::QueuePair(headers.bth.dest_qpn),
        (None, None) => Subject::Process,
    };
    let why = match is_for_group(headers, reason) {
        true => "it went to a multicast group, and members take only what is for QP 0xffffff".into(),
        false => format!("{reason}"),
    };
    let what = format!("{packet} for {place} was dropped: {why}");
    let (cause, advice) = words(rule, model, pair, headers, reason, watched);
    let finding = Finding::new(rule, subject, what, advice).because(cause);
    Some(between(finding, model, qpn, headers))
}

/// The rule, as far as it depends on the queue pair.
fn rule_here(
    model: &Model,
    pair: Option<&Pair>,
    headers: Option<&Headers>,
    reason: DropReason,
    watched: Option<Watched>,
) -> Option<Number> {
    if is_for_group(headers, reason) {
        return Some(UNKNOWN_PAIR);
    }
    let reliable = pair.is_none_or(|pair| matches!(pair.kind, "RC" | "XRC_SEND" | "XRC_RECV"));
    Some(match rule_of(reason) {
        // The peer is asked to wait, or told no; both have findings of their own.
        NO_RECEIVE | WRITE_FORBIDDEN if reliable => return None,
        PSN_MISMATCH if !counts_from_elsewhere(pair, watched) => ROUTINE_DROPS,
        // Late packets of a connection that has ended, or of a queue pair that is being destroyed.
        WRONG_STATE if pair.is_none_or(|pair| matches!(pair.state, "ERR" | "SQE")) => ROUTINE_DROPS,
        // An answer comes to a queue pair that has asked before: it was reset since.
        WRONG_STATE if headers.is_some_and(|headers| !headers.bth.opcode.is_request()) => ROUTINE_DROPS,
        // Late ones for a queue pair that was destroyed, or is being; of some the number is not known.
        UNKNOWN_PAIR if headers.is_none_or(|headers| is_of(model, headers)) => ROUTINE_DROPS,
        rule => rule,
    })
}

/// Whether it is a datagram that went to a multicast group and names a queue pair of its own.
fn is_for_group(headers: Option<&Headers>, reason: DropReason) -> bool {
    reason == DropReason::WrongDestination && headers.is_some_and(|headers| headers.deth.is_some())
}

/// Whether a packet is for a queue pair that the program has or had.
fn is_of(model: &Model, headers: &Headers) -> bool {
    let qpn = headers.bth.dest_qpn;
    model.pairs.contains_key(&qpn) || was_here(model, qpn)
}

fn was_here(model: &Model, qpn: Qpn) -> bool {
    model.gone_pairs.iter().any(|(gone, _)| *gone == qpn)
}

/// Whether the peer counts from another number than this side expects: its first request shows it.
fn counts_from_elsewhere(pair: Option<&Pair>, watched: Option<Watched>) -> bool {
    let (Some(pair), Some(watched)) = (pair, watched) else { return false };
    let (Some(expected), Some(first)) = (pair.connection.rq_psn, watched.first_request) else { return false };
    let ahead = first.distance_from(wire::Psn::new(expected));
    // The first packets may have been lost; then those behind them come first, and soon one is accepted.
    ahead != 0
        && (ahead > MAX_PACKETS_IN_FLIGHT || watched.requests == watched.dropped && watched.dropped >= ALL_DROPPED)
}

/// How long the receive of a datagram is, and how long it has to be, as far as that is known.
fn datagram_length(model: &Model, pair: Option<&Pair>, headers: Option<&Headers>) -> String {
    let mut text = String::from("the receive must hold the datagram and the 40 bytes of global route header before it");
    let srq = pair.and_then(|pair| model.srqs.get(&pair.srq?)).map(|srq| &srq.receives);
    let next = srq.or_else(|| pair.map(|pair| &pair.receives)).and_then(|receives| receives.iter().next());
    if let Some(next) = next {
        let (wr_id, bytes) = (next.wr_id, next.pieces.bytes);
        let room = bytes.saturating_sub(40);
        text = format!("{text}; the next receive, {wr_id}, has {bytes} bytes: room for a message of {room}");
    }
    // A sender in this process.
    let sender = headers.and_then(|headers| model.pairs.get(&headers.deth?.src_qpn));
    let to_here = |work: &&Work| work.remote_qpn.is_some_and(|qpn| Some(qpn) == pair.map(|pair| pair.qpn));
    if let Some(work) = sender.and_then(|sender| sender.sends.iter().find(to_here)) {
        let bytes = work.pieces.bytes;
        text = format!("{text}; the message has {bytes} bytes, so it needs a receive of {}", bytes + 40);
    }
    text
}

fn words(
    rule: Number,
    model: &Model,
    pair: Option<&Pair>,
    headers: Option<&Headers>,
    reason: DropReason,
    watched: Option<Watched>,
) -> (String, String) {
    match rule {
        KEY_MISMATCH => {
            let shown = headers.and_then(|headers| headers.deth).map(|deth| deth.qkey);
            let own = pair.and_then(|pair| pair.connection.qkey);
            let cause = match (reason, shown, own) {
                (DropReason::QkeyMismatch, Some(shown), Some(own)) => {
                    format!("the sender shows Q_Key {shown}, and the queue pair has {own}")
                }
                (DropReason::QkeyMismatch, Some(shown), None) => format!("the sender shows Q_Key {shown}"),
                _ => format!("{reason}"),
            };
            (
                cause,
                "set wr.ud.remote_qkey of the sender to the qkey that this queue pair was moved to INIT with".into(),
            )
        }
        PSN_MISMATCH => {
            let expected = pair.and_then(|pair| pair.connection.rq_psn).unwrap_or_default();
            let first = watched.and_then(|watched| watched.first_request).map_or(0, |psn| psn.value());
            (
                format!("this side expects PSN {expected} (rq_psn), and the peer begins with {first} (its sq_psn)"),
                "set rq_psn on each side to the sq_psn of the other".into(),
            )
        }
        UNKNOWN_PAIR if is_for_group(headers, reason) => (
            "the sender put a queue pair's number into a datagram for all members of a group".into(),
            "set wr.ud.remote_qpn of the sender to 0xffffff for datagrams to a group (with rdma_join_multicast: to \
             param.ud.qp_num of RDMA_CM_EVENT_MULTICAST_JOIN)"
                .into(),
        ),
        UNKNOWN_PAIR => (
            "the sender has a wrong number, or the queue pair was never made or is of a process that ended".into(),
            "check dest_qp_num (or wr.ud.remote_qpn) of the sender: it is the qp_num of the peer, in host byte order"
                .into(),
        ),
        WRONG_STATE => {
            let state = pair.map_or("a state that was not seen", |pair| pair.state);
            (
                format!("the queue pair is in {state}; requests are received from RTR on, answers from RTS on"),
                "move the queue pair to RTR before the peer is told that it may send".into(),
            )
        }
        LENGTH => {
            let cause = match pair.map(|pair| pair.kind) {
                Some("UD") => datagram_length(model, pair, headers),
                _ => format!("{reason}"),
            };
            (
                cause,
                "post longer receives (for datagrams 40 bytes more than the message), and give both ends one path_mtu"
                    .into(),
            )
        }
        NO_RECEIVE => (
            "an unreliable queue pair has nobody to ask to wait: what finds no receive is lost".into(),
            "post more receives than messages can come before the program posts again".into(),
        ),
        WRITE_FORBIDDEN => {
            let cause = watched.and_then(|watched| watched.refused);
            let cause = cause.map_or_else(|| format!("{reason}"), |refusal| format!("the peer wrote to {refusal}"));
            (
                cause,
                "give the peer a key, range and right that exist; on an unreliable connection it hears nothing of this"
                    .into(),
            )
        }
        FOREIGN_ADDRESS if matches!(reason, DropReason::WrongSource | DropReason::WrongDestination) => (
            "a connected queue pair believes only packets from the address in its ah_attr.grh.dgid".into(),
            "set the dgid of each side to the GID that the other one sends from (its sgid_index)".into(),
        ),
        FOREIGN_ADDRESS => (
            "the address is the peer's, and the packet came another way than the peer's packets do: from another process, \
             perhaps of another user"
                .into(),
            "let nothing else send to this queue pair's number: an earlier peer that was never told of the end, or another \
             program with the same address and number"
                .into(),
        ),
        UNREADABLE => {
            let advice = match reason {
                DropReason::BadOpcodeForTransport => "connect queue pairs of the same type: RC with RC, UC with UC",
                DropReason::BadIcrc => "look for what changes packets on the way: a NAT, a proxy, a broken offload",
                _ => "look at what sends to UDP port 4791 of this host besides RoCE",
            };
            (format!("{reason}"), advice.into())
        }
        LOST => {
            let advice = match reason {
                DropReason::RandomLoss | DropReason::Partitioned => "nothing: UBIVERBS_FAULTS asks for it",
                DropReason::PortDown => "nothing: a failure script took the port down; wait for IBV_EVENT_PORT_ACTIVE",
                DropReason::NoMemory => "let the peer have fewer READs and atomics under way (max_rd_atomic)",
                DropReason::BrokenRing | DropReason::BadRecord => {
                    "look at the process at the other end: it crashed, or wrote where it must not"
                }
                DropReason::Overflow => "raise net.core.rmem_max, or send more slowly: a receive buffer was full",
                _ => "look at the system: routes, firewall, memory",
            };
            (format!("{reason}"), advice.into())
        }
        _ => {
            let count = watched.map_or(0, |watched| watched.all_dropped);
            let gone = headers.is_some_and(|headers| was_here(model, headers.bth.dest_qpn));
            let why = if gone { "; the queue pair was destroyed before" } else { "" };
            (
                format!("of {count} dropped packets by now, the last was repeated, late or unwanted{why}"),
                "nothing, if they are few: retransmission and the end of connections bring them about".into(),
            )
        }
    }
}
