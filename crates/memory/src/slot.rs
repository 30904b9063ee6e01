//! One entry of the table of keys: a gate, and the terms on which a region or window grants access. A window's terms
//! are resolved when it is bound, down to the address of its first byte, so an access costs one look whatever it goes
//! through. What an entry belongs to (which region a window is bound to, which device memory a region covers) is the
//! books' business, not the slot's.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::gate::{Bell, Gate, Shut};
use crate::version::Version;
use wire::access::{Access, ProtectionDomain, Range, RefusalCause, Subject};
use wire::{Key, Qpn, refuse_if};

/// What a key grants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) kind: Kind,
    pub(crate) domain: ProtectionDomain,
    /// Type 2 windows: the queue pair that may use it.
    pub(crate) qpn: Qpn,
    pub(crate) access: Access,
    /// The first address as keys see it.
    pub(crate) start: u64,
    pub(crate) length: u64,
    /// The first byte.
    pub(crate) base: *mut u8,
    pub(crate) reach: Reach,
}

/// A GPU, as the driver counts them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct DeviceNumber(pub u16);

/// Who moves the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// The processor.
    Processor,
    /// The kernel: the memory may vanish under us.
    OnDemand,
    /// The driver of a GPU.
    Gpu(DeviceNumber),
}

/// What a key names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Region,
    /// A region without memory: zeros to read, and nowhere to write to. For its owner only.
    Null,
    /// A window that is bound; type 2 if it belongs to one queue pair.
    Window {
        type2: bool,
    },
    /// A window that never was bound, or was unbound.
    Unbound,
    /// A window that was invalidated.
    Invalidated,
}

impl Terms {
    /// The first byte of `range`, if `subject` may have it with these rights. The causes are looked for in the order in
    /// which the specification lets a responder find them (IBA 10.6.3), so every implementation answers the same.
    #[inline]
    pub(crate) fn admit(&self, subject: Subject, range: Range, access: Access) -> Result<*mut u8, RefusalCause> {
        let is_own = matches!(self.kind, Kind::Region | Kind::Null);
        if !is_own && !subject.remote || self.kind == Kind::Null && subject.remote {
            // A window's key is an R_Key only, and that of nothing an L_Key only.
            return Err(RefusalCause::WrongKind);
        }
        refuse_if!(self.domain != subject.pd, RefusalCause::WrongProtectionDomain);
        match self.kind {
            Kind::Region | Kind::Null | Kind::Window { type2: false } => {}
            Kind::Window { type2: true } if self.qpn == subject.qpn => {}
            Kind::Window { type2: true } => return Err(RefusalCause::WrongQueuePair),
            Kind::Unbound => return Err(RefusalCause::WindowUnbound),
            Kind::Invalidated => return Err(RefusalCause::Invalidated),
        }
        refuse_if!(!self.access.contains(access), RefusalCause::NotPermitted);
        let offset = within(self.start, self.length, range.address, range.length)
            .ok_or(RefusalCause::OutOfBounds { start: self.start, length: self.length })?;
        // The offset is below the length, which fits the address space. Wrapping, because the on-demand region over
        // everything starts at address 0, which is no object for a pointer to stay inside of.
        Ok(self.base.wrapping_add(offset as usize))
    }

    /// What a slot says whose key names nothing.
    fn nothing() -> Terms {
        Terms {
            kind: Kind::Unbound,
            domain: ProtectionDomain(0),
            qpn: Qpn::new(0),
            access: Access::empty(),
            start: 0,
            length: 0,
            base: ptr::null_mut(),
            reach: Reach::Processor,
        }
    }
}

/// The offset of `address` in `start..start + length`, if `wanted` bytes from there on lie inside. Addresses do not
/// wrap.
#[inline]
pub(crate) fn within(start: u64, length: u64, address: u64, wanted: u64) -> Option<u64> {
    let offset = address.checked_sub(start)?;
    let room = length.checked_sub(offset)?;
    (wanted <= room).then_some(offset)
}

/// A gate and the terms behind it, in one cache line.
///
/// The terms are written only while the gate is closed and drained, and read either inside the gate or, for a mere
/// question, beside it under the version.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Slot {
    gate: Gate,
    start: AtomicU64,
    length: AtomicU64,
    base: AtomicPtr<u8>,
    version: Version,
    domain: AtomicU32,
    qpn: AtomicU32,
    access: AtomicU32,
    kind: AtomicU32,
}

const ON_DEMAND: u32 = 1 << 8;
const GPU_BIT: u32 = 1 << 9;
/// A sanitizer judges each access, so no access is plain.
const JUDGED_BIT: u32 = 1 << 10;
const KIND_MASK: u32 = 0xff;
/// Where the number of a GPU stands.
const DEVICE_SHIFT: u32 = 16;
/// A region whose memory is the processor's and stays where it is.
const PLAIN_KIND: u32 = 0;

impl Slot {
    pub(crate) fn new() -> Slot {
        let slot = Slot {
            gate: Gate::new(),
            start: AtomicU64::new(0),
            length: AtomicU64::new(0),
            base: AtomicPtr::new(ptr::null_mut()),
            version: Version::new(),
            domain: AtomicU32::new(0),
            qpn: AtomicU32::new(0),
            access: AtomicU32::new(0),
            kind: AtomicU32::new(0),
        };
        slot.store(&Terms::nothing());
        slot
    }

    /// Counts an access in and gives its terms, which hold until `leave`.
    #[inline]
    pub(crate) fn enter(&self, key: Key, bell: &Bell) -> Result<Terms, RefusalCause> {
        self.enter_gate(key, bell)?;
        Ok(self.load())
    }

    /// The first byte of `range` inside the gate, if it is of a plain region and all is well. A caller that gets `None`
    /// looks at the terms.
    #[inline]
    pub(crate) fn admit_plain(&self, subject: Subject, range: Range, access: Access) -> Option<*mut u8> {
        let granted = Access::from_bits_retain(self.access.load(Ordering::Relaxed));
        let plain =
            self.kind.load(Ordering::Relaxed) == PLAIN_KIND && self.domain.load(Ordering::Relaxed) == subject.pd.0;
        if !plain || !granted.contains(access) {
            return None;
        }
        let (start, length) = (self.start.load(Ordering::Relaxed), self.length.load(Ordering::Relaxed));
        let offset = within(start, length, range.address, range.length)?;
        Some(self.base.load(Ordering::Relaxed).wrapping_add(offset as usize))
    }

    /// Enters without a look at the terms.
    #[inline]
    pub(crate) fn enter_gate(&self, key: Key, bell: &Bell) -> Result<(), RefusalCause> {
        self.gate.enter(key.value(), bell).map_err(cause)
    }

    /// Enters without being counted, in a thread that others wait for in `drain` all the same.
    #[inline]
    pub(crate) fn pass_gate(&self, key: Key) -> Result<(), RefusalCause> {
        self.gate.test(key.value()).map_err(cause)
    }

    /// Counts an access out.
    #[inline]
    pub(crate) fn leave(&self, bell: &Bell) {
        self.gate.leave(bell);
    }

    /// The terms at this moment, for a question that no access depends on. Writes nothing, so any number of threads may
    /// ask at once.
    ///
    /// The gate belongs to what is read under the version: it opens after a change, with release, so a gate of the next
    /// state betrays the next version; and it closes before a change, so after the version of this state an open gate
    /// is of this state.
    #[inline]
    pub(crate) fn look(&self, key: Key, bell: &Bell) -> Result<Terms, RefusalCause> {
        match self.version.read(|| (self.gate.test(key.value()), self.load())) {
            Some((gate, terms)) => gate.map(|()| terms).map_err(cause),
            None => {
                // Caught in the middle of a change: the gate itself tells before from after.
                let terms = self.enter(key, bell)?;
                self.leave(bell);
                Ok(terms)
            }
        }
    }

    /// The terms at this moment, unless they are being changed: for a question whose answer may be "unknown". Takes no
    /// lock and counts nothing.
    pub(crate) fn glance(&self, key: Key) -> Option<Terms> {
        let (gate, terms) = self.version.read(|| (self.gate.test(key.value()), self.load()))?;
        gate.is_ok().then_some(terms)
    }

    /// The key that opens the slot, if it is any.
    pub(crate) fn key(&self) -> Key {
        Key::new(self.gate.key())
    }

    /// Lets no more accesses in. The thread that closes a slot must be the only one to do so until it is opened or
    /// freed again.
    pub(crate) fn close(&self) {
        self.gate.close();
    }

    /// Waits at a closed slot until no access is under way that was counted at its gate.
    pub(crate) fn drain(&self, bell: &Bell) {
        latch::nobody_else();
        self.gate.drain(bell);
    }

    /// Opens a closed and drained slot to `key` on new terms.
    pub(crate) fn open(&self, key: Key, terms: &Terms) {
        self.version.change(|| self.store(terms));
        self.gate.open(key.value());
    }

    /// Takes a closed and drained slot from its key.
    pub(crate) fn free(&self) {
        self.version.change(|| self.store(&Terms::nothing()));
        self.gate.abandon();
    }

    fn store(&self, terms: &Terms) {
        let kind = match terms.kind {
            Kind::Region => PLAIN_KIND,
            Kind::Window { type2: false } => 1,
            Kind::Window { type2: true } => 2,
            Kind::Unbound => 3,
            Kind::Invalidated => 4,
            Kind::Null => 5,
        };
        let reach = match terms.reach {
            Reach::Processor => 0,
            Reach::OnDemand => ON_DEMAND,
            Reach::Gpu(DeviceNumber(device)) => GPU_BIT | u32::from(device) << DEVICE_SHIFT,
        };
        let judged = if latch::sanitizer::judges_accesses() { JUDGED_BIT } else { 0 };
        self.kind.store(kind | reach | judged, Ordering::Relaxed);
        self.domain.store(terms.domain.0, Ordering::Relaxed);
        self.qpn.store(terms.qpn.value(), Ordering::Relaxed);
        self.access.store(terms.access.bits(), Ordering::Relaxed);
        self.start.store(terms.start, Ordering::Relaxed);
        self.length.store(terms.length, Ordering::Relaxed);
        self.base.store(terms.base, Ordering::Relaxed);
    }

    /// The terms, as they are while one is inside the gate.
    #[inline]
    pub(crate) fn load(&self) -> Terms {
        let kind = self.kind.load(Ordering::Relaxed);
        Terms {
            reach: match kind & (ON_DEMAND | GPU_BIT) {
                0 => Reach::Processor,
                GPU_BIT => Reach::Gpu(DeviceNumber((kind >> DEVICE_SHIFT) as u16)),
                _ => Reach::OnDemand,
            },
            kind: match kind & KIND_MASK {
                PLAIN_KIND => Kind::Region,
                1 => Kind::Window { type2: false },
                2 => Kind::Window { type2: true },
                3 => Kind::Unbound,
                5 => Kind::Null,
                _ => Kind::Invalidated,
            },
            domain: ProtectionDomain(self.domain.load(Ordering::Relaxed)),
            qpn: Qpn::new(self.qpn.load(Ordering::Relaxed)),
            access: Access::from_bits_retain(self.access.load(Ordering::Relaxed)),
            start: self.start.load(Ordering::Relaxed),
            length: self.length.load(Ordering::Relaxed),
            base: self.base.load(Ordering::Relaxed),
        }
    }
}

fn cause(shut: Shut) -> RefusalCause {
    match shut {
        Shut::OtherKey => RefusalCause::UnknownKey,
        Shut::Closed => RefusalCause::Invalidated,
        Shut::Full => RefusalCause::TooManyGuards,
    }
}
