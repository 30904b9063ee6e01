//! Posting: UV-03xx. What the program puts into work requests, and how it puts them into queues.

mod habits;
mod queues;
mod requests;

use trace::{Call, Kind};

use crate::checker::{Examine, Moment, Out};
use crate::model::Model;
use crate::rule::rules;
use crate::witness::Witness;

rules! {
    NEVER_REAPED = 301 Error "a send queue is full of work that is not signaled";
    NEVER_SIGNALED = 302 Warning "nothing that was sent on a queue pair was signaled";
    NOT_INLINE = 303 Performance "small messages are not sent inline";
    INLINE_TOO_LONG = 304 Error "more inline data than was granted";
    NO_READS_ALLOWED = 305 Error "a READ or atomic on a queue pair with max_rd_atomic 0";
    READS_WAIT = 306 Performance "READs wait for each other, as max_rd_atomic is 1";
    SENDS_ONE_BY_ONE = 307 Performance "sends are posted one by one";
    RECEIVES_ONE_BY_ONE = 308 Performance "receives are posted one by one";
    NO_ROOM_FOR_GRH = 311 Error "a receive for datagrams has no room for the 40 bytes before them";
    DATAGRAM_TOO_LONG = 312 Error "a datagram is longer than any packet";
    SOLICITED_IN_VAIN = 313 Note "a solicited event is asked for where the peer gets no completion";
    UNFENCED = 314 Error "data of a READ is sent on without a fence";
    NAME_IS_AMBIGUOUS = 315 Note "a failed work request shares its wr_id with others";
    REMOTE_KEY_NEVER_SET = 316 Error "a work request for the peer's memory has rkey 0";
    THREADS_TAKE_TURNS = 317 Performance "two threads post to one queue pair in turn";
    ALL_SIGNALED = 318 Performance "every work request of a deep queue is signaled";
    FENCE_IN_VAIN = 319 Performance "fences are set where nothing is to be waited for";
    WRITES_SPLIT = 320 Performance "small WRITEs to memory in one piece";
    POSTED_WHILE_DRAINING = 321 Note "work is posted to a send queue that is stopped";
    GROUP_WITHOUT_NUMBER = 322 Error "a datagram for a multicast group names a queue pair";
    OVERWRITES_READ = 323 Warning "a WRITE may overtake a READ of the same memory";
    NOTE_AFTER_WRITE = 324 Performance "a small SEND follows each WRITE";
    FENCE_WITHOUT_READS = 325 Warning "a fence on a queue pair that has no READs";
    MORE_THAN_THE_QUEUE_HOLDS = 326 Warning "more is posted than the send queue holds before a completion was polled";
}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Posting {
    habits: habits::Habits,
}

impl Examine for Posting {
    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        if let Kind::Called { thread, call } = &moment.event.kind {
            requests::called(call, moment, out);
            self.habits.called(*thread, call, moment, out);
        }
        let posted = moment.posting;
        if let Some(posted) = posted {
            requests::posted(posted, moment.model, out);
            self.habits.posted(posted, moment.model, out);
        }
        if let Some(pair) = moment.model.pair_of(moment.event) {
            queues::observe(pair, posted, out);
            requests::failed(pair, moment, out);
            // Destroying begins with a reset, too.
            let is_over = match &moment.event.kind {
                Kind::Called { call: Call::DestroyQp { .. }, .. } => true,
                Kind::StateChanged { to, .. } => *to == "RESET",
                _ => false,
            };
            if is_over {
                queues::never_signaled(pair, out);
                self.habits.forget(pair.qpn);
            }
        }
    }

    fn finish(&mut self, _now: u64, model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        model.pairs.values().for_each(|pair| queues::never_signaled(pair, out));
    }
}
