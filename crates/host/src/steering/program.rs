//! The program: classic BPF that reads a UDP payload and returns the index of a socket. Packets for a queue pair,
//! messages about a connection, and answers to a management agent go to the process that has the slot; requests for a
//! connection go to the process that has the port. What has no owner in the table goes to one socket, whose process was
//! alive when the table was made: it forwards. Slots without an owner may go to another one. No packet is left to the kernel's hash, which would pick any process, a
//! stopped one too. Reading beyond the end of a packet ends the program with index 0: the process there forwards.

use super::probe;
use crate::descriptor::check;
use crate::ports::PORTS_PER_BLOCK;
use crate::slots::Slot;
use std::io;
use std::os::fd::RawFd;
use wire::cm::{MessageKind, PortSpace};
use wire::mad::MadHeader;

/// More slots, and more ports and blocks of ports, than these do not fit: a program has at most 4096 instructions.
pub const MOST_SLOTS: usize = 1000;
/// See above.
pub const MOST_PORTS: usize = 400;

/// Not the index of any socket: the kernel hashes as if there were no program.
pub const NO_SOCKET_INDEX: u32 = u32::MAX;

/// Up to this many keys are compared one after the other.
const MAX_LEAF_KEYS: usize = 4;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const BPF_AND_CONSTANT: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const BPF_JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const BPF_RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_LOADED: u16 = (libc::BPF_RET | BPF_A) as u16;
/// Missing from `libc`.
const BPF_A: u32 = 0x10;

/// Where things are in a packet: destination in the BTH; behind BTH and DETH the MAD header with its attribute, and
/// behind that the body of a message of connection management, which begins with the sender's communication id and, in
/// all but the first, goes on with the receiver's.
const DESTINATION_OFFSET: u32 = 4;
/// Version of the format and class, in the MAD header; version of the class and method; the upper half of the
/// transaction, which names the agent that asked.
const CLASS_OFFSET: u32 = 12 + 8;
const METHOD_OFFSET: u32 = CLASS_OFFSET + 2;
const AGENT_OFFSET: u32 = CLASS_OFFSET + 8;
const ATTRIBUTE_OFFSET: u32 = 12 + 8 + 16;
const SENDERS_ID: u32 = 12 + 8 + 24;
const RECEIVERS_ID: u32 = SENDERS_ID + 4;
/// The service that a request asks for: of a port, the upper half is zero, and the lower is the namespace and the port.
const SERVICE_OFFSET: u32 = SENDERS_ID + 8;

/// Which socket of the group gets what.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table {
    /// By slot, in order.
    pub slots: Vec<(Slot, u32)>,
    /// By port of the connection manager, in order.
    pub ports: Vec<((PortSpace, u16), u32)>,
    /// By block of such ports, in order.
    pub blocks: Vec<((PortSpace, u16), u32)>,
    /// Slots that are not in the table.
    pub other_slots: u32,
    /// All else.
    pub otherwise: u32,
}

impl Table {
    /// Everything to one socket.
    pub fn all_to(index: u32) -> Table {
        Table { other_slots: index, otherwise: index, ..Table::default() }
    }
}

/// Where the program goes on when a key is not in a list: instructions to be completed.
type Misses = Vec<usize>;

fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// The program for a table.
pub fn build(table: &Table) -> Vec<libc::sock_filter> {
    let kind = |kind: MessageKind| u32::from(kind.attribute_id());
    let mut program = vec![
        // A probe names the index itself.
        statement(LOAD_WORD, 0),
        branch(IF_EQUAL, probe::PROBE_FIRST_WORD, 0, 4),
        statement(LOAD_WORD, 8),
        branch(IF_EQUAL, probe::PROBE_SECOND_WORD, 0, 2),
        statement(LOAD_HALF, probe::PROBE_INDEX_OFFSET),
        statement(RETURN_LOADED, 0),
        // The slot in the destination, unless that is queue pair 1.
        statement(LOAD_WORD, DESTINATION_OFFSET),
        statement(BPF_AND_CONSTANT, 0xff_ffff),
        branch(IF_EQUAL, 1, 2, 0),
        statement(SHIFT_RIGHT, 12),
    ];
    let mut to_slots = vec![jump(&mut program)];
    // Of other management, answers are for the process that asked; requests name none.
    let cm = u32::from(MadHeader::BASE_VERSION) << 8 | u32::from(MadHeader::CLASS_CM);
    program.extend([
        statement(LOAD_HALF, CLASS_OFFSET),
        branch(IF_EQUAL, cm, 7, 0),
        statement(LOAD_HALF, METHOD_OFFSET),
        statement(BPF_AND_CONSTANT, MadHeader::RESPONSE.into()),
        branch(IF_EQUAL, 0, 3, 0),
        statement(LOAD_WORD, AGENT_OFFSET),
        statement(SHIFT_RIGHT, 20),
    ]);
    to_slots.push(jump(&mut program));
    let mut unknown = vec![jump(&mut program)];
    program.extend([
        // A request of connection management names a service. The reply to a resolution has our id where others have
        // the sender's.
        statement(LOAD_HALF, ATTRIBUTE_OFFSET),
        branch(IF_EQUAL, kind(MessageKind::Req), 7, 0),
        branch(IF_EQUAL, kind(MessageKind::SidrReq), 6, 0),
        branch(IF_EQUAL, kind(MessageKind::SidrRep), 0, 2),
        statement(LOAD_WORD, SENDERS_ID),
        statement(BPF_JUMP, 1),
        statement(LOAD_WORD, RECEIVERS_ID),
        statement(SHIFT_RIGHT, 20),
    ]);
    to_slots.push(jump(&mut program));
    program.extend([statement(LOAD_WORD, SERVICE_OFFSET), branch(IF_EQUAL, 0, 1, 0)]);
    unknown.push(jump(&mut program));
    program.push(statement(LOAD_WORD, SERVICE_OFFSET + 4));
    let service = |list: &[((PortSpace, u16), u32)], width: u32, most: usize| -> Vec<(u32, u32)> {
        let key = |space: PortSpace, number: u16| (space as u32) << (16 - width) | u32::from(number);
        list.iter().take(most).map(|((space, number), index)| (key(*space, *number), *index)).collect()
    };
    let ports = service(&table.ports, 0, MOST_PORTS);
    let blocks = service(&table.blocks, PORTS_PER_BLOCK.ilog2(), MOST_PORTS - ports.len());
    let mut not_by_port = Misses::new();
    search(&mut program, &ports, &mut not_by_port);
    land(&mut program, &not_by_port);
    program.push(statement(SHIFT_RIGHT, PORTS_PER_BLOCK.ilog2()));
    search(&mut program, &blocks, &mut unknown);
    land(&mut program, &to_slots);
    let slots: Vec<_> =
        table.slots.iter().take(MOST_SLOTS).map(|(slot, index)| (u32::from(slot.number()), *index)).collect();
    let mut other_slots = Misses::new();
    search(&mut program, &slots, &mut other_slots);
    land(&mut program, &other_slots);
    program.push(statement(BPF_RETURN, table.other_slots));
    land(&mut program, &unknown);
    program.push(statement(BPF_RETURN, table.otherwise));
    program
}

/// Begins a jump; answers where it is.
fn jump(program: &mut Vec<libc::sock_filter>) -> usize {
    program.push(statement(BPF_JUMP, 0));
    program.len() - 1
}

/// Those jumps lead to what follows.
fn land(program: &mut [libc::sock_filter], jumps: &[usize]) {
    let here = program.len();
    for at in jumps {
        if let Some(jump) = program.get_mut(*at) {
            jump.k = (here - at - 1) as u32;
        }
    }
}

/// Finds the key that is loaded in a list that is in order, and answers its index.
fn search(program: &mut Vec<libc::sock_filter>, list: &[(u32, u32)], misses: &mut Misses) {
    if list.len() > MAX_LEAF_KEYS {
        let (low, high) = list.split_at(list.len() / 2);
        let Some((middle, _)) = high.first() else { return };
        // Conditional jumps reach 255 instructions, others any number.
        program.push(branch(IF_AT_LEAST, *middle, 0, 1));
        let to_high = jump(program);
        search(program, low, misses);
        land(program, &[to_high]);
        search(program, high, misses);
        return;
    }
    for (key, index) in list {
        program.push(branch(IF_EQUAL, *key, 0, 1));
        program.push(statement(BPF_RETURN, *index));
    }
    misses.push(jump(program));
}

/// `struct sock_fprog` with its padding named, so that the kernel reads no undefined bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SocketFilter {
    length: u16,
    padding: [u8; size_of::<usize>() - size_of::<u16>()],
    program: *const libc::sock_filter,
}

impl SocketFilter {
    /// So many instructions.
    pub fn new(length: u16, program: *const libc::sock_filter) -> SocketFilter {
        SocketFilter { length, padding: Default::default(), program }
    }
}

const _: () = assert!(size_of::<SocketFilter>() == size_of::<libc::sock_fprog>());

/// Takes a socket out of its group: the kernel gives it nothing more, and what it has can still be read. A socket leaves
/// its group when it is bound to an interface, and no packet comes by this one. Linux before 5.7 may refuse.
pub fn leave_group(socket: RawFd) -> io::Result<()> {
    let interface = libc::c_int::MAX;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option value is a live `c_int` of the size given.
    check(unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, (&raw const interface).cast(), size)
    })?;
    Ok(())
}

/// Gives a program to the group that a socket is in.
pub fn attach(socket: RawFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = SocketFilter::new(length, program.as_ptr());
    let size = size_of::<SocketFilter>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` instructions, which are live.
    check(unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, (&raw const program).cast(), size)
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::cm::ServiceId;

    /// Runs a program as the kernel would.
    fn run(program: &[libc::sock_filter], packet: &[u8]) -> u32 {
        let (mut at, mut a) = (0usize, 0u32);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let load = |length: usize| {
                let bytes = packet.get(k as usize..k as usize + length)?;
                Some(bytes.iter().fold(0u32, |value, byte| value << 8 | u32::from(*byte)))
            };
            match code {
                LOAD_WORD | LOAD_HALF => match load(if code == LOAD_WORD { 4 } else { 2 }) {
                    Some(value) => a = value,
                    None => return 0,
                },
                BPF_AND_CONSTANT => a &= k,
                SHIFT_RIGHT => a >>= k,
                BPF_JUMP => at += k as usize,
                IF_EQUAL => at += usize::from(if a == k { jt } else { jf }),
                IF_AT_LEAST => at += usize::from(if a >= k { jt } else { jf }),
                BPF_RETURN => return k,
                RETURN_LOADED => return a,
                other => panic!("{other:#x}"),
            }
        }
    }

    fn packet(qpn: u32) -> Vec<u8> {
        let mut bytes = vec![0; 300];
        bytes[0] = 0x64;
        bytes[4..8].copy_from_slice(&(0xc000_0000 | qpn).to_be_bytes());
        bytes
    }

    fn table(count: usize) -> Table {
        let slots = (0..count).map(|n| (Slot::new(3 + 4 * n as u16).unwrap(), n as u32 % 50)).collect();
        let ports = (0..count.min(200) as u16).map(|n| ((PortSpace::Tcp, 7000 + 3 * n), u32::from(n % 50))).collect();
        let blocks = (0..count.min(200) as u16).map(|n| ((PortSpace::Udp, 300 + 2 * n), u32::from(n % 40))).collect();
        Table { slots, ports, blocks, other_slots: 66, otherwise: 77 }
    }

    /// A message of connection management of that kind, which says nothing but this.
    fn message(kind: MessageKind, at: usize, value: &[u8]) -> Vec<u8> {
        let mut bytes = packet(1);
        bytes[20..24].copy_from_slice(&[1, 7, 2, 3]);
        bytes[36..38].copy_from_slice(&kind.attribute_id().to_be_bytes());
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    }

    #[test]
    fn every_slot_of_the_table_finds_its_index() {
        for count in [0, 1, 4, 5, 63, MOST_SLOTS] {
            let table = table(count);
            let program = build(&table);
            assert!(program.len() <= 4096, "{}", program.len());
            for (slot, index) in &table.slots {
                assert_eq!(run(&program, &packet(slot.qpn(0x123).value())), *index, "{slot:?}");
                let next = Slot::new(slot.number() + 1).unwrap();
                assert_eq!(run(&program, &packet(next.qpn(0).value())), 66);
            }
            assert_eq!(run(&program, &packet(0)), 66);
            assert_eq!(run(&program, &packet(0xff_ffff)), 66);
            assert_eq!(run(&program, &[1, 2, 3]), 0);
        }
    }

    #[test]
    fn replies_of_connection_management_follow_the_communication_id() {
        let table = table(20);
        let program = build(&table);
        let (slot, index) = table.slots[7];
        for kind in MessageKind::ALL {
            let ours = slot.communication(77).value().to_be_bytes();
            let at = if *kind == MessageKind::SidrRep { 44 } else { 48 };
            let expected = if matches!(kind, MessageKind::Req | MessageKind::SidrReq) { 77 } else { index };
            assert_eq!(run(&program, &message(*kind, at, &ours)), expected, "{kind}");
        }
    }

    #[test]
    fn answers_to_agents_follow_the_transaction_and_requests_name_nobody() {
        let table = table(20);
        let program = build(&table);
        let (slot, index) = table.slots[7];
        let mut bytes = packet(1);
        bytes[28..32].copy_from_slice(&slot.communication(9).value().to_be_bytes());
        for (class, method, expected) in [(4, 0x81, index), (4, 1, 77), (0x32, 0x83, index), (7, 0x81, 66)] {
            bytes[20..24].copy_from_slice(&[1, class, 1, method]);
            assert_eq!(run(&program, &bytes), expected, "{class} {method}");
        }
    }

    #[test]
    fn requests_follow_the_port() {
        let table = table(MOST_SLOTS);
        let program = build(&table);
        assert!(program.len() <= 4096, "{}", program.len());
        let ask = |kind, space, port| {
            let service = ServiceId::ip(space, port).value().to_be_bytes();
            run(&program, &message(kind, 52, &service))
        };
        for kind in [MessageKind::Req, MessageKind::SidrReq] {
            for ((space, port), index) in &table.ports {
                assert_eq!(ask(kind, *space, *port), *index);
                assert_eq!(ask(kind, *space, port + 1), 77);
                assert_eq!(ask(kind, PortSpace::Ib, *port), 77);
            }
            for ((space, block), index) in &table.blocks {
                assert_eq!(ask(kind, *space, block * PORTS_PER_BLOCK), *index);
                assert_eq!(ask(kind, *space, block * PORTS_PER_BLOCK + 63), *index);
                assert_eq!(ask(kind, *space, (block + 1) * PORTS_PER_BLOCK), 77);
            }
            let ((space, port), _) = table.ports[3];
            let other = 1 << 40 | ServiceId::ip(space, port).value();
            assert_eq!(run(&program, &message(kind, 52, &other.to_be_bytes())), 77);
        }
    }

    #[test]
    fn probes_choose_for_themselves() {
        let program = build(&table(9));
        for index in [0, 1, 500] {
            assert_eq!(run(&program, &probe::Probe { nonce: 1, index }.bytes()), u32::from(index));
        }
        let mut other = probe::Probe { nonce: 1, index: 3 }.bytes();
        other[9] = 0;
        assert_eq!(run(&program, &other), 66);
    }
}
