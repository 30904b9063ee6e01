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
    for rule in TRANSITION_RULES {
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

const RC_KIND: Kind = Kind::ReliableConnected;
const UC_KIND: Kind = Kind::UnreliableConnected;
const UD_KIND: Kind = Kind::UnreliableDatagram;
const RAW_KIND: Kind = Kind::RawPacket;
const XRC_SEND: Kind = Kind::XrcInitiator;
const XRC_RECV: Kind = Kind::XrcTarget;

const ALL_TRANSPORTS: &[Kind] = &[RC_KIND, UC_KIND, UD_KIND, XRC_SEND, XRC_RECV];
/// Frames have no transport, and so none of its attributes: only the port is said.
const FRAME_KINDS: &[Kind] = &[RAW_KIND];
const CONNECTED_KINDS: &[Kind] = &[RC_KIND, UC_KIND, XRC_SEND, XRC_RECV];
const DATAGRAM_KINDS: &[Kind] = &[UD_KIND];
/// The reliable kinds that send requests, and so retry them.
const REQUESTER_KINDS: &[Kind] = &[RC_KIND, XRC_SEND];
/// The reliable kinds that answer requests, and so refuse and replay them.
const RESPONDER_KINDS: &[Kind] = &[RC_KIND, XRC_RECV];
const RELIABLE_KINDS: &[Kind] = &[RC_KIND, XRC_SEND, XRC_RECV];
/// The kinds that send on their own account, and so can be paced.
const SENDER_KINDS: &[Kind] = &[RC_KIND, UC_KIND, UD_KIND, XRC_SEND, RAW_KIND];
/// The kinds whose send queue can fail alone (IBA 10.3.1.6: SQE does not exist for reliable service).
const UNRELIABLE_KINDS: &[Kind] = &[UC_KIND, UD_KIND];

use State::{
    Init as INIT, ReadyToReceive as RTR, ReadyToSend as RTS, Reset as RESET, SendQueueDrained as SQD,
    SendQueueError as SQE,
};

const TRANSITION_RULES: &[Rule] = &[
    needs(RESET, INIT, ALL_TRANSPORTS, &[A::PKEY_INDEX, A::PORT]),
    needs(RESET, INIT, CONNECTED_KINDS, &[A::ACCESS_FLAGS]),
    needs(RESET, INIT, DATAGRAM_KINDS, &[A::QKEY]),
    //
    takes(INIT, INIT, ALL_TRANSPORTS, &[A::PKEY_INDEX, A::PORT]),
    takes(INIT, INIT, CONNECTED_KINDS, &[A::ACCESS_FLAGS]),
    takes(INIT, INIT, DATAGRAM_KINDS, &[A::QKEY]),
    //
    takes(INIT, RTR, ALL_TRANSPORTS, &[A::PKEY_INDEX]),
    takes(INIT, RTR, DATAGRAM_KINDS, &[A::QKEY]),
    needs(INIT, RTR, CONNECTED_KINDS, &[A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN]),
    takes(INIT, RTR, CONNECTED_KINDS, &[A::ACCESS_FLAGS, A::ALT_PATH]),
    needs(INIT, RTR, RESPONDER_KINDS, &[A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]),
    takes(INIT, RTR, SENDER_KINDS, &[A::RATE_LIMIT]),
    //
    needs(RTR, RTS, ALL_TRANSPORTS, &[A::SQ_PSN]),
    takes(RTR, RTS, ALL_TRANSPORTS, &[A::CUR_STATE]),
    takes(RTR, RTS, DATAGRAM_KINDS, &[A::QKEY]),
    takes(RTR, RTS, CONNECTED_KINDS, &[A::ACCESS_FLAGS, A::ALT_PATH, A::PATH_MIG_STATE]),
    needs(RTR, RTS, RELIABLE_KINDS, &[A::TIMEOUT]),
    needs(RTR, RTS, REQUESTER_KINDS, &[A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]),
    takes(RTR, RTS, RESPONDER_KINDS, &[A::MIN_RNR_TIMER]),
    takes(RTR, RTS, SENDER_KINDS, &[A::RATE_LIMIT]),
    //
    takes(RTS, RTS, ALL_TRANSPORTS, &[A::CUR_STATE]),
    takes(RTS, RTS, DATAGRAM_KINDS, &[A::QKEY]),
    takes(RTS, RTS, CONNECTED_KINDS, &[A::ACCESS_FLAGS, A::ALT_PATH, A::PATH_MIG_STATE]),
    takes(RTS, RTS, RESPONDER_KINDS, &[A::MIN_RNR_TIMER]),
    takes(RTS, RTS, SENDER_KINDS, &[A::RATE_LIMIT]),
    //
    takes(RTS, SQD, ALL_TRANSPORTS, &[A::EN_SQD_ASYNC_NOTIFY]),
    //
    takes(SQD, SQD, ALL_TRANSPORTS, &[A::PKEY_INDEX]),
    takes(SQD, SQD, DATAGRAM_KINDS, &[A::QKEY]),
    takes(SQD, SQD, CONNECTED_KINDS, &[A::ACCESS_FLAGS, A::AV, A::ALT_PATH, A::PATH_MIG_STATE]),
    takes(SQD, SQD, RELIABLE_KINDS, &[A::PORT, A::TIMEOUT]),
    takes(SQD, SQD, REQUESTER_KINDS, &[A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]),
    takes(SQD, SQD, RESPONDER_KINDS, &[A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]),
    takes(SQD, SQD, SENDER_KINDS, &[A::RATE_LIMIT]),
    //
    takes(SQD, RTS, ALL_TRANSPORTS, &[A::CUR_STATE]),
    takes(SQD, RTS, DATAGRAM_KINDS, &[A::QKEY]),
    takes(SQD, RTS, CONNECTED_KINDS, &[A::ACCESS_FLAGS, A::ALT_PATH, A::PATH_MIG_STATE]),
    takes(SQD, RTS, RESPONDER_KINDS, &[A::MIN_RNR_TIMER]),
    takes(SQD, RTS, SENDER_KINDS, &[A::RATE_LIMIT]),
    //
    takes(SQE, RTS, UNRELIABLE_KINDS, &[A::CUR_STATE]),
    takes(SQE, RTS, DATAGRAM_KINDS, &[A::QKEY]),
    takes(SQE, RTS, &[UC_KIND], &[A::ACCESS_FLAGS]),
    //
    needs(RESET, INIT, FRAME_KINDS, &[A::PORT]),
    takes(INIT, INIT, FRAME_KINDS, &[A::PORT]),
    takes(INIT, RTR, FRAME_KINDS, &[]),
    takes(RTR, RTS, FRAME_KINDS, &[A::CUR_STATE]),
    takes(RTS, RTS, FRAME_KINDS, &[A::CUR_STATE]),
    takes(RTS, SQD, FRAME_KINDS, &[A::EN_SQD_ASYNC_NOTIFY]),
    takes(SQD, SQD, FRAME_KINDS, &[]),
    takes(SQD, RTS, FRAME_KINDS, &[A::CUR_STATE]),
    takes(SQE, RTS, FRAME_KINDS, &[A::CUR_STATE]),
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
