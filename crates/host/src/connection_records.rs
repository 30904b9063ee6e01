//! Connection records: what other hosts must be told when a process is killed. A killed process cannot tell its peers;
//! another process of the same user on the same host, its keeper, can. So each process records its connections in
//! memory that its keeper holds too. When the connection to the keeper ends, the keeper reads the records and tells the
//! peers of the process that ended. Without a keeper the peers learn by their own timeouts.

use crate::descriptor::{Descriptor, check};
use crate::holders;
use crate::names::{self, Name};
use crate::slot::Slot;
use crate::slots::Slots;
use crate::{file_size, greeting, passing};
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use wire::cm::CommId;
use wire::{Gid, Qpn};

/// One connection, as its peer must be told of its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionRecord {
    /// The address of the process that ended.
    pub ours: Gid,
    /// The peer's.
    pub peers: Gid,
    /// How the process that ended names the connection.
    pub our_communication: CommId,
    /// How the peer does.
    pub peer_communication: CommId,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
}

/// Bytes of one record.
#[doc(hidden)] // for fuzzing
pub const RECORD_BYTES: usize = 48;

/// The most records that are read of one process.
const MAX_RECORDS_PER_PROCESS: usize = 1 << 16;

impl ConnectionRecord {
    /// Its bytes.
    #[doc(hidden)] // for fuzzing
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let numbers = [self.our_communication.value(), self.peer_communication.value(), self.peer_qpn.value(), 1];
        let all = self.ours.octets().into_iter().chain(self.peers.octets());
        for (to, from) in bytes.iter_mut().zip(all.chain(numbers.into_iter().flat_map(u32::to_be_bytes))) {
            *to = from;
        }
        bytes
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<ConnectionRecord> {
        let (gids, numbers) = bytes.split_at(32);
        let number = |at: usize| numbers.get(4 * at..4 * at + 4)?.try_into().ok().map(u32::from_be_bytes);
        let gid = |at: usize| gids.get(16 * at..16 * at + 16)?.try_into().ok().map(Gid::new);
        (number(3)? == 1).then_some(())?;
        Some(ConnectionRecord {
            ours: gid(0)?,
            peers: gid(1)?,
            our_communication: CommId::new(number(0)?),
            peer_communication: CommId::new(number(1)?),
            peer_qpn: Qpn::new(number(2)?),
        })
    }
}

/// The records of this process.
#[derive(Debug, Default)]
pub struct ConnectionRecords {
    /// Made for the first record.
    memory: Option<Descriptor>,
    /// Which places of it are taken.
    taken: Vec<bool>,
    /// The keeper's slot, and the connection whose end tells the keeper that this process has ended.
    survivor: Option<(Slot, Descriptor)>,
}

impl ConnectionRecords {
    /// Whether there is something in it.
    pub fn is_empty(&self) -> bool {
        !self.taken.contains(&true)
    }

    /// The keeper's slot.
    pub fn survivor(&self) -> Option<Slot> {
        self.survivor.as_ref().map(|(slot, _)| *slot)
    }

    /// The keeper has ended.
    pub fn lose_survivor(&mut self) {
        self.survivor = None;
    }

    /// Writes a record down. Returns where.
    pub fn enter(&mut self, connection: &ConnectionRecord) -> io::Result<usize> {
        if self.memory.is_none() {
            // SAFETY: a name that ends with a zero, and a number; the descriptor is owned from here on.
            let fd = unsafe { check(libc::memfd_create(c"ubiverbs-will".as_ptr(), libc::MFD_CLOEXEC))? };
            // SAFETY: just opened, and not shared.
            self.memory = Some(Descriptor::keep(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        let at = self.taken.iter().position(|taken| !taken).unwrap_or(self.taken.len());
        if at >= MAX_RECORDS_PER_PROCESS {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.write(at, &connection.encode())?;
        if at == self.taken.len() {
            self.taken.push(false);
        }
        if let Some(taken) = self.taken.get_mut(at) {
            *taken = true;
        }
        Ok(at)
    }

    /// Strikes one out.
    pub fn strike(&mut self, at: usize) {
        if let Some(taken) = self.taken.get_mut(at) {
            *taken = false;
            // It is memory of ours: nothing can be in the way.
            let _ = self.write(at, &[0; RECORD_BYTES]);
        }
    }

    /// Strikes everything out: the process ends in order and tells its peers itself.
    pub fn revoke(&mut self) {
        for at in 0..self.taken.len() {
            self.strike(at);
        }
    }

    fn write(&self, at: usize, bytes: &[u8; RECORD_BYTES]) -> io::Result<()> {
        let fd = self.memory.as_ref().map_or(-1, Descriptor::raw);
        file_size::check(((at + 1) * RECORD_BYTES) as u64)?;
        // SAFETY: live bytes; a descriptor that is not open is an error.
        let written =
            unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), RECORD_BYTES, (at * RECORD_BYTES) as libc::off_t) };
        if written == RECORD_BYTES as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Gives it to another process of our user, if there is one. Returns whether one has it.
    pub fn entrust(&mut self, slots: &Slots) -> bool {
        let Some(memory) = &self.memory else { return false };
        if self.survivor.is_none() {
            let others = Slots::of_this_host().unwrap_or_default();
            self.survivor = others.into_iter().filter(|slot| !slots.owns(*slot)).find_map(|slot| {
                let (socket, peer) = names::connect_to_owner(Name::Slot(slot)).ok()?;
                if !holders::is_our_user(peer.uid) || peer.pid as u32 == std::process::id() {
                    return None;
                }
                passing::send(&socket, &greeting::of(greeting::CONNECTION_RECORDS), &[memory.raw()]).ok()?;
                Some((slot, socket))
            });
        }
        self.survivor.is_some()
    }
}

/// Reads the connection records of a process that has ended. Returns also how many of them make no sense.
pub fn read(memory: OwnedFd) -> (Vec<ConnectionRecord>, u32) {
    let file = File::from(memory);
    let Ok(metadata) = file.metadata() else { return (Vec::new(), 1) };
    let length = metadata.len() as usize;
    let (mut connections_of_dead, mut unreadable) = (Vec::new(), 0);
    let mut bytes = [0; RECORD_BYTES];
    for at in 0..(length / RECORD_BYTES).min(MAX_RECORDS_PER_PROCESS) {
        if file.read_exact_at(&mut bytes, (at * RECORD_BYTES) as u64).is_err() {
            unreadable += 1;
            break;
        }
        match ConnectionRecord::decode(&bytes) {
            Some(connection) => connections_of_dead.push(connection),
            // Struck out, or never written.
            None if bytes == [0; RECORD_BYTES] => {}
            None => unreadable += 1,
        }
    }
    (connections_of_dead, unreadable)
}

/// Keeps descriptors in sight of a fork until they are read.
pub fn keep(descriptors: Vec<OwnedFd>) -> Option<Descriptor> {
    descriptors.into_iter().next().map(Descriptor::keep)
}

/// The memory behind a descriptor that was kept.
pub fn open(kept: &Descriptor) -> io::Result<OwnedFd> {
    // SAFETY: a number; the new descriptor is owned from here on.
    unsafe {
        let fd = check(libc::fcntl(kept.raw(), libc::F_DUPFD_CLOEXEC, 0))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(number: u32) -> ConnectionRecord {
        ConnectionRecord {
            ours: Gid::from_ipv4([10, 0, 0, 1].into()),
            peers: Gid::from_ipv4([10, 0, 0, 2].into()),
            our_communication: CommId::new(number),
            peer_communication: CommId::new(number + 1),
            peer_qpn: Qpn::new(number + 2),
        }
    }

    fn reading(will: &ConnectionRecords) -> Vec<ConnectionRecord> {
        read(open(will.memory.as_ref().unwrap()).unwrap()).0
    }

    #[test]
    fn what_is_entered_is_read_and_what_is_struck_out_is_not() {
        let mut will = ConnectionRecords::default();
        assert!(will.is_empty());
        let places: Vec<usize> = (0..5).map(|number| will.enter(&connection(10 * number)).unwrap()).collect();
        assert_eq!(reading(&will).len(), 5);
        will.strike(places[2]);
        assert_eq!(reading(&will).iter().filter(|found| **found == connection(20)).count(), 0);
        assert_eq!(will.enter(&connection(77)).unwrap(), places[2], "places are used again");
        assert_eq!(reading(&will)[2], connection(77));
        will.revoke();
        assert!(will.is_empty() && reading(&will).is_empty());
    }

    #[test]
    fn nonsense_is_passed_over_and_counted() {
        let mut will = ConnectionRecords::default();
        let at = will.enter(&connection(1)).unwrap();
        will.write(at, &[0xff; RECORD_BYTES]).unwrap();
        will.enter(&connection(2)).unwrap();
        assert_eq!(read(open(will.memory.as_ref().unwrap()).unwrap()), (vec![connection(2)], 1));
    }
}
