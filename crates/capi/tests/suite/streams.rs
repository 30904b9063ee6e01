//! Streams of the Rust API and programs of the C library talk to each other: it is one protocol.

use crate::library::{Link, alone, directory, on_link, show};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use ubiverbs::stream::blocking::{RdmaListener, RdmaStream};

const LINKS: [Link; 2] = [Link::SharedMemory, Link::Udp];

/// Sizes of transfers, how many there are in one direction before it turns, and how often it does.
const RUNS: [(usize, usize, usize); 4] = [(1, 10, 20), (64, 1, 200), (50_000, 10, 3), (1_000_000, 1, 2)];

/// What `rstream` is told of them, and to look at every byte.
fn rstream(link: Link, (size, count, turns): (usize, usize, usize)) -> Command {
    let mut command = on_link(link, "rstream");
    command.args(["-T", "v", "-S", &size.to_string(), "-C", &count.to_string(), "-I", &turns.to_string()]);
    command
}

fn checked(child: Child) {
    let output = child.wait_with_output().expect("it ends");
    let said = show("rstream", &output);
    assert!(output.status.success() && said.contains("custom") && !said.contains("failed"), "{said}");
}

/// Sends back what comes. The peer may send any amount before it reads: so one thread reads, and one writes.
fn echo(stream: &RdmaStream) {
    let (read, written) = mpsc::channel::<Vec<u8>>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = stream;
            written.into_iter().for_each(|bytes| stream.write_all(&bytes).expect("the peer reads"));
            stream.shutdown(Shutdown::Write)
        });
        let mut stream = stream;
        let mut buffer = vec![0; 1 << 16];
        loop {
            match stream.read(&mut buffer).expect("the peer closes its stream") {
                0 => break drop(read),
                length => read.send(buffer[..length].to_vec()).expect("the other thread writes"),
            }
        }
    });
}

#[test]
fn rstream_gets_back_from_a_rust_stream_what_it_sent() {
    let _turn = alone();
    let listener = RdmaListener::bind("127.0.0.1:0").expect("an address");
    let port = listener.local_addr().expect("bound").port().to_string();
    for (link, run) in LINKS.into_iter().flat_map(|link| RUNS.map(|run| (link, run))) {
        let child = rstream(link, run).args(["-s", "127.0.0.1", "-p", &port]).stdout(Stdio::piped()).spawn();
        echo(&listener.accept().expect("rstream connects").0);
        checked(child.expect("rstream is in rdmacm-utils"));
    }
}

/// A port for `rstream`, of this process, and none that is given to streams that ask for any.
fn port(number: usize) -> u16 {
    (10_000 + std::process::id() % 2_000 * 10) as u16 + number as u16
}

fn connect(address: SocketAddr) -> RdmaStream {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match RdmaStream::connect(address) {
            Ok(stream) => return stream,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
                assert!(Instant::now() < deadline, "rstream does not listen");
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// What `rstream` sends, and wants to get: it counts bytes.
#[derive(Default)]
struct Count(u8);

impl Count {
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let bytes = (0..length).map(|at| self.0.wrapping_add(at as u8)).collect();
        self.0 = self.0.wrapping_add(length as u8);
        bytes
    }
}

#[test]
fn a_rust_stream_gets_from_rstream_what_it_should() {
    let _turn = alone();
    for (number, (link, run)) in LINKS.into_iter().flat_map(|link| RUNS.map(|run| (link, run))).enumerate() {
        let port = port(number);
        let child =
            rstream(link, run).args(["-b", "127.0.0.1", "-p", &port.to_string()]).stdout(Stdio::piped()).spawn();
        let mut stream = connect(SocketAddr::from(([127, 0, 0, 1], port)));
        let (mut sent, mut wanted) = (Count::default(), Count::default());
        let (size, count, turns) = run;
        // Sixteen bytes each way to begin with.
        for length in [16].into_iter().chain([size * count].repeat(turns)) {
            stream.write_all(&sent.bytes(length)).expect("rstream reads");
            let mut came = vec![0; length];
            stream.read_exact(&mut came).expect("rstream writes");
            assert!(came == wanted.bytes(length), "{link:?}, {run:?}");
        }
        assert_eq!(stream.read(&mut [0]).expect("rstream closes its stream"), 0);
        checked(child.expect("rstream is in rdmacm-utils"));
    }
}

#[test]
fn a_program_of_sockets_talks_to_a_rust_stream() {
    let _turn = alone();
    let listener = RdmaListener::bind("127.0.0.1:0").expect("an address");
    let address = listener.local_addr().expect("bound");
    for link in LINKS {
        let mut curl = on_link(link, "curl");
        curl.env("LD_PRELOAD", directory().join("librspreload.so"));
        let child = curl.args(["--silent", "--max-time", "60", &format!("http://{address}/")]).stdout(Stdio::piped());
        let child = child.spawn().expect("timeout runs");
        let body = "r".repeat(300_000);
        thread::scope(|scope| {
            scope.spawn(|| answer(&listener.accept().expect("curl connects").0, &body));
            let output = child.wait_with_output().expect("it ends");
            assert!(output.status.success() && output.stdout == body.as_bytes(), "{}", output.status);
        });
    }
}

/// Answers one request.
fn answer(mut stream: &RdmaStream, body: &str) {
    let mut lines = BufReader::new(stream).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "GET / HTTP/1.1");
    assert!(lines.any(|line| line.expect("text").is_empty()), "the request ends");
    write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}").expect("curl reads");
}
