//! Memory that is lent twice: to two receives, to a receive and a SEND, to a READ and anything else.

use alloc::format;

use trace::{Kind, Queue};
use wire::Key;

use super::claims::{Claim, Claims, places};
use super::{RECEIVES_EQUAL, RECEIVES_OVERLAP, RESULT_SHARED, SOURCE_SHARED, range};
use crate::examine::{Moment, Out};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::model::Model;
use crate::posted_work::{Owner, Posting, name};
use crate::rule::Number;
use crate::rule::catalogue::posting::UNFENCED;

/// What was seen of memory that is lent twice.
#[derive(Default, Debug)]
pub(super) struct Sharing {
    /// Receives with one buffer, by the key of its region. Such a buffer may be meant for nothing: WRITEs with immediate
    /// data use receives up and put nothing into them. So it is reported when a message lies in it.
    equal: Map<u32, ((u64, u64), Finding)>,
}

/// So many are remembered.
const EQUAL_MAX: usize = 1024;

impl Sharing {
    /// A message arrived: is another receive posted into the same memory?
    pub fn observe(&mut self, moment: &Moment<'_>, claims: &Claims, out: &mut Out<'_>) {
        let Kind::Completed { wr_id, queue, opcode, bytes, failure: None, .. } = moment.event.kind else { return };
        if self.equal.is_empty() || queue == Queue::Send || opcode == "RECV_RDMA_WITH_IMM" || bytes == 0 {
            return;
        }
        let Some(owner) = Owner::of(moment.model, moment.event, queue) else { return };
        let model = moment.model;
        let works = match owner {
            Owner::Send(_) => return,
            Owner::Receive(qpn) => model.pairs.get(&qpn).map(|pair| &pair.receives),
            Owner::Shared(srq) => model.srqs.get(&srq).map(|srq| &srq.receives),
        };
        let in_order = matches!(owner, Owner::Receive(_));
        let Some(done) = works.and_then(|works| works.ended_by(wr_id, in_order).last()) else { return };
        for ((start, end), _) in places(done, model) {
            let mut others = claims.at(start, end, (owner, done.serial));
            if others.any(|claim| claim.fills_memory && !claim.is_answered)
                && let Some(key) = self.waiting_at(start, end)
                && let Some((_, finding)) = self.equal.remove(&key)
            {
                out.tell(finding);
            }
        }
    }

    /// The key of what waits to be told of this memory.
    fn waiting_at(&self, start: u64, end: u64) -> Option<u32> {
        let mut waiting = self.equal.iter();
        waiting.find(|(_, ((from, to), _))| *from < end && start < *to).map(|(key, _)| *key)
    }

    /// Work is posted: is its memory lent already?
    pub fn posted(&mut self, posting: &Posting<'_>, model: &Model, claims: &Claims, out: &mut Out<'_>) {
        let work = &posting.work;
        if !work.fills_memory() && !work.leaves_memory() {
            return;
        }
        for (place, key) in places(work, model) {
            // Work of the same request, and work that may have been done for long, is nobody's.
            let claims = claims.at(place.0, place.1, (posting.owner, work.serial));
            for claim in claims.filter(|claim| claim.signaled || claim.fills_memory) {
                if self.tell(posting, place, key, claim, out) {
                    return;
                }
            }
        }
    }
    /// Tells of it if it is wrong.
    fn tell(&mut self, posting: &Posting<'_>, place: (u64, u64), key: Key, claim: &Claim, out: &mut Out<'_>) -> bool {
        let Some(rule) = broken(posting, place, claim) else { return false };
        // Once for each region: many queue pairs may share one buffer.
        let subject = if rule == UNFENCED { posting.owner.subject() } else { Subject::Memory(key.value()) };
        let waits = rule == RECEIVES_EQUAL && (self.equal.contains_key(&key.value()) || self.equal.len() >= EQUAL_MAX);
        if waits || out.is_old(rule, subject) {
            return true;
        }
        let (this, other) = (posting.name(), name(claim.owner, claim.opcode, claim.wr_id));
        let (what, cause, advice) = match rule {
            RECEIVES_EQUAL | RECEIVES_OVERLAP => (
                match rule {
                    RECEIVES_EQUAL => format!("{this} has the same buffer as {other}, which is still posted"),
                    _ => format!("{this} shares memory with {other}, which is still posted"),
                },
                "two messages are written to the same bytes: the later one overwrites",
                "give each receive that is posted a buffer of its own, and post it again only after its completion was \
             polled and its data used",
            ),
            RESULT_SHARED => (
                format!("{this} and {other} use the same memory, and the NIC writes to it"),
                "both are under way at once, and nothing says which of them touches the bytes first",
                "give the READ or atomic a buffer of its own, or post it after the completion of the other work",
            ),
            UNFENCED => (
                format!("{this} sends what {other} is still fetching into the same memory"),
                "without a fence, the NIC may send the bytes before the answer of the READ has arrived",
                match posting.owner == claim.owner {
                    true => {
                        "set IBV_SEND_FENCE on the work that sends the fetched data, or wait for the completion of the \
                     READ first"
                    }
                    false => "wait for the completion of the READ before posting on another queue pair",
                },
            ),
            _ => (
                format!("{this} and {other} have the same buffer, one to send from and one to receive into"),
                "a message that arrives now overwrites what is being sent, or what has to be sent again",
                "use one buffer to send from and another one to receive into",
            ),
        };
        let range = |(start, end): (u64, u64)| range(start, end - start);
        let (here, there) = (range(place), range((claim.start, claim.end)));
        let seen = format!("{this} has {here}; {other}, which has not completed, has {there}");
        let finding = posting.finding(rule, what, advice).because(cause).shown_by(seen);
        let finding = Finding { subject, ..finding };
        match rule {
            RECEIVES_EQUAL => _ = self.equal.insert(key.value(), (place, finding)),
            _ => out.tell(finding),
        }
        true
    }
}

/// Which rule this breaks, if it does.
fn broken(posting: &Posting<'_>, place: (u64, u64), claim: &Claim) -> Option<Number> {
    let work = &posting.work;
    if posting.is_receive() && claim.fills_memory && !claim.is_answered {
        Some(if place == (claim.start, claim.end) { RECEIVES_EQUAL } else { RECEIVES_OVERLAP })
    } else if work.is_answered() || (posting.is_receive() && claim.is_answered) {
        // Results of atomics that nobody reads may go to one place.
        let atomics = work.opcode.starts_with("ATOMIC") && claim.opcode.starts_with("ATOMIC");
        (!atomics).then_some(RESULT_SHARED)
    } else if work.leaves_memory() && claim.is_answered {
        let waits = work.fence && posting.owner == claim.owner;
        (!waits).then_some(UNFENCED)
    } else {
        (claim.fills_memory != work.fills_memory()).then_some(SOURCE_SHARED)
    }
}
