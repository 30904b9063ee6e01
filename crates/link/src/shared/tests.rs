//! Rings and links between "processes" of which both are this one.

use super::link::State;
use super::map::Mapping;
use super::ring::{LARGE, Reader, SMALL, Writer};
use super::{Change, Exchange};
use crate::attachment::Attachment;
use crate::ports::Ports;
use crate::slots::{Slot, Slots};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
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

#[test]
fn trains_arrive_whole_and_in_order_lap_after_lap() {
    const TRAINS: u32 = 20_000;
    for lap in [SMALL, LARGE] {
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
                assert!(payload.iter().all(|byte| *byte == psn as u8));
                reader.consume();
                if reader.should_tell() {
                    reader.tell(false);
                }
            }
        });
    }
}

#[test]
fn a_full_ring_takes_no_more_until_it_is_read() {
    for (lap, most) in [(SMALL, 3), (LARGE, 8)] {
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
        assert!(reader.tell(true), "somebody waits");
        assert!(!reader.tell(true), "and is told once");
        assert!(writer.has_room() && writer.was_read(end));
    }
}

#[test]
fn what_could_not_be_filled_in_was_never_sent() {
    let (mut writer, mut reader, _) = ring(SMALL);
    let refused = writer.push(address(0), &headers(1), (1, 256), 5000, |_| Err("gone"));
    assert_eq!(refused, Err("gone"));
    push(&mut writer, 2, 3);
    assert_eq!(reader.front().unwrap().unwrap().headers, headers(2));
    reader.consume();
    assert!(reader.front().unwrap().is_none());
}

/// Whatever another process does to the ring while it is read: no panic (positions out of bounds would be one), no end of time.
#[test]
fn a_ring_may_be_scribbled_over_while_it_is_read() {
    let done = AtomicBool::new(false);
    let (mut writer, mut reader, fd) = ring(SMALL);
    let scribbled = Mapping::accept(fd.as_fd(), |_| true).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut numbers = Numbers(1);
            while !done.load(Ordering::Relaxed) {
                // Mostly what a record begins with, and near the beginning: there it is believed longest.
                let place = match numbers.next(4) {
                    0 => numbers.next(scribbled.length() / 4) * 4,
                    1 => numbers.next(80) * 4,
                    _ => 4096 + numbers.next(64) * 64 + numbers.next(4) * 4,
                };
                let value = match numbers.next(3) {
                    0 => numbers.0 as u32,
                    1 => ((1 + numbers.next(3) as u32) << 24) | numbers.next(70_000) as u32,
                    _ => u32::from_ne_bytes([1, 0, 12 + numbers.next(40) as u8, 4]),
                };
                scribbled.word(place).store(value, Ordering::Relaxed);
            }
        });
        let (mut broken, mut read, mut copied) = (0, 0, vec![0; 65_536]);
        let mut numbers = Numbers(2);
        for round in 0..300_000u32 {
            match reader.front() {
                Ok(None) => {}
                Ok(Some(_)) => {
                    let (_, payload) = reader.train_and_payload().unwrap();
                    copied[..payload.len().min(512)].copy_from_slice(&payload[..payload.len().min(512)]);
                    reader.consume();
                    read += 1;
                }
                Err(_) => {
                    // The link would end here. Another begins in the same mess.
                    broken += 1;
                    reader = Reader::accept(fd.as_fd()).unwrap();
                }
            }
            reader.tell(round % 3 == 0);
            if writer.has_room() && !writer.is_broken() {
                push(&mut writer, round, numbers.next(2000));
            } else if writer.is_broken() {
                (writer, _) = Writer::create(SMALL).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(broken > 0, "{broken} {read}");
    });
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
        // Nobody else's port: this is about the slot's socket.
        let attachment = Attachment::open_port(&slots, &Ports::new(&slots), 0).unwrap();
        let exchange = Exchange::new(&slots, willing).unwrap();
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

#[test]
fn two_processes_come_by_a_link_and_one_ends() {
    let (mut a, mut b) = (Process::start(true), Process::start(true));
    let link = a.exchange.reach(b.slot).unwrap();
    assert_eq!(link.state(), State::Connecting);
    assert!(link.writer().is_none(), "it does not wait for an answer, and sends nothing without one");
    a.exchange.stall(&link, Qpn::new(3));
    let mut resumed = Vec::new();
    a.exchange.resume(true, |qpn| resumed.push(qpn));
    assert!(resumed.is_empty());
    for _ in 0..100 {
        b.drive();
        a.drive();
        if link.state() == State::Up {
            break;
        }
    }
    assert_eq!(link.state(), State::Up);
    a.exchange.resume(true, |qpn| resumed.push(qpn));
    assert_eq!(resumed, [Qpn::new(3)]);
    assert!(!a.exchange.has_stalled());
    assert!(std::sync::Arc::ptr_eq(&link, &a.exchange.reach(b.slot).unwrap()), "one link is enough");
    push(&mut link.writer().unwrap(), 5, 100);
    link.ring();
    let mut seen = 0;
    b.exchange.each_with_something(|inbound| {
        let mut reading = inbound.reader().unwrap();
        assert!(inbound.reader().is_none(), "one thread at a time");
        assert_eq!(reading.front().unwrap().unwrap().headers, headers(5));
        reading.consume();
        reading.tell(true);
        seen += 1;
    });
    assert_eq!(seen, 1);
    b.exchange.each_with_something(|inbound| assert!(!inbound.has_something()));
    // What a process wrote before its end counts.
    push(&mut link.writer().unwrap(), 6, 100);
    drop((link, a));
    b.drive();
    b.drive();
    b.exchange.each_with_something(|inbound| {
        assert!(inbound.has_ended());
        let mut reading = inbound.reader().unwrap();
        assert_eq!(reading.front().unwrap().unwrap().headers, headers(6));
        reading.consume();
    });
    b.exchange.each_with_something(|inbound| assert!(!inbound.has_something()));
    assert!(!b.exchange.has_inbound());
}

#[test]
fn the_end_of_the_reader_is_the_end_of_the_link() {
    let (mut a, mut b) = (Process::start(true), Process::start(true));
    let link = a.exchange.reach(b.slot).unwrap();
    while link.state() != State::Up {
        b.drive();
        a.drive();
    }
    drop(b);
    let mut changes = Vec::new();
    for _ in 0..100 {
        changes.extend(a.drive());
    }
    assert_eq!(changes, [Change::Died]);
    assert_eq!(link.state(), State::Dead);
    assert!(link.was_read(u64::MAX), "there is nobody to wait for");
}

#[test]
fn who_wants_no_shared_memory_says_so() {
    let (mut a, mut b) = (Process::start(true), Process::start(false));
    assert!(b.exchange.reach(a.slot).is_none());
    let link = a.exchange.reach(b.slot).unwrap();
    let mut changes = Vec::new();
    for _ in 0..100 {
        b.drive();
        changes.extend(a.drive());
    }
    assert_eq!((link.state(), &changes[..]), (State::Refused, &[Change::Settled][..]));
    assert!(a.exchange.reach(Slot::new(4094).filter(|slot| *slot != b.slot && *slot != a.slot).unwrap()).is_none());
}
