//! What the program waits for: completion queues that it polls in vain, channels at which its threads sleep. And whether
//! what it waits for can come.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use trace::Call;

use super::{Watched, stalls};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::model::{Model, Pair};
use crate::naming::{self, span};
use crate::rule::catalogue::events::*;
use wire::Qpn;

/// How long a program waits for what cannot come until it is reported, in nanoseconds.
const VAIN_WAIT_NS: u64 = 2_000_000_000;

/// How long it waits for what only its peer can bring.
const LONG_WAIT_NS: u64 = 5_000_000_000;

/// A queue that was not polled for so long is polled no more: of polls that find nothing one is reported with each tick
/// of the checker.
const LAST_POLL_NS: u64 = 1_500_000_000;

/// How many waits are kept.
const MAX_WAITS: usize = 64;

/// Where a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaitPlace {
    /// It polls this completion queue.
    Queue(u32),
    /// It sleeps at this channel.
    Channel(u32),
}

/// A thread waits.
#[derive(Clone, Copy, Debug)]
struct Wait {
    thread: u32,
    place: WaitPlace,
    since: u64,
    seen_at: u64,
}

/// The threads that wait.
#[derive(Default, Debug)]
pub(super) struct Waits {
    waits: Vec<Wait>,
    /// When the program did something else last.
    acted_at: u64,
}

impl Waits {
    pub fn called(&mut self, at: u64, thread: u32, call: &Call) {
        let place = match *call {
            Call::Poll { cq, got: 0, room: 1.. } => WaitPlace::Queue(cq),
            Call::WaitCqEvent { channel } => {
                self.waits.retain(|wait| wait.thread != thread);
                WaitPlace::Channel(channel)
            }
            _ => {
                self.acted_at = at;
                // What is polled while other things happen is not waited for alone.
                self.waits.retain(|wait| matches!(wait.place, WaitPlace::Channel(_)) && wait.thread != thread);
                return;
            }
        };
        if let Some(wait) = self.waits.iter_mut().find(|wait| wait.thread == thread && wait.place == place) {
            wait.seen_at = at;
        } else if self.waits.len() < MAX_WAITS {
            self.waits.push(Wait { thread, place, since: at, seen_at: at });
        }
    }

    /// Whether what the program waits for can come, where it does nothing but wait.
    pub fn explain(&self, model: &Model, watched: &Map<Qpn, Watched>, now: u64, mut tell: impl FnMut(Finding)) {
        if now.saturating_sub(self.acted_at) < VAIN_WAIT_NS {
            return;
        }
        let mut threads: Vec<u32> = self.waits.iter().map(|wait| wait.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        for thread in threads {
            let Some(waiting) = self.waiting(model, thread, now) else { continue };
            let waited = now.saturating_sub(waiting.since);
            if waited < VAIN_WAIT_NS || waiting.has_unpolled(model) {
                continue;
            }
            if waiting.asleep.is_none() {
                // A server may well sleep until its first client comes.
                stalls::nothing_to_wait_for(model, &waiting.queues, waited).into_iter().for_each(&mut tell);
            }
            none_signaled(model, &waiting, waited).into_iter().for_each(&mut tell);
            only_writes_came(model, watched, &waiting, now).into_iter().for_each(&mut tell);
        }
    }

    /// What a thread waits for now.
    fn waiting(&self, model: &Model, thread: u32, now: u64) -> Option<Waiting> {
        let mut all = Waiting { thread, queues: Vec::new(), since: 0, asleep: None };
        for wait in self.waits.iter().filter(|wait| wait.thread == thread) {
            match wait.place {
                WaitPlace::Queue(_) if now.saturating_sub(wait.seen_at) > LAST_POLL_NS => continue,
                WaitPlace::Queue(cq) => all.queues.push(cq),
                WaitPlace::Channel(channel) => {
                    let of_channel = model.cqs.iter().filter(|(_, cq)| cq.channel == Some(channel));
                    all.queues.extend(of_channel.map(|(cq, _)| *cq));
                    all.asleep = Some(channel);
                }
            }
            all.since = all.since.max(wait.since);
        }
        (!all.queues.is_empty()).then_some(all)
    }
}

/// What a thread waits for.
struct Waiting {
    thread: u32,
    /// The completion queues one of which must get something.
    queues: Vec<u32>,
    since: u64,
    /// The channel that it sleeps at.
    asleep: Option<u32>,
}

impl Waiting {
    fn is_for(&self, cq: Option<u32>) -> bool {
        cq.is_some_and(|cq| self.queues.contains(&cq))
    }

    fn has_unpolled(&self, model: &Model) -> bool {
        model.cqs.iter().any(|(cq, queue)| self.queues.contains(cq) && queue.waiting() > 0)
    }

    /// How many sends will complete there if they succeed.
    fn signaled(&self, model: &Model) -> usize {
        let pairs = model.pairs.values().filter(|pair| self.is_for(pair.send_cq));
        pairs.map(|pair| pair.sends.signaled_under_way()).sum()
    }

    /// How many receives there are that complete there.
    fn receives(&self, model: &Model) -> usize {
        let pairs = model.pairs.values().filter(|pair| self.is_for(pair.receive_cq));
        pairs.map(|pair| receives(model, pair)).sum()
    }

    /// "the program has polled CQ 4 for 3000 ms".
    fn name(&self, cq: u32, waited: u64) -> String {
        let waited = span(waited);
        match self.asleep {
            Some(channel) => {
                format!("a thread has slept in ibv_get_cq_event at channel {channel} of CQ {cq} for {waited}")
            }
            None => format!("the program has polled CQ {cq} for {waited}"),
        }
    }
}

fn receives(model: &Model, pair: &Pair) -> usize {
    pair.srq.and_then(|srq| model.srqs.get(&srq)).map_or(pair.receives.len(), |srq| srq.receives.len())
}

/// The thread has posted sends of which none is signaled, and waits for completions.
fn none_signaled(model: &Model, waiting: &Waiting, waited: u64) -> Option<Finding> {
    if waiting.signaled(model) > 0 {
        return None;
    }
    let is_it = |pair: &&Pair| {
        let Some(last) = pair.sends.iter().next_back() else { return false };
        let is_reliable = matches!(pair.kind, "RC" | "XRC_SEND");
        let is_done = !is_reliable || pair.heard_at.is_some_and(|heard| heard > last.at);
        // One that was ever signaled belongs to a program that knows of signaling.
        waiting.is_for(pair.send_cq)
            && pair.state == "RTS"
            && pair.sends.signaled == 0
            && last.thread == waiting.thread
            && is_done
    };
    let pair = model.pairs.values().find(is_it)?;
    let (last, count, cq) = (pair.sends.iter().next_back()?, pair.sends.len(), pair.send_cq?);
    let name = naming::pair(model, pair.qpn);
    let what = format!(
        "{}, and its last send there, work request {} ({}) on {name}, makes no completion: it is not signaled",
        waiting.name(cq, waited),
        last.wr_id,
        last.opcode
    );
    let advice = "set IBV_SEND_SIGNALED in send_flags of the work request that is waited for, or sq_sig_all of \
                  ibv_qp_init_attr";
    let because = "a send completes only if its flags ask for it, or its queue pair was made with sq_sig_all 1";
    let seen = format!("{count} work requests are in the send queue of {name}, and none of them was ever signaled");
    let receives = waiting.receives(model);
    if receives == 0 {
        let nothing = "no receive is posted that could complete there: the program waits for ever";
        let finding = Finding::new(NONE_WAS_SIGNALED, Subject::QueuePair(pair.qpn), what, advice);
        return Some(finding.because(because).shown_by(seen).shown_by(nothing));
    }
    let never_completed = model.cqs.iter().all(|(cq, queue)| !waiting.queues.contains(cq) || queue.completed == 0);
    (waited >= LONG_WAIT_NS && never_completed).then(|| {
        let receives = format!("{receives} receives are posted that complete there, once a peer sends");
        let finding = Finding::new(ONLY_THE_PEER_CAN_END_IT, Subject::QueuePair(pair.qpn), what, advice);
        finding.because(because).shown_by(seen).shown_by(receives)
    })
}

/// Receives wait, the peer's WRITEs came, and nothing else ever did.
fn only_writes_came(model: &Model, watched: &Map<Qpn, Watched>, waiting: &Waiting, now: u64) -> Option<Finding> {
    if waiting.signaled(model) > 0 {
        return None;
    }
    for pair in model.pairs.values().filter(|pair| waiting.is_for(pair.receive_cq)) {
        let Some(seen) = watched.get(&pair.qpn) else { continue };
        let (since, receives) = (now.saturating_sub(seen.written_at), receives(model, pair));
        let is_it = seen.writes > 0 && seen.messages == 0 && !seen.acted_since_write && receives > 0;
        if !is_it || since < LONG_WAIT_NS || now.saturating_sub(waiting.since) < LONG_WAIT_NS {
            continue;
        }
        let (name, cq) = (naming::pair(model, pair.qpn), pair.receive_cq?);
        let what = format!(
            "{}, where {receives} receives of {name} complete; what came of the peer were {} WRITEs, which use up no \
             receive",
            waiting.name(cq, now.saturating_sub(waiting.since)),
            seen.writes
        );
        let advice = "let the peer tell of its data: by IBV_WR_RDMA_WRITE_WITH_IMM in place of the last \
                      IBV_WR_RDMA_WRITE, or by a SEND after it";
        return Some(
            Finding::new(WRITES_USE_NO_RECEIVE, Subject::QueuePair(pair.qpn), what, advice)
                .because("a WRITE without immediate changes the target's memory, and its program is not told")
                .shown_by(format!("the last WRITE came {} ago, and no SEND ever did", span(since))),
        );
    }
    None
}
