//! Rings and links between "processes" of which both are this one.

use super::link::{Outbound, State};
use super::map::Mapping;
use super::ring::{LARGE_RING_BYTES, MAX_PAYLOAD_BYTES, Reader, SMALL_RING_BYTES, Unwritten, Writer};
use super::{Change, Exchange};
use crate::udp::attachment::Attachment;
use crate::{Destination, Handling, Link, SendError, Train};
use host::names::{self, Name};
use host::ports::Ports;
use host::slots::{Slot, Slots};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use wire::{Gid, Headers, Opcode, Psn, Qpn, Reth};

/// A source of numbers that are the same every time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

fn ring(lap: usize) -> (Writer, Reader, OwnedFd) {
    let (writer, fd) = Writer::create(lap).unwrap();
    let reader = Reader::accept(fd.as_fd()).unwrap();
    (writer, reader, fd)
}

fn headers(psn: u32) -> Headers {
    let mut headers = Headers::new(Opcode::RcWriteOnly, Qpn::new(7), Psn::new(psn));
    headers.reth = Some(Reth { va: 8, rkey: wire::Key::new(9), len: 10 });
    headers
}

fn address(n: u8) -> (Gid, Gid) {
    (Gid::new([n; 16]), Gid::new([n + 1; 16]))
}

fn push(writer: &mut Writer, psn: u32, length: usize) {
    let fill = |out: &mut [u8]| -> Result<(), ()> {
        out.fill(psn as u8);
        Ok(())
    };
    writer.push(address((psn / 100 % 3) as u8), &headers(psn), (1, 256), length, fill).unwrap();
}

/// What the reader has not told of counts; acknowledged trains do not.
#[test]
fn datagrams_that_were_not_read_are_found_wherever_they_lie_in_a_lap() {
    const TRAINS: u32 = if cfg!(miri) { 60 } else { 2000 };
    let datagram = |psn: u32| {
        let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::new(7), Psn::new(psn));
        headers.deth = Some(wire::Deth { qkey: wire::Qkey::new(1), src_qpn: Qpn::new(9) });
        headers
    };
    for unread in [0, 1, 2, 7] {
        let (mut writer, mut reader, _) = ring(SMALL_RING_BYTES);
        let mut written = Vec::new();
        for psn in 0..TRAINS {
            if psn % 3 == 0 {
                push(&mut writer, psn, psn as usize % 5000);
            } else {
                let fill = |_: &mut [u8]| -> Result<(), ()> { Ok(()) };
                let length = psn as usize * 7 % 4096;
                writer.push(address(psn as u8 % 2), &datagram(psn), (1, 0), length, fill).unwrap();
            }
            written.push(psn);
            while written.len() > unread {
                assert_eq!(reader.front().unwrap().unwrap().headers.bth.psn, Psn::new(written.remove(0)));
                reader.consume();
                reader.tell(false);
            }
            assert!(writer.has_room());
            if psn % 50 == 49 {
                // As if the reader had gone here, and then had not.
                let found: Vec<_> = writer.take_unread_datagrams().iter().map(|headers| headers.bth.psn).collect();
                let expected = written.drain(..).filter(|psn| psn % 3 != 0).map(Psn::new);
                assert!(found.into_iter().eq(expected), "{psn}");
                while reader.front().unwrap().is_some() {
                    reader.consume();
                }
                reader.tell(true);
            }
        }
    }
}

#[test]
fn trains_arrive_whole_and_in_order_lap_after_lap() {
    const TRAINS: u32 = if cfg!(miri) { 60 } else { 20_000 };
    for lap in [SMALL_RING_BYTES, LARGE_RING_BYTES] {
        let (mut writer, mut reader, _) = ring(lap);
        let length_of = |psn: u32| match Numbers(u64::from(psn)).next(10) {
            0 => 65_536,
            1 => 1024 + psn as usize % 60_000,
            2 => 0,
            n => n * 31,
        };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for psn in 0..TRAINS {
                    while !writer.has_room() {
                        std::thread::yield_now();
                    }
                    push(&mut writer, psn, length_of(psn));
                }
                assert!(!writer.is_broken());
            });
            for psn in 0..TRAINS {
                while reader.front().unwrap().is_none() {
                    reader.tell(true);
                    std::thread::yield_now();
                }
                let (front, payload) = reader.train_and_payload().unwrap();
                assert_eq!(front.headers, headers(psn));
                assert_eq!(front.addresses, address((psn / 100 % 3) as u8));
                assert_eq!(payload.len(), length_of(psn));
                assert!(payload == vec![psn as u8; payload.len()]);
                reader.consume();
                if reader.should_tell() {
                    reader.tell(false);
                }
            }
        });
    }
}

#[test]
fn datagrams_arrive_with_the_handling_that_was_asked_for() {
    let (mut writer, mut reader, _) = ring(SMALL_RING_BYTES);
    let asked = |traffic_class, hop_limit| Handling { traffic_class, hop_limit };
    let handlings = [Handling::USUAL, asked(0x68, 9), asked(0x68, 9), asked(0, 255), Handling::USUAL, asked(3, 0)];
    for (psn, handling) in handlings.into_iter().enumerate() {
        writer.handle_as(handling);
        push(&mut writer, psn as u32, 8);
    }
    for (psn, handling) in handlings.into_iter().enumerate() {
        let front = reader.front().unwrap().unwrap();
        assert_eq!((&front.headers, front.addresses, front.handling), (&headers(psn as u32), address(0), handling));
        reader.consume();
    }
}

#[test]
fn a_full_ring_takes_no_more_until_it_is_read() {
    for (lap, most) in [(SMALL_RING_BYTES, 3), (LARGE_RING_BYTES, 8)] {
        let (mut writer, mut reader, _) = ring(lap);
        let mut written = 0;
        while writer.has_room() {
            push(&mut writer, written, 65_536);
            written += 1;
        }
        assert!(written >= most - 1, "{written} of {most}");
        let end = writer.position();
        writer.want_room();
        assert!(!writer.has_room() && !writer.was_read(end));
        for _ in 0..written {
            assert!(reader.front().unwrap().is_some());
            reader.consume();
        }
        assert!(reader.front().unwrap().is_none());
        assert!(reader.tell(true), "the writer waits");
        assert!(!reader.tell(true), "and is told once");
        assert!(writer.has_room() && writer.was_read(end));
    }
}

#[test]
fn what_could_not_be_filled_in_was_never_sent() {
    let (mut writer, mut reader, _) = ring(SMALL_RING_BYTES);
    for length in [100, 1000, 5000] {
        // After a short one lines are clear that the next will be on.
        for psn in [1, 2] {
            push(&mut writer, psn, 3);
            assert_eq!(reader.front().unwrap().unwrap().headers, headers(psn));
            reader.consume();
            assert!(reader.front().unwrap().is_none(), "{length}");
            let refused = writer.push(address(0), &headers(9), (1, 256), length, |out| {
                out.fill(0xff);
                Err("gone")
            });
            assert_eq!(refused, Err(Unwritten::Payload("gone")));
            assert!(reader.front().unwrap().is_none(), "{length}");
        }
    }
}

#[test]
fn a_train_that_no_record_can_hold_is_told() {
    let (mut writer, mut reader, _) = ring(SMALL_RING_BYTES);
    let fill = |_: &mut [u8]| -> Result<(), ()> { panic!("there is no place to fill") };
    let too_long = writer.push(address(0), &headers(1), (1, 256), MAX_PAYLOAD_BYTES + 1, fill);
    let too_many = writer.push(address(0), &headers(1), (1 << 16, 256), 10, fill);
    assert_eq!((too_long, too_many), (Err(Unwritten::NoRecord), Err(Unwritten::NoRecord)));
    assert!(reader.front().unwrap().is_none());
    push(&mut writer, 2, 3);
    assert_eq!(reader.front().unwrap().unwrap().headers, headers(2), "the ring goes on");
}

/// Whatever another process does to a ring while it is written and read: no panic (positions out of bounds would be
/// one), no end of time. It goes on until the ring was broken often enough at both ends, because the scheduler decides
/// when the thread that scribbles runs.
#[test]
#[cfg_attr(miri, ignore = "bytes that another process changes while they are copied are a data race on purpose")]
fn a_ring_may_be_scribbled_over_while_it_is_read() {
    const ROUNDS: u32 = 300_000;
    const OFTEN: u32 = 8;
    let patience = Instant::now() + Duration::from_secs(300);
    let scribbled_over = |fd: &OwnedFd| Arc::new(Mapping::accept(fd.as_fd(), |_| true).unwrap());
    let (mut writer, mut reader, fd) = ring(SMALL_RING_BYTES);
    let (victim, done) = (Mutex::new(scribbled_over(&fd)), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut numbers = Numbers(1);
            while !done.load(Ordering::Relaxed) {
                let victim = Arc::clone(&victim.lock().unwrap());
                for _ in 0..64 {
                    scribble(&victim, &mut numbers);
                }
            }
        });
        // Tells the other thread to end even if this one panics: otherwise the test would hang instead of failing.
        let _end = OnDrop(|| done.store(true, Ordering::Relaxed));
        let (mut rounds, mut read, mut copied) = (0, 0u32, vec![0; 65_536]);
        let (mut reader_broke, mut writer_broke) = (0, 0);
        let mut numbers = Numbers(2);
        while rounds < ROUNDS || reader_broke < OFTEN || writer_broke < OFTEN || read < ROUNDS / 100 {
            let so_far = (rounds, read, reader_broke, writer_broke);
            assert!(Instant::now() < patience, "rounds, trains read, broken readers and writers: {so_far:?}");
            if writer.has_room() {
                push(&mut writer, rounds, numbers.next(2000));
            }
            // Sometimes the reader falls behind, and the writer has to look how far it is.
            let behind = numbers.next(64) == 0 && !writer.is_broken();
            let front = if behind { Ok(None) } else { reader.front().map(|front| front.map(|_| ())) };
            if let Ok(Some(())) = front {
                let (_, payload) = reader.train_and_payload().unwrap();
                copied[..payload.len()].copy_from_slice(payload);
                reader.consume();
                read += 1;
            }
            if front.is_err() || writer.is_broken() {
                // The link ends here, and another begins that is scribbled over as well.
                reader_broke += u32::from(front.is_err());
                writer_broke += u32::from(writer.is_broken());
                let (new_writer, new_reader, fd) = ring(SMALL_RING_BYTES);
                (writer, reader) = (new_writer, new_reader);
                *victim.lock().unwrap() = scribbled_over(&fd);
            } else {
                reader.tell(rounds % 3 == 0);
            }
            rounds += 1;
            if rounds % 2048 == 0 {
                std::thread::yield_now();
            }
        }
    });
}

/// Writes a number somewhere: mostly what a record begins with, and near the beginning, where it is believed longest.
fn scribble(victim: &Mapping, numbers: &mut Numbers) {
    let place = match numbers.next(4) {
        0 => numbers.next(victim.length() / 4) * 4,
        1 => numbers.next(80) * 4,
        _ => 4096 + numbers.next(64) * 64 + numbers.next(4) * 4,
    };
    let value = match numbers.next(3) {
        0 => numbers.0 as u32,
        1 => ((1 + numbers.next(3) as u32) << 24) | numbers.next(70_000) as u32,
        _ => u32::from_ne_bytes([1, 0, 12 + numbers.next(40) as u8, 4]),
    };
    victim.word(place).store(value, Ordering::Relaxed);
}

/// Does something when it goes.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

struct Process {
    slot: Slot,
    exchange: Exchange,
    attachment: Attachment,
}

impl Process {
    fn start(willing: bool) -> Process {
        let slots = Slots::open().unwrap();
        let slot = slots.take().unwrap();
        Process::with(&slots, slot, willing)
    }

    /// A process that takes the slot of another that has just ended.
    fn start_in(slot: Slot) -> Process {
        let slots = Slots::open().unwrap();
        let socket = names::socket().unwrap();
        names::listen_patiently(&socket, Name::Slot(slot)).unwrap();
        slots.registry().enter(Name::Slot(slot), socket).unwrap();
        Process::with(&slots, slot, true)
    }

    fn with(slots: &Slots, slot: Slot, willing: bool) -> Process {
        // A port of its own: this test is about the slot's socket.
        let attachment = Attachment::open_port(slots, &Ports::new(slots), 0).unwrap();
        let exchange = Exchange::new(slots, willing).unwrap();
        Process { slot, exchange, attachment }
    }

    fn drive(&mut self) -> Vec<Change> {
        self.attachment.receive(|_| {}, |_, _| {});
        let mut changes = Vec::new();
        if self.exchange.is_called() {
            self.exchange.serve(|_, change| changes.push(change));
        }
        changes
    }
}

/// Looks until it is so, for at most a minute.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::yield_now();
    }
}

#[test]
#[cfg_attr(miri, ignore = "sockets")]
fn two_processes_come_by_a_link_and_one_ends() {
    let (mut a, mut b) = (Process::start(true), Process::start(true));
    let link = a.exchange.reach(b.slot, 0).unwrap();
    assert_eq!(link.state(), State::Connecting);
    assert!(link.writer().is_none(), "it does not wait for an answer, and sends nothing without one");
    a.exchange.stall(&link, Qpn::new(3));
    let mut resumed = Vec::new();
    a.exchange.resume(true, |qpn| resumed.push(qpn));
    assert!(resumed.is_empty());
    until("the link is up", || {
        b.drive();
        a.drive();
        link.state() == State::Up
    });
    a.exchange.resume(true, |qpn| resumed.push(qpn));
    assert_eq!(resumed, [Qpn::new(3)]);
    assert!(!a.exchange.has_stalled());
    assert!(Arc::ptr_eq(&link, &a.exchange.reach(b.slot, 0).unwrap()), "one link is enough");
    assert!(Arc::ptr_eq(&link, &a.exchange.reach(b.slot, 8).unwrap()), "there are eight lanes");
    push(&mut link.writer().unwrap(), 5, 100);
    link.ring(true);
    let mut seen = 0;
    b.exchange.each_with_something(None, false, |inbound| {
        let mut reading = inbound.reader().unwrap();
        assert!(inbound.reader().is_none(), "one thread at a time");
        assert_eq!(reading.front().unwrap().unwrap().headers, headers(5));
        reading.consume();
        reading.tell(true);
        seen += 1;
    });
    assert_eq!(seen, 1);
    b.exchange.each_with_something(None, false, |inbound| assert!(!inbound.has_something()));
    // What a process wrote before its end counts.
    push(&mut link.writer().unwrap(), 6, 100);
    drop((link, a));
    until("the end is known", || {
        b.drive();
        let mut ended = false;
        b.exchange.each_with_something(None, false, |inbound| ended = inbound.has_ended());
        ended
    });
    b.exchange.each_with_something(None, false, |inbound| {
        let mut reading = inbound.reader().unwrap();
        assert_eq!(reading.front().unwrap().unwrap().headers, headers(6));
        reading.consume();
    });
    b.exchange.each_with_something(None, false, |inbound| assert!(!inbound.has_something()));
    assert!(!b.exchange.has_inbound());
}

/// Two processes, and a link from the first to the second that is up.
fn linked() -> (Process, Process, Arc<Outbound>) {
    let (mut a, mut b) = (Process::start(true), Process::start(true));
    let link = a.exchange.reach(b.slot, 0).unwrap();
    until("the link is up", || {
        b.drive();
        a.drive();
        link.state() == State::Up
    });
    (a, b, link)
}

#[test]
#[cfg_attr(miri, ignore = "sockets")]
fn the_end_of_the_reader_is_the_end_of_the_link() {
    let (mut a, b, link) = linked();
    drop(b);
    let mut changes = Vec::new();
    until("the link is dead", || {
        changes.extend(a.drive());
        link.state() == State::Dead
    });
    (0..100).for_each(|_| changes.extend(a.drive()));
    assert_eq!(changes, [Change::Died], "and told once");
    assert_eq!(link.state(), State::Dead);
    assert!(link.was_read(u64::MAX), "there is nobody to wait for");
}

#[test]
#[cfg_attr(miri, ignore = "sockets")]
fn the_next_owner_of_a_slot_gets_a_link_of_its_own() {
    let (mut a, b, link) = linked();
    let slot = b.slot;
    drop(b);
    // A has not heard of the end when another process takes the slot.
    let mut b = Process::start_in(slot);
    let other = a.exchange.reach(slot, 0).unwrap();
    assert!(!Arc::ptr_eq(&link, &other), "that link leads to the process that had the slot before");
    let mut changes = Vec::new();
    until("both are decided", || {
        b.drive();
        changes.extend(a.drive());
        other.state() == State::Up && link.state() == State::Dead
    });
    assert_eq!(
        changes.iter().filter(|change| **change == Change::Died).count(),
        1,
        "the former link's queue pairs hear"
    );
    assert!(Arc::ptr_eq(&other, &a.exchange.reach(slot, 0).unwrap()), "the end of the former link leaves the new one");
}

#[test]
#[cfg_attr(miri, ignore = "sockets")]
fn who_wants_no_shared_memory_says_so() {
    let (mut a, mut b) = (Process::start(true), Process::start(false));
    assert!(b.exchange.reach(a.slot, 0).is_none());
    let link = a.exchange.reach(b.slot, 0).unwrap();
    let mut changes = Vec::new();
    until("an answer", || {
        b.drive();
        changes.extend(a.drive());
        link.state() != State::Connecting
    });
    assert_eq!((link.state(), &changes[..]), (State::Refused, &[Change::Decided][..]));
    assert!(a.exchange.reach(Slot::new(4094).filter(|slot| *slot != b.slot && *slot != a.slot).unwrap(), 0).is_none());
}

#[test]
#[cfg_attr(miri, ignore = "sockets")]
fn lanes_are_links_of_their_own_while_there_are_few() {
    let (a, b, c) = (Process::start(true), Process::start(true), Process::start(true));
    let lanes: Vec<_> = (0..8).map(|lane| a.exchange.reach(b.slot, lane).unwrap()).collect();
    for (index, lane) in lanes.iter().enumerate() {
        assert!(lanes[..index].iter().all(|other| !Arc::ptr_eq(other, lane)));
    }
    // With those of another process there are no longer few.
    (0..8).for_each(|lane| drop(a.exchange.reach(c.slot, lane).unwrap()));
    let d = Process::start(true);
    let last = a.exchange.reach(d.slot, 3).unwrap();
    assert!(Arc::ptr_eq(&last, &a.exchange.reach(d.slot, 0).unwrap()));
    assert!(Arc::ptr_eq(&last, &a.exchange.reach(d.slot, 5).unwrap()));
    assert!(Arc::ptr_eq(&lanes[3], &a.exchange.reach(b.slot, 3).unwrap()), "what there is stays");
}

#[test]
#[cfg_attr(miri, ignore = "sockets")]
fn a_ring_that_another_thread_polls_for_is_left_to_it_by_one_in_a_hurry() {
    let (_a, b, link) = linked();
    push(&mut link.writer().unwrap(), 5, 100);
    let shown = |hurry| {
        let mut shown = 0;
        b.exchange.each_with_something(None, hurry, |inbound| {
            shown += 1;
            inbound.is_for(latch::this_thread());
        });
        shown
    };
    assert_eq!((shown(true), shown(true)), (1, 1), "nobody's, then ours");
    let elsewhere = |hurry| std::thread::scope(|scope| scope.spawn(|| shown(hurry)).join().unwrap());
    assert_eq!(elsewhere(true), 0);
    assert_eq!(elsewhere(false), 1);
    assert_eq!(shown(true), 0, "now it is the other's");
}

/// Sends through the trait.
fn send(link: &dyn Link, to: Qpn, psn: u32, length: usize) -> Result<(), SendError> {
    let (source, destination) = address(3);
    let to_process = Destination { source, destination, from: Qpn::new(8), scope: 0, traffic_class: 0, hop_limit: 64 };
    let mut headers = headers(psn);
    headers.bth.dest_qpn = to;
    let mut fill = |from: usize, out: &mut [u8]| {
        out.iter_mut().enumerate().for_each(|(at, byte)| *byte = (psn as usize + from + at) as u8);
        Ok(())
    };
    let count = (length as u32).div_ceil(4096).max(1);
    link.send(&to_process, &mut Train { headers: &headers, count, mtu: 4096, length, fill: &mut fill })
}

#[test]
fn trains_go_through_the_interface_of_all_links() {
    let (mut a, mut b) = (Process::start(true), Process::start(true));
    let to = b.slot.qpn(5);
    assert_eq!(send(&a.exchange, to, 1, 8), Err(SendError::Full), "the link is not up yet");
    until("the link is up", || {
        b.drive();
        a.drive();
        a.exchange.reach(b.slot, 8).is_some_and(|link| link.state() == State::Up)
    });
    assert!(b.exchange.seems_empty());
    let lengths = [8, 0, 3 * 4096 + 1, 65_536];
    for (psn, length) in lengths.into_iter().enumerate() {
        assert_eq!(send(&a.exchange, to, psn as u32, length), Ok(()));
    }
    let longer = b.exchange.largest_train() + 1;
    assert!(matches!(send(&a.exchange, to, 9, longer), Err(SendError::TooLong { .. })));
    assert!(!b.exchange.seems_empty());
    let mut came = Vec::new();
    assert!(b.exchange.receive(&mut |arrived| {
        assert_eq!((arrived.source, arrived.destination), address(3));
        assert_eq!((arrived.headers.bth.dest_qpn, arrived.mtu), (to, 4096));
        let psn = arrived.headers.bth.psn.value() as usize;
        assert!(arrived.payload.iter().enumerate().all(|(at, byte)| *byte == (psn + at) as u8));
        came.push((psn, arrived.count, arrived.payload.len()));
    }));
    assert_eq!(came, [(0, 1, 8), (1, 1, 0), (2, 4, 12_289), (3, 16, 65_536)]);
    assert!(!b.exchange.receive(&mut |_| unreachable!()));
    // A full ring says so.
    let sent = (0..100).take_while(|psn| send(&a.exchange, to, *psn, 65_536) == Ok(())).count();
    assert!((2..10).contains(&sent), "{sent}");
    assert_eq!(send(&a.exchange, to, 1, 8), Err(SendError::Full));
    let other = Slot::new(4094).filter(|slot| *slot != b.slot && *slot != a.slot).unwrap();
    assert_eq!(send(&a.exchange, other.qpn(1), 1, 8), Err(SendError::NoWay));
}

#[test]
fn an_acknowledgement_that_came_along_is_a_packet_of_its_own_to_the_interface() {
    let (_a, b, link) = linked();
    let along = Some((Psn::new(77), wire::Msn::new(3)));
    let encode = |out: &mut [u8]| headers(5).encode(out).is_ok();
    let fill = |out: &mut [u8]| {
        out.fill(1);
        Ok::<(), ()>(())
    };
    let length = headers(5).len();
    link.writer().unwrap().push_with(along, address(0), (length, encode), (1, 256), 16, fill).unwrap();
    let mut came = Vec::new();
    b.exchange.receive(&mut |arrived| came.push((arrived.headers.bth.opcode, arrived.headers.bth.psn.value())));
    assert_eq!(came, [(Opcode::RcAcknowledge, 77), (Opcode::RcWriteOnly, 5)]);
}
