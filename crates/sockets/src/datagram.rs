//! Datagram sockets. What fits goes from queue pair to queue pair once both sides know of each other; before that, and
//! where a path is too narrow, it goes over an ordinary UDP socket, which is also how they get to know.

use crate::datagram_pair::{DATAGRAM_SLOT_BYTES, Pair, Sender};
use crate::endpoint;
use crate::error::Error;
use crate::events::Hub;
use crate::settings::Settings;
use crate::socket::Readiness;
use crate::wait::{Waitable, Waiters};
use hca::cm::{Id, UDP_QKEY};
use hca::{CompletionChannel, Nic, Notify};
use rsocket::{DiscoveryHeader, DiscoveryKind, MAX_DATAGRAM_HEADER, Sizes};
use socket2::{Domain, SockRef, Socket, Type};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use transport::{AddressVector, DatagramTarget, Kind};
use wire::cm::PortSpace;
use wire::{Qpn, refuse_if};

/// The longest datagram that a program can send.
pub const MAX_DATAGRAM: usize = DATAGRAM_SLOT_BYTES - DiscoveryHeader::MAX_LENGTH;
/// Peers that a socket remembers. Strangers can make it remember them.
const MAX_PEERS: usize = 4096;
/// How often the thread of a socket looks whether that is still there.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A datagram socket.
pub struct Datagram {
    hub: &'static Hub,
    family_is_ipv4: bool,
    channel: Arc<CompletionChannel>,
    waiters: Arc<Waiters>,
    state: Mutex<Inner>,
    closed: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    sizes: Sizes,
    /// The UDP socket as long as it has no address: options that a program sets before that are set on it.
    unbound: Option<UdpSocket>,
    /// The UDP socket once it has an address.
    udp: Option<Arc<UdpSocket>>,
    /// One queue pair for each device.
    pairs: Vec<Pair>,
    peers: HashMap<SocketAddr, Peer>,
    connected: Option<SocketAddr>,
    received: VecDeque<(SocketAddr, Vec<u8>)>,
}

/// A peer, as far as it is known.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// The queue pair that reaches it, by its place in the list.
    pair: usize,
    av: AddressVector,
    /// Our address, as it sees it.
    source: IpAddr,
    /// Its queue pair, once it has said so.
    qpn: Option<Qpn>,
    /// It knows of ours: it has answered, so what a queue pair sends it is from a peer it knows.
    knows_us: bool,
    /// It has sent a datagram from its queue pair: it has got what was sent to its address.
    proven: bool,
    /// The longest datagram that a queue pair can send it.
    longest: usize,
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "datagram socket, IPv4: {}", self.family_is_ipv4)
    }
}

impl Datagram {
    /// A fresh socket.
    pub fn new(family_is_ipv4: bool) -> Result<Arc<Datagram>, Error> {
        let unbound = Socket::new(if family_is_ipv4 { Domain::IPV4 } else { Domain::IPV6 }, Type::DGRAM, None)?;
        let inner = Inner {
            sizes: Settings::of_process().sizes,
            unbound: Some(unbound.into()),
            udp: None,
            pairs: Vec::new(),
            peers: HashMap::new(),
            connected: None,
            received: VecDeque::new(),
        };
        let waiters = Arc::<Waiters>::default();
        Ok(Arc::new(Datagram {
            hub: Hub::of_process()?,
            family_is_ipv4,
            channel: waiters.channel(),
            waiters,
            state: Mutex::new(inner),
            closed: AtomicBool::new(false),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an address.
    pub fn bind(self: &Arc<Datagram>, address: SocketAddr) -> Result<(), Error> {
        refuse_if!(address.is_ipv4() != self.family_is_ipv4, Error(libc::EAFNOSUPPORT));
        let mut state = self.lock();
        refuse_if!(state.udp.is_some(), Error::INVALID);
        self.open(&mut state, address)?;
        Ok(())
    }

    /// The UDP socket; any port, if the program has not chosen.
    fn udp(self: &Arc<Datagram>, state: &mut Inner) -> Result<Arc<UdpSocket>, Error> {
        let any: IpAddr = match self.family_is_ipv4 {
            true => Ipv4Addr::UNSPECIFIED.into(),
            false => Ipv6Addr::UNSPECIFIED.into(),
        };
        match &state.udp {
            Some(udp) => Ok(Arc::clone(udp)),
            None => self.open(state, SocketAddr::new(any, 0)),
        }
    }

    fn open(self: &Arc<Datagram>, state: &mut Inner, address: SocketAddr) -> Result<Arc<UdpSocket>, Error> {
        let udp = state.unbound.take().ok_or(Error::INVALID)?;
        let bound = SockRef::from(&udp).bind(&address.into());
        if let Err(error) = bound {
            state.unbound = Some(udp);
            return Err(error.into());
        }
        let udp = Arc::new(udp);
        udp.set_read_timeout(Some(LOOK_INTERVAL))?;
        let (weak, ear) = (Arc::downgrade(self), Arc::downgrade(&udp));
        hca::spawn("rsocket-udp", move || listen(&weak, &ear))?;
        state.udp = Some(Arc::clone(&udp));
        Ok(udp)
    }

    /// Sends to this peer, and receives from it only.
    pub fn connect(self: &Arc<Datagram>, address: SocketAddr) -> Result<(), Error> {
        refuse_if!(address.is_ipv4() != self.family_is_ipv4, Error(libc::EAFNOSUPPORT));
        let mut state = self.lock();
        let udp = self.udp(&mut state)?;
        let peer = plain(address);
        self.peer(&mut state, peer)?;
        // Of several sockets with one port, what its peer sends is for this one.
        udp.connect(address)?;
        state.connected = Some(peer);
        state.received.retain(|(from, _)| same(*from, peer));
        Ok(())
    }

    /// An address as programs have it: in a socket of IPv6, that of an IPv4 host is mapped.
    fn shown(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(v4) if !self.family_is_ipv4 => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
            other => other,
        }
    }

    /// Its own address; a wildcard as long as there is none.
    pub fn local_address(&self) -> Option<SocketAddr> {
        let state = self.lock();
        let udp = state.udp.as_ref()?;
        let bound = udp.local_addr().ok()?;
        let peer = state.connected.and_then(|peer| state.peers.get(&peer));
        Some(peer.map_or(bound, |peer| self.shown(SocketAddr::new(peer.source, bound.port()))))
    }

    /// The peer it is connected to.
    pub fn peer_address(&self) -> Result<SocketAddr, Error> {
        self.lock().connected.map(|peer| self.shown(peer)).ok_or(Error::NOT_CONNECTED)
    }

    /// Its sizes.
    pub fn sizes(&self) -> Sizes {
        self.lock().sizes
    }

    /// Changes the sizes it will have. Once it has a queue pair, `EINVAL`.
    pub fn set_sizes(&self, change: impl FnOnce(&mut Sizes)) -> Result<(), Error> {
        let mut state = self.lock();
        refuse_if!(!state.pairs.is_empty(), Error::INVALID);
        change(&mut state.sizes);
        Ok(())
    }

    /// Does something with its UDP socket, if there is one: for options that are the kernel's.
    pub fn with_udp<R>(&self, look: impl FnOnce(&UdpSocket) -> R) -> Option<R> {
        let state = self.lock();
        state.udp.as_deref().or(state.unbound.as_ref()).map(look)
    }

    /// Sends a datagram, to its peer if `to` is `None`. `EAGAIN` if there is no room.
    pub fn send(self: &Arc<Datagram>, bytes: &[&[u8]], to: Option<SocketAddr>) -> Result<usize, Error> {
        let mut state = self.lock();
        refuse_if!(to.is_some_and(|to| to.is_ipv4() != self.family_is_ipv4), Error(libc::EAFNOSUPPORT));
        let to = to.map(plain).or(state.connected).ok_or(Error(libc::EDESTADDRREQ))?;
        let length: usize = bytes.iter().map(|piece| piece.len()).sum();
        refuse_if!(length > MAX_DATAGRAM, Error(libc::EMSGSIZE));
        let udp = self.udp(&mut state)?;
        let peer = self.peer(&mut state, to)?;
        let by_queue_pair = peer.knows_us && length + MAX_DATAGRAM_HEADER <= peer.longest;
        let Some(qpn) = peer.qpn.filter(|_| by_queue_pair) else {
            let kind = DiscoveryKind::Data;
            let qpn = state.pairs[peer.pair].qp.qpn();
            drop(state);
            let mut whole = discovery(DiscoveryHeader { kind, qpn, address: peer.source });
            bytes.iter().for_each(|piece| whole.extend_from_slice(piece));
            udp.send_to(&whole, self.shown(to))?;
            return Ok(length);
        };
        let source = SocketAddr::new(peer.source, udp.local_addr()?.port());
        self.progress(&mut state);
        state.pairs[peer.pair].send(source, bytes, DatagramTarget { av: peer.av, qpn, qkey: UDP_QKEY })?;
        Ok(length)
    }

    /// The oldest datagram: shows it with its sender, and forgets it unless it is peeked at. `EAGAIN` if there is none.
    pub fn receive<R>(&self, peek: bool, show: impl FnOnce(SocketAddr, &[u8]) -> R) -> Result<R, Error> {
        let mut state = self.lock();
        if state.received.is_empty() {
            self.progress(&mut state);
        }
        let (from, bytes) = state.received.front().ok_or(Error::WOULD_BLOCK)?;
        let answer = show(self.shown(*from), bytes);
        if !peek {
            state.received.pop_front();
        }
        Ok(answer)
    }

    /// Ends it.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let mut state = self.lock();
        let limit = std::time::Instant::now() + LOOK_INTERVAL;
        // What was sent goes out first.
        while state.pairs.iter().any(|pair| pair.is_busy(&state.sizes)) && std::time::Instant::now() < limit {
            self.progress(&mut state);
            std::thread::yield_now();
        }
        state.pairs.clear();
        let Some(udp) = state.udp.take() else { return };
        // The thread waits at it: something for it to read lets it see that the socket is gone.
        if let Ok(mut address) = udp.local_addr() {
            if address.ip().is_unspecified() {
                address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
            }
            let _ = udp.send_to(&[0], address);
        }
        // One with a peer hears of nobody else.
        let _ = SockRef::from(&*udp).shutdown(Shutdown::Read);
        drop(state);
        // Its port is free when this returns.
        let ear = Arc::downgrade(&udp);
        drop(udp);
        let limit = std::time::Instant::now() + LOOK_INTERVAL;
        while ear.strong_count() > 0 && std::time::Instant::now() < limit {
            std::thread::yield_now();
        }
    }

    /// What is known of a peer; the way to it is found if nothing is.
    fn peer(&self, state: &mut Inner, address: SocketAddr) -> Result<Peer, Error> {
        if let Some(peer) = state.peers.get(&address) {
            return Ok(*peer);
        }
        if state.peers.len() >= MAX_PEERS {
            // Those that strangers may have made up make room first.
            let connected = state.connected;
            state.peers.retain(|peer, known| known.proven || Some(*peer) == connected);
            if state.peers.len() >= MAX_PEERS {
                state.peers.retain(|peer, _| Some(*peer) == connected);
            }
        }
        let nic = self.hub.nic();
        let id = Id::new(nic, self.hub.events(), PortSpace::Udp, Kind::UnreliableDatagram, 0);
        let bound = state.udp.as_ref().and_then(|udp| udp.local_addr().ok()).map(plain);
        let bound = bound.filter(|own| !own.ip().is_unspecified() && own.is_ipv4() == address.is_ipv4());
        id.resolve_address(bound.map(|own| SocketAddr::new(own.ip(), 0)), address)?;
        let device = id.device().ok_or(Error(libc::EADDRNOTAVAIL))?;
        id.resolve_route()?;
        let (Some(path), Some(source)) = (id.path(), id.source()) else { return Err(Error(libc::ENETUNREACH)) };
        let context = self.hub.context(&device)?;
        let port = id.port_number();
        let is_on =
            |pair: &Pair| Arc::ptr_eq(pair.context.device(), &device) && pair.qp.port_device().port_number() == port;
        let known = state.pairs.iter().position(is_on);
        let pair = match known {
            Some(pair) => pair,
            None => {
                state.sizes = fitted(state.sizes);
                state.pairs.push(Pair::new(nic, (context, port), &self.channel, &state.sizes)?);
                state.pairs.len() - 1
            }
        };
        let av = AddressVector {
            dgid: path.dgid,
            sgid_index: path.sgid_index,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            service_level: path.service_level,
            port,
            ..AddressVector::default()
        };
        let longest = DATAGRAM_SLOT_BYTES.min(path.mtu.bytes() as usize);
        let peer = Peer { pair, av, source: source.ip(), qpn: None, knows_us: false, proven: false, longest };
        state.peers.insert(address, peer);
        Ok(peer)
    }

    /// Takes what has completed.
    fn progress(&self, state: &mut Inner) {
        let Inner { sizes, pairs, received, connected, peers, .. } = state;
        let mut any = false;
        for pair in pairs {
            let qpn = pair.qp.qpn();
            any |= pair.progress(sizes, |sender, bytes| {
                let from = sender.claimed;
                if !is_proven(peers, &sender) {
                    return self.hub.nic().refuse_datagram(qpn);
                }
                if received.len() < sizes.receive_queue.into() && connected.is_none_or(|peer| same(peer, from)) {
                    received.push_back((from, bytes.to_vec()));
                }
            });
        }
        if any {
            self.waiters.wake();
        }
    }

    /// Something came to the UDP socket.
    fn discovered(self: &Arc<Datagram>, bytes: &[u8], from: SocketAddr) {
        let from = plain(from);
        let Some((header, length)) = DiscoveryHeader::decode(bytes, from.is_ipv4()) else { return };
        let mut state = self.lock();
        // An answer to nothing is no news.
        if header.kind == DiscoveryKind::Answer && !state.peers.contains_key(&from) {
            return;
        }
        let Ok(known) = self.peer(&mut state, from) else { return };
        if let Some(peer) = state.peers.get_mut(&from) {
            peer.qpn = Some(header.qpn);
            peer.knows_us |= header.kind == DiscoveryKind::Answer;
        }
        if header.kind == DiscoveryKind::Data {
            let qpn = state.pairs[known.pair].qp.qpn();
            let answer = discovery(DiscoveryHeader { kind: DiscoveryKind::Answer, qpn, address: known.source });
            if let Some(udp) = &state.udp {
                let _ = udp.send_to(&answer, self.shown(from));
            }
            let wanted = state.connected.is_none_or(|peer| same(peer, from));
            if wanted && state.received.len() < state.sizes.receive_queue.into() {
                let payload = bytes.get(length..).unwrap_or_default().to_vec();
                state.received.push_back((from, payload));
            }
        }
        drop(state);
        self.waiters.wake();
    }
}

/// Whether a datagram is from the socket that it names. The kernel has said of that socket's address which queue pair
/// it has, and the packet came from there: nobody else on its host, or elsewhere, can say so.
fn is_proven(peers: &mut HashMap<SocketAddr, Peer>, sender: &Sender) -> bool {
    let from = plain(sender.claimed);
    let found = match peers.contains_key(&from) {
        true => peers.get_mut(&from),
        // A header has no scope.
        false => {
            peers.iter_mut().find(|(peer, _)| is_link_local(from.ip()) && same(**peer, from)).map(|(_, peer)| peer)
        }
    };
    let Some(peer) = found.filter(|peer| peer.qpn == Some(sender.qpn) && sender.address == from.ip()) else {
        return false;
    };
    peer.proven = true;
    true
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// An address as queue pairs have it: that of an IPv4 host is one of IPv4, also where a socket of IPv6 says it.
fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Whether two addresses are the same peer: a header has no scope.
fn same(one: SocketAddr, other: SocketAddr) -> bool {
    one.ip() == other.ip() && one.port() == other.port()
}

/// Takes what comes to the UDP socket, until the socket has gone.
fn listen(socket: &Weak<Datagram>, udp: &Weak<UdpSocket>) {
    let mut bytes = [0; DATAGRAM_SLOT_BYTES];
    loop {
        let Some(ear) = udp.upgrade() else { return };
        // One that is being closed is woken by the end of what it could read, which has no sender: it must not be asked
        // for one.
        let came = ear.peek(&mut [0]).is_ok();
        let Some(socket) = socket.upgrade().filter(|socket| !socket.closed.load(Ordering::Acquire)) else { return };
        if came && let Ok((length, from)) = ear.recv_from(&mut bytes) {
            socket.discovered(&bytes[..length], from);
        }
    }
}

fn discovery(header: DiscoveryHeader) -> Vec<u8> {
    let mut room = [0; DiscoveryHeader::MAX_LENGTH];
    let length = header.encode(&mut room);
    room[..length].to_vec()
}

/// As many entries as the buffers have room for.
fn fitted(sizes: Sizes) -> Sizes {
    let sizes = endpoint::fitted(sizes);
    let entries = |bytes: u32| u16::try_from(bytes as usize / DATAGRAM_SLOT_BYTES).unwrap_or(u16::MAX).max(1);
    Sizes {
        send_queue: sizes.send_queue.min(entries(sizes.send_buffer)),
        receive_queue: sizes.receive_queue.min(entries(sizes.receive_buffer)),
        ..sizes
    }
}

impl Waitable for Datagram {
    fn nic(&self) -> &Arc<Nic> {
        self.hub.nic()
    }

    fn channel(&self) -> &Arc<CompletionChannel> {
        &self.channel
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    fn arm(&self) {
        for pair in &self.lock().pairs {
            pair.cq.arm(Notify::Any);
        }
    }

    fn readiness(&self) -> Readiness {
        let mut state = self.lock();
        self.progress(&mut state);
        let writable = state.pairs.iter().all(|pair| !pair.free.is_empty());
        Readiness { readable: !state.received.is_empty(), writable, ..Readiness::default() }
    }
}
