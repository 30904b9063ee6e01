//! Work that has to wait for its link keeps the bytes it was posted with, if it is asked to: datagrams are.
#![allow(missing_docs)]

use crate::direct::{Pair, write};
use ubiverbs_transport::{SendFlags, Sge, WaitReason};
use wire::{Key, Mtu};

#[test]
fn what_waits_is_sent_as_it_was_when_it_was_posted() {
    let mut pair = Pair::new(Mtu::B1024, 4096);
    for round in 0..3_u8 {
        pair.a.memory.bytes.fill(100 + round);
        pair.post(1, write(), 1000, SendFlags::SIGNALED);
        pair.a.qp.keep_datagrams(&mut pair.a.memory);
        pair.a.memory.bytes.fill(200);
        // Posted later, and its memory is left alone: it waits with its own bytes.
        pair.post(2, write(), 10, SendFlags::SIGNALED);
        pair.a.qp.keep_datagrams(&mut pair.a.memory);
        pair.a.memory.bytes.fill(0);
        let mut done = Vec::new();
        pair.run(|completion| done.push(completion.wr_id));
        assert_eq!(done, [1, 2]);
        assert_eq!(pair.b.memory.bytes[..10], [200; 10]);
        assert_eq!(pair.b.memory.bytes[10..1000], [100 + round; 990]);
    }
}

#[test]
fn a_message_of_several_packets_is_read_when_it_is_sent() {
    let mut pair = Pair::new(Mtu::B1024, 4096);
    // Longer than a packet: no datagram, so it is not asked.
    pair.post(2, write(), 2000, SendFlags::SIGNALED);
    pair.a.memory.bytes.fill(3);
    pair.a.qp.keep_datagrams(&mut pair.a.memory);
    pair.a.memory.bytes.fill(4);
    pair.run(|_| ());
    assert_eq!(pair.b.memory.bytes[..2000], [4; 2000]);
}

#[test]
fn work_that_is_not_answered_takes_its_bytes_from_where_it_is_told_to() {
    let mut pair = Pair::new(Mtu::B1024, 16 * 1024);
    pair.a.memory.bytes[..3000].fill(7);
    pair.a.memory.bytes[8000..8500].fill(7);
    pair.a.memory.bytes[12_000..14_500].fill(7);
    pair.post(1, write(), 3000, SendFlags::SIGNALED);
    // It is sent once, and lost.
    while pair.a.qp.poll_transmit(pair.now, &mut pair.a.memory).is_some() {}
    let other = Key::new(2);
    pair.a.qp.relocate(other, |_| panic!("its bytes have another key"));
    let piece = |address, length| Sge { address, length, key: other };
    let mut asked = Vec::new();
    pair.a.qp.relocate(Key::new(1), |sge| {
        asked.push((sge.address, sge.length));
        [piece(8000, 500), piece(12_000, 2500)]
    });
    assert_eq!(asked, [(0, 3000)]);
    pair.a.memory.bytes[..3000].fill(9);
    pair.now = pair.a.qp.poll_timeout().expect("an answer is waited for");
    pair.a.qp.handle_timeout(pair.now, &mut pair.a.memory);
    let mut done = Vec::new();
    pair.run(|completion| done.push(completion.wr_id));
    assert_eq!((done, &pair.b.memory.bytes[..3000]), (vec![1], &[7; 3000][..]));
    pair.a.qp.relocate(other, |_| panic!("it is done"));
}

#[test]
fn what_the_oldest_work_waits_for_can_be_asked() {
    let mut pair = Pair::new(Mtu::B1024, 4096);
    assert_eq!((pair.a.qp.waiting(), pair.a.qp.unfinished_sends()), (None, 0));
    pair.post(7, write(), 100, SendFlags::SIGNALED);
    pair.post(8, write(), 100, SendFlags::SIGNALED);
    // Nothing has been sent.
    let waiting = pair.a.qp.waiting().unwrap();
    assert_eq!((waiting.reason, waiting.wr_id, waiting.since), (WaitReason::Room, 7, None));
    let left = pair.now;
    while pair.a.qp.poll_transmit(pair.now, &mut pair.a.memory).is_some() {}
    let waiting = pair.a.qp.waiting().unwrap();
    assert_eq!((waiting.reason, waiting.tries, waiting.since), (WaitReason::Acknowledgement, 0, Some(left)));
    assert_eq!((waiting.operation, pair.a.qp.unfinished_sends()), ("RDMA_WRITE", 2));
    // Lost: the peer's time to answer is over, and it is sent again.
    pair.now = pair.a.qp.poll_timeout().unwrap();
    pair.a.qp.handle_timeout(pair.now, &mut pair.a.memory);
    while pair.a.qp.poll_transmit(pair.now, &mut pair.a.memory).is_some() {}
    let again = pair.a.qp.waiting().unwrap();
    assert_eq!((again.oldest, again.tries, again.tries_allowed), (waiting.oldest, 1, Some(7)));
    // The second time it arrives.
    pair.now = pair.a.qp.poll_timeout().unwrap();
    pair.a.qp.handle_timeout(pair.now, &mut pair.a.memory);
    pair.run(|_| ());
    assert_eq!((pair.a.qp.waiting(), pair.a.qp.unfinished_sends()), (None, 0));
}
