//! Raw queue pairs: frames out of the send queue and into the receive queue, without a transport between them. Nothing
//! is answered, and a send is done when its frame was handed out.

use super::{QueuePair, State};
use crate::completion::{FrameNotes, Status};
use crate::port::Port;
use crate::rate::Flow;
use crate::responder::Reaction;
use crate::send_queue::Outcome;
use crate::train::Payload;
use crate::work::SendFlags;
use alloc::vec::Vec;
use trace::{DropReason, Failure, Time};

/// A frame that is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameOut {
    /// The program leaves the checksums to the device.
    pub fills_checksums: bool,
}

impl QueuePair {
    /// Copies the next frame into `out`, if there is one that may be sent, and takes its work for done. A frame of more
    /// than `longest` bytes fails, and so does one whose memory may not be read; then the send queue stops.
    pub fn poll_frame<P: Port>(
        &mut self,
        now: Time,
        longest: usize,
        out: &mut Vec<u8>,
        port: &mut P,
    ) -> Option<FrameOut> {
        if self.state() != State::ReadyToSend {
            self.check_drained(now, port);
            return None;
        }
        let seq = self.requester.next_seq(&self.queue);
        self.queue.get(seq)?;
        // Where there is a rate, the frame may have to wait.
        self.allowance(now, Flow::Requests)?;
        let work = self.queue.get(seq)?;
        let length = work.length as usize;
        if length > longest {
            let cause = Failure::OverMtu { length: length as u64, mtu: longest as u64 };
            self.fail_work(now, seq, Status::LocalLength, cause, port);
            return None;
        }
        let fills_checksums = work.flags.contains(SendFlags::CHECKSUMS);
        out.clear();
        out.resize(length, 0);
        let payload = match work.inline() {
            Some(bytes) => Payload::Bytes(bytes),
            None => {
                let subject = self.connection.local();
                Payload::Gather { subject, sges: work.sges(), offset: 0, length: work.length }
            }
        };
        if let Err(refusal) = payload.copy(0, out, port) {
            self.fail_work(now, seq, Status::LocalProtection, Failure::Refused(refusal), port);
            return None;
        }
        self.spend(now, Flow::Requests, 1, length as u32);
        self.requester.handed_out(seq);
        self.queue.settle(seq, Outcome::Done);
        Some(FrameOut { fills_checksums })
    }

    /// Takes a frame that a flow gave to this queue pair. False if no receive is posted: then nothing has happened, and
    /// the frame may be shown again later, or is [lost](QueuePair::frame_lost).
    #[must_use]
    pub fn handle_frame<P: Port>(&mut self, now: Time, frame: &[u8], notes: FrameNotes, port: &mut P) -> bool {
        if !self.state().receives() {
            self.dropped(now, None, DropReason::WrongState, port);
            return true;
        }
        match self.responder.frame(frame, notes, &self.connection, port) {
            Reaction::Dropped(DropReason::NoReceive) => return false,
            Reaction::Dropped(reason) => self.dropped(now, None, reason, port),
            Reaction::Fault(fault) => {
                if let Failure::Refused(refusal) = &fault.cause {
                    self.trace_refusal(now, refusal, port);
                }
                self.fault(now, fault, port);
            }
            _ => {}
        }
        true
    }

    /// A frame found no receive, and is not kept.
    pub fn frame_lost<P: Port>(&mut self, now: Time, port: &mut P) {
        self.dropped(now, None, DropReason::NoReceive, port);
    }
}
