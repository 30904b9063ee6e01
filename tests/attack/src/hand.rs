//! The attacker's hand: a process of the hostile user, or of root on the stranger's host, that does one thing after the
//! other as the director tells it. It has no NIC: it opens sockets, binds and reaches names, and sends bytes.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use host::descriptor::Descriptor;
use host::passing;
use socket2::{Domain, SockAddr, Socket, Type};
use wire::ROCE_PORT;

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
        let all: Vec<RawFd> = vec![file.as_raw_fd(); descriptors.min(passing::MOST)];
        passing::send(socket, bytes, &all)
    }
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
        ["hear"] => Ok(fingers.hear().to_string()),
        ["let-go"] => {
            *fingers = Fingers::default();
            Ok(String::new())
        }
        _ => Err(format!("not understood: {words:?}").into()),
    }
}
