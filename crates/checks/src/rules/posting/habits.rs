//! What a program does again and again, and could do faster.

use alloc::format;

use trace::Call;
use wire::{Key, Qpn};

use crate::examine::{Moment, Out};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::model::{Model, Pair, Work};
use crate::posted_work::{Owner, Posting};
use crate::rule::catalogue::posting::*;

/// So often is a habit.
const MIN_HABIT_COUNT: u32 = 16;
/// So many signaled work requests in a row.
const SIGNALED_ROW: u32 = 64;
/// So many READs at once, where one may be under way.
const READS_MIN: usize = 4;
/// So long may a row of posts take, in nanoseconds: slower ones are no batch.
const ROW_TIME: u64 = 5_000_000;
/// Of longer messages the bytes count, not the calls and completions.
const SHORT_MESSAGE_BYTES: u64 = 4096;
/// What is a small WRITE.
const SMALL_WRITE: u64 = 256;
/// Immediate data has so many bytes.
const IMMEDIATE_BYTES: u64 = 4;
/// How many threads are watched.
const THREADS_MAX: usize = 1024;

#[derive(Default, Debug)]
pub(super) struct Habits {
    pairs: Map<Qpn, Counts>,
    rows: Map<u32, Row>,
}

/// What was counted of a queue pair.
#[derive(Default, Debug)]
struct Counts {
    small: u32,
    signaled: u32,
    fences: u32,
    answered: bool,
    turns: u32,
    last_thread: u32,
    writes: u32,
    /// Where the last small WRITE ended: here, there, under which key.
    wrote_to: Option<(u64, u64, Key)>,
    notes: u32,
    last_was_write: bool,
}

/// What a thread posts, one by one, without another call.
#[derive(Debug)]
struct Row {
    queue: Owner,
    count: u32,
    since: u64,
}

impl Habits {
    pub fn forget(&mut self, qpn: Qpn) {
        self.pairs.remove(&qpn);
    }

    /// A thread called something.
    pub fn called(&mut self, thread: u32, call: &Call, moment: &Moment<'_>, out: &mut Out<'_>) {
        let (queue, index) = match *call {
            Call::PostSend { index, pieces, .. } if pieces.bytes <= SHORT_MESSAGE_BYTES => {
                (moment.event.qpn.map(Owner::Send), index)
            }
            Call::PostReceive { index, srq: Some(srq), .. } => (Some(Owner::Shared(srq.value())), index),
            Call::PostReceive { index, .. } => (moment.event.qpn.map(Owner::Receive), index),
            _ => (None, 0),
        };
        let Some(queue) = queue.filter(|_| thread != 0) else {
            self.rows.remove(&thread);
            return;
        };
        self.row(thread, queue, index, moment, out);
        if let Owner::Send(qpn) = queue {
            self.turn(thread, qpn, out);
        }
    }

    /// How many posts follow each other.
    fn row(&mut self, thread: u32, queue: Owner, index: u32, moment: &Moment<'_>, out: &mut Out<'_>) {
        let at = moment.event.at;
        if index > 0 || self.rows.len() >= THREADS_MAX {
            self.rows.remove(&thread);
            return;
        }
        let row = self.rows.entry(thread).or_insert(Row { queue, count: 0, since: at });
        if row.queue != queue || at.saturating_sub(row.since) > ROW_TIME {
            *row = Row { queue, count: 0, since: at };
        }
        row.count += 1;
        if row.count < MIN_HABIT_COUNT {
            return;
        }
        let rule = if matches!(queue, Owner::Send(_)) { SENDS_ONE_BY_ONE } else { RECEIVES_ONE_BY_ONE };
        if out.is_old(rule, queue.subject()) {
            return;
        }
        let (count, took) = (row.count, at.saturating_sub(row.since) / 1_000);
        let finding = match queue {
            Owner::Send(qpn) => {
                let what = format!("{count} work requests were posted to QP {qpn} one by one, in {took} us");
                let advice = "link the work requests by ibv_send_wr.next and post the list with one ibv_post_send \
                              (or between ibv_wr_start and ibv_wr_complete)";
                Finding::new(SENDS_ONE_BY_ONE, queue.subject(), what, advice)
            }
            Owner::Receive(_) | Owner::Shared(_) if refills(queue, moment.model) => {
                let what = format!("{count} receives were posted to {} one by one, in {took} us", queue.subject());
                let advice = "link the receives by ibv_recv_wr.next and post the list with one call";
                Finding::new(RECEIVES_ONE_BY_ONE, queue.subject(), what, advice)
            }
            _ => return,
        };
        out.tell(finding.because("each call takes the lock of the queue and rings the doorbell of the NIC"));
    }

    /// Which thread posts.
    fn turn(&mut self, thread: u32, qpn: Qpn, out: &mut Out<'_>) {
        let counts = self.pairs.entry(qpn).or_default();
        let before = core::mem::replace(&mut counts.last_thread, thread);
        if before == 0 || before == thread {
            return;
        }
        counts.turns += 1;
        if counts.turns >= MIN_HABIT_COUNT && !out.is_old(THREADS_TAKE_TURNS, Subject::QueuePair(qpn)) {
            let what = format!("threads {before} and {thread} post to QP {qpn} in turn, {} times so far", counts.turns);
            let advice = "give each thread a queue pair of its own, or let one thread post for the others";
            let finding = Finding::new(THREADS_TAKE_TURNS, Subject::QueuePair(qpn), what, advice);
            out.tell(finding.because("the queue and its lock move between processors with each turn"));
        }
    }

    /// A queue takes work.
    pub fn posted(&mut self, posting: &Posting<'_>, model: &Model, out: &mut Out<'_>) {
        if let Owner::Send(qpn) = posting.owner
            && let Some(pair) = model.pairs.get(&qpn)
        {
            self.pairs.entry(qpn).or_default().posted(posting, pair, out);
        }
    }
}

/// Whether receives are posted in the place of others that were used: the first ones are posted before anything runs.
fn refills(queue: Owner, model: &Model) -> bool {
    let works = match queue {
        Owner::Receive(qpn) => model.pairs.get(&qpn).filter(|pair| pair.state == "RTS").map(|pair| &pair.receives),
        Owner::Shared(srq) => model.srqs.get(&srq).map(|srq| &srq.receives),
        Owner::Send(_) => None,
    };
    works.is_some_and(|works| works.posted > works.len() as u64)
}

impl Counts {
    fn posted(&mut self, posting: &Posting<'_>, pair: &Pair, out: &mut Out<'_>) {
        let work = &posting.work;
        self.answered |= work.is_answered();
        self.inline(posting, pair, out);
        self.signaled(posting, pair, out);
        self.fence(posting, out);
        self.write(posting, out);
        self.note(posting, out);
        if work.is_answered() && pair.connection.max_rd_atomic == Some(1) {
            let waiting = pair.sends.iter().filter(|work| work.is_answered()).count() + 1;
            if waiting >= READS_MIN && !out.is_old(READS_WAIT, posting.owner.subject()) {
                let what =
                    format!("{waiting} READs and atomics are under way on QP {}, and run one at a time", pair.qpn);
                let advice = "raise max_rd_atomic here and max_dest_rd_atomic of the peer (ibv_query_device says how \
                              many a device has); with the connection manager: initiator_depth and \
                              responder_resources";
                out.tell(
                    posting
                        .finding(READS_WAIT, what, advice)
                        .because("max_rd_atomic is 1, so each waits until the answer of the one before has arrived"),
                );
            }
        }
    }

    fn inline(&mut self, posting: &Posting<'_>, pair: &Pair, out: &mut Out<'_>) {
        let (work, granted) = (&posting.work, u64::from(pair.max_inline_data));
        if !work.leaves_memory() || work.pieces.bytes == 0 || work.pieces.bytes > granted {
            return;
        }
        self.small += 1;
        if self.small >= MIN_HABIT_COUNT && !out.is_old(NOT_INLINE, posting.owner.subject()) {
            let what = format!(
                "{} messages of at most {granted} bytes were sent from memory on QP {}, the last of {} bytes",
                self.small, pair.qpn, work.pieces.bytes
            );
            let advice = "set IBV_SEND_INLINE on messages of at most max_inline_data bytes; their buffer can be used \
                          again as soon as ibv_post_send returns";
            out.tell(
                posting
                    .finding(NOT_INLINE, what, advice)
                    .because("an inline message is in the work request already: the NIC need not fetch it from memory"),
            );
        }
    }

    fn signaled(&mut self, posting: &Posting<'_>, pair: &Pair, out: &mut Out<'_>) {
        let counts = posting.work.signaled && posting.work.pieces.bytes <= SHORT_MESSAGE_BYTES;
        self.signaled = if counts { self.signaled + 1 } else { 0 };
        if self.signaled >= SIGNALED_ROW
            && pair.sends.len() as u32 >= MIN_HABIT_COUNT - 1
            && !out.is_old(ALL_SIGNALED, posting.owner.subject())
        {
            let what = format!(
                "each of the last {} work requests on QP {} is signaled, {} of them under way at once",
                self.signaled,
                pair.qpn,
                pair.sends.len() + 1
            );
            let advice = if pair.signals_all {
                "make the queue pair with sq_sig_all = 0 and set IBV_SEND_SIGNALED on every 16th work request or so: \
                 its completion says that all before it are done"
            } else {
                "set IBV_SEND_SIGNALED on every 16th work request or so: its completion says that all before it are \
                 done"
            };
            let cause = "the NIC writes a completion for each, and the program polls each";
            out.tell(posting.finding(ALL_SIGNALED, what, advice).because(cause));
        }
    }

    fn fence(&mut self, posting: &Posting<'_>, out: &mut Out<'_>) {
        self.fences += u32::from(posting.work.fence);
        if posting.work.fence
            && !self.answered
            && self.fences >= MIN_HABIT_COUNT
            && !out.is_old(FENCE_IN_VAIN, posting.owner.subject())
        {
            let what = format!(
                "{} has a fence, as {} before it, and no READ or atomic was ever posted there",
                posting.name(),
                self.fences - 1
            );
            let advice = "set IBV_SEND_FENCE only on work that needs the data of a READ or atomic before it";
            out.tell(posting.finding(FENCE_IN_VAIN, what, advice));
        }
    }

    /// WRITEs that go on where the one before ended, on both sides.
    fn write(&mut self, posting: &Posting<'_>, out: &mut Out<'_>) {
        let work = &posting.work;
        let Some((from, to, key)) = plain_write(work).filter(|_| work.pieces.bytes <= SMALL_WRITE) else {
            (self.writes, self.wrote_to) = (0, None);
            return;
        };
        let goes_on = self.wrote_to == Some((from, to, key));
        self.writes = if goes_on { self.writes + 1 } else { 1 };
        let bytes = work.pieces.bytes;
        self.wrote_to = Some((from.wrapping_add(bytes), to.wrapping_add(bytes), key));
        if self.writes >= MIN_HABIT_COUNT && !out.is_old(WRITES_SPLIT, posting.owner.subject()) {
            let what = format!(
                "{} WRITEs in a row of at most {SMALL_WRITE} bytes each go on where the one before ended, the last \
                 is {}",
                self.writes,
                posting.name()
            );
            let advice = "write the bytes with one WRITE: they lie in one piece here and at the peer";
            out.tell(
                posting.finding(WRITES_SPLIT, what, advice).because("each WRITE is a packet and an entry of the queue"),
            );
        }
    }

    /// SENDs of a few bytes after WRITEs.
    fn note(&mut self, posting: &Posting<'_>, out: &mut Out<'_>) {
        let work = &posting.work;
        let after_write = core::mem::replace(&mut self.last_was_write, work.opcode == "RDMA_WRITE");
        if !after_write {
            return;
        }
        if work.opcode != "SEND" || work.pieces.bytes > IMMEDIATE_BYTES {
            self.notes = 0;
            return;
        }
        self.notes += 1;
        if self.notes >= MIN_HABIT_COUNT && !out.is_old(NOTE_AFTER_WRITE, posting.owner.subject()) {
            let what = format!("{} WRITEs were each followed by a SEND of at most {IMMEDIATE_BYTES} bytes", self.notes);
            let advice = "use RDMA_WRITE_WITH_IMM: the peer gets a completion with 4 bytes of immediate data when \
                          the bytes are there";
            out.tell(posting.finding(NOTE_AFTER_WRITE, what, advice).because("one message does the work of two"));
        }
    }
}

/// Where a WRITE without immediate data begins, here and there, if its bytes are in one piece.
fn plain_write(work: &Work) -> Option<(u64, u64, Key)> {
    let [piece] = work.pieces.kept() else { return None };
    let (address, key) = work.remote.filter(|_| work.opcode == "RDMA_WRITE")?;
    Some((piece.address, address, key))
}
