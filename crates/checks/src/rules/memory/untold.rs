//! Answers to WRITEs that nothing has told the program of: UV-0230. No event shows that a program looks at memory; that
//! it answers, and could not know otherwise, does.

use alloc::format;

use trace::{Call, Kind, Queue};
use wire::{Headers, Operation, Qpn};

use super::ANSWERS_UNTOLD;
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::map::Map;

/// So many answers in a row are no chance.
const MIN_ANSWERS: u32 = 32;
/// Later than this, in nanoseconds, a post is no answer.
const ANSWER_TIME: u64 = 2_000_000;
/// How many queue pairs are watched.
const MAX_PAIRS: usize = 1024;

/// The part.
#[derive(Default, Debug)]
pub(in super::super) struct Untold {
    pairs: Map<Qpn, Exchange>,
    /// How often the program was told of something.
    told: u64,
}

/// What goes to and fro on a queue pair.
#[derive(Default, Debug)]
struct Exchange {
    /// WRITEs that have come since the program posted last; when the last one came, and what had been told by then.
    writes: u32,
    came: u64,
    told: u64,
    /// Posts in a row that followed one WRITE each; and of these how many that nothing else can have caused.
    turns: u32,
    answers: u32,
}

impl Examine for Untold {
    fn sees(&self) -> Sort {
        Sort::PACKET | Sort::POST | Sort::COMPLETED | Sort::POLL | Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let event = moment.event;
        match &event.kind {
            // What comes while a poll goes on is told of after what it returns.
            Kind::Called { call: Call::Polled { .. } | Call::Poll { got: 1.., .. }, .. }
            | Kind::Completed { queue: Queue::Receive, .. } => self.told += 1,
            Kind::PacketReceived { headers, .. } if headers.bth.opcode.is_request() => {
                let Some(qpn) = event.qpn else { return };
                if self.pairs.len() >= MAX_PAIRS && !self.pairs.contains_key(&qpn) {
                    return;
                }
                let exchange = self.pairs.entry(qpn).or_default();
                match ends_write(headers) {
                    Some(true) => {
                        (exchange.came, exchange.told) = (event.at, self.told);
                        exchange.writes += 1;
                    }
                    // More of it is to come.
                    Some(false) => {}
                    // A message or an atomic operation tells of the WRITEs before it.
                    None => *exchange = Exchange::default(),
                }
            }
            Kind::Called { call: Call::PostSend { index: 0, .. }, .. } => {
                let Some(qpn) = event.qpn else { return };
                let told = self.told;
                if let Some(exchange) = self.pairs.get_mut(&qpn) {
                    exchange.posted(qpn, event.at, told, out);
                }
            }
            Kind::StateChanged { .. } => {
                if let Some(qpn) = event.qpn {
                    self.pairs.remove(&qpn);
                }
            }
            _ => {}
        }
    }
}

impl Exchange {
    fn posted(&mut self, qpn: Qpn, at: u64, told: u64, out: &mut Out<'_>) {
        if core::mem::take(&mut self.writes) != 1 {
            (self.turns, self.answers) = (0, 0);
            return;
        }
        self.turns += 1;
        if told != self.told || at.saturating_sub(self.came) > ANSWER_TIME {
            return;
        }
        self.answers += 1;
        if self.answers < MIN_ANSWERS || out.is_old(ANSWERS_UNTOLD, Subject::QueuePair(qpn)) {
            return;
        }
        out.tell(
            Finding::new(
                ANSWERS_UNTOLD,
                Subject::QueuePair(qpn),
                format!(
                    "{} times the program posted to QP {qpn} right after a WRITE of the peer of which nothing had told \
                     it: it looks at memory to see whether data has come",
                    self.answers
                ),
                "have the peer post IBV_WR_RDMA_WRITE_WITH_IMM, or a SEND behind the WRITE, and wait for that \
                 completion; or ask ibv_query_qp_data_in_order first, and look at memory only where it returns 1",
            )
            .because(
                "the bytes of a WRITE may come in any order until a completion, immediate data or an atomic operation \
                 tells of it (IBA o9-20): the last byte may be there before the others",
            )
            .shown_by(format!("{} posts in a row followed one WRITE each", self.turns)),
        );
    }
}

/// Whether a packet ends a WRITE of which nothing tells the program; none if it tells something.
fn ends_write(headers: &Headers) -> Option<bool> {
    let opcode = headers.bth.opcode;
    match opcode.operation() {
        Operation::Write if !opcode.has_immediate() => Some(opcode.ends()),
        Operation::Write => None,
        Operation::ReadRequest => Some(false),
        _ => None,
    }
}
