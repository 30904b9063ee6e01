//! The attacker's hand: a process of the hostile user, or of root on the stranger's host, that does one thing after the
//! other as the director tells it. It has no NIC: it opens sockets, binds and reaches names, and sends bytes.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use host::descriptor::Descriptor;
use host::slots::Slot;
use host::{greeting, passing, shares};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use socket2::{Domain, SockAddr, Socket, Type};
use wire::{Qpn, ROCE_PORT};

use crate::actor::{Actor, Outcome, lines, say};
use crate::craft::{self, Envelope, Way, bytes, hex};
use crate::network::{Host, User};

/// The hand, as the director sees it.
pub struct Hand {
    actor: Actor,
    /// Where its packets go and what they say of their source.
    pub way: Way,
}

impl Hand {
    /// A hand of the hostile user on the victims' own host, whose packets have the victims' own address.
    pub fn attacker(home: &Host) -> Outcome<Hand> {
        Hand::start(home, User::Attacker, home.address, home.address, "plain")
    }

    /// One of the same user, whose packets go to another host.
    pub fn towards(home: &Host, away: &Host) -> Outcome<Hand> {
        Hand::start(home, User::Attacker, home.address, away.address, "plain")
    }

    /// The stranger's, whose packets to `home` seem to come from `from`.
    pub fn stranger(strange: &Host, from: Ipv4Addr, home: &Host) -> Outcome<Hand> {
        let kind = if from == strange.address { "plain" } else { "spoofed" };
        Hand::start(strange, User::Root, from, home.address, kind)
    }

    fn start(host: &Host, user: User, from: Ipv4Addr, to: Ipv4Addr, kind: &str) -> Outcome<Hand> {
        let actor = host.start(user, "hand", &[from.to_string(), to.to_string(), kind.into()])?;
        let mut hand = Hand { actor, way: Way { from, port: 0, to } };
        hand.way.port = hand.actor.hear("port")?.parse()?;
        Ok(hand)
    }

    /// Does something: what it answered, or why it could not.
    pub fn does(&mut self, what: impl std::fmt::Display) -> Outcome<Result<String, String>> {
        self.begin(what);
        self.ended()
    }

    /// Begins to do something that takes a while.
    pub fn begin(&mut self, what: impl std::fmt::Display) {
        self.actor.say("do", what);
    }

    /// What came of it.
    pub fn ended(&mut self) -> Outcome<Result<String, String>> {
        let answer = self.actor.hear("")?;
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("ok", rest) => Ok(Ok(rest.to_owned())),
            ("no", rest) => Ok(Err(rest.to_owned())),
            _ => Err(format!("a hand says {answer:?}").into()),
        }
    }

    /// Does something that must be possible.
    pub fn must(&mut self, what: impl std::fmt::Display) -> Outcome<String> {
        let what = what.to_string();
        self.does(&what)?.map_err(|why| format!("the attacker cannot {what:.60}: {why}").into())
    }

    /// Sends a packet so often.
    pub fn throw(&mut self, packet: &[u8], count: u32) -> Outcome {
        self.must(format_args!("throw {} {count} 0", hex(packet))).map(drop)
    }

    /// How many messages and datagrams came to the names and addresses that it holds.
    pub fn heard(&mut self) -> Outcome<u64> {
        Ok(self.must("hear")?.parse()?)
    }
}

/// What the hand holds.
#[derive(Default)]
struct Fingers {
    held: Vec<UdpSocket>,
    listening: Vec<Socket>,
    accepted: Vec<Descriptor>,
    connected: Vec<Descriptor>,
    heard: u64,
    /// Of TCP: they accept nothing.
    listeners: Vec<std::net::TcpListener>,
    /// Inquiries that came to liars.
    asked: Arc<AtomicU64>,
    locked: Vec<File>,
}

fn unix(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{name}"))
}

fn unix_socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl Fingers {
    fn bind(&mut self, name: &str) -> io::Result<()> {
        let socket = unix_socket()?;
        socket.bind(&unix(name)?)?;
        socket.listen(1024)?;
        self.listening.push(socket);
        Ok(())
    }

    fn connect(&mut self, name: &str) -> io::Result<usize> {
        let socket = unix_socket()?;
        socket.connect(&unix(name)?)?;
        self.connected.push(Descriptor::keep(socket.into()));
        Ok(self.connected.len() - 1)
    }

    fn hear(&mut self) -> u64 {
        let mut buffer = vec![0; 70_000];
        for socket in &self.held {
            while socket.recv_from(&mut buffer).is_ok() {
                self.heard += 1;
            }
        }
        for socket in &self.listening {
            while let Ok((accepted, _)) = socket.accept() {
                let _ = accepted.set_nonblocking(true);
                self.accepted.push(Descriptor::keep(accepted.into()));
            }
        }
        for socket in &self.accepted {
            let mut descriptors = Vec::new();
            while passing::receive(socket, &mut buffer, &mut descriptors).is_ok_and(|length| length > 0) {
                self.heard += 1;
            }
        }
        self.heard
    }

    /// Tells bytes, and passes copies of a descriptor along.
    fn tell(&self, index: usize, bytes: &[u8], descriptors: usize) -> io::Result<()> {
        let socket = self.connected.get(index).ok_or(io::ErrorKind::NotFound)?;
        let file = std::fs::File::open("/dev/zero")?;
        let all: Vec<RawFd> = vec![file.as_raw_fd(); descriptors.min(passing::MAX_DESCRIPTORS_PER_MESSAGE)];
        passing::send(socket, bytes, &all)
    }
}

/// What a liar sends instead of its report.
fn lie(kind: &str) -> Outcome<Option<OwnedFd>> {
    match kind {
        // A word, a version, and a list of as many ports as there is room for.
        "endless" => {
            let memory = File::from(memfd_create("report", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
            memory.set_len(128 << 20)?;
            memory.write_all_at(&[&inventory::report::REPORT_MAGIC[..], &[0xff; 4]].concat(), 0)?;
            fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
            Ok(Some(memory.into()))
        }
        // Whose close waits, if it is the last one.
        "lingering" => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let sends = Socket::from(TcpStream::connect(listener.local_addr()?)?);
            // It is never read.
            std::mem::forget(listener.accept()?);
            sends.set_nonblocking(true)?;
            while sends.send(&[0; 1 << 16]).is_ok() {}
            sends.set_nonblocking(false)?;
            sends.set_linger(Some(Duration::from_secs(600)))?;
            Ok(Some(sends.into()))
        }
        "silent" => Ok(None),
        _ => Err("endless|lingering|silent".into()),
    }
}

/// Answers every question with lies.
fn lies(listening: Vec<Socket>, kind: &str, asked: &AtomicU64) -> Outcome {
    let mut accepted = Vec::new();
    loop {
        for socket in &listening {
            while let Ok((socket, _)) = socket.accept() {
                socket.set_nonblocking(true)?;
                accepted.push(Descriptor::keep(socket.into()));
            }
        }
        for socket in &accepted {
            let mut bytes = [0; 16];
            let length = passing::receive(socket, &mut bytes, &mut Vec::new()).unwrap_or(0);
            if bytes.get(..length).and_then(greeting::kind) == Some(greeting::REPORT_INQUIRY) {
                asked.fetch_add(1, Ordering::Relaxed);
                if let Some(lie) = lie(kind)? {
                    let _ = passing::send(socket, &greeting::of(greeting::REPORT_ANSWER), &[lie.as_raw_fd()]);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes a file of counters with one packet sent, and as many others as said that are named like it, and locks them
/// all.
fn counter_files(fingers: &mut Fingers, count: usize) -> Outcome<String> {
    let uid = rustix::process::geteuid().as_raw();
    let mut counters = inventory::Counters::default();
    counters.traffic.sent_packets = 1;
    inventory::ended::add(&[("ubi_lo".into(), counters)]);
    let own = format!("/dev/shm/ubiverbs-counters-{uid}");
    let others = (1..count).map(|zeros| format!("/dev/shm/ubiverbs-counters-+{}{uid}", "0".repeat(zeros % 200)));
    let others = others.enumerate().map(|(index, name)| if index < 200 { name } else { name.replace('+', "") });
    for name in others {
        std::fs::copy(&own, &name)?;
        fingers.locked.push(File::open(name)?);
    }
    fingers.locked.push(File::open(own)?);
    fingers.locked.iter().try_for_each(File::lock)?;
    Ok(fingers.locked.len().to_string())
}

/// Plays the hand.
pub fn role(arguments: &[String]) -> Outcome {
    let [from, to, kind] = arguments else { return Err("FROM TO plain|spoofed".into()) };
    let (from, to): (Ipv4Addr, Ipv4Addr) = (from.parse()?, to.parse()?);
    more_descriptors();
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    if kind == "spoofed" {
        // Root of a network may send with any source address.
        socket.set_ip_transparent_v4(true)?;
    }
    socket.bind(&SocketAddrV4::new(from, 0).into())?;
    // A descriptor of its own: the conversion loses nothing.
    let socket = UdpSocket::from(OwnedFd::from(socket));
    let way = Way { from, port: socket.local_addr()?.port(), to };
    say("port", way.port);
    let mut fingers = Fingers::default();
    for line in lines() {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        match act(&socket, way, &mut fingers, &words) {
            Ok(answer) => say("ok", answer),
            Err(error) => say("no", error),
        }
    }
    Ok(())
}

/// A socket whose packets have an address that no host has.
fn false_source(last: u8) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    socket.set_ip_transparent_v4(true)?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 100 + last), 0).into())?;
    Ok(UdpSocket::from(OwnedFd::from(socket)))
}

/// As many as the system allows.
fn more_descriptors() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
}

fn act(socket: &UdpSocket, way: Way, fingers: &mut Fingers, words: &[&str]) -> Outcome<String> {
    let to = SocketAddr::from((way.to, ROCE_PORT));
    let throw = |packet: &[u8]| {
        // A full buffer of the system takes nothing for a moment.
        let _ = socket.send_to(packet, to);
    };
    match *words {
        // Sends a packet so often, with so many microseconds between.
        ["throw", packet, count, pause] => {
            let (packet, pause) = (bytes(packet), Duration::from_micros(pause.parse()?));
            for _ in 0..count.parse::<u32>()? {
                throw(&packet);
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
            }
            Ok(String::new())
        }
        // Sends bytes to any port of the host, from this socket.
        ["send", address, packet] => {
            socket.send_to(&bytes(packet), address.parse::<SocketAddr>()?)?;
            Ok(String::new())
        }
        // Requests for connections without end: each has names and a queue pair of its own.
        ["requests", port, count] => {
            let port = port.parse()?;
            let mut state = host::random();
            for number in 0..count.parse::<u32>()? {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let req = craft::req(way, port, (state >> 33) as u32 | 1, (state >> 20) as u32 & 0xff_ffff);
                throw(&way.management(&Envelope::right(state), req));
                if number % 64 == 63 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            Ok(String::new())
        }
        // Requests for sockets within so many milliseconds, from addresses of the network that no host has.
        ["socket-requests", port, count, milliseconds] => {
            let (port, count): (u16, u32) = (port.parse()?, count.parse()?);
            let pause = Duration::from_millis(milliseconds.parse()?) / count;
            let strangers: io::Result<Vec<UdpSocket>> = (1..=64).map(false_source).collect();
            let (strangers, begin) = (strangers?, Instant::now());
            for number in 0..count {
                let socket = &strangers[number as usize % strangers.len()];
                let SocketAddr::V4(from) = socket.local_addr()? else { continue };
                let way = Way { from: *from.ip(), port: from.port(), to: way.to };
                let id = number + 1;
                let packet = way.management(&Envelope::right(id.into()), craft::socket_req(way, port, id));
                let _ = socket.send_to(&packet, to);
                std::thread::sleep((pause * id).saturating_sub(begin.elapsed()));
            }
            Ok(String::new())
        }
        // A datagram for a socket, once its queue pair is known: its header says that it is from another address.
        ["datagram", address, claimed, text] => {
            let mut room = [0; rsocket::DiscoveryHeader::MAX_LENGTH];
            let kind = rsocket::DiscoveryKind::Data;
            let ours = rsocket::DiscoveryHeader { kind, qpn: Qpn::new(0x12_3456), address: way.from.into() };
            let length = ours.encode(&mut room);
            socket.set_read_timeout(Some(Duration::from_secs(20)))?;
            socket.send_to(&room[..length], address.parse::<SocketAddr>()?)?;
            let length = socket.recv(&mut room)?;
            let (answer, _) = rsocket::DiscoveryHeader::decode(&room[..length], true).ok_or("no answer")?;
            let mut header = [0; rsocket::MAX_DATAGRAM_HEADER];
            let length = rsocket::DatagramHeader { source: claimed.parse()? }.encode(&mut header);
            let payload = [&header[..length], text.as_bytes()].concat();
            let key = hca::cm::UDP_QKEY.value();
            throw(&way.packet(&craft::datagram(answer.qpn.value(), key, ours.qpn.value()), &payload));
            Ok(String::new())
        }
        // As many bytes as the system takes, for so many milliseconds.
        ["flood", qpn, milliseconds] => {
            let packet = way.packet(&craft::send(true, qpn.parse()?, 1), &[0x55; 1024]);
            let end = Instant::now() + Duration::from_millis(milliseconds.parse()?);
            let mut count = 0u64;
            while Instant::now() < end {
                (0..64).for_each(|_| throw(&packet));
                count += 64;
            }
            Ok(count.to_string())
        }
        ["hold", address] => {
            let socket = UdpSocket::bind(address.parse::<SocketAddr>()?)?;
            socket.set_nonblocking(true)?;
            fingers.held.push(socket);
            Ok(String::new())
        }
        // Holds all ports of an address that it can get.
        ["hold-ports", address] => {
            let address: std::net::IpAddr = address.parse()?;
            let before = fingers.held.len();
            fingers.held.extend((1024..=u16::MAX).filter_map(|port| UdpSocket::bind((address, port)).ok()));
            Ok((fingers.held.len() - before).to_string())
        }
        ["bind", name] => Ok(fingers.bind(name).map(|()| String::new())?),
        // Binds all names of a kind: those that it got.
        ["squat", prefix, suffix, first, last] => {
            let suffix = suffix.trim_matches('.');
            let got = (first.parse::<u32>()?..=last.parse()?)
                .filter(|number| fingers.bind(&format!("{prefix}{number}{suffix}")).is_ok());
            Ok(got.count().to_string())
        }
        ["connect", name] => Ok(fingers.connect(name)?.to_string()),
        ["connects", name, count] => {
            let made = (0..count.parse::<u32>()?).filter(|_| fingers.connect(name).is_ok()).count();
            Ok(made.to_string())
        }
        ["tell", index, message, descriptors] => {
            fingers.tell(index.parse()?, &bytes(message), descriptors.parse()?)?;
            Ok(String::new())
        }
        // Garbage, with descriptors, over one connection after the other.
        ["garbage", name, count] => {
            let mut told = 0;
            for _ in 0..count.parse::<u32>()? {
                let Ok(index) = fingers.connect(name) else { continue };
                let length = 1 + host::random() as usize % 4096;
                let mut garbage: VecDeque<u8> = (0..length).map(|_| host::random() as u8).collect();
                // Half of it begins like a message.
                if length.is_multiple_of(2) {
                    b"UbiF\x01".iter().rev().for_each(|byte| garbage.push_front(*byte));
                }
                told += u32::from(fingers.tell(index, garbage.make_contiguous(), 3).is_ok());
            }
            Ok(told.to_string())
        }
        // Passes a TCP socket whose last close sleeps so many seconds: it lingers, and its peer reads nothing.
        ["linger", name, seconds] => {
            let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
            let slow = Socket::from(std::net::TcpStream::connect(listener.local_addr()?)?);
            slow.set_nonblocking(true)?;
            slow.set_linger(Some(Duration::from_secs(seconds.parse()?)))?;
            while slow.send(&[0; 65536]).is_ok() {}
            fingers.listeners.push(listener);
            let index = fingers.connect(name);
            let to = index.as_ref().ok().and_then(|index| fingers.connected.get(*index));
            let passed = to.map(|socket| passing::send(socket, b"UbiF", &[slow.as_raw_fd()]));
            // Our own copy is the last one if the victim was quicker.
            std::thread::spawn(move || drop(slow));
            index?;
            passed.ok_or("no connection")??;
            Ok(String::new())
        }
        // Has so many names of slots, and answers those who ask with lies.
        ["lie", kind, count] => {
            let uid = rustix::process::geteuid().as_raw();
            let rightful = (1..=Slot::COUNT).filter_map(Slot::new).filter(|slot| shares::may_have_slot(uid, *slot));
            let count = count.parse()?;
            for slot in rightful {
                let _ = fingers.bind(&format!("ubiverbs/slot/{}", slot.number()));
                if fingers.listening.len() >= count {
                    break;
                }
            }
            let (listening, kind) = (std::mem::take(&mut fingers.listening), kind.to_owned());
            let (bound, asked) = (listening.len(), Arc::clone(&fingers.asked));
            std::thread::spawn(move || lies(listening, &kind, &asked).inspect_err(|error| say("hurt", error)));
            Ok(bound.to_string())
        }
        ["asked"] => Ok(fingers.asked.load(Ordering::Relaxed).to_string()),
        ["counter-files", count] => counter_files(fingers, count.parse()?),
        ["hear"] => Ok(fingers.hear().to_string()),
        ["let-go"] => {
            *fingers = Fingers::default();
            Ok(String::new())
        }
        _ => Err(format!("not understood: {words:?}").into()),
    }
}
