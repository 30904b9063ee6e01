//! How the two sides of a demo or a benchmark find each other: this program starts itself again on the same machine, or
//! it waits for, or calls, another one over TCP. Either way neither side outlives the other: the channel between them
//! ends with the first of them.

use crate::control::{Control, WhenGone};
use crate::exit::{Exit, Failure};
use crate::greeting;
use crate::station::Station;
use clap::{Args, ValueEnum};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

/// Where `--server` listens if no port is said.
const DEFAULT_PORT: u16 = 18515;

/// How long a call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long `--connect` waits for a server that is just being started.
const SERVER_START_TIME: Duration = Duration::from_secs(2);

/// How long the stream may refuse to take a line.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Which two sides there are, and where.
#[derive(Args, Clone, Debug)]
pub struct Ends {
    /// The device to use; `ubiverbs devices` lists them [default: ubi_lo, or the one with the address of --server or
    /// --connect]
    #[arg(long, value_name = "NAME", add = crate::candidates::devices())]
    pub device: Option<String>,
    /// Be the second half: wait at this address (127.0.0.1 if none is given) for a --connect with the same secret, from
    /// another host or network namespace, and end after one run
    #[arg(long, value_name = "ADDRESS[:PORT]", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["connect", "json"])]
    pub server: Option<String>,
    /// Be the first half, and take the --server at this address for the second
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub connect: Option<String>,
    /// How packets travel between the two
    #[arg(long, value_enum, default_value_t = Link::Auto)]
    pub link: Link,
}

/// What `--link` can say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Link {
    /// Shared memory between processes of one host, UDP otherwise
    #[value(alias = "shared")]
    Auto,
    /// UDP, also where something faster exists
    Udp,
}

impl Link {
    /// As `--link` has it.
    fn name(self) -> &'static str {
        match self {
            Link::Auto => "auto",
            Link::Udp => "udp",
        }
    }

    /// Attaches the NIC of this process so; before anything else is done with it.
    fn attach(self) -> Result<(), Failure> {
        match self {
            Link::Auto => Ok(()),
            Link::Udp => Ok(ubiverbs::backend::software_over_udp().map(drop)?),
        }
    }
}

/// The two sides together, seen from one of them.
pub struct Meeting {
    pub control: Control,
    pub station: Station,
    /// What the other side says of itself.
    pub peer: Hello,
    /// They are on one machine, for certain.
    pub local: bool,
    /// Where TCP connections between them begin and end; the ports have no meaning.
    pub tcp: [SocketAddr; 2],
    child: Option<OwnChild>,
    /// What a process and the one that started it share.
    memory: Option<File>,
}

/// What each side says first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The version of what is said after it.
    pub ubiverbs: u32,
    pub process: u32,
    #[serde(deserialize_with = "crate::control::printable")]
    pub device: String,
    pub address: IpAddr,
}

const MEETING_VERSION: u32 = 2;

impl Ends {
    /// The first side, which decides what is done.
    pub fn meet(&self) -> Result<Meeting, Failure> {
        self.link.attach()?;
        match &self.connect {
            None => Meeting::start(self.device.as_deref(), self.link),
            Some(address) => {
                let mut stream = call(address)?;
                greeting::call(&mut stream)?;
                Meeting::over_tcp(stream, self.device.as_deref(), WhenGone::Tell)
            }
        }
    }

    /// The second side: waits for the first.
    pub fn await_caller(&self, command: &str, address: &str, out: &mut impl Write) -> Result<Meeting, Failure> {
        self.link.attach()?;
        if let Some(device) = &self.device {
            // A wrong name is an error now, not when a peer calls.
            Station::open(Some(device), None)?;
        }
        let listener = listen(address)?;
        let place = listener.local_addr().map_err(|source| Failure::System { what: "cannot listen", source })?;
        let at = match place.ip().is_unspecified() {
            true => format!("ADDRESS:{}", place.port()),
            false => place.to_string(),
        };
        let given = greeting::secret();
        let drawn = ::cluster::Secret::draw();
        // What the user has said already is not shown again.
        let with = if given.is_some() { format!("${}", greeting::SECRET_VARIABLE) } else { drawn.clone() };
        let variable = greeting::SECRET_VARIABLE;
        writeln!(
            out,
            "Waiting on {place} for one with the secret: {variable}={with} ubiverbs {command} --connect {at}"
        )
        .and_then(|()| out.flush())
        .map_err(Failure::Output)?;
        let stream = greeting::await_caller(&listener, &given.unwrap_or(drawn))?;
        Meeting::over_tcp(stream, self.device.as_deref(), WhenGone::Leave(Exit::Job as i32))
    }
}

impl Meeting {
    /// Starts this program again, as the second side, whose NIC is attached by this link.
    pub fn start(device: Option<&str>, link: Link) -> Result<Meeting, Failure> {
        let station = Station::open(device, None)?;
        let system = |what| move |source| Failure::System { what, source };
        let (ours, theirs) = UnixStream::pair().map_err(system("cannot make a pair of sockets"))?;
        // By this name it is found whatever happened to its file since it was started.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("ubiverbs").arg("peer").args(["--link", link.name(), "--device", station.context.name()]);
        // It opens nothing that anybody names: what it may use it is started with. Memory takes no room until used.
        let memory = memfd_create("ubiverbs-bench", MemfdFlags::CLOEXEC).map(File::from);
        let memory = memory.map_err(io::Error::from).map_err(system("cannot make memory to share"))?;
        command.stdin(OwnedFd::from(theirs)).stdout(memory.try_clone().map_err(system("cannot share memory"))?);
        let child = OwnChild(command.spawn().map_err(system("cannot start this program again"))?);
        drop(command);
        let control = channel(ours, WhenGone::Tell)?;
        Ok(Meeting { memory: Some(memory), ..Meeting::begin(control, station, Some(child))? })
    }

    /// Whether the second side was started by us.
    pub fn is_own(&self) -> bool {
        self.child.is_some()
    }

    /// Whether the first side has started us.
    pub fn is_child(&self) -> bool {
        self.child.is_none() && self.memory.is_some()
    }

    /// The memory that the two processes share.
    pub fn memory(&self) -> Result<&File, Failure> {
        self.memory.as_ref().ok_or_else(|| Failure::Nonsense("to share memory between hosts".into()))
    }

    /// The second side that [`Ends::meet`] started: its standard input is the channel, its standard output the memory.
    pub fn as_child(device: Option<&str>, link: Link) -> Result<Meeting, Failure> {
        let system = |source| Failure::System { what: "this command is for the program itself", source };
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(system)?);
        stream.peer_addr().map_err(system)?;
        let control = channel(stream, WhenGone::Leave(Exit::Ok as i32))?;
        let memory = Some(File::from(io::stdout().as_fd().try_clone_to_owned().map_err(system)?));
        link.attach()?;
        Ok(Meeting { memory, ..Meeting::begin(control, Station::open(device, None)?, None)? })
    }

    fn over_tcp(stream: TcpStream, device: Option<&str>, when_gone: WhenGone) -> Result<Meeting, Failure> {
        let system = |source| Failure::System { what: "cannot use the connection", source };
        stream.set_nodelay(true).map_err(system)?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT)).map_err(system)?;
        let (here, there) = (stream.local_addr().map_err(system)?, stream.peer_addr().map_err(system)?);
        let station = Station::open(device, Some(here.ip().to_canonical()))?;
        let writer = stream.try_clone().map_err(system)?;
        let mut meeting = Meeting::begin(Control::new(stream, writer, when_gone)?, station, None)?;
        (meeting.tcp, meeting.local) = ([here, there], here.ip() == there.ip());
        Ok(meeting)
    }

    /// Two processes of one machine.
    fn begin(mut control: Control, station: Station, child: Option<OwnChild>) -> Result<Meeting, Failure> {
        let (process, device, address) = (std::process::id(), station.context.name().to_owned(), station.address);
        control.tell(&Hello { ubiverbs: MEETING_VERSION, process, device, address })?;
        let peer: Hello = control.hear()?;
        if peer.ubiverbs != MEETING_VERSION {
            return Err(Failure::Nonsense(format!(
                "that it has version {} of it; this is {MEETING_VERSION}",
                peer.ubiverbs
            )));
        }
        // A link-local address means nothing to TCP without its interface.
        let tcp = match station.address {
            IpAddr::V6(address) if address.is_unicast_link_local() => SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
            address => SocketAddr::from((address, 0)),
        };
        Ok(Meeting { control, station, peer, local: true, tcp: [tcp; 2], child, memory: None })
    }

    /// Says farewell and waits for a peer that is our child.
    pub fn end(mut self) {
        self.control.farewell();
        if let Some(child) = &mut self.child {
            child.wait_a_little();
        }
    }
}

/// A child that does not outlive us.
struct OwnChild(Child);

impl OwnChild {
    fn wait_a_little(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline && matches!(self.0.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for OwnChild {
    fn drop(&mut self) {
        // It has ended already where all went well; then both do nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn channel(stream: UnixStream, when_gone: WhenGone) -> Result<Control, Failure> {
    let system = |source| Failure::System { what: "cannot use the pair of sockets", source };
    stream.set_write_timeout(Some(WRITE_TIMEOUT)).map_err(system)?;
    Control::new(stream.try_clone().map_err(system)?, stream, when_gone)
}

fn call(text: &str) -> Result<TcpStream, Failure> {
    let deadline = Instant::now() + SERVER_START_TIME;
    let addresses = resolve(text, "")?;
    loop {
        let mut refused = None;
        for address in &addresses {
            match TcpStream::connect_timeout(address, CALL_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(source) => refused = Some((address, source)),
            }
        }
        let (address, source) = match refused {
            Some((_, source)) if source.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(50));
                continue;
            }
            Some((address, source)) => (address.to_string(), source),
            None => (text.to_owned(), io::ErrorKind::NotFound.into()),
        };
        return Err(Failure::Connect { address, source });
    }
}

fn listen(text: &str) -> Result<TcpListener, Failure> {
    let addresses = resolve(text, "127.0.0.1")?;
    let mut refused = io::Error::from(io::ErrorKind::NotFound);
    let mut place = text.to_owned();
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(source) => {
                let busy = source.kind() == io::ErrorKind::AddrInUse;
                (refused, place) = (source, address.to_string());
                if busy {
                    break;
                }
            }
        }
    }
    Err(Failure::Listen { address: place, source: refused })
}

fn resolve(text: &str, default_host: &str) -> Result<Vec<SocketAddr>, Failure> {
    let failed = |source| Failure::Address { text: text.to_owned(), source };
    let (host, port) = split(text).ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    let host = if host.is_empty() { default_host } else { host };
    Ok((host, port).to_socket_addrs().map_err(failed)?.collect())
}

/// Host and port of `host`, `host:port`, `:port`, an IPv6 address, or one in brackets with a port. None if the port is
/// no port.
fn split(text: &str) -> Option<(&str, u16)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        let port = port.strip_prefix(':').map_or(Some(DEFAULT_PORT), |port| port.parse().ok())?;
        return Some((host, port));
    }
    match text.split_once(':') {
        // More than one colon: an IPv6 address.
        Some((_, port)) if port.contains(':') => Some((text, DEFAULT_PORT)),
        Some((host, port)) => Some((host, port.parse().ok()?)),
        None => Some((text, DEFAULT_PORT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_with_and_without_port() {
        for (text, host, port) in [
            ("10.0.0.1", "10.0.0.1", DEFAULT_PORT),
            ("10.0.0.1:7", "10.0.0.1", 7),
            ("fe80::1%eth0", "fe80::1%eth0", DEFAULT_PORT),
            ("::1", "::1", DEFAULT_PORT),
            ("[::1]:9", "::1", 9),
            ("[::1]", "::1", DEFAULT_PORT),
            ("host:80", "host", 80),
            (":80", "", 80),
            ("", "", DEFAULT_PORT),
        ] {
            assert_eq!(split(text), Some((host, port)), "{text}");
        }
        for wrong in ["host:", "host:http", "host:65536", "[::1]:x", "[::1"] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
    }
}
