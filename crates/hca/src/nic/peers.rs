//! What the other end of a connection is, asked of its process if that is one of this host: only while the program is
//! checked, by a thread of its own, which ends when nothing is left to ask. What it hears goes into the trace
//! (`peer_seen`), and is no more than words: nothing but sentences is made of it.

use crate::nic::Nic;
use crate::queue_pair::Qp;
use crate::tuning::{PEER_QUESTION_INTERVAL, PEER_QUESTIONS};
use ::host::names::{self, Name};
use ::host::slots::Slot;
use inventory::Users;
use latch::Rank;
use latch::plain::Mutex;
use std::collections::BTreeMap;
use std::sync::Weak;
use trace::Call;
use transport::{Attributes, Kind, State};
use wire::{Gid, Qkey, Qpn};

/// The queue pairs whose peers are to be asked for, and how often still; none while no thread asks.
#[derive(Debug)]
pub(crate) struct Questions(Mutex<Option<BTreeMap<Qpn, u32>>>);

impl Default for Questions {
    fn default() -> Questions {
        Questions(Mutex::new(Rank::PeerQuestions, None))
    }
}

impl Nic {
    /// A queue pair was connected: its peer is asked for, if a process of this host has it.
    pub(crate) fn ask_for_peer(&self, qp: &Qp, state: Option<State>) {
        let connected = matches!(state, Some(State::ReadyToReceive | State::ReadyToSend));
        if !connected || !self.ground.records.trace.is_checked() || !qp.kind().is_connected() {
            return;
        }
        let Attributes { av, dest_qpn, .. } = qp.attributes();
        // What this process has the checker knows.
        if !self.ground.host.is_own_address(av.dgid) || self.ground.host.numbers.owns(dest_qpn) {
            return;
        }
        let mut questions = self.background.peer_questions.0.lock();
        let starts = questions.is_none();
        questions.get_or_insert_default().insert(qp.qpn(), PEER_QUESTIONS);
        drop(questions);
        let nic = super::process::weak(self);
        if starts && ::host::thread::spawn("ubiverbs-peers", move || ask(&nic)).is_err() {
            *self.background.peer_questions.0.lock() = None;
        }
    }
}

/// Asks, as long as there is something to ask.
fn ask(nic: &Weak<Nic>) {
    loop {
        std::thread::sleep(PEER_QUESTION_INTERVAL);
        let Some(nic) = nic.upgrade() else { return };
        let asked = {
            let mut questions = nic.background.peer_questions.0.lock();
            match questions.take() {
                Some(asked) if !asked.is_empty() => {
                    *questions = Some(BTreeMap::new());
                    asked
                }
                // The thread ends, and the next question starts another.
                _ => return,
            }
        };
        let processes = inventory::gather(Users::Own).unwrap_or_default();
        for (qpn, left) in asked {
            let again = nic.qp(qpn).is_some_and(|qp| !nic.tell_peer(&qp, &processes));
            if again && left > 1 {
                let mut questions = nic.background.peer_questions.0.lock();
                questions.get_or_insert_default().entry(qpn).or_insert(left - 1);
            }
        }
    }
}

impl Nic {
    /// Tells the trace what a queue pair's peer is, if a process says so. Returns whether that was all there is to say.
    fn tell_peer(&self, qp: &Qp, processes: &[inventory::Process]) -> bool {
        let attributes = qp.attributes();
        let dest = attributes.dest_qpn;
        if !attributes.state.receives() {
            return true;
        }
        for process in processes {
            let pairs = process.report.iter().flat_map(|report| &report.queue_pairs);
            if let Some(pair) = pairs.into_iter().find(|pair| pair.number == dest.value()) {
                let call = seen(dest, process.pid, pair);
                self.called(Some(qp.qpn()), || call);
                // One that can send has said all.
                return State::from_code(pair.state) == Some(State::ReadyToSend);
            }
        }
        let nobody = match Slot::of(dest).map(|slot| names::owner(Name::Slot(slot))) {
            None | Some(Ok(None)) => true,
            Some(Ok(Some(owner))) => processes.iter().any(|process| process.pid == owner.pid && process.report.is_ok()),
            Some(Err(_)) => false,
        };
        if nobody {
            self.called(Some(qp.qpn()), || seen(dest, 0, &inventory::QueuePair::default()));
        }
        nobody
    }
}

/// What a process said of its queue pair.
fn seen(peer: Qpn, process: i32, pair: &inventory::QueuePair) -> Call {
    let state = State::from_code(pair.state).filter(|_| process != 0);
    let connected = state.is_some_and(State::receives);
    let sends = matches!(state, Some(State::ReadyToSend | State::SendQueueDrained));
    Call::PeerSeen {
        peer,
        process: u32::try_from(process).unwrap_or(0),
        kind: Kind::from_code(pair.kind).filter(|_| process != 0).map_or("", Kind::name),
        state: state.map_or("", State::name),
        dest_qpn: connected.then(|| Qpn::new(pair.peer)),
        path_mtu: connected.then_some(pair.path_mtu),
        rq_psn: connected.then_some(pair.first_receive_psn),
        sq_psn: sends.then_some(pair.first_send_psn),
        qkey: connected.then(|| Qkey::new(pair.qkey)),
        access: connected.then(|| wire::access::Access::from_bits_truncate(pair.access)),
        max_rd_atomic: sends.then(|| pair.max_rd_atomic.into()),
        max_dest_rd_atomic: connected.then(|| pair.max_dest_rd_atomic.into()),
        dgid: connected.then(|| Gid::new(pair.destination).octets()),
    }
}
