//! Trains through shared memory whose payload is in memory of a GPU: between two processes that use the same GPU such a
//! train only says where its payload lies, and the receiver has the driver copy it inside the GPU. Only WRITEs and the
//! answers to READs of reliable queue pairs go this way: the sender's program gets its memory back when the copy was
//! acknowledged. Rings that carry payload of GPUs are registered with the driver, which copies faster then.

use crate::ground::Ground;
use crate::queue_pair::Qp;
use link::shared::{NAME, Reading, Writer};
use transport::{Piece, Train};
use wire::access::{Access, Range, Refusal, RefusalCause};
use wire::{Key, Operation};

const _: () = assert!(NAME == memory::REFERENCE);

/// Whether trains of a queue pair may name their payload in this ring.
#[cold]
pub(crate) fn may_name(nic: &Ground, qp: &Qp, writer: &mut Writer) -> bool {
    if writer.companion().is_none() {
        let (first, length) = writer.extent();
        *writer.companion() = Some(Box::new(memory::HostRegistration::new(first, length)));
    }
    qp.kind().is_reliable() && writer.may_name() && nic.capture().is_none()
}

/// What names the payload of a train, if it lies in one place in memory of a GPU.
#[cold]
pub(crate) fn name(nic: &Ground, train: &Train<'_>) -> Option<[u8; NAME]> {
    let opcode = train.headers.bth.opcode;
    let access = match opcode.operation() {
        Operation::Write => Access::empty(),
        Operation::ReadResponse => Access::REMOTE_READ,
        _ => return None,
    };
    let length = train.payload.len();
    match train.payload.pieces(0, length).next()? {
        Piece::Memory(subject, range) if range.length == u64::from(length) => nic.memory.refer(subject, range, access),
        _ => None,
    }
}

/// Why a train is not sent whose memory could be named a moment ago.
#[cold]
pub(crate) fn vanished(train: &Train<'_>) -> Refusal {
    let range = match train.payload.pieces(0, train.payload.len()).next() {
        Some(Piece::Memory(_, range)) => range,
        _ => Range { key: Key::new(0), address: 0, length: 0 },
    };
    Refusal { range, access: Access::empty(), cause: RefusalCause::Faulted }
}

/// Gets ready for what comes in a ring when memory of GPUs is registered here.
#[cold]
pub(crate) fn take_names(nic: &Ground, reading: &mut Reading<'_>) {
    if reading.companion().is_none() {
        let extent = reading.extent();
        let (first, length) = (extent.start.cast_mut(), extent.end.addr() - extent.start.addr());
        *reading.companion() = Some(Box::new(memory::HostRegistration::new(first, length)));
    }
    if nic.capture().is_none() {
        reading.take_names();
    }
}

/// The payload of a train that names it, and zeros that stand for it. None if it cannot be had: the sender is told to
/// name no more, and sends it again.
#[cold]
pub(crate) fn named(name: &[u8]) -> Option<(memory::Source, &'static [u8])> {
    let source = memory::open(name.first_chunk()?).ok()?;
    let shadow = memory::shadow(source.length())?;
    Some((source, shadow))
}
