//! Wills: what other hosts should hear when a process is killed. A process that dies without a word cannot tell its peers; a survivor of the same
//! user on the same host can. So each writes down which connections it has, in memory that one other process holds too; who sees the connection
//! to it end reads the will and speaks for the dead. With no survivor the peers learn by their own timeouts.

use crate::descriptor::{Descriptor, check};
use crate::holders;
use crate::names::{self, Name};
use crate::shared::{message, passing};
use crate::slots::{Slot, Slots};
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use wire::cm::CommId;
use wire::{Gid, Qpn};

/// One connection, as its peer must be told of its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bequest {
    /// The address of the one who dies.
    pub ours: Gid,
    /// The peer's.
    pub peers: Gid,
    /// How the one who dies names the connection.
    pub our_communication: CommId,
    /// How the peer does.
    pub peer_communication: CommId,
    /// The peer's queue pair.
    pub peer_qpn: Qpn,
}

/// Bytes of one bequest.
const LEN: usize = 48;

/// The most that are read of a will.
const MOST: usize = 1 << 16;

impl Bequest {
    fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let numbers = [self.our_communication.value(), self.peer_communication.value(), self.peer_qpn.value(), 1];
        let all = self.ours.octets().into_iter().chain(self.peers.octets());
        for (to, from) in bytes.iter_mut().zip(all.chain(numbers.into_iter().flat_map(u32::to_be_bytes))) {
            *to = from;
        }
        bytes
    }

    fn decode(bytes: &[u8; LEN]) -> Option<Bequest> {
        let (gids, numbers) = bytes.split_at(32);
        let number = |at: usize| numbers.get(4 * at..4 * at + 4)?.try_into().ok().map(u32::from_be_bytes);
        let gid = |at: usize| gids.get(16 * at..16 * at + 16)?.try_into().ok().map(Gid::new);
        (number(3)? == 1).then_some(())?;
        Some(Bequest {
            ours: gid(0)?,
            peers: gid(1)?,
            our_communication: CommId::new(number(0)?),
            peer_communication: CommId::new(number(1)?),
            peer_qpn: Qpn::new(number(2)?),
        })
    }
}

/// The will of this process.
#[derive(Debug, Default)]
pub struct Will {
    /// Made when there is something to bequeath.
    memory: Option<Descriptor>,
    /// Which places of it are taken.
    taken: Vec<bool>,
    /// Who has it too, and the connection whose end means our death.
    survivor: Option<(Slot, Descriptor)>,
}

impl Will {
    /// Whether there is something in it.
    pub fn is_empty(&self) -> bool {
        !self.taken.contains(&true)
    }

    /// Who has it too.
    pub fn survivor(&self) -> Option<Slot> {
        self.survivor.as_ref().map(|(slot, _)| *slot)
    }

    /// That process has gone.
    pub fn lose_survivor(&mut self) {
        self.survivor = None;
    }

    /// Writes a bequest down. Answers where.
    pub fn enter(&mut self, bequest: &Bequest) -> io::Result<usize> {
        if self.memory.is_none() {
            // SAFETY: a name that ends with a zero, and a number; the descriptor is owned from here on.
            let fd = unsafe { check(libc::memfd_create(c"ubiverbs-will".as_ptr(), libc::MFD_CLOEXEC))? };
            // SAFETY: just opened, and nobody else's.
            self.memory = Some(Descriptor::keep(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        let at = self.taken.iter().position(|taken| !taken).unwrap_or(self.taken.len());
        if at >= MOST {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.write(at, &bequest.encode())?;
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
            let _ = self.write(at, &[0; LEN]);
        }
    }

    /// Strikes everything out: the process ends and says goodbye itself.
    pub fn revoke(&mut self) {
        for at in 0..self.taken.len() {
            self.strike(at);
        }
    }

    fn write(&self, at: usize, bytes: &[u8; LEN]) -> io::Result<()> {
        let fd = self.memory.as_ref().map_or(-1, Descriptor::raw);
        // SAFETY: live bytes; a descriptor that is not open is an error.
        let written = unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), LEN, (at * LEN) as libc::off_t) };
        if written == LEN as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Gives it to another process of our user, if there is one. Answers whether one has it.
    pub fn entrust(&mut self, slots: &Slots) -> bool {
        let Some(memory) = &self.memory else { return false };
        if self.survivor.is_none() {
            let others = Slots::of_this_host().unwrap_or_default();
            self.survivor = others.into_iter().filter(|slot| !slots.owns(*slot)).find_map(|slot| {
                let socket = names::socket().ok()?;
                names::connect(&socket, Name::Slot(slot)).ok()?;
                let peer = names::peer(&socket).ok()?;
                if !holders::is_our_user(peer.uid) || peer.pid as u32 == std::process::id() {
                    return None;
                }
                passing::send(&socket, &message::of(message::WILL), &[memory.raw()]).ok()?;
                Some((slot, socket))
            });
        }
        self.survivor.is_some()
    }
}

/// Reads the will of somebody who has died. What makes no sense in it is passed over.
pub fn read(memory: OwnedFd) -> Vec<Bequest> {
    let file = File::from(memory);
    let length = file.metadata().map_or(0, |metadata| metadata.len() as usize);
    let mut bequests = Vec::new();
    let mut bytes = [0; LEN];
    for at in 0..(length / LEN).min(MOST) {
        if file.read_exact_at(&mut bytes, (at * LEN) as u64).is_err() {
            break;
        }
        bequests.extend(Bequest::decode(&bytes));
    }
    bequests
}

/// Keeps descriptors in sight of a fork until they are read.
pub(crate) fn keep(descriptors: Vec<OwnedFd>) -> Option<Descriptor> {
    descriptors.into_iter().next().map(Descriptor::keep)
}

/// The memory behind a descriptor that was kept.
pub(crate) fn open(kept: &Descriptor) -> io::Result<OwnedFd> {
    // SAFETY: a number; the new descriptor is owned from here on.
    unsafe {
        let fd = check(libc::fcntl(kept.raw(), libc::F_DUPFD_CLOEXEC, 0))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bequest(number: u32) -> Bequest {
        Bequest {
            ours: Gid::from_ipv4([10, 0, 0, 1].into()),
            peers: Gid::from_ipv4([10, 0, 0, 2].into()),
            our_communication: CommId::new(number),
            peer_communication: CommId::new(number + 1),
            peer_qpn: Qpn::new(number + 2),
        }
    }

    fn reading(will: &Will) -> Vec<Bequest> {
        read(open(will.memory.as_ref().unwrap()).unwrap())
    }

    #[test]
    fn what_is_entered_is_read_and_what_is_struck_out_is_not() {
        let mut will = Will::default();
        assert!(will.is_empty());
        let places: Vec<usize> = (0..5).map(|number| will.enter(&bequest(10 * number)).unwrap()).collect();
        assert_eq!(reading(&will).len(), 5);
        will.strike(places[2]);
        assert_eq!(reading(&will).iter().filter(|found| **found == bequest(20)).count(), 0);
        assert_eq!(will.enter(&bequest(77)).unwrap(), places[2], "places are used again");
        assert_eq!(reading(&will)[2], bequest(77));
        will.revoke();
        assert!(will.is_empty() && reading(&will).is_empty());
    }

    #[test]
    fn nonsense_is_passed_over() {
        let mut will = Will::default();
        let at = will.enter(&bequest(1)).unwrap();
        will.write(at, &[0xff; LEN]).unwrap();
        will.enter(&bequest(2)).unwrap();
        assert_eq!(reading(&will), [bequest(2)]);
    }
}
