//! What the two ends of a connection say of it must fit together.

use alloc::format;
use alloc::string::{String, ToString};

use wire::Gid;

use super::peer::{End, Peer};
use crate::examine::Out;
use crate::finding::{Finding, Subject};
use crate::model::Pair;
use crate::rule::catalogue::connections::*;

/// Compares a queue pair of the program with its peer.
///
/// The number of a peer that was heard, or that the connection manager named, was right: that peer has ended.
pub(super) fn compare(pair: &Pair, peer: &Peer, is_managed: bool, out: &mut Out<'_>) {
    let here = End::of(pair);
    if !here.receives() || pair.kind == "UD" || pair.kind == "RAW_PACKET" {
        return;
    }
    match peer {
        Peer::Unknown => {}
        Peer::Missing(_) if is_managed || pair.heard_at.is_some() => {}
        Peer::Missing(evidence) => missing(&here, evidence, out),
        Peer::Known(there) => known(&here, there, out),
    }
}

fn missing(here: &End, evidence: &str, out: &mut Out<'_>) {
    let Some(dest) = here.connection.dest_qpn else { return };
    out.tell(
        Finding::new(
            NO_SUCH_PEER,
            Subject::QueuePair(here.qpn),
            format!("QP {} ({}) is connected to QP {dest}, which does not exist", here.qpn, here.kind),
            "set dest_qp_num of ibv_modify_qp (RTR) to the qp_num that the peer's ibv_create_qp gave, and keep that queue \
             pair until both ends are done",
        )
        .because("packets for a queue pair that does not exist are dropped: requests fail with retry exceeded")
        .shown_by(evidence),
    );
}

fn known(here: &End, there: &End, out: &mut Out<'_>) {
    if !kinds_fit(here.kind, there.kind) {
        return out.tell(
            Finding::new(
                KINDS_DIFFER,
                Subject::QueuePair(here.qpn),
                format!(
                    "QP {} is of type {}, and its peer {} is of type {}",
                    here.qpn,
                    here.kind,
                    there.name(),
                    there.kind
                ),
                "make both with the same qp_type in ibv_qp_init_attr, or name another queue pair in dest_qp_num",
            )
            .because("a queue pair takes packets of its own type only, and drops the others without an answer"),
        );
    }
    if !there.receives() {
        return;
    }
    if let Some(other) = there.connection.dest_qpn.filter(|dest| *dest != here.qpn) {
        return out.tell(
            Finding::new(
                PEER_OF_ANOTHER,
                Subject::QueuePair(here.qpn),
                format!("QP {} is connected to {}, but that is connected to QP {other}", here.qpn, there.name()),
                format!(
                    "exchange the numbers anew: dest_qp_num of QP {} must be the queue pair that has {} as its own \
                     dest_qp_num; each queue pair has one peer",
                    here.qpn, here.qpn
                ),
            )
            .because(format!(
                "{} answers to QP {other}, so what QP {} sends is never answered",
                there.name(),
                here.qpn
            )),
        );
    }
    let there_is_ours = there.process.is_none();
    mtus(here, there, out);
    sequence_numbers(here, there, out);
    addresses(here, there, out);
    reads(here, there, out);
    // The other direction is reported when the other end is looked at; only this process looks at an end in another
    // one.
    if !there_is_ours {
        sequence_numbers(there, here, out);
        reads(there, here, out);
    }
}

fn kinds_fit(one: &str, other: &str) -> bool {
    match one {
        _ if one.is_empty() || other.is_empty() => true,
        "XRC_SEND" => other == "XRC_RECV",
        "XRC_RECV" => other == "XRC_SEND",
        _ => one == other,
    }
}

/// A finding about two ends is about the program's own one, and the same from both sides.
fn subject(one: &End, other: &End) -> Subject {
    match (one.process, other.process) {
        (None, None) => Subject::QueuePair(one.qpn.min(other.qpn)),
        (None, _) => Subject::QueuePair(one.qpn),
        _ => Subject::QueuePair(other.qpn),
    }
}

fn mtus(here: &End, there: &End, out: &mut Out<'_>) {
    let (Some(mine), Some(its)) = (here.connection.path_mtu, there.connection.path_mtu) else { return };
    if mine == its {
        return;
    }
    let (large, small) = if mine > its { (here, there) } else { (there, here) };
    out.tell(
        Finding::new(
            PATH_MTU_DIFFERS,
            subject(here, there),
            format!("QP {} has path MTU {mine}, and its peer {} has {its}", here.qpn, there.name()),
            "give both ends the same path_mtu in ibv_modify_qp (RTR): the smaller of the two ports' active_mtu",
        )
        .because(format!(
            "{} sends packets of up to {} bytes, and {} refuses more than {}; sequence numbers count packets, so the two \
             ends lose count of each other as well",
            large.name(),
            mine.max(its),
            small.name(),
            mine.min(its)
        )),
    );
}

/// `one` sends, `other` expects. Unreliable connections begin with whatever comes.
fn sequence_numbers(one: &End, other: &End, out: &mut Out<'_>) {
    let (Some(sends), Some(expects)) = (one.connection.sq_psn, other.connection.rq_psn) else { return };
    if sends == expects || one.kind == "UC" || !matches!(one.state, "RTS" | "SQD") {
        return;
    }
    out.tell(
        Finding::new(
            PSN_DIFFERS,
            // Each direction is a mistake of its own.
            Subject::QueuePair(if one.process.is_none() { one.qpn } else { other.qpn }),
            format!(
                "{} sends from sequence number {sends} (sq_psn), but its peer {} expects {expects} (rq_psn)",
                one.name(),
                other.name()
            ),
            "set rq_psn of each end (RTR) to the sq_psn of the other (RTS): exchange them together with the QP numbers",
        )
        .because(format!(
            "a packet with a number that is not expected is taken for a repeated or a lost one: {} never takes the \
             message",
            other.name()
        )),
    );
}

fn addresses(here: &End, there: &End, out: &mut Out<'_>) {
    let (Some(from), Some(expected)) = (here.connection.sgid, there.connection.dgid) else { return };
    if from == expected {
        return;
    }
    out.tell(
        Finding::new(
            ADDRESS_DIFFERS,
            Subject::QueuePair(here.qpn),
            format!(
                "QP {} sends from {}, but its peer {} expects it at {}",
                here.qpn,
                shown(from),
                there.name(),
                shown(expected)
            ),
            "give the peer the GID at the grh.sgid_index that this end uses (ibv_query_gid), and set the peer's \
             ah_attr.grh.dgid to it",
        )
        .because("a connected queue pair drops packets from other addresses than its peer's"),
    );
}

/// `one` asks, `other` answers.
fn reads(one: &End, other: &End, out: &mut Out<'_>) {
    let (Some(asks), Some(answers)) = (one.connection.max_rd_atomic, other.connection.max_dest_rd_atomic) else {
        return;
    };
    if asks <= answers || !matches!(one.state, "RTS" | "SQD") {
        return;
    }
    out.tell(
        Finding::new(
            READS_EXCEED_PEER,
            Subject::QueuePair(if one.process.is_none() { one.qpn } else { other.qpn }),
            format!(
                "{} may have {asks} READs and atomics under way (max_rd_atomic), but its peer {} answers {answers} at a \
                 time (max_dest_rd_atomic)",
                one.name(),
                other.name()
            ),
            "set max_rd_atomic (RTS) to at most the peer's max_dest_rd_atomic (RTR)",
        )
        .because("the responder refuses the READ that is one too many as an invalid request, and the connection ends"),
    );
}

/// A GID as the IP address that it is.
pub(super) fn shown(gid: [u8; 16]) -> String {
    Gid::new(gid).to_ip().to_string()
}
