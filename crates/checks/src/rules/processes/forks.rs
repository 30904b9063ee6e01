//! Forks: UV-0601, UV-0602.

use alloc::format;

use trace::{Call, Kind};

use super::{FORKED, USED_IN_CHILD};
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::model::Model;

/// How the NIC begins its refusal of an object that a child inherited.
const INHERITED_OBJECT_REFUSAL: &str = "the object belongs to the process that this one was forked from";

/// The part.
#[derive(Default, Debug)]
pub(super) struct Forks;

impl Examine for Forks {
    fn sees(&self) -> Sort {
        Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let Kind::Called { call, .. } = &moment.event.kind else { return };
        match call {
            Call::Fork {} if !moment.model.fork_is_safe && !moment.model.regions.is_empty() => {
                out.tell(forked(moment.model));
            }
            Call::Refused { function, reason, .. } if reason.as_str().starts_with(INHERITED_OBJECT_REFUSAL) => out
                .tell(
                Finding::new(
                    USED_IN_CHILD,
                    Subject::Function(function),
                    format!("a forked child called {function} with an object of its parent"),
                    "open the device again in the child and make its objects there; or do the work in the parent",
                )
                .because(
                    "queues, registrations and connections belong to the process that made them: the child has copies \
                     of their addresses, and hardware that maps its registers into both lets them destroy each \
                     other's work",
                ),
            ),
            _ => {}
        }
    }
}

fn forked(model: &Model) -> Finding {
    let bytes: u64 = model.regions.values().map(|region| region.length).sum();
    let under_way: usize = model.pairs.values().map(|pair| pair.sends.len() + pair.receives.len()).sum();
    Finding::new(
        FORKED,
        Subject::Process,
        format!(
            "the program forked while {} buffers of {bytes} bytes were registered, and had not called ibv_fork_init",
            model.regions.len()
        ),
        "call ibv_fork_init before everything else, or set RDMAV_FORK_SAFE=1; or start programs with posix_spawn",
    )
    .because(
        "after a fork the kernel copies a page when one of the two processes writes to it: the NIC may keep the old \
         page, and the parent no longer sees what arrives",
    )
    .shown_by(format!("{under_way} work requests were under way"))
    .shown_by(
        "this NIC needs no preparation, nor does a kernel from 5.12 on for most devices; ibv_is_fork_initialized tells",
    )
}
