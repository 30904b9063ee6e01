//! Threads that share what they need not share, or take it from each other: UV-0603, UV-0629.

use alloc::format;

use trace::{Call, Kind};

use super::{CHANNEL_DESTROYED, POLLED_BY_THREADS};
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::map::Map;

/// How often a completion queue goes from thread to thread until it is reported.
const MANY_HANDOVERS: u32 = 64;

/// The part.
#[derive(Default, Debug)]
pub(super) struct Threads {
    /// For each completion queue the thread that last found something there, and how often that was another one.
    pollers: Map<u32, (u32, u32)>,
    /// Threads that sleep, and at which completion channel.
    sleepers: Map<u32, u32>,
}

impl Examine for Threads {
    fn sees(&self) -> Sort {
        Sort::POLL | Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let Kind::Called { thread, call } = &moment.event.kind else { return };
        self.sleepers.remove(thread);
        match *call {
            Call::Poll { cq, got, .. } if got > 0 && *thread != 0 => self.polled(*thread, cq, out),
            Call::WaitCqEvent { channel } => {
                self.sleepers.insert(*thread, channel);
            }
            Call::DestroyChannel { channel } => {
                let Some((sleeper, _)) = self.sleepers.iter().find(|(_, at)| **at == channel) else { return };
                out.tell(
                    Finding::new(
                        CHANNEL_DESTROYED,
                        Subject::Process,
                        format!(
                            "completion channel {channel} was destroyed by thread {thread} while thread {sleeper} \
                             waits in ibv_get_cq_event for its events"
                        ),
                        "end the thread that waits first: let it watch the channel's descriptor with poll(2), beside a \
                         second descriptor that tells it to end, and destroy the channel after pthread_join",
                    )
                    .because("no event comes any more, and the descriptor it sleeps on may become another file's"),
                );
            }
            Call::DestroyCq { cq } => {
                self.pollers.remove(&cq);
            }
            _ => {}
        }
    }
}

impl Threads {
    fn polled(&mut self, thread: u32, cq: u32, out: &mut Out<'_>) {
        let (last, handovers) = self.pollers.entry(cq).or_insert((thread, 0));
        let other = core::mem::replace(last, thread);
        if other == thread {
            return;
        }
        *handovers += 1;
        if *handovers == MANY_HANDOVERS {
            out.tell(
                Finding::new(
                    POLLED_BY_THREADS,
                    Subject::CompletionQueue(cq),
                    format!(
                        "threads {other} and {thread} take completions from CQ {cq} in turn: it went from one thread \
                         to another {MANY_HANDOVERS} times"
                    ),
                    "give each thread a completion queue of its own, with the queue pairs it serves",
                )
                .because(
                    "every poll takes the lock of the queue, and its cache lines move between the processors; nor is \
                     the order of completions kept between threads",
                ),
            );
        }
    }
}
