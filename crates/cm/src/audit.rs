//! A look at all the tables at once, for tests: what one says of a connection the others must say too, and what has
//! ended is in none.

use wire::Qpn;
use wire::cm::CommId;

use crate::connection::State;
use crate::{Manager, Time};

impl Manager {
    /// Whether the tables agree, or what does not. It looks at every connection, so it is for tests.
    pub fn audit(&self) -> Result<(), &'static str> {
        let check = |holds: bool, what| if holds { Ok(()) } else { Err(what) };
        let mut half_open = 0;
        let mut timers = 0;
        for (id, connection) in &self.connections {
            let resting = connection.state == State::Timewait;
            let in_table = |when: &Time, resting: bool| {
                if resting { self.ended.contains(&(*when, *id)) } else { self.timers.contains(&(*when, *id)) }
            };
            check(connection.timer.is_none_or(|when| in_table(&when, resting)), "a timer is in no table")?;
            check(!resting || connection.timer.is_some(), "timewait has no end")?;
            let waits = matches!(
                connection.state,
                State::ReqSent | State::MraReqReceived | State::RepSent | State::MraRepReceived | State::DreqSent
            );
            check(connection.pending.is_some() == waits, "what waits for an answer is not repeated")?;
            check(connection.pending.is_none() || connection.timer.is_some(), "nobody would repeat a message")?;
            check(connection.listener.is_none() || connection.state.is_half_open(), "an answered request waits")?;
            timers += usize::from(connection.timer.is_some());
            half_open += usize::from(connection.state.is_half_open());
        }
        for inquiry in self.inquiries.values() {
            timers += usize::from(inquiry.has_timer());
            half_open += usize::from(inquiry.is_half_open());
        }
        check(timers == self.timers.len() + self.ended.len(), "a timer belongs to nobody")?;
        check(half_open == self.half_open, "requests were miscounted")?;
        check(half_open <= self.config.half_open, "too many requests wait")?;
        check(self.ended.len() <= self.config.timewait, "too many ended connections are remembered")?;
        for ((gid, peer), id) in &self.by_peer {
            let found = self.connections.get(id);
            let same = found.is_some_and(|found| found.route.destination == *gid && found.peer == *peer);
            check(same && *peer != CommId::new(0), "a peer's name leads nowhere")?;
        }
        for ((gid, qpn), id) in &self.by_qpn {
            let found = self.connections.get(id);
            let same = found.is_some_and(|found| found.route.destination == *gid && found.remote_qpn == *qpn);
            check(same && *qpn != Qpn::new(0), "a peer's queue pair leads nowhere")?;
            check(found.is_some_and(|found| found.state.is_open()), "an ended connection holds a queue pair")?;
        }
        for id in self.inquiries_by_peer.values() {
            check(self.inquiries.contains_key(id), "a peer's inquiry leads nowhere")?;
        }
        Ok(())
    }
}
