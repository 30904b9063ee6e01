//! A raw packet queue pair: frames out of its send queue, and frames into its receives.

use crate::direct::{End, raw};
use ubiverbs_transport::{
    Completion, CompletionKind, Data, FrameNotes, FrameOut, Inbound, Modify, Operation, PostError, RateLimit,
    ReceiveRequest, SendFlags, SendRequest, Sge, State, Status, Time,
};
use wire::{Deth, Gid, Headers, Key, Opcode, Psn, Qkey, Qpn};

const NOTES: FrameNotes = FrameNotes { flow_tag: 7, vlan: 5, checksums_are_right: true };

fn send(end: &mut End, data: Data<'_>, flags: SendFlags) -> Result<(), PostError> {
    let operation = Operation::Send { immediate: None };
    let request = SendRequest { wr_id: 1, operation, flags, data, target: None, xrc_srq: None };
    end.qp.post_send(Time::ZERO, &request, &mut end.memory)
}

fn completion(end: &mut End) -> Option<Completion> {
    end.qp.poll_completion(Time::ZERO, &mut end.memory)
}

fn post_receive(end: &mut End, address: u64, length: u32) {
    let sges = [Sge { address, length, key: Key::new(1) }];
    end.qp.post_receive(Time::ZERO, &ReceiveRequest { wr_id: 2, sges: &sges }, &mut end.memory).unwrap();
}

#[test]
fn frames_go_out_as_they_were_posted_and_are_done_then() {
    let mut end = raw(4096);
    end.memory.bytes[..100].copy_from_slice(&[3; 100]);
    let mut out = Vec::new();
    let pieces = [(0, 60), (60, 40)].map(|(address, length)| Sge { address, length, key: Key::new(1) });
    send(&mut end, Data::Gather(&pieces), SendFlags::SIGNALED | SendFlags::CHECKSUMS).unwrap();
    send(&mut end, Data::Inline(&[9; 14]), SendFlags::empty()).unwrap();
    assert!(completion(&mut end).is_none(), "nothing was sent yet");
    let sent = end.qp.poll_frame(Time::ZERO, 1518, &mut out, &mut end.memory);
    assert_eq!((sent, &out[..]), (Some(FrameOut { fills_checksums: true }), &[3; 100][..]));
    let done = completion(&mut end).expect("it was signaled");
    assert_eq!((done.status, done.kind, done.bytes), (Status::Success, CompletionKind::Send, 100));
    let sent = end.qp.poll_frame(Time::ZERO, 1518, &mut out, &mut end.memory);
    assert_eq!((sent, &out[..]), (Some(FrameOut { fills_checksums: false }), &[9; 14][..]));
    assert_eq!(end.qp.poll_frame(Time::ZERO, 1518, &mut out, &mut end.memory), None);
    assert!(completion(&mut end).is_none());
    // Too short for a header is refused, too long for the wire fails.
    assert!(matches!(send(&mut end, Data::Inline(&[9; 13]), SendFlags::empty()), Err(PostError::FrameTooShort { .. })));
    send(&mut end, Data::Inline(&[9; 101]), SendFlags::empty()).unwrap();
    assert_eq!(end.qp.poll_frame(Time::ZERO, 100, &mut out, &mut end.memory), None);
    assert_eq!((completion(&mut end).unwrap().status, end.qp.state()), (Status::LocalLength, State::SendQueueError));
}

#[test]
fn frames_come_into_receives_that_are_long_enough() {
    let mut end = raw(4096);
    assert!(!end.qp.handle_frame(Time::ZERO, &[1; 60], NOTES, &mut end.memory), "no receive");
    post_receive(&mut end, 1000, 59);
    assert!(end.qp.handle_frame(Time::ZERO, &[1; 60], NOTES, &mut end.memory), "dropped");
    assert!(completion(&mut end).is_none());
    assert!(end.qp.handle_frame(Time::ZERO, &[2; 59], NOTES, &mut end.memory));
    let done = completion(&mut end).expect("the receive waited");
    assert_eq!((done.status, done.kind, done.bytes, done.frame), (Status::Success, CompletionKind::Receive, 59, NOTES));
    assert_eq!(end.memory.bytes[1000..1059], [2; 59]);
    // A packet of a transport is none of its business.
    post_receive(&mut end, 1000, 200);
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::new(1), Psn::new(0));
    headers.deth = Some(Deth { qkey: Qkey::default(), src_qpn: Qpn::new(9) });
    let (from, grh) = (Gid::from_ipv4([10, 0, 0, 9].into()), [0; 40]);
    let packet = Inbound { headers: &headers, count: 1, payload: &[], from, grh: &grh, congestion_marked: false };
    end.qp.handle(Time::ZERO, &packet, &mut end.memory);
    assert!(completion(&mut end).is_none());
    let error = Modify { state: Some(State::Error), ..Modify::default() };
    end.qp.modify(Time::ZERO, &error, &mut end.memory).unwrap();
    assert_eq!(completion(&mut end).unwrap().status, Status::WorkRequestFlushed);
    assert!(end.qp.handle_frame(Time::ZERO, &[2; 59], NOTES, &mut end.memory), "dropped");
}

#[test]
fn frames_keep_to_a_rate() {
    let mut end = raw(4096);
    // A megabyte per second.
    let rate_limit = Some(RateLimit { kbps: 8000, ..RateLimit::default() });
    end.qp.modify(Time::ZERO, &Modify { rate_limit, ..Modify::default() }, &mut end.memory).unwrap();
    for _ in 0..4 {
        send(&mut end, Data::Inline(&[9; 250]), SendFlags::empty()).unwrap();
    }
    let (mut now, mut out, mut sent) = (Time::ZERO, Vec::new(), 0);
    while sent < 4 {
        match end.qp.poll_frame(now, 1518, &mut out, &mut end.memory) {
            Some(_) => sent += 1,
            None => now = end.qp.poll_timeout().expect("it waits for its time"),
        }
    }
    // Three frames and what is around them had to be paid for before the fourth.
    assert!((750_000..1_100_000).contains(&now.as_nanos()), "{now:?}");
}

#[test]
fn an_error_flushes_what_was_posted_in_order_and_a_reset_forgets_it() {
    for (state, flushed) in [(State::Error, 4), (State::Reset, 0)] {
        let mut end = raw(4096);
        for _ in 0..2 {
            send(&mut end, Data::Inline(&[9; 60]), SendFlags::empty()).unwrap();
            post_receive(&mut end, 1000, 100);
        }
        end.qp.modify(Time::ZERO, &Modify { state: Some(state), ..Modify::default() }, &mut end.memory).unwrap();
        let ended: Vec<_> = std::iter::from_fn(|| completion(&mut end)).map(|done| (done.wr_id, done.status)).collect();
        let expected = [1, 1, 2, 2].map(|wr_id| (wr_id, Status::WorkRequestFlushed));
        assert_eq!(ended, expected[..flushed], "{state}");
        let mut out = Vec::new();
        assert_eq!(end.qp.poll_frame(Time::ZERO, 1518, &mut out, &mut end.memory), None, "nothing goes out any more");
    }
}
