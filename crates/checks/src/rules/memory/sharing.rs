//! Memory that is lent twice: to two receives, to a receive and a SEND, to a READ and anything else.

use alloc::format;

use wire::Key;

use super::claims::{Claim, Claims, places};
use super::{Posting, RECEIVES_EQUAL, RECEIVES_OVERLAP, RESULT_SHARED, SOURCE_SHARED, name, range};
use crate::checker::Out;
use crate::finding::{Finding, Subject};
use crate::model::Model;
use crate::rules::posting::UNFENCED;

/// Work is posted: is its memory lent already?
pub(super) fn posted(posting: &Posting, model: &Model, claims: &Claims, out: &mut Out<'_>) {
    let work = &posting.work;
    if !work.fills_memory() && !work.leaves_memory() {
        return;
    }
    for (place, key) in places(work, model) {
        // Work of the same request, and work that may have been done for long, is nobody's.
        let claims = claims.at(place.0, place.1, (posting.owner, work.serial));
        for claim in claims.filter(|claim| claim.signaled || claim.fills_memory) {
            if tell(posting, place, key, claim, out) {
                return;
            }
        }
    }
}

/// Tells of it if it is wrong.
fn tell(posting: &Posting, (start, end): (u64, u64), key: Key, claim: &Claim, out: &mut Out<'_>) -> bool {
    let work = &posting.work;
    let other = name(claim.owner, claim.opcode, claim.wr_id);
    let seen = format!(
        "{} has {}; {other}, which has not completed, has {}",
        posting.name(),
        range(start, end - start),
        range(claim.start, claim.end - claim.start)
    );
    let finding = if posting.is_receive() && claim.fills_memory && !claim.is_answered {
        let equal = (start, end) == (claim.start, claim.end);
        let rule = if equal { RECEIVES_EQUAL } else { RECEIVES_OVERLAP };
        let what = if equal {
            format!("{} has the same buffer as {other}, which is still posted", posting.name())
        } else {
            format!("{} shares memory with {other}, which is still posted", posting.name())
        };
        let advice = "give each receive that is posted a buffer of its own, and post it again only after its \
                      completion was polled and its data used";
        posting
            .finding(rule, what, advice)
            .because("two messages are written to the same bytes: the later one overwrites")
    } else if work.is_answered() || (posting.is_receive() && claim.is_answered) {
        if work.opcode.starts_with("ATOMIC") && claim.opcode.starts_with("ATOMIC") {
            // Results that nobody reads may go to one place.
            return false;
        }
        let what = format!("{} and {other} use the same memory, and the NIC writes to it", posting.name());
        let advice = "give the READ or atomic a buffer of its own, or post it after the completion of the other work";
        posting
            .finding(RESULT_SHARED, what, advice)
            .because("both are under way at once, and nothing says which of them touches the bytes first")
    } else if work.leaves_memory() && claim.is_answered {
        let same_queue = posting.owner == claim.owner;
        if same_queue && work.fence {
            return false;
        }
        let what = format!("{} sends what {other} is still fetching into the same memory", posting.name());
        let advice = if same_queue {
            "set IBV_SEND_FENCE on the work that sends the fetched data, or wait for the completion of the READ first"
        } else {
            "wait for the completion of the READ before posting on another queue pair"
        };
        posting
            .finding(UNFENCED, what, advice)
            .because("without a fence, the NIC may send the bytes before the answer of the READ has arrived")
    } else if claim.fills_memory != work.fills_memory() {
        let what =
            format!("{} and {other} have the same buffer, one to send from and one to receive into", posting.name());
        let advice = "use one buffer to send from and another one to receive into";
        posting
            .finding(SOURCE_SHARED, what, advice)
            .because("a message that arrives now overwrites what is being sent, or what has to be sent again")
    } else {
        return false;
    };
    // Once for each region: many queue pairs may share one buffer.
    let subject = if finding.rule == UNFENCED { finding.subject } else { Subject::Memory(key.value()) };
    out.tell(Finding { subject, ..finding.shown_by(seen) });
    true
}
