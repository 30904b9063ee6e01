//! Neighbours: whether the host that packets to an address go to first can be reached. The kernel knows, or finds out
//! when something is sent there (ARP, neighbour discovery); here it is asked over `NETLINK_ROUTE`, and made to find out.
//! What cannot be asked is taken for reachable: packets will tell.

use crate::descriptor::{Descriptor, udp_socket};
use crate::thread::Shield;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How soon the kernel is asked again; each time twice as long,
const FIRST_LOOK_INTERVAL: Duration = Duration::from_micros(50);

/// but not longer than this.
const LONGEST_LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// The kernel asks a neighbour three times, a second apart, and gives up; then it has to be made to ask again.
const PROVOKE_INTERVAL: Duration = Duration::from_secs(1);

/// Where something is sent so that the kernel looks for its neighbour: the port at which hosts discard what comes.
const DISCARD_PORT: u16 = 9;

/// Why there is no way to an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreachable {
    /// The kernel has no route.
    #[error("the system has no route")]
    NoRoute(#[source] io::Error),
    /// The neighbour did not answer in time.
    #[error("no neighbour answers for the address")]
    TimedOut,
}

impl Unreachable {
    /// What a C program sees.
    pub fn errno(&self) -> i32 {
        match self {
            Unreachable::NoRoute(error) => error.raw_os_error().unwrap_or(libc::ENETUNREACH),
            Unreachable::TimedOut => libc::ETIMEDOUT,
        }
    }
}

/// The search for the neighbour by which a destination is reached. It waits for nothing by itself: its owner calls
/// [`poll`](Search::poll) when [`next_look`](Search::next_look) has come.
#[derive(Debug)]
pub struct Search {
    table: Table,
    /// The interface, and the host there.
    neighbour: (u32, IpAddr),
    way: Way,
    deadline: Instant,
    interval: Duration,
    /// When to look again,
    next_look: Instant,
    /// and when to send something again.
    next_provocation: Instant,
}

/// From where to where; the interface is that of a link-local destination, else 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Way {
    /// From.
    pub source: IpAddr,
    /// To.
    pub destination: IpAddr,
    /// The interface.
    pub scope: u32,
}

impl Search {
    /// Begins to search, unless the neighbour is known, or none is needed: then there is nothing to search for.
    pub fn begin(way: Way, timeout: Duration) -> Result<Option<Search>, Unreachable> {
        let _shield = Shield::up();
        let Ok(mut table) = Table::open() else { return Ok(None) };
        let Some(neighbour) = table.next_hop(way).map_err(Unreachable::NoRoute)? else { return Ok(None) };
        if table.knows(neighbour) {
            return Ok(None);
        }
        let now = Instant::now();
        let mut search = Search {
            table,
            neighbour,
            way,
            deadline: now + timeout,
            interval: FIRST_LOOK_INTERVAL,
            next_look: now + FIRST_LOOK_INTERVAL,
            next_provocation: now,
        };
        search.provoke(now);
        Ok(Some(search))
    }

    /// What is searched for.
    pub fn way(&self) -> Way {
        self.way
    }

    /// When [`poll`](Search::poll) wants to be called.
    pub fn next_look(&self) -> Instant {
        self.next_look.min(self.deadline)
    }

    /// What came of it; none as long as nothing has.
    pub fn poll(&mut self, now: Instant) -> Option<Result<(), Unreachable>> {
        let _shield = Shield::up();
        if self.table.knows(self.neighbour) {
            return Some(Ok(()));
        }
        if now >= self.deadline {
            return Some(Err(Unreachable::TimedOut));
        }
        self.provoke(now);
        self.interval = (self.interval * 2).min(LONGEST_LOOK_INTERVAL);
        self.next_look = now + self.interval;
        None
    }

    /// Waits for what comes of it.
    pub fn wait(mut self) -> Result<(), Unreachable> {
        loop {
            let now = Instant::now();
            if let Some(outcome) = self.poll(now) {
                return outcome;
            }
            std::thread::sleep(self.next_look().saturating_duration_since(now));
        }
    }

    /// Makes the kernel ask the neighbour, if it is time to.
    fn provoke(&mut self, now: Instant) {
        if now < self.next_provocation {
            return;
        }
        self.next_provocation = now + PROVOKE_INTERVAL;
        let Way { source, destination, scope } = self.way;
        let with_port = |ip, port| match ip {
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
            IpAddr::V4(_) => SocketAddr::new(ip, port),
        };
        // What is not sent is no answer, either: then there is none in time.
        if let Ok(socket) = udp_socket(with_port(source, 0)) {
            let _ = socket.send_to(&[], with_port(destination, DISCARD_PORT));
        }
    }
}

/// The kernel's tables of routes and neighbours.
#[derive(Debug)]
struct Table {
    socket: Descriptor,
    sequence: u32,
}

const MESSAGE_HEADER_LENGTH: usize = size_of::<libc::nlmsghdr>();

/// A route or a neighbour begins with so many bytes, then attributes follow.
const MESSAGE_BODY_LENGTH: usize = 12;

/// Where a route has its type, and a neighbour its state.
const ROUTE_TYPE: usize = 7;
const NEIGHBOUR_STATE: usize = 8;

/// The attributes, from `linux/rtnetlink.h` and `linux/neighbour.h`.
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const NDA_DST: u16 = 1;

/// A neighbour of these states can be sent to: reachable, stale, delay, probe, no ARP, permanent.
const VALID_STATES: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

impl Table {
    fn open() -> io::Result<Table> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: numbers; the descriptor that comes back is ours.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        Ok(Table { socket: Descriptor::keep(unsafe { OwnedFd::from_raw_fd(fd) }), sequence: 0 })
    }

    /// The neighbour by which a destination is reached; none if it needs none: this host itself, a group, an interface
    /// without neighbours.
    fn next_hop(&mut self, way: Way) -> io::Result<Option<(u32, IpAddr)>> {
        let mut request = Request::new(libc::RTM_GETROUTE, way.destination);
        request.body[1] = request.prefix;
        if !way.source.is_unspecified() && way.source.is_ipv4() == way.destination.is_ipv4() {
            request.body[2] = request.prefix;
            request.add(RTA_SRC, &octets(way.source));
        }
        request.add(RTA_DST, &octets(way.destination));
        if way.scope != 0 {
            request.add(RTA_OIF, &way.scope.to_ne_bytes());
        }
        let answer = match self.ask(&request) {
            Ok(answer) => answer,
            // These say that there is no route; anything else, that the kernel could not be asked.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH)) => {
                return Err(error);
            }
            Err(_) => return Ok(None),
        };
        let is_unicast = answer.body(ROUTE_TYPE) == Some(libc::RTN_UNICAST);
        let interface = answer.attribute(RTA_OIF).and_then(|bytes| Some(u32::from_ne_bytes(*bytes.first_chunk()?)));
        let Some(interface) = interface.filter(|interface| is_unicast && self.has_neighbours(*interface)) else {
            return Ok(None);
        };
        let gateway = answer.attribute(RTA_GATEWAY).or_else(|| answer.attribute(RTA_VIA)?.get(2..));
        let gateway = gateway.map_or(Some(way.destination), address);
        Ok(gateway.map(|gateway| (interface, gateway)))
    }

    /// Whether the kernel knows where a neighbour is, or does not tell.
    fn knows(&mut self, (interface, address): (u32, IpAddr)) -> bool {
        let mut request = Request::new(libc::RTM_GETNEIGH, address);
        request.body[4..8].copy_from_slice(&interface.to_ne_bytes());
        request.add(NDA_DST, &octets(address));
        match self.ask(&request) {
            Ok(answer) => match (answer.body(NEIGHBOUR_STATE), answer.body(NEIGHBOUR_STATE + 1)) {
                (Some(low), Some(high)) => u16::from_ne_bytes([low, high]) & VALID_STATES != 0,
                _ => true,
            },
            Err(error) => error.raw_os_error() != Some(libc::ENOENT),
        }
    }

    /// Whether an interface asks for the addresses of its neighbours.
    fn has_neighbours(&self, interface: u32) -> bool {
        // SAFETY: `ifreq` is plain data, for which zero is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: there is room for the longest name of an interface; then `request` is a live `ifreq` with a name, and
        // the kernel writes the flags.
        let flags = unsafe {
            if libc::if_indextoname(interface, request.ifr_name.as_mut_ptr()).is_null()
                || libc::ioctl(self.socket.raw(), libc::SIOCGIFFLAGS, &raw mut request) != 0
            {
                return false;
            }
            libc::c_int::from(request.ifr_ifru.ifru_flags)
        };
        flags & (libc::IFF_LOOPBACK | libc::IFF_NOARP) == 0
    }

    /// Asks the kernel, which answers at once.
    fn ask(&mut self, request: &Request) -> io::Result<KernelMessage> {
        self.sequence += 1;
        let bytes = request.bytes(self.sequence);
        // SAFETY: the bytes are live and as many as it says.
        let sent = unsafe { libc::send(self.socket.raw(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        loop {
            let mut answer = vec![0u8; 4096];
            let (place, flags) = (answer.as_mut_ptr(), libc::MSG_DONTWAIT);
            // SAFETY: the buffer is live and as long as it says.
            let length = unsafe { libc::recv(self.socket.raw(), place.cast(), answer.len(), flags) };
            let Ok(length) = usize::try_from(length) else { return Err(io::Error::last_os_error()) };
            answer.truncate(length);
            let answer = KernelMessage(answer);
            // The kernel's answer to an earlier question, which this search did not take.
            if answer.word(8) != Some(self.sequence) {
                continue;
            }
            return match answer.word(4).map(|word| word.to_ne_bytes()) {
                Some([low, high, ..]) if u16::from_ne_bytes([low, high]) == libc::NLMSG_ERROR as u16 => {
                    let errno = answer.word(MESSAGE_HEADER_LENGTH).map_or(libc::EIO, |word| -word.cast_signed());
                    Err(io::Error::from_raw_os_error(errno))
                }
                Some(_) => Ok(answer),
                None => Err(io::ErrorKind::InvalidData.into()),
            };
        }
    }
}

/// A question about an address.
struct Request {
    kind: u16,
    /// How many bits an address has.
    prefix: u8,
    body: [u8; MESSAGE_BODY_LENGTH],
    attributes: Vec<u8>,
}

impl Request {
    fn new(kind: u16, address: IpAddr) -> Request {
        let (family, prefix) = if address.is_ipv4() { (libc::AF_INET, 32) } else { (libc::AF_INET6, 128) };
        let mut body = [0; MESSAGE_BODY_LENGTH];
        body[0] = family as u8;
        Request { kind, prefix, body, attributes: Vec::new() }
    }

    /// Adds an attribute, whose length is a multiple of four.
    fn add(&mut self, kind: u16, value: &[u8]) {
        self.attributes.extend((4 + value.len() as u16).to_ne_bytes());
        self.attributes.extend(kind.to_ne_bytes());
        self.attributes.extend(value);
    }

    fn bytes(&self, sequence: u32) -> Vec<u8> {
        let length = MESSAGE_HEADER_LENGTH + MESSAGE_BODY_LENGTH + self.attributes.len();
        let mut bytes = (length as u32).to_ne_bytes().to_vec();
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.body);
        bytes.extend(&self.attributes);
        bytes
    }
}

/// A message of the kernel's.
struct KernelMessage(Vec<u8>);

impl KernelMessage {
    fn word(&self, at: usize) -> Option<u32> {
        self.0.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
    }

    fn body(&self, at: usize) -> Option<u8> {
        self.0.get(MESSAGE_HEADER_LENGTH + at).copied()
    }

    fn attribute(&self, wanted: u16) -> Option<&[u8]> {
        let mut rest = self.0.get(MESSAGE_HEADER_LENGTH + MESSAGE_BODY_LENGTH..)?;
        loop {
            let ([l0, l1, k0, k1], _) = rest.split_first_chunk()?;
            let length = usize::from(u16::from_ne_bytes([*l0, *l1]));
            let value = rest.get(4..length)?;
            if u16::from_ne_bytes([*k0, *k1]) == wanted {
                return Some(value);
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => octets.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets).into()),
        16 => octets.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_needs_no_neighbour() {
        for address in ["127.0.0.1", "::1"] {
            let address: IpAddr = address.parse().unwrap();
            let way = Way { source: address, destination: address, scope: 0 };
            assert!(Search::begin(way, Duration::ZERO).unwrap().is_none(), "{address}");
        }
    }

    #[test]
    fn an_answer_that_is_cut_off_has_no_attributes() {
        let mut bytes = vec![0; MESSAGE_HEADER_LENGTH + MESSAGE_BODY_LENGTH];
        bytes.extend([8, 0, 4, 0, 7, 0, 0, 0, 9, 0, 5, 0, 1]);
        let answer = KernelMessage(bytes);
        assert_eq!(answer.attribute(RTA_OIF), Some(&[7, 0, 0, 0][..]));
        assert_eq!(answer.attribute(RTA_GATEWAY), None);
        assert_eq!(
            KernelMessage(vec![0; MESSAGE_HEADER_LENGTH + MESSAGE_BODY_LENGTH + 4]).attribute(RTA_OIF),
            None,
            "a length of zero"
        );
    }
}
