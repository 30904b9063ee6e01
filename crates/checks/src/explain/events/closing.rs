//! Connections whose end a program waits for, while it keeps others open.

use alloc::format;

use trace::Call;
use wire::Qpn;

use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::model::{Model, Pair};
use crate::naming::{self, span};
use crate::rule::catalogue::events::ONLY_PEERS_CAN_CLOSE;

/// How long a program waits and does nothing else until it is told, in nanoseconds.
const IDLE_WAIT_NS: u64 = 10_000_000_000;

/// How many waits are kept.
const MAX_AWAITED: usize = 4096;

/// Connections whose end is waited for.
#[derive(Default, Debug)]
pub(super) struct Closing {
    awaited: Map<Qpn, ()>,
    /// When the program called anything last.
    called_at: u64,
}

impl Closing {
    pub fn called(&mut self, at: u64, qpn: Option<Qpn>, call: &Call) {
        match (call, qpn) {
            (Call::AwaitClose {}, Some(qpn)) if self.awaited.len() < MAX_AWAITED => {
                self.awaited.insert(qpn, ());
            }
            (Call::DestroyQp { .. }, Some(qpn)) => {
                self.awaited.remove(&qpn);
            }
            _ => {}
        }
        self.called_at = at;
    }

    /// A program that waits for neighbours to close first, and itself holds open what others may wait for. One that has
    /// posted receives waits for messages, too.
    pub fn explain(&self, model: &Model, now: u64) -> Option<Finding> {
        let idle = now.saturating_sub(self.called_at);
        let is_open = |pair: &&Pair| pair.state == "RTS" && pair.connection.dest_qpn.is_some();
        let open = || model.pairs.values().filter(is_open);
        if self.awaited.is_empty() || idle < IDLE_WAIT_NS || open().any(|pair| !pair.receives.is_empty()) {
            return None;
        }
        let awaited = open().find(|pair| self.awaited.contains_key(&pair.qpn))?;
        let kept = open().find(|pair| !self.awaited.contains_key(&pair.qpn))?;
        let (awaited, kept) = (naming::pair(model, awaited.qpn), naming::pair(model, kept.qpn));
        let finding = Finding::new(
            ONLY_PEERS_CAN_CLOSE,
            Subject::Process,
            format!(
                "the program has waited in closed() for the end of the connection of {awaited} for {}, and does nothing else",
                span(idle)
            ),
            "call disconnect(), or drop the connection, on what this program is done with, and only then wait for the \
             others in closed()",
        );
        Some(finding.because(
            "closed() ends nothing: it returns when the peer disconnects. Programs in a ring that each wait for one \
             neighbour, and keep their other connection open meanwhile, wait for each other",
        ).shown_by(format!("{kept} is connected, and this program does not end it")))
    }
}
