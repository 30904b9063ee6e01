//! The transition table. Several rules may speak about one move of one kind; what they say adds up, so that what all
//! kinds share is written once. Facts from IBA 11.2.5.2 and the `ibv_modify_qp` manual page; where the two are silent,
//! what Linux does.

use super::{Kind, State};
use crate::attributes::AttributeMask;

/// What a move from one state to another takes besides `STATE` itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Requirements {
    /// Must be given.
    pub required: AttributeMask,
    /// May be given.
    pub optional: AttributeMask,
}

/// What the move `from -> to` takes for a queue pair of this kind; `None` if there is no such move.
pub fn requirements(kind: Kind, from: State, to: State) -> Option<Requirements> {
    // IBA 10.3.1: RESET and ERR can be reached from every state, and nothing can be said on the way.
    if matches!(to, State::Reset | State::Error) {
        return Some(Requirements::default());
    }
    let mut found = None;
    for rule in RULES {
        if rule.from == from && rule.to == to && rule.kinds.contains(&kind) {
            let sum = found.get_or_insert(Requirements::default());
            sum.required |= rule.required;
            sum.optional |= rule.optional;
        }
    }
    found
}

struct Rule {
    from: State,
    to: State,
    kinds: &'static [Kind],
    required: AttributeMask,
    optional: AttributeMask,
}

const RC: Kind = Kind::ReliableConnected;
const UC: Kind = Kind::UnreliableConnected;
const UD: Kind = Kind::UnreliableDatagram;
const RAW: Kind = Kind::RawPacket;
const XRC_SEND: Kind = Kind::XrcInitiator;
const XRC_RECV: Kind = Kind::XrcTarget;

const EVERY: &[Kind] = &[RC, UC, UD, XRC_SEND, XRC_RECV];
/// Frames have no transport, and so none of its attributes: only the port is said.
const FRAMES: &[Kind] = &[RAW];
const CONNECTED: &[Kind] = &[RC, UC, XRC_SEND, XRC_RECV];
const DATAGRAM: &[Kind] = &[UD];
/// The reliable kinds that send requests, and so retry them.
const REQUESTERS: &[Kind] = &[RC, XRC_SEND];
/// The reliable kinds that answer requests, and so refuse and replay them.
const RESPONDERS: &[Kind] = &[RC, XRC_RECV];
const RELIABLE: &[Kind] = &[RC, XRC_SEND, XRC_RECV];
/// The kinds that send on their own account, and so can be paced.
const SENDERS: &[Kind] = &[RC, UC, UD, XRC_SEND, RAW];
/// The kinds whose send queue can fail alone (IBA 10.3.1.6: SQE does not exist for reliable service).
const UNRELIABLE: &[Kind] = &[UC, UD];

use State::{
    Init as INIT, ReadyToReceive as RTR, ReadyToSend as RTS, Reset as RESET, SendQueueDrained as SQD,
    SendQueueError as SQE,
};

const RULES: &[Rule] = &[
    needs(RESET, INIT, EVERY, &[A::PKEY_INDEX, A::PORT]),
    needs(RESET, INIT, CONNECTED, &[A::ACCESS_FLAGS]),
    needs(RESET, INIT, DATAGRAM, &[A::QKEY]),
    //
    takes(INIT, INIT, EVERY, &[A::PKEY_INDEX, A::PORT]),
    takes(INIT, INIT, CONNECTED, &[A::ACCESS_FLAGS]),
    takes(INIT, INIT, DATAGRAM, &[A::QKEY]),
    //
    takes(INIT, RTR, EVERY, &[A::PKEY_INDEX]),
    takes(INIT, RTR, DATAGRAM, &[A::QKEY]),
    needs(INIT, RTR, CONNECTED, &[A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN]),
    takes(INIT, RTR, CONNECTED, &[A::ACCESS_FLAGS, A::ALT_PATH]),
    needs(INIT, RTR, RESPONDERS, &[A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]),
    takes(INIT, RTR, SENDERS, &[A::RATE_LIMIT]),
    //
    needs(RTR, RTS, EVERY, &[A::SQ_PSN]),
    takes(RTR, RTS, EVERY, &[A::CUR_STATE]),
    takes(RTR, RTS, DATAGRAM, &[A::QKEY]),
    takes(RTR, RTS, CONNECTED, &[A::ACCESS_FLAGS, A::ALT_PATH, A::PATH_MIG_STATE]),
    needs(RTR, RTS, RELIABLE, &[A::TIMEOUT]),
    needs(RTR, RTS, REQUESTERS, &[A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]),
    takes(RTR, RTS, RESPONDERS, &[A::MIN_RNR_TIMER]),
    takes(RTR, RTS, SENDERS, &[A::RATE_LIMIT]),
    //
    takes(RTS, RTS, EVERY, &[A::CUR_STATE]),
    takes(RTS, RTS, DATAGRAM, &[A::QKEY]),
    takes(RTS, RTS, CONNECTED, &[A::ACCESS_FLAGS, A::ALT_PATH, A::PATH_MIG_STATE]),
    takes(RTS, RTS, RESPONDERS, &[A::MIN_RNR_TIMER]),
    takes(RTS, RTS, SENDERS, &[A::RATE_LIMIT]),
    //
    takes(RTS, SQD, EVERY, &[A::EN_SQD_ASYNC_NOTIFY]),
    //
    takes(SQD, SQD, EVERY, &[A::PKEY_INDEX]),
    takes(SQD, SQD, DATAGRAM, &[A::QKEY]),
    takes(SQD, SQD, CONNECTED, &[A::ACCESS_FLAGS, A::AV, A::ALT_PATH, A::PATH_MIG_STATE]),
    takes(SQD, SQD, RELIABLE, &[A::PORT, A::TIMEOUT]),
    takes(SQD, SQD, REQUESTERS, &[A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]),
    takes(SQD, SQD, RESPONDERS, &[A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]),
    takes(SQD, SQD, SENDERS, &[A::RATE_LIMIT]),
    //
    takes(SQD, RTS, EVERY, &[A::CUR_STATE]),
    takes(SQD, RTS, DATAGRAM, &[A::QKEY]),
    takes(SQD, RTS, CONNECTED, &[A::ACCESS_FLAGS, A::ALT_PATH, A::PATH_MIG_STATE]),
    takes(SQD, RTS, RESPONDERS, &[A::MIN_RNR_TIMER]),
    takes(SQD, RTS, SENDERS, &[A::RATE_LIMIT]),
    //
    takes(SQE, RTS, UNRELIABLE, &[A::CUR_STATE]),
    takes(SQE, RTS, DATAGRAM, &[A::QKEY]),
    takes(SQE, RTS, &[UC], &[A::ACCESS_FLAGS]),
    //
    needs(RESET, INIT, FRAMES, &[A::PORT]),
    takes(INIT, INIT, FRAMES, &[A::PORT]),
    takes(INIT, RTR, FRAMES, &[]),
    takes(RTR, RTS, FRAMES, &[A::CUR_STATE]),
    takes(RTS, RTS, FRAMES, &[A::CUR_STATE]),
    takes(RTS, SQD, FRAMES, &[A::EN_SQD_ASYNC_NOTIFY]),
    takes(SQD, SQD, FRAMES, &[]),
    takes(SQD, RTS, FRAMES, &[A::CUR_STATE]),
    takes(SQE, RTS, FRAMES, &[A::CUR_STATE]),
];

use AttributeMask as A;

const fn needs(from: State, to: State, kinds: &'static [Kind], attributes: &[A]) -> Rule {
    Rule { from, to, kinds, required: union(attributes), optional: A::empty() }
}

const fn takes(from: State, to: State, kinds: &'static [Kind], attributes: &[A]) -> Rule {
    Rule { from, to, kinds, required: A::empty(), optional: union(attributes) }
}

const fn union(mut attributes: &[A]) -> A {
    let mut sum = A::empty();
    while let Some((first, rest)) = attributes.split_first() {
        sum = sum.union(*first);
        attributes = rest;
    }
    sum
}
