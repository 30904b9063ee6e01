//! A timeout that is shorter than a process may wait for a processor is not counted as a retry at once.
#![allow(missing_docs)]

use crate::direct::{Pair, write};
use ubiverbs_transport::{SendFlags, Status, Time, ack_timeout_nanos};
use wire::Mtu;

const SECOND: u64 = 1_000_000_000;

/// Posts a request to a peer that never answers. Answers how often it was sent, and when it failed.
fn wait_in_vain(patience: u64) -> (u32, Time) {
    let mut pair = Pair::new(Mtu::B1024, 4096);
    pair.post(1, write(), 100, SendFlags::SIGNALED);
    let (mut now, mut sent) = (Time::ZERO, 0);
    loop {
        let end = &mut pair.a;
        while end.qp.poll_transmit(now, &mut end.memory).is_some() {
            sent += 1;
        }
        if let Some(completion) = end.qp.poll_completion(now, &mut end.memory) {
            assert_eq!(completion.status, Status::RetryExceeded);
            return (sent, now);
        }
        now = end.qp.poll_timeout().expect("it waits for an answer");
        end.qp.forgive_timeout(now, patience);
        end.qp.handle_timeout(now, &mut end.memory);
    }
}

#[test]
fn short_timeouts_are_counted_when_pauses_have_grown_long() {
    let timeout = ack_timeout_nanos(14).unwrap();
    // Eight tries, each a timeout after the one before.
    assert_eq!(wait_in_vain(timeout), (8, Time::from_nanos(8 * timeout)));
    // 67, 134, 268 and 537 ms are forgiven, and then one is counted.
    let (sent, failed) = wait_in_vain(SECOND);
    assert_eq!(sent, 8 * 5);
    assert!((8 * SECOND..24 * SECOND).contains(&failed.as_nanos()), "{failed:?}");
}
