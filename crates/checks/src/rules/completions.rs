//! Completions: UV-04xx.

mod acknowledgements;
mod capacity;
mod cost;
mod reaping;
mod waking;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::checker::Examine;
use crate::rule::rules;

rules! {
    OVERFLOWED = 401 Error "a completion queue overflowed";
    CAN_OVERFLOW = 402 Warning "more work can complete than its completion queue holds";
    WRONG_QUEUE_POLLED = 403 Warning "a completion queue is polled on which nothing completes";
    ARMED_AFTER_LAST_POLL = 404 Warning "a completion queue is armed after the last poll: a wake-up can be lost";
    NOT_ARMED = 405 Error "the program waits for an event of a completion queue that is not armed";
    ARMED_AGAIN = 406 Performance "a completion queue that is armed is armed again";
    NOT_ACKNOWLEDGED = 407 Error "a completion queue is destroyed before its events are acknowledged";
    ACKNOWLEDGED_TOO_OFTEN = 408 Error "more completion events are acknowledged than were got";
    ACKNOWLEDGED_ONE_BY_ONE = 409 Performance "completion events are acknowledged one by one";
    LEFT_UNPOLLED = 410 Note "completions are left in their queue";
    FAILURE_UNPOLLED = 411 Warning "a failed completion was never polled";
    FAILURE_IGNORED = 412 Warning "the program goes on posting to a queue pair whose failure it has polled";
    ARMED_WITHOUT_CHANNEL = 413 Warning "a completion queue without a channel is armed";
    CHANNEL_UNREAD = 414 Note "completion events are asked for and never read";
    NOT_SOLICITED = 415 Warning "the program waits for solicited completions, and those that came are not";
    OTHER_QUEUE_POLLED = 416 Warning "an event of one completion queue is answered by polling another";
    ALL_OF_A_LIST_SIGNALED = 417 Performance "every work request of a list asks for a completion";
    POLLED_ONE_BY_ONE = 418 Performance "completions are polled one at a time while many wait";
    POLLED_WITHOUT_ROOM = 419 Warning "a completion queue is polled with room for nothing";
}

/// The parts of the family: each has the rules of one subject.
pub(crate) fn parts() -> Vec<Box<dyn Examine>> {
    Vec::from([
        Box::<capacity::Capacity>::default() as Box<dyn Examine>,
        Box::<waking::Waking>::default(),
        Box::<acknowledgements::Acknowledgements>::default(),
        Box::<reaping::Reaping>::default(),
        Box::<cost::Cost>::default(),
    ])
}
