//! Calls that wait for the next event of a connection. While only messages of the connection manager come by the
//! sockets, the waiting thread sleeps on them itself ([`SocketWatch`](crate::progress::socket_watch::SocketWatch)) and
//! takes what comes, so that one wake-up is enough.
//!
//! As for [`BlockedCall`](super::blocked_call::BlockedCall), the thread may be ended while it sleeps: the call is plain
//! data between two looks, and [`Nic::end_connection_wait`] gives back what it has taken.

use crate::cm::{Event, EventChannel};
use crate::nic::Nic;
use crate::progress::sleep::Sleep;
use crate::progress::socket_watch::SocketTurn;
use ::host::thread::Shield;
use std::io;

/// A call that waits for an event of a connection, between two looks.
#[derive(Debug, Default)]
pub struct ConnectionWait {
    /// What to sleep on, and what of that was ready.
    pub sleep: Sleep,
    /// It has the sockets.
    turn: Option<SocketTurn>,
}

/// Which of the descriptors of a thread that has the sockets these are.
const SOCKETS_BIT: u32 = 1 << 1;

impl Nic {
    /// Waits for the next event of a channel. A channel whose descriptor does not block returns `WouldBlock` instead,
    /// and a signal that arrives meanwhile is `Interrupted`.
    pub fn wait_for_connection_event(&self, channel: &EventChannel) -> io::Result<Event> {
        if let Some(event) = channel.try_take() {
            return Ok(event);
        }
        if channel.is_nonblocking()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut wait = ConnectionWait::default();
        let answer = loop {
            if let Some(event) = self.look_for_connection_event(channel, &mut wait) {
                break Ok(event);
            }
            if let Err(error) = wait.sleep.until_ready() {
                break Err(error);
            }
        };
        self.end_connection_wait(&mut wait);
        answer
    }

    /// Looks for an event, and prepares to sleep if there is none. After the last look,
    /// [`end_connection_wait`](Nic::end_connection_wait) is due.
    pub fn look_for_connection_event(&self, channel: &EventChannel, wait: &mut ConnectionWait) -> Option<Event> {
        let sockets = &self.ground.progress.engine.sockets;
        if wait.turn.is_some_and(|turn| !sockets.is_on(turn)) {
            wait.turn = None;
        }
        if wait.turn.is_some() && wait.sleep.ready() & SOCKETS_BIT != 0 {
            let _shield = Shield::up();
            self.serve_sockets();
        }
        if let Some(event) = channel.try_take() {
            return Some(event);
        }
        wait.turn = wait.turn.or_else(|| sockets.take());
        let (own, theirs) = (channel.raw_fd(), [self.ground.links.udp.fd(), sockets.bell_fd()]);
        wait.sleep = match wait.turn {
            Some(_) => Sleep::on([own].into_iter().chain(theirs), None),
            None => Sleep::on([own], None),
        };
        None
    }

    /// Gives back what a call has taken: the engine takes the sockets, unless another call waits soon.
    pub fn end_connection_wait(&self, wait: &mut ConnectionWait) {
        if let Some(turn) = wait.turn.take() {
            self.ground.progress.engine.sockets.leave(turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::{ConnectParameters, EventKind, Id};
    use crate::progress::wake_reason::WakeReason;
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use transport::Kind;
    use wire::Qpn;
    use wire::cm::PortSpace;

    fn id(nic: &Arc<Nic>, channel: &Arc<EventChannel>) -> Arc<Id> {
        Id::new(nic, channel, PortSpace::Tcp, Kind::ReliableConnected, 0)
    }

    #[test]
    fn a_thread_that_waits_takes_a_request_itself_and_the_engine_sleeps_on() {
        let (nic, peer) = (Nic::open().unwrap(), Nic::open().unwrap());
        let [served, asking] = [(); 2].map(|()| Arc::new(EventChannel::new().unwrap()));
        let listener = id(&nic, &served);
        listener.listen(1).unwrap();
        let port = listener.source().unwrap().port();
        let active = id(&peer, &asking);
        active.resolve_address(None, ([127, 0, 0, 1], port).into()).unwrap();
        assert_eq!(peer.wait_for_connection_event(&asking).unwrap().kind, EventKind::AddressResolved);
        active.resolve_route().unwrap();
        assert_eq!(peer.wait_for_connection_event(&asking).unwrap().kind, EventKind::RouteResolved);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| nic.wait_for_connection_event(&served).unwrap());
            let deadline = Instant::now() + Duration::from_secs(60);
            let engine = &nic.ground.progress.engine;
            while !engine.sockets.is_taken() {
                assert!(Instant::now() < deadline, "no thread has taken the sockets in a minute");
                std::thread::yield_now();
            }
            let before = engine.wakes.of(WakeReason::Socket);
            active.connect(&ConnectParameters { qpn: Qpn::new(7), ..ConnectParameters::default() }).unwrap();
            assert_eq!(waiting.join().unwrap().kind, EventKind::ConnectRequest);
            assert_eq!(engine.wakes.of(WakeReason::Socket), before);
        });
    }
}
