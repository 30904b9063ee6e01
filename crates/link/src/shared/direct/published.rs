//! The target's side: what peers may do with the memory of this process, and which peers were let in.

use super::claim::Claims;
use super::protocol::{NO_MEMORY_ADDRESS, end_generation};
use super::{
    ADDRESS_OFFSET, GENERATION_OFFSET, MAGIC_OFFSET, Mapping, OPEN_OFFSET, SECRET_OFFSET, Shelf, TABLE_MAGIC, name_of,
    publish_entry, set_position, withdraw_entry, word,
};
use host::descriptor::{Descriptor, Opening};
use host::slots;
use host::{greeting, passing};
use latch::Rank;
use latch::plain::Mutex;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use wire::access::{Access, ProtectionDomain};
use wire::{Gid, Key, Qpn, refuse_if};

/// A region, as peers may know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublishedRegion {
    /// Whose it is.
    pub domain: ProtectionDomain,
    /// What may be done.
    pub access: Access,
    /// The first address as keys see it.
    pub start: u64,
    /// How many bytes.
    pub length: u64,
    /// The first address in the process.
    pub base: u64,
    /// The file that all of it is of, if peers may map that.
    pub file: Option<SharedFile>,
}

/// The file behind a region's memory, sealed against shrinking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedFile {
    /// A descriptor of the process that publishes the region, open for as long as the region is published.
    pub descriptor: u32,
    /// The lower half of the file's number, by which a peer sees that the descriptor is still this file's.
    pub inode: u32,
    /// Where the region begins in it.
    pub offset: u64,
}

impl SharedFile {
    /// As the table has it: two words, of which the first is not 0.
    fn to_words(self) -> [u64; 2] {
        [(u64::from(self.descriptor) + 1) << 32 | u64::from(self.inode), self.offset]
    }

    /// From these.
    #[inline]
    pub(super) fn from_words([file, offset]: [u64; 2]) -> Option<SharedFile> {
        let descriptor = ((file >> 32) as u32).checked_sub(1)?;
        Some(SharedFile { descriptor, inode: file as u32, offset })
    }
}

/// A queue pair that takes requests, as its peer may know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublishedQueuePair {
    /// The peer.
    pub peer: Qpn,
    /// The peer's address.
    pub address: Gid,
    /// Whose memory it reaches.
    pub domain: ProtectionDomain,
    /// What it takes.
    pub access: Access,
}

/// What this process publishes, and the peers that were let in.
#[derive(Debug)]
pub struct Published {
    map: Mapping,
    /// For peers to look at, if the kernel lets them.
    table: Descriptor,
    secret: u64,
    next_grant: AtomicU64,
    next_registration: AtomicU64,
    /// One thread at a time changes the table.
    changes: Mutex<()>,
    grants: Mutex<Vec<Weak<Grant>>>,
}

impl Published {
    /// An empty table, closed. An error where the system has no memory that only one process can write.
    pub fn new() -> io::Result<Published> {
        refuse_if!(cfg!(not(target_pointer_width = "64")) || cfg!(miri), io::ErrorKind::Unsupported.into());
        let (map, table) = {
            let _opening = Opening::begin();
            let (map, table) = Mapping::create_published(Shelf::TABLE_BYTES)?;
            (map, Descriptor::keep(table))
        };
        let secret = slots::random();
        let address = map.at(0, 8).addr() as u64;
        for (offset, value) in [(SECRET_OFFSET, secret), (ADDRESS_OFFSET, address), (MAGIC_OFFSET, TABLE_MAGIC)] {
            word(&map, offset).store(value, Ordering::Release);
        }
        Ok(Published {
            map,
            table,
            secret,
            next_grant: AtomicU64::new(1),
            next_registration: AtomicU64::new(1),
            changes: Mutex::new(Rank::PublishedTable, ()),
            grants: Mutex::new(Rank::MemoryGrants, Vec::new()),
        })
    }

    /// Whether the mapping is there: a forked child has none.
    fn is_ours(&self) -> bool {
        self.table.raw() >= 0
    }

    /// Lets peers in, or from now on makes them send packets, which this process sees.
    pub fn set_open(&self, is_open: bool) {
        if self.is_ours() && word(&self.map, OPEN_OFFSET).swap(is_open.into(), Ordering::Release) != 0 && !is_open {
            self.end_accesses();
        }
    }

    /// This region is open to peers. One for which there is no room is reached by packets.
    pub fn publish_region(&self, key: Key, region: &PublishedRegion) {
        let PublishedRegion { domain, access, start, length, base, file } = *region;
        let [file, offset] = file.map_or([0; 2], SharedFile::to_words);
        let registration = self.next_registration.fetch_add(1, Ordering::Relaxed);
        let words = [start, length, base, join(domain, access), file, offset, registration];
        self.publish(Shelf::Regions, name_of(key.value()), &words);
    }

    /// It is not any more; when this returns, no peer reaches it.
    pub fn withdraw_region(&self, key: Key) {
        self.withdraw(Shelf::Regions, name_of(key.value()));
    }

    /// This queue pair takes requests.
    pub fn publish_queue_pair(&self, qpn: Qpn, queue_pair: &PublishedQueuePair) {
        let PublishedQueuePair { peer, address, domain, access } = *queue_pair;
        let [high, low] = address_words(address);
        let words = [peer.value().into(), high, low, join(domain, access)];
        self.publish(Shelf::QueuePairs, name_of(qpn.value()), &words);
    }

    /// It takes none any more; when this returns, none is under way.
    pub fn withdraw_queue_pair(&self, qpn: Qpn) {
        self.withdraw(Shelf::QueuePairs, name_of(qpn.value()));
    }

    fn publish(&self, shelf: Shelf, name: u64, words: &[u64]) {
        if self.is_ours() {
            let _held = self.changes.lock();
            publish_entry(shelf.places(&self.map, name), name, words);
        }
    }

    fn withdraw(&self, shelf: Shelf, name: u64) {
        if self.is_ours() && self.take_out(shelf, name) {
            self.end_accesses();
        }
    }

    fn take_out(&self, shelf: Shelf, name: u64) -> bool {
        let _held = self.changes.lock();
        withdraw_entry(shelf.places(&self.map, name), name)
    }

    /// Ends accesses by what is not in the table any more.
    fn end_accesses(&self) {
        let mut grants = self.grants.lock();
        let has_claims = grants.iter().filter_map(Weak::upgrade).any(|grant| grant.claims.is_some());
        end_generation(word(&self.map, GENERATION_OFFSET), has_claims);
        grants.retain(|grant| match grant.upgrade() {
            Some(grant) => {
                grant.end_access();
                true
            }
            None => false,
        });
    }

    /// A message of a peer on the connection of its ring. Returns what it was granted, to be kept for as long as the
    /// connection. `process` is the peer's, or 0 if it cannot be seen from here.
    pub(in super::super) fn answer(
        self: &Arc<Published>,
        (socket, process): (&Descriptor, i32),
        kind: u8,
        number: u64,
    ) -> Option<Arc<Grant>> {
        match kind {
            greeting::DIRECT_INQUIRY => {
                let place = self.table.raw().try_into().ok()?;
                let _ = passing::send(socket, &greeting::numbered(greeting::DIRECT_PLACE, place), &[]);
                None
            }
            greeting::DIRECT_PROOF => {
                let (grant, claims) = self.admit(number, process)?;
                let message = greeting::numbered(greeting::DIRECT_GRANT, grant.number);
                match claims {
                    Some(claims) => passing::send(socket, &message, &[claims.as_raw_fd(), grant.memory.raw()]),
                    None => passing::send(socket, &message, &[grant.memory.raw()]),
                }
                .ok()?;
                Some(grant)
            }
            _ => None,
        }
    }

    /// Lets a peer in that has this proof. Its claims go with it, where they can be made.
    pub(super) fn admit(self: &Arc<Published>, proof: u64, process: i32) -> Option<(Arc<Grant>, Option<OwnedFd>)> {
        let memory = if proof == self.secret { own_memory().ok()? } else { return None };
        let number = self.next_grant.fetch_add(1, Ordering::Relaxed);
        let (claims, descriptor) = {
            let _opening = Opening::begin();
            Claims::new(process).ok().unzip()
        };
        let grant = Arc::new(Grant { number, memory, claims, published: Arc::clone(self) });
        // First it is among those whose accesses are ended.
        self.grants.lock().push(Arc::downgrade(&grant));
        self.publish(Shelf::Grants, number, &[process as u64]);
        Some((grant, descriptor))
    }

    #[cfg(test)]
    pub(super) fn descriptor(&self) -> std::os::fd::RawFd {
        self.table.raw()
    }

    /// Reads and writes a word of this process by its descriptor.
    pub(super) fn try_own_memory(&self) -> io::Result<()> {
        let memory = own_memory()?;
        super::peer::try_memory(&self.map, memory.raw())
    }
}

/// A peer that was let in. It is kept out again when this is dropped.
#[derive(Debug)]
pub(in super::super) struct Grant {
    number: u64,
    /// The open file that the peer has as well.
    memory: Descriptor,
    /// Where the peer says what it is at.
    claims: Option<Claims>,
    published: Arc<Published>,
}

#[cfg(test)]
impl Grant {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn descriptor(&self) -> std::os::fd::RawFd {
        self.memory.raw()
    }
}

impl Grant {
    /// Ends the access by what is not in the table any more, of which the generation has been counted on.
    fn end_access(&self) {
        set_position(self.memory.raw(), NO_MEMORY_ADDRESS);
        if let Some(claims) = &self.claims {
            claims.wait_until_over();
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.published.is_ours() {
            let _ = self.published.take_out(Shelf::Grants, self.number);
            end_generation(word(&self.published.map, GENERATION_OFFSET), self.claims.is_some());
            self.end_access();
        }
    }
}

/// The memory of this process, as a file. It stays that of this program when the process executes another.
fn own_memory() -> io::Result<Descriptor> {
    let _opening = Opening::begin();
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    Ok(Descriptor::keep(OwnedFd::from(memory)))
}

fn join(domain: ProtectionDomain, access: Access) -> u64 {
    u64::from(domain.0) << 32 | u64::from(access.bits())
}

/// An address as two words.
pub(super) fn address_words(address: Gid) -> [u64; 2] {
    let number = u128::from_ne_bytes(address.octets());
    [(number >> 64) as u64, number as u64]
}
