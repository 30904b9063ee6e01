//! Work that failed: UV-01xx.

use alloc::format;

use trace::{Failure, Kind};
use wire::access::{Refusal, RefusalCause};

use crate::checker::{Examine, Moment, Out};
use crate::finding::{Finding, Subject};
use crate::rule::{Number, rules};

rules! {
    LOCAL_KEY_UNKNOWN = 101 Error "a work request names local memory by a key that does not exist";
}

/// The rule for a failed completion. It is what `ibv_wc.vendor_err` has.
#[must_use]
pub(crate) fn number(failure: &Failure) -> Option<Number> {
    match failure {
        Failure::Refused(Refusal { cause: RefusalCause::UnknownKey, .. }) => Some(LOCAL_KEY_UNKNOWN),
        _ => None,
    }
}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct FailedWork;

impl Examine for FailedWork {
    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let Kind::Completed { wr_id, opcode, failure: Some(failure), .. } = &moment.event.kind else { return };
        let (Some(rule), Some(qpn)) = (number(failure), moment.event.qpn) else { return };
        if let Failure::Refused(refusal) = failure {
            out.tell(
                Finding::new(
                    rule,
                    Subject::QueuePair(qpn),
                    format!("work request {wr_id} ({opcode}) on QP {qpn} failed: {refusal}"),
                    "use the lkey of a region that is registered and holds the buffer",
                )
                .because(format!("no memory is registered under key {}", refusal.range.key)),
            );
        }
    }
}
