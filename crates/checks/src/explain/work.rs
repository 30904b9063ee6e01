//! Work that failed: UV-01xx. The rule of a failure follows from the failure alone, since `ibv_wc.vendor_err` has it
//! where nothing is recorded. What the process has, and what it has seen, is evidence.

mod local;
mod managed;
mod remote;
mod silence;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use trace::{Call, DropReason, Failure, Kind, PeerReason, Queue, RequestFault};
use wire::access::RefusalCause;
use wire::{NakCode, Psn, Qpn};

use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::mistakes::Mistake;
use crate::model::{Model, Pair, Work};
use crate::naming;
use crate::posted_work::Owner;
use crate::rule::Number;
use crate::rule::catalogue::events::INJECTED;
use crate::rule::catalogue::work::*;

/// The rule that explains why work failed. It is what `ibv_wc.vendor_err` has.
#[must_use]
pub fn rule_of_failure(failure: &Failure, status: &str) -> Number {
    match failure {
        Failure::Refused(refusal) => match status {
            "IBV_WC_MW_BIND_ERR" => WINDOW_REFUSED,
            _ if matches!(refusal.cause, RefusalCause::GpuFailed { .. }) => LOCAL_GPU,
            "IBV_WC_REM_INV_REQ_ERR" | "IBV_WC_LOC_ACCESS_ERR" => PEER_MESSAGE_BAD,
            _ => local_rule(refusal.cause),
        },
        Failure::Nak { code, peer, .. } => refusal_rule(*code, *peer),
        Failure::NoAnswer { .. } => NO_ANSWER,
        Failure::PeerGone { .. } => PEER_GONE,
        Failure::NotReady { .. } => NO_RECEIVE,
        Failure::TooLong { .. } => RECEIVE_TOO_SHORT,
        Failure::OverMtu { .. } => DATAGRAM_TOO_LONG,
        Failure::AtomicTooShort { .. } => ATOMIC_TOO_SHORT,
        Failure::NotCarried { .. } => NOT_CARRIED,
        Failure::Unsuitable { .. } => NO_READS_ALLOWED,
        Failure::PeerFault { .. } => PEER_MESSAGE_BAD,
        Failure::Flushed => FLUSHED,
        Failure::Injected { .. } => INJECTED,
        _ => BAD_ANSWER,
    }
}

/// The rule for a completion of this status, also where its cause is not known; none for one that succeeded.
#[must_use]
pub fn rule_of_completion(failure: Option<&Failure>, status: &str) -> Option<Number> {
    match (failure, status) {
        (Some(failure), _) => Some(rule_of_failure(failure, status)),
        (None, "IBV_WC_TM_ERR" | "IBV_WC_TM_RNDV_INCOMPLETE") => Some(TAG_MATCHING),
        (None, "IBV_WC_WR_FLUSH_ERR") => Some(FLUSHED),
        _ => None,
    }
}

const fn local_rule(cause: RefusalCause) -> Number {
    match cause {
        RefusalCause::OutOfBounds { .. } => LOCAL_OUT_OF_BOUNDS,
        RefusalCause::WrongProtectionDomain => LOCAL_OTHER_DOMAIN,
        RefusalCause::NotPermitted => LOCAL_NOT_WRITABLE,
        RefusalCause::Faulted => LOCAL_NOT_THERE,
        RefusalCause::GpuFailed { .. } => LOCAL_GPU,
        _ => LOCAL_KEY_UNKNOWN,
    }
}

fn refusal_rule(code: NakCode, peer: Option<PeerReason>) -> Number {
    let by_code = match code {
        NakCode::RemoteAccess => REMOTE_ACCESS,
        NakCode::RemoteOperational => REMOTE_RECEIVE_BAD,
        NakCode::InvalidRequest => REMOTE_INVALID,
        _ => return BAD_ANSWER,
    };
    // Its receive is the peer's own; what is wrong with that memory is for its report.
    if by_code == REMOTE_RECEIVE_BAD {
        return by_code;
    }
    match peer {
        None => by_code,
        Some(PeerReason::Refused { cause, .. }) => match cause {
            RefusalCause::OutOfBounds { .. } => REMOTE_OUT_OF_BOUNDS,
            RefusalCause::LocalKey => REMOTE_LOCAL_KEY,
            RefusalCause::WrongProtectionDomain => REMOTE_OTHER_DOMAIN,
            RefusalCause::NotPermitted => REMOTE_REGION_FORBIDS,
            RefusalCause::QueuePairForbids => REMOTE_PAIR_FORBIDS,
            RefusalCause::Misaligned => ATOMIC_MISALIGNED,
            RefusalCause::Faulted => REMOTE_NOT_THERE,
            RefusalCause::GpuFailed { .. } => REMOTE_GPU,
            RefusalCause::WrongQueuePair | RefusalCause::WindowUnbound => REMOTE_WINDOW,
            _ => REMOTE_KEY_UNKNOWN,
        },
        Some(PeerReason::RegionForbids { .. }) => REMOTE_REGION_FORBIDS,
        Some(PeerReason::OtherDomain { .. }) => REMOTE_OTHER_DOMAIN,
        Some(PeerReason::PairForbids { .. }) => REMOTE_PAIR_FORBIDS,
        Some(PeerReason::TooLong { .. }) => REMOTE_RECEIVE_TOO_SHORT,
        Some(PeerReason::TooManyReads { .. }) => TOO_MANY_READS,
        Some(PeerReason::Fault(fault)) => match fault {
            RequestFault::NotGranted | RequestFault::FlushNotGranted => REMOTE_PAIR_FORBIDS,
            RequestFault::Misaligned | RequestFault::MemoryMisaligned => ATOMIC_MISALIGNED,
            RequestFault::TooManyReads => TOO_MANY_READS,
            _ => REMOTE_MALFORMED,
        },
        Some(_) => by_code,
    }
}

/// How many destinations of dropped packets, and how many ends of connections, are remembered.
const MAX_DROPS: usize = 256;

/// The family.
#[derive(Default, Debug)]
pub(crate) struct FailedWork {
    /// The last packet that this process dropped for each destination, and how many. In one process, those are the
    /// packets of a peer that is here, too.
    drops: Map<Qpn, (DropReason, Psn, u64)>,
    /// Who ended the connection of a queue pair.
    ended: Map<Qpn, trace::ConnectionEnd>,
    /// What the process of the peer answered, where it is one of this host and was asked.
    seen: Map<Qpn, Call>,
    /// Why the connection manager moved queue pairs to ERR.
    managed: managed::ManagedPairs,
}

/// A failed completion, and what is known around it.
pub(crate) struct Failed<'a> {
    pub at: u64,
    pub model: &'a Model,
    pub qpn: Qpn,
    pub queue: Queue,
    pub wr_id: u64,
    pub opcode: &'static str,
    pub status: &'static str,
    pub failure: Failure,
    pub pair: Option<&'a Pair>,
    pub work: Option<&'a Work>,
    pub drops: &'a Map<Qpn, (DropReason, Psn, u64)>,
    pub ended: Option<trace::ConnectionEnd>,
    pub seen: Option<&'a Call>,
    pub stopped_by: Option<managed::Stop>,
}

impl Failed<'_> {
    /// The finding, without its cause.
    pub fn finding(&self, rule: Number, happened: &str, advice: impl Into<String>) -> Finding {
        let work = naming::work(self.model, self.qpn, self.queue, self.wr_id, self.opcode, self.work);
        let short = self.status.trim_start_matches("IBV_WC_");
        let finding =
            Finding::new(rule, Subject::QueuePair(self.qpn), format!("{work} failed with {short}: {happened}"), advice);
        match (self.pair.and_then(|pair| pair.connection.dest_qpn), psn(&self.failure)) {
            (Some(peer), psn) => finding.between(self.qpn, peer, psn),
            _ => finding,
        }
    }

    /// What the request asked the peer for.
    pub fn remote(&self) -> Option<(u64, u64, wire::Key)> {
        let work = self.work?;
        work.remote.map(|(address, key)| (address, work.pieces.bytes, key))
    }
}

/// The packet that a failure is about.
const fn psn(failure: &Failure) -> Option<Psn> {
    match failure {
        Failure::Nak { psn, .. }
        | Failure::NoAnswer { psn, .. }
        | Failure::PeerGone { psn }
        | Failure::NotReady { psn, .. }
        | Failure::BadAnswer { psn, .. }
        | Failure::PeerFault { psn, .. } => Some(*psn),
        _ => None,
    }
}

fn all(mut finding: Finding, seen: Vec<String>) -> Finding {
    finding.evidence.extend(seen);
    finding
}

impl Examine for FailedWork {
    fn sees(&self) -> Sort {
        Sort::COMPLETED | Sort::POLL | Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let event = moment.event;
        if let Kind::Called { call, .. } = &event.kind {
            self.managed.called(event.qpn, call);
        }
        match event.kind {
            Kind::PacketDropped { headers: Some(headers), reason } => {
                let to = headers.bth.dest_qpn;
                if self.drops.len() < MAX_DROPS || self.drops.contains_key(&to) {
                    let drop = self.drops.entry(to).or_insert((reason, headers.bth.psn, 0));
                    *drop = (reason, headers.bth.psn, drop.2 + 1);
                }
            }
            Kind::ConnectionEnded { by, .. } => {
                if let Some(qpn) = event.qpn.filter(|_| self.ended.len() < MAX_DROPS) {
                    self.ended.insert(qpn, by);
                }
            }
            Kind::Called { call: call @ Call::PeerSeen { .. }, .. } => {
                if let Some(qpn) = event.qpn.filter(|_| self.seen.len() < MAX_DROPS) {
                    self.seen.insert(qpn, call);
                }
            }
            // Operations on tags belong to no queue pair: only the poll tells of them.
            Kind::Called { call: Call::Polled { cq, wr_id, status: status @ "IBV_WC_TM_ERR" }, .. } => {
                out.tell(local::tag_not_deleted(cq, wr_id, status));
            }
            Kind::Completed { wr_id, queue, status, opcode, failure, .. } => {
                let Some(qpn) = event.qpn else { return };
                let Some(rule) = rule_of_completion(failure.as_ref(), status) else { return };
                let pair = moment.model.pairs.get(&qpn);
                let failed = Failed {
                    at: event.at,
                    model: moment.model,
                    qpn,
                    queue,
                    wr_id,
                    opcode,
                    status,
                    failure: failure.unwrap_or(Failure::Flushed),
                    pair,
                    work: moment.model.work(qpn, queue, wr_id),
                    drops: &self.drops,
                    ended: self.ended.get(&qpn).copied(),
                    seen: self.seen.get(&qpn),
                    stopped_by: self.managed.stop_of(qpn),
                };
                let finding = explain(rule, &failed);
                match Owner::of(moment.model, event, queue) {
                    Some(owner) => out.tell_mistake(finding, Mistake::Work(owner, wr_id)),
                    None => out.tell(finding),
                }
            }
            _ => {}
        }
    }
}

fn explain(rule: Number, failed: &Failed<'_>) -> Finding {
    match failed.failure {
        _ if rule == TAG_MATCHING => local::rendezvous(failed),
        Failure::Refused(refusal) if rule == WINDOW_REFUSED => local::window(failed, &refusal),
        Failure::Refused(refusal) if rule == PEER_MESSAGE_BAD => remote::their_message(failed, &format!("{refusal}")),
        Failure::Refused(refusal) => local::refused(rule, failed, &refusal),
        Failure::TooLong { length, space } => local::receive_too_short(failed, length, space),
        Failure::OverMtu { length, mtu } => local::datagram_too_long(failed, length, mtu),
        Failure::AtomicTooShort { length } => local::atomic_too_short(failed, length),
        Failure::NotCarried { transport } => local::not_carried(failed, transport),
        Failure::Unsuitable { what } => local::unsuitable(failed, what),
        Failure::Nak { code, peer, .. } => remote::refused(rule, failed, code, peer),
        Failure::PeerFault { what, .. } => remote::their_message(failed, what),
        Failure::BadAnswer { what, .. } => remote::bad_answer(failed, what),
        Failure::NoAnswer { tries, .. } => silence::no_answer(failed, tries),
        Failure::NotReady { tries, .. } => silence::not_ready(failed, tries),
        Failure::PeerGone { .. } => silence::peer_gone(failed),
        Failure::Injected { line, .. } => local::injected(failed, line),
        _ => silence::flushed(failed),
    }
}

#[cfg(test)]
mod tests;
