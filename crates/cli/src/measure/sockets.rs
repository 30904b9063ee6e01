//! The carriers to compare with: a TCP connection and a Unix stream socket, each used blocking or spinning.

use super::patience::Patience;
use super::{Kind, Run, WaitMode};
use crate::control::Control;
use crate::exit::Failure;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// How long a call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// How many bytes the sink of a stream takes at once.
const SINK_READ_BYTES: usize = 1 << 18;

/// A connected stream.
pub trait Stream: Read + Write {
    fn spin(&self, spin: bool) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn spin(&self, spin: bool) -> io::Result<()> {
        self.set_nonblocking(spin)
    }
}

impl Stream for UnixStream {
    fn spin(&self, spin: bool) -> io::Result<()> {
        self.set_nonblocking(spin)
    }
}

/// The sockets of one side.
pub struct Sockets {
    pub tcp: TcpStream,
    pub unix: Option<UnixStream>,
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |source| Failure::System { what, source }
}

/// Waits for the first side to connect, from `there` to `here`. `tell` is told where.
pub fn accept(
    [mut here, there]: [SocketAddr; 2],
    unix: bool,
    tell: impl FnOnce(u16, Option<String>) -> Result<(), Failure>,
) -> Result<Sockets, Failure> {
    here.set_port(0);
    let listener = TcpListener::bind(here).map_err(system("cannot listen for TCP"))?;
    let place = listener.local_addr().map_err(system("cannot listen for TCP"))?;
    let name = unix.then(|| format!("ubiverbs-bench/{}", std::process::id()));
    let named = |name: &String| UnixListener::bind_addr(&UnixAddress::from_abstract_name(name)?);
    let unix_listener = name.as_ref().map(named).transpose().map_err(system("cannot listen on a Unix socket"))?;
    tell(place.port(), name)?;
    listener.set_nonblocking(true).map_err(system("cannot change a socket"))?;
    // The kernel calls another NIC of the loopback from 127.0.0.1.
    let is_there = |ip: IpAddr| ip == there.ip() || ip.is_loopback() && there.ip().is_loopback();
    let from_there = || match listener.accept() {
        Ok((_, stranger)) if !is_there(stranger.ip()) => Err(io::ErrorKind::WouldBlock.into()),
        other => other,
    };
    let tcp = within_reason(from_there).map_err(system("no TCP connection came"))?.0;
    tcp.set_nodelay(true).map_err(system("cannot set TCP_NODELAY"))?;
    // A side that has connected over TCP has the other before it.
    let accepted = unix_listener.map(|listener| listener.accept()).transpose();
    let unix = accepted.map_err(system("cannot accept on a Unix socket"))?.map(|(stream, _)| stream);
    Ok(Sockets { tcp, unix })
}

/// Waits for a caller, but not for one who cannot reach us.
fn within_reason<T>(mut accept: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + 2 * CALL_TIMEOUT;
    loop {
        match accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other,
        }
    }
}

/// Connects to the second side.
pub fn connect(tcp: SocketAddr, unix: Option<&str>) -> Result<Sockets, Failure> {
    let failed = |source| Failure::Connect { address: format!("{tcp} (TCP, to compare with)"), source };
    let named = |name: &str| UnixStream::connect_addr(&UnixAddress::from_abstract_name(name)?);
    let unix = unix.map(named).transpose().map_err(system("cannot connect to a Unix socket"))?;
    let stream = TcpStream::connect_timeout(&tcp, CALL_TIMEOUT).map_err(failed)?;
    stream.set_nodelay(true).map_err(system("cannot set TCP_NODELAY"))?;
    Ok(Sockets { tcp: stream, unix })
}

/// The first side: one sample per round trip, or the time of the whole stream.
pub fn first(stream: &mut dyn Stream, run: Run, control: &Control, sample: &mut dyn FnMut(u64)) -> Result<(), Failure> {
    let mut patience = Patience::new(control.gone());
    stream.spin(run.point.waiting == WaitMode::Spin).map_err(system("cannot change a socket"))?;
    let out = vec![0x5a; run.point.size];
    let mut back = vec![0; run.point.size];
    let begun = Instant::now();
    match run.point.kind {
        Kind::RoundTrip => {
            for _ in 0..run.count {
                let begun = Instant::now();
                put(stream, &out, &mut patience)?;
                take(stream, &mut back, &mut patience)?;
                sample(begun.elapsed().as_nanos() as u64);
            }
        }
        _ => {
            for _ in 0..run.count {
                put(stream, &out, &mut patience)?;
            }
            take(stream, &mut [0], &mut patience)?;
            sample(begun.elapsed().as_nanos() as u64);
        }
    }
    Ok(())
}

/// The second side.
pub fn second(stream: &mut dyn Stream, run: Run, control: &Control) -> Result<(), Failure> {
    let mut patience = Patience::new(control.gone());
    stream.spin(run.point.waiting == WaitMode::Spin).map_err(system("cannot change a socket"))?;
    match run.point.kind {
        Kind::RoundTrip => {
            let mut buffer = vec![0; run.point.size];
            for _ in 0..run.count {
                take(stream, &mut buffer, &mut patience)?;
                put(stream, &buffer, &mut patience)?;
            }
        }
        _ => {
            let mut buffer = vec![0; SINK_READ_BYTES];
            let mut left = run.count * run.point.size as u64;
            while left > 0 {
                let most = buffer.len().min(left as usize);
                left -= some(stream, &mut buffer[..most], &mut patience)? as u64;
            }
            put(stream, &[1], &mut patience)?;
        }
    }
    Ok(())
}

fn put(stream: &mut dyn Stream, mut bytes: &[u8], patience: &mut Patience<'_>) -> Result<(), Failure> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                patience.renew();
            }
            Err(error) => again(error, patience)?,
        }
    }
    Ok(())
}

fn take(stream: &mut dyn Stream, mut bytes: &mut [u8], patience: &mut Patience<'_>) -> Result<(), Failure> {
    while !bytes.is_empty() {
        let read = some(stream, bytes, patience)?;
        bytes = bytes.get_mut(read..).unwrap_or_default();
    }
    Ok(())
}

fn some(stream: &mut dyn Stream, bytes: &mut [u8], patience: &mut Patience<'_>) -> Result<usize, Failure> {
    loop {
        match stream.read(bytes) {
            Ok(0) => return Err(Failure::PeerGone),
            Ok(read) => {
                patience.renew();
                return Ok(read);
            }
            Err(error) => again(error, patience)?,
        }
    }
}

fn again(error: io::Error, patience: &mut Patience<'_>) -> Result<(), Failure> {
    match error.kind() {
        io::ErrorKind::WouldBlock => patience.wear(),
        io::ErrorKind::Interrupted => Ok(()),
        _ => Err(Failure::PeerGone),
    }
}
