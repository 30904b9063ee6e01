//! Ids of the connection manager: in which order a program calls, and what it owes.

use alloc::format;
use alloc::string::String;

use trace::{Call, ConnectionEnd, Kind, POISON_BYTE};
use wire::{Key, Qpn};

use crate::examine::{Moment, Out};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::model::Model;
use crate::rule::catalogue::manager::*;
use crate::rules::waiting_destroyers::WaitingDestroyers;

/// How long a peer may be left without an answer before it is reported.
const ANSWER_PATIENCE_NS: u64 = 10_000_000_000;
/// What stands for the most that the device can (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
const AS_MANY_AS_POSSIBLE: u8 = 0xff;
/// The largest retry count: the field has three bits.
const MAX_RETRIES: u8 = 7;

/// The ids of a program.
#[derive(Default, Debug)]
pub(super) struct Ids {
    all: Map<u64, Id>,
    /// The id of each queue pair that has one.
    by_pair: Map<Qpn, u64>,
    /// Events that were taken and not acknowledged.
    taken: Map<(u64, &'static str), Taken>,
    destroyers: WaitingDestroyers,
    /// An event was acknowledged.
    has_acknowledged: bool,
}

/// Events of one sort that were taken.
#[derive(Clone, Copy, Default, Debug)]
struct Taken {
    count: u32,
    /// The thread that took the last of them.
    thread: u32,
}

/// What is known of an id.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Id {
    channel: Option<u64>,
    synchronous: bool,
    /// Its queue pair.
    pub qpn: Option<Qpn>,
    resolves_address: bool,
    address_resolved: bool,
    resolves_route: bool,
    route_resolved: bool,
    /// When the peer's request was taken.
    requested: Option<u64>,
    /// The peer's request was accepted.
    pub accepted: bool,
    rejected: bool,
    /// `rdma_connect` or `rdma_accept` was called.
    pub offered: bool,
    pub established: bool,
    /// The event by which the connection ended, or did not come about, and when it was taken.
    pub ended: Option<(&'static str, u64)>,
    disconnects: bool,
    /// The connection ended, whether or not the program was told.
    is_over: bool,
    groups: u32,
    /// Its queue pair sends datagrams: there is no connection.
    is_datagram: bool,
    /// How many READs of ours the peer answers at a time.
    peer_answers: Option<u8>,
}

/// A number whose bytes are all poison.
fn is_poison(number: u64, bytes: u32) -> bool {
    number == u64::from_ne_bytes([POISON_BYTE; 8]) >> (64 - 8 * bytes)
}

/// The memory or the key that a work request names comes from an event that was given back.
fn used_after_ack(
    qpn: Option<Qpn>,
    wr_id: u64,
    opcode: &str,
    address: Option<u64>,
    key: Option<Key>,
    out: &mut Out<'_>,
) {
    let is_key = key.is_some_and(|key| is_poison(key.value().into(), 4));
    if !is_key && !address.is_some_and(|address| is_poison(address, 8)) {
        return;
    }
    let (field, value) = match key.filter(|_| is_key) {
        Some(key) => ("rkey", u64::from(key.value())),
        None => ("remote_addr", address.unwrap_or_default()),
    };
    out.tell(
        Finding::new(
            USED_AFTER_ACK,
            qpn.map_or(Subject::Process, Subject::QueuePair),
            format!(
                "the {opcode} with wr_id {wr_id} has {field} {value:#x}, which is what private data is overwritten with \
                 when its event is acknowledged"
            ),
            "copy what param.conn.private_data points to before rdma_ack_cm_event, and not only the struct rdma_cm_event",
        )
        .because("rdma_ack_cm_event frees the event and what it points to; what lies there then is something else's"),
    );
}

/// The peer gets the number of a queue pair that no program has.
fn no_pair(function: &str, number: u64) -> Finding {
    Finding::new(
        NO_QUEUE_PAIR,
        Subject::Id(number),
        format!("{function} of id {number:#x} tells the peer of QP 0: the id has no queue pair, and qp_num is 0"),
        format!(
            "call rdma_create_qp for the id before {function}; or set qp_num of rdma_conn_param to that of a queue pair \
             that the program has made itself"
        ),
    )
    .because(
        "the call succeeds, and the connection may even be established, but QP 0 belongs to the subnet's management: \
         whatever the peer sends there is lost",
    )
}

impl Ids {
    /// The id of a queue pair.
    pub fn of_pair(&self, qpn: Qpn) -> Option<(u64, &Id)> {
        let number = *self.by_pair.get(&qpn)?;
        Some((number, self.all.get(&number)?))
    }

    /// The id of that number, which has this queue pair if it is known.
    fn entry(&mut self, number: u64, qpn: Option<Qpn>) -> &mut Id {
        let id = self.all.entry(number).or_default();
        if let Some(qpn) = qpn {
            id.qpn = Some(qpn);
            self.by_pair.insert(qpn, number);
        }
        id
    }

    pub fn observe(&mut self, moment: &Moment<'_>, out: &mut Out<'_>) {
        let at = moment.event.at;
        // The connection is over, also if the program has not taken the event; unless it ends with its queue pair.
        if let Kind::ConnectionEnded { by, .. } = moment.event.kind
            && by != ConnectionEnd::Local
            && let Some(number) = moment.event.qpn.and_then(|qpn| self.by_pair.get(&qpn))
            && let Some(id) = self.all.get_mut(number)
        {
            id.is_over = true;
        }
        let Kind::Called { call, thread } = &moment.event.kind else { return };
        self.destroyers.called(*thread);
        match *call {
            Call::CmCall { function, id, id_qpn } => self.called(function, id, id_qpn, moment.model, out),
            Call::CmChannel { id, channel, synchronous } => {
                let it = self.all.entry(id).or_default();
                (it.channel, it.synchronous) = (Some(channel), synchronous);
            }
            Call::CmMovesQp { id, .. } => {
                self.entry(id, moment.event.qpn);
            }
            Call::CmOffer { .. } => self.offers(call, out),
            Call::CmEvent { event, id, listen_id, status, id_qpn } => {
                let taken = self.taken.entry((id, event)).or_default();
                (taken.count, taken.thread) = (taken.count + 1, *thread);
                self.happened(at, event, id, listen_id, status, id_qpn);
                let it = self.entry(id, None);
                let pair = it.qpn.and_then(|qpn| moment.model.pairs.get(&qpn));
                it.is_datagram |= pair.is_some_and(|pair| pair.kind == "UD");
            }
            Call::CmPeer { id, initiator_depth, .. } => {
                let it = self.entry(id, None);
                it.peer_answers = initiator_depth.or(it.peer_answers);
            }
            Call::CmAck { event, id } => {
                self.has_acknowledged = true;
                if let Some(Taken { count, .. }) = self.taken.get_mut(&(id, event)) {
                    *count -= 1;
                    if *count == 0 {
                        self.taken.remove(&(id, event));
                    }
                }
            }
            Call::PostSend { wr_id, opcode, remote_address, remote_key, .. } if self.has_acknowledged => {
                let qpn = moment.event.qpn;
                used_after_ack(qpn, wr_id, opcode, remote_address, remote_key, out);
            }
            Call::CmEmptyData { function, id } => out.tell(
                Finding::new(
                    EMPTY_PRIVATE_DATA,
                    Subject::Id(id),
                    format!("{function} of id {id:#x} has private_data, and private_data_len is 0: the peer gets nothing"),
                    "set private_data_len of rdma_conn_param to the number of bytes, or private_data to NULL",
                )
                .because(
                    "private_data_len has 8 bits: 256 bytes are 0, and 300 are 44. A request has room for 56 bytes with \
                     RDMA_PS_TCP, an answer for 196",
                ),
            ),
            Call::WaitForAcks { object: "id", number, missing } if missing > 0 => {
                self.waits(number, missing, *thread, at, out);
            }
            // The peer has given up before: which request it was is not told.
            Call::Refused { function: "rdma_accept" | "rdma_reject", .. } => {
                self.all.for_each_mut(|_, id| id.rejected |= id.requested.is_some() && !id.accepted);
            }
            Call::Refused { function: "rdma_ack_cm_event", reason, .. } => out.tell(
                Finding::new(
                    ACKNOWLEDGED_TWICE,
                    Subject::Function("rdma_ack_cm_event"),
                    "rdma_ack_cm_event is called for an event that the program does not have",
                    "call rdma_ack_cm_event once for each event that rdma_get_cm_event gave, and do not use the event or \
                     its private data afterwards",
                )
                .because("the first call frees the event: a second one frees memory that is something else by then")
                .shown_by(reason.as_str()),
            ),
            _ => {}
        }
    }

    fn called(&mut self, function: &str, number: u64, qpn: Option<Qpn>, model: &Model, out: &mut Out<'_>) {
        match function {
            "rdma_destroy_id" => return self.destroyed(number, model, out),
            "rdma_destroy_event_channel" => return self.channel_destroyed(number, out),
            "rdma_get_cm_event" | "rdma_create_event_channel" => return,
            _ => {}
        }
        let id = self.entry(number, qpn);
        match function {
            "rdma_resolve_addr" => id.resolves_address = true,
            "rdma_resolve_route" => {
                id.resolves_route = true;
                if id.resolves_address && !id.address_resolved && !id.synchronous {
                    out.tell(too_soon(
                        ROUTE_BEFORE_ADDRESS,
                        number,
                        ("rdma_resolve_route", "rdma_resolve_addr", "RDMA_CM_EVENT_ADDR_RESOLVED"),
                    ));
                }
            }
            "rdma_reject" | "rdma_reject_ece" => id.rejected = true,
            "rdma_disconnect" => id.disconnects = true,
            "rdma_leave_multicast" => id.groups = id.groups.saturating_sub(1),
            "rdma_destroy_qp" => id.qpn = None,
            _ => {}
        }
    }

    fn offers(&mut self, call: &Call, out: &mut Out<'_>) {
        let Call::CmOffer {
            function,
            id: number,
            id_qpn,
            initiator_depth,
            retry_count,
            rnr_retry_count,
            offered_qpn,
            ..
        } = *call
        else {
            return;
        };
        if offered_qpn == Some(Qpn::SMI) {
            out.tell(no_pair(function, number));
        }
        let id = self.entry(number, id_qpn);
        id.offered = true;
        if function == "rdma_accept" {
            id.accepted = true;
            if let Some(answers) = id.peer_answers.filter(|answers| initiator_depth > *answers)
                && initiator_depth != AS_MANY_AS_POSSIBLE
            {
                out.tell(
                    Finding::new(
                        MORE_READS_THAN_OFFERED,
                        Subject::Id(number),
                        format!(
                            "rdma_accept of id {number:#x} has initiator_depth {initiator_depth}, but the peer answers \
                             {answers} READs and atomics at a time"
                        ),
                        "set initiator_depth of rdma_conn_param to at most param.conn.initiator_depth of the event \
                         RDMA_CM_EVENT_CONNECT_REQUEST, or leave it at RDMA_MAX_INIT_DEPTH",
                    )
                    .because("the peer refuses the READ that is one too many, and the connection ends"),
                );
            }
        } else if id.resolves_route && !id.route_resolved && !id.synchronous {
            out.tell(too_soon(
                CONNECT_BEFORE_ROUTE,
                number,
                ("rdma_connect", "rdma_resolve_route", "RDMA_CM_EVENT_ROUTE_RESOLVED"),
            ));
        }
        for (name, count) in [("retry_count", retry_count), ("rnr_retry_count", rnr_retry_count)] {
            if count > MAX_RETRIES {
                out.tell(
                    Finding::new(
                        RETRIES_OUT_OF_RANGE,
                        Subject::Id(number),
                        format!("{function} of id {number:#x} has {name} {count}, and the largest is 7"),
                        format!("set {name} of rdma_conn_param to a number from 0 to 7"),
                    )
                    .because(format!(
                        "the message has three bits for it: some implementations take 7, others the lowest three bits, \
                         which are {}",
                        count & MAX_RETRIES
                    )),
                );
            }
        }
    }

    fn happened(
        &mut self,
        at: u64,
        event: &'static str,
        number: u64,
        listener: Option<u64>,
        status: i32,
        qpn: Option<Qpn>,
    ) {
        let channel = listener.and_then(|listener| self.all.get(&listener)).and_then(|listener| listener.channel);
        let id = self.entry(number, qpn);
        match event.trim_start_matches("RDMA_CM_EVENT_") {
            "ADDR_RESOLVED" | "ADDRINFO_RESOLVED" => id.address_resolved = true,
            "ROUTE_RESOLVED" => (id.address_resolved, id.route_resolved) = (true, true),
            "CONNECT_REQUEST" => {
                id.requested = Some(at);
                id.channel = id.channel.or(channel);
            }
            "ESTABLISHED" | "CONNECT_RESPONSE" => id.established = true,
            "DISCONNECTED" | "REJECTED" | "UNREACHABLE" | "CONNECT_ERROR" | "DEVICE_REMOVAL" => {
                id.ended = id.ended.or(Some((event, at)));
            }
            "MULTICAST_JOIN" if status == 0 => id.groups += 1,
            _ => {}
        }
    }

    /// The program is about to wait until its events are acknowledged.
    fn waits(&mut self, number: u64, missing: u32, thread: u32, at: u64, out: &mut Out<'_>) {
        let mut finding = Finding::new(
            DESTROY_WAITS_FOR_ACK,
            Subject::Id(number),
            format!("rdma_destroy_id of id {number:#x} waits: {missing} of its events are not acknowledged"),
            "call rdma_ack_cm_event for each event that rdma_get_cm_event gave, before rdma_destroy_id of its id; copy \
             what is needed of the event before",
        )
        .because(
            "an event points to its id, so the id stays until all its events are given back: the call may never end",
        );
        if let Some(list) = self.unacknowledged(Some(number)) {
            finding = finding.shown_by(format!("not acknowledged: {list}"));
        }
        // Another thread that took an event may acknowledge it in a moment.
        if self.taken.iter().any(|((of, _), taken)| *of == number && taken.thread != thread) {
            self.destroyers.waits(thread, at, finding);
        } else {
            out.tell(finding);
        }
    }

    /// The events that are not acknowledged, of one id or of all.
    fn unacknowledged(&self, of: Option<u64>) -> Option<String> {
        let mut list = String::new();
        for ((number, event), Taken { count, .. }) in
            self.taken.iter().filter(|((number, _), _)| of.is_none_or(|of| of == *number))
        {
            let separator = if list.is_empty() { "" } else { ", " };
            list += &format!("{separator}{count} {event} of id {number:#x}");
            if list.len() > 400 {
                list += ", …";
                break;
            }
        }
        (!list.is_empty()).then_some(list)
    }

    fn destroyed(&mut self, number: u64, model: &Model, out: &mut Out<'_>) {
        let Some(id) = self.all.remove(&number) else { return };
        self.by_pair.retain(|_, of| *of != number);
        let subject = Subject::Id(number);
        let pair = id.qpn.and_then(|qpn| model.pairs.get(&qpn));
        if let Some(pair) = pair {
            out.tell(
                Finding::new(
                    PAIR_LEFT_BEHIND,
                    subject,
                    format!("id {number:#x} is destroyed, and its queue pair, QP {}, still exists", pair.qpn),
                    "call rdma_destroy_qp for the id before rdma_destroy_id",
                )
                .because(
                    "with the id the program loses the only way to rdma_destroy_qp, and the connection ends under it",
                ),
            );
        }
        let is_datagram = id.is_datagram || pair.is_some_and(|pair| pair.kind == "UD");
        if id.established
            && id.ended.is_none()
            && !id.is_over
            && !id.disconnects
            && id.offered
            && !is_datagram
            && id.groups == 0
        {
            out.tell(
                Finding::new(
                    DESTROYED_CONNECTED,
                    subject,
                    format!("id {number:#x} is destroyed while its connection stands"),
                    "call rdma_disconnect first. The peer takes RDMA_CM_EVENT_DISCONNECTED and answers it with its own \
                     rdma_disconnect; then RDMA_CM_EVENT_DISCONNECTED comes here, or after a timeout, and queue pair \
                     and id can be destroyed",
                )
                .because(
                    "the connection is torn down all the same, but this program does not learn when the peer has agreed, and \
                     work that is under way is lost",
                ),
            );
        }
        if id.groups > 0 {
            out.tell(
                Finding::new(
                    GROUP_NOT_LEFT,
                    subject,
                    format!("id {number:#x} is destroyed while it is in {} multicast groups", id.groups),
                    "call rdma_leave_multicast for each rdma_join_multicast, before rdma_destroy_id",
                )
                .because(
                    "the queue pair stays attached to the group: ibv_destroy_qp and rdma_destroy_qp fail with EBUSY, and \
                     datagrams of the group go on to arrive",
                ),
            );
        }
    }

    fn channel_destroyed(&self, channel: u64, out: &mut Out<'_>) {
        let mut left = self.all.iter().filter(|(_, id)| id.channel == Some(channel) && !id.synchronous);
        let Some((first, _)) = left.next() else { return };
        let more = left.count();
        out.tell(
            Finding::new(
                CHANNEL_DESTROYED_EARLY,
                Subject::Function("rdma_destroy_event_channel"),
                format!(
                    "rdma_destroy_event_channel is called while {} ids report to the channel, the first is {first:#x}",
                    more + 1
                ),
                "call rdma_destroy_id for each id first, or move it to another channel with rdma_migrate_id",
            )
            .because("nobody hears of the events of these ids any more; their descriptor may be another file by then"),
        );
    }

    pub fn tick(&mut self, now: u64, out: &mut Out<'_>) {
        self.destroyers.tick(now, out);
        self.unanswered(&|since| now.saturating_sub(since) >= ANSWER_PATIENCE_NS, out);
    }

    /// Peers that wait for an answer since a moment that is long ago.
    fn unanswered(&self, is_long_ago: &dyn Fn(u64) -> bool, out: &mut Out<'_>) {
        for (number, id) in &self.all {
            let subject = Subject::Id(*number);
            if id.requested.is_some_and(is_long_ago) && !id.accepted && !id.rejected && id.ended.is_none() {
                out.tell(
                    Finding::new(
                        REQUEST_NOT_ANSWERED,
                        subject,
                        format!("the request of id {number:#x} is neither accepted nor rejected"),
                        "call rdma_accept or rdma_reject with the id of each RDMA_CM_EVENT_CONNECT_REQUEST (event->id, not \
                         the id that listens)",
                    )
                    .because("the peer waits until it gives up with RDMA_CM_EVENT_UNREACHABLE, which takes long"),
                );
            }
            if let Some((event, at)) = id.ended
                && event.ends_with("DISCONNECTED")
                && is_long_ago(at)
                && !id.disconnects
            {
                out.tell(
                    Finding::new(
                        DISCONNECT_NOT_ANSWERED,
                        subject,
                        format!("id {number:#x} got RDMA_CM_EVENT_DISCONNECTED, and the program did not act on it"),
                        "call rdma_disconnect for the id, which answers the peer, then destroy its queue pair and the id",
                    )
                    .because("the peer repeats its message until it is answered, and its own end comes only then"),
                );
            }
        }
    }

    pub fn finish(&self, out: &mut Out<'_>) {
        self.unanswered(&|_| true, out);
        if let Some(list) = self.unacknowledged(None) {
            let count: u32 = self.taken.values().map(|taken| taken.count).sum();
            out.tell(
                Finding::new(
                    NEVER_ACKNOWLEDGED,
                    Subject::Process,
                    format!("{count} events of the connection manager were taken and never acknowledged"),
                    "call rdma_ack_cm_event for each event that rdma_get_cm_event gave",
                )
                .because("each keeps its memory, and rdma_destroy_id of its id waits without end")
                .shown_by(list),
            );
        }
    }
}

/// A call that must wait for the event of the call before it.
fn too_soon(rule: crate::rule::Number, number: u64, (call, before, event): (&str, &str, &str)) -> Finding {
    Finding::new(
        rule,
        Subject::Id(number),
        format!("{call} of id {number:#x} is called before {event} was taken"),
        format!("after {before} call rdma_get_cm_event until it gives {event}, acknowledge it, and call {call} then"),
    )
    .because(format!(
        "{before} only begins; it is done when the event comes. It works here, as the answer is known at once; on other \
         hardware {call} fails with EINVAL"
    ))
}
