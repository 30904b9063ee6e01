//! Strikes on queue pairs, completion queues and shared receive queues.

use crate::nic::Nic;
use crate::objects::completion_queue::CompletionQueue;
use crate::objects::context::{AsyncEvent, Context};
use crate::queue_pair::Qp;
use crate::scripts::Struck;
use failures::{Action, QueueView, Scene};
use std::sync::{Arc, Weak};
use transport::AsyncEvent as PairEvent;

/// How many things are named in a report.
const MAX_NAMED: usize = 8;

impl Nic {
    /// Carries out a strike on queues; no lock is held. Returns what was struck, or why nothing was; none if the strike
    /// is of another kind.
    pub(crate) fn strike_queues(&self, struck: &Struck) -> Option<Result<String, String>> {
        let ground = &self.ground;
        Some(match struck.action() {
            Action::QpError => self.strike_pairs(struck, "works", |qp| qp.break_down(ground)),
            Action::QpSqe => self.strike_pairs(struck, "is unreliable and may send", |qp| qp.break_send_queue(ground)),
            Action::PathMigrated => self.strike_pairs(struck, "fits", |qp| {
                qp.raise_event(ground, PairEvent::PathMigrated);
                true
            }),
            Action::PathMigrationFailed => self.strike_pairs(struck, "fits", |qp| {
                qp.raise_event(ground, PairEvent::PathMigrationFailed);
                true
            }),
            Action::CqOverrun => self.overrun_queues(struck),
            Action::SrqError => self.break_shared_queues(struck),
            _ => return None,
        })
    }

    /// Does this to the queue pair that the moment was about, or to all that the script's place fits. Those count for
    /// which it returns true.
    fn strike_pairs(
        &self,
        struck: &Struck,
        condition: &str,
        mut strike: impl FnMut(&Qp) -> bool,
    ) -> Result<String, String> {
        let mut named = Vec::new();
        let mut take = |qp: &Qp| {
            if strike(qp) {
                named.push(qp.qpn().to_string());
            }
        };
        match struck.about.qpn.and_then(|qpn| self.qp(qpn)) {
            Some(qp) => take(&qp),
            None => self.each_qp(|qp| {
                if self.may_strike(struck, qp) {
                    take(qp);
                }
            }),
        }
        list("queue pair", &named, condition)
    }

    fn may_strike(&self, struck: &Struck, qp: &Qp) -> bool {
        let peer = qp.peer_address();
        [false, true]
            .iter()
            .any(|is_receive| struck.strike.failure.place.fits(&qp.scene(&self.ground, peer, *is_receive)))
    }

    /// Completion queues overrun: each is dead from then on, its program hears of it, and its queue pairs break.
    fn overrun_queues(&self, struck: &Struck) -> Result<String, String> {
        let queues: Vec<Arc<CompletionQueue>> = match struck.about.qpn.and_then(|qpn| self.qp(qpn)) {
            // That of the message or completion, if a moment brought it.
            Some(qp) => {
                let is_it = |cq: &&Arc<CompletionQueue>| struck.about.queue.is_none_or(|number| number == cq.id);
                qp.completion_queues().filter(is_it).take(1).cloned().collect()
            }
            None => self.objects.cqs.lock().iter().filter_map(Weak::upgrade).collect(),
        };
        let mut named = Vec::new();
        for cq in queues {
            // Queues of the NIC's own have no number.
            let scene = Scene { queue: Some(QueueView { number: cq.id, order: cq.id }), ..Scene::default() };
            if cq.id != 0 && struck.strike.failure.place.may_fit(&scene) && cq.overrun() {
                named.push(cq.id.to_string());
                for context in self.open_contexts() {
                    if cq.interface() == 0 || context.device().number() == cq.interface() {
                        context.raise(AsyncEvent::CqError(cq.id));
                    }
                }
                let mut users = Vec::new();
                self.each_qp(|qp| {
                    if qp.completion_queues().any(|its| Arc::ptr_eq(its, &cq)) {
                        users.push(qp.qpn());
                    }
                });
                for qp in users.into_iter().filter_map(|qpn| self.qp(qpn)) {
                    qp.break_down(&self.ground);
                }
                cq.rouse();
                cq.announce();
            }
        }
        list("completion queue", &named, "works")
    }

    /// Shared receive queues fail: their program hears of it, and the queue pairs that use them break.
    fn break_shared_queues(&self, struck: &Struck) -> Result<String, String> {
        let wanted = struck.about.qpn.and_then(|qpn| self.qp(qpn)).map(|qp| qp.shared_queue());
        let mut named = Vec::new();
        for queue in self.ground.shared_queues.all() {
            let number = queue.number();
            let mut users = Vec::new();
            self.each_qp(|qp| {
                if qp.shared_queue() == Some(number) {
                    users.push(qp.qpn());
                }
            });
            let pairs: Vec<Arc<Qp>> = users.into_iter().filter_map(|qpn| self.qp(qpn)).collect();
            let is_it = match wanted {
                Some(wanted) => wanted == Some(number),
                None => pairs.is_empty() || pairs.iter().any(|qp| self.may_strike(struck, qp)),
            };
            if is_it {
                named.push(number.value().to_string());
                queue.break_down();
                pairs.iter().for_each(|qp| {
                    qp.break_down(&self.ground);
                });
            }
        }
        list("shared receive queue", &named, "fits")
    }

    fn open_contexts(&self) -> Vec<Arc<Context>> {
        self.objects.contexts.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// The things that were struck; or that there is none for which the condition holds.
fn list(what: &str, named: &[String], condition: &str) -> Result<String, String> {
    match named {
        [] => Err(format!("no {what} {condition} here")),
        [one] => Ok(format!("{what} {one}")),
        many if many.len() <= MAX_NAMED => Ok(format!("{what}s {}", many.join(", "))),
        many => Ok(format!("{} {what}s: {}, …", many.len(), many[..MAX_NAMED].join(", "))),
    }
}
