//! Multicast groups of several processes on one UDP port: each in a group gets one of every packet sent to it, whatever
//! is steered elsewhere. The "processes" are attachments within this one.

mod network;

use host::ports::Ports;
use host::slots::{Slot, Slots};
use link::udp::attachment::Attachment;
use link::udp::{Family, Group, Route, Sender};
use network::{Parcel, Rights, loopback, wait_for};
use std::net::IpAddr;
use std::process::ExitCode;
use wire::{Opcode, Qpn};

fn main() -> ExitCode {
    network::run(&[
        ("everybody_in_a_group_gets_one_of_each_and_nobody_else_does", everybody_gets_one),
        ("no_group_can_be_joined_without_the_port", without_the_port),
        ("a_group_that_cannot_be_is_refused", bad_groups),
    ])
}

/// The loopback device of a namespace is its first.
const LO: u32 = 1;

/// A group, and from where it is reached.
struct Place {
    family: Family,
    address: IpAddr,
    source: IpAddr,
    interface: u32,
}

/// IPv6 has no multicast on the loopback device; there a cable must do, both of whose ends are here.
fn cable() -> bool {
    [
        "link add left type veth peer name right",
        "link set left up",
        "link set right up",
        "address add fd77::1/64 dev left nodad",
    ]
    .into_iter()
    .all(|arguments| {
        let status = std::process::Command::new("ip").args(arguments.split(' ')).status();
        status.expect("ip is missing: apt-get install iproute2").success()
    })
}

fn places() -> [Place; 3] {
    let place = |family, address: &str, source: &str, name: &std::ffi::CStr| {
        // SAFETY: a name that ends.
        let interface = unsafe { libc::if_nametoindex(name.as_ptr()) };
        Place { family, address: address.parse().unwrap(), source: source.parse().unwrap(), interface }
    };
    [
        place(Family::V4, "239.77.0.1", "127.0.0.1", c"lo"),
        place(Family::V6, "ff15::77", "fd77::1", c"left"),
        // Of this link only: it needs the interface to mean anything.
        place(Family::V6, "ff02::77", "fd77::1", c"left"),
    ]
}

struct Process {
    slot: Slot,
    attachment: Attachment,
    /// Number, destination and interface of each packet.
    got: Vec<(u32, IpAddr, u32)>,
}

impl Process {
    fn start(port: u16) -> Process {
        let slots = Slots::open().unwrap();
        let slot = slots.take().unwrap();
        let attachment = Attachment::open_port(&slots, &Ports::new(&slots), port).unwrap();
        Process { slot, attachment, got: Vec::new() }
    }

    fn drive(&mut self) {
        let Process { attachment, got, .. } = self;
        attachment.receive(
            |arrival| {
                let psn = arrival.headers.bth.psn.value();
                got.push((psn, arrival.destination().to_ip(), arrival.interface));
            },
            |_, loss| panic!("{loss:?}"),
        );
    }
}

fn send(sender: &mut Sender, source: IpAddr, destination: IpAddr, scope: u32, to: Qpn, psn: u32) {
    let route = Route { source, destination, scope, traffic_class: 0, hop_limit: 9 };
    let mut parcel = Parcel { opcode: Opcode::UdSendOnly, to, psn, payload: b"to all of you", count: 1 };
    sender.send(&route, &mut parcel, false).unwrap();
}

/// What arrives at each process until a packet to it alone, sent last, has arrived.
fn harvest(processes: &mut [Process], sender: &mut Sender, v6: bool) -> Vec<Vec<(u32, IpAddr, u32)>> {
    let mut all = Vec::new();
    for at in 0..processes.len() {
        send(sender, loopback(v6), loopback(v6), 0, processes[at].slot.qpn(0), 999);
        wait_for("the last packet", || {
            processes.iter_mut().for_each(Process::drive);
            processes[at].got.iter().any(|(psn, ..)| *psn == 999)
        });
    }
    for process in processes {
        process.got.retain(|(psn, ..)| *psn != 999);
        all.push(std::mem::take(&mut process.got));
    }
    all
}

fn everybody_gets_one(rights: Rights) {
    let laid = cable();
    assert!(laid || !rights.users, "ip refused to lay a cable");
    for Place { family, address, source, interface } in places() {
        if interface == 0 {
            println!("  not root: no cable, so nothing over IPv6");
            continue;
        }
        let v6 = family == Family::V6;
        let mut processes: Vec<_> = (0..3).map(|_| Process::start(wire::ROCE_PORT)).collect();
        let mut sender = Sender::open(family).unwrap();
        let group = Group { address, interface };
        send(&mut sender, source, address, interface, Qpn::MULTICAST, 1);
        assert_eq!(harvest(&mut processes, &mut sender, v6), [vec![], vec![], vec![]], "nobody is in the group");

        // Twice is as good as once, until it is left twice.
        for at in [0, 0, 1] {
            processes[at].attachment.join(group).unwrap();
        }
        let to_one = processes[2].slot.qpn(7);
        for psn in 2..5 {
            send(&mut sender, source, address, interface, Qpn::MULTICAST, psn);
            // A number of one, sent to all: nobody's.
            send(&mut sender, source, address, interface, to_one, 100 + psn);
        }
        let each: Vec<_> = (2..5).map(|psn| (psn, address, interface)).collect();
        assert_eq!(harvest(&mut processes, &mut sender, v6), [each.clone(), each, vec![]]);

        for process in &mut processes {
            process.attachment.leave(group);
        }
        send(&mut sender, source, address, interface, Qpn::MULTICAST, 5);
        assert_eq!(harvest(&mut processes, &mut sender, v6), [vec![(5, address, interface)], vec![], vec![]]);
        processes[0].attachment.leave(group);
        send(&mut sender, source, address, interface, Qpn::MULTICAST, 6);
        assert_eq!(harvest(&mut processes, &mut sender, v6), [vec![], vec![], vec![]]);
    }
}

fn without_the_port(_: Rights) {
    const PORT: u16 = 48_001;
    let address = "239.77.0.1".parse().unwrap();
    let group = Group { address, interface: LO };
    let holder = std::net::UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
    let mut process = Process::start(PORT);
    let refused = process.attachment.join(group).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EADDRINUSE));
    drop(holder);
    wait_for("the port", || {
        process.drive();
        process.attachment.error(Family::V4).is_none()
    });
    process.attachment.join(group).unwrap();
}

fn bad_groups(_: Rights) {
    let mut process = Process::start(wire::ROCE_PORT);
    let refused = process.attachment.join(Group { address: loopback(false), interface: LO }).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    let address = "239.77.0.1".parse().unwrap();
    let refused = process.attachment.join(Group { address, interface: 4711 }).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENODEV));
    // What was refused was not joined, and leaving it is nothing.
    process.attachment.leave(Group { address, interface: 4711 });
}
