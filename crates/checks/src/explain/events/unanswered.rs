//! Messages of the connection manager that the peer does not answer, while the program waits.

use alloc::format;

use wire::Qpn;

use super::connections::Places;
use super::{DISCONNECT_UNANSWERED, REQUEST_UNANSWERED};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::naming::span;

/// How long an answer takes at most, in nanoseconds. A request that reached a host is repeated before that, and its
/// connection manager says then that its program takes time.
const ANSWER_NS: u64 = 10_000_000_000;

/// How many connections are known.
const MAX_CONNECTIONS: usize = 4096;

/// What a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    /// For an answer to its request.
    Request,
    /// For an answer to its disconnect.
    Disconnect,
    /// For its program: the peer has disconnected.
    Program,
}

/// Connections that wait for an answer.
#[derive(Default, Debug)]
pub(super) struct UnansweredMessages {
    /// By local communication identifier: what for, since when, and the queue pair.
    waiting: Map<u32, (Waits, u64, Option<Qpn>)>,
}

impl UnansweredMessages {
    /// A connection is in another state.
    pub fn moved(&mut self, at: u64, qpn: Option<Qpn>, local_comm_id: u32, to: &str) {
        let waits = match to {
            "REQ sent" => Waits::Request,
            "DREQ sent" => Waits::Disconnect,
            "DREQ received" => Waits::Program,
            _ => {
                self.waiting.remove(&local_comm_id);
                return;
            }
        };
        if self.waiting.len() < MAX_CONNECTIONS || self.waiting.contains_key(&local_comm_id) {
            self.waiting.insert(local_comm_id, (waits, at, qpn));
        }
    }

    /// Those that wait for too long.
    pub fn explain(&self, places: &Places, now: u64, mut tell: impl FnMut(Finding)) {
        for (id, (waits, since, qpn)) in &self.waiting {
            let waited = now.saturating_sub(*since);
            if waited < ANSWER_NS {
                continue;
            }
            match waits {
                Waits::Request => tell(no_answer_to_request(places, *id, *qpn, waited)),
                Waits::Disconnect => tell(self.no_answer_to_disconnect(*id, *qpn, waited)),
                Waits::Program => {}
            }
        }
    }

    fn no_answer_to_disconnect(&self, id: u32, qpn: Option<Qpn>, waited: u64) -> Finding {
        let name = name(id, qpn);
        let mut finding = Finding::new(
            DISCONNECT_UNANSWERED,
            qpn.map_or(Subject::Process, Subject::QueuePair),
            format!("{name} was disconnected {} ago, and the peer has not answered", span(waited)),
            "let each program answer RDMA_CM_EVENT_DISCONNECTED with rdma_disconnect when it comes, also while it waits \
             for the answer to its own",
        )
        .because(
            "the connection ends when the peer answers, or after more than a minute without an answer. Programs that \
             disconnect in a ring, and each wait for their own answer first, wait for each other",
        );
        let unanswered = self.waiting.values().filter(|(waits, ..)| *waits == Waits::Program).count();
        if unanswered > 0 {
            finding = finding.shown_by(format!(
                "this program has not answered either: {unanswered} of its peers have disconnected and wait for it"
            ));
        }
        finding
    }
}

fn no_answer_to_request(places: &Places, id: u32, qpn: Option<Qpn>, waited: u64) -> Finding {
    let to = qpn.and_then(|qpn| places.of_pair(qpn)).map(|place| format!(" to {place}")).unwrap_or_default();
    Finding::new(
        REQUEST_UNANSWERED,
        qpn.map_or(Subject::Process, Subject::QueuePair),
        format!("the connection request of {}{to} has had no answer for {}", name(id, qpn), span(waited)),
        "check the address: is it that of the peer's host, is the host up (ping), and is UDP port 4791 open between both? \
         Does the peer run ubiverbs, or have a RoCE device?",
    )
    .because(
        "a host on which nobody listens answers that at once, and one whose program takes time says so when the request \
         is repeated: this one says nothing",
    )
    .shown_by("the request is repeated for more than a minute; then comes RDMA_CM_EVENT_UNREACHABLE")
}

fn name(id: u32, qpn: Option<Qpn>) -> alloc::string::String {
    match qpn {
        Some(qpn) => format!("QP {qpn} (communication id {id:#010x})"),
        None => format!("communication id {id:#010x}"),
    }
}
