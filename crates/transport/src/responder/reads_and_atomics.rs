//! Requests that are answered with more than an acknowledgement: READ, the atomics, ATOMIC WRITE and FLUSH. Carried out
//! at once, except that a READ reads when its answer is sent; what is owed and kept of them is in `responses`.

use super::responses::ResponderResource;
use super::{Fault, Message, Responder, Verdict, access_fault, excess_of, fault_of, grant, invalid_request};
use crate::connection::Connection;
use crate::port::Port;
use crate::train::Inbound;
use trace::RequestFault;
use wire::access::{Access, Atomic, Range, RefusalCause, Subject};
use wire::{Operation, Placement, Psn, Reth, Selectivity, refuse_if};

impl Responder {
    /// READ, atomics, ATOMIC WRITE and FLUSH: carried out at once (a READ when it is sent), answered in order.
    pub(super) fn read_or_atomic<P: Port>(
        &mut self,
        inbound: &Inbound<'_>,
        connection: &Connection,
        port: &mut P,
    ) -> Verdict {
        let headers = inbound.headers;
        let (psn, operation) = (headers.bth.psn, headers.bth.opcode.operation());
        let invalid = |what| invalid_request(what, psn);
        if self.message != Message::None {
            return invalid(RequestFault::ReadInMessage);
        }
        if !self.responses.has_room() {
            return Verdict::Fault(excess_of(RequestFault::TooManyReads, psn));
        }
        let Some(subject) = self.subject(headers.xrc, connection, port) else {
            return invalid(RequestFault::ForeignXrcQueue);
        };
        let executed = match (operation, headers.reth, headers.atomic) {
            (Operation::ReadRequest, Some(reth), _) => grant(reth, Access::REMOTE_READ, subject, psn, connection, port)
                .map(|()| {
                    let range = Range { key: reth.rkey, address: reth.va, length: u64::from(reth.len) };
                    (reth.len.div_ceil(connection.mtu()).max(1), ResponderResource::Read(subject, range))
                }),
            (Operation::CompareSwap | Operation::FetchAdd, _, Some(eth)) => {
                let atomic = match operation {
                    Operation::CompareSwap => Atomic::CompareSwap { compare: eth.compare, swap: eth.swap_add },
                    _ => Atomic::FetchAdd { add: eth.swap_add },
                };
                let reth = Reth { va: eth.va, rkey: eth.rkey, len: 8 };
                run_atomic(reth, atomic, Access::REMOTE_ATOMIC, subject, psn, connection, port)
                    .map(|original| (1, ResponderResource::Original(original)))
            }
            (Operation::AtomicWrite, Some(reth), _) => match <[u8; 8]>::try_from(inbound.payload) {
                Ok(bytes) if reth.len == 8 => {
                    let atomic = Atomic::Write { bytes };
                    run_atomic(reth, atomic, Access::REMOTE_WRITE, subject, psn, connection, port)
                        .map(|_| (1, ResponderResource::Done))
                }
                _ => Err(excess_of(RequestFault::AtomicWriteLength, psn)),
            },
            (Operation::Flush, Some(reth), _) => {
                self.flush(inbound, reth, subject, connection, port).map(|()| (1, ResponderResource::Done))
            }
            _ => Err(fault_of(RequestFault::HeadersMissing, psn)),
        };
        let (psns, kept) = match executed {
            Ok(executed) => executed,
            Err(fault) => return Verdict::Fault(fault),
        };
        self.msn = self.msn.add(1);
        self.responses.keep(psn, psns, self.msn, operation, kept);
        self.expected = psn.add(psns);
        Verdict::Accepted
    }

    fn flush<P: Port>(
        &mut self,
        inbound: &Inbound<'_>,
        reth: Reth,
        subject: Subject,
        connection: &Connection,
        port: &mut P,
    ) -> Result<(), Fault> {
        let psn = inbound.headers.bth.psn;
        let Some(feth) = inbound.headers.feth else {
            return Err(fault_of(RequestFault::FlushWithoutFeth, psn));
        };
        let mut access = Access::empty();
        access.set(Access::FLUSH_GLOBAL, feth.placement.contains(Placement::GLOBAL));
        access.set(Access::FLUSH_PERSISTENT, feth.placement.contains(Placement::PERSISTENT));
        if access.is_empty() || !connection.attributes.access.contains(access) {
            return Err(fault_of(RequestFault::FlushNotGranted, psn));
        }
        let length = match feth.selectivity {
            Selectivity::Range => u64::from(reth.len),
            _ => 0,
        };
        let range = Range { key: reth.rkey, address: reth.va, length };
        port.flush(subject, range, feth).map_err(access_fault)
    }
}

fn run_atomic<P: Port>(
    reth: Reth,
    atomic: Atomic,
    access: Access,
    subject: Subject,
    psn: Psn,
    connection: &Connection,
    port: &mut P,
) -> Result<u64, Fault> {
    refuse_if!(!reth.va.is_multiple_of(8), excess_of(RequestFault::Misaligned, psn));
    grant(reth, access, subject, psn, connection, port)?;
    let range = Range { key: reth.rkey, address: reth.va, length: 8 };
    port.atomic(subject, range, atomic).map_err(|refusal| match refusal.cause {
        RefusalCause::Misaligned => excess_of(RequestFault::MemoryMisaligned, psn),
        _ => access_fault(refusal),
    })
}
