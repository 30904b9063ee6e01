//! What one end says of its connection, whatever the other says.

use alloc::format;
use alloc::string::String;
use core::net::IpAddr;

use trace::Call;
use wire::{Gid, Qpn};

use super::ends::shown;
use super::peer::Peers;
use crate::examine::Out;
use crate::finding::{Finding, Subject};
use crate::model::Model;
use crate::rule::Number;
use crate::rule::catalogue::connections::*;

/// A timeout of `n` means 4.096 us * 2^n.
const TIMEOUT_UNIT_NS: u64 = 4_096;
/// A timeout that is at most this is shorter than a busy host takes to answer: half a millisecond.
const SHORT_TIMEOUT_CODE: u8 = 7;
/// How long until a peer that is gone is noticed.
const LONG_NS: u64 = 300_000_000_000;

/// Judges what `ibv_modify_qp`, or the connection manager, was told.
pub(super) fn judge(qpn: Qpn, call: &Call, peers: &Peers, model: &Model, out: &mut Out<'_>) {
    let kind = model.pairs.get(&qpn).map_or("", |pair| pair.kind);
    match *call {
        Call::Path { sgid, dgid, hop_limit } => way(Some(qpn), sgid, dgid, hop_limit, out),
        Call::ModifyQp { timeout, retry_cnt, rnr_retry, min_rnr_timer, .. } => {
            let mut tell = |rule: Number, what: String, cause: String, advice: &str| {
                out.tell(Finding::new(rule, Subject::QueuePair(qpn), what, advice).because(cause));
            };
            if matches!(kind, "RC" | "XRC_SEND") {
                let retries = retry_cnt.or(model.pairs.get(&qpn).and_then(|pair| pair.connection.retry_cnt));
                let chooser = match (peers.is_managed(qpn), peers.accepts(qpn)) {
                    (true, true) => Chooser::Peer,
                    (true, false) => Chooser::Manager,
                    _ => Chooser::Program,
                };
                requester(qpn, [timeout, retry_cnt, rnr_retry], retries, chooser, &mut tell);
            }
            // The connection manager chooses the timer itself.
            if min_rnr_timer == Some(0) && matches!(kind, "RC" | "XRC_RECV") && !peers.may_be_managed(qpn) {
                tell(
                    LONG_RNR_TIMER,
                    format!("QP {qpn} asks its peer to wait 655.36 ms when no receive is posted (min_rnr_timer 0)"),
                    "the encoding of min_rnr_timer begins with the longest time: 0 is 655.36 ms, 1 is 0.01 ms".into(),
                    "set min_rnr_timer (RTR) to a short time, as 12, which is 0.64 ms",
                );
            }
        }
        _ => {}
    }
}

/// Who says how often a queue pair tries again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Chooser {
    /// `ibv_modify_qp`.
    Program,
    /// `rdma_connect` of this program.
    Manager,
    /// `rdma_connect` of the peer.
    Peer,
}

/// The peer's number does not fit.
pub(super) fn number_cut(qpn: Qpn, given: u32, model: &Model) -> Finding {
    let turned = given.swap_bytes();
    let finding = Finding::new(
        NUMBER_CUT,
        Subject::QueuePair(qpn),
        format!("dest_qp_num of QP {qpn} is {given:#x}, which has more than 24 bits: {} is used", Qpn::new(given)),
        "set dest_qp_num to the peer's qp_num in the host's byte order: convert it with htonl before it is sent, and with \
         ntohl when it was received",
    )
    .because("numbers of queue pairs have 24 bits; the device cuts the others off, and sends to another queue pair");
    if turned >> 24 != 0 {
        return finding;
    }
    let known =
        if model.pairs.contains_key(&Qpn::new(turned)) { ", which is a queue pair of this program" } else { "" };
    finding.shown_by(format!("with its bytes in reverse it is {turned:#x}{known}"))
}

/// What concerns the side that asks: timeout, retry_cnt, rnr_retry.
fn requester(
    qpn: Qpn,
    [timeout, retry_cnt, rnr_retry]: [Option<u8>; 3],
    retries: Option<u8>,
    chooser: Chooser,
    tell: &mut impl FnMut(Number, String, String, &str),
) {
    if retry_cnt == Some(0) {
        let advice = match chooser {
            Chooser::Peer => {
                "at the peer, set retry_count of rdma_conn_param to 7 for rdma_connect, which asked for 0: it holds for \
                 both sides, and rdma_accept cannot change it"
            }
            Chooser::Manager => "set retry_count of rdma_conn_param to 7; a parameter that is all zeros means 0",
            Chooser::Program => "set retry_cnt of ibv_modify_qp (RTS) to 7",
        };
        tell(
            NO_RETRIES,
            format!("QP {qpn} has retry_cnt 0: it sends no packet a second time"),
            "networks lose packets now and then; the first one that is lost ends the connection with retry exceeded"
                .into(),
            advice,
        );
    }
    if rnr_retry == Some(0) {
        let advice = match chooser {
            Chooser::Peer => {
                "at the peer, set rnr_retry_count of rdma_conn_param to 7 for rdma_connect, which asked for 0; or let the \
                 peer post its receives before this side sends"
            }
            Chooser::Manager => {
                "set rnr_retry_count of rdma_conn_param to 7, or make sure by credits that receives are posted before \
                     the peer sends; a parameter that is all zeros means 0"
            }
            Chooser::Program => {
                "set rnr_retry of ibv_modify_qp (RTS) to 7, or make sure by credits that receives are posted before \
                      the peer sends"
            }
        };
        tell(
            NO_RNR_RETRIES,
            format!("QP {qpn} has rnr_retry 0: it does not wait for a peer that has no receive posted"),
            "a receiver that posts a moment too late ends the connection with RNR retry exceeded".into(),
            advice,
        );
    }
    match timeout {
        Some(0) => tell(
            NO_TIMEOUT,
            format!("QP {qpn} has timeout 0: it waits without end for acknowledgements"),
            "0 does not mean at once, but never: if a packet is lost or the peer dies, the work never completes".into(),
            "set timeout of ibv_modify_qp (RTS) to 14 (67 ms) or as the network needs it",
        ),
        Some(timeout) if timeout <= SHORT_TIMEOUT_CODE => tell(
            SHORT_TIMEOUT,
            format!("QP {qpn} has timeout {timeout}: it sends again after {} us", (TIMEOUT_UNIT_NS << timeout) / 1_000),
            "a peer or a switch that is busy takes longer than that, so packets are sent twice that were not lost, and \
             retry_cnt is used up by nothing"
                .into(),
            "set timeout of ibv_modify_qp (RTS) to 14 (67 ms) or as the network needs it",
        ),
        Some(timeout) if timeout < 32 => {
            let tries = u64::from(retries.unwrap_or(7)) + 1;
            let total = (TIMEOUT_UNIT_NS << timeout).saturating_mul(tries);
            if total > LONG_NS {
                tell(
                    LONG_TIMEOUT,
                    format!("QP {qpn} notices after {} s that its peer is gone", total / 1_000_000_000),
                    format!(
                        "timeout {timeout} is {} s, and a packet is sent {tries} times before the queue pair gives up",
                        (TIMEOUT_UNIT_NS << timeout) / 1_000_000_000
                    ),
                    "set a smaller timeout of ibv_modify_qp (RTS): it stands for 4.096 us * 2^timeout",
                );
            }
        }
        _ => {}
    }
}

/// How the packets of a queue pair go, or those of an address handle.
pub(super) fn way(qpn: Option<Qpn>, sgid: Option<[u8; 16]>, dgid: [u8; 16], hop_limit: u8, out: &mut Out<'_>) {
    let (subject, sender) = match qpn {
        Some(qpn) => (Subject::QueuePair(qpn), format!("QP {qpn}")),
        None => (Subject::Function("ibv_create_ah"), String::from("an address handle")),
    };
    let to = Gid::new(dgid).to_ip();
    if let Some(from) = sgid.map(|sgid| Gid::new(sgid).to_ip()) {
        if from.is_ipv4() != to.is_ipv4() {
            out.tell(
                Finding::new(
                    IP_VERSION_DIFFERS,
                    subject,
                    format!("{sender} sends from {from} to {to}: one is an IPv4 address, the other an IPv6 address"),
                    "choose the grh.sgid_index whose GID is of the same kind as grh.dgid; ibv_query_gid shows each index",
                )
                .because("the GIDs become the source and destination address of one IP packet"),
            );
        } else if is_link_local(from) && !is_link_local(to) && !Gid::new(dgid).is_multicast() {
            out.tell(
                Finding::new(
                    LINK_LOCAL_SOURCE,
                    subject,
                    format!("{sender} sends from the link-local address {from} to {to}"),
                    "choose a grh.sgid_index whose GID is an address of the network the peer is in; index 0 is the \
                     link-local one on most devices",
                )
                .because("answers to a link-local address pass no router, and the peer may reach it by another port"),
            );
        }
    }
    if hop_limit <= 1 && sgid != Some(dgid) && !is_link_local(to) && !Gid::new(dgid).is_multicast() {
        out.tell(
            Finding::new(
                NO_HOPS,
                subject,
                format!("{sender} sends to {} with hop limit {hop_limit}", shown(dgid)),
                "set grh.hop_limit of ah_attr to 64 or 255",
            )
            .because("the first router drops the packet: it works as long as the peer is in the same subnet"),
        );
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
