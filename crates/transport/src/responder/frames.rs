//! What a raw queue pair takes in: frames, each into one receive, headers and all.

use super::{Fault, Reaction, Responder};
use crate::completion::{Completion, CompletionKind, FrameNotes, Status};
use crate::connection::Connection;
use crate::port::{Port, TakenReceive};
use crate::receive::scatter;
use trace::{DropReason, Failure};
use wire::NakCode;
use wire::access::Subject;

impl Responder {
    /// A frame. One that finds no receive, or one that is too short for it, is dropped, as a datagram would be: anybody
    /// on the network may send it.
    pub fn frame<P: Port>(
        &mut self,
        frame: &[u8],
        notes: FrameNotes,
        connection: &Connection,
        port: &mut P,
    ) -> Reaction {
        if !self.hand.held && self.take_receive(None, connection, port) != TakenReceive::Taken {
            return Reaction::Dropped(DropReason::NoReceive);
        }
        if frame.len() as u64 > self.hand.space {
            return Reaction::Dropped(DropReason::TooLong);
        }
        let local = Subject { remote: false, ..self.hand.subject.unwrap_or(connection.local()) };
        if let Err(refusal) = scatter(&self.hand.work.sges, 0, frame, local, port) {
            let (cause, receive) = (Failure::Refused(refusal), Status::LocalProtection);
            return self.stop(Fault { code: NakCode::RemoteOperational, receive, cause, event: None }, connection);
        }
        self.hand.held = false;
        let (wr_id, kind) = (self.hand.work.wr_id, CompletionKind::Receive);
        let received = Completion::of(wr_id, kind, Status::Success, self.hand.queue, connection.qpn);
        self.completions.push_back(Completion { bytes: frame.len() as u32, frame: notes, ..received });
        Reaction::Fine
    }
}
