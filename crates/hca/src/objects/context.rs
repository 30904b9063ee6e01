//! An opened device: what a program's objects belong to, and where it hears of what happens to them beside completions.

use crate::objects::channel::Channel;
use crate::objects::device::Device;
use latch::Rank;
use latch::plain::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use wire::{Qpn, Srqn};

/// What a program hears of beside completions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// Something happened to a queue pair.
    Qp(Qpn, transport::AsyncEvent),
    /// A completion queue overflowed.
    CqError(u32),
    /// A shared receive queue ran low.
    SrqLimit(Srqn),
    /// A shared receive queue failed.
    SrqError(Srqn),
    /// The port of that number came up.
    PortActive(u8),
    /// The port of that number went down.
    PortError(u8),
    /// An address of the port came or went.
    GidChange(u8),
    /// The local identifier of the port changed.
    LidChange(u8),
    /// The port's table of partition keys changed.
    PkeyChange(u8),
    /// The subnet manager moved.
    SmChange(u8),
    /// The subnet manager wants clients to register again.
    ClientReregister(u8),
    /// The port carries more or less than before.
    SpeedChange(u8),
    /// The device has failed, or something went wrong inside the library.
    DeviceFatal,
}

/// An opened device.
#[derive(Debug)]
pub struct Context {
    device: Arc<Device>,
    events: Channel<AsyncEvent>,
    next_domain: &'static AtomicU32,
    number: u32,
    /// Protection domains that were made in it and not freed.
    domains: Mutex<BTreeSet<u32>>,
}

/// Protection domains are numbered across the process: memory of one device must not open another's.
static NEXT_DOMAIN: AtomicU32 = AtomicU32::new(1);

static NEXT_CONTEXT: AtomicU32 = AtomicU32::new(1);

impl Context {
    pub(crate) fn new(device: Arc<Device>) -> io::Result<Context> {
        let number = NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed);
        let domains = Mutex::new(Rank::Domains, BTreeSet::new());
        Ok(Context { device, events: Channel::new()?, next_domain: &NEXT_DOMAIN, number, domains })
    }

    /// Its number, for those who ask what there is.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Events, oldest first, behind a descriptor.
    pub fn events(&self) -> &Channel<AsyncEvent> {
        &self.events
    }

    /// The number of a new protection domain.
    pub fn new_domain(&self) -> transport::ProtectionDomain {
        let number = self.next_domain.fetch_add(1, Ordering::Relaxed);
        self.domains.lock().insert(number);
        transport::ProtectionDomain(number)
    }

    /// A protection domain is no longer.
    pub fn free_domain(&self, domain: transport::ProtectionDomain) {
        self.domains.lock().remove(&domain.0);
    }

    pub(crate) fn domains(&self) -> Vec<u32> {
        self.domains.lock().iter().copied().collect()
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.events.push(event);
    }
}
