//! Several users of one host on one UDP port: one of them has it and passes on what is for the others; who does not
//! have it is not believed. Users and forks are real.

mod network;

use host::arrival::Origin;
use host::forward::Forwarder;
use host::names::Name;
use host::slots::{Slot, Slots};
use link::udp::{Arrival, BindError, Family, Sender};
use network::processes::{Process, drive, fork, kill, round, senders, sleep_long, wait};
use network::{Parcel, Rights, send, wait_for};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::Duration;
use wire::cm::PortSpace;
use wire::{Gid, Headers, IpHeader, Opcode, Packet, Psn, UdpHeader};

fn main() -> ExitCode {
    network::run(&[
        ("another_users_packets_come_through_the_user_with_the_port", another_user),
        ("a_user_without_the_port_is_not_believed", strangers_are_not_believed),
        ("who_holds_another_address_of_the_port_is_not_believed", holders_of_other_addresses_are_not_believed),
        ("squatters_keep_nobody_out", squatters_keep_nobody_out),
        ("a_dead_users_packets_go_to_nobody_else", a_dead_users_packets_go_to_nobody_else),
    ])
}

const OTHER_USER: u32 = 4711;

fn become_another_user() {
    become_user(OTHER_USER);
}

fn become_user(uid: u32) {
    // SAFETY: changes the identity of this process, which is a child with one thread.
    unsafe {
        assert_eq!(libc::setgid(uid), 0);
        assert_eq!(libc::setuid(uid), 0);
    }
}

/// Needs two users; as one user it shows the same between two processes of that user, of which the second joins later.
fn another_user(rights: Rights) {
    if !rights.users {
        println!(
            "  not root: with one user there is nobody else to hold the port; checking the handover between processes"
        );
    }
    let holder = vec![Process::start()];
    let (mut reader, writer) = std::io::pipe().unwrap();
    let child = fork(|| {
        host::descriptor::close_in_child();
        if rights.users {
            become_another_user();
        }
        let mut process = Process::start();
        if rights.users {
            let error = process.attachment.error(Family::V4).expect("root has the port");
            assert!(matches!(error, BindError::OtherUser { uid: 0 }), "{error}");
        }
        (&writer).write_all(&process.slot.number().to_ne_bytes()).unwrap();
        // First through the holder, then, when that has gone, by itself.
        wait_for("forwarded packets", || {
            process.drive();
            process.got.len() == 100
        });
        if rights.users {
            assert_eq!(process.attachment.traffic().collected.packets, 100);
            assert_eq!(process.attachment.traffic().received, 0);
        }
        assert!(process.got.iter().copied().eq(0..100));
        (&writer).write_all(&[1, 1]).unwrap();
        wait_for("the port", || {
            process.drive();
            process.attachment.error(Family::V4).is_none()
                && host::holders::holders(Family::V4, 4791).unwrap().len() == 2
        });
        (&writer).write_all(&[2, 2]).unwrap();
        wait_for("packets of its own", || {
            process.drive();
            process.got.len() == 200
        });
        assert_eq!(process.attachment.traffic().received, 100);
        0
    });
    drop(writer);
    let mut read = || {
        let mut bytes = [0; 2];
        reader.read_exact(&mut bytes).map(|()| u16::from_ne_bytes(bytes))
    };
    let slot = Slot::new(read().unwrap()).unwrap();
    let mut sender = Sender::open(Family::V4).unwrap();
    let mut send_100 = |first| {
        for psn in first..first + 100 {
            let mut parcel = Parcel { opcode: Opcode::UcSendOnly, to: slot.qpn(0), psn, payload: b"x", count: 1 };
            send(&mut sender, &mut parcel, false);
        }
    };
    send_100(0);
    // The holder forwards from a thread of its own while we wait for the child's word.
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut holder = holder;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                drive(&mut holder);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let word = read();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(word.expect("the child got its packets"), 0x0101);
    });
    assert_eq!(read().expect("the child has the port"), 0x0202);
    send_100(100);
    assert_eq!(wait(child), 0);
}

/// Another user binds port 4791 of an address that nobody else wants, and passes on what never came there.
fn holders_of_other_addresses_are_not_believed(rights: Rights) {
    if !rights.users {
        println!("  not root: no second user to mistrust");
        return;
    }
    let mut process = [Process::start()];
    let slot = process[0].slot;
    let child = fork(|| {
        host::descriptor::close_in_child();
        become_another_user();
        // The wildcard of IPv4 is taken, and so is that of IPv6; neither with the right to share it.
        let refused = ["127.0.0.9:4791", "[::1]:4791"].map(|address| UdpSocket::bind(address).is_err());
        assert_eq!(refused, [true; 2], "what we hold nobody else can");
        forward(slot, Psn::new(6), true);
        forward(slot, Psn::new(7), false);
        0
    });
    assert_eq!(wait(child), 0);
    wait_for("both to be refused", || {
        drive(&mut process);
        process[0].attachment.traffic().collected.refused == 2
    });
    assert!(process[0].got.is_empty());
    // Not even our own user passes on what is damaged.
    forward(slot, Psn::new(8), false);
    forward(slot, Psn::new(9), true);
    wait_for("both", || {
        drive(&mut process);
        process[0].attachment.traffic().collected.refused == 3 && !process[0].got.is_empty()
    });
    assert_eq!(process[0].got, [9]);
}

/// Passes on a packet that never was, with the right ICRC or another.
fn forward(slot: Slot, psn: Psn, intact: bool) {
    let address = Gid::from_ip(network::loopback(false));
    let packet = Packet { headers: Headers::new(Opcode::UcSendOnly, slot.qpn(0), psn), payload: b"forged" };
    let ip = IpHeader::udp(address, address, packet.encoded_length()).unwrap();
    let mut bytes = [0; 64];
    let length = packet.encode(&ip, &UdpHeader::roce(1, packet.encoded_length()).unwrap(), &mut bytes).unwrap();
    let Packet { headers, payload } = packet;
    if !intact {
        bytes[length - 1] ^= 1;
    }
    let bytes = &bytes[..length];
    let arrival = Arrival { headers, payload, ip, bytes, port: 1, origin: Origin::Forwarded, ..Arrival::NONE };
    let mut forwarder = Forwarder::new();
    forwarder.push(Name::Slot(slot), &arrival, |_, loss| panic!("{loss:?}"));
    forwarder.flush(|_, loss| panic!("{loss:?}"));
}

/// Another user binds every slot and every block of ports. There is a NIC all the same, with ports, and it is found.
fn squatters_keep_nobody_out(rights: Rights) {
    if !rights.users {
        println!("  not root: no second user to squat");
        return;
    }
    // SAFETY: a live limit that the kernel reads.
    unsafe {
        let many = libc::rlimit { rlim_cur: 20_000, rlim_max: 20_000 };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const many), 0);
    }
    let (mut reader, writer) = std::io::pipe().unwrap();
    let child = fork(|| {
        host::descriptor::close_in_child();
        become_another_user();
        let slots = (1..=Slot::COUNT).filter_map(Slot::new).map(Name::Slot);
        let blocks = (0..1024).map(|block| Name::Block(PortSpace::Tcp, block));
        let squat = |(at, name): (usize, Name)| {
            let socket = host::names::socket().unwrap();
            // Half of them listen, and the others cannot even be asked.
            if at % 2 == 0 {
                host::names::listen(&socket, name).unwrap();
            } else {
                host::names::bind(&socket, name).unwrap();
            }
            socket
        };
        let squatted: Vec<_> = slots.chain(blocks).enumerate().map(squat).collect();
        (&writer).write_all(&[1]).unwrap();
        let status = sleep_long();
        drop(squatted);
        status
    });
    reader.read_exact(&mut [0]).unwrap();
    let mut processes: Vec<_> = (0..20).map(|_| Process::start()).collect();
    let mut slots: Vec<_> = processes.iter().map(|process| process.slot.number()).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 20, "each has one of its own");
    let ports: Vec<_> = processes.iter().map(|process| process.ports.bind(PortSpace::Tcp, 0).unwrap()).collect();
    let listener = processes[3].ports.bind(PortSpace::Tcp, 7471).unwrap();
    assert!(ports.iter().all(|port| port.number() != listener.number()));
    round(&mut processes, &mut senders(10, Family::V4), false);
    kill(child);
    wait(child);
}

/// A process of another user, whose packets we pass on, is killed. A third user binds its slot at once.
fn a_dead_users_packets_go_to_nobody_else(rights: Rights) {
    if !rights.users {
        println!("  not root: no other users");
        return;
    }
    let mut holder = [Process::start()];
    let (mut reader, writer) = std::io::pipe().unwrap();
    let start = |uid: u32, slot: Option<Slot>| {
        fork(|| {
            host::descriptor::close_in_child();
            become_user(uid);
            let slots = Slots::open().unwrap();
            let slot = match slot {
                Some(slot) => {
                    let socket = host::names::socket().unwrap();
                    host::names::listen_patiently(&socket, Name::Slot(slot)).unwrap();
                    slots.registry().enter(Name::Slot(slot), socket).unwrap();
                    slot
                }
                None => slots.take().unwrap(),
            };
            let mut inbox = host::forward::Inbox::new(&slots);
            inbox.rely_on_others_for(vec![
                (Family::V4, host::family::Scope::Everywhere),
                (Family::V4, host::family::Scope::Inside),
            ]);
            (&writer).write_all(&slot.number().to_ne_bytes()).unwrap();
            loop {
                let mut count = 0u16;
                inbox.receive(|_| count += 1).unwrap();
                if count > 0 {
                    (&writer).write_all(&count.to_ne_bytes()).unwrap();
                }
            }
        })
    };
    let mut read = || {
        let mut bytes = [0; 2];
        reader.read_exact(&mut bytes).unwrap();
        u16::from_ne_bytes(bytes)
    };
    let victim = start(OTHER_USER, None);
    let slot = Slot::new(read()).unwrap();
    let mut sender = Sender::open(Family::V4).unwrap();
    let mut send_one = |holder: &mut [Process], psn| {
        let mut parcel = Parcel { opcode: Opcode::UcSendOnly, to: slot.qpn(0), psn, payload: b"secret", count: 1 };
        send(&mut sender, &mut parcel, false);
        drive(holder);
    };
    send_one(&mut holder, 1);
    wait_for("the packet to be passed on", || {
        drive(&mut holder);
        holder[0].attachment.traffic().forwarded.packets == 1
    });
    assert_eq!(read(), 1);
    kill(victim);
    wait(victim);
    // One that may have the slot: then only memory tells that it is another's.
    let heir = (5000..).find(|uid| host::shares::may_have_slot(*uid, slot)).unwrap();
    let thief = start(heir, Some(slot));
    assert_eq!(read(), slot.number());
    for psn in 2..200 {
        send_one(&mut holder, psn);
    }
    wait_for("the packets to be dropped", || {
        drive(&mut holder);
        holder[0].attachment.traffic().forwarded.no_owner == 198
    });
    assert_eq!(holder[0].attachment.traffic().forwarded.packets, 1);
    kill(thief);
    wait(thief);
}

/// Another user that does not hold the port forwards a packet that never was.
fn strangers_are_not_believed(rights: Rights) {
    let mut process = [Process::start()];
    let slot = process[0].slot;
    let forge = move |stranger: bool| {
        host::descriptor::close_in_child();
        if stranger {
            become_another_user();
        }
        let address = Gid::from_ip(network::loopback(false));
        let packet = Packet { headers: Headers::new(Opcode::UcSendOnly, slot.qpn(0), Psn::new(5)), payload: b"forged" };
        let ip = IpHeader::udp(address, address, packet.encoded_length()).unwrap();
        let mut bytes = [0; 64];
        let length = packet.encode(&ip, &UdpHeader::roce(1, packet.encoded_length()).unwrap(), &mut bytes).unwrap();
        let Packet { headers, payload } = packet;
        let bytes = &bytes[..length];
        let arrival = Arrival {
            headers,
            payload,
            ip,
            bytes,
            port: 1,
            interface: 0,
            congestion_marked: false,
            origin: Origin::Forwarded,
        };
        let mut forwarder = Forwarder::new();
        forwarder.push(Name::Slot(slot), &arrival, |_, loss| panic!("{loss:?}"));
        forwarder.flush(|_, loss| panic!("{loss:?}"));
        0
    };
    assert_eq!(wait(fork(|| forge(false))), 0);
    wait_for("the packet of our own user", || {
        drive(&mut process);
        process[0].got == [5]
    });
    if !rights.users {
        println!("  not root: no second user to mistrust");
        return;
    }
    assert_eq!(wait(fork(|| forge(true))), 0);
    wait_for("the stranger to be refused", || {
        drive(&mut process);
        process[0].attachment.traffic().collected.refused == 1
    });
    let untrusted = |dropped: &link::Dropped| dropped.reason == trace::DropReason::Untrusted;
    assert!(process[0].attachment.take_drops().iter().any(untrusted), "and that is told");
    assert_eq!(process[0].got, [5]);
}
