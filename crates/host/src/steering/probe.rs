//! The probe and its answer. Both look like no RoCE packet: the opcode is one of those left to manufacturers, with a
//! version of the transport header that does not exist. Probes are answered only to this host itself. An answer is,
//! with numbers in network order: the probe's 8 bytes of nonce and 2 of index; 8 that tell sockets apart; 2 bytes each
//! of how many slots, ports and blocks follow; 2 bytes for each slot, and 4 for each port and block, which are their
//! namespace and number.

use crate::descriptor::check_length;
use crate::slots::Slot;
use crate::thread::Shield;
use socket2::SockAddr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use wire::cm::{PortSpace, ServiceId};

/// The first four bytes: opcode, flags with transport version 15, and two letters where the partition is.
pub const PROBE_FIRST_WORD: u32 = 0xff_0f_55_42;

/// What follows the destination, which is 0, so that no program that does not know probes takes it for a slot.
pub const PROBE_SECOND_WORD: u32 = 0x50_52_4f_42;

/// Where the index is.
pub const PROBE_INDEX_OFFSET: u32 = 20;

/// Asks the process that receives it what it owns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Tells the asker that the answer is to this question.
    pub nonce: u64,
    /// The index that it should reach.
    pub index: u16,
}

impl Probe {
    const LENGTH: usize = 24;

    /// The nonce of one that is no question, but says that the group has changed.
    pub const CHANGED: u64 = 0;

    /// As it is sent.
    pub fn bytes(self) -> [u8; Probe::LENGTH] {
        let mut bytes = [0; Probe::LENGTH];
        let (first, rest) = bytes.split_at_mut(4);
        let (_, rest) = rest.split_at_mut(4);
        let (second, rest) = rest.split_at_mut(4);
        let (nonce, rest) = rest.split_at_mut(8);
        let (index, _) = rest.split_at_mut(2);
        first.copy_from_slice(&PROBE_FIRST_WORD.to_be_bytes());
        second.copy_from_slice(&PROBE_SECOND_WORD.to_be_bytes());
        nonce.copy_from_slice(&self.nonce.to_be_bytes());
        index.copy_from_slice(&self.index.to_be_bytes());
        bytes
    }

    /// Reads a datagram that may be one.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Probe> {
        // Most datagrams are something else; the first byte says so.
        if bytes.len() != Probe::LENGTH || bytes.first() != Some(&0xff) {
            return None;
        }
        let (first, rest) = bytes.split_first_chunk::<4>()?;
        let (destination, rest) = rest.split_first_chunk::<4>()?;
        let (second, rest) = rest.split_first_chunk::<4>()?;
        let (nonce, rest) = rest.split_first_chunk::<8>()?;
        let (index, _) = rest.split_first_chunk::<2>()?;
        if (u32::from_be_bytes(*first), *destination, u32::from_be_bytes(*second))
            != (PROBE_FIRST_WORD, [0; 4], PROBE_SECOND_WORD)
        {
            return None;
        }
        Some(Probe { nonce: u64::from_be_bytes(*nonce), index: u16::from_be_bytes(*index) })
    }
}

/// What a process says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbeAnswer {
    /// The number of the question.
    pub nonce: u64,
    /// The place of the socket that answers.
    pub index: u16,
    /// Tells sockets apart.
    pub socket: u64,
    /// The slots of its process.
    pub slots: Vec<Slot>,
    /// The ports of the connection manager that its process has by number, and the blocks of them.
    pub ports: Vec<(PortSpace, u16)>,
    /// The blocks of such ports that its process has.
    pub blocks: Vec<(PortSpace, u16)>,
}

impl ProbeAnswer {
    /// More than these are not told; they are reached by forwarding.
    const MOST_SLOTS: usize = 256;
    const MOST_PORTS: usize = 128;
    const MOST_BLOCKS: usize = 64;

    /// The most bytes of an answer.
    pub const LONGEST: usize =
        24 + 2 * ProbeAnswer::MOST_SLOTS + 4 * (ProbeAnswer::MOST_PORTS + ProbeAnswer::MOST_BLOCKS);

    /// As it is sent.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ProbeAnswer::LONGEST);
        bytes.extend(self.nonce.to_be_bytes());
        bytes.extend(self.index.to_be_bytes());
        bytes.extend(self.socket.to_be_bytes());
        let slots = self.slots.get(..ProbeAnswer::MOST_SLOTS).unwrap_or(&self.slots);
        let ports = self.ports.get(..ProbeAnswer::MOST_PORTS).unwrap_or(&self.ports);
        let blocks = self.blocks.get(..ProbeAnswer::MOST_BLOCKS).unwrap_or(&self.blocks);
        bytes.extend([slots.len(), ports.len(), blocks.len()].iter().flat_map(|count| (*count as u16).to_be_bytes()));
        bytes.extend(slots.iter().flat_map(|slot| slot.number().to_be_bytes()));
        let word = |(space, number): &(PortSpace, u16)| ((*space as u32) << 16 | u32::from(*number)).to_be_bytes();
        bytes.extend(ports.iter().chain(blocks).flat_map(word));
        bytes
    }

    /// Reads an answer.
    pub fn parse(bytes: &[u8]) -> Option<ProbeAnswer> {
        let (nonce, rest) = bytes.split_first_chunk::<8>()?;
        let (index, rest) = rest.split_first_chunk::<2>()?;
        let (socket, rest) = rest.split_first_chunk::<8>()?;
        let (counts, rest) = rest.split_first_chunk::<6>()?;
        let mut counts = counts.chunks(2).filter_map(|two| two.try_into().ok().map(u16::from_be_bytes));
        let mut count = |most: usize| counts.next().map(usize::from).filter(|count| *count <= most);
        let (slots, rest) = rest.split_at_checked(2 * count(ProbeAnswer::MOST_SLOTS)?)?;
        let (ports, rest) = rest.split_at_checked(4 * count(ProbeAnswer::MOST_PORTS)?)?;
        let (blocks, _) = rest.split_at_checked(4 * count(ProbeAnswer::MOST_BLOCKS)?)?;
        let slot = |two: &[u8]| Slot::new(u16::from_be_bytes(two.try_into().ok()?));
        let port = |four: &[u8]| {
            let service = ServiceId::new(u32::from_be_bytes(four.try_into().ok()?).into());
            Some((service.port_space()?, service.port()?))
        };
        Some(ProbeAnswer {
            nonce: u64::from_be_bytes(*nonce),
            index: u16::from_be_bytes(*index),
            socket: u64::from_be_bytes(*socket),
            slots: slots.chunks(2).filter_map(slot).collect(),
            ports: ports.chunks(4).filter_map(port).collect(),
            blocks: blocks.chunks(4).filter_map(port).collect(),
        })
    }
}

/// Sends a datagram, if that is possible at once. Polling threads come here with locks, so none is cancelled meanwhile.
pub fn send(fd: RawFd, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
    let _shield = Shield::up();
    let to = SockAddr::from(to);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: bytes and address are live and as long as they say.
    check_length(unsafe { libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, to.as_ptr().cast(), to.len()) })?;
    Ok(())
}

/// A datagram that has arrived; cut off if it is longer than there is room. No thread is cancelled here, as for [`send`].
pub fn receive(fd: RawFd, buffer: &mut [u8]) -> Option<&[u8]> {
    let _shield = Shield::up();
    // SAFETY: the kernel writes at most as much as there is room for.
    let length = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
    buffer.get(..usize::try_from(length).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_reads_as_it_was_written_and_is_no_packet() {
        let probe = Probe { nonce: 0x0123_4567_89ab_cdef, index: 7 };
        let bytes = probe.bytes();
        assert_eq!(Probe::parse(&bytes), Some(probe));
        assert!(wire::Packet::parse(&bytes).is_err());
        for at in 0..12 {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Probe::parse(&other), None);
        }
        assert_eq!(Probe::parse(&bytes[..23]), None);
    }

    #[test]
    fn an_answer_reads_as_it_was_written() {
        let slots = [1, 17, 4094].into_iter().filter_map(Slot::new).collect();
        let ports = vec![(PortSpace::Tcp, 18515), (PortSpace::Ib, 1)];
        let answer = ProbeAnswer { nonce: 5, index: 3, socket: 99, slots, ports, blocks: vec![(PortSpace::Udp, 952)] };
        let bytes = answer.bytes();
        assert_eq!(ProbeAnswer::parse(&bytes), Some(answer.clone()));
        for length in 0..bytes.len() {
            assert_eq!(ProbeAnswer::parse(&bytes[..length]), None);
        }
        // What is no slot, or no port, is left out.
        let mut odd = bytes.clone();
        odd[24..26].copy_from_slice(&[0xff, 0xff]);
        odd[30..32].copy_from_slice(&[0xff, 0xff]);
        let read = ProbeAnswer::parse(&odd).unwrap();
        assert_eq!((read.slots.as_slice(), read.ports.as_slice()), (&answer.slots[1..], &answer.ports[1..]));
        let many = ProbeAnswer { slots: (1..=300).filter_map(Slot::new).collect(), ..answer };
        assert_eq!(ProbeAnswer::parse(&many.bytes()).unwrap().slots.len(), 256);
    }
}
