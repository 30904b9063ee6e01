//! Asynchronous events: UV-0624, UV-0625.

use alloc::collections::VecDeque;
use alloc::format;

use trace::{Call, Kind};
use wire::Qpn;

use super::{ASYNC_NOT_ACKNOWLEDGED, ASYNC_UNREAD};
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::model::Model;
use crate::rules::waiting_destroyers::WaitingDestroyers;
use crate::witness::Witness;

/// How many events that are not acknowledged are kept.
const MAX_OPEN: usize = 1024;

/// The part.
#[derive(Default, Debug)]
pub(super) struct Events {
    /// Events that tell of a failure: how many, and the first.
    failures: u64,
    first: Option<(&'static str, Option<Subject>)>,
    /// The program has read one.
    has_reader: bool,
    /// Events that are not acknowledged: what, about what, and which thread got it.
    open: VecDeque<(&'static str, u64, u32)>,
    destroyers: WaitingDestroyers,
}

impl Examine for Events {
    fn sees(&self) -> Sort {
        Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        match &moment.event.kind {
            Kind::AsyncEvent { name } if is_failure(name) => {
                self.failed(name, moment.event.qpn.map(Subject::QueuePair))
            }
            Kind::CqOverflowed { cq, .. } => self.failed("IBV_EVENT_CQ_ERR", Some(Subject::CompletionQueue(*cq))),
            Kind::Called { thread, call } => {
                self.destroyers.called(*thread);
                self.called(moment.event.at, *thread, call, out);
            }
            _ => {}
        }
    }

    fn tick(&mut self, now: u64, _model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.destroyers.tick(now, out);
    }

    fn finish(&mut self, _now: u64, _model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        let Some((name, about)) = self.first.filter(|_| !self.has_reader) else { return };
        let about = about.map_or_else(Default::default, |about| format!(" of {about}"));
        out.tell(
            Finding::new(
                ASYNC_UNREAD,
                Subject::Process,
                format!(
                    "{} asynchronous events told of failures, the first {name}{about}, and the program never called \
                     ibv_get_async_event",
                    self.failures
                ),
                "let a thread call ibv_get_async_event and ibv_ack_async_event in a loop, or watch the context's \
                 async_fd beside the program's other descriptors",
            )
            .because("a failure that no work request of this program caused is reported by these events alone"),
        );
    }
}

/// Whether an event says that something stopped working.
fn is_failure(name: &str) -> bool {
    ["QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "CQ_ERR", "SRQ_ERR", "DEVICE_FATAL"]
        .iter()
        .any(|failure| name.ends_with(failure))
}

impl Events {
    fn failed(&mut self, name: &'static str, about: Option<Subject>) {
        self.failures += 1;
        self.first.get_or_insert((name, about));
    }

    fn called(&mut self, at: u64, thread: u32, call: &Call, out: &mut Out<'_>) {
        match *call {
            Call::GetAsyncEvent { event, about } => {
                self.has_reader = true;
                if self.open.len() == MAX_OPEN {
                    self.open.pop_front();
                }
                self.open.push_back((event, about, thread));
            }
            Call::AckAsyncEvent { event, about } => {
                let place = self.open.iter().position(|(open, of, _)| *open == event && *of == about);
                if let Some(place) = place {
                    self.open.remove(place);
                }
            }
            Call::WaitForAcks { object, number, missing } if ["cq", "qp", "srq"].contains(&object) => {
                let about: VecDeque<_> = self.open.iter().filter(|(_, about, _)| *about == number).collect();
                let Some((event, _, _)) = about.front() else { return };
                let finding = not_acknowledged(object, number, missing, event);
                // A thread that waits for what only it could do waits for ever.
                if about.iter().all(|(_, _, taker)| *taker == thread) {
                    out.tell(finding);
                } else {
                    self.destroyers.waits(thread, at, finding);
                }
            }
            _ => {}
        }
    }
}

fn not_acknowledged(object: &str, number: u64, missing: u32, event: &str) -> Finding {
    let (subject, name) = match object {
        "qp" => (Subject::QueuePair(Qpn::new(number as u32)), "QP"),
        "srq" => (Subject::SharedQueue(number as u32), "SRQ"),
        _ => (Subject::CompletionQueue(number as u32), "CQ"),
    };
    Finding::new(
        ASYNC_NOT_ACKNOWLEDGED,
        subject,
        format!(
            "ibv_destroy_{object} of {name} {number:#x} waits, perhaps for ever: {missing} asynchronous events about \
             it are not acknowledged, among them {event}"
        ),
        "call ibv_ack_async_event for every event that ibv_get_async_event returned, before the object is destroyed",
    )
    .because(format!("ibv_destroy_{object} returns only after every event about the object is acknowledged"))
}
