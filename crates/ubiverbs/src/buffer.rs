//! Buffers: memory the NIC may touch, as types that say who else may. A buffer is moved into the call that posts work
//! for it and handed back when the work is done, so nobody reads what the NIC is writing or frees what it is reading.
//! [`SharedRegion`] is the exception by design: peers reach it at any time, and so it never turns into a slice; memory
//! of the device ([`DeviceRegion`]) has no address here at all.

mod device;
mod gpu;
mod own;
mod part;
mod registered;
mod registered_mut;
mod shared;

pub use device::{DeviceMemory, DeviceMemoryBuilder, DeviceRegion};
pub use gpu::GpuRegion;
pub use own::{Own, SharedOwn};
pub use part::{AnyPart, Part};
pub use registered::Registered;
pub use registered_mut::RegisteredMut;
pub use shared::SharedRegion;

use crate::allocation::Allocation;
use crate::registration::Registration;
use seam::Error;
use transport::{ProtectionDomain, Sge};
use wire::refuse_if;

/// A buffer of any type, as a completion hands it back in polling style.
#[derive(Debug)]
#[non_exhaustive]
pub enum Buffer {
    /// One with a single owner.
    Mut(RegisteredMut),
    /// A read-only one.
    Registered(Registered),
    /// A region that peers reach too.
    Shared(SharedRegion),
    /// A region of device memory.
    Device(DeviceRegion),
    /// A region of a GPU's memory.
    Gpu(GpuRegion),
    /// Several, in the order they were given.
    Several(Vec<Buffer>),
    /// A part of one.
    Part(Box<AnyPart>),
}

impl Buffer {
    /// The buffer with a single owner, if it is one.
    pub fn into_mut(self) -> Option<RegisteredMut> {
        if let Buffer::Mut(buffer) = self { Some(buffer) } else { None }
    }

    /// The read-only buffer, if it is one.
    pub fn into_registered(self) -> Option<Registered> {
        if let Buffer::Registered(buffer) = self { Some(buffer) } else { None }
    }

    /// The shared region, if it is one.
    pub fn into_shared(self) -> Option<SharedRegion> {
        if let Buffer::Shared(region) = self { Some(region) } else { None }
    }

    /// The region of device memory, if it is one.
    pub fn into_device(self) -> Option<DeviceRegion> {
        if let Buffer::Device(region) = self { Some(region) } else { None }
    }

    /// The region of a GPU's memory, if it is one.
    pub fn into_gpu(self) -> Option<GpuRegion> {
        if let Buffer::Gpu(region) = self { Some(region) } else { None }
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Buffer::Mut(buffer) => buffer.len() as u64,
            Buffer::Registered(buffer) => buffer.len() as u64,
            Buffer::Shared(region) => region.len() as u64,
            Buffer::Device(region) => region.len() as u64,
            Buffer::Gpu(region) => region.len() as u64,
            Buffer::Several(buffers) => buffers.iter().map(Buffer::len).sum(),
            Buffer::Part(part) => part.len(),
        }
    }

    /// Calls `take` with each piece, in order, once it is known to belong to `domain`.
    #[inline]
    pub(crate) fn pieces<F: FnMut(Sge)>(&self, domain: ProtectionDomain, take: &mut F) -> Result<(), Error> {
        let (registration, address, length) = match self {
            Buffer::Mut(buffer) => in_memory(buffer.place()),
            Buffer::Registered(buffer) => in_memory(buffer.place()),
            Buffer::Shared(region) => in_memory(region.place()),
            Buffer::Device(region) => region.place(),
            Buffer::Gpu(region) => region.place(),
            Buffer::Several(buffers) => return buffers.iter().try_for_each(|buffer| buffer.pieces(domain, take)),
            Buffer::Part(part) => return part.pieces(domain, take),
        };
        refuse_if!(registration.domain() != domain, Error::OtherProtectionDomain { what: "buffer" });
        // Nobody can revoke the others.
        if matches!(self, Buffer::Shared(_) | Buffer::Device(_) | Buffer::Gpu(_)) && registration.is_revoked() {
            return Err(Error::Revoked);
        }
        let too_long = transport::PostError::MessageTooLong { length: length as u64 };
        let length = u32::try_from(length).map_err(|_| too_long)?;
        take(Sge { address, length, key: registration.key() });
        Ok(())
    }
}

/// A part of an allocation, as keys see it.
fn in_memory((allocation, start, length): (&Allocation, usize, usize)) -> (&Registration, u64, usize) {
    (allocation.registration(), allocation.address() + start as u64, length)
}

pub(crate) mod sealed {
    use super::Buffer;

    /// Turns into any buffer and back.
    #[diagnostic::on_unimplemented(
        message = "`{Self}` is no buffer of this NIC",
        label = "not a registered buffer that is given away",
        note = "the buffer itself is handed over, and comes back when the work is done: `qp.send(buffer)`, not `qp.send(&buffer)`"
    )]
    pub trait Lend: Sized + Send + 'static {
        fn into_buffer(self) -> Buffer;
        /// What `into_buffer` was given; `None` cannot happen.
        fn from_buffer(buffer: Buffer) -> Option<Self>;
    }
}

/// What may be sent or written from: [`RegisteredMut`], [`Own`], [`Registered`], [`SharedRegion`], [`DeviceRegion`],
/// [`GpuRegion`], a [`Part`] of one, several of one type as a `Vec`, or two of different types as a pair.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no buffer that can be sent or written from",
    label = "not a registered buffer that is given away",
    note = "the buffer itself is handed over, and comes back when the work is done: `qp.send(buffer)`, not `qp.send(&buffer)`",
    note = "a `Registered` is cheap to clone, for work that needs the same bytes: `qp.send(buffer.clone())`",
    note = "other bytes are registered first, `qp.send(pd.register(bytes)?)`, or copied if they are few: `qp.send_inline(&bytes)`"
)]
pub trait Source: sealed::Lend {}

/// What may be read or received into: [`RegisteredMut`], [`Own`], [`SharedRegion`], [`DeviceRegion`], [`GpuRegion`], a
/// [`Part`] of one, several of one type as a `Vec`, or two of different types as a pair.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no buffer that can be read into",
    label = "not a buffer that the NIC may write to",
    note = "the buffer itself is handed over, and comes back with what was read: `qp.read(pd.allocate(length)?, remote)`, not \
            `qp.read(&mut buffer, remote)`",
    note = "a `Registered` is read-only for ever; read into a `RegisteredMut`, a `SharedRegion` or a `DeviceRegion`"
)]
pub trait Destination: sealed::Lend {}

impl sealed::Lend for RegisteredMut {
    fn into_buffer(self) -> Buffer {
        Buffer::Mut(self)
    }

    fn from_buffer(buffer: Buffer) -> Option<RegisteredMut> {
        buffer.into_mut()
    }
}

impl sealed::Lend for Registered {
    fn into_buffer(self) -> Buffer {
        Buffer::Registered(self)
    }

    fn from_buffer(buffer: Buffer) -> Option<Registered> {
        buffer.into_registered()
    }
}

impl sealed::Lend for SharedRegion {
    fn into_buffer(self) -> Buffer {
        Buffer::Shared(self)
    }

    fn from_buffer(buffer: Buffer) -> Option<SharedRegion> {
        buffer.into_shared()
    }
}

impl sealed::Lend for DeviceRegion {
    fn into_buffer(self) -> Buffer {
        Buffer::Device(self)
    }

    fn from_buffer(buffer: Buffer) -> Option<DeviceRegion> {
        buffer.into_device()
    }
}

impl sealed::Lend for GpuRegion {
    fn into_buffer(self) -> Buffer {
        Buffer::Gpu(self)
    }

    fn from_buffer(buffer: Buffer) -> Option<GpuRegion> {
        buffer.into_gpu()
    }
}

impl<B: sealed::Lend> sealed::Lend for Vec<B> {
    fn into_buffer(self) -> Buffer {
        Buffer::Several(self.into_iter().map(B::into_buffer).collect())
    }

    fn from_buffer(buffer: Buffer) -> Option<Vec<B>> {
        let Buffer::Several(buffers) = buffer else { return None };
        buffers.into_iter().map(B::from_buffer).collect()
    }
}

/// Two of different types, one behind the other: a header and what it is the header of.
impl<A: sealed::Lend, B: sealed::Lend> sealed::Lend for (A, B) {
    fn into_buffer(self) -> Buffer {
        Buffer::Several(vec![self.0.into_buffer(), self.1.into_buffer()])
    }

    fn from_buffer(buffer: Buffer) -> Option<(A, B)> {
        let Buffer::Several(buffers) = buffer else { return None };
        let [first, second] = buffers.try_into().ok()?;
        Some((A::from_buffer(first)?, B::from_buffer(second)?))
    }
}

impl Source for RegisteredMut {}
impl Source for Registered {}
impl Source for SharedRegion {}
impl Source for DeviceRegion {}
impl Source for GpuRegion {}
impl<B: Source> Source for Vec<B> {}
impl<A: Source, B: Source> Source for (A, B) {}
impl Destination for RegisteredMut {}
impl Destination for SharedRegion {}
impl Destination for DeviceRegion {}
impl Destination for GpuRegion {}
impl<B: Destination> Destination for Vec<B> {}
impl<A: Destination, B: Destination> Destination for (A, B) {}
