//! When a program is woken: by what comes after it asked, and by what it has not polled.

use super::*;
use transport::{CompletionKind, Queue};

const PLAIN: Completion = Completion::of(0, CompletionKind::Receive, Status::Success, Queue::Receive, Qpn::new(7));
const SOLICITED: Completion = Completion { solicited: true, ..PLAIN };
const FAILED: Completion = Completion { status: Status::WorkRequestFlushed, solicited: true, ..PLAIN };

fn queue() -> (CompletionQueue, Arc<CompletionChannel>) {
    let channel = Arc::new(CompletionChannel::new().unwrap());
    (CompletionQueue::new(1, 64, Some(Arc::clone(&channel))).unwrap(), channel)
}

fn poll(cq: &CompletionQueue, room: usize) -> usize {
    cq.poll(room, |_, _| ())
}

#[test]
fn arming_a_queue_that_holds_completions_wakes_at_once_and_once() {
    let (cq, channel) = queue();
    cq.push(&PLAIN, 0);
    assert_eq!(channel.try_take(), None, "it was not armed");
    cq.arm(Notify::Any);
    assert!(!cq.is_armed());
    assert_eq!((channel.try_take(), channel.try_take()), (Some(1), None));
    // What came since.
    cq.push(&PLAIN, 0);
    cq.push(&PLAIN, 0);
    cq.arm(Notify::Any);
    assert_eq!((channel.try_take(), channel.try_take()), (Some(1), None));
    // What was left.
    assert_eq!(poll(&cq, 1), 1);
    cq.arm(Notify::Any);
    assert_eq!((channel.try_take(), channel.try_take()), (Some(1), None));
    cq.forget(Qpn::new(7));
    cq.arm(Notify::Any);
    assert_eq!(channel.try_take(), None);
}

#[test]
fn a_program_that_polls_everything_before_it_arms_is_woken_by_what_comes_and_no_more() {
    let (cq, channel) = queue();
    for _ in 0..3 {
        cq.arm(Notify::Any);
        assert_eq!(channel.try_take(), None);
        cq.push(&PLAIN, 0);
        cq.push(&PLAIN, 0);
        assert_eq!((channel.try_take(), channel.try_take()), (Some(1), None));
        assert_eq!(poll(&cq, 16), 2);
    }
}

/// perftest takes an event, arms, polls once, and takes an event for a completion.
#[test]
fn a_program_that_arms_before_it_polls_is_not_woken_again_for_what_it_was_told_of() {
    let (cq, channel) = queue();
    cq.arm(Notify::Any);
    for _ in 0..3 {
        cq.push(&PLAIN, 0);
        assert_eq!(channel.try_take(), Some(1));
        cq.arm(Notify::Any);
        assert_eq!((poll(&cq, 1), channel.try_take()), (1, None));
        assert!(cq.is_armed());
    }
    // What came between the event and the arming it was not told of.
    cq.push(&PLAIN, 0);
    cq.push(&PLAIN, 0);
    assert_eq!(channel.try_take(), Some(1));
    cq.arm(Notify::Any);
    assert_eq!((poll(&cq, 16), channel.try_take()), (2, Some(1)));
}

#[test]
fn events_do_not_pile_up_while_the_first_is_not_read() {
    let (cq, channel) = queue();
    cq.push(&PLAIN, 0);
    for _ in 0..10 {
        cq.arm(Notify::Any);
    }
    assert_eq!((channel.try_take(), channel.try_take()), (Some(1), None));
    assert!(cq.is_armed(), "the next completion wakes");
    cq.push(&PLAIN, 0);
    assert_eq!((channel.try_take(), channel.try_take()), (Some(1), None));
}

#[test]
fn what_is_not_solicited_does_not_wake_a_program_that_asks_for_that() {
    let (cq, channel) = queue();
    cq.push(&PLAIN, 0);
    cq.arm(Notify::Solicited);
    assert_eq!(channel.try_take(), None);
    // Asking for more finds what waits.
    cq.arm(Notify::Any);
    assert_eq!(channel.try_take(), Some(1));
    for wakes in [SOLICITED, FAILED] {
        poll(&cq, 16);
        cq.push(&wakes, 0);
        cq.push(&PLAIN, 0);
        cq.arm(Notify::Solicited);
        assert_eq!((channel.try_take(), channel.try_take()), (Some(1), None));
    }
}

#[test]
fn what_waits_counts_for_a_program_that_wants_several_at_a_time() {
    let (cq, channel) = queue();
    cq.moderate(Moderation { count: 3, period: 0 });
    cq.push(&PLAIN, 0);
    cq.push(&PLAIN, 0);
    cq.arm(Notify::Any);
    assert_eq!(channel.try_take(), None);
    assert_eq!(cq.push(&PLAIN, 0), Added::Fine);
    assert_eq!(channel.try_take(), Some(1));
    poll(&cq, 16);
    cq.push(&FAILED, 0);
    cq.arm(Notify::Any);
    assert_eq!(channel.try_take(), Some(1));
    // No queue pair keeps the time of what came before.
    poll(&cq, 16);
    cq.moderate(Moderation { count: 3, period: 1000 });
    cq.push(&PLAIN, 0);
    cq.arm(Notify::Any);
    assert_eq!(channel.try_take(), Some(1));
}

#[test]
fn a_queue_is_looked_through_by_the_thread_that_polled_it_last_or_while_nothing_ever_came() {
    let (us, other) = (latch::this_thread(), latch::this_thread() + 1);
    let (cq, _channel) = queue();
    cq.arm(Notify::Any);
    assert!(cq.is_looked_through(us) && cq.is_looked_through(0), "nothing ever came");
    cq.push(&PLAIN, 0);
    assert!(!cq.is_looked_through(us), "it waits");
    cq.polls();
    assert!(!cq.is_looked_through(us), "it still waits");
    assert_eq!(poll(&cq, 16), 1);
    assert!(cq.is_looked_through(us) && !cq.is_looked_through(other));
    cq.arm(Notify::Any);
    assert!(!cq.is_looked_through(us), "another thread may wait to be woken");
}
