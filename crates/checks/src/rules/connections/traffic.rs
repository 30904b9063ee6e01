//! What goes from one end to the other: whether the other can take it, and whether it does.

use alloc::format;
use core::net::IpAddr;

use trace::{Call, DropReason, Event, Kind, Queue, RetryCause};
use wire::access::Access;
use wire::{Gid, Headers, Pkey, Psn, Qkey, Qpn};

use super::ends::shown;
use super::peer::{End, Peer, Peers};
use crate::examine::{Moment, Out};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::mistakes::Mistake;
use crate::model::{Model, Pair};
use crate::naming::rights;
use crate::posted_work::Owner;
use crate::rule::catalogue::connections::*;
use crate::rule::catalogue::events::KEY_MISMATCH;

/// How long a sender that retries without limit may wait for a receive before it is reported.
const RNR_PATIENCE_NS: u64 = 1_000_000_000;
/// A first packet that is this far from what was expected did not follow others that were lost.
const MAX_LOST_PACKETS: u32 = 1 << 16;
/// What a responder says that has no receive.
const NOT_READY: &str = "receiver not ready";

/// What is kept of traffic.
#[derive(Default, Debug)]
pub(super) struct Traffic {
    /// Since when a queue pair waits for a receive, for which packet, and how often it asked.
    waits: Map<Qpn, (u64, Psn, u64)>,
    /// Queue pairs that have taken a first request, or judged it.
    heard: Map<Qpn, ()>,
}

impl Traffic {
    pub fn observe(&mut self, moment: &Moment<'_>, peers: &Peers, out: &mut Out<'_>) {
        let Moment { event, model, .. } = moment;
        let Some(qpn) = event.qpn else { return };
        let Some(pair) = model.pairs.get(&qpn) else { return };
        match &event.kind {
            Kind::Called { call: call @ Call::PostSend { .. }, .. } => posted(pair, call, model, peers, out),
            // Where both ends are known they are compared, and packets show nothing new.
            Kind::PacketReceived { headers, payload_len, packets }
                if !self.heard.contains_key(&qpn) && !matches!(peers.of(pair, model), Peer::Known(_)) =>
            {
                self.received(pair, headers, *payload_len, *packets, out);
            }
            Kind::PacketDropped { headers: Some(headers), reason } => dropped(pair, headers, *reason, out),
            Kind::NakSent { code: NOT_READY, .. } => not_ready(pair, model, peers, out),
            Kind::Retry { cause: RetryCause::RnrNak, from, left: None } => self.waits_for_receive(event, qpn, *from),
            Kind::Completed { queue: Queue::Send, .. } => {
                self.waits.remove(&qpn);
            }
            Kind::StateChanged { to, .. } if *to != "RTS" => {
                self.waits.remove(&qpn);
                self.heard.remove(&qpn);
            }
            _ => {}
        }
    }

    fn waits_for_receive(&mut self, event: &Event, qpn: Qpn, from: Psn) {
        let wait = self.waits.entry(qpn).or_insert((event.at, from, 0));
        if wait.1 != from {
            *wait = (event.at, from, 0);
        }
        wait.2 += 1;
    }

    pub fn tick(&mut self, now: u64, model: &Model, peers: &Peers, out: &mut Out<'_>) {
        for (qpn, (since, psn, times)) in &self.waits {
            let waited = now.saturating_sub(*since);
            let Some(pair) = model.pairs.get(qpn).filter(|_| waited >= RNR_PATIENCE_NS) else { continue };
            let waiting = pair.sends.iter().next();
            let work = waiting
                .map_or_else(Default::default, |work| format!("work request {} ({}) on ", work.wr_id, work.opcode));
            let mut finding = Finding::new(
                WAITS_FOR_RECEIVE,
                Subject::QueuePair(*qpn),
                format!(
                    "{work}QP {qpn} waits since {} ms for a receive of its peer, and with rnr_retry 7 it waits without end",
                    waited / 1_000_000
                ),
                "post receives on the peer (ibv_post_recv) before this end sends; with rnr_retry below 7 the sender fails \
                 instead of waiting",
            )
            .because("a SEND, or a WRITE with immediate data, takes a receive of the peer, and there is none")
            .shown_by(format!("packet {psn} was refused {times} times with {NOT_READY}"));
            if let Peer::Known(End { process: None, qpn: peer, .. }) = peers.of(pair, model)
                && let Some(peer) = model.pairs.get(&peer)
            {
                finding = finding.shown_by(match (peer.srq, peer.receives.posted) {
                    (Some(srq), _) => format!("the peer, QP {}, takes its receives from SRQ {srq}", peer.qpn),
                    (None, 0) => format!("the peer, QP {}, has never had a receive", peer.qpn),
                    (None, posted) => format!("the peer, QP {}, has had {posted} receives, and all are used", peer.qpn),
                });
            }
            out.tell(finding);
        }
    }

    /// Packets alone say much of a peer on another host.
    fn received(&mut self, pair: &Pair, headers: &Headers, payload_len: u32, packets: u32, out: &mut Out<'_>) {
        // What comes late, when the queue pair has stopped, is not its first packet.
        if !headers.bth.opcode.is_request() || pair.kind != "RC" || !End::of(pair).receives() {
            return;
        }
        let (Some(mtu), Some(expected)) = (pair.connection.path_mtu, pair.connection.rq_psn) else { return };
        self.heard.insert(pair.qpn, ());
        let psn = headers.bth.psn;
        let off = psn.diff(Psn::new(expected));
        if off < 0 || off.unsigned_abs() > MAX_LOST_PACKETS {
            out.tell(
                Finding::new(
                    PSN_DIFFERS,
                    Subject::QueuePair(pair.qpn),
                    format!("the peer of QP {} sends from sequence number {psn}, but rq_psn is {expected}", pair.qpn),
                    "set rq_psn of each end (RTR) to the sq_psn of the other (RTS): exchange them together with the QP \
                     numbers",
                )
                .shown_by(format!("the first packet since the queue pair can receive: {headers}")),
            );
        }
        let longest = payload_len.div_ceil(packets.max(1));
        if longest > mtu {
            out.tell(
                Finding::new(
                    PATH_MTU_DIFFERS,
                    Subject::QueuePair(pair.qpn),
                    format!("the peer of QP {} sends packets of {longest} bytes, but its path MTU is {mtu}", pair.qpn),
                    "give both ends the same path_mtu in ibv_modify_qp (RTR): the smaller of the two ports' active_mtu",
                )
                .shown_by(format!("{payload_len} bytes in {packets} packets: {headers}")),
            );
        }
    }
}

/// A work request is about to be posted.
fn posted(pair: &Pair, call: &Call, model: &Model, peers: &Peers, out: &mut Out<'_>) {
    let Call::PostSend { wr_id, opcode, remote_qpn, remote_qkey, remote_gid, .. } = *call else { return };
    if let (Some(qpn), Some(gid)) = (remote_qpn, remote_gid) {
        return datagram(pair, wr_id, (qpn, gid, remote_qkey), model, peers, out);
    }
    let Peer::Known(peer) = peers.of(pair, model) else { return };
    if peer.process.is_none() && matches!(peer.state, "RESET" | "INIT") && !peers.is_managed(pair.qpn) {
        out.tell(
            Finding::new(
                PEER_NOT_READY,
                Subject::QueuePair(pair.qpn),
                format!(
                    "work request {wr_id} ({opcode}) is posted on QP {} while its peer {} is in {}",
                    pair.qpn,
                    peer.name(),
                    peer.state
                ),
                "bring both ends to RTR, tell each other, and only then post",
            )
            .because(
                "a queue pair takes packets from RTR on and drops them before: the work waits for a retry, and fails if \
                 the peer is slower than all of them",
            ),
        );
    }
    let needed = needed(opcode);
    if let Some(granted) = peer.connection.access.filter(|granted| peer.receives() && !granted.contains(needed)) {
        out.tell_mistake(
            Finding::new(
                ACCESS_NOT_GRANTED,
                Subject::QueuePair(pair.qpn),
                format!(
                    "work request {wr_id} on QP {} is an {opcode}, but its peer {} does not allow it",
                    pair.qpn,
                    peer.name()
                ),
                format!("add IBV_ACCESS_{needed} to qp_access_flags of the peer's ibv_modify_qp (INIT)"),
            )
            .because("the rights of the queue pair are looked at before those of the memory: both must grant it")
            .shown_by(format!("{} grants its peer {}", peer.name(), rights(granted))),
            Mistake::Work(Owner::Send(pair.qpn), wr_id),
        );
    }
}

/// The right that a peer's queue pair must grant.
fn needed(opcode: &str) -> Access {
    match opcode {
        "RDMA_WRITE" | "RDMA_WRITE_WITH_IMM" | "ATOMIC_WRITE" => Access::REMOTE_WRITE,
        "RDMA_READ" => Access::REMOTE_READ,
        "ATOMIC_CMP_AND_SWP" | "ATOMIC_FETCH_AND_ADD" => Access::REMOTE_ATOMIC,
        _ => Access::empty(),
    }
}

fn datagram(
    pair: &Pair,
    wr_id: u64,
    (to, gid, qkey): (Qpn, [u8; 16], Option<Qkey>),
    model: &Model,
    peers: &Peers,
    out: &mut Out<'_>,
) {
    if to == Qpn::MULTICAST || Gid::new(gid).is_multicast() {
        return;
    }
    let here = match Gid::new(gid).to_ip() {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => address.is_loopback(),
    };
    let subject = Subject::QueuePair(pair.qpn);
    let sent = format!("work request {wr_id} on QP {} sends a datagram to QP {to} at {}", pair.qpn, shown(gid));
    let advice = "take remote_qpn from the qp_num of the peer's UD queue pair, in RTR or RTS, and keep that until both \
                  ends are done";
    match peers.at(to, gid, here.then_some(gid), model) {
        Peer::Unknown => {}
        // The management agents of a port.
        Peer::Missing(_) if to.value() <= 1 => {}
        Peer::Missing(evidence) => out.tell(
            Finding::new(DATAGRAM_TO_NOBODY, subject, format!("{sent}, which does not exist"), advice)
                .because("nobody tells the sender: a datagram that nobody takes is dropped, and its work succeeds")
                .shown_by(evidence),
        ),
        Peer::Known(peer) if !peer.kind.is_empty() && peer.kind != "UD" => out.tell(
            Finding::new(DATAGRAM_TO_NOBODY, subject, format!("{sent}, which is of type {}", peer.kind), advice)
                .because("only queue pairs of type UD take datagrams; the others drop them without an answer"),
        ),
        Peer::Known(peer) if peer.process.is_none() && !peer.receives() => out.tell(
            Finding::new(DATAGRAM_TO_NOBODY, subject, format!("{sent}, which is in {}", peer.state), advice)
                .because("a queue pair takes datagrams from RTR on and drops them before"),
        ),
        Peer::Known(peer) => {
            // A key with the top bit set stands for the sender's own.
            let shows = match qkey {
                Some(key) if key.is_privileged() => pair.connection.qkey,
                key => key,
            };
            if let (Some(shows), Some(has)) = (shows, peer.connection.qkey)
                && shows != has
            {
                let finding = Finding::new(
                    QKEY_DIFFERS,
                    subject,
                    format!("{sent} with Q_Key {shows}, but the Q_Key of {} is {has}", peer.name()),
                    "set remote_qkey of the work request to the qkey that the receiver was given in ibv_modify_qp \
                         (INIT)",
                )
                .because("a datagram with another Q_Key is dropped, and nobody tells the sender");
                // The receiver drops it, and is told so if it is in this process.
                match peer.process {
                    None => out.tell_mistake(finding, Mistake::Object(Subject::QueuePair(peer.qpn))),
                    Some(_) => out.tell(finding),
                }
            }
        }
    }
}

fn dropped(pair: &Pair, headers: &Headers, reason: DropReason, out: &mut Out<'_>) {
    let subject = Subject::QueuePair(pair.qpn);
    match reason {
        DropReason::QkeyMismatch => {
            let (Some(deth), Some(has)) = (headers.deth, pair.connection.qkey) else { return };
            out.tell_mistake(
                Finding::new(
                    QKEY_DIFFERS,
                    subject,
                    format!(
                        "QP {} dropped a datagram of QP {}: it shows Q_Key {}, and the queue pair has {has}",
                        pair.qpn, deth.src_qpn, deth.qkey
                    ),
                    "have the sender set remote_qkey of its work requests to the qkey that this queue pair was given in \
                     ibv_modify_qp (INIT)",
                )
                .because("a datagram with another Q_Key is dropped, and nobody tells the sender"),
                Mistake::Object(subject),
            );
        }
        DropReason::PkeyMismatch => out.tell(Finding {
            also: out.wants(KEY_MISMATCH).then_some(KEY_MISMATCH),
            ..Finding::new(
                PKEY_DIFFERS,
                subject,
                format!(
                    "QP {} dropped a packet: it shows P_Key {}, and the P_Key of the queue pair is {}",
                    pair.qpn,
                    headers.bth.pkey,
                    Pkey::DEFAULT
                ),
                "have the sender choose the pkey_index (ibv_modify_qp, INIT) at which its ibv_query_pkey shows the P_Key of \
                 this end",
            )
            .because("a packet of another partition is dropped without an answer")
            .shown_by(format!("{headers}"))
        }),
        _ => {}
    }
}

/// A receive was missing.
fn not_ready(pair: &Pair, model: &Model, peers: &Peers, out: &mut Out<'_>) {
    if let Some(srq) = pair.srq {
        let Some(queue) = model.srqs.get(&srq).filter(|queue| queue.receives.is_empty()) else { return };
        let had = queue.receives.posted;
        out.tell(
            Finding::new(
                SRQ_RAN_EMPTY,
                Subject::SharedQueue(srq),
                format!("SRQ {srq} had no receive left when a message for QP {} came", pair.qpn),
                "post more receives, or sooner: let ibv_modify_srq (IBV_SRQ_LIMIT) tell when few are left",
            )
            .because("the sender is told to wait and to send the message again")
            .shown_by(format!("{had} receives were posted so far; the queue holds {}", queue.max_wr)),
        );
    } else if pair.receives.posted == 0 && pair.kind == "RC" && !peers.is_managed(pair.qpn) {
        out.tell(
            Finding::new(
                FIRST_RECEIVE_LATE,
                Subject::QueuePair(pair.qpn),
                format!("a message of the peer came for QP {} before the program had posted any receive on it", pair.qpn),
                "post receives while the queue pair is in INIT, before it is moved to RTR: from then on messages may come",
            )
            .because("the peer is told to wait and to send again; it fails if its rnr_retry is used up before"),
        );
    }
}
