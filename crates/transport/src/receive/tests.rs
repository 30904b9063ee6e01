use super::*;
use crate::congestion::Window;
use crate::port::{TakenReceive, Toward};
use alloc::{vec, vec::Vec};
use wire::access::{Atomic, Bind, ProtectionDomain};
use wire::{Feth, Qpn, Srqn};

/// One region that starts at `START`, and a log of what was asked.
struct Region {
    bytes: Vec<u8>,
    writes: Vec<Range>,
    checks: Vec<(Range, Access)>,
}

const START: u64 = 0x1000;
const KEY: Key = Key::new(7);
const SUBJECT: Subject = Subject { qpn: Qpn::new(5), pd: ProtectionDomain(1), remote: false };

impl Region {
    fn new(length: usize) -> Region {
        Region { bytes: vec![0; length], writes: Vec::new(), checks: Vec::new() }
    }
}

impl Port for Region {
    fn check(&mut self, _: Subject, range: Range, access: Access) -> Result<(), Refusal> {
        self.checks.push((range, access));
        let end = (range.address + range.length).checked_sub(START);
        if range.key == KEY && end.is_some_and(|end| end <= self.bytes.len() as u64) {
            Ok(())
        } else {
            Err(Refusal { range, access, cause: RefusalCause::UnknownKey })
        }
    }

    fn write(&mut self, subject: Subject, range: Range, data: &[u8]) -> Result<(), Refusal> {
        assert_eq!(range.length, data.len() as u64);
        self.check(subject, range, Access::LOCAL_WRITE)?;
        self.writes.push(range);
        let start = (range.address - START) as usize;
        self.bytes[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn read(&mut self, _: Subject, _: Range, _: &mut [u8]) -> Result<(), Refusal> {
        unreachable!()
    }
    fn atomic(&mut self, _: Subject, _: Range, _: Atomic) -> Result<u64, Refusal> {
        unreachable!()
    }
    fn flush(&mut self, _: Subject, _: Range, _: Feth) -> Result<(), Refusal> {
        unreachable!()
    }
    fn invalidate(&mut self, _: Subject, _: Key) -> Result<(), Refusal> {
        unreachable!()
    }
    fn bind(&mut self, _: Subject, _: &Bind) -> Result<(), Refusal> {
        unreachable!()
    }
    fn take_receive(&mut self, _: Qpn, _: Srqn, _: &mut ReceiveWork) -> TakenReceive {
        unreachable!()
    }
    fn shared_domain(&mut self, _: Qpn, _: Srqn) -> Option<ProtectionDomain> {
        unreachable!()
    }
    fn window<R>(&mut self, _: Qpn, _: Toward, _: impl FnOnce(&mut Window) -> R) -> R {
        unreachable!()
    }
}

/// Pieces of 3, 0, 5 and 2 bytes, out of order in memory; the empty one has a key nobody knows.
fn pieces() -> [Sge; 4] {
    [
        Sge { address: START + 10, length: 3, key: KEY },
        Sge { address: 0, length: 0, key: Key::new(99) },
        Sge { address: START, length: 5, key: KEY },
        Sge { address: START + 20, length: 2, key: KEY },
    ]
}

#[test]
fn bytes_land_where_the_pieces_laid_end_to_end_say() {
    // Where each byte of the ten goes.
    let places = [10, 11, 12, 0, 1, 2, 3, 4, 20, 21];
    for offset in 0..=10 {
        for length in 0..=10 - offset {
            let data: Vec<u8> = (1..=length as u8).collect();
            let mut region = Region::new(32);
            scatter(&pieces(), offset as u64, &data, SUBJECT, &mut region).unwrap();
            let mut expected = vec![0; 32];
            for (byte, place) in data.iter().zip(&places[offset..]) {
                expected[*place] = *byte;
            }
            assert_eq!(region.bytes, expected, "{length} bytes at {offset}");
            assert!(region.writes.iter().all(|range| range.length > 0));
        }
    }
}

#[test]
fn running_past_the_end_is_refused() {
    for (offset, length) in [(0, 11), (10, 1), (11, 1), (u64::MAX, 1)] {
        let refusal = scatter(&pieces(), offset, &[0; 11][..length], SUBJECT, &mut Region::new(32)).unwrap_err();
        assert_eq!(refusal.range.length, 1, "{length} bytes at {offset}");
        assert_eq!(refusal.cause, RefusalCause::OutOfBounds { start: START + 20, length: 2 });
    }
    let refusal = scatter(&[], 0, &[1], SUBJECT, &mut Region::new(0)).unwrap_err();
    assert_eq!(refusal.cause, RefusalCause::OutOfBounds { start: 0, length: 0 });
    assert_eq!(scatter(&[], 0, &[], SUBJECT, &mut Region::new(0)), Ok(()));
    assert_eq!(scatter(&[], 17, &[], SUBJECT, &mut Region::new(0)), Ok(()));
}

#[test]
fn a_piece_that_wraps_around_the_address_space_is_refused() {
    let sge = Sge { address: u64::MAX - 1, length: 8, key: KEY };
    let refusal = scatter(&[sge], 4, &[0; 2], SUBJECT, &mut Region::new(8)).unwrap_err();
    assert!(matches!(refusal.cause, RefusalCause::OutOfBounds { .. }));
    assert_eq!((refusal.range.address, refusal.range.length), (u64::MAX - 1, 8));
}

#[test]
fn a_refusal_of_the_port_is_passed_on() {
    let mut sges = pieces();
    sges[2].key = Key::new(8);
    let mut region = Region::new(32);
    let refusal = scatter(&sges, 0, &[1; 10], SUBJECT, &mut region).unwrap_err();
    assert_eq!((refusal.range.key, refusal.cause), (Key::new(8), RefusalCause::UnknownKey));
    assert_eq!(scatter(&sges, 0, &[1; 3], SUBJECT, &mut region), Ok(()), "the bad piece is not reached");
}

#[test]
fn checking_asks_about_each_run_and_writes_nothing() {
    let mut region = Region::new(32);
    check_all(&pieces(), 2, 7, Access::LOCAL_WRITE, SUBJECT, &mut region).unwrap();
    let run = |address, length| (Range { key: KEY, address, length }, Access::LOCAL_WRITE);
    assert_eq!(region.checks, [run(START + 12, 1), run(START, 5), run(START + 20, 1)]);
    assert!(region.writes.is_empty());
    assert!(check_all(&pieces(), 2, 9, Access::LOCAL_WRITE, SUBJECT, &mut region).is_err());
    assert_eq!(check_all(&pieces(), 99, 0, Access::LOCAL_WRITE, SUBJECT, &mut region), Ok(()));
}

#[test]
fn a_queue_takes_its_size_and_gives_back_in_order() {
    let mut queue = ReceiveQueue::new(2, 4);
    let sges = pieces();
    for wr_id in 1..=2 {
        queue.post(&ReceiveRequest { wr_id, sges: &sges[..wr_id as usize] }).unwrap();
    }
    let full = queue.post(&ReceiveRequest { wr_id: 3, sges: &[] });
    assert_eq!(full, Err(PostError::QueueFull { queue: "receive", capacity: 2 }));
    let mut work = ReceiveWork::default();
    for wr_id in 1..=2 {
        assert!(queue.take(&mut work));
        assert_eq!((work.wr_id, &work.sges[..], work.space()), (wr_id, &sges[..wr_id as usize], 3));
    }
    assert!(!queue.take(&mut work));
    assert_eq!(work.wr_id, 2, "an empty queue leaves it alone");
}

#[test]
fn a_receive_has_at_most_the_pieces_the_queue_was_made_for() {
    let mut queue = ReceiveQueue::new(2, 3);
    let sges = pieces();
    let error = queue.post(&ReceiveRequest { wr_id: 1, sges: &sges });
    assert_eq!(error, Err(PostError::TooManySges { given: 4, max: 3 }));
    assert!(queue.is_empty());
    assert_eq!(queue.post(&ReceiveRequest { wr_id: 1, sges: &sges[..3] }), Ok(()));
}

#[test]
fn allocations_go_around_and_are_never_made_again() {
    let mut queue = ReceiveQueue::new(4, 4);
    let mut work = ReceiveWork::default();
    let sges = pieces();
    let mut seen = alloc::collections::BTreeSet::new();
    for wr_id in 0..100 {
        queue.post(&ReceiveRequest { wr_id, sges: &sges }).unwrap();
        assert!(queue.take(&mut work));
        seen.insert(work.sges.as_ptr() as usize);
    }
    assert!(seen.len() <= 5, "four slots and the one outside, not {}", seen.len());
}
