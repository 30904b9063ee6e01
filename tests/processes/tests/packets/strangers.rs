//! Another user of the host sends packets that would fit: the right address, the right number, the right sequence
//! number. No connected queue pair takes them, whatever its link. As one user there is no stranger; then the same is
//! shown of our own packets where those are not taken either.

use crate::crafted::{Crafted, reliable};
use hca::Qp;
use stage::drops::{Bench, LIMIT};
use stage::{Other, turn};
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;
use trace::DropReason;
use transport::{Kind, ReceiveRequest, Sge, Status};
use wire::{Headers, Opcode, Psn, Qpn};

const STRANGER: u32 = 54_321;

fn is_root() -> bool {
    host::holders::own_uid() == 0
}

/// A socket of another user, if we may make one.
fn stranger() -> Option<Crafted> {
    if !is_root() {
        println!("not root: there is no second user");
        return None;
    }
    // A socket is of the user that the thread has for files when it is made.
    // SAFETY: numbers.
    unsafe { libc::setfsuid(STRANGER) };
    let raw = Crafted::new();
    // SAFETY: numbers.
    unsafe { libc::setfsuid(0) };
    let users = host::holders::holders(host::family::Family::V4, raw.port()).unwrap();
    assert_eq!(users, [STRANGER], "the socket is the stranger's");
    Some(raw)
}

/// The packet that a queue pair of this kind expects next.
fn next(kind: Kind, qp: &Qp) -> Headers {
    match kind {
        Kind::ReliableConnected => reliable(Opcode::RcSendOnly, qp.qpn(), 5),
        _ => Headers::new(Opcode::UcSendOnly, qp.qpn(), Psn::new(5)),
    }
}

/// Posts a receive: if it completes, a message was delivered.
fn receive(bench: &Bench, qp: &Qp) {
    let sges = [Sge { address: bench.memory.as_ptr() as u64, length: 64, key: bench.key }];
    qp.post_receive(&bench.nic, &[ReceiveRequest { wr_id: 9, sges: &sges }]).unwrap();
}

/// A stranger sends again and again what a queue pair expects next, until a drop for this reason is counted. Nothing
/// may complete.
fn forged(bench: &Bench, raw: &Crafted, headers: &Headers, reason: DropReason) {
    let packet = raw.packet(headers, &[7; 16], 0);
    let (before, deadline, mut completions) = (bench.nic.drops(reason), Instant::now() + LIMIT, 0);
    while bench.nic.drops(reason) < before + 3 {
        raw.send(&packet);
        bench.nic.progress();
        bench.nic.poll(&bench.cq, 8, |_, _| completions += 1);
        assert_eq!(completions, 0, "a forged SEND was delivered");
        assert!(Instant::now() < deadline, "{} is not counted; {:?}", reason.name(), bench.last());
    }
    assert!(bench.reasons().contains(&reason), "no event");
}

#[test]
fn inside_the_process_nothing_is_taken_from_udp() {
    let _turn = turn();
    for kind in [Kind::ReliableConnected, Kind::UnreliableConnected] {
        let bench = Bench::new();
        let [one, other] = [bench.qp(kind), bench.qp(kind)];
        bench.connect(&one, other.qpn());
        bench.connect(&other, one.qpn());
        assert_eq!(one.link(), "inside the process");
        receive(&bench, &one);
        for raw in stranger().into_iter().chain([Crafted::new()]) {
            forged(&bench, &raw, &next(kind, &one), DropReason::WrongLink);
        }
        // The peer's message, which has the same number, is taken.
        assert!(bench.post(&other, 64, None));
        assert_eq!([bench.next(), bench.next()], [Status::Success; 2]);
    }
}

#[test]
fn through_shared_memory_nothing_is_taken_from_strangers() {
    let _turn = turn();
    let bench = Bench::new();
    let mut other = Other::start(Command::new(env!("CARGO_BIN_EXE_peer")).arg("drops"));
    other.hear("here ");
    let qp = peer_of(&bench, &mut other);
    receive(&bench, &qp);
    if let Some(raw) = stranger() {
        forged(&bench, &raw, &next(Kind::ReliableConnected, &qp), DropReason::WrongLink);
    }
    bench.post_write(&qp);
    assert_eq!((bench.next(), qp.link()), (Status::Success, "shared memory"));
    // The peer was heard through its ring: now not even our own user is taken from UDP.
    for raw in stranger().into_iter().chain([Crafted::new()]) {
        forged(&bench, &raw, &next(Kind::ReliableConnected, &qp), DropReason::WrongLink);
    }
}

#[test]
fn over_udp_only_the_peers_user_is_believed() {
    let _turn = turn();
    let bench = Bench::over_udp();
    let mut other = Other::start(Command::new(env!("CARGO_BIN_EXE_peer")).arg("drops").env("UBIVERBS_LINK", "udp"));
    other.hear("here ");
    let qp = peer_of(&bench, &mut other);
    receive(&bench, &qp);
    let Some(raw) = stranger() else { return };
    forged(&bench, &raw, &next(Kind::ReliableConnected, &qp), DropReason::WrongSocket);
    // What slows senders down is not taken from strangers either.
    forged(&bench, &raw, &Headers::new(Opcode::Cnp, qp.qpn(), Psn::new(0)), DropReason::WrongSocket);
    bench.post_write(&qp);
    assert_eq!((bench.next(), qp.link()), (Status::Success, "UDP"));
    let unreliable = bench.qp(Kind::UnreliableConnected);
    bench.connect(&unreliable, Qpn::new(0x123_456));
    receive(&bench, &unreliable);
    forged(&bench, &raw, &next(Kind::UnreliableConnected, &unreliable), DropReason::WrongSocket);
    // Nobody has that peer's slot: our own user is believed all the same.
    let own = Crafted::new();
    let packet = own.packet(&next(Kind::UnreliableConnected, &unreliable), &[7; 16], 0);
    own.send(&packet);
    assert_eq!(bench.next(), Status::Success);
}

#[test]
fn one_process_may_have_no_ring() {
    let _turn = turn();
    // This one would have a ring, and the other refuses it: whatever comes first comes over UDP.
    for udp in [true, false] {
        let bench = if udp { Bench::over_udp() } else { Bench::new() };
        let mut other = Command::new(env!("CARGO_BIN_EXE_peer"));
        other.arg("drops").env("UBIVERBS_LINK", if udp { "" } else { "udp" });
        let mut other = Other::start(&mut other);
        other.hear("here ");
        let qp = peer_of(&bench, &mut other);
        for _ in 0..100 {
            bench.post_write(&qp);
            assert_eq!((bench.next(), qp.link()), (Status::Success, "UDP"));
        }
        assert_eq!(bench.nic.drops(DropReason::WrongLink) + bench.nic.drops(DropReason::WrongSocket), 0);
    }
}

/// A queue pair that is connected with one of the other process.
fn peer_of(bench: &Bench, other: &mut Other) -> Arc<Qp> {
    let qp = bench.qp(Kind::ReliableConnected);
    writeln!(other.stdin, "connect {}", qp.qpn().value()).unwrap();
    bench.connect(&qp, Qpn::new(other.hear("connected ")[0] as u32));
    qp
}
