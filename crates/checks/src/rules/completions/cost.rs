//! Completions that cost more than they need to: UV-0417 to UV-0419.

use alloc::format;

use trace::{Call, Kind};
use wire::Qpn;

use super::{ALL_OF_A_LIST_SIGNALED, POLLED_ONE_BY_ONE, POLLED_WITHOUT_ROOM};
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::model::Model;

/// From how many work requests on a list is a list whose completions could be one.
const LONG_LIST: u32 = 4;

/// How many such lists are reported.
const LONG_LISTS: u64 = 64;

/// From how many waiting completions on a poll for one is reported.
const MANY_WAITING: usize = 8;

/// How many such polls are reported.
const NARROW_POLLS: u64 = 256;

/// The part.
#[derive(Default, Debug)]
pub(super) struct Cost {
    lists: Map<Qpn, Lists>,
    narrow_polls: Map<u32, u64>,
}

/// The lists that were posted to a send queue.
#[derive(Clone, Copy, Default, Debug)]
struct Lists {
    /// Work requests of the list that is being posted.
    length: u32,
    /// Long lists of signaled work alone.
    all_signaled: u64,
    /// A work request did not ask for a completion.
    has_unsignaled: bool,
}

impl Examine for Cost {
    fn sees(&self) -> Sort {
        Sort::POST | Sort::POLL | Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let Kind::Called { call, .. } = &moment.event.kind else { return };
        match *call {
            Call::PostSend { index, signaled, .. } => {
                if let Some(pair) = moment.model.pair_of(moment.event) {
                    let signaled = signaled || pair.signals_all;
                    self.posts(pair.qpn, pair.signals_all, index, signaled, out);
                }
            }
            Call::Poll { cq, room, got } => self.polls(cq, room, got, moment.model, out),
            Call::DestroyCq { cq } => {
                self.narrow_polls.remove(&cq);
            }
            Call::DestroyQp { .. } => {
                if let Some(qpn) = moment.event.qpn {
                    self.lists.remove(&qpn);
                }
            }
            _ => {}
        }
    }
}

impl Cost {
    fn posts(&mut self, qpn: Qpn, signals_all: bool, index: u32, signaled: bool, out: &mut Out<'_>) {
        let lists = self.lists.entry(qpn).or_default();
        lists.has_unsignaled |= !signaled;
        lists.length = if index == 0 { 1 } else { lists.length + 1 };
        // A list is long from this one on.
        lists.all_signaled += u64::from(lists.length == LONG_LIST);
        if lists.length != LONG_LIST || lists.all_signaled != LONG_LISTS || lists.has_unsignaled {
            return;
        }
        let how = if signals_all { "the queue pair was made with sq_sig_all" } else { "each has IBV_SEND_SIGNALED" };
        out.tell(
            Finding::new(
                ALL_OF_A_LIST_SIGNALED,
                Subject::QueuePair(qpn),
                format!(
                    "every work request of {LONG_LISTS} lists of {LONG_LIST} or more, posted to QP {qpn}, asks for a \
                     completion"
                ),
                "make the queue pair with sq_sig_all = 0 and set IBV_SEND_SIGNALED in the last work request of a list \
                 only",
            )
            .because(
                "work of a send queue completes in order: the completion of the last of a list says that those before \
                 it are done, and each other costs a write of the NIC and a poll",
            )
            .shown_by(how),
        );
    }

    fn polls(&mut self, cq: u32, room: u32, got: u32, model: &Model, out: &mut Out<'_>) {
        let waiting = model.cqs.get(&cq).map_or(0, |queue| queue.waiting());
        if room == 0 && waiting > 0 {
            out.tell(
                Finding::new(
                    POLLED_WITHOUT_ROOM,
                    Subject::CompletionQueue(cq),
                    format!("ibv_poll_cq was called for CQ {cq} with room for 0 completions, while {waiting} wait"),
                    "pass the number of elements of the array of ibv_wc as the second argument",
                )
                .because("a poll with room for nothing returns 0, as does a poll of an empty queue"),
            );
        }
        if room != 1 || got != 1 || waiting < MANY_WAITING {
            return;
        }
        let count = self.narrow_polls.entry(cq).or_default();
        *count += 1;
        if *count == NARROW_POLLS {
            out.tell(
                Finding::new(
                    POLLED_ONE_BY_ONE,
                    Subject::CompletionQueue(cq),
                    format!(
                        "CQ {cq} was polled {NARROW_POLLS} times with room for 1 completion while {MANY_WAITING} or \
                         more waited"
                    ),
                    "call ibv_poll_cq with an array of 16 or more ibv_wc",
                )
                .because("each poll takes the lock of the queue and tells the NIC how far the program has read"),
            );
        }
    }
}
