//! Trains through shared memory whose payload is in memory of a GPU: between two processes that use the same GPU such a
//! train only says where its payload lies, and the receiver has the driver copy it inside the GPU. Only WRITEs and the
//! answers to READs of reliable queue pairs go this way: the sender's program gets its memory back when the copy was
//! acknowledged.

use crate::ground::Ground;
use crate::ground::records::Records;
use crate::queue_pair::Qp;
use link::shared::{MAX_NAME_BYTES, Outbound, Reading, Writer};
use std::os::fd::AsFd;
use transport::{Piece, Train};
use wire::access::{Access, Range, Refusal, RefusalCause};
use wire::{Key, Operation};

const _: () = assert!(MAX_NAME_BYTES == memory::REFERENCE_BYTES);

/// Whether trains of a queue pair may name their payload in this ring.
#[cold]
pub(crate) fn may_name(records: &Records, qp: &Qp, writer: &Writer) -> bool {
    qp.kind().is_reliable() && writer.may_name() && records.capture.is_none()
}

/// What names the payload of a train, if it lies in one place in memory of a GPU.
#[cold]
pub(crate) fn name(
    nic: &Ground,
    train: &Train<'_>,
    link: &Outbound,
    writer: &mut Writer,
) -> Option<[u8; MAX_NAME_BYTES]> {
    let opcode = train.headers.bth.opcode;
    let access = match opcode.operation() {
        Operation::Write => Access::empty(),
        Operation::ReadResponse => Access::REMOTE_READ,
        _ => return None,
    };
    let length = train.payload.len();
    let reference = match train.payload.pieces(0, length).next()? {
        Piece::Memory(subject, range) if range.length == u64::from(length) => {
            let key = if subject.remote { range.key } else { range.key.of_region() };
            nic.memory.refer(subject, Range { key, ..range }, access)?
        }
        _ => return None,
    };
    if let Some(number) = reference.to_pass
        && !writer.passed().contains(&number)
    {
        // The reader finds it on the connection when it comes to the train.
        let descriptor = memory::descriptor_of(&reference).ok()?;
        link.pass(number, descriptor.as_fd()).ok()?;
        writer.passed().push(number);
    }
    Some(reference.bytes)
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

/// Gets ready for what comes in a ring when GPU memory is registered here.
#[cold]
pub(crate) fn take_names(records: &Records, reading: &mut Reading<'_>) {
    if records.capture.is_none() {
        reading.take_names();
    }
}

/// The payload of a train that names it, and zeros that stand for it. None if it cannot be had: the sender is told to
/// name no more, and sends it again.
#[cold]
pub(crate) fn named(name: &[u8], reading: &Reading<'_>) -> Option<(memory::Source, &'static [u8])> {
    // Another process may change it meanwhile: it is read once.
    let name: [u8; MAX_NAME_BYTES] = *name.first_chunk()?;
    let source = memory::open(&name, |number| reading.take_passed(number)).ok()?;
    let shadow = memory::shadow(source.length())?;
    Some((source, shadow))
}
