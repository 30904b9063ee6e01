//! I/O mappings: memory of the program's that its peer's program writes into by an offset.

use crate::endpoint::Parts;
use crate::error::Error;
use crate::socket::{Phase, Socket, State};
use crate::transfer::{Slices, post};
use rsocket::{IoMapping, Span, Stream, Target};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use transport::{Data, ProtectionDomain};
use wire::{Key, refuse_if};

/// Memory of the program's that it has lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LentMemory {
    /// The first byte.
    pub address: u64,
    /// How many there are.
    pub length: u32,
    /// Its key.
    pub key: Key,
    /// What the peer calls the first byte.
    pub offset: u64,
    /// Whether the peer may write there; else only the program itself uses it.
    pub for_peer: bool,
}

/// The I/O mappings of a socket.
#[derive(Debug, Default)]
pub(crate) struct IoMaps {
    lent: Vec<Lent>,
    /// The peer has not been told of all.
    untold: bool,
}

#[derive(Debug)]
struct Lent {
    memory: LentMemory,
    /// The entry of the peer's list that is its.
    index: Option<u16>,
    told: bool,
}

impl Socket {
    /// The protection domain of its queue pair: memory must be registered there. `EINVAL` if it has none.
    pub fn domain(&self) -> Result<ProtectionDomain, Error> {
        match &self.lock().phase {
            Phase::Connected(endpoint) => Ok(endpoint.parts.domain.number),
            _ => Err(Error::INVALID),
        }
    }

    /// Lends memory that is registered in its protection domain. `ENOMEM` if the peer keeps no more mappings.
    pub fn lend(&self, memory: LentMemory) -> Result<(), Error> {
        let mut state = self.lock();
        let room = state.connection()?.protocol.peer_io_mappings();
        let maps = &mut state.io_maps;
        let is_free = |index: &u16| maps.lent.iter().all(|lent| lent.index != Some(*index));
        let index = match memory.for_peer {
            true => Some((0..room).find(is_free).ok_or(Error::NO_MEMORY)?),
            false => None,
        };
        maps.lent.push(Lent { memory, index, told: index.is_none() });
        maps.untold |= index.is_some();
        self.lends.store(true, Ordering::Release);
        Ok(())
    }

    /// Takes lent memory back. Returns its key, which the caller deregisters. `EINVAL` if there is no such.
    pub fn take_back(&self, address: u64, length: usize) -> Result<Key, Error> {
        let maps = &mut self.lock().io_maps;
        let is_it = |lent: &Lent| lent.memory.address == address && lent.memory.length as usize == length;
        let at = maps.lent.iter().position(is_it).ok_or(Error::INVALID)?;
        Ok(maps.lent.remove(at).memory.key)
    }

    /// Takes everything back, because the socket goes.
    pub(crate) fn take_all_back(&self) {
        let lent = std::mem::take(&mut self.lock().io_maps.lent);
        for one in lent {
            let _ = self.nic.deregister(one.memory.key);
        }
    }

    /// Tells the peer of mappings that it does not know of yet. False if there is no room. The caller has the turn to
    /// send.
    pub(crate) fn send_io_mappings(&self) -> Result<bool, Error> {
        if !self.lends.load(Ordering::Acquire) {
            return Ok(true);
        }
        loop {
            let mut state = self.lock();
            if !state.io_maps.untold {
                return Ok(true);
            }
            let Some((work, parts)) = next_entry(&mut state)? else {
                return Ok(!state.io_maps.untold);
            };
            drop(state);
            let immediate = Some(work.immediate);
            if !parts.write(work.immediate.into(), work.remote, immediate, Data::Inline(&work.bytes)) {
                let mut state = self.lock();
                state.connection()?.protocol.handle_sent(work.immediate.into(), false);
                return Err(Error(libc::ECONNRESET));
            }
        }
    }

    /// Writes into the peer's memory, from an offset on that the peer's program has chosen, as much as there is room
    /// for. What no mapping has is not written: 0 if that is the first byte.
    pub fn send_direct(&self, bytes: &mut Slices<'_>, offset: u64) -> Result<usize, Error> {
        let _turn = self.send_turn.lock().unwrap_or_else(PoisonError::into_inner);
        refuse_if!(!self.send_io_mappings()?, Error::WOULD_BLOCK);
        let whole = bytes.len();
        let mut left = whole;
        let mut begun = false;
        while left > 0 {
            let mut state = self.lock();
            let endpoint = state.connection()?;
            if !std::mem::replace(&mut begun, true) {
                endpoint.protocol.begin_send();
            }
            if !endpoint.protocol.is_writable() {
                return if left < whole { Ok(whole - left) } else { Err(Error(libc::ECONNRESET)) };
            }
            let at = offset.wrapping_add((whole - left) as u64);
            let Some(mapping) = find(&endpoint.parts, endpoint.protocol.sizes().io_mappings, at) else { break };
            let transfer = match endpoint.protocol.next_direct_transfer(&mapping, at, left) {
                Some(transfer) => transfer,
                None => {
                    state.progress();
                    match state.connection()?.protocol.next_direct_transfer(&mapping, at, left) {
                        Some(transfer) => transfer,
                        None if left < whole => break,
                        None => return Err(Error::WOULD_BLOCK),
                    }
                }
            };
            let parts = Arc::clone(&state.connection()?.parts);
            drop(state);
            if !post(&parts, transfer.wr_id(), transfer.remote, None, transfer.place, transfer.length, bytes) {
                let mut state = self.lock();
                state.connection()?.protocol.handle_sent(transfer.wr_id(), false);
                return Err(Error(libc::ECONNRESET));
            }
            left -= transfer.length as usize;
        }
        Ok(whole - left)
    }
}

/// The next entry for the peer's list, if there is one and room for it.
fn next_entry(state: &mut State) -> Result<Option<(rsocket::IoMapWork, Arc<Parts>)>, Error> {
    let Some(at) = state.io_maps.lent.iter().position(|lent| !lent.told) else {
        state.io_maps.untold = false;
        return Ok(None);
    };
    let Lent { memory, index, .. } = state.io_maps.lent[at];
    let target = Target { place: Span { address: memory.address, key: memory.key }, length: memory.length };
    let mapping = IoMapping { offset: memory.offset, target };
    let index = index.unwrap_or(0);
    let mut work = state.connection()?.protocol.next_io_mapping(index, &mapping);
    if work.is_none() {
        state.progress();
        work = state.connection()?.protocol.next_io_mapping(index, &mapping);
    }
    let endpoint = state.connection()?;
    let Some(work) = work else {
        return if endpoint.protocol.is_writable() { Ok(None) } else { Err(Error(libc::ECONNRESET)) };
    };
    let parts = Arc::clone(&endpoint.parts);
    state.io_maps.lent[at].told = true;
    Ok(Some((work, parts)))
}

/// The mapping of the peer's that has the byte of an offset.
fn find(parts: &Parts, count: u16, offset: u64) -> Option<IoMapping> {
    (0..count).find_map(|index| {
        let mut entry = [0; IoMapping::LENGTH];
        parts.targets.read(Stream::io_mapping_offset(index), &mut entry).ok()?;
        let mapping = IoMapping::from_memory(&entry);
        mapping.bytes_from(offset).map(|_| mapping)
    })
}
