//! What goes in comes out: events of every kind and call, notes, whole blocks, rings.

use crate::recorded::{Recorded, entries};
use proptest::prelude::*;
use recording::block::BLOCK_BYTES;
use recording::reader::{FINDING_NOTE, SPAN_NOTE};
use recording::recent::{RECENT_AT, RECENT_BYTES, RECENT_SLOTS};
use recording::{Entry, Reader, RecentWriter};
use std::io::Cursor;
use trace::{
    Access, Call, ConnectionEnd, DropReason, Event, Failure, Kind, PeerReason, Piece, Queue, RefusalCause, RetryCause,
    StateCause, Text, Timer, WindowCause,
};
use wire::access::{Range, Refusal};
use wire::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Headers, Key, Msn, NakCode, Opcode, Pkey, Placement, Psn, Qkey, Qpn,
    Reth, Selectivity, Srqn, Syndrome,
};

const WORDS: &[&str] = &["SEND", "RDMA_WRITE", "IBV_WC_SUCCESS", "RTS", "ERR", "", "é", "the queue is full"];

fn word() -> impl Strategy<Value = &'static str> {
    prop::sample::select(WORDS)
}

fn one_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    prop::sample::select(all)
}

/// Small numbers, which repeat, and all others.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..4_u64, any::<u64>(), Just(u64::MAX)]
}

fn short() -> impl Strategy<Value = u32> {
    prop_oneof![0..4_u32, any::<u32>()]
}

prop_compose! {
    fn headers()(
        opcode in one_of(Opcode::ALL),
        numbers in [short(), short(), short(), short(), short(), short()],
        long in [number(), number(), number()],
        flags in any::<[bool; 14]>(),
        pad in 0..4_u8,
        syndrome in any::<u8>(),
    ) -> Headers {
        let [a, b, c, d, e, f] = numbers;
        let mut headers = Headers::new(opcode, Qpn::new(a), Psn::new(b));
        headers.bth.pkey = Pkey::new(c as u16);
        headers.bth.pad = pad;
        (headers.bth.ack_req, headers.bth.solicited, headers.bth.fecn) = (flags[0], flags[1], flags[2]);
        (headers.bth.becn, headers.bth.mig_req) = (flags[3], flags[4]);
        let [va, compare, swap_add] = long;
        headers.xrc = flags[5].then(|| Srqn::new(d));
        headers.deth = flags[6].then(|| Deth { qkey: Qkey::new(d), src_qpn: Qpn::new(e) });
        let placement = Placement::from_bits_retain(pad);
        headers.feth = flags[7].then(|| Feth { placement, selectivity: Selectivity::from_bits(pad) });
        headers.reth = flags[8].then(|| Reth { va, rkey: Key::new(e), len: f });
        headers.atomic = flags[9].then(|| AtomicEth { va, rkey: Key::new(e), swap_add, compare });
        headers.aeth = flags[10].then(|| Aeth { syndrome: Syndrome::from_byte(syndrome), msn: Msn::new(f) });
        headers.atomic_ack = flags[11].then_some(AtomicAckEth { original: compare });
        headers.immediate = flags[12].then_some(d);
        headers.invalidate = flags[13].then(|| Key::new(c));
        headers
    }
}

fn cause() -> impl Strategy<Value = RefusalCause> {
    (one_of(RefusalCause::ALL), number(), short()).prop_map(|(cause, long, short)| match cause {
        RefusalCause::OutOfBounds { .. } => RefusalCause::OutOfBounds { start: long, length: short.into() },
        RefusalCause::GpuFailed { .. } => RefusalCause::GpuFailed { error: short },
        cause => cause,
    })
}

fn access() -> impl Strategy<Value = Access> {
    short().prop_map(Access::from_bits_retain)
}

fn failure() -> impl Strategy<Value = Failure> {
    let psn = || short().prop_map(Psn::new);
    let peer = prop_oneof![
        (short(), access(), cause()).prop_map(|(key, access, cause)| PeerReason::Refused {
            key: Key::new(key),
            access,
            cause
        }),
        (number(), number()).prop_map(|(length, space)| PeerReason::TooLong { length, space }),
        short().prop_map(|max| PeerReason::TooManyReads { max }),
    ];
    prop_oneof![
        (number(), number(), access(), cause()).prop_map(|(address, length, access, cause)| {
            Failure::Refused(Refusal { range: Range { key: Key::new(7), address, length }, access, cause })
        }),
        (psn(), prop::option::of(peer), 0..5_u8).prop_map(|(psn, peer, code)| Failure::Nak {
            code: NakCode::from_code(code),
            psn,
            peer
        }),
        (psn(), short()).prop_map(|(psn, tries)| Failure::NoAnswer { psn, tries }),
        (word(), psn()).prop_map(|(what, psn)| Failure::BadAnswer { what, psn }),
        word().prop_map(|transport| Failure::NotCarried { transport }),
        Just(Failure::Flushed),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let key = || short().prop_map(Key::new);
    let qpn = || short().prop_map(Qpn::new);
    let piece = (number(), short(), key()).prop_map(|(address, length, key)| Piece { address, length, key });
    let pieces = prop::collection::vec(piece, 0..7);
    let gid = || prop::option::of(any::<[u8; 16]>());
    prop_oneof![
        (short(), "[a-z_0-9]{0,40}").prop_map(|(context, name)| Call::OpenDevice { context, device: Text::of(name) }),
        (key(), short(), number(), number(), access()).prop_map(|(key, pd, address, length, access)| {
            Call::RegisterMemory { key, pd, address, length, iova: address, access }
        }),
        (number(), word(), any::<[bool; 4]>(), pieces, gid(), prop::option::of(number()), prop::option::of(key()))
            .prop_map(|(wr_id, opcode, [signaled, inline, fence, solicited], pieces, remote_gid, address, key)| {
                Call::PostSend {
                    wr_id,
                    opcode,
                    index: 0,
                    signaled,
                    inline,
                    fence,
                    solicited,
                    pieces: pieces.into_iter().collect(),
                    remote_address: address,
                    remote_key: key,
                    remote_qpn: None,
                    remote_qkey: key.map(|key| Qkey::new(key.value())),
                    remote_gid,
                }
            }),
        (prop::option::of(word()), prop::option::of(qpn()), gid(), any::<Option<u8>>()).prop_map(
            |(state, dest_qpn, dgid, port)| Call::ModifyQp {
                state,
                pkey_index: None,
                port,
                access: None,
                qkey: None,
                path_mtu: Some(4096),
                dest_qpn,
                rq_psn: Some(0xff_ffff),
                sq_psn: None,
                max_rd_atomic: Some(1),
                max_dest_rd_atomic: None,
                min_rnr_timer: port,
                timeout: Some(14),
                retry_cnt: None,
                rnr_retry: Some(7),
                dgid,
                sgid_index: None,
            }
        ),
        (word(), any::<i32>(), ".{0,200}").prop_map(|(function, errno, reason)| Call::Refused {
            function,
            errno,
            reason: Text::of(reason)
        }),
        (short(), number(), word()).prop_map(|(cq, wr_id, status)| Call::Polled { cq, wr_id, status }),
        Just(Call::Exit {}),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    let queue = || prop::sample::select(&[Queue::Send, Queue::Receive, Queue::SharedReceive][..]);
    let psn = || short().prop_map(Psn::new);
    let state = prop_oneof![
        Just(StateCause::Modify),
        (number(), word()).prop_map(|(wr_id, status)| StateCause::SendFailed { wr_id, status }),
        word().prop_map(StateCause::PeerRequest),
    ];
    prop_oneof![
        (number(), queue(), word(), number()).prop_map(|(wr_id, queue, opcode, bytes)| Kind::WorkPosted {
            wr_id,
            queue,
            opcode,
            bytes
        }),
        (headers(), short(), short(), prop::option::of(number()), any::<bool>()).prop_map(
            |(headers, payload_len, packets, wr_id, retransmit)| Kind::PacketSent {
                headers,
                payload_len,
                packets,
                wr_id,
                retransmit
            }
        ),
        (headers(), short(), short()).prop_map(|(headers, payload_len, packets)| Kind::PacketReceived {
            headers,
            payload_len,
            packets
        }),
        (prop::option::of(headers()), one_of(DropReason::ALL))
            .prop_map(|(headers, reason)| Kind::PacketDropped { headers, reason }),
        (word(), word(), state).prop_map(|(from, to, cause)| Kind::StateChanged { from, to, cause }),
        (number(), queue(), word(), word(), number(), prop::option::of(failure())).prop_map(
            |(wr_id, queue, status, opcode, bytes, failure)| Kind::Completed {
                wr_id,
                queue,
                status,
                opcode,
                bytes,
                failure
            }
        ),
        (short(), call()).prop_map(|(thread, call)| Kind::Called { thread, call }),
        (one_of(Timer::ALL), number()).prop_map(|(timer, deadline)| Kind::TimerSet { timer, deadline }),
        (one_of(RetryCause::ALL), psn(), any::<Option<u8>>()).prop_map(|(cause, from, left)| Kind::Retry {
            cause,
            from,
            left
        }),
        (short(), short(), one_of(WindowCause::ALL)).prop_map(|(from, to, cause)| Kind::WindowChanged {
            from,
            to,
            cause
        }),
        (short(), one_of(ConnectionEnd::ALL))
            .prop_map(|(local_comm_id, by)| Kind::ConnectionEnded { local_comm_id, by }),
        (".{0,60}", short(), ".{0,90}", any::<bool>()).prop_map(|(script, line, what, ends)| Kind::Injected {
            script: Text::of(script),
            line,
            what: Text::of(what),
            ends,
            missed: !ends
        }),
        (number(), word(), number(), number(), word()).prop_map(|(wr_id, opcode, address, bytes, by)| {
            Kind::MovedDirectly { wr_id, opcode, dest_qpn: Qpn::new(5), key: Key::new(9), address, bytes, by }
        }),
        word().prop_map(|reason| Kind::EngineWoke { reason }),
        any::<i32>().prop_map(|errno| Kind::CaptureEnded { errno }),
    ]
}

pub fn event() -> impl Strategy<Value = Event> {
    (number(), prop::option::of(short().prop_map(Qpn::new)), kind()).prop_map(|(at, qpn, kind)| Event { at, qpn, kind })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn events_are_read_as_they_were_written(events in prop::collection::vec(event(), 1..300)) {
        let mut file = Recorded::new(0);
        events.iter().for_each(|event| file.event(event));
        let read = entries(&file.bytes[..file.used()]);
        prop_assert_eq!(read, events.into_iter().map(Entry::Event).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_newest_events_are_read_after_those_that_are_packed(
        packed in prop::collection::vec(event(), 0..20),
        events in prop::collection::vec(event(), 1..200),
        is_repeated in any::<bool>(),
    ) {
        let mut file = Recorded::new(0);
        packed.iter().for_each(|event| file.event(event));
        let mut expected = packed;
        let mut writer = RecentWriter::default();
        let end = file.bytes.len().max(BLOCK_BYTES);
        file.bytes.resize(end, 0);
        let mut noted = Vec::new();
        {
            let area = &mut file.bytes[RECENT_AT..RECENT_AT + RECENT_BYTES];
            for event in &events {
                let is_noted = writer.put(area, event);
                // One that has no slot, or finds none, changes nothing.
                if is_noted {
                    noted.push(*event);
                }
            }
            prop_assert!(noted.len() <= RECENT_SLOTS as usize);
            prop_assert_eq!(writer.oldest(area), noted.first().copied());
        }
        // As if the process had ended when it had packed the oldest, and before it said so.
        if let (true, Some(first)) = (is_repeated, noted.first().copied()) {
            file.event(&first);
        }
        expected.extend(&noted);
        let read = entries(&file.bytes);
        let expected: Vec<_> = expected.into_iter().map(Entry::Event).collect();
        if is_repeated || expected.len() == read.len() {
            prop_assert_eq!(read, expected);
        } else {
            // The last that is packed and the first that is noted may be the same by chance.
            prop_assert_eq!(read.len() + 1, expected.len());
        }
        let area = &mut file.bytes[RECENT_AT..RECENT_AT + RECENT_BYTES];
        for event in noted {
            prop_assert_eq!(writer.oldest(area), Some(event));
            writer.take(area);
        }
        prop_assert!(writer.is_empty() && recording::recent::read(area).is_empty());
    }
}

#[test]
fn no_kind_has_the_name_of_a_call() {
    // A call is packed under its own name: one that a kind has would be read as that.
    let kinds = "work_posted post_refused packet_sent packet_received packet_dropped cm_message_dropped state_changed \
                 completed called flushed timer_set timer_fired timer_cleared retry access_refused nak_sent nak_received \
                 window_changed rate_changed async_event cq_overflowed cm_transition connection_ended injected \
                 moved_directly engine_woke capture_ended finding span";
    for kind in kinds.split_ascii_whitespace() {
        assert!(!Call::NAMES.contains(&kind), "{kind}");
    }
}

#[test]
fn notes_and_many_blocks() {
    let mut file = Recorded::new(0);
    let posted = |number: u64| Event {
        at: 1_000 + number * 7,
        qpn: Some(Qpn::new(17)),
        kind: Kind::WorkPosted { wr_id: number * number, queue: Queue::Send, opcode: "SEND", bytes: 64 },
    };
    let long = "x".repeat(5_000);
    for number in 0..50_000 {
        file.event(&posted(number));
        if number % 10_000 == 0 {
            file.note(FINDING_NOTE, posted(number).at, &[], &[&long]);
            file.note(SPAN_NOTE, 5, &[900, 71], &["NCCL", "AllReduce", "bytes", "1024"]);
        }
    }
    assert!(file.used() < 50_000 * 10, "{} bytes are not compact", file.used());
    let read = entries(&file.bytes[..file.used()]);
    assert_eq!(read.len(), 50_000 + 2 * 5);
    assert_eq!(read[0], Entry::Event(posted(0)));
    assert_eq!(read[1], Entry::Finding { at: 1_000, json: long });
    let fields = vec![("bytes".to_owned(), "1024".to_owned())];
    let (tool, name) = ("NCCL".to_owned(), "AllReduce".to_owned());
    assert_eq!(read[2], Entry::Span { at: 5, duration: 900, thread: 71, tool, name, fields });
    assert_eq!(read.last(), Some(&Entry::Event(posted(49_999))));
}

#[test]
fn a_ring_has_the_newest_blocks() {
    let mut file = Recorded::new(3);
    let posted = |number: u64| Event {
        at: number,
        qpn: None,
        kind: Kind::WorkPosted {
            wr_id: number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            queue: Queue::Send,
            opcode: "SEND",
            bytes: 64,
        },
    };
    for number in 0..100_000 {
        file.event(&posted(number));
    }
    assert_eq!(file.bytes.len(), 4 * BLOCK_BYTES);
    let mut reader = Reader::new(Cursor::new(&file.bytes)).unwrap();
    assert!(reader.overwritten_blocks() > 3);
    let mut expected = None;
    while let Some(Entry::Event(event)) = reader.next_entry().unwrap() {
        let number = expected.unwrap_or(event.at);
        assert_eq!(event, posted(number));
        expected = Some(number + 1);
    }
    assert_eq!(expected, Some(100_000));
    assert_eq!((reader.missing_blocks(), reader.damaged_blocks(), reader.skipped_records()), (0, 0, 0));
}
