//! Nothing goes no further in silence: each packet, train, message and record that a real NIC drops is counted
//! ([`Nic::drops`]) and raises a trace event. Packets that no queue pair of ours would send come from a raw socket.
//!
//! Which test drops what on which link; a letter stands for a reason below why it cannot happen there.
//!
//! | reason | inside the process | shared memory | UDP |
//! |---|---|---|---|
//! | `malformed` | a | a | `packets_that_make_no_sense`, `forwarded_nonsense` |
//! | `bad_icrc` | a | `injected_faults` | `packets_that_make_no_sense`, `injected_faults` |
//! | `unproven` | a | a | `packets_of_a_sender_that_is_not_understood` |
//! | `unknown_qp` | `datagrams` | `datagrams` | `datagrams`, `packets_that_reach_no_queue_pair` |
//! | `wrong_state` | `datagrams` | `datagrams` | `datagrams` |
//! | `qkey_mismatch` | `datagrams` | `datagrams` | `datagrams` |
//! | `no_receive` | `datagrams` | `datagrams` | `datagrams`, `what_a_queue_pair_drops` |
//! | `bad_opcode_for_transport` | b | b | `what_a_queue_pair_drops` |
//! | `pkey_mismatch` | b | b | `what_a_queue_pair_drops` |
//! | `wrong_source` | b | b | `what_a_queue_pair_drops` |
//! | `wrong_link` | `strangers.rs` | `strangers.rs` | m |
//! | `wrong_socket` | m | m | `strangers.rs` |
//! | `out_of_order`, `after_nak` | b | b | `what_a_queue_pair_drops` |
//! | `duplicate`, `ghost_ack` | b | b | `what_a_queue_pair_drops` |
//! | `overtaken` | b | b | `what_a_queue_pair_drops` |
//! | `wrong_destination` | c | c | `packets_to_groups` |
//! | `own_multicast` | c | c | `packets_to_groups` |
//! | `not_member` | c | c | `packets_that_reach_no_queue_pair` |
//! | `not_management`, `not_from_gsi` | c | c | `what_queue_pair_1_drops` |
//! | `cm_unknown`, `cm_wrong_state` | c | c | `messages_of_connection_management` |
//! | `cm_crowded`, `cm_too_soon` | c | c | `messages_of_connection_management` |
//! | `overflow` | d | `a_ring_that_stays_full` | `what_the_kernel_drops` |
//! | `no_route` | e | e | `datagrams_without_a_way` |
//! | `random_loss`, `partitioned` | f | `injected_faults` | `injected_faults` |
//! | `cnp_unwanted` | b | `rates.rs` | `rates.rs` |
//! | `peer_gone` | g | `a_peer_that_is_killed`, `datagrams_that_a_killed_peer_has_not_read` | g |
//! | `broken_ring` | h | `rings_and_records_that_make_no_sense` | h |
//! | `ring_refused`, `bad_record` | h | `rings_and_records_that_make_no_sense` | h |
//! | `named_payload` | h | `gpu_pair.c` of the C library's tests | h |
//! | `untrusted` | h | h | i |
//! | `system_refused` | h | h | j |
//! | `bad_length` of what is sent | d | k | l |
//!
//! - a: no packets are read there, and nothing has an ICRC; a ring that makes no sense is a `broken_ring`;
//! - b: no queue pair of ours sends such packets; machine and counter are those of UDP;
//! - c: groups and messages of connection management take UDP;
//! - d: the queue has no bound, nor have trains in it;
//! - e: a peer of this host is always reached; without a source address no link is chosen, which is tested with UDP;
//! - f: the layer of faults is that of shared memory: `link::faults`, and `faults.rs` here;
//! - g: the process would be our own; over UDP nothing tells of it;
//! - h: there are no rings, records or other processes on that link;
//! - i: it takes two users, as `crates/link/tests/sharing_users.rs` has them where it may;
//! - j: it takes a system without memory or descriptors;
//! - k: no queue pair makes such trains: `link::shared::tests`;
//! - l: it takes a path whose MTU is smaller than that of the device;
//! - m: of packets from UDP the link is not wrong but the socket, and the other way round.
//!
//! `bad_fcs` is of raw frames alone: `raw_loopback.c` of the C library's tests.
//! `forged_sender` is of sockets alone: `socket-datagram-sender` of `cargo xtask attack`.
//!
//! The other reasons are a queue pair's own, and counted where those above are: the scenarios of the transport cover
//! them one by one.

use crate::crafted::{Crafted, GROUP, datagram, general_services, management, reliable};
use hca::Qp;
use hca::cm::{ConnectParameters, EventChannel, Id};
use host::names::{self, Name};
use host::slots::Slot;
use host::{greeting, passing};
use stage::drops::{Bench, LIMIT, QKEY};
use stage::{Other, turn};
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trace::DropReason;
use transport::{AddressVector, DatagramTarget, Kind, Status};
use wire::cm::{ApStatus, Apr, CmDatagram, CommId, Data as CmData, Message, PortSpace, Rtu};
use wire::{Gid, Headers, Opcode, Pkey, Qkey, Qpn};

/// The other process, in an environment.
fn other(environment: &[(&str, &str)]) -> Other {
    Other::start(Command::new(env!("CARGO_BIN_EXE_peer")).arg("drops").envs(environment.iter().copied()))
}

/// Asks the other process until it has counted a drop for this reason, and heard of it.
fn until_other(other: &mut Other, reason: DropReason, mut again: impl FnMut()) {
    let deadline = Instant::now() + LIMIT;
    loop {
        again();
        writeln!(other.stdin, "drops {}", reason.name()).unwrap();
        let [count, events] = other.hear("dropped ")[..] else { panic!("two numbers") };
        if count > 0 && events > 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{}: {count} counted, {events} heard of", reason.name());
    }
}

#[test]
fn datagrams() {
    let _turn = turn();
    for bench in [Bench::new(), Bench::over_udp()] {
        let [from, to, reset] =
            [bench.datagrams(), bench.datagrams(), bench.qp(Kind::UnreliableDatagram)].map(|qp| Arc::clone(&qp));
        let unused = bench.unused();
        bench.until(DropReason::UnknownQp, || bench.send(&from, unused, QKEY));
        bench.until(DropReason::WrongState, || bench.send(&from, reset.qpn(), QKEY));
        bench.until(DropReason::QkeyMismatch, || bench.send(&from, to.qpn(), QKEY + 1));
        bench.until(DropReason::NoReceive, || bench.send(&from, to.qpn(), QKEY));
    }
    for environment in [&[][..], &[("UBIVERBS_LINK", "udp")][..]] {
        let (bench, mut other) = (Bench::new(), other(environment));
        let [to, reset, unused] = other.hear("here ")[..] else { panic!("three numbers") };
        let from = bench.datagrams();
        let send = |to: u64, qkey| bench.send(&from, Qpn::new(to as u32), qkey);
        until_other(&mut other, DropReason::UnknownQp, || send(unused, QKEY));
        until_other(&mut other, DropReason::WrongState, || send(reset, QKEY));
        until_other(&mut other, DropReason::QkeyMismatch, || send(to, QKEY + 1));
        until_other(&mut other, DropReason::NoReceive, || send(to, QKEY));
    }
}

#[test]
fn datagrams_without_a_way() {
    let _turn = turn();
    let bench = Bench::new();
    let from = bench.datagrams();
    // No route leads there from a loopback address.
    let nowhere = AddressVector { dgid: Gid::from_ipv4([198, 51, 100, 1].into()), ..bench.av };
    let no_source = AddressVector { sgid_index: 200, ..bench.av };
    for av in [nowhere, no_source] {
        let target = DatagramTarget { av, qpn: Qpn::new(0x123_456), qkey: Qkey::new(QKEY) };
        bench.until(DropReason::NoRoute, || {
            bench.post(&from, 64, Some(target));
        });
    }
}

#[test]
fn packets_that_make_no_sense() {
    let _turn = turn();
    let (bench, raw) = (Bench::new(), Crafted::new());
    let to = bench.datagrams().qpn();
    let mut damaged = raw.packet(&datagram(to, QKEY), &[7; 16], 0);
    damaged[20] ^= 0xff;
    bench.until(DropReason::BadIcrc, || raw.send(&damaged));
    // An opcode that does not exist, and nothing behind it; its ICRC is right.
    let nonsense = raw.sealed(&[0xff; 12]);
    bench.until(DropReason::Malformed, || raw.send(&nonsense));
}

#[test]
fn packets_of_a_sender_that_is_not_understood() {
    let _turn = turn();
    let (bench, raw) = (Bench::new(), Crafted::new());
    // The ICRC fits an identification that nothing predicts; no other packet comes that would prove it.
    let unproven = raw.packet(&datagram(bench.datagrams().qpn(), QKEY), &[7; 16], 40_000);
    raw.send(&unproven);
    let mut last = Instant::now();
    bench.until(DropReason::Unproven, || {
        // Should it have gone astray: later than it is held back.
        if last.elapsed() > Duration::from_secs(5) {
            raw.send(&unproven);
            last = Instant::now();
        }
    });
}

#[test]
fn packets_that_reach_no_queue_pair() {
    let _turn = turn();
    let (bench, raw) = (Bench::new(), Crafted::new());
    let packet = |to| raw.packet(&datagram(to, QKEY), &[7; 16], 0);
    let taken = host::slots::Slots::of_this_host().unwrap();
    let nobodys = (1..Slot::COUNT).rev().filter_map(Slot::new).find(|slot| !taken.contains(slot)).unwrap();
    // Of this process; of a process that is not there; the number that subnets are managed by.
    for to in [bench.unused(), nobodys.qpn(7), Qpn::SMI] {
        bench.until(DropReason::UnknownQp, || raw.send(&packet(to)));
    }
    // For a group, but not to its address.
    bench.until(DropReason::NotMember, || raw.send(&packet(Qpn::MULTICAST)));
}

#[test]
fn what_queue_pair_1_drops() {
    let _turn = turn();
    let (bench, raw) = (Bench::new(), Crafted::new());
    let rtu = Rtu { local_comm_id: CommId::new(8), remote_comm_id: CommId::new(7), private_data: CmData::default() };
    let rtu = CmDatagram::new(1, Message::Rtu(rtu));
    let with = |change: fn(&mut Headers)| {
        let mut headers = general_services();
        change(&mut headers);
        management(&raw, &headers, &rtu)
    };
    for (reason, change) in [
        (DropReason::PkeyMismatch, (|headers| headers.bth.pkey = Pkey::new(0x8001)) as fn(&mut Headers)),
        (DropReason::QkeyMismatch, |headers| headers.deth = datagram(Qpn::GSI, QKEY).deth),
        (DropReason::NotFromGsi, |headers| headers.deth = datagram(Qpn::GSI, Qkey::GSI.value()).deth),
        (DropReason::BadOpcodeForTransport, |headers| *headers = reliable(Opcode::RcSendOnly, Qpn::GSI, 9)),
    ] {
        bench.until(reason, || raw.send(&with(change)));
    }
    bench.until(DropReason::NotManagement, || raw.send(&raw.packet(&general_services(), &[7; 16], 0)));
    assert_eq!(bench.nic.drops(DropReason::CmUnknown), 0, "no message came through");
    // A limited member of the partition is heard.
    bench.until(DropReason::CmUnknown, || raw.tell(&with(|headers| headers.bth.pkey = Pkey::new(0x7fff))));
}

#[test]
fn packets_to_groups() {
    let _turn = turn();
    let bench = Bench::new();
    let member = bench.datagrams();
    let group = Gid::from_ipv4(GROUP);
    member.attach(&bench.nic, group).unwrap();
    let raw = Crafted::to(GROUP);
    // To all in the group, but for one of them.
    let packet = raw.packet(&datagram(member.qpn(), QKEY), &[7; 16], 0);
    bench.until(DropReason::WrongDestination, || raw.send(&packet));
    member.ignore_own_multicast();
    let av = AddressVector { dgid: group, hop_limit: 1, ..bench.av };
    let target = DatagramTarget { av, qpn: Qpn::MULTICAST, qkey: Qkey::new(QKEY) };
    bench.until(DropReason::OwnMulticast, || {
        bench.post(&member, 64, Some(target));
    });
}

#[test]
fn what_a_queue_pair_drops() {
    let _turn = turn();
    let (bench, raw) = (Bench::new(), Crafted::new());
    let peer = Qpn::new(0x123_456);
    let packet = |to: &Qp, opcode, psn| raw.packet(&reliable(opcode, to.qpn(), psn), &[7; 16], 0);
    let qp = bench.connected(peer);
    bench.until(DropReason::BadOpcodeForTransport, || raw.send(&raw.packet(&datagram(qp.qpn(), QKEY), &[7; 16], 0)));
    let mut headers = reliable(Opcode::RcSendOnly, qp.qpn(), 5);
    headers.bth.pkey = Pkey::new(0x8001);
    bench.until(DropReason::PkeyMismatch, || raw.send(&raw.packet(&headers, &[7; 16], 0)));
    let elsewhere = Crafted::from(Ipv4Addr::new(127, 0, 0, 2));
    let astray = elsewhere.packet(&reliable(Opcode::RcSendOnly, qp.qpn(), 5), &[7; 16], 0);
    bench.until(DropReason::WrongSource, || elsewhere.send(&astray));
    bench.until(DropReason::Duplicate, || raw.send(&packet(&qp, Opcode::RcSendOnly, 4)));
    bench.until(DropReason::NoReceive, || raw.send(&packet(&qp, Opcode::RcSendOnly, 5)));
    let qp = bench.connected(peer);
    bench.until(DropReason::OutOfOrder, || raw.send(&packet(&qp, Opcode::RcSendOnly, 7)));
    bench.until(DropReason::AfterNak, || raw.send(&packet(&qp, Opcode::RcSendOnly, 8)));
    let acknowledgement = raw.packet(&reliable(Opcode::RcAcknowledge, qp.qpn(), 900), &[], 0);
    bench.until(DropReason::GhostAck, || raw.send(&acknowledgement));
    let qp = bench.qp(Kind::UnreliableConnected);
    bench.connect(&qp, peer);
    bench.until(DropReason::Overtaken, || {
        [9, 7].iter().for_each(|psn| raw.send(&packet(&qp, Opcode::UcSendOnly, *psn)));
    });
}

#[test]
fn injected_faults() {
    let _turn = turn();
    for (plan, reason) in [
        ("drop=100%", DropReason::RandomLoss),
        ("partition", DropReason::Partitioned),
        ("corrupt=100%", DropReason::BadIcrc),
    ] {
        let mut other = other(&[("UBIVERBS_FAULTS", plan)]);
        let to = other.hear("here ")[0];
        let raw = Crafted::new();
        // Long, so that a bit of it is damaged that the ICRC covers.
        let packet = raw.packet(&datagram(Qpn::new(to as u32), QKEY), &[7; 1024], 0);
        until_other(&mut other, reason, || raw.send(&packet));
    }
    // Through shared memory, where the faults' own layer drops what is damaged.
    for (plan, reason) in [
        ("drop=100%", DropReason::RandomLoss),
        ("partition", DropReason::Partitioned),
        ("corrupt=100%", DropReason::BadIcrc),
    ] {
        let (bench, mut other) = (Bench::new(), other(&[("UBIVERBS_FAULTS", plan)]));
        let to = Qpn::new(other.hear("here ")[0] as u32);
        let from = bench.datagrams();
        until_other(&mut other, reason, || bench.send(&from, to, QKEY));
    }
}

#[test]
fn a_peer_that_is_killed() {
    let _turn = turn();
    let (bench, mut other) = (Bench::new(), other(&[]));
    other.hear("here ");
    let [watch, late] = [(); 2].map(|()| {
        let qp = bench.qp(Kind::ReliableConnected);
        writeln!(other.stdin, "connect {}", qp.qpn().value()).unwrap();
        bench.connect(&qp, Qpn::new(other.hear("connected ")[0] as u32));
        bench.post_write(&qp);
        assert_eq!((bench.next(), qp.link()), (Status::Success, "shared memory"));
        qp
    });
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    // What one queue pair waits for fails when the end of the peer has been noticed.
    bench.post_write(&watch);
    assert_eq!(bench.next(), Status::RetryExceeded);
    bench.after(DropReason::PeerGone, || bench.post_write(&late));
}

/// They are in the ring, and so have completed.
#[test]
fn datagrams_that_a_killed_peer_has_not_read() {
    const COUNT: u64 = 20;
    let _turn = turn();
    let (bench, mut other) = (Bench::new(), other(&[]));
    let to = Qpn::new(other.hear("here ")[0] as u32);
    let from = bench.datagrams();
    until_other(&mut other, DropReason::NoReceive, || bench.send(&from, to, QKEY));
    other.stop();
    let before = bench.nic.drops(DropReason::PeerGone);
    (0..COUNT).for_each(|_| bench.send(&from, to, QKEY));
    assert_eq!(bench.nic.drops(DropReason::PeerGone), before);
    bench.after(DropReason::PeerGone, || {
        other.child.kill().unwrap();
        other.child.wait().unwrap();
    });
    let deadline = Instant::now() + LIMIT;
    while bench.nic.drops(DropReason::PeerGone) < before + COUNT {
        assert!(Instant::now() < deadline, "{} are counted", bench.nic.drops(DropReason::PeerGone) - before);
        bench.turn();
    }
}

#[test]
fn a_ring_that_stays_full() {
    let _turn = turn();
    let (bench, mut other) = (Bench::new(), other(&[]));
    let to = Qpn::new(other.hear("here ")[0] as u32);
    let from = bench.datagrams();
    until_other(&mut other, DropReason::NoReceive, || bench.send(&from, to, QKEY));
    signal(&other, libc::SIGSTOP);
    let target = DatagramTarget { av: bench.av, qpn: to, qkey: Qkey::new(QKEY) };
    bench.until(DropReason::Overflow, || {
        bench.post(&from, 4096, Some(target));
    });
    signal(&other, libc::SIGCONT);
}

fn signal(other: &Other, signal: i32) {
    // SAFETY: a signal to our own child.
    assert_eq!(unsafe { libc::kill(other.child.id() as i32, signal) }, 0);
}

#[test]
fn what_the_kernel_drops() {
    let _turn = turn();
    let mut other = other(&[]);
    let to = Qpn::new(other.hear("here ")[0] as u32);
    let raw = Crafted::new();
    let packet = raw.packet(&datagram(to, QKEY), &[7; 4096], 0);
    let before = Bench::new().nic.kernel_drops().unwrap();
    let deadline = Instant::now() + LIMIT;
    loop {
        signal(&other, libc::SIGSTOP);
        // More than the kernel keeps for a socket, whatever the system allows.
        (0..8192).for_each(|_| raw.send(&packet));
        signal(&other, libc::SIGCONT);
        writeln!(other.stdin, "kernel").unwrap();
        if other.hear("kernel ")[0] > 0 {
            break;
        }
        assert!(Instant::now() < deadline, "8192 packets do not fill a buffer");
    }
    until_other(&mut other, DropReason::Overflow, || {});
    let after = Bench::new().nic.kernel_drops().unwrap();
    assert!(after.host_full > before.host_full && after.host_errors > before.host_errors, "{before:?} {after:?}");
}

/// A connection to a process, as processes have them with one another.
fn connection(bench: &Bench) -> host::descriptor::Descriptor {
    let socket = names::socket().unwrap();
    names::connect(&socket, Name::Slot(Slot::of(bench.unused()).unwrap())).unwrap();
    socket
}

/// Says something on a connection, and passes descriptors along.
fn tell(socket: &host::descriptor::Descriptor, kind: u8, descriptors: &[RawFd]) {
    passing::send(socket, &greeting::of(kind), descriptors).unwrap();
}

/// Memory of so many bytes, which keeps its length.
fn sealed_memory(length: usize) -> OwnedFd {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a string constant and numbers; the descriptor that comes back is ours.
    unsafe {
        let fd = OwnedFd::from_raw_fd(libc::memfd_create(c"drops".as_ptr(), flags));
        assert_eq!(libc::ftruncate(fd.as_raw_fd(), length as libc::off_t), 0);
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
        fd
    }
}

fn write_at(memory: &OwnedFd, at: usize, bytes: &[u8]) {
    // SAFETY: live bytes of the length given.
    let written = unsafe { libc::pwrite(memory.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), at as libc::off_t) };
    assert_eq!(written, bytes.len() as isize);
}

#[test]
fn rings_and_records_that_make_no_sense() {
    let _turn = turn();
    let bench = Bench::new();
    // An offer without a ring.
    let socket = connection(&bench);
    bench.after(DropReason::RingRefused, || tell(&socket, greeting::RING_OFFER, &[]));
    // A ring whose first record is of no kind. What lies before the records is a page.
    const CONTROL: usize = 4096;
    let ring = sealed_memory(CONTROL + link::shared::SMALL_RING_BYTES);
    let socket = connection(&bench);
    write_at(&ring, CONTROL, &u32::MAX.to_ne_bytes());
    bench.after(DropReason::BrokenRing, || tell(&socket, greeting::RING_OFFER, &[ring.as_raw_fd()]));
    // Records of a process that ends at once.
    let records = sealed_memory(4096);
    write_at(&records, 0, &[0xff; 48]);
    bench.after(DropReason::BadRecord, || {
        let socket = connection(&bench);
        tell(&socket, greeting::CONNECTION_RECORDS, &[records.as_raw_fd()]);
    });
    let socket = connection(&bench);
    bench.after(DropReason::BadRecord, || tell(&socket, greeting::CONNECTION_RECORDS, &[]));
}

#[test]
fn forwarded_nonsense() {
    let _turn = turn();
    let bench = Bench::new();
    let socket = connection(&bench);
    bench.after(DropReason::Malformed, || {
        passing::send(&socket, b"UbiF\x01\x01\0\x01 and no packet", &[]).unwrap();
    });
}

#[test]
fn messages_of_connection_management() {
    let _turn = turn();
    let (bench, raw) = (Bench::new(), Crafted::new());
    let (ours, theirs) = (CommId::new(7), CommId::new(8));
    let message = |message| management(&raw, &general_services(), &CmDatagram::new(1, message));
    let send = |told| raw.tell(&message(told));
    let private_data = CmData::default();
    let rtu = Rtu { local_comm_id: theirs, remote_comm_id: ours, private_data };
    bench.until(DropReason::CmUnknown, || send(Message::Rtu(rtu)));
    // By UDP anybody could have said it.
    bench.until(DropReason::Untrusted, || raw.send(&message(Message::Rtu(rtu))));
    let (info, private_data) = (CmData::default(), CmData::default());
    let status = ApStatus::Loaded;
    let apr = Apr { local_comm_id: theirs, remote_comm_id: ours, info_length: 0, status, info, private_data };
    bench.until(DropReason::CmWrongState, || send(Message::Apr(apr)));
    let channel = Arc::new(EventChannel::new().unwrap());
    let wait = |channel: &EventChannel| {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(event) = channel.try_take() {
                return event;
            }
            assert!(Instant::now() < deadline, "no event");
            bench.turn();
        }
    };
    let connect = |port: u16, qpn: u32| {
        let id = Id::new(&bench.nic, &channel, PortSpace::Tcp, Kind::ReliableConnected, 0);
        id.resolve_address(None, (Ipv4Addr::LOCALHOST, port).into()).unwrap();
        wait(&channel);
        id.resolve_route().unwrap();
        wait(&channel);
        id.connect(&ConnectParameters { qpn: Qpn::new(qpn), ..ConnectParameters::default() }).unwrap();
        id
    };
    let mut ids = Vec::new();
    let listening = Arc::new(EventChannel::new().unwrap());
    let listen = || {
        let listener = Id::new(&bench.nic, &listening, PortSpace::Tcp, Kind::ReliableConnected, 0);
        listener.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        listener.listen(1).unwrap();
        let port = listener.source().unwrap().port();
        (listener, port)
    };
    // A port to which there is a connection: the first answer that nobody listens is not believed.
    let (listener, port) = listen();
    ids.push(connect(port, 0x2000));
    let passive = wait(&listening).id;
    passive.accept(&ConnectParameters { qpn: Qpn::new(0x3000), ..ConnectParameters::default() }).unwrap();
    wait(&channel).id.establish().unwrap();
    listener.destroy();
    bench.after(DropReason::CmTooSoon, || ids.push(connect(port, 0x2001)));
    ids.clear();
    drop(passive);
    while listening.try_take().or_else(|| channel.try_take()).is_some() {}
    // More requests than the listener has room for, and nobody answers.
    let (listener, port) = listen();
    bench.until(DropReason::CmCrowded, || {
        if ids.len() < 3 {
            ids.push(connect(port, 0x2002 + ids.len() as u32));
        }
    });
    // Events hold the NIC: the next test wants to be alone.
    drop((ids, listener));
    while listening.try_take().or_else(|| channel.try_take()).is_some() {}
}
