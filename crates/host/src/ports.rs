//! Ports of the connection manager, shared by the processes of a host. A port is a name that was bound; a port that was
//! not asked for by number comes from a block of 64 that was bound as a whole. Which addresses and connections a port
//! has is not known here.
//!
//! **A port is never given out twice, though there are two kinds of names.** A process that wants a port by number
//! binds the port's name and then looks whether any process listens on the block's. A process that takes a port from
//! its block, on which it listens, first makes sure that the port's name can be bound. Each publishes before it looks,
//! so at least one sees the other.

use crate::holders;
pub use crate::names::PORTS_PER_BLOCK;
use crate::names::{self, Name};
use crate::shares;
use crate::slots::{Registry, Slots, random};
use latch::Rank;
use latch::plain::{Guard, Mutex};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};
use wire::cm::PortSpace;

/// How long the system's range of ports is believed to be what it was.
const RANGE_CACHE_TIME: Duration = Duration::from_secs(1);

/// Why a port could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// A process has it.
    #[error("port {port} of {space:?} is in use on this host")]
    InUse {
        /// The namespace of ports.
        space: PortSpace,
        /// The port.
        port: u16,
    },
    /// There is no block with a free port.
    #[error("no free port of {space:?} is left on this host")]
    Exhausted {
        /// The namespace of ports.
        space: PortSpace,
    },
    /// The system refused.
    #[error("cannot bind a port's socket")]
    System(#[from] io::Error),
}

impl PortError {
    /// What a C program sees.
    pub fn errno(&self) -> i32 {
        match self {
            PortError::InUse { .. } => libc::EADDRINUSE,
            PortError::Exhausted { .. } => libc::EADDRNOTAVAIL,
            PortError::System(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// The ports of this process. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Ports {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    registry: Arc<Registry>,
    held: Mutex<HeldPorts>,
}

#[derive(Debug, Default)]
struct HeldPorts {
    ports: BTreeSet<(PortSpace, u16)>,
    blocks: Vec<Block>,
    /// The blocks within the system's range, and when it was read.
    range: Option<(Instant, RangeInclusive<u16>)>,
}

#[derive(Debug)]
struct Block {
    space: PortSpace,
    number: u16,
    /// A bit for each port that is not free: ours, or found to be another's.
    used: u64,
    /// Where the search for a free one begins: after the port that was taken last. A program that binds port 0, closes,
    /// and binds the number it saw would otherwise lose it to the next id of the process.
    next: u32,
}

/// A port that is ours until this is dropped.
#[derive(Debug)]
pub struct Port {
    inner: Arc<Inner>,
    space: PortSpace,
    number: u16,
}

impl Port {
    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The namespace it is in.
    pub fn space(&self) -> PortSpace {
        self.space
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.inner.release(self.space, self.number);
    }
}

impl Ports {
    /// The ports of the process that has these slots.
    pub fn new(slots: &Slots) -> Ports {
        Ports {
            inner: Arc::new(Inner {
                registry: slots.registry().clone(),
                held: Mutex::new(Rank::CmPorts, HeldPorts::default()),
            }),
        }
    }

    /// Takes a port by number, or any free one for 0.
    pub fn bind(&self, space: PortSpace, port: u16) -> Result<Port, PortError> {
        if port == 0 {
            return self.bind_any(space);
        }
        self.bind_number(&mut self.inner.held(), space, port)
    }

    fn bind_number(&self, held: &mut HeldPorts, space: PortSpace, port: u16) -> Result<Port, PortError> {
        let in_use = PortError::InUse { space, port };
        if held.ports.contains(&(space, port)) {
            return Err(in_use);
        }
        if let Some(block) =
            held.blocks.iter_mut().find(|block| block.space == space && block.number == port / PORTS_PER_BLOCK)
        {
            // The bit may also mean that it was another's when we looked.
            if !is_free(space, port)? {
                return Err(in_use);
            }
            block.used |= bit(port);
        } else {
            let socket = names::socket()?;
            match names::listen_patiently(&socket, Name::Port(space, port)) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => return Err(in_use),
                Err(error) => return Err(error.into()),
            }
            if names::is_reachable(Name::Block(space, port / PORTS_PER_BLOCK))? {
                return Err(in_use);
            }
            self.inner.registry.enter(Name::Port(space, port), socket)?;
        }
        held.ports.insert((space, port));
        Ok(self.port(space, port))
    }

    /// Takes any free port of the range that the system uses for such (`net.ipv4.ip_local_port_range`).
    fn bind_any(&self, space: PortSpace) -> Result<Port, PortError> {
        let mut held = self.inner.held();
        let range = held.range();
        for block in &mut held.blocks {
            if block.space == space
                && range.contains(&block.number)
                && let Some(port) = block.take()?
            {
                held.ports.insert((space, port));
                return Ok(self.port(space, port));
            }
        }
        let (start, uid) = (random(), holders::own_uid());
        let count = u64::from(range.end().saturating_sub(*range.start())) + 1;
        for step in 0..count {
            let number = range.start() + ((start % count + step) % count) as u16;
            let taken = held.blocks.iter().any(|block| block.space == space && block.number == number);
            if taken || !shares::may_have_block(uid, space, number) {
                continue;
            }
            let socket = names::socket()?;
            match names::listen(&socket, Name::Block(space, number)) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => continue,
                Err(error) => return Err(error.into()),
            }
            self.inner.registry.enter(Name::Block(space, number), socket)?;
            let mut block = Block { space, number, used: 0, next: 0 };
            // Block 0 has port 0, which is no port.
            block.used |= u64::from(number == 0);
            let port = block.take()?;
            held.blocks.push(block);
            if let Some(port) = port {
                held.ports.insert((space, port));
                return Ok(self.port(space, port));
            }
        }
        // No block is left, or another user squats on all of them. There are ports beside those that others have.
        for step in 0..count {
            let number = range.start() + ((start % count + step) % count) as u16;
            let first = (start >> 32) as u16;
            for step in 0..PORTS_PER_BLOCK {
                let port = number * PORTS_PER_BLOCK + first.wrapping_add(step) % PORTS_PER_BLOCK;
                match self.bind_number(&mut held, space, port) {
                    Err(PortError::InUse { .. }) => {}
                    answer => return answer,
                }
            }
        }
        Err(PortError::Exhausted { space })
    }

    /// Whether a port is ours.
    pub fn holds(&self, space: PortSpace, port: u16) -> bool {
        self.inner.held().ports.contains(&(space, port))
    }

    fn port(&self, space: PortSpace, number: u16) -> Port {
        Port { inner: self.inner.clone(), space, number }
    }
}

impl HeldPorts {
    /// The blocks within the system's range.
    fn range(&mut self) -> RangeInclusive<u16> {
        let now = Instant::now();
        match &self.range {
            Some((read, range)) if now.saturating_duration_since(*read) < RANGE_CACHE_TIME => range.clone(),
            _ => self.range.insert((now, ephemeral_range())).1.clone(),
        }
    }
}

impl Inner {
    fn held(&self) -> Guard<MutexGuard<'_, HeldPorts>> {
        self.held.lock()
    }

    fn release(&self, space: PortSpace, port: u16) {
        let mut held = self.held();
        held.ports.remove(&(space, port));
        // Its own name, if it has one: the block around it may have become ours later.
        self.registry.leave(Name::Port(space, port));
        let block = held.blocks.iter().position(|block| block.space == space && block.number == port / PORTS_PER_BLOCK);
        let Some(at) = block else { return };
        if let Some(block) = held.blocks.get_mut(at) {
            block.used &= !bit(port);
        }
        // One block stays for the next port; others go when they are empty.
        let HeldPorts { ports, blocks, .. } = &mut *held;
        let is_empty = |block: &Block| {
            ports.range((space, first(block))..=(space, first(block) + (PORTS_PER_BLOCK - 1))).next().is_none()
        };
        let spare =
            blocks.iter().enumerate().any(|(other, block)| other != at && block.space == space && is_empty(block));
        if spare && blocks.get(at).is_some_and(is_empty) {
            let block = blocks.swap_remove(at);
            self.registry.leave(Name::Block(space, block.number));
        }
    }
}

impl Block {
    /// A port that no process has.
    fn take(&mut self) -> io::Result<Option<u16>> {
        while self.used != u64::MAX {
            let at = (self.next + self.used.rotate_right(self.next).trailing_ones()) % u32::from(PORTS_PER_BLOCK);
            let port = first(self) + at as u16;
            (self.used, self.next) = (self.used | bit(port), (at + 1) % u32::from(PORTS_PER_BLOCK));
            if is_free(self.space, port)? {
                return Ok(Some(port));
            }
        }
        Ok(None)
    }
}

fn first(block: &Block) -> u16 {
    block.number * PORTS_PER_BLOCK
}

fn bit(port: u16) -> u64 {
    1 << (port % PORTS_PER_BLOCK)
}

/// Whether no process has bound the port by number. Asked by binding: a process between its bind and its listen cannot
/// be reached, but counts.
fn is_free(space: PortSpace, port: u16) -> io::Result<bool> {
    match names::bind(&names::socket()?, Name::Port(space, port)) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The numbers of the blocks that lie within the system's range.
fn ephemeral_range() -> RangeInclusive<u16> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    blocks_within(&text)
}

/// The blocks within a range of ports: two numbers, as the kernel writes them.
#[doc(hidden)] // for fuzzing
pub fn blocks_within(text: &str) -> RangeInclusive<u16> {
    let mut numbers = text.split_ascii_whitespace().map_while(|number| number.parse::<u16>().ok());
    let (low, high) = match (numbers.next(), numbers.next()) {
        (Some(low), Some(high)) if high > low && high - low >= 2 * PORTS_PER_BLOCK => (low, high),
        _ => (32_768, 60_999),
    };
    // The range that is cut to whole blocks has at least one.
    low.div_ceil(PORTS_PER_BLOCK)..=((u32::from(high) + 1) / u32::from(PORTS_PER_BLOCK)) as u16 - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn process() -> Ports {
        Ports::new(&Slots::open().unwrap())
    }

    fn in_use(answer: &Result<Port, PortError>) -> bool {
        matches!(answer, Err(PortError::InUse { .. }))
    }

    #[test]
    fn a_port_has_one_owner_until_it_is_given_back() {
        let (one, other) = (process(), process());
        // A port that programs do not have by themselves, and that another run of this test at the same time hardly
        // has.
        let number = 20_000 + (std::process::id() % 10_000) as u16;
        let port = one.bind(PortSpace::Tcp, number).unwrap();
        assert!(in_use(&one.bind(PortSpace::Tcp, number)) && in_use(&other.bind(PortSpace::Tcp, number)));
        assert_eq!(other.bind(PortSpace::Tcp, number).unwrap_err().errno(), libc::EADDRINUSE);
        let elsewhere = other.bind(PortSpace::Udp, number).unwrap();
        assert!(one.holds(PortSpace::Tcp, number) && !other.holds(PortSpace::Tcp, number));
        drop(port);
        assert!(!one.holds(PortSpace::Tcp, number));
        assert_eq!(other.bind(PortSpace::Tcp, number).unwrap().number(), elsewhere.number());
    }

    #[test]
    fn a_port_that_was_given_back_is_the_last_to_be_given_again() {
        let one = process();
        let first = one.bind(PortSpace::Tcp, 0).unwrap().number();
        let others: Vec<_> = (0..PORTS_PER_BLOCK - 1).map(|_| one.bind(PortSpace::Tcp, 0).unwrap()).collect();
        assert!(others.iter().all(|port| port.number() != first));
        assert_eq!(one.bind(PortSpace::Tcp, first).unwrap().number(), first);
    }

    #[test]
    fn ports_from_a_block_are_nobody_elses() {
        let (one, other) = (process(), process());
        let mut taken: Vec<_> = (0..200).map(|_| one.bind(PortSpace::Ib, 0).unwrap()).collect();
        let mut numbers: Vec<_> = taken.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 200);
        let any = taken.pop().unwrap();
        let number = any.number();
        assert!(in_use(&other.bind(PortSpace::Ib, number)) && in_use(&one.bind(PortSpace::Ib, number)));
        drop(any);
        assert!(in_use(&other.bind(PortSpace::Ib, number)), "the block is still the first process's");
        let again = one.bind(PortSpace::Ib, number).unwrap();
        assert_eq!(again.number(), number);
        drop((taken, again));
        let left = one.inner.held().blocks.len();
        assert_eq!(left, 1, "one block stays for the next port");
        drop(one);
        let block = Name::Block(PortSpace::Ib, number / PORTS_PER_BLOCK);
        assert!(!names::is_reachable(block).unwrap());
    }

    #[test]
    fn a_block_goes_round_ports_that_were_taken_by_number() {
        let (one, other) = (process(), process());
        let seed = one.bind(PortSpace::Ipoib, 0).unwrap().number();
        let block = seed / PORTS_PER_BLOCK;
        drop(one);
        let odd: Vec<_> =
            (0..32).map(|n| other.bind(PortSpace::Ipoib, block * PORTS_PER_BLOCK + 2 * n + 1).unwrap()).collect();
        // A process takes the block although ports in it are taken.
        let one = process();
        let socket = names::socket().unwrap();
        names::listen(&socket, Name::Block(PortSpace::Ipoib, block)).unwrap();
        one.inner.registry.enter(Name::Block(PortSpace::Ipoib, block), socket).unwrap();
        one.inner.held().blocks.push(Block { space: PortSpace::Ipoib, number: block, used: 0, next: 0 });
        let even: Vec<_> = (0..32).map(|_| one.bind(PortSpace::Ipoib, 0).unwrap()).collect();
        assert!(even.iter().all(|port| port.number() / PORTS_PER_BLOCK == block && port.number() % 2 == 0), "{even:?}");
        assert_ne!(one.bind(PortSpace::Ipoib, 0).unwrap().number() / PORTS_PER_BLOCK, block);
        drop(odd);
    }

    #[test]
    fn processes_that_race_never_share_a_port() {
        let wanted = 40_000u16;
        for round in 0..20 {
            let ports: Vec<_> = thread::scope(|scope| {
                let workers: Vec<_> = (0..4)
                    .map(|worker| {
                        scope.spawn(move || {
                            let ports = process();
                            let mut mine = Vec::new();
                            for step in 0..40 {
                                // Some by number, some from blocks, all in the same few blocks if chance wants it.
                                let number = if (worker + step) % 2 == 0 { wanted + round * 8 + step } else { 0 };
                                mine.extend(ports.bind(PortSpace::Udp, number));
                            }
                            mine
                        })
                    })
                    .collect();
                workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
            });
            let mut numbers: Vec<_> = ports.iter().map(Port::number).collect();
            let count = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), count);
        }
    }

    #[test]
    fn the_range_is_whole_blocks() {
        assert_eq!(blocks_within("32768\t60999\n"), 512..=952);
        assert_eq!(blocks_within("32769 65535"), 513..=1023);
        for odd in ["", "5", "60999 32768", "x y", "100 101", "1 70000"] {
            assert_eq!(blocks_within(odd), 512..=952, "{odd}");
        }
    }
}
