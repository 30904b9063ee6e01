//! Whether the program leaves memory alone that it has lent to the NIC: digests of then and now are compared.

use alloc::collections::VecDeque;
use alloc::format;

use trace::{Call, Kind, Queue};
use wire::access::Access;
use wire::{Key, Qpn};

use super::claims::{Claims, places};
use super::{CHANGED_UNDER_WAY, RECEIVE_CHANGED};
use crate::examine::{Moment, Out};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::model::{Model, Pair, Work};
use crate::posted_work::{Owner, name};

/// How long nothing has to come until a changed receive was surely changed by the program.
const QUIET_NS: u64 = 500_000_000;

/// What was seen of contents.
#[derive(Default, Debug)]
pub(super) struct Contents {
    /// Receives that hold something else than when they were posted, by queue pair.
    changed: Map<Qpn, Changed>,
    /// Sends that are done, and whose completion the program has not polled, the oldest first, by queue pair: their
    /// buffers are still the NIC's.
    unpolled: Map<Qpn, VecDeque<Work>>,
}

/// So many are remembered of a queue pair.
const UNPOLLED_MAX: usize = 256;

/// The next receive of a queue pair, which was changed. Several messages may lie in memory before the first of them
/// completes, so its own may have filled it already: it has not, if none comes.
#[derive(Debug)]
struct Changed {
    at: u64,
    /// When the peer was heard last.
    heard_at: Option<u64>,
    finding: Finding,
}

impl Contents {
    pub fn observe(&mut self, moment: &mut Moment<'_>, claims: &Claims, out: &mut Out<'_>) {
        if let Kind::StateChanged { to: "RESET", .. } | Kind::Called { call: Call::DestroyQp { .. }, .. } =
            moment.event.kind
        {
            moment.event.qpn.into_iter().for_each(|qpn| _ = self.unpolled.remove(&qpn));
            if let Some(qpn) = moment.event.qpn
                && let Some(changed) = self.changed.remove(&qpn)
                && changed.is_quiet(qpn, moment.model)
            {
                out.tell(changed.finding);
            }
            return;
        }
        let Some(pair) = moment.model.pair_of(moment.event) else { return };
        let Kind::Completed { wr_id, queue: Queue::Receive, .. } = moment.event.kind else {
            if let Some(done) = observe_sends(pair, moment, claims, out) {
                let unpolled = self.unpolled.entry(pair.qpn).or_default();
                if unpolled.len() == UNPOLLED_MAX {
                    unpolled.pop_front();
                }
                unpolled.push_back(done);
            }
            return;
        };
        let Some(done) = pair.receives.ended_by(wr_id, true).last() else { return };
        self.changed.remove(&pair.qpn);
        if let Some(changed) = next_receive(pair, done, moment, claims, out) {
            self.changed.insert(pair.qpn, changed);
        }
    }

    /// The program polls a completion: until now it could not know that the work is done.
    pub fn polled(&mut self, wr_id: u64, moment: &mut Moment<'_>, claims: &Claims, out: &mut Out<'_>) {
        let Some(pair) = moment.model.pair_of(moment.event) else { return };
        let Some(unpolled) = self.unpolled.get_mut(&pair.qpn) else { return };
        let Some(place) = unpolled.iter().position(|work| work.wr_id == wr_id) else { return };
        // Those before it were polled, too.
        let Some(work) = unpolled.drain(..=place).next_back() else { return };
        // A message of any peer but the one to which it went may have told the program.
        let peer = pair.connection.dest_qpn;
        let may_be_answered = |moment: &Moment<'_>| {
            let mut others = moment.model.pairs.values().filter(|other| Some(other.qpn) != peer);
            others.any(|other| other.asked_at.is_some_and(|asked_at| asked_at >= work.at))
        };
        let peers_write =
            |moment: &Moment<'_>| work.pieces.kept().iter().any(|piece| peers_may_write(moment.model, piece.key));
        if !is_answered_once(pair, &work) && !may_be_answered(moment) && !peers_write(moment) {
            source(pair, &work, moment, claims, out);
        }
    }

    /// Tells of those after which nothing came.
    pub fn tick(&mut self, now: u64, model: &Model, out: &mut Out<'_>) {
        self.changed.retain(|qpn, changed| {
            let is_sure = changed.is_quiet(*qpn, model) && now.saturating_sub(changed.at) >= QUIET_NS;
            if is_sure {
                out.tell(changed.finding.clone());
            }
            !is_sure
        });
    }

    /// The program ends.
    pub fn finish(&mut self, model: &Model, out: &mut Out<'_>) {
        for (qpn, changed) in &core::mem::take(&mut self.changed) {
            if changed.is_quiet(*qpn, model) {
                out.tell(changed.finding.clone());
            }
        }
    }
}

impl Changed {
    /// Whether nothing came from the peer since then.
    fn is_quiet(&self, qpn: Qpn, model: &Model) -> bool {
        model.pairs.get(&qpn).is_none_or(|pair| pair.heard_at == self.heard_at)
    }
}

/// Whether an answer of the peer shows that work is done: where nothing is sent twice.
fn is_answered_once(pair: &Pair, work: &Work) -> bool {
    matches!(pair.kind, "UD" | "UC") && pair.heard_at.is_some_and(|heard_at| heard_at >= work.at)
}

/// Compares buffers of sends. Answers work that is done and is to be compared again when its completion is polled.
fn observe_sends(pair: &Pair, moment: &mut Moment<'_>, claims: &Claims, out: &mut Out<'_>) -> Option<Work> {
    match moment.event.kind {
        Kind::Completed { wr_id, queue: Queue::Send, .. } => {
            // What was posted unsignaled may have been reused after an answer of the peer, which shows its arrival.
            let work = pair.sends.ended_by(wr_id, true).last();
            let work = work.filter(|work| work.signaled && !is_answered_once(pair, work))?;
            let same = source(pair, work, moment, claims, out);
            // The thread that polls may be faster with its word.
            let is_polled = pair.polled > pair.completed;
            return (same && !is_polled && work.digest.is_some()).then_some(*work);
        }
        // Nothing came from the peer since the work before was posted, so nothing told the program that it is done.
        Kind::Called { call: Call::PostSend { .. }, .. } => {
            let last = pair.sends.iter().next_back().filter(|work| !work.signaled);
            if let Some(work) = last.filter(|work| pair.heard_at.is_none_or(|heard_at| heard_at < work.at)) {
                source(pair, work, moment, claims, out);
            }
        }
        _ => {}
    }
    None
}

/// Compares the buffer of a SEND or WRITE. Whether it holds what it held, and may be compared again.
fn source(pair: &Pair, work: &Work, moment: &mut Moment<'_>, claims: &Claims, out: &mut Out<'_>) -> bool {
    if !out.wants(CHANGED_UNDER_WAY) || !is_placed(work, moment.model) {
        return false;
    }
    if !differs(work, moment) {
        return true;
    }
    let owner = Owner::Send(pair.qpn);
    let mut places_of_it = places(work, moment.model);
    if places_of_it.any(|((start, end), _)| {
        claims.was_filled(start, end, work.at)
            || claims.at(start, end, (owner, work.serial)).any(|claim| claim.fills_memory)
    }) {
        // A message or an answer may have changed it; that the two share a buffer is reported.
        return false;
    }
    let until = match moment.event.kind {
        Kind::Called { call: Call::Polled { .. }, .. } => "its completion was polled",
        _ => "it had completed",
    };
    let mut finding = Finding::new(
        CHANGED_UNDER_WAY,
        Subject::QueuePair(pair.qpn),
        format!(
            "the buffer of {} ({} bytes) was changed after it was posted and before {until}",
            name(owner, work.opcode, work.wr_id),
            work.pieces.bytes
        ),
        "change or reuse the buffer only after ibv_poll_cq has returned the completion of this work (or of later \
         signaled work on the same queue pair); use a second buffer, or IBV_SEND_INLINE for small messages",
    )
    .because(
        "the NIC reads the buffer when it sends, and again when it has to resend: the peer may get either content",
    );
    for ((start, end), _) in places(work, moment.model) {
        let length = end - start;
        finding =
            finding.shown_by(format!("the bytes of [{start:#x}, +{length}) are not those of the moment it was posted"));
    }
    out.tell(Finding { thread: work.thread, ..finding });
    false
}

/// When a receive is filled, the next one becomes the one that the NIC fills: until its message begins, only the
/// program can change it.
fn next_receive(
    pair: &Pair,
    done: &Work,
    moment: &mut Moment<'_>,
    claims: &Claims,
    out: &mut Out<'_>,
) -> Option<Changed> {
    let work = pair.receives.iter().find(|work| work.serial == done.serial + 1)?;
    if !out.wants(RECEIVE_CHANGED) || !is_placed(work, moment.model) || !differs(work, moment) {
        return None;
    }
    let owner = Owner::Receive(pair.qpn);
    let peers_write = work.pieces.kept().iter().any(|piece| peers_may_write(moment.model, piece.key));
    let shared = places(work, moment.model).any(|((start, end), _)| {
        claims.was_filled(start, end, work.at)
            || claims.at(start, end, (owner, work.serial)).any(|claim| claim.fills_memory)
    });
    // The message that has just arrived may lie in the same memory.
    let filled = places(done, moment.model).any(|((start, end), _)| {
        places(work, moment.model).any(|((other_start, other_end), _)| start < other_end && other_start < end)
    });
    if peers_write || shared || filled {
        // Another thread or process may have changed it.
        return None;
    }
    let what = format!(
        "the buffer of {} ({} bytes) was changed while it waited for a message",
        name(owner, work.opcode, work.wr_id),
        work.pieces.bytes
    );
    let advice = "prepare the buffer before ibv_post_recv, and touch it again only after its completion was polled";
    let finding = Finding::new(RECEIVE_CHANGED, Subject::QueuePair(pair.qpn), what, advice)
        .because("a message may arrive at any moment: what the program writes is mixed with it, or overwritten by it");
    let finding = Finding { thread: work.thread, ..finding };
    Some(Changed { at: moment.event.at, heard_at: pair.heard_at, finding })
}

/// Whether peers have written to the region of this key, or may have.
fn peers_may_write(model: &Model, key: Key) -> bool {
    model
        .local_region(key)
        .is_none_or(|region| region.windowed || region.used.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC))
}

/// Whether it is known where all memory of work lies: otherwise other work may have filled it. Of a region that is the
/// whole address space, or of device memory, it is not.
fn is_placed(work: &Work, model: &Model) -> bool {
    let pieces = work.pieces.kept().iter().filter(|piece| piece.length > 0).count();
    places(work, model).count() == pieces
}

/// Whether the memory of work holds something else than when it was posted.
fn differs(work: &Work, moment: &mut Moment<'_>) -> bool {
    let now = work.digest.and_then(|_| moment.witness.digest(&work.pieces));
    now.is_some() && now != work.digest
}
