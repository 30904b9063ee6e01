//! What the processes of a run have: queue pairs with their work, regions, receives. It is what their events said; none
//! of it is believed further than its bounds go.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use trace::{Call, Pieces};
use wire::Qpn;

use super::clock::{Clock, SharedClock};
use super::shadow::{Shadow, Work};
use crate::map::Map;

/// How many items a queue of a queue pair has: posted work, messages, completions.
const MAX_QUEUED: usize = 1 << 14;

/// A process of the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessFacts {
    /// Its number.
    pub pid: u32,
    /// What it runs.
    pub program: String,
    /// Its host: processes of one host share numbers of queue pairs.
    pub host: u32,
}

#[derive(Debug)]
pub(super) struct Process {
    pub facts: ProcessFacts,
    /// What the program knows.
    pub clock: SharedClock,
    pub shadow: Shadow,
    /// Receives of shared receive queues.
    pub shared_receives: Map<u32, VecDeque<Receive>>,
    /// The stack of the next work request, by thread.
    pub stacks: Map<u32, u64>,
}

impl Process {
    pub fn new(facts: ProcessFacts) -> Process {
        Process {
            facts,
            clock: SharedClock::default(),
            shadow: Shadow::default(),
            shared_receives: Map::new(),
            stacks: Map::new(),
        }
    }
}

/// What a queue pair promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    /// RC and XRC: a completion says that the peer has it.
    Reliable,
    /// UC.
    Unreliable,
    Datagram,
    /// No work of the others reaches memory of a process that is seen.
    Other,
}

impl Service {
    pub fn of(kind: &str) -> Service {
        match kind {
            "RC" | "XRC_SEND" | "XRC_RECV" => Service::Reliable,
            "UC" => Service::Unreliable,
            "UD" => Service::Datagram,
            _ => Service::Other,
        }
    }
}

/// A receive that is posted.
#[derive(Clone, Debug)]
pub(super) struct Receive {
    pub wr_id: u64,
    pub pieces: Pieces,
    pub before: Arc<Clock>,
}

/// A message on its way to a receive.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// How many of its kind were posted before it, and 1.
    pub number: u64,
    /// The last sequence number, once it was sent.
    pub psn: Option<u32>,
    pub work: Arc<Work>,
    /// What its poster knew.
    pub before: Arc<Clock>,
    /// Whether its bytes go into the receive; those of a WRITE with immediate data do not.
    pub fills: bool,
}

/// A completion that the program has not polled.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// Work of the send queue is done up to this.
    Sent(u64),
    /// A message came. None: it is not known which.
    Received(Option<Message>),
    Failed,
}

/// A queue pair, from RESET to RESET.
#[derive(Debug)]
pub(super) struct Pair {
    pub process: u32,
    pub qpn: Qpn,
    pub service: Service,
    pub signals_all: bool,
    pub srq: Option<u32>,
    /// The queue pair that it is connected with, as its program says.
    pub dest: Option<Qpn>,
    /// What the program knew when it was made: a peer that names it knows as much.
    pub born: Arc<Clock>,
    /// Work of the send queue that was posted so far.
    pub posted: u64,
    /// Of it the last READ or atomic operation.
    pub last_answered: u64,
    /// Up to here READs were waited for by a fence.
    pub fenced: u64,
    /// A post that is not accepted yet.
    pub pending: Option<(Call, u32, u64)>,
    /// Index, name, and whether it completes if all goes well.
    pub sends: VecDeque<(u64, u64, bool)>,
    pub messages: VecDeque<Message>,
    pub message_count: u64,
    /// Messages whose packets have not left; of unreliable services.
    pub unsent: VecDeque<(u64, u64)>,
    /// Messages that were received.
    pub received: u64,
    pub receives: VecDeque<Receive>,
    /// The newest packet: from where, and its last sequence number.
    pub arrived: Option<(Qpn, u32)>,
    pub completed: VecDeque<(u64, Outcome)>,
    /// Atomic operations that have not completed: index, and process and address of their bytes.
    pub atomics: VecDeque<(u64, (u64, u64))>,
}

impl Pair {
    pub fn new(process: u32, qpn: Qpn, service: Service, born: Arc<Clock>) -> Pair {
        Pair {
            process,
            qpn,
            service,
            signals_all: false,
            srq: None,
            dest: None,
            born,
            posted: 0,
            last_answered: 0,
            fenced: 0,
            pending: None,
            sends: VecDeque::new(),
            messages: VecDeque::new(),
            message_count: 0,
            unsent: VecDeque::new(),
            received: 0,
            receives: VecDeque::new(),
            arrived: None,
            completed: VecDeque::new(),
            atomics: VecDeque::new(),
        }
    }

    /// The same queue pair in RESET again.
    pub fn again(&self, born: Arc<Clock>) -> Pair {
        Pair { signals_all: self.signals_all, srq: self.srq, ..Pair::new(self.process, self.qpn, self.service, born) }
    }
}

/// Memory that is registered, or a window.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub id: u64,
    pub address: u64,
    pub length: u64,
    pub iova: u64,
    /// What its process knew when it was made: a peer that names its key knows as much.
    pub born: Arc<Clock>,
}

impl Region {
    /// Where bytes lie that requests name by this address; none that are not in it.
    pub fn place(&self, address: u64, length: u64) -> Option<(u64, u64)> {
        let offset = address.checked_sub(self.iova)?;
        let end = offset.checked_add(length)?;
        (end <= self.length).then_some(())?;
        Some((self.address.checked_add(offset)?, self.address.checked_add(end)?))
    }
}

/// Puts an item behind the others. The oldest is dropped where there is no room; true if so.
pub(super) fn push<T>(queue: &mut VecDeque<T>, item: T) -> bool {
    let is_full = queue.len() >= MAX_QUEUED;
    if is_full {
        queue.pop_front();
    }
    queue.push_back(item);
    is_full
}

/// The ranges of a receive that a message of so many bytes fills.
pub(super) fn filled(pieces: &Pieces, bytes: u64) -> Vec<(u64, u64, u32)> {
    let mut left = bytes;
    let mut ranges = Vec::new();
    for piece in pieces.kept() {
        let length = u64::from(piece.length).min(left);
        left -= length;
        if length > 0 {
            ranges.push((piece.address, length, piece.key.value()));
        }
    }
    ranges
}
