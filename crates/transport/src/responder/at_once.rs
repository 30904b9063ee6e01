//! Requests that are taken the short way: most of them are like that.

use super::{Message, Responder, RnrWait};
use crate::completion::{CompletionKind, Queue};
use crate::connection::Connection;
use crate::port::Port;
use crate::train::Inbound;
use wire::Opcode;
use wire::access::{Access, Range};

impl Responder {
    /// A SEND or WRITE of one packet that nothing is wrong with: it is the next, no message is half received, and there
    /// is memory for all of it in one place. Or a packet in the middle of a WRITE. False if it is not of that kind, and
    /// then nothing has happened.
    #[inline]
    pub fn at_once<P: Port>(&mut self, inbound: &Inbound<'_>, connection: &Connection, port: &mut P) -> bool {
        let (bth, payload) = (&inbound.headers.bth, inbound.payload);
        let length = payload.len() as u64;
        if bth.psn != self.expected || self.waiting != RnrWait::No || length > u64::from(connection.mtu()) {
            return false;
        }
        match (&mut self.message, bth.opcode) {
            (Message::None, _) if !self.hand.held => {}
            (Message::Write { reth, placed }, Opcode::RcWriteMiddle) => {
                let granted = connection.attributes.access.contains(Access::REMOTE_WRITE);
                let range = Range { key: reth.rkey, address: reth.va.wrapping_add(*placed), length };
                if !granted
                    || length != u64::from(connection.mtu())
                    || *placed + length >= u64::from(reth.len)
                    || port.write(connection.remote(), range, payload).is_err()
                {
                    return false;
                }
                *placed += length;
                if bth.ack_req {
                    self.responses.acknowledge(self.expected, self.msn);
                }
                self.expected = self.expected.add(1);
                return true;
            }
            _ => return false,
        }
        match bth.opcode {
            Opcode::RcSendOnly | Opcode::RcSendOnlyImmediate => {
                let Some(own) = &mut self.own else { return false };
                let Some(work) = own.front() else { return false };
                let wr_id = work.wr_id;
                if length > 0 {
                    let Some(sge) = work.sges.first().filter(|sge| length <= u64::from(sge.length)) else {
                        return false;
                    };
                    let range = Range { key: sge.key, address: sge.address, length };
                    if port.write(connection.local(), range, payload).is_err() {
                        return false;
                    }
                }
                own.pop();
                self.hand.queue = Queue::Receive;
                self.received(wr_id, CompletionKind::Receive, length, inbound, None, connection);
            }
            Opcode::RcWriteOnlyImmediate => {
                let Some(own) = &mut self.own else { return false };
                let Some(work) = own.front() else { return false };
                let wr_id = work.wr_id;
                if inbound.headers.immediate.is_none() || !place(inbound, connection, port) {
                    return false;
                }
                own.pop();
                self.hand.queue = Queue::Receive;
                if let Some(counts) = &mut self.counts {
                    counts.remote_writes.add(length);
                }
                self.received(wr_id, CompletionKind::ReceiveWriteImmediate, length, inbound, None, connection);
            }
            Opcode::RcWriteOnly => {
                if !place(inbound, connection, port) {
                    return false;
                }
                if let Some(counts) = &mut self.counts {
                    counts.remote_writes.add(length);
                }
            }
            _ => return false,
        }
        let psn = self.expected;
        self.expected = psn.add(1);
        self.msn = self.msn.add(1);
        if bth.ack_req {
            self.responses.acknowledge(psn, self.msn);
        }
        true
    }
}

/// Writes the payload of a WRITE of one packet to where it says, if it may.
#[inline]
fn place<P: Port>(inbound: &Inbound<'_>, connection: &Connection, port: &mut P) -> bool {
    let Some(reth) = inbound.headers.reth else { return false };
    let length = inbound.payload.len() as u64;
    let granted = connection.attributes.access.contains(Access::REMOTE_WRITE);
    let range = Range { key: reth.rkey, address: reth.va, length };
    granted
        && u64::from(reth.len) == length
        && (length == 0 || port.write(connection.remote(), range, inbound.payload).is_ok())
}
