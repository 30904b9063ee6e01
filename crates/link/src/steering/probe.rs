//! The probe and its answer. Both look like no RoCE packet: the opcode is one of those left to manufacturers, with a version of the transport
//! header that does not exist. Probes are answered only to this host itself.

use crate::descriptor::check_length;
use crate::slots::Slot;
use socket2::SockAddr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;

/// The first four bytes: opcode, flags with transport version 15, and two letters where the partition is.
pub(crate) const FIRST: u32 = 0xff_0f_55_42;

/// What follows the destination, which is 0, so that no program that does not know probes takes it for a slot.
pub(crate) const SECOND: u32 = 0x50_52_4f_42;

/// Where the index is.
pub(crate) const INDEX: u32 = 20;

/// Asks whoever gets it for its slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Probe {
    /// Tells the asker that the answer is to this question.
    pub nonce: u64,
    /// The index that it should reach.
    pub index: u16,
}

impl Probe {
    const LENGTH: usize = 24;

    pub fn bytes(self) -> [u8; Probe::LENGTH] {
        let mut bytes = [0; Probe::LENGTH];
        let (first, rest) = bytes.split_at_mut(4);
        let (_, rest) = rest.split_at_mut(4);
        let (second, rest) = rest.split_at_mut(4);
        let (nonce, rest) = rest.split_at_mut(8);
        let (index, _) = rest.split_at_mut(2);
        first.copy_from_slice(&FIRST.to_be_bytes());
        second.copy_from_slice(&SECOND.to_be_bytes());
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
        if (u32::from_be_bytes(*first), *destination, u32::from_be_bytes(*second)) != (FIRST, [0; 4], SECOND) {
            return None;
        }
        Some(Probe { nonce: u64::from_be_bytes(*nonce), index: u16::from_be_bytes(*index) })
    }
}

/// What a process says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub nonce: u64,
    pub index: u16,
    /// Tells sockets apart.
    pub socket: u64,
    pub slots: Vec<Slot>,
}

impl Answer {
    /// More slots than this are not told; they are reached by forwarding.
    const MOST_SLOTS: usize = 256;

    pub const LONGEST: usize = 18 + 2 * Answer::MOST_SLOTS;

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Answer::LONGEST);
        bytes.extend(self.nonce.to_be_bytes());
        bytes.extend(self.index.to_be_bytes());
        bytes.extend(self.socket.to_be_bytes());
        bytes.extend(self.slots.iter().take(Answer::MOST_SLOTS).flat_map(|slot| slot.number().to_be_bytes()));
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Option<Answer> {
        let (nonce, rest) = bytes.split_first_chunk::<8>()?;
        let (index, rest) = rest.split_first_chunk::<2>()?;
        let (socket, rest) = rest.split_first_chunk::<8>()?;
        let slot = |pair: &[u8]| Slot::new(u16::from_be_bytes(*pair.first_chunk()?));
        Some(Answer {
            nonce: u64::from_be_bytes(*nonce),
            index: u16::from_be_bytes(*index),
            socket: u64::from_be_bytes(*socket),
            slots: rest.chunks(2).take(Answer::MOST_SLOTS).filter_map(slot).collect(),
        })
    }
}

/// Sends a datagram, if that is possible at once.
pub(crate) fn send(fd: RawFd, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
    let to = SockAddr::from(to);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: bytes and address are live and as long as they say.
    check_length(unsafe { libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, to.as_ptr().cast(), to.len()) })?;
    Ok(())
}

/// A datagram that has arrived; cut off if it is longer than there is room.
pub(crate) fn receive(fd: RawFd, buffer: &mut [u8]) -> Option<&[u8]> {
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
        let answer = Answer { nonce: 5, index: 3, socket: 99, slots };
        let bytes = answer.bytes();
        assert_eq!(Answer::parse(&bytes), Some(answer));
        for length in 0..18 {
            assert_eq!(Answer::parse(&bytes[..length]), None);
        }
        // Half a slot, and what is none, are left out.
        let mut odd = bytes[..18].to_vec();
        odd.extend([0xff, 0xff, 0, 0, 0, 9, 1]);
        assert_eq!(Answer::parse(&odd).unwrap().slots, [Slot::new(9).unwrap()]);
    }
}
