//! A queue pair asks its peer whether it is still there. The peer acknowledges what it has had before, and that is all.
#![allow(missing_docs)]

use crate::direct::{End, Pair, write};
use ubiverbs_transport::{Inbound, SendFlags, Time};
use wire::{Gid, Headers, Mtu};

/// Hands a packet to an end and returns the headers of what it sends then.
fn hand(end: &mut End, headers: &Headers, from: Gid) -> Vec<Headers> {
    let inbound = Inbound { headers, count: 1, payload: &[], from, grh: &[0; 40], congestion_marked: false };
    end.qp.handle(Time::ZERO, &inbound, &mut end.memory);
    let mut sent = Vec::new();
    while let Some(train) = end.qp.poll_transmit(Time::ZERO, &mut end.memory) {
        sent.push(train.headers);
    }
    sent
}

#[test]
fn a_peer_that_is_there_acknowledges_once_more_and_nothing_else_happens() {
    let mut pair = Pair::new(Mtu::B1024, 4096);
    for messages in 0..3 {
        let before = [pair.a.qp.attributes(), pair.b.qp.attributes()];
        let (from_a, from_b) = (before[1].av.dgid, before[0].av.dgid);
        let question = pair.a.qp.ask_peer().expect("nothing is under way");
        assert!(!pair.a.qp.peer_answered());
        let answers = hand(&mut pair.b, &question, from_a);
        assert_eq!(answers.len(), 1, "after {messages} messages");
        assert_eq!(hand(&mut pair.a, &answers[0], from_b), []);
        assert!(pair.a.qp.peer_answered());
        assert_eq!([pair.a.qp.attributes(), pair.b.qp.attributes()], before);
        for end in [&mut pair.a, &mut pair.b] {
            assert_eq!(end.qp.poll_completion(Time::ZERO, &mut end.memory), None);
            assert_eq!(end.qp.poll_timeout(), None);
        }
        // Another acknowledgement is no answer.
        let question = pair.a.qp.ask_peer().expect("nothing is under way");
        let mut other = answers[0];
        other.bth.psn = question.bth.psn.sub(1);
        hand(&mut pair.a, &other, from_b);
        assert!(!pair.a.qp.peer_answered());
        pair.post(messages, write(), 100, SendFlags::SIGNALED);
        assert_eq!(pair.a.qp.ask_peer(), None, "what is under way is a question");
        pair.run(|_| ());
    }
}
