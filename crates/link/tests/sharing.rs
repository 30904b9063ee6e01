//! Several processes of one host on one UDP port: whatever the kernel does, each gets its packets, and when it can be
//! told where they belong it is. Most "processes" here are attachments within this one; forks are real.

mod network;

use host::names::Name;
use host::slots::Slot;
use link::udp::{BindError, Family, Sender};
use network::processes::{Process, drive, fork, kill, round, senders, sleep_long, wait};
use network::{Parcel, Rights, send, wait_for};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use wire::cm::{self, CmDatagram, CommId, Message, PortSpace, ServiceId};
use wire::{Opcode, Qpn};

fn main() -> ExitCode {
    network::run(&[
        ("every_packet_reaches_its_owner_and_soon_directly", every_packet_reaches_its_owner_and_soon_directly),
        ("a_process_that_leaves_moves_the_others", a_process_that_leaves_moves_the_others),
        ("a_new_slot_is_steered_to", a_new_slot_is_steered_to),
        ("a_process_that_is_stopped_keeps_nothing_of_others", a_process_that_is_stopped_keeps_nothing_of_others),
        ("joining_and_leaving_loses_nothing", joining_and_leaving_loses_nothing),
        ("a_whole_train_is_forwarded", a_whole_train_is_forwarded),
        ("connection_management_finds_its_process", connection_management_finds_its_process),
        ("who_gives_up_is_heard_by_every_process", who_gives_up_is_heard_by_every_process),
        ("faults_happen_before_the_icrc", faults_happen_before_the_icrc),
        ("a_port_that_is_not_shared_is_taken_until_it_is_free", a_port_that_is_not_shared_is_taken_until_it_is_free),
        ("a_forked_child_keeps_nothing_alive", a_forked_child_keeps_nothing_alive),
    ])
}

/// Rounds in a row in which no packet goes astray, where everybody steers.
const STEADY: u32 = 20;

fn every_packet_reaches_its_owner_and_soon_directly(_: Rights) {
    for (family, v6) in [(Family::V4, false), (Family::V6, true)] {
        let mut processes: Vec<_> = (0..5).map(|_| Process::start()).collect();
        assert!(processes.iter().all(|process| process.attachment.error(family).is_none()));
        let mut senders = senders(50, family);
        // Before anybody could steer, most go astray and are forwarded. Afterwards none does, once all have found out
        // who is who: while one asks, packets go anywhere.
        let astray = round(&mut processes, &mut senders, v6);
        let mut rounds = 0;
        wait_for("steering", || {
            rounds += 1;
            (0..STEADY).all(|_| round(&mut processes, &mut senders, v6) == 0)
        });
        println!("  {family:?}: {astray} of 250 astray at first, none {STEADY} times in a row at try {rounds}");
    }
}

fn a_process_that_leaves_moves_the_others(_: Rights) {
    let mut processes: Vec<_> = (0..6).map(|_| Process::start()).collect();
    let mut senders = senders(20, Family::V4);
    wait_for("steering", || round(&mut processes, &mut senders, false) == 0);
    // The last takes the index of the first. Nobody says so; packets that go astray are forwarded, and the table is
    // made anew.
    processes.remove(0);
    let astray = round(&mut processes, &mut senders, false);
    assert!(astray > 0, "the last process should have moved");
    wait_for("steering again", || round(&mut processes, &mut senders, false) == 0);
}

fn a_new_slot_is_steered_to(_: Rights) {
    let mut processes: Vec<_> = (0..3).map(|_| Process::start()).collect();
    let mut senders = senders(20, Family::V4);
    wait_for("steering", || round(&mut processes, &mut senders, false) == 0);
    for process in &mut processes {
        process.slot = process.slots.take().unwrap();
    }
    wait_for("steering", || round(&mut processes, &mut senders, false) == 0);
}

/// Eight of ten are stopped: they are not driven. One of the others, whose packets came here, is reached by packets for
/// its slots and by requests for its ports from wherever they come, though it took them after the others stopped.
fn a_process_that_is_stopped_keeps_nothing_of_others(_: Rights) {
    let mut processes: Vec<_> = (0..10).map(|_| Process::start()).collect();
    let mut many = senders(40, Family::V4);
    wait_for("steering", || round(&mut processes, &mut many, false) == 0);
    // One of the first and one of the last stay.
    let mut alive = [processes.remove(7), processes.remove(1)];
    let mut psn = 0;
    let mut exchange = |alive: &mut [Process], messages: &[(usize, Qpn, Vec<u8>)]| {
        alive.iter_mut().for_each(|process| process.got.clear());
        let mut expected = vec![0; alive.len()];
        for (owner, to, payload) in messages {
            for sender in &mut many {
                psn += 1;
                expected[*owner] += 1;
                send(sender, &mut Parcel { opcode: Opcode::UdSendOnly, to: *to, psn, payload, count: 1 }, false);
            }
        }
        wait_for("packets at those who are not stopped", || {
            drive(alive);
            alive.iter().zip(&expected).all(|(process, expected)| process.got.len() == *expected)
        });
    };
    let request = |port: u16| {
        let service_id = ServiceId::ip(PortSpace::Tcp, port);
        let (request_id, pkey) = (CommId::new(1), wire::Pkey::DEFAULT);
        let message = cm::SidrReq { request_id, pkey, service_id, private_data: cm::Data::default() };
        let mut bytes = [0; 256];
        CmDatagram::new(9, Message::SidrReq(message)).encode(&mut bytes).unwrap();
        bytes.to_vec()
    };
    for again in 0..5 {
        let slots: Vec<_> = alive.iter().map(|process| process.slots.take().unwrap()).collect();
        let ports: Vec<_> = alive.iter().map(|process| process.ports.bind(PortSpace::Tcp, 0).unwrap()).collect();
        let fixed = alive[again % 2].ports.bind(PortSpace::Tcp, 7000 + again as u16).unwrap();
        // Those who took something have a table after a moment, though the others do not answer.
        let tables =
            |alive: &[Process]| alive.iter().map(|one| one.attachment.traffic().steered[2].tables).sum::<u64>();
        let before = tables(&alive);
        wait_for("a table of both", || {
            drive(&mut alive);
            tables(&alive) >= before + 2
        });
        let mut messages = vec![(again % 2, Qpn::GSI, request(fixed.number()))];
        for (owner, (slot, port)) in slots.iter().zip(&ports).enumerate() {
            messages.push((owner, slot.qpn(again as u16), b"hello".to_vec()));
            messages.push((owner, Qpn::GSI, request(port.number())));
        }
        exchange(&mut alive, &messages);
    }
    assert!(alive.iter().all(|process| process.lost.is_empty()));
}

/// Packets for one process come without end while others join, are driven for a while, and leave.
fn joining_and_leaving_loses_nothing(_: Rights) {
    const PACKETS: u32 = 20_000;
    // Its index changes all the time: the others join before it and after it, and the first to join leaves first.
    let mut visitors: Vec<Process> = (0..5).map(|_| Process::start()).collect();
    let mut processes = [Process::start()];
    let to = processes[0].slot.qpn(1);
    let mut many = senders(16, Family::V4);
    thread::scope(|scope| {
        let sending = scope.spawn(move || {
            for psn in 0..PACKETS {
                let sender = &mut many[psn as usize % 16];
                send(sender, &mut Parcel { opcode: Opcode::UcSendOnly, to, psn, payload: b"hello", count: 1 }, false);
                thread::sleep(Duration::from_micros(20));
            }
        });
        let mut step = 0;
        while !sending.is_finished() {
            step += 1;
            match step % 40 {
                0 => visitors.push(Process::start()),
                20 => drop(visitors.remove(0)),
                _ => {}
            }
            drive(&mut processes);
            drive(&mut visitors);
        }
    });
    wait_for("every packet", || {
        drive(&mut processes);
        processes[0].got.len() >= PACKETS as usize
    });
    let mut got = std::mem::take(&mut processes[0].got);
    got.sort_unstable();
    assert!(got.into_iter().eq(0..PACKETS));
}

fn a_whole_train_is_forwarded(_: Rights) {
    let mut processes: Vec<_> = (0..4).map(|_| Process::start()).collect();
    let mut senders = senders(10, Family::V4);
    let payload = vec![7; 1024];
    let mut expected = 0;
    for sender in &mut senders {
        for process in &processes {
            let mut parcel =
                Parcel { opcode: Opcode::UcSendMiddle, to: process.slot.qpn(1), psn: 0, payload: &payload, count: 100 };
            send(sender, &mut parcel, false);
        }
        expected += 100;
        wait_for("trains at their owners", || {
            drive(&mut processes);
            processes.iter().all(|process| process.got.len() >= expected)
        });
    }
    for process in &processes {
        // Each train in order: a train is never torn between two ways.
        assert!(process.got.chunks(100).all(|train| train.iter().copied().eq(0..100)));
    }
    let forwarded: u64 = processes.iter().map(|process| process.attachment.traffic().forwarded.packets).sum();
    let messages: u64 = processes.iter().map(|process| process.attachment.traffic().forwarded.messages).sum();
    assert!(forwarded == 0 || forwarded / messages >= 10, "{forwarded} packets in {messages} messages");
}

fn connection_management_finds_its_process(_: Rights) {
    let mut processes: Vec<_> = (0..4).map(|_| Process::start()).collect();
    let listener = processes[1].ports.bind(PortSpace::Tcp, 7471).unwrap();
    let ephemeral = processes[2].ports.bind(PortSpace::Tcp, 0).unwrap();
    let sidr = |service| {
        let message = cm::SidrReq {
            request_id: CommId::new(1),
            pkey: wire::Pkey::DEFAULT,
            service_id: service,
            private_data: cm::Data::default(),
        };
        Message::SidrReq(message)
    };
    let rtu = |id| {
        let message = cm::Rtu { local_comm_id: CommId::new(5), remote_comm_id: id, private_data: cm::Data::default() };
        Message::Rtu(message)
    };
    let mut senders = senders(20, Family::V4);
    let mut tell = |processes: &mut [Process], message: Message, owner: Option<usize>| {
        processes.iter_mut().for_each(|process| process.got.clear());
        let mut bytes = [0; 256];
        CmDatagram::new(9, message).encode(&mut bytes).unwrap();
        let count = senders.len();
        for (psn, sender) in (0..).zip(&mut senders) {
            send(
                sender,
                &mut Parcel { opcode: Opcode::UdSendOnly, to: Qpn::GSI, psn, payload: &bytes, count: 1 },
                false,
            );
        }
        wait_for("messages at their owner", || {
            drive(processes);
            processes.iter().map(|process| process.got.len()).sum::<usize>() == count
        });
        if let Some(owner) = owner {
            assert_eq!(processes[owner].got.len(), count, "{message:?}");
        }
    };
    tell(&mut processes, sidr(ServiceId::ip(PortSpace::Tcp, listener.number())), Some(1));
    tell(&mut processes, sidr(ServiceId::ip(PortSpace::Tcp, ephemeral.number())), Some(2));
    // No process listens there, and none has this communication: the one that gets it has to refuse.
    tell(&mut processes, sidr(ServiceId::ip(PortSpace::Udp, listener.number())), None);
    tell(&mut processes, sidr(ServiceId::new(0x1122_3344_5566_7788)), None);
    let free =
        (1..=Slot::COUNT).filter_map(Slot::new).find(|slot| processes.iter().all(|process| process.slot != *slot));
    tell(&mut processes, rtu(free.unwrap().communication(3)), None);
    for owner in [0, 3] {
        let id = processes[owner].slot.communication(77);
        tell(&mut processes, rtu(id), Some(owner));
    }
}

/// A peer that gives up before it is answered has not learnt the id of the process that it asked.
fn who_gives_up_is_heard_by_every_process(_: Rights) {
    let mut processes: Vec<_> = (0..4).map(|_| Process::start()).collect();
    let rej = |reason| {
        let message = cm::Rej {
            local_comm_id: CommId::new(5),
            remote_comm_id: CommId::new(0),
            rejected: cm::RejectedMessage::NoMessage,
            info_length: 0,
            reason,
            info: cm::Data::default(),
            private_data: cm::Data::default(),
        };
        let mut bytes = [0; 256];
        CmDatagram::new(9, Message::Rej(message)).encode(&mut bytes).unwrap();
        bytes
    };
    let mut senders = senders(20, Family::V4);
    let mut tell = |processes: &mut [Process], reason, copies: usize| {
        processes.iter_mut().for_each(|process| process.got.clear());
        let payload = rej(reason);
        for (psn, sender) in (0..).zip(&mut senders) {
            let mut parcel = Parcel { opcode: Opcode::UdSendOnly, to: Qpn::GSI, psn, payload: &payload, count: 1 };
            send(sender, &mut parcel, false);
        }
        wait_for("refusals", || {
            drive(processes);
            processes.iter().map(|process| process.got.len()).sum::<usize>() >= senders.len() * copies
        });
        // Another look: no process gets one twice, or passes on what was passed on.
        drive(processes);
        processes.iter_mut().for_each(|process| process.got.sort_unstable());
        processes.iter().map(|process| process.got.clone()).collect::<Vec<_>>()
    };
    let all: Vec<u32> = (0..20).collect();
    let count = processes.len();
    let got = tell(&mut processes, cm::RejectReason::Timeout, count);
    assert!(got.iter().all(|got| *got == all), "{got:?}");
    // Other refusals name whom they are for, or nobody.
    let got = tell(&mut processes, cm::RejectReason::Consumer, 1);
    assert_eq!(got.iter().map(Vec::len).sum::<usize>(), 20, "{got:?}");
}

fn faults_happen_before_the_icrc(_: Rights) {
    let mut processes = [Process::start()];
    processes[0].attachment.inject(Some("drop@1..10,corrupt@11..30,dup@31,delay=1ms..2ms".parse().unwrap()));
    let mut sender = Sender::open(Family::V4).unwrap();
    let to = processes[0].slot.qpn(3);
    send(&mut sender, &mut Parcel { opcode: Opcode::UcSendMiddle, to, psn: 1, payload: &[1; 256], count: 50 }, false);
    let start = Instant::now();
    wait_for("what was not lost", || {
        drive(&mut processes);
        processes[0].got.len() == 21
    });
    assert!(start.elapsed() >= Duration::from_millis(1));
    let mut got = processes[0].got.clone();
    got.sort_unstable();
    got.dedup();
    assert!(got.into_iter().eq(31..=50), "{:?}", processes[0].got);
    assert_eq!(processes[0].attachment.traffic().damaged, 20);
}

fn a_port_that_is_not_shared_is_taken_until_it_is_free(_: Rights) {
    let plain = UdpSocket::bind("0.0.0.0:4791").unwrap();
    let mut process = [Process::start()];
    let error = process[0].attachment.error(Family::V4).expect("the port is taken");
    assert!(matches!(error, BindError::Taken), "{error}");
    assert!(error.to_string().contains("Soft-RoCE"));
    assert!(process[0].attachment.deadline().is_some());
    drop(plain);
    wait_for("the port", || {
        drive(&mut process);
        process[0].attachment.error(Family::V4).is_none()
    });
    assert_eq!(round(&mut process, &mut senders(3, Family::V4), false), 0);
}

fn a_forked_child_keeps_nothing_alive(_: Rights) {
    for careful in [true, false] {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let parent = fork(|| {
            let process = Process::start();
            let ports = [7000, 0].map(|port| process.ports.bind(PortSpace::Tcp, port).unwrap());
            let mut all = Some((process, ports));
            let child = fork(|| {
                if careful {
                    host::descriptor::close_in_child();
                    assert_eq!(host::descriptor::kept(), 0);
                    // What the child sees of its parent's objects is dead, and can be used and dropped without harm.
                    let (mut process, ports) = all.take().unwrap();
                    assert_eq!(process.attachment.fd(), -1);
                    process.drive();
                    assert!(process.got.is_empty());
                    drop((process, ports));
                }
                sleep_long()
            });
            (&writer).write_all(&child.to_ne_bytes()).unwrap();
            sleep_long()
        });
        drop(writer);
        let mut child = [0; 4];
        reader.read_exact(&mut child).unwrap();
        let child = i32::from_ne_bytes(child);
        let names = || Name::of_this_host().unwrap();
        wait_for("the names of the parent", || names().len() == 3);
        if careful {
            // Give the child time to let go.
            wait_for("the child's descriptors", || sockets_of(child) == 0);
        }
        kill(parent);
        wait(parent);
        let port_is_free = || host::holders::holders(Family::V4, 4791).unwrap().is_empty();
        if careful {
            wait_for("the names to vanish", || names().is_empty() && port_is_free());
        } else {
            // This is what it is good for: a child that does not let go keeps everything.
            assert!(names().len() == 3 && !port_is_free());
        }
        // SAFETY: the child is ours though its parent is gone: we wrote down its number, and it sleeps.
        unsafe { libc::kill(child, libc::SIGKILL) };
        wait_for("the names to vanish", || names().is_empty() && port_is_free());
    }
}

/// How many sockets a process has.
fn sockets_of(pid: i32) -> usize {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let is_socket = |path: std::path::PathBuf| path.to_string_lossy().starts_with("socket:");
    descriptors.flatten().filter(|entry| std::fs::read_link(entry.path()).is_ok_and(is_socket)).count()
}
