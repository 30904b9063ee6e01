//! The process that cleans up after a program also attends to it: on a socket beside its files, it brings the files of
//! counters up to date and answers `NETLINK_RDMA`. Connections come from the program and its children, through the
//! library that
//! `ubiverbs run` preloads (`crates/paths`); the directory is closed to other users.

use super::tree;
use inventory::{Process, Users};
use netlink::{Device, Host};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recv,
    send, socket_with,
};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use transport::Counters;

/// For how long what the host counted is not asked for again: as long as the kernel's counters live.
const COUNTERS_CACHE_TIME: Duration = Duration::from_millis(10);

/// Connections at a time; more are hung up.
const MOST_CONNECTIONS: usize = 64;

/// A connection that does not read its answers has at most so many bytes of them waiting: more than other users'
/// processes can have told of.
const MOST_WAITING: usize = 256 << 20;

/// The longest datagram of requests.
const LONGEST_REQUEST: usize = 64 << 10;

/// How a program says what it wants: see `crates/paths/src/attendant.rs`.
const NETLINK_REQUEST: &[u8] = b"UbiN";
const COUNTERS_REQUEST: &[u8] = b"UbiCount";

/// Flags of every device, as `ibv_query_device` has them.
const DEVICE_CAPABILITIES: u64 =
    1 << 1 | 1 << 2 | 1 << 7 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 24;

pub struct Attendant {
    directory: PathBuf,
    listener: OwnedFd,
    connections: Vec<Connection>,
    devices: Vec<Device>,
    /// What the files say, and since when.
    counted: (Option<Instant>, BTreeMap<String, Counters>),
}

struct Connection {
    socket: OwnedFd,
    administrator: bool,
    /// Its port, once it has said that it speaks netlink.
    port: Option<u32>,
    /// Answers that it has no room for yet.
    waiting: VecDeque<Vec<u8>>,
}

impl Attendant {
    /// Listens beside these files.
    pub fn new(directory: &Path, names: &[String]) -> io::Result<Attendant> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&listener, &SocketAddrUnix::new(directory.join("attendant"))?)?;
        listen(&listener, 64)?;
        // Processes of all users are asked at the same time.
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        let _ = setrlimit(Resource::Nofile, limit);
        let devices = crate::devices::of_host().unwrap_or_default();
        let described = |name: &String| {
            let device = devices.iter().find(|device| device.name() == name)?;
            Some(Device {
                name: name.clone(),
                guid: device.guid(),
                firmware: env!("CARGO_PKG_VERSION").into(),
                capabilities: DEVICE_CAPABILITIES,
                number: device.number(),
                interface: device.interface_index(),
                interface_name: device.interface_name().into(),
                ports: device.ports().map(|port| port.port().active).collect(),
            })
        };
        let devices = names.iter().filter_map(described).collect();
        let directory = directory.to_owned();
        Ok(Attendant { directory, listener, connections: Vec::new(), devices, counted: Default::default() })
    }

    /// Attends to the program until its process has ended.
    pub fn serve(&mut self, process: &OwnedFd) {
        loop {
            let mut polled = vec![PollFd::new(process, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            polled.extend(self.connections.iter().map(|connection| {
                let more = if connection.waiting.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
                PollFd::new(&connection.socket, PollFlags::IN | more)
            }));
            match poll(&mut polled, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return,
            }
            let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(polled);
            if ready.first() == Some(&true) {
                return;
            }
            let before = std::mem::take(&mut self.connections);
            for (mut connection, ready) in before.into_iter().zip(ready.iter().skip(2)) {
                if !ready || self.attend(&mut connection) {
                    self.connections.push(connection);
                }
            }
            if ready.get(1) == Some(&true) {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        while let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            let Ok(peer) = socket_peercred(&socket) else { continue };
            let own = rustix::process::geteuid();
            if (peer.uid == own || peer.uid.is_root()) && self.connections.len() < MOST_CONNECTIONS {
                let administrator = peer.uid.is_root();
                self.connections.push(Connection { socket, administrator, port: None, waiting: VecDeque::new() });
            }
        }
    }

    /// Returns what has come. False if the connection has ended, or should.
    fn attend(&mut self, connection: &mut Connection) -> bool {
        if !connection.flush() {
            return false;
        }
        let mut buffer = vec![0; LONGEST_REQUEST];
        loop {
            let length = match recv(&connection.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok((length, _)) => length,
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => continue,
                Err(_) => return false,
            };
            let request = buffer.get(..length).unwrap_or_default();
            let answers = match (connection.port, request.strip_prefix(NETLINK_REQUEST)) {
                (Some(port), _) => {
                    let mut host = Present { attendant: self, connection, processes: None };
                    netlink::answer(request, port, &mut host)
                }
                (None, Some(port)) => {
                    let Ok(port) = port.try_into() else { return false };
                    connection.port = Some(u32::from_ne_bytes(port));
                    continue;
                }
                (None, None) if request == COUNTERS_REQUEST => {
                    self.refresh();
                    vec![COUNTERS_REQUEST.to_vec()]
                }
                (None, None) => return false,
            };
            connection.waiting.extend(answers);
            if !connection.flush() {
                return false;
            }
        }
    }

    /// Asks what the host has counted, unless that was a moment ago.
    fn count(&mut self) {
        let now = Instant::now();
        if self.counted.0.is_none_or(|then| now.duration_since(then) >= COUNTERS_CACHE_TIME)
            && let Ok(counters) = inventory::port_counters(Users::All)
        {
            self.counted = (Some(Instant::now()), counters);
        }
    }

    /// Brings the files of counters up to date.
    fn refresh(&mut self) {
        let before = self.counted.1.clone();
        self.count();
        for (name, counters) in &self.counted.1 {
            let (device, port) = port_of(name);
            let has_port = |known: &Device| known.name == device && (1..=known.ports.len() as u32).contains(&port);
            if before.get(name) != Some(counters) && self.devices.iter().any(has_port) {
                // The program sees the old figures then.
                let _ = tree::refresh(&self.directory, device, port, counters);
            }
        }
    }
}

impl Connection {
    /// Sends what waits, as far as there is room. False if the other end has gone, or does not read.
    fn flush(&mut self) -> bool {
        while let Some(answer) = self.waiting.front() {
            match send(&self.socket, answer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => drop(self.waiting.pop_front()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.waiting.iter().map(Vec::len).sum::<usize>() <= MOST_WAITING,
                Err(_) => return false,
            }
        }
        true
    }
}

/// The device and the number of a port, by the name that counts have: `ubi_0/2`, or the device's name for port 1. What
/// other processes call so that is no port's name is a device that there is not.
fn port_of(name: &str) -> (&str, u32) {
    let numbered = name.split_once('/').and_then(|(device, number)| Some((device, number.parse().ok()?)));
    numbered.unwrap_or((name, 1))
}

/// What there is, asked for once for each datagram of requests.
struct Present<'a> {
    attendant: &'a mut Attendant,
    connection: &'a Connection,
    processes: Option<Rc<Vec<Process>>>,
}

impl Host for Present<'_> {
    fn devices(&mut self) -> Vec<Device> {
        let now = crate::devices::of_host().unwrap_or_default();
        let mut devices = self.attendant.devices.clone();
        for device in &mut devices {
            // One that has gone is down.
            let found = now.iter().find(|other| other.name() == device.name);
            let is_up = |port: u8| found.and_then(|found| found.at_port(port)).is_some_and(|port| port.port().active);
            for (number, active) in (1..).zip(&mut device.ports) {
                *active = is_up(number);
            }
        }
        devices
    }

    fn processes(&mut self) -> Rc<Vec<Process>> {
        let gather = || Rc::new(inventory::gather(Users::All).unwrap_or_default());
        Rc::clone(self.processes.get_or_insert_with(gather))
    }

    fn counters(&mut self, device: &str, port: u32) -> Counters {
        self.attendant.count();
        let counted = self.attendant.counted.1.iter().find(|(name, _)| port_of(name) == (device, port));
        counted.map(|(_, counters)| *counters).unwrap_or_default()
    }

    fn is_administrator(&self) -> bool {
        self.connection.administrator
    }
}
