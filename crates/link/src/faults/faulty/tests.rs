use super::*;
use crate::carrier::NoPayload;
use crate::process::Process;
use std::cell::RefCell;
use wire::{Key, Opcode, Psn, Qpn, Reth};

const MTU: u32 = 1024;

fn gid(last: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, last].into())
}

fn link(plan: &str) -> Faulty<Process> {
    let plan = if plan.is_empty() { Plan::default() } else { plan.parse().unwrap() };
    Faulty::new(Process::default(), plan)
}

fn headers(opcode: Opcode, psn: u32) -> Headers {
    let mut headers = Headers::new(opcode, Qpn::new(7), Psn::new(psn));
    if opcode == Opcode::RcWriteOnly {
        headers.reth = Some(Reth { va: 8, rkey: Key::new(9), len: 10 });
    }
    headers
}

/// Sends a train whose bytes say where they are.
fn send(link: &dyn Link, psn: u32, length: usize) -> Result<(), SendError> {
    let opcode = if length > MTU as usize { Opcode::RcWriteOnly } else { Opcode::RcSendOnly };
    let to = Destination {
        source: gid(1),
        destination: gid(2),
        from: Qpn::new(3),
        scope: 0,
        traffic_class: 0,
        hop_limit: 64,
    };
    let mut fill = |from: usize, out: &mut [u8]| {
        out.iter_mut().enumerate().for_each(|(at, byte)| *byte = (psn as usize + from + at) as u8);
        Ok(())
    };
    let count = (length as u32).div_ceil(MTU).max(1);
    link.send(&to, &mut Train { headers: &headers(opcode, psn), count, mtu: MTU, length, fill: &mut fill })
}

/// What passes at a moment: the sequence numbers of the packets, each of which is whole.
fn passed(link: &Faulty<Process>, now: Instant) -> Vec<u32> {
    let mut numbers = Vec::new();
    link.receive_at(|| now, &mut |arrived| {
        assert_eq!((arrived.source, arrived.destination, arrived.packets()), (gid(1), gid(2), 1));
        numbers.push(arrived.headers.bth.psn.value());
    });
    numbers
}

/// What passes of packets 1 to `count`, one by one and a microsecond apart, and in the hour that follows.
fn run(plan: &str, count: u32) -> (Vec<u32>, Injected) {
    let (link, start) = (link(plan), Instant::now());
    let mut numbers = Vec::new();
    for number in 1..=count {
        send(&link, number, 4).unwrap();
        numbers.extend(passed(&link, start + Duration::from_micros(u64::from(number))));
    }
    numbers.extend(passed(&link, start + Duration::from_secs(3600)));
    assert_eq!(link.deadline(), None);
    (numbers, link.injected())
}

#[test]
fn without_faults_a_train_arrives_as_its_packets() {
    let link = link("");
    send(&link, 100, 4 * MTU as usize + 5).unwrap();
    assert!(!link.seems_empty() && !link.is_lossless() && link.descriptor().is_none());
    let mut packets = Vec::new();
    assert!(link.receive(&mut |arrived| packets.push((*arrived.headers, arrived.payload.to_vec()))));
    use Opcode::{RcWriteFirst, RcWriteLast, RcWriteMiddle};
    let opcodes: Vec<Opcode> = packets.iter().map(|(headers, _)| headers.bth.opcode).collect();
    assert_eq!(opcodes, [RcWriteFirst, RcWriteMiddle, RcWriteMiddle, RcWriteMiddle, RcWriteLast]);
    for (index, (headers, payload)) in packets.iter().enumerate() {
        assert_eq!(headers.bth.psn.value(), 100 + index as u32);
        assert_eq!(headers.reth.is_some(), index == 0, "only the first says where to write");
        assert_eq!((payload.len(), headers.bth.pad), if index == 4 { (5, 3) } else { (MTU as usize, 0) });
        let right = |(at, byte): (usize, &u8)| *byte == (100 + index * MTU as usize + at) as u8;
        assert!(payload.iter().enumerate().all(right));
    }
    assert!(link.seems_empty() && !link.receive(&mut |_| unreachable!()));
}

#[test]
fn each_fault_strikes_the_packets_it_is_meant_for() {
    let struck = |plan: &str| run(plan, 6).0;
    assert_eq!(struck("drop@2,drop@5"), [1, 3, 4, 6]);
    assert_eq!(struck("corrupt@4"), [1, 2, 3, 5, 6], "what is damaged is lost");
    assert_eq!(struck("dup@6,hold=1ms"), [1, 2, 3, 4, 5, 6, 6]);
    assert_eq!(struck("reorder@2,hold=2500ns"), [1, 3, 4, 2, 5, 6]);
    assert_eq!(struck("delay=10us"), [1, 2, 3, 4, 5, 6]);
    assert_eq!(struck("partition"), [0; 0]);
    assert_eq!(struck("partition,from=10.0.0.1"), [0; 0]);
    assert_eq!(struck("partition,to=10.0.0.2"), [0; 0]);
    assert_eq!(struck("partition,to=10.0.0.1"), [1, 2, 3, 4, 5, 6]);
    let (_, injected) = run("drop@2,dup@3,corrupt@4", 6);
    assert_eq!(injected, Injected { packets: 6, dropped: 1, duplicated: 1, corrupted: 1, ..Injected::default() });
}

#[test]
fn packets_of_one_train_are_struck_one_by_one() {
    let link = link("drop@2,reorder@3,hold=1ms");
    send(&link, 50, 5 * MTU as usize).unwrap();
    let now = Instant::now();
    assert_eq!(passed(&link, now), [50, 53, 54]);
    assert_eq!(passed(&link, now + Duration::from_millis(1)), [52]);
}

#[test]
fn a_packet_that_is_held_back_has_a_deadline() {
    let (link, start) = (link("delay=50ms"), Instant::now());
    assert_eq!(link.deadline(), None);
    send(&link, 1, 4).unwrap();
    assert!(!link.seems_empty());
    assert!(passed(&link, start).is_empty());
    let due = link.deadline().unwrap();
    assert!(due >= start + Duration::from_millis(49) && due <= start + Duration::from_millis(51), "{due:?}");
    // It is received when the time has come, though nothing arrives.
    let mut came = Vec::new();
    while came.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never comes");
        if link.seems_empty() {
            std::thread::yield_now();
        } else {
            link.receive(&mut |arrived| came.push(arrived.headers.bth.psn.value()));
        }
    }
    assert!(Instant::now() >= due && came == [1] && link.deadline().is_none());
}

#[test]
fn a_receiver_may_send_and_receive_while_it_takes() {
    let link = link("");
    send(&link, 1, 4).unwrap();
    let seen = RefCell::new(Vec::new());
    link.receive(&mut |arrived| {
        let psn = arrived.headers.bth.psn.value();
        seen.borrow_mut().push(psn);
        if psn < 100 {
            send(&link, psn + 1, 4).unwrap();
            assert!(!link.receive(&mut |_| unreachable!()), "this thread receives already");
        }
    });
    assert_eq!(*seen.borrow(), (1..=100).collect::<Vec<_>>());
}

#[test]
fn no_train_is_left_lying_by_threads_that_receive_at_the_same_time() {
    const THREADS: u32 = 4;
    const TRAINS: u32 = 5_000;
    let (link, taken) = (link("drop=0%"), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (link, taken) = (&link, &taken);
            scope.spawn(move || {
                for number in 0..TRAINS {
                    send(link, thread * TRAINS + number, 4).unwrap();
                    link.receive(&mut |_| {
                        taken.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(taken.load(Ordering::Relaxed), u64::from(THREADS * TRAINS));
}

#[test]
fn a_train_without_payload_to_copy_is_not_sent() {
    let link = link("");
    let to = Destination {
        source: gid(1),
        destination: gid(2),
        from: Qpn::new(3),
        scope: 0,
        traffic_class: 0,
        hop_limit: 64,
    };
    let headers = headers(Opcode::RcSendOnly, 1);
    let mut fill = |_: usize, _: &mut [u8]| Err(NoPayload);
    let mut train = Train { headers: &headers, count: 1, mtu: MTU, length: 4, fill: &mut fill };
    assert_eq!(link.send(&to, &mut train), Err(SendError::Payload(NoPayload)));
    assert!(link.seems_empty() && !link.receive(&mut |_| unreachable!()));
}
