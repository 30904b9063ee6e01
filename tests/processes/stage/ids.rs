//! Processes that connect with the NIC's ids, one level below the safe API. They need no queue pairs for that: the numbers
//! they name are of none.

use hca::Nic;
use hca::cm::{ConnectParameters, Event, EventChannel, EventKind, Id};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use transport::Kind;
use wire::Qpn;
use wire::cm::PortSpace;

/// Where the manager tells of events.
pub fn channel() -> Arc<EventChannel> {
    Arc::new(EventChannel::new().unwrap())
}

/// An id of the process's NIC.
pub fn id(channel: &Arc<EventChannel>) -> Arc<Id> {
    static NIC: OnceLock<Arc<Nic>> = OnceLock::new();
    let nic = NIC.get_or_init(|| Nic::of_process().unwrap());
    Id::new(nic, channel, PortSpace::Tcp, Kind::ReliableConnected, 0)
}

/// Parameters with a queue pair's number that no other id of this process has, and hardly one of another.
pub fn anybody() -> ConnectParameters<'static> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let qpn = std::process::id().wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
    ConnectParameters { retry_count: 6, rnr_retry_count: 7, qpn: Qpn::new(qpn), ..ConnectParameters::default() }
}

/// The next event, which must come within a minute and be of this kind.
pub fn expect(channel: &EventChannel, kind: EventKind) -> Event {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(event) = channel.try_take() {
            assert_eq!(event.kind, kind, "{event:?}");
            return event;
        }
        let mut polled = libc::pollfd { fd: channel.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live structure.
        unsafe { libc::poll(&raw mut polled, 1, 100) };
        assert!(Instant::now() < deadline, "no event in a minute; expected {kind:?}");
    }
}

/// An id that asks for a connection to a port of `lo`.
fn asking(client: &Arc<EventChannel>, port: &str) -> Arc<Id> {
    let active = id(client);
    let address = SocketAddr::new([127, 0, 0, 1].into(), port.parse().unwrap());
    active.resolve_address(None, address).unwrap();
    assert_eq!(expect(client, EventKind::AddressResolved).status, 0);
    active.resolve_route().unwrap();
    assert_eq!(expect(client, EventKind::RouteResolved).status, 0);
    active.connect(&anybody()).unwrap();
    active
}

/// The other process: asks for a connection, gives up when it hears a line, and stays until it hears another.
pub fn giving_up(port: &str) {
    let active = asking(&channel(), port);
    std::io::stdin().read_line(&mut String::new()).unwrap();
    active.destroy();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// The other process: connects to a port of `lo`, and stays until it is killed or hears a line.
pub fn peer(port: &str) {
    let client = channel();
    let active = asking(&client, port);
    expect(&client, EventKind::ConnectResponse);
    active.establish().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    // Not destroyed: the process ends with it.
    std::mem::forget(active);
    std::process::exit(0);
}

/// A process in a network of its own, where interfaces come and go as it likes: an id hears that its device is gone.
pub fn removal(_: &str) {
    let ip = |line: &str| assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "{line}");
    ip("link set lo up");
    ip("link add cable type veth peer name plug");
    ip("link set plug up");
    ip("address add 10.88.0.1/24 dev cable");
    ip("link set cable up");
    let channel = channel();
    let bound = id(&channel);
    let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
    // The interface may take a moment to run.
    let deadline = Instant::now() + Duration::from_secs(60);
    while bound.bind(address("10.88.0.1:0")).is_err() {
        assert!(Instant::now() < deadline, "no device");
        std::thread::yield_now();
    }
    assert_eq!(bound.device().unwrap().name(), "ubi_cable");
    let nowhere = id(&channel).resolve_address(None, address("192.0.2.1:1")).unwrap_err();
    assert_eq!(nowhere.errno(), libc::ENETUNREACH);
    ip("link delete cable");
    let event = expect(&channel, EventKind::DeviceRemoval);
    assert!(Arc::ptr_eq(&event.id, &bound));
}
