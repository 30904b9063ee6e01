//! What is kept of the work that C programs have under way: see [`Ledger`](super::ledger::Ledger).

use super::ledger_fibers::Side;
use latch::sanitizer::{self, Token};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use transport::Queue;
use wire::{Qpn, Srqn};

/// Where work was posted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum PostedTo {
    Sends(Qpn),
    Receives(Qpn),
    Shared(Srqn),
}

impl PostedTo {
    pub fn of(queue: Queue, qpn: Qpn) -> PostedTo {
        match queue {
            Queue::Send => PostedTo::Sends(qpn),
            Queue::Receive => PostedTo::Receives(qpn),
            Queue::Shared(srqn) => PostedTo::Shared(srqn),
        }
    }
}

/// Bytes of the program: an address that is never followed here, and a length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub start: usize,
    pub length: usize,
}

impl Piece {
    pub fn first(self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.start)
    }

    pub fn has(self, address: usize) -> bool {
        address.wrapping_sub(self.start) < self.length
    }

    pub fn meets(self, other: Piece) -> bool {
        self.has(other.start) || other.has(self.start)
    }

    pub fn covers(self, other: Piece) -> bool {
        self.start <= other.start && other.start + other.length <= self.start + self.length
    }
}

#[derive(Debug)]
pub(super) struct Work {
    pub wr_id: u64,
    pub signaled: bool,
    pub is_send: bool,
    /// The NIC writes the pieces; else it reads them.
    pub fills: bool,
    pub pieces: Vec<Piece>,
    /// What has been placed and is withheld.
    pub landed: Vec<Piece>,
    /// The queue pair that took it from a shared queue, as far as that is known.
    pub taker: Option<Qpn>,
    /// It will complete: what lands from now on is of later work.
    pub finished: bool,
    /// The call that posted it.
    pub stack: Arc<[usize]>,
    /// Comes after what the NIC did for it.
    pub done: Arc<Token>,
}

impl Work {
    pub fn has(&self, address: usize) -> bool {
        self.pieces.iter().any(|piece| piece.has(address))
    }

    /// The program knows what was placed: so many bytes, or as many as it has room for.
    pub fn hand_over(&self, mut bytes: usize) {
        for piece in &self.pieces {
            let length = piece.length.min(bytes);
            sanitizer::hand_over(piece.first(), length);
            bytes -= length;
        }
        self.give_back();
    }

    /// What was withheld counts as initialised.
    pub fn give_back(&self) {
        self.landed.iter().for_each(|piece| sanitizer::hand_over(piece.first(), piece.length));
    }
}

/// What a fiber is still to do.
#[derive(Debug)]
pub(super) enum Untold {
    Landed { qpn: Qpn, piece: Piece, stack: Arc<[usize]> },
    Finished { qpn: Qpn, done: Arc<Token> },
}

/// An access of a fiber's, and what comes after it.
#[derive(Debug)]
pub(super) struct RecentAccess {
    pub fiber: (Qpn, Side),
    pub piece: Piece,
    pub after: Arc<Token>,
}

#[derive(Debug, Default)]
pub(super) struct Books {
    pub queues: HashMap<PostedTo, VecDeque<Work>>,
    /// Queue pairs all of whose sends complete.
    pub signal_all: HashSet<Qpn>,
    /// Who the peer is, in words.
    pub peers: HashMap<Qpn, String>,
    pub untold: Vec<Untold>,
    pub recent: VecDeque<RecentAccess>,
}

impl Books {
    /// The work of a queue pair that fills this address.
    pub fn filled(&mut self, qpn: Qpn, address: usize) -> Option<&mut Work> {
        let fits = |work: &&mut Work| work.fills && !work.finished && work.has(address);
        let own = [PostedTo::Receives(qpn), PostedTo::Sends(qpn)];
        let mine = own
            .into_iter()
            .find(|queue| self.queues.get_mut(queue).is_some_and(|kept| kept.iter_mut().any(|work| fits(&work))));
        if let Some(queue) = mine {
            return self.queues.get_mut(&queue)?.iter_mut().find(|work| fits(work));
        }
        let shared = self.queues.iter_mut().filter(|(queue, _)| matches!(queue, PostedTo::Shared(_)));
        shared.flat_map(|(_, kept)| kept).find(|work| fits(work) && work.taker.is_none_or(|taker| taker == qpn))
    }
}
