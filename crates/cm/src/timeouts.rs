//! What happens when nothing happens: messages are repeated, attempts given up, ended connections forgotten.

use wire::Timeout;
use wire::cm::{CommId, RejectReason};

use crate::connection::State;
use crate::{Event, Manager, Time, Unanswered};

impl Manager {
    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((when, id)) = self.timers.first().copied().filter(|(when, _)| *when <= now) {
            self.timers.remove(&(when, id));
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.timer = None;
                self.unanswered(now, id);
            } else {
                self.inquiry_unanswered(now, id);
            }
        }
        while let Some((when, id)) = self.ended.first().copied().filter(|(when, _)| *when <= now) {
            self.ended.remove(&(when, id));
            self.forget_ended(now, id);
        }
    }

    /// The message a connection waits with was not answered in time.
    fn unanswered(&mut self, now: Time, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if matches!(connection.state, State::RepReceived | State::MraRepSent | State::Established) {
            return self.rtu_due(now, id);
        }
        let Some(mut pending) = connection.pending.take() else { return };
        if now < pending.give_up {
            if pending.is_due(now) {
                if connection.may_send(0)
                    && let Err(reason) = self.out.send_again(connection.route, &pending.datagram)
                {
                    self.out.drop_message(now, id, pending.datagram.message.kind(), reason);
                }
                pending.repeated(now, connection.patience.timeout);
            }
            let deadline = pending.deadline(now);
            connection.pending = Some(pending);
            self.set_timer(id, deadline);
            return;
        }
        let (what, ari) = match connection.state {
            State::DreqSent => {
                self.tell(Event::TimedOut { id, what: Unanswered::Dreq });
                self.end(now, id, None, None);
                return;
            }
            // As when a request is abandoned, the peer may not know our name.
            State::ReqSent | State::MraReqReceived => (Unanswered::Req, connection.ca_guid.to_be_bytes()),
            _ => (Unanswered::Rep, [0; 8]),
        };
        self.tell(Event::TimedOut { id, what });
        let ari = if what == Unanswered::Req { ari.as_slice() } else { &[] };
        self.give_up(now, id, ari);
    }

    /// Tells the peer that we wait no longer, in case it is there.
    fn give_up(&mut self, now: Time, id: CommId, ari: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let rej = connection.rej(id, RejectReason::Timeout, ari, Default::default()).ok();
        if let Some(rej) = &rej
            && connection.may_send(0)
            && let Err(reason) = self.out.send_again(connection.route, rej)
        {
            self.out.drop_message(now, id, rej.message.kind(), reason);
        }
        connection.owned = false;
        self.end(now, id, rej, None);
    }
}

/// How long a program may think about a REQ or REP that its peer has repeated: what the kernel asks for, 69 seconds.
pub(crate) const MRA_SERVICE_TIMEOUT: Timeout = Timeout::new(24);
