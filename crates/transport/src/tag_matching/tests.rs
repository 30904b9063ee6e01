use super::*;
use crate::completion::TagHeader;
use crate::work::Remote;
use alloc::string::ToString;
use alloc::vec;
use wire::Key;

fn add(wr_id: u64, tag: u64, mask: u64, handled: Option<u32>) -> TagRequest<'static> {
    let operation = TagOperation::Add { wr_id, tag, mask, sges: &[] };
    TagRequest { wr_id: 100 + wr_id, operation, signaled: true, handled }
}

fn delete(handle: u32) -> TagRequest<'static> {
    TagRequest { wr_id: 0, operation: TagOperation::Delete { handle }, signaled: true, handled: None }
}

fn synchronize(handled: u32) -> TagRequest<'static> {
    TagRequest { wr_id: 0, operation: TagOperation::Synchronize, signaled: true, handled: Some(handled) }
}

/// The number of the buffer that a message takes.
fn matched(list: &mut TagList, tag: u64) -> Option<u64> {
    let mut work = ReceiveWork::default();
    list.take(tag, &mut work).then_some(work.wr_id)
}

const ALL: u64 = u64::MAX;

#[test]
fn the_oldest_buffer_whose_tag_is_the_masked_tag_is_taken() {
    let mut list = TagList::new(8, 1);
    for (wr_id, tag, mask) in [(0, 0x10, 0xf0), (1, 0x12, ALL), (2, 0, 0), (3, 0x12, ALL), (4, 0x1ff, 0xff)] {
        list.run(&add(wr_id, tag, mask, None)).unwrap();
    }
    assert_eq!(matched(&mut list, 0x12), Some(0), "0x12 & 0xf0 is 0x10, and it is the oldest");
    assert_eq!(matched(&mut list, 0x12), Some(1));
    assert_eq!(matched(&mut list, 0xff), Some(2), "a mask of nothing takes anything");
    assert_eq!(matched(&mut list, 0xff), None);
    assert_eq!(matched(&mut list, 0x1ff), None, "a tag outside its own mask is met by no message");
    assert_eq!((matched(&mut list, 0x12), list.len()), (Some(3), 1));
}

#[test]
fn a_buffer_added_while_the_counts_differ_waits_for_them_to_agree() {
    let mut list = TagList::new(8, 1);
    assert!(!list.run(&add(0, 1, ALL, Some(0))).unwrap().out_of_step);
    assert_eq!(matched(&mut list, 5), None);
    assert!(!list.was_unexpected());
    let late = list.run(&add(1, 5, ALL, Some(0))).unwrap();
    assert!(late.out_of_step, "software has not seen the message yet");
    assert_eq!(matched(&mut list, 5), None, "the message before it may be for this buffer");
    assert!(!list.was_unexpected());
    assert_eq!(matched(&mut list, 1), Some(0), "what was matched before still is");
    assert!(list.run(&synchronize(1)).unwrap().out_of_step, "one more has come");
    assert_eq!(matched(&mut list, 5), None);
    list.was_unexpected();
    assert!(!list.run(&synchronize(3)).unwrap().out_of_step);
    assert_eq!(matched(&mut list, 5), Some(1));
}

#[test]
fn the_count_that_comes_with_a_buffer_wakes_those_before_it() {
    let mut list = TagList::new(8, 1);
    list.was_unexpected();
    assert!(list.run(&add(0, 7, ALL, None)).unwrap().out_of_step);
    assert!(!list.run(&add(1, 7, ALL, Some(1))).unwrap().out_of_step);
    assert_eq!((matched(&mut list, 7), matched(&mut list, 7)), (Some(0), Some(1)));
    assert!(list.run(&add(2, 7, ALL, Some(2))).unwrap().out_of_step, "software cannot have handled more than came");
}

#[test]
fn a_buffer_is_deleted_once_and_not_when_a_message_has_it() {
    let mut list = TagList::new(2, 1);
    let first = list.run(&add(0, 1, ALL, None)).unwrap().handle.unwrap();
    let second = list.run(&add(1, 1, ALL, None)).unwrap().handle.unwrap();
    assert_ne!(first, second);
    assert_eq!(matched(&mut list, 1), Some(0));
    assert!(!list.run(&delete(first)).unwrap().done);
    assert!(list.run(&delete(second)).unwrap().done);
    assert!(!list.run(&delete(second)).unwrap().done);
    assert!(!list.run(&delete(12345)).unwrap().done);
    let completion = delete(first).completion(Srqn::new(9), &list.run(&delete(first)).unwrap());
    assert_eq!((completion.status, completion.kind), (Status::TagOperation, CompletionKind::TagDelete));
}

#[test]
fn a_buffer_in_hand_counts_until_its_message_has_ended() {
    let mut list = TagList::new(1, 1);
    list.run(&add(0, 1, ALL, None)).unwrap();
    assert_eq!(matched(&mut list, 1), Some(0));
    let full = list.run(&add(1, 1, ALL, Some(7))).unwrap_err();
    assert_eq!(full.to_string(), "the tag matching queue is full: 1 work requests are outstanding");
    assert!(list.run(&add(1, 1, ALL, None)).is_err());
    list.finished(1);
    assert!(!list.run(&add(1, 1, ALL, None)).unwrap().out_of_step, "what was refused has changed nothing");
    let sges = [Sge::default(); 2];
    let operation = TagOperation::Add { wr_id: 0, tag: 0, mask: 0, sges: &sges };
    let many = TagRequest { wr_id: 0, operation, signaled: false, handled: None };
    assert_eq!(TagList::new(1, 1).run(&many), Err(PostError::TooManySges { given: 2, max: 1 }));
}

#[test]
fn software_that_falls_far_behind_is_told() {
    let mut list = TagList::new(1, 1);
    for _ in 0..UNHANDLED_MAX {
        assert!(!list.was_unexpected());
    }
    assert!(list.was_unexpected());
    list.run(&synchronize(UNHANDLED_MAX)).unwrap();
    assert!(!list.was_unexpected());
}

#[test]
fn headers_say_what_they_say_and_half_a_header_says_nothing() {
    let mut message = vec![3, 9, 9, 9, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0xab, 0xcd];
    let header = TagHeader { tag: 0xabcd, app_ctx: 0x102 };
    assert_eq!(TaggedMessage::of(&message, true), TaggedMessage::Eager(header));
    assert_eq!(TaggedMessage::of(&message, false), TaggedMessage::Eager(header));
    message[0] = 1;
    assert_eq!(TaggedMessage::of(&message, true), TaggedMessage::Untagged, "no RVH");
    message.extend([0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 7, 0, 0, 0x10, 0]);
    let remote = Remote { address: 0x10000, key: Key::new(7) };
    let request = TaggedMessage::Rendezvous { header, remote, length: 4096 };
    assert_eq!(TaggedMessage::of(&message, true), request);
    assert_eq!(TaggedMessage::of(&message, false), TaggedMessage::Untagged, "there is more of it");
    let fin = fin(&message).unwrap();
    assert_eq!((fin[0], &fin[1..]), (2, &message[1..]));
    message.resize(64, 0);
    assert_eq!(TaggedMessage::of(&message, true), request);
    message.push(0);
    assert_eq!(TaggedMessage::of(&message, true), TaggedMessage::Untagged, "longer than a rendezvous may be");
    for length in 0..31 {
        let found = TaggedMessage::of(&message[..length], true);
        assert_eq!(found, TaggedMessage::Untagged, "{length} bytes");
    }
    for opcode in [0, 2, 4, 255] {
        message[0] = opcode;
        assert_eq!(TaggedMessage::of(&message[..32], true), TaggedMessage::Untagged);
    }
}

/// The rules in the fewest words: every buffer with whether it is matched, looked through from the front.
#[derive(Default)]
struct Model {
    buffers: Vec<(u32, u64, u64, u64, bool)>,
    in_hand: usize,
    unexpected: u32,
    handled: u32,
}

impl Model {
    fn tell(&mut self, handled: Option<u32>) -> bool {
        self.handled = handled.unwrap_or(self.handled);
        if self.handled == self.unexpected {
            self.buffers.iter_mut().for_each(|buffer| buffer.4 = true);
        }
        self.handled != self.unexpected
    }

    fn message(&mut self, tag: u64) -> Option<u64> {
        let index = self.buffers.iter().position(|(_, _, wanted, mask, active)| *active && tag & mask == *wanted)?;
        self.in_hand += 1;
        Some(self.buffers.remove(index).1)
    }
}

#[test]
fn random_operations_and_messages_do_what_a_plain_model_does() {
    const CAPACITY: usize = 6;
    for seed in 0..200_u64 {
        let mut state = seed;
        let mut throw = |sides: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % sides
        };
        let (mut list, mut model) = (TagList::new(CAPACITY as u32, 1), Model::default());
        let mut handles = vec![77];
        for step in 0..400 {
            let where_ = (seed, step);
            // The truth mostly, sometimes an old truth, sometimes nonsense.
            let handled = match throw(6) {
                0..3 => Some(model.unexpected),
                3 => Some(model.handled),
                4 => Some(throw(100) as u32),
                _ => None,
            };
            match throw(8) {
                0..3 => {
                    let (wr_id, tag) = (step, throw(4));
                    let mask = [ALL, 3, 1, 0][throw(4) as usize];
                    let ran = list.run(&add(wr_id, tag, mask, handled));
                    if model.buffers.len() + model.in_hand == CAPACITY {
                        assert!(ran.is_err(), "{where_:?}");
                        continue;
                    }
                    let ran = ran.unwrap();
                    let handle = ran.handle.unwrap();
                    assert!(model.buffers.iter().all(|buffer| buffer.0 != handle), "{where_:?}");
                    model.buffers.push((handle, wr_id, tag, mask, false));
                    assert_eq!(ran.out_of_step, model.tell(handled), "{where_:?}");
                    handles.push(handle);
                }
                3 => {
                    let handle = handles[throw(handles.len() as u64) as usize];
                    let found = model.buffers.iter().position(|buffer| buffer.0 == handle);
                    if let Some(index) = found {
                        model.buffers.remove(index);
                    }
                    let out_of_step = model.tell(handled);
                    let request = TagRequest { handled, ..delete(handle) };
                    let expected = TagOutcome { handle: None, done: found.is_some(), out_of_step };
                    assert_eq!(list.run(&request), Ok(expected), "{where_:?}");
                }
                4 => {
                    let ran = list.run(&TagRequest { handled, ..synchronize(0) }).unwrap();
                    assert_eq!(ran.out_of_step, model.tell(handled), "{where_:?}");
                }
                5 => {
                    let finished = throw(model.in_hand as u64 + 1) as usize;
                    list.finished(finished as u32);
                    model.in_hand -= finished;
                }
                _ => {
                    let tag = throw(4);
                    let expected = model.message(tag);
                    assert_eq!(matched(&mut list, tag), expected, "{where_:?}");
                    if expected.is_none() {
                        list.was_unexpected();
                        model.unexpected += 1;
                    }
                }
            }
            assert_eq!(list.len(), model.buffers.len(), "{where_:?}");
        }
    }
}
