//! Registered memory of a simulated host: buffers of plain bytes, the regions and windows over them, and the rules by
//! which a key grants access (IBA 10.6). The rules are the whole point: a NIC over real memory must answer exactly as
//! this one does. Which queue pair may ask for what is the transport's business.

mod window;

pub use window::{WindowKind, WindowSpec};

use std::collections::HashMap;
use transport::{Access, Atomic, Bind, ProtectionDomain, Range, Refusal, Remote, Sge, Subject};
use wire::access::RefusalCause;
use wire::{Feth, Key, Placement, Selectivity, refuse_if};

use crate::host::HostId;
use window::Window;

/// A registered region, as a program holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Whose memory it is.
    pub host: HostId,
    /// Its protection domain.
    pub pd: ProtectionDomain,
    /// The address of its first byte, as keys see it.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
    /// L_Key and R_Key in one.
    pub key: Key,
    pub(crate) buffer: usize,
    pub(crate) start: u64,
}

impl Region {
    /// `length` bytes from `offset` on, as a local piece.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { address: self.address.wrapping_add(offset), length, key: self.key }
    }

    /// All of it, as a local piece.
    ///
    /// # Panics
    /// If it is longer than a piece can be.
    pub fn whole(&self) -> Sge {
        self.sge(0, u32::try_from(self.length).expect("a piece is shorter than 4 GiB"))
    }

    /// The byte at `offset`, as a peer names it.
    pub fn remote(&self, offset: u64) -> Remote {
        Remote { address: self.address.wrapping_add(offset), key: self.key }
    }
}

/// What to register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionSpec {
    /// The protection domain.
    pub pd: ProtectionDomain,
    /// The rights it grants.
    pub access: Access,
    /// The address keys see, if not the buffer's own.
    pub iova: Option<u64>,
    /// Whether its key may be invalidated, by local work or by a peer's SEND: true of fast-registered memory, not of
    /// ordinary regions.
    pub invalidatable: bool,
}

impl RegionSpec {
    /// Rights over memory at its own address.
    pub const fn new(pd: ProtectionDomain, access: Access) -> RegionSpec {
        RegionSpec { pd, access, iova: None, invalidatable: false }
    }
}

/// Memory of a host that is kept outside of the simulation: a program's own buffers, say. It grants and refuses as the
/// simulation's own memory does; each call is what a queue pair's port asks for (`transport::Port`).
#[allow(missing_docs)] // as in `transport::Port`
pub trait HostMemory: Send {
    fn check(&mut self, subject: Subject, range: Range, access: Access) -> Result<(), Refusal>;
    fn read(&mut self, subject: Subject, range: Range, out: &mut [u8]) -> Result<(), Refusal>;
    fn write(&mut self, subject: Subject, range: Range, data: &[u8]) -> Result<(), Refusal>;
    fn atomic(&mut self, subject: Subject, range: Range, operation: Atomic) -> Result<u64, Refusal>;
    fn flush(&mut self, subject: Subject, range: Range, feth: Feth) -> Result<(), Refusal>;
    fn invalidate(&mut self, subject: Subject, key: Key) -> Result<(), Refusal>;
    fn bind(&mut self, subject: Subject, bind: &Bind) -> Result<(), Refusal>;
}

/// The bytes of one buffer.
#[derive(Debug)]
enum Backing {
    Bytes(Vec<u8>),
    /// Bytes that are never stored: what is read follows from seed and offset, and what is written is compared with it.
    Pattern {
        seed: u64,
        written: u64,
        mismatched: u64,
    },
}

#[derive(Debug)]
struct RegionEntry {
    region: Region,
    access: Access,
    invalidatable: bool,
    invalidated: bool,
    windows: u32,
}

#[derive(Debug)]
enum MemoryEntry {
    Region(RegionEntry),
    Window(Window),
}

/// All memory of one host.
#[derive(Debug)]
pub(crate) struct Memory {
    host: HostId,
    buffers: Vec<(u64, Backing)>,
    /// By the key's index, its upper 24 bits; the lower 8 are compared with the key in the entry.
    entries: HashMap<u32, MemoryEntry>,
    next_address: u64,
    next_index: u32,
}

/// Where bytes of a buffer lie, once a key has granted them.
#[derive(Clone, Copy)]
struct Granted {
    buffer: usize,
    offset: u64,
    length: usize,
}

const PAGE_BYTES: u64 = 4096;

impl Memory {
    /// Memory whose addresses and keys differ from those of other hosts, so that a test that mixes them up fails.
    pub(crate) fn new(host: HostId) -> Memory {
        let base = 0x7f00_0000_0000 + ((host.index() as u64 & 0xff) << 36);
        let first = 0x10 + ((host.index() as u32 & 0xff) << 16);
        Memory { host, buffers: Vec::new(), entries: HashMap::new(), next_address: base, next_index: first }
    }

    fn buffer(&mut self, length: u64, backing: Backing) -> usize {
        self.buffers.push((self.next_address, backing));
        // A page in between, so that one byte too far is nobody's.
        self.next_address += length.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        self.buffers.len() - 1
    }

    pub(crate) fn register(&mut self, bytes: Vec<u8>, spec: &RegionSpec) -> Region {
        let length = bytes.len() as u64;
        let buffer = self.buffer(length, Backing::Bytes(bytes));
        self.region(buffer, 0, length, spec)
    }

    pub(crate) fn register_pattern(&mut self, length: u64, seed: u64, spec: &RegionSpec) -> Region {
        let buffer = self.buffer(length, Backing::Pattern { seed, written: 0, mismatched: 0 });
        self.region(buffer, 0, length, spec)
    }

    /// Another region over bytes that have one already.
    pub(crate) fn register_again(&mut self, region: &Region, offset: u64, length: u64, spec: &RegionSpec) -> Region {
        assert!(offset.checked_add(length).is_some_and(|end| end <= region.length), "{offset}+{length} in {region:?}");
        self.region(region.buffer, region.start + offset, length, spec)
    }

    fn region(&mut self, buffer: usize, start: u64, length: u64, spec: &RegionSpec) -> Region {
        let index = self.next_index;
        self.next_index += 1;
        let own = self.buffers[buffer].0 + start;
        let address = match spec.iova {
            _ if spec.access.contains(Access::ZERO_BASED) => 0,
            iova => iova.unwrap_or(own),
        };
        let key = Key::new(index << 8 | 1);
        let region = Region { host: self.host, pd: spec.pd, address, length, key, buffer, start };
        let entry = RegionEntry {
            region,
            access: spec.access,
            invalidatable: spec.invalidatable,
            invalidated: false,
            windows: 0,
        };
        self.entries.insert(index, MemoryEntry::Region(entry));
        region
    }

    /// Takes the key away; the bytes stay. False if windows are bound to it or the key is no region's.
    pub(crate) fn deregister(&mut self, key: Key) -> bool {
        match self.entries.get(&index_of(key)) {
            Some(MemoryEntry::Region(entry)) if entry.region.key == key && entry.windows == 0 => {
                self.entries.remove(&index_of(key));
                true
            }
            _ => false,
        }
    }

    pub(crate) fn bytes(&self, region: &Region) -> &[u8] {
        match &self.buffers[region.buffer].1 {
            Backing::Bytes(bytes) => &bytes[region.start as usize..(region.start + region.length) as usize],
            Backing::Pattern { .. } => panic!("a pattern has no bytes to look at"),
        }
    }

    pub(crate) fn bytes_mut(&mut self, region: &Region) -> &mut [u8] {
        match &mut self.buffers[region.buffer].1 {
            Backing::Bytes(bytes) => &mut bytes[region.start as usize..(region.start + region.length) as usize],
            Backing::Pattern { .. } => panic!("a pattern has no bytes to change"),
        }
    }

    /// Bytes written to a pattern, and how many of them were not what the pattern says.
    pub(crate) fn pattern_written(&self, region: &Region) -> (u64, u64) {
        match self.buffers[region.buffer].1 {
            Backing::Pattern { written, mismatched, .. } => (written, mismatched),
            Backing::Bytes(_) => panic!("these bytes are stored; compare them"),
        }
    }

    pub(crate) fn check(&self, subject: Subject, range: Range, access: Access) -> Result<(), Refusal> {
        self.grant(subject, range, access).map(drop)
    }

    pub(crate) fn read(&self, subject: Subject, range: Range, out: &mut [u8]) -> Result<(), Refusal> {
        let access = if subject.remote { Access::REMOTE_READ } else { Access::empty() };
        let Some(granted) = self.grant(subject, range, access)? else { return Ok(()) };
        match &self.buffers[granted.buffer].1 {
            Backing::Bytes(bytes) => {
                let from = granted.offset as usize;
                out.copy_from_slice(&bytes[from..from + granted.length]);
            }
            Backing::Pattern { seed, .. } => {
                for (i, byte) in out.iter_mut().enumerate() {
                    *byte = pattern(*seed, granted.offset + i as u64);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, subject: Subject, range: Range, data: &[u8]) -> Result<(), Refusal> {
        let access = if subject.remote { Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        let Some(granted) = self.grant(subject, range, access)? else { return Ok(()) };
        self.store(granted, data);
        Ok(())
    }

    fn store(&mut self, granted: Granted, data: &[u8]) {
        match &mut self.buffers[granted.buffer].1 {
            Backing::Bytes(bytes) => {
                let from = granted.offset as usize;
                bytes[from..from + granted.length].copy_from_slice(data);
            }
            Backing::Pattern { seed, written, mismatched, .. } => {
                *written += data.len() as u64;
                let differs = |(i, byte): (usize, &u8)| *byte != pattern(*seed, granted.offset + i as u64);
                *mismatched += data.iter().enumerate().filter(|pair| differs(*pair)).count() as u64;
            }
        }
    }

    pub(crate) fn atomic(&mut self, subject: Subject, range: Range, operation: Atomic) -> Result<u64, Refusal> {
        let access = operation.access();
        let refuse = |cause| Refusal { range, access, cause };
        refuse_if!(range.length != 8, refuse(RefusalCause::WrongKind));
        let granted = self.grant(subject, range, access)?.ok_or(refuse(RefusalCause::WrongKind))?;
        refuse_if!(!range.address.is_multiple_of(8), refuse(RefusalCause::Misaligned));
        let Backing::Bytes(bytes) = &mut self.buffers[granted.buffer].1 else {
            return Err(refuse(RefusalCause::WrongKind));
        };
        let from = granted.offset as usize;
        let cell = &mut bytes[from..from + 8];
        let original = u64::from_ne_bytes(cell.try_into().expect("eight bytes"));
        match operation {
            Atomic::CompareSwap { compare, swap } if original == compare => cell.copy_from_slice(&swap.to_ne_bytes()),
            Atomic::CompareSwap { .. } => {}
            Atomic::FetchAdd { add } => cell.copy_from_slice(&original.wrapping_add(add).to_ne_bytes()),
            Atomic::Write { bytes } => cell.copy_from_slice(&bytes),
        }
        Ok(original)
    }

    pub(crate) fn flush(&mut self, subject: Subject, range: Range, feth: Feth) -> Result<(), Refusal> {
        let mut access = Access::empty();
        access.set(Access::FLUSH_GLOBAL, feth.placement.contains(Placement::GLOBAL));
        access.set(Access::FLUSH_PERSISTENT, feth.placement.contains(Placement::PERSISTENT));
        let range = match feth.selectivity {
            Selectivity::Range => range,
            // All that the key stands for; a key that stands for nothing is refused as for any byte.
            _ => {
                let (address, length) = self.extent(range.key).unwrap_or((range.address, 1));
                Range { key: range.key, address, length }
            }
        };
        // Every write is visible the moment it is made: there is nothing left to do once it is permitted.
        self.check(subject, range, access)
    }

    /// First address and length of what a key stands for.
    fn extent(&self, key: Key) -> Option<(u64, u64)> {
        match self.entries.get(&index_of(key))? {
            MemoryEntry::Region(entry) => Some((entry.region.address, entry.region.length)),
            MemoryEntry::Window(window) => window.extent(),
        }
    }

    /// The bytes behind a key, if they may be touched this way; `None` where the range is empty, which needs no key at
    /// all (IBA 9.7.4.1.5).
    fn grant(&self, subject: Subject, range: Range, access: Access) -> Result<Option<Granted>, Refusal> {
        if range.length == 0 {
            return Ok(None);
        }
        let refuse = |cause| Refusal { range, access, cause };
        let entry = self.entries.get(&index_of(range.key)).ok_or(refuse(RefusalCause::UnknownKey))?;
        let (region, address) = match entry {
            MemoryEntry::Region(entry) => {
                refuse_if!(entry.region.key != range.key, refuse(RefusalCause::UnknownKey));
                entry.admits(subject, access).map_err(refuse)?;
                (&entry.region, range.address)
            }
            MemoryEntry::Window(window) => {
                let bound = window.admits(subject, range, access).map_err(refuse)?;
                let Some(MemoryEntry::Region(behind)) = self.entries.get(&index_of(bound.region)) else {
                    return Err(refuse(RefusalCause::UnknownKey));
                };
                (&behind.region, bound.translate(range.address))
            }
        };
        let Region { address: start, length, .. } = *region;
        let offset =
            within(start, length, address, range.length).ok_or(refuse(RefusalCause::OutOfBounds { start, length }))?;
        let length = usize::try_from(range.length).map_err(|_| refuse(RefusalCause::OutOfBounds { start, length }))?;
        Ok(Some(Granted { buffer: region.buffer, offset: region.start + offset, length }))
    }
}

impl RegionEntry {
    fn admits(&self, subject: Subject, access: Access) -> Result<(), RefusalCause> {
        refuse_if!(self.invalidated, RefusalCause::Invalidated);
        refuse_if!(self.region.pd != subject.pd, RefusalCause::WrongProtectionDomain);
        refuse_if!(!self.access.contains(access), RefusalCause::NotPermitted);
        Ok(())
    }
}

/// The upper 24 bits of a key find it, the lower 8 belong to its owner (IBA 10.6.3.3).
fn index_of(key: Key) -> u32 {
    key.value() >> 8
}

/// The offset of `address` in `start..start + length`, if `wanted` bytes from there on lie inside. Addresses do not
/// wrap.
fn within(start: u64, length: u64, address: u64, wanted: u64) -> Option<u64> {
    let offset = address.checked_sub(start)?;
    let room = length.checked_sub(offset)?;
    (wanted <= room).then_some(offset)
}

/// The byte at `offset` of a pattern: different for neighbouring bytes, neighbouring packets and different seeds.
pub fn pattern(seed: u64, offset: u64) -> u8 {
    let mixed = (offset ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

#[cfg(test)]
mod tests;
