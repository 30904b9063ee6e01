//! Queue pairs that the connection manager moved to ERR, and why it did. A queue pair of `rdma_create_qp` follows its
//! connection, so the program did not move it itself.

use alloc::format;
use alloc::string::String;

use trace::Call;
use wire::Qpn;

use crate::map::Map;

/// How many queue pairs are remembered.
const MAX_MANAGED_PAIRS: usize = 4096;

/// What made the connection manager move a queue pair to ERR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The program called this.
    Called(&'static str),
    /// This event came for the id, with this status.
    Came(&'static str, i32),
}

impl Stop {
    /// The cause of what was flushed, and what to do.
    pub fn cause_and_advice(self) -> (String, &'static str) {
        match self {
            Stop::Called("rdma_disconnect") => (
                "the program called rdma_disconnect, which moves the queue pair to ERR".into(),
                "nothing, if all was sent: this is how the work that is left, mostly receives, is given back",
            ),
            Stop::Called(function) => (
                format!("{function} could not set the connection up, and moved the queue pair to ERR"),
                "look at why the connection was not made; what was flushed has no fault of its own",
            ),
            Stop::Came("RDMA_CM_EVENT_REJECTED", status) => {
                let why = match status {
                    8 => "nobody listens at the address and port, see UV-0941",
                    28 => "the peer's program rejected it, see UV-0940",
                    _ => "the peer rejected it, see UV-0942",
                };
                (
                    format!(
                        "the connection was never made: {why} (RDMA_CM_EVENT_REJECTED, status {status}). The connection \
                         manager then moved the queue pair to ERR"
                    ),
                    "fix what kept the connection from being made; what was flushed has no fault of its own",
                )
            }
            Stop::Came(event, status) => (
                format!("{event} (status {status}) came, and the connection manager moved the queue pair to ERR"),
                "look at that event; what was flushed has no fault of its own",
            ),
        }
    }
}

/// What is known of a queue pair.
#[derive(Clone, Copy, Debug)]
struct Managed {
    last: Stop,
    /// The connection manager is about to move it to ERR, or has.
    stops: bool,
    /// It is moved with the next call for it.
    moves: bool,
}

/// The queue pairs of ids.
#[derive(Default, Debug)]
pub(super) struct ManagedPairs(Map<Qpn, Managed>);

impl ManagedPairs {
    /// The program or, for it, the library called something.
    pub fn called(&mut self, qpn: Option<Qpn>, call: &Call) {
        match *call {
            Call::CmCall { function: function @ "rdma_disconnect", id_qpn: Some(qpn), .. }
            | Call::CmOffer { function, id_qpn: Some(qpn), .. } => self.note(qpn, Stop::Called(function)),
            Call::CmEvent { event: event @ "RDMA_CM_EVENT_REJECTED", id_qpn: Some(qpn), status, .. } => {
                self.note(qpn, Stop::Came(event, status));
            }
            Call::CmMovesQp { state, .. } => {
                if let Some(managed) = qpn.and_then(|qpn| self.0.get_mut(&qpn)) {
                    managed.stops = state == "ERR";
                    managed.moves = true;
                }
            }
            Call::ModifyQp { state: Some(_), .. } => {
                if let Some(managed) = qpn.and_then(|qpn| self.0.get_mut(&qpn))
                    && !core::mem::take(&mut managed.moves)
                {
                    managed.stops = false;
                }
            }
            Call::DestroyQp { .. } => {
                qpn.and_then(|qpn| self.0.remove(&qpn));
            }
            _ => {}
        }
    }

    /// What stopped a queue pair, if that was the connection manager.
    pub fn stop_of(&self, qpn: Qpn) -> Option<Stop> {
        self.0.get(&qpn).filter(|managed| managed.stops).map(|managed| managed.last)
    }

    fn note(&mut self, qpn: Qpn, last: Stop) {
        if self.0.len() < MAX_MANAGED_PAIRS || self.0.contains_key(&qpn) {
            self.0.insert(qpn, Managed { last, stops: false, moves: false });
        }
    }
}
