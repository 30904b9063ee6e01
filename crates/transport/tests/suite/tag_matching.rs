//! Messages to a queue pair whose shared receive queue matches tags: eager ones and rendezvous, packet by packet and in
//! trains, and whatever a peer may make of their headers.

use crate::direct::{self, End, Pair};
use ubiverbs_transport::{
    Cause, Completion, CompletionKind, Data, Modify, Operation, Queue, ReceiveRequest, SendFlags, SendRequest, Sge,
    State, Status, TagHeader, TagOperation, TagRequest, Time,
};
use wire::{Key, Mtu, Srqn};

const MEMORY: usize = 64 * 1024;
/// Where the sender has the data of a rendezvous, and the receiver what is received.
const DATA: u64 = 8 * 1024;
const TAGGED: u64 = 16 * 1024;
const EAGER: u8 = 3;
const RENDEZVOUS: u8 = 1;

fn piece(address: u64, length: u32) -> Sge {
    Sge { address, length, key: Key::new(1) }
}

/// A header, with an RVH that names the sender's data.
fn headers(opcode: u8, tag: u64, address: u64, length: u32) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[0] = opcode;
    bytes[4..8].copy_from_slice(&7_u32.to_be_bytes());
    bytes[8..16].copy_from_slice(&tag.to_be_bytes());
    bytes[16..24].copy_from_slice(&address.to_be_bytes());
    bytes[24..28].copy_from_slice(&1_u32.to_be_bytes());
    bytes[28..].copy_from_slice(&length.to_be_bytes());
    bytes
}

struct Stage {
    pair: Pair,
    sender: Vec<Completion>,
    receiver: Vec<Completion>,
}

impl Stage {
    fn new(packets: bool) -> Stage {
        let mut pair = Pair::with_tags(Mtu::B1024, MEMORY, 64);
        pair.packets = packets;
        Stage { pair, sender: Vec::new(), receiver: Vec::new() }
    }

    fn add(&mut self, wr_id: u64, tag: u64, length: u32) -> u32 {
        let sges = [piece(TAGGED, length / 2), piece(TAGGED + u64::from(length / 2), length - length / 2)];
        let operation = TagOperation::Add { wr_id, tag, mask: u64::MAX, sges: &sges };
        let handled = Some(self.shared().tags.unexpected());
        let request = TagRequest { wr_id, operation, signaled: false, handled };
        self.shared().tags.run(&request).unwrap().handle.unwrap()
    }

    fn shared(&mut self) -> &mut direct::Shared {
        self.pair.b.memory.shared.as_mut().unwrap()
    }

    fn post_receive(&mut self, wr_id: u64) {
        self.shared().receives.post(&ReceiveRequest { wr_id, sges: &[piece(0, 4096)] }).unwrap();
    }

    /// Sends what lies at the start of the sender's memory.
    fn send(&mut self, message: &[u8]) {
        self.pair.a.memory.bytes[..message.len()].copy_from_slice(message);
        let sges = [piece(0, message.len() as u32)];
        let request = SendRequest {
            wr_id: 1,
            operation: Operation::Send { immediate: None },
            flags: SendFlags::SIGNALED,
            data: Data::Gather(&sges),
            target: None,
            xrc_srq: None,
        };
        self.pair.a.qp.post_send(Time::ZERO, &request, &mut self.pair.a.memory).unwrap();
    }

    fn settle(&mut self) {
        let (sender, receiver) = (&mut self.sender, &mut self.receiver);
        self.pair.settle(&mut |index, end: &mut End, now| {
            while let Some(completion) = end.qp.poll_completion(now, &mut end.memory) {
                if completion.kind.ends_tagged_buffer() {
                    end.memory.shared.as_mut().unwrap().tags.finished(1);
                }
                if index == 0 { &mut *sender } else { &mut *receiver }.push(completion);
            }
        });
    }

    /// What the receiver was told: work, kind, bytes, and of the tag.
    fn told(&mut self) -> Vec<(u64, CompletionKind, u32, Option<u64>)> {
        let told = self.receiver.drain(..);
        told.map(|completion| {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            assert_eq!(completion.queue, Queue::Shared(Srqn::new(5)));
            let tag = match completion.cause {
                Some(Cause::Matched(TagHeader { tag, app_ctx: 7 })) => Some(tag),
                _ => None,
            };
            (completion.wr_id, completion.kind, completion.bytes, tag)
        })
        .collect()
    }
}

/// Both ways a link carries trains.
fn both_ways(test: impl Fn(Stage)) {
    test(Stage::new(false));
    test(Stage::new(true));
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 256) as u8).collect()
}

#[test]
fn an_eager_message_goes_into_the_buffer_that_it_matches_without_its_header() {
    both_ways(|mut stage| {
        for (length, packets) in [(0, 1), (1, 1), (1008, 1), (1009, 2), (2032, 2), (10_000, 10)] {
            stage.add(8, 99, 11_000);
            stage.add(9, 55, 11_000);
            let data = pattern(length);
            stage.send(&[&headers(EAGER, 55, 0, 0)[..16], &data].concat());
            stage.settle();
            let bytes = length as u32;
            match packets {
                1 => assert_eq!(stage.told(), [(9, CompletionKind::TagMessage, bytes, Some(55))]),
                _ => {
                    let match_and_data =
                        [(9, CompletionKind::TagMatch, 0, Some(55)), (9, CompletionKind::TagData, bytes, None)];
                    assert_eq!(stage.told(), match_and_data, "{length}");
                }
            }
            assert_eq!(stage.pair.b.memory.bytes[TAGGED as usize..][..length], data);
            assert_eq!(stage.pair.b.memory.bytes[TAGGED as usize + length], 2, "nothing beyond it");
            stage.pair.b.memory.bytes.fill(2);
        }
        assert_eq!(stage.sender.len(), 6);
    });
}

#[test]
fn what_matches_nothing_takes_a_receive_whole_and_is_counted_if_it_has_a_tag() {
    both_ways(|mut stage| {
        stage.add(1, 5, 100);
        for wr_id in 10..13 {
            stage.post_receive(wr_id);
        }
        let message = [&headers(EAGER, 6, 0, 0)[..16], b"unexpected"].concat();
        stage.send(&message);
        stage.settle();
        assert_eq!(stage.told(), [(10, CompletionKind::TagUnexpected, 26, None)]);
        assert_eq!(stage.pair.b.memory.bytes[..26], message);
        stage.send(&headers(0, 5, 0, 0)[..20]);
        stage.send(b"short");
        stage.settle();
        let untagged = [(11, CompletionKind::TagUntagged, 20, None), (12, CompletionKind::TagUntagged, 5, None)];
        assert_eq!(stage.told(), untagged);
        assert_eq!(stage.shared().tags.unexpected(), 1);
        stage.send(&headers(EAGER, 5, 0, 0)[..16]);
        stage.settle();
        assert_eq!(stage.told(), [(1, CompletionKind::TagMessage, 0, Some(5))]);
    });
}

#[test]
fn the_data_of_a_rendezvous_is_read_and_its_sender_is_told() {
    both_ways(|mut stage| {
        for length in [0, 1, 1024, 1025, 20_000_u32] {
            let data = pattern(length as usize);
            stage.pair.a.memory.bytes[DATA as usize..][..data.len()].copy_from_slice(&data);
            stage.add(3, 4, 20_000);
            let request = headers(RENDEZVOUS, 4, DATA, length);
            let fin = ReceiveRequest { wr_id: 77, sges: &[piece(4096, 32)] };
            stage.pair.a.qp.post_receive(Time::ZERO, &fin, &mut stage.pair.a.memory).unwrap();
            stage.send(&[&request[..], b"and more"].concat());
            stage.settle();
            let told = [(3, CompletionKind::TagMatch, 0, Some(4)), (3, CompletionKind::TagData, length, None)];
            assert_eq!(stage.told(), told);
            assert_eq!(stage.pair.b.memory.bytes[TAGGED as usize..][..data.len()], data);
            let kinds: Vec<_> = stage.sender.drain(..).map(|done| (done.kind, done.wr_id, done.bytes)).collect();
            assert_eq!(kinds, [(CompletionKind::Send, 1, 40), (CompletionKind::Receive, 77, 32)]);
            let mut fin = request;
            fin[0] = 2;
            assert_eq!(stage.pair.a.memory.bytes[4096..][..32], fin);
            assert_eq!(stage.pair.b.qp.tagged_in_hand(), 0);
            assert_eq!(stage.pair.b.qp.send_room(), 64, "the program's send queue is its own");
        }
    });
}

#[test]
fn many_rendezvous_at_once_end_in_order() {
    both_ways(|mut stage| {
        for wr_id in 0..60 {
            stage.add(wr_id, 4, 64);
            let fin = ReceiveRequest { wr_id, sges: &[piece(4096, 32)] };
            stage.pair.a.qp.post_receive(Time::ZERO, &fin, &mut stage.pair.a.memory).unwrap();
        }
        for _ in 0..60 {
            stage.send(&headers(RENDEZVOUS, 4, DATA, 64));
        }
        stage.settle();
        let told = stage.told();
        let ended: Vec<u64> = told.iter().filter(|told| told.1 == CompletionKind::TagData).map(|told| told.0).collect();
        assert_eq!(ended, (0..60).collect::<Vec<_>>());
        let fins = stage.sender.iter().filter(|done| done.kind == CompletionKind::Receive);
        assert!(fins.map(|done| done.wr_id).eq(0..60));
        assert_eq!(stage.pair.b.qp.send_room(), 64);
    });
}

#[test]
fn a_buffer_too_small_for_a_rendezvous_gets_its_headers() {
    both_ways(|mut stage| {
        stage.add(3, 4, 1000);
        let request = headers(RENDEZVOUS, 4, DATA, 1001);
        stage.send(&request);
        stage.settle();
        let [told] = stage.receiver[..] else { panic!("{:?}", stage.receiver) };
        assert_eq!(
            (told.status, told.kind, told.bytes),
            (Status::RendezvousIncomplete, CompletionKind::TagMessage, 32)
        );
        assert_eq!(stage.pair.b.memory.bytes[TAGGED as usize..][..32], request);
        assert_eq!(stage.pair.b.qp.state(), State::ReadyToSend);
        stage.receiver.clear();
        stage.add(5, 4, 31);
        stage.send(&request);
        stage.settle();
        let [told] = stage.receiver[..] else { panic!("{:?}", stage.receiver) };
        assert_eq!((told.wr_id, told.status), (5, Status::LocalLength), "not even for those");
        assert_eq!(stage.pair.b.qp.state(), State::Error);
    });
}

#[test]
fn a_read_that_the_sender_refuses_fails_the_buffer_and_flushes_the_others() {
    both_ways(|mut stage| {
        for wr_id in 0..40 {
            stage.add(wr_id, 4, 64);
        }
        for _ in 0..40 {
            stage.send(&headers(RENDEZVOUS, 4, u64::MAX - 5, 64));
        }
        stage.settle();
        let ends: Vec<_> = stage.receiver.iter().filter(|told| told.kind == CompletionKind::TagData).collect();
        assert_eq!((ends[0].wr_id, ends[0].status), (0, Status::RemoteAccess));
        assert!(ends[1..].iter().all(|told| told.status == Status::WorkRequestFlushed), "{ends:?}");
        let matches = stage.receiver.iter().filter(|told| told.kind == CompletionKind::TagMatch).count();
        assert_eq!(matches, ends.len(), "whatever was matched has ended");
        assert_eq!(stage.pair.b.qp.state(), State::Error);
        assert_eq!(stage.pair.b.qp.tagged_in_hand(), 0);
    });
}

#[test]
fn a_match_is_told_before_its_read_fails_here() {
    both_ways(|mut stage| {
        let sges = [piece(MEMORY as u64 - 8, 64)];
        let operation = TagOperation::Add { wr_id: 6, tag: 4, mask: u64::MAX, sges: &sges };
        stage.shared().tags.run(&TagRequest { wr_id: 0, operation, signaled: false, handled: None }).unwrap();
        stage.send(&headers(RENDEZVOUS, 4, DATA, 64));
        stage.settle();
        let told: Vec<_> = stage.receiver.iter().map(|told| (told.wr_id, told.kind, told.status)).collect();
        let matched = (6, CompletionKind::TagMatch, Status::Success);
        assert_eq!(told, [matched, (6, CompletionKind::TagData, Status::LocalProtection)]);
    });
}

#[test]
fn a_queue_pair_that_is_reset_says_how_many_buffers_it_had() {
    let mut stage = Stage::new(true);
    stage.add(0, 4, 64);
    stage.add(1, 4, 64);
    // Nothing is carried back, so nothing is read.
    let message = headers(RENDEZVOUS, 4, DATA, 64);
    stage.send(&message);
    stage.send(&message);
    let Stage { pair, .. } = &mut stage;
    while let Some(train) = pair.a.qp.poll_transmit(Time::ZERO, &mut pair.a.memory) {
        let (grh, congestion_marked) = (&[0; 40], false);
        let inbound = ubiverbs_transport::Inbound {
            headers: &train.headers,
            count: 1,
            payload: &message,
            from: pair.a.gid,
            grh,
            congestion_marked,
        };
        pair.b.qp.handle(Time::ZERO, &inbound, &mut pair.b.memory);
    }
    assert_eq!(pair.b.qp.tagged_in_hand(), 2);
    let reset = Modify { state: Some(State::Reset), ..Modify::default() };
    pair.b.qp.modify(Time::ZERO, &reset, &mut pair.b.memory).unwrap();
    assert_eq!((pair.b.qp.tagged_in_hand(), pair.b.qp.send_room()), (0, 64));
    assert_eq!(pair.b.qp.poll_completion(Time::ZERO, &mut pair.b.memory), None);
}

/// A peer writes what it likes where headers should be. Every buffer and receive that a message takes completes once,
/// and nothing outside of them is written.
#[test]
fn hostile_headers_take_no_more_than_a_message_may() {
    for seed in 0..300_u64 {
        let mut state = seed;
        let mut throw = |sides: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % sides
        };
        let mut stage = Stage::new(seed % 2 == 0);
        for wr_id in 0..20 {
            stage.add(wr_id, throw(3), throw(200) as u32);
            stage.post_receive(1000 + wr_id);
            let fin = ReceiveRequest { wr_id, sges: &[piece(4096, 32)] };
            stage.pair.a.qp.post_receive(Time::ZERO, &fin, &mut stage.pair.a.memory).unwrap();
        }
        for _ in 0..20 {
            if stage.pair.a.qp.state() != State::ReadyToSend {
                break;
            }
            let address = [DATA, MEMORY as u64 - 10, u64::MAX, throw(1 << 32)][throw(4) as usize];
            let length = [throw(200) as u32, u32::MAX, throw(1 << 32) as u32, 0][throw(4) as usize];
            let mut message = headers(throw(6) as u8, throw(4), address, length).to_vec();
            let at = throw(32) as usize;
            message[at] ^= throw(2) as u8 * throw(256) as u8;
            message.resize(throw(3) as usize * throw(1500) as usize, 9);
            stage.send(&message);
            if throw(2) == 0 {
                stage.settle();
            }
        }
        stage.settle();
        let mut taken = std::collections::HashMap::new();
        for told in &stage.receiver {
            let ends = told.kind != CompletionKind::TagMatch;
            *taken.entry(told.wr_id).or_insert(0) += i32::from(ends);
        }
        assert!(taken.values().all(|ends| *ends == 1), "seed {seed}: {:?}", stage.receiver);
        assert_eq!(stage.pair.b.qp.tagged_in_hand(), 0, "seed {seed}");
        let memory = &stage.pair.b.memory.bytes;
        let untouched = (4096..TAGGED as usize).chain(TAGGED as usize + 200..MEMORY);
        assert!(untouched.into_iter().all(|at| memory[at] == 2), "seed {seed}");
    }
}
