//! What is wrong with one work request, whatever was posted before it.

use alloc::format;

use trace::{Call, Kind};
use wire::Qpn;

use crate::examine::{Moment, Out};
use crate::finding::{Finding, Subject};
use crate::mistakes::Mistake;
use crate::model::{Model, Pair, Work};
use crate::posted_work::{Owner, Posting, name};
use crate::rule::catalogue::posting::*;

/// What stands before each datagram in its receive buffer.
const GRH_BYTES: u64 = 40;
/// The longest packet that a NIC has.
const MTU_MAX: u64 = 4096;
/// How much work under way is looked at, the newest first.
const LOOKED_AT_MAX: usize = 128;
/// The queue pair of a multicast group.
const MULTICAST_QPN: Qpn = Qpn::new(0xff_ffff);

/// What is seen in the call itself, also if it is refused.
pub(super) fn called(call: &Call, moment: &Moment<'_>, out: &mut Out<'_>) {
    if let Call::Refused { function, reason, .. } = call
        && reason.as_str().contains("leads to no memory")
    {
        let what = format!("{function} was given a list of work requests that has no end: {reason}");
        let advice = "set next of the last work request to NULL: clear each with memset, or = {0}, before it is filled";
        let subject = moment.event.qpn.map_or(Subject::Function(function), Subject::QueuePair);
        let finding = Finding::new(NEXT_NEVER_SET, subject, what, advice).because(
            "next of a work request on the stack holds what was there before; the library follows it, and the program \
             ends by a signal. While it is checked, the call fails with EINVAL; the requests before were posted",
        );
        out.tell_mistake(finding, Mistake::Object(subject));
        return;
    }
    let &Call::PostSend { wr_id, opcode, inline, solicited, fence, pieces, remote_qpn, remote_gid, .. } = call else {
        return;
    };
    let Some(pair) = moment.model.pair_of(moment.event).filter(|pair| !pair.kind.is_empty()) else { return };
    let name = || name(Owner::Send(pair.qpn), opcode, wr_id);
    let subject = Subject::QueuePair(pair.qpn);
    if inline && pieces.bytes > u64::from(pair.max_inline_data) {
        let what = format!(
            "{} has {} bytes of inline data, and the queue pair takes {}",
            name(),
            pieces.bytes,
            pair.max_inline_data
        );
        let advice = "ask for more in ibv_qp_init_attr.cap.max_inline_data and look at what ibv_create_qp granted, or \
                      leave IBV_SEND_INLINE out";
        let seen = format!("QP {} was made with max_inline_data {}", pair.qpn, pair.max_inline_data);
        let finding = Finding::new(INLINE_TOO_LONG, subject, what, advice).shown_by(seen);
        out.tell_mistake(finding, Mistake::Object(subject));
    }
    if solicited && !opcode.starts_with("SEND") && opcode != "RDMA_WRITE_WITH_IMM" {
        let what = format!("{} has IBV_SEND_SOLICITED, which changes nothing", name());
        let advice = "set IBV_SEND_SOLICITED on SENDs and on WRITEs with immediate data only";
        let finding = Finding::new(SOLICITED_IN_VAIN, subject, what, advice);
        out.tell(
            finding.because(format!("{opcode} takes no receive of the peer, so there is no completion to wake it")),
        );
    }
    if fence && matches!(pair.kind, "UC" | "UD") {
        let what = format!("{} has IBV_SEND_FENCE on a queue pair of type {}", name(), pair.kind);
        let advice = "leave IBV_SEND_FENCE out: it is for RC queue pairs";
        let finding = Finding::new(FENCE_WITHOUT_READS, subject, what, advice);
        out.tell(finding.because("a fence waits for READs and atomics, which this type has not"));
    }
    if let (Some(qpn), Some(gid)) = (remote_qpn, remote_gid)
        && is_group(&gid)
        && qpn != MULTICAST_QPN
    {
        let what = format!("{} goes to a multicast group and names QP {qpn}", name());
        let advice = "set wr.ud.remote_qpn to 0xffffff for datagrams to a multicast group";
        let finding = Finding::new(GROUP_WITHOUT_NUMBER, subject, what, advice);
        out.tell(finding.because("members of a group take only datagrams for QP 0xffffff: this one is dropped by all"));
    }
}

/// Whether it is the address of a multicast group, of IPv6 or of IPv4.
fn is_group(gid: &[u8; 16]) -> bool {
    const IPV4_MAPPED_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    gid[0] == 0xff || (gid[..12] == IPV4_MAPPED_PREFIX && gid[12] & 0xf0 == 0xe0)
}

/// What is seen when its queue takes it.
pub(super) fn posted(posting: &Posting<'_>, model: &Model, out: &mut Out<'_>) {
    let work = &posting.work;
    match posting.owner {
        Owner::Send(qpn) => {
            if let Some(pair) = model.pairs.get(&qpn) {
                send(posting, pair, out);
            }
        }
        Owner::Receive(qpn) => {
            let datagrams = model.pairs.get(&qpn).is_some_and(|pair| pair.kind == "UD");
            if datagrams && work.pieces.bytes < GRH_BYTES {
                let what = format!(
                    "{} has {} bytes, and each datagram comes with {GRH_BYTES}",
                    posting.name(),
                    work.pieces.bytes
                );
                let advice = "make receive buffers of UD queue pairs 40 bytes longer than the longest message; the \
                              message begins behind those 40";
                out.tell(
                    posting
                        .finding(NO_ROOM_FOR_GRH, what, advice)
                        .because("the first 40 bytes of the buffer are for the global routing header, used or not"),
                );
            }
        }
        Owner::Shared(_) => {}
    }
}

fn send(posting: &Posting<'_>, pair: &Pair, out: &mut Out<'_>) {
    let work = &posting.work;
    if pair.kind == "UD" && work.pieces.bytes > MTU_MAX {
        let what = format!("{} has {} bytes, and a datagram has at most {MTU_MAX}", posting.name(), work.pieces.bytes);
        let advice = "split the message into datagrams of at most the port's active_mtu (ibv_query_port), or use RC";
        let finding = posting.finding(DATAGRAM_TOO_LONG, what, advice).because("a datagram is one packet");
        out.tell_mistake(finding, Mistake::of(posting));
    }
    if work.is_answered() && pair.connection.max_rd_atomic == Some(0) {
        let what = format!("{} cannot run: max_rd_atomic of the queue pair is 0", posting.name());
        let advice = "set ibv_qp_attr.max_rd_atomic (and the peer's max_dest_rd_atomic) to 1 or more in \
                      ibv_modify_qp to RTS; with the connection manager: initiator_depth and responder_resources";
        out.tell_mistake(
            posting
                .finding(NO_READS_ALLOWED, what, advice)
                .because("max_rd_atomic is how many READs and atomics may be under way at once, and it is 0"),
            Mistake::of(posting),
        );
    }
    if let Some((address, key)) = work.remote.filter(|(_, key)| key.value() == 0 && work.pieces.bytes > 0) {
        let what = format!("{} is for address {address:#x} of the peer with rkey {key}", posting.name());
        let advice = "ask the peer for the rkey of its region (mr->rkey) and set it in wr.rdma.rkey or wr.atomic.rkey";
        out.tell_mistake(
            posting
                .finding(REMOTE_KEY_NEVER_SET, what, advice)
                .because("no region has key 0: the key was never set, or the peer's message with it was not read"),
            Mistake::of(posting),
        );
    }
    if work.opcode.starts_with("RDMA_WRITE") && !work.fence {
        overtakes(posting, pair, out);
    }
}

/// Whether a WRITE is for memory that a READ before it may still have to read.
fn overtakes(posting: &Posting<'_>, pair: &Pair, out: &mut Out<'_>) {
    let Some((address, key)) = posting.work.remote else { return };
    let length = posting.work.pieces.bytes;
    let mut reads = pair.sends.iter().rev().take(LOOKED_AT_MAX).filter(|work| work.opcode == "RDMA_READ");
    let same = |work: &&Work| {
        work.remote.is_some_and(|(read_at, read_key)| {
            let ends = |start: u64, bytes: u64| start.saturating_add(bytes);
            read_key == key && read_at < ends(address, length) && address < ends(read_at, work.pieces.bytes)
        })
    };
    if let Some(read) = reads.find(same) {
        let what = format!(
            "{} writes to the peer's memory at {address:#x} that {} is still reading",
            posting.name(),
            name(posting.owner, read.opcode, read.wr_id)
        );
        let advice = "set IBV_SEND_FENCE on the WRITE, or wait for the completion of the READ";
        out.tell(posting.finding(OVERWRITES_READ, what, advice).because(
            "if an answer of the READ is lost, it is read again, after the WRITE: the READ gets the new bytes",
        ));
    }
}

/// A work request has failed: can the program know which?
pub(super) fn failed(pair: &Pair, moment: &Moment<'_>, out: &mut Out<'_>) {
    let Kind::Completed { wr_id, queue: trace::Queue::Send, failure: Some(failure), .. } = &moment.event.kind else {
        return;
    };
    if *failure == trace::Failure::Flushed {
        return;
    }
    let mut same = pair.sends.iter().filter(|work| work.wr_id == *wr_id);
    let Some(first) = same.next() else { return };
    let differs = |work: &Work| {
        (work.opcode, work.pieces, work.remote, work.remote_qpn)
            != (first.opcode, first.pieces, first.remote, first.remote_qpn)
    };
    let (mut others, mut different) = (0, None);
    for work in same {
        others += 1;
        different = different.or_else(|| differs(work).then_some(work.opcode));
    }
    if let Some(opcode) = different {
        let what = format!(
            "{} failed, and {others} other work requests under way have the same wr_id, such as a {opcode}",
            name(Owner::Send(pair.qpn), first.opcode, *wr_id)
        );
        let advice = "give work requests that are under way at once different wr_ids: the completion of failed work \
                      has no other name";
        out.tell(Finding::new(NAME_IS_AMBIGUOUS, Subject::QueuePair(pair.qpn), what, advice));
    }
}
