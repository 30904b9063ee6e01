//! The program: classic BPF that reads a UDP payload and answers with the index of a socket, or with a number that no socket has, upon which
//! the kernel hashes as if there were no program. Reading beyond the end of a packet ends the program with index 0: whoever that is forwards.

use super::probe;
use crate::descriptor::check;
use crate::slots::Slot;
use std::io;
use std::os::fd::RawFd;
use wire::cm::MessageKind;

/// More slots than this do not fit: a program has at most 4096 instructions.
pub(crate) const MOST_SLOTS: usize = 1000;

/// Not the index of any socket.
const ANY: u32 = u32::MAX;

/// Up to this many slots are compared one after the other.
const LEAF: usize = 4;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_LOADED: u16 = (libc::BPF_RET | BPF_A) as u16;
/// Missing from `libc`.
const BPF_A: u32 = 0x10;

/// Where things are in a packet: destination in the BTH; behind BTH and DETH the MAD header with its attribute, and behind that the body of
/// a message of connection management, which begins with the sender's communication id and, in all but the first, goes on with the receiver's.
const DESTINATION: u32 = 4;
const ATTRIBUTE: u32 = 12 + 8 + 16;
const SENDERS_ID: u32 = 12 + 8 + 24;
const RECEIVERS_ID: u32 = SENDERS_ID + 4;

fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// The program for a table in the order of its slots.
pub(crate) fn build(table: &[(Slot, u32)]) -> Vec<libc::sock_filter> {
    let table = table.get(..MOST_SLOTS).unwrap_or(table);
    let kind = |kind: MessageKind| u32::from(kind.attribute_id());
    let mut program = vec![
        // A probe names the index itself.
        statement(LOAD_WORD, 0),
        branch(IF_EQUAL, probe::FIRST, 0, 4),
        statement(LOAD_WORD, 8),
        branch(IF_EQUAL, probe::SECOND, 0, 2),
        statement(LOAD_HALF, probe::INDEX),
        statement(RETURN_LOADED, 0),
        // The slot in the destination, unless that is queue pair 1.
        statement(LOAD_WORD, DESTINATION),
        statement(AND, 0xff_ffff),
        branch(IF_EQUAL, 1, 2, 0),
        statement(SHIFT_RIGHT, 12),
        statement(JUMP, 9),
        // A request of connection management has no owner yet. The reply to a resolution has our id where others have the sender's.
        statement(LOAD_HALF, ATTRIBUTE),
        branch(IF_EQUAL, kind(MessageKind::Req), 1, 0),
        branch(IF_EQUAL, kind(MessageKind::SidrReq), 0, 1),
        statement(RETURN, ANY),
        branch(IF_EQUAL, kind(MessageKind::SidrRep), 0, 2),
        statement(LOAD_WORD, SENDERS_ID),
        statement(JUMP, 1),
        statement(LOAD_WORD, RECEIVERS_ID),
        statement(SHIFT_RIGHT, 20),
    ];
    search(&mut program, table);
    program
}

/// Finds the slot that is loaded, and answers its index.
fn search(program: &mut Vec<libc::sock_filter>, table: &[(Slot, u32)]) {
    if table.len() > LEAF {
        let (low, high) = table.split_at(table.len() / 2);
        let Some((middle, _)) = high.first() else { return };
        // Conditional jumps reach 255 instructions, others any number.
        program.push(branch(IF_AT_LEAST, middle.number().into(), 0, 1));
        let jump = program.len();
        program.push(statement(JUMP, 0));
        search(program, low);
        let distance = program.len() - jump - 1;
        if let Some(jump) = program.get_mut(jump) {
            jump.k = distance as u32;
        }
        search(program, high);
        return;
    }
    for (slot, index) in table {
        program.push(branch(IF_EQUAL, slot.number().into(), 0, 1));
        program.push(statement(RETURN, *index));
    }
    program.push(statement(RETURN, ANY));
}

/// Gives a program to the group that a socket is in.
pub(crate) fn attach(socket: RawFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` instructions, which are live.
    check(unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, (&raw const program).cast(), size)
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
                AND => a &= k,
                SHIFT_RIGHT => a >>= k,
                JUMP => at += k as usize,
                IF_EQUAL => at += usize::from(if a == k { jt } else { jf }),
                IF_AT_LEAST => at += usize::from(if a >= k { jt } else { jf }),
                RETURN => return k,
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

    fn table(count: usize) -> Vec<(Slot, u32)> {
        (0..count).map(|n| (Slot::new(3 + 4 * n as u16).unwrap(), n as u32 % 50)).collect()
    }

    #[test]
    fn every_slot_of_the_table_finds_its_index() {
        for count in [0, 1, 4, 5, 63, MOST_SLOTS] {
            let table = table(count);
            let program = build(&table);
            assert!(program.len() <= 4096, "{}", program.len());
            for (slot, index) in &table {
                assert_eq!(run(&program, &packet(slot.qpn(0x123).value())), *index, "{slot:?}");
                let next = Slot::new(slot.number() + 1).unwrap();
                assert_eq!(run(&program, &packet(next.qpn(0).value())), ANY);
            }
            assert_eq!(run(&program, &packet(0)), ANY);
            assert_eq!(run(&program, &packet(0xff_ffff)), ANY);
            assert_eq!(run(&program, &[1, 2, 3]), 0);
        }
    }

    #[test]
    fn replies_of_connection_management_follow_the_communication_id() {
        let table = table(20);
        let program = build(&table);
        let (slot, index) = table[7];
        for kind in MessageKind::ALL {
            let mut bytes = packet(1);
            bytes[36..38].copy_from_slice(&kind.attribute_id().to_be_bytes());
            let ours = slot.communication(77).value().to_be_bytes();
            let at = if *kind == MessageKind::SidrRep { 44 } else { 48 };
            bytes[at..at + 4].copy_from_slice(&ours);
            let expected = if matches!(kind, MessageKind::Req | MessageKind::SidrReq) { ANY } else { index };
            assert_eq!(run(&program, &bytes), expected, "{kind}");
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
        assert_eq!(run(&program, &other), ANY);
    }
}
