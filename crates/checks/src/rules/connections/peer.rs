//! What is known of the other end of a connection: all, if it is a queue pair of the same program; what its process
//! said, if it is another process of the host; nothing, if it is elsewhere.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use trace::Call;
use wire::Qpn;

use crate::map::{Map, Set};
use crate::model::{Connection, Model, Pair};

/// Queue pairs whose numbers have the same upper bits are of one process: the lower twelve are an index within.
const INDEX_BITS: u32 = 12;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    /// It is on another host, or its process has not been asked yet.
    Unknown,
    /// No queue pair of this host has the number.
    Missing(String),
    /// This is what it is.
    Known(End),
}

/// One end, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub qpn: Qpn,
    pub kind: &'static str,
    pub state: &'static str,
    pub connection: Connection,
    /// Its process, if that is another one.
    pub process: Option<u32>,
}

impl End {
    pub fn of(pair: &Pair) -> End {
        End { qpn: pair.qpn, kind: pair.kind, state: pair.state, connection: pair.connection, process: None }
    }

    /// What it is called in a sentence.
    pub fn name(&self) -> String {
        match self.process {
            Some(process) => format!("QP {} of process {process}", self.qpn),
            None => format!("QP {}", self.qpn),
        }
    }

    /// Whether it takes packets.
    pub fn receives(&self) -> bool {
        matches!(self.state, "RTR" | "RTS" | "SQD" | "SQE")
    }
}

/// What is known of peers.
#[derive(Default, Debug)]
pub(super) struct Peers {
    /// Which of the program's queue pairs name this one as their peer.
    named_by: Map<Qpn, Set<Qpn>>,
    /// What other processes said of their queue pairs; none where no process has it.
    seen: Map<Qpn, Option<End>>,
    /// Queue pairs that the connection manager moves.
    managed: Set<Qpn>,
    /// Ids of requests of peers.
    asked: Set<u64>,
    /// Queue pairs of such ids: what they retry is what the peer asked for.
    accepting: Set<Qpn>,
    /// The connection manager was asked for attributes of a queue pair.
    manager_is_used: bool,
}

/// How many queue pairs of others are remembered.
const MAX_SEEN: usize = 4096;

impl Peers {
    /// Takes note of the peer that this queue pair names.
    pub fn named(&mut self, qpn: Qpn, model: &Model) {
        let Some(dest) = model.pairs.get(&qpn).and_then(|pair| pair.connection.dest_qpn) else { return };
        self.named_by.entry(dest).or_default().insert(qpn);
    }

    pub fn managed(&mut self, qpn: Qpn, id: u64) {
        self.managed.insert(qpn);
        if self.asked.contains(&id) {
            self.accepting.insert(qpn);
        }
    }

    /// A peer's request has this id.
    pub fn asked(&mut self, id: u64) {
        if self.asked.len() >= MAX_SEEN {
            self.asked.pop_first();
        }
        self.asked.insert(id);
    }

    /// Whether it is the queue pair of a peer's request.
    pub fn accepts(&self, qpn: Qpn) -> bool {
        self.accepting.contains(&qpn)
    }

    /// Whether the connection manager moves it.
    pub fn is_managed(&self, qpn: Qpn) -> bool {
        self.managed.contains(&qpn)
    }

    pub fn manager_is_used(&mut self) {
        self.manager_is_used = true;
    }

    /// Whether its attributes may be those that the connection manager chose.
    pub fn may_be_managed(&self, qpn: Qpn) -> bool {
        self.manager_is_used || self.is_managed(qpn)
    }

    /// A queue pair is destroyed.
    pub fn forget(&mut self, qpn: Qpn, model: &Model) {
        self.managed.remove(&qpn);
        self.accepting.remove(&qpn);
        if let Some(dest) = model.pairs.get(&qpn).and_then(|pair| pair.connection.dest_qpn)
            && let Some(named) = self.named_by.get_mut(&dest)
        {
            named.remove(&qpn);
            if named.is_empty() {
                self.named_by.remove(&dest);
                self.seen.remove(&dest);
            }
        }
    }

    /// Another process, or nobody, has said what a queue pair is.
    pub fn seen(&mut self, call: &Call) {
        let Call::PeerSeen {
            peer,
            process,
            kind,
            state,
            dest_qpn,
            path_mtu,
            rq_psn,
            sq_psn,
            qkey,
            access,
            max_rd_atomic,
            max_dest_rd_atomic,
            dgid,
        } = *call
        else {
            return;
        };
        if self.seen.len() >= MAX_SEEN && !self.seen.contains_key(&peer) {
            return;
        }
        let connection = Connection {
            dest_qpn,
            path_mtu,
            rq_psn,
            sq_psn,
            qkey,
            access,
            max_rd_atomic,
            max_dest_rd_atomic,
            dgid,
            ..Connection::default()
        };
        let end = End { qpn: peer, kind, state, connection, process: Some(process) };
        self.seen.insert(peer, (process != 0).then_some(end));
    }

    /// The program's queue pairs whose connections are to be looked at when this one has changed: itself, and those
    /// that name it.
    pub fn touched_by<'a>(&self, qpn: Qpn, model: &'a Model) -> Vec<&'a Pair> {
        let naming = self.named_by.get(&qpn).into_iter().flat_map(Set::iter);
        let others = naming.filter(|other| **other != qpn && names(model, **other, qpn));
        core::iter::once(&qpn).chain(others).filter_map(|qpn| model.pairs.get(qpn)).collect()
    }

    /// The other end of this connection.
    pub fn of(&self, pair: &Pair, model: &Model) -> Peer {
        let connection = &pair.connection;
        let (Some(dest), Some(dgid)) = (connection.dest_qpn, connection.dgid) else { return Peer::Unknown };
        self.at(dest, dgid, connection.sgid, model)
    }

    /// The queue pair of that number at that address, seen from one whose own address is `sgid`.
    pub fn at(&self, dest: Qpn, dgid: [u8; 16], sgid: Option<[u8; 16]>, model: &Model) -> Peer {
        let same_address = sgid == Some(dgid);
        if let Some(peer) = model.pairs.get(&dest) {
            // A queue pair of another host may have the same number.
            return match peer.connection.sgid {
                Some(its) if its == dgid => Peer::Known(End::of(peer)),
                _ if same_address => Peer::Known(End::of(peer)),
                _ => Peer::Unknown,
            };
        }
        if !same_address {
            return match self.seen.get(&dest) {
                Some(Some(end)) => Peer::Known(*end),
                _ => Peer::Unknown,
            };
        }
        if let Some((_, at)) = model.gone_pairs.iter().rev().find(|(gone, _)| *gone == dest) {
            return Peer::Missing(format!("this program had QP {dest} and destroyed it ({} s)", seconds(*at)));
        }
        match self.seen.get(&dest) {
            Some(Some(end)) => return Peer::Known(*end),
            Some(None) => return Peer::Missing(format!("no process of this host has QP {dest}")),
            None => {}
        }
        let of_this_process = |qpn: &Qpn| qpn.value() >> INDEX_BITS == dest.value() >> INDEX_BITS;
        if model.pairs.keys().any(of_this_process) {
            return Peer::Missing(format!(
                "QP numbers {:#08x} to {:#08x} are this program's, and none of its {} queue pairs has that one",
                (dest.value() >> INDEX_BITS) << INDEX_BITS,
                dest.value() | ((1 << INDEX_BITS) - 1),
                model.pairs.len()
            ));
        }
        Peer::Unknown
    }
}

/// Whether this queue pair names that one as its peer now.
fn names(model: &Model, qpn: Qpn, peer: Qpn) -> bool {
    model.pairs.get(&qpn).is_some_and(|pair| pair.connection.dest_qpn == Some(peer))
}

/// A moment in seconds with three digits.
fn seconds(at: u64) -> String {
    format!("{}.{:03}", at / 1_000_000_000, at / 1_000_000 % 1_000)
}
