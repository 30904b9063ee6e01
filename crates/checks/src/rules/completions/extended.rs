//! Extended completion queues, which are read field by field: UV-0421 to UV-0423.

use alloc::format;

use trace::{Call, Kind};

use super::{END_WITHOUT_START, POLL_NOT_ENDED, READ_UNASKED};
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};

/// The part.
#[derive(Default, Debug)]
pub(super) struct Extended;

impl Examine for Extended {
    fn sees(&self) -> Sort {
        Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let Kind::Called { call, .. } = &moment.event.kind else { return };
        match *call {
            Call::ReadUnasked { cq, function, flag } => out.tell(
                Finding::new(
                    READ_UNASKED,
                    Subject::CompletionQueue(cq),
                    format!("{function} reads a field that CQ {cq} was not made with: wc_flags lacks {flag}"),
                    format!("add {flag} to wc_flags of ibv_cq_init_attr_ex before ibv_create_cq_ex"),
                )
                .because(
                    "a device prepares the fields that wc_flags names: for others it has no function, and the program \
                     calls a null pointer",
                ),
            ),
            Call::PollOutOfOrder { cq, function: "ibv_start_poll" } => out.tell(
                Finding::new(
                    POLL_NOT_ENDED,
                    Subject::CompletionQueue(cq),
                    format!("ibv_start_poll is called for CQ {cq} again, and the poll before was not ended"),
                    "call ibv_end_poll after each ibv_start_poll that returned 0, also when ibv_next_poll returned ENOENT",
                )
                .because(
                    "from ibv_start_poll to ibv_end_poll the thread holds the lock of the queue: on other hardware it \
                     waits for itself here, for ever, and until then what was polled keeps its places",
                ),
            ),
            Call::PollOutOfOrder { cq, function } => out.tell(
                Finding::new(
                    END_WITHOUT_START,
                    Subject::CompletionQueue(cq),
                    format!("{function} is called for CQ {cq}, and no poll has begun"),
                    "call ibv_end_poll only after an ibv_start_poll that returned 0: ENOENT says that no poll has begun",
                )
                .because(
                    "ibv_start_poll that fails has let the lock of the queue go: to let it go once more opens it to two \
                     threads at once on other hardware",
                ),
            ),
            _ => {}
        }
    }
}
