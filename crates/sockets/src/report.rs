//! The stream sockets of this process, for another process that asks (`ubiverbs ps`). A thread that does nothing else
//! looks at them; it never waits in line for a lock, but tries, and leaves out what it cannot read.

use crate::events::Hub;
use crate::socket::{Phase, Socket};
use hca::{Nic, SocketReport};
use std::sync::Arc;
use std::time::Duration;

/// So many sockets are told of.
const MAX_REPORTED_SOCKETS: usize = 1024;

/// How often a report tries to have locks that other threads have, all of them together, and the pause after each try.
const MAX_LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_micros(100);

/// The sockets that use this NIC.
pub(crate) fn sockets_of(nic: &Nic) -> Vec<SocketReport> {
    let Some(hub) = Hub::present().filter(|hub| std::ptr::eq(&**hub.nic(), nic)) else { return Vec::new() };
    let mut tries = MAX_LOCK_TRIES;
    let sockets = tried(&mut tries, || hub.some(MAX_REPORTED_SOCKETS)).unwrap_or_default();
    let mut reports: Vec<SocketReport> = sockets.iter().map(|socket| socket.report(&mut tries)).collect();
    reports.sort_by_key(|report| report.number);
    reports
}

/// What `take` returns when it returns something, within so many tries.
fn tried<T>(tries: &mut u32, take: impl Fn() -> Option<T>) -> Option<T> {
    loop {
        let taken = take();
        if taken.is_some() || *tries == 0 {
            return taken;
        }
        *tries -= 1;
        std::thread::sleep(LOCK_PAUSE);
    }
}

impl Socket {
    fn report(self: &Arc<Socket>, tries: &mut u32) -> SocketReport {
        let (source, destination) = (self.id.source(), self.id.destination());
        let mut report = SocketReport { number: self.key, source, destination, ..SocketReport::default() };
        let Some(state) = tried(tries, || self.try_lock()) else {
            report.state = "busy".to_owned();
            return report;
        };
        let word = match &state.phase {
            Phase::Idle => "idle",
            Phase::Bound => "bound",
            Phase::Listening(_) => "listening",
            Phase::Connecting(_) => "connecting",
            Phase::Connected(endpoint) if endpoint.protocol.has_failed() => "failed",
            Phase::Connected(endpoint) if !endpoint.protocol.is_connected() => "disconnected",
            Phase::Connected(_) if self.is_closed() => "closed, sends what is left",
            Phase::Connected(endpoint) if !endpoint.protocol.is_readable() => "connected, the peer sends no more",
            Phase::Connected(endpoint) if !endpoint.protocol.is_writable() => "connected, sends no more",
            Phase::Connected(_) => "connected",
            Phase::Stopped => "stopped listening",
            Phase::Failed => "not connected: it failed",
        };
        report.state = word.to_owned();
        if let Phase::Connected(endpoint) | Phase::Connecting(endpoint) = &state.phase {
            report.queue_pair = endpoint.parts.qp.qpn().value();
            report.unread = endpoint.protocol.unread() as u64;
            report.unacknowledged = endpoint.protocol.unacknowledged().into();
            report.completions = endpoint.parts.cq.waiting();
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::Slices;
    use crate::wait::Waitable;
    use std::time::Instant;

    fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < deadline, "{what} in a minute");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_report_has_sockets_with_their_addresses_and_what_waits_in_them() {
        const MESSAGE: &[u8] = b"nobody reads this";
        let (listener, client) = (Socket::new().unwrap(), Socket::new().unwrap());
        listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.listen(1).unwrap();
        let address = listener.local_address().unwrap();
        client.connect(address).unwrap();
        let server = wait("no connection to accept", || listener.accept().ok());
        wait("the client is not connected", || client.outcome().ok());
        assert_eq!(client.send(&mut Slices::new(&[MESSAGE])).unwrap(), MESSAGE.len());
        // The peer's NIC has it when the client has its completion.
        wait("nothing came", || server.readiness().readable.then_some(()));
        wait("it is not acknowledged", || client.is_flushed().then_some(()));

        let nic = Arc::clone(&client.nic);
        let told =
            |socket: &Socket| nic.report().sockets.into_iter().find(|report| report.number == socket.key).unwrap();
        let ends = |report: &SocketReport| (report.source, report.destination);
        let (listens, sends, receives) = (told(&listener), told(&client), told(&server));
        assert_eq!((listens.state.as_str(), listens.source, listens.queue_pair), ("listening", Some(address), 0));
        assert_eq!((sends.state.as_str(), sends.unread, sends.unacknowledged), ("connected", 0, 0));
        assert_eq!((receives.state.as_str(), receives.unread), ("connected", MESSAGE.len() as u64));
        assert_eq!(ends(&receives), (sends.destination, sends.source));
        assert_eq!(sends.destination, Some(address));
        assert!(sends.queue_pair != 0 && receives.queue_pair != 0 && sends.queue_pair != receives.queue_pair);

        // A thread that has a socket is not waited for.
        let held = server.lock();
        let busy = std::thread::scope(|scope| scope.spawn(|| told(&server)).join().unwrap());
        assert_eq!((busy.state.as_str(), busy.unread, busy.source), ("busy", 0, receives.source));
        drop(held);
        assert_eq!(told(&server).state, "connected");
    }
}
